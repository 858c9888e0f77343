//! The watch on the manifest directory: inotify hints, and regular scans in case there was none.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use inotify::{EventMask, Inotify, WatchDescriptor, WatchMask};
use smol::Async;

/// Changes below one directory, or of one file.
#[derive(Debug)]
pub(super) struct Watch {
    target: PathBuf,
    inotify: Inotify,
    readiness: Async<OwnedFd>,
    watching: Option<WatchDescriptor>,
}

impl Watch {
    /// A missing target is no error: it may appear later.
    pub(super) fn new(target: &Path) -> io::Result<Self> {
        let inotify = Inotify::init()?;
        let readiness = Async::new(inotify.as_fd().try_clone_to_owned()?)?;
        let mut watch = Self {
            target: target.to_owned(),
            inotify,
            readiness,
            watching: None,
        };
        watch.ensure();
        Ok(watch)
    }

    /// Watches the target if it exists.
    pub(super) fn ensure(&mut self) {
        if self.watching.is_some() {
            return;
        }
        let mask = WatchMask::CLOSE_WRITE
            | WatchMask::MOVED_TO
            | WatchMask::MOVED_FROM
            | WatchMask::CREATE
            | WatchMask::MODIFY
            | WatchMask::DELETE
            | WatchMask::DELETE_SELF
            | WatchMask::MOVE_SELF;
        self.watching = self.inotify.watches().add(&self.target, mask).ok();
    }

    /// Whether changes will be noticed.
    pub(super) fn is_watching(&self) -> bool {
        self.watching.is_some()
    }

    /// Waits for a change, at most `patience`. Returns the files that are now complete.
    pub(super) async fn next(&mut self, patience: Duration) -> BTreeSet<PathBuf> {
        let changed = async { self.readiness.readable().await.is_ok() };
        let timeout = async {
            smol::Timer::after(patience).await;
            false
        };
        if !smol::future::or(changed, timeout).await {
            return BTreeSet::new();
        }
        let (mut closed, mut lost) = (BTreeSet::new(), false);
        let mut buffer = [0; 4096];
        while let Ok(events) = self.inotify.read_events(&mut buffer) {
            for event in events {
                let complete = EventMask::CLOSE_WRITE | EventMask::MOVED_TO;
                if event.mask.intersects(complete) {
                    closed.insert(
                        event
                            .name
                            .map_or_else(|| self.target.clone(), |name| self.target.join(name)),
                    );
                }
                let gone = EventMask::DELETE_SELF | EventMask::MOVE_SELF | EventMask::IGNORED;
                if event.mask.intersects(gone) {
                    lost = true;
                }
            }
        }
        // A moved directory would keep reporting files that are no manifests any more.
        if let Some(old) = self.watching.take_if(|_| lost) {
            let _ = self.inotify.watches().remove(old);
        }
        closed
    }
}
