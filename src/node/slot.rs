//! A file and its newest content, which is written beside the loop. A failed write, as on a full disk, is repeated until it
//! succeeds.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use crate::sys::file::{self, Durability};

/// The pauses before a failed write is repeated: each is twice the one before.
const FIRST_RETRY: Duration = Duration::from_secs(1);
const LAST_RETRY: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(super) struct Slot {
    path: PathBuf,
    durability: Durability,
    /// What is to be written; without content, the file is removed.
    next: Mutex<Option<Option<Vec<u8>>>>,
    /// Held while the file is written.
    file: Mutex<()>,
    /// The last write failed.
    failing: AtomicBool,
    /// A task repeats it.
    retrying: AtomicBool,
}

impl Slot {
    pub(super) fn new(path: PathBuf, durability: Durability) -> Arc<Self> {
        Arc::new(Self {
            path,
            durability,
            next: Mutex::new(None),
            file: Mutex::new(()),
            failing: AtomicBool::new(false),
            retrying: AtomicBool::new(false),
        })
    }

    /// Replaces the content to be written. Returns whether there was none: otherwise its writer takes this instead.
    pub(super) fn set(&self, content: Option<Vec<u8>>) -> bool {
        lock(&self.next).replace(content).is_none()
    }

    /// Whether a write is under way or about to begin. A failing one does not count: nothing waits for it.
    pub(super) fn is_due(&self) -> bool {
        let failing = self.failing.load(Ordering::Relaxed);
        !failing && (lock(&self.next).is_some() || self.file.try_lock().is_err())
    }

    /// Writes the newest content. A failure is returned, and the write is repeated in the background.
    pub(super) async fn written(self: Arc<Self>) -> Result<(), String> {
        let wrote = self.write_beside().await;
        if wrote.is_err() && !self.retrying.swap(true, Ordering::Relaxed) {
            super::spawn(self.retry());
        }
        wrote
    }

    async fn retry(self: Arc<Self>) {
        let mut pause = FIRST_RETRY;
        loop {
            smol::Timer::after(pause).await;
            // Another write may have failed meanwhile.
            if self.write_beside().await.is_ok() && lock(&self.next).is_none() {
                break;
            }
            pause = LAST_RETRY.min(pause * 2);
        }
        self.retrying.store(false, Ordering::Relaxed);
    }

    async fn write_beside(self: &Arc<Self>) -> Result<(), String> {
        let slot = Arc::clone(self);
        super::unblock(move || slot.write()).await
    }

    /// Blocking. Writes the newest content, unless that is done already. The first of several failures is logged.
    pub(super) fn write(&self) -> Result<(), String> {
        let _file = lock(&self.file);
        let next = lock(&self.next).take();
        let Some(content) = next else { return Ok(()) };
        let path = self.path.display();
        let wrote = match &content {
            Some(bytes) => file::replace(&self.path, bytes, 0o600, self.durability),
            None => file::remove_durably(&self.path),
        };
        match wrote {
            Ok(()) => {
                if self.failing.swap(false, Ordering::Relaxed) {
                    tracing::info!("wrote `{path}`, which could not be written before");
                }
                Ok(())
            }
            Err(error) => {
                lock(&self.next).get_or_insert(content);
                let message = format!("could not write `{path}`: {error}");
                if !self.failing.swap(true, Ordering::Relaxed) {
                    tracing::warn!("{message}, trying again");
                }
                Err(message)
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no panic holds this lock")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_written_is_kept_until_it_can_be() {
        let folder = std::env::temp_dir().join(format!("coracle-slot-{}", std::process::id()));
        let path = folder.join("jobs.json");
        let slot = Slot::new(path.clone(), Durability::PowerCut);
        let bytes = |text: &str| Some(text.as_bytes().to_vec());
        assert!(slot.set(bytes("one")) && slot.is_due());
        assert!(slot.write().is_err());
        // Nothing waits for it meanwhile.
        assert!(!slot.is_due());
        assert!(!slot.set(bytes("two")), "whatever tries again takes it");
        assert!(slot.write().is_err());
        std::fs::create_dir(&folder).unwrap();
        assert_eq!((slot.write(), slot.write()), (Ok(()), Ok(())));
        assert_eq!(std::fs::read(&path).unwrap(), b"two");
        assert!(slot.set(None) && slot.write().is_ok() && !path.exists());
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
