//! Manifests, indexes and configs: the JSON of the OCI image specification, and Docker's, which differs only in
//! media types.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::error::ImageError;
use super::stop_signal::stop_signal;
use crate::sys::machine;
use crate::types::InOrder;

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
        usable.order();
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
    #[serde(default, rename = "mediaType")]
    pub(crate) media_type: String,
    #[serde(default, rename = "artifactType")]
    pub(crate) artifact_type: Option<String>,
    pub(crate) digest: String,
    pub(crate) size: u64,
    #[serde(default)]
    pub(crate) platform: Option<Platform>,
    #[serde(default)]
    pub(crate) annotations: Option<BTreeMap<String, String>>,
}

/// The platform of an image.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Platform {
    #[serde(default)]
    pub(crate) architecture: String,
    #[serde(default)]
    pub(crate) os: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
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
    #[serde(default, rename = "artifactType")]
    artifact_type: Option<String>,
    #[serde(default)]
    subject: Option<Ignored>,
}

/// What the configs of images are called.
pub(crate) const CONFIGS: [&str; 2] = [
    "application/vnd.oci.image.config.v1+json",
    "application/vnd.docker.container.image.v1+json",
];

/// The types of manifests and indexes.
pub(crate) const MANIFESTS: [&str; 4] = [
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.docker.distribution.manifest.v2+json",
];

/// Whether something of this type can be or have an image. Some writers state no type.
pub(crate) fn may_be_manifest(media_type: &str) -> bool {
    media_type.is_empty() || MANIFESTS.contains(&media_type)
}

/// Whether what states these types is not an image, but an artifact, as a chart or what is known about an image
/// (`subject`). It may lie beside images in an index. The type of an image's config may be stated as that of the artifact
/// (image-spec, descriptor.md).
pub(crate) fn is_artifact(artifact_type: Option<&str>, has_subject: bool) -> bool {
    has_subject || artifact_type.is_some_and(|kind| !kind.is_empty() && !CONFIGS.contains(&kind))
}

impl Document {
    /// Whether it is not the manifest of an image. One with an image's config is, whatever else it says.
    pub(crate) fn is_artifact(&self) -> bool {
        let config = self.config.as_ref().map(|config| &*config.media_type);
        !config.is_some_and(|kind| CONFIGS.contains(&kind))
            && is_artifact(self.artifact_type.as_deref(), self.subject.is_some())
    }
}

impl Descriptor {
    /// Whether it states a platform.
    pub(crate) fn states_platform(&self) -> bool {
        let stated = self.platform.as_ref();
        stated.is_some_and(|platform| !platform.architecture.is_empty())
    }
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

/// The variant of a 32-bit ARM: `armv6l`, `armv7l`, and a 64-bit machine's `aarch64` or `armv8l`, which runs all.
fn arm_variant(machine: &str) -> &'static str {
    let version = machine.strip_prefix("armv").and_then(|v| v.bytes().next());
    match version {
        Some(b'4' | b'5') => "v5",
        Some(b'6') => "v6",
        Some(b'8' | b'9') => "v8",
        None if machine.starts_with("aarch64") => "v8",
        // What coracle is compiled for.
        _ => "v7",
    }
}

impl Platform {
    /// The platform of this machine.
    pub(crate) fn own() -> Self {
        Self::of(std::env::consts::ARCH, &machine::name())
    }

    /// The platform of a coracle that was compiled for `architecture` (Rust's name) on a machine that the kernel calls
    /// `machine`. Containers run programs of coracle's own architecture, whatever else the kernel could run.
    fn of(architecture: &str, machine: &str) -> Self {
        let (architecture, variant) = match architecture {
            "x86_64" => ("amd64", None),
            "x86" => ("386", None),
            "aarch64" => ("arm64", Some("v8")),
            "arm" => ("arm", Some(arm_variant(machine))),
            "loongarch64" => ("loong64", None),
            other => (other, None),
        };
        Self {
            architecture: architecture.to_owned(),
            os: "linux".to_owned(),
            variant: variant.map(str::to_owned),
        }
    }

    /// Parses `linux/arm/v7`, `arm64`, and the names that other programs have for architectures.
    pub(crate) fn parse(text: &str) -> Result<Self, ImageError> {
        let bad = |why: &str| ImageError::Name {
            name: text.to_owned(),
            why: format!("{why}; a platform is `linux/amd64`, `linux/arm/v7`, …"),
        };
        let parts: Vec<&str> = text.split('/').collect();
        let (os, rest) = match parts.as_slice() {
            ["linux", rest @ ..] => ("linux", rest),
            // `arm/v7`: the system may be left out.
            rest @ ([_] | ["arm" | "arm64" | "amd64" | "armhf", _]) => ("linux", rest),
            [os, rest @ ..] => (*os, rest),
            [] => ("linux", parts.as_slice()),
        };
        let (architecture, variant) = match rest {
            [architecture] => (*architecture, None),
            [architecture, variant] => (*architecture, Some(*variant)),
            _ => return Err(bad("it has too many parts")),
        };
        if os != "linux" {
            return Err(bad("only Linux images run here"));
        }
        let word = |text: &str| {
            !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
        };
        if !word(architecture) || !variant.is_none_or(word) {
            return Err(bad("it is no platform"));
        }
        let (architecture, usual) = match architecture {
            "x86_64" | "x86-64" => ("amd64", None),
            "i386" => ("386", None),
            "aarch64" | "arm64" => ("arm64", Some("v8")),
            "arm" | "armhf" => ("arm", Some("v7")),
            "armel" => ("arm", Some("v6")),
            other => (other, None),
        };
        Ok(Self {
            architecture: architecture.to_owned(),
            os: os.to_owned(),
            variant: variant.or(usual).map(str::to_owned),
        })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn platforms_have_several_names() {
        for (text, expected) in [
            ("linux/amd64", "linux/amd64"),
            ("amd64", "linux/amd64"),
            ("x86_64", "linux/amd64"),
            ("linux/arm64", "linux/arm64/v8"),
            ("aarch64", "linux/arm64/v8"),
            ("linux/arm/v6", "linux/arm/v6"),
            ("linux/arm", "linux/arm/v7"),
            ("arm/v6", "linux/arm/v6"),
            ("armhf", "linux/arm/v7"),
            ("linux/riscv64", "linux/riscv64"),
            ("linux/amd64/v3", "linux/amd64/v3"),
        ] {
            let platform = Platform::parse(text).unwrap_or_else(|why| panic!("{text}: {why}"));
            assert_eq!(platform.shown(), expected, "{text}");
        }
        for text in [
            "",
            "linux/",
            "windows/amd64",
            "linux/arm/v7/x",
            "linux/a b",
            "/amd64",
        ] {
            assert!(Platform::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_machine_is_taken_for_what_its_kernel_says() {
        for (compiled, machine, expected) in [
            ("x86_64", "x86_64", "linux/amd64"),
            ("x86", "x86_64", "linux/386"),
            ("x86", "i686", "linux/386"),
            ("arm", "armv5tejl", "linux/arm/v5"),
            ("arm", "armv6l", "linux/arm/v6"),
            ("arm", "armv7l", "linux/arm/v7"),
            ("arm", "armv7ml", "linux/arm/v7"),
            ("arm", "armv8l", "linux/arm/v8"),
            ("arm", "aarch64", "linux/arm/v8"),
            ("arm", "arm", "linux/arm/v7"),
            ("aarch64", "aarch64", "linux/arm64/v8"),
            ("riscv64", "riscv64", "linux/riscv64"),
            ("loongarch64", "loongarch64", "linux/loong64"),
        ] {
            let found = Platform::of(compiled, machine);
            assert_eq!(found.shown(), expected, "{compiled} on {machine}");
        }
        // Tests are compiled for their machine; those of 32-bit ARM have several names.
        let name = match cfg!(target_arch = "arm") {
            true => "arm/v7".to_owned(),
            false => machine::name(),
        };
        let expected = Platform::parse(&name).unwrap();
        assert_eq!(Platform::own().shown(), expected.shown());
    }

    #[test]
    fn an_older_variant_runs_on_a_newer_machine_and_the_newest_that_runs_is_best() {
        let choose = |machine: &str, images: &[&str]| {
            let machine = Platform::parse(machine).unwrap();
            let of = |text: &&str| {
                let mut parts = text.split('/').map(str::to_owned);
                Platform {
                    os: "linux".to_owned(),
                    architecture: parts.next().unwrap_or_default(),
                    variant: parts.next(),
                }
            };
            let fits = images
                .iter()
                .map(|text| (of(text).fitness(&machine), *text));
            fits.filter(|(fitness, _)| *fitness > 0)
                .max()
                .map(|(_, text)| text.to_owned())
        };
        for (machine, images, expected) in [
            (
                "arm/v7",
                &["arm/v5", "arm/v7", "arm/v6", "arm64/v8"][..],
                Some("arm/v7"),
            ),
            ("arm/v7", &["arm/v5", "arm/v6"], Some("arm/v6")),
            ("arm/v7", &["arm/v5"], Some("arm/v5")),
            ("arm/v7", &["arm/v8", "arm64"], None),
            ("arm/v8", &["arm/v6", "arm/v7", "arm64"], Some("arm/v7")),
            ("arm/v5", &["arm/v6", "arm/v7"], None),
            ("arm/v6", &["arm/v7", "arm/v6", "arm/v5"], Some("arm/v6")),
            ("arm/v6", &["arm/v7"], None),
            ("arm/v6", &["arm/v7", "arm"], Some("arm")),
            ("arm64", &["arm64", "arm/v7"], Some("arm64")),
            ("arm64", &["arm64/v8", "arm64/v9"], Some("arm64/v8")),
            ("amd64", &["amd64", "amd64/v3", "386"], Some("amd64")),
            ("amd64", &["arm64"], None),
        ] {
            assert_eq!(
                choose(machine, images).as_deref(),
                expected,
                "{machine} {images:?}"
            );
        }
    }
}
