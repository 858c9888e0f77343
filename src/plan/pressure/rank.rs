//! The order of eviction: first pods that use more than they request, then by rising priority, then by use beyond
//! the request (Kubernetes docs: Node-pressure Eviction; `coracle help differences`).

use std::cmp::Reverse;

use super::super::state::Sandbox;
use super::super::{NodeState, PodState};
use super::Signal;
use crate::spec::priority::CRITICAL;
use crate::types::usage::PodUsage;

/// Whether the pod may be evicted: it has something to give up, and is not critical.
pub(super) fn may_go(pod: &PodState) -> bool {
    let there = matches!(pod.sandbox, Sandbox::Ready { .. });
    let goes = pod.stopping().is_some() || pod.verdict.is_some() || pod.complete();
    there && !goes && pod.spec.priority < CRITICAL
}

/// The pod to evict, with its observed usage.
pub(super) fn first(state: &NodeState, signal: Signal) -> Option<(&PodState, Option<&PodUsage>)> {
    let seen = state.pressure.seen.as_ref()?;
    let apart = seen.figures.node.images_apart;
    let candidates = state.pods.values().filter(|pod| may_go(pod));
    let candidates = candidates.map(|pod| (pod, seen.of(pod)));
    candidates.min_by_key(|(pod, usage)| {
        let (used, asked) = usage.map_or((0, 0), |usage| figures(pod, usage, signal, apart));
        // No pod requests processes.
        let exceeds = used > asked && signal != Signal::Pids;
        let beyond = i128::from(used) - i128::from(asked);
        (
            !exceeds,
            pod.spec.priority,
            Reverse(beyond),
            pod.spec.key.clone(),
        )
    })
}

/// The pod's usage and request. Images on a file system of their own belong to no pod.
fn figures(pod: &PodState, usage: &PodUsage, signal: Signal, apart: bool) -> (u64, u64) {
    let storage = pod.spec.manifest_containers().map(|c| c.storage);
    match signal {
        Signal::Memory | Signal::PodsMemory => (
            usage.memory_bytes.unwrap_or(0),
            pod.spec.resources.memory_request_bytes,
        ),
        Signal::Pids => (usage.processes.unwrap_or(0), 0),
        Signal::ImagefsBytes | Signal::ImagefsInodes if apart => (0, 0),
        Signal::NodefsBytes | Signal::ImagefsBytes => (
            usage.on_disk().bytes,
            storage.map(|bounds| bounds.request_bytes).sum(),
        ),
        Signal::NodefsInodes | Signal::ImagefsInodes => (usage.on_disk().inodes, 0),
    }
}
