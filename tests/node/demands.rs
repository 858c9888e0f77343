//! Expensive requests, dry runs, and a large manifest directory.

use std::io::Write as _;
use std::os::unix::net::UnixStream;
use std::time::Instant;

use sha2::{Digest as _, Sha256};

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

/// Waits for something that no event reports.
pub(super) fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + 2 * PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn memory_is_returned_after_many_manifests_are_removed() {
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
    wait_until("all pods are there", || number_of_pods(&agent) == MANY);
    let most = own_memory(&agent);
    for number in 0..MANY {
        agent.remove(&format!("p{number}.yaml"));
    }
    wait_until("all pods are gone", || number_of_pods(&agent) == 0);
    // Their events stay, up to the limit.
    let kept = || own_memory(&agent).saturating_sub(before);
    // Without a trim nearly all of it stays.
    wait_until("memory is returned", || kept() * 4 < (most - before) * 3);
}

/// An image of one small layer with as many long names as an archive may have.
fn many_names(number: usize) -> Vec<u8> {
    let layer = vec![0; 1024];
    let digest = Sha256::digest(&layer);
    let digest: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    let architecture = match std::env::consts::ARCH {
        "aarch64" => "arm64",
        _ => "amd64",
    };
    let config = serde_json::json!({ "architecture": architecture, "os": "linux", "author": number,
        "rootfs": { "type": "layers", "diff_ids": [format!("sha256:{digest}")] } });
    let long = "x".repeat(100);
    let name = |tag: usize| format!("{long}/{long}{number}:{long}{tag}");
    let names: Vec<String> = (0..900).map(name).collect();
    let manifest = serde_json::json!([{ "Config": "config.json", "RepoTags": names, "Layers": ["layer.tar"] }]);
    let mut tar = tar::Builder::new(Vec::new());
    for (name, data) in [
        ("config.json", config.to_string().as_bytes()),
        ("layer.tar", &layer),
        ("manifest.json", manifest.to_string().as_bytes()),
    ] {
        let mut header = tar::Header::new_gnu();
        header.set_size(data.len() as u64);
        header.set_mode(0o644);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(0);
        tar.append_data(&mut header, name, data)
            .expect("into memory");
    }
    tar.into_inner().expect("into memory")
}

#[test]
fn memory_is_returned_after_images_with_many_names_were_shown() {
    let agent = Agent::start_with(&[]);
    let before = own_memory(&agent);
    for number in 0..6 {
        let path = agent.root.join(format!("many{number}.tar"));
        fs::write(&path, many_names(number)).expect("written");
        agent.ok(&["image", "import", path.to_str().expect("utf-8")]);
    }
    for _ in 0..3 {
        agent.request("/api/v1/nodes");
    }
    let names = agent.ok(&["image", "ls"]);
    assert!(names.lines().count() >= 6, "{}", names.len());
    let long = "x".repeat(100);
    for number in 0..4 {
        let image = format!("{long}/{long}{number}:{long}7");
        let pod = format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: p{number}}}\nspec:\n  hostNetwork: true\n  \
             containers: [{{name: c, image: '{image}', command: [/none]}}]\n"
        );
        agent.write(&format!("p{number}.yaml"), &pod);
        agent.wait_pod(&format!("p{number}"), |pod| {
            pod["status"]["containerStatuses"][0]["state"]["waiting"]["reason"]
                .as_str()
                .is_some_and(|reason| {
                    reason.contains("RunContainerError") || reason.contains("CrashLoop")
                })
        });
    }
    let kept = || own_memory(&agent).saturating_sub(before);
    wait_until("memory is returned", || kept() < 4096);
}

#[test]
fn the_allocator_is_tuned_in_the_agent_and_in_shims_but_not_in_containers() {
    let agent = Agent::start();
    let script = "echo tunables=$GLIBC_TUNABLES; exec sleep 1000";
    agent.write("p.yaml", &shell_pod("p", script, "", ""));
    agent.wait_running("p");
    agent.wait_line("p", "tunables=");
    for pid in configuration::processes_of(&agent) {
        let found = fs::read(format!("/proc/{pid}/environ")).expect("it runs");
        let found = String::from_utf8_lossy(&found).into_owned();
        assert!(found.contains("glibc.malloc.tcache_count=0"), "{found}");
    }
}

#[test]
fn a_dry_run_of_a_deletion_changes_nothing() {
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
fn commands_work_while_streams_and_unfinished_requests_take_all_connections_they_can() {
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
fn clients_that_query_the_nodes_events_twice_find_each_once() {
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
