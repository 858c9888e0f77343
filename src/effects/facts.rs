//! The node's facts that pods refer to in variables and files.

use std::net::IpAddr;

use crate::spec::{EnvValue, PodSpec};

/// The node's facts that a pod may refer to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeFacts {
    /// The node's name.
    pub name: String,
    /// Its addresses, the main one first.
    pub ips: Vec<IpAddr>,
    /// Those of its bridge, which only pods see.
    pub bridge_ips: Vec<IpAddr>,
    /// Its allocatable cpu in thousandths of a core.
    pub cpu_milli: u64,
    /// Its allocatable memory in bytes.
    pub memory_bytes: u64,
    /// All of its memory in bytes.
    pub capacity_bytes: u64,
    /// Its allocatable ephemeral storage in bytes.
    pub storage_bytes: u64,
}

impl NodeFacts {
    /// Where pods reach the node: without an uplink it has no addresses but those of the bridge.
    pub fn reachable_ips(&self) -> &[IpAddr] {
        match self.ips.is_empty() {
            true => &self.bridge_ips,
            false => &self.ips,
        }
    }

    /// What a reference to the pod or the node stands for; `ips` are the pod's own addresses. `None` for values of other
    /// kinds.
    pub(super) fn value(&self, value: &EnvValue, pod: &PodSpec, ips: &[IpAddr]) -> Option<String> {
        let own = if pod.host_network { &self.ips } else { ips };
        let first = |list: &[IpAddr]| list.first().map(ToString::to_string).unwrap_or_default();
        let all = |list: &[IpAddr]| {
            let list: Vec<String> = list.iter().map(ToString::to_string).collect();
            list.join(",")
        };
        Some(match value {
            EnvValue::Literal(_) | EnvValue::Key(_) | EnvValue::FileKey(_) => return None,
            EnvValue::Metadata(text) | EnvValue::Resource(text) => text.clone(),
            EnvValue::Uid => pod.uid.to_string(),
            EnvValue::HostIp => first(&self.ips),
            EnvValue::HostIps => all(&self.ips),
            EnvValue::PodIp => first(own),
            EnvValue::PodIps => all(own),
            EnvValue::NodeName => self.name.clone(),
            EnvValue::NodeCpu { divisor_milli } => {
                self.cpu_milli.div_ceil((*divisor_milli).max(1)).to_string()
            }
            EnvValue::NodeMemory { divisor_bytes } => {
                let divisor = (*divisor_bytes).max(1);
                self.memory_bytes.div_ceil(divisor).to_string()
            }
            EnvValue::NodeStorage { divisor_bytes } => {
                let divisor = (*divisor_bytes).max(1);
                self.storage_bytes.div_ceil(divisor).to_string()
            }
        })
    }
}
