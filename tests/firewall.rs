//! Packets go where the rules say. Real rules in network namespaces: a node with a bridge and two pods, and a neighbour.
//! Needs root, and `nftables`, `iproute2` and `python3`.

#![allow(clippy::print_stdout, reason = "the test prints figures")]

#[path = "firewall/crash.rs"]
mod crash;
#[path = "firewall/figures.rs"]
mod figures;
#[path = "firewall/spoofing.rs"]
mod spoofing;
#[path = "firewall/world.rs"]
mod world;

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::time::{Duration, Instant};

use coracle::network::firewall::{Firewall, Ruleset, ServiceRoute};
use coracle::network::listeners;
use coracle::spec::Protocol;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use world::*;

use Protocol::{Tcp, Udp};

#[test]
fn host_ports_lead_to_the_pod_from_everywhere_and_remote_addresses_are_kept() {
    let world = World::new();
    let World { node, a, b, remote } = &world;
    serve(a, "a", 80);
    let firewall = Firewall::default();
    inside(node, || {
        firewall.update(rules).unwrap();
        let ports = [
            host_port(Tcp, None, 8080, 80),
            host_port(Udp, None, 8080, 80),
        ];
        firewall
            .update(|rules| rules.pods.extend([pod(2, &ports)]))
            .unwrap();
    });
    let cases = [
        (remote, "192.0.2.1:8080", "a 192.0.2.2"),
        (remote, "[2001:db8::1]:8080", "a 2001:db8::2"),
        (node, "127.0.0.1:8080", "a 10.77.0.1"),
        (node, "127.1.2.3:8080", "a 10.77.0.1"),
        (node, "[::1]:8080", "a fd77::1"),
        (node, "192.0.2.1:8080", "a 192.0.2.1"),
        (node, "[2001:db8::1]:8080", "a 2001:db8::1"),
        (node, "10.77.0.2:80", "a 10.77.0.1"),
        (b, "10.77.0.2:80", "a 10.77.0.3"),
        (b, "192.0.2.1:8080", "a 10.77.0.1"),
        (b, "10.77.0.1:8080", "a 10.77.0.1"),
        (b, "[2001:db8::1]:8080", "a fd77::1"),
        (a, "192.0.2.1:8080", "a 10.77.0.1"),
        (a, "[fd77::1]:8080", "a fd77::1"),
    ];
    for (from, to, answer) in cases {
        assert_eq!(
            tcp(from, to).as_deref(),
            Ok(answer),
            "TCP from {from} to {to}"
        );
        assert_eq!(
            udp(from, to).as_deref(),
            Ok(answer),
            "UDP from {from} to {to}"
        );
    }
    inside(node, || {
        firewall
            .update(|rules| rules.pods.extend([pod(2, &[])]))
            .unwrap();
    });
    assert_eq!(
        tcp(remote, "192.0.2.1:8080"),
        Err(ErrorKind::ConnectionRefused)
    );
    inside(node, || firewall.remove().unwrap());
    assert_eq!(world.run(node, "nft list ruleset"), "");
}

#[test]
fn a_host_port_on_one_address_is_open_on_that_address_only() {
    let world = World::new();
    let World { node, a, b, remote } = &world;
    serve(a, "a", 80);
    serve(b, "b", 80);
    let firewall = Firewall::default();
    inside(node, || {
        firewall.update(rules).unwrap();
        let for_a = [
            host_port(Tcp, Some("127.0.0.1"), 8080, 80),
            host_port(Tcp, Some("2001:db8::1"), 8080, 80),
        ];
        let for_b = [host_port(Tcp, Some("192.0.2.1"), 8080, 80)];
        let both = [pod(2, &for_a), pod(3, &for_b)];
        firewall.update(|rules| rules.pods.extend(both)).unwrap();
    });
    assert_eq!(tcp(node, "127.0.0.1:8080").as_deref(), Ok("a 10.77.0.1"));
    assert_eq!(
        tcp(remote, "[2001:db8::1]:8080").as_deref(),
        Ok("a 2001:db8::2")
    );
    assert_eq!(tcp(remote, "192.0.2.1:8080").as_deref(), Ok("b 192.0.2.2"));
    assert_eq!(tcp(node, "[::1]:8080"), Err(ErrorKind::ConnectionRefused));
}

#[test]
fn a_service_spreads_over_its_pods_and_refuses_at_once_without_endpoints() {
    let world = World::new();
    let World { node, a, b, remote } = &world;
    serve(a, "a", 80);
    serve(b, "b", 80);
    let both = [
        "10.77.0.2:80",
        "10.77.0.3:80",
        "[fd77::2]:80",
        "[fd77::3]:80",
    ];
    let firewall = Firewall::default();
    let set = |services: Vec<ServiceRoute>| {
        inside(node, || {
            firewall.update(|rules| rules.services = services).unwrap()
        });
    };
    inside(node, || firewall.update(rules).unwrap());
    let sticky = ServiceRoute {
        affinity: true,
        ..service(81, None, &both)
    };
    set(vec![
        service(8000, Some(30080), &both),
        sticky.clone(),
        service(82, Some(30082), &[]),
    ]);
    for (from, to) in [
        (remote, "192.0.2.1:30080"),
        (remote, "[2001:db8::1]:30080"),
        (remote, "10.96.0.7:8000"),
        (node, "10.96.0.7:8000"),
        (node, "[fd96::7]:8000"),
        (node, "127.0.0.1:30080"),
        (a, "10.96.0.7:8000"),
        (b, "[fd96::7]:8000"),
    ] {
        let answers: BTreeSet<String> = (0..40)
            .map(|_| tcp(from, to).unwrap())
            .map(|text| text[..1].to_owned())
            .collect();
        assert_eq!(answers.len(), 2, "from {from} to {to}: {answers:?}");
    }
    let same: BTreeSet<String> = (0..20)
        .map(|_| tcp(remote, "10.96.0.7:81").unwrap())
        .collect();
    assert_eq!(same.len(), 1, "{same:?}");
    for to in [
        "10.96.0.7:82",
        "[fd96::7]:82",
        "10.96.0.7:9999",
        "192.0.2.1:30082",
        "[2001:db8::1]:30082",
    ] {
        for from in [remote, node, a] {
            assert_eq!(
                tcp(from, to),
                Err(ErrorKind::ConnectionRefused),
                "from {from} to {to}"
            );
            // The sender's own kernel may report the refusal in a different way.
            let refused = udp(from, to).unwrap_err();
            let refusals = [ErrorKind::ConnectionRefused, ErrorKind::PermissionDenied];
            assert!(
                refusals.contains(&refused),
                "UDP from {from} to {to}: {refused}"
            );
        }
    }
    // One family has endpoints, the other has none.
    set(vec![service(8000, Some(30080), &["10.77.0.3:80"]), sticky]);
    assert_eq!(tcp(remote, "192.0.2.1:30080").as_deref(), Ok("b 192.0.2.2"));
    assert_eq!(
        tcp(remote, "[2001:db8::1]:30080"),
        Err(ErrorKind::ConnectionRefused)
    );
    assert_eq!(
        tcp(remote, "[fd96::7]:8000"),
        Err(ErrorKind::ConnectionRefused)
    );
    set(vec![]);
    assert_eq!(
        tcp(remote, "10.96.0.7:8000"),
        Err(ErrorKind::ConnectionRefused)
    );
}

#[test]
fn pods_reach_the_outside_under_the_nodes_address_and_never_its_loopback() {
    let world = World::new();
    let World {
        node, a, remote, ..
    } = &world;
    serve(remote, "remote", 80);
    serve(node, "node", 90);
    // This pod does what it can to reach the loopback, and would succeed without the rules.
    world.run(a, TO_LOOPBACK);
    assert_eq!(tcp(a, "127.0.0.9:90").as_deref(), Ok("node 10.77.0.2"));
    let firewall = Firewall::default();
    inside(node, || firewall.update(rules).unwrap());
    assert_eq!(tcp(a, "192.0.2.2:80").as_deref(), Ok("remote 192.0.2.1"));
    assert_eq!(
        udp(a, "[2001:db8::2]:80").as_deref(),
        Ok("remote 2001:db8::1")
    );
    assert_eq!(tcp(a, "10.77.0.1:90").as_deref(), Ok("node 10.77.0.2"));
    assert_eq!(tcp(a, "127.0.0.9:90"), Err(ErrorKind::TimedOut));
}

#[test]
fn a_neighbour_that_sends_to_127_0_0_1_does_not_reach_a_pod() {
    let world = World::new();
    let World {
        node, a, remote, ..
    } = &world;
    serve(a, "a", 80);
    serve(node, "node", 90);
    world.run(remote, &TO_LOOPBACK.replace("10.77.0.1", "192.0.2.1"));
    // Without this setting the kernel drops the packet, but only after addresses were translated.
    world.run(node, "sysctl -qw net.ipv4.conf.up0.route_localnet=1");
    let firewall = Firewall::default();
    inside(node, || {
        firewall.update(rules).unwrap();
        let ports = [(Some("127.0.0.9"), 8080), (None, 8081)];
        let one = pod(2, &ports.map(|(at, port)| host_port(Tcp, at, port, 80)));
        firewall.update(|rules| rules.pods.extend([one])).unwrap();
    });
    assert_eq!(tcp(node, "127.0.0.9:8080").as_deref(), Ok("a 10.77.0.1"));
    assert_eq!(tcp(remote, "192.0.2.1:8081").as_deref(), Ok("a 192.0.2.2"));
    assert_eq!(tcp(remote, "127.0.0.9:90").as_deref(), Ok("node 192.0.2.2"));
    for to in ["127.0.0.9:8080", "127.0.0.9:8081"] {
        assert_eq!(tcp(remote, to), Err(ErrorKind::ConnectionRefused), "{to}");
    }
}

#[test]
fn a_neighbour_cannot_send_from_a_pods_address() {
    let world = World::new();
    let World {
        node, a, remote, ..
    } = &world;
    serve(a, "a", 80);
    let firewall = Firewall::default();
    inside(node, || {
        firewall.update(rules).unwrap();
        firewall
            .update(|rules| rules.pods.extend([pod(2, &[])]))
            .unwrap();
    });
    world.run(remote, "ip address add 10.77.0.9/32 dev lo");
    world.run(
        remote,
        "ip route add 10.77.0.2/32 via 192.0.2.1 src 10.77.0.9",
    );
    assert_eq!(tcp(remote, "10.77.0.2:80"), Err(ErrorKind::TimedOut));
    let rules = world.run(node, "nft list chain inet coracle0 martians");
    let rule = rules.lines().find(|line| {
        line.contains("ip saddr 10.77.0.0/") && line.contains("a neighbour in a pod's name")
    });
    let rule = rule.expect("the rule is there");
    assert!(!rule.contains("packets 0 "), "nothing was dropped: {rule}");
}

#[test]
fn a_service_does_not_take_the_nodes_own_address_away() {
    let world = World::new();
    let World {
        node, a, remote, ..
    } = &world;
    serve(a, "a", 80);
    serve(node, "node", 22);
    let firewall = Firewall::default();
    let thief = ServiceRoute {
        addresses: vec!["192.0.2.1".parse().unwrap(), "10.96.0.7".parse().unwrap()],
        ..service(22, None, &["10.77.0.2:80"])
    };
    inside(node, || {
        firewall.update(rules).unwrap();
        firewall
            .update(|rules| rules.services = vec![thief])
            .unwrap();
    });
    for (to, server) in [("10.96.0.7:22", "a"), ("192.0.2.1:22", "node")] {
        assert_eq!(tcp(remote, to), Ok(format!("{server} 192.0.2.2")), "{to}");
    }
}

const TO_LOOPBACK: &str = "
sysctl -qw net.ipv4.conf.all.route_localnet=1
ip route add 127.0.0.0/8 via 10.77.0.1 table 7
ip rule add pref 1 to 127.0.0.9 table 7
ip rule add pref 5 table local
ip rule del pref 0";

#[test]
fn the_name_server_keeps_port_53_of_the_bridge_and_may_listen_on_another_port() {
    let world = World::new();
    let World { node, a, b, remote } = &world;
    serve(a, "a", 53);
    serve(node, "names", 53);
    serve(node, "moved", 5353);
    let firewall = Firewall::default();
    inside(node, || {
        firewall.update(rules).unwrap();
        let ports = [host_port(Udp, None, 53, 53)];
        firewall
            .update(|rules| rules.pods.extend([pod(2, &ports)]))
            .unwrap();
    });
    assert_eq!(udp(remote, "192.0.2.1:53").as_deref(), Ok("a 192.0.2.2"));
    assert_eq!(udp(b, "10.77.0.1:53").as_deref(), Ok("names 10.77.0.3"));
    inside(node, || {
        firewall
            .update(|rules| rules.dns_port = Some(5353))
            .unwrap()
    });
    assert_eq!(udp(b, "10.77.0.1:53").as_deref(), Ok("moved 10.77.0.3"));
    assert_eq!(tcp(b, "[fd77::1]:53").as_deref(), Ok("moved fd77::3"));
}

#[test]
fn a_udp_client_that_never_pauses_reaches_the_current_pod() {
    let world = World::new();
    let World { node, a, b, remote } = &world;
    serve(a, "a", 80);
    serve(b, "b", 80);
    let firewall = Firewall::default();
    inside(node, || firewall.update(rules).unwrap());
    let of = |number| pod(number, &[host_port(Udp, None, 8080, 80)]);
    let client = Asker::new(remote, "192.0.2.1:8080");
    assert_eq!(client.ask(PATIENCE), Err(ErrorKind::ConnectionRefused));
    // The first packets after a change may come before the kernel forgets the old connection.
    let finds = |answer: Result<&str, ErrorKind>| {
        let until = Instant::now() + PATIENCE;
        loop {
            let found = client.ask(Duration::from_millis(300));
            if found.as_deref() == answer.as_ref().copied() {
                return;
            }
            assert!(Instant::now() < until, "{found:?} instead of {answer:?}");
        }
    };
    inside(node, || {
        firewall.update(|rules| rules.pods.extend([of(2)])).unwrap()
    });
    finds(Ok("a 192.0.2.2"));
    inside(node, || {
        firewall
            .update(|rules| rules.pods.extend([pod(2, &[]), of(3)]))
            .unwrap();
    });
    finds(Ok("b 192.0.2.2"));
    inside(node, || {
        firewall
            .update(|rules| drop(rules.pods.remove(&of(3).0)))
            .unwrap();
    });
    finds(Err(ErrorKind::ConnectionRefused));
}

#[test]
fn a_foreign_flush_is_noticed_and_repaired_and_other_tables_stay() {
    let world = World::new();
    let World {
        node, a, remote, ..
    } = &world;
    serve(a, "a", 80);
    world.run(node, "nft add table ip other; nft add chain ip other x");
    let firewall = Firewall::default();
    let of = |number| pod(number, &[host_port(Tcp, None, 8000 + number, 80)]);
    inside(node, || {
        let mut watch = firewall.watch("coracle0").unwrap();
        firewall.update(rules).unwrap();
        firewall
            .update(|rules| rules.pods.extend([of(2), of(9)]))
            .unwrap();
        firewall
            .update(|rules| {
                rules.pods.remove(&of(9).0);
            })
            .unwrap();
        firewall.restore().unwrap();
        assert!(
            !watch.drain(),
            "the firewall's own changes are not reported"
        );
        assert_eq!(
            world.run(node, "nft list table ip other").lines().count(),
            4
        );
        world.run(
            node,
            "nft add table ip unrelated; nft add table ip coracle0; nft delete table ip coracle0",
        );
        assert!(!watch.drain(), "changes of other tables are not reported");
        for meddling in [
            "nft flush ruleset",
            "nft delete table bridge coracle0",
            "nft delete element inet coracle0 hostport4 '{ tcp . 8002 }'",
            "nft insert rule inet coracle0 to_node drop",
        ] {
            world.run(node, meddling);
            let mut fds = [PollFd::new(
                std::os::fd::AsFd::as_fd(&watch),
                PollFlags::POLLIN,
            )];
            assert_eq!(poll(&mut fds, PollTimeout::from(5000_u16)), Ok(1));
            assert!(watch.drain(), "{meddling}");
            firewall.restore().unwrap();
            assert!(!watch.drain());
            assert_eq!(tcp(remote, "192.0.2.1:8002").as_deref(), Ok("a 192.0.2.2"));
        }
    });
}

#[test]
fn many_own_changes_at_once_are_not_taken_for_foreign_ones() {
    let world = World::new();
    let firewall = Firewall::default();
    let of = |number| pod(number, &[host_port(Tcp, None, 8000 + number, 80)]);
    inside(&world.node, || {
        let mut watch = firewall.watch("coracle0").unwrap();
        firewall.update(rules).unwrap();
        firewall
            .update(|rules| rules.pods.extend((2..200).map(of)))
            .unwrap();
        for _ in 0..10 {
            firewall.restore().unwrap();
        }
        assert!(!watch.drain());
    });
}

#[test]
fn a_change_after_an_unnoticed_flush_restores_everything() {
    let world = World::new();
    let World {
        node, a, remote, ..
    } = &world;
    serve(a, "a", 80);
    let firewall = Firewall::default();
    let of = |number| pod(number, &[host_port(Tcp, None, 8000 + number, 80)]);
    inside(node, || {
        firewall.update(rules).unwrap();
        firewall.update(|rules| rules.pods.extend([of(2)])).unwrap();
        world.run(node, "nft flush ruleset");
        firewall.update(|rules| rules.pods.extend([of(9)])).unwrap();
    });
    assert_eq!(tcp(remote, "192.0.2.1:8002").as_deref(), Ok("a 192.0.2.2"));
    assert!(!firewall.spoofing_unprotected());
}

#[test]
fn a_refusal_by_the_kernel_says_why_and_the_next_change_tries_again() {
    let world = World::new();
    let World { node, .. } = &world;
    let firewall = Firewall::default();
    let broken = |rules: &mut Ruleset| {
        self::rules(rules);
        // A keyword of nft: no table can have this name.
        rules.bridge = "counter".to_owned();
    };
    inside(node, || {
        let error = firewall.update(broken).unwrap_err().to_string();
        assert!(error.starts_with("`nft` refused the rules: "), "{error}");
        assert!(
            error.contains("syntax error") && error.len() < 400,
            "{error}"
        );
        firewall.update(rules).unwrap();
    });
    assert!(
        world
            .run(node, "nft list tables")
            .contains("table bridge coracle0")
    );
}

#[test]
fn concurrent_changes_are_all_in_force_when_their_callers_return() {
    let world = World::new();
    let World { node, .. } = &world;
    let firewall = Firewall::default();
    let of = |number| pod(number, &[host_port(Tcp, None, 8000 + number, 80)]);
    let there = |number: u16| {
        let what = format!(
            "nft get element inet coracle0 hostport4 '{{ tcp . {} }}' 2>&1 || true",
            8000 + number
        );
        // Changes that come meanwhile interrupt the query.
        let answers = std::iter::repeat_with(|| world.run(node, &what));
        let mut answers = answers.take(100);
        answers
            .find(|answer| !answer.contains("Interrupted"))
            .unwrap()
    };
    inside(node, || firewall.update(rules).unwrap());
    std::thread::scope(|scope| {
        for first in (10..90).step_by(10) {
            let (firewall, there) = (&firewall, &there);
            scope.spawn(move || {
                inside(node, || {
                    for number in first..first + 5 {
                        firewall
                            .update(|rules| rules.pods.extend([of(number)]))
                            .unwrap();
                        let found = there(number);
                        assert!(found.contains("elements"), "{found}");
                        if number % 2 == 0 {
                            let gone = of(number).0;
                            firewall
                                .update(|rules| drop(rules.pods.remove(&gone)))
                                .unwrap();
                            let found = there(number);
                            assert!(found.contains("No such file"), "{found}");
                        }
                    }
                });
            });
        }
    });
    let list = world.run(node, "nft list map inet coracle0 hostport4");
    assert_eq!(list.matches("tcp . ").count(), 16, "{list}");
}

#[test]
fn a_program_that_listens_on_a_port_is_found_by_name() {
    let world = World::new();
    let World { node, .. } = &world;
    serve(node, "node", 8080);
    let taken = |port| inside(node, || listeners::taken(&port, &[]));
    let found = taken(host_port(Tcp, None, 8080, 80)).unwrap();
    assert_eq!(found.pid.unsigned_abs(), std::process::id());
    assert!(found.process.starts_with("firewall"), "{found:?}");
    assert_eq!(found.address.port(), 8080);
    assert!(taken(host_port(Udp, Some("192.0.2.1"), 8080, 80)).is_some());
    assert_eq!(taken(host_port(Tcp, None, 8081, 80)), None);
}
