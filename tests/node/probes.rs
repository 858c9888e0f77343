//! Probes decide about readiness and restarts, with real containers on the pods' own network.

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
fn a_container_is_ready_while_its_page_exists() {
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
fn the_program_of_a_probe_survives_an_agent_restart_and_its_outcome_counts() {
    let agent = Agent::start();
    let probe = "echo began >> /tmp/probes; until test -e /tmp/go; do usleep 20000; done; echo done >> /tmp/probes";
    let probes = format!(
        r#""readinessProbe": {{"exec": {{"command": ["sh", "-c", "{probe}"]}},
        "periodSeconds": 600, "timeoutSeconds": 300}}"#
    );
    let script = "mkdir -p /tmp; exec sleep 1000";
    agent.write("web.json", &server(script, &probes));
    agent.wait_running("web");
    let shell = |script: &str| agent.ok(&["exec", "web", "--", "sh", "-c", script]);
    shell("until test -s /tmp/probes; do usleep 20000; done");
    agent.kill_and_restart();
    agent.wait_running("web");
    shell("touch /tmp/go");
    agent.wait_pod("web", |pod| main_status(pod)["ready"] == true);
    assert_eq!(shell("cat /tmp/probes").trim(), "began\ndone");
    agent.remove("web.json");
    agent.wait_gone("web");
    assert_eq!(agent.leftovers(), Vec::<String>::new());
}

#[test]
fn a_failing_liveness_program_restarts_its_container() {
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

#[test]
fn a_pod_on_the_nodes_network_is_probed_at_the_nodes_address_even_when_that_changes() {
    let agent = Agent::start();
    let net = agent.netns.clone();
    let cgi = "#!/bin/sh\necho \"$QUERY_STRING $REMOTE_ADDR\" >> /s/story\nprintf \"Status: 200 OK\\r\\n\\r\\n\"\n";
    let serve = format!(
        "mkdir -p /v/cgi-bin; printf '%s' '{cgi}' > /v/cgi-bin/ask; chmod 755 /v/cgi-bin/ask; httpd -p 8080 -h /v; {SLEEP}"
    );
    let page = |what: &str, host: &str| {
        format!("httpGet: {{port: 8080, path: \"/cgi-bin/ask?{what}\"{host}}}")
    };
    let often = "periodSeconds: 1, failureThreshold: 1";
    // The liveness probe runs once a second, too, but at the host that it names.
    let more = format!(
        "    readinessProbe: {{{}, {often}}}\n    livenessProbe: {{{}, periodSeconds: 1}}\n    lifecycle: {{preStop: {{{}}}}}\n",
        page("ready", ""),
        page("live", ", host: 127.0.0.1"),
        page("stop", "")
    );
    let deaf = format!("    readinessProbe: {{tcpSocket: {{port: 9}}, {often}}}\n");
    let parts = [
        ("web", serve.as_str(), more.as_str()),
        ("deaf", SLEEP, &deaf),
    ];
    let pod = stages::staged(&agent, "a", "  hostNetwork: true\n", &[], &parts);
    agent.write("a.yaml", &pod);
    let asked = |what: &str, at: &str| {
        let begin = std::time::Instant::now();
        let known = stages::story(&agent, "a").len();
        loop {
            let lines = stages::story(&agent, "a");
            let mut new = lines[known..].iter().filter_map(|l| l.split_once(' '));
            if new.any(|(of, from)| of == what && from.trim_matches(['[', ']']).ends_with(at)) {
                return;
            }
            assert!(begin.elapsed() < PATIENCE, "no {what} at {at}: {lines:?}");
            std::thread::sleep(Duration::from_millis(20)); // It is the container's own file; no event reports that it grows.
        }
    };
    asked("ready", "127.0.0.1");
    let nowhere = "dial tcp 127.0.0.1:9: connect: connection refused (the node has no address, so 127.0.0.1 was asked)";
    wait_event(&agent, nowhere);

    let has = |ip: &str| {
        agent.wait_pod("a", |pod| pod["status"]["podIP"] == ip);
    };
    net.ip("link add up0 type veth peer name up1");
    net.ip("link set up1 up");
    net.ip("link set up0 up");
    net.ip("addr add 10.7.0.2/24 dev up0");
    has("10.7.0.2");
    asked("ready", "10.7.0.2");
    asked("live", "127.0.0.1");
    wait_event(&agent, "dial tcp 10.7.0.2:9: connect: connection refused\"");
    agent.wait_pod("a", |pod| stages::status(pod, "web")["ready"] == true);
    let mut ready = agent.watch("/api/v1/pods?watch=true");

    net.ip("addr add 10.8.0.3/24 dev up0");
    net.ip("addr del 10.7.0.2/24 dev up0");
    has("10.8.0.3");
    asked("ready", "10.8.0.3");
    agent.kill_and_restart();
    asked("ready", "10.8.0.3");
    net.ip("addr flush dev up0");
    net.ip("addr add fd07::2/64 dev up0 nodad");
    has("fd07::2");
    asked("ready", "fd07::2");
    let unready = ready.find(|change| stages::status(&change["object"], "web")["ready"] == false);
    assert!(
        unready.is_none(),
        "a changed address does not make it unready: {unready:?}"
    );

    agent.remove("a.yaml");
    agent.wait_gone("a");
    let lines = stages::story(&agent, "a");
    assert!(
        lines
            .iter()
            .any(|l| l.starts_with("stop") && l.contains("fd07::2")),
        "{lines:?}"
    );
    assert_eq!(agent.leftovers(), Vec::<String>::new());
}
