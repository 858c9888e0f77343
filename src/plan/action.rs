//! The planner's actions as one closed list. Each has exactly one outcome event (listed at the variant) and may be
//! repeated after a crash.

use std::collections::BTreeMap;

use super::event::Instance;
use crate::spec::{ContainerResources, PodResources, PodUid};
use crate::types::StopSignal;

/// One action on a pod or container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Make directories, volumes, cgroups, namespaces and the shim.
    /// → `SandboxCreated` | `SandboxFailed`
    CreateSandbox {
        /// The pod to set up.
        pod: PodUid,
    },
    /// Find the container's image and those of its image volumes in the store, or pull them.
    /// → `ImageReady` | `ImageFailed`
    EnsureImage {
        /// The pod of the container.
        pod: PodUid,
        /// The container that needs the image.
        container: String,
    },
    /// Create and start the container.
    /// → `RunFact::Started` | `RunFact::StartFailed` | `SandboxLost`
    StartContainer {
        /// The run to start.
        instance: Instance,
        /// The image to run (config digest).
        image_id: String,
        /// The images of its image volumes (config digests), by volume.
        volumes: BTreeMap<String, String>,
    },
    /// Signal the container.
    /// → `RunFact::SignalSent` | `RunFact::SignalFailed` | `SandboxLost`
    Signal {
        /// The run to signal.
        instance: Instance,
        /// The signal that this step of the stop sequence sends.
        signal: StopSignal,
    },
    /// Change cpu and memory of a running pod and its containers.
    /// → `Resized` | `ResizeFailed`
    Resize {
        /// The pod to resize.
        pod: PodUid,
        /// The pod's new resources.
        to: PodResources,
        /// The containers' new resources. A container without a cgroup gets them when it starts.
        containers: Vec<(String, ContainerResources)>,
    },
    /// End the shim and remove cgroups, mounts, namespaces, and what `keep` does not name.
    /// → `SandboxRemoved` | `SandboxRemoveFailed`
    RemoveSandbox {
        /// The pod to remove.
        pod: PodUid,
        /// What stays on disk.
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
    /// Logs and records: the pod was evicted and gives up its other resources.
    Logs,
    /// Nothing: the pod is deleted.
    Nothing,
}
