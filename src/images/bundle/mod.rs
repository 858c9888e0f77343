//! Bundles: manifests and the images that they need in one OCI image layout, so that one file, or one repository of a
//! registry, brings a box what it is to run.
//!
//! ```text
//! index.json                the layout's index: one entry, the bundle
//!   └ bundle                an image index, annotated `dev.coracle.bundle.name`
//!       ├ manifests         an image manifest of the artifact type `application/vnd.coracle.bundle.v1+json`, with the
//!       │                   empty config: a layer for each file, and one for each index by whose digest a file names
//!       │                   an image
//!       └ image …           an image manifest, annotated `io.containerd.image.name` as the files name it
//! ```
//!
//! The bundle's digest is that of its index, which names everything else by digest: one signature covers all of it. It
//! lies beside the bundle in the layout, under the tag that cosign gives it.
//! [`write_bundle`] makes a bundle, `read` takes it apart in the worker, the agent calls [`read_bundle`].

mod client;
mod read;
mod write;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::oci::Platform;

pub use client::{import_bundle, read_bundle};
pub use write::{NewBundle, NewImage, write_bundle};

pub(super) use read::open;

/// The artifact type of the manifests. The bundle's index has none: programs of OCI 1.0 would drop it.
const ARTIFACT_TYPE: &str = "application/vnd.coracle.bundle.v1+json";

/// The media type of a manifest file.
const FILE_TYPE: &str = "application/vnd.coracle.manifest.v1+yaml";

const INDEX_TYPE: &str = "application/vnd.oci.image.index.v1+json";
const MANIFEST_TYPE: &str = "application/vnd.oci.image.manifest.v1+json";
const EMPTY_TYPE: &str = "application/vnd.oci.empty.v1+json";

/// The annotation with the bundle's name.
pub(super) const NAME: &str = "dev.coracle.bundle.name";
/// The annotation with a file's name.
const TITLE: &str = "org.opencontainers.image.title";
/// The annotation with an image's full name.
pub(super) const IMAGE_NAME: &str = "io.containerd.image.name";
/// The annotation with the name in a layout.
pub(super) const REF_NAME: &str = "org.opencontainers.image.ref.name";

/// The maximum number of manifest files.
pub(super) const MAX_FILES: usize = 256;

/// The maximum size of all manifest files together.
pub(super) const MAX_TEXT_BYTES: u64 = 4 << 20;

/// The maximum number of images.
pub(super) const MAX_IMAGES: usize = 256;

/// The longest name of a bundle, as of a label in DNS.
const MAX_NAME_BYTES: usize = 63;

/// The longest name of a manifest file.
const MAX_FILE_NAME_BYTES: usize = 200;

/// What the worker found in a bundle.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bundle {
    /// Its name.
    pub name: String,
    /// The digest of its index.
    pub digest: String,
    /// The manifest files.
    pub files: Vec<BundleFile>,
    /// The ids of its images for this machine, by their names, as manifests have them, in full.
    pub images: BTreeMap<String, String>,
}

/// A manifest file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BundleFile {
    /// Its name, without a path.
    pub name: String,
    /// Its content.
    pub text: String,
}

/// Why this cannot be the name of a bundle, which is the name of a folder, too.
pub fn check_name(name: &str) -> Result<(), &'static str> {
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let edges = [name.bytes().next(), name.bytes().last()];
    if name.len() > MAX_NAME_BYTES {
        Err("it is longer than 63 characters")
    } else if !edges.iter().all(|edge| edge.is_some_and(plain)) {
        Err("it must start and end with a lower-case letter or a digit")
    } else if !name.bytes().all(|b| plain(b) || b == b'-') {
        Err("it may have lower-case letters, digits and `-` only")
    } else {
        Ok(())
    }
}

/// Why a bundle cannot have a manifest file of this name.
pub fn check_file_name(name: &str) -> Result<(), &'static str> {
    let fine = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
    if name.is_empty() || name.len() > MAX_FILE_NAME_BYTES {
        Err("it is empty or longer than 200 characters")
    } else if name.starts_with('.') {
        Err("it starts with a dot")
    } else if !name.bytes().all(fine) {
        Err("it may have letters, digits, `.`, `_` and `-` only")
    } else if ![".yaml", ".yml", ".json"]
        .iter()
        .any(|end| name.ends_with(end))
    {
        Err("it does not end in .yaml, .yml or .json")
    } else {
        Ok(())
    }
}

/// A descriptor with all that bundles go by. Its members are in the order in which other programs write them, so that
/// a copy of a bundle keeps its digest.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Descriptor {
    #[serde(default)]
    media_type: String,
    digest: String,
    size: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    annotations: Option<BTreeMap<String, String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    platform: Option<Platform>,
}

/// An index, or a manifest.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Document {
    #[serde(default)]
    schema_version: u64,
    #[serde(default)]
    media_type: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    artifact_type: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    config: Option<Descriptor>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    layers: Option<Vec<Descriptor>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    manifests: Option<Vec<Descriptor>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    annotations: Option<BTreeMap<String, String>>,
}

impl Descriptor {
    fn new(digest: &str, size: u64) -> Self {
        Self {
            media_type: String::new(),
            digest: digest.to_owned(),
            size,
            annotations: None,
            platform: None,
        }
    }

    /// What an annotation says.
    fn note(&self, key: &str) -> Option<&str> {
        self.annotations.as_ref()?.get(key).map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_bundles_and_files_are_no_paths() {
        for (name, fine) in [
            ("site", true),
            ("site-3", true),
            ("3", true),
            ("", false),
            (".", false),
            ("..", false),
            ("-a", false),
            ("a-", false),
            ("a/b", false),
            ("A", false),
            ("a.b", false),
        ] {
            assert_eq!(check_name(name).is_ok(), fine, "{name}");
        }
        assert!(check_name(&"a".repeat(64)).is_err());
        for (name, fine) in [
            ("web.yaml", true),
            ("web.yml", true),
            ("web_1.json", true),
            ("web", false),
            ("web.txt", false),
            (".web.yaml", false),
            ("../web.yaml", false),
            ("a/web.yaml", false),
            ("web .yaml", false),
            ("web\n.yaml", false),
            ("", false),
        ] {
            assert_eq!(check_file_name(name).is_ok(), fine, "{name}");
        }
    }
}
