//! Events that outlast an agent restart, shown as by kubectl.

use super::*;

/// The name, reason, count and first time of all events of the default namespace, in the order shown.
fn events(agent: &Agent) -> Vec<(String, String, i64, String)> {
    let list: Value =
        serde_json::from_str(&agent.ok(&["get", "events", "-o", "json"])).expect("JSON");
    let text = |v: &Value| v.as_str().expect("text").to_owned();
    let items = list["items"].as_array().expect("items");
    let row = |e: &Value| {
        (
            text(&e["metadata"]["name"]),
            text(&e["reason"]),
            e["count"].as_i64().expect("a count"),
            text(&e["firstTimestamp"]),
        )
    };
    items.iter().map(row).collect()
}

/// Waits for an event.
pub(super) fn wait_event(agent: &Agent, wanted: impl Fn(&Value) -> bool) -> Value {
    let path = "/api/v1/namespaces/default/events?watch=true";
    let mut all = agent.watch(path).map(|mut change| change["object"].take());
    all.find(wanted).expect("the event comes in time")
}

#[test]
fn events_outlast_an_agent_restart() {
    let agent = Agent::start();
    agent.write("a.yaml", &shell_pod("a", SLEEP, "", ""));
    agent.wait_running("a");
    let started = wait_event(&agent, |e| e["reason"] == "Started");
    let before = events(&agent);
    // Repeated events of the node at each agent start are counted.
    let of_pod = |all: &[(String, String, i64, String)]| -> Vec<_> {
        all.iter()
            .filter(|e| e.0.starts_with("a."))
            .cloned()
            .collect()
    };
    for round in 2..5 {
        agent.signal(Signal::SIGKILL);
        agent.wait();
        // The last line is incomplete, as after a kill of the agent in the middle of a write.
        let journal = agent.root.join("run/events.log");
        let mut file = fs::OpenOptions::new()
            .append(true)
            .open(&journal)
            .expect("there");
        std::io::Write::write_all(&mut file, b"{\"serial\":99,\"first\"").expect("written");
        agent.launch();
        let after = events(&agent);
        assert_eq!(
            of_pod(&after),
            of_pod(&before),
            "the same, and in the same order"
        );
        let starting = after.iter().find(|e| e.1 == "Starting");
        assert_eq!(starting.expect("reported").2, round);
    }
    // The server has a watch from before the restart begin again, and a new watch sees versions grow.
    let version = started["metadata"]["resourceVersion"]
        .as_str()
        .expect("a version");
    let path = format!("/api/v1/events?watch=true&resourceVersion={version}");
    let first = agent.watch(&path).next().expect("an answer");
    assert_eq!(
        (&first["type"], &first["object"]["code"]),
        (&"ERROR".into(), &410.into())
    );
    agent.remove("a.yaml");
    let killing = wait_event(&agent, |e| e["reason"] == "Killing");
    let number = |e: &Value| -> u64 {
        let text = e["metadata"]["resourceVersion"].as_str();
        text.and_then(|t| t.parse().ok()).expect("a number")
    };
    assert!(number(&killing) > number(&started));
    agent.wait_gone("a");
    assert_eq!(
        events(&agent).last().map(|e| e.1.as_str()),
        Some("Killing"),
        "the newest last"
    );
}

#[test]
fn events_are_shown_as_kubectl_shows_them() {
    let agent = Agent::start();
    let more = "  restartPolicy: Always\n  initContainers:\n  - {name: early, image: busybox:test, command: [\"true\"]}\n";
    agent.write("crash.yaml", &shell_pod("crash", "exit 7", more, ""));
    agent.write("other.yaml", &shell_pod("other", SLEEP, "", ""));
    let uid = agent.wait_running("other")["metadata"]["uid"].clone();
    let backoff = wait_event(&agent, |e| {
        e["reason"] == "BackOff" && e["involvedObject"]["name"] == "crash"
    });
    assert_eq!(backoff["type"], "Warning");
    assert_eq!(
        backoff["involvedObject"]["fieldPath"],
        "spec.containers{main}"
    );
    let text = backoff["message"].as_str().expect("a message");
    assert!(
        text.starts_with("Back-off restarting failed container main in pod crash_default("),
        "{text}"
    );
    let created = wait_event(&agent, |e| {
        e["message"] == "Created container: main" && e["involvedObject"]["name"] == "other"
    });
    assert_eq!(created["involvedObject"]["kind"], "Pod");
    assert_eq!(created["involvedObject"]["uid"], uid);
    assert_eq!(created["metadata"]["namespace"], "default");
    assert_eq!(created["source"]["component"], "coracle");
    assert_eq!(created["source"]["host"], "test-node");
    assert_eq!(created["reportingComponent"], "coracle");

    let narrow = agent.ok(&["get", "events"]);
    let titles: Vec<&str> = narrow
        .lines()
        .next()
        .expect("titles")
        .split("  ")
        .map(str::trim)
        .filter(|t| !t.is_empty())
        .collect();
    assert_eq!(titles, ["LAST SEEN", "TYPE", "REASON", "OBJECT", "MESSAGE"]);
    let names = |of: &str, table: &str| {
        let mut about = table.lines().filter(|line| line.contains(of));
        about.all(|line| {
            line.contains("crash{main}")
                || line.contains("crash{early}")
                || !line.contains("pod/crash")
        })
    };
    for of in ["Pulled", "Created", "Started", "BackOff"] {
        assert!(names(of, &narrow), "which container's? {narrow}");
    }
    let wide = agent.ok(&["get", "events", "-o", "wide"]);
    let line = wide
        .lines()
        .find(|l| l.contains("spec.initContainers{early}"))
        .expect("the init container's");
    assert!(line.contains("coracle, test-node"), "{line}");

    let of_one = agent.ok(&["events", "--for", "pod/crash"]);
    assert!(!of_one.contains("pod/other"), "{of_one}");
    let twice = of_one
        .lines()
        .find(|l| l.contains("Started container main") && l.contains("(x2 over "));
    assert!(twice.is_some(), "{of_one}");
    let warnings = agent.ok(&["events", "--for", "pod/crash", "--types", "Warning"]);
    assert!(
        warnings.contains("BackOff") && !warnings.contains("Normal"),
        "{warnings}"
    );
    let described = agent.ok(&["describe", "pod", "crash"]);
    let started = described
        .lines()
        .find(|l| l.contains("Started container main") && l.contains("(x2 over "));
    assert!(
        started.is_some_and(|l| l.contains("coracle")),
        "{described}"
    );
    let pulled = described
        .lines()
        .find(|l| l.contains("Pulled") && l.contains("  early  "));
    assert!(pulled.is_some(), "{described}");
    for (bad, hint) in [("web", "--for pod/NAME"), ("secret/web", "--for pod/NAME")] {
        let refused = agent.cli(&["events", "--for", bad]);
        assert_eq!(refused.status.code(), Some(2));
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(said.contains(hint), "{said}");
    }
}

#[test]
fn earlier_exits_are_known_after_an_agent_restart_wherever_they_were_recorded() {
    let agent = Agent::start();
    // One program does not exist; the shim of another is killed, and the program ends before the shim is replaced.
    let missing = shell_pod("missing", "", "", "").replace("\"sh\", \"-c\", \"\"", "\"/nothing\"");
    agent.write("missing.yaml", &missing);
    agent.write("lost.yaml", &shell_pod("lost", SLEEP, "", ""));
    agent.wait_running("lost");
    kill_shim(&agent, "lost");
    let lost = agent.wait_pod("lost", |pod| {
        let status = main_status(pod);
        status["restartCount"] == 1 && !status["state"]["running"].is_null()
    });
    assert_eq!(
        main_status(&lost)["lastState"]["terminated"]["reason"],
        "ContainerStatusUnknown"
    );
    let missing = agent.wait_pod("missing", |pod| {
        let status = main_status(pod);
        status["restartCount"] == 1 && status["state"]["waiting"]["reason"] == "CrashLoopBackOff"
    });
    let terminated = &main_status(&missing)["lastState"]["terminated"];
    assert_eq!(
        (&terminated["reason"], &terminated["exitCode"]),
        (&"StartError".into(), &128.into())
    );
    agent.kill_and_restart();
    for (name, before) in [("lost", lost), ("missing", missing)] {
        let after = agent.pod(name);
        for field in ["restartCount", "lastState", "state"] {
            let of = |pod: &Value| {
                let mut shown = main_status(pod)[field].clone();
                // The exit of a run whose shim died was not observed: each agent has its own estimate.
                if let Some(ended) = shown.get_mut("terminated").filter(|_| name == "lost") {
                    ended["finishedAt"].take();
                }
                shown
            };
            assert_eq!(of(&after), of(&before), "{name}: {field}");
        }
    }
}
