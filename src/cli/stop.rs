//! `coracle stop` and `start`: pods that stay down until they are started again.

use std::process::ExitCode;

use serde_json::Value;

use super::args::{ChosenArgs, StartArgs, StopArgs};
use super::chosen::{self, Chosen, chosen, owner_of};
use super::client::Client;
use super::error::{CliError, Result};
use super::put;
use crate::api::encode;

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
    if args.chosen.all && args.chosen.what.is_empty() && args.chosen.selector.is_none() {
        ask(client, &args.chosen, "start", &[], "all=true")?;
        // What was stopped is known only to the agent.
        return Ok(ExitCode::SUCCESS);
    }
    let all = chosen(client, &args.chosen)?;
    ask(client, &args.chosen, "start", &all, "")?;
    settle(client, &args.chosen, &all, "ready", |pod| {
        let conditions = pod["status"]["conditions"].as_array();
        let mut conditions = conditions.into_iter().flatten();
        let ready = conditions.any(|c| c["type"] == "Ready" && c["status"] == "True");
        ready || pod["status"]["phase"] == "Succeeded"
    })
}

/// Sends the request, and prints what has changed.
fn ask(client: &Client, args: &ChosenArgs, verb: &str, all: &[Chosen], more: &str) -> Result<()> {
    if all.is_empty() && more.is_empty() {
        return Ok(());
    }
    let parameters: Vec<String> = all.iter().map(Chosen::parameter).collect();
    let namespace = encode(&args.namespace.namespace);
    let path = format!(
        "/coracle/v1/namespaces/{namespace}/{verb}?{}{more}",
        parameters.join("&")
    );
    let answer = client.json("POST", &path, None)?;
    let done = if verb == "stop" { "stopped" } else { "started" };
    for item in answer["items"].as_array().into_iter().flatten() {
        let already = match (item["changed"] == false, verb) {
            (false, _) => "",
            (true, "stop") => "already ",
            (true, _) => "was not stopped, not ",
        };
        let name = item["name"].as_str().unwrap_or_default();
        put(format!("{name} {already}{done}\n").as_bytes())?;
    }
    Ok(())
}

/// Waits until all pods of what was chosen are as wanted.
fn settle(
    client: &Client,
    args: &ChosenArgs,
    all: &[Chosen],
    wanted: &str,
    is_done: impl Fn(&Value) -> bool,
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
