//! Claims of storage: a claim is a directory of this node that outlives pods and files, or a PersistentVolume that the
//! manifests describe (Kubernetes docs: Persistent Volumes).

use k8s_openapi::api::core::v1::{PersistentVolumeClaim, PersistentVolumeClaimSpec};

use super::{Object, metadata};
use crate::spec::error::{Path, Report};
use crate::spec::resources::amount;
use crate::types::quantity::Quantity;

/// Access modes that mean something on one node.
const MODES: [&str; 4] = ["ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", ONE_POD];

/// Only one pod at a time uses the volume.
pub(crate) const ONE_POD: &str = "ReadWriteOncePod";

/// Checks a decoded claim.
pub(super) fn of(mut claim: PersistentVolumeClaim, path: &Path<'_>, report: &Report) -> Object {
    metadata(&mut claim, path, report);
    claim.status = None;
    let at = path.field("spec");
    match &mut claim.spec {
        None => report.required(&at),
        Some(spec) => {
            spec.volume_mode.get_or_insert("Filesystem".to_owned());
            self::spec(spec, &at, report);
        }
    }
    Object::Claim(Box::new(claim))
}

fn spec(spec: &PersistentVolumeClaimSpec, path: &Path<'_>, report: &Report) {
    access_modes(spec.access_modes.as_deref(), path, report);
    volume_mode(spec.volume_mode.as_deref(), path, report);
    let resources = path.field("resources");
    let requests = spec.resources.as_ref().and_then(|r| r.requests.as_ref());
    let requests_at = resources.field("requests");
    let storage_at = requests_at.field("storage");
    match requests.and_then(|requests| requests.get("storage")) {
        None => report.required(&storage_at),
        Some(storage) => {
            let found = amount(storage, &storage_at, report);
            if found.is_some_and(|found| found.nano() == 0) {
                let detail = "must be greater than zero";
                report.invalid(&storage_at, &storage.0, detail);
            }
        }
    }
    let sources = [
        ("dataSource", spec.data_source.is_some()),
        ("dataSourceRef", spec.data_source_ref.is_some()),
    ];
    for (field, _) in sources.iter().filter(|(_, given)| *given) {
        report.refuse(
            &path.field(field),
            "there are no snapshots and no copies of volumes",
            "remove it, and fill the directory in an init container",
        );
    }
}

/// Checks the claim of a volume that lives as long as its pod, and returns its size in bytes.
pub(crate) fn size_of_template(
    spec: &PersistentVolumeClaimSpec,
    path: &Path<'_>,
    report: &Report,
) -> Option<u64> {
    self::spec(spec, path, report);
    let bound = [
        ("selector", spec.selector.is_some()),
        ("volumeName", spec.volume_name.is_some()),
    ];
    for (field, _) in bound.iter().filter(|(_, given)| *given) {
        let what = "accepted, but a volume that ends with its pod is no PersistentVolume here";
        report.warn(&path.field(field), what);
    }
    let storage = spec.resources.as_ref()?.requests.as_ref()?.get("storage")?;
    let size = Quantity::parse(&storage.0).ok()?;
    u64::try_from(size.ceil()).ok()
}

/// Checks the access modes of a claim or a volume.
pub(super) fn access_modes(modes: Option<&[String]>, path: &Path<'_>, report: &Report) {
    let list = path.field("accessModes");
    let modes = modes.unwrap_or_default();
    if modes.is_empty() && !report.is_wrong_below(&list) {
        report.error(&list, "Required value: at least 1 access mode is required");
    }
    for (index, mode) in modes.iter().enumerate() {
        if !MODES.contains(&mode.as_str()) {
            report.unsupported(&list.index(index), mode, &MODES);
        }
    }
    if modes.len() > 1 && modes.iter().any(|mode| mode == ONE_POD) {
        let detail = "may not use ReadWriteOncePod with other access modes";
        report.forbidden(&list, detail);
    }
}

/// Checks the mode of a claim or a volume.
pub(super) fn volume_mode(mode: Option<&str>, path: &Path<'_>, report: &Report) {
    let at = path.field("volumeMode");
    match mode {
        None | Some("Filesystem") => {}
        Some("Block") => report.refuse(
            &at,
            "raw block volumes are not supported",
            "use a `hostPath` volume of type `BlockDevice`",
        ),
        Some(other) => report.unsupported(&at, other, &["Block", "Filesystem"]),
    }
}
