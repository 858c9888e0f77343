//! The folder of a pull, below `pulls` in the store: an OCI layout that grows, and the files that are not complete yet.
//!
//! ```text
//! pulls/<key>/                   locked by the worker at work; one for each image and platform
//!   oci-layout, index.json       written when manifest and config are there
//!   blobs/sha256/<hex>           complete and verified
//!   signatures                   those of the image that the policy demands
//!   layers                       diff ids of all its layers, a line each: those in the store stay until it is imported
//!   partial/<hex>, <hex>.json    what has arrived of a blob ([`super::partial`])
//! ```
//!
//! It outlives workers, agents and boots, until the image is imported, or a week after the last pull of it.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg};

use super::super::digest;
use super::super::error::{ImageError, io as io_error};
use super::super::oci::Platform;
use super::super::staging;
use super::super::store::ImageStore;
use super::super::trust::{Signature, signature_list};
use super::resolve::Document;
use crate::spec::ImageName;
use crate::sys::file::{Durability, read_bounded, replace};
use crate::sys::{clock, tree};

/// The digits of a folder's name.
const KEY_DIGITS: usize = 32;

/// The longest `index.json`: it has one descriptor.
const MAX_INDEX_BYTES: u64 = 16 << 10;

/// The file with the image's signatures.
pub(crate) const SIGNATURES: &str = "signatures";

/// The file with the diff ids of the image's layers.
const LAYERS: &str = "layers";

/// The longest list of layers.
const MAX_LAYERS_BYTES: u64 = 1 << 20;

/// A folder of a pull, held by this process.
#[derive(Debug)]
pub(crate) struct PullFolder {
    path: PathBuf,
    _lock: Flock<File>,
}

impl PullFolder {
    /// Where a pull of that image for that platform has its folder.
    pub(super) fn place(store: &ImageStore, name: &str, platform: &str) -> PathBuf {
        let key = digest::of(format!("{name} {platform}").as_bytes());
        let key = &digest::hex(&key)[..KEY_DIGITS];
        pulls(store).join(key)
    }

    /// Makes the folder of all pulls.
    pub(super) fn make_parent(store: &ImageStore) -> Result<(), ImageError> {
        let path = pulls(store);
        fs::create_dir_all(&path).map_err(io_error("create directory", &path))
    }

    /// Makes the folder, or opens it again. Waits while another process holds it.
    pub(super) fn make(path: &Path) -> Result<Self, ImageError> {
        loop {
            for part in ["blobs/sha256", "partial"] {
                let part = path.join(part);
                fs::create_dir_all(&part).map_err(io_error("create directory", &part))?;
            }
            // A collector may have been faster; then it is made again.
            match Self::hold(path) {
                Ok(Some(folder)) if path.join("partial").is_dir() => return Ok(folder),
                Ok(_) => {}
                Err(why) => return Err(why),
            }
        }
    }

    /// Opens a folder and waits until no other process holds it; `None` if it is gone then.
    pub(crate) fn hold(path: &Path) -> Result<Option<Self>, ImageError> {
        let dir = match File::open(path) {
            Err(why) if why.kind() == io::ErrorKind::NotFound => return Ok(None),
            other => other.map_err(io_error("open", path))?,
        };
        let lock = Flock::lock(dir, FlockArg::LockExclusive);
        let lock = lock.map_err(|(_, why)| io_error("lock", path)(why))?;
        let held = lock.metadata().map_err(io_error("read", path))?.ino();
        let there = fs::metadata(path).ok().map(|found| found.ino());
        Ok((there == Some(held)).then(|| Self {
            path: path.to_owned(),
            _lock: lock,
        }))
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The place of a complete blob.
    pub(super) fn blob(&self, digest: &str) -> PathBuf {
        self.path.join("blobs/sha256").join(digest::hex(digest))
    }

    /// The place of a blob that is not complete.
    pub(super) fn partial(&self, digest: &str) -> PathBuf {
        self.path.join("partial").join(digest::hex(digest))
    }

    /// Writes a small verified blob.
    pub(super) fn keep(&self, digest: &str, bytes: &[u8]) -> Result<(), ImageError> {
        let path = self.blob(digest);
        replace(&path, bytes, 0o600, Durability::PowerCut).map_err(io_error("write", &path))
    }

    /// Writes which layers the image has.
    pub(super) fn keep_layers<'a>(
        &self,
        diff_ids: impl Iterator<Item = &'a String>,
    ) -> Result<(), ImageError> {
        let path = self.path.join(LAYERS);
        let list: String = diff_ids
            .map(|id| format!("{}\n", digest::hex(id)))
            .collect();
        replace(&path, list.as_bytes(), 0o600, Durability::Process)
            .map_err(io_error("write", &path))
    }

    /// Writes the image's signatures.
    pub(super) fn keep_signatures(&self, signatures: &[Signature]) -> Result<(), ImageError> {
        let path = self.path.join(SIGNATURES);
        let list = signature_list(signatures);
        replace(&path, &list, 0o600, Durability::PowerCut).map_err(io_error("write", &path))
    }

    /// Makes the folder an OCI layout with one manifest or index at its top. Its layers may come later. `chosen`: the
    /// platform that the manifest was chosen for from an index, which is left out.
    pub(super) fn describe(
        &self,
        (digest, size): (&str, usize),
        media_type: &str,
        chosen: Option<&Platform>,
    ) -> Result<(), ImageError> {
        let mut entry =
            serde_json::json!({ "mediaType": media_type, "digest": digest, "size": size });
        if let Some(chosen) = chosen {
            entry["platform"] = serde_json::json!(chosen);
        }
        self.complete_with(&[entry])
    }

    /// The same with these descriptors at its top.
    pub(super) fn complete_with(&self, entries: &[serde_json::Value]) -> Result<(), ImageError> {
        let index = serde_json::json!({ "schemaVersion": 2, "manifests": entries });
        for (name, text) in [
            ("oci-layout", r#"{"imageLayoutVersion":"1.0.0"}"#.to_owned()),
            ("index.json", index.to_string()),
        ] {
            let path = self.path.join(name);
            replace(&path, text.as_bytes(), 0o600, Durability::PowerCut)
                .map_err(io_error("write", &path))?;
        }
        Ok(())
    }

    /// Removes the folder: everything in it has been imported.
    pub(crate) fn remove(self) -> Result<(), ImageError> {
        tree::remove(&self.path).map_err(io_error("remove", &self.path))
    }
}

impl ImageStore {
    /// The bytes that have arrived of an image for this machine, which is not imported yet.
    pub fn arrived_bytes(&self, name: &ImageName) -> u64 {
        let folder = of_image(self, name);
        let parts = ["partial", "blobs/sha256"].map(|part| folder.join(part));
        let files = parts.iter().flat_map(|part| {
            let entries = fs::read_dir(part).into_iter().flatten().flatten();
            entries.filter_map(|entry| entry.metadata().ok())
        });
        // Pieces may be written anywhere in a file.
        files.map(|file| file.blocks().saturating_mul(512)).sum()
    }

    /// Removes what was unpacked of such an image, and keeps what has arrived. Returns whether nothing is left: a worker
    /// that was killed may not have ended yet.
    pub fn drop_unpacked(&self, name: &ImageName) -> bool {
        staging::drop_of(self, &of_image(self, name))
    }
}

fn of_image(store: &ImageStore, name: &ImageName) -> PathBuf {
    PullFolder::place(store, &name.to_string(), &Platform::own().shown())
}

/// Removes the blobs of a download that are not what their names say. What is left is as its registry has it.
pub fn remove_damaged_blobs(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder.join("blobs/sha256"))? {
        let entry = entry?;
        let path = entry.path();
        let whole = entry.file_type()?.is_file() && {
            let (digest, _) = digest::Hashing::new(File::open(&path)?).finish()?;
            entry.file_name() == digest::hex(&digest)
        };
        if !whole {
            tree::remove(&path)?;
        }
    }
    Ok(())
}

fn pulls(store: &ImageStore) -> PathBuf {
    store.dir().join("pulls")
}

/// Removes the folders of pulls that no process holds and that nothing was written to for `idle_seconds`.
pub(crate) fn collect(store: &ImageStore, idle_seconds: i64) -> Result<(), ImageError> {
    let (now, _) = clock::wall_ns();
    remove_free(store, |path| {
        // Its blobs are read after the download has ended, too. A clock that was set back makes nothing old.
        !staging::is_unpacking(store, path) && now.saturating_sub(last_write(path)) >= idle_seconds
    })
}

/// The layers of images that are being pulled, as the store names them. What cannot be read needs none.
pub(crate) fn layers_in_need(store: &ImageStore) -> BTreeSet<OsString> {
    let folders = fs::read_dir(pulls(store)).into_iter().flatten().flatten();
    let lists = folders
        .filter_map(|folder| read_bounded(folder.path().join(LAYERS), MAX_LAYERS_BYTES).ok());
    let mut needed = BTreeSet::new();
    for list in lists {
        let lines = list.split(|byte| *byte == b'\n');
        needed.extend(lines.map(|line| OsStr::from_bytes(line).to_owned()));
    }
    needed
}

/// Removes the folders of images that the store has by now: a crash came between their import and its last step. To be
/// called while nothing is pulled.
pub(crate) fn remove_imported(store: &ImageStore) -> Result<(), ImageError> {
    let mut stored = store.readable_records()?;
    stored.retain(|record| {
        let mut layers = record.layers.iter();
        layers.all(|layer| store.has_layer(layer))
    });
    remove_free(store, |path| {
        let image = described(path);
        image.is_some_and(|image| stored.iter().any(|of| of.digests.contains(&image)))
    })
}

/// Removes the folders that no process holds and that are `unwanted`, and then what was unpacked for those that are gone.
/// Goes on after a failure, and returns the first one.
fn remove_free(store: &ImageStore, unwanted: impl Fn(&Path) -> bool) -> Result<(), ImageError> {
    let folder = pulls(store);
    let entries = match fs::read_dir(&folder) {
        Err(why) if why.kind() == io::ErrorKind::NotFound => {
            return staging::collect(store, &folder);
        }
        other => other.map_err(io_error("list", &folder))?,
    };
    let mut done = Ok(());
    for entry in entries {
        let path = match entry.map_err(io_error("list", &folder)) {
            Ok(entry) => entry.path(),
            Err(why) => {
                done = done.and(Err(why));
                continue;
            }
        };
        let Ok(dir) = File::open(&path) else {
            continue;
        };
        let Ok(_lock) = Flock::lock(dir, FlockArg::LockExclusiveNonblock) else {
            continue;
        };
        if unwanted(&path) {
            done = done.and(tree::remove(&path).map_err(io_error("remove", &path)));
        }
    }
    done.and(staging::collect(store, &folder))
}

/// The manifest or index at the top of a folder; `None` if not even that has arrived, or if there are several.
fn described(folder: &Path) -> Option<String> {
    let bytes = read_bounded(folder.join("index.json"), MAX_INDEX_BYTES).ok()?;
    let document: Document = serde_json::from_slice(&bytes).ok()?;
    match document.manifests?.as_mut_slice() {
        [one] => Some(std::mem::take(&mut one.digest)),
        _ => None,
    }
}

/// The time of the newest file, in seconds since 1970.
fn last_write(folder: &Path) -> i64 {
    let parts = ["", "partial", "blobs/sha256"].map(|part| folder.join(part));
    let inside = parts.iter().flat_map(|part| {
        let entries = fs::read_dir(part).into_iter().flatten().flatten();
        entries.map(|entry| entry.path())
    });
    let all = inside.chain([folder.to_owned()]);
    let times = all.filter_map(|path| fs::symlink_metadata(path).ok());
    times.map(|found| found.mtime()).max().unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_damaged_blobs_are_removed() {
        let dir = std::env::temp_dir().join(format!("coracle-blobs-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        let store = ImageStore::open(&dir).unwrap();
        let folder = PullFolder::make(&PullFolder::place(&store, "a", "bundle")).unwrap();
        let (good, bad) = (digest::of(b"good"), digest::of(b"bad"));
        folder.keep(&good, b"good").unwrap();
        folder.keep(&bad, b"worse").unwrap();
        std::os::unix::fs::symlink(folder.blob(&good), folder.blob("sha256:link")).unwrap();
        remove_damaged_blobs(folder.path()).unwrap();
        assert!(folder.blob(&good).exists());
        for gone in [&bad, "sha256:link"] {
            assert!(fs::symlink_metadata(folder.blob(gone)).is_err(), "{gone}");
        }
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn what_was_unpacked_of_an_image_that_does_not_fit_goes_and_what_has_arrived_stays() {
        let dir = std::env::temp_dir().join(format!("coracle-unfit-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        let store = ImageStore::open(&dir).unwrap();
        let (name, other) = (name("big:1"), name("other:1"));
        assert_eq!(store.arrived_bytes(&name), 0);
        assert!(store.drop_unpacked(&name), "nothing has begun");
        let folder = PullFolder::make(&of_image(&store, &name)).unwrap();
        folder.keep(&digest::of(b"blob"), b"blob").unwrap();
        fs::write(folder.partial("sha256:1"), [1; 100_000]).unwrap();
        let arrived = store.arrived_bytes(&name);
        assert!((100_000..200_000).contains(&arrived), "{arrived}");
        let unpacked = |of: &ImageName| {
            let key = of_image(&store, of);
            let key = key.file_name().unwrap().to_string_lossy();
            dir.join("unpacked").join(format!("{key}-boot"))
        };
        for of in [&name, &other] {
            fs::create_dir_all(unpacked(of).join("layer")).unwrap();
        }
        let at_work = Flock::lock(
            File::open(unpacked(&name)).unwrap(),
            FlockArg::LockExclusive,
        );
        assert!(!store.drop_unpacked(&name), "a worker is at it");
        drop(at_work);
        assert!(store.drop_unpacked(&name));
        assert!(!unpacked(&name).exists() && unpacked(&other).exists());
        assert_eq!(store.arrived_bytes(&name), arrived);
        fs::remove_dir_all(&dir).unwrap();
    }

    fn name(text: &str) -> ImageName {
        ImageName::parse(text).unwrap()
    }

    #[test]
    fn only_old_folders_that_no_process_holds_are_collected() {
        let dir = std::env::temp_dir().join(format!("coracle-pulls-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        let store = ImageStore::open(&dir).unwrap();
        let of = |name: &str| PullFolder::place(&store, name, "linux/amd64");
        drop(PullFolder::make(&of("idle")).unwrap());
        let held = PullFolder::make(&of("held")).unwrap();
        collect(&store, 3600).unwrap();
        assert!(of("idle").is_dir(), "it is not old");
        collect(&store, 0).unwrap();
        assert!(!of("idle").exists() && of("held").is_dir());
        held.remove().unwrap();
        assert!(!of("held").exists());
        assert!(PullFolder::hold(&of("held")).unwrap().is_none());
        assert_ne!(
            PullFolder::place(&store, "a", "linux/arm/v6"),
            PullFolder::place(&store, "a", "linux/arm/v7")
        );
        fs::remove_dir_all(&dir).unwrap();
    }
}
