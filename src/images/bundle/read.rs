//! The parts of a bundle, found and verified in the worker. Nothing in it is trusted: all counts, sizes and names are
//! checked.

use std::collections::{BTreeMap, BTreeSet};

use super::super::archive::Archive;
use super::super::contents::{self, Found, ImageSearch};
use super::super::digest;
use super::super::error::ImageError;
use super::super::name;
use super::super::oci::{self, Platform};
use super::super::trust::{
    MAX_SIGNATURES, PublicKey, Signature, SignatureLayer, signature_layers, signature_tag,
};
use super::{
    ARTIFACT_TYPE, Bundle, BundleFile, Descriptor, Document, FILE_TYPE, IMAGE_NAME, INDEX_TYPE,
    MAX_FILES, MAX_IMAGES, MAX_TEXT_BYTES, NAME, REF_NAME, check_file_name, check_name,
};
use crate::types::Gather;

/// A bundle whose documents are verified. Its images are not read yet.
#[derive(Debug)]
pub(crate) struct Contents {
    pub(crate) bundle: Bundle,
    /// Full name and manifest of each image.
    images: Vec<(String, Descriptor)>,
    /// The digests of indexes that files name images by, each with what it lists.
    indexes: Vec<(String, BTreeSet<String>)>,
}

/// Finds the bundle of an archive. If there are `keys`, one of them must have signed it; nothing of it is read before.
pub(crate) fn open(archive: &Archive, keys: &[PublicKey]) -> Result<Contents, ImageError> {
    let not = |why: &str| ImageError::NotABundle {
        path: archive.path().to_owned(),
        why: why.to_owned(),
    };
    if !archive.has("oci-layout") || !archive.has("index.json") {
        return Err(not("it has no `index.json` and `oci-layout`"));
    }
    let bytes = archive.json("index.json")?;
    let layout: Document = oci::parse(&bytes, "`index.json`")?;
    let entries = layout.manifests.unwrap_or_default();
    let mut bundles = Vec::new();
    for entry in entries.iter().take(MAX_IMAGES) {
        if !entry.media_type.is_empty() && entry.media_type != INDEX_TYPE {
            continue;
        }
        let bytes = blob(archive, entry, "bundle")?;
        let document: Document = oci::parse(&bytes, "the bundle's index")?;
        let notes = document.annotations.iter().flatten();
        if notes.into_iter().any(|(key, _)| key == NAME) {
            bundles.push((entry.digest.clone(), document));
        }
    }
    let (digest, index) = match bundles.pop() {
        Some(only) if bundles.is_empty() => only,
        Some(_) => return Err(not("it has several bundles")),
        None => {
            return Err(not(
                "it has images, but no manifests: `coracle image import` takes it",
            ));
        }
    };
    if !keys.is_empty() {
        verify(archive, &entries, &digest, keys)?;
    }
    contents(archive, digest, index)
}

/// Whether one of the keys has signed the bundle of this digest: its signatures are beside it in the layout.
fn verify(
    archive: &Archive,
    entries: &[Descriptor],
    digest: &str,
    keys: &[PublicKey],
) -> Result<(), ImageError> {
    let refused = |why: String| ImageError::Unsigned {
        path: archive.path().to_owned(),
        why,
    };
    let tag = signature_tag(digest);
    let mut signed = false;
    for entry in entries
        .iter()
        .filter(|entry| entry.note(REF_NAME) == Some(tag.as_str()))
        .take(MAX_SIGNATURES)
    {
        let manifest = blob(archive, entry, "signature")?;
        let layers = signature_layers(&manifest).map_err(|why| refused(why.to_string()))?;
        for SignatureLayer {
            digest: of,
            size,
            signature,
        } in layers
        {
            signed = true;
            let at = Descriptor::new(&of, size);
            let payload = blob(archive, &at, "signed document")?;
            let signature = Signature { payload, signature };
            if signature
                .verify(keys)
                .is_ok_and(|(payload, _)| payload.digest == digest)
            {
                return Ok(());
            }
        }
    }
    Err(refused(match signed {
        true => "none of its signatures was made for it with that key".to_owned(),
        false => "it has no signature".to_owned(),
    }))
}

fn contents(archive: &Archive, digest: String, index: Document) -> Result<Contents, ImageError> {
    let notes = index.annotations.unwrap_or_default();
    let name = notes.get(NAME).cloned().unwrap_or_default();
    check_name(&name)
        .map_err(|why| bad(format!("its name `{}` is refused: {why}", shown(&name))))?;
    let (mut files, mut indexes, mut images) = (Vec::new(), Vec::new(), Vec::new());
    let mut manifests = 0;
    for part in index.manifests.unwrap_or_default() {
        if images.len() > MAX_IMAGES {
            return Err(limit(
                "the number of images in the bundle",
                MAX_IMAGES as u64,
                "images",
            ));
        }
        match part.note(IMAGE_NAME).map(str::to_owned) {
            Some(given) => {
                let full = name::parse(&given)?.to_string();
                if images.iter().any(|(other, _)| *other == full) {
                    return Err(bad(format!("it has the image `{full}` twice")));
                }
                images.push((full, part));
            }
            None => {
                manifests += 1;
                if manifests > 1 {
                    return Err(bad("an image in it has no name".to_owned()));
                }
                (files, indexes) = read_manifests(archive, &part)?;
            }
        }
    }
    if files.is_empty() {
        return Err(bad("it has no manifests".to_owned()));
    }
    Ok(Contents {
        bundle: Bundle {
            name,
            digest,
            files,
            images: BTreeMap::new(),
        },
        images,
        indexes,
    })
}

type Manifests = (Vec<BundleFile>, Vec<(String, BTreeSet<String>)>);

/// The manifest files, and the indexes beside them.
fn read_manifests(archive: &Archive, at: &Descriptor) -> Result<Manifests, ImageError> {
    let bytes = blob(archive, at, "manifest")?;
    let document: Document = oci::parse(&bytes, "the manifest of the bundle's files")?;
    if document.artifact_type.as_deref() != Some(ARTIFACT_TYPE) {
        return Err(bad("an image in it has no name".to_owned()));
    }
    let (mut files, mut indexes) = (Vec::<BundleFile>::new(), Vec::new());
    let mut left = MAX_TEXT_BYTES;
    for layer in document.layers.unwrap_or_default() {
        if files.len() >= MAX_FILES || indexes.len() >= MAX_IMAGES {
            return Err(limit(
                "the number of files in the bundle",
                MAX_FILES as u64,
                "files",
            ));
        }
        if layer.media_type == INDEX_TYPE {
            let bytes = blob(archive, &layer, "index")?;
            let index: Document = oci::parse(&bytes, &format!("index {}", layer.digest))?;
            let listed = index.manifests.unwrap_or_default();
            let listed = listed.into_iter().map(|image| image.digest).gather();
            indexes.push((layer.digest, listed));
            continue;
        }
        if layer.media_type != FILE_TYPE {
            return Err(bad(format!(
                "a file in it is of the unknown type `{}`",
                shown(&layer.media_type)
            )));
        }
        left = left.checked_sub(layer.size).ok_or_else(|| {
            limit(
                "the size of the bundle's manifests",
                MAX_TEXT_BYTES,
                "bytes",
            )
        })?;
        let file = file(archive, &layer)?;
        if files.iter().any(|other| other.name == file.name) {
            return Err(bad(format!("it has the file `{}` twice", file.name)));
        }
        files.push(file);
    }
    Ok((files, indexes))
}

fn file(archive: &Archive, layer: &Descriptor) -> Result<BundleFile, ImageError> {
    let name = layer.note(super::TITLE).unwrap_or_default();
    check_file_name(name).map_err(|why| {
        bad(format!(
            "a file in it has the name `{}`: {why}",
            shown(name)
        ))
    })?;
    let bytes = blob(archive, layer, "file")?;
    let text = String::from_utf8(bytes).map_err(|_| bad(format!("`{name}` is not UTF-8")))?;
    // YAML has none of them; printed, each takes six times its space.
    let control = |c: char| c.is_control() && !matches!(c, '\n' | '\r' | '\t' | '\u{85}');
    if text.contains(control) {
        return Err(bad(format!("`{name}` has control characters")));
    }
    Ok(BundleFile {
        name: name.to_owned(),
        text,
    })
}

impl Contents {
    /// The images, for this platform.
    pub(crate) fn images(
        &self,
        archive: &Archive,
        platform: &Platform,
    ) -> Result<Vec<Found>, ImageError> {
        let mut images = Vec::new();
        self.each(archive, platform, |_, image| images.push(image))?;
        Ok(images)
    }

    /// The ids of its images for this machine, by their full names.
    pub(crate) fn ids(&self, archive: &Archive) -> Result<BTreeMap<String, String>, ImageError> {
        let mut ids = BTreeMap::new();
        self.each(archive, &Platform::own(), |full, image| {
            ids.insert(full.to_owned(), digest::of(&image.config));
        })?;
        Ok(ids)
    }

    /// Finds each image in turn, with its full name.
    fn each(
        &self,
        archive: &Archive,
        platform: &Platform,
        mut take: impl FnMut(&str, Found),
    ) -> Result<(), ImageError> {
        let mut search = ImageSearch::new(archive, platform);
        for (full, at) in &self.images {
            let Some(mut image) = search.below(&at.digest, at.size)? else {
                return Err(search.none());
            };
            let parsed = name::parse(full)?;
            if let Some(wanted) = &parsed.digest {
                self.check_pin(full, wanted, &at.digest)?;
                image
                    .indexes
                    .extend((*wanted != at.digest).then(|| wanted.clone()));
            } else {
                image.names.extend(name::tagged(&parsed));
            }
            image.bundled = Some(full.clone());
            take(full, image);
        }
        Ok(())
    }

    /// An image that is named by a digest has that digest, or is listed in the index that has it.
    fn check_pin(&self, name: &str, wanted: &str, manifest: &str) -> Result<(), ImageError> {
        let listed = |(digest, listed): &(String, BTreeSet<String>)| {
            digest == wanted && listed.contains(manifest)
        };
        match wanted == manifest || self.indexes.iter().any(listed) {
            true => Ok(()),
            false => Err(bad(format!(
                "its image `{name}` has another digest: {manifest}"
            ))),
        }
    }
}

/// Reads and verifies a small blob of the bundle.
fn blob(archive: &Archive, at: &Descriptor, kind: &str) -> Result<Vec<u8>, ImageError> {
    let kind = format!("the bundle's {kind}");
    contents::verified(archive, (&at.digest, at.size), &kind)
}

fn bad(why: String) -> ImageError {
    ImageError::Malformed {
        what: "the bundle".to_owned(),
        why,
    }
}

fn limit(what: &str, limit: u64, unit: &'static str) -> ImageError {
    ImageError::Limit {
        what: what.to_owned(),
        limit,
        unit,
    }
}

fn shown(text: &str) -> String {
    text.chars()
        .take(100)
        .flat_map(char::escape_debug)
        .collect()
}

#[cfg(test)]
#[path = "read_test.rs"]
mod tests;
