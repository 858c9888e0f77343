//! A pod's own limits of disk use: `sizeLimit` of emptyDir volumes and `ephemeral-storage` limits (Kubernetes docs:
//! Node-pressure Eviction).

use super::super::notice::Annotations;
use super::super::{NodeState, PodState};
use super::Seen;
use super::evict::{Eviction, EvictionReason};
use super::rank::may_go;
use crate::spec::{PodSpec, PodUid, VolumeSpec};
use crate::types::quantity::Quantity;
use crate::types::usage::PodUsage;

/// Whether the pod has such a limit: its disk use is measured only then.
pub(super) fn has_some(pod: &PodSpec) -> bool {
    let mut containers = pod.manifest_containers();
    containers.any(|c| c.storage.limit_bytes.is_some())
        || pod.volumes.iter().any(|v| size_limit_bytes(v).is_some())
}

fn size_limit_bytes(volume: &VolumeSpec) -> Option<u64> {
    volume.source.on_disk()?.size_limit_bytes
}

/// The first pod that exceeds one of its limits, or uses a claim that is over its size.
pub(super) fn over(state: &NodeState) -> Option<(PodUid, Eviction)> {
    let seen = state.pressure.seen.as_ref()?;
    state.pods.values().filter(|p| may_go(p)).find_map(|pod| {
        let for_claim = || match pod.created.time < seen.at {
            true => state.evicted_for_claim(pod),
            false => None,
        };
        let eviction = for_limit(pod, seen).or_else(for_claim)?;
        Some((pod.spec.uid.clone(), eviction))
    })
}

fn for_limit(pod: &PodState, seen: &Seen) -> Option<Eviction> {
    let usage = seen.of(pod).filter(|usage| usage.disk)?;
    let (reason, message) = broken(&pod.spec, usage).filter(|_| has_some(&pod.spec))?;
    Some(Eviction {
        reason,
        message,
        annotations: Annotations::new(),
        grace_ms: super::GRACE_MS,
    })
}

/// The exceeded limit: of a volume, of all containers together, of one container.
fn broken(pod: &PodSpec, usage: &PodUsage) -> Option<(EvictionReason, String)> {
    for volume in &pod.volumes {
        let Some(limit) = size_limit_bytes(volume) else {
            continue;
        };
        let used = usage.volumes.get(&volume.name).copied().unwrap_or_default();
        if used.bytes > limit {
            let (name, limit) = (&volume.name, size_limit(pod, &volume.name, limit));
            let message =
                format!("Usage of EmptyDir volume \"{name}\" exceeds the limit \"{limit}\". ");
            return Some((EvictionReason::EmptyDirLimit, message));
        }
    }
    let containers = || pod.lasting_containers();
    let limits = containers().filter_map(|c| c.storage.limit_bytes);
    if let Some(limit) = limits.reduce(u64::saturating_add)
        && let limit = limit.saturating_add(pod.storage_overhead_bytes)
        && usage.on_disk().bytes > limit
    {
        let limit = Quantity::bytes(limit);
        let message = format!(
            "Pod ephemeral local storage usage exceeds the total limit of containers {limit}. "
        );
        return Some((EvictionReason::PodLimit, message));
    }
    containers().find_map(|c| {
        let limit = c.storage.limit_bytes?;
        let used = usage.containers.get(&c.name)?;
        let (name, shown) = (&c.name, Quantity::bytes(limit));
        let message =
            format!("Container {name} exceeded its local ephemeral storage limit \"{shown}\". ");
        ((used.layer + used.logs).bytes > limit)
            .then_some((EvictionReason::ContainerLimit, message))
    })
}

/// A quantity as written in the manifest.
fn size_limit(pod: &PodSpec, volume: &str, bytes: u64) -> Quantity {
    let mut volumes = pod.manifest.spec().volumes.into_iter().flatten();
    let written = volumes.find(|v| v.name == volume).and_then(|v| {
        let limit = v.empty_dir.as_ref()?.size_limit.as_ref()?;
        Quantity::parse(&limit.0).ok()
    });
    written.unwrap_or(Quantity::bytes(bytes))
}
