//! How do pods reach each other and the world? A bridge of our own, a pair of virtual interfaces and an address for each
//! pod, one table of packet rules, and a small name server.
//!
//! Nothing is made before the first pod needs it, so a node whose pods all have the node's network is left as it is.
//! All functions block and are run off the agent's loop.

pub mod conntrack;
pub mod firewall;
pub mod listeners;
pub mod names;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

use ipnet::IpNet;

use crate::layout::Layout;
use crate::spec::cluster::ClusterView;
use crate::spec::{PodKey, PodSpec, PodUid};

pub use firewall::FirewallError;

/// How the node's network is set up.
#[derive(Debug, Clone, PartialEq)]
pub struct NetworkSettings {
    /// Where pins and allocations are.
    pub layout: Layout,
    /// Name of the bridge, and of the packet filter's tables.
    pub bridge: String,
    /// Ranges of pod addresses, at most one a family; empty: free ones are chosen.
    pub pod_cidrs: Vec<IpNet>,
    /// Ranges of service addresses, at most one a family; empty: free ones are chosen.
    pub service_cidrs: Vec<IpNet>,
}

/// Why a pod has no network.
#[derive(Debug, thiserror::Error)]
pub enum NetworkError {
    /// The packet filter.
    #[error(transparent)]
    Firewall(#[from] FirewallError),
}

/// A pod on the bridge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attached {
    /// Its addresses, IPv4 first.
    pub ips: Vec<IpAddr>,
    /// Where its network namespace is pinned: `<run-dir>/netns/<uid>`.
    pub netns: PathBuf,
}

/// What went through a pod's interface since it was made, seen from the pod.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Bytes received.
    pub rx_bytes: u64,
    /// Packets received.
    pub rx_packets: u64,
    /// Packets that got lost on the way in.
    pub rx_dropped: u64,
    /// Errors on the way in.
    pub rx_errors: u64,
    /// Bytes sent.
    pub tx_bytes: u64,
    /// Packets sent.
    pub tx_packets: u64,
    /// Packets that got lost on the way out.
    pub tx_dropped: u64,
    /// Errors on the way out.
    pub tx_errors: u64,
}

/// The node's network.
#[derive(Debug, Clone)]
pub struct Network {
    _inner: Arc<NetworkSettings>,
}

impl Network {
    /// Does nothing yet.
    pub fn new(settings: NetworkSettings) -> Self {
        Self {
            _inner: Arc::new(settings),
        }
    }

    /// Takes over what a former agent left: `live` pods (their shims answered) keep address and namespace, everything
    /// else of ours is removed. Returns the addresses of the live ones. What could not be mended is tried again by
    /// `reconcile`.
    pub fn recover(&self, _live: &[Arc<PodSpec>]) -> BTreeMap<PodUid, Vec<IpAddr>> {
        BTreeMap::new()
    }

    /// Gives the pod a fresh namespace with an interface, its address (the one it had before, if it had one), its
    /// routes and its rules; all of it is in force when this returns. Makes bridge and rules if they are not there.
    pub fn attach(&self, _pod: &PodSpec) -> Result<Attached, NetworkError> {
        Err(FirewallError::Missing.into())
    }

    /// Removes all of it and frees the address. Nothing there is fine.
    pub fn detach(&self, _pod: &PodUid) -> Result<(), NetworkError> {
        Ok(())
    }

    /// Names and service routes are to be these.
    pub fn set_cluster(&self, _view: &ClusterView) -> Result<(), NetworkError> {
        Ok(())
    }

    /// The addresses services have, those with one.
    pub fn service_addresses(&self) -> BTreeMap<PodKey, Vec<IpAddr>> {
        BTreeMap::new()
    }

    /// Where pods find the name server, IPv4 first; makes the bridge if it is not there.
    pub fn name_servers(&self) -> Result<Vec<IpAddr>, NetworkError> {
        Ok(Vec::new())
    }

    /// Brings everything that is there into the state it should be in: bridge, addresses, interfaces of attached pods,
    /// MTU, sysctls, rules. Cheap if all is well; does nothing if nothing was ever made.
    pub fn reconcile(&self) -> Result<(), NetworkError> {
        Ok(())
    }

    /// What went through each attached pod's interface.
    pub fn traffic(&self) -> BTreeMap<PodUid, Traffic> {
        BTreeMap::new()
    }

    /// The bridge's own addresses, which are no addresses of the node.
    pub fn own_addresses(&self) -> Vec<IpAddr> {
        Vec::new()
    }
}
