//! The content-addressed image store below `<root>/images`:
//!
//! ```text
//! blobs/sha256/<hex>     manifests and configs. Layer blobs are not kept: the unpacked layer is what runs
//! layers/<hex>/diff      an unpacked layer by its diff id: an overlayfs lower directory
//! layers/<hex>/layer.json  its size as a tar, and what its files are like
//! layers/<hex>/recipe.gz   how to make that tar again ([`super::recipe`])
//! directories/<hex>      an image's additional layer, if it needs one ([`super::implied`])
//! records/<hex>.json     one image by its config digest; complete as soon as this file is there
//! refs/<name>.json       one name; written last
//! preload.json           what was imported from preload directories
//! pulls/<key>/            a download, complete or not ([`super::registry`])
//! unpacked/<key>-<boot>/  layers of a pull that is not complete ([`super::staging`])
//! tmp/<n>/               an import at work, locked by its worker; removed by the next `open` when it is not
//! lock                   held while records or refs are changed
//! ```
//!
//! Invariant: whatever a record names is complete and on disk. Readers take no lock.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::archive::MAX_JSON_BYTES;
use super::digest;
use super::error::{ImageError, io};
use super::name;
use super::oci::{self, ConfigFile, ImageConfig};
use super::preload;
use super::trust::{Demand, Origin, Signature, TrustError};

use crate::sys::{allocator, file};
use crate::types::image_access::Accesses;
use crate::types::{Gather, InOrder};

/// The store of one agent.
#[derive(Debug, Clone)]
pub struct ImageStore {
    dir: PathBuf,
}

/// An image, ready to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    /// The config's digest, `sha256:…`.
    pub id: String,
    /// Full names, sorted; none for a dangling image.
    pub names: Vec<String>,
    /// The manifest's digest. An image from a docker-archive gets a manifest made for it.
    pub manifest_digest: String,
    /// Bytes of its layers' uncompressed tars.
    pub size_bytes: u64,
    /// When it was built, as its config says.
    pub created: Option<String>,
    /// Unpacked layers, topmost first, without repetition (overlayfs refuses a directory given twice).
    pub layers: Vec<PathBuf>,
    /// How to run it.
    pub config: ImageConfig,
    /// Whether it came from a preload directory: then it is never pruned.
    pub preloaded: bool,
}

/// `records/<hex>.json`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Record {
    pub(crate) id: String,
    /// The manifest's digest, then those of the indexes that led to it.
    pub(crate) digests: Vec<String>,
    /// Diff ids, bottom first.
    pub(crate) layers: Vec<String>,
    pub(crate) size_bytes: u64,
    /// Signatures of one of the digests or of the id that were accepted: they are verified again without a network.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) signatures: Vec<Signature>,
    /// Whether it came with a bundle whose signature was verified: that covers its digests.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) vouched: bool,
    /// The mark of its additional layer ([`super::implied`]).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) directories: Option<String>,
    /// Who may use it; none, until it is pulled for a pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) access: Option<Accesses>,
}

impl Record {
    /// Whether the signatures that are kept satisfy a demand.
    pub(crate) fn satisfies(&self, demand: &Demand) -> bool {
        self.check(demand).is_ok()
    }

    /// The same, with the reason.
    pub(crate) fn check(&self, demand: &Demand) -> Result<(), TrustError> {
        let digests: Vec<String> = self.digests.iter().chain([&self.id]).cloned().collect();
        demand.check(&digests, &self.signatures).map(drop)
    }
}

/// `refs/<name>.json`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Reference {
    pub(crate) name: String,
    pub(crate) id: String,
    /// Whether it came from its registry, not from an archive.
    #[serde(default)]
    pub(crate) pulled: bool,
    /// Whether a person pulled it, or an archive had brought the same image before: then it is for all pods.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) opened: bool,
    /// The archive that it came from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) origin: Option<Origin>,
}

impl Reference {
    /// Whether an archive or a person brought this image by this name, not a pod.
    pub(crate) fn is_given(&self, id: &str) -> bool {
        self.id == id && (!self.pulled || self.opened)
    }
}

/// The name of a layer's record.
pub(crate) const LAYER_RECORD: &str = "layer.json";

/// `layers/<hex>/layer.json`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct LayerRecord {
    /// Length of the uncompressed tar.
    pub(crate) tar_bytes: u64,
    /// The mark of its files ([`super::mark`]); none for layers unpacked by an earlier version.
    #[serde(default)]
    pub(crate) mark: Option<String>,
    /// Whether there is a recipe for that tar ([`super::recipe`]); not for layers unpacked by an earlier version.
    #[serde(default)]
    pub(crate) recipe: bool,
    /// The directories that it only implies ([`super::implied`]); none for layers unpacked by an earlier version.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) implied: Vec<String>,
}

/// The name of a layer's recipe.
pub(crate) const RECIPE: &str = "recipe.gz";

/// This many names, of 300 bytes each, leave about a megabyte free inside the heap.
const MANY_NAMES: usize = 1000;

/// Drops the names of all images. The memory of many names, which hostile archives may have, returns to the system.
fn forget(references: BTreeMap<String, String>) {
    let many = references.len() >= MANY_NAMES;
    drop(references);
    if many {
        allocator::trim();
    }
}

impl ImageStore {
    /// Opens the store, makes its directories, and removes the remains of interrupted imports.
    pub fn open(dir: &Path) -> Result<Self, ImageError> {
        let store = Self::make(dir)?;
        // What cannot be removed only costs space. The agent reports it.
        let _ = store.remove_leftovers();
        Ok(store)
    }

    /// Opens the store and makes its directories. For a process that removes leftovers itself, or may not.
    pub(crate) fn make(dir: &Path) -> Result<Self, ImageError> {
        let store = Self {
            dir: dir.to_owned(),
        };
        for part in [
            "",
            "blobs/sha256",
            "layers",
            "directories",
            "records",
            "refs",
            "tmp",
        ] {
            let path = dir.join(part);
            fs::create_dir_all(&path).map_err(io("create directory", &path))?;
        }
        // Layers contain setuid programs and private files of any owner. A disk that has become read-only, as worn out
        // flash does, must not keep an agent from its pods: nothing is written if the mode is right.
        use std::os::unix::fs::PermissionsExt;
        let mode = fs::metadata(dir)
            .map_err(io("look at", dir))?
            .permissions()
            .mode();
        if mode & 0o7777 != 0o700 {
            fs::set_permissions(dir, fs::Permissions::from_mode(0o700))
                .map_err(io("chmod", dir))?;
        }
        Ok(store)
    }

    /// A store that exists. Nothing is made or removed, so that it needs no right to write.
    pub(super) fn at(dir: PathBuf) -> Self {
        Self { dir }
    }

    /// Removes the remains of interrupted imports. Goes on after a failure, and returns the first one.
    pub fn remove_leftovers(&self) -> Result<(), ImageError> {
        super::gc::remove_leftovers(self)
    }

    /// Removes downloads of images that are in the store: a crash came between their import and its last step. To be
    /// called while nothing is pulled, and after damaged images were removed: what was downloaded mends them.
    pub fn remove_imported_downloads(&self) -> Result<(), ImageError> {
        super::registry::remove_imported(self)
    }

    /// The store's directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Finds an image by name, by name with digest, by id, or by an unambiguous prefix of its id (at least six
    /// digits). A digest alone decides if there is one: it identifies the content. An image whose record or config is
    /// damaged, or that lacks a layer, counts as missing, so that it is imported or pulled again, which mends it.
    pub fn lookup(&self, name: &str) -> Result<Option<Image>, ImageError> {
        let Some(id) = self.find(name)? else {
            return Ok(None);
        };
        let references = self.references()?;
        let image = self.image(&id, &references, &preload::ids(self)?);
        forget(references);
        Ok(image)
    }

    /// Whether this name was pulled from its registry, which may have a newer image by that name. Not so if it has a
    /// digest.
    pub fn is_pulled(&self, name: &str) -> Result<bool, ImageError> {
        let parsed = name::parse(name)?;
        let Some(full) = name::tagged(&parsed).filter(|_| parsed.digest.is_none()) else {
            return Ok(false);
        };
        Ok(self.reference(&full)?.is_some_and(|found| found.pulled))
    }

    /// All images that can be read, by name, dangling ones last.
    pub fn list(&self) -> Result<Vec<Image>, ImageError> {
        let references = self.references()?;
        let preloaded = preload::ids(self)?;
        let mut images = Vec::new();
        for record in self.readable_records()? {
            images.extend(self.image(&record.id, &references, &preloaded));
        }
        images.order_by(|a, b| {
            (a.names.is_empty(), &a.names, &a.id).cmp(&(b.names.is_empty(), &b.names, &b.id))
        });
        forget(references);
        Ok(images)
    }

    /// The id of a name or an id.
    pub(crate) fn find(&self, given: &str) -> Result<Option<String>, ImageError> {
        if name::is_digest(given) {
            return Ok(self.readable(given).map(|record| record.id));
        }
        let parsed = name::parse(given);
        if let Ok(parsed) = &parsed {
            if let Some(digest) = &parsed.digest {
                let mut records = self.readable_records()?.into_iter();
                return Ok(records
                    .find(|record| record.digests.contains(digest))
                    .map(|record| record.id));
            }
            if let Some(full) = name::tagged(parsed)
                && let Some(reference) = self.reference(&full)?
            {
                return Ok(Some(reference.id));
            }
        }
        let short = digest::hex(given);
        if short.len() >= 6 && short.bytes().all(|b| b.is_ascii_hexdigit()) {
            return self.find_short(short);
        }
        parsed.map(|_| None)
    }

    fn find_short(&self, short: &str) -> Result<Option<String>, ImageError> {
        let mut ids: Vec<String> = self
            .readable_records()?
            .into_iter()
            .map(|record| record.id)
            .filter(|id| digest::hex(id).starts_with(short))
            .collect();
        if ids.len() > 1 {
            return Err(ImageError::Ambiguous {
                id: short.to_owned(),
                candidates: ids,
            });
        }
        Ok(ids.pop())
    }

    fn image(
        &self,
        id: &str,
        references: &BTreeMap<String, String>,
        preloaded: &BTreeSet<String>,
    ) -> Option<Image> {
        let (record, file) = self.usable(id)?;
        let created = file.created.clone();
        let mut seen = BTreeSet::new();
        let layers = record
            .layers
            .iter()
            .rev()
            .filter(|layer| seen.insert(*layer));
        // Also if an earlier version has written the record again, without its mark.
        let additional = Some(self.directories_dir(id)).filter(|folder| folder.exists());
        Some(Image {
            names: references
                .iter()
                .filter(|(_, of)| *of == id)
                .map(|(name, _)| name.clone())
                .collect(),
            manifest_digest: record.digests.first().cloned().unwrap_or_default(),
            size_bytes: record.size_bytes,
            created,
            layers: additional
                .into_iter()
                .chain(layers.map(|layer| self.layer_dir(layer).join("diff")))
                .collect(),
            config: file.into_config(),
            preloaded: preloaded.contains(id),
            id: record.id,
        })
    }

    /// The config of an image; none if it is missing or damaged.
    fn config(&self, id: &str) -> Option<ConfigFile> {
        let bytes = file::read_bounded(self.blob_path(id), MAX_JSON_BYTES).ok()?;
        oci::parse(&bytes, "config").ok()
    }

    /// An image's record and config, if it has all of its layers.
    fn usable(&self, id: &str) -> Option<(Record, ConfigFile)> {
        let record = self.readable(id)?;
        let mut layers = record.layers.iter();
        let whole = layers.all(|layer| self.has_layer(layer));
        let config = self.config(id).filter(|_| whole)?;
        Some((record, config))
    }

    /// Whether an image's record and config can be read, and its layers are there.
    pub(crate) fn is_usable(&self, id: &str) -> bool {
        self.usable(id).is_some()
    }

    /// Whether there is an image of this name or id that counts as missing.
    pub fn is_damaged(&self, name: &str) -> bool {
        self.find(name)
            .is_ok_and(|id| id.is_some_and(|id| !self.is_usable(&id)))
    }

    /// Whether a layer is there, with its files and its record. One that has lost them is unpacked again.
    pub(crate) fn has_layer(&self, diff_id: &str) -> bool {
        let folder = self.layer_dir(diff_id);
        folder.join("diff").is_dir() && folder.join(LAYER_RECORD).is_file()
    }

    pub(crate) fn layer_dir(&self, diff_id: &str) -> PathBuf {
        self.dir.join("layers").join(digest::hex(diff_id))
    }

    /// An image's additional layer.
    pub(crate) fn directories_dir(&self, id: &str) -> PathBuf {
        self.dir.join("directories").join(digest::hex(id))
    }

    /// The recipe of a layer's tar.
    pub(crate) fn recipe_path(&self, diff_id: &str) -> PathBuf {
        self.layer_dir(diff_id).join(RECIPE)
    }

    pub(crate) fn blob_path(&self, digest: &str) -> PathBuf {
        self.dir.join("blobs/sha256").join(digest::hex(digest))
    }

    pub(crate) fn record_path(&self, id: &str) -> PathBuf {
        self.dir
            .join("records")
            .join(format!("{}.json", digest::hex(id)))
    }

    /// `/` becomes `%`, which no name has; a name too long for a file is identified by its digest.
    pub(crate) fn reference_path(&self, name: &str) -> PathBuf {
        let mut file = name.replace('/', "%");
        if file.len() > 200 {
            file = format!(
                "{}%{}",
                &file[..100],
                digest::hex(&digest::of(name.as_bytes()))
            );
        }
        self.dir.join("refs").join(format!("{file}.json"))
    }

    pub(crate) fn record(&self, id: &str) -> Result<Option<Record>, ImageError> {
        read_json(&self.record_path(id))
    }

    pub(crate) fn reference(&self, name: &str) -> Result<Option<Reference>, ImageError> {
        read_json(&self.reference_path(name))
    }

    /// The record of an image; none if it is missing or damaged.
    pub(crate) fn readable(&self, id: &str) -> Option<Record> {
        self.record(id).ok().flatten()
    }

    /// All records. Fails if one of them is damaged.
    pub(crate) fn records(&self) -> Result<Vec<Record>, ImageError> {
        read_all(&self.dir.join("records"))?.into_iter().collect()
    }

    /// All records that are not damaged.
    pub(crate) fn readable_records(&self) -> Result<Vec<Record>, ImageError> {
        let all = read_all(&self.dir.join("records"))?;
        Ok(all.into_iter().filter_map(Result::ok).collect())
    }

    /// Name → id. A damaged ref has no effect: its image lacks that name until it is imported again, and other
    /// images are not affected.
    pub(crate) fn references(&self) -> Result<BTreeMap<String, String>, ImageError> {
        let list = read_all(&self.dir.join("refs"))?;
        let list: Vec<Reference> = list.into_iter().filter_map(Result::ok).collect();
        Ok(list.into_iter().map(|r| (r.name, r.id)).gather())
    }

    /// Takes the lock for changes; released on drop. It is held only for a moment.
    pub(crate) fn lock(&self) -> Result<Flock<File>, ImageError> {
        let path = self.dir.join("lock");
        let file = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)
            .map_err(io("open", &path))?;
        Flock::lock(file, FlockArg::LockExclusive).map_err(|(_, why)| io("lock", &path)(why))
    }
}

/// Writes a file so that after a crash or power cut it is complete or missing.
pub(crate) fn write_atomic(path: &Path, bytes: &[u8]) -> Result<(), ImageError> {
    let folder = path.parent().unwrap_or(Path::new("/"));
    // A dot file is no record and no ref; because of the lock one name is enough.
    let temp = folder.join(".new");
    let written = File::create(&temp).and_then(|mut file| {
        file.write_all(bytes)?;
        file.sync_all()
    });
    written
        .and_then(|()| fs::rename(&temp, path))
        .and_then(|()| File::open(folder)?.sync_all())
        .map_err(|why| {
            let _ = fs::remove_file(&temp);
            io("write", path)(why)
        })
}

/// Writes a document as JSON.
pub(crate) fn write_json<T: Serialize>(path: &Path, document: &T) -> Result<(), ImageError> {
    let bytes = serde_json::to_vec_pretty(document).map_err(|source| ImageError::Json {
        what: format!("`{}`", path.display()),
        source,
    })?;
    write_atomic(path, &bytes)
}

/// Reads a JSON file; `None` if it is missing.
pub(crate) fn read_json<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, ImageError> {
    let bytes = match file::read_record(path) {
        Err(why)
            if matches!(
                why.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::InvalidFilename
            ) =>
        {
            return Ok(None);
        }
        other => other.map_err(io("read", path))?,
    };
    oci::parse(&bytes, &format!("`{}`", path.display())).map(Some)
}

/// Reads all documents of a folder; invalid ones are reported one by one.
fn read_all<T: DeserializeOwned>(folder: &Path) -> Result<Vec<Result<T, ImageError>>, ImageError> {
    let mut all = Vec::new();
    for entry in fs::read_dir(folder).map_err(io("list", folder))? {
        let path = entry.map_err(io("list", folder))?.path();
        if path.extension().is_some_and(|e| e == "json") {
            all.extend(read_json(&path).transpose());
        }
    }
    Ok(all)
}
