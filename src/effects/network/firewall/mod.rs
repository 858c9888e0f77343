//! Which packets go where? One table of the kernel's packet filter for what is routed (`inet`) and one for what crosses
//! the bridge (`bridge`), both named like the bridge and entirely ours.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;

use crate::spec::{PodUid, Protocol};

/// All that the rules are made from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ruleset {
    /// Name of the bridge, and of the tables.
    pub bridge: String,
    /// What every pod interface's name on the node begins with.
    pub veth_prefix: String,
    /// The bridge's addresses with their ranges: what pods may have.
    pub pod_cidrs: Vec<IpNet>,
    /// Ranges of service addresses.
    pub service_cidrs: Vec<IpNet>,
    /// The name server could not have port 53 of the bridge address and listens on this one.
    pub dns_port: Option<u16>,
    /// The pods on the bridge.
    pub pods: BTreeMap<PodUid, PodRules>,
    /// One for each port of each service with an address or a node port.
    pub services: Vec<ServiceRoute>,
}

/// What is known of one pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodRules {
    /// Its interface on the node.
    pub veth: String,
    /// Its hardware address.
    pub mac: [u8; 6],
    /// Its addresses, at most one a family.
    pub ips: Vec<IpAddr>,
    /// Its ports on the node.
    pub host_ports: Vec<HostPort>,
}

/// A port on the node that leads to a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct HostPort {
    /// Transport.
    pub protocol: Protocol,
    /// Only this address of the node; `None` (also for `0.0.0.0` and `::`): all, of both families.
    pub host_ip: Option<IpAddr>,
    /// On the node.
    pub port: u16,
    /// In the pod.
    pub to: u16,
}

/// A port of a service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceRoute {
    /// `<namespace>/<name>:<port name or number>`, for people.
    pub name: String,
    /// The service's addresses; none if it is only reached by its node port.
    pub addresses: Vec<IpAddr>,
    /// Transport.
    pub protocol: Protocol,
    /// At the service's addresses.
    pub port: u16,
    /// At every address of the node.
    pub node_port: Option<u16>,
    /// Pods, of both families; connections to a family without any are refused at once, not dropped.
    pub endpoints: Vec<SocketAddr>,
    /// One client always gets to the same pod.
    pub affinity: bool,
}

/// What went wrong with the rules.
#[derive(Debug, thiserror::Error)]
pub enum FirewallError {
    /// There is no `nft` program.
    #[error(
        "the `nft` program is missing; pods with a network of their own need it (package `nftables`)"
    )]
    Missing,
}

/// The rules in force.
#[derive(Debug, Default)]
pub struct Firewall {}

impl Firewall {
    /// Changes what is wanted and returns when the kernel has it. Several callers at once share one transaction.
    /// If it fails, what is wanted stays changed and the next call tries again.
    pub fn update(&self, _change: impl FnOnce(&mut Ruleset)) -> Result<(), FirewallError> {
        Err(FirewallError::Missing)
    }

    /// Puts all of it in force again, whatever was there: somebody has changed or flushed our tables.
    pub fn restore(&self) -> Result<(), FirewallError> {
        Ok(())
    }

    /// Removes our tables.
    pub fn remove(&self) -> Result<(), FirewallError> {
        Ok(())
    }
}
