//! What may a client ask of the node? One closed list; each command brings the channel its answer goes to.

use std::collections::BTreeSet;
use std::path::PathBuf;

use k8s_openapi::api::core::v1::EphemeralContainer;
use serde::{Deserialize, Serialize};
use smol::channel::{Receiver, Sender};

use super::metrics::Metric;
use crate::plan::event::ConditionChange;
use crate::spec::PodKey;

/// Where an image archive is.
#[derive(Debug)]
pub enum ImageArchive {
    /// On the node.
    Path(PathBuf),
    /// A client sends it, piece by piece; an error breaks it off.
    Sent(Receiver<std::io::Result<hyper::body::Bytes>>),
}

/// A wish of a client. The node answers each exactly once; a dropped `reply` means the node is stopping.
#[derive(Debug)]
pub enum Command {
    /// Stop a pod; it starts again while its file is there.
    DeletePod {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
        /// Instead of the pod's own grace period.
        grace_ms: Option<u64>,
        /// Without a grace period: the shortest there is.
        force: bool,
        /// Whether stopping has begun.
        reply: Sender<Result<(), CommandError>>,
    },
    /// Give a pod these ephemeral containers; those it has must be among them, unchanged.
    SetEphemeral {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
        /// All of them.
        containers: Vec<EphemeralContainer>,
        /// Only say whether they may be there.
        dry_run: bool,
        /// Whether they are there; shown by then.
        reply: Sender<Result<(), CommandError>>,
    },
    /// Set and take away conditions that are not coracle's own.
    SetConditions {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
        /// What changes; each condition is valid.
        changes: Vec<ConditionChange>,
        /// Whether that is done, and will be remembered.
        reply: Sender<Result<(), CommandError>>,
    },
    /// Do not wait for the next try.
    Retry {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
        /// Only this container.
        container: Option<String>,
        /// What is tried again now, as a sentence.
        reply: Sender<Result<String, CommandError>>,
    },
    /// Import an image archive or OCI layout directory.
    ImportImage {
        /// Where it is.
        archive: ImageArchive,
        /// Name for an image that brings none.
        name: Option<String>,
        /// JSON lines: `{"type":"progress",…}`, `{"type":"image",…}`, `{"type":"error",…}`. Closed at the end.
        progress: Sender<String>,
    },
    /// Remove an image name (and the image with its last name).
    RemoveImage {
        /// A name or a config digest.
        name: String,
        /// Also while a container uses it.
        force: bool,
        /// What was removed.
        reply: Sender<Result<RemovedImages, CommandError>>,
    },
    /// Remove what nothing refers to.
    PruneImages {
        /// Also images that have a name but are not used by a container.
        all: bool,
        /// What was removed.
        reply: Sender<Result<RemovedImages, CommandError>>,
    },
    /// Measure what `/metrics/cadvisor` shows.
    MeasurePods {
        /// The metrics.
        reply: Sender<Result<Vec<Metric>, CommandError>>,
    },
    /// What `/stats/summary` shows.
    Summarize {
        /// Only processors and memory.
        brief: bool,
        /// As the kubelet says it.
        reply: Sender<Result<serde_json::Value, CommandError>>,
    },
    /// What `/metrics/resource` shows.
    MeasureResources {
        /// The metrics.
        reply: Sender<Result<Vec<Metric>, CommandError>>,
    },
    /// Show the node as it is now.
    LookAtNode {
        /// That it is shown so.
        reply: Sender<Result<(), CommandError>>,
    },
    /// What `/metrics` shows.
    Count {
        /// The metrics.
        reply: Sender<Result<Vec<Metric>, CommandError>>,
    },
    /// What `/metrics/probes` shows.
    CountProbes {
        /// The metrics.
        reply: Sender<Result<Vec<Metric>, CommandError>>,
    },
    /// What holds in a pod's cgroups.
    ShowCgroups {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
        /// Items with `container` (null: the pod), `path` and `values`; empty without cgroups.
        reply: Sender<Result<serde_json::Value, CommandError>>,
    },
    /// What `/configz` shows.
    ShowSettings {
        /// Settings in force, their origins, and what waits for the next start.
        reply: Sender<Result<serde_json::Value, CommandError>>,
    },
    /// What saving these files in the manifest directory would change.
    Preview {
        /// The files.
        files: Vec<PlannedFile>,
        /// What it would change.
        reply: Sender<Result<serde_json::Value, CommandError>>,
    },
    /// In which order pods would stop, and how far a shutdown is.
    ShowShutdown {
        /// The groups, and what is known of logind.
        reply: Sender<Result<serde_json::Value, CommandError>>,
    },
    /// Stop all pods, group by group, and keep them down.
    BeginShutdown {
        /// JSON lines: `{"type":"group",…}` as each begins to stop, `{"type":"ended"}`. Closed at the end.
        reply: Sender<Result<Receiver<String>, CommandError>>,
    },
    /// Start them again.
    CancelShutdown {
        /// Whether there was anything to call off.
        reply: Sender<Result<(), CommandError>>,
    },
    /// Let nobody new in, or let in whoever waits.
    SetCordon {
        /// Nobody new.
        on: bool,
        /// Whether that changes anything; it is on disk by then.
        reply: Sender<Result<bool, CommandError>>,
    },
    /// Stop pods, those of low priority first, and keep them down.
    Drain {
        /// Which, and how.
        options: DrainOptions,
        /// JSON lines: `{"type":"cordoned",…}`, `{"type":"evicting",…}` and `{"type":"evicted",…}` for each pod, then
        /// `{"type":"drained"}`, or `{"type":"uncordoned"}` if it was called off. Closed at the end.
        reply: Sender<Result<Receiver<String>, CommandError>>,
    },
    /// What the store holds.
    ListImages {
        /// All images.
        reply: Sender<Result<Vec<ImageRow>, CommandError>>,
    },
}

/// Which pods leave, and how.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DrainOptions {
    /// Only these; `None`: all.
    pub pods: Option<BTreeSet<PodKey>>,
    /// Instead of each pod's own grace period (a second at least).
    pub grace_ms: Option<u64>,
    /// Also pods that lose what they have in `emptyDir` volumes on disk.
    pub delete_empty_dir_data: bool,
    /// Only say who would leave, and in which order.
    pub dry_run: bool,
}

/// A manifest that is not saved yet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlannedFile {
    /// What errors call it.
    pub name: String,
    /// Its name in the manifest directory; without one it is taken for the file that has its pods now.
    #[serde(default)]
    pub save_as: Option<String>,
    /// Its content.
    pub text: String,
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
    /// RFC 3339, as the image says.
    pub created: Option<String>,
    /// From a preload directory, never garbage-collected.
    pub preloaded: bool,
    /// A container of a present pod uses it.
    pub in_use: bool,
}

/// What a removal did.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemovedImages {
    /// Names that are gone.
    pub untagged: Vec<String>,
    /// Config digests that are gone.
    pub deleted: Vec<String>,
    /// Space given back.
    pub freed_bytes: u64,
}

/// Why a command was refused or failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct CommandError {
    /// Decides the HTTP status.
    pub kind: CommandErrorKind,
    /// The whole chain of causes in one line.
    pub message: String,
}

/// What sort of failure it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CommandErrorKind {
    /// 404
    NotFound,
    /// 409
    Conflict,
    /// 400
    Invalid,
    /// 422
    Unprocessable,
    /// 500
    Failed,
}
