//! AppArmor, and confinement that is not supported: SELinux labels, and seccomp profiles in annotations. A pod that asks for what
//! is not supported is refused by name, because it would run with more rights than intended. Asking for none is valid.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    AppArmorProfile, PodSecurityContext, SELinuxOptions, SecurityContext,
};

use super::error::{Path, Report};
use super::security::AppArmor;

/// Annotations with seccomp profiles: the pod's, and the prefix of a container's.
const SECCOMP_POD: &str = "seccomp.security.alpha.kubernetes.io/pod";
const SECCOMP_CONTAINER: &str = "container.seccomp.security.alpha.kubernetes.io/";

/// Advice instead of SELinux.
const INSTEAD: &str = "remove it; `seccompProfile`, `capabilities`, `runAsUser` and `readOnlyRootFilesystem` confine a container here";

/// Longest name of an AppArmor profile, in bytes.
const MAX_PROFILE: usize = 4095;

/// Checks a pod's security context.
pub(super) fn pod(context: &PodSecurityContext, path: &Path<'_>, report: &Report) {
    if let Some(profile) = &context.app_armor_profile {
        app_armor(profile, &path.field("appArmorProfile"), report);
    }
    se_linux(context.se_linux_options.as_ref(), path, report);
}

/// Checks a container's security context.
pub(super) fn container(context: &SecurityContext, path: &Path<'_>, report: &Report) {
    se_linux(context.se_linux_options.as_ref(), path, report);
}

/// Validates and converts an AppArmor profile, by the API server's rules.
pub(super) fn app_armor(profile: &AppArmorProfile, path: &Path<'_>, report: &Report) -> AppArmor {
    let name = profile.localhost_profile.as_deref();
    let at = path.field("localhostProfile");
    if profile.type_ != "Localhost" && name.is_some() {
        let detail = "can only be set when AppArmor type is Localhost";
        report.invalid(&at, name.unwrap_or_default(), detail);
    }
    match profile.type_.as_str() {
        "Unconfined" => AppArmor::Unconfined,
        "RuntimeDefault" => AppArmor::RuntimeDefault,
        "Localhost" => {
            let name = name.unwrap_or_default();
            if name.trim().is_empty() {
                let message = "Required value: must be set when AppArmor type is Localhost";
                report.error(&at, message);
            } else if name.trim() != name {
                report.invalid(&at, name, "must not be padded with whitespace");
            } else if name.len() > MAX_PROFILE {
                let message = format!("Too long: may not be more than {MAX_PROFILE} bytes");
                report.error(&at, message);
            } else if name.contains(char::is_control) {
                report.invalid(&at, name, "must not contain control characters");
            }
            AppArmor::Localhost(name.to_owned())
        }
        "" => {
            report.required(&path.field("type"));
            AppArmor::Unconfined
        }
        other => {
            let words = ["Localhost", "RuntimeDefault", "Unconfined"];
            report.unsupported(&path.field("type"), other, &words);
            AppArmor::Unconfined
        }
    }
}

/// The SELinux type of an unconfined process.
const SUPER_PRIVILEGED: &str = "spc_t";

fn se_linux(options: Option<&SELinuxOptions>, path: &Path<'_>, report: &Report) {
    let Some(options) = options.filter(|options| **options != SELinuxOptions::default()) else {
        return;
    };
    let at = path.field("seLinuxOptions");
    if options.type_.as_deref() == Some(SUPER_PRIVILEGED) {
        let what = "no SELinux labels are set, which confines it as little as `spc_t` does";
        report.warn(&at, format_args!("accepted, but {what}"));
        return;
    }
    let detail = "SELinux labels are not set by this node's container engine, whether or not its kernel has SELinux";
    report.refuse(&at, detail, INSTEAD);
}

/// Checks annotations with seccomp profiles, which older versions of Kubernetes read.
pub(super) fn annotations(
    annotations: Option<&BTreeMap<String, String>>,
    path: &Path<'_>,
    report: &Report,
) {
    for (key, value) in annotations.into_iter().flatten() {
        let at = path.field(key);
        if key == SECCOMP_POD || key.starts_with(SECCOMP_CONTAINER) {
            seccomp(value, &at, report);
        }
    }
}

/// Checks a seccomp annotation. Kubernetes has not read these since 1.27.
fn seccomp(value: &str, path: &Path<'_>, report: &Report) {
    const FIELD: &str = "`securityContext.seccompProfile`";
    match value {
        "runtime/default" | "docker/default" => report.warn(
            path,
            format_args!(
                "not read any more, but `RuntimeDefault` applies unless {FIELD} says otherwise"
            ),
        ),
        // The effect is stricter than what was asked for, so a warning is enough.
        "unconfined" => report.warn(
            path,
            format_args!("not read any more: `RuntimeDefault` applies; use {FIELD}"),
        ),
        _ => {
            let detail = "seccomp profiles are not read from annotations any more";
            let instead = format!("use {FIELD}: `type: Localhost`, `localhostProfile: …`");
            report.refuse(path, detail, &instead);
        }
    }
}
