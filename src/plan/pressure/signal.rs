//! Signals (the resources that may run short) and their thresholds (Kubernetes docs: Node-pressure Eviction).

use serde::{Deserialize, Serialize};

use crate::spec::Reason;
use crate::types::quantity::Quantity;
use crate::types::usage::{NodeUsage, Space};

/// A resource that may run short.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Signal {
    /// The node's memory.
    Memory,
    /// The memory limit of all pods together, if there is one.
    PodsMemory,
    /// Bytes of the file system with volumes, logs and writable layers.
    NodefsBytes,
    /// Inodes of that file system.
    NodefsInodes,
    /// Bytes of the file system with images.
    ImagefsBytes,
    /// Inodes of that file system.
    ImagefsInodes,
    /// Process ids.
    Pids,
}

/// A condition of a node that is short of something.
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
    /// All conditions, in the order in which they are shown.
    pub const ALL: [Self; 3] = [Self::Memory, Self::Disk, Self::Pid];

    /// The condition's `type`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Memory => "MemoryPressure",
            Self::Disk => "DiskPressure",
            Self::Pid => "PIDPressure",
        }
    }

    /// `reason` and `message` while it holds, and while it does not (Kubernetes docs: Node Status).
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

    /// The reason of the node's event when the condition begins, and when it ends.
    pub fn event(self, holds: bool) -> Reason {
        match (self, holds) {
            (Self::Memory, true) => Reason::NodeHasInsufficientMemory,
            (Self::Memory, false) => Reason::NodeHasSufficientMemory,
            (Self::Disk, true) => Reason::NodeHasDiskPressure,
            (Self::Disk, false) => Reason::NodeHasNoDiskPressure,
            (Self::Pid, true) => Reason::NodeHasInsufficientPID,
            (Self::Pid, false) => Reason::NodeHasSufficientPID,
        }
    }
}

impl Signal {
    /// The signal's name in settings and metrics.
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

    /// The condition that this signal leads to.
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

    /// Whether it concerns images alone.
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

    /// Its available amount and capacity.
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

    /// An amount of it for people.
    pub(super) fn show(self, amount: u64) -> Quantity {
        match self {
            Self::Memory | Self::PodsMemory | Self::NodefsBytes | Self::ImagefsBytes => {
                Quantity::bytes(amount)
            }
            Self::NodefsInodes | Self::ImagefsInodes | Self::Pids => Quantity::count(amount),
        }
    }
}

/// An amount, absolute or relative to the capacity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Amount {
    /// Bytes, inodes or processes.
    Count(u64),
    /// Millionths of the capacity.
    Share(u64),
}

impl Amount {
    /// The absolute amount.
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

/// A threshold: below it a resource is short.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Threshold {
    /// The resource.
    pub signal: Signal,
    /// The threshold itself.
    pub below: Amount,
    /// How long it may be met before pods are evicted; 0 for hard thresholds.
    pub grace_ms: u64,
    /// How much more than the threshold must be available before the shortage is over.
    pub min_reclaim: Option<Amount>,
}

impl Threshold {
    /// The threshold as an absolute amount.
    pub fn quantity(&self, space: Space) -> u64 {
        self.below.of(space.capacity)
    }

    /// Whether the threshold is met now; `before`: it was met, so that more than the threshold must be available to
    /// end it.
    pub(super) fn is_met(&self, space: Space, before: bool) -> bool {
        let reclaim = self.min_reclaim.filter(|_| before);
        let more = reclaim.map_or(0, |amount| amount.of(space.capacity));
        space.available < self.quantity(space).saturating_add(more)
    }
}
