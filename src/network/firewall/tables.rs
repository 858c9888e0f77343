//! The changing part of the tables as plain data: the elements of maps and sets, and a chain for each port of each
//! service that has endpoints. Pure: the same `Ruleset` always gives the same `Tables`.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use super::{FirewallError, HostPort, PodRules, Ruleset, ServiceRoute};
use crate::spec::Protocol;
use crate::types::Gather;

/// Elements of a map or set: key and value (none in a set), both in the syntax of `nft`.
pub(super) type Elements = BTreeMap<String, Option<String>>;

/// The family of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Family {
    Inet,
    Bridge,
}

impl Family {
    pub(super) const fn word(self) -> &'static str {
        match self {
            Family::Inet => "inet",
            Family::Bridge => "bridge",
        }
    }
}

/// A chain for one family of one port of a service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct EndpointChain {
    /// The service's name, for people.
    pub(super) comment: String,
    /// Its only rule.
    pub(super) rule: String,
}

/// The content of both tables.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Tables {
    /// Name of both tables and of the bridge; empty: no tables.
    pub(super) bridge: String,
    /// The declaration of each map and set by name, and the chains that stay the same while pods come and go.
    pub(super) frame: String,
    /// Whether the kernel filters on the bridge itself.
    pub(super) bridge_family: bool,
    /// By the name of the map or set.
    pub(super) sets: BTreeMap<&'static str, Elements>,
    /// By a name that contains a hash of the content: a chain never changes, it is replaced.
    pub(super) chains: BTreeMap<String, EndpointChain>,
}

/// A map or set.
pub(super) struct SetKind {
    pub(super) family: Family,
    pub(super) name: &'static str,
    /// `map` or `set`.
    pub(super) what: &'static str,
    pub(super) of: &'static str,
    pub(super) comment: &'static str,
}

const fn kind(
    family: Family,
    name: &'static str,
    what: &'static str,
    of: &'static str,
    comment: &'static str,
) -> SetKind {
    SetKind {
        family,
        name,
        what,
        of,
        comment,
    }
}

/// The maps of routed packets.
const ROUTED: &[SetKind] = &[
    kind(
        Family::Inet,
        "hostport4",
        "map",
        "type inet_proto . inet_service : ipv4_addr . inet_service",
        "hostPort on every address of the node",
    ),
    kind(
        Family::Inet,
        "hostport6",
        "map",
        "type inet_proto . inet_service : ipv6_addr . inet_service",
        "hostPort on every address of the node",
    ),
    kind(
        Family::Inet,
        "hostip4",
        "map",
        "type ipv4_addr . inet_proto . inet_service : ipv4_addr . inet_service",
        "hostPort on one address, hostIP",
    ),
    kind(
        Family::Inet,
        "hostip6",
        "map",
        "type ipv6_addr . inet_proto . inet_service : ipv6_addr . inet_service",
        "hostPort on one address, hostIP",
    ),
    kind(
        Family::Inet,
        "service4",
        "map",
        "type ipv4_addr . inet_proto . inet_service : verdict",
        "clusterIP and port of services",
    ),
    kind(
        Family::Inet,
        "service6",
        "map",
        "type ipv6_addr . inet_proto . inet_service : verdict",
        "clusterIP and port of services",
    ),
    kind(
        Family::Inet,
        "nodeport4",
        "map",
        "type inet_proto . inet_service : verdict",
        "nodePort of services",
    ),
    kind(
        Family::Inet,
        "nodeport6",
        "map",
        "type inet_proto . inet_service : verdict",
        "nodePort of services",
    ),
    kind(
        Family::Inet,
        "refused4",
        "set",
        "type inet_proto . inet_service",
        "nodePort of services without endpoints",
    ),
    kind(
        Family::Inet,
        "refused6",
        "set",
        "type inet_proto . inet_service",
        "nodePort of services without endpoints",
    ),
];

/// The addresses that pods may send from, if the kernel filters on the bridge.
const BRIDGED: &[SetKind] = &[
    kind(
        Family::Bridge,
        "own4",
        "set",
        "type ifname . ether_addr . ipv4_addr",
        "what each pod may send from",
    ),
    kind(
        Family::Bridge,
        "own6",
        "set",
        "type ifname . ether_addr . ipv6_addr",
        "what each pod may send from",
    ),
    kind(
        Family::Bridge,
        "target6",
        "set",
        "typeof iifname . ether saddr . @th,64,128",
        "what each pod may say to be its own",
    ),
];

/// The addresses that pods may send from, for routed packets.
const UNBRIDGED: &[SetKind] = &[
    kind(
        Family::Inet,
        "own4",
        "set",
        "type ether_addr . ipv4_addr",
        "what each pod may send from",
    ),
    kind(
        Family::Inet,
        "own6",
        "set",
        "type ether_addr . ipv6_addr",
        "what each pod may send from",
    ),
];

/// All maps and sets.
pub(super) fn kinds(bridge_family: bool) -> impl Iterator<Item = &'static SetKind> {
    let own = if bridge_family { BRIDGED } else { UNBRIDGED };
    ROUTED.iter().chain(own)
}

impl Tables {
    /// The tables for these rules. Fails only if a name does not fit into a rule.
    pub(super) fn new(rules: &Ruleset, bridge_family: bool) -> Result<Self, FirewallError> {
        if rules.bridge.is_empty() {
            return Ok(Self::default());
        }
        let names = [&rules.bridge, &rules.veth_prefix];
        for name in names
            .into_iter()
            .chain(rules.pods.values().map(|p| &p.veth))
        {
            if !is_plain(name) {
                return Err(FirewallError::Name(name.clone()));
            }
        }
        let mut tables = Self {
            bridge: rules.bridge.clone(),
            frame: super::chains::frame(rules, bridge_family),
            bridge_family,
            sets: kinds(bridge_family)
                .map(|k| (k.name, Elements::new()))
                .gather(),
            chains: BTreeMap::new(),
        };
        for pod in rules.pods.values() {
            for port in &pod.host_ports {
                tables.host_port(pod, port);
            }
            tables.own(pod);
        }
        for service in &rules.services {
            tables.service(service);
        }
        Ok(tables)
    }

    /// The first one wins: only one entry for a key can be in force, and callers refuse the second.
    fn put(&mut self, set: &'static str, key: String, value: Option<String>) {
        let elements = self.sets.entry(set).or_default();
        elements.entry(key).or_insert(value);
    }

    fn host_port(&mut self, pod: &PodRules, port: &HostPort) {
        let protocol = word(port.protocol);
        for ip in &pod.ips {
            let to = Some(format!("{ip} . {}", port.to));
            let pick = |four, six| if ip.is_ipv4() { four } else { six };
            match port.host_ip {
                Some(at) if at.is_ipv4() != ip.is_ipv4() => {}
                Some(at) if !at.is_unspecified() => {
                    let key = format!("{at} . {protocol} . {}", port.port);
                    self.put(pick("hostip4", "hostip6"), key, to);
                }
                Some(_) | None => {
                    let key = format!("{protocol} . {}", port.port);
                    self.put(pick("hostport4", "hostport6"), key, to);
                }
            }
        }
    }

    fn own(&mut self, pod: &PodRules) {
        let mac = pod.mac.map(|byte| format!("{byte:02x}")).join(":");
        let port = match self.bridge_family {
            true => format!("\"{}\" . {mac}", pod.veth),
            false => mac,
        };
        let mut has_v6 = false;
        for ip in &pod.ips {
            match ip {
                IpAddr::V4(ip) => self.put("own4", format!("{port} . {ip}"), None),
                IpAddr::V6(ip) => {
                    has_v6 = true;
                    self.own6(&port, *ip);
                }
            }
        }
        if has_v6 {
            self.own6(&port, link_local(pod.mac));
            // Duplicate address detection and group membership reports; `neighbours` lets nothing else through.
            self.put("own6", format!("{port} . ::"), None);
        }
    }

    fn own6(&mut self, port: &str, ip: Ipv6Addr) {
        self.put("own6", format!("{port} . {ip}"), None);
        if self.bridge_family {
            let number = format!("{port} . {:#034x}", u128::from(ip));
            self.put("target6", number, None);
        }
    }

    fn service(&mut self, service: &ServiceRoute) {
        let protocol = word(service.protocol);
        for v4 in [true, false] {
            let endpoints: BTreeSet<SocketAddr> = service
                .endpoints
                .iter()
                .filter(|at| at.is_ipv4() == v4)
                .copied()
                .gather();
            let pick = |four, six| if v4 { four } else { six };
            if endpoints.is_empty() {
                // A service address needs nothing more: packets to it without an entry are refused.
                if let Some(port) = service.node_port {
                    self.put(
                        pick("refused4", "refused6"),
                        format!("{protocol} . {port}"),
                        None,
                    );
                }
                continue;
            }
            let rule = spread(protocol, &endpoints, service.affinity, v4);
            let comment = comment(&service.name);
            let name = format!("to{}_{:016x}", pick("4", "6"), hash(&[&comment, &rule]));
            let verdict = format!("goto {name}");
            for at in service.addresses.iter().filter(|at| at.is_ipv4() == v4) {
                let key = format!("{at} . {protocol} . {}", service.port);
                self.put(pick("service4", "service6"), key, Some(verdict.clone()));
            }
            if let Some(port) = service.node_port {
                let key = format!("{protocol} . {port}");
                self.put(pick("nodeport4", "nodeport6"), key, Some(verdict));
            }
            self.chains.insert(name, EndpointChain { comment, rule });
        }
    }
}

/// The rule that chooses one of the endpoints.
fn spread(protocol: &str, endpoints: &BTreeSet<SocketAddr>, affinity: bool, v4: bool) -> String {
    let family = if v4 { "ip" } else { "ip6" };
    let place = |at: &SocketAddr| format!("{} . {}", at.ip(), at.port());
    let start = format!("meta l4proto {protocol} dnat {family} to");
    let count = endpoints.len();
    if let (1, Some(only)) = (count, endpoints.first()) {
        return format!("{start} {only}");
    }
    let choice: Vec<String> = endpoints
        .iter()
        .enumerate()
        .map(|(number, at)| format!("{number} : {}", place(at)))
        .collect();
    // Without a seed the kernel takes a random one, and a client would change its endpoint when the rules are
    // recreated.
    let by = match affinity {
        true => format!("jhash {family} saddr mod {count} seed 0xc0ac1e"),
        false => format!("numgen random mod {count}"),
    };
    format!("{start} {by} map {{ {} }}", choice.join(", "))
}

/// The link-local address that an interface gives itself.
fn link_local(mac: [u8; 6]) -> Ipv6Addr {
    let [a, b, c, d, e, f] = mac;
    let id = u64::from_be_bytes([a ^ 2, b, c, 0xff, 0xfe, d, e, f]);
    Ipv6Addr::from(0xfe80_u128 << 112 | u128::from(id))
}

pub(super) const fn word(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Tcp => "tcp",
        Protocol::Udp => "udp",
        Protocol::Sctp => "sctp",
    }
}

/// Names that need no quotes and cannot be anything but a name.
pub(super) fn is_plain(name: &str) -> bool {
    name.len() <= 15
        && name.starts_with(|c: char| c.is_ascii_alphabetic())
        && name
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "_.-".contains(c))
}

/// The text that may be quoted; the program takes at most 128 bytes.
fn comment(text: &str) -> String {
    let fine = |c: char| {
        if c.is_ascii_alphanumeric() || "-_./: ".contains(c) {
            c
        } else {
            '?'
        }
    };
    text.chars().take(100).map(fine).collect()
}

/// FNV-1a, 64 bits.
fn hash(parts: &[&str]) -> u64 {
    let bytes = parts.iter().flat_map(|part| part.bytes().chain([0]));
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

#[cfg(test)]
#[path = "tables_test.rs"]
mod tests;
