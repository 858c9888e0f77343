//! Admission by node properties: sysctls, operating system, node labels and name, node ports (the kubelet's
//! `pkg/kubelet/lifecycle`).

use std::collections::BTreeMap;

use super::hold::Rejection;
use super::{NodeState, PodState};
use crate::spec::host_ports::{HostPort, host_ports};
use crate::spec::{AppArmor, PodSpec, Reason, sysctl};

/// The label with the operating system of a node or pod.
const OS: &str = "kubernetes.io/os";

/// The node's identity for admission.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeIdentity {
    /// The node's name.
    pub name: String,
    /// The node's labels.
    pub labels: BTreeMap<String, String>,
    /// Sysctls that pods may set although they affect more than the pod: names, or prefixes that end with `*`.
    pub unsafe_sysctls: Vec<String>,
    /// Whether the kernel has AppArmor.
    pub app_armor: bool,
    /// Why the node cannot run pods with a user namespace; `None` if it can.
    pub no_user_namespaces: Option<String>,
}

impl NodeState {
    /// Refuses a pod with a sysctl that is not allowed.
    pub(super) fn forbidden_sysctl(&self, pod: &PodSpec) -> Option<Rejection> {
        let allowed = &self.node.unsafe_sysctls;
        let mut names = pod.sysctls.iter().map(|(name, _)| name);
        let forbidden = names.find(|name| !sysctl::is_allowed(name, allowed))?;
        Some(Rejection {
            reason: Reason::SysctlForbidden,
            message: format!("forbidden sysctl: {forbidden:?} not allowlisted"),
        })
    }

    /// Refuses a pod with an AppArmor profile on a node without AppArmor.
    pub(super) fn unarmed(&self, pod: &PodSpec) -> Option<Rejection> {
        let mut containers = pod.manifest_containers();
        let asks = containers.any(|c| c.security.app_armor != AppArmor::Unconfined);
        (asks && !self.node.app_armor).then(|| Rejection {
            reason: Reason::AppArmor,
            message: "Cannot enforce AppArmor: AppArmor is not enabled on the host".to_owned(),
        })
    }

    /// Refuses a pod for another operating system.
    pub(super) fn other_system(&self, pod: &PodSpec) -> Option<Rejection> {
        let label = pod.manifest.label(OS);
        if label.is_some_and(|os| os != "linux") {
            return Some(Rejection {
                reason: Reason::PodOSSelectorNodeLabelDoesNotMatch,
                message: format!(
                    "Failed to admit pod as the `{OS}` label doesn't match node label"
                ),
            });
        }
        pod.placement.other_os.then(|| Rejection {
            reason: Reason::PodOSNotSupported,
            message: "Failed to admit pod as the OS field doesn't match node OS".to_owned(),
        })
    }

    /// Refuses a pod whose node selector, affinity or `nodeName` does not match.
    pub(super) fn other_node(&self, pod: &PodSpec) -> Option<Rejection> {
        let here = pod.placement.matches(&self.node.name, &self.node.labels);
        (!here).then(|| {
            failed(
                Reason::NodeAffinity,
                "node(s) didn't match Pod's node affinity/selector",
            )
        })
    }

    /// Refuses a pod with a node port that another pod has.
    pub(super) fn port_taken(&self, pod: &PodSpec) -> Option<Rejection> {
        let (port, owner) = self.port_owners(pod).next()?;
        let why = "node(s) didn't have free ports for the requested pod ports";
        let (number, protocol) = (port.number, port.protocol.as_str());
        // The kubelet does not name the owner of the port.
        let owner = &owner.spec.key;
        let why = format!("{why} ({number}/{protocol} is in use by pod {owner})");
        Some(failed(Reason::NodePorts, &why))
    }

    /// The other pods that have node ports that this one needs.
    pub(super) fn port_owners<'s>(
        &'s self,
        pod: &'s PodSpec,
    ) -> impl Iterator<Item = (HostPort, &'s PodState)> {
        let wanted: Vec<_> = host_ports(pod).collect();
        // Most pods need none.
        let others = (!wanted.is_empty()).then(|| self.pods.values());
        let others = others.into_iter().flatten();
        let others = others.filter(|p| p.spec.uid != pod.uid);
        others.filter_map(move |other| {
            if !other.takes_ports() {
                return None;
            }
            let mut theirs = host_ports(&other.spec);
            let port = theirs.find(|one| wanted.iter().any(|port| port.overlaps(one)))?;
            Some((port, other))
        })
    }
}

pub(super) fn failed(predicate: Reason, why: &str) -> Rejection {
    Rejection {
        reason: predicate,
        message: format!("Predicate {predicate} failed: {why}"),
    }
}
