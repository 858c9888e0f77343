//! Pods that clients stop, start and restart in place, on real containers.

use super::*;

/// Says when it starts and when it is told to stop.
const SAYS: &str = "trap 'echo told; exit 0' TERM; echo up; while :; do sleep 1 & wait $!; done";

fn run(agent: &Agent, name: &str, more: &str, container: &str) -> Value {
    agent.write(
        &format!("{name}.yaml"),
        &shell_pod(name, SAYS, more, container),
    );
    let pod = agent.wait_running(name);
    agent.wait_line(name, "up");
    pod
}

fn refusal(agent: &Agent, args: &[&str]) -> String {
    let output = agent.cli(args);
    assert!(!output.status.success(), "{args:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_restart_is_graceful_and_in_place() {
    let agent = Agent::start();
    let hook = "    lifecycle: {preStop: {exec: {command: [sh, -c, echo hook > /proc/1/fd/1]}}}\n";
    let before = run(&agent, "web", "  restartPolicy: Never\n", hook);
    assert_eq!(agent.ok(&["restart", "web"]), "pod/web restarted\n");
    let after = agent.pod("web");
    for field in ["uid", "creationTimestamp"] {
        assert_eq!(before["metadata"][field], after["metadata"][field]);
    }
    assert_eq!(before["status"]["podIP"], after["status"]["podIP"]);
    assert_eq!(main_status(&after)["restartCount"], 1);
    assert_eq!(
        main_status(&after)["lastState"]["terminated"]["exitCode"],
        0
    );
    let log = agent.ok(&["logs", "web", "--previous"]);
    assert_eq!(log, "up\nhook\ntold\n");
    // Many of them are no crash loop.
    for _ in 0..4 {
        agent.ok(&["restart", "pod/web", "-c", "main", "--grace-period", "5"]);
    }
    assert_eq!(main_status(&agent.pod("web"))["restartCount"], 5);
    let events = agent.ok(&["events", "--for", "pod/web"]);
    assert!(
        events.contains("Container main restarts on request"),
        "{events}"
    );
    let unknown = refusal(&agent, &["restart", "web", "-c", "other"]);
    assert!(
        unknown.contains("container other is not valid for pod web"),
        "{unknown}"
    );
    assert!(refusal(&agent, &["restart", "db"]).contains("\"db\" not found"));
    assert!(refusal(&agent, &["restart"]).contains("say which pods"));
    assert!(refusal(&agent, &["restart", "-l", ""]).contains("say which pods"));
    assert!(refusal(&agent, &["restart", "-l", ","]).contains("unable to parse"));
    // What was done is printed beside what failed.
    let both = agent.cli(&["restart", "web", "deployment/nope"]);
    assert!(!both.status.success());
    assert_eq!(both.stdout, b"pod/web restarted\n");
    assert!(String::from_utf8_lossy(&both.stderr).contains("\"nope\" not found"));
}

#[test]
fn a_restart_survives_the_agent_and_ends_a_crash_loop() {
    let agent = Agent::start();
    let deaf = "trap 'echo told' TERM; echo up; while :; do sleep 1 & wait $!; done";
    let grace = "  restartPolicy: OnFailure\n";
    agent.write("deaf.yaml", &shell_pod("deaf", deaf, grace, ""));
    agent.wait_running("deaf");
    agent.wait_line("deaf", "up");
    let asked = agent.ok(&["restart", "deaf", "--wait=false", "--grace-period", "3"]);
    assert_eq!(asked, "pod/deaf restarting\n");
    agent.kill_and_restart();
    agent.wait_pod("deaf", |pod| {
        main_status(pod)["restartCount"] == 1 && main_status(pod)["state"]["running"].is_object()
    });
    let crashes = "test -e /d/ok && exec sleep 1000; exit 3";
    let volume = "  volumes: [{name: d, emptyDir: {}}]\n";
    let mount = "    volumeMounts: [{name: d, mountPath: /d}]\n";
    agent.write("loop.yaml", &shell_pod("loop", crashes, volume, mount));
    let pod = agent.wait_pod("loop", |pod| {
        main_status(pod)["state"]["waiting"]["reason"] == "CrashLoopBackOff"
    });
    let uid = pod["metadata"]["uid"].as_str().expect("a UID");
    let file = format!("root/pods/{uid}/volumes/kubernetes.io~empty-dir/d/ok");
    fs::write(agent.root.join(file), "").expect("the volume is there");
    assert_eq!(agent.ok(&["restart", "loop"]), "pod/loop restarted\n");
}

#[test]
fn a_stopped_pod_stays_down_over_restarts_boots_and_edits() {
    let agent = Agent::start();
    let before = run(&agent, "web", "", "");
    run(&agent, "other", "", "");
    assert_eq!(agent.ok(&["stop", "web"]), "pod/web stopped\n");
    let is_down = || {
        agent.wait_pod("web", |pod| pod["status"]["reason"] == "Stopped");
        let shown = agent.ok(&["get", "pods"]);
        let line = shown
            .lines()
            .find(|line| line.starts_with("web"))
            .expect("it is shown");
        assert!(line.contains(" Stopped "), "{shown}");
        let pod = agent.pod("web");
        assert_eq!(pod["status"]["reason"], "Stopped", "{pod:#}");
        let message = "Stopped by command; `coracle start pod/web` starts it.";
        assert_eq!(pod["status"]["message"], message);
    };
    is_down();
    assert!(
        agent
            .ok(&["describe", "pod", "web"])
            .contains("coracle start pod/web")
    );
    assert_eq!(agent.ok(&["stop", "web"]), "pod/web already stopped\n");
    // The answer came when it was on disk.
    agent.kill_and_restart();
    is_down();
    agent.power_cut();
    agent.launch();
    agent.wait_running("other");
    is_down();
    agent.write(
        "web.yaml",
        &shell_pod("web", SAYS, "  restartPolicy: OnFailure\n", ""),
    );
    agent.wait_pod("web", |pod| pod["spec"]["restartPolicy"] == "OnFailure");
    is_down();
    let refused = refusal(&agent, &["restart", "web"]);
    assert!(
        refused.contains("`coracle start pod/web` starts it"),
        "{refused}"
    );
    let health = agent.ok(&["healthcheck"]);
    assert!(health.starts_with("healthy"), "{health}");
    assert_eq!(agent.ok(&["start", "web"]), "pod/web started\n");
    let after = agent.wait_running("web");
    assert_ne!(before["metadata"]["uid"], after["metadata"]["uid"]);
    assert_eq!(
        agent.ok(&["start", "web"]),
        "pod/web was not stopped, not started\n"
    );
    // A file that goes takes the stop along, also while there is no agent.
    agent.ok(&["stop", "--all"]);
    agent.remove("web.yaml");
    agent.wait_gone("web");
    run(&agent, "web", "", "");
    agent.ok(&["stop", "web"]);
    agent.kill();
    agent.remove("web.yaml");
    agent.launch();
    // The agent has read what is there, without the file.
    agent.wait_pod("other", |pod| pod["status"]["reason"] == "Stopped");
    agent.wait_gone("web");
    run(&agent, "web", "", "");
    assert_eq!(agent.ok(&["start", "--all"]), "pod/other started\n");
    agent.wait_running("other");
}

#[test]
fn a_start_of_everything_waits_until_it_is_ready() {
    let agent = Agent::start();
    let probe = "    readinessProbe: {exec: {command: [test, -e, /tmp/ok]}, periodSeconds: 1}\n";
    run(&agent, "web", "", probe);
    agent.ok(&["stop", "web"]);
    let late = agent.cli(&["start", "--all", "--timeout", "3s"]);
    assert_eq!(late.status.code(), Some(1));
    assert_eq!(late.stdout, b"pod/web started\n");
    let said = String::from_utf8_lossy(&late.stderr);
    assert!(said.contains("not ready yet: pod/web"), "{said}");
    // What was not stopped is not waited for.
    assert_eq!(agent.ok(&["start", "--all"]), "");
    agent.ok(&["stop", "web"]);
    let asked = agent.ok(&["start", "--all", "--wait=false"]);
    assert_eq!(asked, "pod/web started\n");
    agent.wait_running("web");
}

#[test]
fn a_start_of_what_has_failed_for_good_says_so_at_once() {
    let agent = Agent::start();
    let never = "  restartPolicy: Never\n";
    agent.write("once.yaml", &shell_pod("once", "exit 3", never, ""));
    agent.wait_pod("once", |pod| pod["status"]["phase"] == "Failed");
    let job = "apiVersion: batch/v1\nkind: Job\nmetadata: {name: backup}\nspec: {backoffLimit: 0, template: \
               {spec: {restartPolicy: Never, containers: [{name: main, image: 'busybox:test', command: \
               [sh, -c, exit 3]}]}}}\n";
    agent.write("backup.yaml", job);
    agent.ok(&["wait", "job/backup", "--for=create", "--timeout", "30s"]);
    agent.ok(&[
        "wait",
        "job/backup",
        "--for=condition=Failed",
        "--timeout",
        "60s",
    ]);
    for (what, printed) in [
        ("pod/once", "pod/once was not stopped, not started\n"),
        ("job/backup", "job/backup was not stopped, not started\n"),
    ] {
        let output = agent.cli(&["start", what, "--timeout", "5m"]);
        assert_eq!(output.status.code(), Some(1));
        assert_eq!(String::from_utf8_lossy(&output.stdout), printed);
        let said = String::from_utf8_lossy(&output.stderr);
        let wanted = format!("{what}: failed, and does not run again by itself");
        assert!(said.contains(&wanted), "{said}");
    }
}

#[test]
fn a_start_of_a_job_between_two_tries_waits_for_the_next_one() {
    let agent = Agent::start();
    // The second try goes on.
    let script = "test -e /out/tried && exec sleep 1000000; touch /out/tried; exit 3";
    let job = format!(
        "apiVersion: batch/v1\nkind: Job\nmetadata: {{name: again}}\nspec: {{backoffLimit: 6, template: {{spec: \
         {{restartPolicy: Never, terminationGracePeriodSeconds: 1, containers: [{{name: main, image: 'busybox:test', \
         command: [sh, -c, {script:?}], volumeMounts: [{{name: out, mountPath: /out}}]}}], volumes: [{{name: out, \
         hostPath: {{path: {}}}}}]}}}}}}\n",
        agent.root.display()
    );
    agent.write("again.yaml", &job);
    let failed = [
        "wait",
        "job/again",
        "--for=jsonpath={.status.failed}=1",
        "--timeout",
        "60s",
    ];
    agent.ok(&["wait", "job/again", "--for=create", "--timeout", "30s"]);
    agent.ok(&failed);
    let output = agent.cli(&["start", "job/again", "--timeout", "100ms"]);
    let pods = agent.ok(&["get", "pods"]);
    assert_eq!(output.status.code(), Some(1), "{pods}");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("not ready yet: job/again"), "{said}");
    agent.ok(&["stop", "job/again"]);
    agent.ok(&["start", "job/again", "--timeout", "60s"]);
    // The count in the Job's status may come a little later.
    let pods = agent.ok(&["get", "pods"]);
    assert!(pods.contains("Running"), "{pods}");
}

#[test]
fn a_deployment_is_stopped_started_and_restarted_as_a_whole() {
    let agent = Agent::start();
    let document = |image: &str| {
        let pod = "terminationGracePeriodSeconds: 2, containers: [{name: main, image: IMAGE, command: [sleep, '1000']}]";
        format!(
            "apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: web}}\nspec: {{replicas: 2, selector: {{matchLabels: \
             {{app: web}}}}, template: {{metadata: {{labels: {{app: web}}}}, spec: {{{}}}}}}}\n",
            pod.replace("IMAGE", image)
        )
    };
    agent.write("web.yaml", &document("busybox:test"));
    agent.ok(&["wait", "deployment/web", "--for=create", "--timeout", "30s"]);
    agent.ok(&[
        "wait",
        "deployment/web",
        "--for=condition=Available",
        "--timeout",
        "60s",
    ]);
    let said = agent.ok(&["restart", "deployment/web"]);
    assert_eq!(
        said.lines()
            .filter(|line| line.ends_with(" restarted"))
            .count(),
        2,
        "{said}"
    );
    let refused = refusal(&agent, &["restart", "deployment/web", "--wait=false"]);
    assert!(refused.contains("one after the other"), "{refused}");
    assert_eq!(
        agent.ok(&["stop", "-l", "app=web"]),
        "deployment/web stopped\n"
    );
    let reasons = || {
        let list = agent.ok(&[
            "get",
            "pods",
            "-l",
            "app=web",
            "-o",
            "jsonpath={.items[*].status.reason}",
        ]);
        list.trim().to_owned()
    };
    assert_eq!(reasons(), "Stopped Stopped");
    let list = agent.ok(&[
        "get",
        "pods",
        "-l",
        "app=web",
        "-o",
        "jsonpath={.items[*].metadata.name}",
    ]);
    agent.kill_and_restart();
    for name in list.split_whitespace() {
        agent.wait_pod(name, |pod| pod["status"]["reason"] == "Stopped");
    }
    assert_eq!(reasons(), "Stopped Stopped");
    let list = agent.ok(&[
        "get",
        "pods",
        "-l",
        "app=web",
        "-o",
        "jsonpath={.items[0].metadata.name}",
    ]);
    let one = refusal(&agent, &["start", list.trim()]);
    assert!(
        one.contains("`coracle start deployment/web` starts it"),
        "{one}"
    );
    assert_eq!(
        agent.ok(&["start", "deployment/web"]),
        "deployment/web started\n"
    );
    agent.ok(&[
        "wait",
        "deployment/web",
        "--for=condition=Available",
        "--timeout",
        "60s",
    ]);
}

#[test]
fn status_df_and_a_rehearsed_prune_show_a_node_on_one_screen() {
    let agent = Agent::start();
    run(&agent, "web", "", "");
    agent.ok(&["stop", "web"]);
    // The clock of this machine may not be synchronised, which is reported.
    let shown = |agent: &Agent| -> Value {
        let output = agent.cli(&["status", "-o", "json"]);
        let shown: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        assert_eq!(output.status.success(), shown["well"] == true, "{shown:#}");
        shown
    };
    let of_pods = |shown: &Value| -> Vec<Value> {
        let all = shown["problems"].as_array().expect("a list").iter();
        let pods = all.filter(|problem| {
            problem["about"]
                .as_str()
                .is_some_and(|a| a.starts_with("pod "))
        });
        pods.cloned().collect()
    };
    let first = shown(&agent);
    assert_eq!(of_pods(&first), Vec::<Value>::new());
    assert_eq!(first["pods"][2]["pods"], 1, "{first:#}");
    // Files are read together: when the pod is there, the other file was seen too.
    agent.write("bad.yaml", "kind: Pod\n");
    agent.write("loop.yaml", &shell_pod("loop", "exit 3", "", ""));
    agent.wait_pod("loop", |pod| {
        main_status(pod)["state"]["waiting"]["reason"] == "CrashLoopBackOff"
    });
    let second = shown(&agent);
    let mut all = second["problems"].as_array().expect("a list").iter();
    assert!(
        all.any(|problem| problem["about"] == "file bad.yaml"),
        "{second:#}"
    );
    let found = of_pods(&second);
    assert_eq!(found[0]["about"], "pod loop");
    assert_eq!(found[0]["remedy"], "coracle logs loop --previous");
    let page = String::from_utf8(agent.cli(&["status"]).stdout).expect("text");
    assert!(
        page.contains("WHAT TO DO") && page.contains("1 stopped"),
        "{page}"
    );
    // The image of a stopped pod stays.
    let df: Value = serde_json::from_str(&agent.ok(&["system", "df", "-o", "json"])).expect("JSON");
    assert_eq!(
        (&df[0]["type"], &df[0]["reclaimableBytes"]),
        (&"Images".into(), &0.into())
    );
    agent.ok(&["image", "prune", "--all", "--force"]);
    agent.remove("bad.yaml");
    agent.remove("loop.yaml");
    agent.wait_gone("loop");
    assert_eq!(agent.ok(&["start", "web"]), "pod/web started\n");
    assert!(
        agent
            .ok(&["system", "df", "-v"])
            .contains("default/web/main")
    );
}

#[test]
fn a_rehearsed_prune_removes_nothing() {
    let agent = Agent::start();
    let said = agent.ok(&["image", "prune", "--all", "--dry-run"]);
    assert!(
        said.contains("(docker.io/library/busybox:test), "),
        "{said}"
    );
    assert!(
        said.lines()
            .last()
            .is_some_and(|l| l.starts_with("would free ")),
        "{said}"
    );
    assert!(agent.ok(&["image", "ls"]).contains("busybox"));
    agent.ok(&["image", "prune", "--all", "--force"]);
    assert!(!agent.ok(&["image", "ls"]).contains("busybox"));
}
