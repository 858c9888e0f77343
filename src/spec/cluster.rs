//! The pods with addresses, and the services with their endpoints: the input for names and routes. Plain data:
//! `plan::network` fills it, `network` acts on it.

use std::net::IpAddr;
use std::sync::Arc;

use super::{PodKey, Reason, ServiceSpec};

/// All reachable pods and services.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClusterView {
    /// Pods with addresses, sorted by name; host network pods have the node's addresses.
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
    /// Whether these are the node's.
    pub host_network: bool,
    /// The pod's own hostname.
    pub hostname: String,
    /// `spec.subdomain` as written.
    pub subdomain: Option<String>,
    /// Whether condition `Ready` is true.
    pub ready: bool,
}

/// A service and its endpoints.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceEntry {
    /// The service's spec.
    pub spec: Arc<ServiceSpec>,
    /// Selected pods with an address that are ready, or also unready ones if the service publishes them.
    pub endpoints: Vec<Endpoint>,
}

/// A pod of a service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// The pod.
    pub pod: PodKey,
    /// The pod's hostname if `<hostname>.<service>` names it: its manifest sets `hostname`, and its `subdomain` is this
    /// service.
    pub hostname: Option<String>,
    /// Its addresses, IPv4 first.
    pub ips: Vec<IpAddr>,
    /// The target port for each port of the service, in order; `None` if the pod has no port of that name.
    pub ports: Vec<Option<u16>>,
}

/// What a service asks for and does not have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The service.
    pub service: PodKey,
    /// The reason of its event.
    pub reason: Reason,
    /// Why, and the way out: one sentence.
    pub message: String,
}
