//! The state of all pods. Facts only: every field is the content of an event, or its time.
//!
//! A container's runs are in `run.rs`. A pod's sandbox moves
//! `None → Ready → Lost → Ready → … → Removed`. A stopping pod never stops stopping: it ends by being forgotten.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::after::{Order, Waiting};
use super::claims::KnownClaims;
use super::condition::{self, Flags, Foreign};
use super::cordon::Cordon;
use super::event::{Desired, ImageFailure, Instance, StartFailure};
use super::fit::NodeIdentity;
use super::hold::{Hold, Holds};
use super::hook::Hooks;
use super::incarnation::Incarnations;
use super::kill::Kill;
use super::memory::SandboxWaits;
use super::pressure::{Evictions, Pressure};
use super::resize::{Capacity, Pending, Resizing, Swapping};
use super::restart::CrashBackoff;
use super::round::Round;
use super::run::{Asked, Ended, OfRun, Run, Stop};
use super::shutdown::Shutdown;
use super::stop::Stops;
use super::verdict::Verdict;
use super::workload::Workloads;
use super::{Action, Stamp, Time, Wall, device};
use crate::spec::{ContainerSpec, PodSpec, PodUid, Resource, RestartPolicy};

/// The node's settings that decisions depend on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The wait before the second restart of a crashing container.
    pub initial_restart_period_ms: u64,
    /// `crashLoopBackOff.maxContainerRestartPeriod`.
    pub max_restart_period_ms: u64,
    /// What the node can give to pods; `None`: whatever they ask for.
    pub capacity: Option<Capacity>,
    /// Which pods may swap.
    pub swap: Swapping,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            initial_restart_period_ms: 10_000,
            max_restart_period_ms: 300_000,
            capacity: None,
            swap: Swapping::Off,
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
    /// The identity of the node; constant while the agent runs.
    pub node: Arc<NodeIdentity>,
    /// The pods that are wanted now, and services; `None` until the manifests are read for the first time, and nothing
    /// begins before.
    pub desired: Option<Desired>,
    /// How far the documents are that stand for pods.
    pub workloads: Workloads,
    /// What removed pods leave to the next ones of their names.
    pub incarnations: Incarnations,
    /// When pods were held before the agent restart; empty once the manifests are known.
    pub former_holds: Holds,
    /// The pods that exist, wanted or not. A wanted pod is missing while an older one has its name.
    pub pods: BTreeMap<PodUid, PodState>,
    /// Set while the node shuts down.
    pub shutdown: Option<Shutdown>,
    /// The resources the node is short of.
    pub pressure: Pressure,
    /// Set while the node is cordoned.
    pub cordon: Option<Cordon>,
    /// What is stopped by command.
    pub stops: Stops,
    /// What is known of claims.
    pub claims: KnownClaims,
    /// What pods start after.
    pub order: Order,
    /// Grows with every fact that may have changed what `plan::network::view` shows.
    pub network_changes: u64,
    /// Grows whenever a fact may have changed what another pod waits for: a pod is held, admitted or held for another
    /// reason, or its pending resize is granted or refused.
    pub hold_changes: u64,
    /// The pods that the newest fact has changed, made or removed although it does not concern all pods, nor them by
    /// name.
    pub touched: Vec<PodUid>,
    /// The number of pods ended to make room, by the resource that was missing.
    pub preemptions: BTreeMap<Resource, u64>,
}

impl NodeState {
    /// A node of which nothing is known yet.
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            node: Arc::default(),
            desired: None,
            workloads: Workloads::default(),
            incarnations: Incarnations::default(),
            former_holds: Holds::new(),
            pods: BTreeMap::new(),
            shutdown: None,
            pressure: Pressure::default(),
            cordon: None,
            stops: Stops::default(),
            claims: KnownClaims::default(),
            order: Order::default(),
            network_changes: 0,
            hold_changes: 0,
            touched: Vec::new(),
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
    /// Its addresses; they are still shown after the sandbox is gone.
    pub ips: Vec<IpAddr>,
    /// Its containers: init containers and sidecars, then regular ones, then ephemeral ones, as in
    /// `spec.all_containers()`.
    pub containers: Vec<ContainerState>,
    /// The lifecycle action begun and not yet answered.
    pub in_flight: Option<Action>,
    /// What happened to the image that the action in flight looks for.
    pub look_up: LookUp,
    /// Where it is in its life.
    pub stage: Stage,
    /// Set once the pod has failed whatever its containers do.
    pub verdict: Option<Verdict>,
    /// Its recent evictions.
    pub evictions: Evictions,
    /// How far it is with what it starts after.
    pub waiting: Waiting,
    /// Its waits for its sandbox.
    pub retries: SandboxRetries,
    /// Whether a ConfigMap or Secret that it refers to has changed while an action was under way.
    pub configuration_changed: bool,
    /// The resize that waits for room.
    pub pending: Option<Pending>,
    /// The progress of its resize.
    pub resizing: Resizing,
    /// Its own conditions.
    pub flags: Flags,
    /// The conditions that clients have set, in the order of arrival.
    pub foreign: Vec<Foreign>,
    /// What the node has found of the devices that it asks for.
    pub devices: device::Seen,
}

/// Where a pod is in its life. A stopping pod never stops stopping: it ends by being forgotten.
#[derive(Debug, Clone, PartialEq)]
pub enum Stage {
    /// It waits for admission: nothing is done for it.
    Held(Hold),
    /// It may have a sandbox and run.
    Admitted {
        /// When only sidecars were left, which are stopped then.
        finishing: Option<Time>,
    },
    /// It is to go.
    Stopping(Stopping),
}

/// What happened while an image was looked for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LookUp {
    /// Images were added to the store: the answer may be stale.
    pub store_changed: bool,
    /// An edit changed the image: the answer does not count.
    pub edited: bool,
    /// The image that is being pulled, as the manifest writes it, with the percentage that has arrived and all bytes.
    pub pulling: Option<(String, u8, u64)>,
}

/// A stored image that is used because its registry could not be asked. Not saved: an agent that starts again finds
/// its containers running.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fallback {
    /// Since when.
    pub since: Wall,
    /// The sentence for people.
    pub message: String,
}

/// A pod's waits for its sandbox.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SandboxRetries {
    /// Between attempts to make it.
    pub create: Retry,
    /// Whether the last attempt failed because of a port of the node.
    pub for_host_port: bool,
    /// Between sandboxes that get lost soon after they were made.
    pub lost: Retry,
    /// Between attempts to remove it.
    pub remove: Retry,
}

/// A pod's sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sandbox {
    /// There never was one.
    None,
    /// Its shim lives.
    Ready {
        /// When it became ready, as far as this agent knows.
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
    /// When it began.
    pub since: Stamp,
    /// The grace period as asked for; see [`Stopping::grace_ms`].
    pub asked_ms: u64,
}

impl Stopping {
    /// How long its containers have to end: at least a second, even if none is asked for (Kubernetes docs: Termination of
    /// Pods).
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

/// A yes or no with the time of its last change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Flag {
    /// The value.
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

/// The role of a container in its pod.
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
    /// Its role in the pod.
    pub role: Role,
    /// Its round: which of its runs count.
    pub round: Round,
    /// The number the next run gets. Never decreases.
    pub next_attempt: u32,
    /// How many runs ended with an error by themselves, and were followed by another in this pod and boot.
    pub failures: u32,
    /// The newest run.
    pub run: Run,
    /// The run before that: `lastState`.
    pub previous: Option<Ended>,
    /// The end of its last run in an earlier boot; shown until another run ends.
    pub former: Option<Ended>,
    /// Its image and those of its image volumes, for the next start.
    pub image: Image,
    /// Set if one of these could not be compared with its registry.
    pub fallback: Option<Fallback>,
    /// The last failure to create it. The next one waits longer, unless the container has run for long since. See
    /// [`ContainerState::start_error`].
    pub start_error: Option<StartError>,
    /// Crash back-off; `None` before the first restart.
    pub backoff: Option<CrashBackoff>,
    /// The attempt whose start was permitted: a retry of its start does not wait again.
    pub permitted: Option<u32>,
    /// What the run that is being started is started with.
    pub starting: Option<OfRun<Asked>>,
}

/// A container's image, and those of its image volumes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Image {
    /// Not looked for yet, or to be looked for again.
    Unknown,
    /// In the store.
    Ready {
        /// The image's config digest.
        id: String,
        /// Those of its image volumes, by volume.
        volumes: BTreeMap<String, String>,
    },
    /// Not available.
    Failed {
        /// The image volume whose image it is; `None`: the container's own image.
        volume: Option<String>,
        /// The reason.
        failure: ImageFailure,
        /// The sentence for people.
        message: String,
        /// When to try again.
        retry: Retry,
    },
}

/// A failure to create a container. Saved, so that an agent restart does not shorten the wait.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartError {
    /// The number of the run that failed to start.
    pub attempt: u32,
    /// The step that failed.
    pub failure: StartFailure,
    /// The sentence for people.
    pub message: String,
    /// When to try again.
    pub retry: Retry,
}

impl ContainerState {
    /// The images (config digests) that it runs from or will run from, those of its image volumes included. They must
    /// stay in the store.
    pub fn images(&self) -> impl Iterator<Item = &str> {
        let next = match &self.image {
            Image::Ready { id, volumes } => Some(std::iter::once(id).chain(volumes.values())),
            Image::Unknown | Image::Failed { .. } => None,
        };
        let mounted = self.asked().map(|asked| asked.effective.images.values());
        let next = next.into_iter().flatten().map(String::as_str);
        let mounted = mounted.into_iter().flatten().map(String::as_str);
        self.run.image_id().into_iter().chain(next).chain(mounted)
    }

    /// A container that never ran.
    pub fn new(name: &str, role: Role) -> Self {
        Self {
            name: name.to_owned(),
            role,
            round: Round::default(),
            next_attempt: 0,
            failures: 0,
            run: Run::None,
            previous: None,
            former: None,
            image: Image::Unknown,
            fallback: None,
            start_error: None,
            backoff: None,
            permitted: None,
            starting: None,
        }
    }

    /// The kill of its newest run, while that runs.
    pub fn kill(&self) -> Option<&Kill> {
        self.run.running()?.kill.as_ref()
    }

    pub(super) fn kill_mut(&mut self) -> Option<&mut Kill> {
        self.run.running_mut()?.kill.as_mut()
    }

    /// How far the hooks of its newest run have come, if it ever ran.
    pub fn hooks(&self) -> Option<&Hooks> {
        self.run.course().map(|course| &course.hooks)
    }

    /// Why the `postStart` hook of its newest run failed, if it did.
    pub fn hook_failure(&self) -> Option<&str> {
        self.hooks()?.failure.as_deref()
    }

    /// How far stopping its newest run has come.
    pub fn stop(&self) -> Stop {
        self.run
            .course()
            .map_or(Stop::default(), |course| course.stop)
    }

    /// The last failure to create it, until it starts.
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
    /// Why it is held, if it is.
    pub fn hold(&self) -> Option<&Hold> {
        match &self.stage {
            Stage::Held(hold) => Some(hold),
            Stage::Admitted { .. } | Stage::Stopping(_) => None,
        }
    }

    /// Set if it is to go.
    pub fn stopping(&self) -> Option<Stopping> {
        match self.stage {
            Stage::Stopping(stopping) => Some(stopping),
            Stage::Held(_) | Stage::Admitted { .. } => None,
        }
    }

    /// When only sidecars were left, if it is about to finish.
    pub fn finishing(&self) -> Option<Time> {
        match self.stage {
            Stage::Admitted { finishing } => finishing,
            Stage::Held(_) | Stage::Stopping(_) => None,
        }
    }

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
            look_up: LookUp::default(),
            stage: Stage::Admitted { finishing: None },
            verdict: None,
            evictions: Evictions::default(),
            waiting: Waiting::default(),
            retries: SandboxRetries::default(),
            configuration_changed: false,
            pending: None,
            resizing: Resizing::default(),
            devices: device::Seen::default(),
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

    /// The waits for the sandbox, as they are saved.
    pub fn sandbox_waits(&self) -> SandboxWaits {
        SandboxWaits {
            create: self.retries.create,
            lost: self.retries.lost,
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
