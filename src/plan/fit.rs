//! Is this node the place for a pod? Sysctls, operating system, labels and name of the node, ports of the
//! node (kubelet-behaviour §9.8).

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::hold::Rejection;
use super::{NodeState, PodState};
use crate::spec::{PodSpec, Protocol, sysctl};

/// The label that says which operating system a node, or the pod, is of.
const OS: &str = "kubernetes.io/os";

/// What the node is called, and what is said about it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeIdentity {
    /// Its name.
    pub name: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Sysctls that its pods may set although others could notice: names, or beginnings of names with `*`.
    pub unsafe_sysctls: Vec<String>,
}

impl NodeState {
    /// A pod that would change what is not its own affair.
    pub(super) fn forbidden_sysctl(&self, pod: &PodSpec) -> Option<Rejection> {
        let allowed = &self.node.unsafe_sysctls;
        let mut names = pod.sysctls.iter().map(|(name, _)| name);
        let forbidden = names.find(|name| !sysctl::is_allowed(name, allowed))?;
        Some(Rejection {
            reason: "SysctlForbidden".into(),
            message: format!("forbidden sysctl: {forbidden:?} not allowlisted"),
        })
    }

    /// A pod for another system.
    pub(super) fn other_system(&self, pod: &PodSpec) -> Option<Rejection> {
        let label = pod.labels().and_then(|labels| labels.get(OS));
        if label.is_some_and(|os| os != "linux") {
            return Some(Rejection {
                reason: "PodOSSelectorNodeLabelDoesNotMatch".into(),
                message: format!(
                    "Failed to admit pod as the `{OS}` label doesn't match node label"
                ),
            });
        }
        pod.placement.other_os.then(|| Rejection {
            reason: "PodOSNotSupported".into(),
            message: "Failed to admit pod as the OS field doesn't match node OS".to_owned(),
        })
    }

    /// A pod for another node.
    pub(super) fn other_node(&self, pod: &PodSpec) -> Option<Rejection> {
        let here = pod.placement.matches(&self.node.name, &self.node.labels);
        (!here).then(|| {
            failed(
                "NodeAffinity",
                "node(s) didn't match Pod's node affinity/selector",
            )
        })
    }

    /// A pod that wants a port of the node that another pod has.
    pub(super) fn port_taken(&self, pod: &PodSpec) -> Option<Rejection> {
        let wanted: Vec<_> = host_ports(pod).collect();
        if wanted.is_empty() {
            return None;
        }
        let others = self.pods.values();
        let mut others = others.filter(|p| p.spec.uid != pod.uid && p.takes_ports());
        let common = |other: &PodState| {
            let mut theirs = host_ports(&other.spec);
            let port = theirs.find(|one| wanted.iter().any(|port| port.overlaps(one)))?;
            Some((port, other.spec.key.clone()))
        };
        let (port, owner) = others.find_map(common)?;
        let why = "node(s) didn't have free ports for the requested pod ports";
        let (number, protocol) = (port.number, port.protocol.as_str());
        // The kubelet leaves finding out whose it is to the reader.
        let why = format!("{why} ({number}/{protocol} is in use by pod {owner})");
        Some(failed("NodePorts", &why))
    }
}

fn failed(predicate: &'static str, why: &str) -> Rejection {
    Rejection {
        reason: predicate.into(),
        message: format!("Predicate {predicate} failed: {why}"),
    }
}

/// A port of the node.
struct HostPort {
    protocol: Protocol,
    /// `None`: on all addresses.
    ip: Option<IpAddr>,
    number: u16,
}

impl HostPort {
    fn overlaps(&self, other: &Self) -> bool {
        let ips = match (self.ip, other.ip) {
            (Some(one), Some(other)) => one == other,
            (None, _) | (_, None) => true,
        };
        ips && (self.protocol, self.number) == (other.protocol, other.number)
    }
}

/// The ports of the node that a pod wants.
fn host_ports(pod: &PodSpec) -> impl Iterator<Item = HostPort> {
    let ports = pod.lasting_containers().flat_map(|c| &c.ports);
    ports.filter_map(|port| {
        Some(HostPort {
            protocol: port.protocol,
            ip: port.host_ip.filter(|ip| !ip.is_unspecified()),
            number: port.host_port?,
        })
    })
}
