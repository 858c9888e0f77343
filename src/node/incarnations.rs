//! The file that keeps pods' UIDs apart over agent restarts and reboots. It is written beside the loop, once for all
//! changes since the last write. A lost write may only cause a new pod to get a UID that an earlier one had.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use crate::plan::incarnation::Incarnations;
use crate::sys::file::{self, Durability};

/// Largest file that is read: a thousand names, with room to spare.
const MAX_BYTES: u64 = 4 << 20;

/// Writes the file.
#[derive(Debug)]
pub(super) struct Writer {
    path: PathBuf,
    /// The state that was handed over last, by its number of changes.
    seen: u64,
    slot: Arc<Slot>,
}

#[derive(Debug, Default)]
struct Slot {
    next: Mutex<Option<Incarnations>>,
    /// Held while the file is written.
    file: Mutex<()>,
}

impl Writer {
    /// `read` is what the file says now.
    pub(super) fn new(path: PathBuf, read: &Incarnations) -> Self {
        Self {
            path,
            seen: read.changes(),
            slot: Arc::default(),
        }
    }

    /// Writes the file soon if anything has changed.
    pub(super) fn keep(&mut self, now: &Incarnations) {
        if self.seen == now.changes() {
            return;
        }
        self.seen = now.changes();
        // What is still to be taken is written with it.
        if lock(&self.slot.next).replace(now.clone()).is_none() {
            let (path, slot) = (self.path.clone(), Arc::clone(&self.slot));
            super::spawn(super::unblock(move || write(&path, &slot)));
        }
    }

    /// Blocking. Writes what is left to be written.
    pub(super) fn flush(&self) {
        write(&self.path, &self.slot);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no panic holds this lock")
}

/// Writes what was handed over last, unless that is done already.
fn write(path: &Path, slot: &Slot) {
    let _file = lock(&slot.file);
    let next = lock(&slot.next).take();
    let Some(next) = next else { return };
    let bytes = serde_json::to_vec(&next).expect("plain data");
    if let Err(error) = file::replace(path, &bytes, 0o600, Durability::Process) {
        tracing::warn!("could not write `{}`: {error}, ignoring", path.display());
    }
}

/// What the file says; nothing if it is missing or broken.
pub(super) fn read(path: &Path) -> Incarnations {
    let mut bytes = Vec::new();
    let file = File::open(path);
    match file.and_then(|file| file.take(MAX_BYTES).read_to_end(&mut bytes)) {
        Ok(_) => {}
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Incarnations::default();
        }
        Err(error) => {
            tracing::warn!("could not read `{}`: {error}, ignoring", path.display());
            return Incarnations::default();
        }
    }
    serde_json::from_slice(&bytes).unwrap_or_else(|error| {
        tracing::warn!("`{}` is broken ({error}), ignoring", path.display());
        Incarnations::default()
    })
}
