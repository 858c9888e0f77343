//! `coracle stop` and `start`: pods that stay down until they are started again.

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::time::Instant;

use serde_json::Value;

use super::args::{ChosenArgs, Resource, StartArgs, StopArgs};
use super::chosen::{self, Chosen, chosen, owner_of};
use super::client::Client;
use super::error::{CliError, Result};
use super::get::collection;
use super::target::workload_path;
use super::{pod_path, put};
use crate::api::encode;
use crate::spec::WorkloadKind;
use crate::sys::clock;

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
    let end = clock::now() + chosen::patience(&args.chosen)?;
    settle(client, &args.chosen, (&all, end), "stopped", |pod| {
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
    let end = clock::now() + chosen::patience(&args.chosen)?;
    let mut failed = BTreeSet::new();
    let (mut failing, mut well) = (BTreeSet::new(), BTreeSet::new());
    let done = settle(client, &args.chosen, (&all, end), "ready", |pod| {
        let conditions = pod["status"]["conditions"].as_array();
        let mut conditions = conditions.into_iter().flatten();
        let ready = conditions.any(|c| c["type"] == "Ready" && c["status"] == "True");
        let well_off = ready || pod["status"]["phase"] == "Succeeded";
        let over = has_failed(pod);
        match job_of(pod) {
            Some(job) if well_off => well.extend([job.to_owned()]),
            Some(job) if over => failing.extend([job.to_owned()]),
            None if over => failed.extend(pod["metadata"]["name"].as_str().map(in_full)),
            _ => {}
        }
        over || well_off
    })?;
    if args.chosen.wait {
        // Between two tries, a Job may also have no pod at all.
        failing.extend(all.iter().filter_map(|one| match one {
            Chosen::Workload(WorkloadKind::Job, name) => Some(name.clone()),
            _ => None,
        }));
        let open: Vec<&String> = failing.difference(&well).collect();
        next_tries(client, &args.chosen, &open, end)?;
        for job in &failing {
            failed.extend(failed_job(client, &args.chosen, job)?);
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
    Err(CliError::new(what).hint(runs_again(&failed)))
}

/// How what has failed runs again.
fn runs_again(failed: &[String]) -> &'static str {
    let is_pod = |one: &String| one.starts_with("pod/");
    match (failed.iter().any(is_pod), failed.iter().all(is_pod)) {
        (_, true) => {
            "`coracle describe` shows why; after `coracle delete pod NAME` a pod runs again"
        }
        (false, _) => {
            "`coracle describe` shows why; a Job runs again after a change of its annotations"
        }
        (true, false) => {
            "`coracle describe` shows why; a pod runs again after `coracle delete pod NAME`, a Job after a change of its \
             annotations"
        }
    }
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

/// A pod as errors name it.
fn in_full(name: &str) -> String {
    format!("pod/{name}")
}

/// The name of the Job that a pod is of. After a failed one others may come: the Job says how that ends.
fn job_of(pod: &Value) -> Option<&str> {
    let (_, name) = owner_of(pod).filter(|(kind, _)| *kind == WorkloadKind::Job)?;
    Some(name)
}

/// Waits until the next pods of these Jobs are ready, or none come.
fn next_tries(client: &Client, args: &ChosenArgs, open: &[&String], end: Instant) -> Result<()> {
    if open.is_empty() {
        return Ok(());
    }
    let path = collection(Resource::Jobs, Some(&args.namespace.namespace));
    let mut left = Vec::new();
    let done = chosen::until(client, &path, end, |jobs| {
        let jobs = jobs.iter().filter(|job| tries_again(job));
        let names = jobs.filter_map(|job| job["metadata"]["name"].as_str());
        let names = names.filter(|name| open.iter().any(|open| open == name));
        left = names.map(|name| format!("job/{name}")).collect();
        Ok(left.is_empty())
    })?;
    match done {
        true => Ok(()),
        false => Err(timed_out(args, "ready", &left)),
    }
}

/// Whether a Job without a pod that is ready or has succeeded is going to have another one.
fn tries_again(job: &Value) -> bool {
    let status = &job["status"];
    let ends = ["Complete", "Failed"];
    // The condition `Suspended` also stands for a stop, and is there until the agent has taken the start in.
    let suspended = job["spec"]["suspend"] == true;
    let mut conditions = status["conditions"].as_array().into_iter().flatten();
    let ended =
        conditions.any(|c| c["status"] == "True" && ends.iter().any(|end| c["type"] == *end));
    let any = |field: &str| status[field].as_u64().is_some_and(|count| count > 0);
    !ended && !suspended && !any("ready") && !any("succeeded")
}

/// The name of a Job, if it has failed.
fn failed_job(client: &Client, args: &ChosenArgs, name: &str) -> Result<Option<String>> {
    let path = workload_path(WorkloadKind::Job, &args.namespace.namespace, name);
    let job = match client.get(&path) {
        Err(error) if error.missing().is_some() => return Ok(None),
        job => job?,
    };
    let mut conditions = job["status"]["conditions"].as_array().into_iter().flatten();
    let failed = conditions.any(|c| c["type"] == "Failed" && c["status"] == "True");
    Ok(failed.then(|| format!("job/{name}")))
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
    (all, end): (&[Chosen], Instant),
    wanted: &str,
    mut is_done: impl FnMut(&Value) -> bool,
) -> Result<ExitCode> {
    if !args.wait || all.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    let mut left = Vec::new();
    let path = pod_path(&args.namespace.namespace, "");
    let done = chosen::until(client, &path, end, |pods| {
        let chosen = pods.iter().filter(|pod| {
            let name = pod["metadata"]["name"].as_str().unwrap_or_default();
            all.iter().any(|one| match one {
                Chosen::Pod(pod) => pod == name,
                Chosen::Workload(kind, name) => owner_of(pod) == Some((*kind, name)),
            })
        });
        let open = chosen.filter(|pod| !is_done(pod));
        let names = open.filter_map(|pod| pod["metadata"]["name"].as_str());
        left = names.map(in_full).collect();
        Ok(left.is_empty())
    })?;
    match done {
        true => Ok(ExitCode::SUCCESS),
        false => Err(timed_out(args, wanted, &left)),
    }
}

/// The error of a wait for what is not yet as wanted.
fn timed_out(args: &ChosenArgs, wanted: &str, left: &[String]) -> CliError {
    let what = format!(
        "timed out after {}: not {wanted} yet: {}",
        args.timeout,
        left.join(", ")
    );
    let hint = "the request holds: it goes on without this command; `coracle describe KIND/NAME` shows how far it is";
    CliError::new(what).hint(hint)
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
    #[test]
    fn a_failed_pod_and_a_failed_job_have_both_hints() {
        let (pod, job) = ("coracle delete pod NAME", "change of its annotations");
        for (failed, has_pod, has_job) in [
            (&["pod/web"][..], true, false),
            (&["job/copy"], false, true),
            (&["job/copy", "pod/web"], true, true),
        ] {
            let failed: Vec<String> = failed.iter().map(|&one| one.to_owned()).collect();
            let hint = runs_again(&failed);
            let found = (hint.contains(pod), hint.contains(job));
            assert_eq!(found, (has_pod, has_job), "{failed:?}: {hint}");
        }
    }

    #[test]
    fn a_job_tries_again_until_it_has_ended_or_one_of_its_pods_is_well() {
        let condition = |kind: &str| json!([{ "type": kind, "status": "True" }]);
        for (status, again) in [
            (
                json!({ "active": 0, "ready": 0, "succeeded": 0, "failed": 1 }),
                true,
            ),
            (json!({ "active": 1, "ready": 0, "failed": 1 }), true),
            (json!({ "active": 1, "ready": 1, "failed": 1 }), false),
            (json!({ "succeeded": 1, "failed": 1 }), false),
            (
                json!({ "failed": 1, "conditions": condition("FailureTarget") }),
                true,
            ),
            (
                json!({ "failed": 1, "conditions": condition("Failed") }),
                false,
            ),
            (
                json!({ "failed": 1, "conditions": condition("Complete") }),
                false,
            ),
            (
                json!({ "failed": 1, "conditions": condition("Suspended") }),
                true,
            ),
            (
                json!({ "failed": 1, "conditions": [{ "type": "Suspended", "status": "False" }] }),
                true,
            ),
        ] {
            assert_eq!(tries_again(&json!({ "status": status })), again, "{status}");
        }
        let suspended = json!({ "spec": { "suspend": true }, "status": { "failed": 1 } });
        assert!(!tries_again(&suspended));
    }
}
