//! Manifests, indexes and configs: the JSON of the OCI image specification, and Docker's, which differs only in
//! media types.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::error::ImageError;
use super::stop_signal::stop_signal;

/// How to run an image, by its config.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageConfig {
    /// `Entrypoint`.
    pub entrypoint: Option<Vec<String>>,
    /// `Cmd`.
    pub cmd: Option<Vec<String>>,
    /// `Env`: `NAME=value`, in order.
    pub env: Vec<String>,
    /// `WorkingDir`, if not empty.
    pub working_dir: Option<String>,
    /// `User`, if not empty: `user[:group]`, names or numbers.
    pub user: Option<String>,
    /// `StopSignal`: name or number.
    pub stop_signal: Option<String>,
    /// `Volumes`: absolute paths.
    pub volumes: Vec<String>,
    /// `amd64`, `arm64`, …
    pub architecture: String,
    /// `linux`.
    pub os: String,
}

/// Paths that belong to the runtime: no volume of an image is mounted there.
const NO_VOLUMES: [&str; 3] = ["/dev", "/proc", "/sys"];

impl ImageConfig {
    /// The volumes that become writable directories: absolute paths without `.` and `..`, each once.
    pub fn usable_volumes(&self) -> Vec<PathBuf> {
        let mut usable: Vec<PathBuf> = self
            .volumes
            .iter()
            .filter_map(|path| usable(path))
            .collect();
        usable.sort();
        usable.dedup();
        usable
    }

    /// Warnings about settings without effect.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        if let Some(signal) = &self.stop_signal
            && stop_signal(signal).is_none()
        {
            let signal = signal.escape_debug();
            warnings.push(format!(
                "its stop signal `{signal}` does not exist: its containers are stopped with SIGTERM, unless their pod says \
                 `lifecycle.stopSignal`"
            ));
        }
        let unusable = self.volumes.iter().filter(|path| usable(path).is_none());
        warnings.extend(unusable.take(MAX_WARNINGS).map(|path| {
            let path = path.escape_debug();
            format!("its volume `{path}` is ignored: no directory can be mounted there")
        }));
        warnings
    }
}

/// The maximum number of warnings of a kind.
const MAX_WARNINGS: usize = 10;

fn usable(path: &str) -> Option<PathBuf> {
    let mut whole = PathBuf::from("/");
    for component in Path::new(path).components() {
        match component {
            Component::Normal(name) => whole.push(name),
            Component::RootDir | Component::CurDir => {}
            Component::ParentDir | Component::Prefix(_) => return None,
        }
    }
    let taken = NO_VOLUMES.iter().any(|taken| whole.starts_with(taken));
    (whole != Path::new("/") && !taken && !path.contains('\0')).then_some(whole)
}

/// A descriptor: the digest, size and type of a blob.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Descriptor {
    pub(crate) digest: String,
    pub(crate) size: u64,
    #[serde(default)]
    pub(crate) platform: Option<Platform>,
    #[serde(default)]
    pub(crate) annotations: Option<BTreeMap<String, String>>,
}

/// The platform of an image.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub(crate) struct Platform {
    #[serde(default)]
    pub(crate) architecture: String,
    #[serde(default)]
    pub(crate) os: String,
    #[serde(default)]
    pub(crate) variant: Option<String>,
}

/// A manifest or an index, distinguished by its content.
#[derive(Debug, Deserialize)]
pub(crate) struct Document {
    #[serde(default)]
    pub(crate) manifests: Option<Vec<Descriptor>>,
    #[serde(default)]
    pub(crate) config: Option<Descriptor>,
    #[serde(default)]
    pub(crate) layers: Option<Vec<Descriptor>>,
}

/// An image's config file.
#[derive(Debug, Deserialize)]
pub(crate) struct ConfigFile {
    #[serde(default)]
    pub(crate) created: Option<String>,
    #[serde(default)]
    architecture: String,
    #[serde(default)]
    os: String,
    #[serde(default)]
    variant: Option<String>,
    #[serde(default)]
    config: Option<ConfigSection>,
    pub(crate) rootfs: RootFs,
}

/// Longest config that is read. Real images have a few thousand bytes.
pub(crate) const MAX_CONFIG_BYTES: u64 = 1 << 20;

/// The maximum length of a list in a config: arguments, environment, labels, …
const MAX_ENTRIES: usize = 1000;

/// Longest entry: the kernel passes no longer argument or variable to a program (`MAX_ARG_STRLEN`).
const MAX_ENTRY_BYTES: usize = (128 << 10) - 1;

#[derive(Debug, Deserialize)]
pub(crate) struct RootFs {
    #[serde(default)]
    pub(crate) diff_ids: Option<Vec<String>>,
}

/// Any value: its content is dropped.
type Ignored = serde::de::IgnoredAny;

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct ConfigSection {
    entrypoint: Option<Vec<String>>,
    cmd: Option<Vec<String>>,
    env: Option<Vec<String>>,
    working_dir: Option<String>,
    user: Option<String>,
    stop_signal: Option<String>,
    exposed_ports: Option<BTreeMap<String, Ignored>>,
    volumes: Option<BTreeMap<String, Ignored>>,
    labels: Option<BTreeMap<String, String>>,
}

impl ConfigFile {
    /// The platform of the image.
    pub(crate) fn platform(&self) -> Platform {
        Platform {
            architecture: self.architecture.clone(),
            os: self.os.clone(),
            variant: self.variant.clone(),
        }
    }

    /// Refuses a config that no program could be started with, or that would only cost memory wherever it is read.
    pub(crate) fn check(&self) -> Result<(), ImageError> {
        let Some(section) = &self.config else {
            return Ok(());
        };
        let keys = |map: &Option<BTreeMap<String, _>>| -> Vec<usize> {
            map.iter()
                .flatten()
                .map(|(key, _): (&String, &Ignored)| key.len())
                .collect()
        };
        let list = |list: &Option<Vec<String>>| list.iter().flatten().map(String::len).collect();
        let labels = section.labels.iter().flatten();
        let lists: [(&str, Vec<usize>); 6] = [
            ("Entrypoint", list(&section.entrypoint)),
            ("Cmd", list(&section.cmd)),
            ("Env", list(&section.env)),
            (
                "Labels",
                labels.map(|(key, value)| key.len() + value.len()).collect(),
            ),
            ("Volumes", keys(&section.volumes)),
            ("ExposedPorts", keys(&section.exposed_ports)),
        ];
        for (name, lengths) in lists {
            let limit = |what, limit: usize, unit| ImageError::Limit {
                what,
                limit: limit as u64,
                unit,
            };
            if lengths.len() > MAX_ENTRIES {
                let what = format!("the number of entries in the config's `{name}`");
                return Err(limit(what, MAX_ENTRIES, "entries"));
            }
            if let Some(number) = lengths.iter().position(|length| *length > MAX_ENTRY_BYTES) {
                let what = format!("entry {} in the config's `{name}`", number + 1);
                return Err(limit(what, MAX_ENTRY_BYTES, "bytes"));
            }
        }
        Ok(())
    }

    /// The part of the config that containers need.
    pub(crate) fn into_config(self) -> ImageConfig {
        let section = self.config.unwrap_or_default();
        let filled = |text: Option<String>| text.filter(|text| !text.is_empty());
        let keys = |map: Option<BTreeMap<String, _>>| map.unwrap_or_default().into_keys().collect();
        ImageConfig {
            entrypoint: section.entrypoint.filter(|list| !list.is_empty()),
            cmd: section.cmd.filter(|list| !list.is_empty()),
            env: section.env.unwrap_or_default(),
            working_dir: filled(section.working_dir),
            user: filled(section.user),
            stop_signal: filled(section.stop_signal),
            volumes: keys(section.volumes),
            architecture: self.architecture,
            os: self.os,
        }
    }
}

/// Parses a document, naming it in the error.
pub(crate) fn parse<'a, T: Deserialize<'a>>(bytes: &'a [u8], what: &str) -> Result<T, ImageError> {
    serde_json::from_slice(bytes).map_err(|source| ImageError::Json {
        what: what.to_owned(),
        source,
    })
}

impl Platform {
    /// The platform of this machine.
    pub(crate) fn own() -> Self {
        let (architecture, variant) = match std::env::consts::ARCH {
            "x86_64" => ("amd64", None),
            "x86" => ("386", None),
            "aarch64" => ("arm64", Some("v8")),
            "arm" => ("arm", Some("v7")),
            other => (other, None),
        };
        Self {
            architecture: architecture.to_owned(),
            os: "linux".to_owned(),
            variant: variant.map(str::to_owned),
        }
    }

    /// How well an image for `self` runs on `machine`: 0 not at all, higher is better.
    pub(crate) fn fitness(&self, machine: &Self) -> u32 {
        if self.os != machine.os || self.architecture != machine.architecture {
            return 0;
        }
        let number = |variant: &Option<String>| -> Option<u32> {
            variant.as_deref()?.strip_prefix('v')?.parse().ok()
        };
        match (number(&self.variant), number(&machine.variant)) {
            (None, _) => 2,
            // An older ARM runs on a newer one; amd64 variants above the base may use missing instructions.
            (Some(image), Some(machine)) if image <= machine => 2 + image,
            (Some(1), None) => 3,
            (Some(_), None) => 1,
            (Some(_), Some(_)) => 0,
        }
    }

    /// `linux/arm/v7`.
    pub(crate) fn shown(&self) -> String {
        let mut text = format!("{}/{}", self.os, self.architecture);
        if let Some(variant) = &self.variant {
            text.push('/');
            text.push_str(variant);
        }
        text
    }
}
