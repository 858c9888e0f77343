//! A node under maintenance: new pods are held, existing ones leave by priority and stay away, whatever happens to the
//! agent.

use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};

use super::*;

/// Prints when it gets the stop signal and when it ends, by the clock that all pods share.
const STAMPS: &str = "now() { cut -d' ' -f1 /proc/uptime; }; \
    trap 'echo told $(now); sleep 1; echo gone $(now); exit 0' TERM; echo up; while :; do sleep 1 & wait $!; done";

/// Never ends by itself.
const DEAF: &str = "trap '' TERM; echo up; while :; do sleep 1; done";

fn write(agent: &Agent, name: &str, script: &str, more: &str) {
    agent.write(&format!("{name}.yaml"), &shell_pod(name, script, more, ""));
}

fn run(agent: &Agent, name: &str, script: &str, more: &str) {
    write(agent, name, script, more);
    agent.wait_running(name);
    agent.wait_line(name, "up");
}

fn wait_held(agent: &Agent, name: &str) -> Value {
    let pod = agent.wait_pod(name, |pod| pod["status"]["reason"] == "NodeCordoned");
    assert_eq!(pod["status"]["phase"], "Pending");
    pod
}

/// Whether the node is shown as unschedulable; its taint must agree.
fn unschedulable(agent: &Agent) -> bool {
    let (text, _) = agent.request("/api/v1/nodes/test-node");
    let node: Value = serde_json::from_str(&text).expect("JSON");
    let taint = &node["spec"]["taints"][0]["key"];
    let on = node["spec"]["unschedulable"] == true;
    assert_eq!(on, *taint == "node.kubernetes.io/unschedulable", "{node}");
    on
}

fn drain(agent: &Agent, args: &[&str]) -> Child {
    coracle()
        .arg("drain")
        .args(args)
        .env("CORACLE_SOCKET", agent.socket())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("coracle runs")
}

fn refusal(agent: &Agent, args: &[&str]) -> String {
    let output = agent.cli(args);
    assert!(!output.status.success(), "{args:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_cordoned_node_admits_no_pod_until_it_is_uncordoned() {
    let agent = Agent::start();
    run(&agent, "old", STAMPS, "");
    assert_eq!(
        agent.ok(&["cordon", "--dry-run"]),
        "node/test-node cordoned (dry run)\n"
    );
    assert!(!unschedulable(&agent));
    assert_eq!(
        agent.ok(&["cordon", "test-node"]),
        "node/test-node cordoned\n"
    );
    assert_eq!(agent.ok(&["cordon"]), "node/test-node already cordoned\n");
    assert!(unschedulable(&agent));
    write(&agent, "new", STAMPS, "");
    wait_held(&agent, "new");
    let shown = agent.ok(&["get", "pods"]);
    let line = shown.lines().find(|line| line.starts_with("new"));
    assert!(line.is_some_and(|l| l.contains("NodeCordoned")), "{shown}");
    // Containers of existing pods restart as usual; a deleted pod stays away.
    agent.cli(&["exec", "old", "--", "kill", "1"]);
    agent.wait_pod("old", |pod| main_status(pod)["restartCount"] == 1);
    agent.ok(&["delete", "pod", "old"]);
    wait_held(&agent, "old");
    // It stays so after an agent restart, and after a boot.
    agent.kill_and_restart();
    assert!(unschedulable(&agent));
    wait_held(&agent, "old");
    assert_eq!(agent.ok(&["uncordon"]), "node/test-node uncordoned\n");
    assert_eq!(
        agent.ok(&["uncordon"]),
        "node/test-node already uncordoned\n"
    );
    assert!(!unschedulable(&agent));
    for name in ["old", "new"] {
        agent.wait_running(name);
    }
    let events = agent.ok(&["get", "events"]);
    for said in [
        "Node test-node status is now: NodeNotSchedulable",
        "Node test-node status is now: NodeSchedulable",
    ] {
        assert!(events.contains(said), "{said}: {events}");
    }
    let other = refusal(&agent, &["cordon", "elsewhere"]);
    assert!(other.contains("nodes \"elsewhere\" not found"), "{other}");
    assert!(other.contains("this node is called `test-node`"), "{other}");
}

#[test]
fn a_drain_stops_pods_by_priority_and_keeps_them_away_even_over_a_boot() {
    let agent = Agent::start();
    let priority = |number: i32| format!("  priority: {number}\n");
    for (name, number) in [("a", 1_000), ("b", 0), ("c", 0)] {
        run(&agent, name, STAMPS, &priority(number));
    }
    // The logs are followed from here on, because they are removed with their pods.
    let watch = |name: &str| {
        let mut child = coracle()
            .args(["logs", "-f", name])
            .env("CORACLE_SOCKET", agent.socket())
            .stdout(Stdio::piped())
            .spawn()
            .expect("coracle runs");
        (BufReader::new(child.stdout.take().expect("piped")), child)
    };
    let mut logs = ["a", "b", "c"].map(watch);
    let dry = agent.ok(&["drain", "--dry-run"]);
    let expected = "node/test-node cordoned (dry run)\n\
                    evicting pod default/b (dry run)\n\
                    evicting pod default/c (dry run)\n\
                    evicting pod default/a (dry run)\n\
                    node/test-node drained (dry run)\n";
    assert_eq!(dry, expected);
    assert!(!unschedulable(&agent));

    let text = agent.ok(&["drain", "test-node", "--force", "--ignore-daemonsets"]);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 8, "{text}");
    assert_eq!(lines[0], "node/test-node cordoned");
    assert_eq!(lines[7], "node/test-node drained");
    assert_eq!(lines[5..7], ["evicting pod default/a", "pod/a evicted"]);
    for name in ["a", "b", "c"] {
        wait_held(&agent, name);
    }
    let [a, b, c] = logs.each_mut().map(|(lines, child)| {
        let lines: Vec<String> = lines.lines().map_while(Result::ok).collect();
        let _ = child.wait();
        let stamp = |word: &str| -> f64 {
            let line = lines.iter().find_map(|line| line.strip_prefix(word));
            line.expect("stopped gracefully")
                .trim()
                .parse()
                .expect("seconds")
        };
        (stamp("told"), stamp("gone"))
    });
    assert!(b.1.max(c.1) <= a.0, "{a:?} {b:?} {c:?}");

    agent.power_cut();
    agent.launch();
    assert!(unschedulable(&agent));
    for name in ["a", "b", "c"] {
        wait_held(&agent, name);
    }
    // No pod is left to stop.
    let text = agent.ok(&["drain"]);
    assert_eq!(
        text,
        "node/test-node already cordoned\nnode/test-node drained\n"
    );
    agent.ok(&["uncordon"]);
    for name in ["a", "b", "c"] {
        let pod = agent.wait_running(name);
        assert_eq!(main_status(&pod)["restartCount"], 0, "{name}");
    }
    agent.power_cut();
    agent.launch();
    agent.wait_running("a");
}

#[test]
fn a_drain_goes_on_after_the_agent_was_killed() {
    let agent = Agent::start();
    run(&agent, "low", DEAF, "");
    run(&agent, "mid", STAMPS, "  priority: 5\n");
    run(&agent, "top", STAMPS, "  priority: 9\n");
    let mut waiting = drain(&agent, &["--grace-period", "3"]);
    let lines = BufReader::new(waiting.stdout.take().expect("piped")).lines();
    let mut lines = lines.map_while(Result::ok);
    assert!(lines.any(|line| line == "evicting pod default/low"));
    agent.kill_and_restart();
    let output = waiting.wait_with_output().expect("it ends");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && text.contains("lost the agent"),
        "{text}"
    );
    // Another client waits for the rest.
    let text = agent.ok(&["drain"]);
    assert!(
        text.starts_with("node/test-node already cordoned\n"),
        "{text}"
    );
    assert!(
        text.ends_with("pod/top evicted\nnode/test-node drained\n"),
        "{text}"
    );
    for name in ["low", "mid", "top"] {
        wait_held(&agent, name);
    }
}

#[test]
fn a_client_may_stop_waiting_and_the_drain_goes_on() {
    let agent = Agent::start();
    let deaf = shell_pod("deaf", DEAF, "", "").replace("Seconds: 2\n", "Seconds: 600\n");
    agent.write("deaf.yaml", &deaf);
    agent.wait_running("deaf");
    agent.wait_line("deaf", "up");
    let output = agent.cli(&["drain", "--timeout", "1s"]);
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    for part in [
        "unable to drain node \"test-node\"",
        "global timeout reached: 1s",
        "default/deaf",
        "the drain goes on",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    common::heed_interrupts();
    let mut waiting = drain(&agent, &[]);
    let mut lines = BufReader::new(waiting.stdout.take().expect("piped")).lines();
    assert!(
        lines
            .by_ref()
            .map_while(Result::ok)
            .any(|line| line.starts_with("evicting"))
    );
    let pid = nix::unistd::Pid::from_raw(i32::try_from(waiting.id()).expect("a pid"));
    nix::sys::signal::kill(pid, Signal::SIGINT).expect("it is there");
    let output = waiting.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(130));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("the drain goes on"), "{text}");
    // The drain is called off, and the waiting client learns it. The pod that was being stopped comes back.
    let waiting = drain(&agent, &["--grace-period", "2"]);
    agent.wait_pod("deaf", |pod| {
        pod["metadata"]["deletionGracePeriodSeconds"] != 600
    });
    agent.ok(&["uncordon"]);
    let output = waiting.wait_with_output().expect("it ends");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("the drain was called off"), "{text}");
    agent.wait_running("deaf");
}

#[test]
fn data_is_not_deleted_by_accident_and_pods_can_be_chosen() {
    let agent = Agent::start();
    let volume = "  volumes:\n  - name: data\n    emptyDir: {}\n";
    run(&agent, "data", STAMPS, volume);
    let plain = shell_pod("plain", STAMPS, "", "");
    let plain = plain.replace("name: plain\n", "name: plain\n  labels: {app: front}\n");
    agent.write("plain.yaml", &plain);
    agent.wait_running("plain");
    agent.wait_line("plain", "up");
    let text = refusal(&agent, &["drain"]);
    let message = "cannot delete Pods with local storage (use --delete-emptydir-data to override): default/data";
    assert!(text.contains(message), "{text}");
    assert!(!unschedulable(&agent), "nothing has changed");
    let text = refusal(&agent, &["drain", "-l", "app in front"]);
    assert!(text.contains("unable to parse requirement"), "{text}");
    let text = agent.ok(&["drain", "-l", "app=front"]);
    assert_eq!(
        text,
        "node/test-node cordoned\nevicting pod default/plain\npod/plain evicted\nnode/test-node drained\n"
    );
    wait_held(&agent, "plain");
    agent.wait_running("data");
    agent.ok(&["drain", "--delete-emptydir-data"]);
    wait_held(&agent, "data");
}
