//! Does a pod have more on disk than it may? `sizeLimit` of emptyDir volumes and `ephemeral-storage` limits
//! (kubelet-behaviour §10.2).

use super::super::notice::Annotations;
use super::super::{NodeState, PodState};
use super::evict::{Eviction, Reason};
use super::rank::may_go;
use crate::spec::quantity::Quantity;
use crate::spec::usage::PodUsage;
use crate::spec::{PodSpec, PodUid, VolumeSource};

/// Whether there is a limit at all: only then its disk use is looked at.
pub(super) fn has_some(pod: &PodSpec) -> bool {
    let mut containers = pod.manifest_containers();
    containers.any(|c| c.storage.limit_bytes.is_some())
        || pod.volumes.iter().any(|v| match &v.source {
            VolumeSource::EmptyDir { size_limit_bytes } => size_limit_bytes.is_some(),
            VolumeSource::MemoryDir { .. }
            | VolumeSource::HugePageDir { .. }
            | VolumeSource::HostPath { .. } => false,
        })
}

/// The first pod found to be over a limit of its own.
pub(super) fn over(state: &NodeState) -> Option<(PodUid, Eviction)> {
    let seen = state.pressure.seen.as_ref()?;
    let some = |pod: &&PodState| may_go(pod) && has_some(&pod.spec);
    state.pods.values().filter(some).find_map(|pod| {
        let usage = seen.of(pod).filter(|usage| usage.disk)?;
        let (reason, message) = broken(&pod.spec, usage)?;
        let eviction = Eviction {
            reason,
            message,
            annotations: Annotations::new(),
            grace_ms: super::GRACE_MS,
        };
        Some((pod.spec.uid.clone(), eviction))
    })
}

/// The limit that is broken: of a volume, of all containers together, of one container.
fn broken(pod: &PodSpec, usage: &PodUsage) -> Option<(Reason, String)> {
    for volume in &pod.volumes {
        let VolumeSource::EmptyDir {
            size_limit_bytes: Some(limit),
        } = volume.source
        else {
            continue;
        };
        let used = usage.volumes.get(&volume.name).copied().unwrap_or_default();
        if used.bytes > limit {
            let (name, limit) = (&volume.name, size_limit(pod, &volume.name, limit));
            let message =
                format!("Usage of EmptyDir volume \"{name}\" exceeds the limit \"{limit}\". ");
            return Some((Reason::EmptyDirLimit, message));
        }
    }
    let containers = || pod.lasting_containers();
    let limits = containers().filter_map(|c| c.storage.limit_bytes);
    if let Some(limit) = limits.reduce(u64::saturating_add)
        && let limit = limit.saturating_add(pod.storage_overhead_bytes())
        && usage.on_disk().bytes > limit
    {
        let limit = Quantity::bytes(limit);
        let message = format!(
            "Pod ephemeral local storage usage exceeds the total limit of containers {limit}. "
        );
        return Some((Reason::PodLimit, message));
    }
    containers().find_map(|c| {
        let limit = c.storage.limit_bytes?;
        let used = usage.containers.get(&c.name)?;
        let (name, shown) = (&c.name, Quantity::bytes(limit));
        let message =
            format!("Container {name} exceeded its local ephemeral storage limit \"{shown}\". ");
        ((used.layer + used.logs).bytes > limit).then_some((Reason::ContainerLimit, message))
    })
}

/// As it is written.
fn size_limit(pod: &PodSpec, volume: &str, bytes: u64) -> Quantity {
    let volumes = pod.manifest.spec.as_ref().and_then(|s| s.volumes.as_ref());
    let mut volumes = volumes.into_iter().flatten();
    let written = volumes.find(|v| v.name == volume).and_then(|v| {
        let limit = v.empty_dir.as_ref()?.size_limit.as_ref()?;
        Quantity::parse(&limit.0).ok()
    });
    written.unwrap_or(Quantity::bytes(bytes))
}
