//! What is known of one image beyond what its containers need, and other names for it.

use serde::Serialize;
use serde_json::Value;

use super::archive::MAX_JSON_BYTES;
use super::error::{ImageError, io};
use super::name;
use super::oci;
use super::store::{ImageStore, LAYER_RECORD, LayerRecord, Reference, read_json, write_json};
use super::trust::Origin;
use crate::sys::file;

/// An image with its whole config.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Details {
    /// The config's digest, `sha256:…`.
    pub id: String,
    /// Full names, sorted.
    pub names: Vec<String>,
    /// The digests of its manifest, and of the indexes that led to it.
    pub digests: Vec<String>,
    /// Its layers, bottom first.
    pub layers: Vec<Layer>,
    /// Bytes of its layers' uncompressed tars.
    pub size_bytes: u64,
    /// Whether it came from a preload directory.
    pub preloaded: bool,
    /// The config as it was written (OCI image specification, `config.md`).
    pub config: Value,
}

/// A layer of an image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Layer {
    /// The digest of its uncompressed tar.
    pub diff_id: String,
    /// Bytes of that tar.
    pub size_bytes: u64,
}

impl ImageStore {
    /// Everything that is known of an image, by name or id as in [`ImageStore::lookup`].
    pub fn details(&self, given: &str) -> Result<Details, ImageError> {
        let not_found = || ImageError::NotFound {
            name: given.to_owned(),
        };
        let image = self.lookup(given)?.ok_or_else(not_found)?;
        let record = self.record(&image.id)?.ok_or_else(not_found)?;
        let path = self.blob_path(&image.id);
        let bytes = file::read_bounded(&path, MAX_JSON_BYTES).map_err(io("read", &path))?;
        let layers = record.layers.into_iter().map(|diff_id| {
            let path = self.layer_dir(&diff_id).join(LAYER_RECORD);
            let known: Option<LayerRecord> = read_json(&path)?;
            let size_bytes = known.map_or(0, |record| record.tar_bytes);
            Ok(Layer {
                diff_id,
                size_bytes,
            })
        });
        Ok(Details {
            layers: layers.collect::<Result<_, ImageError>>()?,
            config: oci::parse(&bytes, &format!("config {}", image.id))?,
            id: image.id,
            names: image.names,
            digests: record.digests,
            size_bytes: image.size_bytes,
            preloaded: image.preloaded,
        })
    }

    /// Gives images these names, taken from the images that had them before. A name whose image is gone stays as it is.
    /// `origin`: the archive that they come from, if it was one.
    pub(crate) fn set_names<'n>(
        &self,
        names: impl Iterator<Item = (&'n str, &'n str)>,
        origin: Option<&Origin>,
    ) -> Result<(), ImageError> {
        let _lock = self.lock()?;
        for (name, id) in names {
            // One that is damaged is replaced.
            let known = self.reference(name).ok().flatten();
            let same = |known: Reference| {
                known.id == id && !known.pulled && known.origin.as_ref() == origin
            };
            if known.is_some_and(same) || self.readable(id).is_none() {
                continue;
            }
            let reference = Reference {
                name: name.to_owned(),
                id: id.to_owned(),
                pulled: false,
                opened: false,
                origin: origin.cloned(),
            };
            write_json(&self.reference_path(name), &reference)?;
        }
        Ok(())
    }

    /// Fails unless all these images are there, by names or ids as in [`ImageStore::lookup`].
    pub fn require(&self, names: &[String]) -> Result<(), ImageError> {
        for name in names {
            self.find(name)?
                .ok_or_else(|| ImageError::NotFound { name: name.clone() })?;
        }
        Ok(())
    }

    /// Gives an image one more name, taken from the image that had it before. Returns the full name.
    pub fn tag(&self, given: &str, new: &str) -> Result<String, ImageError> {
        let parsed = name::parse(new)?;
        let named = Some(&parsed).filter(|parsed| parsed.digest.is_none());
        let Some(full) = named.and_then(name::tagged) else {
            return Err(ImageError::Name {
                name: new.to_owned(),
                why: "a digest is no name that can be given".to_owned(),
            });
        };
        let _lock = self.lock()?;
        let not_found = || ImageError::NotFound {
            name: given.to_owned(),
        };
        let id = self.find(given)?.ok_or_else(not_found)?;
        let reference = Reference {
            name: full.clone(),
            id,
            // No registry was asked for this name.
            pulled: false,
            opened: false,
            origin: None,
        };
        write_json(&self.reference_path(&full), &reference)?;
        Ok(full)
    }
}
