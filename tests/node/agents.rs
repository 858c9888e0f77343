//! The fate of pods when their agent ends, is killed and starts again.

use std::sync::Arc;

use super::*;

#[test]
fn pods_go_on_when_their_agent_is_killed() {
    let agent = Agent::start();
    agent.write("a.yaml", &shell_pod("a", SLEEP, "", ""));
    agent.write(
        "done.yaml",
        &shell_pod("done", "exit 3", "  restartPolicy: Never\n", ""),
    );
    let before = agent.wait_running("a");
    let finished = agent.wait_phase("done", "Failed");
    let pid = pid_of(&agent, &before);
    for _ in 0..5 {
        agent.kill_and_restart();
        let after = agent.wait_running("a");
        assert_eq!(pid_of(&agent, &after), pid, "the same process");
        assert_eq!(main_status(&after)["restartCount"], 0);
        assert_eq!(after["status"]["startTime"], before["status"]["startTime"]);
        let still = agent.wait_phase("done", "Failed");
        assert_eq!(
            main_status(&still)["state"],
            main_status(&finished)["state"],
            "a finished pod does not run again"
        );
    }
    agent.remove("a.yaml");
    agent.wait_gone("a");
    agent.remove("done.yaml");
    agent.wait_gone("done");
    assert_eq!(agent.leftovers(), Vec::<String>::new());
}

#[test]
fn a_pod_removed_while_no_agent_runs_is_stopped_gracefully_by_the_next_agent() {
    let agent = Agent::start();
    let script = "trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 1 & wait $!; done";
    agent.write("a.yaml", &shell_pod("a", script, "", ""));
    let pod = agent.wait_running("a");
    follow_until(&agent, &["logs", "-f", "a"], "up");
    let uid = pod["metadata"]["uid"].as_str().expect("uid");
    let log = agent.root.join(format!("logs/default_a_{uid}/main/0.log"));
    let kept = agent.root.join("kept.log");
    fs::hard_link(&log, &kept).expect("the log is there");
    agent.signal(Signal::SIGKILL);
    agent.wait();
    agent.remove("a.yaml");
    agent.launch();
    agent.wait_gone("a");
    assert!(
        fs::read_to_string(kept).expect("kept").contains(" bye\n"),
        "the container had its grace period"
    );
    assert_eq!(agent.leftovers(), Vec::<String>::new());
}

#[test]
fn a_second_agent_on_the_same_directories_refuses_to_start() {
    let agent = Agent::start_with(&[]);
    let output = agent.netns.run(|| agent.command().output());
    let output = output.expect("coracle runs");
    assert!(!output.status.success());
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("another coracle agent is running"), "{text}");
}

/// A pod of each QoS class, with an address of its own, a volume in memory and one that shares the node's network.
fn one_of_each(agent: &Agent) {
    let archive = common::archive().to_str().expect("utf-8");
    agent.ok(&["image", "import", archive]);
    let memory = "    volumeMounts: [{name: m, mountPath: /m}]\n  volumes: [{name: m, emptyDir: {medium: Memory}}]\n";
    let burstable = "    resources: {requests: {memory: 8Mi}}\n";
    let guaranteed = "    resources: {limits: {cpu: 100m, memory: 32Mi}}\n";
    agent.write("a.yaml", &shell_pod("a", SLEEP, "", memory));
    agent.write("b.yaml", &shell_pod("b", SLEEP, "", burstable));
    agent.write(
        "c.yaml",
        &shell_pod("c", SLEEP, "  hostNetwork: true\n", guaranteed),
    );
    for pod in ["a", "b", "c"] {
        agent.wait_running(pod);
    }
}

/// Mounts in the agent's directories, and its cgroups.
fn mounts_and_cgroups(agent: &Agent) -> Vec<String> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").expect("proc");
    let root = format!("{}/", agent.root.display());
    let mounts = mounts.lines().filter(|line| line.contains(&root));
    let mut left: Vec<String> = mounts.map(str::to_owned).collect();
    let folders = agent.cgroup_folders().into_iter();
    left.extend(folders.map(|folder| folder.display().to_string()));
    left
}

#[test]
fn with_stop_pods_on_exit_an_agent_stops_its_pods_and_leaves_no_mount_and_no_cgroup() {
    let agent = Agent::start_with(&["--stop-pods-on-exit"]);
    one_of_each(&agent);
    assert!(
        mounts_and_cgroups(&agent).len() > 10,
        "{:?}",
        mounts_and_cgroups(&agent)
    );
    agent.signal(Signal::SIGINT);
    assert!(agent.wait().success());
    assert_eq!(agent.leftovers(), Vec::<String>::new());
    assert_eq!(mounts_and_cgroups(&agent), Vec::<String>::new());
    // The agent makes everything again, and leaves nothing even if there is no pod at its end.
    agent.launch();
    for pod in ["a", "b", "c"] {
        agent.wait_running(pod);
        agent.remove(&format!("{pod}.yaml"));
        agent.wait_gone(pod);
    }
    agent.signal(Signal::SIGTERM);
    assert!(agent.wait().success());
    assert_eq!(mounts_and_cgroups(&agent), Vec::<String>::new());
}

#[test]
fn end_pods_leaves_no_mount_and_no_cgroup_and_the_next_agent_starts_the_pods_again() {
    let agent = Agent::start_with(&[]);
    one_of_each(&agent);
    let run_dir = agent.root.join("run");
    let run_dir = run_dir.to_str().expect("utf-8");
    let words = [
        "end-pods",
        "--grace",
        "1",
        "--cgroup-parent",
        &agent.cgroup,
        "--run-dir",
        run_dir,
    ];
    // While an agent runs, it starts the ended pods again.
    let before = agent.pod("b")["status"]["containerStatuses"][0]["restartCount"].clone();
    agent.ok(&words);
    agent.wait_pod("b", |pod| {
        let status = &pod["status"]["containerStatuses"][0];
        status["restartCount"] != before && status["state"]["running"].is_object()
    });
    agent.signal(Signal::SIGKILL);
    agent.wait();
    agent.ok(&words);
    assert_eq!(mounts_and_cgroups(&agent), Vec::<String>::new());
    agent.ok(&words);
    agent.launch();
    for pod in ["a", "b", "c"] {
        agent.wait_running(pod);
    }
    assert_eq!(
        agent.ok(&[
            "exec",
            "a",
            "--",
            "sh",
            "-c",
            "grep -c ' /m tmpfs' /proc/mounts"
        ]),
        "1\n"
    );
}

/// Flash that wears out becomes read-only.
#[test]
fn an_agent_takes_over_running_pods_when_its_disk_has_become_read_only() {
    const WORN: &str = r#"for word; do [ "$before" = --root ] && disk=$word; before=$word; done
        [ ! -e "$disk/worn" ] || { mount --bind "$disk" "$disk" && mount -o remount,ro,bind "$disk"; } && exec "$@""#;
    let agent = Agent::prepare(Arc::new(common::netns::Netns::new()), &[], Some(WORN));
    agent.launch();
    agent.ok(&[
        "image",
        "import",
        common::archive().to_str().expect("utf-8"),
    ]);
    agent.write("a.yaml", &shell_pod("a", SLEEP, "", ""));
    let pid = pid_of(&agent, &agent.wait_running("a"));
    fs::write(agent.root.join("root/worn"), "").expect("written");
    agent.kill_and_restart();
    assert_eq!(pid_of(&agent, &agent.wait_running("a")), pid);
    assert_eq!(agent.ok(&["exec", "a", "--", "echo", "hello"]), "hello\n");
    agent.write("b.yaml", &shell_pod("b", SLEEP, "", ""));
    super::events::wait_event(&agent, |event| {
        event["reason"] == "FailedCreatePodSandBox" && event["involvedObject"]["name"] == "b"
    });
    let status = agent.cli(&["status"]);
    let status = String::from_utf8_lossy(&status.stdout).into_owned();
    let line = status.lines().find(|line| line.starts_with("pod b"));
    assert!(
        line.is_some_and(|line| line.contains("Read-only file system")),
        "{status}"
    );
    // It starts once the disk can be written again.
    fs::remove_file(agent.root.join("root/worn")).expect("removed");
    agent.kill_and_restart();
    agent.wait_running("b");
    assert_eq!(pid_of(&agent, &agent.wait_running("a")), pid);
}

#[test]
fn a_pod_removed_while_the_machine_is_off_leaves_no_logs() {
    let agent = Agent::start();
    agent.write("a.yaml", &shell_pod("a", SLEEP, "", ""));
    agent.write("b.yaml", &shell_pod("b", SLEEP, "", ""));
    agent.wait_running("a");
    agent.wait_running("b");
    agent.power_cut();
    agent.remove("a.yaml");
    let logs = agent.root.join("logs");
    // On a file system of its own the logs may be older than the state: of this pod only they came back.
    let without_state = "default_a_0123456789abcdef0123456789abcdef";
    let of_others = "default_a_5f2ff5ae-9e62-4a31-8ef6-8c1dd0ebd4c4";
    fs::create_dir_all(logs.join(without_state)).expect("left-over logs");
    fs::create_dir_all(logs.join(of_others)).expect("logs of another program");
    agent.launch();
    agent.wait_running("b");
    let deadline = std::time::Instant::now() + PATIENCE;
    let names = || -> Vec<String> {
        let entries = fs::read_dir(&logs).expect("log folder").flatten();
        entries
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .collect()
    };
    let left = |name: &String| name.starts_with("default_a_") && name != of_others;
    while names().iter().any(left) {
        assert!(std::time::Instant::now() < deadline, "{:?}", names());
        std::thread::sleep(Duration::from_millis(10)); // The sweep is not announced.
    }
    assert!(names().iter().any(|name| name.starts_with("default_b_")));
    assert!(names().iter().any(|name| name == of_others));
    // The run before the cut counts: attempt numbers are not reused.
    assert_eq!(main_status(&agent.pod("b"))["restartCount"], 1);
}

#[test]
fn an_agent_that_ends_leaves_its_pods_running() {
    let agent = Agent::start();
    agent.write("a.yaml", &shell_pod("a", SLEEP, "", ""));
    let pid = pid_of(&agent, &agent.wait_running("a"));
    agent.signal(Signal::SIGTERM);
    assert!(agent.wait().success());
    assert!(
        fs::metadata(format!("/proc/{pid}")).is_ok(),
        "the container goes on"
    );
    agent.launch();
    assert_eq!(pid_of(&agent, &agent.wait_running("a")), pid);
}

#[test]
fn pods_recover_from_kills_of_agents_and_shims_at_random_moments() {
    let agent = Agent::start();
    for index in 0..4 {
        agent.write(
            &format!("p{index}.yaml"),
            &shell_pod(&format!("p{index}"), SLEEP, "", ""),
        );
    }
    // A fixed sequence of pauses, so that a failure can be reproduced.
    let mut random = 0x2545_f491_4f6c_dd1d_u64;
    for round in 0..12 {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        std::thread::sleep(Duration::from_millis(random % 60)); // The moment of the kill is the test's input.
        if round % 3 == 0 {
            agent.write(
                "p0.yaml",
                &shell_pod("p0", &format!("echo {round}; {SLEEP}"), "", ""),
            );
        }
        if round == 7 {
            agent.wait_running("p3");
            kill_shim(&agent, "p3");
        }
        agent.kill_and_restart();
    }
    // The last edit, too: otherwise the pod of the former one may still run.
    agent.wait_pod("p0", |pod| pod["spec"].to_string().contains("echo 9;"));
    for index in 0..4 {
        agent.wait_running(&format!("p{index}"));
    }
    assert_eq!(
        main_status(&agent.pod("p3"))["restartCount"],
        1,
        "its shim was killed once"
    );
    for index in 1..3 {
        let pod = agent.pod(&format!("p{index}"));
        assert_eq!(
            main_status(&pod)["restartCount"],
            0,
            "an agent's death is no reason to restart: {pod:#}"
        );
    }
    for index in 0..4 {
        agent.remove(&format!("p{index}.yaml"));
    }
    for index in 0..4 {
        agent.wait_gone(&format!("p{index}"));
    }
    // A pod whose file went before the agent had taken it over is swept after it has left the API.
    let deadline = std::time::Instant::now() + PATIENCE;
    while !agent.leftovers().is_empty() {
        assert!(
            std::time::Instant::now() < deadline,
            "{:?}\nagent:\n{}",
            agent.leftovers(),
            agent.log()
        );
        std::thread::sleep(Duration::from_millis(10)); // The sweep is not announced.
    }
}
