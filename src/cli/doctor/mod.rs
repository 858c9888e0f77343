//! `coracle doctor`: checks whether this machine can run pods; each failed check has a hint.

mod network;
mod options;
mod shutdown;

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use nix::sys::statvfs::statvfs;
use serde::Serialize;

use super::args::DoctorArgs;
use super::client::{Client, SOON};
use super::directories::{self, Found};
use super::error::{CliError, Result};
use super::put;
use super::table::size;
use crate::images::registry::RegistriesConf;
use crate::images::trust::Policy;
use crate::sys::{landlock, overlay_check, user_namespace};

/// Minimum free space for images and logs, in bytes.
const MIN_FREE: u64 = 200 << 20;
const GOOD_FREE: u64 = 1 << 30;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Level {
    Ok,
    Warn,
    Fail,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Finding {
    level: Level,
    name: &'static str,
    detail: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<String>,
}

impl Finding {
    fn new(level: Level, name: &'static str, detail: impl Into<String>) -> Self {
        Self {
            level,
            name,
            detail: detail.into(),
            hint: None,
        }
    }

    fn hint(mut self, hint: impl Into<String>) -> Self {
        if self.level != Level::Ok {
            self.hint = Some(hint.into());
        }
        self
    }
}

fn level(fine: bool, otherwise: Level) -> Level {
    if fine { Level::Ok } else { otherwise }
}

pub(super) fn run(client: &Client, args: &DoctorArgs) -> Result<ExitCode> {
    let given = (
        args.root.clone(),
        args.run_dir.clone(),
        args.log_dir.clone(),
    );
    let found = directories::find(client, given);
    let layout = &found.layout;
    let mut findings = vec![root(), kernel(&read("/proc/sys/kernel/osrelease"))];
    findings.extend(cgroups());
    findings.extend([
        overlay(&layout.root),
        seccomp(),
        landlock(),
        namespaces(),
        users(&layout.root),
        open_by_handle(),
        free_space("space for state", &layout.root),
        free_space("space for logs", &layout.log_dir),
        inotify(),
        propagation(),
        swap(),
        clock(),
    ]);
    findings.extend(options::findings());
    findings.extend(network::findings(&found.effective.config.bridge));
    findings.push(shutdown::finding(client, &found));
    findings.push(settings(&found));
    findings.push(directories(&found));
    findings.push(registries(&found));
    findings.push(policy(&found));
    findings.push(leftovers(&layout.run_dir));
    let text = match args.output.output {
        Some(_) => {
            let json = serde_json::to_string_pretty(&findings);
            json.map_err(|e| CliError::new("could not print").because(e))? + "\n"
        }
        None => findings.iter().map(show).collect(),
    };
    put(text.as_bytes())?;
    let failed = findings.iter().any(|f| f.level == Level::Fail);
    Ok(ExitCode::from(u8::from(failed)))
}

fn show(finding: &Finding) -> String {
    let level = match finding.level {
        Level::Ok => "ok",
        Level::Warn => "warn",
        Level::Fail => "fail",
    };
    let mut line = format!("{level:<4}  {:<16}  {}\n", finding.name, finding.detail);
    if let Some(hint) = &finding.hint {
        line.push_str(&format!("      {:<16}  hint: {hint}\n", ""));
    }
    line
}

fn read(path: impl AsRef<Path>) -> String {
    fs::read_to_string(path)
        .map(|t| t.trim().to_owned())
        .unwrap_or_default()
}

fn root() -> Finding {
    let uid = nix::unistd::geteuid();
    Finding::new(
        level(uid.is_root(), Level::Fail),
        "user",
        format!("uid {uid}"),
    )
    .hint("containers need root: run coracle with sudo or as a system service")
}

fn kernel(release: &str) -> Finding {
    let mut numbers = release
        .split(|c: char| !c.is_ascii_digit())
        .map(|n| n.parse().unwrap_or(0));
    let version: (u32, u32) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    let fine = version >= (5, 12);
    let detail = match fine {
        true => release.to_owned(),
        false => format!("{release}: no container starts, mount_setattr(2) is missing"),
    };
    Finding::new(level(fine, Level::Fail), "kernel", detail)
        .hint("Linux 5.12 or newer is needed: install your distribution's newer kernel package")
}

fn cgroups() -> Vec<Finding> {
    let unified = read("/sys/fs/cgroup/cgroup.controllers");
    let is_v2 = Path::new("/sys/fs/cgroup/cgroup.controllers").exists();
    let v1: Vec<&str> = ["cpu", "memory", "pids", "cpuset"]
        .into_iter()
        .filter(|name| {
            Path::new("/sys/fs/cgroup")
                .join(name)
                .join("cgroup.procs")
                .exists()
        })
        .collect();
    let mode = match (is_v2, v1.is_empty()) {
        (true, _) => "v2",
        (false, false) if Path::new("/sys/fs/cgroup/unified").exists() => "v1 (hybrid)",
        (false, false) => "v1",
        (false, true) => "not mounted",
    };
    let there = |name: &str| unified.split(' ').any(|c| c == name) || v1.contains(&name);
    let missing: Vec<&str> = ["cpu", "memory"]
        .into_iter()
        .filter(|c| !there(c))
        .collect();
    let mounted = level(mode != "not mounted", Level::Fail);
    let mut found = vec![Finding::new(mounted, "cgroups", mode).hint(
        "mount them: `mount -t cgroup2 none /sys/fs/cgroup`; the kernel needs CONFIG_CGROUPS",
    )];
    let detail = match missing.is_empty() {
        true => "cpu memory".to_owned(),
        false => format!("missing: {}; no pod runs", missing.join(" ")),
    };
    let controllers = Finding::new(level(missing.is_empty(), Level::Fail), "controllers", detail)
        .hint("the kernel needs CONFIG_MEMCG, CONFIG_CGROUP_SCHED and CONFIG_FAIR_GROUP_SCHED; add `cgroup_enable=memory cgroup_memory=1` to the kernel command line and reboot (usual on Raspberry Pi), or enable the controllers in /sys/fs/cgroup/cgroup.subtree_control");
    found.push(controllers);
    for (name, option, why) in [
        (
            "pids",
            "CONFIG_CGROUP_PIDS",
            "the number of a pod's processes is not limited (`podPidsLimit`)",
        ),
        (
            "cpuset",
            "CONFIG_CPUSETS",
            "only pinning containers to cores needs it",
        ),
    ] {
        let fine = there(name);
        let detail = match fine {
            true => "there".to_owned(),
            false => format!("missing: {why}"),
        };
        found.push(
            Finding::new(level(fine, Level::Warn), name, detail).hint(format!(
                "the kernel needs {option}, and no `cgroup_disable={name}` on its command line"
            )),
        );
    }
    found
}

/// Returns the nearest directory that exists: the agent's directories will be on the same filesystem.
fn existing(path: &Path) -> PathBuf {
    let found = path.ancestors().find(|p| p.is_dir());
    found.unwrap_or(Path::new("/")).to_owned()
}

fn overlay(root: &Path) -> Finding {
    let base = existing(root);
    let Err(error) = overlay_check::try_mount(&base) else {
        return Finding::new(
            Level::Ok,
            "overlayfs",
            format!("works on {}", base.display()),
        );
    };
    let hint = match error.kind() {
        ErrorKind::ReadOnlyFilesystem => {
            "no pod can start: mount the disk writable; one with errors becomes read-only (`dmesg` names them), as worn out flash does"
        }
        ErrorKind::StorageFull => "no pod can start: `coracle system df` shows what fills the disk",
        _ => {
            "run `modprobe overlay` as root, or use a kernel with CONFIG_OVERLAY_FS; if the state directory itself lies on an overlay, \
             put --root on another filesystem (`coracle help appliances`)"
        }
    };
    let detail = format!("does not work on {}: {error}", base.display());
    Finding::new(Level::Fail, "overlayfs", detail).hint(hint)
}

fn seccomp() -> Finding {
    let actions = read("/proc/sys/kernel/seccomp/actions_avail");
    let fine = ["errno", "allow"]
        .iter()
        .all(|a| actions.split(' ').any(|b| b == *a));
    let detail = if fine {
        "filters available"
    } else {
        "no seccomp filters"
    };
    Finding::new(level(fine, Level::Fail), "seccomp", detail)
        .hint("the kernel needs CONFIG_SECCOMP_FILTER; without it only pods with `seccompProfile: {type: Unconfined}` run")
}

fn landlock() -> Finding {
    let version = landlock::version();
    let detail = match version {
        0 => "missing".to_owned(),
        1 => "version 1, too old".to_owned(),
        version => format!("version {version}"),
    };
    Finding::new(level(version >= 2, Level::Warn), "landlock", detail).hint(
        "the processes that pull and unpack images could then open what root can; CONFIG_SECURITY_LANDLOCK of Linux 5.19 or newer with \
         `landlock` in `/sys/kernel/security/lsm` confines them",
    )
}

fn namespaces() -> Finding {
    let missing: Vec<&str> = ["pid", "net", "ipc", "uts", "mnt"]
        .into_iter()
        .filter(|ns| !Path::new("/proc/self/ns").join(ns).exists())
        .collect();
    match missing.is_empty() {
        true => Finding::new(Level::Ok, "namespaces", "pid net ipc uts mnt"),
        false => Finding::new(
            Level::Fail,
            "namespaces",
            format!("missing: {}", missing.join(" ")),
        )
        .hint("the kernel needs CONFIG_PID_NS, CONFIG_NET_NS, CONFIG_IPC_NS and CONFIG_UTS_NS"),
    }
}

/// Tries what a pod with users of its own needs of the state directory.
fn users(root: &Path) -> Finding {
    let scratch = existing(root).join(format!(".coracle-doctor-users-{}", std::process::id()));
    let problem = match user_namespace::try_mounts(&scratch) {
        Ok(trial) => trial.problem(),
        Err(error) => Some(error.to_string()),
    };
    let detail = problem
        .clone()
        .unwrap_or_else(|| "id-mapped mounts work".to_owned());
    Finding::new(
        level(problem.is_none(), Level::Warn),
        "user namespaces",
        detail,
    )
    .hint("only pods with `hostUsers: false` need them: CONFIG_USER_NS, `user.max_user_namespaces` above 0, and id-mapped mounts (Linux 5.12; a tmpfs from 6.3 on)")
}

fn open_by_handle() -> Finding {
    use nix::fcntl::{AT_FDCWD, OFlag, OpenHow, ResolveFlag, openat2};
    let how = OpenHow::new()
        .flags(OFlag::O_PATH | OFlag::O_CLOEXEC)
        .resolve(ResolveFlag::RESOLVE_NO_SYMLINKS);
    match openat2(AT_FDCWD, "/", how) {
        Ok(_) => Finding::new(Level::Ok, "openat2", "available"),
        Err(error) => Finding::new(Level::Fail, "openat2", error.to_string())
            .hint("it came with Linux 5.6; an outer container's seccomp profile may forbid it"),
    }
}

#[allow(
    clippy::useless_conversion,
    reason = "the types of statvfs are narrower on 32-bit machines"
)]
fn free_space(name: &'static str, path: &Path) -> Finding {
    let base = existing(path);
    match statvfs(&base) {
        Ok(stat) => {
            let free =
                u64::from(stat.blocks_available()).saturating_mul(u64::from(stat.fragment_size()));
            let level = match free {
                GOOD_FREE.. => Level::Ok,
                MIN_FREE.. => Level::Warn,
                _ => Level::Fail,
            };
            Finding::new(level, name, format!("{} free on {}", size(free), base.display()))
                .hint("free some, e.g. with `coracle image prune -a`, or point --root and --log-dir elsewhere")
        }
        Err(error) => Finding::new(Level::Fail, name, format!("{}: {error}", base.display()))
            .hint("check that the path exists and is mounted"),
    }
}

fn inotify() -> Finding {
    let limit = |name: &str| {
        read(Path::new("/proc/sys/fs/inotify").join(name))
            .parse::<u64>()
            .unwrap_or(0)
    };
    let (instances, watches) = (limit("max_user_instances"), limit("max_user_watches"));
    let fine = instances >= 128 && watches >= 8192;
    Finding::new(
        level(fine, Level::Warn),
        "inotify",
        format!("{instances} instances, {watches} watches"),
    )
    .hint(
        "raise them: `sysctl fs.inotify.max_user_instances=512 fs.inotify.max_user_watches=65536`",
    )
}

/// Whether mounts and unmounts on the node reach running pods: only those below a shared mount do.
fn propagation() -> Finding {
    let table = read("/proc/self/mountinfo");
    let mut lines = table
        .lines()
        .map(|line| line.split(' ').collect::<Vec<_>>());
    let root = lines.rfind(|words| words.get(4) == Some(&"/"));
    let tags = root
        .iter()
        .flatten()
        .skip(6)
        .take_while(|word| **word != "-");
    let shared = tags.clone().any(|tag| tag.starts_with("shared:"));
    let detail = match shared {
        true => "the root is shared",
        false => "the root is private: running pods keep unmounted file systems in use",
    };
    Finding::new(level(shared, Level::Warn), "mounts", detail)
        .hint("share it at each boot: `mount --make-rshared /`")
}

fn swap() -> Finding {
    let lines = read("/proc/swaps").lines().count().saturating_sub(1);
    let detail = match lines {
        0 => "none".to_owned(),
        n => format!("{n} device(s); pods use it only with `memorySwap.swapBehavior` set"),
    };
    Finding::new(Level::Ok, "swap", detail)
}

fn clock() -> Finding {
    let synced = Path::new("/run/systemd/timesync/synchronized").exists()
        || crate::sys::clock_sync::is_synchronized();
    let detail = if synced {
        "synchronised"
    } else {
        "not synchronised"
    };
    Finding::new(level(synced, Level::Warn), "time", detail)
        .hint("times in logs and status may be wrong: enable systemd-timesyncd or chrony (pods do not depend on it)")
}

/// What is wrong with the time, and what to do.
pub(super) fn time_problem() -> Option<(String, String)> {
    let finding = clock();
    let hint = finding.hint?;
    Some((finding.detail, hint))
}

fn directories(found: &Found) -> Finding {
    let layout = &found.layout;
    let places = [&layout.root, &layout.run_dir, &layout.log_dir];
    let places = places.map(|path| path.display().to_string()).join(" ");
    match &found.doubt {
        None => Finding::new(
            Level::Ok,
            "directories",
            format!("{places} (by {})", found.source),
        ),
        Some(doubt) => Finding::new(
            Level::Warn,
            "directories",
            format!("{places}, by default: {doubt}"),
        )
        .hint("`coracle config check` lists all errors in the settings"),
    }
}

/// The files of the agent's settings.
fn settings(found: &Found) -> Finding {
    match &found.refused {
        None => Finding::new(Level::Ok, "settings", "valid"),
        // The first of several has a line of its own below their number.
        Some(why) => {
            let lines: Vec<&str> = why.lines().take(2).map(str::trim).collect();
            Finding::new(Level::Warn, "settings", lines.join(" "))
                .hint("the last valid ones stay in force; `coracle config check` lists all errors")
        }
    }
}

/// The files that say where images are pulled from.
fn registries(found: &Found) -> Finding {
    let files = &found.effective.config.registries.conf;
    match RegistriesConf::read(files) {
        Ok(_) => {
            let there = files.iter().filter(|file| file.exists()).count();
            let detail = format!("{there} of {} files of registries.conf, valid", files.len());
            Finding::new(Level::Ok, "registries", detail)
        }
        Err(why) => Finding::new(Level::Warn, "registries", crate::chain(&why))
            .hint("no image is pulled until this is mended; `coracle help images` says what the files may have"),
    }
}

/// The file that says which images may run.
fn policy(found: &Found) -> Finding {
    let file = &found.effective.config.registries.policy;
    match Policy::read(file) {
        Ok(policy) if policy.is_there() => {
            let detail = format!("`{}`, valid", file.display());
            Finding::new(Level::Ok, "image policy", detail)
        }
        Ok(_) => {
            let detail = format!("there is no `{}`: any image may run", file.display());
            Finding::new(Level::Ok, "image policy", detail)
        }
        Err(why) => Finding::new(Level::Fail, "image policy", crate::chain(&why))
            .hint("no container starts until this is mended; `coracle help images` says what the file may have"),
    }
}

fn leftovers(run_dir: &Path) -> Finding {
    let socket = run_dir.join("coracle.sock");
    let client = Client { socket };
    let live = client.reachable();
    if live && client.get_within("/version", SOON).is_err() {
        return Finding::new(Level::Fail, "agent", "running, and does not answer")
            .hint("restart it (`systemctl restart coracle`); pods keep running");
    }
    let pods = fs::read_dir(run_dir.join("pods")).map_or(0, Iterator::count);
    match (live, pods) {
        (true, n) => Finding::new(Level::Ok, "agent", format!("running, {n} pod(s)")),
        (false, 0) => Finding::new(Level::Ok, "agent", "not running, nothing left behind"),
        (false, n) => Finding::new(
            Level::Warn,
            "agent",
            format!("not running, {n} pod(s) in {}", run_dir.display()),
        )
        .hint("`coracle run` takes them over"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_without_mount_setattr_fails() {
        for (release, expected) in [
            ("5.10.0-28-amd64", Level::Fail),
            ("5.11.22", Level::Fail),
            ("5.12.0", Level::Ok),
            ("6.1.0-rpi7", Level::Ok),
            ("", Level::Fail),
        ] {
            assert_eq!(kernel(release).level, expected, "{release}");
        }
    }
}
