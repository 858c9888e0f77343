//! The check of the image store. After a power cut, or on a failing disk, damaged images must be found before a pod
//! runs on them.
//!
//! An image is intact if its record, config and manifest exist with their digests, and each layer has the files
//! that it was unpacked with ([`mark`]); on request also their contents ([`super::compare`]). [`ImageStore::repair`] removes damaged images, names first, so that after
//! a crash at any line no damaged image has a name; preloaded archives that lost an image or a name are imported again.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use super::compare::Contents;
use super::digest;
use super::error::{ImageError, io};
use super::gc;
use super::mark;
use super::preload;
use super::store::{ImageStore, LAYER_RECORD, LayerRecord, Record, Reference, read_json};

use crate::sys::file;
use crate::types::{Gather, InOrder};

/// The result of a check of the store.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Check {
    /// The number of images checked.
    pub images: usize,
    /// The number of layers checked; a shared layer counts once.
    pub layers: usize,
    /// The damaged parts.
    pub damage: Vec<Damage>,
    /// The number of layers and blobs that no image refers to, and of unfinished files: they only cost space.
    pub unused: usize,
    /// The damaged images, as far as they are known: a repair removes them.
    pub lost: Vec<Lost>,
    /// What a repair could not remove.
    pub left: Vec<Left>,
}

/// A file or folder that a repair could not remove.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Left {
    /// The file or folder, if one is known.
    pub path: Option<PathBuf>,
    /// What failed, and on which file.
    pub why: String,
}

/// A damaged image, and where it came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lost {
    /// Its id.
    pub id: String,
    /// The names that were pulled from their registries.
    pub pulled: Vec<String>,
    /// Its other names.
    pub given: Vec<String>,
    /// The archive that it was preloaded from.
    pub archive: Option<PathBuf>,
}

/// A damaged part of the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damage {
    /// The kind of the part.
    pub kind: DamageKind,
    /// The damaged file or folder.
    pub path: PathBuf,
    /// The image that is damaged by it, by its first name or its id; `None` if that cannot be known.
    pub image: Option<String>,
    /// What is wrong with it.
    pub why: String,
}

/// The kind of a damaged part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DamageKind {
    /// A manifest or a config.
    Blob,
    /// An unpacked layer.
    Layer,
    /// The record of an image.
    Record,
    /// A name.
    Reference,
    /// The list of preloaded archives.
    Preload,
}

impl DamageKind {
    /// The kind's name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Blob => "Blob",
            Self::Layer => "Layer",
            Self::Record => "Record",
            Self::Reference => "Reference",
            Self::Preload => "Preload",
        }
    }
}

impl Check {
    /// Whether a repair could not remove this.
    pub fn has_left(&self, damage: &Damage) -> bool {
        let mut left = self.left.iter();
        left.any(|left| left.path.as_ref() == Some(&damage.path))
    }
}

impl std::fmt::Display for Damage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.image {
            Some(image) => write!(f, "{image}: {}", self.why),
            None => write!(f, "`{}`: {}", self.path.display(), self.why),
        }
    }
}

/// The damage of one image.
#[derive(Debug, Clone)]
struct Fault {
    kind: DamageKind,
    path: PathBuf,
    why: String,
}

/// The damage, and the files to remove for it.
#[derive(Default)]
struct Findings {
    check: Check,
    /// The ids of undamaged images.
    whole: BTreeSet<String>,
    /// Damaged refs and records, and refs to missing or damaged images.
    refs: Vec<PathBuf>,
    records: Vec<PathBuf>,
    /// Whether the list of preloaded archives is invalid.
    preload: bool,
    /// Intact layers of damaged images that a registry has: they need not be fetched again.
    spared: BTreeSet<OsString>,
}

impl ImageStore {
    /// Checks everything but contents, and changes nothing. Waits until no import is being finished.
    pub fn check(&self) -> Result<Check, ImageError> {
        self.check_with(&Contents::default())
    }

    /// The same; what a comparison found is damage, too.
    pub fn check_with(&self, contents: &Contents) -> Result<Check, ImageError> {
        let _lock = self.lock()?;
        Ok(self.look(contents)?.check)
    }

    /// Checks everything but contents, and removes what is damaged or unused. No container may be running on it.
    pub fn repair(&self) -> Result<Check, ImageError> {
        self.repair_with(&Contents::default())
    }

    /// The same; what a comparison found is damage, too. Intact layers of images that were pulled stay, so that the
    /// next pull fetches only the others. Goes on with the rest after what cannot be removed, which is in [`Check::left`]:
    /// pods must not run on a damaged image because another file is in the way.
    pub fn repair_with(&self, contents: &Contents) -> Result<Check, ImageError> {
        let _lock = self.lock()?;
        let mut found = self.look(contents)?;
        if !found.preload {
            // First: the next check does not miss refs that are gone. Without the note, damaged ones stay until then.
            let noted = preload::names_lost(self, &found.refs);
            if noted.is_err() {
                found.refs.clear();
            }
            found.note(noted);
        }
        for path in found
            .refs
            .iter()
            .chain(&found.records)
            .cloned()
            .gather::<Vec<_>>()
        {
            found.note(gc::remove(&path));
        }
        for folder in ["refs", "records"] {
            let folder = self.dir().join(folder);
            found.note(gc::remove(&folder.join(".new")));
            found.note(gc::sync(&folder));
        }
        // A damaged record that stays must not keep its damaged layers: an import would take them for whole.
        let mut records = self.readable_records()?;
        records.retain(|record| found.whole.contains(&record.id));
        let spared = std::mem::take(&mut found.spared);
        for why in self.collect_unused(&records, spared) {
            found.note(Err(why));
        }
        // Last: until everything is repaired, the next check finds the damage again.
        if found.preload {
            found.note(gc::remove(&preload::path(self)));
            found.note(gc::sync(self.dir()));
        }
        Ok(found.check)
    }

    fn look(&self, contents: &Contents) -> Result<Findings, ImageError> {
        let mut found = Findings::default();
        let references = self.look_at_references(&mut found)?;
        let used = self.look_at_images(&references, contents, &mut found)?;
        self.look_for_lost(references, &mut found);
        if let Err(why) = preload::ids(self) {
            let list = preload::path(self);
            found.damaged_file(DamageKind::Preload, &list, &crate::chain(&why));
            found.preload = true;
        }
        found.check.unused = self.unused(&used)?;
        Ok(found)
    }

    /// Checks each image, and returns the names of the layers and blobs that they use.
    fn look_at_images(
        &self,
        references: &BTreeMap<PathBuf, Reference>,
        contents: &Contents,
        found: &mut Findings,
    ) -> Result<BTreeSet<OsString>, ImageError> {
        let (mut marks, mut used) = (BTreeMap::new(), BTreeSet::new());
        for path in documents(&self.dir().join("records"))? {
            found.check.images += 1;
            let Some(record) = self.look_at_record(&path, found) else {
                found.records.push(path);
                continue;
            };
            let hexes = record.digests.iter().chain(&record.layers);
            used.extend(hexes.chain([&record.id]).map(|d| digest::hex(d).into()));
            match self.damage_of(&record, contents, &mut marks) {
                None => {
                    found.whole.insert(record.id);
                }
                Some(fault) => {
                    let lost = self.lost(&record.id, references);
                    if !lost.pulled.is_empty() {
                        let whole = |layer: &&String| matches!(marks.get(*layer), Some(None));
                        let whole = record.layers.iter().filter(whole);
                        found
                            .spared
                            .extend(whole.map(|layer| digest::hex(layer).into()));
                    }
                    found.check.lost.push(lost);
                    let name = references.values().find(|r| r.id == record.id);
                    let image = name.map_or(record.id, |reference| reference.name.clone());
                    found.check.damage.push(Damage {
                        kind: fault.kind,
                        path: fault.path,
                        image: Some(image),
                        why: fault.why,
                    });
                    found.records.push(path);
                }
            }
        }
        found.check.layers = marks.len();
        Ok(used)
    }

    /// Where a damaged image came from.
    fn lost(&self, id: &str, references: &BTreeMap<PathBuf, Reference>) -> Lost {
        let mut lost = Lost {
            id: id.to_owned(),
            pulled: Vec::new(),
            given: Vec::new(),
            archive: preload::archive_of(self, id),
        };
        for reference in references.values().filter(|reference| reference.id == id) {
            match reference.pulled {
                true => lost.pulled.push(reference.name.clone()),
                false => lost.given.push(reference.name.clone()),
            }
        }
        lost
    }

    /// Reads an image's record; `None` if it is damaged.
    fn look_at_record(&self, path: &Path, found: &mut Findings) -> Option<Record> {
        let why = match read_json::<Record>(path) {
            Ok(Some(record)) if self.record_path(&record.id) == path => return Some(record),
            Ok(_) => "it belongs to a different image".to_owned(),
            Err(why) => crate::chain(&why),
        };
        found.damaged_file(DamageKind::Record, path, &why);
        None
    }

    /// Finds the refs whose image is missing or damaged.
    fn look_for_lost(&self, references: BTreeMap<PathBuf, Reference>, found: &mut Findings) {
        for (path, reference) in references {
            if found.whole.contains(&reference.id) {
                continue;
            }
            // The damage of its image has been reported.
            if self.record(&reference.id).is_ok_and(|r| r.is_none()) {
                found.check.damage.push(Damage {
                    kind: DamageKind::Reference,
                    path: path.clone(),
                    image: Some(reference.name),
                    why: "its image is missing".to_owned(),
                });
            }
            found.refs.push(path);
        }
    }

    /// The readable refs, with their files.
    fn look_at_references(
        &self,
        found: &mut Findings,
    ) -> Result<BTreeMap<PathBuf, Reference>, ImageError> {
        let mut references = BTreeMap::new();
        for path in documents(&self.dir().join("refs"))? {
            match read_json::<Reference>(&path) {
                Ok(Some(reference)) => {
                    references.insert(path, reference);
                }
                Ok(None) => {}
                Err(why) => {
                    found.damaged_file(DamageKind::Reference, &path, &crate::chain(&why));
                    found.refs.push(path);
                }
            }
        }
        Ok(references)
    }

    /// What is wrong with an image, if anything. `marks` are the layers checked so far; all of its own are checked.
    fn damage_of(
        &self,
        record: &Record,
        contents: &Contents,
        marks: &mut BTreeMap<String, Option<Fault>>,
    ) -> Option<Fault> {
        let mut damaged = self.damage_of_blobs(record);
        for layer in &record.layers {
            let fault = marks.entry(layer.clone()).or_insert_with(|| {
                let compared = contents.damaged.get(layer).cloned();
                let damage = self.damage_of_layer(layer).or(compared);
                damage.map(|why| Fault {
                    kind: DamageKind::Layer,
                    path: self.layer_dir(layer),
                    why,
                })
            });
            damaged = damaged.or_else(|| fault.clone());
        }
        damaged.or_else(|| self.damage_of_directories(record))
    }

    fn damage_of_directories(&self, record: &Record) -> Option<Fault> {
        let written = record.directories.as_ref()?;
        let path = self.directories_dir(&record.id);
        let why = match mark::of(&path) {
            Ok(mark) if mark == *written => return None,
            Ok(_) => "its additional layer differs from what was made".to_owned(),
            Err(why) => format!("its additional layer cannot be read: {why}"),
        };
        let kind = DamageKind::Layer;
        Some(Fault { kind, path, why })
    }

    fn damage_of_blobs(&self, record: &Record) -> Option<Fault> {
        // Of the digests that led to the image, only its manifest's is a blob here.
        for digest in [Some(&record.id), record.digests.first()]
            .into_iter()
            .flatten()
        {
            let path = self.blob_path(digest);
            let why = match file::read_record(&path) {
                Ok(bytes) if digest::of(&bytes) == *digest => continue,
                Ok(_) => format!("the content of blob {digest} does not match"),
                Err(why) => format!("blob {digest} cannot be read: {why}"),
            };
            let kind = DamageKind::Blob;
            return Some(Fault { kind, path, why });
        }
        None
    }

    fn damage_of_layer(&self, layer: &str) -> Option<String> {
        let folder = self.layer_dir(layer);
        let written = match read_json::<LayerRecord>(&folder.join(LAYER_RECORD)) {
            Ok(Some(record)) => record,
            Ok(None) => return Some(format!("layer {layer} is missing")),
            Err(why) => return Some(format!("layer {layer}: {}", crate::chain(&why))),
        };
        match mark::of(&folder.join("diff")) {
            // A layer without a mark was unpacked by an earlier version.
            Ok(mark) if written.mark.as_ref().is_none_or(|m| *m == mark) => None,
            Ok(_) => Some(format!("layer {layer} differs from what was unpacked")),
            Err(why) => Some(format!("layer {layer} cannot be read: {why}")),
        }
    }

    fn unused(&self, used: &BTreeSet<OsString>) -> Result<usize, ImageError> {
        let mut unused = 0;
        for folder in ["layers", "directories", "blobs/sha256"] {
            let folder = self.dir().join(folder);
            for entry in fs::read_dir(&folder).map_err(io("list", &folder))? {
                let name = entry.map_err(io("list", &folder))?.file_name();
                unused += usize::from(!used.contains(&name));
            }
        }
        Ok(unused)
    }
}

impl Findings {
    /// Notes what could not be removed.
    fn note(&mut self, done: Result<(), ImageError>) {
        if let Err(why) = done {
            self.check.left.push(Left {
                path: why.path().map(Path::to_owned),
                why: crate::chain(&why),
            });
        }
    }

    fn damaged_file(&mut self, kind: DamageKind, path: &Path, why: &str) {
        self.check.damage.push(Damage {
            kind,
            path: path.to_owned(),
            image: None,
            why: why.to_owned(),
        });
    }
}

/// The JSON files of a folder, by name.
fn documents(folder: &Path) -> Result<Vec<PathBuf>, ImageError> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).map_err(io("list", folder))? {
        let path = entry.map_err(io("list", folder))?.path();
        if path.extension().is_some_and(|e| e == "json") {
            found.push(path);
        }
    }
    found.order();
    Ok(found)
}
