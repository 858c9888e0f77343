//! What do we not do yet? Fields that are valid Kubernetes but without effect here get a warning that names them;
//! fields that would be wrong to ignore are refused.
//!
//! What means nothing on a single node (scheduler, tolerations, service links) is accepted in silence.

use k8s_openapi::api::core::v1::{Container, PodSpec};

use super::default::builtin_priority;
use super::error::{Path, Report};

/// Goes through the pod's own fields.
pub(crate) fn pod(spec: &PodSpec, path: &Path<'_>, report: &Report) {
    refuse(spec, path, report);
    let class = spec.priority_class_name.as_deref().unwrap_or_default();
    let account = spec
        .service_account_name
        .as_ref()
        .or(spec.service_account.as_ref());
    for (field, given, what) in [
        (
            "affinity",
            spec.affinity.is_some(),
            "there is only this node",
        ),
        (
            "nodeSelector",
            some(&spec.node_selector),
            "there is only this node",
        ),
        (
            "topologySpreadConstraints",
            some(&spec.topology_spread_constraints),
            "there is only this node",
        ),
        (
            "priorityClassName",
            !class.is_empty() && builtin_priority(class).is_none(),
            "priority classes other than the two built in are not read yet; set `priority`",
        ),
        (
            "preemptionPolicy",
            spec.preemption_policy.is_some(),
            "pods do not preempt others yet",
        ),
        (
            "activeDeadlineSeconds",
            spec.active_deadline_seconds.is_some(),
            "the deadline is not enforced yet",
        ),
        (
            "readinessGates",
            some(&spec.readiness_gates),
            "readiness gates are not evaluated yet",
        ),
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
            "runtimeClassName",
            spec.runtime_class_name.is_some(),
            "there is only one runtime",
        ),
        (
            "serviceAccountName",
            account.is_some_and(|name| !name.is_empty() && name != "default"),
            "there is no API server to log in to",
        ),
        (
            "imagePullSecrets",
            some(&spec.image_pull_secrets),
            "images are not pulled from registries yet",
        ),
        ("overhead", some(&spec.overhead), "overhead is not counted"),
        (
            "schedulingGates",
            some(&spec.scheduling_gates),
            "there is no scheduler here",
        ),
    ] {
        if given {
            report.warn(&path.field(field), format_args!("accepted, but {what}"));
        }
    }
    let Some(context) = &spec.security_context else {
        return;
    };
    let path = path.field("securityContext");
    for (field, given) in [
        ("appArmorProfile", context.app_armor_profile.is_some()),
        ("seLinuxOptions", context.se_linux_options.is_some()),
        (
            "seLinuxChangePolicy",
            context.se_linux_change_policy.is_some(),
        ),
    ] {
        if given {
            report.warn(&path.field(field), "accepted, but not applied yet");
        }
    }
    if context.fs_group_change_policy.as_deref() == Some("OnRootMismatch") {
        let what = "accepted, but ownership is always set anew";
        report.warn(&path.field("fsGroupChangePolicy"), what);
    }
}

fn refuse(spec: &PodSpec, path: &Path<'_>, report: &Report) {
    for (field, given, what) in [
        (
            "initContainers",
            some(&spec.init_containers),
            "init containers",
        ),
        (
            "ephemeralContainers",
            some(&spec.ephemeral_containers),
            "ephemeral containers",
        ),
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
    match spec.os.as_ref().map(|os| os.name.as_str()) {
        None | Some("linux") => {}
        Some("windows") => {
            let detail = "this node runs Linux";
            report.forbidden(&path.field("os").field("name"), detail);
        }
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
    let lifecycle = container.lifecycle.as_ref();
    for (field, given, what) in [
        (
            "livenessProbe",
            container.liveness_probe.is_some(),
            "probes are not run yet",
        ),
        (
            "readinessProbe",
            container.readiness_probe.is_some(),
            "probes are not run yet",
        ),
        (
            "startupProbe",
            container.startup_probe.is_some(),
            "probes are not run yet",
        ),
        (
            "resizePolicy",
            some(&container.resize_policy),
            "containers are not resized in place yet",
        ),
        (
            "restartPolicy",
            container.restart_policy.is_some(),
            "the pod's restart policy is used",
        ),
        (
            "restartPolicyRules",
            some(&container.restart_policy_rules),
            "the pod's restart policy is used",
        ),
        (
            "stdinOnce",
            container.stdin_once == Some(true),
            "stdin stays open",
        ),
    ] {
        if given {
            report.warn(&path.field(field), format_args!("accepted, but {what}"));
        }
    }
    let at = path.field("lifecycle");
    for (field, given, what) in [
        (
            "postStart",
            lifecycle.is_some_and(|l| l.post_start.is_some()),
            "hooks are not run yet",
        ),
        (
            "preStop",
            lifecycle.is_some_and(|l| l.pre_stop.is_some()),
            "hooks are not run yet",
        ),
        (
            "stopSignal",
            lifecycle.is_some_and(|l| l.stop_signal.is_some()),
            "the image's stop signal is used",
        ),
    ] {
        if given {
            report.warn(&at.field(field), format_args!("accepted, but {what}"));
        }
    }
    let Some(context) = &container.security_context else {
        return;
    };
    let path = path.field("securityContext");
    for (field, given) in [
        ("appArmorProfile", context.app_armor_profile.is_some()),
        ("seLinuxOptions", context.se_linux_options.is_some()),
    ] {
        if given {
            report.warn(&path.field(field), "accepted, but not applied yet");
        }
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
