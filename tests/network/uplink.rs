//! Variants of the node's own network: small MTU, no uplink, no IPv6, ranges in use, no `nft`.

use std::time::{Duration, Instant};

use crate::common::{BRIDGE, shell_pod};
use crate::world::*;

const SLEEP: &str = "exec sleep 1000";

fn mtu_inside(world: &World, pod: &str) -> String {
    let text = exec(&world.agent, pod, &["ip", "link", "show", "eth0"]).1;
    let mut words = text.split_whitespace().skip_while(|word| *word != "mtu");
    words.nth(1).unwrap_or_default().to_owned()
}

#[test]
fn the_uplinks_mtu_applies_to_new_and_to_running_pods() {
    let world = World::with(Plan {
        mtu: Some(1400),
        ..Plan::default()
    });
    world.agent.write("a.yaml", &shell_pod("a", SLEEP, "", ""));
    world.agent.wait_running("a");
    assert_eq!(mtu_inside(&world, "a"), "1400");
    for mtu in ["1300", "1450"] {
        world.node().ip(&format!("link set uplink mtu {mtu}"));
        wait_for(mtu, || {
            let found = mtu_inside(&world, "a");
            if found == mtu { Ok(()) } else { Err(found) }
        });
    }
}

#[test]
fn pods_reach_each_other_without_an_uplink_and_the_outside_once_there_is_one() {
    let world = World::with(Plan {
        alone: true,
        images: &[Image::Python],
        ..Plan::default()
    });
    let ports = "    ports: [{containerPort: 8000, hostPort: 9000}]\n";
    world.start_server("a", &who_pod("a", 8000, "", ports));
    let b = world.start_server("b", &who_pod("b", 8000, "", ""));
    for ip in b {
        let said = world
            .ask_from_pod("a", "tcp", at(ip, 8000))
            .expect("an answer");
        assert!(said.starts_with("b "), "{said}");
    }
    let local = "127.0.0.1".parse().expect("an address");
    world
        .node()
        .run(|| ask_tcp(at(local, 9000)))
        .expect("an answer");
    // The cable is plugged in.
    let path = world.node().path();
    world.lan.ip(&format!(
        "link add to-node type veth peer name uplink netns {path}"
    ));
    world.lan.ip("link set to-node master lan up");
    world.node().ip("link set uplink up");
    world.node().ip("addr add 192.0.2.10/24 dev uplink");
    serve_on(&world.remote, "remote", &[REMOTE4, REMOTE6], 7000);
    wait_for("a way out", || {
        world.ask_from_pod("a", "tcp", at(REMOTE4, 7000))
    });
    let seen = ask_until(&world.remote, at(NODE4, 9000), Result::is_ok);
    assert!(seen.as_secs() < 5, "{seen:?}");
    wait_for("the node's address in the pod's status", || {
        let pod = world.agent.pod("a");
        if pod["status"]["hostIP"] == NODE4.to_string() {
            Ok(())
        } else {
            Err(pod["status"].to_string())
        }
    });
}

#[test]
fn a_service_leads_to_a_pod_on_the_nodes_network_without_an_uplink_and_with_one_that_goes() {
    let world = World::with(Plan {
        alone: true,
        images: &[Image::Python],
        ..Plan::default()
    });
    world.start_server("a", &who_pod("a", 8000, "", ""));
    let own = "  hostNetwork: true\n";
    world
        .agent
        .write("h.yaml", &who_pod_with("h", "{app: h}", 9000, own, ""));
    world.agent.wait_running("h");
    world.agent.write(
        "svc.yaml",
        "apiVersion: v1\nkind: Service\nmetadata: {name: h}\nspec:\n  selector: {app: h}\n  \
         ports: [{port: 80, targetPort: 9000}]\n",
    );
    let script = "import socket; print(socket.create_connection(('h', 80), 2).recv(512).decode())";
    let address = "jsonpath={.subsets[*].addresses[*].ip}";
    let endpoint = || world.agent.ok(&["get", "endpoints", "h", "-o", address]);
    let answers = |at: &str| {
        wait_for("an answer", || {
            let (fine, said) = exec(&world.agent, "a", &["python3", "-c", script]);
            let shown = endpoint();
            match fine && said.starts_with("h ") && shown.contains(at) {
                true => Ok(shown),
                false => Err(said + &shown),
            }
        })
    };
    let inside = answers("10.");
    for (change, outside) in [
        ("link add uplink type veth peer name far", false),
        ("link set far up", false),
        ("link set uplink up", false),
        ("addr add 192.0.2.10/24 dev uplink", true),
        ("link del uplink", false),
    ] {
        world.node().ip(change);
        match outside {
            true => _ = answers("192.0.2.10"),
            false => assert_eq!(answers("10."), inside, "{change}"),
        }
    }
}

#[test]
fn the_node_may_change_its_address() {
    let world = World::new();
    let ports = "    ports: [{containerPort: 8000, hostPort: 9000}]\n";
    world.start_server("a", &who_pod("a", 8000, "", ports));
    // The kernel removes the second address of a subnet with the first.
    world.node().ip("addr del 192.0.2.10/24 dev uplink");
    world.node().ip("addr add 192.0.2.30/24 dev uplink");
    world.node().ip("route add default via 192.0.2.1");
    let new = "192.0.2.30".parse().expect("an address");
    ask_until(&world.remote, at(new, 9000), Result::is_ok);
    serve_on(&world.remote, "remote", &[REMOTE4, REMOTE6], 7000);
    let said = world.ask_from_pod("a", "tcp", at(REMOTE4, 7000));
    assert_eq!(said, Ok("remote 192.0.2.30".to_owned()));
}

#[test]
fn without_ipv6_pods_have_only_ipv4() {
    let world = World::with(Plan {
        without_ipv6: true,
        images: &[Image::Python],
        ..Plan::default()
    });
    let ports = "    ports: [{containerPort: 8000, hostPort: 9000}]\n";
    let a = world.start_server("a", &who_pod("a", 8000, "", ports));
    assert!(a.len() == 1 && a[0].is_ipv4(), "{a:?}");
    let answer = world.remote.run(|| ask_tcp(at(NODE4, 9000)));
    assert_eq!(answer.expect("an answer"), format!("a {REMOTE4}"));
}

#[test]
fn a_range_in_use_is_not_chosen() {
    // This node already uses the range that is chosen by default.
    let free = World::with(Plan::default());
    free.agent.write("a.yaml", &shell_pod("a", SLEEP, "", ""));
    let usual = addresses(&free.agent.wait_running("a"))[0].to_string();
    let subnet: Vec<&str> = usual.split('.').take(2).collect();
    let route: &'static str =
        Box::leak(format!("route add {}.0.0/16 via 192.0.2.1", subnet.join(".")).into());
    let world = World::with(Plan {
        node_setup: Box::leak(Box::new([route])),
        ..Plan::default()
    });
    world.agent.write("a.yaml", &shell_pod("a", SLEEP, "", ""));
    let other = addresses(&world.agent.wait_running("a"))[0].to_string();
    assert!(
        !other.starts_with(&format!("{}.", subnet.join("."))),
        "{other}"
    );
}

#[test]
fn a_configured_range_that_is_in_use_is_refused_and_its_route_is_named() {
    let world = World::with(Plan {
        flags: &["--pod-cidr", "10.99.0.0/16"],
        node_setup: &["route add 10.0.0.0/8 via 192.0.2.1"],
        ..Plan::default()
    });
    world.agent.write("a.yaml", &shell_pod("a", SLEEP, "", ""));
    let events = wait_event(&world.agent, "FailedCreatePodSandBox");
    for word in ["10.99.0.0/16", "10.0.0.0/8", "--pod-cidr"] {
        assert!(events.contains(word), "no {word}: {events}");
    }
    world.agent.write(
        "host.yaml",
        &shell_pod("host", SLEEP, "  hostNetwork: true\n", ""),
    );
    world.agent.wait_running("host");
    world.node().ip("route del 10.0.0.0/8");
    let ips = addresses(&world.agent.wait_running("a"));
    assert!(ips[0].to_string().starts_with("10.99."), "{ips:?}");
}

#[test]
fn the_ranges_and_the_bridges_name_can_be_configured() {
    let world = World::with(Plan {
        flags: &["--bridge", "pods7"],
        config: "podCIDR: \"10.50.0.0/24,fd50::/64\"\n",
        ..Plan::default()
    });
    world.agent.write("a.yaml", &shell_pod("a", SLEEP, "", ""));
    let ips = addresses(&world.agent.wait_running("a"));
    assert!(
        ips[0].to_string().starts_with("10.50.0.") && ips[1].to_string().starts_with("fd50::"),
        "{ips:?}"
    );
    let links = world.node().links();
    assert!(
        links.iter().any(|link| link == "pods7") && !links.iter().any(|link| link == BRIDGE),
        "{links:?}"
    );
}

#[test]
fn a_foreign_interface_with_the_bridges_name_is_left_alone_and_reported() {
    let world = World::with(Plan {
        node_setup: &["link add coracle0 type veth peer name elsewhere"],
        ..Plan::default()
    });
    world.agent.write("a.yaml", &shell_pod("a", SLEEP, "", ""));
    let events = wait_event(&world.agent, "FailedCreatePodSandBox");
    assert!(events.contains(BRIDGE), "{events}");
    world.node().ip("link del coracle0");
    world.agent.wait_running("a");
}

#[test]
fn without_nft_pods_on_the_nodes_network_run_and_others_report_what_is_missing() {
    // In the agent's view, something that is no program covers `nft`.
    let world = World::with(Plan {
        wrapper: Some("mount --bind /dev/null /usr/sbin/nft && exec \"$@\""),
        ..Plan::default()
    });
    let host = shell_pod("host", SLEEP, "  hostNetwork: true\n", "");
    world.agent.write("host.yaml", &host);
    world.agent.write("a.yaml", &shell_pod("a", SLEEP, "", ""));
    world.agent.wait_running("host");
    let events = wait_event(&world.agent, "FailedCreatePodSandBox");
    assert!(
        events.contains("`nft`") && events.contains("nftables"),
        "{events}"
    );
    assert_eq!(world.agent.pod("a")["status"]["phase"], "Pending");
    // Once `nft` is there, the pod starts without further action.
    let agent = world.agent.pid().to_string();
    let uncover = ["-t", &agent, "-m", "umount", "/usr/sbin/nft"];
    world.node().ok("nsenter", &uncover);
    world.agent.wait_running("a");
}

#[test]
fn while_nft_hangs_pods_on_the_nodes_network_start_and_stop() {
    let world = World::with(Plan {
        wrapper: Some(
            "mount -t tmpfs none /mnt && printf '#!/bin/sh\\nexec sleep 1000\\n' > /mnt/stuck && chmod 755 /mnt/stuck && \
             mount --bind /mnt/stuck /usr/sbin/nft && exec \"$@\"",
        ),
        ..Plan::default()
    });
    // These are more pods than there are threads for them.
    for index in 0..20 {
        let name = format!("a{index}");
        let pod = shell_pod(&name, SLEEP, "", "");
        world.agent.write(&format!("{name}.yaml"), &pod);
    }
    world.agent.wait_pod("a19", |_| true);
    let begin = Instant::now();
    let host = shell_pod("host", SLEEP, "  hostNetwork: true\n", "");
    world.agent.write("host.yaml", &host);
    world.agent.wait_running("host");
    world.agent.remove("host.yaml");
    world.agent.wait_gone("host");
    // The agent gives a run of `nft` 10 s.
    let took = begin.elapsed();
    assert!(took < Duration::from_secs(8), "{took:?}");
}

#[test]
fn a_node_whose_pods_all_use_its_network_stays_unchanged() {
    let world = World::with(Plan::default());
    let sysctls = [
        "ipv4/ip_forward",
        "ipv6/conf/all/forwarding",
        "ipv4/conf/all/rp_filter",
        "ipv4/conf/all/route_localnet",
    ];
    // A new namespace inherits the machine's values, which may forward already.
    for switch in ["ip_forward=0", "conf.all.route_localnet=0"] {
        let switch = format!("net.ipv4.{switch}");
        world.node().ok("sysctl", &["-qw", &switch]);
    }
    let read = || sysctls.map(|name| world.node().sysctl(name));
    let before = read();
    world.agent.write(
        "a.yaml",
        &shell_pod("a", SLEEP, "  hostNetwork: true\n", ""),
    );
    world.agent.wait_running("a");
    world.agent.kill_and_restart();
    world.agent.wait_running("a");
    assert_eq!(read(), before);
    assert_eq!(before[0], "0");
    assert_eq!(world.node().links(), ["uplink"]);
    assert_eq!(world.node().ok("nft", &["list", "ruleset"]), "");
}
