//! The pods' network: a bridge, a pair of virtual interfaces and an address for each pod, one table of packet
//! rules, and a small name server.
//!
//! Nothing is made before the first pod needs it, so a node whose pods all use the host network stays unchanged.
//! All functions block and run off the agent's loop.

pub mod conntrack;
pub mod firewall;
pub mod listeners;
pub mod names;
pub mod watch;

mod addresses;
mod allocation;
mod error;
mod ground;
mod interface;
mod inward;
mod links;
mod modules;
mod node;
mod ports;
mod ranges;
mod recover;
mod serve;
mod services;
mod snapshot;
mod sysctl;

use std::net::IpAddr;
use std::path::PathBuf;

use ipnet::IpNet;

use crate::layout::Layout;

pub use error::NetworkError;
pub use firewall::FirewallError;
pub use inward::inward_interfaces;
pub use node::Network;
pub use ranges::RangeError;

/// The settings of the node's network.
#[derive(Debug, Clone, PartialEq)]
pub struct NetworkSettings {
    /// The run directory, with pins and allocations.
    pub layout: Layout,
    /// Name of the bridge, and of the packet filter's tables.
    pub bridge: String,
    /// Ranges of pod addresses, at most one a family; empty: free ones are chosen.
    pub pod_cidrs: Vec<IpNet>,
    /// Ranges of service addresses, at most one a family; empty: free ones are chosen.
    pub service_cidrs: Vec<IpNet>,
}

/// A pod on the bridge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attached {
    /// Its addresses, IPv4 first.
    pub ips: Vec<IpAddr>,
    /// Where its network namespace is pinned: `<run-dir>/netns/<uid>`.
    pub netns: PathBuf,
}

/// The traffic of a pod's interface since it was made, seen from the pod.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Bytes received.
    pub rx_bytes: u64,
    /// Packets received.
    pub rx_packets: u64,
    /// Incoming packets dropped.
    pub rx_dropped: u64,
    /// Incoming errors.
    pub rx_errors: u64,
    /// Bytes sent.
    pub tx_bytes: u64,
    /// Packets sent.
    pub tx_packets: u64,
    /// Outgoing packets dropped.
    pub tx_dropped: u64,
    /// Outgoing errors.
    pub tx_errors: u64,
}
