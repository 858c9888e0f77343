//! `coracle delete pod`: requests deletion, then waits until that pod (by UID) is gone or started again.

use std::process::ExitCode;
use std::time::Duration;

use serde_json::{Value, json};

use super::args::{DeleteArgs, DryRun};
use super::client::Client;
use super::error::{CliError, Result};
use super::similar::{nothing_in, with_hint};
use super::{pod_path, put};
use crate::api::encode;

pub(super) fn run(client: &Client, args: &DeleteArgs) -> Result<ExitCode> {
    let ns = &args.namespace.namespace;
    let names = match args.all {
        true if !args.names()?.is_empty() => {
            return Err(CliError::usage("either names or --all"));
        }
        true => all_names(client, ns)?,
        false => args.names()?,
    };
    if names.is_empty() && !args.all {
        return Err(CliError::usage("say which pods, or --all"));
    }
    if names.is_empty() {
        nothing_in(client, ns);
    }
    let grace = grace(args.grace_period, args.force, args.now);
    let (mut first_error, mut waiting) = (None, Vec::new());
    for name in &names {
        let path = pod_path(ns, name);
        let options = match grace {
            Some(seconds) => json!({ "gracePeriodSeconds": seconds }),
            None => json!({}),
        };
        let query = format!("{path}?force={}", args.force);
        let (answer, dry) = match args.dry_run.dry_run {
            DryRun::None => (client.json("DELETE", &query, Some(&options)), ""),
            DryRun::Client => (client.get(&path), " (dry run)"),
            DryRun::Server => {
                let query = format!("{query}&dryRun=All");
                let answer = client.json("DELETE", &query, Some(&options));
                (answer, " (server dry run)")
            }
        };
        match answer {
            Ok(pod) => {
                let how = if args.force { " force" } else { "" };
                put(format!("pod \"{name}\"{how} deleted{dry}\n").as_bytes())?;
                if dry.is_empty() {
                    waiting.push((name.clone(), pod));
                }
            }
            Err(error) => {
                first_error.get_or_insert(error.exit_code());
                eprintln!("{}", with_hint(client, error));
            }
        }
    }
    if args.wait {
        for (name, pod) in waiting {
            wait(client, ns, &name, &pod)?;
        }
    }
    Ok(first_error.map_or(ExitCode::SUCCESS, ExitCode::from))
}

/// The grace period to request. Without `--force`, 0 means 1, as in kubectl.
fn grace(given: Option<u32>, force: bool, now: bool) -> Option<u32> {
    match (given, force) {
        _ if now => Some(1),
        (given, true) => Some(given.unwrap_or(0)),
        (Some(given), false) => Some(given.max(1)),
        (None, false) => None,
    }
}

fn all_names(client: &Client, ns: &str) -> Result<Vec<String>> {
    let list = client.get(&pod_path(ns, ""))?;
    let items = list["items"].as_array().into_iter().flatten();
    Ok(items
        .filter_map(|p| p["metadata"]["name"].as_str().map(str::to_owned))
        .collect())
}

/// Waits until the pod is gone or a new pod has its name. A UID set in the manifest stays the same; then the start time
/// tells the two apart.
fn wait(client: &Client, ns: &str, name: &str, before: &Value) -> Result<()> {
    let field = format!("metadata.name={name}");
    let path = format!(
        "{}?watch=true&fieldSelector={}",
        pod_path(ns, ""),
        encode(&field)
    );
    let mut seen = false;
    let mut has_stopped = |pod: &Value| {
        let deleting = !pod["metadata"]["deletionTimestamp"].is_null();
        seen |= deleting;
        let other = pod["metadata"]["uid"] != before["metadata"]["uid"];
        other || !deleting && (seen || is_new_run(before, pod))
    };
    let watch = match client.send("GET", &path, None) {
        Ok(watch) => watch,
        // The agent accepts no more watches: poll instead.
        Err(error) if error.is_busy() => loop {
            match client.get(&pod_path(ns, name)) {
                Ok(pod) if has_stopped(&pod) => return Ok(()),
                Ok(_) => std::thread::sleep(AGAIN),
                Err(error) if error.exit_code() == NOT_FOUND => return Ok(()),
                Err(error) => return Err(error),
            }
        },
        Err(error) => return Err(error),
    };
    // A watch does not report a pod that has gone before it began.
    match client.get(&pod_path(ns, name)) {
        Ok(pod) if has_stopped(&pod) => return Ok(()),
        Ok(_) => {}
        Err(error) if error.exit_code() == NOT_FOUND => return Ok(()),
        Err(error) => return Err(error),
    }
    for line in watch.body.lines() {
        let line = line.map_err(|e| CliError::new("lost the agent").because(e))?;
        let change: Value = serde_json::from_str(&line).unwrap_or_default();
        if change["type"] == "DELETED" || has_stopped(&change["object"]) {
            return Ok(());
        }
    }
    Ok(())
}

/// Poll interval where a watch is not possible.
const AGAIN: Duration = Duration::from_millis(500);

/// Exit code for a pod that does not exist.
const NOT_FOUND: u8 = 3;

fn is_new_run(before: &Value, now: &Value) -> bool {
    let start = |pod: &Value| pod["status"]["startTime"].clone();
    // A held pod has no start time, and nothing to stop.
    start(now).is_null()
        || start(before) != start(now)
        || ["Succeeded", "Failed"]
            .iter()
            .any(|p| now["status"]["phase"] == *p)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_zero_grace_period_requires_force() {
        for (given, force, now, expected) in [
            (None, false, false, None),
            (Some(0), false, false, Some(1)),
            (Some(5), false, false, Some(5)),
            (None, true, false, Some(0)),
            (Some(0), true, false, Some(0)),
            (Some(5), true, false, Some(5)),
            (None, false, true, Some(1)),
        ] {
            assert_eq!(
                grace(given, force, now),
                expected,
                "{given:?} {force} {now}"
            );
        }
    }
}
