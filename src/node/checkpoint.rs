//! What must an agent's successor know that no shim remembers? Start time and back-off of each pod, in one small
//! file. Losing it costs counters, nothing else.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::plan::event::CrashBackoff;
use crate::spec::Stamp;
use crate::sys::file::{self, Durability};

/// The content of the file.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Checkpoint {
    /// Boot the times belong to: they mean nothing after another one.
    pub(super) boot_id: String,
    /// When the pod was first seen.
    pub(super) created: Option<Stamp>,
    /// Crash back-off by container.
    pub(super) backoff: BTreeMap<String, CrashBackoff>,
}

/// Reads it; absent, broken or from another boot is as good as empty.
pub(super) fn read(path: &Path) -> Checkpoint {
    let Ok(bytes) = fs::read(path) else {
        return Checkpoint::default();
    };
    match serde_json::from_slice::<Checkpoint>(&bytes) {
        Ok(checkpoint) if checkpoint.boot_id == boot_id() => checkpoint,
        Ok(_) => Checkpoint::default(),
        Err(error) => {
            tracing::warn!(
                "checkpoint `{}` is broken ({error}), ignoring",
                path.display()
            );
            Checkpoint::default()
        }
    }
}

/// Blocking. Writes it so that a power cut leaves the old or the new one.
pub(super) fn write(path: &Path, checkpoint: &Checkpoint) {
    let bytes = serde_json::to_vec(checkpoint).expect("plain data");
    match file::replace(path, &bytes, 0o600, Durability::PowerCut) {
        Ok(()) => {}
        // The pod was removed meanwhile.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => tracing::warn!("could not write `{}`: {error}, going on", path.display()),
    }
}

/// This boot's id.
pub(super) fn boot_id() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id")
        .unwrap_or_default()
        .trim()
        .to_owned()
}
