//! Cordon and drain. A cordon refuses every pod that did not exist when it began. A drain also stops the existing
//! pods, lowest priority first, and keeps them out (`coracle help differences`).
//!
//! ```text
//! cordoned ─► drained: all of the lowest priority stop ──they are gone──► those of the next ─► … ─► no pod left
//!   └─────────────────────────── uncordoned ─► held pods are admitted
//! ```

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::admit;
use super::hold::Rejection;
use super::shutdown::is_gone;
use super::state::Stage;
use super::verdict::Cause;
use super::{Event, NodeFact, NodeState, Notice, PodState, Stamp, Step, Wall};
use crate::spec::{PodKey, PodSpec, Reason, WorkloadKey, WorkloadKind};
use crate::types::{Gather, InOrder};

/// The message of a pod that the cordon holds.
const KEPT_OUT: &str = "The node is cordoned; the pod waits until it is uncordoned.";

/// The cordon. It is written to disk to outlast agent restarts and boots, so no field is relative to a boot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cordon {
    /// When it began.
    pub since: Wall,
    /// The pods that may stay: those that existed when it began and were not drained since. By name, so that an
    /// edited manifest may replace its pod.
    pub stay: BTreeSet<PodKey>,
    /// The documents with such pods, but Jobs: pods of a new template have other names. One whose pod was sent away or
    /// drained is not among them. Former versions kept none.
    #[serde(default)]
    pub workloads: BTreeSet<WorkloadKey>,
    /// The drain, if one is requested.
    pub drain: Option<Drain>,
}

/// A drain of the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drain {
    /// The grace period that replaces each pod's own, at least a second.
    pub grace_ms: Option<u64>,
}

impl Cordon {
    /// Whether the cordon keeps this pod out.
    pub fn keeps_out(&self, pod: &PodSpec) -> bool {
        let workload = pod.workload.as_ref();
        let known = workload.is_some_and(|workload| self.workloads.contains(workload));
        !known && !self.stay.contains(&pod.key)
    }
}

/// The pods that a drain would stop, in its order; `among` filters them.
pub fn candidates(state: &NodeState, among: impl Fn(&PodState) -> bool) -> Vec<&PodState> {
    let pods = state.pods.values();
    let mut pods: Vec<_> = pods.filter(|pod| is_here(pod) && among(pod)).collect();
    pods.order_by_key(|pod| (pod.spec.priority, pod.spec.key.clone()));
    pods
}

/// Records that the drain stops its next pods.
pub fn next(state: &NodeState) -> Step {
    let begins = |pod: &PodState| pod.stopping().is_none() && !pod.complete();
    match leaving(state).any(begins) {
        true => Step::Record(Event::Node(NodeFact::DrainTurn)),
        false => Step::Rest,
    }
}

/// The pods that the drain stops next; empty when it is done.
pub fn leaving(state: &NodeState) -> impl Iterator<Item = &PodState> {
    let cordon = state.cordon.as_ref().filter(|c| c.drain.is_some());
    let unwanted =
        move |pod: &&PodState| cordon.is_some_and(|c| c.keeps_out(&pod.spec)) && is_here(pod);
    let all = move || state.pods.values().filter(unwanted);
    let turn = all().map(|pod| pod.spec.priority).min();
    all().filter(move |pod| Some(pod.spec.priority) == turn)
}

/// Whether the pod was admitted.
fn was_let_in(pod: &PodState) -> bool {
    let cause = pod.verdict.as_ref().map(|verdict| verdict.cause);
    pod.hold().is_none() && cause != Some(Cause::RejectedAtShutdown)
}

/// Whether the pod has anything that a drain could stop.
fn is_here(pod: &PodState) -> bool {
    pod.hold().is_none() && !is_gone(pod)
}

impl NodeState {
    /// Begins a cordon: no new pod is admitted.
    pub(super) fn cordoned(&mut self, now: Stamp) {
        if self.cordon.is_none() {
            let here = self.pods.values().filter(|pod| was_let_in(pod));
            let workloads = here.clone().filter_map(|pod| pod.spec.workload.clone());
            self.cordon = Some(Cordon {
                since: now.wall,
                stay: here.map(|pod| pod.spec.key.clone()).gather(),
                workloads: workloads
                    .filter(|key| key.kind != WorkloadKind::Job)
                    .gather(),
                drain: None,
            });
        }
    }

    /// These pods do not come back while the node is cordoned. The others of their documents stay as they are.
    pub(super) fn sent_away(&mut self, away: &BTreeSet<PodKey>) {
        let Some(cordon) = &mut self.cordon else {
            return;
        };
        let pods = self.pods.values();
        let going = pods.clone().filter(|pod| away.contains(&pod.spec.key));
        let of: BTreeSet<&WorkloadKey> = going
            .filter_map(|pod| pod.spec.workload.as_ref())
            .filter(|key| cordon.workloads.contains(*key))
            .gather();
        let others = pods.filter(|pod| was_let_in(pod));
        let others = others.filter(|pod| {
            pod.spec
                .workload
                .as_ref()
                .is_some_and(|key| of.contains(key))
        });
        cordon.stay.extend(others.map(|pod| pod.spec.key.clone()));
        cordon.workloads.retain(|key| !of.contains(key));
        cordon.stay.retain(|key| !away.contains(key));
    }

    /// Whether the cordon refuses this pod.
    pub(super) fn kept_out(&self, pod: &PodSpec) -> Option<Rejection> {
        let cordon = self.cordon.as_ref()?;
        cordon.keeps_out(pod).then(|| Rejection {
            reason: Reason::NodeCordoned,
            message: KEPT_OUT.to_owned(),
        })
    }

    /// Whether the node keeps this pod down because it shuts down or is cordoned. The pod cannot become ready
    /// meanwhile.
    pub fn is_kept_away(&self, pod: &PodSpec) -> bool {
        self.shutdown.is_some() || self.kept_out(pod).is_some()
    }

    /// Restores a cordon from before the agent restart or reboot.
    pub(super) fn cordon_recovered(&mut self, cordon: &Cordon, now: Stamp, out: &mut Vec<Notice>) {
        if self.cordon.is_none() {
            self.cordon = Some(cordon.clone());
            self.drain_turn(now, out);
        }
    }

    /// Drains these pods, or all.
    pub(super) fn drain_begun(
        &mut self,
        pods: Option<&BTreeSet<PodKey>>,
        grace_ms: Option<u64>,
        now: Stamp,
        out: &mut Vec<Notice>,
    ) {
        self.cordoned(now);
        if let Some(pods) = pods {
            self.sent_away(pods);
        }
        let Some(cordon) = &mut self.cordon else {
            return;
        };
        if pods.is_none() {
            cordon.stay.clear();
            cordon.workloads.clear();
        }
        cordon.drain = Some(Drain { grace_ms });
        self.drain_turn(now, out);
    }

    /// Stops the pods whose turn it is.
    pub(super) fn drain_turn(&mut self, now: Stamp, out: &mut Vec<Notice>) {
        let drain = self.cordon.as_ref().and_then(|cordon| cordon.drain);
        let Some(Drain { grace_ms }) = drain else {
            return;
        };
        self.network_changes += 1;
        let turn: Vec<_> = leaving(self).map(|pod| pod.spec.uid.clone()).collect();
        self.rollouts_drained(&turn);
        for uid in turn {
            if let Some(pod) = self.pods.get_mut(&uid) {
                send_away(pod, grace_ms, now);
                pod.settle(now, out);
            }
        }
    }

    /// Ends the cordon: held pods are admitted, and a pod that is being drained comes back once it is gone.
    pub(super) fn uncordoned(&mut self, now: Stamp, out: &mut Vec<Notice>) {
        self.cordon = None;
        self.admit(now, out);
    }
}

/// Bounds the grace of a pod that is already stopping by that of the drain, counted from now.
fn send_away(pod: &mut PodState, grace_ms: Option<u64>, now: Stamp) {
    let ends = pod.complete();
    let from = |since: Stamp| grace_ms.map(|ms| now.time.since(since.time).saturating_add(ms));
    match (&mut pod.stage, &mut pod.verdict) {
        (Stage::Stopping(stopping), _) => {
            let most = from(stopping.since).unwrap_or(u64::MAX);
            stopping.asked_ms = stopping.asked_ms.min(most);
        }
        (_, Some(verdict)) => {
            let most = from(verdict.since).unwrap_or(u64::MAX);
            verdict.grace_ms = verdict.grace_ms.min(most);
        }
        (_, None) if ends => {}
        (_, None) => admit::stop(pod, grace_ms, now),
    }
}
