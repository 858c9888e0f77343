//! What do we not do yet? Fields that are valid Kubernetes but without effect here get a warning that names them;
//! fields that would be wrong to ignore are refused.
//!
//! What means nothing on a single node (scheduler, tolerations, service links) is accepted in silence.

use k8s_openapi::api::core::v1::{Container, PodSecurityContext, PodSpec};

use super::error::{Path, Report};

/// A field, whether it is given, and what happens instead of what it asks for.
type Idle<'a> = (&'a str, bool, &'a str);

fn warn(fields: &[Idle<'_>], path: &Path<'_>, report: &Report) {
    for (field, _, what) in fields.iter().filter(|(_, given, _)| *given) {
        let (outer, inner) = field.split_once('.').unwrap_or((field, ""));
        let outer = path.field(outer);
        let inner = Some(inner).filter(|name| !name.is_empty());
        let at = inner.map_or(outer, |name| outer.field(name));
        report.warn(&at, format_args!("accepted, but {what}"));
    }
}

/// Goes through the pod's own fields.
pub(crate) fn pod(spec: &PodSpec, path: &Path<'_>, report: &Report) {
    refuse(spec, path, report);
    warn(&without_cluster(spec), path, report);
    warn(&later(spec), path, report);
    if let Some(context) = &spec.security_context {
        pod_security(context, &path.field("securityContext"), report);
    }
}

/// What needs more than one node, or an API server.
fn without_cluster(spec: &PodSpec) -> [Idle<'_>; 6] {
    const ALONE: &str = "there is only this node";
    let account = spec.service_account_name.as_ref();
    let account = account.or(spec.service_account.as_ref());
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
            "there is no scheduler here",
        ),
        (
            "runtimeClassName",
            spec.runtime_class_name.is_some(),
            "there is only one runtime",
        ),
        (
            "serviceAccountName",
            account.is_some_and(|name| !name.is_empty() && name != "default"),
            "there is no API server to log in to",
        ),
    ]
}

/// What this version does not do yet.
fn later(spec: &PodSpec) -> [Idle<'_>; 3] {
    [
        (
            "shareProcessNamespace",
            spec.share_process_namespace == Some(true),
            "every container still has process ids of its own",
        ),
        (
            "hostUsers",
            spec.host_users == Some(false),
            "user namespaces are not made yet",
        ),
        (
            "imagePullSecrets",
            some(&spec.image_pull_secrets),
            "images are not pulled from registries yet",
        ),
    ]
}

const NOT_APPLIED: &str = "it is not applied yet";

fn pod_security(context: &PodSecurityContext, path: &Path<'_>, report: &Report) {
    let policy = context.fs_group_change_policy.as_deref();
    let fields = [
        (
            "appArmorProfile",
            context.app_armor_profile.is_some(),
            NOT_APPLIED,
        ),
        (
            "seLinuxOptions",
            context.se_linux_options.is_some(),
            NOT_APPLIED,
        ),
        (
            "seLinuxChangePolicy",
            context.se_linux_change_policy.is_some(),
            NOT_APPLIED,
        ),
        (
            "fsGroupChangePolicy",
            policy == Some("OnRootMismatch"),
            "ownership is always set anew",
        ),
    ];
    warn(&fields, path, report);
    if let Some(other) = policy.filter(|p| !["Always", "OnRootMismatch"].contains(p)) {
        let words = ["Always", "OnRootMismatch"];
        report.unsupported(&path.field("fsGroupChangePolicy"), other, &words);
    }
}

fn refuse(spec: &PodSpec, path: &Path<'_>, report: &Report) {
    for (field, given, what) in [
        (
            "resourceClaims",
            some(&spec.resource_claims),
            "device claims",
        ),
        (
            "schedulingGroup",
            spec.scheduling_group.is_some(),
            "scheduling groups",
        ),
    ] {
        if given {
            let detail = format_args!("{what} are not supported yet by this version");
            report.forbidden(&path.field(field), detail);
        }
    }
    if some(&spec.ephemeral_containers) {
        let at = path.field("ephemeralContainers");
        let detail = "cannot be set on create; `coracle debug` adds one to a running pod";
        report.forbidden(&at, detail);
    }
    match spec.os.as_ref().map(|os| os.name.as_str()) {
        // Of the wrong one it is not let in.
        None | Some("linux" | "windows") => {}
        Some(other) => report.unsupported(
            &path.field("os").field("name"),
            other,
            &["linux", "windows"],
        ),
    }
}

/// Goes through one container's fields.
pub(crate) fn container(container: &Container, path: &Path<'_>, report: &Report) {
    if some(&container.volume_devices) {
        let detail = "block devices are not supported by this version";
        report.forbidden(&path.field("volumeDevices"), detail);
    }
    if let Some(context) = &container.security_context {
        let fields = [
            (
                "appArmorProfile",
                context.app_armor_profile.is_some(),
                NOT_APPLIED,
            ),
            (
                "seLinuxOptions",
                context.se_linux_options.is_some(),
                NOT_APPLIED,
            ),
        ];
        warn(&fields, &path.field("securityContext"), report);
    }
}

/// Whether an optional list or map has something in it.
fn some<T>(field: &Option<T>) -> bool
where
    for<'a> &'a T: IntoIterator,
{
    field
        .as_ref()
        .is_some_and(|list| list.into_iter().next().is_some())
}
