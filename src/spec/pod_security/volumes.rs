//! Kinds of volumes.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Volume;

use super::Violation;
use super::visit::{View, plural, quoted, violation};

pub(super) fn host_path(pod: &View<'_>) -> Option<Violation> {
    let volumes = pod.spec.volumes.iter().flatten();
    let names: Vec<&str> = volumes
        .filter(|volume| volume.host_path.is_some())
        .map(|volume| volume.name.as_str())
        .collect();
    violation("hostPath volumes", !names.is_empty(), || {
        let word = plural(names.len(), "volume", "volumes");
        format!("{word} {}", quoted(&names))
    })
}

pub(super) fn restricted(pod: &View<'_>) -> Option<Violation> {
    let volumes = pod.spec.volumes.iter().flatten();
    let (mut names, mut kinds) = (Vec::new(), BTreeSet::new());
    for volume in volumes.filter(|volume| !is_plain(volume)) {
        names.push(volume.name.as_str());
        kinds.insert(kind(volume));
    }
    violation("restricted volume types", !names.is_empty(), || {
        format!(
            "{} {} {} {} {}",
            plural(names.len(), "volume", "volumes"),
            quoted(&names),
            plural(names.len(), "uses", "use"),
            plural(
                kinds.len(),
                "restricted volume type",
                "restricted volume types"
            ),
            quoted(&kinds)
        )
    })
}

/// Whether its kind is allowed at every level.
fn is_plain(volume: &Volume) -> bool {
    volume.config_map.is_some()
        || volume.csi.is_some()
        || volume.downward_api.is_some()
        || volume.empty_dir.is_some()
        || volume.ephemeral.is_some()
        || volume.persistent_volume_claim.is_some()
        || volume.projected.is_some()
        || volume.secret.is_some()
}

/// Kinds with a name in messages.
const KINDS: [&str; 21] = [
    "awsElasticBlockStore",
    "azureDisk",
    "azureFile",
    "cephfs",
    "cinder",
    "fc",
    "flexVolume",
    "flocker",
    "gcePersistentDisk",
    "gitRepo",
    "glusterfs",
    "hostPath",
    "iscsi",
    "nfs",
    "photonPersistentDisk",
    "portworxVolume",
    "quobyte",
    "rbd",
    "scaleIO",
    "storageos",
    "vsphereVolume",
];

fn kind(volume: &Volume) -> &'static str {
    let fields = serde_json::to_value(volume).unwrap_or_default();
    let known = KINDS.into_iter().find(|kind| fields.get(kind).is_some());
    known.unwrap_or("unknown")
}
