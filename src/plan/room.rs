//! How much of the node is given away, and what is too little for whom? The one arithmetic for pods that come in and for
//! pods that want more (kubelet-behaviour §9.3, §9.7, §9.8).

use std::borrow::Cow;

use super::hold::Rejection;
use super::state::Sandbox;
use super::verdict::Cause;
use super::{NodeState, PodState};
use crate::spec::{PodSpec, PodUid};

/// What the node can give to pods: its allocatable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capacity {
    /// cpu in thousandths of a core.
    pub cpu_milli: u64,
    /// Memory.
    pub memory_bytes: u64,
}

impl PodState {
    /// Whether what it asks for is given to it: from when it was let in until nothing of it runs any more. A pod that is
    /// down for a shutdown gets it back.
    pub(super) fn takes_room(&self) -> bool {
        let cause = self.verdict.as_ref().map(|verdict| verdict.cause);
        let done = self.sandbox == Sandbox::Removed || self.finished();
        self.hold.is_none() && (!done || cause == Some(Cause::NodeShutdown))
    }
}

impl NodeState {
    /// What all pods but this one are given.
    pub(super) fn given(&self, except: Option<&PodUid>) -> Capacity {
        let counts = |pod: &&PodState| pod.takes_room() && Some(&pod.spec.uid) != except;
        let nothing = Capacity {
            cpu_milli: 0,
            memory_bytes: 0,
        };
        let pods = self.pods.values().filter(counts);
        pods.fold(nothing, |sum, pod| {
            let own = pod.spec.resources;
            Capacity {
                cpu_milli: sum.cpu_milli.saturating_add(own.cpu_request_milli),
                memory_bytes: sum.memory_bytes.saturating_add(own.memory_request_bytes),
            }
        })
    }

    /// What there is too little of for a pod that is to come in.
    pub(super) fn short_of(&self, pod: &PodSpec) -> Option<Rejection> {
        let capacity = self.settings.capacity?;
        let (given, wanted) = (self.given(Some(&pod.uid)), pod.resources);
        let rows = [
            (
                "cpu",
                wanted.cpu_request_milli,
                given.cpu_milli,
                capacity.cpu_milli,
            ),
            (
                "memory",
                wanted.memory_request_bytes,
                given.memory_bytes,
                capacity.memory_bytes,
            ),
        ];
        let short = |(_, wanted, given, capacity): &(_, u64, u64, u64)| {
            *wanted > 0 && given.saturating_add(*wanted) > *capacity
        };
        let (name, wanted, given, capacity) = rows.into_iter().find(short)?;
        Some(Rejection {
            reason: Cow::Owned(format!("OutOf{name}")),
            message: not_enough(name, wanted, given, capacity),
        })
    }
}

/// The kubelet's sentence about it.
pub(super) fn not_enough(name: &str, wanted: u64, given: u64, capacity: u64) -> String {
    format!(
        "Node didn't have enough resource: {name}, requested: {wanted}, used: {given}, capacity: {capacity}"
    )
}
