//! Volumes: their setup and their places. Each kind has a file of its own.

pub mod claim;
pub mod claim_size;
mod empty_dir;
mod files;
mod host_path;
pub mod ownership;
mod projected;

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;

use crate::layout::Layout;
use crate::spec::{ObjectKind, PodSpec, VolumeSource};
use crate::types::Gather;

use super::configuration::CurrentConfiguration;
use super::facts::NodeFacts;

/// Why a volume is not available. The texts are the kubelet's (`pkg/volume`).
#[derive(Debug, thiserror::Error)]
pub enum VolumeError {
    /// The host path is not what `type` says.
    #[error("hostPath type check failed: {path} is not {expected}", path = path.display())]
    HostPathType {
        /// The path.
        path: PathBuf,
        /// `a directory`, `a socket file`, …
        expected: &'static str,
    },
    /// A ConfigMap or Secret is missing.
    #[error("{} \"{name}\" not found", projected::word(*kind))]
    NotFound {
        /// The kind.
        kind: ObjectKind,
        /// The name.
        name: String,
    },
    /// A path that does not answer in time.
    #[error("{path} does not answer: its file server may be away", path = path.display())]
    NoAnswer {
        /// The path.
        path: PathBuf,
    },
    /// Nothing fits a claim.
    #[error("persistentvolumeclaim \"{claim}\" is not bound: {why}")]
    Unbound {
        /// The claim's name.
        claim: String,
        /// Why not.
        why: String,
    },
    /// A ConfigMap or Secret has no such key.
    #[error("{}", no_key(*kind, key))]
    NoKey {
        /// The kind.
        kind: ObjectKind,
        /// The key.
        key: String,
    },
    /// Two sources disagree.
    #[error("`{path}` cannot be both a file and a folder")]
    FileAndFolder {
        /// The path in the volume.
        path: String,
    },
    /// A file or folder could not be made or read.
    #[error("could not {action} `{path}`: {source}", path = path.display())]
    Access {
        /// The operation: `make`, `mount a tmpfs at`.
        action: &'static str,
        /// The path.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

/// A volume that failed, and why.
#[derive(Debug, thiserror::Error)]
#[error("volume `{volume}`: {source}")]
pub struct VolumeFailure {
    /// The volume's name.
    pub volume: String,
    /// The error.
    #[source]
    pub source: VolumeError,
}

/// The kubelet's words.
fn no_key(kind: ObjectKind, key: &str) -> String {
    match kind {
        ObjectKind::Secret => format!("references non-existent secret key: {key}"),
        _ => format!("configmap references non-existent config key: {key}"),
    }
}

/// What volumes of files are made of.
#[derive(Debug, Clone, Copy)]
pub struct Sources<'a> {
    /// The configuration documents in force.
    pub configuration: &'a CurrentConfiguration,
    /// The node's facts.
    pub node: &'a NodeFacts,
}

/// Writes the files of the pod's volumes again where their sources have changed. The pod must have its volumes.
/// Goes on after an error; returns the first one.
pub fn refresh(
    layout: &Layout,
    spec: &PodSpec,
    sources: &Sources<'_>,
) -> Result<(), VolumeFailure> {
    let mut result = Ok(());
    for volume in &spec.volumes {
        let VolumeSource::Projected(files) = &volume.source else {
            continue;
        };
        let root = layout.projected_volume(&spec.uid, &volume.name);
        if !root.exists() {
            continue;
        }
        let written = projected::refresh(&root, files, spec, sources);
        // Its pod may have gone meanwhile.
        let written = written.or_else(|error| match root.exists() {
            true => Err(error),
            false => Ok(root.clone()),
        });
        result = result.and(written.map(drop).map_err(|source| VolumeFailure {
            volume: volume.name.clone(),
            source,
        }));
    }
    result
}

/// Whether a pod has volumes that may lie outside coracle's own file system.
pub fn uses_host(spec: &PodSpec) -> bool {
    let host = |source: &VolumeSource| {
        matches!(
            source,
            VolumeSource::HostPath { .. } | VolumeSource::Claim { .. }
        )
    };
    spec.volumes.iter().any(|volume| host(&volume.source))
}

/// Blocking. The names and paths of those volumes. An unbound claim has no path yet.
pub fn host_paths(layout: &Layout, spec: &PodSpec) -> Vec<(String, PathBuf)> {
    let place = |source: &VolumeSource| match source {
        VolumeSource::HostPath { path, .. } => Some(path.into()),
        VolumeSource::Claim { name, .. } => {
            claim::volume_of_node(layout, &spec.key.namespace, name)
        }
        _ => None,
    };
    let places = spec.volumes.iter().filter_map(|volume| {
        let path = place(&volume.source)?;
        Some((volume.name.clone(), path))
    });
    places.collect()
}

/// Makes every volume of the pod but image volumes. Returns the root of each one on the node.
pub fn ensure(
    layout: &Layout,
    spec: &PodSpec,
    sources: &Sources<'_>,
) -> Result<BTreeMap<String, PathBuf>, VolumeFailure> {
    let mut roots = BTreeMap::new();
    for volume in &spec.volumes {
        let root = match &volume.source {
            VolumeSource::EmptyDir { .. } => empty_dir::ensure_disk(
                &layout.pod_state(&spec.uid).empty_dir(&volume.name),
                spec.fs_group,
            ),
            VolumeSource::MemoryDir { size_limit_bytes } => {
                // The kernel would take half of the memory.
                let of_node = Some(sources.node.memory_bytes).filter(|bytes| *bytes > 0);
                let sizes = [
                    *size_limit_bytes,
                    spec.resources.memory_limit_bytes,
                    of_node,
                ];
                let size = sizes.into_iter().flatten().min();
                empty_dir::ensure_memory(
                    &layout.pod_run(&spec.uid).memory_volume(&volume.name),
                    size,
                    spec.fs_group,
                )
            }
            VolumeSource::HugePageDir {
                page_size,
                size_limit_bytes,
            } => empty_dir::ensure_huge_pages(
                &layout.pod_run(&spec.uid).memory_volume(&volume.name),
                *page_size,
                *size_limit_bytes,
                spec.fs_group,
            ),
            VolumeSource::HostPath { path, kind } => host_path::ensure(path.as_ref(), *kind),
            VolumeSource::Claim { name, read_only } => {
                claim::ensure(layout, (name, *read_only), spec, sources)
            }
            VolumeSource::Projected(files) => {
                let root = layout.projected_volume(&spec.uid, &volume.name);
                projected::ensure(&root, files, spec, sources)
            }
            // The shim mounts them for each container.
            VolumeSource::Image(_) => continue,
        };
        let root = root.map_err(|source| VolumeFailure {
            volume: volume.name.clone(),
            source,
        })?;
        roots.insert(volume.name.clone(), root);
    }
    Ok(roots)
}

/// The root of each volume but image volumes, without making anything.
pub fn roots(layout: &Layout, spec: &PodSpec) -> BTreeMap<String, PathBuf> {
    spec.volumes
        .iter()
        .filter_map(|volume| {
            let root = match &volume.source {
                VolumeSource::EmptyDir { .. } => {
                    layout.pod_state(&spec.uid).empty_dir(&volume.name)
                }
                VolumeSource::MemoryDir { .. } | VolumeSource::HugePageDir { .. } => {
                    layout.pod_run(&spec.uid).memory_volume(&volume.name)
                }
                VolumeSource::HostPath { path, .. } => path.into(),
                VolumeSource::Claim { name, .. } => claim::root(layout, &spec.key.namespace, name),
                VolumeSource::Projected(_) => layout.projected_volume(&spec.uid, &volume.name),
                VolumeSource::Image(_) => return None,
            };
            Some((volume.name.clone(), root))
        })
        .gather()
}
