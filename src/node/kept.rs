//! A record that clients are answered about once it is on disk: what a person has decided, and what outlasts agent
//! restarts and reboots.

use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::api::{CommandError, CommandErrorKind};
use crate::sys::file::{self, Durability};

/// The record as it was written last.
#[derive(Debug)]
pub(super) struct Kept<T> {
    written: Option<T>,
    /// The task that writes it, with its error if it failed; the next one waits for it.
    writing: Option<smol::Task<Result<(), String>>>,
}

impl<T> Default for Kept<T> {
    fn default() -> Self {
        Self {
            written: None,
            writing: None,
        }
    }
}

impl<T: Clone + PartialEq + Serialize + DeserializeOwned> Kept<T> {
    /// Blocking. Reads what an earlier agent wrote; a broken file is reported and counts as none.
    pub(super) fn recover(&mut self, path: &Path) -> Option<T> {
        let bytes = file::read_record(path).ok()?;
        match serde_json::from_slice(&bytes) {
            Ok(record) => self.written = Some(record),
            Err(error) => tracing::warn!("`{}` is broken ({error}), ignoring", path.display()),
        }
        self.written.clone()
    }

    /// Starts to save the record if it has changed, and returns what it was before; `None` removes the file. Until it
    /// is on disk, a power cut may undo the change.
    pub(super) fn keep(&mut self, record: Option<&T>, path: PathBuf) -> Option<Option<T>> {
        if self.written.as_ref() == record {
            return None;
        }
        let bytes = record.map(|record| serde_json::to_vec(record).expect("plain data"));
        let before = std::mem::replace(&mut self.written, record.cloned());
        let previous = self.writing.take();
        self.writing = Some(super::task(async move {
            if let Some(previous) = previous {
                // Its content is about to be replaced, so its error does not matter.
                let _ = previous.await;
            }
            let shown = path.display().to_string();
            let wrote = super::unblock(move || match bytes {
                Some(bytes) => file::replace(&path, &bytes, 0o600, Durability::PowerCut),
                None => file::remove_durably(&path),
            });
            wrote.await.map_err(|error| {
                let message = format!("could not write `{shown}`: {error}");
                tracing::warn!("{message}, going on");
                message
            })
        }));
        Some(before)
    }

    /// Calls `then` once all changes are on disk.
    pub(super) fn when_written(&mut self, then: impl FnOnce(Result<(), CommandError>) + 'static) {
        let writing = self.writing.take();
        self.writing = Some(super::task(async move {
            let wrote = match writing {
                Some(writing) => writing.await,
                None => Ok(()),
            };
            then(wrote.clone().map_err(|why| CommandError {
                kind: CommandErrorKind::Failed,
                message: format!("{why}; it holds only until the agent ends"),
            }));
            wrote
        }));
    }
}
