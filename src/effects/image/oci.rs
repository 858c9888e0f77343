//! What do manifests, indexes and configs say? The JSON of the OCI image specification, and Docker's, which is the
//! same but for media types.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::error::ImageError;

/// What an image says about how to run it.
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
    /// `ExposedPorts`: `80/tcp`.
    pub exposed_ports: Vec<String>,
    /// `Volumes`: absolute paths.
    pub volumes: Vec<String>,
    /// `Labels`.
    pub labels: BTreeMap<String, String>,
    /// `amd64`, `arm64`, …
    pub architecture: String,
    /// `linux`.
    pub os: String,
}

/// A descriptor: what to find where.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Descriptor {
    pub(crate) digest: String,
    pub(crate) size: u64,
    #[serde(default)]
    pub(crate) platform: Option<Platform>,
    #[serde(default)]
    pub(crate) annotations: Option<BTreeMap<String, String>>,
}

/// For which machine an image is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub(crate) struct Platform {
    #[serde(default)]
    pub(crate) architecture: String,
    #[serde(default)]
    pub(crate) os: String,
    #[serde(default)]
    pub(crate) variant: Option<String>,
}

/// A manifest or an index, told apart by what is in it.
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
    #[serde(flatten)]
    pub(crate) platform: Platform,
    #[serde(default)]
    config: Option<ConfigSection>,
    pub(crate) rootfs: RootFs,
}

#[derive(Debug, Deserialize)]
pub(crate) struct RootFs {
    #[serde(default)]
    pub(crate) diff_ids: Option<Vec<String>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct ConfigSection {
    entrypoint: Option<Vec<String>>,
    cmd: Option<Vec<String>>,
    env: Option<Vec<String>>,
    working_dir: Option<String>,
    user: Option<String>,
    stop_signal: Option<String>,
    exposed_ports: Option<BTreeMap<String, serde_json::Value>>,
    volumes: Option<BTreeMap<String, serde_json::Value>>,
    labels: Option<BTreeMap<String, String>>,
}

impl ConfigFile {
    /// What containers need to know.
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
            exposed_ports: keys(section.exposed_ports),
            volumes: keys(section.volumes),
            labels: section.labels.unwrap_or_default(),
            architecture: self.platform.architecture,
            os: self.platform.os,
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
    /// This machine's.
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
