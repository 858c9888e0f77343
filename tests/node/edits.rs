//! Manifests that are edited while their pods run.

use super::*;

/// The pod's one container runs still, as the same process.
fn assert_untouched(agent: &Agent, before: &Value, after: &Value) {
    assert_eq!(before["metadata"]["uid"], after["metadata"]["uid"]);
    assert_eq!(main_status(after)["restartCount"], 0, "{after}");
    assert_eq!(pid_of(agent, before), pid_of(agent, after));
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
