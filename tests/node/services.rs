//! Services: read from files, shown with the pods behind them, kept over broken edits and agent restarts.

use std::sync::Arc;

use super::SLEEP;
use super::common::netns::Netns;
use super::common::{Agent, archive, shell_pod};

const SERVICE: &str = "apiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec:\n  type: NodePort\n  selector: {app: web}\n  ports: [{name: http, port: 80, targetPort: 8080}]\n";

/// Waits until the service has this one endpoint, or none.
fn wait_endpoint(agent: &Agent, address: Option<&str>) {
    let mut events = agent.watch("/api/v1/namespaces/default/endpoints?watch=true");
    let found = events.any(|event| {
        let ip = &event["object"]["subsets"][0]["addresses"][0]["ip"];
        event["type"] != "DELETED" && ip.as_str() == address
    });
    assert!(found, "{address:?} is never the endpoint: {}", agent.log());
}

/// An agent in a network of its own, with an image.
fn agent() -> Agent {
    let netns = Netns::new();
    for words in [
        "link add uplink type bridge",
        "addr add 192.0.2.10/24 dev uplink",
        "link set uplink up",
    ] {
        netns.ok("ip", &words.split(' ').collect::<Vec<_>>());
    }
    let agent = Agent::prepare(Arc::new(netns), &[], None);
    agent.launch();
    agent.ok(&["image", "import", archive().to_str().expect("utf-8")]);
    agent
}

/// The variables whose names begin like this, as a program that is run in the container gets them.
fn variables(agent: &Agent, pod: &str, beginning: &str) -> Vec<String> {
    let all = agent.ok(&["exec", pod, "--", "env"]);
    let mut own: Vec<String> = all
        .lines()
        .filter(|line| line.starts_with(beginning))
        .map(str::to_owned)
        .collect();
    own.sort();
    own
}

#[test]
fn containers_get_variables_for_the_services_that_exist_when_they_start() {
    const WAIT: &str =
        "echo args $WEB_SERVICE_HOST $(WEB_SERVICE_PORT); while [ ! -e /go ]; do sleep 0.1; done";
    const HAS: &str = "{exec: {command: [sh, -c, 'test -n \"$WEB_SERVICE_HOST\"']}}";
    let agent = agent();
    let env = "    env:\n    - {name: URL, value: \"$(WEB_PORT)/x\"}\n    - {name: WEB_SERVICE_PORT_HTTP, value: mine}\n";
    let hooks = format!("    readinessProbe: {HAS}\n    lifecycle: {{postStart: {HAS}}}\n");
    let told = shell_pod("told", WAIT, "", &format!("{env}{hooks}"));
    let silent = shell_pod("silent", SLEEP, "  enableServiceLinks: false\n", "");
    let apart = shell_pod("apart", SLEEP, "", "");
    let apart = apart.replacen("metadata:", "metadata:\n  namespace: other", 1);
    let headless = SERVICE
        .replace("name: web", "name: none")
        .replace("type: NodePort", "clusterIP: None");
    // All in one file: a container starts only when the services beside it have their addresses.
    let all = [SERVICE, &headless, &told, &silent, &apart].join("---\n");
    agent.write("all.yaml", &all);
    let pod = agent.wait_pod("told", |pod| {
        pod["status"]["containerStatuses"][0]["ready"] == true
    });
    let address = agent.ok(&["get", "svc", "web", "-o", "jsonpath={.spec.clusterIP}"]);
    let address = address.trim();
    assert!(address.parse::<std::net::IpAddr>().is_ok(), "{address}");
    let expected = [
        format!("WEB_PORT=tcp://{address}:80"),
        format!("WEB_PORT_80_TCP=tcp://{address}:80"),
        format!("WEB_PORT_80_TCP_ADDR={address}"),
        "WEB_PORT_80_TCP_PORT=80".to_owned(),
        "WEB_PORT_80_TCP_PROTO=tcp".to_owned(),
        format!("WEB_SERVICE_HOST={address}"),
        "WEB_SERVICE_PORT=80".to_owned(),
        "WEB_SERVICE_PORT_HTTP=mine".to_owned(),
    ];
    assert_eq!(variables(&agent, "told", "WEB_"), expected);
    let url = format!("URL=tcp://{address}:80/x");
    assert_eq!(variables(&agent, "told", "URL="), [url]);
    assert_eq!(
        variables(&agent, "told", "NONE_"),
        [""; 0],
        "the service has no address"
    );
    assert_eq!(
        agent.ok(&["logs", "told"]).trim(),
        format!("args {address} 80")
    );
    agent.wait_running("silent");
    assert_eq!(variables(&agent, "silent", "WEB_"), [""; 0]);
    let elsewhere = agent.ok(&["exec", "-n", "other", "apart", "--", "env"]);
    assert!(!elsewhere.contains("WEB_"), "{elsewhere}");

    // A later service gives variables only to containers that start after it.
    let later = SERVICE
        .replace("name: web", "name: later")
        .replace("  type: NodePort\n", "");
    agent.write("later.yaml", &later);
    agent.write("after.yaml", &shell_pod("after", SLEEP, "", ""));
    agent.wait_running("after");
    assert_eq!(variables(&agent, "after", "LATER_SERVICE_HOST").len(), 1);
    assert_eq!(variables(&agent, "told", "LATER_"), [""; 0]);
    // The container ends once it sees the file, perhaps with this program still in it: the result says nothing.
    agent.cli(&["exec", "told", "--", "touch", "/go"]);
    let again = agent.wait_pod("told", |pod| {
        let status = &pod["status"]["containerStatuses"][0];
        status["restartCount"] == 1 && status["ready"] == true
    });
    assert_eq!(again["metadata"]["uid"], pod["metadata"]["uid"]);
    assert_eq!(variables(&agent, "told", "LATER_SERVICE_HOST").len(), 1);
}

#[test]
fn a_service_is_shown_with_its_ready_pods_over_broken_edits_and_agent_restarts() {
    let agent = agent();
    agent.write("service.yaml", SERVICE);
    wait_endpoint(&agent, None);
    let pod = shell_pod("web", SLEEP, "", "");
    let pod = pod.replacen("metadata:", "metadata:\n  labels: {app: web}", 1);
    agent.write("web.yaml", &pod);
    let pod = agent.wait_running("web");
    let address = pod["status"]["podIP"].as_str();
    let behind = format!(
        "{}:8080",
        address.expect("a pod on the bridge has an address")
    );
    wait_endpoint(&agent, address);
    assert!(agent.ok(&["get", "endpoints"]).contains(&behind));
    assert!(agent.ok(&["describe", "svc", "web"]).contains(&behind));

    let spec = "jsonpath={.spec.ports[0].nodePort}";
    let port = agent.ok(&["get", "svc", "web", "-o", spec]);
    let number: u16 = port.trim().parse().expect("a port was chosen");
    assert!((30_000..=32_767).contains(&number));

    agent.write("service.yaml", &SERVICE.replace("selector", "selectr"));
    agent.write("marker.yaml", &shell_pod("marker", SLEEP, "", ""));
    agent.wait_running("marker");
    assert!(agent.ok(&["get", "files"]).contains("Rejected"));
    wait_endpoint(&agent, address);
    agent.kill_and_restart();
    wait_endpoint(&agent, address);
    assert_eq!(agent.ok(&["get", "svc", "web", "-o", spec]), port);

    agent.remove("web.yaml");
    wait_endpoint(&agent, None);
    let mut events = agent.watch("/api/v1/services?watch=true");
    agent.remove("service.yaml");
    assert!(events.any(|event| event["type"] == "DELETED"));
}
