//! `coracle restart`: containers restart in place. Pods of one Deployment or the like restart one after the other, so
//! that the others serve.

use std::process::ExitCode;

use serde_json::Value;

use super::args::RestartArgs;
use super::chosen::{self, Chosen, chosen, pods_of_workload};
use super::client::Client;
use super::error::{CliError, Result};
use super::similar::with_hint;
use super::{pod_path, put};
use crate::api::encode;
use crate::spec::WorkloadKind;
use crate::sys::clock;

pub(super) fn run(client: &Client, args: &RestartArgs) -> Result<ExitCode> {
    chosen::patience(&args.chosen)?;
    let (mut first_error, mut begun) = (None, Vec::new());
    let mut failed = |error: CliError| {
        first_error.get_or_insert(error.exit_code());
        eprintln!("{}", with_hint(client, error));
    };
    let mut sequences = Vec::new();
    for one in chosen(client, &args.chosen)? {
        match one {
            Chosen::Pod(name) => match begin(client, args, &name) {
                Ok(restart) => begun.push((name, restart)),
                Err(error) => failed(error),
            },
            Chosen::Workload(kind, name) => match sequence(client, args, (kind, &name)) {
                Ok(pods) => sequences.push(pods),
                Err(error) => failed(error),
            },
        }
    }
    let mut stuck = false;
    for (name, restart) in begun {
        if let Err(error) = finish(client, args, &name, &restart) {
            failed(error);
            stuck = true;
        }
    }
    if stuck && !sequences.is_empty() {
        // As within a document, nothing is restarted after a pod that does not become ready.
        let left = sequences.concat().join(", ");
        failed(CliError::new(format!("not restarted: {left}")));
        sequences.clear();
    }
    for pods in sequences {
        for (at, name) in pods.iter().enumerate() {
            let done =
                begin(client, args, name).and_then(|restart| finish(client, args, name, &restart));
            done.map_err(|error| match &pods[at + 1..] {
                [] => error,
                left => error.hint(format!("not restarted: {}", left.join(", "))),
            })?;
        }
    }
    Ok(first_error.map_or(ExitCode::SUCCESS, ExitCode::from))
}

/// The pods of a document, which restart one after the other.
fn sequence(
    client: &Client,
    args: &RestartArgs,
    (kind, name): (WorkloadKind, &str),
) -> Result<Vec<String>> {
    let ns = &args.chosen.namespace.namespace;
    let pods = pods_of_workload(client, ns, (kind, name))?;
    if pods.is_empty() {
        let what = Chosen::Workload(kind, name.to_owned()).shown();
        return Err(CliError::new(format!("{what} has no pods")));
    }
    if pods.len() > 1 && !args.chosen.wait {
        return Err(CliError::usage(
            "its pods restart one after the other, which needs --wait",
        ));
    }
    Ok(pods)
}

/// Has the agent restart the pod; returns which containers, and how often each was restarted before.
fn begin(client: &Client, args: &RestartArgs, name: &str) -> Result<Value> {
    let ns = encode(&args.chosen.namespace.namespace);
    let container = args.container.iter();
    let mut query: Vec<String> = container
        .map(|name| format!("container={}", encode(name)))
        .collect();
    let grace = args.grace_period.map(|seconds| seconds.max(1));
    query.extend(grace.map(|seconds| format!("gracePeriodSeconds={seconds}")));
    let path = format!(
        "/coracle/v1/namespaces/{ns}/pods/{}/restart?{}",
        encode(name),
        query.join("&")
    );
    client.json("POST", &path, None)
}

/// Waits until all of them run again, and are ready if the pod can be.
fn finish(client: &Client, args: &RestartArgs, name: &str, restart: &Value) -> Result<()> {
    if !args.chosen.wait {
        return put(format!("pod/{name} restarting\n").as_bytes());
    }
    let end = clock::now() + chosen::patience(&args.chosen)?;
    let path = pod_path(&args.chosen.namespace.namespace, "");
    let done = chosen::until(client, &path, end, |pods| {
        let pod = pods.iter().find(|pod| pod["metadata"]["name"] == name);
        match pod.filter(|pod| pod["metadata"]["uid"] == restart["uid"]) {
            Some(pod) => Ok(is_done(pod, restart)),
            None => Err(CliError::new(format!(
                "pod {name} was replaced before it had restarted"
            ))),
        }
    })?;
    if done {
        return put(format!("pod/{name} restarted\n").as_bytes());
    }
    let timeout = &args.chosen.timeout;
    let text = format!("pod/{name} has not become ready within {timeout} after its restart");
    Err(CliError::new(text).hint(format!("`coracle describe pod {name}` shows why")))
}

fn is_done(pod: &Value, restart: &Value) -> bool {
    let kinds = ["initContainerStatuses", "containerStatuses"];
    let all = || {
        let of = |kind| pod["status"][kind].as_array().into_iter().flatten();
        kinds.into_iter().flat_map(of)
    };
    let mut before = restart["containers"].as_array().into_iter().flatten();
    before.all(|before| {
        let is = |now: &&Value| now["name"] == before["name"];
        let Some(now) = all().find(is) else {
            return false;
        };
        let count = |of: &Value| of["restartCount"].as_u64().unwrap_or(0);
        let again = before["ran"].is_null() || count(now) > count(before);
        let well = now["ready"] == true || now["state"]["terminated"]["exitCode"] == 0;
        again && well
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_restart_is_done_when_each_container_runs_again_and_is_ready() {
        let before = json!({ "containers": [{ "name": "web", "restartCount": 2, "ran": 2 }] });
        let never = json!({ "containers": [{ "name": "web", "restartCount": 0, "ran": null }] });
        for (sentence, before, count, ready, code, done) in [
            ("it still stops", &before, 2, true, None, false),
            (
                "it runs and is not ready yet",
                &before,
                3,
                false,
                None,
                false,
            ),
            ("it runs again", &before, 3, true, None, true),
            ("it crashed again meanwhile", &before, 4, true, None, true),
            ("it has done its work", &before, 3, false, Some(0), true),
            ("it has failed", &before, 3, false, Some(1), false),
            ("it runs for the first time", &never, 0, true, None, true),
        ] {
            let state = match code {
                Some(code) => json!({ "terminated": { "exitCode": code } }),
                None => json!({ "running": {} }),
            };
            let pod = json!({ "status": { "containerStatuses": [
                { "name": "web", "restartCount": count, "ready": ready, "state": state },
            ] } });
            assert_eq!(is_done(&pod, before), done, "{sentence}");
        }
    }
}
