//! The removal of untrusted trees. Without recursion, with a bounded number of open folders, and without ever
//! following a symlink or crossing a mount: neither depth nor names can exhaust the caller.
//!
//! The walk descends at most [`MAX_OPEN`] folders. Deeper entries are moved up to the tree's own root under a fresh
//! name, and removed from there: every name used is a single component, so no path can be too long.

use std::ffi::{CStr, OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags, OFlag, OpenHow, ResolveFlag, openat2, renameat};
use nix::sys::stat::{Mode, SFlag, fstatat};
use nix::unistd::{UnlinkatFlags, unlinkat};

/// The maximum of folders open at once; ordinary trees are not deeper.
const MAX_OPEN: usize = 32;

/// The maximum number of passes over the root. One is enough unless a disk was too full to move folders, or a
/// process still writes.
const MAX_PASSES: usize = 64;

/// Removes a folder and everything below it, or a file; an absent one is fine. Symlinks are removed, not followed.
/// Goes on after an error; returns the first one, with its path. A mount point in the tree is such an error
/// (`EBUSY`).
pub fn remove(path: &Path) -> io::Result<()> {
    remove_at(AT_FDCWD, path)
}

/// Like [`remove`], for a path that begins at `base`.
pub fn remove_at(base: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
    match unlink(base, path.as_os_str()) {
        Removal::Gone => return Ok(()),
        Removal::NotEmpty => {}
        Removal::Failed(errno) => return Err(at(path, errno)),
    }
    let root = match open_root(base, path) {
        Ok(root) => root,
        Err(Errno::ENOENT) => return Ok(()),
        Err(errno) => return Err(at(path, errno)),
    };
    let mut walk = Walk {
        root,
        shown: path,
        fresh: 0,
        next: 0,
        removed: 0,
        first_error: None,
    };
    for _ in 0..MAX_PASSES {
        walk.first_error = None;
        let before = walk.removed;
        walk.pass();
        match unlink(base, path.as_os_str()) {
            Removal::Gone => return Ok(()),
            Removal::Failed(errno) => walk.note(path, errno),
            Removal::NotEmpty if walk.removed == before => walk.note(path, Errno::ENOTEMPTY),
            Removal::NotEmpty => {}
        }
        if walk.removed == before {
            break;
        }
    }
    let fallback = || at(path, Errno::ENOTEMPTY);
    Err(walk.first_error.take().unwrap_or_else(fallback))
}

/// The names in an open folder.
pub fn names(folder: BorrowedFd<'_>) -> io::Result<Vec<OsString>> {
    let mut entries = Entries::of(folder)?;
    let mut names = Vec::new();
    while let Some(name) = entries.next()? {
        names.push(name);
    }
    Ok(names)
}

/// The base may be reached through symlinks; the root itself is none, or it would have been unlinked.
fn open_root(base: BorrowedFd<'_>, path: &Path) -> nix::Result<OwnedFd> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    nix::fcntl::openat(base, path, flags, Mode::empty())
}

/// A folder being emptied.
struct Level {
    name: OsString,
    entries: Entries,
}

struct Walk<'a> {
    root: OwnedFd,
    shown: &'a Path,
    /// Number of the next fresh name.
    fresh: u64,
    /// Number of the first fresh name that has not been removed yet.
    next: u64,
    /// The number of entries removed, or moved up: as long as it grows, another pass makes sense.
    removed: u64,
    first_error: Option<io::Error>,
}

impl Walk<'_> {
    /// Empties the root once: the entries listed in it, then those moved into it meanwhile.
    fn pass(&mut self) {
        let mut listed = match Entries::of(self.root.as_fd()) {
            Ok(listed) => listed,
            Err(errno) => return self.note(Path::new(""), errno),
        };
        loop {
            match listed.next() {
                Ok(Some(name)) => self.remove_from_root(name),
                Ok(None) => break,
                Err(errno) => {
                    self.note(Path::new(""), errno);
                    break;
                }
            }
        }
        while self.next < self.fresh {
            let name = fresh_name(self.next);
            self.next += 1;
            self.remove_from_root(name);
        }
    }

    /// Removes one entry of the root with all that is below it.
    fn remove_from_root(&mut self, name: OsString) {
        let mut levels: Vec<Level> = Vec::new();
        self.entry(&mut levels, name);
        while let Some(deepest) = levels.last_mut() {
            match deepest.entries.next() {
                Ok(Some(name)) => self.entry(&mut levels, name),
                Ok(None) => self.leave(&mut levels),
                Err(errno) => {
                    self.note(&shown(&levels), errno);
                    self.leave(&mut levels);
                }
            }
        }
    }

    /// Removes an entry of the deepest level, or makes it the next level, or moves it up.
    fn entry(&mut self, levels: &mut Vec<Level>, name: OsString) {
        let folder = levels
            .last()
            .map_or(self.root.as_fd(), |level| level.entries.fd());
        match unlink(folder, &name) {
            Removal::Gone => self.removed += 1,
            Removal::Failed(errno) => self.note(&shown(levels).join(name), errno),
            Removal::NotEmpty if levels.len() < MAX_OPEN => {
                match open_folder(folder, &name).and_then(|fd| Entries::of(fd.as_fd())) {
                    Ok(entries) => levels.push(Level { name, entries }),
                    Err(Errno::ENOENT) => {}
                    Err(errno) => self.note(&shown(levels).join(name), errno),
                }
            }
            Removal::NotEmpty => match self.move_up(levels, &name) {
                Ok(()) => self.removed += 1,
                Err(Errno::ENOENT) => {}
                Err(errno) => self.note(&shown(levels).join(name), errno),
            },
        }
    }

    /// The deepest level has been read to its end, and can be removed.
    fn leave(&mut self, levels: &mut Vec<Level>) {
        let Some(level) = levels.pop() else { return };
        let folder = levels
            .last()
            .map_or(self.root.as_fd(), |level| level.entries.fd());
        match unlink(folder, &level.name) {
            Removal::Gone => self.removed += 1,
            Removal::NotEmpty => self.note(&shown(levels).join(level.name), Errno::ENOTEMPTY),
            Removal::Failed(errno) => self.note(&shown(levels).join(level.name), errno),
        }
    }

    fn move_up(&mut self, levels: &[Level], name: &OsStr) -> nix::Result<()> {
        let Some(level) = levels.last() else {
            return Err(Errno::EINVAL);
        };
        loop {
            let fresh = fresh_name(self.fresh);
            self.fresh += 1;
            match renameat(level.entries.fd(), name, &self.root, fresh.as_os_str()) {
                // The tree already has this name: take the next one. This entry is removed in its turn.
                Err(Errno::EEXIST | Errno::ENOTEMPTY | Errno::ENOTDIR) => {}
                other => return other,
            }
        }
    }

    fn note(&mut self, below: &Path, errno: Errno) {
        if self.first_error.is_none() {
            self.first_error = Some(at(&self.shown.join(below), errno));
        }
    }
}

fn fresh_name(number: u64) -> OsString {
    format!(".coracle-removed-{number}").into()
}

fn shown(levels: &[Level]) -> PathBuf {
    levels.iter().map(|level| &level.name).collect()
}

fn at(path: &Path, errno: Errno) -> io::Error {
    let kind = io::Error::from(errno).kind();
    io::Error::new(kind, format!("`{}`: {}", path.display(), errno.desc()))
}

enum Removal {
    Gone,
    NotEmpty,
    Failed(Errno),
}

/// Removes an entry at once if possible: anything except a folder with entries.
fn unlink(folder: BorrowedFd<'_>, name: &OsStr) -> Removal {
    match unlinkat(folder, name, UnlinkatFlags::NoRemoveDir) {
        Ok(()) | Err(Errno::ENOENT) => return Removal::Gone,
        // Of a path that is too long as a whole, this is not known.
        Err(Errno::ENAMETOOLONG) if has_long_name(name) => return Removal::Gone,
        Err(Errno::EISDIR) => {}
        // The error of a folder by POSIX, and of an immutable file.
        Err(Errno::EPERM) if is_folder(folder, name) => {}
        Err(errno) => return Removal::Failed(errno),
    }
    match unlinkat(folder, name, UnlinkatFlags::RemoveDir) {
        Ok(()) | Err(Errno::ENOENT) => Removal::Gone,
        Err(Errno::ENOTEMPTY | Errno::EEXIST) => Removal::NotEmpty,
        Err(errno) => Removal::Failed(errno),
    }
}

/// Whether the path has a name that no file can have (`NAME_MAX`).
fn has_long_name(path: &OsStr) -> bool {
    Path::new(path).iter().any(|name| name.len() > 255)
}

fn is_folder(folder: BorrowedFd<'_>, name: &OsStr) -> bool {
    fstatat(folder, name, AtFlags::AT_SYMLINK_NOFOLLOW)
        .is_ok_and(|found| found.st_mode & SFlag::S_IFMT.bits() == SFlag::S_IFDIR.bits())
}

/// Opens an existing folder on the file system of its parent.
pub fn open_folder(parent: BorrowedFd<'_>, name: &OsStr) -> nix::Result<OwnedFd> {
    let how = OpenHow::new()
        .flags(OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC)
        .resolve(
            ResolveFlag::RESOLVE_BENEATH
                | ResolveFlag::RESOLVE_NO_SYMLINKS
                | ResolveFlag::RESOLVE_NO_XDEV,
        );
    loop {
        match openat2(parent, name, how) {
            // EAGAIN: a rename elsewhere raced with the walk; the kernel asks to try again.
            Err(Errno::EAGAIN | Errno::EINTR) => {}
            other => return other,
        }
    }
}

/// The names in an open folder, read one by one.
pub(crate) struct Entries(NonNull<libc::DIR>);

impl Entries {
    /// From the beginning; the folder's own descriptor is reopened.
    pub(crate) fn of(folder: BorrowedFd<'_>) -> nix::Result<Self> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let fd = nix::fcntl::openat(folder, ".", flags, Mode::empty())?;
        // SAFETY: the descriptor is open; on success the stream owns it.
        let stream = unsafe { libc::fdopendir(fd.as_raw_fd()) };
        let stream = NonNull::new(stream).ok_or_else(Errno::last)?;
        let _ = fd.into_raw_fd();
        Ok(Self(stream))
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the stream's descriptor is open as long as the stream, and `self` outlives the borrow.
        unsafe { BorrowedFd::borrow_raw(libc::dirfd(self.0.as_ptr())) }
    }

    /// The next name but `.` and `..`; `None` at the end.
    fn next(&mut self) -> nix::Result<Option<OsString>> {
        Ok(self.next_kind()?.map(|(name, _)| name))
    }

    /// Like `next`, with whether the file system already reports it as a folder.
    pub(crate) fn next_kind(&mut self) -> nix::Result<Option<(OsString, bool)>> {
        loop {
            Errno::clear();
            // SAFETY: the stream is open, and only this iterator reads it.
            let entry = unsafe { libc::readdir64(self.0.as_ptr()) };
            if entry.is_null() {
                return match Errno::last_raw() {
                    0 => Ok(None),
                    raw => Err(Errno::from_raw(raw)),
                };
            }
            // SAFETY: the entry is valid until the next call, and its name is terminated.
            let (name, kind) = unsafe {
                (
                    CStr::from_ptr((*entry).d_name.as_ptr()).to_bytes(),
                    (*entry).d_type,
                )
            };
            if name != b"." && name != b".." {
                let name = OsStr::from_bytes(name).to_owned();
                return Ok(Some((name, kind == libc::DT_DIR)));
            }
        }
    }
}

impl Drop for Entries {
    fn drop(&mut self) {
        // SAFETY: nothing uses the stream after this.
        unsafe { libc::closedir(self.0.as_ptr()) };
    }
}

#[cfg(test)]
#[path = "tree_test.rs"]
mod tests;
