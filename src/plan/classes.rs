//! Requests of all pods by QoS class. The class cgroups share the node's cpu and memory by them (Kubernetes docs:
//! Resource Management; KEP-2570).

use super::NodeState;
use crate::spec::QosClass;

/// Requests of admitted pods that have not ended, by class. BestEffort pods request nothing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Classes {
    /// Burstable cpu, in thousandths of a core.
    pub burstable_cpu_milli: u64,
    /// Burstable memory, in bytes.
    pub burstable_memory_bytes: u64,
    /// Guaranteed memory, in bytes.
    pub guaranteed_memory_bytes: u64,
}

/// Adds up the current requests.
pub fn classes(state: &NodeState) -> Classes {
    let mut sums = Classes::default();
    for pod in state.pods.values().filter(|pod| pod.takes_room()) {
        let own = pod.spec.resources;
        let add = |sum: &mut u64, amount: u64| *sum = sum.saturating_add(amount);
        match pod.spec.qos {
            QosClass::Guaranteed => {
                add(&mut sums.guaranteed_memory_bytes, own.memory_request_bytes);
            }
            QosClass::Burstable => {
                add(&mut sums.burstable_cpu_milli, own.cpu_request_milli);
                add(&mut sums.burstable_memory_bytes, own.memory_request_bytes);
            }
            QosClass::BestEffort => {}
        }
    }
    sums
}
