//! Is every image whole? After a power cut, or on a dying disk, what is not must be found before a pod runs on it.
//!
//! An image is whole if its record, config and manifest are there with their digests, and each layer has the files it
//! was unpacked to ([`mark`]). [`ImageStore::repair`] takes away what is not, names first, so that a crash at any line
//! leaves nothing that is seen and not whole; archives in preload directories are imported again then.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use super::digest;
use super::error::{ImageError, io};
use super::gc;
use super::mark;
use super::preload;
use super::store::{ImageStore, LayerRecord, Record, Reference, read_json};

use crate::sys::file;

/// What a check of the store found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Check {
    /// How many images were looked at.
    pub images: usize,
    /// How many layers; those that several images share count once.
    pub layers: usize,
    /// What is damaged.
    pub damage: Vec<Damage>,
    /// Layers and blobs that no image refers to, and unfinished files: of no harm but to space.
    pub unused: usize,
}

/// Something that is not as it was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damage {
    /// What kind of thing it is.
    pub kind: DamageKind,
    /// The file or folder that is damaged.
    pub path: PathBuf,
    /// The image that is not whole for it, by its first name or its id; `None` if that cannot be known.
    pub image: Option<String>,
    /// What is wrong with it.
    pub why: String,
}

/// What is damaged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DamageKind {
    /// A manifest or a config.
    Blob,
    /// An unpacked layer.
    Layer,
    /// What is known of an image.
    Record,
    /// A name.
    Reference,
    /// The list of preloaded archives.
    Preload,
}

impl DamageKind {
    /// Its name.
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

impl std::fmt::Display for Damage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.image {
            Some(image) => write!(f, "{image}: {}", self.why),
            None => write!(f, "`{}`: {}", self.path.display(), self.why),
        }
    }
}

/// What is wrong with an image.
#[derive(Debug, Clone)]
struct Fault {
    kind: DamageKind,
    path: PathBuf,
    why: String,
}

/// What is wrong, and what has to go for it.
#[derive(Default)]
struct Findings {
    check: Check,
    /// Damaged refs and records, and refs to images that are not there or not whole.
    refs: Vec<PathBuf>,
    records: Vec<PathBuf>,
    /// The list of preloaded archives makes no sense.
    preload: bool,
}

impl ImageStore {
    /// Looks at everything, changes nothing. Waits until no import is being finished.
    pub fn check(&self) -> Result<Check, ImageError> {
        let _lock = self.lock()?;
        Ok(self.look()?.check)
    }

    /// Looks at everything and takes away what is damaged or unused. Nothing may be running on it.
    pub fn repair(&self) -> Result<Check, ImageError> {
        let _lock = self.lock()?;
        let found = self.look()?;
        let forget = found.preload || !found.check.damage.is_empty();
        for path in found.refs.iter().chain(&found.records) {
            gc::remove_file(path)?;
        }
        for folder in ["refs", "records"] {
            gc::remove_file(&self.dir().join(folder).join(".new"))?;
            gc::sync(&self.dir().join(folder))?;
        }
        self.collect()?;
        if forget {
            // Last: as long as something is not whole yet, the next look finds it again.
            gc::remove_file(&preload::path(self))?;
            gc::sync(self.dir())?;
        }
        Ok(found.check)
    }

    fn look(&self) -> Result<Findings, ImageError> {
        let mut found = Findings::default();
        let references = self.look_at_references(&mut found)?;
        let mut marks = BTreeMap::new();
        let mut whole: BTreeSet<String> = BTreeSet::new();
        let mut used: BTreeSet<OsString> = BTreeSet::new();
        for path in documents(&self.dir().join("records"))? {
            found.check.images += 1;
            let record = match read_json::<Record>(&path) {
                Ok(Some(record)) if self.record_path(&record.id) == path => record,
                Ok(_) => {
                    found.damaged_file(DamageKind::Record, &path, "it is of another image");
                    found.records.push(path);
                    continue;
                }
                Err(why) => {
                    found.damaged_file(DamageKind::Record, &path, &why.chain());
                    found.records.push(path);
                    continue;
                }
            };
            let hexes = record.digests.iter().chain(&record.layers);
            used.extend(hexes.chain([&record.id]).map(|d| digest::hex(d).into()));
            match self.damage_of(&record, &mut marks)? {
                None => {
                    whole.insert(record.id);
                }
                Some(Fault {
                    kind,
                    path: damaged,
                    why,
                }) => {
                    let name = references.iter().find(|(_, r)| r.id == record.id);
                    let image = name.map_or(record.id, |(_, reference)| reference.name.clone());
                    found.check.damage.push(Damage {
                        kind,
                        path: damaged,
                        image: Some(image),
                        why,
                    });
                    found.records.push(path);
                }
            }
        }
        found.check.layers = marks.len();
        let lost = references
            .into_iter()
            .filter(|(_, reference)| !whole.contains(&reference.id));
        for (path, reference) in lost {
            // That its image is damaged has been said.
            if self.record(&reference.id).is_ok_and(|r| r.is_none()) {
                found.check.damage.push(Damage {
                    kind: DamageKind::Reference,
                    path: path.clone(),
                    image: Some(reference.name),
                    why: "its image is not there".to_owned(),
                });
            }
            found.refs.push(path);
        }
        let list = preload::path(self);
        if let Err(why) = preload::ids(self) {
            found.damaged_file(DamageKind::Preload, &list, &why.chain());
            found.preload = true;
        }
        found.check.unused = self.unused(&used)?;
        Ok(found)
    }

    /// The refs that can be read, with their files.
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
                    found.damaged_file(DamageKind::Reference, &path, &why.chain());
                    found.refs.push(path);
                }
            }
        }
        Ok(references)
    }

    /// What is wrong with an image, if anything. `marks` are the layers that were looked at.
    fn damage_of(
        &self,
        record: &Record,
        marks: &mut BTreeMap<String, Option<Fault>>,
    ) -> Result<Option<Fault>, ImageError> {
        // Of those it was found by, only its manifest's is a blob here.
        for digest in [Some(&record.id), record.digests.first()]
            .into_iter()
            .flatten()
        {
            let path = self.blob_path(digest);
            let why = match file::read_record(&path) {
                Ok(bytes) if digest::of(&bytes) == *digest => continue,
                Ok(_) => format!("the content of blob {digest} is another"),
                Err(why) => format!("blob {digest} cannot be read: {why}"),
            };
            let kind = DamageKind::Blob;
            return Ok(Some(Fault { kind, path, why }));
        }
        for layer in &record.layers {
            let damage = match marks.get(layer) {
                Some(damage) => damage.clone(),
                None => {
                    let damage = self.damage_of_layer(layer).map(|why| Fault {
                        kind: DamageKind::Layer,
                        path: self.layer_dir(layer),
                        why,
                    });
                    marks.insert(layer.clone(), damage.clone());
                    damage
                }
            };
            if damage.is_some() {
                return Ok(damage);
            }
        }
        Ok(None)
    }

    fn damage_of_layer(&self, layer: &str) -> Option<String> {
        let folder = self.layer_dir(layer);
        let written = match read_json::<LayerRecord>(&folder.join("layer.json")) {
            Ok(Some(record)) => record,
            Ok(None) => return Some(format!("layer {layer} is not there")),
            Err(why) => return Some(format!("layer {layer}: {}", why.chain())),
        };
        match mark::of(&folder.join("diff")) {
            // Without a mark it was unpacked by an earlier version.
            Ok(mark) if written.mark.as_ref().is_none_or(|m| *m == mark) => None,
            Ok(_) => Some(format!(
                "layer {layer} has not the files it was unpacked to"
            )),
            Err(why) => Some(format!("layer {layer} cannot be read: {why}")),
        }
    }

    fn unused(&self, used: &BTreeSet<OsString>) -> Result<usize, ImageError> {
        let mut unused = 0;
        for folder in ["layers", "blobs/sha256"] {
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
    found.sort();
    Ok(found)
}
