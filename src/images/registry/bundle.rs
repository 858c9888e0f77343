//! A bundle in a registry: one repository has its index, its manifests and its images, and its signature under the tag
//! that cosign gives it.

use serde::Deserialize;
use serde_json::json;

use super::super::bundle::{IMAGE_NAME, MAX_FILES, MAX_IMAGES, MAX_TEXT_BYTES, NAME, REF_NAME};
use super::super::digest;
use super::super::error::ImageError;
use super::super::name::is_digest;
use super::super::oci::{self, ConfigFile, MAX_CONFIG_BYTES};
use super::super::space::Space;
use super::super::store::ImageStore;
use super::super::trust::{MAX_PAYLOAD_BYTES, signature_layers, signature_tag};
use super::blob::{Blob, Watch, download};
use super::error::FetchError;
use super::folder::PullFolder;
use super::resolve::{MAX_MANIFEST_BYTES, Raw, Search, manifest};
use super::session::Session;
use super::throttle::Throttle;
use crate::sys::file::read_bounded;

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Descriptor {
    digest: String,
    size: u64,
    #[serde(default)]
    annotations: Option<std::collections::BTreeMap<String, String>>,
}

#[derive(Debug, Deserialize)]
struct Document {
    #[serde(default)]
    manifests: Option<Vec<Descriptor>>,
    #[serde(default)]
    config: Option<Descriptor>,
    #[serde(default)]
    layers: Option<Vec<Descriptor>>,
    #[serde(default)]
    annotations: Option<std::collections::BTreeMap<String, String>>,
}

/// What is to be fetched of a bundle.
#[derive(Debug)]
pub(super) struct Found {
    /// The bundle's index.
    pub(super) top: Raw,
    /// The manifest of its signatures.
    signature: Option<Raw>,
    /// The layers that the store does not have.
    pub(super) missing: Vec<Blob>,
}

/// The bundle's index, or the digest of one that is known already. A request for the head alone does not count at
/// registries that count pulls.
pub(super) fn top(
    session: &Session,
    reference: &str,
    known: &[String],
) -> Result<Result<Raw, String>, FetchError> {
    let is_known = |digest: &str| known.iter().any(|known| known == digest);
    if !known.is_empty() {
        // Not every registry answers it; the full request reports what is wrong.
        let what = format!("manifest `{reference}`");
        let answer = session.ask(&manifest(reference, what, true)).ok();
        let now = answer
            .as_ref()
            .and_then(|answer| answer.header("Docker-Content-Digest"));
        if let Some(now) = now.filter(|now| is_known(now)) {
            return Ok(Err(now.to_owned()));
        }
    }
    let top = Search::top(session, reference)?;
    Ok(match is_known(&top.digest) {
        true => Err(top.digest),
        false => Ok(top),
    })
}

/// Fetches all small parts of a bundle into the pull's folder.
pub(super) fn find(
    session: &Session,
    store: &ImageStore,
    folder: &PullFolder,
    (throttle, space): (&Throttle, &mut Space),
    top: Raw,
) -> Result<Found, FetchError> {
    let index: Document = oci::parse(&top.bytes, "the bundle's index")?;
    let named = index
        .annotations
        .iter()
        .flatten()
        .any(|(key, _)| key == NAME);
    let parts = index
        .manifests
        .filter(|_| named)
        .ok_or_else(|| FetchError::NoImage {
            name: session.name().to_string(),
            why: "it is no bundle; bundles are made by `coracle bundle create`".to_owned(),
        })?;
    folder.keep(&top.digest, &top.bytes)?;
    check(
        "the number of images in the bundle",
        parts.len(),
        MAX_IMAGES + 1,
    )?;
    let mut fetch = Fetch {
        session,
        folder,
        throttle,
        space,
    };
    let mut all: Vec<(Blob, String)> = Vec::new();
    for part in &parts {
        let raw = fetch.manifest(part)?;
        let document: Document = oci::parse(&raw.bytes, &format!("manifest {}", raw.digest))?;
        let (Some(config), Some(layers)) = (document.config, document.layers) else {
            return Err(FetchError::NoImage {
                name: session.name().to_string(),
                why: format!("manifest {} has no config and layers", raw.digest),
            });
        };
        let is_image = part
            .annotations
            .iter()
            .flatten()
            .any(|(key, _)| key == IMAGE_NAME);
        if !is_image {
            check(
                "the number of files in the bundle",
                layers.len(),
                MAX_FILES + MAX_IMAGES,
            )?;
            for layer in &layers {
                fetch.blob(layer, MAX_TEXT_BYTES)?;
            }
            continue;
        }
        let bytes = fetch.blob(&config, MAX_CONFIG_BYTES)?;
        let file: ConfigFile = oci::parse(&bytes, &format!("config {}", config.digest))?;
        let diff_ids = file.rootfs.diff_ids.unwrap_or_default();
        for (layer, diff_id) in layers.into_iter().zip(diff_ids) {
            fetch.check_digest(&layer.digest)?;
            fetch.check_digest(&diff_id)?;
            let known = all.iter().any(|(blob, _)| blob.digest == layer.digest);
            if !known {
                let blob = Blob {
                    digest: layer.digest,
                    size: layer.size,
                    kind: "layer",
                };
                all.push((blob, diff_id));
            }
        }
    }
    // Before they are looked for: from now on none of them goes.
    folder.keep_layers(all.iter().map(|(_, diff_id)| diff_id))?;
    all.retain(|(_, diff_id)| !store.has_layer(diff_id));
    let missing = all.into_iter().map(|(blob, _)| blob).collect();
    let signature = fetch.signature(&top.digest)?;
    Ok(Found {
        top,
        signature,
        missing,
    })
}

impl Found {
    /// Makes the folder the complete OCI layout of a bundle.
    pub(super) fn complete(&self, folder: &PullFolder) -> Result<(), ImageError> {
        let entry = |raw: &Raw, kind: &str| {
            json!({ "mediaType": format!("application/vnd.oci.image.{kind}.v1+json"), "digest": raw.digest,
                    "size": raw.bytes.len() })
        };
        let mut entries = vec![entry(&self.top, "index")];
        if let Some(signature) = &self.signature {
            let mut beside = entry(signature, "manifest");
            beside["annotations"] = json!({ REF_NAME: signature_tag(&self.top.digest) });
            entries.push(beside);
        }
        folder.complete_with(&entries)
    }
}

struct Fetch<'a> {
    session: &'a Session,
    folder: &'a PullFolder,
    throttle: &'a Throttle,
    space: &'a mut Space,
}

impl Fetch<'_> {
    /// A manifest by its descriptor, from the folder or the registry.
    fn manifest(&self, at: &Descriptor) -> Result<Raw, FetchError> {
        self.check_digest(&at.digest)?;
        let known =
            read_bounded(self.folder.blob(&at.digest), MAX_MANIFEST_BYTES).unwrap_or_default();
        let raw = match digest::of(&known) == at.digest {
            true => Raw {
                digest: at.digest.clone(),
                bytes: known,
            },
            // Verifies the digest.
            false => Search::top(self.session, &at.digest)?,
        };
        self.folder.keep(&raw.digest, &raw.bytes)?;
        Ok(raw)
    }

    /// A small blob.
    fn blob(&mut self, at: &Descriptor, limit: u64) -> Result<Vec<u8>, FetchError> {
        self.check_digest(&at.digest)?;
        if at.size > limit {
            return Err(FetchError::Image(ImageError::Limit {
                what: format!("blob {}", at.digest),
                limit,
                unit: "bytes",
            }));
        }
        let blob = Blob {
            digest: at.digest.clone(),
            size: at.size,
            kind: "blob",
        };
        let mut watch = Watch {
            throttle: self.throttle,
            space: self.space,
            tick: &mut |_| {},
        };
        download(self.session, self.folder, &blob, &mut watch)?;
        let path = self.folder.blob(&at.digest);
        let bytes = read_bounded(&path, limit);
        Ok(bytes.map_err(super::super::error::io("read", &path))?)
    }

    /// The manifest of the signatures, with what they sign; none if there is none.
    fn signature(&mut self, digest: &str) -> Result<Option<Raw>, FetchError> {
        let raw = match Search::top(self.session, &signature_tag(digest)) {
            Ok(raw) => raw,
            Err(FetchError::NotFound { .. }) => return Ok(None),
            Err(why) => return Err(why),
        };
        self.folder.keep(&raw.digest, &raw.bytes)?;
        // One that is not understood is refused where a signature is demanded.
        for layer in signature_layers(&raw.bytes).unwrap_or_default() {
            let at = Descriptor {
                digest: layer.digest,
                size: layer.size,
                annotations: None,
            };
            self.blob(&at, MAX_PAYLOAD_BYTES)?;
        }
        Ok(Some(raw))
    }

    fn check_digest(&self, digest: &str) -> Result<(), FetchError> {
        match is_digest(digest) {
            true => Ok(()),
            false => Err(FetchError::NoImage {
                name: self.session.name().to_string(),
                why: "a digest in it is no sha256 digest".to_owned(),
            }),
        }
    }
}

fn check(what: &str, number: usize, limit: usize) -> Result<(), FetchError> {
    match number > limit {
        true => Err(FetchError::Image(ImageError::Limit {
            what: what.to_owned(),
            limit: limit as u64,
            unit: "parts",
        })),
        false => Ok(()),
    }
}
