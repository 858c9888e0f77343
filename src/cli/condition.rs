//! `coracle condition`: sets, removes and lists a pod's conditions by a patch of its status, as any Kubernetes client
//! does.

use std::process::ExitCode;

use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use super::args::ConditionCommand;
use super::client::Client;
use super::error::{CliError, Result};
use super::table::Table;
use super::{pod_path, put};
use crate::api::pod_columns::age_of;
use crate::spec::ConditionStatus;
use crate::spec::condition::check_type;
use crate::sys::clock;

pub(super) fn run(client: &Client, command: &ConditionCommand) -> Result<ExitCode> {
    match command {
        ConditionCommand::Set {
            pod,
            conditions,
            reason,
            message,
            namespace,
        } => {
            let set = |given: &String| {
                let (type_, status) = parse(given)?;
                check_type(type_).map_err(CliError::new)?;
                Ok(
                    json!({ "type": type_, "status": status.as_str(), "reason": reason, "message": message }),
                )
            };
            let patch: Result<Vec<Value>> = conditions.iter().map(set).collect();
            send(client, (&namespace.namespace, pod), &patch?)?;
        }
        ConditionCommand::Unset {
            pod,
            types,
            namespace,
        } => {
            let ns = &namespace.namespace;
            let shown = client.get(&pod_path(ns, pod))?;
            let known = shown["status"]["conditions"].as_array();
            let known = |type_: &str| known.into_iter().flatten().any(|c| c["type"] == type_);
            if let Some(unknown) = types.iter().find(|type_| !known(type_)) {
                let text = format!("pod `{pod}` has no condition `{unknown}`");
                return Err(CliError::new(text)
                    .hint(format!("coracle condition list {pod} -n {ns}"))
                    .code(3));
            }
            let unset = |type_: &String| json!({ "type": type_, "$patch": "delete" });
            let patch: Vec<Value> = types.iter().map(unset).collect();
            send(client, (ns, pod), &patch)?;
        }
        ConditionCommand::List { pod, namespace } => {
            let pod = client.get(&pod_path(&namespace.namespace, pod))?;
            list(&pod)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Parses `TYPE=STATUS`; the status may be in any case.
fn parse(given: &str) -> Result<(&str, ConditionStatus)> {
    const HINT: &str = "write TYPE=True, TYPE=False or TYPE=Unknown";
    let Some((type_, status)) = given.split_once('=') else {
        return Err(CliError::usage(format!("`{given}` is not TYPE=STATUS")).hint(HINT));
    };
    let all = [
        ConditionStatus::True,
        ConditionStatus::False,
        ConditionStatus::Unknown,
    ];
    let mut all = all.into_iter();
    let found = all.find(|s| s.as_str().eq_ignore_ascii_case(status));
    let found = found.ok_or_else(|| {
        CliError::usage(format!("`{status}` is not a condition status")).hint(HINT)
    })?;
    Ok((type_, found))
}

fn send(client: &Client, (ns, pod): (&str, &str), conditions: &[Value]) -> Result<()> {
    let patch = json!({ "status": { "conditions": conditions } });
    let path = format!("{}/status", pod_path(ns, pod));
    let shown = client.json("PATCH", &path, Some(&patch))?;
    let all = shown["status"]["conditions"].as_array();
    let ready = all.into_iter().flatten().find(|c| c["type"] == "Ready");
    let ready = ready.is_some_and(|c| c["status"] == "True");
    let word = if ready { "ready" } else { "not ready" };
    put(format!("pod/{pod} patched, {word}\n").as_bytes())
}

fn list(pod: &Value) -> Result<()> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let row = |c: &Value| {
        let since = c["lastTransitionTime"].as_str();
        let since: Option<Timestamp> = since.and_then(|s| s.parse().ok());
        vec![
            text(&c["type"]),
            text(&c["status"]),
            age_of(since, clock::timestamp()),
            text(&c["reason"]),
            text(&c["message"]),
        ]
    };
    let all = pod["status"]["conditions"].as_array();
    let rows: Vec<Vec<String>> = all.into_iter().flatten().map(row).collect();
    let header = ["TYPE", "STATUS", "AGE", "REASON", "MESSAGE"];
    put(Table::default().render(&header, &rows).as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_is_a_type_and_a_status() {
        for (given, expected) in [
            ("a.b/c=True", Some(("a.b/c", ConditionStatus::True))),
            ("x=false", Some(("x", ConditionStatus::False))),
            ("x=unknown", Some(("x", ConditionStatus::Unknown))),
            ("x", None),
            ("x=", None),
            ("x=yes", None),
        ] {
            assert_eq!(parse(given).ok(), expected, "{given}");
        }
    }
}
