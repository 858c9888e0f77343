//! Staging directories, in which imports work until they are complete: locked directories of the store's `tmp`.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg};

use super::digest;
use super::error::{ImageError, io as io_error};
use super::store::ImageStore;
use crate::sys::tree;

/// What layers are unpacked into before they are whole: with the layer's number behind it.
const UNFINISHED: &str = "unfinished-";

/// The directory in the folder of a pull, with the id of a boot behind it.
const UNPACKED: &str = "unpacked-";

/// A directory of one import, removed when the import ends. Locked, so that no other process takes it for a
/// leftover.
pub(super) struct Staging {
    pub(super) path: PathBuf,
    dir: Flock<File>,
    /// Whether whole layers stay for the next worker.
    kept: bool,
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
                return Ok(Self {
                    path,
                    dir,
                    kept: false,
                });
            }
        }
    }

    /// Makes a directory in the folder of a pull, or opens it again. Layers that an earlier worker has unpacked in this
    /// boot stay: an interrupted pull does not unpack them twice. Those of another boot may have lost data. Waits
    /// while another process works in it.
    pub(super) fn in_pull(folder: &Path, boot: &str) -> Result<Self, ImageError> {
        let path = folder.join(format!("{UNPACKED}{boot}"));
        match fs::create_dir(&path) {
            Err(why) if why.kind() != io::ErrorKind::AlreadyExists => {
                return Err(io_error("create directory", &path)(why));
            }
            _ => {}
        }
        let dir = File::open(&path).map_err(io_error("open", &path))?;
        let dir = Flock::lock(dir, FlockArg::LockExclusive);
        let dir = dir.map_err(|(_, why)| io_error("lock", &path)(why))?;
        let others = |name: &str| name.starts_with(UNPACKED) && !name.ends_with(boot);
        remove_entries(folder, others)?;
        remove_entries(&path, |name| name.starts_with(UNFINISHED))?;
        Ok(Self {
            path,
            dir,
            kept: true,
        })
    }

    /// Where a layer is unpacked.
    pub(super) fn unfinished(&self, number: usize) -> PathBuf {
        self.path.join(format!("{UNFINISHED}{number}"))
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
        let _ = match self.kept {
            true => remove_entries(&self.path, |name| name.starts_with(UNFINISHED)),
            false => tree::remove(&self.path).map_err(io_error("remove", &self.path)),
        };
    }
}

/// Removes the entries of a folder whose names are meant; an absent folder has none.
fn remove_entries(folder: &Path, meant: impl Fn(&str) -> bool) -> Result<(), ImageError> {
    let entries = match fs::read_dir(folder) {
        Err(why) if why.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => other.map_err(io_error("list", folder))?,
    };
    for entry in entries {
        let entry = entry.map_err(io_error("list", folder))?;
        if entry.file_name().to_str().is_some_and(&meant) {
            let path = entry.path();
            tree::remove(&path).map_err(io_error("remove", &path))?;
        }
    }
    Ok(())
}
