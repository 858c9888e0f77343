//! What do the pods of each class ask for together? Their cgroups share by it what there is (kubelet-behaviour §9.4, §9.5).

use super::NodeState;
use crate::spec::QosClass;

/// Requests of pods that are let in and have not ended, by class. BestEffort pods ask for nothing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Classes {
    /// cpu of Burstable pods, in thousandths of a core.
    pub burstable_cpu_milli: u64,
    /// Memory of Burstable pods, in bytes.
    pub burstable_memory_bytes: u64,
    /// Memory of Guaranteed pods, in bytes.
    pub guaranteed_memory_bytes: u64,
}

/// The sums as they are now.
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
