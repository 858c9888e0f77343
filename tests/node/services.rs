//! Services: read from files, shown with the pods behind them, kept over broken edits and killed agents.

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
    assert!(found, "{address:?} is never behind it: {}", agent.log());
}

#[test]
fn a_service_is_shown_with_its_ready_pods_over_broken_edits_and_killed_agents() {
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
