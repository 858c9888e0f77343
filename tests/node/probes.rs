//! What probes find out decides who is ready and who is restarted, with real containers on the pods' own network.

use super::*;

/// A pod that serves the files of `/www` by HTTP, with these probes.
fn server(script: &str, probes: &str) -> String {
    format!(
        r#"{{"apiVersion": "v1", "kind": "Pod", "metadata": {{"name": "web"}}, "spec": {{
            "terminationGracePeriodSeconds": 1,
            "containers": [{{"name": "main", "image": "{}", "command": ["sh", "-c", "{script}"], {probes}}}]}}}}"#,
        common::IMAGE
    )
}

fn events(agent: &Agent) -> String {
    agent.request("/api/v1/namespaces/default/events").0
}

#[test]
fn a_page_that_appears_makes_a_container_ready_and_one_that_goes_unready() {
    let agent = Agent::start();
    let script = "mkdir -p /www; exec httpd -f -p 8080 -h /www";
    let probes = r#""readinessProbe": {"httpGet": {"path": "/ok", "port": 8080},
        "periodSeconds": 1, "failureThreshold": 1}"#;
    agent.write("web.json", &server(script, probes));
    agent.wait_running("web");
    let ready = |wanted: bool| {
        agent.wait_pod("web", |pod| main_status(pod)["ready"] == wanted);
    };
    ready(false);
    let failed = "Readiness probe failed: HTTP probe failed with statuscode: 404";
    wait_event(&agent, failed);
    agent.ok(&["exec", "web", "--", "touch", "/www/ok"]);
    ready(true);
    agent.ok(&["exec", "web", "--", "rm", "/www/ok"]);
    ready(false);
    let (metrics, _) = agent.request("/metrics/probes");
    for text in [
        "prober_probe_total{probe_type=\"Readiness\",container=\"main\",pod=\"web\",namespace=\"default\",",
        "result=\"successful\"}",
        "result=\"failed\"}",
        "prober_probe_duration_seconds_count{",
    ] {
        assert!(metrics.contains(text), "no {text} in {metrics}");
    }
    agent.remove("web.json");
    agent.wait_gone("web");
    assert_eq!(agent.leftovers(), Vec::<String>::new());
}

#[test]
fn a_program_that_fails_restarts_its_container() {
    let agent = Agent::start();
    let probes = r#""livenessProbe": {"exec": {"command": ["sh", "-c", "echo bad; false"]},
        "periodSeconds": 1, "failureThreshold": 1}"#;
    agent.write("web.json", &server("exec sleep 1000", probes));
    agent.wait_pod("web", |pod| main_status(pod)["restartCount"] == 1);
    assert!(events(&agent).contains("Liveness probe failed: bad"));
}

/// Waits for an event with this text.
fn wait_event(agent: &Agent, text: &str) {
    let start = std::time::Instant::now();
    while !events(agent).contains(text) {
        assert!(start.elapsed() < PATIENCE, "no {text} in {}", events(agent));
        std::thread::sleep(Duration::from_millis(20));
    }
}
