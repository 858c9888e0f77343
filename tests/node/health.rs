//! `coracle healthcheck` on a real node.

use std::process::Output;
use std::thread;

use super::*;

fn required(name: &str, value: &str, script: &str, more: &str) -> String {
    let with = format!("name: {name}\n  annotations: {{coracle.dev/required: \"{value}\"}}");
    shell_pod(name, script, more, "").replacen(&format!("name: {name}"), &with, 1)
}

fn record(agent: &Agent) -> String {
    let path = agent.root.join("health/unhealthy.json");
    path.to_str().expect("utf-8").to_owned()
}

fn check(agent: &Agent, more: &[&str]) -> (Option<i32>, String) {
    let path = record(agent);
    let mut args = vec!["healthcheck", "--record", &path];
    args.extend(more);
    let Output { status, stdout, .. } = agent.cli(&args);
    (status.code(), String::from_utf8(stdout).expect("utf-8"))
}

fn history(agent: &Agent) -> Vec<Value> {
    let shown = agent.ok(&[
        "healthcheck",
        "--history",
        "-o",
        "json",
        "--record",
        &record(agent),
    ]);
    serde_json::from_str(&shown).expect("a list")
}

#[test]
fn a_boot_is_healthy_only_while_required_pods_are_ready() {
    let agent = Agent::start();
    let one = |text: &str| text.matches('\n').count() == 1;
    assert_eq!(
        check(&agent, &[]),
        (
            Some(0),
            "healthy: node test-node is ready, no pod is required\n".to_owned()
        )
    );
    // A pod that is not required, and a file that is wrong, are no reason to go back to another system.
    agent.write("other.yaml", &required("other", "false", "exit 1", ""));
    agent.write("wrong.yaml", "kind: Pod\nspec: {contaners: []}\n");
    agent.write("web.yaml", &required("web", "true", SLEEP, ""));
    agent.write(
        "job.yaml",
        &required("job", "true", "exit 0", "  restartPolicy: Never\n"),
    );
    for name in ["web", "job"] {
        agent.wait_pod(name, |_| true);
    }
    let (code, said) = check(&agent, &["--within", "60s"]);
    assert_eq!(
        (code, &*said),
        (
            Some(0),
            "healthy: node test-node is ready, and so are 2 required pods\n"
        )
    );
    assert_eq!(history(&agent), Vec::<Value>::new());

    agent.write("bad.yaml", &required("bad", "true", "exit 7", ""));
    agent.wait_pod("bad", |pod| {
        main_status(pod)["state"]["waiting"]["reason"] == "CrashLoopBackOff"
    });
    let (code, said) = check(&agent, &[]);
    assert_eq!(code, Some(1));
    let expected = "not healthy: pod default/bad: container `main` waits: CrashLoopBackOff, last exit code 7\n";
    assert_eq!(said, expected);
    // The same again is recorded once.
    assert_eq!(check(&agent, &["-q"]), (Some(1), String::new()));
    let (code, said) = check(&agent, &["-o", "json"]);
    let said: Value = serde_json::from_str(&said).expect("JSON");
    assert_eq!((code, &said["healthy"]), (Some(1), &Value::Bool(false)));
    assert_eq!(said["problems"][0]["about"], "pod default/bad");
    let kept = history(&agent);
    assert_eq!(kept.len(), 1, "{kept:?}");
    assert_eq!(
        kept[0]["problems"][0],
        "pod default/bad: container `main` waits: CrashLoopBackOff, last exit code 7"
    );

    // A required pod whose file is rejected: whether it still runs or never did.
    agent.remove("bad.yaml");
    agent.wait_gone("bad");
    agent.write(
        "web.yaml",
        &required("web", "true", SLEEP, "").replace("containers:", "contaners:"),
    );
    let rejected = || {
        let (code, said) = check(&agent, &[]);
        (code == Some(1)).then_some(said)
    };
    let deadline = std::time::Instant::now() + PATIENCE;
    let said = loop {
        if let Some(said) = rejected() {
            break said;
        }
        assert!(std::time::Instant::now() < deadline, "{}", agent.log());
    };
    assert!(said.contains("web.yaml: rejected") && one(&said), "{said}");
    agent.write("web.yaml", &required("web", "yes", SLEEP, ""));
    let files = agent.ok(&["get", "files", "-o", "json"]);
    assert!(files.contains("web.yaml"), "{files}");
    agent.remove("web.yaml");
    agent.wait_gone("web");
    assert_eq!(check(&agent, &["--within", "60s", "-q"]).0, Some(0));
}

#[test]
fn a_check_waits_for_the_agent_and_does_not_hang_with_it() {
    let agent = Agent::start();
    agent.write("web.yaml", &required("web", "true", SLEEP, ""));
    agent.wait_running("web");
    agent.kill();
    let (code, said) = check(&agent, &[]);
    assert_eq!(code, Some(1));
    assert!(
        said.starts_with("not healthy: agent: could not reach the agent at"),
        "{said}"
    );
    assert_eq!(said.matches('\n').count(), 1);
    // It begins before there is an agent.
    thread::scope(|scope| {
        let waiting = scope.spawn(|| check(&agent, &["--within", "60s"]));
        agent.launch();
        assert_eq!(waiting.join().expect("no panic").0, Some(0));
    });
    agent.signal(Signal::SIGSTOP);
    let (code, said) = check(&agent, &[]);
    assert_eq!(code, Some(1));
    assert_eq!(
        said,
        "not healthy: agent: the agent has not answered within 10 s\n"
    );
    let (_, said) = check(&agent, &["--within", "2s"]);
    assert!(said.contains("has not answered within 1 s"), "{said}");
    // Nor do others.
    assert!(agent.ok(&["version"]).contains("agent: not reachable"));
    let doctor = agent.cli(&["doctor"]);
    let said = String::from_utf8_lossy(&doctor.stdout).into_owned();
    assert!(
        doctor.status.code() == Some(1) && said.contains("running, and does not answer"),
        "{said}"
    );
    let look = agent.cli(&["get", "pods"]);
    let said = String::from_utf8_lossy(&look.stderr).into_owned();
    assert!(
        said.contains("does not answer") && said.contains("restart it"),
        "{said}"
    );
    agent.signal(Signal::SIGCONT);
    let boots = history(&agent);
    assert_eq!(boots.len(), 3, "{boots:?}");
    let table = agent.ok(&["healthcheck", "--history", "--record", &record(&agent)]);
    assert!(table.contains("has not answered within 10 s"), "{table}");

    // Not understood: a new record replaces it.
    fs::write(record(&agent), "[{\"bootId\":").expect("written");
    let shown = agent.cli(&["healthcheck", "--history", "--record", &record(&agent)]);
    assert_eq!(shown.status.code(), Some(1));
    agent.kill();
    check(&agent, &["-q"]);
    agent.launch();
    assert_eq!(history(&agent).len(), 1);
    for usage in [&["--within", "soon"][..], &["--history", "--within", "1s"]] {
        assert_eq!(check(&agent, usage).0, Some(2), "{usage:?}");
    }
}
