//! The work of `coracle image-worker save`: the archive goes to standard output, what there is to say to standard
//! error, one JSON document a line. Nothing is written to disk: a layer without a recipe is read once for its digest,
//! and again for the archive.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use nix::sys::resource::{Resource, setrlimit};
use serde_json::{Value, json};

use super::super::archive::MAX_JSON_BYTES;
use super::super::confine;
use super::super::digest;
use super::super::error::{ImageError, io as io_error};
use super::super::name;
use super::super::oci;
use super::super::progress::{Cause, Line};
use super::super::recipe;
use super::super::store::{ImageStore, LAYER_RECORD, LayerRecord, read_json};
use super::layer;
use super::tar_writer::{self, Entry};
use crate::sys::{file, process};

/// The first to be killed when memory runs out: an archive can be written again.
const OOM_SCORE_ADJ: i32 = 1000;

/// The maximum number of images in one archive; an import takes this many names.
const MAX_IMAGES: usize = 1000;

/// The bytes that are written at once.
const BUFFER_BYTES: usize = 128 << 10;

const LAYER: &str = "application/vnd.oci.image.layer.v1.tar";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const INDEX: &str = "application/vnd.oci.image.index.v1+json";

/// Runs the worker with the arguments behind `save`. 0: all is written; 1: not; 2: bad arguments.
pub(in super::super) fn run(args: impl Iterator<Item = OsString>) -> ExitCode {
    let Some((store, names)) = parse(args) else {
        say(&Line::Error {
            message: "usage: coracle image-worker save --store DIR -- IMAGE...".to_owned(),
            hint: None,
            cause: Cause::Other,
        });
        return ExitCode::from(2);
    };
    let saved = harden(&store)
        .map_err(|source| ImageError::Received { source })
        .and_then(|()| save(store, &names));
    match saved {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            say(&Line::Error {
                message: crate::chain(&why),
                hint: why.hint(),
                cause: Cause::Other,
            });
            ExitCode::FAILURE
        }
    }
}

fn parse(mut args: impl Iterator<Item = OsString>) -> Option<(PathBuf, Vec<String>)> {
    if args.next()? != "--store" {
        return None;
    }
    let store = args.next()?.into();
    if args.next()? != "--" {
        return None;
    }
    let names: Option<Vec<String>> = args.map(|name| name.into_string().ok()).collect();
    names.filter(|names| !names.is_empty()).map(|n| (store, n))
}

/// No right but to read the store.
fn harden(store: &Path) -> io::Result<()> {
    process::set_oom_score_adj(OOM_SCORE_ADJ)?;
    nix::sys::prctl::set_no_new_privs()?;
    setrlimit(Resource::RLIMIT_CORE, 0, 0)?;
    confine::save(store)
}

fn say(line: &Line) {
    let mut text = serde_json::to_vec(line).expect("plain data");
    text.push(b'\n');
    // The reader may be gone.
    let _ = io::stderr().lock().write_all(&text);
}

fn save(store: PathBuf, names: &[String]) -> Result<(), ImageError> {
    let store = ImageStore::at(store);
    let archive = Archive::of(&store, names)?;
    say(&Line::Ready {
        bytes: archive.length(),
    });
    let mut out = BufWriter::with_capacity(BUFFER_BYTES, io::stdout().lock());
    archive.write(&store, &mut out)?;
    out.flush().map_err(|source| ImageError::Send { source })
}

/// A layer as it will be in the archive.
#[derive(Debug, Clone)]
struct Layer {
    /// Its name in the store.
    stored: String,
    /// The digest of the tar that is made of it.
    digest: String,
    size: u64,
}

/// Everything that goes into the archive, with all digests.
#[derive(Default)]
struct Archive {
    /// `index.json` and others at the top.
    top: Vec<(&'static str, Vec<u8>)>,
    /// Configs and manifests by digest.
    documents: BTreeMap<String, Vec<u8>>,
    /// Layers by the digest of their tar.
    layers: BTreeMap<String, Layer>,
}

impl Archive {
    fn of(store: &ImageStore, names: &[String]) -> Result<Self, ImageError> {
        if names.len() > MAX_IMAGES {
            return Err(ImageError::Limit {
                what: "the number of images in one archive".to_owned(),
                limit: MAX_IMAGES as u64,
                unit: "images",
            });
        }
        let mut archive = Self::default();
        let mut made: BTreeMap<String, Layer> = BTreeMap::new();
        let (mut manifests, mut docker, mut seen) = (Vec::new(), Vec::new(), BTreeSet::new());
        for given in names {
            let not_found = || ImageError::NotFound {
                name: given.clone(),
            };
            let id = store.find(given)?.ok_or_else(not_found)?;
            let full = name_of(store, given, &id)?;
            if !seen.insert((id.clone(), full.clone())) {
                continue;
            }
            let image = archive.image(store, &id, &mut made)?;
            manifests.push(descriptor(&image, full.as_deref()));
            docker.push(json!({
                "Config": part(&image.config),
                "RepoTags": full.map_or(Value::Null, |full| json!([full])),
                "Layers": image.layers.iter().map(|l| part(l)).collect::<Vec<_>>(),
            }));
        }
        let index = json!({ "schemaVersion": 2, "mediaType": INDEX, "manifests": manifests });
        archive.top = vec![
            ("oci-layout", br#"{"imageLayoutVersion":"1.0.0"}"#.to_vec()),
            ("index.json", index.to_string().into_bytes()),
            // For programs that only know what `docker save` wrote before version 25.
            (
                "manifest.json",
                Value::from(docker).to_string().into_bytes(),
            ),
        ];
        Ok(archive)
    }

    /// Adds an image.
    fn image(
        &mut self,
        store: &ImageStore,
        id: &str,
        made: &mut BTreeMap<String, Layer>,
    ) -> Result<Saved, ImageError> {
        let missing = || ImageError::NotFound {
            name: id.to_owned(),
        };
        let record = store.record(id)?.ok_or_else(missing)?;
        let mut layers = Vec::new();
        for stored in &record.layers {
            let layer = match made.get(stored) {
                Some(layer) => layer.clone(),
                None => measure(store, stored)?,
            };
            made.insert(stored.clone(), layer.clone());
            self.layers.insert(layer.digest.clone(), layer.clone());
            layers.push(layer);
        }
        let path = store.blob_path(id);
        let bytes = file::read_bounded(&path, MAX_JSON_BYTES).map_err(io_error("read", &path))?;
        let config = config(bytes, id, &layers)?;
        let platform = oci::parse::<Value>(&config, &format!("config {id}"))?;
        let config_digest = self.document(config);
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": {
                "mediaType": CONFIG,
                "digest": config_digest,
                "size": self.documents[&config_digest].len(),
            },
            "layers": layers
                .iter()
                .map(|l| json!({ "mediaType": LAYER, "digest": l.digest, "size": l.size }))
                .collect::<Vec<_>>(),
        });
        let manifest = manifest.to_string().into_bytes();
        let size = manifest.len();
        Ok(Saved {
            manifest: self.document(manifest),
            size,
            platform: platform_of(&platform),
            config: config_digest,
            layers: layers.into_iter().map(|layer| layer.digest).collect(),
        })
    }

    fn document(&mut self, bytes: Vec<u8>) -> String {
        let digest = digest::of(&bytes);
        self.documents.insert(digest.clone(), bytes);
        digest
    }

    /// The length of the archive.
    fn length(&self) -> u64 {
        let top = self.top.iter().map(|(_, bytes)| bytes.len() as u64);
        let documents = self.documents.values().map(|bytes| bytes.len() as u64);
        let layers = self.layers.values().map(|layer| layer.size);
        let folders = FOLDERS.map(|_| 0);
        tar_writer::length(top.chain(folders).chain(documents).chain(layers))
    }

    fn write(&self, store: &ImageStore, out: &mut dyn Write) -> Result<(), ImageError> {
        let failed = |source| ImageError::Send { source };
        for (name, bytes) in &self.top {
            document(out, name, bytes).map_err(failed)?;
        }
        for folder in FOLDERS {
            tar_writer::head(out, &Entry::directory(folder.as_bytes())).map_err(failed)?;
        }
        for (digest, bytes) in &self.documents {
            document(out, &part(digest), bytes).map_err(failed)?;
        }
        for layer in self.layers.values() {
            write_layer(store, layer, out)?;
        }
        tar_writer::end(out).map_err(failed)
    }
}

const FOLDERS: [&str; 2] = ["blobs/", "blobs/sha256/"];

/// An image that is in the archive.
struct Saved {
    manifest: String,
    size: usize,
    platform: Value,
    config: String,
    layers: Vec<String>,
}

fn document(out: &mut dyn Write, name: &str, bytes: &[u8]) -> io::Result<()> {
    let size = bytes.len() as u64;
    tar_writer::head(out, &Entry::file(name.as_bytes(), size))?;
    tar_writer::copy(out, &mut &*bytes, size)
}

/// The name that an image was asked for by; none if it was by id or digest.
fn name_of(store: &ImageStore, given: &str, id: &str) -> Result<Option<String>, ImageError> {
    let Ok(parsed) = name::parse(given) else {
        return Ok(None);
    };
    let Some(full) = name::tagged(&parsed).filter(|_| parsed.digest.is_none()) else {
        return Ok(None);
    };
    let known = store.reference(&full)?;
    Ok(known.filter(|known| known.id == id).map(|_| full))
}

fn descriptor(image: &Saved, full: Option<&str>) -> Value {
    let mut descriptor = json!({
        "mediaType": MANIFEST,
        "digest": image.manifest,
        "size": image.size,
        "platform": image.platform,
    });
    if let Some(full) = full {
        descriptor["annotations"] = json!({
            "io.containerd.image.name": full,
            "org.opencontainers.image.ref.name": full,
        });
    }
    descriptor
}

fn platform_of(config: &Value) -> Value {
    let text = |field: &str| config[field].as_str().unwrap_or_default();
    let mut platform = json!({ "architecture": text("architecture"), "os": text("os") });
    if !text("variant").is_empty() {
        platform["variant"] = config["variant"].clone();
    }
    platform
}

/// The config, with the digests of the layers as they are in the archive. Untouched if they are the image's own.
fn config(bytes: Vec<u8>, id: &str, layers: &[Layer]) -> Result<Vec<u8>, ImageError> {
    if layers.iter().all(|layer| layer.digest == layer.stored) {
        return Ok(bytes);
    }
    let mut config: Value = oci::parse(&bytes, &format!("config {id}"))?;
    let digests: Vec<&str> = layers.iter().map(|layer| layer.digest.as_str()).collect();
    config["rootfs"] = json!({ "type": "layers", "diff_ids": digests });
    Ok(config.to_string().into_bytes())
}

fn part(digest: &str) -> String {
    format!("blobs/sha256/{}", digest::hex(digest))
}

/// Finds out what the tar of a layer will be. With a recipe that is known.
fn measure(store: &ImageStore, stored: &str) -> Result<Layer, ImageError> {
    let path = store.layer_dir(stored).join(LAYER_RECORD);
    let known: Option<LayerRecord> = read_json(&path)?;
    if let Some(known) = known.filter(|known| known.recipe) {
        return Ok(Layer {
            stored: stored.to_owned(),
            digest: stored.to_owned(),
            size: known.tar_bytes,
        });
    }
    let mut sink = digest::Measuring::new(io::sink());
    make(store, stored, &mut sink)?;
    let (digest, size) = sink.finish();
    Ok(Layer {
        stored: stored.to_owned(),
        digest,
        size,
    })
}

fn make(store: &ImageStore, stored: &str, out: &mut dyn Write) -> Result<(), ImageError> {
    let root = store.layer_dir(stored).join("diff");
    let recipe = store.recipe_path(stored);
    let made = match recipe.exists() {
        true => recipe::follow(&recipe, &root, out),
        false => layer::write(&root, out),
    };
    made.map_err(io_error("read", &root))
}

fn write_layer(store: &ImageStore, layer: &Layer, out: &mut dyn Write) -> Result<(), ImageError> {
    let failed = |source| ImageError::Send { source };
    let name = part(&layer.digest);
    tar_writer::head(out, &Entry::file(name.as_bytes(), layer.size)).map_err(failed)?;
    let mut measured = digest::Measuring::new(&mut *out);
    make(store, &layer.stored, &mut measured)?;
    let (actual, size) = measured.finish();
    if (actual.as_str(), size) != (layer.digest.as_str(), layer.size) {
        return Err(ImageError::Digest {
            what: format!("layer {}", layer.stored),
            expected: layer.digest.clone(),
            actual,
        });
    }
    tar_writer::pad(out, layer.size).map_err(failed)
}
