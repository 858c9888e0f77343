//! A pod's volumes: what each one is made of.

use std::sync::Arc;

use super::configuration::ObjectKind;
use super::huge_pages::PageSize;
use super::pod::{ContainerSpec, EnvValue, ImageName, PodSpec, PullPolicy};

/// One volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeSpec {
    /// A DNS label, unique in the pod.
    pub name: String,
    /// Source of the volume.
    pub source: VolumeSource,
}

/// Source of a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VolumeSource {
    /// `emptyDir` on disk.
    EmptyDir {
        /// `sizeLimit`.
        size_limit_bytes: Option<u64>,
    },
    /// `emptyDir` with `medium: Memory`: a tmpfs.
    MemoryDir {
        /// `sizeLimit`.
        size_limit_bytes: Option<u64>,
    },
    /// `emptyDir` with `medium: HugePages`: a hugetlbfs.
    HugePageDir {
        /// Page size, which the pod must request.
        page_size: PageSize,
        /// `sizeLimit`.
        size_limit_bytes: Option<u64>,
    },
    /// `hostPath`.
    HostPath {
        /// Absolute, without `..`.
        path: String,
        /// What must exist, or is created.
        kind: HostPathType,
    },
    /// `persistentVolumeClaim`.
    Claim {
        /// The claim's name, in the pod's namespace.
        name: String,
        /// Whether containers may only read it.
        read_only: bool,
    },
    /// `configMap`, `secret`, `downwardAPI` or `projected`: files that the node writes.
    Projected(Projected),
    /// `image`: the files of an image, read-only.
    Image(ImageVolume),
}

/// A volume with the files of an image (KEP-4639).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageVolume {
    /// `reference` as written; `ImageName::parse` accepted it.
    pub image: String,
    /// The image's full name.
    pub image_name: ImageName,
    /// The id of the image that it must be, whatever the name means ([`super::pinned`]).
    pub pinned: Option<Arc<str>>,
    /// `pullPolicy`, defaulted from the tag.
    pub pull_policy: PullPolicy,
}

impl PodSpec {
    /// The image volumes that a container mounts, with their names, each once, in manifest order.
    pub fn image_volumes_of<'p>(
        &'p self,
        container: &'p ContainerSpec,
    ) -> impl Iterator<Item = (&'p str, &'p ImageVolume)> {
        let volumes = self.volumes.iter();
        let images = volumes.filter_map(|volume| match &volume.source {
            VolumeSource::Image(image) => Some((volume.name.as_str(), image)),
            _ => None,
        });
        images.filter(|(name, _)| container.mounts.iter().any(|mount| mount.volume == *name))
    }

    /// The images that it names: those of its containers and of its volumes.
    pub fn image_names(&self) -> impl Iterator<Item = &ImageName> {
        let volumes = self.volumes.iter();
        let volumes = volumes.filter_map(|volume| self.image_volume(&volume.name));
        let containers = self.all_containers().map(|container| &container.image_name);
        containers.chain(volumes.map(|volume| &volume.image_name))
    }

    /// The image of one of its image volumes.
    pub fn image_volume(&self, name: &str) -> Option<&ImageVolume> {
        let volume = self.volumes.iter().find(|volume| volume.name == name);
        match &volume?.source {
            VolumeSource::Image(image) => Some(image),
            _ => None,
        }
    }
}

/// A volume of files that the node writes from other objects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Projected {
    /// What the files come from; a file of a later source replaces one of an earlier source.
    pub sources: Vec<Projection>,
    /// The mode of files without one of their own.
    pub default_mode: u32,
}

/// A source of files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Projection {
    /// Keys of a ConfigMap or Secret.
    Keys {
        /// `ConfigMap` or `Secret`.
        kind: ObjectKind,
        /// Its name, in the pod's namespace.
        name: String,
        /// Which keys; `None`: each key as a file of its name.
        items: Option<Vec<KeyFile>>,
        /// Whether the object or a key may be missing.
        optional: bool,
    },
    /// Fields of the pod.
    Downward(Vec<DownwardFile>),
}

/// A key as a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyFile {
    /// The key.
    pub key: String,
    /// The file's path in the volume: relative, without `..`.
    pub path: String,
    /// The file's mode.
    pub mode: Option<u32>,
}

/// A field of the pod as a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DownwardFile {
    /// The file's path in the volume: relative, without `..`.
    pub path: String,
    /// The file's mode.
    pub mode: Option<u32>,
    /// The content; no keys and no addresses.
    pub value: EnvValue,
}

/// A directory of the pod's own on the node's disk: it counts as local storage and is removed with the pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OnDisk {
    /// `sizeLimit`.
    pub size_limit_bytes: Option<u64>,
}

impl VolumeSource {
    /// Returns the volume's directory on the node's disk, if it is the pod's own; `None` for memory and for host paths.
    pub fn on_disk(&self) -> Option<OnDisk> {
        match *self {
            Self::EmptyDir { size_limit_bytes } => Some(OnDisk { size_limit_bytes }),
            Self::MemoryDir { .. }
            | Self::HugePageDir { .. }
            | Self::HostPath { .. }
            | Self::Claim { .. }
            | Self::Projected(_)
            | Self::Image(_) => None,
        }
    }
}

/// `hostPath.type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HostPathType {
    /// No check.
    Any,
    /// Created if missing (0755).
    DirectoryOrCreate,
    /// A directory that must exist.
    Directory,
    /// Created if missing (0644); its parent must exist.
    FileOrCreate,
    /// A file that must exist.
    File,
    /// A unix socket.
    Socket,
    /// A character device.
    CharDevice,
    /// A block device.
    BlockDevice,
}
