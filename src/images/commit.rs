//! The last step of an import, which makes it visible. Layers, blobs, records, and names last, so that whatever a
//! record or a name refers to already exists. Repeating it after a crash at any line ends in the same store.

use std::collections::BTreeSet;
use std::fs;

use serde_json::json;

use super::contents::{Found, FoundLayer};
use super::digest;
use super::error::{ImageError, io};
use super::gc;
use super::implied::{self, Part};
use super::mark;
use super::oci::{self, ConfigFile};
use super::progress::Imported;
use super::staging::Staging;
use super::store::{
    ImageStore, LAYER_RECORD, LayerRecord, Record, Reference, read_json, write_atomic, write_json,
};
use super::trust::{MAX_SIGNATURES, Origin};
use crate::sys::tree;
use crate::types::image_access::{self, Accesses, Grant};

/// The maximum number of manifests and indexes that lead to an image.
const MAX_DIGESTS: usize = 64;

/// The layers of some images, each once.
pub(super) fn distinct_layers(images: &[Found]) -> Vec<FoundLayer> {
    let mut seen = BTreeSet::new();
    images
        .iter()
        .flat_map(|image| &image.layers)
        .filter(|layer| seen.insert(layer.diff_id.clone()))
        .cloned()
        .collect()
}

/// Where the images of an import come from.
pub(super) struct Source<'a> {
    /// The archive; none if they were pulled.
    pub(super) origin: Option<&'a Origin>,
    /// Whether a signed bundle brought them.
    pub(super) vouched: bool,
    /// Whether this very archive was preloaded before: names that other images have got since stay with those.
    pub(super) again: bool,
}

/// Moves everything into place. `access`: who may use those that are pulled for a pod. The caller holds the lock, and the
/// staged data is on disk.
pub(super) fn commit(
    store: &ImageStore,
    staging: &Staging,
    images: &[Found],
    source: &Source<'_>,
    access: &Accesses,
) -> Result<Vec<Imported>, ImageError> {
    for layer in distinct_layers(images) {
        let (from, to) = (
            staging.layer(&layer.diff_id),
            store.layer_dir(&layer.diff_id),
        );
        if from.exists() && !store.has_layer(&layer.diff_id) {
            // What is left of a damaged one.
            tree::remove(&to).map_err(io("remove", &to))?;
            fs::rename(&from, &to).map_err(io("move", &from))?;
        }
    }
    gc::sync(&store.dir().join("layers"))?;
    let mut imported = Vec::new();
    for image in images {
        let id = write_image(store, staging, image, source.vouched, access)?;
        let file: ConfigFile = oci::parse(&image.config, &format!("config {id}"))?;
        imported.push(Imported {
            id,
            names: image.names.clone(),
            warnings: file.into_config().warnings(),
        });
    }
    for image in &mut imported {
        for name in &image.names {
            // One that is damaged is replaced.
            let known = store.reference(name).ok().flatten();
            let newer = known
                .as_ref()
                .filter(|known| source.again && is_newer(store, known, &image.id));
            if let Some(newer) = newer {
                if newer.id != image.id {
                    let of = &newer.id;
                    image
                        .warnings
                        .push(format!("its name `{name}` stays with the newer image {of}"));
                }
                continue;
            }
            let known = known.filter(|known| known.id == image.id);
            // A pull that only verifies credentials does not take the name from its archive.
            if !access.is_empty() && known.as_ref().is_some_and(|known| !known.pulled) {
                continue;
            }
            let given = known.is_some_and(|known| known.is_given(&image.id));
            let pulled = source.origin.is_none();
            let reference = Reference {
                name: name.clone(),
                id: image.id.clone(),
                pulled,
                opened: pulled && (given || access.is_empty()),
                origin: source.origin.cloned(),
            };
            write_json(&store.reference_path(name), &reference)?;
        }
    }
    Ok(imported)
}

/// Whether a name has been given since its archive gave it to this image, and means an image that can be used.
fn is_newer(store: &ImageStore, known: &Reference, id: &str) -> bool {
    let record = store.readable(&known.id);
    (known.pulled || known.id != id)
        && record.is_some_and(|record| {
            let mut layers = record.layers.iter();
            layers.all(|layer| store.has_layer(layer))
        })
}

fn write_image(
    store: &ImageStore,
    staging: &Staging,
    image: &Found,
    mut vouched: bool,
    granted: &Accesses,
) -> Result<String, ImageError> {
    let id = digest::of(&image.config);
    let (mut sizes, mut parts) = (Vec::new(), Vec::new());
    for layer in &image.layers {
        let path = store.layer_dir(&layer.diff_id).join(LAYER_RECORD);
        let record: LayerRecord = read_json(&path)?.ok_or(ImageError::Missing {
            what: format!("`{}`", path.display()),
        })?;
        sizes.push(record.tar_bytes);
        parts.push(Part {
            root: store.layer_dir(&layer.diff_id).join("diff"),
            implied: record.implied,
        });
    }
    parts.reverse();
    let directories = additional_layer(store, staging, &id, &parts)?;
    let manifest = match &image.manifest {
        Some(manifest) => manifest.clone(),
        None => made_manifest(&id, image, &sizes),
    };
    let mut digests = vec![digest::of(&manifest)];
    digests.extend(image.indexes.iter().cloned());
    let mut signatures = image.signatures.clone();
    let mut access = None;
    // One that is damaged is replaced.
    if let Some(known) = store.readable(&id) {
        vouched |= known.vouched;
        access = known.access;
        if let (None, Some(repository)) = (&access, granted.keys().next()) {
            access = Some(store.first_accesses(&id, repository)?);
        }
        for signature in known.signatures {
            if !signatures.contains(&signature) && signatures.len() < MAX_SIGNATURES {
                signatures.push(signature);
            }
        }
        digests = joined(known.digests, digests);
    }
    for (repository, granted) in granted {
        let granted = granted.everyone.then_some(&Grant::Everyone);
        image_access::grant(access.get_or_insert_default(), repository, granted);
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
        signatures,
        vouched,
        directories,
        access,
    };
    write_json(&store.record_path(&id), &record)?;
    Ok(id)
}

/// Makes the layer with directories that an image needs on top of its own `parts`, if any. Returns its mark.
fn additional_layer(
    store: &ImageStore,
    staging: &Staging,
    id: &str,
    parts: &[Part],
) -> Result<Option<String>, ImageError> {
    let made = staging
        .path
        .join(format!("directories-{}", digest::hex(id)));
    let failed = || io("make directories in", &made);
    // Left by a worker that was stopped here.
    tree::remove(&made).map_err(failed())?;
    let Some(mark) = implied::make_layer(parts, &made).map_err(failed())? else {
        return Ok(None);
    };
    let target = store.directories_dir(id);
    // Another archive has brought this image.
    if mark::of(&target).is_ok_and(|there| there == mark) {
        return Ok(Some(mark));
    }
    staging.sync()?;
    tree::remove(&target).map_err(io("remove", &target))?;
    fs::rename(&made, &target).map_err(io("move", &made))?;
    gc::sync(&store.dir().join("directories"))?;
    Ok(Some(mark))
}

/// The digests that lead to an image which has come by another way: its earlier manifests stay valid. The first one stays,
/// which is a blob of the store; of the others the oldest make room.
fn joined(known: Vec<String>, new: Vec<String>) -> Vec<String> {
    let mut all = known;
    for digest in new {
        if !all.contains(&digest) {
            all.push(digest);
        }
    }
    let more = all.len().saturating_sub(MAX_DIGESTS);
    if more > 0 {
        all.drain(1..=more);
    }
    all
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_digests_of_an_image_take_the_place_of_the_oldest_but_the_first() {
        let digests = |numbers: &mut dyn Iterator<Item = usize>| -> Vec<String> {
            numbers.map(|number| number.to_string()).collect()
        };
        for (what, known, new, expected) in [
            ("nothing new", vec![1, 2], vec![2, 1], vec![1, 2]),
            ("one more", vec![1, 2], vec![3, 2], vec![1, 2, 3]),
            (
                "two too many",
                (0..64).collect(),
                vec![100, 63, 101],
                [0].into_iter().chain(3..64).chain([100, 101]).collect(),
            ),
            (
                "the first alone stays",
                vec![0],
                (1..100).collect(),
                [0].into_iter().chain(37..100).collect(),
            ),
            ("none known", vec![], vec![1], vec![1]),
        ] {
            let known = digests(&mut known.into_iter());
            let new = digests(&mut new.into_iter());
            let expected = digests(&mut expected.into_iter());
            assert_eq!(joined(known, new), expected, "{what}");
        }
    }
}
