//! Sidecars: containers that run beside the pod's regular containers.

use super::stages::{STAY, runs, staged, status, story};
use super::*;

pub(super) const SIDECAR: &str = "    restartPolicy: Always\n";

#[test]
fn sidecars_start_before_the_regular_containers_and_end_after_them_in_reverse_order() {
    let agent = Agent::start();
    let main = "echo main up >> /s/story; trap 'sleep 1; echo main end >> /s/story; exit 0' TERM; \
                while :; do sleep 1 & wait $!; done";
    let late = "echo s2 up >> /s/story; trap 'sleep 1; echo s2 end >> /s/story; exit 0' TERM; \
                while :; do sleep 1 & wait $!; done";
    let init = [
        ("s1", STAY, SIDECAR),
        ("between", "echo between >> /s/story", ""),
        ("s2", late, SIDECAR),
    ];
    agent.write(
        "a.yaml",
        &staged(&agent, "a", "", &init, &[("main", main, "")]),
    );
    let pod = agent.wait_running("a");
    assert!(runs(&pod, "s1") && runs(&pod, "s2"));
    for name in ["s1", "s2"] {
        assert_eq!(
            (&status(&pod, name)["started"], &status(&pod, name)["ready"]),
            (&true.into(), &true.into())
        );
    }
    let line = agent.ok(&["get", "pods"]);
    assert!(line.contains("3/3") && line.contains("Running"), "{line}");
    let said = agent.ok(&["exec", "a", "-c", "s1", "--", "sh", "-c", "echo $NAME"]);
    assert_eq!(said, "s1\n");
    for name in ["s1", "s2", "main"] {
        agent.wait_line_of_story("a", &format!("{name} up"), 1);
    }
    agent.remove("a.yaml");
    agent.wait_gone("a");
    let story_lines = story(&agent, "a");
    assert_eq!(
        story_lines[story_lines.len() - 3..],
        ["main end", "s2 end", "s1 end"],
        "{story_lines:?}"
    );
    assert_eq!(agent.leftovers(), Vec::<String>::new());
}

#[test]
fn a_pod_is_complete_when_its_regular_containers_are_however_its_sidecars_end() {
    let agent = Agent::start();
    let never = "  restartPolicy: Never\n";
    let side = "echo side up >> /s/story; trap 'echo side end >> /s/story; exit 9' TERM; \
                while :; do sleep 1 & wait $!; done";
    let main = "until grep -q side /s/story; do usleep 10000; done; echo main end >> /s/story";
    agent.write(
        "a.yaml",
        &staged(
            &agent,
            "a",
            never,
            &[("side", side, SIDECAR)],
            &[("main", main, "")],
        ),
    );
    let pod = agent.wait_phase("a", "Succeeded");
    assert_eq!(status(&pod, "side")["state"]["terminated"]["exitCode"], 9);
    assert_eq!(status(&pod, "side")["restartCount"], 0);
    assert_eq!(story(&agent, "a"), ["side up", "main end", "side end"]);
    assert!(agent.ok(&["get", "pods"]).contains("Completed"));
}

#[test]
fn a_sidecar_that_ends_restarts_whatever_the_pods_policy() {
    let agent = Agent::start();
    let never = "  restartPolicy: Never\n";
    let side =
        "echo side >> /s/story; [ -e /v/tried ] || { touch /v/tried; exit 0; }; exec sleep 1000";
    agent.write(
        "a.yaml",
        &staged(
            &agent,
            "a",
            never,
            &[("side", side, SIDECAR)],
            &[("main", STAY, "")],
        ),
    );
    let pod = agent.wait_pod("a", |pod| {
        runs(pod, "side") && runs(pod, "main") && status(pod, "side")["restartCount"] == 1
    });
    assert_eq!(status(&pod, "main")["restartCount"], 0);
    agent.wait_line_of_story("a", "side", 2);
    let line = agent.ok(&["get", "pods"]);
    assert!(line.contains("2/2"), "{line}");
}

#[test]
fn a_sidecar_killed_while_no_agent_runs_restarts() {
    let agent = Agent::start();
    agent.write(
        "a.yaml",
        &staged(
            &agent,
            "a",
            "",
            &[("side", STAY, SIDECAR)],
            &[("main", STAY, "")],
        ),
    );
    agent.wait_running("a");
    agent.wait_line_of_story("a", "side up", 1);
    agent.signal(Signal::SIGKILL);
    agent.wait();
    let uid = fs::read_dir(agent.root.join("run/pods"));
    let uid = uid
        .expect("pods")
        .flatten()
        .next()
        .expect("a pod")
        .file_name();
    let uid = uid.to_str().expect("utf-8");
    let pids = agent.cgroup_file(
        "memory",
        &format!("besteffort/pod{uid}/c-side"),
        "cgroup.procs",
    );
    for pid in pids.lines() {
        let pid = nix::unistd::Pid::from_raw(pid.parse().expect("pid"));
        // The process may already have ended with another one.
        let _ = nix::sys::signal::kill(pid, Signal::SIGKILL);
    }
    agent.launch();
    let pod = agent.wait_pod("a", |pod| {
        runs(pod, "side") && status(pod, "side")["restartCount"] == 1
    });
    assert_eq!(
        status(&pod, "side")["lastState"]["terminated"]["exitCode"],
        137
    );
    assert_eq!(status(&pod, "main")["restartCount"], 0);
}

#[test]
fn a_sidecar_is_probed_until_the_containers_that_it_serves_have_ended() {
    let agent = Agent::start();
    let probed = "    restartPolicy: Always\n    livenessProbe: {periodSeconds: 1, exec: {command: [sh, -c, \"echo alive >> /s/story\"]}}\n    \
                  readinessProbe: {periodSeconds: 1, failureThreshold: 1, exec: {command: [test, '!', -e, /s/told]}}\n";
    // It ends only when it has seen the probes go on, and the test has seen their results.
    let main = "trap 'echo told | tee /s/told >> /s/story; \
                until [ -e /s/seen ] && [ $(sed 1,/told/d /s/story | grep -c alive) -ge 2 ]; do usleep 50000; done; \
                echo main end >> /s/story; exit 0' TERM; echo main up >> /s/story; while :; do sleep 1 & wait $!; done";
    let init = [("side", STAY, probed)];
    let text = staged(&agent, "a", "", &init, &[("main", main, "")]);
    let patient = "terminationGracePeriodSeconds: 60";
    let text = text.replacen("terminationGracePeriodSeconds: 5", patient, 1);
    assert!(text.contains(patient), "{text}");
    agent.write("a.yaml", &text);
    agent.wait_pod("a", |pod| {
        runs(pod, "main") && status(pod, "side")["ready"] == true
    });
    agent.wait_line_of_story("a", "main up", 1);
    agent.remove("a.yaml");
    agent.wait_pod("a", |pod| {
        !pod["metadata"]["deletionTimestamp"].is_null() && status(pod, "side")["ready"] == false
    });
    fs::write(agent.root.join("story-a/seen"), "").expect("written");
    agent.wait_gone("a");
    let story_lines = story(&agent, "a");
    let last: Vec<_> = story_lines.iter().filter(|line| *line != "alive").collect();
    assert_eq!(
        last[last.len() - 2..],
        ["main end", "side end"],
        "{story_lines:?}"
    );
}

#[test]
fn a_sidecars_ports_are_ports_of_its_pod() {
    let agent = Agent::start();
    let ports = "    restartPolicy: Always\n    ports: [{name: admin, containerPort: 9000, hostPort: 19000}]\n";
    let service = "apiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec:\n  selector: {app: web}\n  \
                   ports: [{port: 80, targetPort: admin}]\n";
    agent.write("service.yaml", service);
    let pod = |name: &str| {
        let text = staged(
            &agent,
            name,
            "",
            &[("side", STAY, ports)],
            &[("main", STAY, "")],
        );
        text.replacen("{name:", "{labels: {app: web}, name:", 1)
    };
    agent.write("a.yaml", &pod("a"));
    let found = agent.wait_running("a");
    let behind = format!(
        "{}:9000",
        found["status"]["podIP"].as_str().expect("an address")
    );
    let mut events = agent.watch("/api/v1/namespaces/default/endpoints?watch=true");
    let shown = events.any(|event| !event["object"]["subsets"][0]["addresses"].is_null());
    assert!(shown && agent.ok(&["get", "endpoints"]).contains(&behind));
    let mut events = agent.watch("/api/v1/events?watch=true");
    agent.write("b.yaml", &pod("b"));
    let refused = events.find(|event| event["object"]["reason"] == "NodePorts");
    let refused = refused.expect("the port is taken").to_string();
    assert!(
        refused.contains("19000") && refused.contains("default/a"),
        "{refused}"
    );
}
