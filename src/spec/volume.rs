//! Volumes, and the mounts of containers.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{
    Container, EmptyDirVolumeSource, EphemeralVolumeSource, HostPathVolumeSource,
    ImageVolumeSource, Pod, PodSpec, Volume, VolumeMount as Written,
};

use super::configuration::claim;
use super::container;
use super::env_from::check_name;
use super::error::{Path, Report};
use super::huge_pages;
use super::names;
use super::pod::{HostPathType, MountPropagation, VolumeMount, VolumeSource, VolumeSpec};
use super::pod_volume::ImageVolume;
use super::projected;
use super::resources;

/// Validates and converts `spec.volumes`.
pub(crate) fn volumes(
    pod: &Pod,
    spec: &PodSpec,
    path: &Path<'_>,
    report: &Report,
) -> Vec<VolumeSpec> {
    let mut seen = BTreeSet::new();
    let mut result = Vec::with_capacity(spec.volumes.as_ref().map_or(0, Vec::len));
    for (index, volume) in spec.volumes.iter().flatten().enumerate() {
        let path = path.index(index);
        let name = path.field("name");
        if volume.name.is_empty() {
            report.required(&name);
        } else if let Some(problem) = names::dns_label(&volume.name) {
            report.invalid(&name, &volume.name, problem);
        } else if !seen.insert(volume.name.as_str()) {
            report.duplicate(&name, &volume.name);
        }
        if let Some(source) = source((pod, spec), volume, &path, report) {
            result.push(VolumeSpec {
                name: volume.name.clone(),
                source,
            });
        }
    }
    result
}

fn source(
    (pod, spec): (&Pod, &PodSpec),
    volume: &Volume,
    path: &Path<'_>,
    report: &Report,
) -> Option<VolumeSource> {
    let unsupported = unsupported(volume);
    for kind in &unsupported {
        let detail = format_args!("{kind} volumes are not supported by this version");
        report.refuse(&path.field(kind), detail, ELSEWHERE);
    }
    if sources(volume).count() > 1 {
        report.forbidden(path, "may not specify more than 1 volume type");
        return None;
    }
    if let Some(empty) = &volume.empty_dir {
        return empty_dir(spec, empty, &path.field("emptyDir"), report);
    }
    if let Some(host_path) = &volume.host_path {
        return self::host_path(host_path, &path.field("hostPath"), report);
    }
    if let Some(claim) = &volume.persistent_volume_claim {
        let inside = path.field("persistentVolumeClaim");
        check_name(&claim.claim_name, &inside.field("claimName"), report);
        return Some(VolumeSource::Claim {
            name: claim.claim_name.clone(),
            read_only: claim.read_only == Some(true),
        });
    }
    if let Some(ephemeral) = &volume.ephemeral {
        return self::ephemeral(ephemeral, &path.field("ephemeral"), report);
    }
    if let Some(image) = &volume.image {
        return self::image(image, &path.field("image"), report);
    }
    projected::volume(pod, volume, path, report).map(VolumeSource::Projected)
}

/// Validates and converts an `ephemeral` volume (KEP-1698): a claim that lives as long as its pod is what an `emptyDir` is
/// here.
fn ephemeral(
    ephemeral: &EphemeralVolumeSource,
    path: &Path<'_>,
    report: &Report,
) -> Option<VolumeSource> {
    let path = path.field("volumeClaimTemplate");
    let Some(template) = &ephemeral.volume_claim_template else {
        report.required(&path);
        return None;
    };
    let path = path.field("spec");
    let size_limit_bytes = claim::size_of_template(&template.spec, &path, report);
    Some(VolumeSource::EmptyDir { size_limit_bytes })
}

/// Validates and converts an `image` volume (the API server's `validateImageVolumeSource`).
fn image(image: &ImageVolumeSource, path: &Path<'_>, report: &Report) -> Option<VolumeSource> {
    let reference = image.reference.as_deref().unwrap_or_default();
    let name = container::image_name(reference, &path.field("reference"), report);
    let policy = image.pull_policy.as_deref();
    let pull_policy = container::pull_policy(policy, &path.field("pullPolicy"), report);
    Some(VolumeSource::Image(ImageVolume {
        image: reference.to_owned(),
        image_name: name?,
        pinned: None,
        pull_policy,
    }))
}

/// Validates and converts a `hostPath` volume.
pub(super) fn host_path(
    host_path: &HostPathVolumeSource,
    path: &Path<'_>,
    report: &Report,
) -> Option<VolumeSource> {
    host_directory(&host_path.path, &path.field("path"), report);
    let kind = host_path.type_.as_deref().unwrap_or_default();
    let Some((_, kind)) = HOST_PATH_TYPES.iter().find(|(word, _)| *word == kind) else {
        let words = HOST_PATH_TYPES.map(|(word, _)| word);
        report.unsupported(&path.field("type"), kind, &words);
        return None;
    };
    Some(VolumeSource::HostPath {
        path: host_path.path.clone(),
        kind: *kind,
    })
}

/// Checks a path of the node.
pub(super) fn host_directory(text: &str, path: &Path<'_>, report: &Report) {
    if text.is_empty() {
        report.required(path);
    } else if !text.starts_with('/') {
        report.invalid_path(path, text, "must be an absolute path");
    } else if has_parent(text) {
        report.invalid(path, text, "must not contain '..'");
    } else if text.contains('\0') {
        report.invalid(path, text, "must not contain a zero byte");
    }
}

fn empty_dir(
    spec: &PodSpec,
    empty: &EmptyDirVolumeSource,
    path: &Path<'_>,
    report: &Report,
) -> Option<VolumeSource> {
    let limit = empty.size_limit.as_ref();
    let limit = limit.and_then(|l| resources::amount(l, &path.field("sizeLimit"), report));
    // Kubernetes treats 0 as no limit.
    let size_limit_bytes = limit
        .and_then(|l| u64::try_from(l.ceil()).ok())
        .filter(|bytes| *bytes > 0);
    let medium = empty.medium.as_deref().unwrap_or_default();
    let at = path.field("medium");
    match medium {
        "" => Some(VolumeSource::EmptyDir { size_limit_bytes }),
        "Memory" => Some(VolumeSource::MemoryDir { size_limit_bytes }),
        _ if medium == "HugePages" || medium.starts_with("HugePages-") => {
            match huge_pages::of_medium(medium, spec) {
                Ok(page_size) => Some(VolumeSource::HugePageDir {
                    page_size,
                    size_limit_bytes,
                }),
                Err(problem) => {
                    report.invalid(&at, medium, problem);
                    None
                }
            }
        }
        _ => {
            report.unsupported(&at, medium, &["", "HugePages", "Memory"]);
            None
        }
    }
}

/// Advice instead of drivers for disks and network file systems.
const ELSEWHERE: &str =
    "mount it on the node, and give the pod its directory by a `hostPath` volume";

/// Supported kinds of volumes.
pub(super) const KINDS: &str = "volumes may be of kind `emptyDir` (a tmpfs with `medium: Memory`), `hostPath`, \
                                 `persistentVolumeClaim`, `ephemeral`, `configMap`, `secret`, `downwardAPI`, \
                                 `projected` or `image`";

/// Sources that are supported.
const SUPPORTED: [&str; 9] = [
    "configMap",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "hostPath",
    "image",
    "persistentVolumeClaim",
    "projected",
    "secret",
];

const HOST_PATH_TYPES: [(&str, HostPathType); 8] = [
    ("", HostPathType::Any),
    ("BlockDevice", HostPathType::BlockDevice),
    ("CharDevice", HostPathType::CharDevice),
    ("Directory", HostPathType::Directory),
    ("DirectoryOrCreate", HostPathType::DirectoryOrCreate),
    ("File", HostPathType::File),
    ("FileOrCreate", HostPathType::FileOrCreate),
    ("Socket", HostPathType::Socket),
];

/// Returns the given sources that are not supported.
fn unsupported(volume: &Volume) -> Vec<String> {
    sources(volume)
        .filter(|key| !SUPPORTED.contains(&key.as_str()))
        .collect()
}

/// Returns the given sources. They are found by name, so that a new one is never missed.
fn sources(volume: &Volume) -> impl Iterator<Item = String> {
    let fields = match serde_json::to_value(volume) {
        Ok(serde_json::Value::Object(fields)) => fields,
        _ => serde_json::Map::new(),
    };
    let keys = fields.into_iter().map(|(key, _)| key);
    keys.filter(|key| key != "name")
}

/// Validates and converts a container's `volumeMounts`.
pub(crate) fn mounts(
    container: &Container,
    volumes: &[Volume],
    privileged: bool,
    path: &Path<'_>,
    report: &Report,
) -> Vec<VolumeMount> {
    let list = path.field("volumeMounts");
    let mut seen = BTreeSet::new();
    let mut result = Vec::with_capacity(container.volume_mounts.as_ref().map_or(0, Vec::len));
    for (index, mount) in container.volume_mounts.iter().flatten().enumerate() {
        let path = list.index(index);
        if mount.name.is_empty() {
            report.required(&path.field("name"));
        } else if !volumes.iter().any(|v| v.name == mount.name) {
            report.not_found(&path.field("name"), &mount.name);
        }
        let target = mount_path(&mount.mount_path, &path.field("mountPath"), report);
        let of_host = |v: &Volume| v.name == mount.name && v.host_path.is_some();
        if !volumes.iter().any(of_host) {
            refuse_proc(&target, &mount.mount_path, &path.field("mountPath"), report);
        } else if let Some(name) = target.strip_prefix("/proc/")
            && !IN_PROC.contains(&name)
        {
            let at = path.field("mountPath");
            let written = &mount.mount_path;
            let message = format!("Invalid value: {written:?}: must not be below /proc");
            let hint = format!("of it only {} can be replaced", IN_PROC.join(", "));
            report.error_hint(&at, message, hint);
        }
        if !target.is_empty() && !seen.insert(target.clone()) {
            let at = path.field("mountPath");
            report.invalid(&at, &mount.mount_path, "must be unique");
        }
        let some = |text: &Option<String>| text.clone().filter(|t| !t.is_empty());
        let (sub_path, sub_path_expr) = (some(&mount.sub_path), some(&mount.sub_path_expr));
        if let (Some(_), Some(expr)) = (&sub_path, &sub_path_expr) {
            let detail = "subPathExpr and subPath are mutually exclusive";
            report.invalid(&path.field("subPathExpr"), expr, detail);
        }
        for (name, text) in [("subPath", &sub_path), ("subPathExpr", &sub_path_expr)] {
            check_sub_path(
                text.as_deref().unwrap_or_default(),
                &path.field(name),
                report,
            );
        }
        let read_only = mount.read_only == Some(true);
        let at = path.field("mountPropagation");
        let word = mount.mount_propagation.as_deref();
        result.push(VolumeMount {
            volume: mount.name.clone(),
            path: target,
            read_only,
            recursive_read_only: recursive_read_only(mount, &path, report),
            sub_path,
            sub_path_expr,
            propagation: propagation(word, privileged, &at, report),
        });
    }
    result
}

/// Whether mounts below the volume's root are read-only, too. The engine needs the same system call for every volume
/// (`mount_setattr`, Linux 5.12), so `IfPossible` always is.
fn recursive_read_only(mount: &Written, path: &Path<'_>, report: &Report) -> bool {
    let at = path.field("recursiveReadOnly");
    match mount.recursive_read_only.as_deref() {
        None | Some("" | "Disabled") => return false,
        Some("Enabled" | "IfPossible") => {}
        Some(other) => {
            let words = ["Disabled", "Enabled", "IfPossible"];
            report.unsupported(&at, other, &words);
            return false;
        }
    }
    // Earlier versions admitted both.
    let read_only = mount.read_only == Some(true);
    if !read_only {
        let detail = "may only be specified when readOnly is true";
        report.refuse(&at, detail, "set `readOnly: true`");
    }
    if !matches!(mount.mount_propagation.as_deref(), None | Some("" | "None")) {
        let detail = "may only be specified when mountPropagation is None or not specified";
        report.refuse(&at, detail, "remove `mountPropagation`");
    }
    read_only
}

/// Returns the path of a mount in a container. A relative path starts at the root, as in the kubelet.
pub(super) fn mount_path(written: &str, path: &Path<'_>, report: &Report) -> String {
    if written.is_empty() {
        report.required(path);
        return String::new();
    }
    if written.contains(':') {
        report.invalid_path(path, written, "must not contain ':'");
    } else if written.contains('\0') {
        report.invalid(path, written, "must not contain a zero byte");
    } else if has_parent(written) {
        report.invalid(path, written, "must not contain '..'");
    }
    let parts: Vec<&str> = written
        .split('/')
        .filter(|part| !part.is_empty() && *part != ".")
        .collect();
    if parts.is_empty() {
        report.invalid(path, written, "must not be the container's root");
    }
    format!("/{}", parts.join("/"))
}

/// The files in `/proc` that may be replaced, as in runc (`checkProcMount`): LXCFS has such files.
pub const IN_PROC: [&str; 10] = [
    "cpuinfo",
    "diskstats",
    "loadavg",
    "meminfo",
    "slabinfo",
    "stat",
    "swaps",
    "sys/crypto/fips_enabled",
    "sys/kernel/ns_last_pid",
    "uptime",
];

/// Refuses `/proc` and what is below: the runtime trusts what it reads there about itself and the container.
pub(super) fn refuse_proc(target: &str, written: &str, path: &Path<'_>, report: &Report) {
    let detail = match target.strip_prefix("/proc") {
        Some("") => "must not be /proc",
        Some(below) if below.starts_with('/') => "must not be below /proc",
        _ => return,
    };
    let message = format!("Invalid value: {written:?}: {detail}");
    let hint = "mount it elsewhere; only a `hostPath` of the node's /proc can be there";
    report.error_hint(path, message, hint.to_owned());
}

fn check_sub_path(text: &str, path: &Path<'_>, report: &Report) {
    if text.starts_with('/') {
        report.invalid(path, text, "must be a relative path");
    } else if has_parent(text) {
        report.invalid(path, text, "must not contain '..'");
    } else if text.contains('\0') {
        report.invalid(path, text, "must not contain a zero byte");
    }
}

fn propagation(
    word: Option<&str>,
    privileged: bool,
    path: &Path<'_>,
    report: &Report,
) -> MountPropagation {
    match word {
        None | Some("" | "None") => MountPropagation::None,
        Some("HostToContainer") => MountPropagation::HostToContainer,
        Some("Bidirectional") => {
            if !privileged {
                let detail =
                    "Bidirectional mount propagation is available only to privileged containers";
                report.forbidden(path, detail);
            }
            MountPropagation::Bidirectional
        }
        Some(other) => {
            let words = ["Bidirectional", "HostToContainer", "None"];
            report.unsupported(path, other, &words);
            MountPropagation::None
        }
    }
}

fn has_parent(path: &str) -> bool {
    path.split('/').any(|part| part == "..")
}
