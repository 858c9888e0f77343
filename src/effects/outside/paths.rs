//! The watch on paths that may not exist yet. It watches, for each, the folder in which its first missing part would
//! appear, and follows links; an event about another name in that folder is no change.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Component, Path, PathBuf};

use inotify::{EventMask, Inotify, WatchDescriptor, WatchMask};
use nix::sys::statfs;

/// The most links that are followed, as the kernel does it.
const MAX_LINKS: usize = 40;

/// How often the folders are looked for again if they change meanwhile.
const MAX_TRIES: usize = 8;

/// The most bytes of a path with links followed: as the kernel's `PATH_MAX`.
const MAX_BYTES: usize = 4096;

/// File systems without events about what others do, or what the kernel itself does: NFS, SMB, 9P, FUSE, proc, sysfs.
const SILENT: [u32; 8] = [
    0x6969,
    0x517b,
    0xff53_4d42,
    0xfe53_4d42,
    0x0102_1997,
    0x6573_5546,
    0x9fa0,
    0x6265_6572,
];

/// Folders, and the names in them that matter.
type Places = BTreeMap<PathBuf, BTreeSet<OsString>>;

/// The watch. It is readable when there may be a change.
#[derive(Debug)]
pub struct Paths {
    inotify: Inotify,
    places: Places,
    watches: Vec<(WatchDescriptor, PathBuf)>,
    silent: bool,
}

impl Paths {
    /// A watch on nothing.
    ///
    /// # Errors
    /// Fails if there are too many watches on the node.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            inotify: Inotify::init()?,
            places: Places::new(),
            watches: Vec::new(),
            silent: false,
        })
    }

    /// Blocking. Watches these paths from now on; to be called again after each change, and before the paths are looked
    /// at.
    ///
    /// # Errors
    /// Fails if there are too many watches on the node, or if the folders keep changing.
    pub fn aim(&mut self, paths: &[&Path]) -> io::Result<()> {
        for _ in 0..MAX_TRIES {
            let places = places_of(paths);
            if places == self.places {
                return Ok(());
            }
            self.watch(places)?;
        }
        Err(io::ErrorKind::WouldBlock.into())
    }

    /// Whether some changes cannot be noticed: they are on a file system without events.
    pub fn is_silent(&self) -> bool {
        self.silent
    }

    fn watch(&mut self, places: Places) -> io::Result<()> {
        // Until it succeeds, nothing is known to be watched.
        self.places.clear();
        for (old, _) in self.watches.drain(..) {
            // It is gone with its folder.
            let _ = self.inotify.watches().remove(old);
        }
        let mask = WatchMask::CREATE
            | WatchMask::DELETE
            | WatchMask::MOVED_TO
            | WatchMask::MOVED_FROM
            | WatchMask::DELETE_SELF
            | WatchMask::MOVE_SELF
            | WatchMask::ONLYDIR;
        let mut silent = false;
        for folder in places.keys() {
            match self.inotify.watches().add(folder, mask) {
                Ok(watch) => self.watches.push((watch, folder.clone())),
                // It has just gone: the next try finds another one.
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
                Err(error) => return Err(error),
            }
            silent |= is_silent(folder);
        }
        (self.places, self.silent) = (places, silent);
        Ok(())
    }

    /// Looks for the folders again next time: the mounts have changed, so they may be others of the same names.
    pub fn forget(&mut self) {
        self.places.clear();
    }

    /// Whether what has happened since the last call may concern one of the paths.
    pub fn changed(&mut self) -> bool {
        let lost = EventMask::DELETE_SELF
            | EventMask::MOVE_SELF
            | EventMask::UNMOUNT
            | EventMask::Q_OVERFLOW;
        let mut buffer = [0; 4096];
        let (mut changed, mut gone) = (false, false);
        while let Ok(events) = self.inotify.read_events(&mut buffer) {
            for event in events {
                let of = self.watches.iter().filter(|(watch, _)| *watch == event.wd);
                let mut names = of.filter_map(|(_, folder)| self.places.get(folder));
                changed |= names.any(|names| event.name.is_some_and(|n| names.contains(n)));
                gone |= event.mask.intersects(lost);
            }
        }
        if gone {
            self.forget();
        }
        changed || gone
    }
}

impl AsFd for Paths {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inotify.as_fd()
    }
}

#[allow(
    clippy::unnecessary_cast,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the type differs between machines, and a magic number has 32 bits"
)]
fn is_silent(folder: &Path) -> bool {
    let found = statfs::statfs(folder);
    found.is_ok_and(|found| SILENT.contains(&(found.filesystem_type().0 as u32)))
}

fn places_of(paths: &[&Path]) -> Places {
    let mut places = Places::new();
    for path in paths {
        follow(path, &mut places);
    }
    places
}

/// Adds where the first missing part of the path would appear, or its last part, and each link on the way.
fn follow(path: &Path, places: &mut Places) {
    let mut parts: Vec<OsString> = parts(path).rev().collect();
    let (mut at, mut links) = (PathBuf::from("/"), 0);
    while let Some(part) = parts.pop() {
        if part == ".." {
            at.pop();
            continue;
        }
        let next = at.join(&part);
        let link = fs::read_link(&next).ok();
        let missing = !next.is_dir();
        if link.is_some() || missing || parts.is_empty() {
            places.entry(at.clone()).or_default().insert(part);
        }
        match link {
            Some(target) if links < MAX_LINKS && target.as_os_str().len() <= MAX_BYTES => {
                links += 1;
                if target.is_absolute() {
                    at = PathBuf::from("/");
                }
                parts.extend(self::parts(&target).rev());
            }
            Some(_) => return,
            None if missing => return,
            None => at = next,
        }
    }
}

fn parts(path: &Path) -> impl DoubleEndedIterator<Item = OsString> {
    path.components().filter_map(|part| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_folder_is_watched_in_which_something_would_appear() {
        let top = std::env::temp_dir().join(format!("coracle-paths-{}", std::process::id()));
        let top = {
            fs::create_dir_all(top.join("real/inner")).unwrap();
            top.canonicalize().unwrap()
        };
        std::os::unix::fs::symlink("real/later", top.join("link")).unwrap();
        std::os::unix::fs::symlink("loop", top.join("loop")).unwrap();
        for (path, expected) in [
            ("a", vec![("", "a")]),
            ("a/b/c", vec![("", "a")]),
            ("real/inner/x", vec![("real/inner", "x")]),
            ("real/inner/x/y", vec![("real/inner", "x")]),
            ("real/inner", vec![("real", "inner")]),
            ("link", vec![("", "link"), ("real", "later")]),
            ("link/x", vec![("", "link"), ("real", "later")]),
            ("loop", vec![("", "loop")]),
        ] {
            let mut places = Places::new();
            for (folder, name) in expected {
                let folder = match folder {
                    "" => top.clone(),
                    folder => top.join(folder),
                };
                places.entry(folder).or_default().insert(name.into());
            }
            assert_eq!(places_of(&[&top.join(path)]), places, "{path}");
        }
        let mut paths = Paths::new().unwrap();
        let wanted = top.join("a/b");
        for (step, seen) in [("noise", false), ("a", true), ("a/b", true)] {
            paths.aim(&[&wanted]).unwrap();
            fs::create_dir(top.join(step)).unwrap();
            assert_eq!(paths.changed(), seen, "{step}");
        }
        fs::remove_dir_all(&top).unwrap();
        assert!(paths.changed());
        assert!(!paths.changed());
    }
}
