//! Who is let in, and who waits for that? Whoever is wanted and refused is held: it is shown, keeps its name, and nothing is
//! done for it until nothing refuses it any more (kubelet-behaviour §9.8, where a kubelet rejects such a pod for good).
//!
//! ```text
//! wanted ──refused──► held ──nothing refuses it any more──► let in ─► CreateSandbox ─► …
//!    └───────────────── nothing refuses it ───────────────────▲
//! ```
//!
//! A pod that was let in stays so, also if it would be refused now, and one that a former agent left was let in by that.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::sync::Arc;

use super::edit::{self, Edit};
use super::notice::{Kind, Notices};
use super::room::{Capacity, Shortage};
use super::{NodeState, Notice, PodState, Stamp, condition};
use crate::spec::{PodKey, PodSpec, PodUid};

/// Why a pod is not let in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejection {
    /// The kubelet's word: `status.reason`, and that of the event.
    pub reason: Cow<'static, str>,
    /// The sentence for people.
    pub message: String,
}

/// Why a wanted pod is not let in yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hold {
    /// The kubelet's word: `status.reason`, and that of the event.
    pub reason: Cow<'static, str>,
    /// The sentence for people.
    pub message: String,
    /// Since when it waits, for whatever reasons.
    pub since: Stamp,
}

impl NodeState {
    /// Lets in whoever waits for it and is not refused, by priority, then age. To be called whenever something may have
    /// become true that somebody waits for.
    pub(super) fn admit(&mut self, now: Stamp, out: &mut Vec<Notice>) {
        let mut waiting = self.new_pods(now);
        let held = self.pods.iter().filter(|(_, pod)| pod.hold.is_some());
        let held: Vec<PodUid> = held.map(|(uid, _)| uid.clone()).collect();
        waiting.extend(held.iter().filter_map(|uid| self.pods.remove(uid)));
        waiting.sort_by(|one, other| rank(one).cmp(&rank(other)));
        let mut claimed = Capacity::default();
        for pod in waiting {
            self.judge(pod, &mut claimed, now, out);
        }
    }

    /// The wanted pods that do not exist, and in whose name nobody else does.
    fn new_pods(&self, now: Stamp) -> Vec<PodState> {
        let Some(desired) = &self.desired else {
            return Vec::new();
        };
        if desired.pods.keys().all(|uid| self.pods.contains_key(uid)) {
            return Vec::new();
        }
        let taken: BTreeSet<&PodKey> = self.pods.values().map(|p| &p.spec.key).collect();
        let new = desired.pods.iter().filter(|(uid, spec)| {
            !self.pods.contains_key(uid.as_str()) && !taken.contains(&spec.key)
        });
        let new = new.map(|(_, spec)| {
            let mut pod = PodState::new(Arc::clone(spec), now);
            self.incarnations.pass_on(&mut pod);
            pod
        });
        new.collect()
    }

    /// Takes this pod, which is not among the others, in or holds it. `claimed` is room that is being made for pods judged
    /// before it.
    pub(super) fn judge(
        &mut self,
        mut pod: PodState,
        claimed: &mut Capacity,
        now: Stamp,
        out: &mut Vec<Notice>,
    ) {
        let former = pod.hold.take();
        let rejection = match &self.shutdown {
            Some(_) => None,
            None => self.rejection_or_room(&pod.spec, claimed, now, out),
        };
        match (rejection, &former) {
            // Nobody is judged while the node shuts down: who waits goes on waiting, who is new has come too late.
            (None, Some(_)) if self.shutdown.is_some() => pod.hold = former.clone(),
            (None, None) if self.shutdown.is_some() => pod.reject_at_shutdown(now, out),
            (None, None) => {}
            // Its time begins when it does.
            (None, Some(_)) => pod.created = now,
            (Some(rejection), _) => pod.hold_for(rejection, former.as_ref(), now, out),
        }
        self.hold_changes += u64::from(pod.hold != former);
        self.pods.insert(pod.spec.uid.clone(), pod);
    }

    /// Why this pod is not let in now. If it is only for want of room, that is made as far as others may go for it.
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
        // Of who had nothing to end there is nothing left to wait for.
        let rejection = self.rejection(pod, claimed)?;
        *claimed = std::mem::take(claimed).plus(Capacity::of(pod));
        Some(rejection)
    }

    /// The first reason not to let this pod in now, in the kubelet's order (§9.8).
    pub(super) fn rejection(&self, pod: &PodSpec, claimed: &Capacity) -> Option<Rejection> {
        let short = || self.short_of(pod, claimed).first().map(Shortage::rejection);
        self.unwelcome(pod)
            .or_else(short)
            .or_else(|| self.misplaced(pod))
    }

    /// What speaks against it beside want of room.
    pub(super) fn refused_else(&self, pod: &PodSpec) -> Option<Rejection> {
        self.unwelcome(pod).or_else(|| self.misplaced(pod))
    }

    /// What comes before room. Nothing else matters to who is kept out by a cordon.
    fn unwelcome(&self, pod: &PodSpec) -> Option<Rejection> {
        self.kept_out(pod)
            .or_else(|| self.under_pressure(pod))
            .or_else(|| self.forbidden_sysctl(pod))
            .or_else(|| self.other_system(pod))
    }

    /// What comes after room.
    fn misplaced(&self, pod: &PodSpec) -> Option<Rejection> {
        self.other_node(pod).or_else(|| self.port_taken(pod))
    }
}

/// Who is judged before others.
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
        if !said {
            Notices::new(out, self).pod(Kind::Warning, reason.clone(), message.clone());
        }
        self.hold = Some(Hold {
            reason,
            message,
            since: former.map_or(now, |old| old.since),
        });
    }

    /// Another manifest for a pod that is held: of one that does not exist yet anything may change.
    pub(super) fn edit_held(&mut self, spec: &Arc<PodSpec>, now: Stamp) {
        let hold = self.hold.take();
        let new = match edit::of_pod(self, spec) {
            Edit::Replace(_) => PodState::new(Arc::clone(spec), now),
            Edit::None | Edit::InPlace(_) => {
                let spec = Arc::new(spec.with_ephemeral_of(&self.spec));
                let mut new = PodState::new(spec, self.created);
                new.foreign = std::mem::take(&mut self.foreign);
                new.evictions = self.evictions;
                for (new, old) in new.containers.iter_mut().zip(&self.containers) {
                    new.backoff = old.backoff;
                }
                condition::edited(&mut new, &self.spec, now.wall);
                new
            }
        };
        *self = PodState { hold, ..new };
    }
}
