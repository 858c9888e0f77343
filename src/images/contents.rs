//! The images of an archive. Manifests and configs are read and verified here; layers are not touched.

use serde::Deserialize;

use super::archive::Archive;
use super::digest;
use super::error::ImageError;
use super::name;
use super::oci::{self, CONFIGS, ConfigFile, Descriptor, Document, MAX_CONFIG_BYTES, Platform};
use super::signatures;
use super::trust::Signature;
use crate::types::InOrder;

/// overlayfs takes 500 lower directories.
const MAX_LAYERS: usize = 480;

/// The maximum nesting of indexes.
const MAX_DEPTH: usize = 4;

/// The maximum number of manifests read in one archive.
const MAX_MANIFESTS: usize = 1000;

/// The maximum length of the configs of all images in one archive together.
const MAX_CONFIGS_BYTES: u64 = 4 << 20;

/// The maximum number of names of all images in one archive.
const MAX_NAMES: usize = 1000;

/// An image of the archive, with verified manifest and config.
#[derive(Debug)]
pub(crate) struct Found {
    /// Full names, possibly none.
    pub(crate) names: Vec<String>,
    /// Manifest; `None` for a docker-archive, which has none.
    pub(crate) manifest: Option<Vec<u8>>,
    /// Digests of the indexes that led here.
    pub(crate) indexes: Vec<String>,
    /// Config file.
    pub(crate) config: Vec<u8>,
    /// Bottom first.
    pub(crate) layers: Vec<FoundLayer>,
    /// Those of its signatures that the policy demands.
    pub(crate) signatures: Vec<Signature>,
    /// The full name that the image has in its bundle, if it came with one.
    pub(crate) bundled: Option<String>,
}

/// One layer of an image.
#[derive(Debug, Clone)]
pub(crate) struct FoundLayer {
    /// Name of the part.
    pub(crate) part: String,
    /// Digest and size of the blob, if the archive states them.
    pub(crate) blob: Option<(String, u64)>,
    /// Digest of the tar.
    pub(crate) diff_id: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct DockerImage {
    config: String,
    #[serde(default)]
    repo_tags: Option<Vec<String>>,
    #[serde(default)]
    layers: Option<Vec<String>>,
}

/// Lists the archive's images for a platform; at least one, or an error.
pub(crate) fn images(archive: &Archive, platform: &Platform) -> Result<Vec<Found>, ImageError> {
    let docker = match archive.has("manifest.json") {
        true => Some(docker_images(archive)?),
        false => None,
    };
    // `docker save` writes both; the OCI layout has more information.
    let found = if archive.has("oci-layout") && archive.has("index.json") {
        let mut found = oci_images(archive, platform)?;
        for image in &mut found {
            let id = digest::of(&image.config);
            for tags in docker.iter().flatten().filter(|d| digest::of(&d.0) == id) {
                image.names.extend(docker_names(&tags.1));
            }
            image.names.order();
            image.names.dedup();
        }
        found
    } else if let Some(docker) = docker {
        let mut found = Vec::new();
        for (config, image) in docker {
            found.push(docker_image(config, &image, platform)?);
        }
        found
    } else {
        return Err(ImageError::NotAnImage {
            path: archive.path().to_owned(),
            why: "it has neither `index.json` and `oci-layout` nor `manifest.json`".to_owned(),
        });
    };
    if found.is_empty() {
        return Err(ImageError::NotAnImage {
            path: archive.path().to_owned(),
            why: "it lists no images".to_owned(),
        });
    }
    check_whole(&found)?;
    Ok(merged(found))
}

/// An archive may have an image once for each of its names, as one that `coracle image save` wrote with several.
fn merged(found: Vec<Found>) -> Vec<Found> {
    let mut images: Vec<Found> = Vec::new();
    for image in found {
        let mut known = images.iter_mut();
        let known = known.find(|known| {
            known.config == image.config
                && known.manifest == image.manifest
                && known.indexes == image.indexes
        });
        match known {
            Some(known) => {
                for name in image.names {
                    if !known.names.contains(&name) {
                        known.names.push(name);
                    }
                }
            }
            None => images.push(image),
        }
    }
    images
}

fn docker_images(archive: &Archive) -> Result<Vec<(Vec<u8>, DockerImage)>, ImageError> {
    let bytes = archive.json("manifest.json")?;
    let list: Vec<DockerImage> = oci::parse(&bytes, "`manifest.json`")?;
    if list.len() > MAX_MANIFESTS {
        return Err(too_many());
    }
    let mut images = Vec::new();
    for image in list {
        let config = archive.json(&image.config)?;
        check_length(&config, &format!("config `{}`", image.config))?;
        let stem = image.config.rsplit('/').next().unwrap_or_default();
        let stem = stem.strip_suffix(".json").unwrap_or(stem);
        let named = format!("sha256:{stem}");
        if name::is_digest(&named) && digest::of(&config) != named {
            return Err(ImageError::Digest {
                what: format!("config `{}`", image.config),
                expected: named,
                actual: digest::of(&config),
            });
        }
        images.push((config, image));
    }
    Ok(images)
}

fn docker_names(image: &DockerImage) -> Vec<String> {
    let tags = image.repo_tags.iter().flatten();
    tags.filter_map(|tag| name::tagged(&name::parse(tag).ok()?))
        .collect()
}

fn docker_image(config: Vec<u8>, image: &DockerImage, own: &Platform) -> Result<Found, ImageError> {
    let what = format!("config `{}`", image.config);
    check_length(&config, &what)?;
    let file: ConfigFile = oci::parse(&config, &what)?;
    check_platform(&file.platform(), own)?;
    file.check()?;
    let parts = image.layers.clone().unwrap_or_default();
    let diff_ids = diff_ids(&file, parts.len(), &what)?;
    let layers = parts.into_iter().zip(diff_ids);
    Ok(Found {
        names: docker_names(image),
        manifest: None,
        indexes: Vec::new(),
        config,
        layers: layers
            .map(|(part, diff_id)| FoundLayer {
                part,
                blob: None,
                diff_id,
            })
            .collect(),
        signatures: Vec::new(),
        bundled: None,
    })
}

fn oci_images(archive: &Archive, platform: &Platform) -> Result<Vec<Found>, ImageError> {
    let bytes = archive.json("index.json")?;
    let index: Document = oci::parse(&bytes, "`index.json`")?;
    let mut search = Search {
        archive,
        own: platform.clone(),
        budget: MAX_MANIFESTS,
        available: Vec::new(),
    };
    let mut found: Vec<Found> = Vec::new();
    for descriptor in index.manifests.unwrap_or_default() {
        if signatures::is_signatures(&descriptor) {
            continue;
        }
        let names = annotated_names(archive, &descriptor);
        if let Some((_, mut image)) = search.best(&descriptor, 0)? {
            image.names = names;
            found.push(image);
        }
    }
    if found.is_empty() && !search.available.is_empty() {
        search.available.order();
        search.available.dedup();
        return Err(ImageError::Platform {
            wanted: search.own.shown(),
            available: search.available,
        });
    }
    Ok(found)
}

/// Names from annotations: containerd's full name first; else the reference name, which is a bare tag by the
/// specification and a full name in practice.
fn annotated_names(archive: &Archive, descriptor: &Descriptor) -> Vec<String> {
    let Some(notes) = &descriptor.annotations else {
        return Vec::new();
    };
    let full = notes.get("io.containerd.image.name").cloned();
    let reference = notes.get("org.opencontainers.image.ref.name");
    let given = full.or_else(|| {
        let reference = reference?;
        if reference.contains([':', '/']) {
            return Some(reference.clone());
        }
        let stem = archive
            .path()
            .file_name()?
            .to_str()
            .and_then(name::from_file_stem)?;
        Some(format!("{stem}:{reference}"))
    });
    given
        .and_then(|given| name::tagged(&name::parse(&given).ok()?))
        .into_iter()
        .collect()
}

/// The search for several images of one archive by their manifests.
pub(crate) struct ImageSearch<'a>(Search<'a>);

impl<'a> ImageSearch<'a> {
    pub(crate) fn new(archive: &'a Archive, platform: &Platform) -> Self {
        Self(Search {
            archive,
            own: platform.clone(),
            budget: MAX_MANIFESTS,
            available: Vec::new(),
        })
    }

    /// The best image for the platform below a manifest or index.
    pub(crate) fn below(&mut self, digest: &str, size: u64) -> Result<Option<Found>, ImageError> {
        let at = Descriptor {
            media_type: String::new(),
            artifact_type: None,
            digest: digest.to_owned(),
            size,
            platform: None,
            annotations: None,
        };
        Ok(self.0.best(&at, 0)?.map(|(_, image)| image))
    }

    /// Why there is no image.
    pub(crate) fn none(mut self) -> ImageError {
        self.0.available.order();
        self.0.available.dedup();
        ImageError::Platform {
            wanted: self.0.own.shown(),
            available: self.0.available,
        }
    }
}

struct Search<'a> {
    archive: &'a Archive,
    own: Platform,
    budget: usize,
    available: Vec<String>,
}

impl Search<'_> {
    /// The best image for this machine below a descriptor, and how well it fits.
    fn best(&mut self, at: &Descriptor, depth: usize) -> Result<Option<(u32, Found)>, ImageError> {
        self.budget = self.budget.checked_sub(1).ok_or_else(too_many)?;
        if depth > MAX_DEPTH {
            return Err(ImageError::Limit {
                what: "the nesting of indexes".to_owned(),
                limit: MAX_DEPTH as u64,
                unit: "levels",
            });
        }
        if oci::is_artifact(at.artifact_type.as_deref(), false) {
            return Ok(None);
        }
        // A pull fetches nothing of another kind.
        if depth > 0
            && !oci::may_be_manifest(&at.media_type)
            && !self.archive.has(&blob_part(&at.digest)?)
        {
            return Ok(None);
        }
        let mut fitness = 1;
        if let Some(platform) = at.platform.as_ref().filter(|p| !p.architecture.is_empty()) {
            fitness = platform.fitness(&self.own);
            if fitness == 0 {
                // Build attestations are stored as `unknown`.
                if platform.architecture != "unknown" {
                    self.available.push(platform.shown());
                }
                return Ok(None);
            }
        }
        let bytes = blob(self.archive, at, "manifest")?;
        let what = format!("manifest {}", at.digest);
        let document: Document = oci::parse(&bytes, &what)?;
        if document.is_artifact() {
            return Ok(None);
        }
        if let Some(manifests) = document.manifests {
            return self.best_of(&manifests, at, depth);
        }
        let (Some(config), Some(layers)) = (document.config, document.layers) else {
            return Err(ImageError::Malformed {
                what,
                why: "it is neither an index nor a manifest with config and layers".to_owned(),
            });
        };
        self.image(bytes, (&config, layers), (fitness, at.states_platform()))
    }

    fn best_of(
        &mut self,
        manifests: &[Descriptor],
        at: &Descriptor,
        depth: usize,
    ) -> Result<Option<(u32, Found)>, ImageError> {
        let mut ranked: Vec<(u32, &Descriptor)> = Vec::new();
        for descriptor in manifests {
            let fitness = descriptor
                .platform
                .as_ref()
                .map_or(1, |p| p.fitness(&self.own));
            if fitness > 0 {
                ranked.push((fitness, descriptor));
            } else if let Some(platform) = &descriptor.platform
                && platform.architecture != "unknown"
            {
                self.available.push(platform.shown());
            }
        }
        ranked.order_by_key(|(fitness, _)| std::cmp::Reverse(*fitness));
        for (_, descriptor) in ranked {
            if let Some((fitness, mut image)) = self.best(descriptor, depth + 1)? {
                image.indexes.push(at.digest.clone());
                return Ok(Some((fitness, image)));
            }
        }
        Ok(None)
    }

    fn image(
        &mut self,
        manifest: Vec<u8>,
        (config, layers): (&Descriptor, Vec<Descriptor>),
        (fitness, stated): (u32, bool),
    ) -> Result<Option<(u32, Found)>, ImageError> {
        let what = format!("config {}", config.digest);
        let bytes = blob(self.archive, config, "config")?;
        check_length(&bytes, &what)?;
        let file: ConfigFile = match oci::parse(&bytes, &what) {
            // The config of an artifact.
            Err(_) if !config.media_type.is_empty() && !CONFIGS.contains(&&*config.media_type) => {
                return Ok(None);
            }
            other => other?,
        };
        let platform = file.platform();
        // What an index states decides, whatever the config says, as in containerd.
        if !stated && platform.fitness(&self.own) == 0 {
            self.available.push(platform.shown());
            return Ok(None);
        }
        file.check()?;
        let diff_ids = diff_ids(&file, layers.len(), &what)?;
        let mut found = Vec::new();
        for (layer, diff_id) in layers.into_iter().zip(diff_ids) {
            found.push(FoundLayer {
                part: blob_part(&layer.digest)?,
                blob: Some((layer.digest, layer.size)),
                diff_id,
            });
        }
        let image = Found {
            names: Vec::new(),
            manifest: Some(manifest),
            indexes: Vec::new(),
            config: bytes,
            layers: found,
            signatures: Vec::new(),
            bundled: None,
        };
        Ok(Some((fitness, image)))
    }
}

fn check_platform(platform: &Platform, own: &Platform) -> Result<(), ImageError> {
    if platform.fitness(own) == 0 {
        return Err(ImageError::Platform {
            wanted: own.shown(),
            available: vec![platform.shown()],
        });
    }
    Ok(())
}

fn diff_ids(file: &ConfigFile, layers: usize, what: &str) -> Result<Vec<String>, ImageError> {
    let ids = file.rootfs.diff_ids.clone().unwrap_or_default();
    let bad = |why: String| ImageError::Malformed {
        what: what.to_owned(),
        why,
    };
    if ids.len() != layers {
        return Err(bad(format!(
            "it lists {} layers, the manifest {layers}",
            ids.len()
        )));
    }
    if layers > MAX_LAYERS {
        return Err(ImageError::Limit {
            what: "the number of layers".to_owned(),
            limit: MAX_LAYERS as u64,
            unit: "layers",
        });
    }
    if let Some(id) = ids.iter().find(|id| !name::is_digest(id)) {
        return Err(bad(format!(
            "`{}` is not a sha256 digest",
            id.escape_debug()
        )));
    }
    Ok(ids)
}

fn check_length(config: &[u8], what: &str) -> Result<(), ImageError> {
    if config.len() as u64 > MAX_CONFIG_BYTES {
        return Err(ImageError::Limit {
            what: what.to_owned(),
            limit: MAX_CONFIG_BYTES,
            unit: "bytes",
        });
    }
    Ok(())
}

/// An archive with very many names would make very many files; one with many large configs would cost the agent
/// memory whenever it lists images.
pub(crate) fn check_whole(images: &[Found]) -> Result<(), ImageError> {
    let configs: usize = images.iter().map(|image| image.config.len()).sum();
    if configs as u64 > MAX_CONFIGS_BYTES {
        return Err(ImageError::Limit {
            what: "the configs of all images in the archive together".to_owned(),
            limit: MAX_CONFIGS_BYTES,
            unit: "bytes",
        });
    }
    let names: usize = images.iter().map(|image| image.names.len()).sum();
    if names > MAX_NAMES {
        return Err(ImageError::Limit {
            what: "the number of names in the archive".to_owned(),
            limit: MAX_NAMES as u64,
            unit: "names",
        });
    }
    Ok(())
}

/// Reads and verifies a small blob.
pub(super) fn blob(archive: &Archive, at: &Descriptor, kind: &str) -> Result<Vec<u8>, ImageError> {
    verified(archive, (&at.digest, at.size), kind)
}

/// Reads the blob with this digest, which must have this size. `kind` names it in errors.
pub(super) fn verified(
    archive: &Archive,
    (digest, size): (&str, u64),
    kind: &str,
) -> Result<Vec<u8>, ImageError> {
    let what = format!("{kind} {digest}");
    let bytes = archive.json(&blob_part(digest)?)?;
    if bytes.len() as u64 != size {
        return Err(ImageError::Size {
            what,
            expected: size,
            actual: bytes.len() as u64,
        });
    }
    let actual = digest::of(&bytes);
    if actual != digest {
        return Err(ImageError::Digest {
            what,
            expected: digest.to_owned(),
            actual,
        });
    }
    Ok(bytes)
}

pub(crate) fn blob_part(digest: &str) -> Result<String, ImageError> {
    if !name::is_digest(digest) {
        return Err(ImageError::Malformed {
            what: "a descriptor".to_owned(),
            why: format!("`{}` is not a sha256 digest", digest.escape_debug()),
        });
    }
    Ok(format!("blobs/sha256/{}", digest::hex(digest)))
}

fn too_many() -> ImageError {
    ImageError::Limit {
        what: "the number of images and indexes in the archive".to_owned(),
        limit: MAX_MANIFESTS as u64,
        unit: "manifests",
    }
}

#[cfg(test)]
#[path = "contents_test.rs"]
mod tests;
