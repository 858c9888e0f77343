//! `coracle boot`: what each pod waited for before it started, and how long.

use std::process::ExitCode;

use serde_json::Value;

use super::args::OutputArgs;
use super::client::Client;
use super::error::{CliError, Result};
use super::put;
use super::table::Table;
use crate::types::InOrder;

const PATH: &str = "/coracle/v1/boot";

pub(super) fn run(client: &Client, args: &OutputArgs) -> Result<ExitCode> {
    let shown = client.json("GET", PATH, None)?;
    let text = match args.output {
        Some(_) => {
            let json = serde_json::to_string_pretty(&shown);
            json.map_err(|e| CliError::new("could not print").because(e))? + "\n"
        }
        None => table(&shown),
    };
    put(text.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

/// The pod that waited longest comes first. Each further item of a pod has a line of its own.
fn table(shown: &Value) -> String {
    let mut pods: Vec<&Value> = list(&shown["items"]).collect();
    let waited = |pod: &Value| pod["waitedSeconds"].as_f64().unwrap_or(0.0);
    pods.order_by(|one, other| {
        let by_name = || name(one).cmp(&name(other));
        waited(other).total_cmp(&waited(one)).then_with(by_name)
    });
    let mut rows = Vec::new();
    for pod in pods {
        let admitted = match (pod["admittedSeconds"].as_f64(), pod["waiting"].as_str()) {
            (Some(at), _) => format!("{at:.1}s"),
            (None, Some(reason)) => reason.to_owned(),
            (None, None) => "<none>".to_owned(),
        };
        let mut first = [format!("{:.1}s", waited(pod)), name(pod), admitted].to_vec();
        let none = ["<none>".to_owned(), String::new()];
        let items: Vec<[String; 2]> = list(&pod["items"]).map(item).collect();
        let items = if items.is_empty() { vec![none] } else { items };
        for cells in items {
            first.extend(cells);
            rows.push(std::mem::replace(&mut first, vec![String::new(); 3]));
        }
    }
    let header = ["WAITED", "POD", "ADMITTED", "AFTER", "FOR"];
    Table::default().render(&header, &rows)
}

fn item(item: &Value) -> [String; 2] {
    let seconds = item["seconds"].as_f64().unwrap_or(0.0);
    let how = match item["state"].as_str() {
        Some("timedOut") => " (timed out)",
        Some("missing") => " (still missing)",
        _ => "",
    };
    let after = item["after"].as_str().unwrap_or_default().to_owned();
    [after, format!("{seconds:.1}s{how}")]
}

fn name(pod: &Value) -> String {
    let word = |field: &str| pod[field].as_str().unwrap_or_default().to_owned();
    format!("{}/{}", word("namespace"), word("name"))
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_longest_wait_comes_first_and_each_item_has_a_line() {
        let shown = json!({ "items": [
            { "namespace": "default", "name": "db", "waitedSeconds": 0.0, "admittedSeconds": 12.34, "items": [] },
            { "namespace": "default", "name": "web", "waitedSeconds": 30.04, "admittedSeconds": 42.4, "items": [
                { "after": "default/db:ready", "seconds": 2.5, "state": "there" },
                { "after": "mount:/data", "seconds": 30.0, "state": "timedOut" },
            ] },
            { "namespace": "a", "name": "x", "waitedSeconds": 7.0, "admittedSeconds": null,
              "waiting": "WaitingForDependencies", "items": [
                { "after": "time-sync", "seconds": 7.0, "state": "missing" },
            ] },
        ] });
        let expected = "\
WAITED   POD           ADMITTED                 AFTER              FOR
30.0s    default/web   42.4s                    default/db:ready   2.5s
                                                mount:/data        30.0s (timed out)
7.0s     a/x           WaitingForDependencies   time-sync          7.0s (still missing)
0.0s     default/db    12.3s                    <none>
";
        assert_eq!(table(&shown), expected);
    }
}
