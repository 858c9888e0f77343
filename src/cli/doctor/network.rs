//! Checks for pod networking. Only pods without `hostNetwork: true` need what is missing here.

use std::net::IpAddr;
use std::path::Path;
use std::process::Command;

use nix::unistd::{AccessFlags, access};

use super::{Finding, Level, level, read};
use crate::network::firewall::{self, HostPort};
use crate::network::listeners;
use crate::spec::Protocol;
use crate::sys::{link_check, process};

const WITHOUT: &str = "only pods with `hostNetwork: true` will run";

/// `bridge` is the name of the pods' bridge.
pub(super) fn findings(bridge: &str) -> Vec<Finding> {
    let mut found = vec![program()];
    found.extend(kernel());
    found.extend([ipv6(), forwarding()]);
    found.extend(other_firewalls(bridge));
    found.extend(bridge_calls(bridge));
    found.extend(name_server());
    found
}

fn program() -> Finding {
    match firewall::find_program() {
        Some(path) => Finding::new(Level::Ok, "nft", path.display().to_string()),
        None => Finding::new(Level::Warn, "nft", format!("missing; {WITHOUT}"))
            .hint("install the package `nftables`"),
    }
}

/// Probes kernel features in a network namespace of its own.
fn kernel() -> Vec<Finding> {
    let trial = link_check::in_fresh_namespace(|| {
        let links = [
            ("veth (CONFIG_VETH)", link_check::try_veth()),
            ("bridge (CONFIG_BRIDGE)", link_check::try_bridge()),
        ];
        let missing = links.into_iter().filter(|(_, made)| made.is_err());
        let missing: Vec<String> = missing.map(|(name, _)| name.to_owned()).collect();
        (missing, firewall::missing_features())
    });
    let (mut missing, features) = match trial {
        Ok(result) => result,
        Err(error) => {
            let detail = format!("could not be tried: {error}");
            return vec![
                Finding::new(Level::Warn, "pod network", detail)
                    .hint("run doctor as root; an outer container may forbid network namespaces"),
            ];
        }
    };
    let features = features.unwrap_or_default();
    let required = features.iter().filter(|feature| feature.required);
    missing.extend(required.map(|feature| format!("{} ({})", feature.what, feature.option)));
    let detail = match missing.is_empty() {
        true if firewall::find_program().is_none() => "veth bridge".to_owned(),
        true => "veth bridge nf_tables NAT".to_owned(),
        false => format!("missing: {}; {WITHOUT}", missing.join(", ")),
    };
    let fine = level(missing.is_empty(), Level::Warn);
    let mut found = vec![Finding::new(fine, "pod network", detail).hint(
        "load the modules (`modprobe veth bridge nf_tables nft_nat`), or use a kernel built with these options",
    )];
    found.extend(
        features
            .iter()
            .filter(|feature| !feature.required)
            .map(|feature| {
                let detail = format!(
                    "no {} ({}): a pod can spoof the addresses of other pods",
                    feature.what, feature.option
                );
                Finding::new(Level::Warn, "pod isolation", detail).hint(
                    "load the module (`modprobe nf_tables_bridge`), or use a kernel built with it",
                )
            }),
    );
    found
}

fn ipv6() -> Finding {
    let conf = Path::new("/proc/sys/net/ipv6/conf");
    let off = |name: &str| read(conf.join(name).join("disable_ipv6")) != "0";
    let detail = match (conf.exists(), off("all") || off("default")) {
        (true, false) => "on",
        (true, true) => "off; pods get IPv4 only",
        (false, _) => "off (CONFIG_IPV6, or `ipv6.disable=1`); pods get IPv4 only",
    };
    Finding::new(Level::Ok, "ipv6", detail)
}

fn forwarding() -> Finding {
    let path = "/proc/sys/net/ipv4/ip_forward";
    match (read(path) == "1", access(path, AccessFlags::W_OK)) {
        (true, _) => Finding::new(Level::Ok, "forwarding", "on"),
        (false, Ok(())) => Finding::new(
            Level::Ok,
            "forwarding",
            "off; the first pod with an address turns it on",
        ),
        (false, Err(_)) => {
            let detail = format!("off, and {path} cannot be written; {WITHOUT}");
            Finding::new(Level::Warn, "forwarding", detail)
                .hint("set `net.ipv4.ip_forward=1` (and `net.ipv6.conf.all.forwarding=1`) outside")
        }
    }
}

/// Checks for foreign tables that drop forwarded packets, so that pods could not reach other networks, or those to the
/// node, where the pods' name server is.
fn other_firewalls(bridge: &str) -> Vec<Finding> {
    let mut found = Vec::new();
    let mut rulesets: Vec<String> = firewall::list_chains().into_iter().collect();
    for (family, names, program) in LEGACY {
        // Asking for the table makes it.
        if read(names).lines().all(|table| table != "filter") {
            continue;
        }
        match listed(program) {
            Some(rules) => rulesets.push(as_chains(family, program, &rules)),
            None => found.push(unread(bridge, program)),
        }
    }
    for chains in &rulesets {
        found.extend(dropping(bridge, chains));
    }
    found
}

/// iptables as it was before nf_tables, whose tables nft does not list: the family, the tables in use, and the program
/// that shows their rules.
const LEGACY: [(&str, &str, &str); 2] = [
    ("ip", "/proc/net/ip_tables_names", "iptables-legacy"),
    ("ip6", "/proc/net/ip6_tables_names", "ip6tables-legacy"),
];

/// The rules of the table `filter`; `None` if the program is missing or fails.
fn listed(program: &str) -> Option<String> {
    let path = process::find_program(program)?;
    let output = Command::new(path).arg("-S").output().ok()?;
    let fine = output.status.success();
    fine.then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

fn unread(bridge: &str, program: &str) -> Finding {
    let detail = format!(
        "there is a table `filter` of {program}, which could not be read: it may drop packets of pods"
    );
    Finding::new(Level::Warn, "other firewall", detail).hint(format!(
        "if its policies are DROP (`{program} -S`), accept packets that come in or go out on `{bridge}`"
    ))
}

/// The rules that iptables lists, as nft would list their chains.
fn as_chains(family: &str, program: &str, rules: &str) -> String {
    let chains = rules.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        match (words.next()?, words.next()?, words.next()) {
            ("-P", chain, Some(policy)) => Some(format!(
                "\tchain {chain} {{\n\t\ttype filter hook {} priority filter; policy {};\n\t}}\n",
                chain.to_lowercase(),
                policy.to_lowercase()
            )),
            ("-N", chain, _) => Some(format!("\tchain {chain} {{\n\t}}\n")),
            _ => None,
        }
    });
    let chains: String = chains.collect();
    format!("table {family} filter ({program}) {{\n{chains}}}\n")
}

fn dropping(bridge: &str, chains: &str) -> Vec<Finding> {
    let tables = dropping_tables(chains, "forward");
    let forwarded = tables.into_iter().map(|table| {
        let detail = format!("table `{table}` drops forwarded packets that it does not know");
        let hint = way_through(bridge, &table, chains);
        Finding::new(Level::Warn, "other firewall", detail).hint(hint)
    });
    let tables = dropping_tables(chains, "input");
    let delivered = tables.into_iter().map(|table| {
        let detail = format!(
            "table `{table}` drops packets to the node that it does not know, such as those of pods for their name server"
        );
        Finding::new(Level::Warn, "other firewall", detail).hint(way_in(bridge, chains))
    });
    forwarded.chain(delivered).collect()
}

/// Finds tables with a base chain at this hook whose policy is drop, and firewalld's, which drops forwarded packets by a
/// rule.
fn dropping_tables(chains: &str, hook: &str) -> Vec<String> {
    let at_hook = format!("hook {hook} ");
    let mut table = "";
    let mut found: Vec<String> = Vec::new();
    for line in chains.lines() {
        if let Some(name) = line.strip_prefix("table ") {
            table = name.trim_end_matches([' ', '{']);
        }
        let by_rule = hook == "forward" && table.ends_with(" firewalld");
        let drops = line.contains("policy drop") || by_rule;
        if line.contains(&at_hook) && drops && found.last().is_none_or(|last| last != table) {
            found.push(table.to_owned());
        }
    }
    found
}

fn way_through(bridge: &str, table: &str, chains: &str) -> String {
    if table.ends_with(" firewalld") {
        format!(
            "let the bridge through: `firewall-cmd --permanent --zone=trusted --add-interface={bridge} && firewall-cmd --reload`"
        )
    } else if chains.contains("chain ufw-") || chains.contains("chain ufw6-") {
        format!(
            "let the bridge through: `ufw route allow in on {bridge}`, `ufw route allow out on {bridge}` and `ufw allow in on {bridge}`"
        )
    } else if chains.contains("chain DOCKER-USER") {
        format!(
            "let the bridge through: `iptables -I DOCKER-USER -i {bridge} -j ACCEPT` and `iptables -I DOCKER-USER -o {bridge} -j ACCEPT`"
        )
    } else {
        format!("accept packets that come in or go out on `{bridge}` in that table's forward chain")
    }
}

fn way_in(bridge: &str, chains: &str) -> String {
    match chains.contains("chain ufw-") || chains.contains("chain ufw6-") {
        true => format!("if it does not let them in yet: `ufw allow in on {bridge}`"),
        false => format!(
            "if no rule of it does so yet, accept packets that come in on `{bridge}` in its input chain"
        ),
    }
}

/// Checks bridge-nf-call-ip6tables, which stays on where other bridges may need it.
fn bridge_calls(bridge: &str) -> Option<Finding> {
    let called = read("/proc/sys/net/bridge/bridge-nf-call-ip6tables") == "1";
    let bridges = link_check::bridges().unwrap_or_default();
    let others: Vec<&str> = bridges
        .iter()
        .map(String::as_str)
        .filter(|name| *name != bridge)
        .collect();
    if !called || others.is_empty() {
        return None;
    }
    let detail = format!(
        "bridge-nf-call-ip6tables is on and left on for {}: [::1] does not reach host ports of pods",
        others.join(", ")
    );
    let finding = Finding::new(Level::Warn, "bridge filter", detail);
    Some(
        finding
            .hint("if no other program needs it: `sysctl net.bridge.bridge-nf-call-ip6tables=0`"),
    )
}

/// Checks whether port 53 is free for the pods' name server.
fn name_server() -> Option<Finding> {
    // No interface has these addresses: only a listener on all addresses is in the way.
    let nowhere = ["240.0.0.1", "100::1"]
        .iter()
        .filter_map(|ip| ip.parse::<IpAddr>().ok());
    let taken =
        nowhere.flat_map(|ip| [Protocol::Udp, Protocol::Tcp].map(|protocol| (ip, protocol)));
    let listener = taken.into_iter().find_map(|(ip, protocol)| {
        listeners::taken(
            &HostPort {
                protocol,
                host_ip: Some(ip),
                port: 53,
                to: 53,
            },
            &[],
        )
    })?;
    let who = match listener.process.as_str() {
        "" => "a program".to_owned(),
        name => format!("{name} (pid {})", listener.pid),
    };
    let detail = format!(
        "port 53 is taken on all addresses by {who}; the one for pods moves to another port"
    );
    Some(Finding::new(Level::Ok, "name server", detail))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_that_drop_forwarded_packets_are_named_with_a_way_through() {
        let chain = |table: &str, hook: &str, policy: &str| {
            format!(
                "table {table} {{\n\tchain X {{\n\t\ttype filter hook {hook} priority filter; policy {policy};\n\t}}\n}}\n"
            )
        };
        let cases: &[(String, &[&str], &str)] = &[
            (chain("inet coracle0", "forward", "accept"), &[], ""),
            (chain("ip filter", "input", "drop"), &[], ""),
            (
                chain("ip filter", "forward", "drop"),
                &["ip filter"],
                "go out on `br7`",
            ),
            (
                chain("inet firewalld", "forward", "accept"),
                &["inet firewalld"],
                "--add-interface=br7 ",
            ),
            (
                chain("ip filter", "forward", "drop")
                    + "table ip filter {\n\tchain ufw-user-forward {\n\t}\n}\n",
                &["ip filter"],
                "ufw route allow in on br7`",
            ),
            (
                chain("ip filter", "forward", "drop")
                    + "table ip filter {\n\tchain DOCKER-USER {\n\t}\n}\n",
                &["ip filter"],
                "-o br7",
            ),
        ];
        for (chains, tables, hint) in cases {
            assert_eq!(dropping_tables(chains, "forward"), *tables, "{chains}");
            for table in *tables {
                assert!(way_through("br7", table, chains).contains(hint), "{chains}");
            }
        }
    }

    #[test]
    fn tables_that_drop_packets_to_the_node_are_named() {
        let chains = "table ip filter {\n\tchain INPUT {\n\t\ttype filter hook input priority filter; policy drop;\n\t}\n\
                      \tchain ufw-user-input {\n\t}\n}\ntable inet firewalld {\n\tchain I {\n\t\ttype filter hook input \
                      priority 10; policy accept;\n\t}\n}\n";
        assert_eq!(dropping_tables(chains, "input"), ["ip filter"]);
        assert!(way_in("br7", chains).contains("ufw allow in"));
        assert!(dropping_tables(chains, "forward").is_empty());
    }

    #[test]
    fn policies_of_legacy_iptables_count_like_those_of_nft() {
        let rules = "-P INPUT ACCEPT\n-P FORWARD DROP\n-P OUTPUT ACCEPT\n-N DOCKER-USER\n-A FORWARD -j DOCKER-USER\n";
        let chains = as_chains("ip", "iptables-legacy", rules);
        let found = dropping("br7", &chains);
        let detail =
            "table `ip filter (iptables-legacy)` drops forwarded packets that it does not know";
        let details: Vec<&str> = found.iter().map(|finding| &*finding.detail).collect();
        assert_eq!(details, [detail]);
        let hint = found[0].hint.as_deref().unwrap();
        assert!(hint.contains("DOCKER-USER -i br7"), "{hint}");
        let open = "-P INPUT ACCEPT\n-P FORWARD ACCEPT\n-P OUTPUT DROP\n";
        assert!(dropping("br7", &as_chains("ip6", "ip6tables-legacy", open)).is_empty());
        let closed = dropping(
            "br7",
            &as_chains("ip", "iptables-legacy", "-P INPUT DROP\n"),
        );
        assert!(closed[0].detail.contains("drops packets to the node"));
    }
}
