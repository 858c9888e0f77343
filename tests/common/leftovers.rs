//! What an agent leaves on the machine: how it is found, and how it is removed.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::{Agent, BRIDGE, VETH_PREFIX};

impl Agent {
    /// Kills everything in the agent's cgroups and removes them.
    pub(super) fn kill_pods(&self) {
        let folders = cgroup_folders(&self.cgroup);
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            let processes: Vec<i32> = folders
                .iter()
                .filter_map(|folder| fs::read_to_string(folder.join("cgroup.procs")).ok())
                .flat_map(|text| {
                    text.lines()
                        .filter_map(|line| line.parse().ok())
                        .collect::<Vec<i32>>()
                })
                .collect();
            for pid in &processes {
                let _ = nix::sys::signal::kill(
                    nix::unistd::Pid::from_raw(*pid),
                    nix::sys::signal::Signal::SIGKILL,
                );
            }
            if processes.is_empty() || Instant::now() > deadline {
                break;
            }
            std::thread::sleep(Duration::from_millis(2)); // v1 has no event for an empty cgroup.
        }
        for folder in folders.iter().rev() {
            let _ = fs::remove_dir(folder);
        }
    }

    /// Unmounts whatever is mounted below the agent's directories.
    pub(super) fn unmount(&self) {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let mut targets: Vec<&str> = mounts
            .lines()
            .filter_map(|line| line.split(' ').nth(4))
            .filter(|target| Path::new(target).starts_with(&self.root))
            .collect();
        targets.sort_unstable();
        for target in targets.into_iter().rev() {
            let _ = nix::mount::umount2(target, nix::mount::MntFlags::MNT_DETACH);
        }
    }

    /// The folders of all the agent's cgroups.
    pub fn cgroup_folders(&self) -> Vec<PathBuf> {
        cgroup_folders(&self.cgroup)
    }

    /// Everything left of this agent's pods: mounts, cgroup folders, processes in them, interfaces, pins
    /// of namespaces, addresses in packet rules.
    pub fn leftovers(&self) -> Vec<String> {
        let mut left = self.network_leftovers();
        let mounts = fs::read_to_string("/proc/self/mountinfo").expect("proc");
        for part in ["run/pods/", "run/netns/"] {
            let below = format!("{}/{part}", self.root.display());
            let found = mounts.lines().filter(|line| line.contains(&below));
            left.extend(found.map(str::to_owned));
        }
        for folder in cgroup_folders(&self.cgroup) {
            if folder
                .file_name()
                .is_some_and(|name| name.to_string_lossy().starts_with("pod") && name != "pods")
            {
                left.push(folder.display().to_string());
            }
        }
        for part in ["run/pods", "run/netns", "root/pods", "logs"] {
            let entries = fs::read_dir(self.root.join(part))
                .into_iter()
                .flatten()
                .flatten();
            left.extend(entries.map(|entry| entry.path().display().to_string()));
        }
        left
    }

    /// Pods' interfaces, and rules that name an interface of a pod.
    fn network_leftovers(&self) -> Vec<String> {
        let mut left = self.netns.links();
        left.retain(|link| link.starts_with(VETH_PREFIX));
        if self.netns.links().iter().any(|link| link == BRIDGE) {
            let rules = self.netns.ok("nft", &["list", "ruleset"]);
            let named = |line: &&str| {
                line.split(['"', ' ', ',']).any(|word| {
                    word.strip_prefix(VETH_PREFIX).is_some_and(|rest| {
                        rest.len() > 4 && rest.chars().all(|c| c.is_ascii_hexdigit())
                    })
                })
            };
            left.extend(
                rules
                    .lines()
                    .filter(named)
                    .map(|line| line.trim().to_owned()),
            );
        }
        left
    }
}

/// The folders of a cgroup subtree in every hierarchy, parents first.
fn cgroup_folders(path: &str) -> Vec<PathBuf> {
    let mut bases = vec![PathBuf::from("/sys/fs/cgroup")];
    let entries = fs::read_dir("/sys/fs/cgroup")
        .into_iter()
        .flatten()
        .flatten();
    bases.extend(
        entries
            .map(|entry| entry.path())
            .filter(|path| path.is_dir()),
    );
    let mut folders = Vec::new();
    for base in bases {
        let top = base.join(path.trim_start_matches('/'));
        if top.is_dir() {
            collect(&top, &mut folders);
        }
    }
    folders
}

fn collect(folder: &Path, into: &mut Vec<PathBuf>) {
    into.push(folder.to_owned());
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            collect(&entry.path(), into);
        }
    }
}
