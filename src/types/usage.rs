//! Resource usage of the node and of pods, as read from the kernel and used for decisions (Kubernetes docs:
//! Node-pressure Eviction).

use std::collections::BTreeMap;

/// Capacity of a resource, and what is left of it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Space {
    /// Amount left.
    pub available: u64,
    /// Total amount.
    pub capacity: u64,
}

/// A file system.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FileSystem {
    /// Bytes.
    pub bytes: Space,
    /// Inodes; `None` for file systems without a fixed number.
    pub inodes: Option<Space>,
}

/// Usage of the node; `None` if it could not be read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NodeUsage {
    /// Memory in bytes; inactive page cache counts as available.
    pub memory: Option<Space>,
    /// Memory of all pods together, if it is limited.
    pub pods_memory: Option<Space>,
    /// Bytes charged to all pods together, including page cache.
    pub pods_charged_bytes: Option<u64>,
    /// File system of volumes, logs and writable layers.
    pub nodefs: Option<FileSystem>,
    /// File system of images.
    pub imagefs: Option<FileSystem>,
    /// Whether images are on a file system of their own.
    pub images_apart: bool,
    /// Processes; each thread counts.
    pub pids: Option<Space>,
}

/// Usage of a directory tree.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DiskUsage {
    /// Allocated blocks, in bytes.
    pub bytes: u64,
    /// Files and directories.
    pub inodes: u64,
}

impl std::ops::Add for DiskUsage {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            bytes: self.bytes.saturating_add(other.bytes),
            inodes: self.inodes.saturating_add(other.inodes),
        }
    }
}

impl std::iter::Sum for DiskUsage {
    fn sum<I: Iterator<Item = Self>>(each: I) -> Self {
        each.fold(Self::default(), |sum, one| sum + one)
    }
}

/// Usage of a pod; `None` and missing entries were not measured, or do not exist.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PodUsage {
    /// Working set in bytes.
    pub memory_bytes: Option<u64>,
    /// Processes; each thread counts.
    pub processes: Option<u64>,
    /// Containers by name.
    pub containers: BTreeMap<String, ContainerUsage>,
    /// emptyDir volumes on disk by name.
    pub volumes: BTreeMap<String, DiskUsage>,
    /// Files that all its containers share and may write: `/etc/hosts`, `/etc/hostname`, `/etc/resolv.conf`.
    pub shared_files: DiskUsage,
    /// Whether `containers`, `volumes` and `shared_files` include disk usage.
    pub disk: bool,
}

impl PodUsage {
    /// Returns the total disk usage.
    pub fn on_disk(&self) -> DiskUsage {
        let containers = self.containers.values().map(|c| c.layer + c.logs);
        let volumes = self.volumes.values().copied();
        containers.chain(volumes).chain([self.shared_files]).sum()
    }
}

/// Usage of a container.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ContainerUsage {
    /// Working set in bytes.
    pub memory_bytes: Option<u64>,
    /// Writable layer.
    pub layer: DiskUsage,
    /// Logs of the newest run.
    pub logs: DiskUsage,
}
