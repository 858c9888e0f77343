//! `coracle rollout`, with kubectl's words and exit codes.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::args::{Resource, RolloutArgs, RolloutCommand, RolloutHistoryArgs, RolloutStatusArgs};
use super::client::Client;
use super::error::{CliError, Result};
use super::get::{collection, singular};
use super::put;
use super::sheet::Sheet;
use super::table::one_line;
use super::target::{pods_of, targets, workload_path};
use crate::api::encode;
use crate::spec::WorkloadKind;
use crate::sys::clock;
use crate::types::duration_ms;

/// The wait between two looks.
const AGAIN: Duration = Duration::from_millis(250);

/// A document that is rolled out.
struct Object {
    /// `None`: a pod.
    kind: Option<WorkloadKind>,
    namespace: String,
    name: String,
}

impl Object {
    /// As kubectl prints it: `deployment.apps/web`.
    fn shown(&self) -> String {
        let kind = self.kind.map_or("Pod", WorkloadKind::as_str).to_lowercase();
        let version = self.kind.map_or("v1", WorkloadKind::version);
        match version.split_once('/') {
            Some((group, _)) => format!("{kind}.{group}/{}", self.name),
            None => format!("{kind}/{}", self.name),
        }
    }

    fn ask(&self, client: &Client, method: &str, query: &str) -> Result<Value> {
        let kind = self.kind.map_or("Pod", WorkloadKind::as_str);
        let (namespace, name) = (encode(&self.namespace), encode(&self.name));
        let path = format!("/coracle/v1/namespaces/{namespace}/rollouts/{kind}/{name}{query}");
        client.json(method, &path, None)
    }
}

pub(super) fn run(client: &Client, command: &RolloutCommand) -> Result<ExitCode> {
    if !matches!(
        command,
        RolloutCommand::Pause(_) | RolloutCommand::Resume(_)
    ) {
        client.settle();
    }
    match command {
        RolloutCommand::Status(args) => {
            for object in objects(&args.of, "status viewer", false)? {
                status(client, &object, args)?;
            }
        }
        RolloutCommand::History(args) => {
            for object in objects(&args.of, "history viewer", true)? {
                put(history(client, &object, args)?.as_bytes())?;
            }
        }
        RolloutCommand::Undo(args) => {
            for object in objects(&args.of, "rollbacker", true)? {
                undo(client, &object, args.to_revision)?;
            }
        }
        RolloutCommand::Restart(args) => {
            for object in objects(args, "restarter", false)? {
                object.ask(client, "POST", "?restart")?;
                put(format!("{} restarted\n", object.shown()).as_bytes())?;
            }
        }
        RolloutCommand::Pause(args) => return by_file(client, args, "stop", "write"),
        RolloutCommand::Resume(args) => return by_file(client, args, "resume", "remove"),
    }
    Ok(ExitCode::SUCCESS)
}

/// The kind of document, if it is one that is rolled out.
fn rolled_out(resource: Resource) -> Option<WorkloadKind> {
    let kind = resource.workload()?;
    let known = [
        WorkloadKind::Deployment,
        WorkloadKind::StatefulSet,
        WorkloadKind::DaemonSet,
    ];
    known.contains(&kind).then_some(kind)
}

/// Whether these commands are for objects of this kind.
pub(super) fn is_for(resource: Resource) -> bool {
    rolled_out(resource).is_some()
}

fn objects(args: &RolloutArgs, what: &str, pods: bool) -> Result<Vec<Object>> {
    let mut objects = Vec::new();
    for (resource, names) in targets::<Resource>(&args.what)? {
        let kind = match rolled_out(resource) {
            Some(kind) => Some(kind),
            None if resource == Resource::Pods && pods => None,
            _ => {
                let error = format!("no {what} has been implemented for {}", singular(resource));
                let error = CliError::new(error);
                return Err(match resource {
                    Resource::Pods => {
                        error.hint("this is for deployments, statefulsets and daemonsets")
                    }
                    _ => error,
                });
            }
        };
        if names.is_empty() {
            return Err(CliError::usage("say which one: KIND/NAME"));
        }
        objects.extend(names.into_iter().map(|name| Object {
            kind,
            namespace: args.namespace.namespace.clone(),
            name,
        }));
    }
    Ok(objects)
}

fn status(client: &Client, object: &Object, args: &RolloutStatusArgs) -> Result<()> {
    let patience = match duration_ms(&args.timeout) {
        Some(0) => None,
        Some(ms) => Some(Duration::from_millis(ms)),
        None => {
            let text = format!("--timeout `{}` is not a duration", args.timeout);
            return Err(CliError::usage(text).hint("write it as in 90s, 5m or 1h30m"));
        }
    };
    let end: Option<Instant> = patience.map(|patience| clock::now() + patience);
    let Some(kind) = object.kind else {
        return Ok(());
    };
    let path = workload_path(kind, &object.namespace, &object.name);
    let (mut reached, mut said) = (false, String::new());
    loop {
        let over = end.is_some_and(|end| clock::now() >= end);
        let found = match client.get(&path) {
            Ok(found) => found,
            // Once it was there, the agent is restarted.
            Err(_) if reached && !over && !client.reachable() => {
                std::thread::sleep(AGAIN);
                continue;
            }
            Err(error) => return Err(error),
        };
        reached = true;
        let (line, done) = progress(kind, &found, args.revision)?;
        if line != said {
            put(format!("{line}\n").as_bytes())?;
            said = line;
        }
        if done || !args.watch {
            return Ok(());
        }
        if over {
            let why = format!("`coracle describe {}` shows why", object.shown());
            return Err(CliError::new("timed out waiting for the condition").hint(why));
        }
        std::thread::sleep(AGAIN);
    }
}

/// How far a rollout is, in kubectl's words, and whether it is done.
fn progress(kind: WorkloadKind, object: &Value, revision: u64) -> Result<(String, bool)> {
    let (spec, status) = (&object["spec"], &object["status"]);
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    let number = |field: &str| status[field].as_u64().unwrap_or(0);
    let here = &object["metadata"]["annotations"]["deployment.kubernetes.io/revision"];
    let here = here.as_str().and_then(|text| text.parse::<u64>().ok());
    if let Some(here) = here.filter(|here| revision > 0 && *here != revision) {
        return Err(CliError::new(format!(
            "desired revision ({revision}) is different from the running revision ({here})"
        )));
    }
    if spec["updateStrategy"]["type"] == "OnDelete" {
        let text = "rollout status is only available for RollingUpdate strategy type";
        return Err(CliError::new(text));
    }
    let shown_kind = match kind {
        WorkloadKind::DaemonSet => "daemon set".to_owned(),
        other => other.as_str().to_lowercase(),
    };
    let conditions = status["conditions"].as_array();
    let late = |c: &&Value| c["reason"] == "ProgressDeadlineExceeded";
    if let Some(late) = conditions.into_iter().flatten().find(late) {
        let error = format!("{shown_kind} \"{name}\" exceeded its progress deadline");
        return Err(CliError::new(error).hint(late["message"].as_str().unwrap_or_default()));
    }
    let wanted = match kind {
        WorkloadKind::DaemonSet => number("desiredNumberScheduled"),
        _ => spec["replicas"].as_u64().unwrap_or(1),
    };
    let waits =
        |text: String| format!("Waiting for {shown_kind} \"{name}\" rollout to finish: {text}...");
    Ok(match kind {
        WorkloadKind::DaemonSet => {
            let (updated, available) =
                (number("updatedNumberScheduled"), number("numberAvailable"));
            match () {
                () if updated < wanted => (
                    waits(format!(
                        "{updated} out of {wanted} new pods have been updated"
                    )),
                    false,
                ),
                () if available < wanted => (
                    waits(format!(
                        "{available} of {wanted} updated pods are available"
                    )),
                    false,
                ),
                () => (
                    format!("daemon set \"{name}\" successfully rolled out"),
                    true,
                ),
            }
        }
        WorkloadKind::StatefulSet => stateful(spec, status, wanted),
        _ => {
            let (updated, available) = (number("updatedReplicas"), number("availableReplicas"));
            let old = number("replicas").saturating_sub(updated);
            match () {
                () if updated < wanted => (
                    waits(format!(
                        "{updated} out of {wanted} new replicas have been updated"
                    )),
                    false,
                ),
                () if old > 0 => (
                    waits(format!("{old} old replicas are pending termination")),
                    false,
                ),
                () if available < updated => (
                    waits(format!(
                        "{available} of {updated} updated replicas are available"
                    )),
                    false,
                ),
                () => (
                    format!("deployment \"{name}\" successfully rolled out"),
                    true,
                ),
            }
        }
    })
}

fn stateful(spec: &Value, status: &Value, wanted: u64) -> (String, bool) {
    let number = |field: &str| status[field].as_u64().unwrap_or(0);
    let (ready, updated) = (number("readyReplicas"), number("updatedReplicas"));
    let revision = status["updateRevision"].as_str().unwrap_or_default();
    let partition = spec["updateStrategy"]["rollingUpdate"]["partition"].as_u64();
    let partition = partition.filter(|partition| *partition > 0);
    let of_partition = wanted.saturating_sub(partition.unwrap_or(0));
    match partition {
        _ if ready < wanted => (
            format!("Waiting for {} pods to be ready...", wanted - ready),
            false,
        ),
        Some(_) if updated < of_partition => (
            format!(
                "Waiting for partitioned roll out to finish: {updated} out of {of_partition} new pods have been updated..."
            ),
            false,
        ),
        Some(_) => (
            format!("partitioned roll out complete: {updated} new pods have been updated..."),
            true,
        ),
        None if updated < wanted => (
            format!(
                "waiting for statefulset rolling update to complete {updated} pods at revision {revision}..."
            ),
            false,
        ),
        None => (
            format!("statefulset rolling update complete {updated} pods at revision {revision}..."),
            true,
        ),
    }
}

fn history(client: &Client, object: &Object, args: &RolloutHistoryArgs) -> Result<String> {
    let found = object.ask(client, "GET", "")?;
    let revisions = found["revisions"].as_array();
    let revisions = revisions.map(Vec::as_slice).unwrap_or_default();
    let one = match args.revision {
        0 => None,
        number => {
            let mut all = revisions.iter();
            let found = all.find(|revision| revision["revision"] == number);
            Some(found.ok_or_else(|| {
                CliError::new(format!(
                    "unable to find the specified revision {number} in history"
                ))
            })?)
        }
    };
    if args.output.output.is_some() {
        let shown = serde_json::to_string_pretty(one.unwrap_or(&found));
        return Ok(shown.unwrap_or_default() + "\n");
    }
    let shown = object.shown();
    if let Some(one) = one {
        let number = &one["revision"];
        return Ok(format!(
            "{shown} with revision #{number}\n{}",
            template(&one["template"])
        ));
    }
    let mut sheet = Sheet::default();
    sheet.line(0, ["REVISION", "CHANGE-CAUSE"]);
    for revision in revisions {
        let cause = revision["changeCause"].as_str().unwrap_or("<none>");
        sheet.line(0, [revision["revision"].to_string(), one_line(cause)]);
    }
    let table = sheet.render();
    let note = found["note"]
        .as_str()
        .map(|note| format!("{}\n", one_line(note)));
    Ok(format!("{shown}\n{table}{}\n", note.unwrap_or_default()))
}

/// A template as kubectl describes it.
fn template(template: &Value) -> String {
    let mut sheet = Sheet::default();
    if template.is_null() {
        return "Pod Template:  <too large to be kept>\n".to_owned();
    }
    sheet.line(0, ["Pod Template:"]);
    let (metadata, spec) = (&template["metadata"], &template["spec"]);
    for (title, field, between) in [
        ("Labels:", "labels", "="),
        ("Annotations:", "annotations", ": "),
    ] {
        let pairs = metadata[field].as_object().into_iter().flatten();
        let pairs = pairs.map(|(key, value)| {
            let value = value.as_str().unwrap_or_default();
            one_line(&format!("{key}{between}{value}"))
        });
        sheet.list(title, pairs.collect());
    }
    for (title, field) in [
        ("Init Containers:", "initContainers"),
        ("Containers:", "containers"),
    ] {
        let list = spec[field]
            .as_array()
            .map(Vec::as_slice)
            .unwrap_or_default();
        if !list.is_empty() {
            sheet.line(1, [title]);
        }
        for container in list {
            let text = |value: &Value| match value {
                Value::String(text) => one_line(text),
                Value::Null => "<none>".to_owned(),
                other => one_line(&other.to_string()),
            };
            sheet.line(2, [format!("{}:", text(&container["name"]))]);
            for (title, field) in [
                ("Image:", "image"),
                ("Command:", "command"),
                ("Args:", "args"),
                ("Ports:", "ports"),
                ("Environment:", "env"),
                ("Mounts:", "volumeMounts"),
            ] {
                if !container[field].is_null() {
                    sheet.line(3, [title.to_owned(), text(&container[field])]);
                }
            }
        }
    }
    sheet.render()
}

fn undo(client: &Client, object: &Object, to: u64) -> Result<()> {
    let shown = object.shown();
    match object.ask(client, "POST", &format!("?undo={to}")) {
        Ok(_) => put(format!("{shown} rolled back\n").as_bytes()),
        // As in kubectl, that is no failure.
        Err(error) if error.to_string().contains("skipped rollback") => {
            let said = error.in_one_line();
            let said = said.find("skipped").map_or(said.as_str(), |at| &said[at..]);
            put(format!("{shown} {said}\n").as_bytes())
        }
        Err(error) => Err(error),
    }
}

/// What only the file can say.
fn by_file(client: &Client, args: &RolloutArgs, what: &str, how: &str) -> Result<ExitCode> {
    let mut places = Vec::new();
    for object in objects(args, "pauser", false)? {
        let Some(kind) = object.kind else { continue };
        let found = client.get(&workload_path(kind, &object.namespace, &object.name))?;
        if kind != WorkloadKind::Deployment {
            let kind = kind.as_str().to_lowercase();
            return Err(CliError::new(format!("a {kind} cannot be paused"))
                .hint("`updateStrategy: {type: OnDelete}` in its file leaves its pods alone"));
        }
        let pods = client.get(&super::pod_path(&object.namespace, ""))?;
        let name = |pod: &Value| {
            let name = pod["metadata"]["name"].as_str().unwrap_or_default();
            (object.namespace.clone(), name.to_owned())
        };
        let own: Vec<(String, String)> = pods_of(&found, &pods).map(name).collect();
        let files = client.get(&collection(Resource::Files, None))?;
        let mut files = files["items"].as_array().into_iter().flatten();
        let file = files.find(|file| {
            let pods = file["pods"].as_array().into_iter().flatten();
            let mut pods = pods.map(|pod| (pod["namespace"].as_str(), pod["name"].as_str()));
            pods.any(|pod| own.iter().any(|(ns, name)| pod == (Some(ns), Some(name))))
        });
        let path = file
            .and_then(|file| file["path"].as_str())
            .unwrap_or("its file");
        places.push(format!(
            "`paused: true` below `spec` of {} in {path}",
            object.shown()
        ));
    }
    Err(
        CliError::new(format!("the file alone can {what} a rollout"))
            .hint(format!("{how} {}", places.join(", "))),
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_progress_is_said_in_kubectls_words() {
        let deployment = |status: Value| (WorkloadKind::Deployment, json!({}), status);
        let failed = json!([{ "type": "Progressing", "reason": "ProgressDeadlineExceeded" }]);
        let stateful = |spec: Value, status: Value| (WorkloadKind::StatefulSet, spec, status);
        let on_delete = json!({ "updateStrategy": { "type": "OnDelete" } });
        for ((kind, mut spec, status), expected) in [
            (
                deployment(json!({ "updatedReplicas": 1 })),
                Ok((
                    "Waiting for deployment \"web\" rollout to finish: 1 out of 3 new replicas have been updated...",
                    false,
                )),
            ),
            (
                deployment(json!({ "updatedReplicas": 3, "replicas": 4 })),
                Ok((
                    "Waiting for deployment \"web\" rollout to finish: 1 old replicas are pending termination...",
                    false,
                )),
            ),
            (
                deployment(json!({ "updatedReplicas": 3, "replicas": 3, "availableReplicas": 2 })),
                Ok((
                    "Waiting for deployment \"web\" rollout to finish: 2 of 3 updated replicas are available...",
                    false,
                )),
            ),
            (
                deployment(json!({ "updatedReplicas": 3, "replicas": 3, "availableReplicas": 3 })),
                Ok(("deployment \"web\" successfully rolled out", true)),
            ),
            (
                deployment(json!({ "conditions": failed })),
                Err("error: deployment \"web\" exceeded its progress deadline"),
            ),
            (
                (
                    WorkloadKind::DaemonSet,
                    json!({}),
                    json!({ "desiredNumberScheduled": 1 }),
                ),
                Ok((
                    "Waiting for daemon set \"web\" rollout to finish: 0 out of 1 new pods have been updated...",
                    false,
                )),
            ),
            (
                (WorkloadKind::DaemonSet, on_delete, json!({})),
                Err("error: rollout status is only available for RollingUpdate strategy type"),
            ),
            (
                stateful(json!({}), json!({ "readyReplicas": 1 })),
                Ok(("Waiting for 2 pods to be ready...", false)),
            ),
            (
                stateful(
                    json!({}),
                    json!({ "readyReplicas": 3, "updatedReplicas": 1, "updateRevision": "web-x" }),
                ),
                Ok((
                    "waiting for statefulset rolling update to complete 1 pods at revision web-x...",
                    false,
                )),
            ),
            (
                stateful(
                    json!({ "updateStrategy": { "rollingUpdate": { "partition": 2 } } }),
                    json!({ "readyReplicas": 3, "updatedReplicas": 1 }),
                ),
                Ok((
                    "partitioned roll out complete: 1 new pods have been updated...",
                    true,
                )),
            ),
        ] {
            spec["replicas"] = json!(3);
            let object = json!({ "metadata": { "name": "web" }, "spec": spec, "status": status });
            match (progress(kind, &object, 0), expected) {
                (Ok((line, done)), Ok(expected)) => assert_eq!((line.as_str(), done), expected),
                (Err(error), Err(text)) => assert!(error.to_string().starts_with(text), "{error}"),
                (found, expected) => panic!("{found:?} {expected:?}"),
            }
        }
    }
}
