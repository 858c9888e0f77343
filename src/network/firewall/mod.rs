//! The packet rules: one table of the kernel's packet filter for routed packets (`inet`) and one for those that
//! cross the bridge (`bridge`), both named like the bridge and owned by coracle.
//!
//! `tables` turns a [`Ruleset`] into plain data, `text` that into the input of `nft` (in full or as a difference),
//! `nft` runs the program, `apply` decides what runs when, `watch` reports changes by other programs, `stale` finds
//! connections that the kernel would keep sending the old way.

mod apply;
mod chains;
mod features;
mod nft;
mod stale;
mod tables;
mod text;
mod watch;

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use ipnet::IpNet;

use crate::spec::{PodUid, Protocol};

pub use apply::Firewall;
pub use features::{Feature, missing_features};
pub use nft::{find as find_program, list_chains};
pub use watch::Watch;

/// The inputs of the rules.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ruleset {
    /// Name of the bridge, and of the tables.
    pub bridge: String,
    /// The prefix of every pod interface's name on the node.
    pub veth_prefix: String,
    /// The bridge's addresses with their ranges: what pods may have.
    pub pod_cidrs: Vec<IpNet>,
    /// Ranges of service addresses.
    pub service_cidrs: Vec<IpNet>,
    /// The port of the name server, if it could not have port 53 of the bridge address.
    pub dns_port: Option<u16>,
    /// The pods on the bridge.
    pub pods: BTreeMap<PodUid, PodRules>,
    /// One for each port of each service with an address or a node port.
    pub services: Vec<ServiceRoute>,
}

/// The inputs of one pod.
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
    /// The protocol.
    pub protocol: Protocol,
    /// One address of the node, or `0.0.0.0` or `::` for all of that family; `None`: all of both.
    pub host_ip: Option<IpAddr>,
    /// The port on the node.
    pub port: u16,
    /// The port in the pod.
    pub to: u16,
}

/// A port of a service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceRoute {
    /// `<namespace>/<name>:<port name or number>`, for people.
    pub name: String,
    /// The service's addresses; none if it has only a node port.
    pub addresses: Vec<IpAddr>,
    /// The protocol.
    pub protocol: Protocol,
    /// The port at the service's addresses.
    pub port: u16,
    /// The port at every address of the node.
    pub node_port: Option<u16>,
    /// Pods of both families. Connections to a family without pods are refused at once, not dropped.
    pub endpoints: Vec<SocketAddr>,
    /// Whether one client always gets to the same pod.
    pub affinity: bool,
}

/// An error of the packet rules.
#[derive(Debug, Clone, thiserror::Error)]
pub enum FirewallError {
    /// There is no `nft` program.
    #[error(
        "the `nft` program is missing; pods with a network of their own need it (package `nftables`)"
    )]
    Missing,
    /// The kernel was built without a feature that the rules need.
    #[error(
        "the kernel's packet filter lacks {what} ({option}); only pods with `hostNetwork: true` can run"
    )]
    Kernel {
        /// A description.
        what: &'static str,
        /// The build option that enables it.
        option: &'static str,
    },
    /// A bridge or interface whose name is not valid in a rule.
    #[error(
        "`{0}` cannot name a bridge or interface in packet rules: it must begin with a letter and have at most 15 of a-z, A-Z, 0-9, `_`, `.` and `-`"
    )]
    Name(String),
    /// `nft` or the kernel refused the rules.
    #[error("`nft` refused the rules: {0}")]
    Refused(String),
    /// The program did not end.
    #[error("`nft` did not finish within {0} s and was killed")]
    Stuck(u64),
    /// The program could not be run.
    #[error("could not {action} `nft`")]
    Run {
        /// The operation.
        action: &'static str,
        /// The system's error.
        #[source]
        source: Arc<io::Error>,
    },
}

impl FirewallError {
    /// Whether only the filter on the bridge is missing.
    fn is_without_bridge(&self) -> bool {
        matches!(self, Self::Kernel { option, .. } if *option == features::BRIDGE.option)
    }
}
