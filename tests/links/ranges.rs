//! The choice of ranges on a real node, and the errors if none is possible.

use std::fs;
use std::sync::Arc;

use coracle::network::Network;
use coracle::spec::cluster::{ClusterView, Endpoint, ServiceEntry};

use crate::node::{BRIDGE, all_talk, ip, nets, on_a_node, recover, run};
use crate::pods;

#[test]
fn a_range_in_use_is_avoided_and_the_choice_is_kept() {
    on_a_node(|node| {
        ip("route add 10.77.0.0/16 via 192.0.2.1");
        let pod = node.pod("one");
        let network = node.network();
        let attached = network.attach(&pod).expect("attached");
        assert!(
            nets(&["10.201.64.0/20"])[0].contains(&attached.ips[0]),
            "{attached:?}"
        );
        // The range is free now, but the pod has its address already.
        ip("route del 10.77.0.0/16");
        let next = node.network();
        recover(&next, &[&pod]);
        let gateway = next.name_servers().expect("the bridge is there")[0];
        assert_eq!(gateway.to_string(), "10.201.64.1");
    });
}

#[test]
fn a_given_range_in_use_is_refused_with_the_route() {
    on_a_node(|node| {
        ip("route add 10.0.0.0/8 dev eth0");
        let network = node.network_with(&["10.5.0.0/16"]);
        let error = network.attach(&node.pod("one")).expect_err("in use");
        assert_eq!(
            error.to_string(),
            "pod CIDR 10.5.0.0/16 collides with route 10.0.0.0/8 dev eth0; choose another with `--pod-cidr` or `podCIDR`"
        );
        let error = node.network_with(&["192.0.2.0/28"]).name_servers();
        assert_eq!(
            error.expect_err("in use").to_string(),
            "pod CIDR 192.0.2.0/28 collides with route 192.0.2.0/24 dev eth0; choose another with `--pod-cidr` or `podCIDR`"
        );
    });
}

#[test]
fn a_new_setting_takes_effect_once_no_pod_is_attached() {
    on_a_node(|node| {
        let pod = node.pod("one");
        let old = node.network_with(&["10.5.0.0/24", "fd05::/64"]);
        let before = old.attach(&pod).expect("attached");
        let next = node.network_with(&["10.6.0.0/24", "fd06::/64"]);
        assert_eq!(recover(&next, &[&pod])[&pod.uid], before.ips);
        let last = node.network_with(&["10.6.0.0/24", "fd06::/64"]);
        recover(&last, &[]);
        let after = last.attach(&pod).expect("attached");
        assert!(
            nets(&["10.6.0.0/24"])[0].contains(&after.ips[0]),
            "{after:?}"
        );
        assert!(nets(&["fd06::/64"])[0].contains(&after.ips[1]), "{after:?}");
        all_talk(&[&after]);
        let seen = ip(&format!("addr show dev {BRIDGE}"));
        assert!(!seen.contains("10.5.0.1"), "{seen}");
    });
}

#[test]
fn a_former_range_of_services_has_no_route_any_more() {
    on_a_node(|node| {
        let with = |services: &[&str]| {
            let mut settings = node.settings.clone();
            settings.service_cidrs = nets(services);
            Network::new(settings)
        };
        with(&["10.7.0.0/24", "fd07::/112"])
            .name_servers()
            .expect("a bridge");
        ip(&format!("route add 10.9.0.0/24 dev {BRIDGE} proto static"));
        let next = with(&["10.8.0.0/24", "fd07::/112"]);
        recover(&next, &[]);
        next.name_servers().expect("a bridge");
        let seen = [ip("route"), ip("-6 route")].concat();
        for (range, stays) in [
            ("10.7.0.0/24", false),
            ("10.8.0.0/24", true),
            ("fd07::/112", true),
            ("10.9.0.0/24", true),
        ] {
            let there = seen.contains(&format!("{range} dev {BRIDGE}"));
            assert_eq!(there, stays, "{range}: {seen}");
        }
        let last = with(&["10.8.0.0/24", "fd08::/112"]);
        recover(&last, &[]);
        last.name_servers().expect("a bridge");
        let seen = ip("-6 route");
        assert!(!seen.contains("fd07::/112"), "{seen}");
    });
}

/// The services of a view that lead to the pod.
fn served(pod: &coracle::spec::PodSpec) -> ClusterView {
    ClusterView {
        services: vec![ServiceEntry {
            spec: Arc::new(pods::service("any", true)),
            endpoints: vec![Endpoint {
                pod: pod.key.clone(),
                hostname: None,
                ips: vec!["192.0.2.9".parse().expect("an address")],
                ports: vec![Some(8080)],
            }],
        }],
        pods: Vec::new(),
    }
}

#[test]
fn services_that_came_before_there_could_be_a_bridge_are_served_with_the_first_pod() {
    on_a_node(|node| {
        let pod = node.pod("one");
        let network = node.network();
        ip(&format!("link add {BRIDGE} type veth peer name other"));
        let view = served(&pod);
        let error = network.set_cluster(&view).expect_err("no bridge");
        assert!(error.to_string().contains("is no bridge"), "{error}");
        assert!(network.service_addresses().is_empty());
        ip(&format!("link del {BRIDGE}"));
        network.attach(&pod).expect("attached");
        let rules = run("nft", "list ruleset");
        assert!(
            rules.contains("192.0.2.9"),
            "the rules of the service: {rules}"
        );
        assert_eq!(network.service_addresses().len(), 1);
        network.set_cluster(&view).expect("all is in force");
    });
}

#[test]
fn one_family_alone_works() {
    on_a_node(|node| {
        let six = node.network_with(&["fd05::/64"]);
        let pods = ["one", "two"].map(|name| node.pod(name));
        let attached = pods
            .each_ref()
            .map(|pod| six.attach(pod).expect("attached"));
        assert!(
            attached
                .iter()
                .all(|pod| pod.ips.len() == 1 && pod.ips[0].is_ipv6())
        );
        all_talk(&attached.each_ref());
        pods.iter()
            .for_each(|pod| six.detach(&pod.uid).expect("detached"));

        fs::write("/proc/sys/net/ipv6/conf/all/disable_ipv6", "1").expect("switched off");
        let four = node.network();
        let attached = pods
            .each_ref()
            .map(|pod| four.attach(pod).expect("attached"));
        assert!(
            attached
                .iter()
                .all(|pod| pod.ips.len() == 1 && pod.ips[0].is_ipv4())
        );
        all_talk(&attached.each_ref());
    });
}

#[test]
fn a_full_range_is_reported() {
    on_a_node(|node| {
        let network = node.network_with(&["10.5.0.0/30"]);
        network.attach(&node.pod("one")).expect("attached");
        let error = network.attach(&node.pod("two")).expect_err("full");
        assert_eq!(error.to_string(), "all addresses of 10.5.0.0/30 are in use");
    });
}

#[test]
fn a_foreign_interface_with_the_bridges_name_is_left_alone() {
    on_a_node(|node| {
        ip(&format!("link add {BRIDGE} type veth peer name other"));
        let error = node.network().attach(&node.pod("one")).expect_err("taken");
        assert_eq!(
            error.to_string(),
            format!(
                "interface `{BRIDGE}` is no bridge but of kind `veth`; choose another name with `--bridge`"
            )
        );
    });
}

#[test]
fn interfaces_that_accept_router_advertisements_still_do_when_forwarding_is_on() {
    on_a_node(|node| {
        let path = "/proc/sys/net/ipv6/conf/eth0/accept_ra";
        fs::write(path, "1").expect("set");
        node.network().attach(&node.pod("one")).expect("attached");
        assert_eq!(fs::read_to_string(path).expect("read").trim(), "2");
        let forwarding = fs::read_to_string("/proc/sys/net/ipv6/conf/all/forwarding");
        assert_eq!(forwarding.expect("read").trim(), "1");
    });
}
