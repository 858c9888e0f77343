//! How does an archive get into the store? Everything is unpacked and verified in a staging directory, synced, and
//! only then moved into place: layers, blobs, records, and names last. Runs in the worker.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};

use nix::fcntl::{Flock, FlockArg};
use serde_json::json;

use super::archive::Archive;
use super::compress;
use super::contents::{self, Found, FoundLayer};
use super::digest::{self, Hashing};
use super::error::{ImageError, io};
use super::gc;
use super::name;
use super::preload;
use super::progress::{Imported, Progress};
use super::space::{MAX_UNPACKED_BYTES, Space};
use super::store::{
    ImageStore, LayerRecord, Record, Reference, read_json, write_atomic, write_json,
};
use super::tar_reader::{TarReader, broken};
use super::unpack::Unpacker;

/// Progress is told no more often than this.
const REPORT_EVERY: Duration = Duration::from_millis(100);

/// What to import, and how.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) store: PathBuf,
    pub(crate) archive: PathBuf,
    /// From a preload directory: remembered, and never pruned.
    pub(crate) preloaded: bool,
    /// Instead of the names in the archive.
    pub(crate) name: Option<String>,
}

/// Imports all images of an archive that are for this machine.
pub(crate) fn import(
    request: &Request,
    report: &mut dyn FnMut(Progress),
) -> Result<Vec<Imported>, ImageError> {
    let store = ImageStore::open(&request.store)?;
    let fingerprint = preload::fingerprint(&request.archive)?;
    let staging = Staging::new(&store)?;
    let mut space = Space::new(&staging.path)?;
    let archive = Archive::open(&request.archive, &staging.path, &mut space)?;
    let mut images = contents::images(&archive)?;
    complete_names(&mut images, request)?;
    let layers: Vec<FoundLayer> = distinct_layers(&images);
    // Twice only if an image was removed meanwhile whose layers were to be shared.
    let _lock = loop {
        let missing: Vec<&FoundLayer> = layers
            .iter()
            .filter(|l| {
                !store.layer_dir(&l.diff_id).exists() && !staging.layer(&l.diff_id).exists()
            })
            .collect();
        for (done, layer) in missing.iter().enumerate() {
            let mut progress = Progress {
                stage: "unpack".to_owned(),
                layer: done + 1,
                layers: missing.len(),
                done_bytes: 0,
                total_bytes: 0,
            };
            unpack_layer(&archive, layer, &staging, &mut space, &mut progress, report)?;
        }
        staging.sync()?;
        let lock = store.lock()?;
        let here = |l: &FoundLayer| {
            store.layer_dir(&l.diff_id).exists() || staging.layer(&l.diff_id).exists()
        };
        if layers.iter().all(here) {
            break lock;
        }
    };
    if preload::fingerprint(&request.archive)? != fingerprint {
        return Err(ImageError::Changed {
            path: request.archive.clone(),
        });
    }
    let imported = commit(&store, &staging, &images).map_err(|why| full_disk(why, &space))?;
    if request.preloaded {
        let ids = imported.iter().map(|image| image.id.clone()).collect();
        preload::record(&store, &request.archive, fingerprint, ids)?;
    }
    Ok(imported)
}

/// A name given by the person replaces those in the archive; an only image without a name is called by its file.
fn complete_names(images: &mut [Found], request: &Request) -> Result<(), ImageError> {
    if let Some(given) = &request.name {
        let bad = |why| ImageError::Name {
            name: given.clone(),
            why,
        };
        let full = name::parse(given)?.tagged();
        let [image] = images else {
            return Err(bad(
                "the archive has several images, which cannot share one name",
            ));
        };
        image.names = vec![full.ok_or_else(|| bad("an imported image needs a tag"))?];
        return Ok(());
    }
    if let [image] = images
        && image.names.is_empty()
    {
        let stem = request.archive.file_name().and_then(|name| name.to_str());
        let name = stem.and_then(name::from_file_stem);
        image.names = name
            .and_then(|name| name::parse(&name).ok()?.tagged())
            .into_iter()
            .collect();
    }
    Ok(())
}

fn distinct_layers(images: &[Found]) -> Vec<FoundLayer> {
    let mut seen = BTreeSet::new();
    images
        .iter()
        .flat_map(|image| &image.layers)
        .filter(|layer| seen.insert(layer.diff_id.clone()))
        .cloned()
        .collect()
}

fn unpack_layer(
    archive: &Archive,
    layer: &FoundLayer,
    staging: &Staging,
    space: &mut Space,
    progress: &mut Progress,
    report: &mut dyn FnMut(Progress),
) -> Result<(), ImageError> {
    let what = match &layer.blob {
        Some((digest, _)) => format!("layer {digest}"),
        None => format!("layer `{}`", layer.part),
    };
    let section = archive.part(&layer.part)?;
    progress.total_bytes = section.len();
    if let Some((_, size)) = &layer.blob
        && *size != section.len()
    {
        return Err(ImageError::Size {
            what,
            expected: *size,
            actual: section.len(),
        });
    }
    let target = staging.layer(&layer.diff_id);
    let unfinished = staging.path.join("unfinished");
    let root = new_layer_dir(&unfinished)?;
    let seen = Rc::new(Cell::new(0));
    let mut raw = Hashing::new(Counting {
        inner: section,
        seen: Rc::clone(&seen),
    });
    let mut next_report = Instant::now();
    let mut tick = || {
        if Instant::now() >= next_report {
            next_report = Instant::now() + REPORT_EVERY;
            progress.done_bytes = seen.get();
            report(progress.clone());
        }
    };
    let unpacked = unpack_stream(&mut raw, &what, root, space, &mut tick);
    let verified = verify_blob(raw, layer, &what);
    // Bytes that are not the ones meant explain why they could not be read.
    let (diff_id, tar_bytes) = match unpacked {
        Err(ImageError::Malformed { .. } | ImageError::Truncated { .. }) if verified.is_err() => {
            return Err(verified.err().unwrap_or(ImageError::Missing { what }));
        }
        other => other?,
    };
    verified?;
    if diff_id != layer.diff_id {
        return Err(ImageError::Digest {
            what: format!("the unpacked {what}"),
            expected: layer.diff_id.clone(),
            actual: diff_id,
        });
    }
    progress.done_bytes = progress.total_bytes;
    report(progress.clone());
    write_json(&unfinished.join("layer.json"), &LayerRecord { tar_bytes })
        .map_err(|why| full_disk(why, space))?;
    fs::rename(&unfinished, &target).map_err(io("move", &unfinished))
}

/// Unpacks a layer from its blob; says digest and length of the tar.
fn unpack_stream(
    raw: &mut dyn Read,
    what: &str,
    root: File,
    space: &mut Space,
    tick: &mut dyn FnMut(),
) -> Result<(String, u64), ImageError> {
    let plain = compress::decoder(raw).map_err(|e| broken(what, &e, "its start"))?;
    let capped = Capped {
        inner: plain,
        left: MAX_UNPACKED_BYTES,
    };
    let mut tar = TarReader::streaming(Hashing::new(capped), what.to_owned());
    Unpacker::new(root, what.to_owned(), space).run(&mut tar, tick)?;
    tar.into_inner()
        .finish()
        .map_err(|e| broken(what, &e, "its end"))
}

fn verify_blob<R: Read>(raw: Hashing<R>, layer: &FoundLayer, what: &str) -> Result<(), ImageError> {
    let (actual, size) = raw.finish().map_err(|e| broken(what, &e, "its data"))?;
    let Some((digest, expected_size)) = &layer.blob else {
        return Ok(());
    };
    if size != *expected_size {
        return Err(ImageError::Truncated {
            what: what.to_owned(),
            at: "its data".to_owned(),
        });
    }
    if actual != *digest {
        return Err(ImageError::Digest {
            what: what.to_owned(),
            expected: digest.clone(),
            actual,
        });
    }
    Ok(())
}

fn new_layer_dir(dir: &Path) -> Result<File, ImageError> {
    let root = dir.join("diff");
    fs::create_dir_all(&root).map_err(io("create directory", &root))?;
    fs::set_permissions(&root, fs::Permissions::from_mode(0o755)).map_err(io("chmod", &root))?;
    File::open(&root).map_err(io("open", &root))
}

/// Moves everything into place. The lock is held, and what is staged is on disk.
fn commit(
    store: &ImageStore,
    staging: &Staging,
    images: &[Found],
) -> Result<Vec<Imported>, ImageError> {
    for layer in distinct_layers(images) {
        let (from, to) = (
            staging.layer(&layer.diff_id),
            store.layer_dir(&layer.diff_id),
        );
        if from.exists() && !to.exists() {
            fs::rename(&from, &to).map_err(io("move", &from))?;
        }
    }
    gc::sync(&store.dir().join("layers"))?;
    let mut imported = Vec::new();
    for image in images {
        let id = write_image(store, image)?;
        imported.push(Imported {
            id,
            names: image.names.clone(),
        });
    }
    for image in &imported {
        for name in &image.names {
            let reference = Reference {
                name: name.clone(),
                id: image.id.clone(),
            };
            write_json(&store.reference_path(name), &reference)?;
        }
    }
    Ok(imported)
}

fn write_image(store: &ImageStore, image: &Found) -> Result<String, ImageError> {
    let id = digest::of(&image.config);
    let mut sizes = Vec::new();
    for layer in &image.layers {
        let path = store.layer_dir(&layer.diff_id).join("layer.json");
        let record: LayerRecord = read_json(&path)?.ok_or(ImageError::Missing {
            what: format!("`{}`", path.display()),
        })?;
        sizes.push(record.tar_bytes);
    }
    let manifest = match &image.manifest {
        Some(manifest) => manifest.clone(),
        None => made_manifest(&id, image, &sizes),
    };
    let mut digests = vec![digest::of(&manifest)];
    digests.extend(image.indexes.iter().cloned());
    if let Some(known) = store.record(&id)? {
        // The same image by another way: what it was known by stays true.
        let new = std::mem::replace(&mut digests, known.digests);
        for digest in new {
            if !digests.contains(&digest) {
                digests.push(digest);
            }
        }
    }
    write_atomic(&store.blob_path(&id), &image.config)?;
    write_atomic(&store.blob_path(&digest::of(&manifest)), &manifest)?;
    let record = Record {
        id: id.clone(),
        digests,
        layers: image
            .layers
            .iter()
            .map(|layer| layer.diff_id.clone())
            .collect(),
        size_bytes: sizes.iter().sum(),
    };
    write_json(&store.record_path(&id), &record)?;
    Ok(id)
}

/// A docker-archive has no manifest; this is the one its uncompressed layers would have.
fn made_manifest(id: &str, image: &Found, sizes: &[u64]) -> Vec<u8> {
    let layers: Vec<_> = image
        .layers
        .iter()
        .zip(sizes)
        .map(|(layer, size)| {
            json!({
                "mediaType": "application/vnd.oci.image.layer.v1.tar",
                "digest": layer.diff_id,
                "size": size,
            })
        })
        .collect();
    json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": {
            "mediaType": "application/vnd.oci.image.config.v1+json",
            "digest": id,
            "size": image.config.len(),
        },
        "layers": layers,
    })
    .to_string()
    .into_bytes()
}

fn full_disk(why: ImageError, space: &Space) -> ImageError {
    match why {
        ImageError::Io {
            doing,
            path,
            source,
        } => space.write_error(source, |source| io(doing, &path)(source)),
        other => other,
    }
}

/// A directory of this import alone, gone when it ends. Locked, so that nobody takes it for a leftover.
struct Staging {
    path: PathBuf,
    dir: Flock<File>,
}

impl Staging {
    fn new(store: &ImageStore) -> Result<Self, ImageError> {
        let mut number = 0u32;
        loop {
            let path = store
                .dir()
                .join("tmp")
                .join(format!("{}-{number}", std::process::id()));
            number += 1;
            match fs::create_dir(&path) {
                Err(why) if why.kind() == io::ErrorKind::AlreadyExists => continue,
                other => other.map_err(io("create directory", &path))?,
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
                return Ok(Self { path, dir });
            }
        }
    }

    fn layer(&self, diff_id: &str) -> PathBuf {
        self.path.join(digest::hex(diff_id))
    }

    /// Puts all that was unpacked on disk: one call instead of one for each file.
    fn sync(&self) -> Result<(), ImageError> {
        nix::unistd::syncfs(&*self.dir).map_err(io("sync", &self.path))
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        // What cannot be removed now is removed by the next open.
        let _ = fs::remove_dir_all(&self.path);
    }
}

struct Counting<R> {
    inner: R,
    seen: Rc<Cell<u64>>,
}

impl<R: Read> Read for Counting<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = self.inner.read(buffer)?;
        self.seen.set(self.seen.get() + n as u64);
        Ok(n)
    }
}

/// Ends a stream that unpacks without end.
struct Capped<R> {
    inner: R,
    left: u64,
}

impl<R: Read> Read for Capped<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = self.inner.read(buffer)?;
        self.left = self.left.checked_sub(n as u64).ok_or_else(|| {
            io::Error::other(format!(
                "it unpacks to more than {MAX_UNPACKED_BYTES} bytes"
            ))
        })?;
        Ok(n)
    }
}
