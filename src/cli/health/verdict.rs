//! Whether a boot is healthy, from what the agent shows. Pure.

use std::fmt;

use serde_json::Value;

use crate::spec::REQUIRED;

/// The most problems that are reported.
const MAX_PROBLEMS: usize = 16;

/// The longest message of one, in characters.
const MAX_MESSAGE: usize = 200;

/// The reason of a run whose program could not be executed.
pub(in crate::cli) const START_ERROR: &str = "StartError";

/// What the agent shows.
#[derive(Debug, Default)]
pub(super) struct Seen {
    pub(super) node: Value,
    pub(super) pods: Vec<Value>,
    pub(super) files: Vec<File>,
    /// Whether the manifests were read since the agent's start.
    pub(super) read: bool,
}

/// A manifest file.
#[derive(Debug, Default)]
pub(super) struct File {
    pub(super) path: String,
    /// Whether it was rejected, and may have a required pod.
    pub(super) may_require: bool,
    /// Its first error.
    pub(super) error: String,
}

/// Why a boot is not healthy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::cli) struct Problem {
    /// `agent`, `node box`, `pod default/web`, `file /etc/coracle/manifests/web.yaml`.
    pub(in crate::cli) about: String,
    pub(in crate::cli) message: String,
}

impl Problem {
    /// Characters that would control a terminal or start another line are escaped.
    pub(in crate::cli) fn new(about: impl AsRef<str>, message: impl AsRef<str>) -> Self {
        let clean = |text: &str| -> String {
            let plain = |c: char| match c.is_control() {
                true => c.escape_default().collect::<String>(),
                false => c.to_string(),
            };
            text.chars().take(MAX_MESSAGE).map(plain).collect()
        };
        Self {
            about: clean(about.as_ref()),
            message: clean(message.as_ref()),
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.about, self.message)
    }
}

/// Returns what was checked, or everything that is wrong.
///
/// Only required pods count: one that is not must not have a whole system rolled back. For the same reason a rejected
/// file counts only if it may have a required pod.
pub(super) fn of(seen: &Seen) -> Result<String, Vec<Problem>> {
    let mut problems = Vec::new();
    let node = seen.node["metadata"]["name"].as_str().unwrap_or("?");
    if !is_true(&seen.node, "Ready") {
        problems.push(Problem::new(format!("node {node}"), not_ready(&seen.node)));
    }
    if !seen.read {
        problems.push(Problem::new("agent", "it has not read the manifests yet"));
    }
    for file in seen.files.iter().filter(|file| file.may_require) {
        let why = match file.error.as_str() {
            "" => "rejected".to_owned(),
            error => format!("rejected, and may have a required pod: {error}"),
        };
        problems.push(Problem::new(format!("file {}", file.path), why));
    }
    let is_required = |pod: &&Value| pod["metadata"]["annotations"][REQUIRED] == "true";
    let (mut required, mut stopped) = (0_usize, 0_usize);
    for pod in seen.pods.iter().filter(is_required) {
        if pod["status"]["reason"] == "Stopped" {
            // A person wants it down: no reason to go back to the former system.
            stopped += 1;
            continue;
        }
        required += 1;
        if pod["status"]["phase"] == "Succeeded" || is_true(pod, "Ready") {
            continue;
        }
        let word = |field: &str| pod["metadata"][field].as_str().unwrap_or_default();
        let about = format!("pod {}/{}", word("namespace"), word("name"));
        problems.push(Problem::new(about, why(&pod["status"])));
    }
    if problems.is_empty() {
        let and = match stopped {
            0 => String::new(),
            n => format!(" ({n} stopped by command)"),
        };
        return Ok(match required {
            0 if stopped > 0 => format!("node {node} is ready, no required pod is up{and}"),
            0 => format!("node {node} is ready, no pod is required"),
            1 => format!("node {node} is ready, and so is 1 required pod{and}"),
            n => format!("node {node} is ready, and so are {n} required pods{and}"),
        });
    }
    let more = problems.len().saturating_sub(MAX_PROBLEMS);
    if more > 0 {
        problems.truncate(MAX_PROBLEMS);
        problems.push(Problem::new("others", format!("{more} more problems")));
    }
    Err(problems)
}

/// Whether a manifest that was not understood may mark a pod as required.
pub(super) fn may_require(text: &[u8]) -> bool {
    let (domain, name) = REQUIRED.split_once('/').unwrap_or_default();
    let has = |part: &str| text.windows(part.len()).any(|at| at == part.as_bytes());
    // JSON may write the slash between them in other ways.
    has(domain) && has(name)
}

fn condition<'v>(object: &'v Value, of: &str) -> Option<&'v Value> {
    let mut all = object["status"]["conditions"].as_array()?.iter();
    all.find(|condition| condition["type"] == of)
}

fn is_true(object: &Value, of: &str) -> bool {
    condition(object, of).is_some_and(|condition| condition["status"] == "True")
}

fn not_ready(node: &Value) -> String {
    let message = condition(node, "Ready").and_then(|ready| ready["message"].as_str());
    format!("not ready: {}", message.unwrap_or("it has no status"))
}

/// Why a pod is not ready.
fn why(status: &Value) -> String {
    cause(status).unwrap_or_else(|| phase(status))
}

/// What is known of a pod that is not ready if nothing says why.
pub(in crate::cli) fn phase(status: &Value) -> String {
    let phase = status["phase"].as_str().unwrap_or("unknown");
    format!("not ready, its phase is {phase}")
}

/// What keeps a pod from being ready, if its status says it. Words that change with time, as seconds of a back-off, are
/// left out: the same problem has the same words.
pub(in crate::cli) fn cause(status: &Value) -> Option<String> {
    if let Some(reason) = status["reason"].as_str() {
        let message = status["message"].as_str().unwrap_or_default();
        return Some(format!("{reason}: {message}"));
    }
    let kinds = ["initContainerStatuses", "containerStatuses"];
    let containers = || {
        let of = |kind| status[kind].as_array().into_iter().flatten();
        kinds.into_iter().flat_map(of)
    };
    for container in containers() {
        let name = container["name"].as_str().unwrap_or_default();
        let (state, last) = (&container["state"], &container["lastState"]["terminated"]);
        let mut ended = [&state["terminated"], last].into_iter();
        let code = ended.find(|end| end["exitCode"].is_i64());
        let code = code.map_or(String::new(), how_ended);
        match state["waiting"]["reason"].as_str() {
            // They wait for others.
            Some("PodInitializing" | "ContainerCreating") => {}
            Some(reason) => {
                return Some(format!("container `{name}` waits: {reason}{code}"));
            }
            None if state["terminated"]["exitCode"].as_i64().unwrap_or(0) != 0 => {
                return Some(format!("container `{name}` has ended{code}"));
            }
            None => {}
        }
    }
    let not_ready = |c: &&Value| c["ready"] == false && c["state"]["running"].is_object();
    let runs = containers().find(not_ready)?;
    let name = runs["name"].as_str().unwrap_or_default();
    Some(format!("container `{name}` runs, but is not ready"))
}

/// How a run ended, to be put behind why there is no other one. No log has what kept a program from being started.
fn how_ended(end: &Value) -> String {
    match (end["reason"].as_str(), end["message"].as_str()) {
        (Some(reason @ START_ERROR), Some(message)) => format!(", {reason}: {message}"),
        _ => format!(", last exit code {}", end["exitCode"]),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn node(ready: &str) -> Value {
        json!({ "metadata": { "name": "box" }, "status": { "conditions": [
            { "type": "MemoryPressure", "status": "False" },
            { "type": "Ready", "status": ready, "message": "node is shutting down" },
        ] } })
    }

    fn pod(required: Option<&str>, status: Value) -> Value {
        json!({ "metadata": { "namespace": "default", "name": "web",
                              "annotations": required.map(|value| json!({ REQUIRED: value })) },
                "status": status })
    }

    fn ready(word: &str) -> Value {
        json!({ "phase": "Running", "conditions": [{ "type": "Ready", "status": word }] })
    }

    #[test]
    fn a_boot_is_healthy_if_the_node_and_all_required_pods_are() {
        let crashing = json!({ "phase": "Running", "conditions": [], "containerStatuses": [{
            "name": "main", "ready": false,
            "state": { "waiting": { "reason": "CrashLoopBackOff", "message": "back-off 10s restarting" } },
            "lastState": { "terminated": { "exitCode": 3 } },
        }] });
        let not_started = json!({ "phase": "Running", "containerStatuses": [{ "name": "main",
            "state": { "waiting": { "reason": "CrashLoopBackOff" } },
            "lastState": { "terminated": { "exitCode": 128, "reason": "StartError", "message": "no `nc` in $PATH" } },
        }] });
        let unready = json!({ "phase": "Running", "conditions": [], "containerStatuses": [
            { "name": "ok", "ready": true, "state": { "running": {} } },
            { "name": "slow", "ready": false, "state": { "running": {} } },
        ] });
        let initializing = json!({ "phase": "Pending",
            "initContainerStatuses": [{ "name": "init", "state": { "waiting": { "reason": "ErrImagePull" } } }],
            "containerStatuses": [{ "name": "main", "state": { "waiting": { "reason": "PodInitializing" } } }],
        });
        let failed = json!({ "phase": "Failed", "containerStatuses": [
            { "name": "main", "state": { "terminated": { "exitCode": 9 } } },
        ] });
        let held = json!({ "phase": "Pending", "reason": "OutOfcpu", "message": "too little" });
        let yes = Some("true");
        for (sentence, status, pods, expected) in [
            (
                "nothing is required",
                "True",
                vec![],
                "node box is ready, no pod is required",
            ),
            (
                "a required pod is ready",
                "True",
                vec![pod(yes, ready("True"))],
                "node box is ready, and so is 1 required pod",
            ),
            (
                "one of them is completed",
                "True",
                vec![
                    pod(yes, ready("True")),
                    pod(yes, json!({ "phase": "Succeeded" })),
                ],
                "node box is ready, and so are 2 required pods",
            ),
            (
                "others do not count",
                "True",
                vec![
                    pod(Some("false"), crashing.clone()),
                    pod(None, crashing.clone()),
                ],
                "node box is ready, no pod is required",
            ),
            (
                "the node",
                "False",
                vec![],
                "!node box: not ready: node is shutting down",
            ),
            (
                "a crash loop",
                "True",
                vec![pod(yes, crashing)],
                "!pod default/web: container `main` waits: CrashLoopBackOff, last exit code 3",
            ),
            (
                "a program that is not in the image",
                "True",
                vec![pod(yes, not_started)],
                "!pod default/web: container `main` waits: CrashLoopBackOff, StartError: no `nc` in $PATH",
            ),
            (
                "a probe",
                "True",
                vec![pod(yes, unready)],
                "!pod default/web: container `slow` runs, but is not ready",
            ),
            (
                "an image",
                "True",
                vec![pod(yes, initializing)],
                "!pod default/web: container `init` waits: ErrImagePull",
            ),
            (
                "a failed pod",
                "True",
                vec![pod(yes, failed)],
                "!pod default/web: container `main` has ended, last exit code 9",
            ),
            (
                "no room",
                "True",
                vec![pod(yes, held)],
                "!pod default/web: OutOfcpu: too little",
            ),
            (
                "a person has stopped one",
                "True",
                vec![
                    pod(yes, ready("True")),
                    pod(yes, json!({ "phase": "Pending", "reason": "Stopped" })),
                ],
                "node box is ready, and so is 1 required pod (1 stopped by command)",
            ),
            (
                "all are stopped",
                "True",
                vec![pod(yes, json!({ "phase": "Pending", "reason": "Stopped" }))],
                "node box is ready, no required pod is up (1 stopped by command)",
            ),
            (
                "a readiness gate",
                "True",
                vec![pod(yes, ready("False"))],
                "!pod default/web: not ready, its phase is Running",
            ),
        ] {
            let seen = Seen {
                node: node(status),
                pods,
                read: true,
                ..Seen::default()
            };
            let found = match of(&seen) {
                Ok(what) => what,
                Err(problems) => format!("!{}", problems[0]),
            };
            assert_eq!(found, expected, "{sentence}");
        }
    }

    #[test]
    fn a_rejected_file_counts_if_it_may_have_a_required_pod() {
        for (text, expected) in [
            (
                "metadata: {annotations: {coracle.dev/required: \"true\"",
                true,
            ),
            (r#"{"annotations":{"coracle.dev\/required":"true"}}"#, true),
            ("metadata: {annotations: {coracle.dev/after: db}}", false),
            ("requiredDuringScheduling", false),
            ("", false),
        ] {
            assert_eq!(may_require(text.as_bytes()), expected, "{text}");
        }
        let file = |may_require| File {
            path: "/m/a\u{1b}.yaml".to_owned(),
            may_require,
            error: "1:1: spec: Required value".to_owned(),
        };
        let seen = |may| Seen {
            node: node("True"),
            files: vec![file(may)],
            read: true,
            ..Seen::default()
        };
        assert!(of(&seen(false)).is_ok());
        let problems = of(&seen(true)).expect_err("rejected");
        assert_eq!(
            problems[0].to_string(),
            "file /m/a\\u{1b}.yaml: rejected, and may have a required pod: 1:1: spec: Required value"
        );
    }

    #[test]
    fn an_agent_that_has_not_read_the_manifests_knows_no_required_pod_yet() {
        let seen = Seen {
            node: node("True"),
            ..Seen::default()
        };
        assert_eq!(of(&seen).expect_err("too early")[0].about, "agent");
    }

    #[test]
    fn many_problems_are_cut() {
        let pods = (0..100).map(|_| pod(Some("true"), json!({ "phase": "Pending" })));
        let seen = Seen {
            node: node("True"),
            pods: pods.collect(),
            read: true,
            ..Seen::default()
        };
        let problems = of(&seen).expect_err("none is ready");
        assert_eq!(problems.len(), MAX_PROBLEMS + 1);
        assert_eq!(
            problems[MAX_PROBLEMS].to_string(),
            "others: 84 more problems"
        );
    }
}
