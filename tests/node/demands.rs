//! Clients that ask for much, or only for a rehearsal, and a directory that asks for much.

use std::io::Write as _;
use std::os::unix::net::UnixStream;
use std::time::Instant;

use super::*;

/// The agent's own (anonymous) memory in KiB.
fn own_memory(agent: &Agent) -> u64 {
    let path = format!("/proc/{}/smaps_rollup", agent.pid());
    let text = fs::read_to_string(path).expect("the agent runs");
    let line = text.lines().find(|line| line.starts_with("Anonymous:"));
    let number = line.and_then(|line| line.split_whitespace().nth(1));
    number.expect("a line").parse().expect("a number")
}

fn say(agent: &Agent, text: &str) -> UnixStream {
    let mut stream = UnixStream::connect(agent.socket()).expect("the agent listens");
    stream.write_all(text.as_bytes()).expect("written");
    stream
}

fn number_of_pods(agent: &Agent) -> usize {
    let (list, _) = agent.request("/api/v1/pods");
    let list: Value = serde_json::from_str(&list).expect("JSON");
    list["items"].as_array().expect("items").len()
}

/// Waits for what no event says.
fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + 2 * PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn memory_comes_back_when_many_manifests_have_gone() {
    const MANY: usize = 1500;
    let agent = Agent::start_with(&[]);
    let pod = |number: usize| {
        format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: p{number}}}\nspec:\n  hostNetwork: true\n  \
             containers: [{{name: c, image: 'none.invalid/x:{number}', command: [a]}}]\n"
        )
    };
    let before = own_memory(&agent);
    let manifests = agent.root.join("manifests");
    for number in 0..MANY {
        fs::write(manifests.join(format!(".p{number}")), pod(number)).expect("written");
    }
    for number in 0..MANY {
        let to = manifests.join(format!("p{number}.yaml"));
        fs::rename(manifests.join(format!(".p{number}")), to).expect("renamed");
    }
    wait_until("all are there", || number_of_pods(&agent) == MANY);
    let most = own_memory(&agent);
    for number in 0..MANY {
        agent.remove(&format!("p{number}.yaml"));
    }
    wait_until("all are gone", || number_of_pods(&agent) == 0);
    // Their events stay, as many as there may be.
    let kept = || own_memory(&agent).saturating_sub(before);
    // Without a trim nearly all of it stays.
    wait_until("memory comes back", || kept() * 4 < (most - before) * 3);
}

#[test]
fn a_rehearsed_deletion_leaves_the_pod_as_it_is() {
    let agent = Agent::start();
    agent.write("a.yaml", &shell_pod("a", SLEEP, "", ""));
    let before = agent.wait_running("a");
    let said = agent.ok(&["delete", "pod", "a", "--dry-run=server"]);
    assert_eq!(said, "pod \"a\" deleted (server dry run)\n");
    let said = agent.ok(&["delete", "pod", "a", "--dry-run", "--force"]);
    assert_eq!(said, "pod \"a\" force deleted (dry run)\n");
    assert!(
        !agent
            .cli(&["delete", "pod", "b", "--dry-run"])
            .status
            .success()
    );
    let after = agent.pod("a");
    assert_eq!(after["metadata"]["deletionTimestamp"], Value::Null);
    assert_eq!(
        after["status"]["containerStatuses"][0]["containerID"],
        before["status"]["containerStatuses"][0]["containerID"]
    );
}

#[test]
fn commands_get_through_while_streams_and_half_requests_take_all_they_can() {
    let agent = Agent::start();
    agent.write("a.yaml", &shell_pod("a", SLEEP, "", ""));
    let before = agent.wait_running("a");
    let watch = "GET /api/v1/pods?watch=true HTTP/1.1\r\nHost: x\r\n\r\n";
    let log = "GET /api/v1/namespaces/default/pods/a/log?follow=true HTTP/1.1\r\nHost: x\r\n\r\n";
    let body = "DELETE /api/v1/namespaces/default/pods/a HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{";
    let taken: Vec<UnixStream> = [(watch, 200), (log, 100), ("GET /api", 100), (body, 100)]
        .into_iter()
        .flat_map(|(text, number)| std::iter::repeat_n(text, number))
        .map(|text| say(&agent, text))
        .collect();
    assert!(agent.ok(&["get", "pods"]).contains("Running"));
    agent.ok(&["delete", "pod", "a"]);
    let watch = agent.cli(&["get", "pods", "-w"]);
    let error = String::from_utf8_lossy(&watch.stderr).into_owned();
    assert!(error.contains("too many watches"), "{error}");
    drop(taken);
    let id = |pod: &Value| pod["status"]["containerStatuses"][0]["containerID"].clone();
    agent.wait_pod("a", |pod| {
        pod["status"]["containerStatuses"][0]["state"]["running"].is_object()
            && id(pod) != id(&before)
    });
}

#[test]
fn events_of_the_node_are_found_once_by_clients_that_look_for_them_twice() {
    let agent = Agent::start_with(&[]);
    let node: Value =
        serde_json::from_str(&agent.ok(&["get", "node", "-o", "json"])).expect("JSON");
    let node = if node["items"].is_array() {
        node["items"][0].clone()
    } else {
        node
    };
    let uid = node["metadata"]["uid"].as_str().expect("a UID");
    let number = |uid: &str| {
        let (list, _) = agent.request(&format!(
            "/api/v1/events?fieldSelector=involvedObject.kind%3DNode,involvedObject.name%3Dtest-node,involvedObject.uid%3D{uid}"
        ));
        let list: Value = serde_json::from_str(&list).expect("JSON");
        list["items"].as_array().expect("items").len()
    };
    assert!(number("test-node") > 0);
    assert_eq!(number(uid), 0, "{uid}");
    agent.kill_and_restart();
    let (again, _) = agent.request("/api/v1/nodes/test-node");
    let again: Value = serde_json::from_str(&again).expect("JSON");
    assert_eq!(again["metadata"]["uid"], uid);
    let events = agent.ok(&["events", "--for", "node/test-node"]);
    assert!(events.contains("Starting"), "{events}");
}
