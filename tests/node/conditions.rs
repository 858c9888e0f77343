//! Readiness gates, conditions set by clients, and waits that a client ends.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use serde_json::json;

use super::*;

const GATED: &str = "  readinessGates: [{conditionType: example.com/warm}]\n";

fn condition<'p>(pod: &'p Value, type_: &str) -> &'p Value {
    let all = pod["status"]["conditions"].as_array().expect("conditions");
    all.iter()
        .find(|c| c["type"] == type_)
        .unwrap_or(&Value::Null)
}

/// Standard error of a command that must fail.
fn refused(agent: &Agent, args: &[&str]) -> String {
    let output = agent.cli(args);
    assert!(!output.status.success(), "{args:?} is refused");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_readiness_gate_is_opened_and_closed_and_stays_so_over_an_agent_restart() {
    let agent = Agent::start();
    let script = "trap 'exit 0' TERM; sleep infinity & wait";
    agent.write("a.yaml", &shell_pod("a", script, GATED, ""));
    let pod = agent.wait_pod("a", |pod| {
        condition(pod, "ContainersReady")["status"] == "True"
    });
    let ready = condition(&pod, "Ready");
    assert_eq!(ready["reason"], "ReadinessGatesNotReady");
    assert_eq!(
        ready["message"],
        "corresponding condition of pod readiness gate \"example.com/warm\" does not exist."
    );
    let set = [
        "condition",
        "set",
        "a",
        "example.com/warm=true",
        "--reason",
        "Filled",
    ];
    assert_eq!(agent.ok(&set), "pod/a patched, ready\n");
    let before = agent.pod("a");
    assert_eq!(before["status"]["conditions"][0]["reason"], "Filled");
    assert!(agent.ok(&["get", "pod", "a", "-o", "wide"]).contains("1/1"));
    agent.kill_and_restart();
    let after = agent.wait_running("a");
    assert_eq!(
        before["status"]["conditions"],
        after["status"]["conditions"]
    );
    let ready = ["condition", "set", "a", "Ready=True"];
    let text = refused(&agent, &ready);
    assert!(text.contains("Ready is set by coracle itself"), "{text}");
    let unset = ["condition", "unset", "a", "example.com/warm"];
    assert_eq!(agent.ok(&unset), "pod/a patched, not ready\n");
    let text = refused(&agent, &unset);
    assert!(
        text.contains("has no condition `example.com/warm`"),
        "{text}"
    );
    // A pod's conditions are removed with it.
    agent.ok(&set);
    agent.ok(&["delete", "pod", "a"]);
    let pod = agent.wait_running("a");
    assert_eq!(condition(&pod, "example.com/warm"), &Value::Null);
}

#[test]
fn a_retry_starts_a_crashed_container_at_once() {
    let agent = Agent::start();
    agent.write("a.yaml", &shell_pod("a", "exit 3", "", ""));
    let waits = |restarts: u64| {
        move |pod: &Value| {
            let main = main_status(pod);
            main["restartCount"] == restarts
                && main["state"]["waiting"]["reason"] == "CrashLoopBackOff"
        }
    };
    agent.wait_pod("a", waits(1));
    let text = agent.ok(&["retry", "a", "-c", "main"]);
    assert_eq!(text, "pod/a: starting container main now\n");
    let pod = agent.wait_pod("a", waits(2));
    let message = main_status(&pod)["state"]["waiting"]["message"]
        .as_str()
        .expect("text");
    assert!(message.starts_with("back-off 20s restarting"), "{message}");
    let text = refused(&agent, &["retry", "a", "-c", "other"]);
    assert!(
        text.contains("container other is not valid for pod a"),
        "{text}"
    );
    agent.write("b.yaml", &shell_pod("b", "sleep infinity", "", ""));
    agent.wait_running("b");
    let text = refused(&agent, &["retry", "b"]);
    assert!(
        text.contains("all containers of pod b are running"),
        "{text}"
    );
}

#[test]
fn a_pods_own_back_off_replaces_the_nodes() {
    let agent = Agent::start();
    let own = "  annotations: {coracle.dev/restart-backoff: \"initial=100ms,max=200ms\"}\nspec:\n";
    let manifest = shell_pod("a", "exit 3", "", "").replacen("spec:\n", own, 1);
    agent.write("a.yaml", &manifest);
    // With the node's back-off this would take five minutes.
    agent.wait_pod("a", |pod| {
        main_status(pod)["restartCount"].as_u64() >= Some(6)
    });
}

/// The status code and the body of a patch of the pod's status.
fn patch(agent: &Agent, pod: &str, kind: &str, body: &Value) -> (u16, Value) {
    let mut stream = UnixStream::connect(agent.socket()).expect("the agent listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("timeout");
    let body = body.to_string();
    write!(
        stream,
        "PATCH /api/v1/namespaces/default/pods/{pod}/status HTTP/1.0\r\nHost: coracle\r\n\
         Content-Type: application/{kind}\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
    .expect("written");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("an answer");
    let (head, body) = text.split_once("\r\n\r\n").expect("head and body");
    let code = head.split(' ').nth(1).and_then(|code| code.parse().ok());
    (
        code.expect("a code"),
        serde_json::from_str(body).expect("JSON"),
    )
}

#[test]
fn programs_patch_conditions_as_at_an_api_server() {
    let agent = Agent::start();
    agent.write("a.yaml", &shell_pod("a", SLEEP, GATED, ""));
    agent.wait_running("a");
    let conditions = |list: Value| json!({ "status": { "conditions": list } });
    let warm = |status: &str| json!({ "type": "example.com/warm", "status": status });
    let of = |pod: &Value, type_: &str| condition(pod, type_)["status"].clone();
    let strategic = "strategic-merge-patch+json";
    let (code, pod) = patch(&agent, "a", strategic, &conditions(json!([warm("True")])));
    assert_eq!((code, of(&pod, "Ready")), (200, "True".into()));
    let merge = conditions(json!([warm("False"), { "type": "x", "status": "Unknown" }]));
    let (code, pod) = patch(&agent, "a", "merge-patch+json", &merge);
    assert_eq!((code, of(&pod, "Ready")), (200, "False".into()));
    assert_eq!(of(&pod, "x"), "Unknown");
    assert_eq!(of(&pod, "ContainersReady"), "True");
    let operation =
        json!([{ "op": "replace", "path": "/status/conditions/0/status", "value": "True" }]);
    let (code, pod) = patch(&agent, "a", "json-patch+json", &operation);
    assert_eq!((code, of(&pod, "Ready")), (200, "True".into()));
    assert_eq!(
        of(&agent.pod("a"), "Ready"),
        "True",
        "the patch takes effect"
    );
    let own = conditions(json!([{ "type": "Ready", "status": "False" }]));
    let (code, error) = patch(&agent, "a", strategic, &own);
    assert_eq!((code, &error["reason"]), (422, &"Invalid".into()));
    let phase = json!({ "status": { "phase": "Failed" } });
    assert_eq!(patch(&agent, "a", strategic, &phase).0, 422);
    assert_eq!(patch(&agent, "a", "apply-patch+yaml", &own).0, 415);
    assert_eq!(patch(&agent, "b", strategic, &own).0, 404);
}

#[test]
fn an_agent_restart_is_no_transition_of_pod_or_node() {
    let agent = Agent::start();
    let probe = "    readinessProbe: {exec: {command: [\"true\"]}, periodSeconds: 1}\n";
    agent.write("p.yaml", &shell_pod("p", SLEEP, "", probe));
    let since = || {
        let pod = agent.wait_pod("p", |pod| main_status(pod)["ready"] == true);
        let (nodes, _) = agent.request("/api/v1/nodes");
        let nodes: Value = serde_json::from_str(&nodes).expect("JSON");
        let of = |object: &Value| -> Vec<(Value, Value, Value)> {
            let all = object["status"]["conditions"].as_array().expect("a list");
            let each = all.iter();
            each.map(|c| {
                (
                    c["type"].clone(),
                    c["status"].clone(),
                    c["lastTransitionTime"].clone(),
                )
            })
            .collect()
        };
        let node = of(&nodes["items"][0]);
        assert_eq!(node.len(), 4, "{nodes}");
        (of(&pod), node)
    };
    let before = since();
    std::thread::sleep(Duration::from_millis(1100)); // Times are shown in whole seconds.
    agent.kill_and_restart();
    assert_eq!(since(), before);
    agent.signal(Signal::SIGTERM);
    agent.wait();
    agent.launch();
    assert_eq!(since(), before);
}
