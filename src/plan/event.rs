//! Every fact the planner can learn, as a closed list in three levels: facts about the node, about one pod, and about one
//! run of a container. Facts about a run carry its [`Instance`], so that a late or repeated one changes nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

pub use super::after::{Outsides, Seen};
pub use super::claims::{Claim, Claims};
pub use super::cordon::{Cordon, Drain};
use super::device::Sights;
pub use super::hook::{HookOrder, HookOutcome, Hooks};
pub use super::kill::{Kill, KillReason};
pub use super::pressure::{Eviction, EvictionReason, Evictions, Observation, Order, Policy};
pub use super::probe::{ProbeOrder, ProbeOutcome};
use super::recovered::Recovered;
use super::run::Ended;
pub use super::shutdown::{AskedBy, Group, Shutdown};
use super::state::Settings;
use super::stop::{Stops, Target};
pub use super::verdict::Verdict;
use super::workload::revisions::{Instead, Subject};
use super::{Action, NodeState, Stamp, Time};
use crate::spec::{
    Condition, HookKind, ObjectKey, PodKey, PodSpec, PodUid, ProbeKind, Reason, ServiceSpec,
    Workload, WorkloadKey,
};
use crate::types::{Effective, Exit, SortedMap, StopSignal};

/// The valid pods and services of the manifest directory. Names are unique: `node::manifests` rejects the later file.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Desired {
    /// What should run.
    pub pods: BTreeMap<PodUid, Arc<PodSpec>>,
    /// The services there should be, with the ports of the node that were chosen for them.
    pub services: BTreeMap<PodKey, Arc<ServiceSpec>>,
    /// The documents that stand for some of the pods.
    pub workloads: Arc<SortedMap<WorkloadKey, Arc<Workload>>>,
    /// What files say of pods whose edits may be taken back: the hash of each one's manifest.
    pub editions: BTreeMap<PodKey, Arc<str>>,
    /// All files are in force: what is not in this is wanted no more.
    pub complete: bool,
    /// The agent takes its pods along. Files ask for them as before, so that nothing is forgotten.
    pub leaving: bool,
}

/// One run of one container.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Instance {
    /// The pod.
    pub pod: PodUid,
    /// The container's name.
    pub container: String,
    /// 0 for the first run; equals the restart count.
    pub attempt: u32,
}

/// A fact.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// A fact about the node.
    Node(NodeFact),
    /// A fact about one pod.
    Pod {
        /// The pod.
        uid: PodUid,
        /// The fact.
        fact: PodFact,
    },
    /// A fact about one run of a container.
    Run {
        /// The run.
        instance: Instance,
        /// The fact.
        fact: RunFact,
    },
}

/// A fact about the node.
#[derive(Debug, Clone, PartialEq)]
pub enum NodeFact {
    /// The manifest directory was read. Always the whole set.
    DesiredChanged(Desired),
    /// Pods of documents that stand for pods may come or go; see `plan::workload::next`.
    WorkloadTurn,
    /// The wall clock was set.
    ClockSet,
    /// What was known of CronJobs after so many changes is on disk.
    CronsKept(u64),
    /// A client has put something in force instead of what a file says; `None`: what the file says again.
    PutInstead(Subject, Option<Instead>),
    /// The settings have changed.
    SettingsChanged(Settings),
    /// The node's addresses have changed; they are shown with its pods.
    AddressesChanged,
    /// Images of these full names were added to the store: waiting for one may be over. `None`: any may have been.
    ImagesChanged(Option<BTreeSet<String>>),
    /// ConfigMaps or Secrets were added, changed or removed: waiting for one may be over.
    ConfigurationChanged {
        /// Which ones.
        objects: BTreeSet<ObjectKey>,
    },
    /// The node is to go down: pods stop group by group.
    ShutdownBegun {
        /// How long pods have, by priority.
        groups: Vec<Group>,
        /// Where the request comes from.
        asked_by: AskedBy,
    },
    /// A shutdown that began before the agent restart. Recorded after all pods were recovered and before the manifests
    /// are known.
    ShutdownRecovered(Shutdown),
    /// The next group is to stop; see `plan::shutdown::next`.
    ShutdownTurnOver,
    /// The node does not go down after all.
    ShutdownCancelled,
    /// The node is cordoned: no pod is admitted.
    Cordoned,
    /// Pods are to leave, those of the lowest priority first, and stay away; the node is cordoned for that.
    DrainBegun {
        /// Which pods; `None`: all.
        pods: Option<BTreeSet<PodKey>>,
        /// Replaces each pod's own grace period if given (a second at least).
        grace_ms: Option<u64>,
    },
    /// A cordon from before the agent restart or reboot. Recorded after all pods were recovered and before the manifests
    /// are known.
    CordonRecovered(Cordon),
    /// The next pods of a drain are to leave; see `plan::cordon::next`.
    DrainTurn,
    /// The node is uncordoned: pods that were kept out or drained may be admitted.
    Uncordoned,
    /// A client stops pods; they stay down until it starts them.
    StopRequested {
        /// What to stop.
        targets: BTreeSet<Target>,
        /// Replaces each pod's own grace period if given (a second at least).
        grace_ms: Option<u64>,
    },
    /// A client starts what was stopped.
    StartRequested {
        /// What to start.
        targets: BTreeSet<Target>,
    },
    /// What was stopped before the agent restart or reboot. Recorded after all pods were recovered and before the
    /// manifests are known.
    StopsRecovered(Stops),
    /// The thresholds that the node watches have changed.
    PolicyChanged(Arc<Policy>),
    /// The node began this; see `plan::pressure::next`.
    ReliefBegun(Order),
    /// What the node uses was measured.
    Observed(Box<Observation>),
    /// Unused images and volumes were removed, as far as possible.
    Reclaimed,
    /// The kernel reports that memory gets short.
    Alarmed,
    /// An image that a pod needs does not fit on the disk.
    ImageLacksRoom,
    /// What claims are has changed: all of them, as they are now.
    ClaimsChanged(Claims),
    /// What pods start after was looked for outside coracle: everything that is known now; see
    /// [`NodeState::wanted_outside`](super::NodeState::wanted_outside).
    OutsideSeen(Outsides),
}

/// A fact about one pod.
#[derive(Debug, Clone, PartialEq)]
pub enum PodFact {
    /// It was found when the agent started: running, finished or without its shim.
    Recovered(Box<Recovered>),
    /// How its containers ended in an earlier boot, as far as that is on disk.
    FormerEnds {
        /// By container; their moments mean nothing.
        ends: BTreeMap<String, Ended>,
    },
    /// A client asked for it to be stopped; it starts again if its file is still there.
    DeleteRequested {
        /// Replaces the pod's own grace period if given (a second at least). A shorter one shortens a running one.
        grace_ms: Option<u64>,
    },
    /// It was active for longer than it may be; see `plan::verdict::next`.
    DeadlineExceeded,
    /// It was to end and is still there after its grace period; see `plan::verdict::next`.
    GraceExceeded,
    /// Ephemeral containers were added.
    EphemeralAdded {
        /// The pod with them, made by `spec::ephemeral`; only they are taken from it.
        spec: Arc<PodSpec>,
    },
    /// A client does not want to wait for the next try.
    RetryRequested {
        /// Only what this container waits for.
        container: Option<String>,
    },
    /// A client asks for a restart of the pod's containers, in place.
    RestartRequested {
        /// Only this container.
        container: Option<String>,
        /// Replaces the pod's own grace period if given (a second at least).
        grace_ms: Option<u64>,
    },
    /// A client sets conditions, for the pod's readiness gates.
    ConditionsSet {
        /// The changes, of valid conditions that are not coracle's own.
        changes: Vec<ConditionChange>,
    },
    /// A pod that was down for a shutdown that was called off, or was evicted, may run again; see
    /// `plan::shutdown::next` and `plan::pressure::next`. The record that its sandbox was removed on purpose is deleted
    /// before this.
    Restored,
    /// It is evicted; see `plan::pressure::next`.
    Evicted {
        /// The reason.
        eviction: Eviction,
    },
    /// The node began this action; it is the pod's only lifecycle action until its outcome arrives.
    ActionStarted(Action),
    /// Directories, cgroups, volumes, namespaces and shim are there.
    SandboxCreated {
        /// Its addresses; empty without a network of its own.
        ips: Vec<IpAddr>,
        /// The next attempt number of containers whose logs or checkpoint remember earlier runs.
        next_attempts: BTreeMap<String, u32>,
        /// Reasons and messages of events to publish (`MissingClusterDNS`).
        warnings: Vec<(Reason, String)>,
    },
    /// The sandbox could not be made. Everything half made was removed again or is reused by the next try.
    SandboxFailed {
        /// What failed.
        failure: SandboxFailure,
    },
    /// The shim is gone and with it all containers (their cgroup was killed before this).
    SandboxLost,
    /// Shim, cgroups, mounts, namespaces are gone; with `Keep::Logs` also volumes, with
    /// `Keep::Nothing` logs and records, too.
    SandboxRemoved,
    /// Something could not be removed; what was removed stays removed.
    SandboxRemoveFailed {
        /// The error.
        error: String,
    },
    /// A container's image is in the store, and those of its image volumes.
    ImageReady {
        /// The container.
        container: String,
        /// The image's config digest, `sha256:…`.
        image_id: String,
        /// The digests of the images of its image volumes, by volume.
        volumes: BTreeMap<String, String>,
        /// What came of asking their registries, by the names that the manifest writes.
        pulled: BTreeMap<String, Pulled>,
    },
    /// A container's image is not available now.
    ImageFailed {
        /// The container.
        container: String,
        /// The image volume whose image it is; `None`: the container's own image.
        volume: Option<String>,
        /// The reason.
        failure: ImageFailure,
        /// The sentence for people.
        message: String,
    },
    /// This much of an image has been pulled for a container.
    Pulling {
        /// The container.
        container: String,
        /// The image, as the manifest writes it.
        image: String,
        /// How much has arrived.
        percent: u8,
        /// All that is to be downloaded.
        total_bytes: u64,
    },
    /// Events to publish. Changes nothing.
    Warned {
        /// The container they are about, if any.
        container: Option<String>,
        /// Their reasons and messages.
        warnings: Vec<(Reason, String)>,
    },
    /// cpu and memory are in force as ordered.
    Resized,
    /// cpu and memory could not be set, or not all of it.
    ResizeFailed {
        /// The error.
        error: String,
    },
    /// The node has looked for the devices that the pod asks for. Sent again whenever something has changed.
    DevicesSeen {
        /// What it has found, by the requests' names.
        sights: Sights,
    },
    /// The moment that `plan::hook::next_sleep` named has come.
    TimePassed,
    /// It has waited for long enough for something that it starts after; see `plan::after::next`.
    WaitedLong,
}

/// A fact about one run of a container.
#[derive(Debug, Clone, PartialEq)]
pub enum RunFact {
    /// Its process runs.
    Started {
        /// Process id of its first process on the node.
        pid: u32,
        /// When it started.
        at: Stamp,
        /// What its start decided.
        effective: Effective,
    },
    /// Its process could not be started.
    StartFailed {
        /// The step that failed.
        failure: StartFailure,
        /// The sentence for people.
        message: String,
    },
    /// Its process has ended. May arrive before `Started`, or more than once.
    Exited {
        /// How.
        exit: Exit,
    },
    /// A signal was delivered (or the process was gone already).
    SignalSent {
        /// The signal.
        signal: StopSignal,
        /// When it was sent for the first time.
        at: Time,
    },
    /// The shim could not send a signal, and is alive; the planner asks again.
    SignalFailed {
        /// The error.
        error: String,
    },
    /// A probe begins; at most one of each kind at a time.
    ProbeStarted(ProbeKind),
    /// A probe was carried out, or could not be.
    ProbeDone {
        /// The probe.
        probe: ProbeKind,
        /// Its outcome.
        outcome: ProbeOutcome,
    },
    /// A hook begins.
    HookStarted(HookKind),
    /// A hook was carried out, or could not be.
    HookDone {
        /// The hook.
        hook: HookKind,
        /// Its outcome.
        outcome: HookOutcome,
    },
}

impl Event {
    /// That a pod was found when the agent started.
    pub fn recovered(recovered: Recovered) -> Self {
        Self::Pod {
            uid: recovered.spec.uid.clone(),
            fact: PodFact::Recovered(Box::new(recovered)),
        }
    }

    /// That the node began this action.
    pub fn action_started(action: Action) -> Self {
        Self::Pod {
            uid: action.pod().clone(),
            fact: PodFact::ActionStarted(action),
        }
    }

    /// The pod the fact is about; `None` if it is about the node.
    pub fn pod(&self) -> Option<&PodUid> {
        match self {
            Self::Node(_) => None,
            Self::Pod { uid, .. } => Some(uid),
            Self::Run { instance, .. } => Some(&instance.pod),
        }
    }
}

impl NodeFact {
    /// Whether every pod is planned again after it. The node's shortages concern a pod only through facts of its own, and
    /// manifests concern those that they change (`NodeState::touched`), except that nothing begins before the first time
    /// that they are read.
    pub(super) fn concerns_all_pods(&self, state: &NodeState) -> bool {
        match self {
            Self::DesiredChanged(_) => state.desired.is_none(),
            Self::SettingsChanged(_)
            | Self::AddressesChanged
            | Self::ImagesChanged(_)
            | Self::ConfigurationChanged { .. }
            | Self::ShutdownBegun { .. }
            | Self::ShutdownRecovered(_)
            | Self::ShutdownTurnOver
            | Self::ShutdownCancelled
            | Self::Cordoned
            | Self::DrainBegun { .. }
            | Self::CordonRecovered(_)
            | Self::DrainTurn
            | Self::Uncordoned
            | Self::StopRequested { .. }
            | Self::StartRequested { .. }
            | Self::StopsRecovered(_) => true,
            Self::PolicyChanged(_)
            | Self::ReliefBegun(_)
            | Self::Observed(_)
            | Self::Reclaimed
            | Self::Alarmed
            | Self::ImageLacksRoom
            | Self::ClaimsChanged(_)
            | Self::WorkloadTurn
            | Self::ClockSet
            | Self::CronsKept(_)
            | Self::PutInstead(..)
            | Self::OutsideSeen(_) => false,
        }
    }
}

/// A change of one condition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConditionChange {
    /// Its new value.
    Set(Condition),
    /// The condition of this type is removed.
    Unset(String),
}

/// Why a sandbox could not be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SandboxFailure {
    /// A volume is not available.
    Volume {
        /// Its name.
        volume: String,
        /// The error.
        error: String,
    },
    /// A host port is taken. Tried again at once when any other pod's sandbox is removed.
    HostPort {
        /// The sentence for people, with both names.
        message: String,
    },
    /// Anything else: cgroups, namespaces, the shim.
    Sandbox(String),
}

/// What came of asking a registry for an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Pulled {
    /// It was pulled.
    Now {
        /// How long the pull took.
        took_ms: u64,
        /// The same with the wait for other pulls.
        waited_ms: u64,
        /// The size of the image.
        size_bytes: u64,
    },
    /// The registry could not be asked, for this reason; the stored image is used.
    Unreachable(String),
}

/// Why an image is not available; the kubelet's words in `plan::status`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ImageFailure {
    /// `ErrImageNeverPull`.
    NeverPull,
    /// `ErrImagePull`.
    Pull,
    /// `SignatureValidationFailed`.
    Signature,
    /// `ImageInspectError`.
    Inspect,
    /// Nothing is pulled before the next pull window, which is so far away.
    Window {
        /// In milliseconds.
        opens_in_ms: u64,
    },
}

/// The step at which a container could not be started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum StartFailure {
    /// `CreateContainerConfigError`: the manifest and the image do not go together (e.g. `runAsNonRoot`).
    Config,
    /// `CreateContainerError`: mounts, rootfs, cgroup, seccomp.
    Create,
    /// `RunContainerError`: the program could not be executed. Counts as a run that ended with exit code 128,
    /// reason `StartError`, so crash back-off applies.
    Run,
}
