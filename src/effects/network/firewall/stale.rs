//! Which connections would the kernel go on sending the old way? What it once decided for a UDP sender it keeps as long as
//! the sender does not pause, also when a port was forwarded since, or its pod has gone.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::Ruleset;
use crate::effects::network::conntrack::Connection;
use crate::spec::Protocol;

/// Where clients come in: transport, address (`None`: every address of the node), port.
type Door = (Protocol, Option<IpAddr>, u16);

/// Who is behind each door, and which addresses pods have.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Doors {
    behind: BTreeMap<Door, BTreeSet<IpAddr>>,
    pods: BTreeSet<IpAddr>,
}

impl Doors {
    pub(super) fn new(rules: &Ruleset) -> Self {
        let mut doors = Self::default();
        for pod in rules.pods.values() {
            doors.pods.extend(&pod.ips);
            for port in &pod.host_ports {
                let at = port.host_ip.filter(|at| !at.is_unspecified());
                let behind = doors.behind.entry((port.protocol, at, port.port));
                behind.or_default().extend(&pod.ips);
            }
        }
        for service in &rules.services {
            let addresses = service.addresses.iter();
            let at = addresses.map(|at| (service.protocol, Some(*at), service.port));
            let on_node = service.node_port.map(|port| (service.protocol, None, port));
            for door in at.chain(on_node) {
                let behind = doors.behind.entry(door).or_default();
                behind.extend(service.endpoints.iter().map(|at| at.ip()));
            }
        }
        doors
    }

    /// What may be stale once the rules are those of `new`.
    pub(super) fn stale(&self, new: &Self) -> Stale {
        let keys: BTreeSet<&Door> = self.behind.keys().chain(new.behind.keys()).collect();
        let changed = keys.into_iter().filter(|door| {
            door.0 == Protocol::Udp && self.behind.get(door) != new.behind.get(door)
        });
        let nobody = BTreeSet::new();
        let doors = changed.map(|door| (*door, new.behind.get(door).unwrap_or(&nobody).clone()));
        let served: BTreeSet<&IpAddr> = self.behind.values().flatten().collect();
        let gone = self
            .pods
            .iter()
            .filter(|ip| served.contains(ip) && !new.pods.contains(ip));
        Stale {
            doors: doors.collect(),
            gone: gone.copied().collect(),
        }
    }
}

/// Which connections to forget.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Stale {
    /// UDP doors whose pods are others now, and these.
    doors: BTreeMap<Door, BTreeSet<IpAddr>>,
    /// Addresses of pods that are no more. Also TCP: the next packet of a client then finds a new pod or nobody, and
    /// is told so at once instead of being sent to an address that never answers.
    gone: BTreeSet<IpAddr>,
}

impl Stale {
    pub(super) fn is_empty(&self) -> bool {
        self.doors.is_empty() && self.gone.is_empty()
    }

    /// Whether this one is to be forgotten. `local`: the node's own addresses.
    pub(super) fn contains(&self, connection: &Connection, local: &BTreeSet<IpAddr>) -> bool {
        let Connection {
            to,
            port,
            answers_from,
            ..
        } = connection;
        if to != answers_from && self.gone.contains(answers_from) {
            return true;
        }
        if connection.protocol != UDP {
            return false;
        }
        let at_address = self.doors.get(&(Protocol::Udp, Some(*to), *port));
        let on_node = self.doors.get(&(Protocol::Udp, None, *port));
        // Traffic that only passes by to the same port elsewhere is none of ours.
        let on_node = on_node.filter(|_| to.is_loopback() || local.contains(to));
        let behind = at_address.or(on_node);
        behind.is_some_and(|pods| !pods.contains(answers_from))
    }
}

const UDP: u8 = 17;
