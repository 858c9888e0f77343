//! kubectl's printer rules as a table: pod in, columns out.

use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use super::pod_columns::{human_duration, row};

fn status(state: Value, restarts: u32, ready: bool) -> Value {
    let last = match restarts {
        0 => json!({}),
        _ => json!({ "terminated": { "exitCode": 1, "finishedAt": "2026-01-01T00:00:00Z" } }),
    };
    json!({ "name": "c", "image": "i", "imageID": "", "ready": ready, "restartCount": restarts,
            "state": state, "lastState": last })
}

fn columns(pod: Value) -> String {
    let now: Timestamp = "2026-01-01T00:03:10Z".parse().unwrap();
    let row = row(&serde_json::from_value(pod).unwrap(), now);
    format!("{} {} {}", row.ready, row.status, row.restarts)
}

fn pod(phase: &str, containers: Value, init: Value) -> Value {
    let init_specs: Vec<Value> = init
        .as_array()
        .unwrap()
        .iter()
        .map(|_| json!({ "name": "c" }))
        .collect();
    json!({ "metadata": { "name": "p" },
            "spec": { "containers": [{ "name": "c" }], "initContainers": init_specs },
            "status": { "phase": phase, "containerStatuses": containers, "initContainerStatuses": init } })
}

#[test]
fn the_status_column_follows_kubectls_rules() {
    let running = json!({ "running": {} });
    let waiting = |why: &str| json!({ "waiting": { "reason": why } });
    let ended = |why: &str, code: i32| json!({ "terminated": { "reason": why, "exitCode": code } });
    let none = json!([]);
    let table = [
        (
            "1/1 Running 0",
            pod(
                "Running",
                json!([status(running.clone(), 0, true)]),
                none.clone(),
            ),
        ),
        (
            "0/1 CrashLoopBackOff 2 (3m10s ago)",
            pod(
                "Running",
                json!([status(waiting("CrashLoopBackOff"), 2, false)]),
                none.clone(),
            ),
        ),
        (
            "0/1 Completed 0",
            pod(
                "Succeeded",
                json!([status(ended("Completed", 0), 0, false)]),
                none.clone(),
            ),
        ),
        (
            "0/1 ExitCode:3 0",
            pod(
                "Failed",
                json!([status(ended("", 3), 0, false)]),
                none.clone(),
            ),
        ),
        ("0/1 Pending 0", pod("Pending", json!([]), none.clone())),
        (
            "0/1 Init:0/1 0",
            pod(
                "Pending",
                json!([]),
                json!([status(running.clone(), 0, false)]),
            ),
        ),
        (
            "0/1 Init:Error 0",
            pod(
                "Pending",
                json!([]),
                json!([status(ended("Error", 1), 0, false)]),
            ),
        ),
        (
            "0/1 Init:CrashLoopBackOff 1 (3m10s ago)",
            pod(
                "Pending",
                json!([]),
                json!([status(waiting("CrashLoopBackOff"), 1, false)]),
            ),
        ),
        (
            "1/1 Running 0",
            pod(
                "Running",
                json!([status(running.clone(), 0, true)]),
                json!([status(ended("Completed", 0), 1, true)]),
            ),
        ),
    ];
    let table = table.into_iter().chain(with_sidecar());
    for (expected, pod) in table {
        assert_eq!(columns(pod.clone()), expected, "{pod}");
    }
    let mut stopping = pod("Running", json!([status(running, 0, true)]), none);
    stopping["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    assert_eq!(columns(stopping), "1/1 Terminating 0");
}

#[test]
fn a_pods_own_reason_counts_until_a_container_has_one() {
    let running = || status(json!({ "running": {} }), 0, true);
    let ended = |why: &str, code: i32, signal: i32| {
        let end = json!({ "terminated": { "reason": why, "exitCode": code, "signal": signal } });
        status(end, 0, false)
    };
    let waiting = |why: &str| status(json!({ "waiting": { "reason": why } }), 0, false);
    let none = || json!([]);
    let said = |mut pod: Value, reason: &str| {
        pod["status"]["reason"] = json!(reason);
        pod
    };
    let two = |first: Value, second: Value, ready: &str| {
        let mut pod = pod("Running", json!([first, second]), none());
        pod["spec"]["containers"] = json!([{ "name": "c" }, { "name": "d" }]);
        pod["status"]["conditions"] = json!([{ "type": "Ready", "status": ready }]);
        pod
    };
    let gone = |mut pod: Value| {
        pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        pod
    };
    let table = [
        (
            "0/1 Evicted 0",
            said(pod("Failed", none(), none()), "Evicted"),
        ),
        (
            "0/1 DeadlineExceeded 0",
            said(pod("Failed", none(), none()), "DeadlineExceeded"),
        ),
        (
            "0/1 Error 0",
            said(
                pod("Failed", json!([ended("Error", 143, 0)]), none()),
                "DeadlineExceeded",
            ),
        ),
        (
            "0/1 OOMKilled 0",
            pod("Failed", json!([ended("OOMKilled", 137, 0)]), none()),
        ),
        (
            "0/1 Signal:9 0",
            pod("Failed", json!([ended("", 137, 9)]), none()),
        ),
        (
            "0/1 Init:Signal:9 0",
            pod("Pending", none(), json!([ended("", 137, 9)])),
        ),
        (
            "0/1 Init:ExitCode:4 0",
            pod("Pending", none(), json!([ended("", 4, 0)])),
        ),
        (
            "0/1 Init:OOMKilled 0",
            pod("Pending", none(), json!([ended("OOMKilled", 137, 0)])),
        ),
        (
            "0/1 Init:ErrImageNeverPull 0",
            pod("Pending", none(), json!([waiting("ErrImageNeverPull")])),
        ),
        (
            "0/1 ContainerCreating 0",
            pod("Pending", json!([waiting("ContainerCreating")]), none()),
        ),
        (
            "0/1 ErrImageNeverPull 0",
            pod("Pending", json!([waiting("ErrImageNeverPull")]), none()),
        ),
        // The first container's reason wins.
        (
            "0/2 CrashLoopBackOff 0",
            two(waiting("CrashLoopBackOff"), ended("Error", 1, 0), "False"),
        ),
        (
            "1/2 Running 0",
            two(ended("Completed", 0, 0), running(), "True"),
        ),
        (
            "1/2 NotReady 0",
            two(ended("Completed", 0, 0), running(), "False"),
        ),
        ("1/2 Error 0", two(ended("Error", 1, 0), running(), "False")),
        // A finished pod is not Terminating.
        (
            "0/1 Completed 0",
            gone(pod("Succeeded", json!([ended("Completed", 0, 0)]), none())),
        ),
        (
            "1/1 Unknown 0",
            gone(said(pod("Running", json!([running()]), none()), "NodeLost")),
        ),
    ];
    for (expected, pod) in table {
        assert_eq!(columns(pod.clone()), expected, "{pod}");
    }
}

#[test]
fn readiness_gates_are_counted_by_their_conditions() {
    let now: Timestamp = "2026-01-01T00:03:10Z".parse().unwrap();
    for (gates, expected) in [
        (vec![], "<none>"),
        (vec!["a"], "1/1"),
        (vec!["a", "b", "c"], "1/3"),
    ] {
        let mut pod = pod("Running", json!([]), json!([]));
        let gates: Vec<Value> = gates
            .iter()
            .map(|g| json!({ "conditionType": g }))
            .collect();
        pod["spec"]["readinessGates"] = json!(gates);
        pod["status"]["conditions"] =
            json!([{ "type": "a", "status": "True" }, { "type": "b", "status": "False" }]);
        let row = row(&serde_json::from_value(pod).unwrap(), now);
        assert_eq!(row.gates, expected);
    }
}

/// A pod of one sidecar, one init container after it, and one regular container.
fn with_sidecar() -> Vec<(&'static str, Value)> {
    let named = |name: &str, mut status: Value, started: bool| {
        status["name"] = json!(name);
        status["started"] = json!(started);
        status
    };
    let running = json!({ "running": {} });
    let waiting = json!({ "waiting": { "reason": "PodInitializing" } });
    let ended = |code: i32| json!({ "terminated": { "reason": "Error", "exitCode": code } });
    let done = json!({ "terminated": { "reason": "Completed", "exitCode": 0 } });
    let pod = |phase: &str, side: Value, init: Value, main: Value, initialized: &str| {
        json!({ "metadata": { "name": "p" },
                "spec": { "containers": [{ "name": "c" }],
                          "initContainers": [{ "name": "s", "restartPolicy": "Always" }, { "name": "i" }] },
                "status": { "phase": phase, "containerStatuses": [main], "initContainerStatuses": [side, init],
                            "conditions": [{ "type": "Initialized", "status": initialized },
                                           { "type": "Ready", "status": "False" }] } })
    };
    let up = |restarts| named("s", status(running.clone(), restarts, true), true);
    let main = status(waiting.clone(), 0, false);
    let over = || named("i", status(done.clone(), 1, true), false);
    let runs = || status(running.clone(), 0, true);
    vec![
        (
            "1/2 Init:1/2 0",
            pod(
                "Pending",
                up(0),
                named("i", status(running.clone(), 0, false), true),
                main.clone(),
                "False",
            ),
        ),
        (
            "0/2 Init:0/2 0",
            pod(
                "Pending",
                named("s", status(running.clone(), 0, false), false),
                named("i", status(waiting, 0, false), false),
                main.clone(),
                "False",
            ),
        ),
        (
            "1/2 PodInitializing 0",
            pod("Pending", up(0), over(), main, "True"),
        ),
        (
            "2/2 Running 0",
            pod("Running", up(0), over(), runs(), "True"),
        ),
        (
            "2/2 Running 2 (3m10s ago)",
            pod("Running", up(2), over(), runs(), "True"),
        ),
        (
            "1/2 Init:Error 1 (3m10s ago)",
            pod(
                "Running",
                named("s", status(ended(1), 1, false), false),
                over(),
                runs(),
                "True",
            ),
        ),
    ]
}

#[test]
fn durations_are_rounded_as_kubectl_does() {
    let (minute, hour, day) = (60, 3600, 86_400);
    let table = [
        (-5, "<invalid>"),
        (-1, "0s"),
        (119, "119s"),
        (120, "2m"),
        (190, "3m10s"),
        (10 * minute, "10m"),
        (179 * minute, "179m"),
        (3 * hour, "3h"),
        (3 * hour + 5 * minute, "3h5m"),
        (8 * hour, "8h"),
        (47 * hour, "47h"),
        (2 * day, "2d"),
        (2 * day + 3 * hour, "2d3h"),
        (8 * day, "8d"),
        (729 * day, "729d"),
        (731 * day, "2y1d"),
        (8 * 365 * day, "8y"),
    ];
    for (seconds, expected) in table {
        assert_eq!(human_duration(seconds), expected, "{seconds}");
    }
}
