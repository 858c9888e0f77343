//! What is used, and what is left? Figures of the node and of pods, as they are read from the kernel and as decisions are
//! made with them (kubelet-behaviour §10.1).

use std::collections::BTreeMap;

/// How much of something there is, and how much of that is left.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Space {
    /// Left.
    pub available: u64,
    /// In all.
    pub capacity: u64,
}

/// A file system.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FileSystem {
    /// Bytes.
    pub bytes: Space,
    /// Inodes; `None` of file systems that have no fixed number of them.
    pub inodes: Option<Space>,
}

/// The node; `None` is what could not be read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NodeUsage {
    /// Memory in bytes; what is kept of files and was not used lately counts as available.
    pub memory: Option<Space>,
    /// Memory of all pods together, where that is bounded.
    pub pods_memory: Option<Space>,
    /// Bytes charged to all pods together, with everything kept of files.
    pub pods_charged_bytes: Option<u64>,
    /// Where volumes, logs and writable layers are.
    pub nodefs: Option<FileSystem>,
    /// Where images are.
    pub imagefs: Option<FileSystem>,
    /// Whether that is another file system.
    pub images_apart: bool,
    /// Processes, threads counted one by one.
    pub pids: Option<Space>,
}

/// What lies on a disk.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DiskUsage {
    /// Blocks taken, in bytes.
    pub bytes: u64,
    /// Files and folders.
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

/// One pod; `None` and what is missing was not looked at, or is not there.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PodUsage {
    /// Working set in bytes.
    pub memory_bytes: Option<u64>,
    /// Processes, threads counted one by one.
    pub processes: Option<u64>,
    /// Its containers, by name.
    pub containers: BTreeMap<String, ContainerUsage>,
    /// Its emptyDir volumes on disk, by name.
    pub volumes: BTreeMap<String, DiskUsage>,
    /// Files all its containers share and may write: `/etc/hosts`, `/etc/hostname`, `/etc/resolv.conf`.
    pub shared_files: DiskUsage,
    /// Whether `containers`, `volumes` and `shared_files` tell of its disk use.
    pub disk: bool,
}

impl PodUsage {
    /// All it has on disk.
    pub fn on_disk(&self) -> DiskUsage {
        let containers = self.containers.values().map(|c| c.layer + c.logs);
        let volumes = self.volumes.values().copied();
        containers.chain(volumes).chain([self.shared_files]).sum()
    }
}

/// One container.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ContainerUsage {
    /// Working set in bytes.
    pub memory_bytes: Option<u64>,
    /// Its writable layer.
    pub layer: DiskUsage,
    /// The logs of its newest run.
    pub logs: DiskUsage,
}
