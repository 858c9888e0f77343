//! PersistentVolumes: directories of this node that claims are bound to.

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeSpec};
use serde_json::Value as Json;

use super::claim::{access_modes, volume_mode};
use super::{Object, metadata};
use crate::spec::error::{Path, Report};
use crate::spec::resources::amount;
use crate::spec::{names, volume};

/// Fields of a volume's spec that are no sources.
const OTHERS: [&str; 9] = [
    "accessModes",
    "capacity",
    "claimRef",
    "mountOptions",
    "nodeAffinity",
    "persistentVolumeReclaimPolicy",
    "storageClassName",
    "volumeAttributesClassName",
    "volumeMode",
];

/// The only policy that is put in force.
const RETAIN: &str = "Retain";

/// Checks a decoded volume.
pub(super) fn of(mut written: PersistentVolume, path: &Path<'_>, report: &Report) -> Object {
    names::without_namespace(&mut written.metadata, &path.field("metadata"), report);
    metadata(&mut written, path, report);
    written.metadata.namespace = None;
    written.status = None;
    let at = path.field("spec");
    match &mut written.spec {
        None => report.required(&at),
        Some(spec) => {
            spec.volume_mode.get_or_insert("Filesystem".to_owned());
            let policy = &mut spec.persistent_volume_reclaim_policy;
            policy.take_if(|given| given.is_empty());
            policy.get_or_insert(RETAIN.to_owned());
            self::spec(spec, &at, report);
            // What clients are shown is what happens.
            spec.persistent_volume_reclaim_policy = Some(RETAIN.to_owned());
        }
    }
    Object::Volume(Box::new(written))
}

fn spec(spec: &PersistentVolumeSpec, path: &Path<'_>, report: &Report) {
    access_modes(spec.access_modes.as_deref(), path, report);
    volume_mode(spec.volume_mode.as_deref(), path, report);
    let capacity = path.field("capacity");
    let storage = spec.capacity.as_ref().and_then(|all| all.get("storage"));
    match storage {
        None => report.required(&capacity.field("storage")),
        Some(storage) => drop(amount(storage, &capacity.field("storage"), report)),
    }
    let at = path.field("persistentVolumeReclaimPolicy");
    match spec.persistent_volume_reclaim_policy.as_deref() {
        Some(RETAIN) | None => {}
        // In a cluster the data of `local` volumes stays, too.
        Some("Delete" | "Recycle") => report.warn(
            &at,
            "accepted, but nothing removes the data of a volume by itself: `Retain` applies",
        ),
        Some(other) => report.unsupported(&at, other, &[RETAIN, "Delete", "Recycle"]),
    }
    if spec
        .mount_options
        .as_ref()
        .is_some_and(|all| !all.is_empty())
    {
        report.refuse(
            &path.field("mountOptions"),
            "nothing is mounted for a directory of this node",
            "remove it, and mount the file system with these options on the node",
        );
    }
    if spec.node_affinity.is_some() {
        report.warn(
            &path.field("nodeAffinity"),
            "accepted, but not looked at: the volume is a directory of this node, whatever node it names",
        );
    }
    source(spec, path, report);
}

/// Checks that the volume is a directory of this node.
fn source(spec: &PersistentVolumeSpec, path: &Path<'_>, report: &Report) {
    let Ok(Json::Object(fields)) = serde_json::to_value(spec) else {
        return;
    };
    let sources = fields.keys().filter(|key| !OTHERS.contains(&key.as_str()));
    let sources: Vec<&String> = sources.collect();
    for kind in sources
        .iter()
        .filter(|kind| !["local", "hostPath"].contains(&kind.as_str()))
    {
        let detail = format_args!("{kind} volumes are not supported");
        let instead = "mount it on the node, and write its directory as `local: {path: …}`";
        report.refuse(&path.field(kind), detail, instead);
    }
    match sources.len() {
        0 if report.is_wrong_below(path) => {}
        0 => report.error(path, "Required value: must specify a volume type"),
        1 => {}
        _ => report.forbidden(path, "may not specify more than 1 volume type"),
    }
    if let Some(local) = &spec.local {
        let at = path.field("local");
        volume::host_directory(&local.path, &at.field("path"), report);
        if local.fs_type.is_some() {
            report.refuse(
                &at.field("fsType"),
                "block devices are not mounted",
                "mount it on the node, and remove this",
            );
        }
    }
    if let Some(host_path) = &spec.host_path {
        volume::host_path(host_path, &path.field("hostPath"), report);
    }
}
