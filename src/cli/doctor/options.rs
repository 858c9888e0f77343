//! What a small kernel may lack, each with the option that brings it and what is missing without it.

use std::path::Path;

use super::{Finding, Level, level, read};
use crate::sys::file_system::names;
use crate::sys::root_mount;

/// An option with the file systems that show that it is there, how bad it is without it, and what is missing then.
const OPTIONS: &[(&str, &str, &[&str], Level, &str)] = &[
    (
        "memory files",
        "CONFIG_TMPFS",
        &["tmpfs"],
        Level::Fail,
        "no pod runs",
    ),
    (
        "message queues",
        "CONFIG_POSIX_MQUEUE",
        &["mqueue"],
        Level::Warn,
        "containers have no /dev/mqueue",
    ),
    (
        "terminals",
        "CONFIG_UNIX98_PTYS",
        &["devpts"],
        Level::Fail,
        "no container starts: each has a /dev/pts",
    ),
];

/// The same for files.
const FILES: &[(&str, &str, &str, Level, &str)] = &[
    (
        "pressure",
        "CONFIG_PSI",
        "/proc/pressure/memory",
        Level::Warn,
        "the metrics lack pressure; the kernel may need `psi=1`",
    ),
    (
        "cpu limits",
        "CONFIG_CFS_BANDWIDTH",
        "/proc/sys/kernel/sched_cfs_bandwidth_slice_us",
        Level::Warn,
        "pods with cpu limits do not start",
    ),
    (
        "device rules",
        "CONFIG_CGROUP_BPF",
        "/proc/sys/kernel/unprivileged_bpf_disabled",
        Level::Warn,
        "containers with CAP_MKNOD can open all devices (with CONFIG_BPF_SYSCALL)",
    ),
];

pub(super) fn findings() -> Vec<Finding> {
    let mut found = of_file_systems(&read("/proc/filesystems"));
    let files = FILES.iter();
    found.extend(files.map(|(name, option, path, without, why)| {
        one(name, option, Path::new(path).exists(), (*without, why))
    }));
    found.push(root());
    found
}

fn of_file_systems(known: &str) -> Vec<Finding> {
    let options = OPTIONS.iter();
    options
        .map(|(name, option, kinds, without, why)| {
            let there = kinds.iter().all(|kind| names(known, kind));
            one(name, option, there, (*without, why))
        })
        .collect()
}

fn one(name: &'static str, option: &str, there: bool, without: (Level, &str)) -> Finding {
    let (otherwise, why) = without;
    let detail = match there {
        true => option.to_owned(),
        false => format!("missing: {why}"),
    };
    Finding::new(level(there, otherwise), name, detail)
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
        let without = (Level::Warn, "no figures");
        let found = one("pressure", "CONFIG_PSI", false, without);
        assert_eq!(found.level, Level::Warn);
        assert_eq!(found.detail, "missing: no figures");
        assert_eq!(
            found.hint.as_deref(),
            Some("use a kernel built with CONFIG_PSI")
        );
        assert_eq!(one("pressure", "CONFIG_PSI", true, without).hint, None);
    }

    #[test]
    fn what_no_pod_runs_without_fails() {
        let found = of_file_systems("nodev\tproc\n");
        let levels: Vec<Level> = found.iter().map(|finding| finding.level).collect();
        assert_eq!(levels, [Level::Fail, Level::Warn, Level::Fail]);
    }
}
