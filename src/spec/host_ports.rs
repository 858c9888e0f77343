//! Ports of the node that pods need for themselves.

use std::net::IpAddr;

use super::{PodSpec, Protocol};

/// A port of the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HostPort {
    /// Its protocol.
    pub protocol: Protocol,
    /// The node's address, or `0.0.0.0` or `::` for all of that family; `None`: on all of both.
    pub ip: Option<IpAddr>,
    /// Its number.
    pub number: u16,
}

impl HostPort {
    /// Whether only one pod can have both.
    pub fn overlaps(&self, other: &Self) -> bool {
        meet(self.ip, other.ip) && (self.protocol, self.number) == (other.protocol, other.number)
    }
}

/// Whether two ports of the same number are in each other's way at these addresses of the node.
pub fn meet(one: Option<IpAddr>, other: Option<IpAddr>) -> bool {
    let (Some(one), Some(other)) = (one, other) else {
        return true;
    };
    let any = one.is_unspecified() || other.is_unspecified();
    one == other || any && one.is_ipv4() == other.is_ipv4()
}

/// The node ports that a pod needs.
pub fn host_ports(pod: &PodSpec) -> impl Iterator<Item = HostPort> {
    let ports = pod.lasting_containers().flat_map(|c| &c.ports);
    ports.filter_map(|port| {
        Some(HostPort {
            protocol: port.protocol,
            ip: port.host_ip,
            number: port.host_port?,
        })
    })
}
