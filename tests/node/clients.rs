//! Commands written as for kubectl and other programs: kinds and names, templates, other programs' words.

use std::sync::Arc;

use super::*;
use common::netns::Netns;

const SERVICE: &str = "\
apiVersion: v1
kind: Service
metadata: {name: front}
spec: {selector: {app: none}, ports: [{port: 80}]}
";

fn first_words(text: &str) -> Vec<&str> {
    let lines = text.lines();
    lines
        .map(|line| line.split(' ').next().unwrap_or_default())
        .collect()
}

#[test]
fn kinds_and_names_may_be_written_as_for_kubectl() {
    let agent = Agent::start();
    for name in ["a", "b"] {
        agent.write(
            &format!("{name}.yaml"),
            &shell_pod(name, &format!("echo up; {SLEEP}"), "", ""),
        );
    }
    agent.write("front.yaml", SERVICE);
    for name in ["a", "b"] {
        agent.wait_running(name);
        agent.wait_line(name, "up");
    }
    assert_eq!(first_words(&agent.ok(&["get", "pod/a"])), ["NAME", "a"]);
    assert_eq!(
        first_words(&agent.ok(&["get", "pods", "a", "b"])),
        ["NAME", "a", "b"]
    );
    let both = ["NAME", "pod/a", "pod/b", "", "NAME", "service/front"];
    assert_eq!(first_words(&agent.ok(&["get", "po,svc"])), both);
    let mixed = ["NAME", "pod/b", "", "NAME", "service/front"];
    assert_eq!(
        first_words(&agent.ok(&["get", "pod/b", "svc/front"])),
        mixed
    );
    assert_eq!(
        agent.ok(&["get", "po,svc", "-o", "name"]),
        "pod/a\npod/b\nservice/front\n"
    );
    let template =
        "jsonpath={range .items[*]}{.metadata.name}{\"\\t\"}{.status.phase}{\"\\n\"}{end}";
    assert_eq!(
        agent.ok(&["get", "pods", "-o", template]),
        "a\tRunning\nb\tRunning\n"
    );
    let filter = "jsonpath={.items[?(@.metadata.name==\"b\")].status.phase}";
    assert_eq!(agent.ok(&["get", "pods", "-o", filter]), "Running");
    let columns = agent.ok(&[
        "get",
        "pods",
        "-o",
        "custom-columns=POD:.metadata.name,IMAGE:.spec.containers[*].image",
    ]);
    let columns: Vec<Vec<&str>> = columns
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect();
    assert_eq!(columns[0], ["POD", "IMAGE"]);
    assert_eq!(columns[1][0], "a");

    // The existing pod is shown, the missing one reported; the exit code is that of the latter.
    let output = agent.cli(&["get", "pods", "a", "none"]);
    assert_eq!(output.status.code(), Some(3));
    assert_eq!(
        first_words(&String::from_utf8_lossy(&output.stdout)),
        ["NAME", "a"]
    );
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("\"none\" not found"),
        "{output:?}"
    );
    let watched = agent.cli(&["get", "po,svc", "-w"]);
    assert_eq!(watched.status.code(), Some(2));

    let page = agent.ok(&["describe", "pod/a", "svc/front"]);
    let names: Vec<&str> = page
        .lines()
        .filter_map(|line| line.strip_prefix("Name:"))
        .map(str::trim)
        .collect();
    assert_eq!(names, ["a", "front"], "{page}");
    assert_eq!(agent.ok(&["logs", "pod/a"]), "up\n");
    assert_eq!(
        agent.ok(&["exec", "pod/a", "--", "echo", "hello"]),
        "hello\n"
    );
    assert_eq!(
        agent.cli(&["exec", "cm/front", "--", "true"]).status.code(),
        Some(2)
    );
    agent.remove("a.yaml");
    agent.wait_gone("a");
    agent.remove("b.yaml");
    assert!(agent.cli(&["delete", "pod/b", "--now"]).status.code() != Some(2));
    agent.wait_gone("b");
    assert_eq!(agent.cli(&["delete", "pod"]).status.code(), Some(2));
}

#[test]
fn kubectls_other_commands_name_the_manifest_directory_and_doctor_the_agents_directories() {
    let agent = Agent::start_with(&[]);
    let manifests = agent.root.join("manifests").display().to_string();
    for words in [
        &["apply", "-f", "x.yaml"][..],
        &["edit", "pod", "web"],
        &["kill", "web"],
        &["run", "nginx"],
    ] {
        let output = agent.cli(words);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(error.contains(&format!("`{manifests}`")), "{error}");
    }
    let output = agent.cli(&["doctor"]);
    let report = String::from_utf8_lossy(&output.stdout).into_owned();
    let root = agent.root.display();
    let places = format!("{root}/root {root}/run {root}/logs (by the running agent)");
    assert!(report.contains(&places), "{report}");
    assert!(report.contains("running, 0 pod(s)"), "{report}");
}

#[test]
fn addresses_of_bridges_for_containers_are_not_node_addresses() {
    let netns = Arc::new(Netns::new());
    for line in [
        "link add up0 type veth peer name up1",
        "link set up1 up",
        "addr add 192.0.2.5/24 dev up0",
        "link set up0 up",
        "route add default via 192.0.2.1",
        "link add docker0 type bridge",
        "addr add 172.17.0.1/16 dev docker0",
        "link set docker0 up",
        "link add vethx type veth peer name vethy",
        "addr add 10.77.0.1/24 dev vethx",
        "link set vethx master docker0",
        "link set vethx up",
        // A LAN on a bridge is the node's: one of its ports leads to the outside.
        "link add lan0 type bridge",
        "addr add 198.51.100.7/24 dev lan0",
        "link set lan0 up",
        "link add link up1 name port0 type macvlan",
        "link set port0 master lan0",
    ] {
        netns.ip(line);
    }
    let agent = Agent::prepare(netns, &[], None);
    agent.launch();
    let page = agent.ok(&["describe", "node"]);
    let addresses: Vec<&str> = page
        .lines()
        .filter_map(|line| line.trim().strip_prefix("InternalIP:"))
        .map(str::trim)
        .collect();
    assert_eq!(addresses, ["192.0.2.5", "198.51.100.7"], "{page}");
}
