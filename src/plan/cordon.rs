//! Who may be here while the node is cordoned, and who leaves next while it is drained? A cordon keeps out whoever was not
//! here when it began; a drain sends away those who were, the ones of lowest priority first, and keeps them out, too
//! (kubelet-behaviour part A15).
//!
//! ```text
//! cordoned ─► drained: all of the lowest priority stop ──they are gone──► those of the next ─► … ─► nobody left
//!   └─────────────────────────── uncordoned ─► whoever was kept out comes in
//! ```

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::admit;
use super::hold::Rejection;
use super::shutdown::is_gone;
use super::verdict::Cause;
use super::{Event, NodeState, Notice, PodState, Stamp, Wall};
use crate::spec::{PodKey, PodSpec};

/// Why a pod is not let in.
const KEPT_OUT: &str = "The node is cordoned; the pod waits until it is uncordoned.";

/// That the node is cordoned. To be written down, to outlast agents and boots: nothing in it counts from a boot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cordon {
    /// Since when.
    pub since: Wall,
    /// Who may be here: those that were when it began and have not been sent away since. By name, so that an edited
    /// manifest takes the place of the old one.
    pub stay: BTreeSet<PodKey>,
    /// That whoever else is here leaves.
    pub drain: Option<Drain>,
}

/// That pods are sent away.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drain {
    /// Instead of each pod's own grace period if given (a second at least).
    pub grace_ms: Option<u64>,
}

impl Cordon {
    /// Whether this pod may not be here.
    pub fn keeps_out(&self, key: &PodKey) -> bool {
        !self.stay.contains(key)
    }

    /// Somebody wants this pod stopped: while the node is cordoned it does not come back.
    pub(super) fn sent_away(&mut self, key: &PodKey) {
        self.stay.remove(key);
    }
}

/// The pods that a drain would send away, in its order; `among` chooses.
pub fn candidates(state: &NodeState, among: impl Fn(&PodState) -> bool) -> Vec<&PodState> {
    let pods = state.pods.values();
    let mut pods: Vec<_> = pods.filter(|pod| is_here(pod) && among(pod)).collect();
    pods.sort_by_key(|pod| (pod.spec.priority, pod.spec.key.clone()));
    pods
}

/// What is to be recorded now, if anything: somebody's turn to leave has come.
pub fn due(state: &NodeState) -> Option<Event> {
    let begins = |pod: &PodState| pod.stopping.is_none() && !pod.complete();
    leaving(state).any(begins).then_some(Event::DrainTurn)
}

/// Those whose turn it is to leave; nobody once a drain is over.
pub fn leaving(state: &NodeState) -> impl Iterator<Item = &PodState> {
    let cordon = state.cordon.as_ref().filter(|c| c.drain.is_some());
    let unwanted =
        move |pod: &&PodState| cordon.is_some_and(|c| c.keeps_out(&pod.spec.key)) && is_here(pod);
    let all = move || state.pods.values().filter(unwanted);
    let turn = all().map(|pod| pod.spec.priority).min();
    all().filter(move |pod| Some(pod.spec.priority) == turn)
}

/// Whether it is more than a wish.
fn was_let_in(pod: &PodState) -> bool {
    let cause = pod.verdict.as_ref().map(|verdict| verdict.cause);
    pod.hold.is_none() && cause != Some(Cause::RejectedAtShutdown)
}

/// Whether there is anything of it that could be sent away.
fn is_here(pod: &PodState) -> bool {
    pod.hold.is_none() && !is_gone(pod)
}

impl NodeState {
    /// Nobody new comes in.
    pub(super) fn cordoned(&mut self, now: Stamp) {
        if self.cordon.is_none() {
            let here = self.pods.values().filter(|pod| was_let_in(pod));
            self.cordon = Some(Cordon {
                since: now.wall,
                stay: here.map(|pod| pod.spec.key.clone()).collect(),
                drain: None,
            });
        }
    }

    /// Whether the cordon refuses this pod.
    pub(super) fn kept_out(&self, pod: &PodSpec) -> Option<Rejection> {
        let cordon = self.cordon.as_ref()?;
        cordon.keeps_out(&pod.key).then(|| Rejection {
            reason: "NodeCordoned".into(),
            message: KEPT_OUT.to_owned(),
        })
    }

    /// A former agent was told so, maybe before the node was booted.
    pub(super) fn cordon_recovered(&mut self, cordon: &Cordon, now: Stamp, out: &mut Vec<Notice>) {
        if self.cordon.is_none() {
            self.cordon = Some(cordon.clone());
            self.drain_turn(now, out);
        }
    }

    /// These are sent away, or all, and stay away.
    pub(super) fn drain_begun(
        &mut self,
        pods: Option<&BTreeSet<PodKey>>,
        grace_ms: Option<u64>,
        now: Stamp,
        out: &mut Vec<Notice>,
    ) {
        self.cordoned(now);
        let Some(cordon) = &mut self.cordon else {
            return;
        };
        match pods {
            Some(pods) => cordon.stay.retain(|key| !pods.contains(key)),
            None => cordon.stay.clear(),
        }
        cordon.drain = Some(Drain { grace_ms });
        self.drain_turn(now, out);
    }

    /// Stops those whose turn it is to leave.
    pub(super) fn drain_turn(&mut self, now: Stamp, out: &mut Vec<Notice>) {
        let drain = self.cordon.as_ref().and_then(|cordon| cordon.drain);
        let Some(Drain { grace_ms }) = drain else {
            return;
        };
        self.network_changes += 1;
        let turn: Vec<_> = leaving(self).map(|pod| pod.spec.uid.clone()).collect();
        for uid in turn {
            if let Some(pod) = self.pods.get_mut(&uid) {
                send_away(pod, grace_ms, now);
                pod.settle(now, out);
            }
        }
    }

    /// Whoever waited comes in; who is being sent away comes back when he is gone.
    pub(super) fn uncordoned(&mut self, now: Stamp, out: &mut Vec<Notice>) {
        self.cordon = None;
        self.admit(now, out);
    }
}

/// A pod that goes or ends anyway has no more time than the drain leaves it, counted from now.
fn send_away(pod: &mut PodState, grace_ms: Option<u64>, now: Stamp) {
    let ends = pod.complete();
    let from = |since: Stamp| grace_ms.map(|ms| now.time.since(since.time).saturating_add(ms));
    match (&mut pod.stopping, &mut pod.verdict) {
        (Some(stopping), _) => {
            let most = from(stopping.since).unwrap_or(u64::MAX);
            stopping.asked_ms = stopping.asked_ms.min(most);
        }
        (None, Some(verdict)) => {
            let most = from(verdict.since).unwrap_or(u64::MAX);
            verdict.grace_ms = verdict.grace_ms.min(most);
        }
        (None, None) if ends => {}
        (None, None) => admit::stop(pod, grace_ms, now),
    }
}
