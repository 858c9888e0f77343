//! `coracle describe` of documents that stand for pods: laid out as kubectl's, with their pods instead of their
//! ReplicaSets.

use std::fmt::Write as _;

use k8s_openapi::api::core::v1::Pod;
use serde_json::Value;

use super::client::Client;
use super::describe_claim::events;
use super::describe_configuration::{line, pairs};
use super::describe_node::event_table;
use super::error::Result;
use super::sheet::Sheet;
use super::table::{Table, one_line};
use super::target::{pods_of, workload_path};
use super::{pod_path, put};
use crate::api::{encode, pod_columns, workload_columns};
use crate::spec::{WorkloadKind, read_object};
use crate::sys::clock;

const WIDTH: usize = 24;

pub(super) fn run(
    client: &Client,
    kind: WorkloadKind,
    namespace: &str,
    names: &[String],
) -> Result<()> {
    for (index, name) in names.iter().enumerate() {
        let object = client.get(&workload_path(kind, namespace, name))?;
        let pods = client.get(&pod_path(namespace, ""))?;
        let gap = if index > 0 { "\n\n" } else { "" };
        let place = format!("/api/v1/namespaces/{}", encode(namespace));
        let events = events(client, &place, kind.as_str(), name)?;
        let mut table = Sheet::default();
        event_table(&mut table, &events, clock::timestamp());
        let page = page(kind, &object, &pods);
        put(format!("{gap}{page}{}", table.render()).as_bytes())?;
    }
    Ok(())
}

/// Formats the whole page.
fn page(kind: WorkloadKind, object: &Value, pods: &Value) -> String {
    let mut out = String::new();
    let (metadata, spec, status) = (&object["metadata"], &object["spec"], &object["status"]);
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    line(&mut out, WIDTH, "Name", &text(&metadata["name"]));
    line(&mut out, WIDTH, "Namespace", &text(&metadata["namespace"]));
    let created = text(&metadata["creationTimestamp"]);
    line(&mut out, WIDTH, "CreationTimestamp", &created);
    pairs(&mut out, WIDTH, ("Labels", "="), &metadata["labels"]);
    let annotations = &metadata["annotations"];
    pairs(&mut out, WIDTH, ("Annotations", ": "), annotations);
    let selector = workload_columns::selector(&spec["selector"]);
    line(&mut out, WIDTH, "Selector", &selector);
    match kind {
        WorkloadKind::Job => job(&mut out, object),
        WorkloadKind::CronJob => cron(&mut out, object),
        _ => rollout(&mut out, kind, spec, status),
    }
    out.push_str("Pod Template:\n");
    let spec = match kind {
        WorkloadKind::CronJob => &spec["jobTemplate"]["spec"],
        _ => spec,
    };
    for container in spec["template"]["spec"]["containers"]
        .as_array()
        .into_iter()
        .flatten()
    {
        let (name, image) = (text(&container["name"]), text(&container["image"]));
        let _ = writeln!(out, "  {}:  {}", one_line(&name), one_line(&image));
    }
    conditions(&mut out, &status["conditions"]);
    // A CronJob's Jobs have them.
    if kind != WorkloadKind::CronJob {
        its_pods(&mut out, object, pods);
    }
    out
}

/// What is particular to a document whose pods run for ever.
fn rollout(out: &mut String, kind: WorkloadKind, spec: &Value, status: &Value) {
    line(out, WIDTH, "Replicas", &replicas(kind, spec, status));
    for (title, field) in [
        ("MinReadySeconds", "minReadySeconds"),
        ("Service Name", "serviceName"),
        ("Pod Management Policy", "podManagementPolicy"),
    ] {
        match &spec[field] {
            Value::Null => {}
            Value::String(value) => line(out, WIDTH, title, value),
            value => line(out, WIDTH, title, &value.to_string()),
        }
    }
    let strategy = [&spec["strategy"], &spec["updateStrategy"]];
    let strategy = strategy.into_iter().find_map(|of| of["type"].as_str());
    line(
        out,
        WIDTH,
        "StrategyType",
        strategy.unwrap_or("RollingUpdate"),
    );
}

/// What is particular to a CronJob.
fn cron(out: &mut String, object: &Value) {
    let (spec, status) = (&object["spec"], &object["status"]);
    let text = |value: &Value| match value {
        Value::String(text) => text.clone(),
        Value::Null => "<unset>".to_owned(),
        Value::Bool(yes) => if *yes { "True" } else { "False" }.to_owned(),
        other => other.to_string(),
    };
    let active = status["active"].as_array().into_iter().flatten();
    let active: Vec<String> = active.map(|job| text(&job["name"])).collect();
    let active = match active.is_empty() {
        true => "<none>".to_owned(),
        false => active.join(", "),
    };
    for (title, value) in [
        ("Schedule", &spec["schedule"]),
        ("Time Zone", &spec["timeZone"]),
        ("Concurrency Policy", &spec["concurrencyPolicy"]),
        ("Suspend", &spec["suspend"]),
        (
            "Successful Job History Limit",
            &spec["successfulJobsHistoryLimit"],
        ),
        ("Failed Job History Limit", &spec["failedJobsHistoryLimit"]),
        (
            "Starting Deadline Seconds",
            &spec["startingDeadlineSeconds"],
        ),
        ("Last Schedule Time", &status["lastScheduleTime"]),
        ("Last Successful Time", &status["lastSuccessfulTime"]),
        ("Active Jobs", &Value::String(active)),
    ] {
        line(out, WIDTH, title, &text(value));
    }
}

/// What is particular to a Job.
fn job(out: &mut String, object: &Value) {
    let (spec, status) = (&object["spec"], &object["status"]);
    let number = |value: &Value| value.as_u64().unwrap_or(0);
    let text = |value: &Value| match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    };
    for (title, value) in [
        ("Parallelism", &spec["parallelism"]),
        ("Completions", &spec["completions"]),
        ("Completion Mode", &spec["completionMode"]),
        ("Suspend", &spec["suspend"]),
        ("Backoff Limit", &spec["backoffLimit"]),
        ("Start Time", &status["startTime"]),
        ("Completed At", &status["completionTime"]),
        ("Completed Indexes", &status["completedIndexes"]),
    ] {
        if !value.is_null() {
            line(out, WIDTH, title, &text(value));
        }
    }
    let statuses = format!(
        "{} Active ({} Ready) / {} Succeeded / {} Failed",
        number(&status["active"]),
        number(&status["ready"]),
        number(&status["succeeded"]),
        number(&status["failed"])
    );
    line(out, WIDTH, "Pods Statuses", &statuses);
}

fn replicas(kind: WorkloadKind, spec: &Value, status: &Value) -> String {
    let number = |field: &str| status[field].as_u64().unwrap_or(0);
    let (wanted, updated, available) = match kind {
        WorkloadKind::DaemonSet => (
            number("desiredNumberScheduled"),
            number("updatedNumberScheduled"),
            number("numberAvailable"),
        ),
        _ => (
            spec["replicas"].as_u64().unwrap_or(1),
            number("updatedReplicas"),
            number("availableReplicas"),
        ),
    };
    let total = number("replicas").max(number("currentNumberScheduled"));
    let missing = wanted.saturating_sub(available);
    match kind {
        WorkloadKind::ReplicaSet | WorkloadKind::ReplicationController => {
            format!("{total} current / {wanted} desired")
        }
        _ => format!(
            "{wanted} desired | {updated} updated | {total} total | {available} available | {missing} unavailable"
        ),
    }
}

fn conditions(out: &mut String, conditions: &Value) {
    let Some(conditions) = conditions.as_array() else {
        return;
    };
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let rows = conditions.iter().map(|condition| {
        let fields = ["type", "status", "reason", "message"];
        let mut cells = fields.map(|field| text(&condition[field])).to_vec();
        cells[0].insert_str(0, "  ");
        cells
    });
    let rows: Vec<Vec<String>> = rows.collect();
    out.push_str("Conditions:\n");
    let header = ["  Type", "Status", "Reason", "Message"];
    out.push_str(&Table::default().render(&header, &rows));
}

/// The pods that were made from it.
fn its_pods(out: &mut String, owner: &Value, pods: &Value) {
    let now = clock::timestamp();
    let rows = pods_of(owner, pods).map(|pod| {
        let row = pod_columns::row(&read_object::<Pod>(pod).unwrap_or_default(), now);
        vec![
            format!("  {}", row.name),
            row.ready,
            row.status,
            row.restarts,
            row.age,
        ]
    });
    let rows: Vec<Vec<String>> = rows.collect();
    if rows.is_empty() {
        out.push_str("Pods:  <none>\n");
        return;
    }
    out.push_str("Pods:\n");
    let header = ["  Name", "Ready", "Status", "Restarts", "Age"];
    out.push_str(&Table::default().render(&header, &rows));
}
