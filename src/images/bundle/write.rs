//! The writer of bundles: a tar of an OCI image layout. What goes in is verified on the way.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use tar::{Builder, EntryType, Header};

use super::super::archive::Archive;
use super::super::contents::{self, Found, blob_part};
use super::super::digest::{self, Hashing};
use super::super::error::{ImageError, io as io_error};
use super::super::name;
use super::super::oci::{self, ConfigFile, Platform};
use super::super::trust::{Payload, PrivateKey, Signature, signature_manifest, signature_tag};
use super::{
    ARTIFACT_TYPE, Descriptor, Document, EMPTY_TYPE, FILE_TYPE, IMAGE_NAME, INDEX_TYPE,
    MANIFEST_TYPE, MAX_FILES, MAX_IMAGES, MAX_TEXT_BYTES, NAME, REF_NAME, TITLE, check_file_name,
    check_name,
};
use crate::sys::file::read_bounded;

/// An image for a bundle.
#[derive(Debug, Clone)]
pub struct NewImage {
    /// Its name in the manifests, in full.
    pub name: String,
    /// An OCI image layout that has it, and nothing else: a directory, or a tar that is not compressed. An image whose
    /// name has a digest needs a directory.
    pub layout: PathBuf,
}

/// What goes into a bundle.
#[derive(Debug)]
pub struct NewBundle {
    /// Its name.
    pub name: String,
    /// The manifest files: name and content.
    pub files: Vec<(String, Vec<u8>)>,
    /// The images that the manifests name.
    pub images: Vec<NewImage>,
    /// The images' `os/architecture[/variant]`; this machine's if missing.
    pub platform: Option<String>,
    /// The key that signs it.
    pub sign_by: Option<PrivateKey>,
}

/// Writes a bundle to `out`; `path` names it in errors. Returns the bundle's digest, and `out`.
pub fn write_bundle<W: Write>(
    bundle: &NewBundle,
    out: W,
    path: &Path,
) -> Result<(String, W), ImageError> {
    check(bundle)?;
    let writer = Writer {
        tar: Builder::new(out),
        written: BTreeSet::new(),
        path: path.to_owned(),
    };
    writer.write(bundle)
}

struct Writer<W: Write> {
    tar: Builder<W>,
    /// The blobs that are written.
    written: BTreeSet<String>,
    path: PathBuf,
}

impl<W: Write> Writer<W> {
    fn write(mut self, bundle: &NewBundle) -> Result<(String, W), ImageError> {
        let NewBundle {
            name,
            files,
            images,
            ..
        } = bundle;
        let platform = match &bundle.platform {
            Some(text) => Platform::parse(text)?,
            None => Platform::own(),
        };
        let layout = br#"{"imageLayoutVersion":"1.0.0"}"#;
        self.part("oci-layout", layout.len() as u64, &layout[..])?;
        let (mut parts, mut indexes) = (Vec::new(), Vec::new());
        for image in images {
            parts.push(self.image(image, &platform, &mut indexes)?);
        }
        let manifests = self.manifests(files, indexes)?;
        parts.insert(0, manifests);
        let index = Document {
            schema_version: 2,
            media_type: INDEX_TYPE.to_owned(),
            artifact_type: None,
            config: None,
            layers: None,
            manifests: Some(parts),
            annotations: Some(BTreeMap::from([(NAME.to_owned(), name.clone())])),
        };
        let mut entry = self.document(&index, INDEX_TYPE)?;
        let digest = entry.digest.clone();
        entry.annotations = Some(BTreeMap::from([(REF_NAME.to_owned(), name.clone())]));
        let signature = match &bundle.sign_by {
            Some(key) => Some(self.signature(key, name, &digest)?),
            None => None,
        };
        let layout = Document {
            schema_version: 2,
            media_type: INDEX_TYPE.to_owned(),
            artifact_type: None,
            config: None,
            layers: None,
            manifests: Some([Some(entry), signature].into_iter().flatten().collect()),
            annotations: None,
        };
        let bytes = serde_json::to_vec(&layout).expect("plain data");
        self.part("index.json", bytes.len() as u64, &bytes[..])?;
        let path = self.path.clone();
        let out = self.tar.into_inner().map_err(io_error("write", &path))?;
        Ok((digest, out))
    }

    /// Writes the signature of a digest as cosign does.
    fn signature(
        &mut self,
        key: &PrivateKey,
        name: &str,
        digest: &str,
    ) -> Result<Descriptor, ImageError> {
        let payload = Payload {
            reference: name.to_owned(),
            digest: digest.to_owned(),
        };
        let signature = Signature::make(key, &payload).map_err(io_error("sign", &self.path))?;
        self.blob(&signature.payload)?;
        let (manifest, config) = signature_manifest(&[signature]);
        self.blob(&config)?;
        let mut entry = self.blob(&manifest)?;
        entry.media_type = MANIFEST_TYPE.to_owned();
        entry.annotations = Some(BTreeMap::from([(
            REF_NAME.to_owned(),
            signature_tag(digest),
        )]));
        Ok(entry)
    }

    /// Writes an image's blobs; returns its descriptor.
    fn image(
        &mut self,
        image: &NewImage,
        platform: &Platform,
        indexes: &mut Vec<Descriptor>,
    ) -> Result<Descriptor, ImageError> {
        let archive = Archive::of_layout(&image.layout)?;
        let found = contents::images(&archive, platform)?;
        let [found]: [Found; 1] = found.try_into().map_err(|_| ImageError::NotAnImage {
            path: image.layout.clone(),
            why: "it has several images".to_owned(),
        })?;
        let manifest = found.manifest.ok_or_else(|| ImageError::Missing {
            what: format!("the manifest of `{}`", image.name),
        })?;
        for layer in &found.layers {
            let (digest, size) = layer.blob.as_ref().ok_or_else(|| ImageError::Missing {
                what: format!("the digest of layer `{}`", layer.part),
            })?;
            self.copy(&archive, digest, *size)?;
        }
        self.blob(&found.config)?;
        let mut entry = self.blob(&manifest)?;
        self.pinned(image, &entry.digest, indexes)?;
        let config: ConfigFile = oci::parse(&found.config, "the image's config")?;
        let document: Document = oci::parse(&manifest, "the image's manifest")?;
        entry.media_type = match document.media_type.is_empty() {
            true => MANIFEST_TYPE.to_owned(),
            false => document.media_type,
        };
        entry.platform = Some(config.platform());
        entry.annotations = Some(BTreeMap::from([(
            IMAGE_NAME.to_owned(),
            image.name.clone(),
        )]));
        Ok(entry)
    }

    /// Adds the index by whose digest a manifest names an image.
    fn pinned(
        &mut self,
        image: &NewImage,
        manifest: &str,
        indexes: &mut Vec<Descriptor>,
    ) -> Result<(), ImageError> {
        let Some(digest) = name::parse(&image.name)?
            .digest
            .filter(|digest| digest != manifest)
        else {
            return Ok(());
        };
        let path = image.layout.join(blob_part(&digest)?);
        let bytes = read_bounded(&path, super::super::archive::MAX_JSON_BYTES)
            .map_err(io_error("read", &path))?;
        let index: Document = oci::parse(&bytes, &format!("index {digest}"))?;
        let lists = index
            .manifests
            .iter()
            .flatten()
            .any(|image| image.digest == manifest);
        if !lists || digest::of(&bytes) != digest {
            return Err(ImageError::Malformed {
                what: format!("index {digest}"),
                why: format!("it does not list the image's manifest {manifest}"),
            });
        }
        let mut entry = self.blob(&bytes)?;
        entry.media_type = INDEX_TYPE.to_owned();
        if !indexes.iter().any(|other| other.digest == entry.digest) {
            indexes.push(entry);
        }
        Ok(())
    }

    /// Writes the manifest files, and what lists them.
    fn manifests(
        &mut self,
        files: &[(String, Vec<u8>)],
        indexes: Vec<Descriptor>,
    ) -> Result<Descriptor, ImageError> {
        let mut layers = Vec::new();
        for (name, text) in files {
            let mut layer = self.blob(text)?;
            layer.media_type = FILE_TYPE.to_owned();
            layer.annotations = Some(BTreeMap::from([(TITLE.to_owned(), name.clone())]));
            layers.push(layer);
        }
        layers.extend(indexes);
        let mut config = self.blob(b"{}")?;
        config.media_type = EMPTY_TYPE.to_owned();
        let document = Document {
            schema_version: 2,
            media_type: MANIFEST_TYPE.to_owned(),
            artifact_type: Some(ARTIFACT_TYPE.to_owned()),
            config: Some(config),
            layers: Some(layers),
            manifests: None,
            annotations: None,
        };
        self.document(&document, MANIFEST_TYPE)
    }

    fn document(
        &mut self,
        document: &Document,
        media_type: &str,
    ) -> Result<Descriptor, ImageError> {
        let mut entry = self.blob(&serde_json::to_vec(document).expect("plain data"))?;
        entry.media_type = media_type.to_owned();
        Ok(entry)
    }

    /// Writes a small blob, once.
    fn blob(&mut self, bytes: &[u8]) -> Result<Descriptor, ImageError> {
        let digest = digest::of(bytes);
        if self.written.insert(digest.clone()) {
            self.part(&blob_part(&digest)?, bytes.len() as u64, bytes)?;
        }
        Ok(Descriptor::new(&digest, bytes.len() as u64))
    }

    /// Copies a blob, once.
    fn copy(&mut self, archive: &Archive, digest: &str, size: u64) -> Result<(), ImageError> {
        if !self.written.insert(digest.to_owned()) {
            return Ok(());
        }
        let part = blob_part(digest)?;
        let section = archive.part(&part)?;
        let what = format!("layer {digest}");
        if section.len() != size {
            return Err(ImageError::Size {
                what,
                expected: size,
                actual: section.len(),
            });
        }
        let mut data = Hashing::new(section);
        self.part(&part, size, &mut data)?;
        let (actual, _) = data.finish().map_err(io_error("read", archive.path()))?;
        match actual == digest {
            true => Ok(()),
            false => Err(ImageError::Digest {
                what,
                expected: digest.to_owned(),
                actual,
            }),
        }
    }

    fn part(&mut self, name: &str, size: u64, data: impl io::Read) -> Result<(), ImageError> {
        let mut header = Header::new_ustar();
        header.set_entry_type(EntryType::Regular);
        header.set_mode(0o644);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(0);
        header.set_size(size);
        let written = self.tar.append_data(&mut header, name, data);
        written.map_err(io_error("write", &self.path))
    }
}

/// Refuses what a reader would refuse.
fn check(bundle: &NewBundle) -> Result<(), ImageError> {
    let NewBundle {
        name,
        files,
        images,
        ..
    } = bundle;
    let bad = |why: String| ImageError::Malformed {
        what: "the bundle".to_owned(),
        why,
    };
    check_name(name).map_err(|why| bad(format!("its name `{name}` is refused: {why}")))?;
    let mut names = BTreeSet::new();
    for (name, _) in files {
        check_file_name(name)
            .map_err(|why| bad(format!("a bundle has no file `{name}`: {why}")))?;
        if !names.insert(name) {
            return Err(bad(format!("it would have two files `{name}`")));
        }
    }
    let text: u64 = files.iter().map(|(_, text)| text.len() as u64).sum();
    for (what, number, limit, unit) in [
        (
            "number of files",
            files.len() as u64,
            MAX_FILES as u64,
            "files",
        ),
        (
            "number of images",
            images.len() as u64,
            MAX_IMAGES as u64,
            "images",
        ),
        ("size of the manifests", text, MAX_TEXT_BYTES, "bytes"),
    ] {
        if number > limit {
            return Err(ImageError::Limit {
                what: format!("the {what} in the bundle"),
                limit,
                unit,
            });
        }
    }
    Ok(())
}
