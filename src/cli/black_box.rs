//! `coracle blackbox`: what the black box has, read from its file, with or without an agent.

use std::fs;
use std::process::ExitCode;

use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use super::args::BlackBoxArgs;
use super::client::Client;
use super::error::{CliError, Result};
use super::table::Table;
use super::{directories, put};
use crate::effects::black_box::{Slot, read};
use crate::types::Wall;

pub(super) fn run(client: &Client, args: &BlackBoxArgs) -> Result<ExitCode> {
    let path = match &args.file {
        Some(path) => path.clone(),
        None => {
            let layout = directories::find(client, (None, None, None)).layout;
            layout.black_box()
        }
    };
    let failed = || CliError::new(format!("could not read `{}`", path.display()));
    let slots = read(&path, true).map_err(|error| failed().because(error))?;
    // The agent's own is made with its first entry; one that is named should be there.
    if args.file.is_some() && slots.is_empty() {
        let size = fs::metadata(&path).map_err(|error| failed().because(error))?;
        if size.len() > 0 {
            return Err(failed().because("there is no black box in it"));
        }
    }
    let wanted = |slot: &&Slot| match &args.pod {
        Some(pod) => {
            let (namespace, name) = slot.entry.pod.split_once('/').unwrap_or_default();
            slot.entry.pod == *pod || namespace == "default" && name == pod
        }
        None => true,
    };
    let slots: Vec<&Slot> = slots.iter().filter(wanted).collect();
    let text = match args.output.output {
        Some(_) => as_json(&slots),
        None if slots.is_empty() => "nothing is recorded\n".to_owned(),
        None => table(&slots, args.logs),
    };
    put(text.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

/// All of it, oldest first.
pub(super) fn as_json(slots: &[&Slot]) -> String {
    let each = slots.iter().map(|slot| {
        let entry = &slot.entry;
        let (namespace, pod) = entry.pod.split_once('/').unwrap_or_default();
        json!({
            "time": time(entry.at), "firstTime": time(entry.first), "count": entry.count,
            "reason": entry.reason, "message": entry.message,
            "namespace": namespace, "pod": pod, "uid": entry.uid, "container": entry.container,
            "attempt": entry.attempt, "exitCode": entry.code, "bootID": entry.boot,
            "output": String::from_utf8_lossy(&slot.output),
        })
    });
    let items: Vec<Value> = each.collect();
    format!("{:#}\n", json!({ "items": items }))
}

fn time(at: Wall) -> String {
    let at = Timestamp::from_microsecond(at.0).unwrap_or_default();
    at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// Oldest first; the output of each below it if that is asked for.
pub(super) fn table(slots: &[&Slot], logs: bool) -> String {
    let header = ["TIME", "COUNT", "OBJECT", "REASON", "EXIT", "MESSAGE"];
    let rows: Vec<Vec<String>> = slots
        .iter()
        .map(|slot| {
            let entry = &slot.entry;
            let (object, code) = match (entry.pod.as_str(), entry.container.as_str()) {
                ("", _) => ("node".to_owned(), String::new()),
                (pod, "") => (pod.to_owned(), String::new()),
                (pod, container) => (format!("{pod}/{container}"), entry.code.to_string()),
            };
            let (count, reason) = (entry.count.to_string(), entry.reason.clone());
            vec![
                time(entry.at),
                count,
                object,
                reason,
                code,
                clean(entry.message.trim()),
            ]
        })
        .collect();
    let text = Table::default().render(&header, &rows);
    if !logs {
        return text;
    }
    let mut lines = text.lines();
    let mut shown = format!("{}\n", lines.next().unwrap_or_default());
    for (line, slot) in lines.zip(slots) {
        shown.push_str(line);
        shown.push('\n');
        for line in String::from_utf8_lossy(&slot.output).lines() {
            shown.push_str(&format!("    {}\n", clean(line)));
        }
    }
    shown
}

/// A container's text on one line; it must not control the terminal.
fn clean(text: &str) -> String {
    let each = text.chars().map(|c| match c {
        '\t' => " ".to_owned(),
        // Marks that change the direction of text could disguise it.
        c if c.is_control() || matches!(c, '\u{200e}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}') => {
            c.escape_unicode().to_string()
        }
        c => c.to_string(),
    });
    each.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::black_box::Entry;

    #[test]
    fn entries_are_shown_oldest_first_and_control_no_terminal() {
        let node = Slot {
            index: 0,
            number: 1,
            entry: Entry::new("UncleanShutdown", "Node box lost power", Wall(0)),
            output: Vec::new(),
        };
        let exit = Slot {
            index: 1,
            number: 2,
            entry: Entry {
                pod: "default/web".to_owned(),
                container: "main".to_owned(),
                code: 7,
                count: 12,
                ..Entry::new("Error", "disk\u{1b}[2J full\n", Wall(60_000_000))
            },
            output: b"one\x1b]0;title\x07\ntwo\xff\n".to_vec(),
        };
        let expected = "\
TIME                   COUNT   OBJECT             REASON            EXIT   MESSAGE
1970-01-01T00:00:00Z   1       node               UncleanShutdown          Node box lost power
1970-01-01T00:01:00Z   12      default/web/main   Error             7      disk\\u{1b}[2J full
    one\\u{1b}]0;title\\u{7}
    two\u{fffd}
";
        assert_eq!(table(&[&node, &exit], true), expected);
    }
}
