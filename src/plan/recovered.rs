//! What an agent finds of a pod when it starts: what its shim holds, what records say, and what the agent saved.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use super::hook::HookOutcome;
use super::memory::PodMemory;
use super::{Stamp, Time};
use crate::spec::{HookKind, PodSpec, ProbeKind};
use crate::types::{Effective, Exit};

/// What is left of a pod after an agent restart.
#[derive(Debug, Clone, PartialEq)]
pub struct Recovered {
    /// The pod as it was admitted.
    pub spec: Arc<PodSpec>,
    /// Its sandbox. Without a shim its cgroup was killed before this, and `containers` has the last known state.
    pub sandbox: RecoveredSandbox,
    /// Its containers, by name.
    pub containers: BTreeMap<String, RecoveredContainer>,
    /// The memory saved before the agent restart.
    pub memory: PodMemory,
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
    /// The shim died, or never answered.
    Lost,
}

/// What is left of a recovered container.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RecoveredContainer {
    /// The newest run.
    pub newest: Option<RecoveredRun>,
    /// The run before, if it ended.
    pub previous: Option<Exit>,
    /// The hooks of the newest run that the shim holds.
    pub held_hooks: BTreeMap<HookKind, HeldHook>,
    /// The probes of the newest run that the shim holds, running or done.
    pub held_probes: BTreeSet<ProbeKind>,
}

/// A hook that outlived the agent which began it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HeldHook {
    /// It still runs. The agent joins it by asking for it again.
    Running,
    /// It was done while no agent ran.
    Done(HookOutcome),
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
