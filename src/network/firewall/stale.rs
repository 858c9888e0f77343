//! Stale connections. The kernel keeps its decision for a UDP sender as long as the sender does not pause, even
//! after a port was forwarded or its pod was removed.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use super::Ruleset;
use crate::network::conntrack::{self, Connection};
use crate::spec::Protocol;
use crate::types::Gather;

/// An entry point of clients: protocol, address (`None`: every address of the node; `0.0.0.0` or `::`: every one of that
/// family), port.
type Door = (Protocol, Option<IpAddr>, u16);

/// The pods behind each door, and the addresses of all pods.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Doors {
    behind: BTreeMap<Door, BTreeSet<SocketAddr>>,
    pods: BTreeSet<IpAddr>,
}

impl Doors {
    pub(super) fn new(rules: &Ruleset) -> Self {
        let mut doors = Self::default();
        for pod in rules.pods.values() {
            doors.pods.extend(&pod.ips);
            for port in &pod.host_ports {
                let behind = doors.behind.entry((port.protocol, port.host_ip, port.port));
                let leads =
                    |ip: &&IpAddr| port.host_ip.is_none_or(|at| at.is_ipv4() == ip.is_ipv4());
                let to = pod.ips.iter().filter(leads);
                let to = to.map(|ip| SocketAddr::new(*ip, port.to));
                behind.or_default().extend(to);
            }
        }
        for service in &rules.services {
            let addresses = service.addresses.iter();
            let at = addresses.map(|at| (service.protocol, Some(*at), service.port));
            let on_node = service.node_port.map(|port| (service.protocol, None, port));
            for door in at.chain(on_node) {
                let behind = doors.behind.entry(door).or_default();
                behind.extend(&service.endpoints);
            }
        }
        doors
    }

    /// The connections that may be stale once the `new` rules are in force. Where it is not known what was in force
    /// meanwhile, that is all: a sender that began while the rules were flushed was led nowhere.
    pub(super) fn stale(&self, new: &Self, is_known: bool) -> Stale {
        let keys: BTreeSet<&Door> = self.behind.keys().chain(new.behind.keys()).gather();
        let is_same = |door: &Door| is_known && self.behind.get(door) == new.behind.get(door);
        let changed = keys.into_iter();
        let changed = changed.filter(|door| door.0 == Protocol::Udp && !is_same(door));
        let none = BTreeSet::new();
        let doors = changed.map(|door| (*door, new.behind.get(door).unwrap_or(&none).clone()));
        let served = self.behind.values().flatten();
        let served: BTreeSet<IpAddr> = served.map(SocketAddr::ip).gather();
        let gone = self
            .pods
            .iter()
            .filter(|ip| served.contains(ip) && !new.pods.contains(ip));
        Stale {
            doors: doors.gather(),
            gone: gone.copied().gather(),
            came: new.pods.difference(&self.pods).copied().gather(),
        }
    }
}

/// The connections to delete.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Stale {
    /// UDP doors whose pods have changed, with the current ones.
    doors: BTreeMap<Door, BTreeSet<SocketAddr>>,
    /// Addresses of removed pods. Also for TCP: the next packet of a client then finds a new pod, or is refused at
    /// once instead of being sent to an address that never answers.
    gone: BTreeSet<IpAddr>,
    /// Addresses that have a pod again.
    came: BTreeSet<IpAddr>,
}

impl Stale {
    /// Whether there is nothing to delete.
    fn is_empty(&self) -> bool {
        self.doors.is_empty() && self.gone.is_empty()
    }

    /// Whether this connection is stale. `local`: the node's own addresses.
    pub(super) fn contains(&self, connection: &Connection, local: &BTreeSet<IpAddr>) -> bool {
        let Connection {
            to,
            port,
            answers_from,
            ..
        } = connection;
        if *to != answers_from.ip() && self.gone.contains(&answers_from.ip()) {
            return true;
        }
        if connection.protocol != UDP {
            return false;
        }
        let at_address = self.doors.get(&(Protocol::Udp, Some(*to), *port));
        let family: IpAddr = match to {
            IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let of_node = |at| self.doors.get(&(Protocol::Udp, at, *port));
        let on_node = of_node(None).or_else(|| of_node(Some(family)));
        // Traffic that only passes through to the same port elsewhere does not count.
        let on_node = on_node.filter(|_| to.is_loopback() || local.contains(to));
        let behind = at_address.or(on_node);
        behind.is_some_and(|pods| !pods.contains(answers_from))
    }
}

const UDP: u8 = 17;

/// Deletes stale connections on a thread of its own: the kernel goes through all its entries, which takes 10 ms on
/// a large machine even if none is deleted. One thread at a time; requests that come meanwhile are done in one go.
#[derive(Debug, Clone, Default)]
pub(super) struct Forgetful(Arc<Mutex<Pending>>);

#[derive(Debug, Default)]
struct Pending {
    stale: Stale,
    at_work: bool,
}

impl Forgetful {
    /// The rules for the connections must be in force. The thread is in the caller's network namespace.
    pub(super) fn forget(&self, stale: Stale) {
        let mut pending = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        pending.stale.doors.extend(stale.doors);
        pending.stale.gone.extend(stale.gone);
        pending.stale.gone.retain(|ip| !stale.came.contains(ip));
        if pending.at_work || pending.stale.is_empty() {
            return;
        }
        let forgetful = self.clone();
        let name = "conntrack".to_owned();
        let thread = thread::Builder::new()
            .name(name)
            .spawn(move || forgetful.work());
        // If no thread could be started, the pending deletions follow with the next change.
        pending.at_work = thread.is_ok();
    }

    fn work(&self) {
        while let Some(stale) = self.next() {
            let local = own_addresses();
            // A stale connection costs a client some time; it is no reason to fail.
            match conntrack::forget(|connection| stale.contains(connection, &local)) {
                Ok(count) => tracing::debug!(count, "forgot connections that went elsewhere"),
                Err(error) => tracing::debug!(%error, "could not forget connections"),
            }
        }
    }

    fn next(&self) -> Option<Stale> {
        let mut pending = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let stale = std::mem::take(&mut pending.stale);
        pending.at_work = !stale.is_empty();
        pending.at_work.then_some(stale)
    }
}

fn own_addresses() -> BTreeSet<IpAddr> {
    nix::ifaddrs::getifaddrs()
        .into_iter()
        .flatten()
        .filter_map(|interface| interface.address)
        .filter_map(|address| {
            let v4 = address.as_sockaddr_in().map(|a| IpAddr::V4(a.ip()));
            v4.or_else(|| address.as_sockaddr_in6().map(|a| IpAddr::V6(a.ip())))
        })
        .gather()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::firewall::{HostPort, PodRules};
    use crate::spec::PodUid;

    fn rules(pods: &[(u8, &[HostPort])]) -> Ruleset {
        let pods = pods.iter().map(|(number, ports)| {
            let rules = PodRules {
                veth: format!("v{number}"),
                mac: [0; 6],
                ips: vec![IpAddr::from([10, 0, 0, *number])],
                host_ports: ports.to_vec(),
            };
            (PodUid::from(format!("{number}").as_str()), rules)
        });
        Ruleset {
            pods: pods.collect(),
            ..Ruleset::default()
        }
    }

    fn between(old: &[(u8, &[HostPort])], new: &[(u8, &[HostPort])]) -> Stale {
        Doors::new(&rules(old)).stale(&Doors::new(&rules(new)), true)
    }

    fn connection(protocol: u8, to: &str, port: u16, answers_from: &str) -> Connection {
        Connection::for_test(
            protocol,
            to.parse().unwrap(),
            port,
            SocketAddr::new(answers_from.parse().unwrap(), 53),
        )
    }

    #[test]
    fn only_connections_that_would_go_elsewhere_now_are_stale() {
        let port = [HostPort {
            protocol: Protocol::Udp,
            host_ip: None,
            port: 53,
            to: 53,
        }];
        let local = BTreeSet::from([IpAddr::from([192, 0, 2, 1])]);
        let opened = between(&[(2, &[])], &[(2, &port)]);
        let closed = between(&[(2, &port), (3, &[])], &[(3, &[])]);
        let silent = between(&[(2, &[])], &[]);
        let elsewhere = [HostPort {
            to: 5353,
            ..port[0]
        }];
        let moved = between(&[(2, &port)], &[(2, &elsewhere)]);
        let cases: &[(&str, &Stale, Connection, bool)] = &[
            (
                "to the node itself",
                &opened,
                connection(17, "192.0.2.1", 53, "192.0.2.1"),
                true,
            ),
            (
                "to the node's loopback",
                &opened,
                connection(17, "127.0.0.1", 53, "127.0.0.1"),
                true,
            ),
            (
                "to the pod already",
                &opened,
                connection(17, "192.0.2.1", 53, "10.0.0.2"),
                false,
            ),
            (
                "to another port of the pod",
                &moved,
                connection(17, "192.0.2.1", 53, "10.0.0.2"),
                true,
            ),
            (
                "to another port",
                &opened,
                connection(17, "192.0.2.1", 54, "192.0.2.1"),
                false,
            ),
            (
                "passing by",
                &opened,
                connection(17, "9.9.9.9", 53, "9.9.9.9"),
                false,
            ),
            (
                "TCP",
                &opened,
                connection(6, "192.0.2.1", 53, "192.0.2.1"),
                false,
            ),
            (
                "to a pod that went",
                &closed,
                connection(17, "192.0.2.1", 53, "10.0.0.2"),
                true,
            ),
            (
                "TCP to a pod that went",
                &closed,
                connection(6, "192.0.2.1", 80, "10.0.0.2"),
                true,
            ),
            (
                "not by a port of the node",
                &closed,
                connection(6, "10.0.0.2", 80, "10.0.0.2"),
                false,
            ),
            (
                "to a pod without ports",
                &silent,
                connection(6, "192.0.2.1", 80, "10.0.0.2"),
                false,
            ),
        ];
        for (what, stale, connection, expected) in cases {
            assert_eq!(stale.contains(connection, &local), *expected, "{what}");
        }
        assert!(silent.is_empty() && !closed.is_empty());
    }
}
