//! The removal of images: names, images without names, and data that no image refers to any more.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs::{self, DirEntry, File};
use std::io;
use std::path::Path;

use nix::fcntl::{Flock, FlockArg};

use super::digest;
use super::error::{ImageError, io};
use super::name;
use super::preload;
use super::registry;
use super::store::{ImageStore, LAYER_RECORD, Record, read_json};
use crate::sys::tree;
use crate::types::Gather;

/// Downloads that were not continued for a week are given up.
const IDLE_SECONDS: i64 = 7 * 24 * 3600;

/// When the disk is full, those that rest for an hour are: pods try at least every five minutes.
const IDLE_UNDER_PRESSURE_SECONDS: i64 = 3600;

/// The result of [`ImageStore::remove`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Removed {
    /// Removed names.
    pub untagged: Vec<String>,
    /// The image's id, if the image itself was removed.
    pub deleted: Option<String>,
}

/// The result of [`ImageStore::prune`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pruned {
    /// Ids of removed images.
    pub deleted: Vec<String>,
    /// Sum of their sizes; shared layers are counted for each.
    pub freed_bytes: u64,
}

/// What is asked to be removed.
struct Asked<'a> {
    id: &'a str,
    /// Its names.
    names: &'a [String],
    /// Those of them that go.
    going: &'a [String],
    /// Whether it is asked for by id: all names go.
    all: bool,
    /// Whether no name is left.
    last: bool,
}

impl Pruned {
    fn of(doomed: &[Record]) -> Self {
        Self {
            deleted: doomed.iter().map(|record| record.id.clone()).collect(),
            freed_bytes: doomed.iter().map(|record| record.size_bytes).sum(),
        }
    }
}

impl ImageStore {
    /// Removes a name; with its last name the image is removed. By id, the image is removed with its only name. An
    /// image in use is never removed, but one of several names is. A name among `wanted` stays: by it a pod finds its
    /// image again.
    pub fn remove(
        &self,
        given: &str,
        in_use: &BTreeSet<String>,
        wanted: &BTreeSet<String>,
    ) -> Result<Removed, ImageError> {
        self.remove_unless(given, |asked| {
            if asked.all && asked.names.len() > 1 {
                return Err(ImageError::SeveralNames {
                    id: asked.id.to_owned(),
                    names: asked.names.to_owned(),
                });
            }
            let name = given.to_owned();
            if asked.last && in_use.contains(asked.id) {
                return Err(ImageError::InUse { name });
            }
            match asked.going.iter().any(|name| wanted.contains(name)) {
                true => Err(ImageError::Wanted { name }),
                false => Ok(asked.last),
            }
        })
    }

    /// The same by force, as docker has it: by id, the image is removed with all its names, also when a pod will need it
    /// again. An image that containers run from stays; it can only lose its last name. `running`: what runs, by image.
    pub fn remove_by_force(
        &self,
        given: &str,
        running: &BTreeMap<String, String>,
    ) -> Result<Removed, ImageError> {
        self.remove_unless(given, |asked| match running.get(asked.id) {
            Some(user) if asked.all => Err(ImageError::Running {
                name: given.to_owned(),
                user: user.clone(),
            }),
            user => Ok(asked.last && user.is_none()),
        })
    }

    /// Removes a name or all, and the image if `decide` says so.
    fn remove_unless(
        &self,
        given: &str,
        decide: impl Fn(&Asked<'_>) -> Result<bool, ImageError>,
    ) -> Result<Removed, ImageError> {
        let not_found = || ImageError::NotFound {
            name: given.to_owned(),
        };
        let _lock = self.lock()?;
        let id = self.find(given)?.ok_or_else(not_found)?;
        let references = self.references()?;
        let names: Vec<String> = references
            .iter()
            .filter(|(_, of)| **of == id)
            .map(|(name, _)| name.clone())
            .collect();
        let named = name::parse(given)
            .ok()
            .filter(|parsed| parsed.digest.is_none())
            .and_then(|parsed| name::tagged(&parsed))
            .filter(|full| names.contains(full));
        let all = named.is_none();
        let untagged = named.map_or_else(|| names.clone(), |name| vec![name]);
        let delete = decide(&Asked {
            id: &id,
            names: &names,
            going: &untagged,
            all,
            last: all || names.len() <= 1,
        })?;
        for name in &untagged {
            remove(&self.reference_path(name))?;
        }
        sync(&self.dir().join("refs"))?;
        if delete {
            self.delete_records(std::slice::from_ref(&id))?;
        }
        Ok(Removed {
            untagged,
            deleted: delete.then_some(id),
        })
    }

    /// Removes these images with their names, except preloaded ones, and what damaged images leave unless they are in use.
    /// `short`: the disk is short, and downloads that rest go, too.
    pub fn discard(
        &self,
        ids: &[String],
        in_use: &BTreeSet<String>,
        short: bool,
    ) -> Result<Pruned, ImageError> {
        let _lock = self.lock()?;
        self.collect_downloads(match short {
            true => IDLE_UNDER_PRESSURE_SECONDS,
            false => IDLE_SECONDS,
        });
        let damaged = self.remove_damaged(in_use);
        let preloaded = preload::ids(self)?;
        let records = self.readable_records()?.into_iter();
        let doomed = records.filter(|r| ids.contains(&r.id) && !preloaded.contains(&r.id));
        let removed = self.remove_records(&doomed.collect::<Vec<_>>());
        damaged.and(removed)
    }

    /// Removes images without a name; with `all` every image not in use. Preloaded images and images in use stay.
    pub fn prune(&self, in_use: &BTreeSet<String>, all: bool) -> Result<Pruned, ImageError> {
        let _lock = self.lock()?;
        self.collect_downloads(if all { 0 } else { IDLE_SECONDS });
        let damaged = self.remove_damaged(in_use);
        let removed = self.remove_records(&self.prunable(in_use, all)?);
        damaged.and(removed)
    }

    /// What [`ImageStore::prune`] would remove.
    pub fn would_prune(&self, in_use: &BTreeSet<String>, all: bool) -> Result<Pruned, ImageError> {
        let _lock = self.lock()?;
        Ok(Pruned::of(&self.prunable(in_use, all)?))
    }

    /// Removes downloads that nothing was written to for so long. What cannot be removed keeps no image from being removed;
    /// the agent reports it after the next import.
    fn collect_downloads(&self, idle_seconds: i64) {
        let _ = registry::collect(self, idle_seconds);
    }

    /// The caller holds the lock.
    fn prunable(&self, in_use: &BTreeSet<String>, all: bool) -> Result<Vec<Record>, ImageError> {
        let references = self.references()?;
        let named: BTreeSet<&String> = references.values().gather();
        let preloaded = preload::ids(self)?;
        let records = self.readable_records()?.into_iter();
        let unused = records
            .filter(|record| !in_use.contains(&record.id) && !preloaded.contains(&record.id))
            .filter(|record| all || !named.contains(&record.id));
        Ok(unused.collect())
    }

    /// Removes records that are damaged, with the names of their images: they would keep all layers. One that only cannot
    /// be read now stays. Goes on after a failure, and returns the first one. The caller holds the lock.
    fn remove_damaged(&self, in_use: &BTreeSet<String>) -> Result<(), ImageError> {
        let folder = self.dir().join("records");
        let mut ids = Vec::new();
        for entry in fs::read_dir(&folder).map_err(io("list", &folder))? {
            let path = entry.map_err(io("list", &folder))?.path();
            let damaged = matches!(read_json::<Record>(&path), Err(ImageError::Json { .. }));
            let hex = path.file_stem().and_then(|stem| stem.to_str());
            let id = hex.map(|hex| format!("sha256:{hex}"));
            ids.extend(
                id.filter(|id| damaged && *path == self.record_path(id) && !in_use.contains(id)),
            );
        }
        let mut done = self.remove_named(&ids);
        for id in &ids {
            done = done.and(remove(&self.record_path(id)));
        }
        done
    }

    /// Removes images and all their names. Goes on after a failure, and returns the first one. The caller holds the lock.
    fn remove_records(&self, doomed: &[Record]) -> Result<Pruned, ImageError> {
        let deleted: Vec<String> = doomed.iter().map(|record| record.id.clone()).collect();
        // Names first, so that after a crash none stands for a missing image. One that stays counts as missing.
        let unnamed = self.remove_named(&deleted);
        let removed = self.delete_records(&deleted);
        unnamed.and(removed).map(|()| Pruned::of(doomed))
    }

    /// Removes all names of these images. Goes on after a failure, and returns the first one. The caller holds the lock.
    fn remove_named(&self, ids: &[String]) -> Result<(), ImageError> {
        let references = self.references()?;
        let mut done = Ok(());
        for (name, _) in references.iter().filter(|(_, id)| ids.contains(id)) {
            done = done.and(remove(&self.reference_path(name)));
        }
        done.and(sync(&self.dir().join("refs")))
    }

    /// Removes images, then data that only they referred to. Goes on after a failure, and returns the first one. The
    /// caller holds the lock.
    fn delete_records(&self, ids: &[String]) -> Result<(), ImageError> {
        let mut done = Ok(());
        for id in ids {
            done = done.and(remove(&self.record_path(id)));
        }
        done = done.and(sync(&self.dir().join("records")));
        done.and(self.collect())
    }

    /// Removes layers and blobs that no record refers to. The caller holds the lock.
    fn collect(&self) -> Result<(), ImageError> {
        self.collect_except(registry::layers_in_need(self))
    }

    /// The same, but these layers stay. While a record cannot be read everything does: containers may run on its layers.
    fn collect_except(&self, spared: BTreeSet<OsString>) -> Result<(), ImageError> {
        let Ok(records) = self.records() else {
            return Ok(());
        };
        let failures = self.collect_unused(&records, spared);
        failures.into_iter().next().map_or(Ok(()), Err)
    }

    /// Removes the layers and blobs that none of these records refers to, except these layers. Goes on after a failure,
    /// and returns all. The caller holds the lock.
    pub(super) fn collect_unused(
        &self,
        records: &[Record],
        spared: BTreeSet<OsString>,
    ) -> Vec<ImageError> {
        let mut layers = spared;
        let mut blobs: BTreeSet<OsString> = BTreeSet::new();
        let mut directories: BTreeSet<OsString> = BTreeSet::new();
        for record in records {
            blobs.insert(digest::hex(&record.id).into());
            // An earlier version may have written the record again, without it.
            directories.insert(digest::hex(&record.id).into());
            blobs.extend(record.digests.iter().map(|d| digest::hex(d).into()));
            layers.extend(record.layers.iter().map(|l| digest::hex(l).into()));
        }
        let mut failures = Vec::new();
        for (folder, kept) in [
            ("layers", layers),
            ("directories", directories),
            ("blobs/sha256", blobs),
        ] {
            let folder = self.dir().join(folder);
            let entries = match fs::read_dir(&folder) {
                Ok(entries) => entries,
                Err(why) => {
                    failures.push(io("list", &folder)(why));
                    continue;
                }
            };
            for entry in entries {
                let done = match entry.map_err(io("list", &folder)) {
                    Ok(entry) if kept.contains(&entry.file_name()) => Ok(()),
                    Ok(entry) => self.remove_unused(&folder, &entry),
                    Err(why) => Err(why),
                };
                failures.extend(done.err());
            }
        }
        failures
    }

    fn remove_unused(&self, folder: &Path, entry: &DirEntry) -> Result<(), ImageError> {
        let path = entry.path();
        if !path.is_dir() {
            return remove(&path);
        }
        // Moved away first: a half-removed layer must not be taken for a complete one after a crash.
        let grave = self.dir().join("tmp").join(format!(
            "gone-{}-{}",
            std::process::id(),
            entry.file_name().to_string_lossy()
        ));
        if let Err(why) = fs::rename(&path, &grave) {
            // One that stays must not be, either: without its record it does not count.
            remove(&path.join(LAYER_RECORD))?;
            return Err(io("move", &path)(why));
        }
        sync(folder)?;
        remove(&grave)
    }
}

/// Removes staging directories whose worker is gone (it holds a lock while it lives), and abandoned downloads. Goes on
/// after a failure, and returns the first one.
pub(crate) fn remove_leftovers(store: &ImageStore) -> Result<(), ImageError> {
    let folder = store.dir().join("tmp");
    let mut done = Ok(());
    for entry in fs::read_dir(&folder).map_err(io("list", &folder))? {
        let entry = entry.map_err(io("list", &folder));
        done = done.and(entry.and_then(|entry| remove_leftover(&entry.path())));
    }
    done.and(registry::collect(store, IDLE_SECONDS))
}

fn remove_leftover(path: &Path) -> Result<(), ImageError> {
    let dir = match File::open(path) {
        Err(why) if why.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => other.map_err(io("open", path))?,
    };
    match Flock::lock(dir, FlockArg::LockExclusiveNonblock) {
        Ok(_lock) => remove(path),
        Err(_) => Ok(()),
    }
}

/// Removes a file, or the directory that a check of the file system has put in its place; an absent one is fine.
pub(super) fn remove(path: &Path) -> Result<(), ImageError> {
    tree::remove(path).map_err(io("remove", path))
}

/// Makes renames and removals in a directory durable.
pub(crate) fn sync(folder: &Path) -> Result<(), ImageError> {
    File::open(folder)
        .and_then(|dir| dir.sync_all())
        .map_err(io("sync", folder))
}

#[cfg(test)]
#[path = "gc_test.rs"]
mod tests;
