//! How does a file get to disk whole? Write beside it, flush, rename, flush the folder.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

use nix::fcntl::{Flock, FlockArg};

/// Whether a write must survive a power cut, or only be seen whole by other processes (tmpfs).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// fsync of file and folder.
    PowerCut,
    /// Rename only.
    Process,
}

/// Replaces `path` by `bytes` so that a reader sees the old or the new content, never a mixture.
pub fn replace(path: &Path, bytes: &[u8], mode: u32, durability: Durability) -> io::Result<()> {
    let folder = path
        .parent()
        .ok_or_else(|| io::Error::other("the path has no folder"))?;
    let name = path
        .file_name()
        .ok_or_else(|| io::Error::other("the path has no file name"))?;
    let temp = folder.join(format!(".{}.tmp", name.to_string_lossy()));
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(mode)
        .custom_flags(libc::O_NOFOLLOW)
        .open(&temp)?;
    file.write_all(bytes)?;
    if durability == Durability::PowerCut {
        file.sync_data()?;
    }
    drop(file);
    fs::rename(&temp, path)?;
    if durability == Durability::PowerCut {
        File::open(folder)?.sync_all()?;
    }
    Ok(())
}

/// `mkdir -p` with a mode for every folder that is made.
pub fn make_dirs(path: &Path, mode: u32) -> io::Result<()> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(mode)
        .create(path)
}

/// Removes a file; an absent one is fine.
pub fn remove_file(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// Removes a file so that it stays away after a power cut; an absent one is fine.
pub fn remove_durably(path: &Path) -> io::Result<()> {
    remove_file(path)?;
    match path.parent() {
        Some(folder) => File::open(folder)?.sync_all(),
        None => Ok(()),
    }
}

/// Takes an exclusive lock on a file (made if absent); `None` if another process has it. The lock ends with the
/// returned value, or with the process.
pub fn try_lock(path: &Path) -> io::Result<Option<Flock<File>>> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path)?;
    match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
        Ok(lock) => Ok(Some(lock)),
        Err((_, nix::errno::Errno::EWOULDBLOCK)) => Ok(None),
        Err((_, errno)) => Err(errno.into()),
    }
}
