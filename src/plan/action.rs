//! What is to be done? Every order the planner can give, as one closed list. Each has exactly one outcome event
//! (listed at the variant) and may be repeated after a crash.

use super::{Time, event::Instance};
use crate::spec::{ContainerResources, PodResources, PodUid, StopSignal};

/// The planner's answer.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Plan {
    /// What to start now; at most one lifecycle action a pod.
    pub actions: Vec<Action>,
    /// When to ask again if nothing happens before.
    pub wake_at: Option<Time>,
}

/// An order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Make directories, volumes, cgroups, namespaces and the shim.
    /// → `SandboxCreated` | `SandboxFailed`
    CreateSandbox {
        /// Which pod.
        pod: PodUid,
    },
    /// Find the image in the store, or get it.
    /// → `ImageReady` | `ImageFailed`
    EnsureImage {
        /// Which pod.
        pod: PodUid,
        /// Which container.
        container: String,
    },
    /// Create and start the container.
    /// → `ContainerStarted` | `ContainerStartFailed` | `SandboxLost`
    StartContainer {
        /// Which run.
        instance: Instance,
        /// From which image (config digest).
        image_id: String,
    },
    /// Signal the container.
    /// → `SignalSent` | `SignalFailed` | `SandboxLost`
    Signal {
        /// Which run.
        instance: Instance,
        /// Which step of stopping.
        signal: StopSignal,
    },
    /// Give the pod and its containers other cpu and memory while they run.
    /// → `Resized` | `ResizeFailed`
    Resize {
        /// Which pod.
        pod: PodUid,
        /// What the pod is to have.
        to: PodResources,
        /// What its containers are to have; those that have no cgroup get it when they start.
        containers: Vec<(String, ContainerResources)>,
    },
    /// End the shim and remove cgroups, mounts, namespaces, and what `keep` does not name.
    /// → `SandboxRemoved` | `SandboxRemoveFailed`
    RemoveSandbox {
        /// Which pod.
        pod: PodUid,
        /// What stays.
        keep: Keep,
    },
}

impl Action {
    /// The pod the action is about.
    pub fn pod(&self) -> &PodUid {
        match self {
            Self::CreateSandbox { pod }
            | Self::EnsureImage { pod, .. }
            | Self::Resize { pod, .. }
            | Self::RemoveSandbox { pod, .. } => pod,
            Self::StartContainer { instance, .. } | Self::Signal { instance, .. } => &instance.pod,
        }
    }
}

/// What stays when a sandbox is removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keep {
    /// Volumes, logs and records: the pod has finished and is still shown, or gets a new sandbox.
    Everything,
    /// Logs and records: the pod was evicted, and gives up what it used.
    Logs,
    /// Nothing: the pod is gone.
    Nothing,
}
