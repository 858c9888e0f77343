//! Security contexts of pod and container, merged; contradictions are refused.

use k8s_openapi::api::core::v1::{
    Capabilities, PodSecurityContext, PodSpec, SeccompProfile, SecurityContext, Sysctl,
};

use super::error::{Path, Report};
use super::{confinement, names, suggest, sysctl};

/// Security context of one container, pod-level values merged in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Security {
    /// `runAsUser`.
    pub run_as_user: Option<u32>,
    /// `runAsGroup`.
    pub run_as_group: Option<u32>,
    /// `runAsNonRoot: true`.
    pub run_as_non_root: bool,
    /// `privileged`.
    pub privileged: bool,
    /// `allowPrivilegeEscalation`; `true` by default and whenever privileged or CAP_SYS_ADMIN.
    pub allow_privilege_escalation: bool,
    /// `readOnlyRootFilesystem`.
    pub read_only_root: bool,
    /// `capabilities.add`, without the `CAP_` prefix; may contain `ALL`.
    pub cap_add: Vec<String>,
    /// `capabilities.drop`, without the `CAP_` prefix; may contain `ALL`.
    pub cap_drop: Vec<String>,
    /// `seccompProfile`.
    pub seccomp: Seccomp,
    /// `appArmorProfile`.
    pub app_armor: AppArmor,
    /// `procMount: Unmasked`.
    pub unmasked_proc: bool,
}

/// `appArmorProfile`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum AppArmor {
    /// No profile; the default.
    #[default]
    Unconfined,
    /// The profile in coracle.
    RuntimeDefault,
    /// A profile that is loaded on the node.
    Localhost(String),
}

/// `seccompProfile`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Seccomp {
    /// The profile in coracle; the default (`coracle help differences`).
    RuntimeDefault,
    /// No filter, as for `privileged`.
    Unconfined,
    /// A profile file below `<root>/seccomp`.
    Localhost(String),
}

/// Pod-level fields of a security context.
#[derive(Debug, Default)]
pub(crate) struct PodSecurity {
    /// `fsGroup`.
    pub(crate) fs_group: Option<u32>,
    /// `fsGroupChangePolicy: OnRootMismatch`.
    pub(crate) fs_group_on_mismatch: bool,
    /// `supplementalGroups`.
    pub(crate) supplemental_groups: Vec<u32>,
    /// `supplementalGroupsPolicy: Strict`.
    pub(crate) strict_groups: bool,
    /// `sysctls`, names with dots.
    pub(crate) sysctls: Vec<(String, String)>,
}

/// Validates and converts the fields that only a pod has; [`container`] merges the others.
pub(crate) fn pod(spec: &PodSpec, path: &Path<'_>, report: &Report) -> PodSecurity {
    if spec.share_process_namespace == Some(true) && spec.host_pid == Some(true) {
        let detail = "ShareProcessNamespace and HostPID cannot both be enabled";
        report.invalid(&path.field("shareProcessNamespace"), true, detail);
    }
    let Some(context) = &spec.security_context else {
        return PodSecurity::default();
    };
    let path = path.field("securityContext");
    if context.windows_options.is_some() {
        let detail = "this node runs Linux";
        report.forbidden(&path.field("windowsOptions"), detail);
    }
    id(context.run_as_user, &path.field("runAsUser"), report);
    id(context.run_as_group, &path.field("runAsGroup"), report);
    let groups = path.field("supplementalGroups");
    let supplemental = context.supplemental_groups.iter().flatten().enumerate();
    let supplemental_groups = supplemental
        .filter_map(|(index, group)| id(Some(*group), &groups.index(index), report))
        .collect();
    let groups_policy = context.supplemental_groups_policy.as_deref();
    match groups_policy {
        None | Some("" | "Merge" | "Strict") => {}
        Some(other) => {
            let at = path.field("supplementalGroupsPolicy");
            report.unsupported(&at, other, &["Merge", "Strict"]);
        }
    }
    if let Some(profile) = &context.seccomp_profile {
        seccomp(profile, &path.field("seccompProfile"), report);
    }
    let sysctls = context.sysctls.as_deref().unwrap_or_default();
    PodSecurity {
        fs_group: id(context.fs_group, &path.field("fsGroup"), report),
        fs_group_on_mismatch: context.fs_group_change_policy.as_deref() == Some("OnRootMismatch"),
        supplemental_groups,
        strict_groups: groups_policy == Some("Strict"),
        sysctls: self::sysctls(sysctls, spec, &path.field("sysctls"), report),
    }
}

/// Validates a container's security context and merges the pod's into it.
pub(crate) fn container(
    own: Option<&SecurityContext>,
    pod: Option<&PodSecurityContext>,
    path: &Path<'_>,
    report: &Report,
) -> Security {
    let path = path.field("securityContext");
    let empty_own = SecurityContext::default();
    let empty_pod = PodSecurityContext::default();
    let (own, pod) = (own.unwrap_or(&empty_own), pod.unwrap_or(&empty_pod));
    if own.windows_options.is_some() {
        let detail = "this node runs Linux";
        report.forbidden(&path.field("windowsOptions"), detail);
    }
    id(own.run_as_user, &path.field("runAsUser"), report);
    id(own.run_as_group, &path.field("runAsGroup"), report);
    let quiet = |value: Option<i64>| value.and_then(|v| u32::try_from(v).ok());
    let privileged = own.privileged == Some(true);
    let run_as_user = quiet(own.run_as_user.or(pod.run_as_user));
    let run_as_non_root = own.run_as_non_root.or(pod.run_as_non_root) == Some(true);
    if run_as_non_root && run_as_user == Some(0) {
        let detail = "user 0 is root, which runAsNonRoot forbids";
        report.invalid(&path.field("runAsUser"), 0, detail);
    }
    let capabilities = own.capabilities.as_ref();
    let (cap_add, cap_drop) = capabilities_of(capabilities, &path.field("capabilities"), report);
    let admin = cap_add.iter().any(|c| c == "SYS_ADMIN");
    if own.allow_privilege_escalation == Some(false) {
        let at = path.field("allowPrivilegeEscalation");
        if privileged {
            let detail = "cannot set `allowPrivilegeEscalation` to false and `privileged` to true";
            report.invalid(&at, false, detail);
        }
        if admin {
            let detail = "cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` \
                          CAP_SYS_ADMIN";
            report.invalid(&at, false, detail);
        }
    }
    let own_seccomp = own.seccomp_profile.as_ref();
    let chosen = own_seccomp.map(|p| seccomp(p, &path.field("seccompProfile"), report));
    let profile = chosen.unwrap_or_else(|| {
        // The pod's own profile was checked already.
        let inherited = pod.seccomp_profile.as_ref();
        inherited.map_or(Seccomp::RuntimeDefault, |p| {
            seccomp(p, &path, &Report::default())
        })
    });
    Security {
        run_as_user,
        run_as_group: quiet(own.run_as_group.or(pod.run_as_group)),
        run_as_non_root,
        privileged,
        allow_privilege_escalation: own.allow_privilege_escalation != Some(false),
        read_only_root: own.read_only_root_filesystem == Some(true),
        cap_add,
        cap_drop,
        seccomp: if privileged {
            Seccomp::Unconfined
        } else {
            profile
        },
        app_armor: app_armor(own, pod, &path, report),
        unmasked_proc: proc_mount(own.proc_mount.as_deref(), &path, report),
    }
}

/// The container's profile, or else the pod's, which was checked already.
fn app_armor(
    own: &SecurityContext,
    pod: &PodSecurityContext,
    path: &Path<'_>,
    report: &Report,
) -> AppArmor {
    let path = path.field("appArmorProfile");
    match (&own.app_armor_profile, &pod.app_armor_profile) {
        (Some(profile), _) => confinement::app_armor(profile, &path, report),
        (None, Some(profile)) => confinement::app_armor(profile, &path, &Report::default()),
        (None, None) => AppArmor::Unconfined,
    }
}

/// Validates a user or group id.
fn id(value: Option<i64>, path: &Path<'_>, report: &Report) -> Option<u32> {
    let value = value?;
    match u32::try_from(value) {
        Ok(id) if id <= 0x7fff_ffff => Some(id),
        _ => {
            report.invalid(path, value, "must be between 0 and 2147483647, inclusive");
            None
        }
    }
}

fn proc_mount(word: Option<&str>, path: &Path<'_>, report: &Report) -> bool {
    match word {
        None | Some("" | "Default") => false,
        Some("Unmasked") => true,
        Some(other) => {
            report.unsupported(&path.field("procMount"), other, &["Default", "Unmasked"]);
            false
        }
    }
}

fn seccomp(profile: &SeccompProfile, path: &Path<'_>, report: &Report) -> Seccomp {
    let file = profile.localhost_profile.as_deref();
    let at = path.field("localhostProfile");
    if profile.type_ != "Localhost" && file.is_some() {
        let detail = "can only be set when seccomp type is Localhost";
        report.invalid(&at, file.unwrap_or_default(), detail);
    }
    match profile.type_.as_str() {
        "RuntimeDefault" => Seccomp::RuntimeDefault,
        "Unconfined" => Seccomp::Unconfined,
        "Localhost" => {
            let file = file.unwrap_or_default();
            if file.is_empty() {
                report.error(
                    &at,
                    "Required value: must be set when seccomp type is Localhost",
                );
            } else if file.starts_with('/') {
                report.invalid(&at, file, "must be a relative path");
            } else if file.split('/').any(|part| part == "..") {
                report.invalid(&at, file, "must not contain '..'");
            }
            Seccomp::Localhost(file.to_owned())
        }
        "" => {
            report.required(&path.field("type"));
            Seccomp::RuntimeDefault
        }
        other => {
            let words = ["Localhost", "RuntimeDefault", "Unconfined"];
            report.unsupported(&path.field("type"), other, &words);
            Seccomp::RuntimeDefault
        }
    }
}

/// Every capability of Linux 6.x.
const CAPABILITIES: [&str; 41] = [
    "AUDIT_CONTROL",
    "AUDIT_READ",
    "AUDIT_WRITE",
    "BLOCK_SUSPEND",
    "BPF",
    "CHECKPOINT_RESTORE",
    "CHOWN",
    "DAC_OVERRIDE",
    "DAC_READ_SEARCH",
    "FOWNER",
    "FSETID",
    "IPC_LOCK",
    "IPC_OWNER",
    "KILL",
    "LEASE",
    "LINUX_IMMUTABLE",
    "MAC_ADMIN",
    "MAC_OVERRIDE",
    "MKNOD",
    "NET_ADMIN",
    "NET_BIND_SERVICE",
    "NET_BROADCAST",
    "NET_RAW",
    "PERFMON",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYSLOG",
    "SYS_ADMIN",
    "SYS_BOOT",
    "SYS_CHROOT",
    "SYS_MODULE",
    "SYS_NICE",
    "SYS_PACCT",
    "SYS_PTRACE",
    "SYS_RAWIO",
    "SYS_RESOURCE",
    "SYS_TIME",
    "SYS_TTY_CONFIG",
    "WAKE_ALARM",
];

fn capabilities_of(
    capabilities: Option<&Capabilities>,
    path: &Path<'_>,
    report: &Report,
) -> (Vec<String>, Vec<String>) {
    let list = |field: &str, names: &Option<Vec<String>>| -> Vec<String> {
        let path = path.field(field);
        let names = names.iter().flatten().enumerate();
        names
            .filter_map(|(index, name)| capability(name, &path.index(index), report))
            .collect()
    };
    match capabilities {
        None => (Vec::new(), Vec::new()),
        Some(c) => (list("add", &c.add), list("drop", &c.drop)),
    }
}

fn capability(name: &str, path: &Path<'_>, report: &Report) -> Option<String> {
    let upper = name.to_ascii_uppercase();
    let bare = upper.strip_prefix("CAP_").unwrap_or(&upper);
    if bare == "ALL" || CAPABILITIES.contains(&bare) {
        return Some(bare.to_owned());
    }
    let message = format!("Invalid value: {name:?}: must be a Linux capability or ALL");
    match suggest::nearest(bare, &CAPABILITIES) {
        Some(near) => report.error_hint(path, message, format!("did you mean `{near}`?")),
        None => report.error(path, message),
    }
    None
}

fn sysctls(
    sysctls: &[Sysctl],
    spec: &PodSpec,
    path: &Path<'_>,
    report: &Report,
) -> Vec<(String, String)> {
    let mut result: Vec<(String, String)> = Vec::new();
    for (index, written) in sysctls.iter().enumerate() {
        let item = path.index(index);
        let at = item.field("name");
        let name = sysctl::dotted(&written.name);
        if name.is_empty() {
            report.required(&at);
        } else if let Some(problem) = names::sysctl(&name) {
            report.invalid(&at, &written.name, problem);
        } else if result.iter().any(|(other, _)| *other == name) {
            report.duplicate(&at, &written.name);
        } else {
            check_namespace(&name, spec, &at, report);
            if !sysctl::is_safe(&name) {
                let what =
                    "it is unsafe: let in only where the node's `allowedUnsafeSysctls` names it";
                report.warn(&at, what);
            }
        }
        if written.value.contains(['\0', '\n']) {
            let detail = "must not contain a line break or zero byte";
            report.invalid(&item.field("value"), &written.value, detail);
        }
        result.push((name, written.value.clone()));
    }
    result
}

/// Checks that a sysctl belongs to a namespace of the pod's own.
fn check_namespace(name: &str, spec: &PodSpec, path: &Path<'_>, report: &Report) {
    let ipc = name == "kernel.sem"
        || ["kernel.shm", "kernel.msg", "fs.mqueue."]
            .iter()
            .any(|prefix| name.starts_with(prefix));
    if name.starts_with("net.") {
        if spec.host_network == Some(true) {
            report.invalid(
                path,
                name,
                "may not be specified when 'hostNetwork' is true",
            );
        }
    } else if ipc {
        if spec.host_ipc == Some(true) {
            report.invalid(path, name, "may not be specified when 'hostIPC' is true");
        }
    } else {
        let detail = "is not namespaced, it would change the whole node; allowed are kernel.shm*, \
                      kernel.msg*, kernel.sem, fs.mqueue.* and net.*";
        report.invalid(path, name, detail);
    }
}
