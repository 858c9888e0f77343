//! What is the address of that name? A small name server for pods: it knows pods and services, and asks the node's
//! resolvers for everything else.

use std::collections::BTreeMap;
use std::net::IpAddr;

use crate::spec::PodKey;
use crate::spec::cluster::ClusterView;

/// All names that are known here.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Zone {}

impl Zone {
    /// The names of `<…>.<cluster_domain>`. `services` are the addresses of services that have some.
    pub fn new(
        _cluster_domain: &str,
        _view: &ClusterView,
        _services: &BTreeMap<PodKey, Vec<IpAddr>>,
    ) -> Self {
        Self {}
    }
}
