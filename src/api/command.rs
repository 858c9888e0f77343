//! Commands that a client may send to the node: one closed list; each command carries the channel for its answer.

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;

use hyper::body::Bytes;
use k8s_openapi::api::core::v1::EphemeralContainer;
use serde::{Deserialize, Serialize};
use smol::channel::{Receiver, Sender};

use super::bundles::BundleRequest;
use super::metrics::Metric;
use super::pull::PullRequest;
use crate::plan::event::ConditionChange;
use crate::plan::stop::Target;
use crate::spec::{PodKey, WorkloadKind};

/// Where an image archive is.
#[derive(Debug)]
pub enum ImageArchive {
    /// A path on the node.
    Path(PathBuf),
    /// Bytes sent by a client; an error aborts the import.
    Sent(Receiver<io::Result<Bytes>>),
}

/// What a client asks about a document's rollout.
#[derive(Debug)]
pub struct RolloutRequest {
    /// The kind of document; `None`: a pod.
    pub kind: Option<WorkloadKind>,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// What.
    pub rollout: Rollout,
}

/// What a client may ask about a rollout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rollout {
    /// Its revisions.
    History,
    /// A former revision, by default the one before.
    Undo(Option<u64>),
    /// Other pods of the same template.
    Restart,
}

/// A command of a client. The node answers each exactly once; a dropped `reply` means the node is stopping.
#[derive(Debug)]
pub enum Command {
    /// Stop a pod; it starts again while its file is there.
    DeletePod {
        /// Namespace of the pod.
        namespace: String,
        /// Name of the pod.
        name: String,
        /// Grace period in milliseconds instead of the pod's own.
        grace_ms: Option<u64>,
        /// Without a grace period, use the shortest one.
        force: bool,
        /// Answered once stopping has begun.
        reply: Sender<Result<(), CommandError>>,
    },
    /// Replace a pod's list of ephemeral containers; existing ones must stay unchanged.
    SetEphemeral {
        /// Namespace of the pod.
        namespace: String,
        /// Name of the pod.
        name: String,
        /// The whole list.
        containers: Vec<EphemeralContainer>,
        /// Only check whether the list is accepted.
        dry_run: bool,
        /// Answered once the store shows the list.
        reply: Sender<Result<(), CommandError>>,
    },
    /// Set and remove conditions that are not coracle's own.
    SetConditions {
        /// Namespace of the pod.
        namespace: String,
        /// Name of the pod.
        name: String,
        /// Changes; each condition is valid.
        changes: Vec<ConditionChange>,
        /// Answered once the changes are on disk.
        reply: Sender<Result<(), CommandError>>,
    },
    /// Retry now instead of waiting for the back-off.
    Retry {
        /// Namespace of the pod.
        namespace: String,
        /// Name of the pod.
        name: String,
        /// Retry only this container.
        container: Option<String>,
        /// What is retried, as a sentence.
        reply: Sender<Result<String, CommandError>>,
    },
    /// Show the revisions of a document, or put another one in force.
    Rollout {
        /// What.
        request: RolloutRequest,
        /// Answered once it is on disk.
        reply: Sender<Result<serde_json::Value, CommandError>>,
    },
    /// Restart a pod's containers in place.
    RestartPod {
        /// Namespace of the pod.
        namespace: String,
        /// Name of the pod.
        name: String,
        /// Restart only this container.
        container: Option<String>,
        /// Grace period in milliseconds instead of the pod's own.
        grace_ms: Option<u64>,
        /// The containers, with their restart counts before; saved by then.
        reply: Sender<Result<serde_json::Value, CommandError>>,
    },
    /// Start everything in a namespace that is stopped.
    StartAll {
        /// The namespace.
        namespace: String,
        /// As of `StopOrStart`.
        reply: Sender<Result<serde_json::Value, CommandError>>,
    },
    /// Stop pods and keep them down, or start them again.
    StopOrStart {
        /// Which pods.
        targets: BTreeSet<Target>,
        /// Whether to stop them.
        stop: bool,
        /// Grace period in milliseconds instead of each pod's own.
        grace_ms: Option<u64>,
        /// Which of them that changed; on disk by then.
        reply: Sender<Result<serde_json::Value, CommandError>>,
    },
    /// Import an image archive or OCI layout directory.
    ImportImage {
        /// Archive or directory.
        archive: ImageArchive,
        /// Name for an image that has none.
        name: Option<String>,
        /// JSON lines: `{"type":"progress",…}`, `{"type":"image",…}`, `{"type":"error",…}`. Closed at the end.
        progress: Sender<String>,
    },
    /// Pull an image from its registry.
    PullImage {
        /// What to pull.
        request: PullRequest,
        /// JSON lines as of an import. Closed at the end.
        progress: Sender<String>,
    },
    /// Remove an image name (and the image with its last name).
    RemoveImage {
        /// A name or a config digest.
        name: String,
        /// Remove all names of an id, and what pods will need again.
        force: bool,
        /// What was removed.
        reply: Sender<Result<RemovedImages, CommandError>>,
    },
    /// Give an image one more name.
    TagImage {
        /// A name or a config digest.
        source: String,
        /// The new name.
        target: String,
        /// The whole new name.
        reply: Sender<Result<String, CommandError>>,
    },
    /// Show everything that is known of an image.
    InspectImage {
        /// A name or a config digest.
        name: String,
        /// What is known (`images::Details`).
        reply: Sender<Result<serde_json::Value, CommandError>>,
    },
    /// Write images as an archive.
    SaveImages {
        /// Names or config digests.
        names: Vec<String>,
        /// The archive.
        reply: Sender<Result<SavedArchive, CommandError>>,
    },
    /// Remove unreferenced images and layers.
    PruneImages {
        /// Also remove named images that no container uses and no manifest names.
        all: bool,
        /// Only say what would be removed.
        dry_run: bool,
        /// What was removed.
        reply: Sender<Result<RemovedImages, CommandError>>,
    },
    /// List what claims are bound to, with use and size.
    ListVolumes {
        /// The list.
        reply: Sender<Result<Vec<VolumeRow>, CommandError>>,
    },
    /// Remove what a claim is bound to, with its data if it has a directory of its own.
    RemoveVolume {
        /// The claim's namespace.
        namespace: String,
        /// The claim's name.
        name: String,
        /// What was removed.
        reply: Sender<Result<VolumeRow, CommandError>>,
    },
    /// Measure the metrics of `/metrics/cadvisor`.
    MeasurePods {
        /// The metrics.
        reply: Sender<Result<Vec<Metric>, CommandError>>,
    },
    /// Measure the summary of `/stats/summary`.
    Summarize {
        /// Only CPU and memory.
        brief: bool,
        /// A kubelet `Summary`.
        reply: Sender<Result<serde_json::Value, CommandError>>,
    },
    /// Measure the metrics of `/metrics/resource`.
    MeasureResources {
        /// The metrics.
        reply: Sender<Result<Vec<Metric>, CommandError>>,
    },
    /// Update the Node object in the store.
    LookAtNode {
        /// Answered once the store has it.
        reply: Sender<Result<(), CommandError>>,
    },
    /// Collect the metrics of `/metrics`.
    Count {
        /// The metrics.
        reply: Sender<Result<Vec<Metric>, CommandError>>,
    },
    /// Collect the metrics of `/metrics/probes`.
    CountProbes {
        /// The metrics.
        reply: Sender<Result<Vec<Metric>, CommandError>>,
    },
    /// Read the values in force in a pod's cgroups.
    ShowCgroups {
        /// Namespace of the pod.
        namespace: String,
        /// Name of the pod.
        name: String,
        /// Items with `container` (null: the pod), `path` and `values`; empty without cgroups.
        reply: Sender<Result<serde_json::Value, CommandError>>,
    },
    /// Show the settings for `/configz`.
    ShowSettings {
        /// Settings in force, their origins, and those that need an agent restart.
        reply: Sender<Result<serde_json::Value, CommandError>>,
    },
    /// Preview what saving these files in the manifest directory would change.
    Preview {
        /// Manifests to preview.
        files: Vec<PlannedFile>,
        /// Changes by file.
        reply: Sender<Result<serde_json::Value, CommandError>>,
    },
    /// Read a bundle, and put its manifests and images in force.
    ApplyBundle {
        /// Which one, and how.
        request: BundleRequest,
        /// JSON lines: `{"type":"progress",…}`, then `{"type":"plan",…}`, `{"type":"applied",…}` or
        /// `{"type":"error",…}`, and after a trial `{"type":"ready",…}` or `{"type":"rolledBack",…}`. Closed at the end.
        progress: Sender<String>,
    },
    /// Read the manifests as they are now.
    ReadManifests {
        /// Answered once what they say is in force and shown.
        reply: Sender<Result<(), CommandError>>,
    },
    /// List the bundles.
    ListBundles {
        /// Items by name.
        reply: Sender<Result<serde_json::Value, CommandError>>,
    },
    /// Bring the former generation of a bundle back.
    RollBackBundle {
        /// The bundle; the only one if missing.
        name: Option<String>,
        /// Its name, and the generation in force.
        reply: Sender<Result<serde_json::Value, CommandError>>,
    },
    /// Remove a bundle and what its manifests ask for.
    RemoveBundle {
        /// The bundle.
        name: String,
        /// Its name.
        reply: Sender<Result<serde_json::Value, CommandError>>,
    },
    /// Show what pods have waited for before they started.
    ShowBoot {
        /// Items by pod.
        reply: Sender<Result<serde_json::Value, CommandError>>,
    },
    /// Show the shutdown plan, and the progress of a shutdown under way.
    ShowShutdown {
        /// Groups of pods, and logind's settings.
        reply: Sender<Result<serde_json::Value, CommandError>>,
    },
    /// Stop all pods, group by group, and keep them stopped.
    BeginShutdown {
        /// JSON lines: `{"type":"group",…}` as each group begins to stop, `{"type":"ended"}` or
        /// `{"type":"cancelled"}`. Closed at the end.
        reply: Sender<Result<Receiver<String>, CommandError>>,
    },
    /// Cancel a shutdown: start the pods again.
    CancelShutdown {
        /// Answered with an error if there is no shutdown to cancel.
        reply: Sender<Result<(), CommandError>>,
    },
    /// Cordon the node: admit no new pods; or uncordon it: admit those held.
    SetCordon {
        /// Cordoned or not.
        on: bool,
        /// Whether that changed anything; on disk by then.
        reply: Sender<Result<bool, CommandError>>,
    },
    /// Evict pods, lowest priority first, and keep them stopped.
    Drain {
        /// Which pods, and how.
        options: DrainOptions,
        /// JSON lines: `{"type":"cordoned",…}`, `{"type":"evicting",…}` and `{"type":"evicted",…}` for each pod, then
        /// `{"type":"drained"}`, or `{"type":"uncordoned"}` if the drain was called off. Closed at the end.
        reply: Sender<Result<Receiver<String>, CommandError>>,
    },
    /// List the images in the store.
    ListImages {
        /// All images.
        reply: Sender<Result<Vec<ImageRow>, CommandError>>,
    },
}

/// Options of a drain.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DrainOptions {
    /// Drain only these pods; `None`: all.
    pub pods: Option<BTreeSet<PodKey>>,
    /// Grace period in milliseconds, at least 1000, instead of each pod's own.
    pub grace_ms: Option<u64>,
    /// Also evict pods that lose data in `emptyDir` volumes on disk.
    pub delete_empty_dir_data: bool,
    /// Only report which pods would leave, in order.
    pub dry_run: bool,
}

/// A manifest that is not saved yet, for a preview.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlannedFile {
    /// Name in errors.
    pub name: String,
    /// File name in the manifest directory; without one, the file that has the same pods now.
    #[serde(default)]
    pub save_as: Option<String>,
    /// Content.
    pub text: String,
    /// Whether documents of kinds that are not read are errors, instead of being passed over.
    #[serde(default)]
    pub strict: bool,
}

/// An archive of images that is being written.
#[derive(Debug, Clone)]
pub struct SavedArchive {
    /// Its exact length.
    pub bytes: u64,
    /// Its pieces. An error cuts it off.
    pub pieces: Receiver<io::Result<Bytes>>,
}

/// One image of the store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageRow {
    /// Config digest, `sha256:…`.
    pub id: String,
    /// Full names with tag or digest.
    pub names: Vec<String>,
    /// Unpacked size.
    pub size_bytes: u64,
    /// RFC 3339, from the image's config.
    pub created: Option<String>,
    /// From a preload directory, never garbage-collected.
    pub preloaded: bool,
    /// A container of a present pod uses it.
    pub in_use: bool,
    /// The manifest's digest, `sha256:…`.
    #[serde(default)]
    pub digest: String,
    /// The containers that run from it or mount it, or will.
    #[serde(default)]
    pub users: Vec<ImageUser>,
}

/// A container that uses an image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageUser {
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name.
    pub pod: String,
    /// The container's name.
    pub container: String,
}

/// What a claim is bound to.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct VolumeRow {
    /// The claim's namespace.
    pub namespace: String,
    /// The claim's name.
    pub claim: String,
    /// The name of the volume.
    pub volume: String,
    /// `Bound`, `Released` without a document, or `Lost` if its record cannot be read; empty from an earlier version.
    #[serde(default)]
    pub status: String,
    /// Its path on the node.
    pub path: PathBuf,
    /// What the claim asks for; absent without a document.
    pub requested: Option<String>,
    /// The bytes that its files take, as far as they could be counted.
    pub used_bytes: u64,
    /// The pods that use it.
    pub pods: Vec<String>,
}

/// Result of a removal.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemovedImages {
    /// Removed names.
    pub untagged: Vec<String>,
    /// Config digests of removed images.
    pub deleted: Vec<String>,
    /// Freed disk space.
    pub freed_bytes: u64,
}

/// A command was refused or failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct CommandError {
    /// Kind of failure, which determines the HTTP status.
    pub kind: CommandErrorKind,
    /// The whole chain of causes in one line.
    pub message: String,
}

/// Kind of a command's failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CommandErrorKind {
    /// 404
    NotFound,
    /// 403
    Forbidden,
    /// 409
    Conflict,
    /// 400
    Invalid,
    /// 422
    Unprocessable,
    /// 500
    Failed,
}
