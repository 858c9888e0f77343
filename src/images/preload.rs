//! Archives in the preload directories that are not imported yet.
//!
//! `preload.json` in the store has for each archive which file was imported (size, time and inode) and the result.
//! So a restart imports nothing again, and a changed file is imported again. Preloaded images are never pruned.
//!
//! An unchanged archive is imported again under another policy, or when something of its images was lost. That takes no
//! name from another image: what has the name now came after the archive.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::compress::Packing;
use super::error::{ImageError, io};
use super::gc;
use super::progress::Imported;
use super::signatures;
use super::store::{ImageStore, read_json, write_json};
use super::trust::Policy;
use crate::types::{Gather, InOrder};

/// Identifies one state of a file without reading it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fingerprint {
    size: u64,
    mtime: i64,
    mtime_nanos: i64,
    inode: u64,
}

/// An archive in a preload directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// Its path.
    pub path: PathBuf,
    /// Its state.
    pub fingerprint: Fingerprint,
    /// The policy under which it is to be imported, and the signatures beside it, as a text; [`scan`] leaves it empty.
    pub under: Option<String>,
}

impl Candidate {
    /// Notes the policy under which it is to be imported.
    pub fn note_policy(&mut self, policy: &Policy) {
        self.under = signatures::under(policy, &self.path);
    }
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Entry {
    fingerprint: Fingerprint,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    under: Option<String>,
    ids: Vec<String>,
    /// The names that it gave; none if an earlier version imported it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    names: Option<Vec<String>>,
    /// Whether one of its names may be lost, so that it is to be imported again.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    again: bool,
}

/// What the preload directories have.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Found {
    /// The archives, by name.
    pub archives: Vec<Candidate>,
    /// Directories and archives that cannot be read, as while their disk is away.
    pub unread: Vec<PathBuf>,
}

type Entries = BTreeMap<PathBuf, Entry>;

/// Lists the archives in some directories. It leaves out hidden files, temporary files of editors and copy programs,
/// and files that neither look like nor are named like archives.
pub fn scan(dirs: &[PathBuf]) -> Found {
    let mut found = Found::default();
    for dir in dirs {
        let entries = fs::read_dir(dir).and_then(Iterator::collect::<std::io::Result<Vec<_>>>);
        let Ok(entries) = entries else {
            found.unread.push(dir.clone());
            continue;
        };
        let mut paths: Vec<PathBuf> = entries.iter().map(fs::DirEntry::path).collect();
        paths.order();
        for path in paths {
            match fingerprint(&path) {
                Ok(fingerprint) if is_candidate(&path) => found.archives.push(Candidate {
                    path,
                    fingerprint,
                    under: None,
                }),
                // It is no archive.
                Ok(_) => {}
                // A link to a disk that is away, for one.
                Err(_) if fs::metadata(&path).is_err() => found.unread.push(path),
                Err(_) => {}
            }
        }
    }
    found
}

/// The archives that still have to be imported.
pub fn pending(store: &ImageStore, found: &[Candidate]) -> Result<Vec<Candidate>, ImageError> {
    let entries = read(store)?;
    let mut pending = Vec::new();
    for candidate in found {
        let known = entries
            .get(&candidate.path)
            .filter(|entry| entry.fingerprint == candidate.fingerprint)
            .filter(|entry| entry.under == candidate.under && !entry.again);
        let usable = |entry: &Entry| entry.ids.iter().all(|id| store.is_usable(id));
        if !known.is_some_and(usable) {
            pending.push(candidate.clone());
        }
    }
    Ok(pending)
}

/// Forgets removed archives: their images stay, but may be pruned. What cannot be read is not removed, nor what is in
/// directories that were not scanned (`others`).
pub fn forget_missing(
    store: &ImageStore,
    found: &Found,
    others: &[PathBuf],
) -> Result<(), ImageError> {
    let _lock = store.lock()?;
    let mut entries = read(store)?;
    let before = entries.len();
    entries.retain(|path, _| {
        let mut archives = found.archives.iter();
        archives.any(|candidate| candidate.path == *path)
            || found.unread.iter().any(|unread| path.starts_with(unread))
            || others.iter().any(|dir| path.parent() == Some(dir))
    });
    if entries.len() == before {
        return Ok(());
    }
    write_json(&path(store), &entries)
}

/// Records an import; the caller holds the lock.
pub(crate) fn record(
    store: &ImageStore,
    archive: &Path,
    (fingerprint, under): (Fingerprint, Option<String>),
    imported: &[Imported],
) -> Result<(), ImageError> {
    let mut entries = read(store)?;
    let names = imported.iter().flat_map(|image| &image.names);
    let entry = Entry {
        fingerprint,
        under,
        ids: imported.iter().map(|image| image.id.clone()).collect(),
        names: Some(names.cloned().collect()),
        again: false,
    };
    entries.insert(archive.to_owned(), entry);
    write_json(&path(store), &entries)
}

/// Whether an archive was imported in this state before, under whatever policy.
pub(crate) fn knows(store: &ImageStore, archive: &Path, fingerprint: Fingerprint) -> bool {
    // If the list is damaged, the archive may be a new one.
    let entries = read(store).unwrap_or_default();
    let entry = entries.get(archive);
    entry.is_some_and(|entry| entry.fingerprint == fingerprint)
}

/// Has the archives imported again that gave names whose refs were lost. Those whose images were lost are imported again
/// without that. The caller holds the lock.
pub(super) fn names_lost(store: &ImageStore, refs: &[PathBuf]) -> Result<(), ImageError> {
    if refs.is_empty() {
        return Ok(());
    }
    let mut entries = read(store)?;
    let mut any = false;
    for entry in entries.values_mut() {
        let gave = |name: &String| refs.contains(&store.reference_path(name));
        let lost = entry
            .names
            .as_ref()
            .is_none_or(|names| names.iter().any(gave));
        any |= lost && !entry.again;
        entry.again |= lost;
    }
    if !any {
        return Ok(());
    }
    let path = path(store);
    // On a full disk the list goes, and with it what is known of names that others have by now.
    write_json(&path, &entries).or_else(|_| gc::remove(&path))
}

/// Ids of all preloaded images.
pub(crate) fn ids(store: &ImageStore) -> Result<BTreeSet<String>, ImageError> {
    Ok(read(store)?
        .into_values()
        .flat_map(|entry| entry.ids)
        .gather())
}

/// The archive that an image was preloaded from, if there is one.
pub(crate) fn archive_of(store: &ImageStore, id: &str) -> Option<PathBuf> {
    let entries = read(store).ok()?;
    let of = |(path, entry): (PathBuf, Entry)| entry.ids.iter().any(|of| of == id).then_some(path);
    entries.into_iter().find_map(of)
}

/// The state of a file, or of an OCI layout by its index.
pub(crate) fn fingerprint(path: &Path) -> Result<Fingerprint, ImageError> {
    let mut meta = fs::metadata(path).map_err(io("open", path))?;
    let index = path.join("index.json");
    if meta.is_dir() {
        meta = fs::metadata(&index).map_err(|why| match why.kind() {
            std::io::ErrorKind::NotFound => ImageError::NotAnImage {
                path: path.to_owned(),
                why: "it is a directory without `index.json`".to_owned(),
            },
            _ => io("open", &index)(why),
        })?;
    }
    Ok(Fingerprint {
        size: meta.size(),
        mtime: meta.mtime(),
        mtime_nanos: meta.mtime_nsec(),
        inode: meta.ino(),
    })
}

fn read(store: &ImageStore) -> Result<Entries, ImageError> {
    Ok(read_json(&path(store))?.unwrap_or_default())
}

/// The path of the list of imported archives.
pub(super) fn path(store: &ImageStore) -> PathBuf {
    store.dir().join("preload.json")
}

fn is_candidate(path: &Path) -> bool {
    let Some(name) = path.file_name().and_then(|name| name.to_str()) else {
        return false;
    };
    let unfinished = [".swp", ".tmp", ".part", "~"];
    if name.starts_with('.') || unfinished.iter().any(|end| name.ends_with(end)) {
        return false;
    }
    if path.is_dir() {
        return path.join("oci-layout").is_file();
    }
    let named = [".tar", ".tar.gz", ".tgz", ".tar.zst", ".tar.zstd"];
    path.is_file() && (named.iter().any(|end| name.ends_with(end)) || starts_like_archive(path))
}

fn starts_like_archive(path: &Path) -> bool {
    let mut start = Vec::new();
    let read = fs::File::open(path).and_then(|file| file.take(512).read_to_end(&mut start));
    read.is_ok()
        && (Packing::detect(&start) != Packing::Plain
            || start.get(257..262) == Some(b"ustar".as_slice()))
}

#[cfg(test)]
#[path = "preload_test.rs"]
mod tests;
