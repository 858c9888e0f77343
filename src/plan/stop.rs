//! Pods that were stopped by command. A stop is recorded by name and outlasts agent restarts and boots: the pod is
//! removed as if it was deleted, and held until it is started by command, whatever its file says meanwhile. A pod
//! whose file is gone is forgotten.
//!
//! ```text
//! runs ──stopped──► stops ──gone──► held: Stopped ──started──► admitted like any held pod
//! ```

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::admit;
use super::event::Desired;
use super::hold::Rejection;
use super::state::Stage;
use super::verdict::Cause;
use super::{NodeState, Notice, PodState, Stamp, Wall};
use crate::spec::{PodKey, PodSpec, PodUid, Reason, WorkloadKey};
use crate::types::Gather;

/// The number of stops that are recorded at the same time.
pub const MAX_STOPS: usize = 1_000;

/// What is stopped.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Target {
    /// One pod.
    Pod(PodKey),
    /// All pods of a document.
    Workload(WorkloadKey),
}

/// Everything that is stopped, and since when. Written to disk, so no time is relative to a boot.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Vec<(Target, Wall)>", into = "Vec<(Target, Wall)>")]
pub struct Stops(BTreeMap<Target, Wall>);

impl From<Vec<(Target, Wall)>> for Stops {
    fn from(all: Vec<(Target, Wall)>) -> Self {
        Self(all.into_iter().collect())
    }
}

impl From<Stops> for Vec<(Target, Wall)> {
    fn from(stops: Stops) -> Self {
        stops.0.into_iter().collect()
    }
}

impl Stops {
    /// Whether nothing is stopped.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The number of stops.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// What is stopped.
    pub fn targets(&self) -> impl Iterator<Item = &Target> {
        self.0.keys()
    }

    /// Whether this is stopped.
    pub fn has(&self, target: &Target) -> bool {
        self.0.contains_key(target)
    }

    /// Whether all pods of this document are stopped.
    pub(super) fn has_workload(&self, key: &WorkloadKey) -> bool {
        !self.is_empty() && self.has(&Target::Workload(key.clone()))
    }

    /// The stop that keeps this pod down. That of its document comes first: starting the pod alone does not help.
    pub fn of(&self, pod: &PodSpec) -> Option<Target> {
        if self.is_empty() {
            return None;
        }
        let workload = pod.workload.clone().map(Target::Workload);
        let pod = Target::Pod(pod.key.clone());
        let mut both = workload.into_iter().chain([pod]);
        both.find(|target| self.has(target))
    }
}

impl Target {
    /// As on the command line: `pod/web`, `deployment/web`, and the namespace.
    pub fn shown(&self) -> (String, &str) {
        match self {
            Self::Pod(key) => (format!("pod/{}", key.name), &key.namespace),
            Self::Workload(key) => {
                let kind = key.kind.as_str().to_lowercase();
                (format!("{kind}/{}", key.name), &key.namespace)
            }
        }
    }

    /// The command that starts it.
    pub fn remedy(&self) -> String {
        let (name, namespace) = self.shown();
        match namespace {
            "default" => format!("coracle start {name}"),
            _ => format!("coracle start -n {namespace} {name}"),
        }
    }

    pub(super) fn is_of(&self, desired: &Desired) -> bool {
        match self {
            Self::Pod(key) => desired.pods.values().any(|pod| pod.key == *key),
            Self::Workload(key) => desired.workloads.contains_key(key),
        }
    }
}

impl NodeState {
    /// Whether a stop keeps this pod down.
    pub(super) fn kept_down(&self, pod: &PodSpec) -> Option<Rejection> {
        let target = self.stops.of(pod)?;
        Some(Rejection {
            reason: Reason::Stopped,
            message: format!("Stopped by command; `{}` starts it.", target.remedy()),
        })
    }

    /// A client stops these. Those that are stopped already only get less time.
    pub(super) fn stop_requested(
        &mut self,
        targets: &BTreeSet<Target>,
        grace_ms: Option<u64>,
        now: Stamp,
        out: &mut Vec<Notice>,
    ) {
        for target in targets {
            self.stops.0.entry(target.clone()).or_insert(now.wall);
        }
        let chosen = Stops(targets.iter().map(|t| (t.clone(), now.wall)).gather());
        self.send_down(&chosen, grace_ms, now, out);
        self.workloads_concern(targets, now);
        // What they held is free for others, and those that were held are held for this now.
        self.admit(now, out);
    }

    /// A client starts these again; a document's pods also if they were stopped one by one.
    pub(super) fn start_requested(
        &mut self,
        targets: &BTreeSet<Target>,
        now: Stamp,
        out: &mut Vec<Notice>,
    ) {
        for target in targets {
            self.stops.0.remove(target);
            if let Target::Workload(key) = target {
                let own = self.pods.values().map(|pod| &pod.spec);
                let own = own.filter(|pod| pod.workload.as_ref() == Some(key));
                let own: Vec<Target> = own.map(|pod| Target::Pod(pod.key.clone())).collect();
                self.stops.0.retain(|target, _| !own.contains(target));
            }
        }
        self.workloads_concern(targets, now);
        self.admit(now, out);
    }

    /// Restores the stops from before the agent restart or reboot.
    pub(super) fn stops_recovered(&mut self, stops: &Stops, now: Stamp, out: &mut Vec<Notice>) {
        if self.stops.is_empty() {
            self.stops = stops.clone();
            self.send_down(stops, None, now, out);
        }
    }

    /// Forgets the stops of what was wanted before and is not any more.
    pub(super) fn forget_stops(&mut self, wanted: &Desired) {
        let Some(before) = self.desired.as_ref().filter(|_| !self.stops.is_empty()) else {
            return;
        };
        let gone = |target: &Target| {
            target.is_of(before) && !target.is_of(wanted) && !self.workloads.asks_for(target)
        };
        self.stops.0.retain(|target, _| !gone(target));
    }

    /// The stops of what no file asks for. To be forgotten once every file could be read.
    pub fn stray_stops(&self) -> BTreeSet<Target> {
        let wanted = |target: &Target| {
            let desired = self.desired.as_ref();
            desired.is_none_or(|desired| target.is_of(desired)) || self.workloads.asks_for(target)
        };
        let all = self.stops.targets().filter(|target| !wanted(target));
        all.cloned().collect()
    }

    fn send_down(
        &mut self,
        stops: &Stops,
        grace_ms: Option<u64>,
        now: Stamp,
        out: &mut Vec<Notice>,
    ) {
        let chosen = self.pods.values().map(|pod| &pod.spec);
        let chosen = chosen.filter(|spec| stops.of(spec).is_some());
        let chosen: Vec<PodUid> = chosen.map(|spec| spec.uid.clone()).collect();
        self.network_changes += u64::from(!chosen.is_empty());
        for uid in chosen {
            if let Some(pod) = self.pods.get_mut(&uid) {
                end(pod, grace_ms, now);
                pod.settle(now, out);
            }
        }
    }
}

/// Stops a pod as a deletion does. What has finished for good stays as it is: nothing of it runs.
fn end(pod: &mut PodState, grace_ms: Option<u64>, now: Stamp) {
    let returns = |cause: Cause| cause.keeps_place();
    let returns = pod.verdict.as_ref().is_some_and(|v| returns(v.cause));
    let over = pod.complete() && !returns;
    match &mut pod.stage {
        Stage::Held(_) => {}
        Stage::Stopping(stopping) => {
            let asked = grace_ms.map(|ms| now.time.since(stopping.since.time).saturating_add(ms));
            stopping.asked_ms = stopping.asked_ms.min(asked.unwrap_or(u64::MAX));
        }
        Stage::Admitted { .. } if over => {}
        Stage::Admitted { .. } => admit::stop(pod, grace_ms, now),
    }
}
