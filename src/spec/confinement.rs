//! Confinement that is not supported: AppArmor, SELinux and strict supplemental groups. A pod that asks for one of them
//! is refused by name, because it would run with more rights than intended. Asking for none is valid.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    AppArmorProfile, PodSecurityContext, SELinuxOptions, SecurityContext,
};

use super::error::{Path, Report};
use super::support;

/// Prefix of annotations with a container's AppArmor profile; the container's name follows.
const APP_ARMOR: &str = "container.apparmor.security.beta.kubernetes.io/";

/// Annotations with seccomp profiles: the pod's, and the prefix of a container's.
const SECCOMP_POD: &str = "seccomp.security.alpha.kubernetes.io/pod";
const SECCOMP_CONTAINER: &str = "container.seccomp.security.alpha.kubernetes.io/";

/// Advice instead of AppArmor and SELinux.
const INSTEAD: &str = "remove it; `seccompProfile`, `capabilities`, `runAsUser` and `readOnlyRootFilesystem` confine a container here";

/// Checks a pod's security context.
pub(super) fn pod(context: &PodSecurityContext, path: &Path<'_>, report: &Report) {
    app_armor(context.app_armor_profile.as_ref(), path, report);
    se_linux(context.se_linux_options.as_ref(), path, report);
    let strict = (
        "supplementalGroupsPolicy",
        context.supplemental_groups_policy.as_deref() == Some("Strict"),
        "policy \"Strict\" is",
        "remove it, and see that the image's /etc/group gives the user no groups it should not have",
    );
    support::refuse(&[strict], path, report);
}

/// Checks a container's security context.
pub(super) fn container(context: &SecurityContext, path: &Path<'_>, report: &Report) {
    app_armor(context.app_armor_profile.as_ref(), path, report);
    se_linux(context.se_linux_options.as_ref(), path, report);
}

fn app_armor(profile: Option<&AppArmorProfile>, path: &Path<'_>, report: &Report) {
    let Some(profile) = profile else { return };
    let path = path.field("appArmorProfile");
    let at = path.field("type");
    match profile.type_.as_str() {
        "Unconfined" => {
            if let Some(file) = &profile.localhost_profile {
                let detail = "can only be set when AppArmor type is Localhost";
                report.invalid(&path.field("localhostProfile"), file, detail);
            }
        }
        "" => report.required(&at),
        "Localhost" | "RuntimeDefault" => {
            let detail = "AppArmor profiles are not supported yet by this version";
            report.refuse(&path, detail, INSTEAD);
        }
        other => report.unsupported(&at, other, &["Localhost", "RuntimeDefault", "Unconfined"]),
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
    let detail = "SELinux labels are not supported yet by this version";
    report.refuse(&at, detail, INSTEAD);
}

/// Checks annotations that were used before there were fields.
pub(super) fn annotations(
    annotations: Option<&BTreeMap<String, String>>,
    path: &Path<'_>,
    report: &Report,
) {
    for (key, value) in annotations.into_iter().flatten() {
        let at = path.field(key);
        if key.starts_with(APP_ARMOR) && value != "unconfined" {
            let detail = "AppArmor profiles are not supported yet by this version";
            report.refuse(&at, detail, INSTEAD);
        } else if key == SECCOMP_POD || key.starts_with(SECCOMP_CONTAINER) {
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
