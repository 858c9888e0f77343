//! A container's capabilities: Kubernetes' default set, plus and minus what the manifest says, and never more than
//! the agent has.

use std::collections::BTreeSet;

use crate::spec::Security;
use crate::sys::file;
use crate::types::Gather;

/// The default set of container engines.
const DEFAULT: [&str; 14] = [
    "CHOWN",
    "DAC_OVERRIDE",
    "FSETID",
    "FOWNER",
    "MKNOD",
    "NET_RAW",
    "SETGID",
    "SETUID",
    "SETFCAP",
    "SETPCAP",
    "NET_BIND_SERVICE",
    "SYS_CHROOT",
    "KILL",
    "AUDIT_WRITE",
];

/// Every capability, in the kernel's order (capabilities(7)).
const ALL: [&str; 41] = [
    "CHOWN",
    "DAC_OVERRIDE",
    "DAC_READ_SEARCH",
    "FOWNER",
    "FSETID",
    "KILL",
    "SETGID",
    "SETUID",
    "SETPCAP",
    "LINUX_IMMUTABLE",
    "NET_BIND_SERVICE",
    "NET_BROADCAST",
    "NET_ADMIN",
    "NET_RAW",
    "IPC_LOCK",
    "IPC_OWNER",
    "SYS_MODULE",
    "SYS_RAWIO",
    "SYS_CHROOT",
    "SYS_PTRACE",
    "SYS_PACCT",
    "SYS_ADMIN",
    "SYS_BOOT",
    "SYS_NICE",
    "SYS_RESOURCE",
    "SYS_TIME",
    "SYS_TTY_CONFIG",
    "MKNOD",
    "LEASE",
    "AUDIT_WRITE",
    "AUDIT_CONTROL",
    "SETFCAP",
    "MAC_OVERRIDE",
    "MAC_ADMIN",
    "SYSLOG",
    "WAKE_ALARM",
    "BLOCK_SUSPEND",
    "AUDIT_READ",
    "PERFMON",
    "BPF",
    "CHECKPOINT_RESTORE",
];

/// The container's set, with the `CAP_` prefix. `device_rules`: whether the cgroup restricts the container's device
/// access; without that, making device nodes would open every device, so MKNOD must be requested.
pub(super) fn effective(security: &Security, device_rules: bool) -> BTreeSet<String> {
    let all = |list: &[String]| list.iter().any(|name| name == "ALL");
    let mut names: BTreeSet<&str> = match () {
        () if security.privileged => ALL.into(),
        () if all(&security.cap_add) => ALL.into(),
        () if all(&security.cap_drop) => BTreeSet::new(),
        () => DEFAULT
            .into_iter()
            .filter(|name| device_rules || *name != "MKNOD")
            .gather(),
    };
    if !security.privileged {
        for name in &security.cap_drop {
            names.remove(name.as_str());
        }
        names.extend(
            security
                .cap_add
                .iter()
                .map(String::as_str)
                .filter(|name| *name != "ALL"),
        );
    }
    let own = own_mask();
    names
        .into_iter()
        .filter(|name| bit(name).is_none_or(|bit| own >> bit & 1 == 1))
        .map(|n| format!("CAP_{n}"))
        .gather()
}

fn bit(name: &str) -> Option<usize> {
    ALL.iter().position(|known| *known == name)
}

/// The agent's bounding set: the most it can pass on.
fn own_mask() -> u64 {
    let status = file::read_text("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("CapBnd:"));
    line.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok())
        .unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::{AppArmor, Seccomp};

    fn security(add: &[&str], drop: &[&str]) -> Security {
        let owned = |list: &[&str]| list.iter().map(|name| (*name).to_owned()).collect();
        Security {
            run_as_user: None,
            run_as_group: None,
            run_as_non_root: false,
            privileged: false,
            allow_privilege_escalation: true,
            read_only_root: false,
            cap_add: owned(add),
            cap_drop: owned(drop),
            seccomp: Seccomp::RuntimeDefault,
            app_armor: AppArmor::Unconfined,
            unmasked_proc: false,
        }
    }

    #[test]
    fn add_and_drop_change_the_default_set() {
        assert_eq!(effective(&security(&[], &[]), true).len(), DEFAULT.len());
        assert!(effective(&security(&[], &["ALL"]), true).is_empty());
        let only = effective(&security(&["NET_BIND_SERVICE"], &["ALL"]), true);
        assert_eq!(
            only.into_iter().collect::<Vec<_>>(),
            ["CAP_NET_BIND_SERVICE"]
        );
        assert!(!effective(&security(&["ALL"], &["NET_RAW"]), true).contains("CAP_NET_RAW"));
        assert!(!effective(&security(&[], &[]), false).contains("CAP_MKNOD"));
        assert!(effective(&security(&["MKNOD"], &[]), false).contains("CAP_MKNOD"));
    }
}
