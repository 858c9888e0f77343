//! What do we know? Facts only: every field is something an event said, or the moment it was said.
//!
//! A container's run moves `None → Running → Ended → Running → …`; attempts only grow. A pod's sandbox moves
//! `None → Ready → Lost → Ready → … → Removed`. A stopping pod never stops stopping: it ends by being forgotten.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::condition::{self, Flags, Foreign};
use super::cordon::Cordon;
use super::event::{
    Asked, CrashBackoff, Desired, ImageFailure, Instance, Round, SandboxWaits, StartFailure,
};
use super::fit::NodeIdentity;
use super::hold::Hold;
use super::hook::Hooks;
use super::incarnation::Incarnations;
use super::kill::Kill;
use super::pressure::{Evictions, Pressure};
use super::probe::Tracks;
use super::resize::{Capacity, Pending, Resizing, Swapping};
use super::shutdown::Shutdown;
use super::verdict::Verdict;
use super::{Action, Stamp, Time, Wall};
use crate::spec::{ContainerSpec, Exit, PodSpec, PodUid, RestartPolicy};

/// The node's settings that decisions depend on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The wait before the second restart of a crashing container.
    pub initial_restart_period_ms: u64,
    /// `crashLoopBackOff.maxContainerRestartPeriod`.
    pub max_restart_period_ms: u64,
    /// What the node can give to pods; `None`: whatever they ask for.
    pub capacity: Option<Capacity>,
    /// Who may swap.
    pub swap: Swapping,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            initial_restart_period_ms: 10_000,
            max_restart_period_ms: 300_000,
            capacity: None,
            swap: Swapping::Nobody,
        }
    }
}

impl Settings {
    /// With shorter waits between restarts: 1 s, 2 s, … at most 60 s (gate `ReduceDefaultCrashLoopBackOffDecay`).
    pub fn reduced() -> Self {
        Self {
            initial_restart_period_ms: 1_000,
            max_restart_period_ms: 60_000,
            ..Self::default()
        }
    }
}

/// Everything known about the node's pods.
#[derive(Debug, Clone, Default)]
pub struct NodeState {
    /// What decisions depend on.
    pub settings: Settings,
    /// Which node this is; the same as long as the agent runs.
    pub node: Arc<NodeIdentity>,
    /// What the manifests ask for; `None` until that is known for the first time, and nothing is planned before.
    pub desired: Option<Desired>,
    /// What pods that are gone leave to those that take their names.
    pub incarnations: Incarnations,
    /// The pods that exist, wanted or not. A wanted pod is not here while an older one holds its name.
    pub pods: BTreeMap<PodUid, PodState>,
    /// That the node shuts down.
    pub shutdown: Option<Shutdown>,
    /// What it is short of.
    pub pressure: Pressure,
    /// That nobody new comes in.
    pub cordon: Option<Cordon>,
    /// Grows with every fact that may have changed what `plan::network::view` shows.
    pub network_changes: u64,
    /// Grows whenever a pod is held, let in, or held for another reason: also with facts about other pods.
    pub hold_changes: u64,
    /// How many pods were ended to make room, by what there was too little of.
    pub preemptions: BTreeMap<Cow<'static, str>, u64>,
}

impl NodeState {
    /// Nothing known yet.
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            node: Arc::default(),
            desired: None,
            incarnations: Incarnations::default(),
            pods: BTreeMap::new(),
            shutdown: None,
            pressure: Pressure::default(),
            cordon: None,
            network_changes: 0,
            hold_changes: 0,
            preemptions: BTreeMap::new(),
        }
    }
}

/// One pod.
#[derive(Debug, Clone, PartialEq)]
pub struct PodState {
    /// The pod as it was admitted.
    pub spec: Arc<PodSpec>,
    /// When it was first seen: `status.startTime`.
    pub created: Stamp,
    /// Its sandbox.
    pub sandbox: Sandbox,
    /// Its addresses; they stay shown after the sandbox is gone.
    pub ips: Vec<IpAddr>,
    /// Its containers: init containers and sidecars, then regular ones, then ephemeral ones, as in
    /// `spec.all_containers()`.
    pub containers: Vec<ContainerState>,
    /// The lifecycle action begun and not yet answered.
    pub in_flight: Option<Action>,
    /// Images were added while one was being looked for: the answer may be stale.
    pub images_changed: bool,
    /// The image being looked for is not the one that is wanted any more.
    pub image_edited: bool,
    /// Why it is not let in yet; nothing is done for it as long as this is set.
    pub hold: Option<Hold>,
    /// Set once the pod is to go.
    pub stopping: Option<Stopping>,
    /// Set once the pod has failed whatever its containers do.
    pub verdict: Option<Verdict>,
    /// How often it was evicted lately.
    pub evictions: Evictions,
    /// Since when nothing but sidecars is left, so that they are stopped.
    pub finishing: Option<Time>,
    /// Waits between attempts to make a sandbox.
    pub create_retry: Retry,
    /// It was a port of the node that the last attempt failed for.
    pub waits_for_host_port: bool,
    /// Waits between sandboxes that get lost soon after they were made.
    pub lost_retry: Retry,
    /// Waits between attempts to remove a sandbox.
    pub remove_retry: Retry,
    /// Other resources that are asked for and not given yet.
    pub pending: Option<Pending>,
    /// How far its cgroups are.
    pub resizing: Resizing,
    /// Its own conditions.
    pub flags: Flags,
    /// The conditions others have set, in the order in which they came.
    pub foreign: Vec<Foreign>,
}

/// A pod's sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sandbox {
    /// There never was one.
    None,
    /// Its shim lives.
    Ready {
        /// Since when, as far as this agent knows.
        since: Time,
    },
    /// Its shim is gone; leftovers may be there.
    Lost,
    /// Removed because the pod has finished.
    Removed,
}

/// A pod on its way out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stopping {
    /// Since when.
    pub since: Stamp,
    /// The grace period as asked for; see [`Stopping::grace_ms`].
    pub asked_ms: u64,
}

impl Stopping {
    /// How long its containers have to end: a second at least, also for who asks for nothing (kubelet-behaviour §6.1,
    /// §6.5).
    pub fn grace_ms(&self) -> u64 {
        self.asked_ms.max(1_000)
    }
}

/// A wait that doubles.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Retry {
    /// Failures in a row.
    pub failures: u32,
    /// Not before this moment; `Time(0)` when nothing has failed.
    pub at: Time,
}

impl Retry {
    /// One more failure: wait `first_ms`, then twice that, … at most `max_ms`.
    pub fn fail(&mut self, now: Time, first_ms: u64, max_ms: u64) {
        let factor = 1u64 << self.failures.min(32);
        self.failures = self.failures.saturating_add(1);
        self.at = now.plus(first_ms.saturating_mul(factor).min(max_ms));
    }
}

/// A yes or no that remembers when it changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Flag {
    /// Yes?
    pub yes: bool,
    /// `lastTransitionTime`.
    pub since: Wall,
}

impl Flag {
    /// Records the value; the time changes only with it.
    pub fn set(&mut self, yes: bool, now: Wall) {
        if self.yes != yes {
            *self = Self { yes, since: now };
        }
    }
}

/// What a container is in its pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// An init container: it ends well before the next one starts.
    Init,
    /// An init container that stays: it runs before the next one starts.
    Sidecar,
    /// One of `spec.containers`.
    Main,
    /// Added while the pod runs: it runs once, and nothing depends on it.
    Ephemeral,
}

/// One container.
#[derive(Debug, Clone, PartialEq)]
pub struct ContainerState {
    /// Its name.
    pub name: String,
    /// What it is in the pod.
    pub role: Role,
    /// Which of its runs count.
    pub round: Round,
    /// The number the next run gets. Never decreases.
    pub next_attempt: u32,
    /// The newest run.
    pub run: Run,
    /// The run before that: `lastState`.
    pub previous: Option<Ended>,
    /// How it ended in an earlier boot; shown until another run has ended.
    pub former: Option<Ended>,
    /// Its image, for the next start.
    pub image: Image,
    /// Why it could not be created the last time that happened: the next time it waits longer, unless it has run for
    /// long since. See [`ContainerState::start_error`].
    pub start_error: Option<StartError>,
    /// Crash back-off; `None` before the first restart.
    pub backoff: Option<CrashBackoff>,
    /// The attempt whose start has been permitted: it need not wait again when its start has to be retried.
    pub permitted: Option<u32>,
    /// That the newest run is being ended.
    pub kill: Option<Kill>,
    /// How far the hooks of the newest run have come.
    pub hooks: Hooks,
    /// How far signalling the newest run has come.
    pub stop: Stop,
    /// What the newest run was asked with.
    pub asked: Option<Asked>,
    /// What the run that is being started is asked with.
    pub starting: Option<Asked>,
    /// What probes have shown of the newest run.
    pub tracks: Tracks,
    /// Whether the newest run is through with its `postStart` hook; until then it is shown as being created.
    pub up: bool,
    /// Whether the newest run has started, by its startup probe.
    pub started: bool,
    /// Whether it is ready, by its readiness probe.
    pub ready: bool,
}

/// A container's newest run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Run {
    /// It never ran.
    None,
    /// It runs.
    Running {
        /// Its number.
        attempt: u32,
        /// The image's config digest.
        image_id: String,
        /// Its first process.
        pid: u32,
        /// Since when.
        started: Stamp,
    },
    /// It ended.
    Ended(Ended),
}

/// A run that ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ended {
    /// Its number.
    pub attempt: u32,
    /// The image's config digest.
    pub image_id: String,
    /// How.
    pub exit: Exit,
}

/// What is known about a container's image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Image {
    /// To be found (again).
    Unknown,
    /// In the store.
    Ready {
        /// The image's config digest.
        id: String,
    },
    /// Not to be had.
    Failed {
        /// Why.
        failure: ImageFailure,
        /// The sentence for people.
        message: String,
        /// When to try again.
        retry: Retry,
    },
}

/// A container that could not be created. To be written down, so that no agent tries sooner than the one before.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartError {
    /// The number of the run that did not come about.
    pub attempt: u32,
    /// At which step.
    pub failure: StartFailure,
    /// The sentence for people.
    pub message: String,
    /// When to try again.
    pub retry: Retry,
}

/// How far stopping a run has come.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stop {
    /// When a signal was first asked for.
    pub asked: Option<Time>,
    /// When the stop signal was first sent.
    pub sent: Option<Time>,
    /// When SIGKILL was sent last.
    pub killed: Option<Time>,
    /// Waits after signals that could not be sent.
    pub retry: Retry,
}

impl Run {
    /// Whether a process is thought to be there.
    pub fn is_running(&self) -> bool {
        matches!(self, Self::Running { .. })
    }

    /// The run's number, if it ever ran.
    pub fn attempt(&self) -> Option<u32> {
        match self {
            Self::None => None,
            Self::Running { attempt, .. } => Some(*attempt),
            Self::Ended(ended) => Some(ended.attempt),
        }
    }

    /// How it ended, if it did.
    pub fn ended(&self) -> Option<&Ended> {
        match self {
            Self::None | Self::Running { .. } => None,
            Self::Ended(ended) => Some(ended),
        }
    }
}

impl ContainerState {
    /// A container that never ran.
    pub fn new(name: &str, role: Role) -> Self {
        Self {
            name: name.to_owned(),
            role,
            round: Round::default(),
            next_attempt: 0,
            run: Run::None,
            previous: None,
            former: None,
            image: Image::Unknown,
            start_error: None,
            backoff: None,
            permitted: None,
            kill: None,
            hooks: Hooks::default(),
            stop: Stop::default(),
            asked: None,
            starting: None,
            tracks: Tracks::default(),
            up: false,
            started: false,
            ready: false,
        }
    }

    /// Why it could not be created last time, until it starts.
    pub fn start_error(&self) -> Option<&StartError> {
        let error = self.start_error.as_ref();
        error.filter(|error| error.attempt >= self.next_attempt)
    }

    /// `restartCount`: the newest run's number, or the one the first will get.
    pub fn restart_count(&self) -> u32 {
        match self.run.attempt() {
            Some(attempt) if !self.removed_in_place() && !self.restored() => attempt,
            Some(_) | None => self.next_attempt,
        }
    }
}

impl PodState {
    /// A pod of which nothing exists yet.
    pub fn new(spec: Arc<PodSpec>, now: Stamp) -> Self {
        let role = |c: &ContainerSpec| match c.restart_policy {
            Some(RestartPolicy::Always) => Role::Sidecar,
            Some(RestartPolicy::OnFailure | RestartPolicy::Never) | None => Role::Init,
        };
        let inits = spec.init_containers.iter().map(|c| (c, role(c)));
        let mains = spec.containers.iter().map(|c| (c, Role::Main));
        let added = spec.ephemeral_containers.iter();
        let added = added.map(|c| (c, Role::Ephemeral));
        let containers = inits
            .chain(mains)
            .chain(added)
            .map(|(c, role)| ContainerState::new(&c.name, role))
            .collect();
        Self {
            flags: Flags::new(&spec, now.wall),
            foreign: condition::given(&spec, now.wall),
            spec,
            created: now,
            sandbox: Sandbox::None,
            ips: Vec::new(),
            containers,
            in_flight: None,
            images_changed: false,
            image_edited: false,
            hold: None,
            stopping: None,
            verdict: None,
            evictions: Evictions::default(),
            finishing: None,
            create_retry: Retry::default(),
            waits_for_host_port: false,
            lost_retry: Retry::default(),
            remove_retry: Retry::default(),
            pending: None,
            resizing: Resizing::default(),
        }
    }

    /// The container of that name.
    pub fn container(&self, name: &str) -> Option<&ContainerState> {
        self.containers.iter().find(|c| c.name == name)
    }

    pub(super) fn container_mut(&mut self, name: &str) -> Option<&mut ContainerState> {
        self.containers.iter_mut().find(|c| c.name == name)
    }

    /// The identity of one run.
    pub fn instance(&self, container: &str, attempt: u32) -> Instance {
        Instance {
            pod: self.spec.uid.clone(),
            container: container.to_owned(),
            attempt,
        }
    }

    /// What the next agent has to know of its waits for a sandbox.
    pub fn sandbox_waits(&self) -> SandboxWaits {
        SandboxWaits {
            create: self.create_retry,
            lost: self.lost_retry,
            ready_since: match self.sandbox {
                Sandbox::Ready { since } => Some(since),
                Sandbox::None | Sandbox::Lost | Sandbox::Removed => None,
            },
        }
    }

    /// Whether any container runs.
    pub fn any_running(&self) -> bool {
        self.containers.iter().any(|c| c.run.is_running())
    }
}
