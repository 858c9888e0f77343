//! Recovery from damage to the network, by hand or by other programs.

use std::time::Duration;

use nix::sys::signal::Signal;

use crate::common::{BRIDGE, shell_pod};
use crate::world::*;

/// A world with a server `a` at the node's port 9000, and the server's addresses.
fn with_server() -> (World, Vec<std::net::IpAddr>) {
    let world = World::new();
    let ports = "    ports: [{containerPort: 8000, hostPort: 9000}]\n";
    let ips = world.start_server("a", &who_pod("a", 8000, "", ports));
    serve_on(&world.other, "other", &[OTHER4], 7000);
    (world, ips)
}

fn works(world: &World, ips: &[std::net::IpAddr]) -> Duration {
    let fine =
        |answer: &std::io::Result<String>| answer.as_ref().is_ok_and(|said| said.starts_with("a "));
    let node = world.node();
    let took = ask_until(&world.remote, at(NODE4, 9000), fine);
    ask_until(&world.remote, at(NODE6, 9000), fine);
    ask_until(node, at(ips[0], 8000), fine);
    ask_until(node, at(ips[1], 8000), fine);
    wait_for("a way out", || {
        world.ask_from_pod("a", "tcp", at(OTHER4, 7000))
    });
    took
}

#[test]
fn flushed_rules_are_restored_within_seconds_and_foreign_tables_stay() {
    let (world, ips) = with_server();
    world.node().ok("nft", &["flush", "ruleset"]);
    let took = works(&world, &ips);
    assert!(took < Duration::from_secs(3), "{took:?}");
    world.node().ok("nft", &["add", "table", "inet", "foreign"]);
    world.node().ok("nft", &["delete", "table", "inet", BRIDGE]);
    let took = ask_until(&world.remote, at(NODE4, 9000), Result::is_ok);
    assert!(took < Duration::from_secs(3), "{took:?}");
    let tables = world.node().ok("nft", &["list", "tables"]);
    assert!(tables.contains("inet foreign"), "{tables}");
}

#[test]
fn a_client_that_began_while_the_rules_were_gone_is_led_to_the_pod_once_they_are_back() {
    let world = World::new();
    let ports = "    ports: [{containerPort: 8000, hostPort: 9000, protocol: UDP}]\n";
    world.start_server("a", &who_pod("a", 8000, "", ports));
    // Another program's rules have the kernel remember where packets went.
    let nft = |args: &[&str]| world.node().ok("nft", args);
    nft(&["add table inet own; add chain inet own in { type filter hook input priority 0; }"]);
    nft(&["add rule inet own in ct state established accept"]);
    world.agent.signal(Signal::SIGSTOP);
    nft(&["delete", "table", "inet", BRIDGE]);
    let ask = from_one_port(&world.remote, at(NODE4, 9000));
    assert!(ask().is_err(), "nothing leads to the pod");
    world.agent.signal(Signal::SIGCONT);
    // It never pauses for the 30 s after which the kernel would forget it.
    assert!(wait_for("an answer", ask).starts_with("a "));
}

#[test]
fn a_bridge_deleted_by_hand_is_made_again_with_its_pods() {
    let (world, ips) = with_server();
    world.node().ip(&format!("link del {BRIDGE}"));
    works(&world, &ips);
}

#[test]
fn a_bridge_that_was_set_down_comes_up_again() {
    let (world, ips) = with_server();
    world.node().ip(&format!("link set {BRIDGE} down"));
    works(&world, &ips);
}

#[test]
fn a_pods_interface_deleted_by_hand_is_made_again_with_its_address() {
    let (world, ips) = with_server();
    let veth = world.node().links();
    let veth = veth
        .iter()
        .find(|link| link.starts_with("vc"))
        .expect("a pod's interface");
    world.node().ip(&format!("link del {veth}"));
    works(&world, &ips);
    assert_eq!(addresses(&world.agent.pod("a")), ips);
}

#[test]
fn traffic_flows_while_no_agent_runs_and_the_restarted_agent_does_not_interrupt_it() {
    use std::io::{BufRead, Write};
    let world = World::new();
    let ports = "    ports: [{containerPort: 8000, hostPort: 9000}]\n";
    let echo = "exec nc -ll -p 8000 -e cat";
    world
        .agent
        .write("a.yaml", &shell_pod("a", echo, "", ports));
    world.agent.wait_running("a");
    let stream = wait_for("a connection", || {
        let connected = world
            .remote
            .run(|| std::net::TcpStream::connect(at(NODE4, 9000)));
        connected.map_err(|error| error.to_string())
    });
    stream
        .set_read_timeout(Some(Duration::from_secs(5)))
        .expect("timeout");
    let mut lines = std::io::BufReader::new(stream.try_clone().expect("duplicated"));
    let mut says = |word: &str| {
        let mut said = String::new();
        (&stream)
            .write_all(format!("{word}\n").as_bytes())
            .expect("sent");
        lines.read_line(&mut said).expect("the connection is open");
        assert_eq!(said.trim(), word);
    };
    says("before");
    world.agent.signal(Signal::SIGKILL);
    world.agent.wait();
    says("without an agent");
    world
        .remote
        .run(|| std::net::TcpStream::connect(at(NODE4, 9000)))
        .expect("new connections work, too");
    world.agent.launch();
    world.agent.wait_running("a");
    says("with the next");
}

#[test]
fn rules_flushed_while_no_agent_runs_are_restored_at_its_start() {
    let (world, ips) = with_server();
    world.agent.signal(Signal::SIGKILL);
    world.agent.wait();
    world.node().ok("nft", &["flush", "ruleset"]);
    world.agent.launch();
    works(&world, &ips);
}

#[test]
fn a_pod_removed_while_no_agent_runs_leaves_no_interface_and_no_rule() {
    let (world, _) = with_server();
    world.agent.signal(Signal::SIGKILL);
    world.agent.wait();
    world.agent.remove("a.yaml");
    world.agent.launch();
    world.agent.wait_gone("a");
    assert_eq!(world.agent.leftovers(), Vec::<String>::new());
    assert!(world.remote.run(|| ask_tcp(at(NODE4, 9000))).is_err());
}

#[test]
fn a_pod_on_the_nodes_network_that_starts_first_leaves_the_namespaces_of_others_in_place() {
    let (world, _) = with_server();
    let agent = &world.agent;
    agent.remove("a.yaml");
    agent.wait_gone("a");
    let folder = agent.root.join("run/netns").display().to_string();
    let mounts = || {
        let table = std::fs::read_to_string("/proc/self/mountinfo").expect("proc");
        let at = table.lines().filter_map(|line| line.split(' ').nth(4));
        at.filter(|at| *at == folder).count()
    };
    assert_eq!(mounts(), 1);
    let host = shell_pod("host", "exec sleep 1000", "  hostNetwork: true\n", "");
    agent.write("host.yaml", &host);
    agent.wait_running("host");
    assert_eq!(mounts(), 1, "the pod's shim unmounted the agent's folder");
    let ports = "    ports: [{containerPort: 8000, hostPort: 9000}]\n";
    let ips = world.start_server("a", &who_pod("a", 8000, "", ports));
    agent.kill_and_restart();
    world.node().ip(&format!("link del {BRIDGE}"));
    works(&world, &ips);
    agent.remove("a.yaml");
    agent.wait_gone("a");
    agent.remove("host.yaml");
    agent.wait_gone("host");
    assert_eq!(agent.leftovers(), Vec::<String>::new());
}

#[test]
fn after_a_power_cut_everything_is_made_again() {
    let (world, ips) = with_server();
    world.agent.power_cut();
    world.agent.launch();
    world.agent.wait_running("a");
    works(&world, &ips);
}

/// Gives the agent an `nft` that fails while the file `broken` is in the agent's root.
const NFT: &str = r#"
for word; do [ "$last" = --run-dir ] && root=${word%/run}; last=$word; done
mount -t tmpfs none /mnt && cp /usr/sbin/nft /mnt/nft && cat > /mnt/fails << END
#!/bin/sh
[ -e $root/broken ] && { cat >/dev/null; echo "Error: out of luck" >&2; exit 1; }
exec /mnt/nft "\$@"
END
chmod 755 /mnt/fails && mount --bind /mnt/fails /usr/sbin/nft && exec "$@"
"#;

#[test]
fn what_the_packet_filter_refused_for_a_while_is_in_force_later() {
    let world = World::with(Plan {
        wrapper: Some(NFT),
        images: &[Image::Python],
        ..Plan::default()
    });
    let pod = who_pod_with("a", "{app: a}", 8000, "", "");
    let ips = world.start_server("a", &pod);
    let broken = world.agent.root.join("broken");
    let wait_log = |text: &str| {
        wait_for(text, || match world.agent.log().contains(text) {
            true => Ok(()),
            false => Err(world.agent.log()),
        });
    };
    std::fs::write(&broken, "").expect("temp dir");
    let service = "apiVersion: v1\nkind: Service\nmetadata: {name: a}\nspec: {type: NodePort, selector: {app: a}, \
                   ports: [{port: 80, targetPort: 8000, nodePort: 30081}]}\n";
    world.agent.write("service.yaml", service);
    wait_log("retrying in");
    std::fs::remove_file(&broken).expect("own file");
    let fine =
        |answer: &std::io::Result<String>| answer.as_ref().is_ok_and(|said| said.starts_with("a "));
    ask_until(&world.remote, at(NODE4, 30081), fine);
    // The name server needs its rules, too.
    std::fs::write(&broken, "").expect("temp dir");
    world.agent.kill_and_restart();
    wait_log("trying again");
    std::fs::remove_file(&broken).expect("own file");
    wait_for("a name", || {
        let (fine, said) = exec(
            &world.agent,
            "a",
            &["nslookup", "a.default.svc.cluster.local"],
        );
        if fine { Ok(()) } else { Err(said) }
    });
    ask_until(world.node(), at(ips[0], 8000), fine);
}

#[test]
fn a_bridge_of_another_name_waits_until_no_pod_is_on_the_former_one() {
    let (world, ips) = with_server();
    let settings = "kind: KubeletConfiguration\napiVersion: kubelet.config.k8s.io/v1beta1\ncoracle: {bridge: pods8}\n";
    std::fs::write(world.agent.root.join("config.d/10-bridge.conf"), settings).expect("temp dir");
    world.agent.kill_and_restart();
    works(&world, &ips);
    let has = |name: &str| world.node().links().iter().any(|link| link == name);
    assert!(has(BRIDGE) && !has("pods8"), "{:?}", world.node().links());
    world.agent.remove("a.yaml");
    world.agent.wait_gone("a");
    world.agent.kill_and_restart();
    let ports = "    ports: [{containerPort: 8000, hostPort: 9000}]\n";
    let ips = world.start_server("a", &who_pod("a", 8000, "", ports));
    works(&world, &ips);
    assert!(has("pods8") && !has(BRIDGE), "{:?}", world.node().links());
    let tables = world.node().ok("nft", &["list", "tables"]);
    assert!(!tables.contains(BRIDGE), "{tables}");
}
