//! What has happened? Every fact the planner can learn, as one closed list. Facts about a container carry its
//! [`Instance`], so that a late or repeated one changes nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::condition::{Flags, Foreign};
pub use super::cordon::{Cordon, Drain};
pub use super::hook::{HookOrder, HookOutcome, Hooks};
pub use super::kill::{Kill, KillReason};
pub use super::pressure::{Eviction, Evictions, Observation, Order, Policy, Reason};
pub use super::probe::{ProbeOrder, ProbeOutcome};
pub use super::shutdown::{AskedBy, Group, Shutdown};
use super::state::{Ended, Retry, Settings, StartError, Stopping};
pub use super::verdict::Verdict;
use super::{Action, Stamp, Time};
use crate::spec::{
    Condition, ContainerResources, Effective, Exit, PodKey, PodResources, PodSpec, PodUid,
    ServiceSpec, StopSignal,
};

/// The valid pods and services of the manifest directory. Names are unique: `node::manifests` rejects the later file.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Desired {
    /// What should run.
    pub pods: BTreeMap<PodUid, Arc<PodSpec>>,
    /// The services there should be, with the ports of the node that were chosen for them.
    pub services: BTreeMap<PodKey, Arc<ServiceSpec>>,
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
    /// The manifest directory now asks for this. Always the whole set.
    DesiredChanged(Desired),
    /// A pod of a former agent was found, running, finished or with its shim gone.
    PodRecovered(Box<Recovered>),
    /// So the pod's containers ended in an earlier boot, as far as that was written down.
    FormerEnds {
        /// Which pod.
        pod: PodUid,
        /// By container; their moments mean nothing.
        ends: BTreeMap<String, Ended>,
    },
    /// Somebody asked for this pod to be stopped; it starts again if its file is still there.
    DeleteRequested {
        /// Which pod.
        pod: PodUid,
        /// Replaces the pod's own grace period if given (a second at least). A shorter one shortens a running one.
        grace_ms: Option<u64>,
    },
    /// The pod was active for longer than it may be; see `plan::verdict::due`.
    DeadlineExceeded {
        /// Which pod.
        pod: PodUid,
    },
    /// The pod was to end and is still there after its grace; see `plan::verdict::due`.
    GraceExceeded {
        /// Which pod.
        pod: PodUid,
    },
    /// Ephemeral containers were added to a pod.
    EphemeralAdded {
        /// Which pod.
        pod: PodUid,
        /// The pod with them, made by `spec::ephemeral`; only they are taken from it.
        spec: Arc<PodSpec>,
    },
    /// Somebody does not want to wait for the next try.
    RetryRequested {
        /// Which pod.
        pod: PodUid,
        /// Only what this container waits for.
        container: Option<String>,
    },
    /// Somebody says something about a pod, for its readiness gates.
    ConditionsSet {
        /// Which pod.
        pod: PodUid,
        /// What, of valid conditions that are not coracle's own.
        changes: Vec<ConditionChange>,
    },
    /// The node is to go down: pods stop group by group.
    ShutdownBegun {
        /// How long pods have, by priority.
        groups: Vec<Group>,
        /// Who wants it.
        asked_by: AskedBy,
    },
    /// A shutdown under way that a former agent left. After all pods were recovered, before the manifests are known.
    ShutdownRecovered(Shutdown),
    /// The next group is to stop; see `plan::shutdown::due`.
    ShutdownTurnOver,
    /// The node does not go down after all.
    ShutdownCancelled,
    /// Nobody new is to come in.
    Cordoned,
    /// Pods are to leave, those of the lowest priority first, and stay away; the node is cordoned for that.
    DrainBegun {
        /// Which; `None`: all.
        pods: Option<BTreeSet<PodKey>>,
        /// Replaces each pod's own grace period if given (a second at least).
        grace_ms: Option<u64>,
    },
    /// A cordon that a former agent left. After all pods were recovered, before the manifests are known.
    CordonRecovered(Cordon),
    /// The next ones are to leave; see `plan::cordon::due`.
    DrainTurn,
    /// Whoever was kept out or sent away may come in.
    Uncordoned,
    /// A pod that was down for a shutdown that was called off, or was evicted, may run again; see `plan::shutdown::due`
    /// and `plan::pressure::next`. What tells that its sandbox was removed on purpose is gone before this is said.
    PodRestored {
        /// Which pod.
        pod: PodUid,
    },
    /// The node watches other thresholds now.
    PolicyChanged(Arc<Policy>),
    /// The node began this; see `plan::pressure::next`.
    ReliefBegun(Order),
    /// The node was looked at.
    Observed(Box<Observation>),
    /// What nobody uses was cleared away, as far as that was possible.
    Reclaimed,
    /// The kernel says that memory gets short.
    Alarmed,
    /// A pod is evicted; see `plan::pressure::next`.
    PodEvicted {
        /// Which pod.
        pod: PodUid,
        /// Why.
        eviction: Eviction,
    },
    /// The node began this action; it is the pod's only lifecycle action until its outcome arrives.
    ActionStarted(Action),
    /// Directories, cgroups, volumes, namespaces and shim are there.
    SandboxCreated {
        /// Which pod.
        pod: PodUid,
        /// Its addresses; empty without a network of its own.
        ips: Vec<IpAddr>,
        /// For containers whose logs or checkpoint remember earlier runs: the next attempt number.
        next_attempts: BTreeMap<String, u32>,
        /// What people should know about it, as reason and message of a Warning event (`MissingClusterDNS`).
        warnings: Vec<(String, String)>,
    },
    /// The sandbox could not be made. Everything half made was removed again or is reused by the next try.
    SandboxFailed {
        /// Which pod.
        pod: PodUid,
        /// What failed.
        failure: SandboxFailure,
    },
    /// The shim is gone and with it all containers (their cgroup was killed before this is said).
    SandboxLost {
        /// Which pod.
        pod: PodUid,
    },
    /// Shim, cgroups, mounts, namespaces are gone; with `Keep::Logs` also volumes, with
    /// `Keep::Nothing` logs and records, too.
    SandboxRemoved {
        /// Which pod.
        pod: PodUid,
    },
    /// Something could not be removed; what was removed stays removed.
    SandboxRemoveFailed {
        /// Which pod.
        pod: PodUid,
        /// Why.
        error: String,
    },
    /// The container's image is in the store.
    ImageReady {
        /// Which pod.
        pod: PodUid,
        /// Which container.
        container: String,
        /// The image's config digest, `sha256:…`.
        image_id: String,
    },
    /// The container's image is not to be had now.
    ImageFailed {
        /// Which pod.
        pod: PodUid,
        /// Which container.
        container: String,
        /// Why.
        failure: ImageFailure,
        /// The sentence for people.
        message: String,
    },
    /// Images were added to the store: waiting for one may be over.
    ImagesChanged,
    /// The node has other addresses now; they are shown with its pods.
    NodeAddressesChanged,
    /// The node has other settings now.
    SettingsChanged(Settings),
    /// The container's process runs.
    ContainerStarted {
        /// Which run.
        instance: Instance,
        /// Process id of its first process on the node.
        pid: u32,
        /// When.
        at: Stamp,
        /// What its start decided.
        effective: Effective,
    },
    /// Something about a pod that people should know, as reason and message of Warning events. Changes nothing.
    Warned {
        /// Which pod.
        pod: PodUid,
        /// Which container, if it is about one.
        container: Option<String>,
        /// What.
        warnings: Vec<(&'static str, String)>,
    },
    /// The container's process could not be started.
    ContainerStartFailed {
        /// Which run.
        instance: Instance,
        /// At which step.
        failure: StartFailure,
        /// The sentence for people.
        message: String,
    },
    /// The container's process has ended. May arrive before `ContainerStarted`, or more than once.
    ContainerExited {
        /// Which run.
        instance: Instance,
        /// How.
        exit: Exit,
    },
    /// cpu and memory are in force as ordered.
    Resized {
        /// Of which pod.
        pod: PodUid,
    },
    /// cpu and memory could not be set, or not all of it.
    ResizeFailed {
        /// Of which pod.
        pod: PodUid,
        /// Why.
        error: String,
    },
    /// A signal was delivered (or the process was gone already).
    SignalSent {
        /// To which run.
        instance: Instance,
        /// Which.
        signal: StopSignal,
        /// When it was sent for the first time.
        at: Time,
    },
    /// A probe is about to be carried out; at most one of a container and a kind at a time.
    ProbeStarted(ProbeOrder),
    /// A probe was carried out, or could not be.
    ProbeDone {
        /// Which.
        order: ProbeOrder,
        /// How it went.
        outcome: ProbeOutcome,
    },
    /// A hook is about to be carried out.
    HookStarted(HookOrder),
    /// A hook was carried out, or could not be.
    HookDone {
        /// Which.
        order: HookOrder,
        /// How it went.
        outcome: HookOutcome,
    },
    /// The moment has come that [`super::hook::sleep_ends`] named.
    TimePassed {
        /// For which pod.
        pod: PodUid,
    },
    /// The shim did not do as it was told (and is alive); the planner will ask again.
    SignalFailed {
        /// To which run.
        instance: Instance,
        /// Why.
        error: String,
    },
}

impl Event {
    /// Whether it is about what the node has, and about no pod.
    pub fn is_of_node(&self) -> bool {
        matches!(
            self,
            Self::PolicyChanged(_)
                | Self::ReliefBegun(_)
                | Self::Observed(_)
                | Self::Reclaimed
                | Self::Alarmed
        )
    }

    /// The pod the fact is about; `None` if it is about all.
    pub fn pod(&self) -> Option<&PodUid> {
        match self {
            Self::DesiredChanged(_)
            | Self::ImagesChanged
            | Self::NodeAddressesChanged
            | Self::ShutdownBegun { .. }
            | Self::ShutdownRecovered(_)
            | Self::ShutdownTurnOver
            | Self::ShutdownCancelled
            | Self::PolicyChanged(_)
            | Self::ReliefBegun(_)
            | Self::Observed(_)
            | Self::Reclaimed
            | Self::Alarmed
            | Self::Cordoned
            | Self::DrainBegun { .. }
            | Self::CordonRecovered(_)
            | Self::DrainTurn
            | Self::Uncordoned
            | Self::SettingsChanged(_) => None,
            Self::PodRecovered(recovered) => Some(&recovered.spec.uid),
            Self::ActionStarted(action) => Some(action.pod()),
            Self::DeleteRequested { pod, .. }
            | Self::DeadlineExceeded { pod }
            | Self::FormerEnds { pod, .. }
            | Self::GraceExceeded { pod }
            | Self::TimePassed { pod }
            | Self::EphemeralAdded { pod, .. }
            | Self::RetryRequested { pod, .. }
            | Self::ConditionsSet { pod, .. }
            | Self::PodRestored { pod }
            | Self::PodEvicted { pod, .. }
            | Self::SandboxCreated { pod, .. }
            | Self::SandboxFailed { pod, .. }
            | Self::SandboxLost { pod }
            | Self::SandboxRemoved { pod }
            | Self::SandboxRemoveFailed { pod, .. }
            | Self::ImageReady { pod, .. }
            | Self::Resized { pod }
            | Self::Warned { pod, .. }
            | Self::ResizeFailed { pod, .. }
            | Self::ImageFailed { pod, .. } => Some(pod),
            Self::ContainerStarted { instance, .. }
            | Self::ContainerStartFailed { instance, .. }
            | Self::ContainerExited { instance, .. }
            | Self::SignalSent { instance, .. }
            | Self::SignalFailed { instance, .. } => Some(&instance.pod),
            Self::HookStarted(order) | Self::HookDone { order, .. } => Some(&order.instance.pod),
            Self::ProbeStarted(order) | Self::ProbeDone { order, .. } => Some(&order.instance.pod),
        }
    }
}

/// What becomes of one condition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConditionChange {
    /// It is that now.
    Set(Condition),
    /// The condition of this type is no longer there.
    Unset(String),
}

/// Why a sandbox could not be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SandboxFailure {
    /// A volume is not to be had.
    Volume {
        /// Its name.
        volume: String,
        /// Why.
        error: String,
    },
    /// A port of the node that somebody else has. Tried again at once when any other pod's sandbox is removed.
    HostPort {
        /// The sentence for people, with both names.
        message: String,
    },
    /// Anything else: cgroups, namespaces, the shim.
    Sandbox(String),
}

/// Why an image is not to be had; the kubelet's words in `plan::status`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ImageFailure {
    /// `ErrImageNeverPull`.
    NeverPull,
    /// `ErrImagePull`.
    Pull,
    /// `ImageInspectError`.
    Inspect,
}

/// At which step a container could not be started.
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

/// What a former agent left of a pod.
#[derive(Debug, Clone, PartialEq)]
pub struct Recovered {
    /// The pod as it was admitted.
    pub spec: Arc<PodSpec>,
    /// Whether its shim answered; if not, its cgroup was killed before this is said, and `containers` tells the
    /// last that was known.
    pub sandbox: RecoveredSandbox,
    /// What is known of its containers, by name.
    pub containers: BTreeMap<String, RecoveredContainer>,
    /// When its status was first made, for `status.startTime`.
    pub created: Stamp,
    /// That it was to go.
    pub stopping: Option<Stopping>,
    /// That it had failed.
    pub verdict: Option<Verdict>,
    /// How often it was evicted lately.
    pub evictions: Evictions,
    /// Since when its sidecars were being stopped.
    pub finishing: Option<Time>,
    /// What was said about it from outside; `None` if that is not known.
    pub foreign: Option<Vec<Foreign>>,
    /// Its own conditions as they were shown; `None` if that is not known.
    pub flags: Option<Flags>,
    /// How long it waited for its sandbox, and had it.
    pub waits: SandboxWaits,
    /// What the pod's cgroup was given last; `None`: what it was admitted with.
    pub actuated: Option<PodResources>,
}

/// The waits of a pod for its sandbox. To be written down.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxWaits {
    /// Between attempts to make it.
    pub create: Retry,
    /// Between sandboxes that get lost soon after they were made.
    pub lost: Retry,
    /// Since when it was there; `None` if the agent knew that it was not.
    pub ready_since: Option<Time>,
}

/// What is left of a recovered pod's sandbox.
#[derive(Debug, Clone, PartialEq)]
pub enum RecoveredSandbox {
    /// The shim lives.
    Ready {
        /// Its addresses.
        ips: Vec<IpAddr>,
    },
    /// It was removed on purpose because the pod had finished.
    Removed,
    /// The shim died, or never got as far as answering.
    Lost,
}

/// What is left of a recovered container.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RecoveredContainer {
    /// The newest run.
    pub newest: Option<RecoveredRun>,
    /// The run before, if it ended.
    pub previous: Option<Exit>,
    /// Crash back-off as it stood.
    pub backoff: Option<CrashBackoff>,
    /// Why it could not be created last time.
    pub start_error: Option<StartError>,
    /// Which of its runs count.
    pub round: Round,
    /// What its probes had shown.
    pub health: Option<Health>,
    /// What its runs were asked with: the newest one, and the one that was being started.
    pub asked: Vec<Asked>,
    /// How far the newest run's hooks had come.
    pub hooks: Option<Hooks>,
    /// That it was being ended.
    pub kill: Option<Kill>,
}

/// What is left of one run.
#[derive(Debug, Clone, PartialEq)]
pub struct RecoveredRun {
    /// Its number.
    pub attempt: u32,
    /// The image's config digest.
    pub image_id: String,
    /// When it started.
    pub started: Stamp,
    /// Its process while it runs.
    pub pid: u32,
    /// What its start decided.
    pub effective: Effective,
    /// How it ended, if it did.
    pub exit: Option<Exit>,
    /// When a stop signal was first sent.
    pub stop_sent: Option<Time>,
}

/// What one run was asked with, which its manifest may ask no more. To be written down before its start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Asked {
    /// The run's number.
    pub attempt: u32,
    /// The image, as written in the manifest.
    pub image: String,
    /// cpu and memory, as they were changed since; `None` if an agent did not know of that.
    #[serde(default)]
    pub resources: Option<ContainerResources>,
    /// What its start decided; nothing before.
    #[serde(default)]
    pub effective: Effective,
    /// It is ended so that another one takes its place, whatever the policies. To be written down before the first
    /// signal.
    #[serde(default)]
    pub again: bool,
}

/// What probes have shown of one run, to be written down whenever it changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Health {
    /// The run's number.
    pub attempt: u32,
    /// It has passed its startup probe, if it has one.
    pub started: bool,
    /// It has passed its readiness probe, if it has one.
    pub ready: bool,
    /// What speaks against that lately, but has not come often enough.
    #[serde(default)]
    pub streaks: Streaks,
    /// When each probe was first carried out.
    #[serde(default)]
    pub firsts: Firsts,
}

/// When the probes of one run were first carried out; failures that follow soon do not count.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Firsts {
    /// The startup probe.
    pub startup: Option<Time>,
    /// The liveness probe.
    pub liveness: Option<Time>,
    /// The readiness probe.
    pub readiness: Option<Time>,
}

/// Outcomes that would change what a probe has come to, if more of them followed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Streaks {
    /// Failures of the startup probe.
    pub startup: Option<Streak>,
    /// Failures of the liveness probe.
    pub liveness: Option<Streak>,
    /// Failures of the readiness probe where it had passed, successes where it had not.
    pub readiness: Option<Streak>,
}

/// Equal outcomes of one probe in a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Streak {
    /// The outcome.
    pub well: bool,
    /// How often it came.
    pub times: u32,
    /// The next probe is due, so that agents that restart do not probe faster than is asked for.
    pub next: Time,
}

/// A pod whose sandbox was lost, that restarts in place, or that was kept down begins again with its first init container:
/// what ran before does not count any more. To be written down before the next start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Round {
    /// Runs with a smaller number are of an earlier round.
    pub first: u32,
    /// That round was ended by `RestartAllContainers`, so this container starts whatever its policy.
    pub in_place: bool,
    /// It was this container's rule that ended it, so the pod waits as long as this container would.
    #[serde(default)]
    pub fired: bool,
    /// The pod was evicted, or down for a shutdown: this container starts whatever its policy.
    #[serde(default)]
    pub restored: bool,
}

/// Crash back-off of one container (kubelet-behaviour §4.4).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CrashBackoff {
    /// The wait that applies to the newest exit.
    pub delay_ms: u64,
    /// When the last restart was permitted.
    pub permitted: Time,
    /// Somebody has asked not to wait for the next one.
    #[serde(default)]
    pub waived: bool,
}
