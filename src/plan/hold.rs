//! Admission and held pods. A wanted pod that is refused is held: it is shown, keeps its name, and nothing is done
//! for it until no reason refuses it (the kubelet's `pkg/kubelet/lifecycle`; a kubelet rejects such a pod for
//! good).
//!
//! ```text
//! wanted ──refused──► held ──no reason left──► admitted ─► CreateSandbox ─► …
//!    └────────────────── not refused ───────▲
//! ```
//!
//! An admitted pod stays admitted, even if it would be refused now. A pod from before an agent restart was admitted
//! then.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::after::{self, Levels, Waiting};
use super::edit::{self, Edit};
use super::notice::Notices;
use super::room::{Capacity, Shortage};
use super::state::{Sandbox, Stage};
use super::{NodeState, Notice, PodState, Stamp, condition, workload};
use crate::spec::{PodKey, PodSpec, PodUid, Reason};
use crate::types::{Ascending, Gather, InOrder};

/// A reason to refuse a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejection {
    /// The kubelet's word: `status.reason`, and the event's reason.
    pub reason: Reason,
    /// The message for people.
    pub message: String,
}

/// A wanted pod that is not admitted yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hold {
    /// The kubelet's word: `status.reason`, and the event's reason.
    pub reason: Reason,
    /// The message for people.
    pub message: String,
    /// Since when it is held, for whatever reasons.
    pub since: Stamp,
}

/// Since when pods are held, by UID. Written to disk, because a held pod has no folder of its own. A pod that was let in
/// after a wait for others is among them until its folder exists: it does not wait again.
pub type Holds = BTreeMap<PodUid, Held>;

/// What is saved of a held pod for an agent restart.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    /// When it was first seen.
    created: Stamp,
    /// Since when it is held.
    since: Stamp,
    /// How far it is with what it starts after.
    #[serde(default)]
    waiting: Waiting,
    /// Whether it is held because a claim of it is over its size.
    #[serde(default)]
    over_size: bool,
}

impl NodeState {
    /// Since when pods are held, as to be saved.
    pub fn holds(&self) -> Holds {
        let held = self.pods.values().filter_map(|pod| {
            let since = match pod.hold() {
                Some(hold) => hold.since,
                None if pod.sandbox == Sandbox::None => pod.waiting.let_in?,
                None => return None,
            };
            let over_size = |hold: &Hold| hold.reason == Reason::ClaimOverSize;
            let held = Held {
                created: pod.created,
                since,
                waiting: pod.waiting.clone(),
                over_size: pod.hold().is_some_and(over_size),
            };
            Some((pod.spec.uid.clone(), held))
        });
        held.gather()
    }

    /// Admits held pods that nothing refuses, by priority, then age. Called whenever a reason to hold a pod may
    /// have ended.
    pub(super) fn admit(&mut self, now: Stamp, out: &mut Vec<Notice>) {
        let former = match self.desired {
            Some(_) => std::mem::take(&mut self.former_holds),
            None => Holds::new(),
        };
        let over_size = former.iter().filter(|(_, held)| held.over_size);
        let over_size: Vec<PodUid> = over_size.map(|(uid, _)| uid.clone()).collect();
        self.suspect_claims_of(&over_size);
        let mut waiting = self.new_pods(&former, now);
        let new = waiting.iter().filter(|pod| pod.hold().is_none());
        new.for_each(|pod| workload::notice::created(&pod.spec, out));
        let held = self.pods.iter().filter(|(_, pod)| pod.hold().is_some());
        let held: Vec<PodUid> = held.map(|(uid, _)| uid.clone()).collect();
        waiting.extend(held.iter().filter_map(|uid| self.pods.remove(uid)));
        waiting.order_by(|one, other| rank(one).cmp(&rank(other)));
        let mut claimed = Capacity::default();
        let levels = Levels::for_admission(self, &waiting);
        for pod in waiting {
            self.admit_or_hold(pod, (&mut claimed, &levels), now, out);
        }
    }

    /// The wanted pods that do not exist and whose name no existing pod has.
    fn new_pods(&self, former: &Holds, now: Stamp) -> Vec<PodState> {
        let Some(desired) = &self.desired else {
            return Vec::new();
        };
        let mut here = Ascending::of(&self.pods);
        let missing = desired.pods.iter();
        let missing = missing.filter(|(uid, _)| here.get(uid).is_none());
        let missing: Vec<(&PodUid, &Arc<PodSpec>)> = missing.collect();
        let mut free: BTreeSet<&PodKey> = missing.iter().map(|(_, spec)| &spec.key).gather();
        for pod in self.pods.values() {
            if free.is_empty() {
                return Vec::new();
            }
            free.remove(&pod.spec.key);
        }
        let new = missing.into_iter();
        let new = new.filter(|(_, spec)| free.contains(&spec.key));
        let new = new.map(|(uid, spec)| {
            // A pod that a shutdown rejected is not held any longer.
            let held = former.get(uid).filter(|_| self.shutdown.is_none());
            let mut pod = PodState::new(Arc::clone(spec), held.map_or(now, |held| held.created));
            // A placeholder until the reason is known: the empty message equals no other.
            let placeholder = held.map(|held| Hold {
                reason: Reason::NodeCordoned,
                message: String::new(),
                since: held.since,
            });
            if let Some(hold) = placeholder {
                pod.stage = Stage::Held(hold);
            }
            if let Some(held) = held {
                pod.waiting.clone_from(&held.waiting);
            }
            self.incarnations.pass_on(&mut pod);
            pod
        });
        new.collect()
    }

    /// Admits or holds one pod. `claimed` is room that is reserved for pods checked before it, `levels` is how far the
    /// pods are that it may start after.
    pub(super) fn admit_or_hold(
        &mut self,
        mut pod: PodState,
        (claimed, levels): (&mut Capacity, &Levels),
        now: Stamp,
        out: &mut Vec<Notice>,
    ) {
        let former = pod.hold().cloned();
        if former.is_some() {
            pod.stage = Stage::Admitted { finishing: None };
        }
        let waited = pod.waiting.clone();
        let rejection = match &self.shutdown {
            Some(_) => None,
            None => self
                .refused_or_early(&mut pod, levels, now, out)
                .or_else(|| self.rejection_or_room(&pod.spec, claimed, now, out)),
        };
        if rejection.is_none() && self.shutdown.is_none() {
            pod.waiting.let_in_at(now);
        }
        match (rejection, &former) {
            // During a shutdown no pod is admitted: a held one stays held, a new one is rejected.
            (None, Some(hold)) if self.shutdown.is_some() => {
                pod.stage = Stage::Held(hold.clone());
            }
            (None, None) if self.shutdown.is_some() => pod.reject_at_shutdown(now, out),
            (None, None) => {}
            // A held pod's age begins with its admission.
            (None, Some(_)) => pod.created = now,
            (Some(rejection), _) => pod.hold_for(rejection, former.as_ref(), now, out),
        }
        let changed = pod.hold() != former.as_ref() || pod.waiting != waited;
        self.hold_changes += u64::from(changed);
        if former.is_none() {
            self.touched.push(pod.spec.uid.clone());
        }
        self.pods.insert(pod.spec.uid.clone(), pod);
    }

    /// A reason that is checked before room, or what the pod starts after and lacks: a pod that waits for others claims
    /// no room.
    fn refused_or_early(
        &self,
        pod: &mut PodState,
        levels: &Levels,
        now: Stamp,
        out: &mut Vec<Notice>,
    ) -> Option<Rejection> {
        if pod.spec.after.is_empty() {
            return None;
        }
        self.unwelcome(&pod.spec)
            .or_else(|| self.too_early(pod, levels, now, out))
    }

    /// Why this pod is not admitted now. If room alone is missing, pods of lower priority are preempted for it.
    fn rejection_or_room(
        &mut self,
        pod: &PodSpec,
        claimed: &mut Capacity,
        now: Stamp,
        out: &mut Vec<Notice>,
    ) -> Option<Rejection> {
        let rejection = self.rejection(pod, claimed)?;
        if self.refused_else(pod).is_some() || !self.make_room(pod, claimed, now, out) {
            return Some(rejection);
        }
        // A victim that had nothing to end is gone at once.
        let rejection = self.rejection(pod, claimed)?;
        *claimed = std::mem::take(claimed).plus(Capacity::of(pod));
        Some(rejection)
    }

    /// The first reason not to admit this pod now, in the kubelet's order (its `pkg/kubelet/lifecycle`).
    pub(super) fn rejection(&self, pod: &PodSpec, claimed: &Capacity) -> Option<Rejection> {
        let short = || self.short_of(pod, claimed).first().map(Shortage::rejection);
        self.unwelcome(pod)
            .or_else(short)
            .or_else(|| self.misplaced(pod))
    }

    /// Reasons other than want of room.
    pub(super) fn refused_else(&self, pod: &PodSpec) -> Option<Rejection> {
        self.unwelcome(pod).or_else(|| self.misplaced(pod))
    }

    /// Reasons that are checked before room. A stop and a cordon are checked first: they make all others irrelevant.
    fn unwelcome(&self, pod: &PodSpec) -> Option<Rejection> {
        self.kept_down(pod)
            .or_else(|| self.kept_out(pod))
            .or_else(|| self.under_pressure(pod))
            .or_else(|| self.forbidden_sysctl(pod))
            .or_else(|| self.unarmed(pod))
            .or_else(|| self.without_user_namespaces(pod))
            .or_else(|| self.other_system(pod))
            .or_else(|| self.claim_over_size(pod))
    }

    /// Reasons that are checked after room.
    fn misplaced(&self, pod: &PodSpec) -> Option<Rejection> {
        self.other_node(pod)
            .or_else(|| self.port_taken(pod))
            .or_else(|| self.claim_taken(pod))
    }
}

/// The order in which held pods are checked.
fn rank(pod: &PodState) -> impl Ord {
    let (key, created) = (pod.spec.key.clone(), pod.created.time);
    (Reverse(pod.spec.priority), created, key)
}

impl PodState {
    fn hold_for(
        &mut self,
        rejection: Rejection,
        former: Option<&Hold>,
        now: Stamp,
        out: &mut Vec<Notice>,
    ) {
        let Rejection { reason, message } = rejection;
        let said = former.is_some_and(|old| (&old.reason, &old.message) == (&reason, &message));
        if !said && message != after::UNKNOWN {
            Notices::new(out, self).pod(reason, message.clone());
        }
        self.stage = Stage::Held(Hold {
            reason,
            message,
            since: former.map_or(now, |old| old.since),
        });
    }

    /// Takes a new manifest for a held pod. It does not exist yet, so every field may change.
    pub(super) fn edit_held(&mut self, spec: &Arc<PodSpec>, now: Stamp) {
        let stage = self.stage.clone();
        let new = match edit::of_pod(self, spec) {
            Edit::Replace(_) => PodState::new(Arc::clone(spec), now),
            Edit::None | Edit::InPlace(_) => {
                let spec = Arc::new(spec.with_ephemeral_of(&self.spec));
                let mut new = PodState::new(spec, self.created);
                new.foreign = std::mem::take(&mut self.foreign);
                new.evictions = self.evictions;
                new.waiting = std::mem::take(&mut self.waiting);
                for (new, old) in new.containers.iter_mut().zip(&self.containers) {
                    new.backoff = old.backoff;
                }
                condition::edited(&mut new, &self.spec, now.wall);
                new
            }
        };
        *self = PodState { stage, ..new };
    }
}
