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
    /// Files that have been changed and not closed since.
    written: BTreeSet<PathBuf>,
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
            written: BTreeSet::new(),
            hints: hints.ok(),
        };
        watch.ensure();
        watch
    }

    /// Watches the target if it exists. What has its path by now may be something else than before: a file system was
    /// mounted there, or a link leads elsewhere.
    pub(super) fn ensure(&mut self) {
        if self.hints.is_none() {
            self.hints = Hints::new().ok();
        }
        let Some(hints) = &mut self.hints else {
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
        // For what is watched already it is the same descriptor again.
        let now = hints.inotify.watches().add(&self.target, mask).ok();
        let before = std::mem::replace(&mut hints.watching, now);
        if let Some(old) = before.filter(|old| hints.watching.as_ref() != Some(old)) {
            let _ = hints.inotify.watches().remove(old);
            self.written.clear();
        }
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

    /// The files that have been changed and not closed since, as far as is known.
    pub(super) fn written(&self) -> &BTreeSet<PathBuf> {
        &self.written
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
                if event.mask.contains(EventMask::Q_OVERFLOW) {
                    // A close may be among what was lost.
                    self.written.clear();
                }
                // Those of a former watch say nothing of the present one.
                if hints.watching.as_ref() != Some(&event.wd) {
                    continue;
                }
                let gone = EventMask::DELETE_SELF | EventMask::MOVE_SELF | EventMask::IGNORED;
                if event.mask.intersects(gone) {
                    lost = true;
                    continue;
                }
                let path = event
                    .name
                    .map_or_else(|| self.target.clone(), |name| self.target.join(name));
                let complete = EventMask::CLOSE_WRITE | EventMask::MOVED_TO;
                let away = EventMask::MOVED_FROM | EventMask::DELETE;
                if event.mask.intersects(complete | away) {
                    self.written.remove(&path);
                } else if event.mask.contains(EventMask::MODIFY) {
                    // A link is made without ever being closed.
                    self.written.insert(path.clone());
                }
                if event.mask.intersects(complete) {
                    closed.insert(path);
                }
            }
        }
        // A moved directory would keep reporting files that are no manifests any more.
        if let Some(old) = hints.watching.take_if(|_| lost) {
            let _ = hints.inotify.watches().remove(old);
            self.written.clear();
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
            written: BTreeSet::new(),
            hints: None,
        };
        assert!(!watch.is_watching());
        let none = smol::block_on(watch.next(Duration::from_millis(1)));
        assert_eq!(none, BTreeSet::new());
        watch.ensure();
        assert!(watch.is_watching());
    }

    #[test]
    fn what_has_the_path_now_is_watched_and_what_is_still_open_is_known() {
        let dir = std::env::temp_dir().join(format!("coracle-watch-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        let target = dir.join("current");
        for name in ["old", "new"] {
            std::fs::create_dir_all(dir.join(name)).unwrap();
        }
        std::os::unix::fs::symlink(dir.join("old"), &target).unwrap();
        let mut watch = Watch::new(&target);
        std::fs::write(target.join("a.yaml"), "a").unwrap();
        assert_eq!(watch.noticed(), [target.join("a.yaml")].into());

        std::os::unix::fs::symlink(dir.join("new"), dir.join("next")).unwrap();
        std::fs::rename(dir.join("next"), &target).unwrap();
        watch.ensure();
        // The end of the former watch is no end of this one.
        for _ in 0..2 {
            watch.noticed();
            watch.ensure();
        }
        let mut open = std::fs::File::create(target.join("b.yaml")).unwrap();
        std::io::Write::write_all(&mut open, b"b").unwrap();
        std::os::unix::fs::symlink(dir.join("elsewhere"), target.join("link.yaml")).unwrap();
        assert_eq!(watch.noticed(), BTreeSet::new());
        assert_eq!(*watch.written(), [target.join("b.yaml")].into());
        drop(open);
        assert_eq!(watch.noticed(), [target.join("b.yaml")].into());
        assert!(watch.written().is_empty() && watch.is_watching());
        std::fs::write(dir.join("old/c.yaml"), "c").unwrap();
        assert_eq!(watch.noticed(), BTreeSet::new());

        std::fs::remove_file(&target).unwrap();
        watch.ensure();
        assert!(!watch.is_watching(), "there is nothing to watch");
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
