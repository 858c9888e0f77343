//! `coracle stop` and `start`: pods that stay down until they are started again.

use std::collections::BTreeSet;
use std::process::ExitCode;

use serde_json::Value;

use super::args::{ChosenArgs, StartArgs, StopArgs};
use super::chosen::{self, Chosen, chosen, owner_of};
use super::client::Client;
use super::error::{CliError, Result};
use super::put;
use super::target::workload_path;
use crate::api::encode;
use crate::spec::WorkloadKind;

pub(super) fn stop(client: &Client, args: &StopArgs) -> Result<ExitCode> {
    let all = chosen(client, &args.chosen)?;
    let grace = args.grace_period.map(|seconds| seconds.max(1));
    let grace = grace.map(|seconds| format!("&gracePeriodSeconds={seconds}"));
    ask(
        client,
        &args.chosen,
        "stop",
        &all,
        &grace.unwrap_or_default(),
    )?;
    settle(client, &args.chosen, &all, "stopped", |pod| {
        let status = &pod["status"];
        let over = status["phase"] == "Succeeded" || status["phase"] == "Failed";
        let going = !pod["metadata"]["deletionTimestamp"].is_null();
        !going && (over || status["reason"] == "Stopped")
    })
}

pub(super) fn start(client: &Client, args: &StartArgs) -> Result<ExitCode> {
    let everything =
        args.chosen.all && args.chosen.what.is_empty() && args.chosen.selector.is_none();
    let all = match everything {
        // What was stopped is known only to the agent.
        true => ask(client, &args.chosen, "start", &[], "all=true")?,
        false => {
            let all = chosen(client, &args.chosen)?;
            ask(client, &args.chosen, "start", &all, "")?;
            all
        }
    };
    let mut failed = BTreeSet::new();
    let done = settle(client, &args.chosen, &all, "ready", |pod| {
        let over = has_failed(pod);
        if over {
            failed.extend(shown_as_failed(pod));
        }
        let conditions = pod["status"]["conditions"].as_array();
        let mut conditions = conditions.into_iter().flatten();
        let ready = conditions.any(|c| c["type"] == "Ready" && c["status"] == "True");
        over || ready || pod["status"]["phase"] == "Succeeded"
    })?;
    if args.chosen.wait {
        for one in &all {
            failed.extend(failed_job(client, &args.chosen, one)?);
        }
    }
    if failed.is_empty() {
        return Ok(done);
    }
    let failed: Vec<String> = failed.into_iter().collect();
    let what = format!(
        "{}: failed, and does not run again by itself",
        failed.join(", ")
    );
    let hint = match failed.iter().any(|one| one.starts_with("pod/")) {
        true => "`coracle describe` shows why; after `coracle delete pod NAME` a pod runs again",
        false => "`coracle describe` shows why; a Job runs again after a change of its annotations",
    };
    Err(CliError::new(what).hint(hint))
}

/// Whether a pod has failed for good. The agent brings back what the node stopped.
fn has_failed(pod: &Value) -> bool {
    let status = &pod["status"];
    let returns = ["Evicted", "Preempting", "Terminated", "NodeShutdown"];
    let returns = status["reason"]
        .as_str()
        .is_some_and(|r| returns.contains(&r));
    let going = !pod["metadata"]["deletionTimestamp"].is_null();
    status["phase"] == "Failed" && !returns && !going
}

/// The name of a pod that has failed. After one of a Job others may come: the Job says how that ends.
fn shown_as_failed(pod: &Value) -> Option<String> {
    let of_job = owner_of(pod).is_some_and(|(kind, _)| kind == WorkloadKind::Job);
    let name = pod["metadata"]["name"].as_str()?;
    (!of_job).then(|| format!("pod/{name}"))
}

/// The name of a Job, if it has failed.
fn failed_job(client: &Client, args: &ChosenArgs, one: &Chosen) -> Result<Option<String>> {
    let Chosen::Workload(kind @ WorkloadKind::Job, name) = one else {
        return Ok(None);
    };
    let job = match client.get(&workload_path(*kind, &args.namespace.namespace, name)) {
        Err(error) if error.missing().is_some() => return Ok(None),
        job => job?,
    };
    let mut conditions = job["status"]["conditions"].as_array().into_iter().flatten();
    let failed = conditions.any(|c| c["type"] == "Failed" && c["status"] == "True");
    Ok(failed.then(|| one.shown()))
}

/// Sends the request, and prints what has changed; returns what the agent names.
fn ask(
    client: &Client,
    args: &ChosenArgs,
    verb: &str,
    all: &[Chosen],
    more: &str,
) -> Result<Vec<Chosen>> {
    if all.is_empty() && more.is_empty() {
        return Ok(Vec::new());
    }
    let parameters: Vec<String> = all.iter().map(Chosen::parameter).collect();
    let namespace = encode(&args.namespace.namespace);
    let path = format!(
        "/coracle/v1/namespaces/{namespace}/{verb}?{}{more}",
        parameters.join("&")
    );
    let answer = client.json("POST", &path, None)?;
    let done = if verb == "stop" { "stopped" } else { "started" };
    let mut named = Vec::new();
    for item in answer["items"].as_array().into_iter().flatten() {
        let already = match (item["changed"] == false, verb) {
            (false, _) => "",
            (true, "stop") => "already ",
            (true, _) => "was not stopped, not ",
        };
        let name = item["name"].as_str().unwrap_or_default();
        put(format!("{name} {already}{done}\n").as_bytes())?;
        named.push(Chosen::of(name));
    }
    Ok(named)
}

/// Waits until all pods of what was chosen are as wanted.
fn settle(
    client: &Client,
    args: &ChosenArgs,
    all: &[Chosen],
    wanted: &str,
    mut is_done: impl FnMut(&Value) -> bool,
) -> Result<ExitCode> {
    let patience = chosen::patience(args)?;
    if !args.wait || all.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    let mut left = Vec::new();
    let done = chosen::until(client, &args.namespace.namespace, patience, |pods| {
        let chosen = pods.iter().filter(|pod| {
            let name = pod["metadata"]["name"].as_str().unwrap_or_default();
            all.iter().any(|one| match one {
                Chosen::Pod(pod) => pod == name,
                Chosen::Workload(kind, name) => owner_of(pod) == Some((*kind, name)),
            })
        });
        let open = chosen.filter(|pod| !is_done(pod));
        let names = open.filter_map(|pod| pod["metadata"]["name"].as_str());
        left = names.map(|name| format!("pod/{name}")).collect();
        Ok(left.is_empty())
    })?;
    if done {
        return Ok(ExitCode::SUCCESS);
    }
    let what = format!(
        "timed out after {}: not {wanted} yet: {}",
        args.timeout,
        left.join(", ")
    );
    let hint = "the request holds: it goes on without this command; `coracle describe pod NAME` shows how far it is";
    Err(CliError::new(what).hint(hint))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_pod_has_failed_for_good_unless_the_agent_brings_it_back() {
        for (phase, reason, failed) in [
            ("Failed", None, true),
            ("Failed", Some("DeadlineExceeded"), true),
            ("Failed", Some("Evicted"), false),
            ("Failed", Some("Preempting"), false),
            ("Failed", Some("Terminated"), false),
            ("Pending", Some("Stopped"), false),
            ("Running", None, false),
            ("Succeeded", None, false),
        ] {
            let pod = json!({ "status": { "phase": phase, "reason": reason } });
            assert_eq!(has_failed(&pod), failed, "{phase} {reason:?}");
        }
        let metadata = json!({ "deletionTimestamp": "2026-01-01T00:00:00Z" });
        let going = json!({ "metadata": metadata, "status": { "phase": "Failed" } });
        assert!(!has_failed(&going));
    }
}
