//! Who has to go for a more important pod? Only pods of lower priority, no more of them than needed, of priority as low as
//! possible; among those the kubelet's choice (kubelet-behaviour §9.8, part A2).
//!
//! ```text
//! refused for want of room ─► victims are ended ──all gone──► let in
//!                                  └─► gone with all they had ─► wanted like any new pod ─► held
//! ```
//!
//! While they end, the room they leave is kept for the one they end for: it is judged first, and what it asks for counts as
//! given when others are judged after it.

use std::borrow::Cow;
use std::collections::BTreeSet;

use super::notice::{Kind, Notices};
use super::room::{Capacity, Shortage};
use super::verdict::{Cause, Verdict};
use super::{NodeState, Notice, PodState, Stamp};
use crate::spec::priority::CRITICAL;
use crate::spec::{PodKey, PodSpec, PodUid, QosClass};

/// `status.message` of who makes room for a critical pod, and for another one.
const FOR_CRITICAL: &str = "Preempted in order to admit critical pod";
const FOR_OTHER: &str = "Preempted in order to admit a pod of higher priority";

/// The message of condition `DisruptionTarget`.
pub(super) fn disruption(verdict: &Verdict) -> &str {
    match verdict.message.as_str() {
        FOR_CRITICAL => "Pod was preempted by Kubelet to accommodate a critical pod.",
        FOR_OTHER => "Pod was preempted by Kubelet to accommodate a pod of higher priority.",
        other => other,
    }
}

/// What is missing: resource and amount, more than 0.
type Need = (Cow<'static, str>, u64);

impl NodeState {
    /// Ends whoever has to go for this pod, which is refused for want of room alone. Whether room is being made for it, now
    /// or since before; `claimed` is for more important ones.
    pub(super) fn make_room(
        &mut self,
        pod: &PodSpec,
        claimed: &Capacity,
        now: Stamp,
        out: &mut Vec<Notice>,
    ) -> bool {
        let short = self.missing(pod, claimed);
        let Some(first) = short.first() else {
            return self.pods.values().any(is_making_room);
        };
        let resource = first.resource.clone();
        let Some(victims) = self.victims(pod, &short) else {
            return false;
        };
        let message = match pod.priority >= CRITICAL {
            true => FOR_CRITICAL,
            false => FOR_OTHER,
        };
        *self.preemptions.entry(resource).or_default() += victims.len() as u64;
        self.network_changes += 1;
        self.hold_changes += 1;
        for uid in victims {
            if let Some(victim) = self.pods.get_mut(&uid) {
                let grace_ms = victim.spec.grace_ms;
                victim.fail(Cause::Preempted, message, grace_ms, now);
                let reason = Cause::Preempted.as_str();
                Notices::new(out, victim).pod(Kind::Warning, reason, message.to_owned());
                victim.settle(now, out);
            }
        }
        true
    }

    /// Who would be ended for this pod if it were judged now: nobody if it is refused for anything but want of room.
    pub(super) fn would_end(&self, pod: &PodSpec, claimed: &Capacity) -> Vec<PodKey> {
        if self.shutdown.is_some() || self.refused_else(pod).is_some() {
            return Vec::new();
        }
        let short = self.missing(pod, claimed);
        let victims = match short.is_empty() {
            true => None,
            false => self.victims(pod, &short),
        };
        let victims = victims.into_iter().flatten();
        let names = victims.filter_map(|uid| Some(self.pods.get(&uid)?.spec.key.clone()));
        names.collect()
    }

    /// What there is too little of for this pod when all who leave are gone.
    fn missing(&self, pod: &PodSpec, claimed: &Capacity) -> Vec<Shortage> {
        let stays = |p: &&PodState| p.takes_room() && !is_leaving(p);
        let amounts = self.pods.values().filter(stays);
        let amounts = amounts.map(|p| Capacity::of(&p.spec));
        let given = amounts.fold(claimed.clone(), Capacity::plus);
        let capacity = self.settings.capacity.as_ref();
        capacity.map_or_else(Vec::new, |all| all.short_of(&Capacity::of(pod), &given))
    }

    /// Whom to end, if that is of use: as few pods as can be of those whose priority is lowest.
    fn victims(&self, pod: &PodSpec, short: &[Shortage]) -> Option<Vec<PodUid>> {
        if !may_preempt(pod) {
            return None;
        }
        let needs: Vec<Need> = short
            .iter()
            .map(|s| (s.resource.clone(), s.missing()))
            .collect();
        // Who is down for a shutdown cannot go before he is back.
        let can_go = |p: &&PodState| {
            let less = p.spec.priority < pod.priority;
            less && p.takes_room() && !is_leaving(p) && p.verdict.is_none()
        };
        let all: Vec<&PodSpec> = self
            .pods
            .values()
            .filter(can_go)
            .map(|p| &*p.spec)
            .collect();
        let priorities: BTreeSet<i32> = all.iter().map(|p| p.priority).collect();
        let among = |highest: i32| {
            let some = all.iter().copied().filter(|p| p.priority <= highest);
            choose(&some.collect::<Vec<_>>(), &needs)
        };
        let chosen = priorities.into_iter().find_map(among)?;
        Some(chosen.into_iter().map(|p| p.uid.clone()).collect())
    }
}

/// Whether it may have others ended at all.
fn may_preempt(pod: &PodSpec) -> bool {
    let spec = pod.manifest.spec.as_ref();
    let policy = spec.and_then(|spec| spec.preemption_policy.as_deref());
    policy != Some("Never")
}

/// Whether it is about to leave its room to others, for whatever reason.
fn is_leaving(pod: &PodState) -> bool {
    pod.stopping.is_some() || pod.complete() && !pod.comes_back()
}

/// Whether it ends for another pod.
fn is_making_room(pod: &PodState) -> bool {
    let cause = pod.verdict.as_ref().map(|verdict| verdict.cause);
    pod.takes_room() && cause == Some(Cause::Preempted)
}

/// The kubelet's choice: as few Guaranteed pods as possible, then as few Burstable ones, then as few BestEffort ones.
fn choose<'p>(pods: &[&'p PodSpec], needs: &[Need]) -> Option<Vec<&'p PodSpec>> {
    let of = |class: QosClass| -> Vec<&'p PodSpec> {
        let some = pods.iter().copied().filter(|p| p.qos == class);
        some.collect()
    };
    let best_effort = of(QosClass::BestEffort);
    let burstable = of(QosClass::Burstable);
    let guaranteed = of(QosClass::Guaranteed);
    let left = less(&less(needs, &best_effort), &burstable);
    let guaranteed = nearest(guaranteed, left)?;
    let left = less(&less(needs, &best_effort), &guaranteed);
    let burstable = nearest(burstable, left)?;
    let left = less(&less(needs, &burstable), &guaranteed);
    let best_effort = nearest(best_effort, left)?;
    let all = best_effort.into_iter().chain(burstable).chain(guaranteed);
    Some(all.collect())
}

/// What is still missing without these pods.
fn less(needs: &[Need], pods: &[&PodSpec]) -> Vec<Need> {
    let freed = pods.iter().map(|p| Capacity::of(p));
    let freed = freed.fold(Capacity::default(), Capacity::plus);
    let left = needs.iter().map(|(resource, missing)| {
        (
            resource.clone(),
            missing.saturating_sub(freed.get(resource)),
        )
    });
    left.filter(|(_, missing)| *missing > 0).collect()
}

/// One after the other, always the one that comes nearest to what is missing; of equals the one that asks for less.
/// `None` if all of them are not enough.
fn nearest(mut pods: Vec<&PodSpec>, mut needs: Vec<Need>) -> Option<Vec<&PodSpec>> {
    let mut chosen = Vec::new();
    while !needs.is_empty() {
        let better = |one: &&PodSpec, other: &&PodSpec| {
            let size = |p: &PodSpec| {
                (
                    p.resources.memory_request_bytes,
                    p.resources.cpu_request_milli,
                )
            };
            let by_distance = distance(&needs, one).total_cmp(&distance(&needs, other));
            by_distance.then_with(|| size(one).cmp(&size(other)))
        };
        let (at, _) = pods.iter().enumerate().min_by(|a, b| better(a.1, b.1))?;
        let next = pods.remove(at);
        needs = less(&needs, &[next]);
        chosen.push(next);
    }
    Some(chosen)
}

/// How far what this pod leaves is from what is missing, every resource counting alike.
#[expect(
    clippy::cast_precision_loss,
    reason = "only which of two is smaller matters, as in the kubelet"
)]
fn distance(needs: &[Need], pod: &PodSpec) -> f64 {
    let own = Capacity::of(pod);
    let share = |(resource, missing): &Need| {
        let left = missing.saturating_sub(own.get(resource));
        (left as f64 / *missing as f64).powi(2)
    };
    needs.iter().map(share).sum()
}
