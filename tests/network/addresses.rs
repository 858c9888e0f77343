//! Pod addresses, and which hosts reach each other.

use crate::common::{BRIDGE, shell_pod};
use crate::world::*;

const SLEEP: &str = "trap 'exit 0' TERM; while :; do sleep 1 & wait $!; done";

#[test]
fn the_world_of_the_tests_is_connected() {
    let world = World::new();
    serve_on(&world.remote, "remote", &[REMOTE4, REMOTE6], 7000);
    serve_on(&world.lan, "far", &[FAR4, FAR6], 7001);
    for to in [at(REMOTE4, 7000), at(REMOTE6, 7000)] {
        for answer in world.node().run(|| ask_both(to)) {
            let said = answer.expect("an answer");
            let own = if to.is_ipv4() { NODE4 } else { NODE6 };
            assert_eq!(said, format!("remote {own}"));
        }
    }
    for to in [at(FAR4, 7001), at(FAR6, 7001)] {
        world
            .node()
            .run(|| ask_tcp(to))
            .expect("the router answers");
    }
}

#[test]
fn a_server_in_a_pod_on_the_nodes_network_is_reached_from_remote() {
    let world = World::new();
    world.start_server("a", &who_pod("a", 8000, "  hostNetwork: true\n", ""));
    for to in [at(NODE4, 8000), at(NODE6, 8000)] {
        for answer in world.remote.run(|| ask_both(to)) {
            let own = if to.is_ipv4() { REMOTE4 } else { REMOTE6 };
            assert_eq!(answer.expect("an answer"), format!("a {own}"));
        }
    }
    let asked = world.ask_from_pod("a", "tcp", at(NODE4, 8000));
    assert_eq!(asked, Ok(format!("a {NODE4}")));
    let pod = world.agent.pod("a");
    assert_eq!(pod["status"]["podIP"], NODE4.to_string());
    assert_eq!(pod["status"]["hostIP"], NODE4.to_string());
}

#[test]
fn a_pods_addresses_are_shown_wherever_the_pod_is_shown() {
    let world = World::new();
    world.agent.write("a.yaml", &shell_pod("a", SLEEP, "", ""));
    let pod = world.agent.wait_running("a");
    let ips = addresses(&pod);
    assert_eq!(ips.len(), 2, "{pod:#}");
    assert!(ips[0].is_ipv4() && ips[1].is_ipv6(), "{ips:?}");
    assert_eq!(pod["status"]["podIP"], ips[0].to_string());
    assert_eq!(pod["status"]["hostIP"], NODE4.to_string());
    let hosts = pod["status"]["hostIPs"].to_string();
    assert!(hosts.contains(&NODE6.to_string()), "{hosts}");
    assert!(
        !hosts.contains(&bridge_address(&world)),
        "the bridge's address is not a node address: {hosts}"
    );
    let conditions = pod["status"]["conditions"].as_array().expect("conditions");
    let ready = |c: &&serde_json::Value| c["type"] == "PodReadyToStartContainers";
    assert_eq!(
        conditions.iter().find(ready).expect("there")["status"],
        "True"
    );
    let wide = world.agent.ok(&["get", "pods", "-o", "wide"]);
    assert!(
        wide.contains("IP") && wide.contains(&ips[0].to_string()),
        "{wide}"
    );
    let page = world.agent.ok(&["describe", "pod", "a"]);
    assert!(
        page.contains(&ips[0].to_string()) && page.contains(&ips[1].to_string()),
        "{page}"
    );
    let inside = exec(&world.agent, "a", &["ip", "addr", "show", "eth0"]).1;
    for ip in &ips {
        assert!(inside.contains(&format!("{ip}/")), "{inside}");
    }
    let lo = exec(&world.agent, "a", &["ip", "addr", "show", "lo"]).1;
    assert!(lo.contains("127.0.0.1/8") && lo.contains("UP"), "{lo}");
}

/// The bridge's IPv4 address.
fn bridge_address(world: &World) -> String {
    let text = world.node().ip(&format!("-4 -br addr show dev {BRIDGE}"));
    let address = text.split_whitespace().nth(2).expect("an address");
    address.split('/').next().expect("an address").to_owned()
}

#[test]
fn pods_node_and_remote_hosts_reach_each_other_over_both_families() {
    let world = World::new();
    let a = world.start_server("a", &who_pod("a", 8000, "", ""));
    let b = world.start_server("b", &who_pod("b", 8000, "", ""));
    serve_on(world.node(), "node", &[NODE4, NODE6], 7000);
    serve_on(&world.remote, "remote", &[REMOTE4, REMOTE6], 7000);
    serve_on(&world.lan, "far", &[FAR4, FAR6], 7001);
    for family in [0, 1] {
        let node = [NODE4, NODE6][family];
        for protocol in ["tcp", "udp"] {
            let ask = |ip, port| world.ask_from_pod("a", protocol, at(ip, port));
            let pod_sees_pod = ask(b[family], 8000);
            assert_eq!(
                pod_sees_pod,
                Ok(format!("b {}", a[family])),
                "the client's own address is seen"
            );
            let itself = ask(a[family], 8000);
            assert_eq!(itself, Ok(format!("a {}", a[family])), "by its own address");
            let node_sees_pod = ask(node, 7000);
            assert_eq!(node_sees_pod, Ok(format!("node {}", a[family])));
            let remote_sees_node = ask([REMOTE4, REMOTE6][family], 7000);
            assert_eq!(
                remote_sees_node,
                Ok(format!("remote {node}")),
                "masqueraded"
            );
            let behind_the_router = ask([FAR4, FAR6][family], 7001);
            assert_eq!(behind_the_router, Ok(format!("far {node}")));
        }
        for answer in world.node().run(|| ask_both(at(a[family], 8000))) {
            let said = answer.expect("the node reaches the pod");
            assert!(said.starts_with("a "), "{said}");
        }
    }
}

#[test]
fn nginx_and_pythons_http_server_serve_pages() {
    let world = World::with(Plan {
        images: &[Image::Nginx, Image::Python],
        ..Plan::default()
    });
    let pod = |name: &str, image: &str, command: &str, port: u16| {
        format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec:\n  terminationGracePeriodSeconds: 1\n  \
             containers:\n  - name: main\n    image: {image}:test\n    command: {command}\n    ports:\n    \
             - {{containerPort: {port}, hostPort: 80{port}}}\n"
        )
    };
    let nginx = pod("web", "nginx", "[nginx, -g, daemon off;]", 80);
    let python = pod(
        "files",
        "python",
        "[python3, -m, http.server, \"81\", --directory, /var/www]",
        81,
    );
    world.agent.write("web.yaml", &nginx);
    world.agent.write("files.yaml", &python);
    for (name, port, page) in [
        ("web", 8080, "Welcome to nginx!"),
        ("files", 8081, "It works"),
    ] {
        world.agent.wait_running(name);
        for node in [NODE4, NODE6] {
            // `http.server` listens on IPv4 only unless it is given another address.
            if name == "files" && node.is_ipv6() {
                continue;
            }
            wait_for(page, || {
                let said = world.remote.run(|| get_page(at(node, port), "/"));
                let said = said.map_err(|error| error.to_string())?;
                if said.contains(page) {
                    Ok(())
                } else {
                    Err(said)
                }
            });
        }
    }
    let seen = world.remote.run(|| get_page(at(NODE4, 8080), "/who"));
    let seen = seen.expect("a page");
    assert!(
        seen.ends_with(&format!("\n{REMOTE4}\n")),
        "nginx sees the client's address: {seen}"
    );
}

#[test]
fn an_address_is_kept_over_agent_restarts_and_power_cuts_and_freed_with_the_pod() {
    let world = World::new();
    let agent = &world.agent;
    agent.write("a.yaml", &shell_pod("a", SLEEP, "", ""));
    agent.write("b.yaml", &shell_pod("b", SLEEP, "", ""));
    let a = addresses(&agent.wait_running("a"));
    let b = addresses(&agent.wait_running("b"));
    assert_ne!(a, b);
    agent.kill_and_restart();
    assert_eq!(addresses(&agent.wait_running("a")), a);
    agent.remove("b.yaml");
    agent.wait_gone("b");
    agent.power_cut();
    agent.launch();
    assert_eq!(addresses(&agent.wait_running("a")), a);
    agent.write("b.yaml", &shell_pod("b", SLEEP, "", ""));
    assert_eq!(
        addresses(&agent.wait_running("b")),
        b,
        "a pod of the same name gets the same address again"
    );
}

#[test]
fn traffic_is_counted_for_each_pod() {
    let world = World::new();
    let a = world.start_server("a", &who_pod("a", 8000, "", ""));
    for _ in 0..20 {
        world
            .node()
            .run(|| ask_tcp(at(a[0], 8000)))
            .expect("an answer");
    }
    let name = "container_network_receive_bytes_total";
    let count = wait_for("counted bytes", || {
        let metrics = [
            world.agent.request("/metrics/cadvisor").0,
            world.agent.request("/metrics").0,
        ]
        .concat();
        let mut lines = metrics.lines().filter(|line| line.starts_with(name));
        let wanted = ["interface=\"eth0\"", "namespace=\"default\"", "pod=\"a\""];
        let line = lines.find(|line| wanted.iter().all(|label| line.contains(label)));
        let value = line.and_then(|line| {
            line.rsplit('}')
                .next()?
                .split_whitespace()
                .next()?
                .parse::<f64>()
                .ok()
        });
        value.filter(|bytes| *bytes > 1000.0).ok_or(metrics)
    });
    assert!(count < 1e6, "{count}");
}

#[test]
fn two_hundred_pods_have_two_hundred_addresses() {
    let world = World::with(Plan::default());
    let mut all = std::collections::BTreeSet::new();
    // This takes effect at once; the kubelet's default is 110.
    let more = world.agent.root.join("config.d/10-more.conf");
    std::fs::write(more, "kind: KubeletConfiguration\nmaxPods: 200\n").expect("written");
    for index in 0..200 {
        let name = format!("p{index}");
        let text = shell_pod(&name, "exec sleep 1000", "", "");
        world.agent.write(&format!("{name}.yaml"), &text);
    }
    for index in 0..200 {
        let pod = world.agent.wait_running(&format!("p{index}"));
        all.extend(addresses(&pod));
    }
    assert_eq!(all.len(), 400);
    let last = addresses(&world.agent.pod("p199"))[0].to_string();
    let (fine, said) = exec(&world.agent, "p0", &["ping", "-c", "1", "-W", "5", &last]);
    assert!(fine, "{said}");
}
