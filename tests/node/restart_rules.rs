//! Containers with a restart policy and rules of their own.

use super::stages::{STAY, runs, staged, status, story};
use super::*;

/// A script that ends with the first of these codes that it has not ended with yet, then stays.
fn ends_with(codes: &[i32]) -> String {
    let mut script = "echo $NAME >> /s/story; ".to_owned();
    for (index, code) in codes.iter().enumerate() {
        script.push_str(&format!(
            "[ -e /v/$NAME-{index} ] || {{ touch /v/$NAME-{index}; exit {code}; }}; "
        ));
    }
    script + STAY
}

/// The YAML of a container's own policy and one rule.
fn rule(policy: &str, action: &str, operator: &str, codes: &str) -> String {
    format!(
        "    restartPolicy: {policy}\n    restartPolicyRules:\n    - {{action: {action}, exitCodes: {{operator: \
         {operator}, values: [{codes}]}}}}\n"
    )
}

#[test]
fn a_rule_restarts_a_container_that_its_policy_would_not() {
    let agent = Agent::start();
    let never = "  restartPolicy: Never\n";
    let listed = rule("Never", "Restart", "In", "42, 43");
    let others = rule("Never", "Restart", "NotIn", "0, 7");
    let (a, b) = (ends_with(&[42, 1]), ends_with(&[3, 7]));
    agent.write(
        "a.yaml",
        &staged(
            &agent,
            "a",
            never,
            &[("early", "true", "")],
            &[("in", &a, &listed), ("out", &b, &others)],
        ),
    );
    let pod = agent.wait_phase("a", "Failed");
    for (name, first, last) in [("in", 42, 1), ("out", 3, 7)] {
        let status = status(&pod, name);
        assert_eq!(status["restartCount"], 1, "{name}");
        assert_eq!(
            status["lastState"]["terminated"]["exitCode"], first,
            "{name}"
        );
        assert_eq!(status["state"]["terminated"]["exitCode"], last, "{name}");
    }
}

#[test]
fn a_containers_own_policy_replaces_the_pods() {
    let agent = Agent::start();
    let script = ends_with(&[1]);
    let (own_never, own_failure) = (
        "    restartPolicy: Never\n",
        "    restartPolicy: OnFailure\n",
    );
    let main = [
        ("never", script.as_str(), own_never),
        ("again", script.as_str(), own_failure),
    ];
    agent.write(
        "a.yaml",
        &staged(&agent, "a", "", &[("early", "true", "")], &main),
    );
    let pod = agent.wait_pod("a", |pod| {
        runs(pod, "again")
            && status(pod, "again")["restartCount"] == 1
            && !status(pod, "never")["state"]["terminated"].is_null()
    });
    assert_eq!(status(&pod, "never")["restartCount"], 0);
    assert_eq!(pod["status"]["phase"], "Running");
}

#[test]
fn a_rule_restarts_a_failed_init_container() {
    let agent = Agent::start();
    let never = "  restartPolicy: Never\n";
    let listed = rule("Never", "Restart", "In", "42");
    let init = "[ -e /v/tried ] && exit 0; touch /v/tried; exit 42";
    agent.write(
        "a.yaml",
        &staged(
            &agent,
            "a",
            never,
            &[("early", init, &listed)],
            &[("main", STAY, "")],
        ),
    );
    let pod = agent.wait_running("a");
    assert_eq!(status(&pod, "early")["restartCount"], 1);
}

#[test]
fn a_pod_that_restarts_in_place_keeps_sandbox_and_volumes_and_runs_all_containers_again() {
    let agent = Agent::start();
    let all = rule("Never", "RestartAllContainers", "In", "88");
    let init = "echo early >> /s/story; echo x >> /v/kept";
    let side = "    restartPolicy: Always\n";
    let main = "echo main >> /s/story; read x < /s/gate; [ $x = stay ] || exit 88; exec sleep 1000";
    let text = staged(
        &agent,
        "a",
        "  restartPolicy: Never\n",
        &[("early", init, ""), ("side", "exec sleep 1000", side)],
        &[("main", main, &all), ("other", "exec sleep 1000", "")],
    );
    let gate = agent.root.join("story-a/gate");
    let mode = nix::sys::stat::Mode::from_bits_truncate(0o666);
    nix::unistd::mkfifo(&gate, mode).expect("a fifo");
    agent.write("a.yaml", &text);
    let before = agent.wait_running("a");
    fs::write(&gate, "again\n").expect("a fifo");
    let after = agent.wait_pod("a", |pod| {
        ["side", "main", "other"]
            .iter()
            .all(|name| runs(pod, name) && status(pod, name)["restartCount"] == 1)
    });
    assert_eq!(after["metadata"]["uid"], before["metadata"]["uid"]);
    assert_eq!(after["status"]["podIP"], before["status"]["podIP"]);
    assert!(!before["status"]["podIP"].is_null());
    assert_eq!(after["status"]["startTime"], before["status"]["startTime"]);
    assert_eq!(status(&after, "early")["restartCount"], 1);
    let conditions = after["status"]["conditions"]
        .as_array()
        .expect("conditions");
    let restarting = conditions
        .iter()
        .find(|c| c["type"] == "AllContainersRestarting");
    assert_eq!(restarting.expect("it has such a rule")["status"], "False");
    agent.wait_line_of_story("a", "main", 2);
    assert_eq!(story(&agent, "a"), ["early", "main", "early", "main"]);
    let kept = agent.ok(&["exec", "a", "-c", "other", "--", "true"]);
    assert_eq!(kept, "");
    let uid = after["metadata"]["uid"].as_str().expect("uid");
    let volume = agent.root.join(format!(
        "root/pods/{uid}/volumes/kubernetes.io~empty-dir/v/kept"
    ));
    assert_eq!(fs::read_to_string(volume).expect("kept"), "x\nx\n");
    fs::write(&gate, "stay\n").expect("a fifo");
    agent.kill_and_restart();
    let still = agent.wait_running("a");
    assert_eq!(
        status(&still, "main")["restartCount"],
        1,
        "it restarts in place only once"
    );
    assert_eq!(status(&still, "early")["restartCount"], 1);
    agent.remove("a.yaml");
    agent.wait_gone("a");
    assert_eq!(agent.leftovers(), Vec::<String>::new());
}

#[test]
fn a_restart_in_place_happens_once_even_if_the_agent_is_killed() {
    let agent = Agent::start();
    let all = rule("Never", "RestartAllContainers", "In", "88");
    let init = "echo early >> /s/story";
    let main = "echo main >> /s/story; [ -e /v/again ] && exec sleep 1000; touch /v/again; exit 88";
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    for round in 0..6 {
        let name = format!("p{round}");
        let parts = [
            ("main", main, all.as_str()),
            ("other", "exec sleep 1000", ""),
        ];
        let text = staged(
            &agent,
            &name,
            "  restartPolicy: Never\n",
            &[("early", init, "")],
            &parts,
        );
        agent.write("p.yaml", &text);
        agent.wait_line_of_story(&name, "main", 1);
        for _ in 0..3 {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            std::thread::sleep(Duration::from_millis(random % 100)); // The moment of the kill is the test's input.
            agent.kill_and_restart();
        }
        let pod = agent.wait_pod(&name, |pod| {
            runs(pod, "main") && runs(pod, "other") && status(pod, "main")["restartCount"] != 0
        });
        assert_eq!(status(&pod, "main")["restartCount"], 1, "{pod:#}");
        agent.wait_line_of_story(&name, "main", 2);
        assert_eq!(story(&agent, &name), ["early", "main", "early", "main"]);
    }
}

#[test]
fn a_pod_whose_rule_keeps_firing_restarts_in_place_with_back_off() {
    let agent = Agent::start();
    let all = rule("Never", "RestartAllContainers", "In", "88");
    // Its rule fires once the other container runs: one that never ran is not removed.
    let main = "cut -d' ' -f1 /proc/uptime >> /s/story; until [ -e /s/other ]; do sleep 0.05; done; rm /s/other; exit 88";
    let parts = [
        ("main", main, &*all),
        ("other", "touch /s/other; exec sleep 1000", ""),
    ];
    agent.write("a.yaml", &staged(&agent, "a", "", &[], &parts));
    let waits = |pod: &Value| {
        let waiting = &status(pod, "main")["state"]["waiting"];
        waiting["reason"] == "CrashLoopBackOff" && !runs(pod, "other")
    };
    agent.wait_pod("a", waits);
    agent.kill_and_restart();
    let pod = agent.wait_pod("a", waits);
    let other = &status(&pod, "other")["state"]["waiting"]["reason"];
    assert_eq!(other, "RestartingAllContainers");
    agent.wait_pod("a", |pod| {
        status(pod, "main")["restartCount"] == 3 && waits(pod)
    });
    let times: Vec<f64> = story(&agent, "a")
        .iter()
        .map(|line| line.parse().expect("seconds"))
        .collect();
    assert_eq!(times.len(), 3, "{times:?}");
    assert!(times[2] - times[1] >= 10.0, "{times:?}");
}

#[test]
fn logs_show_the_last_run_while_a_pod_waits_to_restart_in_place() {
    let agent = Agent::start();
    let all = rule("Never", "RestartAllContainers", "In", "42");
    let script = "echo why I crash; exit 42";
    agent.write(
        "a.yaml",
        &shell_pod("a", script, "  restartPolicy: Never\n", &all),
    );
    let waits = |pod: &Value| {
        let waiting = &main_status(pod)["state"]["waiting"];
        waiting["reason"] == "CrashLoopBackOff"
    };
    agent.wait_pod("a", waits);
    for args in [&["logs", "a"][..], &["logs", "-p", "a"]] {
        assert_eq!(agent.ok(args), "why I crash\n", "{args:?}");
    }
}
