//! The files that give a pod its names: `/etc/hosts`, `/etc/resolv.conf`, its hostname.

use std::fs;

use crate::common::shell_pod;
use crate::world::*;

/// Starts a pod with these lines below `spec`; returns the output of a command in it.
fn said_in(world: &World, name: &str, more: &str, command: &[&str]) -> String {
    let file = format!("{name}.yaml");
    world
        .agent
        .write(&file, &shell_pod(name, "exec sleep 1000", more, ""));
    world.agent.wait_running(name);
    let (fine, said) = exec(&world.agent, name, command);
    assert!(fine, "{said}");
    said
}

fn resolv_conf(world: &World, name: &str, more: &str) -> String {
    said_in(world, name, more, &["cat", "/etc/resolv.conf"])
}

const HOSTS: &str = "# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost \
                     ip6-loopback\nfe00::0\tip6-localnet\nfe00::0\tip6-mcastprefix\nfe00::1\tip6-allnodes\n\
                     fe00::2\tip6-allrouters\n";

#[test]
fn the_hosts_file_equals_the_kubelets_to_the_byte() {
    let world = World::with(Plan::default());
    let hosts = said_in(&world, "plain", "", &["cat", "/etc/hosts"]);
    let ips = addresses(&world.agent.pod("plain"));
    let own: String = ips.iter().map(|ip| format!("{ip}\tplain\n")).collect();
    assert_eq!(hosts, format!("{HOSTS}{own}"));
    let more = "  hostname: db\n  subdomain: sql\n  hostAliases:\n  - {ip: 192.0.2.99, hostnames: [printer, \
                printer.lan]}\n";
    let hosts = said_in(&world, "named", more, &["cat", "/etc/hosts"]);
    let ips = addresses(&world.agent.pod("named"));
    let own: String = ips
        .iter()
        .map(|ip| format!("{ip}\tdb.sql.default.svc.cluster.local\tdb\n"))
        .collect();
    let aliases = "\n# Entries added by HostAliases.\n192.0.2.99\tprinter\tprinter.lan\n";
    assert_eq!(hosts, format!("{HOSTS}{own}{aliases}"));
    let hosts = said_in(
        &world,
        "host",
        "  hostNetwork: true\n",
        &["cat", "/etc/hosts"],
    );
    let node = fs::read_to_string("/etc/hosts").expect("the node's");
    assert_eq!(
        hosts,
        format!("# Kubernetes-managed hosts file (host network).\n{node}")
    );
}

#[test]
fn hostnames_are_the_kubelets() {
    let world = World::with(Plan::default());
    assert_eq!(said_in(&world, "plain", "", &["hostname"]), "plain\n");
    let named = "  hostname: db\n  subdomain: sql\n";
    assert_eq!(said_in(&world, "named", named, &["hostname"]), "db\n");
    let whole = "  hostname: db\n  subdomain: sql\n  setHostnameAsFQDN: true\n";
    let said = said_in(&world, "whole", whole, &["hostname"]);
    assert_eq!(said, "db.sql.default.svc.cluster.local\n");
}

#[test]
fn cluster_first_has_the_bridge_as_name_server_and_searches_the_cluster() {
    let world = World::with(Plan {
        resolv_conf: Some("nameserver 192.0.2.11\nsearch lan.example\noptions timeout:1\n"),
        ..Plan::default()
    });
    let text = resolv_conf(&world, "a", "");
    let gateway4 = exec(
        &world.agent,
        "a",
        &["sh", "-c", "ip route | awk '/default/ {print $3}'"],
    )
    .1;
    assert!(
        text.contains(&format!("nameserver {}\n", gateway4.trim())),
        "{text}"
    );
    assert!(!text.contains("192.0.2.11"), "{text}");
    let search = "search default.svc.cluster.local svc.cluster.local cluster.local lan.example\n";
    assert!(text.contains(search), "{text}");
    assert!(text.contains("options ndots:5\n"), "{text}");
}

#[test]
fn the_other_dns_policies_are_followed() {
    let world = World::with(Plan {
        resolv_conf: Some("nameserver 192.0.2.11\nsearch lan.example\n"),
        ..Plan::default()
    });
    let text = resolv_conf(&world, "default", "  dnsPolicy: Default\n");
    assert!(
        text.contains("nameserver 192.0.2.11\n") && text.contains("search lan.example\n"),
        "{text}"
    );
    assert!(!text.contains("cluster.local"), "{text}");
    let text = resolv_conf(&world, "host", "  hostNetwork: true\n");
    assert!(
        text.contains("nameserver 192.0.2.11\n") && !text.contains("cluster.local"),
        "{text}"
    );
    let policy = "  hostNetwork: true\n  dnsPolicy: ClusterFirstWithHostNet\n";
    let text = resolv_conf(&world, "host-cluster", policy);
    assert!(
        text.contains("svc.cluster.local") && !text.contains("192.0.2.11"),
        "{text}"
    );
    let config = "  dnsPolicy: None\n  dnsConfig:\n    nameservers: [192.0.2.53]\n    searches: [only.example]\n    \
                  options: [{name: ndots, value: \"2\"}, {name: edns0}]\n";
    let text = resolv_conf(&world, "none", config);
    assert_eq!(
        text,
        "search only.example\nnameserver 192.0.2.53\noptions ndots:2 edns0\n"
    );
}

#[test]
fn dns_config_is_merged_over_the_policy() {
    let world = World::with(Plan::default());
    let config = "  dnsConfig:\n    nameservers: [192.0.2.53]\n    searches: [more.example]\n    options: [{name: \
                  ndots, value: \"2\"}]\n";
    let text = resolv_conf(&world, "a", config);
    assert!(text.contains("nameserver 192.0.2.53\n"), "{text}");
    assert!(text.contains("cluster.local more.example\n"), "{text}");
    assert!(
        text.contains("ndots:2") && !text.contains("ndots:5"),
        "{text}"
    );
}

#[test]
fn a_change_of_the_nodes_resolvers_reaches_running_pods() {
    let world = World::with(Plan::default());
    let text = resolv_conf(&world, "a", "  dnsPolicy: Default\n");
    assert!(text.contains("nameserver 192.0.2.11\n"), "{text}");
    resolv_conf(&world, "b", "");
    // The file is replaced as by DHCP clients: a new file takes the old one's place.
    let file = world.agent.root.join("resolv.conf");
    let staged = world.agent.root.join("resolv.conf.new");
    fs::write(&staged, "nameserver 192.0.2.12\nsearch new.example\n").expect("temp dir");
    fs::rename(staged, file).expect("renamed");
    for (pod, wanted) in [
        ("a", "nameserver 192.0.2.12\n"),
        ("b", "cluster.local new.example\n"),
    ] {
        wait_for(wanted, || {
            let text = exec(&world.agent, pod, &["cat", "/etc/resolv.conf"]).1;
            if text.contains(wanted) {
                Ok(())
            } else {
                Err(text)
            }
        });
    }
    assert_eq!(
        world.agent.pod("a")["status"]["containerStatuses"][0]["restartCount"],
        0
    );
}

#[test]
fn cluster_dns_of_the_settings_is_passed_to_pods_unchanged() {
    let world = World::with(Plan {
        config: "clusterDNS: [192.0.2.53]\nclusterDomain: box.example\n",
        ..Plan::default()
    });
    let text = resolv_conf(&world, "a", "");
    assert!(text.contains("nameserver 192.0.2.53\n"), "{text}");
    assert!(
        text.contains("search default.svc.box.example svc.box.example box.example\n"),
        "{text}"
    );
}
