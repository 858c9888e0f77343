//! `coracle delete pod`: requests deletion, then waits until that pod (by UID) is gone or started again.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::args::{DeleteArgs, DryRun};
use super::chosen::is_blank;
use super::client::Client;
use super::error::{CliError, Result};
use super::similar::{nothing_in, with_hint};
use super::{pod_path, put};
use crate::api::encode;
use crate::sys::clock;
use crate::types::duration_ms;

pub(super) fn run(client: &Client, args: &DeleteArgs) -> Result<ExitCode> {
    let ns = &args.namespace.namespace;
    let patience = patience(&args.timeout)?;
    let names = chosen(client, args)?;
    let wide = args.all || args.selector.is_some();
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
            // One of all may have gone meanwhile.
            Err(error) if error.exit_code() == NOT_FOUND && (args.ignore_not_found || wide) => {}
            Err(error) => {
                first_error.get_or_insert(error.exit_code());
                eprintln!("{}", with_hint(client, error));
            }
        }
    }
    if args.wait {
        for (name, pod) in waiting {
            let end = patience.map(|patience| clock::now() + patience);
            wait(client, ns, &name, &pod, end)?;
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

/// How long to wait for each pod; `None`: as long as it takes, as with kubectl's zero.
fn patience(text: &str) -> Result<Option<Duration>> {
    let ms = duration_ms(text).ok_or_else(|| {
        CliError::usage(format!("--timeout `{text}` is not a duration"))
            .hint("write it as in 90s, 5m or 1h30m; 0 waits as long as it takes")
    })?;
    Ok((ms > 0).then(|| Duration::from_millis(ms)))
}

/// The pods that are named, or all of the namespace, or those with the labels.
fn chosen(client: &Client, args: &DeleteArgs) -> Result<Vec<String>> {
    let names = args.names()?;
    let wide = args.all || args.selector.is_some();
    // A shell variable that is not set must not choose all pods.
    let blank = args.selector.as_deref().is_some_and(is_blank);
    match (names.is_empty(), wide) {
        (true, _) if blank || !wide => {
            let error = CliError::usage("say which pods, or --all, or -l SELECTOR");
            return Err(error);
        }
        (false, true) => return Err(CliError::usage("either names, or --all or -l")),
        (false, false) => return Ok(names),
        (true, _) => {}
    }
    let selector = encode(args.selector.as_deref().unwrap_or_default());
    let path = pod_path(&args.namespace.namespace, "");
    let list = client.get(&format!("{path}?labelSelector={selector}"))?;
    let items = list["items"].as_array().into_iter().flatten();
    Ok(items
        .filter_map(|p| p["metadata"]["name"].as_str().map(str::to_owned))
        .collect())
}

/// Waits until the pod is gone or a new pod has its name. A UID set in the manifest stays the same; then the start time
/// tells the two apart.
fn wait(client: &Client, ns: &str, name: &str, before: &Value, end: Option<Instant>) -> Result<()> {
    let field = format!("metadata.name={name}");
    let mut path = format!(
        "{}?watch=true&fieldSelector={}",
        pod_path(ns, ""),
        encode(&field)
    );
    let left = || end.map(|end| end.saturating_duration_since(clock::now()));
    if let Some(left) = left() {
        let seconds = left.as_millis().div_ceil(1000).max(1);
        path += &format!("&timeoutSeconds={seconds}");
    }
    let check = || match left().is_some_and(|left| left.is_zero()) {
        true => Err(CliError::new(format!(
            "timed out waiting for the condition on pods/{name}"
        ))
        .hint("it is deleted, and stops: `coracle describe pod` shows how far it is")),
        false => Ok(()),
    };
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
                Ok(_) => {
                    check()?;
                    std::thread::sleep(AGAIN);
                }
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
    check()
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
    use clap::Parser as _;

    use super::super::args::{Cli, Command};
    use super::*;

    #[test]
    fn what_is_deleted_is_said_in_one_way() {
        let client = Client {
            socket: "/nonexistent/coracle.sock".into(),
        };
        for (line, words) in [
            ("pod", "say which pods, or --all, or -l"),
            ("pod -l=", "say which pods"),
            ("pods -l a=b", "could not reach the agent"),
            ("pods --all", "could not reach the agent"),
            ("pod web -l a=b", "either names"),
            ("pod web --all", "either names"),
            (
                "pod web --timeout soon",
                "--timeout `soon` is not a duration",
            ),
            ("deployment -l a=b", "a deployment goes with its file"),
            ("svc/web", "a service goes with its file"),
            ("configmap web", "a configmap goes with its file"),
            ("node box", "there is nothing of kind `node` here"),
        ] {
            let words_of = ["coracle", "delete"].into_iter().chain(line.split(' '));
            let Command::Delete(args) = Cli::try_parse_from(words_of).unwrap().command else {
                panic!("it is `delete`");
            };
            let found = patience(&args.timeout).and_then(|_| chosen(&client, &args));
            let error = found.unwrap_err().to_string();
            assert!(error.contains(words), "{line}: {error}");
        }
        let both = ["coracle", "delete", "pod", "--all", "-l", "a=b"];
        assert!(Cli::try_parse_from(both).is_err());
        assert_eq!(patience("0").unwrap(), None);
        assert_eq!(patience("90s").unwrap(), Some(Duration::from_secs(90)));
    }

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
