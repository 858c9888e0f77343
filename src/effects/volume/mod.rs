//! Volumes: their setup and their places. Each kind has a file of its own.

mod empty_dir;
mod host_path;

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;

use crate::layout::Layout;
use crate::spec::{PodSpec, VolumeSource};

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

/// Makes every volume of the pod. Returns the root of each one on the node.
pub fn ensure(layout: &Layout, spec: &PodSpec) -> Result<BTreeMap<String, PathBuf>, VolumeFailure> {
    let mut roots = BTreeMap::new();
    for volume in &spec.volumes {
        let root = match &volume.source {
            VolumeSource::EmptyDir { .. } => empty_dir::ensure_disk(
                &layout.pod_state(&spec.uid).empty_dir(&volume.name),
                spec.fs_group,
            ),
            VolumeSource::MemoryDir { size_limit_bytes } => {
                let sizes = [*size_limit_bytes, spec.resources.memory_limit_bytes];
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
        };
        let root = root.map_err(|source| VolumeFailure {
            volume: volume.name.clone(),
            source,
        })?;
        roots.insert(volume.name.clone(), root);
    }
    Ok(roots)
}

/// The root of each volume, without making anything.
pub fn roots(layout: &Layout, spec: &PodSpec) -> BTreeMap<String, PathBuf> {
    spec.volumes
        .iter()
        .map(|volume| {
            let root = match &volume.source {
                VolumeSource::EmptyDir { .. } => {
                    layout.pod_state(&spec.uid).empty_dir(&volume.name)
                }
                VolumeSource::MemoryDir { .. } | VolumeSource::HugePageDir { .. } => {
                    layout.pod_run(&spec.uid).memory_volume(&volume.name)
                }
                VolumeSource::HostPath { path, .. } => path.into(),
            };
            (volume.name.clone(), root)
        })
        .collect()
}
