//! Exits of containers, known after the machine was switched off.

use super::*;

/// The recorded exit of the container: the run's number and its exit code.
fn written(agent: &Agent, pod: &Value) -> Option<(u64, i64)> {
    let uid = pod["metadata"]["uid"].as_str().expect("uid");
    let file = agent.root.join(format!("root/pods/{uid}/exits.json"));
    let ends: Value = serde_json::from_slice(&fs::read(file).ok()?).expect("JSON, whole");
    let end = &ends["ended"]["main"];
    Some((end["attempt"].as_u64()?, end["exit"]["code"].as_i64()?))
}

#[test]
fn a_containers_exit_is_shown_after_a_power_cut_and_forgotten_with_the_pod() {
    let agent = Agent::start();
    let script = format!(
        "if [ -e /v/ran ]; then echo up; {SLEEP}; fi; touch /v/ran; echo disk full > /dev/termination-log; exit 3"
    );
    let more = "  volumes: [{name: v, emptyDir: {}}]\n";
    let mount = "    volumeMounts: [{name: v, mountPath: /v}]\n";
    agent.write("p.yaml", &shell_pod("p", &script, more, mount));
    let again = |count: i64| {
        agent.wait_pod("p", |pod| {
            let status = main_status(pod);
            status["restartCount"] == count && status["state"]["running"].is_object()
        })
    };
    let pod = again(1);
    let deadline = std::time::Instant::now() + PATIENCE;
    while written(&agent, &pod) != Some((0, 3)) {
        assert!(std::time::Instant::now() < deadline, "{}", agent.log());
        std::thread::sleep(Duration::from_millis(5)); // The file is written independently of the status.
    }
    let ended = main_status(&pod)["lastState"]["terminated"].clone();

    agent.power_cut();
    agent.launch();
    let shows = |pod: &Value| {
        let last = &main_status(pod)["lastState"]["terminated"];
        assert_eq!(
            (&last["exitCode"], &last["reason"]),
            (&3.into(), &"Error".into())
        );
        assert_eq!(last["message"], "disk full\n");
        assert_eq!(last["finishedAt"], ended["finishedAt"]);
    };
    shows(&again(2));
    let page = agent.ok(&["describe", "pod", "p"]);
    assert!(page.contains("Last State:       Terminated\n"), "{page}");
    assert!(
        page.contains("      Message:          disk full\n"),
        "{page}"
    );
    agent.kill_and_restart();
    shows(&again(2));

    // Another exit within a minute is written when the agent is stopped, at the latest.
    agent.wait_line("p", "up");
    // The result does not count: the command may be killed with the container.
    agent.cli(&["exec", "p", "--", "kill", "1"]);
    let pod = again(3);
    assert_eq!(main_status(&pod)["lastState"]["terminated"]["exitCode"], 0);
    agent.signal(Signal::SIGTERM);
    agent.wait();
    assert_eq!(written(&agent, &pod), Some((2, 0)));

    agent.launch();
    agent.remove("p.yaml");
    agent.wait_gone("p");
    assert_eq!(agent.leftovers(), Vec::<String>::new());
}

#[test]
fn a_container_that_ran_when_the_machine_went_down_is_shown_as_ended() {
    let agent = Agent::start();
    let script = format!("[ -e /v/ran ] && {{ {SLEEP}; }}; touch /v/ran; exit 3");
    let more = "  volumes: [{name: v, emptyDir: {}}]\n";
    let mount = "    volumeMounts: [{name: v, mountPath: /v}]\n";
    agent.write("p.yaml", &shell_pod("p", &script, more, mount));
    let runs = |count: i64| {
        agent.wait_pod("p", |pod| {
            let status = main_status(pod);
            status["restartCount"] == count && status["state"]["running"].is_object()
        })
    };
    let before = runs(1);
    let shows = |pod: &Value, code: i64, reason: &str| {
        let last = &main_status(pod)["lastState"]["terminated"];
        let found = (last["exitCode"].as_i64(), last["reason"].as_str());
        assert_eq!(found, (Some(code), Some(reason)), "{last}");
        last.clone()
    };
    shows(&before, 3, "Error");
    // `poweroff --force`: systemd sends every process SIGTERM, and waits for none.
    agent.signal(Signal::SIGTERM);
    agent.wait();
    agent.machine_goes_down();
    agent.launch();
    let last = shows(&runs(2), 255, "Unknown");
    assert_eq!(
        last["startedAt"],
        main_status(&before)["state"]["running"]["startedAt"]
    );
    assert_eq!(
        last["message"],
        "The node went down while the container was running"
    );
    // An agent restart ends no run.
    agent.signal(Signal::SIGTERM);
    agent.wait();
    agent.launch();
    shows(&runs(2), 255, "Unknown");
    agent.remove("p.yaml");
    agent.wait_gone("p");
    assert_eq!(agent.leftovers(), Vec::<String>::new());
}

#[test]
fn an_incomplete_file_counts_as_none() {
    let agent = Agent::start();
    agent.write("p.yaml", &shell_pod("p", SLEEP, "", ""));
    let pod = agent.wait_running("p");
    let uid = pod["metadata"]["uid"].as_str().expect("uid");
    agent.power_cut();
    let file = agent.root.join(format!("root/pods/{uid}/exits.json"));
    fs::write(file, "{\"ended\":{\"main\":{\"attempt\":7,").expect("the folder is there");
    agent.launch();
    let pod = agent.wait_running("p");
    let status = main_status(&pod);
    assert_eq!(status["restartCount"], 1);
    assert_eq!(status["lastState"]["terminated"], Value::Null);
}
