//! Archives in the preload directories that are not imported yet.
//!
//! `preload.json` in the store has for each archive which file was imported (size, time and inode) and the result.
//! So a restart imports nothing again, and a changed file is imported again. Preloaded images are never pruned.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::compress::Packing;
use super::error::{ImageError, io};
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
}

type Entries = BTreeMap<PathBuf, Entry>;

/// Lists the archives in some directories, by name. It leaves out missing directories, hidden files, temporary
/// files of editors and copy programs, and files that neither look like nor are named like archives.
pub fn scan(dirs: &[PathBuf]) -> Vec<Candidate> {
    let mut found = Vec::new();
    for dir in dirs {
        let Ok(entries) = fs::read_dir(dir) else {
            continue;
        };
        let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
        paths.order();
        for path in paths.into_iter().filter(|path| is_candidate(path)) {
            if let Ok(fingerprint) = fingerprint(&path) {
                found.push(Candidate {
                    path,
                    fingerprint,
                    under: None,
                });
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
            .filter(|entry| entry.under == candidate.under);
        let mut complete = known.is_some();
        for id in known.iter().flat_map(|entry| &entry.ids) {
            complete &= store.record(id)?.is_some();
        }
        if !complete {
            pending.push(candidate.clone());
        }
    }
    Ok(pending)
}

/// Forgets removed archives: their images stay, but may be pruned.
pub fn forget_missing(store: &ImageStore, found: &[Candidate]) -> Result<(), ImageError> {
    let _lock = store.lock()?;
    let mut entries = read(store)?;
    let before = entries.len();
    entries.retain(|path, _| found.iter().any(|candidate| candidate.path == *path));
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
    ids: Vec<String>,
) -> Result<(), ImageError> {
    let mut entries = read(store)?;
    let entry = Entry {
        fingerprint,
        under,
        ids,
    };
    entries.insert(archive.to_owned(), entry);
    write_json(&path(store), &entries)
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
