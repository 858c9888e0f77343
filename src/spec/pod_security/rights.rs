//! What containers may do: privileges, capabilities, the kernel's files and settings.

use super::Violation;
use super::visit::{View, containers, quoted, violation};

pub(super) fn privileged(pod: &View<'_>) -> Option<Violation> {
    let names = pod.named(|each| each.context.is_some_and(|c| c.privileged == Some(true)));
    violation("privileged", !names.is_empty(), || {
        let names = containers(&names);
        format!("{names} must not set securityContext.privileged=true")
    })
}

/// Capabilities that may be added.
const CAPABILITIES: [&str; 13] = [
    "AUDIT_WRITE",
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "MKNOD",
    "NET_BIND_SERVICE",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYS_CHROOT",
];

pub(super) fn capabilities_baseline(pod: &View<'_>) -> Option<Violation> {
    let detail = added(pod, &CAPABILITIES);
    let found = !detail.is_empty();
    violation("non-default capabilities", found, || detail)
}

pub(super) fn capabilities_restricted(pod: &View<'_>) -> Option<Violation> {
    if pod.is_windows() {
        return None;
    }
    let names = pod.named(|each| {
        let capabilities = each.context.and_then(|c| c.capabilities.as_ref());
        let mut dropped = capabilities
            .into_iter()
            .flat_map(|c| c.drop.iter().flatten());
        !dropped.any(|name| name == "ALL")
    });
    let missing = (!names.is_empty()).then(|| {
        let names = containers(&names);
        format!("{names} must set securityContext.capabilities.drop=[\"ALL\"]")
    });
    let added = added(pod, &["NET_BIND_SERVICE"]);
    let added = (!added.is_empty()).then_some(added);
    let details: Vec<String> = missing.into_iter().chain(added).collect();
    let found = !details.is_empty();
    violation("unrestricted capabilities", found, || details.join("; "))
}

/// Names the containers that add other capabilities; empty if there are none.
fn added(pod: &View<'_>, allowed: &[&str]) -> String {
    let (names, capabilities) = pod.offenders(|each| {
        let capabilities = each.context.and_then(|c| c.capabilities.as_ref());
        let added = capabilities
            .into_iter()
            .flat_map(|c| c.add.iter().flatten());
        added
            .filter(|name| !allowed.contains(&name.as_str()))
            .cloned()
            .collect()
    });
    if names.is_empty() {
        return String::new();
    }
    let (names, capabilities) = (containers(&names), quoted(&capabilities));
    format!("{names} must not include {capabilities} in securityContext.capabilities.add")
}

pub(super) fn escalation(pod: &View<'_>) -> Option<Violation> {
    if pod.is_windows() {
        return None;
    }
    let names = pod.named(|each| {
        let allowed = each.context.and_then(|c| c.allow_privilege_escalation);
        allowed != Some(false)
    });
    violation(
        "allowPrivilegeEscalation != false",
        !names.is_empty(),
        || {
            let names = containers(&names);
            format!("{names} must set securityContext.allowPrivilegeEscalation=false")
        },
    )
}

pub(super) fn proc_mount(pod: &View<'_>) -> Option<Violation> {
    if pod.has_own_users() {
        return None;
    }
    let (names, kinds) = pod.offenders(|each| {
        let kind = each.context.and_then(|c| c.proc_mount.clone());
        kind.into_iter().filter(|kind| kind != "Default").collect()
    });
    violation("procMount", !names.is_empty(), || {
        let (names, kinds) = (containers(&names), quoted(&kinds));
        format!("{names} must not set securityContext.procMount to {kinds}")
    })
}

/// Sysctls that may be set.
const SYSCTLS: [&str; 10] = [
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.ping_group_range",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_syncookies",
];

pub(super) fn sysctls(pod: &View<'_>) -> Option<Violation> {
    let set = pod.context.and_then(|c| c.sysctls.as_deref());
    let names = set
        .unwrap_or_default()
        .iter()
        .map(|sysctl| sysctl.name.as_str());
    let names: Vec<&str> = names.filter(|name| !SYSCTLS.contains(name)).collect();
    violation("forbidden sysctls", !names.is_empty(), || names.join(", "))
}
