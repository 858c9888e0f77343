//! Who is there to be talked to? The pods with an address and the services with the pods behind them: what names and
//! routes are made from. Plain data: `plan::network` fills it, `effects::network` acts on it.

use std::net::IpAddr;
use std::sync::Arc;

use super::{PodKey, ServiceSpec};

/// All pods and services as they are now.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClusterView {
    /// Pods with addresses, sorted by name; those on the node's network have the node's.
    pub pods: Vec<PodEntry>,
    /// Services, sorted by name.
    pub services: Vec<ServiceEntry>,
}

/// A pod with an address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodEntry {
    /// Namespace and name.
    pub key: PodKey,
    /// Its addresses, IPv4 first.
    pub ips: Vec<IpAddr>,
    /// `hostname` as it calls itself.
    pub hostname: String,
    /// `spec.subdomain` as written.
    pub subdomain: Option<String>,
    /// Condition `Ready`.
    pub ready: bool,
}

/// A service and what is behind it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceEntry {
    /// As written.
    pub spec: Arc<ServiceSpec>,
    /// The pods that count: selected, with an address, and ready unless the service takes others too.
    pub endpoints: Vec<Endpoint>,
}

/// A pod behind a service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// Which pod.
    pub pod: PodKey,
    /// `<hostname>.<service>` is a name of the pod: only if its manifest says `hostname` and its `subdomain` is this
    /// service.
    pub hostname: Option<String>,
    /// Its addresses, IPv4 first.
    pub ips: Vec<IpAddr>,
    /// Where it listens, for each port of the service in order; `None` if it has no port of that name.
    pub ports: Vec<Option<u16>>,
}
