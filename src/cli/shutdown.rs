//! `coracle shutdown`: stops all pods before the machine goes down, for machines without logind, and shows the plan.

use std::process::ExitCode;

use serde_json::Value;

use super::args::{JsonOnly, ShutdownArgs};
use super::client::Client;
use super::error::{CliError, Result};
use super::put;
use super::table::Table;

const PATH: &str = "/coracle/v1/shutdown";

pub(super) fn run(client: &Client, args: &ShutdownArgs) -> Result<ExitCode> {
    if args.plan {
        let shown = client.get(PATH)?;
        return match args.output {
            Some(JsonOnly::Json) => {
                put(format!("{shown}\n").as_bytes())?;
                Ok(ExitCode::SUCCESS)
            }
            None => plan(&shown),
        };
    }
    if args.cancel {
        client.json("DELETE", PATH, None)?;
        put(b"the shutdown was called off, pods start again\n")?;
        return Ok(ExitCode::SUCCESS);
    }
    begin(client)
}

fn begin(client: &Client) -> Result<ExitCode> {
    let response = client.send("POST", PATH, None)?;
    for line in response.body.lines() {
        let line = line.map_err(|e| lost().because(e))?;
        let step: Value = serde_json::from_str(&line).unwrap_or_default();
        match step["type"].as_str() {
            Some("group") => {
                let text = format!(
                    "stopping pods of priority {} and above: at most {} s\n",
                    step["priority"], step["seconds"]
                );
                put(text.as_bytes())?;
            }
            Some("ended") => {
                put(b"all pods have stopped, or had their time\n")?;
                return Ok(ExitCode::SUCCESS);
            }
            Some("cancelled") => return Err(CliError::new("the shutdown was called off")),
            _ => {}
        }
    }
    Err(lost())
}

fn lost() -> CliError {
    CliError::new("lost the agent while pods were stopping")
        .hint("the shutdown continues when the agent is back; the same command waits for its end")
}

fn plan(shown: &Value) -> Result<ExitCode> {
    let mut rows = Vec::new();
    for group in shown["groups"].as_array().into_iter().flatten() {
        let pods = group["pods"].as_array().into_iter().flatten();
        let pods: Vec<&str> = pods.filter_map(Value::as_str).collect();
        let pods = match pods.is_empty() {
            true => "<none>".to_owned(),
            false => pods.join(","),
        };
        let cell = |name: &str| group[name].to_string();
        rows.push(vec![
            cell("priority"),
            cell("shutdownGracePeriodSeconds"),
            pods,
        ]);
    }
    let total = shown["totalSeconds"].as_u64().unwrap_or(0);
    let logind = &shown["logind"];
    let waits = logind["inhibitDelayMaxSeconds"].as_u64().unwrap_or(0);
    let verdict = match logind["state"].as_str() {
        _ if total == 0 => {
            "graceful shutdown is off: set shutdownGracePeriod in the settings".to_owned()
        }
        Some("waits") if logind["enough"] == true => {
            format!("{total} s in total; logind waits up to {waits} s: enough")
        }
        Some("waits") => format!(
            "{total} s in total, but logind waits {waits} s only, and {} s are needed: {}",
            total + 1,
            logind["hint"]
                .as_str()
                .unwrap_or("raise its InhibitDelayMaxSec")
        ),
        _ => format!(
            "{total} s in total; machine shutdown will not be delayed ({}): run `coracle shutdown` before",
            logind["message"].as_str().unwrap_or("logind is not asked")
        ),
    };
    let under_way = match shown["underWay"]["ended"].as_str() {
        _ if shown["underWay"].is_null() => "",
        None => "a shutdown is under way\n",
        Some(_) => "a shutdown has ended; `coracle shutdown --cancel` starts the pods again\n",
    };
    let table = Table::default().render(&["PRIORITY", "SECONDS", "PODS"], &rows);
    let table = if rows.is_empty() { "" } else { &table };
    put(format!("{table}{verdict}\n{under_way}").as_bytes())?;
    Ok(ExitCode::SUCCESS)
}
