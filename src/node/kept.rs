//! A record that clients are answered about once it is on disk: what a person has decided, and what outlasts agent
//! restarts and reboots.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::slot::Slot;
use crate::api::{CommandError, CommandErrorKind};
use crate::sys::file::{self, Durability};

/// The record as it was given last.
#[derive(Debug)]
pub(super) struct Kept<T> {
    record: Option<T>,
    /// Its file, once there was something to write.
    slot: Option<Arc<Slot>>,
}

impl<T> Default for Kept<T> {
    fn default() -> Self {
        Self {
            record: None,
            slot: None,
        }
    }
}

impl<T: Clone + PartialEq + Serialize + DeserializeOwned> Kept<T> {
    /// Blocking. Reads what an earlier agent wrote; a broken file is reported and counts as none.
    pub(super) fn recover(&mut self, path: &Path) -> Option<T> {
        let bytes = file::read_record(path).ok()?;
        match serde_json::from_slice(&bytes) {
            Ok(record) => self.record = Some(record),
            Err(error) => tracing::warn!("`{}` is broken ({error}), ignoring", path.display()),
        }
        self.record.clone()
    }

    /// Starts to save the record if it has changed, and returns what it was before; `None` removes the file. Until it
    /// is on disk, a power cut may undo the change.
    pub(super) fn keep(&mut self, record: Option<&T>, path: PathBuf) -> Option<Option<T>> {
        if self.record.as_ref() == record {
            return None;
        }
        let bytes = record.map(|record| serde_json::to_vec(record).expect("plain data"));
        let before = std::mem::replace(&mut self.record, record.cloned());
        let slot = self
            .slot
            .get_or_insert_with(|| Slot::new(path, Durability::PowerCut));
        slot.set(bytes);
        let written = Arc::clone(slot).written();
        super::spawn(async move {
            // The slot logs a failure, and repeats the write.
            let _ = written.await;
        });
        Some(before)
    }

    /// Calls `then` once all changes are on disk, or with the error of their write.
    pub(super) fn when_written(&mut self, then: impl FnOnce(Result<(), CommandError>) + 'static) {
        let slot = self.slot.clone();
        super::spawn(async move {
            let wrote = match slot {
                Some(slot) => slot.written().await,
                None => Ok(()),
            };
            then(wrote.map_err(|why| CommandError {
                kind: CommandErrorKind::Failed,
                message: format!(
                    "{why}; until a later write succeeds, it holds only as long as the agent runs"
                ),
            }));
        });
    }
}
