//! Which services are there? A valid `Service` document: how pods are found by others, by name and by address.

use std::collections::BTreeMap;
use std::net::IpAddr;

use k8s_openapi::api::core::v1 as core;

use super::{PodKey, Protocol};

/// A valid service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceSpec {
    /// Namespace and name.
    pub key: PodKey,
    /// Labels a pod of the same namespace must have, all of them; empty: no pod is ever behind the service.
    pub selector: BTreeMap<String, String>,
    /// Where it is reached.
    pub address: ServiceAddress,
    /// Its ports; their names are unique, and empty only if there is one port.
    pub ports: Vec<ServicePort>,
    /// `publishNotReadyAddresses`: pods count although they are not ready.
    pub with_unready: bool,
    /// `sessionAffinity: ClientIP`: one client always gets to the same pod.
    pub client_affinity: bool,
    /// Fields that are valid Kubernetes but do nothing here, each as a sentence that names the field.
    pub warnings: Vec<String>,
}

/// Where a service is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServiceAddress {
    /// An address of the node's service range, chosen by the node and kept.
    Any,
    /// `clusterIPs`, as written.
    Given(Vec<IpAddr>),
    /// `clusterIP: None`: its name stands for its pods' addresses.
    Headless,
    /// `type: ExternalName`: its name stands for another name.
    External(String),
}

/// One port of a service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServicePort {
    /// Its name; empty if it is the only one.
    pub name: String,
    /// Transport.
    pub protocol: Protocol,
    /// Where clients connect.
    pub port: u16,
    /// Where pods listen.
    pub target: TargetPort,
    /// On every address of the node, if any.
    pub node_port: Option<u16>,
}

/// Where pods listen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TargetPort {
    /// The same number in every pod.
    Number(u16),
    /// The container port of that name, which may differ from pod to pod.
    Name(String),
}

/// A valid service together with what was written.
#[derive(Debug, Clone, PartialEq)]
pub struct ServiceDocument {
    /// What it means.
    pub spec: ServiceSpec,
    /// The manifest after defaulting, as it is shown by `get -o json`.
    pub manifest: core::Service,
}

impl ServiceDocument {
    /// Whether each port is to have a port on the node, written or chosen (`spec::node_ports`).
    pub fn wants_node_ports(&self) -> bool {
        let spec = self.manifest.spec.as_ref();
        spec.and_then(|spec| spec.type_.as_deref()) == Some("NodePort")
    }

    /// Gives the port of that index a port on the node.
    pub fn set_node_port(&mut self, index: usize, number: u16) {
        if let Some(port) = self.spec.ports.get_mut(index) {
            port.node_port = Some(number);
        }
        let ports = self.manifest.spec.as_mut().and_then(|s| s.ports.as_mut());
        if let Some(port) = ports.and_then(|ports| ports.get_mut(index)) {
            port.node_port = Some(i32::from(number));
        }
    }
}
