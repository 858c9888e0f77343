//! Which packets go where? One table of the kernel's packet filter for what is routed (`inet`) and one for what crosses
//! the bridge (`bridge`), both named like the bridge and entirely ours.
//!
//! `tables` makes plain data of a [`Ruleset`], `text` the program's input for all of it or for a difference, `nft` runs
//! the program, `apply` decides what is run when, `watch` tells of changes by others, `stale` names connections that the
//! kernel would go on sending the old way.

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
#[derive(Debug, Clone, thiserror::Error)]
pub enum FirewallError {
    /// There is no `nft` program.
    #[error(
        "the `nft` program is missing; pods with a network of their own need it (package `nftables`)"
    )]
    Missing,
    /// The kernel was built without something the rules need.
    #[error(
        "the kernel's packet filter lacks {what} ({option}); only pods with `hostNetwork: true` can run"
    )]
    Kernel {
        /// In words.
        what: &'static str,
        /// The build option that brings it.
        option: &'static str,
    },
    /// A bridge or interface whose name has no place in a rule.
    #[error(
        "`{0}` cannot name a bridge or interface in packet rules: it must begin with a letter and have at most 15 of a-z, A-Z, 0-9, `_`, `.` and `-`"
    )]
    Name(String),
    /// The program or the kernel did not take them.
    #[error("`nft` refused the rules: {0}")]
    Refused(String),
    /// The program did not end.
    #[error("`nft` did not finish within {0} s and was killed")]
    Stuck(u64),
    /// The program could not be run.
    #[error("could not {action} `nft`")]
    Run {
        /// What was tried.
        action: &'static str,
        /// Why not.
        #[source]
        source: Arc<io::Error>,
    },
}

impl FirewallError {
    /// All that is missing is the filter on the bridge.
    fn is_without_bridge(&self) -> bool {
        matches!(self, Self::Kernel { option, .. } if *option == features::BRIDGE.option)
    }
}
