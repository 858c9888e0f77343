//! kubectl's columns of documents that stand for pods, by its printer's rules; used for Tables of the API and by the
//! command line.

use k8s_openapi::jiff::Timestamp;
use serde_json::Value;

use super::configuration_columns::{age, name};
use crate::spec::WorkloadKind;

/// The columns' names, and whether only wide tables have them.
pub fn columns(kind: WorkloadKind) -> &'static [(&'static str, u8)] {
    match kind {
        WorkloadKind::Deployment => &[
            ("Name", 0),
            ("Ready", 0),
            ("Up-to-date", 0),
            ("Available", 0),
            ("Age", 0),
            ("Containers", 1),
            ("Images", 1),
            ("Selector", 1),
        ],
        WorkloadKind::ReplicaSet | WorkloadKind::ReplicationController => &[
            ("Name", 0),
            ("Desired", 0),
            ("Current", 0),
            ("Ready", 0),
            ("Age", 0),
            ("Containers", 1),
            ("Images", 1),
            ("Selector", 1),
        ],
        WorkloadKind::StatefulSet => &[
            ("Name", 0),
            ("Ready", 0),
            ("Age", 0),
            ("Containers", 1),
            ("Images", 1),
        ],
        WorkloadKind::Job => &[
            ("Name", 0),
            ("Status", 0),
            ("Completions", 0),
            ("Duration", 0),
            ("Age", 0),
            ("Containers", 1),
            ("Images", 1),
            ("Selector", 1),
        ],
        WorkloadKind::CronJob => &[
            ("Name", 0),
            ("Schedule", 0),
            ("Timezone", 0),
            ("Suspend", 0),
            ("Active", 0),
            ("Last Schedule", 0),
            ("Age", 0),
            ("Containers", 1),
            ("Images", 1),
            ("Selector", 1),
        ],
        WorkloadKind::DaemonSet => &[
            ("Name", 0),
            ("Desired", 0),
            ("Current", 0),
            ("Ready", 0),
            ("Up-to-date", 0),
            ("Available", 0),
            ("Node Selector", 0),
            ("Age", 0),
            ("Containers", 1),
            ("Images", 1),
            ("Selector", 1),
        ],
    }
}

/// The cells of one document, those of wide tables included.
pub fn row(kind: WorkloadKind, object: &Value, now: Timestamp) -> Vec<String> {
    let status = &object["status"];
    let number = |field: &str| status[field].as_u64().unwrap_or(0).to_string();
    let wanted = object["spec"]["replicas"].as_u64().unwrap_or(1);
    let ready = || format!("{}/{wanted}", number("readyReplicas"));
    let mut cells = vec![name(object)];
    match kind {
        WorkloadKind::Deployment => cells.extend([
            ready(),
            number("updatedReplicas"),
            number("availableReplicas"),
        ]),
        WorkloadKind::ReplicaSet | WorkloadKind::ReplicationController => cells.extend([
            wanted.to_string(),
            number("replicas"),
            number("readyReplicas"),
        ]),
        WorkloadKind::StatefulSet => cells.push(ready()),
        WorkloadKind::Job => cells.extend([
            job_status(object).to_owned(),
            completions(object),
            duration(status, now),
        ]),
        WorkloadKind::CronJob => cells.extend(cron(object, now)),
        WorkloadKind::DaemonSet => cells.extend([
            number("desiredNumberScheduled"),
            number("currentNumberScheduled"),
            number("numberReady"),
            number("updatedNumberScheduled"),
            number("numberAvailable"),
            pairs(&object["spec"]["template"]["spec"]["nodeSelector"]),
        ]),
    }
    cells.push(age(object, now));
    cells.extend(containers(object));
    if kind != WorkloadKind::StatefulSet {
        cells.push(selector(&object["spec"]["selector"]));
    }
    cells
}

/// In one word.
pub fn job_status(job: &Value) -> &str {
    let conditions = job["status"]["conditions"].as_array();
    let conditions = conditions.into_iter().flatten();
    // `SuccessCriteriaMet` and `FailureTarget` come before the condition that tells how the Job ended.
    let mut conditions = conditions.filter(|one| one["status"] == "True");
    let condition = conditions.next_back();
    let condition = condition.and_then(|one| one["type"].as_str());
    condition.unwrap_or("Running")
}

/// How many pods have succeeded, of how many.
fn completions(job: &Value) -> String {
    let (spec, done) = (
        &job["spec"],
        job["status"]["succeeded"].as_u64().unwrap_or(0),
    );
    let parallelism = spec["parallelism"].as_u64().unwrap_or(1);
    match spec["completions"].as_u64() {
        Some(wanted) => format!("{done}/{wanted}"),
        None if parallelism > 1 => format!("{done}/1 of {parallelism}"),
        None => format!("{done}/1"),
    }
}

/// kubectl's cells of a CronJob.
fn cron(object: &Value, now: Timestamp) -> [String; 5] {
    let (spec, status) = (&object["spec"], &object["status"]);
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let none = || "<none>".to_owned();
    let suspended = spec["suspend"] == true;
    let last = status["lastScheduleTime"].as_str();
    let last = last.and_then(|last| last.parse::<Timestamp>().ok());
    [
        text(&spec["schedule"]).unwrap_or_default(),
        text(&spec["timeZone"]).unwrap_or_else(none),
        if suspended { "True" } else { "False" }.to_owned(),
        status["active"].as_array().map_or(0, Vec::len).to_string(),
        last.map_or_else(none, |last| super::pod_columns::human_age(last, now)),
    ]
}

/// How long the Job has been at work.
fn duration(status: &Value, now: Timestamp) -> String {
    let time = |field: &str| status[field].as_str()?.parse::<Timestamp>().ok();
    match (time("startTime"), time("completionTime")) {
        (None, _) => String::new(),
        (Some(from), to) => super::pod_columns::human_age(from, to.unwrap_or(now)),
    }
}

/// Names and images of the template's containers.
fn containers(object: &Value) -> [String; 2] {
    let spec = &object["spec"];
    let spec = match spec["jobTemplate"].is_object() {
        true => &spec["jobTemplate"]["spec"],
        false => spec,
    };
    let all = spec["template"]["spec"]["containers"].as_array();
    let list = |field: &str| {
        let texts = all.into_iter().flatten();
        let texts: Vec<&str> = texts.filter_map(|one| one[field].as_str()).collect();
        texts.join(",")
    };
    [list("name"), list("image")]
}

/// A selector in kubectl's notation.
pub fn selector(selector: &Value) -> String {
    // A ReplicationController has labels only.
    let labels = match selector["matchLabels"].is_object() {
        true => &selector["matchLabels"],
        false => selector,
    };
    let expressions = selector["matchExpressions"].as_array();
    let expressions = expressions.into_iter().flatten().map(|expression| {
        let key = expression["key"].as_str().unwrap_or_default();
        let values = expression["values"].as_array().into_iter().flatten();
        let values: Vec<&str> = values.filter_map(Value::as_str).collect();
        let values = values.join(",");
        match expression["operator"].as_str().unwrap_or_default() {
            "In" => format!("{key} in ({values})"),
            "NotIn" => format!("{key} notin ({values})"),
            "DoesNotExist" => format!("!{key}"),
            _ => key.to_owned(),
        }
    });
    let labels = pairs(labels);
    let labels = Some(labels).filter(|labels| labels != "<none>");
    let all: Vec<String> = labels.into_iter().chain(expressions).collect();
    match all.is_empty() {
        true => "<none>".to_owned(),
        false => all.join(","),
    }
}

fn pairs(labels: &Value) -> String {
    let labels = labels.as_object().into_iter().flatten();
    let pairs = labels.filter_map(|(key, value)| Some(format!("{key}={}", value.as_str()?)));
    let pairs: Vec<String> = pairs.collect();
    match pairs.is_empty() {
        true => "<none>".to_owned(),
        false => pairs.join(","),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn columns_are_kubectls() {
        let now: Timestamp = "2026-01-01T00:02:05Z".parse().expect("a time");
        let template = json!({ "spec": { "containers": [
            { "name": "web", "image": "nginx:1" }, { "name": "log", "image": "busybox" }] } });
        let object = json!({
            "metadata": { "name": "x", "creationTimestamp": "2026-01-01T00:00:00Z" },
            "spec": { "replicas": 3, "template": template, "selector": {
                "matchLabels": { "app": "x" },
                "matchExpressions": [{ "key": "tier", "operator": "In", "values": ["a", "b"] }] } },
            "status": { "replicas": 3, "readyReplicas": 2, "updatedReplicas": 1, "availableReplicas": 2,
                        "desiredNumberScheduled": 1, "currentNumberScheduled": 1, "numberReady": 1,
                        "updatedNumberScheduled": 1, "numberAvailable": 1 },
        });
        for (kind, expected) in [
            (
                WorkloadKind::Deployment,
                "x|2/3|1|2|2m5s|web,log|nginx:1,busybox|app=x,tier in (a,b)",
            ),
            (
                WorkloadKind::ReplicaSet,
                "x|3|3|2|2m5s|web,log|nginx:1,busybox|app=x,tier in (a,b)",
            ),
            (
                WorkloadKind::StatefulSet,
                "x|2/3|2m5s|web,log|nginx:1,busybox",
            ),
            (
                WorkloadKind::DaemonSet,
                "x|1|1|1|1|1|<none>|2m5s|web,log|nginx:1,busybox|app=x,tier in (a,b)",
            ),
        ] {
            let cells = row(kind, &object, now);
            assert_eq!(cells.join("|"), expected);
            assert_eq!(cells.len(), columns(kind).len());
        }
    }
}
