//! Host ports: ports of the node that lead to pods.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener};

use crate::common::shell_pod;
use crate::world::*;

/// A server whose port 8000 is the node's `port`, for both protocols.
fn shown(name: &str, port: u16, host_ip: &str) -> String {
    let ip = if host_ip.is_empty() {
        String::new()
    } else {
        format!(", hostIP: \"{host_ip}\"")
    };
    let ports = format!(
        "    ports:\n    - {{containerPort: 8000, hostPort: {port}{ip}}}\n    \
         - {{containerPort: 8000, hostPort: {port}{ip}, protocol: UDP}}\n"
    );
    who_pod(name, 8000, "", &ports)
}

#[test]
fn a_remote_client_reaches_the_pod_and_is_seen_with_its_own_address() {
    let world = World::new();
    world.start_server("a", &shown("a", 9000, ""));
    for (to, client) in [(at(NODE4, 9000), REMOTE4), (at(NODE6, 9000), REMOTE6)] {
        for answer in world.remote.run(|| ask_both(to)) {
            assert_eq!(answer.expect("an answer"), format!("a {client}"), "{to}");
        }
    }
}

#[test]
fn a_client_on_the_node_reaches_the_pod_by_every_address_of_the_node() {
    let world = World::new();
    world.start_server("a", &shown("a", 9000, ""));
    let loopback4 = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let loopback6 = IpAddr::V6(Ipv6Addr::LOCALHOST);
    for ip in [loopback4, loopback6, NODE4, NODE6] {
        for answer in world.node().run(|| ask_both(at(ip, 9000))) {
            let said = answer.unwrap_or_else(|error| panic!("{ip}: {error}"));
            assert!(said.starts_with("a "), "{ip}: {said}");
        }
    }
}

#[test]
fn pods_reach_a_host_port_at_the_nodes_address_and_so_does_its_own_pod() {
    let world = World::new();
    world.start_server("a", &shown("a", 9000, ""));
    world.start_server("b", &who_pod("b", 8000, "", ""));
    for pod in ["a", "b"] {
        for ip in [NODE4, NODE6] {
            for protocol in ["tcp", "udp"] {
                let said = world.ask_from_pod(pod, protocol, at(ip, 9000));
                let said = said.unwrap_or_else(|error| panic!("{pod} {protocol} {ip}: {error}"));
                assert!(said.starts_with("a "), "{pod} {protocol} {ip}: {said}");
            }
        }
    }
}

#[test]
fn a_host_port_of_one_address_is_not_open_at_another() {
    let world = World::with(Plan {
        images: &[Image::Python],
        node_setup: &["addr add 192.0.2.20/24 dev uplink"],
        ..Plan::default()
    });
    world.start_server("a", &shown("a", 9000, "192.0.2.20"));
    world.start_server("b", &shown("b", 9000, "127.0.0.1"));
    let second: IpAddr = "192.0.2.20".parse().expect("an address");
    let answer = world.remote.run(|| ask_tcp(at(second, 9000)));
    assert_eq!(answer.expect("an answer"), format!("a {REMOTE4}"));
    assert!(world.remote.run(|| ask_tcp(at(NODE4, 9000))).is_err());
    let local = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let answer = world.node().run(|| ask_tcp(at(local, 9000)));
    assert!(answer.expect("an answer").starts_with("b "));
}

#[test]
fn an_address_that_stands_for_all_stands_for_those_of_its_family() {
    let world = World::new();
    world.start_server("a", &shown("a", 9000, "0.0.0.0"));
    world.start_server("b", &shown("b", 9001, "::"));
    for (to, answers) in [
        (at(NODE4, 9000), Some("a ")),
        (at(NODE6, 9000), None),
        (at(NODE4, 9001), None),
        (at(NODE6, 9001), Some("b ")),
    ] {
        let said = world.remote.run(|| ask_tcp(to));
        match answers {
            Some(name) => assert!(said.expect("an answer").starts_with(name), "{to}"),
            None => assert!(said.is_err(), "{to}: {said:?}"),
        }
    }
}

#[test]
fn a_second_pod_with_a_port_waits_until_the_first_is_gone_and_the_event_names_both() {
    let world = World::new();
    world.start_server("a", &shown("a", 9000, ""));
    world.agent.write("b.yaml", &shown("b", 9000, ""));
    let events = wait_event(&world.agent, "NodePorts");
    assert!(
        events.contains("9000") && events.contains("default/a"),
        "the port and its owner are named: {events}"
    );
    let b = world.agent.pod("b");
    assert_eq!(b["status"]["phase"], "Pending");
    assert_eq!(b["status"]["reason"], "NodePorts");
    let answer = world.remote.run(|| ask_tcp(at(NODE4, 9000)));
    assert!(answer.expect("an answer").starts_with("a "));
    world.agent.remove("a.yaml");
    world.agent.wait_running("b");
    world.agent.wait_line("b", "listening");
    let answer = world.remote.run(|| ask_tcp(at(NODE4, 9000)));
    assert!(answer.expect("an answer").starts_with("b "));
}

#[test]
fn a_port_that_a_program_of_the_node_listens_on_is_refused_and_the_program_is_named() {
    let world = World::new();
    let listener = world.node().run(|| TcpListener::bind(("0.0.0.0", 9000)));
    world.agent.write("a.yaml", &shown("a", 9000, ""));
    let events = wait_event(&world.agent, "FailedCreatePodSandBox");
    // The program is this test itself: its name is that of the test's binary.
    let own = std::fs::read_to_string("/proc/self/comm").expect("proc");
    assert!(
        events.contains("9000") && events.contains(own.trim()),
        "{own}: {events}"
    );
    assert_eq!(world.agent.pod("a")["status"]["phase"], "Pending");
    drop(listener);
    world.agent.wait_running("a");
}

#[test]
fn ports_of_pods_on_the_nodes_network_are_taken_too() {
    let world = World::new();
    let ports = "    ports: [{containerPort: 9000}]\n";
    world.start_server("a", &who_pod("a", 9000, "  hostNetwork: true\n", ports));
    world.agent.write("b.yaml", &shown("b", 9000, ""));
    let events = wait_event(&world.agent, "NodePorts");
    assert!(events.contains("9000"), "{events}");
    world.agent.remove("a.yaml");
    world.agent.wait_running("b");
}

#[test]
fn a_client_reaches_the_new_pod_from_the_same_udp_port_when_the_pod_is_replaced() {
    let world = World::new();
    world.start_server("a", &shown("a", 9000, ""));
    let ask = from_one_port(&world.remote, at(NODE4, 9000));
    assert!(wait_for("an answer", &ask).starts_with("a "));
    world.agent.remove("a.yaml");
    world.agent.wait_gone("a");
    let _ = ask(); // The kernel would remember a packet that no pod receives, and later ones would not reach the next pod.
    world.start_server("b", &shown("b", 9000, ""));
    assert!(wait_for("an answer", &ask).starts_with("b "));
}

#[test]
fn a_pod_without_ports_shows_none() {
    let world = World::new();
    world.agent.write(
        "a.yaml",
        &shell_pod("a", "exec nc -ll -p 8000 -e echo hi", "", ""),
    );
    world.agent.wait_running("a");
    assert!(world.remote.run(|| ask_tcp(at(NODE4, 8000))).is_err());
}
