//! The removal of files of a container's earlier runs, by the attempt numbers in their names.

use std::ffi::OsStr;
use std::io;
use std::path::Path;

use super::{SandboxError, Sandboxes, access};
use crate::spec::PodSpec;
use crate::sys::tree;

impl Sandboxes {
    /// Blocking. Removes logs of runs before `logs_from`, writable layers and message files of runs before
    /// `files_from`. Their overlays are no longer mounted. Goes on after an error; returns the first one.
    pub fn remove_runs(
        &self,
        pod: &PodSpec,
        container: &str,
        logs_from: u32,
        files_from: u32,
    ) -> Result<(), SandboxError> {
        let key = &pod.key;
        let layout = self.layout();
        let logs = layout.container_logs(&key.namespace, &key.name, &pod.uid, container);
        let logs = remove_below(&logs, |name| {
            name.split_once(".log")?
                .0
                .parse()
                .ok()
                .filter(|run| *run < logs_from)
        });
        let files = layout.pod_state(&pod.uid).container(container);
        let files = remove_below(&files, |name| {
            let run = name
                .strip_prefix("layer-")
                .or(name.strip_prefix("termination-"))?;
            run.parse().ok().filter(|run| *run < files_from)
        });
        logs.and(files)
    }
}

/// Removes the entries of `folder` with a number that `which` finds in their names.
fn remove_below(folder: &Path, which: impl Fn(&str) -> Option<u32>) -> Result<(), SandboxError> {
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(access("read", folder, error)),
    };
    let mut result = Ok(());
    for entry in entries.flatten() {
        let name = entry.file_name();
        if OsStr::to_str(&name).and_then(&which).is_some() {
            let path = entry.path();
            let removed = tree::remove(&path).map_err(|source| access("remove", &path, source));
            result = result.and(removed);
        }
    }
    result
}
