//! Staging directories, in which imports work until they are complete: locked directories of the store's `tmp`.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use nix::fcntl::{Flock, FlockArg};

use super::digest;
use super::error::{ImageError, io as io_error};
use super::store::ImageStore;

/// A directory of one import, removed when the import ends. Locked, so that no other process takes it for a
/// leftover.
pub(super) struct Staging {
    pub(super) path: PathBuf,
    dir: Flock<File>,
}

impl Staging {
    /// Makes a directory below the store's `tmp`.
    pub(super) fn new(store: &ImageStore) -> Result<Self, ImageError> {
        let mut number = 0u32;
        loop {
            let path = store
                .dir()
                .join("tmp")
                .join(format!("{}-{number}", std::process::id()));
            number += 1;
            match fs::create_dir(&path) {
                Err(why) if why.kind() == io::ErrorKind::AlreadyExists => continue,
                other => other.map_err(io_error("create directory", &path))?,
            }
            // Until it is locked another process may take it for a leftover and remove it.
            let Ok(dir) = File::open(&path) else {
                continue;
            };
            let Ok(dir) = Flock::lock(dir, FlockArg::LockExclusiveNonblock) else {
                continue;
            };
            let inode = |meta: io::Result<fs::Metadata>| meta.ok().map(|meta| meta.ino());
            if inode(dir.metadata()) == inode(fs::metadata(&path)) {
                return Ok(Self { path, dir });
            }
        }
    }

    /// The place of a verified layer.
    pub(super) fn layer(&self, diff_id: &str) -> PathBuf {
        self.path.join(digest::hex(diff_id))
    }

    /// Syncs everything that was unpacked: one call instead of one for each file.
    pub(super) fn sync(&self) -> Result<(), ImageError> {
        nix::unistd::syncfs(&*self.dir).map_err(io_error("sync", &self.path))
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        // What cannot be removed now is removed by the next open.
        let _ = crate::sys::tree::remove(&self.path);
    }
}
