//! Services: an address and a name that lead to the ready pods.

use std::collections::BTreeSet;
use std::net::{IpAddr, TcpListener};

use crate::world::*;

fn service(name: &str, spec: &str) -> String {
    format!("apiVersion: v1\nkind: Service\nmetadata: {{name: {name}}}\nspec:\n{spec}")
}

const WEB: &str = "  selector: {app: web}\n  ports: [{port: 80, targetPort: 8000}]\n";

/// A world with two servers labelled `app: web` and a client.
fn world() -> World {
    let world = World::new();
    for name in ["one", "two"] {
        let pod = who_pod_with(name, "{app: web}", 8000, "", "");
        world.start_server(name, &pod);
    }
    world.start_server("client", &who_pod("client", 8000, "", ""));
    world
}

/// Connects to this name and port from the client; returns the name of the server that answered.
fn ask_name(world: &World, name: &str, port: u16) -> Result<String, String> {
    let script = format!(
        "import socket; s = socket.create_connection(('{name}', {port}), 2); print(s.recv(512).decode().split()[0])"
    );
    let (fine, said) = exec(&world.agent, "client", &["python3", "-c", &script]);
    if fine {
        Ok(said.trim().to_owned())
    } else {
        Err(said)
    }
}

/// Asks until both servers have answered; no other may.
fn spreads(what: &str, ask: impl Fn() -> Result<String, String>) {
    let mut seen = BTreeSet::new();
    wait_for(what, || {
        let name = ask()?;
        assert!(["one", "two"].contains(&name.as_str()), "{name}");
        seen.insert(name);
        if seen.len() == 2 {
            Ok(())
        } else {
            Err(format!("{seen:?}"))
        }
    });
}

#[test]
fn a_service_leads_from_its_name_and_port_to_all_ready_pods() {
    let world = world();
    world.agent.write("web.yaml", &service("web", WEB));
    spreads("web", || ask_name(&world, "web", 80));
    spreads("web by its long name", || {
        ask_name(&world, "web.default.svc.cluster.local", 80)
    });
    let text = world.agent.ok(&["get", "services", "web", "-o", "json"]);
    let object: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let ip: IpAddr = object["spec"]["clusterIP"]
        .as_str()
        .and_then(|ip| ip.parse().ok())
        .expect("an address");
    spreads("the service's address from the node", || {
        let said = world
            .node()
            .run(|| ask_tcp(at(ip, 80)))
            .map_err(|error| error.to_string())?;
        Ok(said.split(' ').next().unwrap_or_default().to_owned())
    });
}

#[test]
fn a_stopping_pod_leaves_the_service_and_a_new_one_joins_it() {
    let world = world();
    world.agent.write("web.yaml", &service("web", WEB));
    spreads("web", || ask_name(&world, "web", 80));
    world.agent.remove("one.yaml");
    world.agent.wait_gone("one");
    for _ in 0..10 {
        assert_eq!(ask_name(&world, "web", 80), Ok("two".to_owned()));
    }
    world.agent.remove("two.yaml");
    world.agent.wait_gone("two");
    let start = std::time::Instant::now();
    assert!(ask_name(&world, "web", 80).is_err());
    assert!(
        start.elapsed() < std::time::Duration::from_secs(2),
        "refused, not dropped"
    );
    let script = "import socket\nip = socket.gethostbyname('web')\ns = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); \
                  s.settimeout(5); s.connect((ip, 80)); s.send(b'x')\n\
                  try: s.recv(1)\nexcept ConnectionRefusedError: print('refused')";
    let (_, said) = exec(&world.agent, "client", &["python3", "-c", script]);
    assert_eq!(said, "refused\n");
    for name in ["one", "two"] {
        world.start_server(name, &who_pod_with(name, "{app: web}", 8000, "", ""));
    }
    spreads("web again", || ask_name(&world, "web", 80));
}

#[test]
fn a_pod_reaches_itself_through_its_service() {
    let world = World::new();
    world.start_server(
        "client",
        &who_pod_with("client", "{app: web}", 8000, "", ""),
    );
    world.agent.write("web.yaml", &service("web", WEB));
    let answer = wait_for("an answer", || ask_name(&world, "web", 80));
    assert_eq!(answer, "client");
}

#[test]
fn a_named_target_port_is_resolved_for_each_pod() {
    let world = World::new();
    for (name, port) in [("one", 8001), ("two", 8002)] {
        let ports = format!("    ports: [{{name: http, containerPort: {port}}}]\n");
        world.start_server(name, &who_pod_with(name, "{app: web}", port, "", &ports));
    }
    world.start_server("client", &who_pod("client", 8000, "", ""));
    let spec = "  selector: {app: web}\n  ports: [{port: 80, targetPort: http}]\n";
    world.agent.write("web.yaml", &service("web", spec));
    spreads("web", || ask_name(&world, "web", 80));
}

#[test]
fn a_node_port_is_open_to_remote_hosts_on_every_address_of_the_node() {
    let world = world();
    let spec = "  type: NodePort\n  selector: {app: web}\n  ports: [{port: 80, targetPort: 8000, nodePort: 30080}]\n";
    world.agent.write("web.yaml", &service("web", spec));
    for node in [NODE4, NODE6] {
        spreads("the node port", || {
            let said = world
                .remote
                .run(|| ask_tcp(at(node, 30080)))
                .map_err(|error| error.to_string())?;
            let (name, client) = said.split_once(' ').ok_or("empty")?;
            let own = if node.is_ipv4() { REMOTE4 } else { REMOTE6 };
            assert_eq!(client, own.to_string(), "the client's address is preserved");
            Ok(name.to_owned())
        });
    }
    let local = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);
    world
        .node()
        .run(|| ask_tcp(at(local, 30080)))
        .expect("the node port works on the node itself");
}

#[test]
fn a_node_port_in_use_stays_with_its_owner_until_that_is_gone() {
    let world = world();
    let program = world.node().run(|| TcpListener::bind(("0.0.0.0", 30080)));
    let spec = "  type: NodePort\n  selector: {app: web}\n  ports: [{port: 80, targetPort: 8000, nodePort: 30080}]\n";
    world.agent.write("web.yaml", &service("web", spec));
    spreads("its address", || ask_name(&world, "web", 80));
    let (listener, client) = (program.expect("free"), at(NODE4, 30080));
    let connected = world.remote.run(|| std::net::TcpStream::connect(client));
    connected.expect("the program is reached");
    listener.accept().expect("it is the program");
    let json = |what: &[&str]| -> serde_json::Value {
        let said = world.agent.ok(&[&["get"], what, &["-o", "json"]].concat());
        serde_json::from_str(&said).expect("JSON")
    };
    let conditions = || json(&["services", "web"])["status"]["conditions"].clone();
    let reason = || conditions()[0]["reason"].clone();
    wait_for("a condition", || match reason() {
        reason if reason == "PortAlreadyAllocated" => Ok(()),
        other => Err(other.to_string()),
    });
    // Every view is tried, and those that fail again and again.
    for name in ["first", "second"] {
        world
            .agent
            .write(&format!("{name}.yaml"), &service(name, WEB));
        spreads(name, || ask_name(&world, name, 80));
    }
    let all = json(&["events"]);
    let about: Vec<&serde_json::Value> = (all["items"].as_array().expect("a list").iter())
        .filter(|event| event["involvedObject"]["kind"] == "Service")
        .collect();
    assert_eq!(about.len(), 1, "{about:?}");
    assert_eq!(about[0]["count"], 1, "it is said once: {about:?}");
    drop(listener);
    spreads("the node port", || {
        let said = world.remote.run(|| ask_tcp(client));
        let said = said.map_err(|error| error.to_string())?;
        Ok(said.split_once(' ').ok_or("empty")?.0.to_owned())
    });
    wait_for("no condition", || match conditions() {
        serde_json::Value::Null => Ok(()),
        other => Err(other.to_string()),
    });
    let ports = "    ports: [{containerPort: 8000, hostPort: 30080}]\n";
    world
        .agent
        .write("late.yaml", &who_pod("late", 8000, "", ports));
    let events = wait_event(&world.agent, "FailedCreatePodSandBox");
    assert!(events.contains("service default/web"), "{events}");
}

#[test]
fn a_service_with_an_address_outside_the_range_serves_and_says_so() {
    let world = world();
    let spec = format!("  clusterIP: 10.96.0.10\n{WEB}");
    world.agent.write("web.yaml", &service("web", &spec));
    let events = wait_event(&world.agent, "ClusterIPOutOfRange");
    for words in ["default/web has address 10.96.0.10", "coracle.serviceCIDR"] {
        assert!(events.contains(words), "{words}: {events}");
    }
    let row = world.agent.ok(&["get", "services", "web", "--no-headers"]);
    assert_eq!(row.split_whitespace().nth(2), Some("10.96.0.10"), "{row}");
    spreads("web", || ask_name(&world, "web", 80));
    let page = world.agent.ok(&["describe", "service", "web"]);
    assert!(page.contains("ClusterIPOutOfRange"), "{page}");
    let own = world.agent.ok(&["events", "--for", "svc/web"]);
    assert!(own.contains("ClusterIPOutOfRange"), "{own}");
    world.agent.write("web.yaml", &service("web", WEB));
    spreads("web", || ask_name(&world, "web", 80));
}

#[test]
fn a_headless_service_resolves_to_its_pods_addresses_and_srv_records() {
    let world = world();
    let spec = "  clusterIP: None\n  selector: {app: web}\n  ports: [{name: http, port: 8000}]\n";
    world.agent.write("web.yaml", &service("web", spec));
    let text = exec(&world.agent, "client", &["cat", "/etc/resolv.conf"]).1;
    let server = text
        .lines()
        .find_map(|line| line.strip_prefix("nameserver "))
        .expect("a server");
    let dig = |kind: &str, name: &str| {
        let name = format!("{name}.default.svc.cluster.local");
        world
            .node()
            .ok("dig", &["+short", &format!("@{server}"), kind, &name])
    };
    let wanted: BTreeSet<String> = ["one", "two"]
        .iter()
        .map(|name| addresses(&world.agent.pod(name))[0].to_string())
        .collect();
    wait_for("two A records", || {
        let said = dig("A", "web");
        let found: BTreeSet<String> = said.lines().map(str::to_owned).collect();
        if found == wanted { Ok(()) } else { Err(said) }
    });
    // Of one family: clients that try the first address only reach servers on `0.0.0.0`.
    assert_eq!(dig("AAAA", "web"), "");
    let records = |said: &str| said.lines().filter(|line| line.contains(" 8000 ")).count();
    let said = dig("SRV", "_http._tcp.web");
    assert_eq!(records(&said), 2, "one record for each pod: {said}");
    let both = format!("  ipFamilyPolicy: PreferDualStack\n{spec}");
    world.agent.write("web.yaml", &service("web", &both));
    wait_for("two AAAA records", || {
        let said = dig("AAAA", "web");
        match said.lines().count() {
            2 => Ok(()),
            _ => Err(said),
        }
    });
    let said = dig("SRV", "_http._tcp.web");
    assert_eq!(
        records(&said),
        4,
        "one for each address of each pod: {said}"
    );
}

#[test]
fn a_service_has_the_families_that_it_asks_for_in_their_order() {
    let world = world();
    let wait_spec = || {
        wait_for("two addresses", || {
            let shown = world.agent.ok(&["get", "services", "-o", "json"]);
            let shown = serde_json::from_str::<serde_json::Value>(&shown).expect("JSON");
            let spec = shown["items"][0]["spec"].clone();
            match spec["clusterIPs"].as_array().map(Vec::len) {
                Some(2) => Ok(spec),
                _ => Err(spec.to_string()),
            }
        })
    };
    let both = format!("  ipFamilyPolicy: RequireDualStack\n  ipFamilies: [IPv6, IPv4]\n{WEB}");
    world.agent.write("web.yaml", &service("web", &both));
    let spec = wait_spec();
    let first = spec["clusterIP"].as_str().unwrap_or_default();
    assert!(first.contains(':'), "{spec}");
    assert_eq!(spec["ipFamilies"], serde_json::json!(["IPv6", "IPv4"]));
    assert_eq!(spec["ipFamilyPolicy"], "RequireDualStack");
    spreads("web", || ask_name(&world, "web", 80));
    // One that is written gets an address of the other family beside it.
    let own = spec["clusterIPs"][1].as_str().expect("IPv4").to_owned();
    world.agent.remove("web.yaml");
    wait_for("an end", || {
        match world.agent.ok(&["get", "services", "-o", "name"]) {
            none if none.trim().is_empty() => Ok(()),
            some => Err(some),
        }
    });
    let given = format!("  ipFamilyPolicy: PreferDualStack\n  clusterIP: {own}\n{WEB}");
    world.agent.write("web.yaml", &service("web", &given));
    let spec = wait_spec();
    assert_eq!(spec["clusterIP"], *own);
    assert_eq!(spec["ipFamilies"], serde_json::json!(["IPv4", "IPv6"]));
}

#[test]
fn a_client_with_affinity_always_reaches_the_same_pod() {
    let world = world();
    let spec = "  sessionAffinity: ClientIP\n  selector: {app: web}\n  ports: [{port: 80, targetPort: 8000}]\n";
    world.agent.write("web.yaml", &service("web", spec));
    let first = wait_for("an answer", || ask_name(&world, "web", 80));
    for _ in 0..10 {
        assert_eq!(ask_name(&world, "web", 80), Ok(first.clone()));
    }
}

#[test]
fn services_work_while_no_agent_runs() {
    use nix::sys::signal::Signal;
    let world = world();
    world.agent.write("web.yaml", &service("web", WEB));
    spreads("web", || ask_name(&world, "web", 80));
    let address = || world.agent.ok(&["get", "services", "web", "-o", "json"]);
    let ip = |text: &str| {
        serde_json::from_str::<serde_json::Value>(text).expect("JSON")["spec"]["clusterIP"].clone()
    };
    let before = ip(&address());
    world.agent.signal(Signal::SIGKILL);
    world.agent.wait();
    let to: IpAddr = before
        .as_str()
        .and_then(|ip| ip.parse().ok())
        .expect("an address");
    world
        .node()
        .run(|| ask_tcp(at(to, 80)))
        .expect("the service works without an agent");
    world.agent.launch();
    world.agent.wait_running("one");
    spreads("web", || ask_name(&world, "web", 80));
    assert_eq!(ip(&address()), before);
}

#[test]
fn pods_on_the_hosts_network_alone_have_services_and_names() {
    let world = World::new();
    let policy = "  hostNetwork: true\n  dnsPolicy: ClusterFirstWithHostNet\n";
    let pod = who_pod_with("one", "{app: web}", 8000, policy, "");
    let node_port = "  type: NodePort\n  selector: {app: web}\n  ports: [{port: 80, targetPort: 8000, nodePort: 30080}]\n";
    world.agent.write("web.yaml", &service("web", node_port));
    world.start_server("one", &pod);
    let resolves = || {
        let (fine, said) = exec(
            &world.agent,
            "one",
            &["nslookup", "web.default.svc.cluster.local"],
        );
        if fine { Ok(()) } else { Err(said) }
    };
    let answers = || {
        let here = IpAddr::from([127, 0, 0, 1]);
        let said = world.node().run(|| ask_tcp(at(here, 30080)));
        said.map(drop).map_err(|error| error.to_string())
    };
    wait_for("a name", resolves);
    wait_for("the port of the node", answers);
    world.agent.kill_and_restart();
    wait_for("a name after an agent restart", resolves);
    wait_for("the port of the node after an agent restart", answers);
}
