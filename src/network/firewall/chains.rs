//! The constant chains. They stay the same while pods and services come and go (but for services with addresses out of
//! range); what differs is in maps and sets.
//!
//! # Beside other firewalls
//!
//! Every base chain at a hook sees a packet, in the order of priorities; `accept` ends only the chain it stands in, `drop`
//! ends everything.
//!
//! - Destination NAT at -110 and source NAT at 90 come before Docker, kube-proxy and iptables (-100, 100) and firewalld
//!   (-90, 110). The first chain that rewrites a connection settles it, so a port of a pod wins over the same port
//!   forwarded by another program, always and not by chance of who came first.
//! - What is refused or dropped here is refused at -10 (filter) and -300 (raw), before the others look.
//! - Nothing here accepts on behalf of others: a firewall that drops forwarded packets (ufw, firewalld, Docker's
//!   `FORWARD` policy) must be told to let the bridge through. Doctor names such tables.
//! - On the bridge: -400, before ebtables (-300).

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::net::IpAddr;

use ipnet::IpNet;

use super::Ruleset;
use super::tables::Family;
use crate::types::Gather;

/// The constant text for these settings, the `bridge` part after a line `---`.
pub(super) fn frame(rules: &Ruleset, bridge_family: bool) -> String {
    let mut text = routed(rules);
    text.push_str(&sources(rules));
    text.push_str(&martians(rules, bridge_family));
    text.push_str(&refusals(rules));
    if bridge_family {
        text.push_str(SEPARATOR);
        text.push_str(&bridged(&rules.veth_prefix));
    }
    text
}

const SEPARATOR: &str = "---\n";

/// The chains of one of the tables.
pub(super) fn part(frame: &str, family: Family) -> &str {
    let (inet, bridge) = frame.split_once(SEPARATOR).unwrap_or((frame, ""));
    match family {
        Family::Inet => inet,
        Family::Bridge => bridge,
    }
}

/// The translation to the real destination.
fn routed(rules: &Ruleset) -> String {
    let mut own = String::new();
    for range in &rules.pod_cidrs {
        let (family, at) = (word(range), range.addr());
        // The pods' name server comes first: a pod with hostPort 53 must not take the name server's queries.
        let verdict = match (rules.dns_port, range) {
            (None, _) => "accept".to_owned(),
            (Some(port), IpNet::V4(_)) => format!("dnat ip to {at}:{port}"),
            (Some(port), IpNet::V6(_)) => format!("dnat ip6 to [{at}]:{port}"),
        };
        let _ = writeln!(
            own,
            "\t\t{family} daddr {at} meta l4proto {{ tcp, udp }} th dport 53 {verdict} comment \"name server of the pods\""
        );
    }
    format!(
        r#"	chain to_pods {{
		fib daddr type local goto to_node comment "before the services: none takes an address of the node"
		ip daddr . meta l4proto . th dport vmap @service4
		ip6 daddr . meta l4proto . th dport vmap @service6
	}}
	chain to_node {{
{own}		dnat ip to ip daddr . meta l4proto . th dport map @hostip4
		dnat ip6 to ip6 daddr . meta l4proto . th dport map @hostip6
		dnat ip to meta l4proto . th dport map @hostport4
		dnat ip6 to meta l4proto . th dport map @hostport6
		meta nfproto ipv4 meta l4proto . th dport vmap @nodeport4
		meta nfproto ipv6 meta l4proto . th dport vmap @nodeport6
	}}
	chain destination {{
		comment "connections from outside and from pods"
		type nat hook prerouting priority -110; policy accept;
		ip daddr 127.0.0.0/8 return comment "a neighbour's packet that only routing would drop"
		jump to_pods
	}}
	chain destination_local {{
		comment "connections from programs of the node"
		type nat hook output priority -110; policy accept;
		jump to_pods
	}}
"#
    )
}

/// The source NAT rules: the sender's address is replaced only where replies would not come back otherwise.
fn sources(rules: &Ruleset) -> String {
    let (mut outside, mut hairpin) = (String::new(), String::new());
    for range in &rules.pod_cidrs {
        let (family, net) = (word(range), range.trunc());
        let groups = match range {
            IpNet::V4(_) => "224.0.0.0/4",
            IpNet::V6(_) => "ff00::/8",
        };
        let _ = writeln!(
            outside,
            "\t\t{family} saddr {net} {family} daddr != {{ {net}, {groups} }} masquerade comment \"pods to the outside\""
        );
        let _ = writeln!(
            hairpin,
            "\t\tct status dnat {family} saddr {net} masquerade comment \"pod to pod by a port of the node or a service\""
        );
    }
    let bridge = &rules.bridge;
    format!(
        r#"	chain source {{
		type nat hook postrouting priority 90; policy accept;
		oifname "{bridge}" goto to_bridge
		oifname "lo" return
{outside}	}}
	chain to_bridge {{
		ip saddr 127.0.0.0/8 masquerade comment "127.0.0.1 of the node to a pod"
		ip6 saddr ::1 masquerade comment "::1 of the node to a pod"
{hairpin}	}}
"#
    )
}

/// Packets that cannot come from a pod, and those that only a pod can send. Addresses first: that costs packets
/// between the node and its pods less than four comparisons of the interface's name.
fn martians(rules: &Ruleset, bridge_family: bool) -> String {
    let bridge = &rules.bridge;
    let mut own = String::new();
    for range in &rules.pod_cidrs {
        let (family, net) = (word(range), range.trunc());
        let _ = writeln!(
            own,
            "\t\t{family} saddr {net} iifname != \"{bridge}\" iifname != \"lo\" counter drop comment \"a neighbour in a pod's name\""
        );
    }
    if !bridge_family {
        for (set, family) in [("own4", "ip"), ("own6", "ip6")] {
            let _ = writeln!(
                own,
                "\t\tiifname \"{bridge}\" ether saddr . {family} saddr != @{set} counter drop comment \"not the pod's own address\""
            );
        }
    }
    format!(
        r#"	chain martians {{
		comment "the bridge has route_localnet: pods must not reach what listens on 127.0.0.1"
		type filter hook prerouting priority -300; policy accept;
		ip daddr 127.0.0.0/8 iifname "{bridge}" counter drop
		ip saddr 127.0.0.0/8 iifname "{bridge}" counter drop
		ip6 daddr ::1 iifname "{bridge}" counter drop
		ip6 saddr ::1 iifname "{bridge}" counter drop
{own}	}}
"#
    )
}

/// Packets that are refused at once as unreachable.
fn refusals(rules: &Ruleset) -> String {
    let mut unserved = String::new();
    for range in &rules.service_cidrs {
        let (family, net) = (word(range), range.trunc());
        // Ports of services with endpoints were rewritten before and no longer go to this range.
        let _ = writeln!(
            unserved,
            "\t\t{family} daddr {net} goto refuse comment \"no such port, or no endpoint is ready\""
        );
    }
    let beyond = rules.services.iter().flat_map(|service| &service.addresses);
    let in_range = |ip: &&IpAddr| rules.service_cidrs.iter().any(|range| range.contains(*ip));
    let beyond: BTreeSet<&IpAddr> = beyond.filter(|ip| !in_range(ip)).gather();
    for ip in beyond {
        let family = word(&IpNet::from(*ip));
        let _ = writeln!(
            unserved,
            "\t\t{family} daddr {ip} goto refuse comment \"an address of a service, out of range\""
        );
    }
    format!(
        r#"	chain refuse {{
		meta l4proto tcp reject with tcp reset
		reject with icmpx port-unreachable
	}}
	chain forwarded {{
		type filter hook forward priority -10; policy accept;
{unserved}	}}
	chain sent {{
		type filter hook output priority -10; policy accept;
{unserved}	}}
	chain received {{
		type filter hook input priority -10; policy accept;
		ct state != new accept
		meta nfproto ipv4 meta l4proto . th dport @refused4 goto refuse
		meta nfproto ipv6 meta l4proto . th dport @refused6 goto refuse
	}}
"#
    )
}

/// The packets that a pod may send: only from its own addresses, and none that speak for others. The first rule
/// lets most packets through; only the rest reaches the other rules.
fn bridged(prefix: &str) -> String {
    format!(
        r#"	chain from_pods {{
		type filter hook prerouting priority -400; policy accept;
		ether type ip meta l4proto != 17 iifname . ether saddr . ip saddr @own4 accept
		iifname "{prefix}*" goto check
	}}
	chain check {{
		ether type ip goto check_ip
		ether type ip6 goto check_ip6
		ether type arp iifname . ether saddr . arp saddr ip @own4 iifname . arp saddr ether . arp saddr ip @own4 accept
		counter drop comment "neither IP nor ARP, or ARP for others"
	}}
	chain check_ip {{
		iifname . ether saddr . ip saddr != @own4 counter drop comment "not the pod's own address"
		udp sport 67 udp dport 68 counter drop comment "DHCP server"
	}}
	chain check_ip6 {{
		meta l4proto 58 jump neighbours
		ip6 saddr :: counter drop
		iifname . ether saddr . ip6 saddr != @own6 counter drop comment "not the pod's own address"
		udp sport 547 udp dport 546 counter drop comment "DHCP server"
	}}
	chain neighbours {{
		icmpv6 type {{ nd-router-advert, nd-redirect }} counter drop comment "not a router"
		icmpv6 type nd-neighbor-advert iifname . ether saddr . @th,64,128 != @target6 counter drop comment "speaks for others"
		ip6 saddr :: icmpv6 type nd-neighbor-solicit iifname . ether saddr . @th,64,128 @target6 accept
		ip6 saddr :: icmpv6 type {{ mld-listener-report, mld-listener-done, mld2-listener-report }} iifname . ether saddr . ip6 saddr @own6 accept
	}}
"#
    )
}

fn word(range: &IpNet) -> &'static str {
    match range {
        IpNet::V4(_) => "ip",
        IpNet::V6(_) => "ip6",
    }
}
