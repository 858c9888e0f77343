//! Ports of the node that pods need for themselves.

use std::net::IpAddr;

use super::{PodSpec, Protocol};

/// A port of the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HostPort {
    /// Its protocol.
    pub protocol: Protocol,
    /// The node's address; `None`: on all addresses.
    pub ip: Option<IpAddr>,
    /// Its number.
    pub number: u16,
}

impl HostPort {
    /// Whether only one pod can have both.
    pub fn overlaps(&self, other: &Self) -> bool {
        let ips = match (self.ip, other.ip) {
            (Some(one), Some(other)) => one == other,
            (None, _) | (_, None) => true,
        };
        ips && (self.protocol, self.number) == (other.protocol, other.number)
    }
}

/// The node ports that a pod needs.
pub fn host_ports(pod: &PodSpec) -> impl Iterator<Item = HostPort> {
    let ports = pod.lasting_containers().flat_map(|c| &c.ports);
    ports.filter_map(|port| {
        Some(HostPort {
            protocol: port.protocol,
            ip: port.host_ip.filter(|ip| !ip.is_unspecified()),
            number: port.host_port?,
        })
    })
}
