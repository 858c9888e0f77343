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
    /// `None`: no instance of inotify was free.
    hints: Option<Hints>,
}

#[derive(Debug)]
struct Hints {
    inotify: Inotify,
    readiness: Async<OwnedFd>,
    watching: Option<WatchDescriptor>,
}

impl Hints {
    fn new() -> io::Result<Self> {
        let inotify = Inotify::init()?;
        let readiness = Async::new(inotify.as_fd().try_clone_to_owned()?)?;
        Ok(Self {
            inotify,
            readiness,
            watching: None,
        })
    }
}

impl Watch {
    /// A missing target is no error: it may appear later. Without a free instance of inotify, which other programs may use
    /// up, changes are noticed late until there is one.
    pub(super) fn new(target: &Path) -> Self {
        let hints = Hints::new().map_err(|error| {
            tracing::warn!(
                "could not watch `{}`: {error}; changes are noticed late (see fs.inotify.max_user_instances)",
                target.display()
            );
        });
        let mut watch = Self {
            target: target.to_owned(),
            hints: hints.ok(),
        };
        watch.ensure();
        watch
    }

    /// Watches the target if it exists.
    pub(super) fn ensure(&mut self) {
        if self.hints.is_none() {
            self.hints = Hints::new().ok();
        }
        let Some(hints) = self.hints.as_mut().filter(|hints| hints.watching.is_none()) else {
            return;
        };
        let mask = WatchMask::CLOSE_WRITE
            | WatchMask::MOVED_TO
            | WatchMask::MOVED_FROM
            | WatchMask::CREATE
            | WatchMask::MODIFY
            | WatchMask::DELETE
            | WatchMask::DELETE_SELF
            | WatchMask::MOVE_SELF;
        hints.watching = hints.inotify.watches().add(&self.target, mask).ok();
    }

    /// Whether changes will be noticed.
    pub(super) fn is_watching(&self) -> bool {
        let hints = self.hints.as_ref();
        hints.is_some_and(|hints| hints.watching.is_some())
    }

    /// Waits for a change, at most `patience`. Returns the files that are now complete.
    pub(super) async fn next(&mut self, patience: Duration) -> BTreeSet<PathBuf> {
        let Some(hints) = &mut self.hints else {
            smol::Timer::after(patience).await;
            return BTreeSet::new();
        };
        let changed = async { hints.readiness.readable().await.is_ok() };
        let timeout = async {
            smol::Timer::after(patience).await;
            false
        };
        match smol::future::or(changed, timeout).await {
            true => self.noticed(),
            false => BTreeSet::new(),
        }
    }

    /// What has changed so far. Returns the files that are now complete.
    pub(super) fn noticed(&mut self) -> BTreeSet<PathBuf> {
        let (mut closed, mut lost) = (BTreeSet::new(), false);
        let Some(hints) = &mut self.hints else {
            return closed;
        };
        let mut buffer = [0; 4096];
        while let Ok(events) = hints.inotify.read_events(&mut buffer) {
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
        if let Some(old) = hints.watching.take_if(|_| lost) {
            let _ = hints.inotify.watches().remove(old);
        }
        closed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_an_instance_of_inotify_changes_are_looked_for_until_there_is_one() {
        let mut watch = Watch {
            target: std::env::temp_dir(),
            hints: None,
        };
        assert!(!watch.is_watching());
        let none = smol::block_on(watch.next(Duration::from_millis(1)));
        assert_eq!(none, BTreeSet::new());
        watch.ensure();
        assert!(watch.is_watching());
    }
}
