//! `coracle healthcheck`: whether this boot is healthy, for programs that confirm it or go back to the former system.

mod history;
mod verdict;

use std::process::ExitCode;
use std::sync::mpsc;
use std::time::Duration;

use serde_json::{Value, json};

use super::args::HealthArgs;
use super::client::Client;
use super::directories;
use super::error::{CliError, Result};
use super::put;
use crate::sys::{clock, file};
use crate::types::duration_ms;
use verdict::{File, Seen};
pub(super) use verdict::{Problem, START_ERROR, cause, phase};

/// How long the agent may take to answer. It answers at once unless it hangs.
const ANSWER: Duration = Duration::from_secs(10);

/// How long it may take at least, however little of `--within` is left.
const LEAST: Duration = Duration::from_secs(1);

/// Between two looks.
const AGAIN: Duration = Duration::from_secs(1);

/// The longest manifest that is searched for the annotation.
const MAX_MANIFEST: u64 = 16 << 20;

pub(super) fn run(client: &Client, args: &HealthArgs) -> Result<ExitCode> {
    let within = match &args.within {
        Some(text) => duration_ms(text).ok_or_else(|| {
            CliError::usage(format!("`{text}` is no duration")).hint("--within 90s, --within 2m")
        })?,
        None => 0,
    };
    let record = |hangs: bool| match &args.record {
        Some(path) => path.clone(),
        // An agent that hangs is not asked once more.
        None if hangs => directories::find_without_answer(client)
            .layout
            .unhealthy_boots(),
        None => {
            let found = directories::find(client, (None, None, None));
            found.layout.unhealthy_boots()
        }
    };
    if args.history {
        return history::show(&record(false), args.output.output.is_some());
    }
    let begin = clock::now();
    let judged = loop {
        let left = || {
            let passed = clock::now().duration_since(begin);
            Duration::from_millis(within).saturating_sub(passed)
        };
        let patience = match within {
            0 => ANSWER,
            _ => left().clamp(LEAST, ANSWER),
        };
        let judged = judge(client, patience);
        let left = left();
        if judged.is_ok() || left.is_zero() {
            break judged;
        }
        // The agent may not be there yet, so there is nothing to watch.
        std::thread::sleep(AGAIN.min(left));
    };
    if let Err(problems) = &judged {
        let path = record(problems.iter().any(|problem| problem.about == "agent"));
        if let Err(error) = history::add(&path, problems) {
            let path = path.display();
            eprintln!("warning: could not record this in `{path}`: {error}, ignoring");
        }
    }
    // Last, and whatever becomes of it: a log on a full disk is no reason to go back to another system.
    if !args.quiet {
        let _ = put(shown(&judged, args.output.output.is_some()).as_bytes());
    }
    Ok(match judged {
        Ok(_) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    })
}

/// One line for people, or JSON.
fn shown(judged: &std::result::Result<String, Vec<Problem>>, as_json: bool) -> String {
    let problems = judged.as_ref().err().map_or(&[][..], Vec::as_slice);
    match (judged, as_json) {
        (_, true) => {
            let problems: Vec<Value> = problems
                .iter()
                .map(|p| json!({ "about": p.about, "message": p.message }))
                .collect();
            format!(
                "{:#}\n",
                json!({ "healthy": judged.is_ok(), "problems": problems })
            )
        }
        (Ok(what), false) => format!("healthy: {what}\n"),
        (Err(_), false) => {
            let all: Vec<String> = problems.iter().map(Problem::to_string).collect();
            format!("not healthy: {}\n", all.join("; "))
        }
    }
}

/// Asks the agent, and decides.
fn judge(client: &Client, patience: Duration) -> std::result::Result<String, Vec<Problem>> {
    let asked = client.clone();
    let seen = in_time(patience, move || look(&asked)).unwrap_or_else(|| {
        let seconds = patience.as_secs();
        Err(CliError::new(format!(
            "the agent has not answered within {seconds} s"
        )))
    });
    match seen {
        Ok(seen) => verdict::of(&seen),
        Err(error) => Err(vec![Problem::new("agent", error.in_one_line())]),
    }
}

fn look(client: &Client) -> Result<Seen> {
    // Before the pods: a pod of a file that was read is there.
    let files = client.get("/coracle/v1/files")?;
    let items = |value: &mut Value| match value["items"].take() {
        Value::Array(items) => items,
        _ => Vec::new(),
    };
    let (mut nodes, mut pods) = (client.get("/api/v1/nodes")?, client.get("/api/v1/pods")?);
    let of_files = files["items"].as_array().into_iter().flatten();
    Ok(Seen {
        read: files["read"] != false,
        files: of_files.map(of_file).collect(),
        node: items(&mut nodes).into_iter().next().unwrap_or_default(),
        pods: items(&mut pods),
    })
}

/// A rejected file is not understood. Whether it has a required pod is therefore found by its text.
fn of_file(status: &Value) -> File {
    let path = status["path"].as_str().unwrap_or_default().to_owned();
    let rejected = status["state"] == "Rejected";
    let text = match rejected {
        true => file::read_bounded(&path, MAX_MANIFEST).ok(),
        false => None,
    };
    File {
        may_require: rejected && text.is_none_or(|text| verdict::may_require(&text)),
        error: status["errors"][0].as_str().unwrap_or_default().to_owned(),
        path,
    }
}

/// Runs this on a thread, which ends with the process at the latest; `None` if it takes too long.
fn in_time<T: Send + 'static>(
    patience: Duration,
    what: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let (done, wait) = mpsc::channel();
    std::thread::spawn(move || done.send(what()));
    wait.recv_timeout(patience).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_searched_may_require_a_pod() {
        let dir = std::env::temp_dir();
        for (path, state, expected) in [
            (dir.as_path(), "Rejected", true),
            (&dir.join("coracle-no-such-file"), "Rejected", true),
            (std::path::Path::new("/dev/null"), "Loaded", false),
        ] {
            let status = json!({ "path": path, "state": state, "errors": ["why"] });
            let file = of_file(&status);
            assert_eq!(
                (file.may_require, &*file.error),
                (expected, "why"),
                "{path:?}"
            );
        }
    }
}
