//! The black box on a real node: what it keeps of crashes, OOM kills, evictions, killed agents and power cuts.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use super::containers::HOG_LIMIT;
use super::demands::wait_until;
use super::*;

fn path(agent: &Agent) -> std::path::PathBuf {
    agent.root.join("root/black-box")
}

/// All entries, oldest first.
fn entries(agent: &Agent) -> Vec<Value> {
    let file = path(agent);
    let file = file.to_str().expect("utf-8");
    let shown = agent.cli(&["blackbox", "-o", "json", "--file", file]);
    if !shown.status.success() {
        // The agent makes it with the first entry; nothing of a damaged one can be read before.
        let why = String::from_utf8_lossy(&shown.stderr).into_owned();
        let known = ["No such file", "there is no black box in it"];
        assert!(known.iter().any(|known| why.contains(known)), "{why}");
        return Vec::new();
    }
    let shown = String::from_utf8_lossy(&shown.stdout);
    let shown: Value = serde_json::from_str(&shown).expect("JSON");
    shown["items"].as_array().expect("a list").clone()
}

fn of<'a>(entries: &'a [Value], pod: &str, reason: &str) -> Option<&'a Value> {
    let is = |entry: &&Value| entry["pod"] == pod && entry["reason"] == reason;
    entries.iter().find(is)
}

/// Waits until the box has this. It is written independently of the status, at most once a minute.
fn wait(agent: &Agent, pod: &str, reason: &str) -> Value {
    let deadline = std::time::Instant::now() + 2 * PATIENCE;
    loop {
        let found = entries(agent);
        if let Some(entry) = of(&found, pod, reason) {
            return entry.clone();
        }
        assert!(
            std::time::Instant::now() < deadline,
            "{found:?}\n{}",
            agent.log()
        );
        std::thread::sleep(Duration::from_millis(50)); // No event reports a write to the box.
    }
}

/// As if the box had been written long ago: the next entry does not wait for a minute.
fn age(agent: &Agent) {
    let file = fs::File::options()
        .write(true)
        .open(path(agent))
        .expect("it is there");
    let long_ago = std::time::SystemTime::now() - Duration::from_secs(3600);
    file.set_modified(long_ago).expect("own file");
}

#[test]
fn a_restart_by_command_is_no_crash() {
    let agent = Agent::start();
    // It heeds no SIGTERM: it is killed, which looks like a crash.
    let deaf = "trap '' TERM; trap 'exit 9' USR1; while :; do sleep 1; done";
    agent.write("deaf.yaml", &shell_pod("deaf", deaf, "", ""));
    agent.wait_running("deaf");
    agent.ok(&["restart", "deaf", "--grace-period", "1"]);
    let pod = agent.pod("deaf");
    assert_eq!(
        main_status(&pod)["lastState"]["terminated"]["exitCode"],
        137
    );
    agent.kill_and_restart();
    agent.wait_running("deaf");
    // What came later is there.
    agent.write("crash.yaml", &shell_pod("crash", "exit 7", "", ""));
    wait(&agent, "crash", "Error");
    let entries = entries(&agent);
    assert!(of(&entries, "deaf", "Error").is_none(), "{entries:?}");
    // A crash of its own is kept as before.
    agent.ok(&["exec", "deaf", "--", "kill", "-USR1", "1"]);
    agent.wait_pod("deaf", |pod| main_status(pod)["restartCount"] == 2);
    stop(&agent);
    wait(&agent, "deaf", "Error");
}

fn stop(agent: &Agent) {
    agent.signal(Signal::SIGTERM);
    agent.wait();
}

#[test]
fn exits_are_kept_with_what_the_container_wrote_last_over_kills_and_power_cuts() {
    let agent = Agent::start();
    // What it writes is data, however it looks; the last 4 KiB of its standard error are kept.
    let script = "echo out; head -c 9000 /dev/zero | tr '\\0' x >&2; echo >&2; \
                  printf 'disk \\033[2Jfull: %s\\n' \"$PASSWORD\" >&2; exit 7";
    agent.write(
        "secret.yaml",
        "apiVersion: v1\nkind: Secret\nmetadata: {name: s}\nstringData: {password: hunter2-very-secret}\n",
    );
    let env = "    env: [{name: PASSWORD, valueFrom: {secretKeyRef: {name: s, key: password}}}]\n";
    agent.write("crash.yaml", &shell_pod("crash", script, "", env));
    let first = wait(&agent, "crash", "Error");
    assert_eq!(
        (&first["exitCode"], &first["container"]),
        (&7.into(), &"main".into())
    );
    let output = first["output"].as_str().expect("text");
    assert_eq!(output.len(), 4096);
    assert!(
        output.ends_with("xxx\ndisk \u{1b}[2Jfull: <secret>\n"),
        "{output}"
    );
    let file = path(&agent);
    assert_eq!(
        fs::metadata(&file).expect("there").permissions().mode() & 0o777,
        0o600
    );
    let bytes = fs::read(&file).expect("readable");
    let has = |text: &[u8]| bytes.windows(text.len()).any(|at| at == text);
    assert!(!has(b"hunter2") && has(b"disk "));
    let args = [
        "blackbox",
        "crash",
        "--logs",
        "--file",
        file.to_str().expect("utf-8"),
    ];
    let shown = agent.ok(&args);
    assert!(
        !shown.contains('\u{1b}') && shown.contains("disk \\u{1b}[2Jfull"),
        "{shown}"
    );

    // Crashes within a minute after a write wait, are counted, and are written when the agent is stopped.
    agent.wait_pod("crash", |pod| {
        main_status(pod)["restartCount"].as_i64() >= Some(2)
            && main_status(pod)["state"]["waiting"]["reason"] == "CrashLoopBackOff"
    });
    let now = of(&entries(&agent), "crash", "Error").expect("there")["count"].clone();
    assert_eq!(now, first["count"], "one write a minute");
    // A pod that is gone before its entry is written.
    let words = "printf 'last words %s' \"$PASSWORD\" >/dev/termination-log; exit 3";
    agent.write("brief.yaml", &shell_pod("brief", words, "", env));
    agent.wait_pod("brief", |pod| {
        main_status(pod)["restartCount"].as_i64() >= Some(1)
    });
    agent.remove("brief.yaml");
    agent.wait_gone("brief");
    stop(&agent);
    let kept = entries(&agent);
    let brief = of(&kept, "brief", "Error").expect("there");
    assert_eq!(brief["message"], "last words <secret>");
    let twice = of(&kept, "crash", "Error").expect("there").clone();
    let (count, attempt) = (twice["count"].as_i64(), twice["attempt"].as_i64());
    assert!(
        count >= Some(3) && count == attempt.map(|n| n + 1),
        "{twice}"
    );
    assert_eq!(twice["firstTime"], first["firstTime"]);

    // An agent that is killed: what is there already is not there twice.
    age(&agent);
    agent.launch();
    agent.kill();
    agent.launch();
    wait(&agent, "", "AgentDied");
    stop(&agent);
    let kept = entries(&agent);
    assert_eq!(
        kept.iter().filter(|entry| entry["pod"] == "crash").count(),
        1
    );
    assert_eq!(of(&kept, "", "UncleanShutdown"), None);

    // A power cut, while the newest slot was being written: what is torn is skipped, all else is there.
    agent.launch();
    agent.power_cut();
    let before = entries(&agent).len();
    let mut bytes = fs::read(&file).expect("readable");
    let length = bytes.len();
    bytes.truncate(length - 3);
    fs::write(&file, bytes).expect("writable");
    assert_eq!(entries(&agent).len(), before - 1);
    age(&agent);
    agent.launch();
    wait(&agent, "", "UncleanShutdown");
    assert!(of(&entries(&agent), "", "Rebooted").is_some());
    agent.remove("crash.yaml");
    agent.wait_gone("crash");
    assert!(
        entries(&agent).iter().any(|entry| entry["pod"] == "crash"),
        "it outlives its pod"
    );
}

#[test]
fn oom_kills_are_kept_and_a_damaged_box_costs_only_its_entries() {
    let agent = Agent::start();
    fs::write(path(&agent), vec![0xff; 100_000]).expect("writable");
    age(&agent);
    stop(&agent);
    agent.launch();
    let script = "echo growing >&2; tail /dev/zero";
    agent.write(
        "big.yaml",
        &shell_pod("big", script, "  restartPolicy: Never\n", HOG_LIMIT),
    );
    let killed = wait(&agent, "big", "OOMKilled");
    assert_eq!(
        (&killed["exitCode"], &killed["output"]),
        (&137.into(), &"growing\n".into())
    );
    // A run that ended while there was no agent.
    agent.write(
        "later.yaml",
        &shell_pod(
            "later",
            "read x < /dev/termination-log; while [ ! -e /v/go ]; do sleep 0.1; done; exit 3",
            "  restartPolicy: Never\n  volumes: [{name: v, emptyDir: {}}]\n",
            "    volumeMounts: [{name: v, mountPath: /v}]\n",
        ),
    );
    let pod = agent.wait_running("later");
    agent.kill();
    age(&agent);
    let uid = pod["metadata"]["uid"].as_str().expect("uid");
    let volume = agent.root.join(format!(
        "root/pods/{uid}/volumes/kubernetes.io~empty-dir/v/go"
    ));
    let process = format!("/proc/{}", super::edits::pid(&agent, &pod, "main"));
    fs::write(volume, "").expect("a volume");
    wait_until("the container goes on", || !Path::new(&process).exists());
    agent.launch();
    assert_eq!(wait(&agent, "later", "Error")["exitCode"], 3);
}

#[test]
fn nothing_is_written_while_nothing_happens_and_the_file_stays_small() {
    let agent = Agent::start();
    agent.write("calm.yaml", &shell_pod("calm", SLEEP, "", ""));
    agent.wait_running("calm");
    assert!(!path(&agent).exists(), "nothing has happened");
    for number in 0..30 {
        let name = format!("job{number}");
        agent.write(
            &format!("{name}.yaml"),
            &shell_pod(&name, "exit 1", "  restartPolicy: Never\n", ""),
        );
    }
    for number in 0..30 {
        agent.wait_phase(&format!("job{number}"), "Failed");
    }
    stop(&agent);
    assert_eq!(
        entries(&agent)
            .iter()
            .filter(|entry| entry["reason"] == "Error")
            .count(),
        30
    );
    assert!(fs::metadata(path(&agent)).expect("there").len() <= 1_000_000);
}

#[test]
fn an_eviction_is_kept_with_its_reason() {
    let agent = Agent::start();
    let script = format!("dd if=/dev/zero of=/big bs=1M count=4; {SLEEP}");
    let limit = "    resources: {limits: {ephemeral-storage: 2Mi}}\n";
    agent.write("full.yaml", &shell_pod("full", &script, "", limit));
    let entry = wait(&agent, "full", "Evicted");
    let status =
        agent.wait_pod("full", |pod| pod["status"]["reason"] == "Evicted")["status"].clone();
    assert_eq!(
        (&entry["message"], &entry["container"]),
        (&status["message"], &"".into())
    );
    agent.kill_and_restart();
    stop(&agent);
    assert_eq!(of(&entries(&agent), "full", "Evicted"), Some(&entry));
}
