//! Staging directories, in which imports work until they are complete: locked directories of the store's `tmp`, or of
//! its `unpacked` for pulls.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg};

use super::digest;
use super::error::{ImageError, io as io_error};
use super::store::ImageStore;
use crate::sys::tree;

/// What layers are unpacked into before they are whole: with the layer's number behind it.
const UNFINISHED: &str = "unfinished-";

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

    /// Makes a directory for the layers of a pull, or opens it again. Layers that an earlier worker has unpacked in this
    /// boot stay: an interrupted pull does not unpack them twice. Those of another boot may have lost data. Waits
    /// while another process works in it. It is not in the pull's folder: there the worker that talks to the network
    /// may write, and what lies here counts as verified.
    pub(super) fn of_pull(store: &ImageStore, pull: &Path, boot: &str) -> Result<Self, ImageError> {
        let all = unpacked(store);
        make_dir(&all)?;
        let key = pull.file_name().and_then(|key| key.to_str());
        let key = key.unwrap_or_default();
        let path = all.join(format!("{key}-{boot}"));
        make_dir(&path)?;
        let dir = File::open(&path).map_err(io_error("open", &path))?;
        let dir = Flock::lock(dir, FlockArg::LockExclusive);
        let dir = dir.map_err(|(_, why)| io_error("lock", &path)(why))?;
        // Of other boots; what cannot be removed is in the way of nothing.
        let _ = remove_entries(&all, |name| of_key(name, key) && !name.ends_with(boot));
        remove_entries(&path, |name| name.starts_with(UNFINISHED))?;
        Ok(Self {
            path,
            dir,
            kept: true,
        })
    }

    /// Removes what is left, now that the import is complete.
    pub(super) fn finish(mut self) {
        self.kept = false;
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

/// The directories with the layers of pulls, each named by the pull's folder and the id of a boot.
fn unpacked(store: &ImageStore) -> PathBuf {
    store.dir().join("unpacked")
}

fn of_key(name: &str, key: &str) -> bool {
    name.split_once('-').is_some_and(|(of, _)| of == key)
}

/// Makes a directory that only root may enter, unless it is there.
fn make_dir(path: &Path) -> Result<(), ImageError> {
    match DirBuilder::new().mode(0o700).create(path) {
        Err(why) if why.kind() != io::ErrorKind::AlreadyExists => {
            Err(io_error("create directory", path)(why))
        }
        _ => Ok(()),
    }
}

/// Whether a process unpacks layers of the pull in this folder.
pub(super) fn is_unpacking(store: &ImageStore, pull: &Path) -> bool {
    let key = pull.file_name().and_then(|key| key.to_str());
    let entries = fs::read_dir(unpacked(store))
        .into_iter()
        .flatten()
        .flatten();
    entries
        .filter(|entry| {
            let name = entry.file_name();
            key.is_some_and(|key| name.to_str().is_some_and(|name| of_key(name, key)))
        })
        .any(|entry| hold(&entry.path()).is_none())
}

/// Removes the layers of pulls that are gone. Goes on after a failure, and returns the first one.
pub(super) fn collect(store: &ImageStore, pulls: &Path) -> Result<(), ImageError> {
    let all = unpacked(store);
    let entries = match fs::read_dir(&all) {
        Err(why) if why.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => other.map_err(io_error("list", &all))?,
    };
    let mut done = Ok(());
    for entry in entries {
        let entry = entry.map_err(io_error("list", &all))?;
        let name = entry.file_name();
        let key = name.to_str().and_then(|name| name.split_once('-'));
        if key.is_some_and(|(key, _)| pulls.join(key).exists()) {
            continue;
        }
        let path = entry.path();
        if let Some(_lock) = hold(&path) {
            done = done.and(tree::remove(&path).map_err(io_error("remove", &path)));
        }
    }
    done
}

/// Removes what was unpacked for the pull in this folder; whether nothing is left.
pub(super) fn drop_of(store: &ImageStore, pull: &Path) -> bool {
    let key = pull.file_name().and_then(|key| key.to_str());
    let entries = fs::read_dir(unpacked(store));
    let own = entries.into_iter().flatten().flatten().filter(|entry| {
        let name = entry.file_name();
        key.is_some_and(|key| name.to_str().is_some_and(|name| of_key(name, key)))
    });
    let mut all_gone = true;
    for path in own.map(|entry| entry.path()) {
        all_gone &= hold(&path).is_some_and(|_lock| tree::remove(&path).is_ok());
    }
    all_gone
}

/// Locks a directory, unless another process has.
fn hold(path: &Path) -> Option<Flock<File>> {
    let dir = File::open(path).ok()?;
    Flock::lock(dir, FlockArg::LockExclusiveNonblock).ok()
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
