//! Held pods, and pods that are preempted for others.

use std::sync::Arc;

use super::*;
use common::netns::Netns;

/// An agent whose node has 1500 milli-cores for pods, and few places.
fn small(labels: &str) -> Agent {
    let agent = Agent::prepare(Arc::new(Netns::new()), &[], None);
    let folder = agent.root.join("etc");
    fs::create_dir_all(folder.join("config.d")).expect("temp dir");
    let file = folder.join("config.yaml");
    // All but a core and a half is reserved.
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
    let kept = cores * 1000 - 1500;
    let text = format!(
        "kind: KubeletConfiguration\nsystemReserved: {{cpu: {kept}m}}\nmaxPods: 3\nevictionHard: {{memory.available: 1Mi}}\n\
         coracle: {{nodeLabels: {{{labels}}}}}\n"
    );
    fs::write(&file, text).expect("written");
    let path = |path: &std::path::Path| path.to_str().expect("utf-8").to_owned();
    let agent = agent.with_flags(&[
        "--config",
        &path(&file),
        "--config-dir",
        &path(&folder.join("config.d")),
    ]);
    agent.launch();
    agent.ok(&[
        "image",
        "import",
        common::archive().to_str().expect("utf-8"),
    ]);
    agent
}

/// A pod that requests this much cpu.
fn pod(name: &str, cpu_milli: u64, more: &str) -> String {
    let requests = format!("    resources: {{requests: {{cpu: {cpu_milli}m}}}}\n");
    shell_pod(name, SLEEP, more, &requests)
}

fn waits(pod: &Value, reason: &str) -> bool {
    pod["status"]["phase"] == "Pending" && pod["status"]["reason"] == reason
}

#[test]
fn a_pod_without_room_is_held_and_admitted_when_there_is_some() {
    let agent = small("");
    agent.write("a.yaml", &pod("a", 1_000, ""));
    let before = pid_of(&agent, &agent.wait_running("a"));
    agent.write("b.yaml", &pod("b", 800, ""));
    let held = agent.wait_pod("b", |pod| waits(pod, "OutOfcpu"));
    let text = "Node didn't have enough resource: cpu, requested: 800, used: 1000, capacity: 1500";
    assert_eq!(held["status"]["message"], text);
    let shown = agent.ok(&["get", "pods"]);
    assert!(shown.contains("OutOfcpu"), "{shown}");
    let described = agent.ok(&["describe", "pod", "b"]);
    assert!(described.contains(text), "{described}");
    let file = agent.root.join("manifests/b.yaml");
    let planned = agent.cli(&["plan", file.to_str().expect("utf-8")]);
    let planned = String::from_utf8_lossy(&planned.stdout).into_owned();
    assert!(
        planned.contains(&format!("waits for admission (OutOfcpu): {text}")),
        "{planned}"
    );
    // A deletion of a held pod has nothing to wait for, and the pod stays held. After an agent restart it is held since
    // the same time.
    agent.ok(&["delete", "pod", "b"]);
    let holds = agent.root.join("run/holds.json");
    let uid = |pod: &Value| {
        pod["metadata"]["uid"]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    };
    let deadline = std::time::Instant::now() + common::PATIENCE;
    let held = loop {
        let pod = agent.wait_pod("b", |pod| waits(pod, "OutOfcpu"));
        // It may be written after the pod was shown.
        let written = fs::read_to_string(&holds).unwrap_or_default();
        if written.contains(&uid(&pod)) {
            break pod;
        }
        assert!(std::time::Instant::now() < deadline, "not kept: {written}");
        std::thread::sleep(Duration::from_millis(20));
    };
    std::thread::sleep(Duration::from_millis(1100)); // Times are shown in whole seconds.
    agent.kill_and_restart();
    let again = agent.wait_pod("b", |pod| waits(pod, "OutOfcpu"));
    assert_eq!(
        again["metadata"]["creationTimestamp"],
        held["metadata"]["creationTimestamp"]
    );
    assert_eq!(again["status"], held["status"]);
    assert_eq!(before, pid_of(&agent, &agent.wait_running("a")));
    let metrics = agent.request("/metrics").0;
    let count = "kubelet_admission_rejections_total{reason=\"OutOfcpu\"} 1";
    assert!(metrics.contains(count), "{metrics}");
    agent.remove("a.yaml");
    agent.wait_running("b");
    let events = agent.ok(&["get", "events"]);
    assert!(events.contains("OutOfcpu"), "{events}");
    agent.remove("b.yaml");
    agent.wait_gone("b");
    assert_eq!(agent.leftovers(), Vec::<String>::new());
}

#[test]
fn a_more_important_pod_preempts_another_which_starts_again_later() {
    let agent = small("");
    agent.write("low.yaml", &pod("low", 1_000, ""));
    let before = pid_of(&agent, &agent.wait_running("low"));
    let vip = pod("vip", 800, "  priorityClassName: system-node-critical\n");
    let file = agent.root.join("vip.yaml");
    fs::write(&file, &vip).expect("temp dir");
    let planned = agent.cli(&["plan", file.to_str().expect("utf-8")]);
    let planned = String::from_utf8_lossy(&planned.stdout).into_owned();
    let line = "\n    pod default/low is ended to make room for it\n";
    assert!(planned.contains(line), "{planned}");
    let mut changes = agent.watch("/api/v1/pods?watch=true");
    agent.write("vip.yaml", &vip);
    let ended = changes.find(|change| {
        let status = &change["object"]["status"];
        status["phase"] == "Failed" && status["reason"] == "Preempting"
    });
    let ended = ended.expect("it is shown as failed")["object"].clone();
    let text = "Preempted in order to admit critical pod";
    assert_eq!(ended["status"]["message"], text);
    let conditions = ended["status"]["conditions"]
        .as_array()
        .expect("conditions");
    assert!(
        conditions.iter().any(|c| c["type"] == "DisruptionTarget"),
        "{ended}"
    );
    agent.wait_running("vip");
    agent.wait_pod("low", |pod| waits(pod, "OutOfcpu"));
    let metrics = agent.request("/metrics").0;
    let count = "kubelet_preemptions{preemption_signal=\"cpu\"} 1";
    assert!(metrics.contains(count), "{metrics}");
    agent.remove("vip.yaml");
    let after = pid_of(&agent, &agent.wait_running("low"));
    assert_ne!(before, after);
    agent.remove("low.yaml");
    agent.wait_gone("low");
    assert_eq!(agent.leftovers(), Vec::<String>::new());
}

#[test]
fn a_pod_is_held_for_labels_of_the_node_and_for_ports_of_other_pods() {
    let agent = small("example.com/disk: ssd");
    let node: Value =
        serde_json::from_str(&agent.ok(&["get", "nodes", "-o", "json"])).expect("JSON");
    let text = node.to_string();
    assert!(text.contains("\"example.com/disk\":\"ssd\""), "{text}");
    let selector = |value: &str| format!("  nodeSelector: {{example.com/disk: {value}}}\n");
    agent.write("here.yaml", &pod("here", 100, &selector("ssd")));
    agent.write("there.yaml", &pod("there", 100, &selector("hdd")));
    agent.wait_running("here");
    let held = agent.wait_pod("there", |pod| waits(pod, "NodeAffinity"));
    let message =
        "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector";
    assert_eq!(held["status"]["message"], message);
    agent.remove("there.yaml");
    agent.remove("here.yaml");
    agent.wait_gone("here");
    let port = |name: &str| {
        shell_pod(
            name,
            SLEEP,
            "",
            "    ports: [{containerPort: 80, hostPort: 18080}]\n",
        )
    };
    agent.write("one.yaml", &port("one"));
    agent.wait_running("one");
    agent.write("two.yaml", &port("two"));
    agent.wait_pod("two", |pod| waits(pod, "NodePorts"));
    agent.remove("one.yaml");
    agent.wait_running("two");
    agent.remove("two.yaml");
    agent.wait_gone("two");
    assert_eq!(agent.leftovers(), Vec::<String>::new());
}
