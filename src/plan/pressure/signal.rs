//! What may run short, and from which point on is it too little? Signals and thresholds (kubelet-behaviour §10.1).

use crate::spec::quantity::Quantity;
use crate::spec::usage::{NodeUsage, Space};

/// What may run short.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Signal {
    /// The node's memory.
    Memory,
    /// What all pods together may use of it, where that is bounded.
    PodsMemory,
    /// Bytes where volumes, logs and writable layers are.
    NodefsBytes,
    /// Inodes there.
    NodefsInodes,
    /// Bytes where images are.
    ImagefsBytes,
    /// Inodes there.
    ImagefsInodes,
    /// Numbers of processes.
    Pids,
}

/// What a node that is short of something shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Condition {
    /// `MemoryPressure`
    Memory,
    /// `DiskPressure`
    Disk,
    /// `PIDPressure`
    Pid,
}

impl Condition {
    /// In the order in which they are shown.
    pub const ALL: [Self; 3] = [Self::Memory, Self::Disk, Self::Pid];

    /// `type`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Memory => "MemoryPressure",
            Self::Disk => "DiskPressure",
            Self::Pid => "PIDPressure",
        }
    }

    /// `reason` and `message` while it holds, and while it does not (kubelet-behaviour §12.5).
    pub fn why(self, holds: bool) -> (&'static str, &'static str) {
        match (self, holds) {
            (Self::Memory, true) => (
                "KubeletHasInsufficientMemory",
                "kubelet has insufficient memory available",
            ),
            (Self::Memory, false) => (
                "KubeletHasSufficientMemory",
                "kubelet has sufficient memory available",
            ),
            (Self::Disk, true) => ("KubeletHasDiskPressure", "kubelet has disk pressure"),
            (Self::Disk, false) => ("KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
            (Self::Pid, true) => (
                "KubeletHasInsufficientPID",
                "kubelet has insufficient PID available",
            ),
            (Self::Pid, false) => (
                "KubeletHasSufficientPID",
                "kubelet has sufficient PID available",
            ),
        }
    }

    /// The node's event when it comes, and when it goes.
    pub fn event(self, holds: bool) -> &'static str {
        match (self, holds) {
            (Self::Memory, true) => "NodeHasInsufficientMemory",
            (Self::Memory, false) => "NodeHasSufficientMemory",
            (Self::Disk, true) => "NodeHasDiskPressure",
            (Self::Disk, false) => "NodeHasNoDiskPressure",
            (Self::Pid, true) => "NodeHasInsufficientPID",
            (Self::Pid, false) => "NodeHasSufficientPID",
        }
    }
}

impl Signal {
    /// As settings and metrics call it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Memory => "memory.available",
            Self::PodsMemory => "allocatableMemory.available",
            Self::NodefsBytes => "nodefs.available",
            Self::NodefsInodes => "nodefs.inodesFree",
            Self::ImagefsBytes => "imagefs.available",
            Self::ImagefsInodes => "imagefs.inodesFree",
            Self::Pids => "pid.available",
        }
    }

    /// What the node shows when it is too little.
    pub fn condition(self) -> Condition {
        match self {
            Self::Memory | Self::PodsMemory => Condition::Memory,
            Self::NodefsBytes | Self::NodefsInodes | Self::ImagefsBytes | Self::ImagefsInodes => {
                Condition::Disk
            }
            Self::Pids => Condition::Pid,
        }
    }

    /// The resource's name in messages.
    pub fn resource(self) -> &'static str {
        match self {
            Self::Memory | Self::PodsMemory => "memory",
            Self::NodefsBytes | Self::ImagefsBytes => "ephemeral-storage",
            Self::NodefsInodes | Self::ImagefsInodes => "inodes",
            Self::Pids => "pids",
        }
    }

    /// Whether it is about images alone.
    pub(super) fn of_images(self) -> bool {
        match self {
            Self::ImagefsBytes | Self::ImagefsInodes => true,
            Self::Memory
            | Self::PodsMemory
            | Self::NodefsBytes
            | Self::NodefsInodes
            | Self::Pids => false,
        }
    }

    /// How much there is of it.
    pub(super) fn space(self, node: &NodeUsage) -> Option<Space> {
        match self {
            Self::Memory => node.memory,
            Self::PodsMemory => node.pods_memory,
            Self::NodefsBytes => Some(node.nodefs?.bytes),
            Self::NodefsInodes => node.nodefs?.inodes,
            Self::ImagefsBytes => Some(node.imagefs?.bytes),
            Self::ImagefsInodes => node.imagefs?.inodes,
            Self::Pids => node.pids,
        }
    }

    /// An amount of it as people read it.
    pub(super) fn show(self, amount: u64) -> Quantity {
        match self {
            Self::Memory | Self::PodsMemory | Self::NodefsBytes | Self::ImagefsBytes => {
                Quantity::bytes(amount)
            }
            Self::NodefsInodes | Self::ImagefsInodes | Self::Pids => Quantity::count(amount),
        }
    }
}

/// How much, of something of which there is so much in all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Amount {
    /// Bytes, inodes or processes.
    Count(u64),
    /// Millionths of the capacity.
    Share(u64),
}

impl Amount {
    /// As a number.
    pub fn of(self, capacity: u64) -> u64 {
        match self {
            Self::Count(count) => count,
            Self::Share(millionths) => {
                let product = u128::from(capacity) * u128::from(millionths);
                u64::try_from(product / 1_000_000).unwrap_or(u64::MAX)
            }
        }
    }
}

/// Below this something is short.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Threshold {
    /// Of what.
    pub signal: Signal,
    /// Less than this is too little.
    pub below: Amount,
    /// How long it may be so; 0 for hard ones.
    pub grace_ms: u64,
    /// So much more than the threshold is to be there before it counts as enough again.
    pub min_reclaim: Option<Amount>,
}

impl Threshold {
    /// Less than this is too little, of so much in all.
    pub fn quantity(&self, space: Space) -> u64 {
        self.below.of(space.capacity)
    }

    /// Whether it is too little now; `before`: it was, and has to be more than just enough to count as over.
    pub(super) fn is_met(&self, space: Space, before: bool) -> bool {
        let reclaim = self.min_reclaim.filter(|_| before);
        let more = reclaim.map_or(0, |amount| amount.of(space.capacity));
        space.available < self.quantity(space).saturating_add(more)
    }
}
