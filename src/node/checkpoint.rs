//! The file of what of a pod outlives the agent ([`PodMemory`]). It lies on tmpfs and costs no flash.

use std::io;
use std::path::Path;

use crate::plan::memory::PodMemory;
use crate::sys::file::{self, Durability};

/// Reads it; an absent or broken one is as good as empty.
pub(super) fn read(path: &Path) -> PodMemory {
    let Ok(bytes) = file::read_record(path) else {
        return PodMemory::default();
    };
    serde_json::from_slice(&bytes).unwrap_or_else(|error| {
        tracing::warn!(
            "checkpoint `{}` is broken ({error}), ignoring",
            path.display()
        );
        PodMemory::default()
    })
}

/// Its content.
pub(super) fn content(memory: &PodMemory) -> Vec<u8> {
    serde_json::to_vec(memory).expect("plain data")
}

/// Writes it; `false` if the pod has no folder (yet, or any more).
pub(super) fn write(path: &Path, content: &[u8]) -> bool {
    match file::replace(path, content, 0o600, Durability::Process) {
        Ok(()) => true,
        Err(error) => {
            if error.kind() != io::ErrorKind::NotFound {
                tracing::warn!("could not write `{}`: {error}, going on", path.display());
            }
            false
        }
    }
}
