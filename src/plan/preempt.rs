//! Preemption: which pods are stopped for a more important one. Only pods of lower priority, as few as needed and
//! of the lowest priority possible; among those the kubelet's choice (its `pkg/kubelet/lifecycle`; `coracle help
//! differences`).
//!
//! ```text
//! refused for want of room ─► victims are stopped ──all gone──► admitted
//!                                  └─► removed with their data ─► wanted like new pods ─► held
//! ```
//!
//! While the victims stop, their room is reserved for the pod that preempted them: it is checked first, and its
//! requests count as given when later pods are checked.

use std::collections::BTreeSet;

use super::notice::Notices;
use super::room::{Capacity, Shortage};
use super::verdict::{Cause, Verdict};
use super::{NodeState, Notice, PodState, Stamp};
use crate::spec::priority::CRITICAL;
use crate::spec::{PodKey, PodSpec, PodUid, QosClass, Reason, Resource};
use crate::types::Gather;

/// `status.message` of pods preempted for a critical pod, and for another pod.
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

/// A missing resource and its amount, more than 0.
type Need = (Resource, u64);

impl NodeState {
    /// Preempts pods for this one, which is refused for want of room alone. Returns whether room is being made for
    /// it, by this call or an earlier one; `claimed` is reserved for more important pods.
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
        let resource = first.resource;
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
                Notices::new(out, victim).pod(Reason::Preempting, message.to_owned());
                victim.settle(now, out);
            }
        }
        true
    }

    /// The pods that would be preempted for this one now; empty if it is refused for any reason other than want of
    /// room.
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

    /// What is still missing for this pod once all leaving pods are gone.
    fn missing(&self, pod: &PodSpec, claimed: &Capacity) -> Vec<Shortage> {
        let stays = |p: &&PodState| p.takes_room() && !is_leaving(p);
        let amounts = self.pods.values().filter(stays);
        let amounts = amounts.map(|p| Capacity::of(&p.spec));
        let given = amounts.fold(claimed.clone(), Capacity::plus);
        let capacity = self.settings.capacity.as_ref();
        capacity.map_or_else(Vec::new, |all| all.short_of(&Capacity::of(pod), &given))
    }

    /// The victims, if preemption helps: as few as possible, of the lowest possible priority.
    fn victims(&self, pod: &PodSpec, short: &[Shortage]) -> Option<Vec<PodUid>> {
        if !pod.may_preempt {
            return None;
        }
        let needs: Vec<Need> = short.iter().map(|s| (s.resource, s.missing())).collect();
        // Without what it starts after the pod would have to wait again.
        let needed = self.starts_after(pod);
        // A pod stopped for a shutdown cannot be preempted until it is restored.
        let can_go = |p: &&PodState| {
            let less = p.spec.priority < pod.priority;
            let spared = needed.contains(&p.spec.key);
            less && !spared && p.takes_room() && !is_leaving(p) && p.verdict.is_none()
        };
        let all: Vec<&PodSpec> = self
            .pods
            .values()
            .filter(can_go)
            .map(|p| &*p.spec)
            .collect();
        let priorities: BTreeSet<i32> = all.iter().map(|p| p.priority).gather();
        let among = |highest: i32| {
            let some = all.iter().copied().filter(|p| p.priority <= highest);
            choose(&some.collect::<Vec<_>>(), &needs)
        };
        let chosen = priorities.into_iter().find_map(among)?;
        Some(chosen.into_iter().map(|p| p.uid.clone()).collect())
    }
}

/// Whether it is about to give up its room, for whatever reason.
fn is_leaving(pod: &PodState) -> bool {
    pod.stopping().is_some() || pod.complete() && !pod.comes_back()
}

/// Whether it was preempted.
fn is_making_room(pod: &PodState) -> bool {
    let cause = pod.verdict.as_ref().map(|verdict| verdict.cause);
    pod.takes_room() && cause == Some(Cause::Preempted)
}

/// The kubelet's choice: as few Guaranteed pods as possible, then as few Burstable ones, then as few BestEffort
/// ones.
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

/// The needs that remain without these pods.
fn less(needs: &[Need], pods: &[&PodSpec]) -> Vec<Need> {
    let freed = pods.iter().map(|p| Capacity::of(p));
    let freed = freed.fold(Capacity::default(), Capacity::plus);
    let left = needs
        .iter()
        .map(|(resource, missing)| (*resource, missing.saturating_sub(freed.get(*resource))));
    left.filter(|(_, missing)| *missing > 0).collect()
}

/// Chooses pods one by one, always the one nearest to the remaining needs; of equals the one with the smaller
/// requests. `None` if all of them are not enough.
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

/// The distance between what this pod frees and what is missing; every resource counts alike.
#[expect(
    clippy::cast_precision_loss,
    reason = "only which of two is smaller matters, as in the kubelet"
)]
fn distance(needs: &[Need], pod: &PodSpec) -> f64 {
    let own = Capacity::of(pod);
    let share = |(resource, missing): &Need| {
        let left = missing.saturating_sub(own.get(*resource));
        (left as f64 / *missing as f64).powi(2)
    };
    needs.iter().map(share).sum()
}
