//! The removal of an agent's directories. Settings may name some that other programs use, too (`/data`): in those only
//! what an agent makes is removed, and only where the mark of an agent is. Symlinks below them are removed, not
//! followed; what is mounted below them is unmounted, not emptied.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::super::error::{CliError, Result};
use super::super::put;
use crate::layout::{FORMAT_FILE, Layout};
use crate::sys::{file, mount, tree};
use crate::types::InOrder;

/// What an agent makes in the root directory, besides [`UPGRADE`], [`GROUPS`] and its mark.
const STATE: [&str; 25] = [
    "black-box",
    "boot.json",
    "bundle-poll.json",
    "cordon.json",
    "graceful_node_shutdown_state",
    "images/.new",
    "images/blobs",
    "images/directories",
    "images/layers",
    "images/lock",
    "images/preload.json",
    "images/pulls",
    "images/records",
    "images/refs",
    "images/tmp",
    "images/unpacked",
    "incarnations.json",
    "jobs.json",
    "revisions.json",
    "settings.json",
    "static-pod-url/manifests.yaml",
    "static-pod-url/source.json",
    "stopped.json",
    "trial",
    "unhealthy-boots.json",
];

/// What upgrades make there.
const UPGRADE: [&str; 7] = [
    "upgrade/begun.json",
    "upgrade/go-back",
    "upgrade/kept",
    "upgrade/last.json",
    "upgrade/lock",
    "upgrade/progress",
    "upgrade/trial.json",
];

/// The folders there with a subfolder for each bundle, claim or pod, and the file that marks one.
const GROUPS: [(&str, &str); 3] = [
    ("bundles", "state.json"),
    ("claims", "claim.json"),
    ("pods", ""),
];

/// Prefixes of subfolders that the agent is removing.
const GOING: [&str; 2] = [".gone-", ".removing-"];

/// The folder that a new file system has.
const LOST_AND_FOUND: &str = "lost+found";

/// What an agent makes in the runtime directory.
const RUNTIME: [&str; 19] = [
    "agent.lock",
    "boot-id",
    "conditions.json",
    "configuration",
    "coracle.sock",
    "events.log",
    FORMAT_FILE,
    "holds.json",
    "netns",
    "network.json",
    "noswap",
    "pods",
    "rollouts.json",
    "routes.json",
    "services.json",
    "shutdown.json",
    "sources.json",
    "stop-pods",
    "workloads.json",
];

/// Removes the runtime directory, unless it has other things, too: it goes with the boot anyway.
pub(super) fn runtime(folder: &Path) -> Result<()> {
    if is_usual(folder, &Layout::default().run_dir) {
        return whole(folder);
    }
    if !is_marked(folder) {
        return Ok(());
    }
    let mut others = names(folder);
    others.retain(|name| !RUNTIME.iter().any(|made| is_of(made, name)));
    match others.is_empty() {
        true => whole(&real(folder)?).and_then(|()| link(folder)),
        false => keep(folder, &others),
    }
}

/// Removes the logs of pods that the root directory knows: other programs may log in the same directory.
pub(super) fn logs(layout: &Layout) -> Result<()> {
    let uids = names(&layout.pods_state_dir());
    for name in names(&layout.log_dir) {
        // `<ns>_<name>_<uid>`
        let uid = name.splitn(3, '_').nth(2);
        if uid.is_some_and(|uid| uids.iter().any(|known| known == uid)) {
            whole(&layout.log_dir.join(name))?;
        }
    }
    let _ = fs::remove_dir(&layout.log_dir);
    Ok(())
}

/// Removes what upgrades have left in the root directory.
pub(super) fn upgrades(root: &Path) -> Result<()> {
    if is_usual(root, &Layout::default().root) || is_marked(root) {
        made(root, &UPGRADE)?;
    }
    Ok(())
}

/// Removes the root directory, or what an agent has made in it.
pub(super) fn state(root: &Path) -> Result<()> {
    let usual = is_usual(root, &Layout::default().root);
    if !root.exists() {
        return Ok(());
    }
    if !usual && !is_marked(root) {
        let say = format!("kept       {}, which no agent has used\n", root.display());
        return put(say.as_bytes());
    }
    let folder = real(root)?;
    if usual {
        for entry in fs::read_dir(&folder).map_err(|e| failed(root, &e))? {
            let entry = entry.map_err(|e| failed(root, &e))?;
            if entry.file_name() != LOST_AND_FOUND {
                whole_quietly(&entry.path())?;
            }
        }
    } else {
        made(&folder, &STATE)?;
        made(&folder, &UPGRADE)?;
        for (group, has) in GROUPS {
            group_of(&folder.join(group), has)?;
        }
        // Without it, nothing here would be taken for an agent's.
        made(&folder, &[FORMAT_FILE])?;
    }
    match fs::remove_dir(&folder) {
        Ok(()) => link(root)?,
        // A mount point stays.
        Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {}
        Err(_) => return keep(root, &names(&folder)),
    }
    put(format!("removed    {}\n", root.display()).as_bytes())
}

/// Removes these paths below a folder, and the folders that are empty then.
fn made(folder: &Path, paths: &[&str]) -> Result<()> {
    for path in paths {
        let path = folder.join(path);
        let parent = path.parent().unwrap_or(folder);
        // A link may lead to other files of these names.
        if parent.is_symlink() {
            whole_quietly(parent)?;
            continue;
        }
        whole_quietly(&path)?;
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        whole_quietly(&parent.join(format!(".{name}.tmp")))?;
        if parent != folder {
            let _ = fs::remove_dir(parent);
        }
    }
    Ok(())
}

/// Removes the subfolders that have a certain file.
fn group_of(folder: &Path, has: &str) -> Result<()> {
    if folder.is_symlink() {
        return whole_quietly(folder);
    }
    for name in names(folder) {
        let path = folder.join(&name);
        let goes = GOING.iter().any(|begin| name.starts_with(begin));
        if !path.is_symlink() && path.is_dir() && (goes || path.join(has).exists()) {
            whole_quietly(&path)?;
        }
    }
    let _ = fs::remove_dir(folder);
    Ok(())
}

/// Whether a directory has its usual name, which is coracle's alone, and is there.
fn is_usual(folder: &Path, usual: &Path) -> bool {
    folder == usual && !folder.is_symlink()
}

/// Whether an agent has used a directory.
fn is_marked(folder: &Path) -> bool {
    folder.join(FORMAT_FILE).is_file()
}

/// Whether an entry has this name, or the one that it has until it is complete.
fn is_of(made: &str, name: &str) -> bool {
    name == made || name == format!(".{made}.tmp")
}

/// The sorted names in a directory, except `lost+found`; none if it is absent.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| name != LOST_AND_FOUND)
        .collect();
    names.order();
    names
}

fn real(folder: &Path) -> Result<PathBuf> {
    fs::canonicalize(folder).map_err(|e| failed(folder, &e))
}

/// Removes a directory's name if that is a link.
fn link(folder: &Path) -> Result<()> {
    match folder.is_symlink() {
        true => file::remove_file(folder).map_err(|e| failed(folder, &e)),
        false => Ok(()),
    }
}

fn keep(folder: &Path, others: &[String]) -> Result<()> {
    let first = others.iter().take(5).map(String::as_str);
    let mut shown: Vec<&str> = first.collect();
    if others.len() > shown.len() {
        shown.push("…");
    }
    let folder = folder.display();
    let say = format!(
        "kept       {folder}, which has other things: {}\n",
        shown.join(", ")
    );
    put(say.as_bytes())
}

/// Removes a tree, and prints it if there was one.
pub(super) fn whole(path: &Path) -> Result<()> {
    if fs::symlink_metadata(path).is_err() {
        return Ok(());
    }
    whole_quietly(path)?;
    put(format!("removed    {}\n", path.display()).as_bytes())
}

fn whole_quietly(path: &Path) -> Result<()> {
    // A mount behind a link stays.
    let unmounted = match path.is_symlink() || fs::symlink_metadata(path).is_err() {
        true => Ok(()),
        false => mount::unmount_below(path),
    };
    unmounted
        .and_then(|()| tree::remove(path))
        .map_err(|e| failed(path, &e))
}

fn failed(path: &Path, error: &io::Error) -> CliError {
    CliError::new(format!("could not remove `{}`", path.display())).because(error)
}

#[cfg(test)]
#[path = "purge_test.rs"]
mod tests;
