//! From a name to the manifest of one platform: indexes are followed, everything small is fetched, verified and kept
//! in the pull's folder. Formats are told apart by what a document says, not by the type that a server gives it.

use serde::Deserialize;

use super::super::digest;
use super::super::error::ImageError;
use super::super::name::is_digest;
use super::super::oci::{self, CONFIGS, ConfigFile, MAX_CONFIG_BYTES, Platform, is_artifact};
use super::super::store::ImageStore;
use super::blob::Blob;
use super::error::FetchError;
use super::folder::PullFolder;
use super::session::{Session, Wanted};
use super::url::shorten;
use crate::spec::ImageName;
use crate::sys::file::read_bounded;
use crate::types::InOrder;

/// The longest manifest or index.
pub(super) const MAX_MANIFEST_BYTES: u64 = 4 << 20;

/// The maximum nesting of indexes.
const MAX_DEPTH: usize = 4;

/// The maximum number of manifests and indexes fetched for one image.
const MAX_MANIFESTS: usize = 64;

/// overlayfs takes 500 lower directories.
const MAX_LAYERS: usize = 480;

/// A manifest, or an index, as it was received.
#[derive(Debug, Clone)]
pub(super) struct Raw {
    pub(super) digest: String,
    pub(super) bytes: Vec<u8>,
}

/// The image to fetch.
#[derive(Debug)]
pub(super) struct Resolved {
    /// Its manifest.
    pub(super) manifest: Raw,
    /// Layers with their diff ids, bottom first.
    pub(super) layers: Vec<(Blob, String)>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Descriptor {
    #[serde(default)]
    media_type: String,
    pub(super) digest: String,
    size: u64,
    #[serde(default)]
    platform: Option<Platform>,
    #[serde(default)]
    artifact_type: Option<String>,
}

impl Descriptor {
    /// The platform that it states.
    fn stated(&self) -> Option<&Platform> {
        let stated = self.platform.as_ref();
        stated.filter(|platform| !platform.architecture.is_empty())
    }
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Document {
    #[serde(default)]
    schema_version: Option<u64>,
    #[serde(default)]
    pub(super) manifests: Option<Vec<Descriptor>>,
    #[serde(default)]
    pub(super) config: Option<Descriptor>,
    #[serde(default)]
    pub(super) layers: Option<Vec<Descriptor>>,
    #[serde(default)]
    fs_layers: Option<serde::de::IgnoredAny>,
    #[serde(default)]
    artifact_type: Option<String>,
    #[serde(default)]
    subject: Option<serde::de::IgnoredAny>,
}

impl Document {
    /// Whether it is not the manifest of an image: it may lie beside some in an index. The type of the config decides, if
    /// it is stated.
    fn is_artifact(&self) -> bool {
        let kind = self.config.as_ref().map(|config| &*config.media_type);
        match kind.filter(|kind| !kind.is_empty()) {
            Some(kind) => !CONFIGS.contains(&kind),
            None => is_artifact(self.artifact_type.as_deref(), self.subject.is_some()),
        }
    }
}

/// Finds the image of a platform.
pub(super) struct Search<'a> {
    pub(super) session: &'a Session,
    pub(super) store: &'a ImageStore,
    pub(super) folder: &'a PullFolder,
    pub(super) platform: &'a Platform,
    fetched: usize,
    available: Vec<String>,
    /// Whether there were artifacts in place of images.
    passed_over: bool,
}

impl<'a> Search<'a> {
    pub(super) fn new(
        session: &'a Session,
        store: &'a ImageStore,
        folder: &'a PullFolder,
        platform: &'a Platform,
    ) -> Self {
        Self {
            session,
            store,
            folder,
            platform,
            fetched: 0,
            available: Vec::new(),
            passed_over: false,
        }
    }

    /// The best image below a manifest or index.
    pub(super) fn run(mut self, top: &Raw) -> Result<Resolved, FetchError> {
        self.keep(top)?;
        if let Some(found) = self.best(top, (0, false))? {
            return Ok(found);
        }
        if self.available.is_empty() && self.passed_over {
            return Err(self.no_image("it has artifacts, but no image"));
        }
        self.available.order();
        self.available.dedup();
        Err(FetchError::Image(ImageError::Platform {
            wanted: self.platform.shown(),
            available: self.available,
        }))
    }

    /// The document that a tag or digest names.
    pub(super) fn top(session: &Session, reference: &str) -> Result<Raw, FetchError> {
        let what = format!("manifest `{reference}`");
        let answer = session.ask(&manifest(reference, what.clone(), false))?;
        let named = answer.header("Docker-Content-Digest").map(str::to_owned);
        let url = answer.url.to_string();
        let bytes = answer.whole(MAX_MANIFEST_BYTES, &what, &session.patience())?;
        let actual = digest::of(&bytes);
        let wrong = |expected: &str| {
            FetchError::Image(ImageError::Digest {
                what: what.clone(),
                expected: expected.to_owned(),
                actual: actual.clone(),
            })
        };
        if is_digest(reference) && actual != reference {
            return Err(wrong(reference));
        }
        match named {
            // Other algorithms cannot be compared.
            Some(named) if is_digest(&named) && named != actual => Err(wrong(&named)),
            Some(named) if !is_digest(&named) && !named.starts_with("sha512:") => {
                Err(FetchError::Answer {
                    url,
                    why: format!("`{}` is no digest", shorten(&named)),
                })
            }
            _ => Ok(Raw {
                digest: actual,
                bytes,
            }),
        }
    }

    /// The best image below a manifest or index, that many indexes deep. `stated`: its index says that it is for this
    /// platform.
    fn best(
        &mut self,
        raw: &Raw,
        (depth, stated): (usize, bool),
    ) -> Result<Option<Resolved>, FetchError> {
        let document = self.read(raw)?;
        if depth > 0 && document.is_artifact() {
            self.passed_over = true;
            return Ok(None);
        }
        if let Some(manifests) = document.manifests {
            return self.best_of(&manifests, depth);
        }
        let (Some(config), Some(layers)) = (document.config, document.layers) else {
            return Err(
                self.no_image("its manifest has neither config and layers nor other manifests")
            );
        };
        self.image(raw, (&config, layers), stated)
    }

    fn best_of(
        &mut self,
        manifests: &[Descriptor],
        depth: usize,
    ) -> Result<Option<Resolved>, FetchError> {
        if depth >= MAX_DEPTH {
            return Err(self.no_image(&format!("its indexes are nested {MAX_DEPTH} times")));
        }
        for descriptor in ranked(manifests, self.platform, |other| self.note(other)) {
            if !oci::may_be_manifest(&descriptor.media_type)
                || is_artifact(descriptor.artifact_type.as_deref(), false)
            {
                self.passed_over = true;
                continue;
            }
            let raw = self.small(descriptor, "manifest", MAX_MANIFEST_BYTES)?;
            let stated = descriptor.stated().is_some();
            if let Some(found) = self.best(&raw, (depth + 1, stated))? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    fn image(
        &mut self,
        raw: &Raw,
        (config, layers): (&Descriptor, Vec<Descriptor>),
        stated: bool,
    ) -> Result<Option<Resolved>, FetchError> {
        if !config.media_type.is_empty() && !CONFIGS.contains(&config.media_type.as_str()) {
            let kind = shorten(&config.media_type);
            return Err(self.no_image(&format!("its config is of the type `{kind}`")));
        }
        if layers
            .iter()
            .any(|layer| layer.media_type.ends_with("+encrypted"))
        {
            return Err(self.no_image("its layers are encrypted"));
        }
        let small = self.small(config, "config", MAX_CONFIG_BYTES)?;
        let what = format!("config {}", config.digest);
        let file: ConfigFile = oci::parse(&small.bytes, &what)?;
        let platform = file.platform();
        // What an index states decides, whatever the config says, as in containerd.
        if !stated && platform.fitness(self.platform) == 0 {
            self.note(&platform);
            return Ok(None);
        }
        let diff_ids = file.rootfs.diff_ids.unwrap_or_default();
        if diff_ids.len() != layers.len() || layers.len() > MAX_LAYERS {
            return Err(self.no_image(&format!(
                "its config lists {} layers, its manifest {} (at most {MAX_LAYERS})",
                diff_ids.len(),
                layers.len()
            )));
        }
        let mut found = Vec::new();
        for (layer, diff_id) in layers.into_iter().zip(diff_ids) {
            for digest in [&layer.digest, &diff_id] {
                self.check_digest(digest)?;
            }
            let blob = Blob {
                digest: layer.digest,
                size: layer.size,
                kind: "layer",
            };
            found.push((blob, diff_id));
        }
        Ok(Some(Resolved {
            manifest: raw.clone(),
            layers: found,
        }))
    }

    /// A manifest or config by its descriptor: from the pull's folder, from the store, or from the registry.
    fn small(&mut self, at: &Descriptor, kind: &str, limit: u64) -> Result<Raw, FetchError> {
        self.check_digest(&at.digest)?;
        self.fetched += 1;
        if self.fetched > MAX_MANIFESTS {
            return Err(self.no_image(&format!("it has more than {MAX_MANIFESTS} manifests")));
        }
        let what = format!("{kind} {}", at.digest);
        if at.size > limit {
            return Err(FetchError::Image(ImageError::Limit {
                what,
                limit,
                unit: "bytes",
            }));
        }
        for path in [
            self.folder.blob(&at.digest),
            self.store.blob_path(&at.digest),
        ] {
            let bytes = read_bounded(&path, limit).unwrap_or_default();
            if digest::of(&bytes) == at.digest {
                return self.keep(&Raw {
                    digest: at.digest.clone(),
                    bytes,
                });
            }
        }
        let wanted = match kind {
            "config" => Wanted {
                head: false,
                target: format!("blobs/{}", at.digest),
                headers: vec![("Accept", "*/*".to_owned())],
                what: what.clone(),
                range: false,
            },
            _ => manifest(&at.digest, what.clone(), false),
        };
        let bytes = self
            .session
            .ask(&wanted)?
            .whole(limit, &what, &self.session.patience())?;
        let actual = digest::of(&bytes);
        if bytes.len() as u64 != at.size {
            return Err(FetchError::Image(ImageError::Size {
                what,
                expected: at.size,
                actual: bytes.len() as u64,
            }));
        }
        if actual != at.digest {
            return Err(FetchError::Image(ImageError::Digest {
                what,
                expected: at.digest.clone(),
                actual,
            }));
        }
        self.keep(&Raw {
            digest: actual,
            bytes,
        })
    }

    fn keep(&self, raw: &Raw) -> Result<Raw, FetchError> {
        // One that is there may have been damaged since.
        let held = read_bounded(self.folder.blob(&raw.digest), MAX_MANIFEST_BYTES);
        if !held.is_ok_and(|held| held == raw.bytes) {
            self.folder.keep(&raw.digest, &raw.bytes)?;
        }
        Ok(raw.clone())
    }

    fn read(&self, raw: &Raw) -> Result<Document, FetchError> {
        let what = format!("manifest {}", raw.digest);
        read_document(&raw.bytes, &what, self.session.name())
    }

    fn note(&mut self, platform: &Platform) {
        // Build attestations are stored as `unknown`.
        if platform.architecture != "unknown" && self.available.len() < MAX_MANIFESTS {
            self.available.push(shorten(&platform.shown()));
        }
    }

    fn check_digest(&self, digest: &str) -> Result<(), FetchError> {
        match is_digest(digest) {
            true => Ok(()),
            false => Err(self.no_image(&format!("`{}` is no sha256 digest", shorten(digest)))),
        }
    }

    fn no_image(&self, why: &str) -> FetchError {
        FetchError::NoImage {
            name: self.session.name().to_string(),
            why: why.to_owned(),
        }
    }
}

/// Reads a manifest or index of an image.
pub(super) fn read_document(
    bytes: &[u8],
    what: &str,
    image: &ImageName,
) -> Result<Document, FetchError> {
    let document: Document = oci::parse(bytes, what)?;
    if document.schema_version == Some(1) || document.fs_layers.is_some() {
        return Err(FetchError::Schema1(image.to_string()));
    }
    // Programs that read such a document differently would run different images.
    if document.manifests.is_some() && (document.config.is_some() || document.layers.is_some()) {
        return Err(FetchError::NoImage {
            name: image.to_string(),
            why: "its manifest is an index, too".to_owned(),
        });
    }
    Ok(document)
}

/// What an index lists for a platform, best first. The platforms of the others go to `note`.
pub(super) fn ranked<'a>(
    manifests: &'a [Descriptor],
    platform: &Platform,
    mut note: impl FnMut(&Platform),
) -> Vec<&'a Descriptor> {
    let mut ranked: Vec<(u32, &Descriptor)> = Vec::new();
    for descriptor in manifests {
        let stated = descriptor.stated();
        let fitness = stated.map_or(1, |stated| stated.fitness(platform));
        if fitness > 0 {
            ranked.push((fitness, descriptor));
        } else if let Some(stated) = stated {
            note(stated);
        }
    }
    ranked.order_by_key(|(fitness, _)| std::cmp::Reverse(*fitness));
    ranked
        .into_iter()
        .map(|(_, descriptor)| descriptor)
        .collect()
}

/// The request for a manifest or index.
pub(super) fn manifest(reference: &str, what: String, head: bool) -> Wanted {
    Wanted {
        head,
        target: format!("manifests/{reference}"),
        headers: vec![("Accept", oci::MANIFESTS.join(", "))],
        what,
        range: false,
    }
}
