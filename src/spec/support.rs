//! Fields without support here. A field that is harmless to ignore gets a warning that says why; a field that would be
//! wrong to ignore is refused, with advice.
//!
//! `tests/spec_properties/fields.rs` lists every field and how it is treated.

use k8s_openapi::api::core::v1::{Container, PodSecurityContext, PodSpec};

use super::confinement;
use super::error::{Path, Report};

/// A field, whether it is given, and the reason why it has no effect.
type Idle<'a> = (&'a str, bool, &'a str);

/// A field, whether it is given, what it asks for, and the advice.
pub(super) type Refused<'a> = (&'a str, bool, &'a str, &'a str);

fn warn(fields: &[Idle<'_>], path: &Path<'_>, report: &Report) {
    for (field, _, what) in fields.iter().filter(|(_, given, _)| *given) {
        let (outer, inner) = field.split_once('.').unwrap_or((field, ""));
        let outer = path.field(outer);
        let inner = Some(inner).filter(|name| !name.is_empty());
        let at = inner.map_or(outer, |name| outer.field(name));
        report.warn(&at, format_args!("accepted, but {what}"));
    }
}

/// Refuses the fields that are given.
pub(super) fn refuse(fields: &[Refused<'_>], path: &Path<'_>, report: &Report) {
    for (field, _, what, instead) in fields.iter().filter(|(_, given, ..)| *given) {
        let detail = format_args!("{what} not supported yet by this version");
        report.refuse(&path.field(field), detail, instead);
    }
}

/// Checks the pod's own fields.
pub(crate) fn pod(spec: &PodSpec, path: &Path<'_>, report: &Report) {
    refuse(&not_ignored(spec), path, report);
    runtime_class(spec, path, report);
    warn(&without_cluster(spec), path, report);
    if some(&spec.ephemeral_containers) {
        let at = path.field("ephemeralContainers");
        let detail = "cannot be set on create; `coracle debug` adds one to a running pod";
        report.forbidden(&at, detail);
    }
    match spec.os.as_ref().map(|os| os.name.as_str()) {
        None | Some("linux") => {}
        // It is valid, but not admitted.
        Some("windows") => report.warn(
            &path.field("os").field("name"),
            "accepted, but the pod waits for ever: this node runs Linux",
        ),
        Some(other) => report.unsupported(
            &path.field("os").field("name"),
            other,
            &["linux", "windows"],
        ),
    }
    if let Some(context) = &spec.security_context {
        let path = path.field("securityContext");
        confinement::pod(context, &path, report);
        pod_security(context, &path, report);
    }
}

/// Returns fields that would change what the pod is if they were ignored.
fn not_ignored(spec: &PodSpec) -> [Refused<'static>; 2] {
    [
        (
            "resourceClaims",
            some(&spec.resource_claims),
            "device claims are",
            "name the device in an annotation (`coracle help devices`)",
        ),
        (
            "schedulingGroup",
            spec.scheduling_group.is_some(),
            "scheduling groups are",
            "remove it: there is only this node",
        ),
    ]
}

/// Returns fields that need other nodes or an API server.
fn without_cluster(spec: &PodSpec) -> [Idle<'_>; 8] {
    const ALONE: &str = "there is only this node";
    const NO_SERVER: &str = "there is no API server to log in to";
    let other = |account: &Option<String>| {
        let account = account.as_deref().unwrap_or_default();
        !["", "default"].contains(&account)
    };
    let scheduler = spec.scheduler_name.as_deref().unwrap_or_default();
    let affinity = spec.affinity.as_ref();
    [
        (
            "affinity.podAffinity",
            affinity.is_some_and(|a| a.pod_affinity.is_some()),
            ALONE,
        ),
        (
            "affinity.podAntiAffinity",
            affinity.is_some_and(|a| a.pod_anti_affinity.is_some()),
            ALONE,
        ),
        (
            "topologySpreadConstraints",
            some(&spec.topology_spread_constraints),
            ALONE,
        ),
        (
            "schedulingGates",
            some(&spec.scheduling_gates),
            "there is no scheduler here that would wait for them",
        ),
        (
            "schedulerName",
            !["", "default-scheduler"].contains(&scheduler),
            "there is no scheduler here: the pod runs on this node",
        ),
        (
            "serviceAccountName",
            other(&spec.service_account_name),
            NO_SERVER,
        ),
        ("serviceAccount", other(&spec.service_account), NO_SERVER),
        (
            "automountServiceAccountToken",
            spec.automount_service_account_token == Some(true),
            NO_SERVER,
        ),
    ]
}

/// Common names for runtimes that do the same as coracle's.
const PLAIN_RUNTIMES: [&str; 4] = ["crun", "libcontainer", "runc", "youki"];

/// Checks the runtime class. Other names stand for virtual machines, sandboxes or devices, which the pod would lack.
fn runtime_class(spec: &PodSpec, path: &Path<'_>, report: &Report) {
    let Some(name) = spec.runtime_class_name.as_deref() else {
        return;
    };
    if PLAIN_RUNTIMES.contains(&name) {
        let plain = (
            "runtimeClassName",
            true,
            "there is only one runtime, which does the same",
        );
        warn(&[plain], path, report);
    } else {
        let detail = format_args!("runtime class {name:?} is not there: there is only one runtime");
        let instead = match name.starts_with("nvidia") {
            true => "remove it, and name the GPU in an annotation (`coracle help devices`)",
            false => "remove it if ordinary containers will do",
        };
        report.refuse(&path.field("runtimeClassName"), detail, instead);
    }
}

fn pod_security(context: &PodSecurityContext, path: &Path<'_>, report: &Report) {
    const POLICIES: [&str; 2] = ["Always", "OnRootMismatch"];
    const CHANGES: [&str; 2] = ["MountOption", "Recursive"];
    let policy = context.fs_group_change_policy.as_deref();
    let change = context.se_linux_change_policy.as_deref();
    let fields = [(
        "seLinuxChangePolicy",
        change.is_some_and(|change| CHANGES.contains(&change)),
        "no SELinux labels are set",
    )];
    warn(&fields, path, report);
    for (field, given, words) in [
        ("fsGroupChangePolicy", policy, POLICIES),
        ("seLinuxChangePolicy", change, CHANGES),
    ] {
        if let Some(other) = given.filter(|given| !words.contains(given)) {
            report.unsupported(&path.field(field), other, &words);
        }
    }
}

/// Checks a container's fields.
pub(crate) fn container(container: &Container, path: &Path<'_>, report: &Report) {
    let devices = (
        "volumeDevices",
        some(&container.volume_devices),
        "block devices are",
        "name the device in an annotation (`coracle help devices`)",
    );
    refuse(&[devices], path, report);
    if let Some(context) = &container.security_context {
        confinement::container(context, &path.field("securityContext"), report);
    }
}

/// Whether an optional list or map is not empty.
fn some<T>(field: &Option<T>) -> bool
where
    for<'a> &'a T: IntoIterator,
{
    field
        .as_ref()
        .is_some_and(|list| list.into_iter().next().is_some())
}
