//! The event store on tmpfs, which keeps events over agent restarts: one file with a line for each event, rewritten
//! before it gets long. If the file cannot be written, events are still shown, and are saved as soon as possible.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::Arc;

use crate::api::{EventRecord, Store};
use crate::sys::file::{self, Durability};

/// A longer file is rewritten with only the shown events (at most 384 KiB).
const MAX_BYTES: usize = 512 * 1024;

/// The store of events and the file behind it.
#[derive(Debug)]
pub(super) struct Journal {
    path: PathBuf,
    store: Arc<Store>,
    /// Open at the end of whole lines; `None` if it has to be rewritten.
    file: Option<File>,
    bytes: usize,
    /// Whether the write error was logged.
    failing: bool,
}

impl Journal {
    /// Restores the events from before an agent restart.
    pub(super) fn open(path: PathBuf, store: Arc<Store>) -> Self {
        match file::read_record(&path) {
            Ok(lines) => store.restore_events(&lines),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => tracing::warn!(
                "could not read the events in `{}`: {error}, going on without them",
                path.display()
            ),
        }
        Self {
            path,
            store,
            // The last line may be torn: the first new event rewrites the file.
            file: None,
            bytes: 0,
            failing: false,
        }
    }

    /// Shows an event and saves it.
    pub(super) fn push(&mut self, record: &EventRecord) {
        let line = self.store.push_event(record);
        if let Err(error) = self.keep(&line) {
            self.file = None;
            if !std::mem::replace(&mut self.failing, true) {
                tracing::warn!(
                    "could not write the events to `{}`: {error}, going on",
                    self.path.display()
                );
            }
        } else {
            self.failing = false;
        }
    }

    fn keep(&mut self, line: &str) -> io::Result<()> {
        if self.bytes + line.len() <= MAX_BYTES
            && let Some(file) = &mut self.file
        {
            self.bytes += line.len();
            return file.write_all(line.as_bytes());
        }
        let lines = self.store.event_lines();
        file::replace(&self.path, lines.as_bytes(), 0o600, Durability::Process)?;
        self.bytes = lines.len();
        let mut options = OpenOptions::new();
        let file = options.append(true).custom_flags(libc::O_NOFOLLOW);
        self.file = Some(file.open(&self.path)?);
        Ok(())
    }
}
