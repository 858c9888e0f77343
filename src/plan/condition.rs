//! The conditions of a pod and their transition times: coracle's own, which follow from the pod's state, and those
//! set by other programs (Kubernetes docs: Pod Lifecycle). A condition's time changes only with its status.

use serde::{Deserialize, Serialize};

use super::event::ConditionChange;
use super::state::{Flag, Sandbox};
use super::{PodState, Stamp, Time, Wall};
use crate::spec::condition::{self, MAX_CONDITIONS};
use crate::spec::{Condition, ConditionStatus, PodSpec};

/// The conditions that coracle keeps of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Flags {
    /// `PodReadyToStartContainers`.
    pub sandbox_ready: Flag,
    /// `Initialized`.
    pub initialized: Flag,
    /// `ContainersReady`.
    pub containers_ready: Flag,
    /// `Ready`.
    pub ready: Flag,
    /// The same since boot, while it is true.
    #[serde(default)]
    pub ready_at: Option<Time>,
    /// `AllContainersRestarting`.
    pub restarting_all: Flag,
    /// `PodResizePending`: its transition time while it is true.
    #[serde(default)]
    pub resize_pending: Option<Stamp>,
    /// `PodResizeInProgress`: its transition time while it is true.
    #[serde(default)]
    pub resizing: Option<Wall>,
    /// `DevicesReady`, of pods that ask for devices.
    #[serde(default)]
    pub devices: Option<Flag>,
}

impl Flags {
    /// The conditions of a pod that has nothing yet.
    pub(super) fn new(spec: &PodSpec, since: Wall) -> Self {
        let no = Flag { yes: false, since };
        let initialized = Flag {
            yes: spec.init_containers.is_empty(),
            since,
        };
        Self {
            sandbox_ready: no,
            initialized,
            containers_ready: no,
            ready: no,
            ready_at: None,
            restarting_all: no,
            resize_pending: None,
            resizing: None,
            devices: spec.devices.as_ref().map(|_| no),
        }
    }
}

/// A condition set by a client or by the manifest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Foreign {
    /// The condition as set.
    #[serde(flatten)]
    pub condition: Condition,
    /// `lastTransitionTime`.
    pub since: Wall,
}

/// The conditions that the manifest sets.
pub(super) fn given(spec: &PodSpec, now: Wall) -> Vec<Foreign> {
    let given = condition::given(&spec.manifest);
    let foreign = given.map(|condition| Foreign {
        condition,
        since: now,
    });
    foreign.collect()
}

/// Sets the conditions of an edited manifest, as if a client had set them now.
pub(super) fn edited(pod: &mut PodState, old: &PodSpec, now: Wall) {
    let before: Vec<Condition> = condition::given(&old.manifest).collect();
    let after: Vec<Condition> = condition::given(&pod.spec.manifest).collect();
    let gone = |c: &&Condition| !after.iter().any(|other| other.type_ == c.type_);
    let gone = before.iter().filter(gone);
    let gone = gone.map(|c| ConditionChange::Unset(c.type_.clone()));
    let new = after.iter().filter(|c| !before.contains(c));
    let new = new.map(|c| ConditionChange::Set(c.clone()));
    let changes: Vec<_> = gone.chain(new).collect();
    set(pod, &changes, now);
}

pub(super) fn set(pod: &mut PodState, changes: &[ConditionChange], now: Wall) {
    for change in changes {
        match change {
            ConditionChange::Unset(type_) => pod.foreign.retain(|f| f.condition.type_ != *type_),
            ConditionChange::Set(wanted) => {
                let mut all = pod.foreign.iter();
                let known = all.position(|f| f.condition.type_ == wanted.type_);
                match known {
                    Some(index) => {
                        let known = &mut pod.foreign[index];
                        if known.condition.status != wanted.status {
                            known.since = now;
                        }
                        known.condition = wanted.clone();
                    }
                    None if pod.foreign.len() < MAX_CONDITIONS => pod.foreign.push(Foreign {
                        condition: wanted.clone(),
                        since: now,
                    }),
                    // The condition already has this status.
                    None => {}
                }
            }
        }
    }
}

impl PodState {
    /// The status of a condition, coracle's own or a set one, as readiness gates read it.
    fn status_of(&self, type_: &str) -> Option<ConditionStatus> {
        let of = |flag: Flag| match flag.yes {
            true => ConditionStatus::True,
            false => ConditionStatus::False,
        };
        match type_ {
            "PodScheduled" => Some(ConditionStatus::True),
            "PodReadyToStartContainers" => Some(of(self.flags.sandbox_ready)),
            "Initialized" => Some(of(self.flags.initialized)),
            "ContainersReady" => Some(of(self.flags.containers_ready)),
            "Ready" => Some(of(self.flags.ready)),
            "DevicesReady" => self.flags.devices.map(of),
            _ => {
                let mut all = self.foreign.iter();
                let found = all.find(|f| f.condition.type_ == type_)?;
                Some(found.condition.status)
            }
        }
    }

    /// Whether every readiness gate of the pod is true.
    fn gates_open(&self) -> bool {
        let mut gates = self.spec.readiness_gates.iter();
        gates.all(|gate| self.status_of(gate) == Some(ConditionStatus::True))
    }

    /// What keeps a pod with ready containers from being ready, in the kubelet's words.
    pub(super) fn closed_gates(&self) -> String {
        let closed = self.spec.readiness_gates.iter().filter_map(|gate| {
            match self.status_of(gate) {
                Some(ConditionStatus::True) => None,
                Some(status @ (ConditionStatus::False | ConditionStatus::Unknown)) => {
                    Some(format!(
                        "the status of pod readiness gate \"{gate}\" is not \"True\", but {status}"
                    ))
                }
                None => Some(format!(
                    "corresponding condition of pod readiness gate \"{gate}\" does not exist."
                )),
            }
        });
        closed.collect::<Vec<_>>().join(", ")
    }

    pub(super) fn note_conditions(&mut self, now: Stamp) {
        let sandbox = matches!(self.sandbox, Sandbox::Ready { .. });
        let (initialized, containers) = (self.shows_initialized(), self.all_ready());
        let restarting = self.restarts_all();
        let devices = self.devices_ready();
        let flags = &mut self.flags;
        flags.restarting_all.set(restarting, now.wall);
        if let (Some(flag), Some(ready)) = (&mut flags.devices, &devices) {
            flag.set(ready.is_ok(), now.wall);
        }
        flags.initialized.set(initialized, now.wall);
        flags.sandbox_ready.set(sandbox, now.wall);
        flags.containers_ready.set(containers, now.wall);
        let ready = containers && self.gates_open();
        self.flags.ready.set(ready, now.wall);
        let since = self.flags.ready_at.unwrap_or(now.time);
        self.flags.ready_at = ready.then_some(since);
    }
}
