//! What a small kernel may lack, each with the option that brings it and what is missing without it.

use std::path::Path;

use super::{Finding, Level, level, read};
use crate::sys::file_system::names;
use crate::sys::root_mount;

/// What shows that an option is there, and what is missing without it.
const OPTIONS: &[(&str, &str, &[&str], &str)] = &[
    ("memory files", "CONFIG_TMPFS", &["tmpfs"], "no pod runs"),
    (
        "message queues",
        "CONFIG_POSIX_MQUEUE",
        &["mqueue"],
        "containers have no /dev/mqueue",
    ),
    (
        "terminals",
        "CONFIG_UNIX98_PTYS",
        &["devpts"],
        "no container starts: each has a /dev/pts",
    ),
];

/// The same for files.
const FILES: &[(&str, &str, &str, &str)] = &[
    (
        "pressure",
        "CONFIG_PSI",
        "/proc/pressure/memory",
        "the metrics lack pressure; the kernel may need `psi=1`",
    ),
    (
        "cpu limits",
        "CONFIG_CFS_BANDWIDTH",
        "/proc/sys/kernel/sched_cfs_bandwidth_slice_us",
        "pods with cpu limits do not start",
    ),
    (
        "device rules",
        "CONFIG_CGROUP_BPF",
        "/proc/sys/kernel/unprivileged_bpf_disabled",
        "containers with CAP_MKNOD can open all devices (with CONFIG_BPF_SYSCALL)",
    ),
];

pub(super) fn findings() -> Vec<Finding> {
    let known = read("/proc/filesystems");
    let mut found: Vec<Finding> = OPTIONS
        .iter()
        .map(|(name, option, kinds, why)| {
            one(
                name,
                option,
                kinds.iter().all(|kind| names(&known, kind)),
                why,
            )
        })
        .collect();
    let files = FILES.iter();
    found.extend(
        files.map(|(name, option, path, why)| one(name, option, Path::new(path).exists(), why)),
    );
    found.push(root());
    found
}

fn one(name: &'static str, option: &str, there: bool, why: &str) -> Finding {
    let detail = match there {
        true => option.to_owned(),
        false => format!("missing: {why}"),
    };
    Finding::new(level(there, Level::Warn), name, detail)
        .hint(format!("use a kernel built with {option}"))
}

/// The root file system. On an initramfs everything is in memory.
fn root() -> Finding {
    let detail = match root_mount::is_initramfs() {
        Ok(true) => "the initramfs; what is written to it takes memory and ends with the boot",
        _ => "a mount like any other",
    };
    Finding::new(Level::Ok, "root", detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_named_with_its_option_and_what_for() {
        let found = one("pressure", "CONFIG_PSI", false, "no figures");
        assert_eq!(found.level, Level::Warn);
        assert_eq!(found.detail, "missing: no figures");
        assert_eq!(
            found.hint.as_deref(),
            Some("use a kernel built with CONFIG_PSI")
        );
        assert_eq!(one("pressure", "CONFIG_PSI", true, "no figures").hint, None);
    }
}
