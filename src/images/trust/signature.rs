//! Signatures of images in cosign's form: a document that names an image and its digest ("simple signing"), and the
//! signature of that document. In registries and OCI layouts it is a layer of a manifest of its own.

use serde::{Deserialize, Serialize};
use serde_json::json;

use super::super::digest;
use super::super::name::is_digest;
use super::key::{PrivateKey, PublicKey};
use super::{decode_base64, encode_base64};

/// The longest signed document.
pub const MAX_PAYLOAD_BYTES: u64 = 64 << 10;

/// The maximum number of signatures of an image that are looked at.
pub const MAX_SIGNATURES: usize = 32;

/// The longest signature, in bytes.
const MAX_SIGNATURE_BYTES: usize = 1024;

/// `critical.type` of cosign's documents.
const KIND: &str = "cosign container image signature";

/// The media type of a layer that is a signed document.
const SIMPLE_SIGNING: &str = "application/vnd.dev.cosign.simplesigning.v1+json";

/// The layer's annotation with the signature, in base64.
const SIGNATURE: &str = "dev.cosignproject.cosign/signature";

/// A signature that is not understood, or not accepted.
#[derive(Debug, thiserror::Error)]
pub enum SignatureError {
    /// The manifest of the signatures.
    #[error("the manifest of the signatures is not valid: {0}")]
    Manifest(String),
    /// A list of signatures.
    #[error("the list of signatures is not valid: {0}")]
    List(String),
    /// None of the keys has made it.
    #[error("it was made with another key, or is damaged")]
    Key,
    /// The signed document.
    #[error("the signed document is not valid: {0}")]
    Payload(String),
}

/// What a signature says: this image has this digest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Payload {
    /// The image's name, `registry/repository`, with a tag or without one (cosign).
    pub reference: String,
    /// The digest of its manifest or index.
    pub digest: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    critical: Critical,
    #[serde(default, rename = "optional")]
    _optional: serde::de::IgnoredAny,
}

/// All of it counts: a member that is not understood could restrict what was meant.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Critical {
    identity: Identity,
    image: Image,
    #[serde(rename = "type")]
    kind: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Identity {
    docker_reference: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Image {
    docker_manifest_digest: String,
}

impl Payload {
    /// Reads a signed document.
    pub fn parse(bytes: &[u8]) -> Result<Self, SignatureError> {
        let bad = SignatureError::Payload;
        if bytes.len() as u64 > MAX_PAYLOAD_BYTES {
            return Err(bad(format!("it is longer than {MAX_PAYLOAD_BYTES} bytes")));
        }
        let document: Document =
            serde_json::from_slice(bytes).map_err(|why| bad(why.to_string()))?;
        let Critical {
            identity,
            image,
            kind,
        } = document.critical;
        if kind != KIND {
            let kind: String = kind.chars().take(80).collect();
            return Err(bad(format!(
                "its type is `{}`, not `{KIND}`",
                kind.escape_debug()
            )));
        }
        if !is_digest(&image.docker_manifest_digest) {
            return Err(bad("it has no sha256 digest".to_owned()));
        }
        Ok(Self {
            reference: identity.docker_reference,
            digest: image.docker_manifest_digest,
        })
    }

    /// The document to sign.
    pub fn to_json(&self) -> Vec<u8> {
        let document = json!({
            "critical": {
                "identity": { "docker-reference": self.reference },
                "image": { "docker-manifest-digest": self.digest },
                "type": KIND,
            },
            "optional": null,
        });
        document.to_string().into_bytes()
    }
}

/// A signed document with its signature. Its JSON is that of `cosign download signature`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Signature {
    /// The document, as it was signed.
    #[serde(rename = "Payload", with = "in_base64")]
    pub payload: Vec<u8>,
    /// The signature.
    #[serde(rename = "Base64Signature", with = "in_base64")]
    pub signature: Vec<u8>,
}

/// Bytes in JSON.
mod in_base64 {
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(bytes: &[u8], to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&super::encode_base64(bytes))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
        let text = String::deserialize(from)?;
        super::decode_base64(&text).ok_or_else(|| serde::de::Error::custom("no base64"))
    }
}

/// The longest list of signatures.
pub(crate) const MAX_LIST_BYTES: u64 = 1 << 20;

/// Reads a list of signatures as `cosign download signature` prints it, one after the other, the newest last. Of many
/// the oldest are left out, and so are those too long.
pub fn signatures_of(list: &[u8]) -> Result<Vec<Signature>, SignatureError> {
    let mut all = Vec::new();
    for signature in serde_json::Deserializer::from_slice(list).into_iter::<Signature>() {
        let signature = signature.map_err(|why| SignatureError::List(why.to_string()))?;
        if signature.fits() {
            all.push(signature);
        }
    }
    all.reverse();
    all.truncate(MAX_SIGNATURES);
    Ok(all)
}

/// The list of some signatures, the newest first.
pub fn signature_list(signatures: &[Signature]) -> Vec<u8> {
    let mut list = Vec::new();
    for signature in signatures.iter().rev() {
        list.extend(serde_json::to_vec(signature).expect("plain data"));
        list.push(b'\n');
    }
    list
}

impl Signature {
    /// Signs.
    ///
    /// # Errors
    /// The system has no random numbers.
    pub fn make(key: &PrivateKey, payload: &Payload) -> std::io::Result<Self> {
        let payload = payload.to_json();
        let signature = key.sign(&payload)?;
        Ok(Self { payload, signature })
    }

    fn fits(&self) -> bool {
        self.payload.len() as u64 <= MAX_PAYLOAD_BYTES
            && self.signature.len() <= MAX_SIGNATURE_BYTES
    }

    /// What it says, and which of the keys has made it. Nothing of the document is read before.
    pub fn verify<'a>(
        &self,
        keys: &'a [PublicKey],
    ) -> Result<(Payload, &'a PublicKey), SignatureError> {
        let made = |key: &&PublicKey| key.verifies(&self.payload, &self.signature);
        let key = keys.iter().find(made).ok_or(SignatureError::Key)?;
        Ok((Payload::parse(&self.payload)?, key))
    }
}

/// A layer of the manifest that has an image's signatures.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SignatureLayer {
    /// The digest of the signed document.
    pub digest: String,
    /// Its length in bytes.
    pub size: u64,
    /// The signature.
    pub signature: Vec<u8>,
}

#[derive(Deserialize)]
struct Manifest {
    #[serde(default)]
    layers: Vec<Layer>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Layer {
    #[serde(default)]
    media_type: String,
    digest: String,
    size: u64,
    #[serde(default)]
    annotations: Option<Annotations>,
}

#[derive(Deserialize)]
struct Annotations {
    #[serde(default, rename = "dev.cosignproject.cosign/signature")]
    signature: Option<String>,
}

/// The signatures that a manifest lists, the newest first: cosign adds at the end. Layers of other kinds and such as
/// cannot be signatures are left out, and of many signatures the oldest.
pub fn signature_layers(manifest: &[u8]) -> Result<Vec<SignatureLayer>, SignatureError> {
    let manifest: Manifest = serde_json::from_slice(manifest)
        .map_err(|why| SignatureError::Manifest(why.to_string()))?;
    let understood = |layer: Layer| {
        let text = layer.annotations?.signature?;
        let signature = match text.len() <= 2 * MAX_SIGNATURE_BYTES {
            true => decode_base64(&text).filter(|bytes| bytes.len() <= MAX_SIGNATURE_BYTES)?,
            false => return None,
        };
        let fits = layer.media_type == SIMPLE_SIGNING
            && is_digest(&layer.digest)
            && layer.size <= MAX_PAYLOAD_BYTES;
        fits.then_some(SignatureLayer {
            digest: layer.digest,
            size: layer.size,
            signature,
        })
    };
    let newest = manifest.layers.into_iter().rev().filter_map(understood);
    Ok(newest.take(MAX_SIGNATURES).collect())
}

/// A manifest for some signatures, and the config it refers to, as cosign pushes them.
pub fn signature_manifest(signatures: &[Signature]) -> (Vec<u8>, Vec<u8>) {
    let digests: Vec<String> = signatures.iter().map(|s| digest::of(&s.payload)).collect();
    let config = json!({
        "architecture": "",
        "config": {},
        "created": "0001-01-01T00:00:00Z",
        "history": vec![json!({ "created": "0001-01-01T00:00:00Z" }); signatures.len()],
        "os": "",
        "rootfs": { "type": "layers", "diff_ids": digests },
    })
    .to_string()
    .into_bytes();
    let layers: Vec<_> = signatures
        .iter()
        .zip(&digests)
        .map(|(signature, digest)| {
            json!({
                "mediaType": SIMPLE_SIGNING,
                "size": signature.payload.len(),
                "digest": digest,
                "annotations": { SIGNATURE: encode_base64(&signature.signature) },
            })
        })
        .collect();
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": {
            "mediaType": "application/vnd.oci.image.config.v1+json",
            "size": config.len(),
            "digest": digest::of(&config),
        },
        "layers": layers,
    });
    (manifest.to_string().into_bytes(), config)
}

/// The tag under which cosign keeps the signatures of a digest: `sha256-<hex>.sig`.
pub fn signature_tag(digest: &str) -> String {
    format!("{}.sig", digest.replacen(':', "-", 1))
}

#[cfg(test)]
#[path = "signature_test.rs"]
mod tests;
