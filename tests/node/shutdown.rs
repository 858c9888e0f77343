//! Node shutdown: pods stop group by group, even if the agent is killed meanwhile, and start again if it is cancelled.

use std::process::{Child, Stdio};
use std::sync::Arc;
use std::time::Instant;

use super::*;
use common::netns::Netns;

/// Four groups of pods, and one without a pod, whose time is skipped.
const SETTINGS: &str = "\
kind: KubeletConfiguration
shutdownGracePeriodByPodPriority:
- {priority: 0, shutdownGracePeriodSeconds: 20}
- {priority: 1000, shutdownGracePeriodSeconds: 20}
- {priority: 5000, shutdownGracePeriodSeconds: 600}
- {priority: 10000, shutdownGracePeriodSeconds: 20}
- {priority: 2000000000, shutdownGracePeriodSeconds: 10}
";

/// Priorities of the groups, three pods each.
const GROUPS: [i32; 4] = [0, 1000, 10_000, 2_000_000_000];

/// Prints when it gets the stop signal and when it ends, by the clock that all pods share.
const STAMPS: &str = "now() { cut -d' ' -f1 /proc/uptime; }; \
    trap 'echo told $(now); sleep 1; echo gone $(now); exit 0' TERM; echo up; while :; do sleep 1 & wait $!; done";

fn agent_with(settings: &str) -> Agent {
    launched(Agent::prepare(Arc::new(Netns::new()), &[], None), settings)
}

fn launched(agent: Agent, settings: &str) -> Agent {
    let file = agent.root.join("config.yaml");
    fs::write(&file, settings).expect("written");
    let agent = agent.with_flags(&["--config", file.to_str().expect("utf-8")]);
    agent.launch();
    let archive = common::archive().to_str().expect("utf-8");
    agent.ok(&["image", "import", archive]);
    agent
}

fn names(group: usize) -> [String; 3] {
    ["a", "b", "c"].map(|letter| format!("{letter}{group}"))
}

/// Twelve pods that run.
fn twelve(agent: &Agent) {
    for (group, priority) in GROUPS.iter().enumerate() {
        for name in names(group) {
            let more = format!("  priority: {priority}\n");
            agent.write(
                &format!("{name}.yaml"),
                &shell_pod(&name, STAMPS, &more, ""),
            );
        }
    }
    for name in (0..GROUPS.len()).flat_map(names) {
        agent.wait_running(&name);
        agent.wait_line(&name, "up");
    }
}

/// The time that a pod's newest run printed, in seconds since the boot.
fn stamp(agent: &Agent, name: &str, word: &str) -> f64 {
    let log = agent.ok(&["logs", name]);
    let line = log.lines().find_map(|line| line.strip_prefix(word));
    let line = line.unwrap_or_else(|| panic!("{name} was not {word}: {log}"));
    line.trim().parse().expect("seconds")
}

/// Asserts that no pod of a group got its stop signal before all of the group before it had ended.
fn check_order(agent: &Agent) {
    let of = |group: usize, word: &str| names(group).map(|name| stamp(agent, &name, word));
    for group in 1..GROUPS.len() {
        let gone = of(group - 1, "gone").into_iter().fold(0.0, f64::max);
        let told = of(group, "told").into_iter().fold(f64::MAX, f64::min);
        assert!(
            gone <= told,
            "group {group} was stopped at {told}, before {gone}"
        );
    }
    // The pods of a group are stopped together.
    for group in 0..GROUPS.len() {
        let told = of(group, "told");
        let gone = of(group, "gone");
        let first = gone.into_iter().fold(f64::MAX, f64::min);
        assert!(told.into_iter().all(|at| at <= first), "{told:?} {gone:?}");
    }
}

fn shutdown(agent: &Agent) -> Child {
    coracle()
        .args(["shutdown"])
        .env("CORACLE_SOCKET", agent.socket())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("coracle runs")
}

fn ready(agent: &Agent) -> (String, String) {
    let (text, _) = agent.request("/api/v1/nodes/test-node");
    let node: Value = serde_json::from_str(&text).expect("JSON");
    let mut all = node["status"]["conditions"]
        .as_array()
        .expect("conditions")
        .iter();
    let condition = all
        .find(|c| c["type"] == "Ready")
        .expect("it is always reported");
    let word = |name: &str| condition[name].as_str().unwrap_or_default().to_owned();
    (word("status"), word("message"))
}

fn metric(agent: &Agent, name: &str) -> f64 {
    let (text, _) = agent.request("/metrics");
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line.expect(name).trim().parse().expect("a number")
}

#[test]
fn twelve_pods_stop_by_priority_and_start_again_when_the_shutdown_is_cancelled() {
    let agent = agent_with(SETTINGS);
    twelve(&agent);
    let plan = agent.ok(&["shutdown", "--plan"]);
    let squeezed: Vec<String> = plan
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect();
    assert_eq!(squeezed[1], "0 20 default/a0,default/b0,default/c0");
    assert_eq!(squeezed[3], "5000 600 <none>");
    assert!(
        squeezed[6].starts_with("670 s in total; machine shutdown will not be delayed"),
        "{plan}"
    );

    let begun = Instant::now();
    let output = shutdown(&agent).wait_with_output().expect("it ends");
    assert!(output.status.success(), "{output:?}");
    assert!(
        begun.elapsed() < Duration::from_secs(60),
        "a group without a pod takes no time"
    );
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(text.lines().count(), 6, "{text}");
    assert!(
        text.ends_with("all pods have stopped, or had their time\n"),
        "{text}"
    );
    check_order(&agent);
    for name in (0..GROUPS.len()).flat_map(names) {
        let pod = agent.wait_phase(&name, "Failed");
        let status = &pod["status"];
        assert_eq!(status["reason"], "Terminated");
        assert_eq!(
            status["message"],
            "Pod was terminated in response to imminent node shutdown."
        );
        assert_eq!(status["conditions"][0]["type"], "DisruptionTarget");
    }

    // No pod is admitted; the node's condition says why.
    agent.write("new.yaml", &shell_pod("new", STAMPS, "", ""));
    let rejected = agent.wait_phase("new", "Failed");
    assert_eq!(rejected["status"]["reason"], "NodeShutdown");
    let down = ("False".to_owned(), "node is shutting down".to_owned());
    assert_eq!(ready(&agent), down);
    let state = fs::read_to_string(agent.root.join("root/graceful_node_shutdown_state"));
    let state: Value = serde_json::from_str(&state.expect("written")).expect("JSON");
    for name in ["startTime", "endTime"] {
        let time = state[name].as_str().expect("a time");
        assert!(time.starts_with("20"), "{state}");
    }
    let times = |agent: &Agent| {
        ["start", "end"].map(|part| {
            let name = format!("kubelet_graceful_shutdown_{part}_time_seconds");
            metric(agent, &name)
        })
    };
    let [start, end] = times(&agent);
    assert!(
        start > 1e9 && (3.0..60.0).contains(&(end - start)),
        "{start} {end}"
    );

    // It is the same after an agent restart.
    agent.kill_and_restart();
    assert_eq!(ready(&agent), down);
    assert_eq!(times(&agent).map(f64::trunc), [start, end].map(f64::trunc));
    agent.wait_phase("new", "Failed");
    assert!(agent.ok(&["shutdown"]).ends_with("had their time\n"));

    agent.ok(&["shutdown", "--cancel"]);
    for name in (0..GROUPS.len()).flat_map(names) {
        let pod = agent.wait_running(&name);
        assert_eq!(main_status(&pod)["restartCount"], 1, "{name}");
        assert!(pod["status"]["reason"].is_null());
    }
    assert_eq!(main_status(&agent.wait_running("new"))["restartCount"], 0);
    assert_eq!(ready(&agent).0, "True");
    let events = agent.ok(&["get", "events"]);
    for said in [
        "Shutdown manager detected shutdown event",
        "Shutdown manager detected shutdown cancellation",
        "Pod was rejected as the node is shutting down.",
    ] {
        assert!(events.contains(said), "{said}: {events}");
    }
    let again = agent.cli(&["shutdown", "--cancel"]);
    assert!(!again.status.success(), "there is nothing to cancel");
}

#[test]
fn a_shutdown_goes_on_after_the_agent_was_killed() {
    let agent = agent_with(SETTINGS);
    twelve(&agent);
    for group in 0..3 {
        let waiting = shutdown(&agent);
        agent.wait_phase(&names(group)[0], "Failed");
        agent.kill_and_restart();
        let output = waiting.wait_with_output().expect("it ends");
        assert!(!output.status.success(), "the agent was lost: {output:?}");
    }
    let output = shutdown(&agent).wait_with_output().expect("it ends");
    assert!(output.status.success(), "{output:?}");
    check_order(&agent);

    // An agent killed while pods come back does not stop them from coming back.
    agent.ok(&["shutdown", "--cancel"]);
    agent.kill_and_restart();
    for name in (0..GROUPS.len()).flat_map(names) {
        agent.wait_running(&name);
    }
    assert_eq!(ready(&agent).0, "True");
}

#[test]
fn a_client_that_waits_for_a_shutdown_is_told_when_it_is_called_off() {
    let agent = agent_with("kind: KubeletConfiguration\nshutdownGracePeriod: 60s\n");
    let slow = "trap '' TERM; echo up; while :; do sleep 1; done";
    let pod = shell_pod("slow", slow, "", "");
    agent.write("slow.yaml", &pod.replace("Seconds: 2", "Seconds: 60"));
    agent.wait_running("slow");
    agent.wait_line("slow", "up");
    let waiting = shutdown(&agent);
    super::events::wait_event(&agent, |event| {
        event["reason"] == "Killing" && event["involvedObject"]["name"] == "slow"
    });
    agent.ok(&["shutdown", "--cancel"]);
    let output = waiting.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && said.contains("the shutdown was called off"),
        "{output:?}"
    );
}

#[test]
fn a_pod_that_ignores_its_stop_signal_does_not_delay_the_others_and_sigpwr_begins_a_shutdown() {
    let agent = agent_with(
        "kind: KubeletConfiguration\nshutdownGracePeriod: 4s\nshutdownGracePeriodCriticalPods: 2s\n",
    );
    let deaf = "trap '' TERM; echo up; while :; do sleep 1; done";
    agent.write("deaf.yaml", &shell_pod("deaf", deaf, "", ""));
    let more = "  priorityClassName: system-node-critical\n  restartPolicy: Never\n";
    agent.write("top.yaml", &shell_pod("top", STAMPS, more, ""));
    for name in ["deaf", "top"] {
        agent.wait_running(name);
        agent.wait_line(name, "up");
    }
    agent.signal(Signal::SIGPWR);
    agent.wait_phase("deaf", "Failed");
    let output = shutdown(&agent).wait_with_output().expect("it ends");
    assert!(output.status.success(), "{output:?}");
    agent.wait_phase("top", "Failed");
    let deaf = agent.wait_pod("deaf", |pod| {
        main_status(pod)["state"]["terminated"].is_object()
    });
    assert_eq!(main_status(&deaf)["state"]["terminated"]["exitCode"], 137);
    assert!(stamp(&agent, "top", "told") > 0.0);
    // A pod that is never restarted starts again, too: the shutdown ended it.
    agent.ok(&["shutdown", "--cancel"]);
    agent.wait_running("top");
    agent.wait_running("deaf");
}

#[test]
fn a_shutdown_without_grace_periods_is_refused_with_the_reason() {
    let agent = agent_with("kind: KubeletConfiguration\nshutdownGracePeriod: 0s\n");
    let plan = agent.ok(&["shutdown", "--plan"]);
    assert!(plan.contains("graceful shutdown is off"), "{plan}");
    let output = agent.cli(&["shutdown"]);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        !output.status.success() && text.contains("shutdownGracePeriod"),
        "{text}"
    );
}

#[test]
fn the_plan_and_doctor_ask_logind_how_long_it_waits() {
    let bus = common::bus::Bus::serve("plan", 700, false);
    let agent = Agent::prepare(Arc::new(Netns::new()), &[], None).with_bus(&bus);
    let agent = launched(agent, SETTINGS);
    for (seconds, verdict) in [
        (700, "670 s in total; logind waits up to 700 s: enough"),
        (671, "670 s in total; logind waits up to 671 s: enough"),
        (
            670,
            "670 s in total, but logind waits 670 s only, and 671 s are needed: ",
        ),
        (
            5,
            "670 s in total, but logind waits 5 s only, and 671 s are needed: ",
        ),
    ] {
        bus.set_delay(seconds);
        let plan = agent.ok(&["shutdown", "--plan"]);
        assert!(plan.contains(verdict), "{plan}");
        let enough = verdict.ends_with("enough");
        assert!(
            enough || plan.contains("InhibitDelayMaxSec=671 or more in `/"),
            "{plan}"
        );
        let doctor = agent.cli(&["doctor"]);
        let doctor = String::from_utf8_lossy(&doctor.stdout).into_owned();
        let line = doctor
            .lines()
            .find(|line| line.contains("  shutdown  "))
            .expect("checked");
        assert_eq!(line.starts_with("ok "), enough, "{doctor}");
        assert!(
            line.contains(&format!("logind waits up to {seconds} s")),
            "{doctor}"
        );
    }
}
