//! The content of the tables, as `nft` reads it. The whole text is in `tests/fixtures/firewall/whole.nft`
//! (`UPDATE_GOLDEN=1` rewrites it).

use super::super::{nft, text};
use super::*;
use crate::spec::PodUid;

fn host_port(protocol: Protocol, host_ip: Option<&str>, port: u16, to: u16) -> HostPort {
    HostPort {
        protocol,
        host_ip: host_ip.map(|ip| ip.parse().unwrap()),
        port,
        to,
    }
}

fn pod(number: u8, host_ports: Vec<HostPort>) -> (PodUid, PodRules) {
    let rules = PodRules {
        veth: format!("vcab{number:x}"),
        mac: [0x0a, 0x58, 10, 77, 0, number],
        ips: vec![
            IpAddr::from([10, 77, 0, number]),
            format!("fd77::{number:x}").parse().unwrap(),
        ],
        host_ports,
    };
    (PodUid::from(format!("uid-{number}").as_str()), rules)
}

fn route(name: &str, port: u16, node_port: Option<u16>, endpoints: &[&str]) -> ServiceRoute {
    ServiceRoute {
        name: name.to_owned(),
        addresses: vec!["10.96.0.7".parse().unwrap(), "fd96::7".parse().unwrap()],
        protocol: Protocol::Tcp,
        port,
        node_port,
        endpoints: endpoints.iter().map(|at| at.parse().unwrap()).collect(),
        affinity: false,
    }
}

fn example() -> Ruleset {
    Ruleset {
        bridge: "coracle0".to_owned(),
        veth_prefix: "vcab".to_owned(),
        pod_cidrs: vec![
            "10.77.0.1/20".parse().unwrap(),
            "fd77::1/64".parse().unwrap(),
        ],
        service_cidrs: vec![
            "10.96.0.0/20".parse().unwrap(),
            "fd96::/112".parse().unwrap(),
        ],
        dns_port: None,
        pods: BTreeMap::from([
            pod(
                2,
                vec![
                    host_port(Protocol::Tcp, None, 8080, 80),
                    host_port(Protocol::Udp, None, 53, 53),
                ],
            ),
            pod(
                3,
                vec![
                    host_port(Protocol::Tcp, Some("127.0.0.1"), 9090, 90),
                    host_port(Protocol::Sctp, Some("0.0.0.0"), 36412, 36412),
                    host_port(Protocol::Tcp, Some("2001:db8::1"), 9090, 90),
                ],
            ),
        ]),
        services: vec![
            route(
                "default/web:http",
                80,
                Some(30080),
                &["10.77.0.2:80", "10.77.0.3:80", "[fd77::2]:80"],
            ),
            ServiceRoute {
                affinity: true,
                ..route(
                    "default/web:sticky",
                    81,
                    None,
                    &["10.77.0.2:80", "10.77.0.3:80"],
                )
            },
            route("default/idle", 82, Some(30082), &[]),
            ServiceRoute {
                addresses: vec!["10.44.1.1".parse().unwrap()],
                ..route("default/far", 83, None, &[])
            },
        ],
    }
}

fn tables(rules: &Ruleset) -> Tables {
    Tables::new(rules, true).unwrap()
}

#[test]
fn all_rules_are_those_of_the_golden_file() {
    let path = "tests/fixtures/firewall/whole.nft";
    let text = text::whole(&tables(&example()));
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(path, &text).unwrap();
    }
    assert_eq!(text, std::fs::read_to_string(path).unwrap());
}

#[test]
fn the_program_takes_the_rules_with_and_without_a_filter_on_the_bridge_and_with_a_moved_name_server()
 {
    let check = || {
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
        for bridge_family in [true, false] {
            for dns_port in [None, Some(5353)] {
                let rules = Ruleset {
                    dns_port,
                    ..example()
                };
                let tables = Tables::new(&rules, bridge_family).unwrap();
                nft::check(&text::whole(&tables)).unwrap();
            }
        }
        assert_eq!(super::super::missing_features().unwrap(), []);
    };
    // A thread of its own: the namespace ends with it.
    std::thread::spawn(check).join().unwrap();
}

#[test]
fn a_pod_that_comes_only_adds_and_one_that_goes_only_deletes() {
    let new = example();
    let mut old = new.clone();
    old.pods.remove(&PodUid::from("uid-2"));
    let (old, new) = (tables(&old), tables(&new));
    let comes = text::difference(&old, &new).unwrap();
    assert_eq!(
        comes.additions,
        "add element inet coracle0 hostport4 { tcp . 8080 : 10.77.0.2 . 80, udp . 53 : 10.77.0.2 . 53 }
add element inet coracle0 hostport6 { tcp . 8080 : fd77::2 . 80, udp . 53 : fd77::2 . 53 }
add element bridge coracle0 own4 { \"vcab2\" . 0a:58:0a:4d:00:02 . 10.77.0.2 }
add element bridge coracle0 own6 { \"vcab2\" . 0a:58:0a:4d:00:02 . ::, \"vcab2\" . 0a:58:0a:4d:00:02 . fd77::2, \"vcab2\" . 0a:58:0a:4d:00:02 . fe80::858:aff:fe4d:2 }
add element bridge coracle0 target6 { \"vcab2\" . 0a:58:0a:4d:00:02 . 0xfd770000000000000000000000000002, \"vcab2\" . 0a:58:0a:4d:00:02 . 0xfe8000000000000008580afffe4d0002 }
"
    );
    assert_eq!(comes.rest, "");
    assert_eq!(text::with_additions(&old, &new), new);
    assert!(text::keeps_all(&old, &new) && !text::keeps_all(&new, &old));
    let goes = text::difference(&new, &old).unwrap();
    assert_eq!(goes.additions, "");
    assert_eq!(
        goes.rest,
        comes.additions.replace("add element", "delete element")
    );
}

#[test]
fn a_service_gets_its_new_chain_before_the_old_one_goes() {
    let old = example();
    let mut new = old.clone();
    new.services[1].endpoints.pop();
    let found = text::difference(&tables(&old), &tables(&new)).unwrap();
    let lines: Vec<&str> = found.rest.lines().collect();
    assert!(found.additions.starts_with("add chain inet coracle0 to4_"));
    assert!(
        found
            .additions
            .contains("meta l4proto tcp dnat ip to 10.77.0.2:80\n")
    );
    assert!(
        lines[0].starts_with(
            "delete element inet coracle0 service4 { 10.96.0.7 . tcp . 81 : goto to4_"
        )
    );
    assert!(
        lines[1]
            .starts_with("add element inet coracle0 service4 { 10.96.0.7 . tcp . 81 : goto to4_")
    );
    assert!(lines[2].starts_with("delete chain inet coracle0 to4_"));
    assert_eq!(lines.len(), 3);
}

#[test]
fn changed_ranges_and_name_servers_replace_the_tables() {
    let old = tables(&example());
    let moved = tables(&Ruleset {
        dns_port: Some(5353),
        ..example()
    });
    assert_eq!(text::difference(&old, &moved), None);
}

#[test]
fn names_that_are_no_names_are_refused() {
    let long = "x".repeat(16);
    for name in ["a b", "a;b", "1a", "a\"", "a{", "ä", &long] {
        let rules = Ruleset {
            bridge: name.to_owned(),
            ..example()
        };
        let error = Tables::new(&rules, true).unwrap_err();
        assert!(matches!(error, FirewallError::Name(_)), "{name}");
    }
    let rules = Ruleset {
        veth_prefix: String::new(),
        ..example()
    };
    assert!(Tables::new(&rules, true).is_err());
    assert_eq!(comment("a\"b\nc;d"), "a?b?c?d");
}

#[test]
fn the_first_of_two_pods_with_one_port_has_it() {
    let mut rules = example();
    let port = host_port(Protocol::Tcp, None, 8080, 81);
    rules.pods.extend([pod(4, vec![port])]);
    let found = &tables(&rules).sets["hostport4"]["tcp . 8080"];
    assert_eq!(found.as_deref(), Some("10.77.0.2 . 80"));
}
