//! `coracle end-pods`: ends all pods without an agent. systemd runs it to stop `coracle-pods.service` when the node
//! goes down. It sends SIGTERM to all processes, then SIGKILL to those left after a grace period. Then it removes
//! mounts and cgroups, unless an agent runs that needs them.

use std::os::fd::{AsFd, OwnedFd};
use std::process::ExitCode;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::args::EndPodsArgs;
use super::client::Client;
use super::directories;
use super::error::{CliError, Result};
use crate::sys::cgroup::{self, Hierarchy};
use crate::sys::clock;
use crate::sys::{file, mount, process};
use crate::types::InOrder;

/// How long to wait for a killed process to be gone.
const KILL_PATIENCE: Duration = Duration::from_secs(5);

pub(super) fn run(client: &Client, args: &EndPodsArgs) -> Result<ExitCode> {
    let hierarchies = cgroup::hierarchies()
        .map_err(|e| CliError::new("could not find the cgroup hierarchies").because(e))?;
    let root = format!("/{}", args.cgroup_parent.trim_matches('/'));
    let group = format!("{}/pods", root.trim_end_matches('/'));
    let processes = living(&hierarchies, &group);
    for (pid, _) in &processes {
        // A process that has just ended is fine.
        let _ = process::kill(*pid, libc::SIGTERM);
    }
    wait(processes, Duration::from_secs(u64::from(args.grace)));
    // Includes processes started meanwhile.
    let left = living(&hierarchies, &group);
    if !left.is_empty() {
        cgroup::kill(&hierarchies, &group);
        let some = wait(left, KILL_PATIENCE);
        if some > 0 {
            return Err(CliError::new(format!("{some} processes survive SIGKILL")));
        }
    }
    clear(client, args, &hierarchies, &root)?;
    Ok(ExitCode::SUCCESS)
}

/// Removes mounts and cgroups once no process lives.
fn clear(client: &Client, args: &EndPodsArgs, all: &[Hierarchy], root: &str) -> Result<()> {
    let layout = directories::find(client, (None, args.run_dir.clone(), None)).layout;
    let lock = layout.lock_file();
    // Without the directory there was no agent.
    let held = match lock.exists() {
        true => file::try_lock(&lock),
        false => Ok(None),
    };
    let held =
        held.map_err(|e| CliError::new(format!("could not lock `{}`", lock.display())).because(e))?;
    if lock.exists() && held.is_none() {
        return Ok(());
    }
    cgroup::dismantle(all, root);
    for folder in layout.mount_points() {
        mount::unmount_below(&folder).map_err(|e| {
            CliError::new(format!("could not unmount `{}`", folder.display())).because(e)
        })?;
    }
    Ok(())
}

/// Lists the processes of a cgroup and those below it, with pidfds so that a reused PID is never signalled.
fn living(hierarchies: &[Hierarchy], group: &str) -> Vec<(i32, OwnedFd)> {
    let mut pids: Vec<i32> = hierarchies
        .iter()
        .flat_map(|hierarchy| cgroup::processes(&hierarchy.folder(group)))
        .collect();
    pids.order();
    pids.dedup();
    pids.into_iter()
        .filter_map(|pid| Some((pid, process::open(pid).ok()?)))
        .collect()
}

/// Waits until processes have ended, for at most `patience`; returns how many have not.
fn wait(mut processes: Vec<(i32, OwnedFd)>, patience: Duration) -> usize {
    let end = clock::now() + patience;
    while !processes.is_empty() {
        let left = end.saturating_duration_since(clock::now());
        if left.is_zero() {
            break;
        }
        let mut ended: Vec<PollFd<'_>> = processes
            .iter()
            .map(|(_, process)| PollFd::new(process.as_fd(), PollFlags::POLLIN))
            .collect();
        let patience = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
        if poll(&mut ended, patience).is_err() {
            continue;
        }
        let mut ended: Vec<bool> = ended.iter().map(|fd| fd.any() == Some(true)).collect();
        processes.retain(|_| !ended.remove(0));
    }
    processes.len()
}
