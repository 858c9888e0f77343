//! Containers added to running pods, by `coracle debug` and by the API.

use std::io::{Read, Write};

use super::attach::{on_terminal, read_until};
use super::*;

/// Runs `coracle debug` with these arguments and no input.
fn debug(agent: &Agent, args: &[&str]) -> std::process::Output {
    agent.cli(&[&["debug"], args].concat())
}

fn status_of(pod: &Value, name: &str) -> Value {
    let all = pod["status"]["ephemeralContainerStatuses"].as_array();
    let mut all = all.into_iter().flatten();
    all.find(|c| c["name"] == name).cloned().unwrap_or_default()
}

/// A session that was started in the background.
fn spawn(agent: &Agent, args: &[&str]) -> std::process::Child {
    use std::process::Stdio;
    coracle()
        .args(args)
        .env("CORACLE_SOCKET", agent.socket())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("coracle runs")
}

fn say(child: &mut std::process::Child, text: &str) {
    let stdin = child.stdin.as_mut().expect("piped");
    stdin.write_all(text.as_bytes()).expect("written");
}

#[test]
fn a_debug_container_has_processes_of_its_own_and_ends_with_its_programs_code() {
    let agent = Agent::start();
    agent.write("a.yaml", &shell_pod("a", SLEEP, "", ""));
    agent.wait_running("a");
    let mut child = spawn(
        &agent,
        &[
            "debug",
            "-i",
            "a",
            "--image",
            "busybox:test",
            "-c",
            "dbg",
            "--",
            "sh",
        ],
    );
    say(&mut child, "echo pid $$; hostname; exit 7\n");
    let (said, code) = output_in_time(child);
    assert_eq!(
        (String::from_utf8_lossy(&said).as_ref(), code),
        ("pid 1\na\n", Some(7))
    );
    let pod = agent.wait_pod("a", |pod| {
        !status_of(pod, "dbg")["state"]["terminated"].is_null()
    });
    let status = status_of(&pod, "dbg");
    assert_eq!(status["state"]["terminated"]["exitCode"], 7);
    assert_eq!(
        (&status["ready"], &status["restartCount"]),
        (&false.into(), &0.into())
    );
    assert_eq!(pod["status"]["phase"], "Running");
    assert_eq!(agent.ok(&["logs", "a", "-c", "dbg"]), "pid 1\na\n");
    let described = agent.ok(&["describe", "pod", "a"]);
    assert!(
        described.contains("Ephemeral Containers:\n  dbg:\n"),
        "{described}"
    );
    let twice = debug(&agent, &["a", "--image", "busybox:test", "-c", "dbg"]);
    let error = String::from_utf8_lossy(&twice.stderr).into_owned();
    assert!(
        !twice.status.success() && error.contains("`dbg` already"),
        "{error}"
    );
    agent.remove("a.yaml");
    agent.wait_gone("a");
    assert_eq!(agent.leftovers(), Vec::<String>::new());
}

#[test]
fn a_debug_container_with_a_target_sees_and_may_trace_the_targets_processes() {
    let agent = Agent::start();
    let own = "    securityContext: {runAsUser: 1000}\n";
    agent.write("a.yaml", &shell_pod("a", SLEEP, "", own));
    agent.wait_running("a");
    let args = [
        "a",
        "--image",
        "busybox:test",
        "-c",
        "dbg",
        "--target",
        "main",
        "-q",
    ];
    let script = "cat /proc/1/cmdline | tr '\\0' ' '; ls /proc/1/root/etc/hostname; \
                  grep -E 'CapEff|Seccomp:' /proc/self/status; exit 3";
    let child = spawn(
        &agent,
        &[&["debug", "-i"], &args[..], &["--", "sh", "-c", script]].concat(),
    );
    let (said, code) = output_in_time(child);
    let said = String::from_utf8_lossy(&said).into_owned();
    assert_eq!(code, Some(3), "{said}");
    assert!(said.contains("trap 'exit 0' TERM"), "{said}");
    // The root folder of another user's process is visible only with the right to trace it.
    assert!(said.contains("/proc/1/root/etc/hostname\n"), "{said}");
    assert!(said.contains("Seccomp:\t2"), "{said}");
    // The target goes on.
    let pod = agent.wait_running("a");
    assert_eq!(main_status(&pod)["restartCount"], 0);
}

#[test]
fn profiles_decide_what_a_debug_container_may_do() {
    let agent = Agent::start();
    agent.write("a.yaml", &shell_pod("a", SLEEP, "", ""));
    agent.wait_running("a");
    let effective = |profile: &str| {
        let mut args = vec![
            "debug",
            "-i",
            "-q",
            "a",
            "--image",
            "busybox:test",
            "--profile",
            profile,
        ];
        args.extend(["--", "grep", "CapEff", "/proc/self/status"]);
        let (said, code) = output_in_time(spawn(&agent, &args));
        let said = String::from_utf8_lossy(&said).into_owned();
        assert_eq!(code, Some(0), "{profile}: {said}");
        let hex = said.split_whitespace().nth(1).expect("a number").to_owned();
        u64::from_str_radix(&hex, 16).expect("hexadecimal")
    };
    let (net_admin, sys_ptrace, sys_admin) = (1 << 12, 1 << 19, 1 << 21);
    let of = |caps: u64| [net_admin, sys_ptrace, sys_admin].map(|bit| caps & bit != 0);
    assert_eq!(of(effective("general")), [false, true, false]);
    assert_eq!(of(effective("baseline")), [false, false, false]);
    assert_eq!(of(effective("netadmin")), [true, false, false]);
    assert_eq!(of(effective("sysadmin")), [true, true, true]);
    // busybox names no user, which means root: refused, in the kubelet's words.
    let name = ["-c", "strict", "--profile", "restricted"];
    let made = debug(
        &agent,
        &[&["a", "--image", "busybox:test"], &name[..]].concat(),
    );
    assert!(made.status.success(), "{made:?}");
    let pod = agent.wait_pod("a", |pod| {
        status_of(pod, "strict")["state"]["waiting"]["reason"] == "CreateContainerConfigError"
    });
    let message = status_of(&pod, "strict")["state"]["waiting"]["message"].to_string();
    assert!(message.contains("runAsNonRoot"), "{message}");
}

#[test]
fn a_missing_image_is_reported_and_waited_for_and_a_target_must_exist() {
    let agent = Agent::start();
    agent.write("a.yaml", &shell_pod("a", SLEEP, "", ""));
    agent.wait_running("a");
    let no_target = debug(
        &agent,
        &["a", "--image", "busybox:test", "--target", "nobody"],
    );
    let error = String::from_utf8_lossy(&no_target.stderr).into_owned();
    assert!(!no_target.status.success(), "{error}");
    assert!(
        error.contains("targetContainerName: Not found: \"nobody\""),
        "{error}"
    );
    let made = debug(&agent, &["a", "--image", "nowhere:1", "-c", "dbg"]);
    assert!(made.status.success(), "{made:?}");
    let pod = agent.wait_pod("a", |pod| {
        let reason = status_of(pod, "dbg")["state"]["waiting"]["reason"].clone();
        reason == "ErrImagePull" || reason == "ImagePullBackOff"
    });
    assert_eq!(main_status(&pod)["ready"], true);
    let refused = agent.cli(&["attach", "a", "-c", "dbg"]);
    let error = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        error.contains("container dbg in pod a is not running"),
        "{error}"
    );
}

#[test]
fn a_debug_container_survives_the_agent_and_reattached_clients_get_its_exit_code() {
    let agent = Agent::start();
    agent.write("a.yaml", &shell_pod("a", SLEEP, "", ""));
    agent.wait_running("a");
    let script = "trap 'exit 9' TERM; echo up; while :; do sleep 1 & wait $!; done";
    let args = [
        "a",
        "--image",
        "busybox:test",
        "-c",
        "dbg",
        "--",
        "sh",
        "-c",
        script,
    ];
    assert!(debug(&agent, &args).status.success());
    agent.wait_pod("a", |pod| {
        !status_of(pod, "dbg")["state"]["running"].is_null()
    });
    let base = shim_pipes(&agent, "a");
    let client = spawn(&agent, &["attach", "a", "-c", "dbg"]);
    // The client is attached once its shim has its pipes; then the agent is killed.
    wait_attached(&agent, "a", base, 1);
    agent.kill_and_restart();
    assert_eq!(
        output_in_time(client).1,
        Some(1),
        "the client reports that the agent is gone"
    );
    let pod = agent.wait_running("a");
    assert!(
        !status_of(&pod, "dbg")["state"]["running"].is_null(),
        "{pod}"
    );
    assert_eq!(pod["spec"]["ephemeralContainers"][0]["name"], "dbg");
    // The pod is deleted while a client is attached: the client gets the exit code.
    let client = spawn(&agent, &["attach", "a", "-c", "dbg"]);
    wait_attached(&agent, "a", base, 1);
    agent.remove("a.yaml");
    assert_eq!(output_in_time(client).1, Some(9));
    agent.wait_gone("a");
    assert_eq!(agent.leftovers(), Vec::<String>::new());
}

/// Sends a request with a body; returns the status code and the answer.
fn send(agent: &Agent, (method, kind): (&str, &str), pod: &str, body: &Value) -> (u16, Value) {
    let body = body.to_string();
    let path = format!("/api/v1/namespaces/default/pods/{pod}/ephemeralcontainers");
    let mut stream = std::os::unix::net::UnixStream::connect(agent.socket()).expect("it listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("timeout");
    write!(
        stream,
        "{method} {path} HTTP/1.0\r\nHost: coracle\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
    .expect("written");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    let code = head.split(' ').nth(1).expect("a status line");
    let body = serde_json::from_str(body).expect("JSON");
    (code.parse().expect("a number"), body)
}

#[test]
fn clients_of_kubernetes_add_containers_by_patch_and_by_put() {
    const STRATEGIC: (&str, &str) = ("PATCH", "application/strategic-merge-patch+json");
    const MERGE: (&str, &str) = ("PATCH", "application/merge-patch+json");
    const PUT: (&str, &str) = ("PUT", "application/json");
    let agent = Agent::start();
    agent.write("a.yaml", &shell_pod("a", SLEEP, "", ""));
    agent.wait_running("a");
    let container = |name: &str| serde_json::json!({ "name": name, "image": "busybox:test", "command": ["sleep", "1000"] });
    let pod = |list: &[Value]| serde_json::json!({ "spec": { "ephemeralContainers": list } });
    let (one, two, three) = (container("one"), container("two"), container("three"));
    let (code, answer) = send(&agent, STRATEGIC, "a", &pod(std::slice::from_ref(&one)));
    assert_eq!((code, &answer["kind"]), (200, &"Pod".into()), "{answer}");
    assert_eq!(answer["spec"]["ephemeralContainers"][0]["name"], "one");
    let (code, answer) = send(&agent, MERGE, "a", &pod(&[one.clone(), two.clone()]));
    assert_eq!(code, 200, "{answer}");
    let (code, answer) = send(&agent, PUT, "a", &pod(&[one.clone(), two.clone(), three]));
    assert_eq!(code, 200, "{answer}");
    let shown = agent.wait_pod("a", |pod| {
        ["one", "two", "three"]
            .iter()
            .all(|name| !status_of(pod, name)["state"]["running"].is_null())
    });
    assert_eq!(shown["status"]["phase"], "Running");
    let mut stale = shown.clone();
    stale["metadata"]["resourceVersion"] = "1".into();
    let other = serde_json::json!({ "name": "one", "image": "other" });
    for (how, to, body, code, reason) in [
        (MERGE, "a", pod(&[one, two]), 422, "Invalid"),
        (STRATEGIC, "a", pod(&[other]), 422, "Invalid"),
        (PUT, "a", stale, 409, "Conflict"),
        (PUT, "b", pod(&[]), 404, "NotFound"),
        (
            ("PATCH", "application/json-patch+json"),
            "a",
            serde_json::json!([]),
            415,
            "UnsupportedMediaType",
        ),
    ] {
        let (found, answer) = send(&agent, how, to, &body);
        assert_eq!(
            (found, &answer["reason"]),
            (code, &reason.into()),
            "{answer}"
        );
    }
    let again = agent.wait_running("a");
    assert_eq!(
        again["spec"]["ephemeralContainers"],
        shown["spec"]["ephemeralContainers"]
    );
}

#[test]
fn a_client_detaches_from_a_debug_terminal_and_attaches_again_while_the_pod_is_edited() {
    let agent = Agent::start();
    let text = shell_pod("a", SLEEP, "", "");
    agent.write("a.yaml", &text);
    agent.wait_running("a");
    let ask = [
        "debug",
        "-it",
        "a",
        "--image",
        "busybox:test",
        "-c",
        "dbg",
        "--target",
        "main",
        "--",
        "sh",
    ];
    let (mut first, mut screen) = on_terminal(&agent, &ask, 77);
    read_until(&mut screen, "# ");
    screen
        .write_all(b"stty size; ps; echo over $?\n")
        .expect("typed");
    let said = read_until(&mut screen, "over 0");
    assert!(
        said.contains("33 77") && said.contains("trap 'exit 0' TERM"),
        "{said}"
    );
    screen.write_all(b"\x10\x11").expect("typed");
    read_until(&mut screen, "detached");
    assert_eq!(first.wait().expect("ends").code(), Some(0));
    agent.write(
        "a.yaml",
        &text.replacen("  name: a", "  labels: {new: label}\n  name: a", 1),
    );
    let pod = agent.wait_pod("a", |pod| pod["metadata"]["labels"]["new"] == "label");
    assert!(
        !status_of(&pod, "dbg")["state"]["running"].is_null(),
        "{pod}"
    );
    let (mut second, mut screen) = on_terminal(&agent, &["attach", "-it", "a", "-c", "dbg"], 99);
    read_until(&mut screen, "# ");
    screen.write_all(b"exit 5\n").expect("typed");
    assert_eq!(second.wait().expect("ends").code(), Some(5));
    let pod = agent.wait_running("a");
    assert_eq!(main_status(&pod)["restartCount"], 0);
}

#[test]
fn an_error_names_the_program_that_cannot_be_started() {
    let agent = Agent::start();
    agent.write("a.yaml", &shell_pod("a", SLEEP, "", ""));
    agent.wait_running("a");
    for (program, why, code) in [
        ("nosuchprogram", "executable file not found in $PATH", 127),
        ("/nosuch", "stat /nosuch: no such file or directory", 127),
        ("/etc/passwd", "permission denied", 126),
    ] {
        let args = ["a", "--image", "busybox:test", "--attach", "--", program];
        let made = debug(&agent, &args);
        let error = String::from_utf8_lossy(&made.stderr).into_owned();
        assert_eq!(made.status.code(), Some(code), "{error}");
        let expected = format!("could not be started: exec: \"{program}\": {why}");
        assert!(error.contains(&expected), "{error}");
    }
}
