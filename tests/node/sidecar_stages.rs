//! Sidecars among the stages of a pod's life, after the cases of Kubernetes' own node tests: what waits for them, what
//! they wait for, and what ends before them.

use super::sidecars::SIDECAR;
use super::stages::{STAY, condition, runs, staged, status, story, story_dir};
use super::*;

const NEVER: &str = "  restartPolicy: Never\n";

/// A sidecar with a probe of this kind: a shell command, once a second.
fn probed(kind: &str, script: &str, threshold: u32) -> String {
    let script = serde_json::to_string(script).expect("a string");
    format!(
        "{SIDECAR}    {kind}: {{exec: {{command: [sh, -c, {script}]}}, periodSeconds: 1, timeoutSeconds: 30, \
         failureThreshold: {threshold}}}\n"
    )
}

fn restarts(pod: &Value, container: &str) -> Value {
    status(pod, container)["restartCount"].clone()
}

#[test]
fn later_containers_wait_for_a_sidecars_startup_probe_even_over_agent_restarts() {
    let agent = Agent::start();
    let record = "echo $NAME >> /s/story";
    let probe = "[ -e /s/open ] || { echo shut >> /s/story; exit 1; }";
    let gated = probed("startupProbe", probe, 600);
    let init = [
        ("one", record, ""),
        ("side", STAY, &gated),
        ("two", record, ""),
    ];
    let main = [("main", STAY, "")];
    agent.write("a.yaml", &staged(&agent, "a", "", &init, &main));
    let lines = || {
        let mut lines = story(&agent, "a");
        lines.retain(|line| line != "shut");
        lines
    };
    for probes in [2, 4] {
        agent.wait_line_of_story("a", "shut", probes);
        let pod = agent.wait_pod("a", |pod| runs(pod, "side"));
        assert_eq!(status(&pod, "side")["started"], false);
        assert_eq!(pod["status"]["phase"], "Pending");
        assert_eq!(
            condition(&pod, "Initialized")["message"],
            "containers with incomplete status: [side two]"
        );
        for name in ["two", "main"] {
            let waiting = &status(&pod, name)["state"]["waiting"];
            assert_eq!(waiting["reason"], "PodInitializing", "{name}");
        }
        assert!(agent.ok(&["get", "pods"]).contains("Init:1/3"));
        assert_eq!(lines(), ["one", "side up"]);
        agent.kill_and_restart();
    }
    fs::write(story_dir(&agent, "a").join("open"), "").expect("written");
    let pod = agent.wait_running("a");
    assert_eq!(status(&pod, "side")["started"], true);
    agent.wait_line_of_story("a", "main up", 1);
    // A probe that succeeded once does not run again.
    fs::remove_file(story_dir(&agent, "a").join("open")).expect("removed");
    agent.kill_and_restart();
    let again = agent.wait_running("a");
    assert_eq!(status(&again, "side"), status(&pod, "side"));
    for name in ["one", "side", "two", "main"] {
        assert_eq!(restarts(&again, name), 0, "{name}");
    }
    assert_eq!(lines(), ["one", "side up", "two", "main up"]);
}

/// Like [`STAY`], but it can be stopped as soon as its first line is written.
const LISTENS: &str = "trap 'echo $NAME end >> /s/story; exit 0' TERM; echo $NAME up >> /s/story; \
                       while :; do sleep 1 & wait $!; done";

#[test]
fn a_sidecar_that_fails_its_startup_probe_restarts_before_any_other_container_starts() {
    let agent = Agent::start();
    let second = "until grep -q 'side up' /s/story; do usleep 10000; done; \
                  [ $(grep -c 'side up' /s/story) -gt 1 ]";
    let init = [("side", LISTENS, &probed("startupProbe", second, 1)[..])];
    let main = [("main", STAY, "")];
    agent.write("a.yaml", &staged(&agent, "a", NEVER, &init, &main));
    let pod = agent.wait_running("a");
    assert_eq!(restarts(&pod, "side"), 1);
    assert_eq!(restarts(&pod, "main"), 0);
    agent.wait_line_of_story("a", "main up", 1);
    agent.wait_line_of_story("a", "side up", 2);
    let lines = story(&agent, "a");
    assert_eq!(lines[..2], ["side up", "side end"], "{lines:?}");
    assert_eq!(lines.len(), 4, "{lines:?}");
}

#[test]
fn a_sidecar_that_fails_its_liveness_probe_restarts_alone() {
    let agent = Agent::start();
    // Failures in the first second do not count, so it fails until the second run.
    let once = "grep -q 'main up' /s/story || exit 0; [ $(grep -c 'side up' /s/story) -gt 1 ]";
    let init = [("side", LISTENS, &probed("livenessProbe", once, 1)[..])];
    let main = [("main", STAY, "")];
    agent.write("a.yaml", &staged(&agent, "a", NEVER, &init, &main));
    let pod = agent.wait_pod("a", |pod| runs(pod, "side") && restarts(pod, "side") == 1);
    assert!(runs(&pod, "main") && restarts(&pod, "main") == 0, "{pod:#}");
    assert_eq!(condition(&pod, "Initialized")["status"], "True");
    agent.wait_line_of_story("a", "side up", 2);
    let mut lines = story(&agent, "a");
    lines.retain(|line| line != "main up");
    assert_eq!(lines, ["side up", "side end", "side up"]);
}

#[test]
fn sidecars_that_end_at_once_delay_no_other_container() {
    let agent = Agent::start();
    for (name, script) in [("well", "exit 0"), ("badly", "exit 1")] {
        let init = [("side", script, SIDECAR), ("one", "exit 0", "")];
        let main = [("main", "echo main >> /s/story", "")];
        let text = staged(&agent, name, NEVER, &init, &main);
        agent.write(&format!("{name}.yaml"), &text);
        agent.wait_phase(name, "Succeeded");
        assert_eq!(story(&agent, name), ["main"]);
    }
}

#[test]
fn a_regular_container_that_fails_restarts_while_its_sidecars_run() {
    let agent = Agent::start();
    let up = "until grep -q 'side up' /s/story; do usleep 10000; done";
    let main = format!("{up}; [ -e /v/first ] || {{ touch /v/first; exit 1; }}; {STAY}");
    let init = [("side", STAY, SIDECAR), ("one", "echo one >> /s/story", "")];
    let main = [("main", main.as_str(), "")];
    let on_failure = "  restartPolicy: OnFailure\n";
    agent.write("a.yaml", &staged(&agent, "a", on_failure, &init, &main));
    let pod = agent.wait_pod("a", |pod| runs(pod, "main") && restarts(pod, "main") == 1);
    agent.wait_line_of_story("a", "main up", 1);
    for name in ["side", "one"] {
        assert_eq!(restarts(&pod, name), 0, "{name}");
    }
    let mut lines = story(&agent, "a");
    lines.sort();
    assert_eq!(lines, ["main up", "one", "side up"]);
}

#[test]
fn sidecars_end_when_an_init_container_fails_for_good() {
    let agent = Agent::start();
    let fails = "until grep -q 'side up' /s/story; do usleep 10000; done; exit 3";
    let init = [("side", STAY, SIDECAR), ("one", fails, "")];
    let main = [("main", STAY, "")];
    agent.write("a.yaml", &staged(&agent, "a", NEVER, &init, &main));
    let pod = agent.wait_pod("a", |pod| {
        pod["status"]["phase"] == "Failed" && !runs(pod, "side")
    });
    assert_eq!(status(&pod, "one")["state"]["terminated"]["exitCode"], 3);
    assert_eq!(status(&pod, "side")["state"]["terminated"]["exitCode"], 0);
    let waiting = &status(&pod, "main")["state"]["waiting"];
    assert_eq!(waiting["reason"], "PodInitializing");
    assert_eq!(story(&agent, "a"), ["side up", "side end"]);
}

#[test]
fn a_sidecar_that_does_not_stop_is_killed_and_delays_earlier_sidecars_by_the_grace_at_most() {
    let agent = Agent::start();
    let polite = "echo s1 up >> /s/story; trap 'date +%s > /s/told; echo s1 end >> /s/story; exit 0' TERM; \
                while :; do sleep 1 & wait $!; done";
    let deaf = "trap '' TERM; echo s2 up >> /s/story; while :; do sleep 1; done";
    let main = "until grep -q 's1 up' /s/story && grep -q 's2 up' /s/story; do usleep 10000; done; \
                date +%s > /s/over; echo main end >> /s/story";
    let init = [("s1", polite, SIDECAR), ("s2", deaf, SIDECAR)];
    let main = [("main", main, "")];
    agent.write("a.yaml", &staged(&agent, "a", NEVER, &init, &main));
    let pod = agent.wait_phase("a", "Succeeded");
    assert_eq!(status(&pod, "s1")["state"]["terminated"]["exitCode"], 0);
    assert_eq!(status(&pod, "s2")["state"]["terminated"]["exitCode"], 137);
    assert_eq!(story(&agent, "a")[2..], ["main end", "s1 end"]);
    let second = |file: &str| {
        let text = fs::read_to_string(story_dir(&agent, "a").join(file)).expect("written");
        text.trim().parse::<u64>().expect("seconds")
    };
    // The second sidecar takes the whole grace period of 5 s.
    assert!(second("told") >= second("over") + 5);
}

#[test]
fn a_sidecar_that_ends_while_its_pod_stops_is_not_restarted() {
    let agent = Agent::start();
    let side = "echo side up >> /s/story; until [ -e /v/go ]; do usleep 10000; done; echo side end >> /s/story; exit 3";
    let main = "trap 'touch /v/go; until grep -q \"side end\" /s/story; do usleep 10000; done; sleep 1; \
                echo main end >> /s/story; exit 0' TERM; echo main up >> /s/story; \
                while :; do sleep 1 & wait $!; done";
    let init = [("side", side, SIDECAR)];
    let main = [("main", main, "")];
    agent.write("a.yaml", &staged(&agent, "a", "", &init, &main));
    agent.wait_running("a");
    agent.wait_line_of_story("a", "side up", 1);
    agent.wait_line_of_story("a", "main up", 1);
    agent.remove("a.yaml");
    agent.wait_gone("a");
    assert_eq!(
        story(&agent, "a")[2..],
        ["side end".to_owned(), "main end".to_owned()]
    );
    assert_eq!(agent.leftovers(), Vec::<String>::new());
}

#[test]
fn a_pod_is_removed_even_if_a_sidecar_is_in_back_off() {
    let agent = Agent::start();
    let init = [("side", "echo side >> /s/story; exit 1", SIDECAR)];
    let main = [("main", STAY, "")];
    agent.write("a.yaml", &staged(&agent, "a", "", &init, &main));
    agent.wait_line_of_story("a", "main up", 1);
    agent.wait_pod("a", |pod| {
        status(pod, "side")["state"]["waiting"]["reason"] == "CrashLoopBackOff"
    });
    agent.remove("a.yaml");
    agent.wait_gone("a");
    let lines = story(&agent, "a");
    assert_eq!(
        lines.last().map(String::as_str),
        Some("main end"),
        "{lines:?}"
    );
    assert_eq!(agent.leftovers(), Vec::<String>::new());
}
