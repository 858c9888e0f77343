//! Manifests that are edited while their pods run.

use super::stages::{STAY, runs, staged, status};
use super::*;

/// The pod's one container runs still, as the same process.
fn assert_untouched(agent: &Agent, before: &Value, after: &Value) {
    assert_eq!(before["metadata"]["uid"], after["metadata"]["uid"]);
    assert_eq!(main_status(after)["restartCount"], 0, "{after}");
    assert_eq!(pid_of(agent, before), pid_of(agent, after));
}

/// Process id of a container's first process, from its shim's record.
fn pid(agent: &Agent, pod: &Value, container: &str) -> i64 {
    let uid = pod["metadata"]["uid"].as_str().expect("uid");
    let path = agent
        .root
        .join(format!("run/pods/{uid}/records/{container}.json"));
    let record = fs::read_to_string(path).expect("a record");
    let record: Value = serde_json::from_str(&record).expect("JSON");
    record["pid"].as_i64().expect("pid")
}

#[test]
fn another_image_restarts_its_container_alone_once_it_is_there() {
    let agent = Agent::start();
    let never = "  restartPolicy: Never\n";
    let story = |image: &str| {
        let text = staged(
            &agent,
            "a",
            never,
            &[("first", "echo first >> /s/story", "")],
            &[("main", STAY, ""), ("other", STAY, "")],
        );
        let at = text.find("name: main\n").expect("main");
        text[..at].to_owned() + &text[at..].replacen("busybox:test", image, 1)
    };
    agent.write("a.yaml", &story("busybox:test"));
    let before = agent.wait_running("a");
    // It is not there, so what serves goes on.
    agent.write("a.yaml", &story("busybox:other"));
    let events = |text: &str| agent.ok(&["get", "events"]).contains(text);
    agent.wait_pod("a", |_| events("Failed to pull image \"busybox:other\""));
    let now = agent.pod("a");
    assert_eq!(pid(&agent, &before, "main"), pid(&agent, &now, "main"));
    assert_eq!(status(&now, "main")["image"], "busybox:test");
    assert!(!runs(&now, "first"));
    // The agent dies in the middle of it all.
    agent.signal(Signal::SIGKILL);
    agent.wait();
    agent.launch();
    agent.wait_pod("a", |_| true);
    let archive = common::archive().to_str().expect("UTF-8").to_owned();
    agent.ok(&["image", "import", &archive, "--name", "busybox:other"]);
    let after = agent.wait_pod("a", |pod| {
        runs(pod, "main") && status(pod, "main")["image"] == "busybox:other"
    });
    assert_eq!(status(&after, "main")["restartCount"], 1, "{after}");
    assert_eq!(
        status(&after, "main")["lastState"]["terminated"]["exitCode"],
        0
    );
    assert_eq!(pid(&agent, &before, "other"), pid(&agent, &after, "other"));
    assert_eq!(before["metadata"]["uid"], after["metadata"]["uid"]);
    assert!(events(
        "Container main definition changed, will be restarted"
    ));
    let told = super::stages::story(&agent, "a");
    assert_eq!(told.iter().filter(|line| *line == "first").count(), 1);
    agent.remove("a.yaml");
    agent.wait_gone("a");
    assert_eq!(agent.leftovers(), Vec::<String>::new());
}

#[test]
fn labels_grace_and_probes_change_in_the_running_pod_and_outlive_agent_and_file() {
    let agent = Agent::start();
    let script = format!("touch /tmp/ok; {SLEEP}");
    let first = shell_pod("web", &script, "", "");
    agent.write("web.yaml", &first);
    let before = agent.wait_running("web");
    let label = |text: &str| text.replacen("metadata:", "metadata:\n  labels: {tier: front}", 1);
    let labelled = label(&first);
    agent.write("web.yaml", &labelled);
    let labels = |pod: &Value| pod["metadata"]["labels"]["tier"] == "front";
    let after = agent.wait_pod("web", labels);
    assert_untouched(&agent, &before, &after);
    let probe = "    readinessProbe: {exec: {command: [cat, /tmp/ok]}, periodSeconds: 1, failureThreshold: 1}\n";
    let probed = label(&shell_pod("web", &script, "", probe));
    agent.write("web.yaml", &probed);
    agent.wait_pod("web", |pod| {
        !pod["spec"]["containers"][0]["readinessProbe"].is_null()
    });
    agent.ok(&["exec", "web", "--", "rm", "/tmp/ok"]);
    agent.wait_pod("web", |pod| main_status(pod)["ready"] == false);
    agent.ok(&["exec", "web", "--", "touch", "/tmp/ok"]);
    agent.wait_pod("web", |pod| main_status(pod)["ready"] == true);
    // The next agent knows the edits although the file is of no use any more.
    agent.signal(Signal::SIGKILL);
    agent.wait();
    agent.write("web.yaml", "broken: [");
    agent.launch();
    let after = agent.wait_pod("web", |pod| {
        labels(pod) && main_status(pod)["ready"] == true
    });
    assert!(!after["spec"]["containers"][0]["readinessProbe"].is_null());
    assert_untouched(&agent, &before, &after);
    agent.remove("web.yaml");
    agent.wait_gone("web");
    assert_eq!(agent.leftovers(), Vec::<String>::new());
}
