//! In what order do pods stop when the node goes down? Group after group by rising priority, each with a time of its own;
//! nothing new comes in meanwhile (kubelet-behaviour §7.3 to §7.7, part A1, A10).
//!
//! ```text
//! begun ─► the lowest group stops ──all its pods are gone, or its seconds over──► the next group ─► … ─► ended
//!   └──────────── cancelled ─► what was stopped starts again, each pod as soon as it has ended
//! ```

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::admit;
use super::notice::{Kind, Notices};
use super::room::Capacity;
use super::round::Begun;
use super::state::{Retry, Sandbox};
use super::verdict::{Cause, Due};
use super::{Event, NodeState, Notice, PodState, Stamp, Time, pressure};
use crate::spec::PodUid;

/// `status.message` of pods that were stopped.
const STOPPED: &str = "Pod was terminated in response to imminent node shutdown.";

/// Why a pod is not let in.
const REJECTED: &str = "Pod was rejected as the node is shutting down.";

/// Pods of one range of priorities.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Group {
    /// Of this priority and above, up to that of the next group. The lowest group has those below it, too.
    pub priority: i32,
    /// How long they have, in seconds; with 0 they are stopped and not waited for.
    pub seconds: u64,
}

/// That the node shuts down. To be written down before anything is done about it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shutdown {
    /// Who wants it.
    pub asked_by: AskedBy,
    /// Since when.
    pub since: Stamp,
    /// By rising priority, as they were when it began.
    pub groups: Vec<Group>,
    /// Whose turn it is: an index of `groups`, or their number when all have had theirs.
    pub turn: usize,
    /// Since when.
    pub turn_since: Time,
    /// When the last group was through.
    pub ended: Option<Stamp>,
}

/// Who wants a shutdown, and so can call it off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum AskedBy {
    /// systemd-logind, for the whole machine.
    Logind,
    /// A person or a script, by command or signal.
    Command,
}

impl Shutdown {
    /// When the time of the group is over whose turn it is; `None` when all have had theirs.
    pub fn turn_ends(&self) -> Option<Time> {
        let group = self.groups.get(self.turn)?;
        Some(self.turn_since.plus(group.seconds.saturating_mul(1000)))
    }

    /// Whether nobody has to be waited for in this turn any more.
    fn turn_over(&self, pods: &BTreeMap<PodUid, PodState>, now: Time) -> bool {
        let mine = |pod: &&PodState| group_of(&self.groups, pod) == self.turn;
        self.turn_ends().is_some_and(|end| now >= end) || pods.values().filter(mine).all(is_gone)
    }
}

/// The group of a pod: the one with the highest priority that is not above the pod's.
pub fn group_of(groups: &[Group], pod: &PodState) -> usize {
    let priority = pod.spec.priority;
    let found = groups.iter().rposition(|group| group.priority <= priority);
    found.unwrap_or(0)
}

/// The pods that a shutdown would stop, by group, sorted by name.
pub fn members<'s>(state: &'s NodeState, groups: &[Group]) -> Vec<Vec<&'s PodState>> {
    let mut members = vec![Vec::new(); groups.len()];
    for pod in state.pods.values().filter(|pod| !is_gone(pod)) {
        if let Some(group) = members.get_mut(group_of(groups, pod)) {
            group.push(pod);
        }
    }
    for group in &mut members {
        group.sort_by(|one, two| one.spec.key.cmp(&two.spec.key));
    }
    members
}

/// What is to be recorded now, or when to ask again; `None` if no shutdown waits for anything.
pub fn due(state: &NodeState, now: Time) -> Option<Due> {
    match &state.shutdown {
        Some(shutdown) => {
            let end = shutdown.turn_ends()?;
            Some(match shutdown.turn_over(&state.pods, now) {
                true => Due::Now(Event::ShutdownTurnOver),
                false => Due::At(end),
            })
        }
        None => {
            let pod = state.pods.values().find(|pod| is_to_be_restored(pod))?;
            Some(Due::Now(Event::PodRestored {
                pod: pod.spec.uid.clone(),
            }))
        }
    }
}

/// Whether nothing of it runs or is mounted, and nothing is about to be.
pub fn is_gone(pod: &PodState) -> bool {
    let sandbox = matches!(pod.sandbox, Sandbox::None | Sandbox::Removed);
    // Of a pod that never came up it is enough that it will not.
    let will = pod.sandbox == Sandbox::None && pod.verdict.is_none() && pod.hold.is_none();
    sandbox && !will && pod.in_flight.is_none() && pod.stopping.is_none()
}

/// Whether only a shutdown keeps it down, and it has come to its end.
fn is_to_be_restored(pod: &PodState) -> bool {
    let cause = pod.verdict.as_ref().map(|verdict| verdict.cause);
    match cause {
        Some(Cause::NodeShutdown | Cause::RejectedAtShutdown) => is_gone(pod),
        Some(Cause::DeadlineExceeded | Cause::Evicted | Cause::OverLimit | Cause::Preempted)
        | None => false,
    }
}

impl NodeState {
    /// It begins, unless it has begun already.
    pub(super) fn shutdown_begun(
        &mut self,
        (groups, asked_by): (&[Group], AskedBy),
        now: Stamp,
        out: &mut Vec<Notice>,
    ) {
        if self.shutdown.is_some() {
            return;
        }
        let mut groups = groups.to_vec();
        groups.sort_by_key(|group| group.priority);
        self.shutdown = Some(Shutdown {
            asked_by,
            since: now,
            groups,
            turn: 0,
            turn_since: now.time,
            ended: None,
        });
        self.take_turns(now, out);
    }

    /// A former agent was at it.
    pub(super) fn shutdown_recovered(
        &mut self,
        shutdown: &Shutdown,
        now: Stamp,
        out: &mut Vec<Notice>,
    ) {
        if self.shutdown.is_none() {
            self.shutdown = Some(shutdown.clone());
            for pod in self.pods.values_mut() {
                // The time of its group is over.
                if group_of(&shutdown.groups, pod) < shutdown.turn {
                    pod.bound_repeated_kills(now.time);
                }
            }
            self.take_turns(now, out);
        }
    }

    /// Stops the pods whose turn it is, and goes on to the next group as long as there is nobody to wait for.
    pub(super) fn take_turns(&mut self, now: Stamp, out: &mut Vec<Notice>) {
        let Some(shutdown) = &mut self.shutdown else {
            return;
        };
        self.network_changes += 1;
        while let Some(group) = shutdown.groups.get(shutdown.turn) {
            let grace_ms = group.seconds.saturating_mul(1000);
            let until = shutdown.turn_since.plus(grace_ms);
            for pod in self.pods.values_mut() {
                // Those of earlier groups were stopped before.
                if group_of(&shutdown.groups, pod) == shutdown.turn {
                    pod.bound_repeated_kills(until);
                    stop(pod, grace_ms, now, out);
                }
            }
            if !shutdown.turn_over(&self.pods, now.time) {
                return;
            }
            shutdown.turn += 1;
            shutdown.turn_since = now.time;
        }
        shutdown.ended.get_or_insert(now);
    }

    /// It is called off. What it has stopped starts again as soon as it has ended.
    pub(super) fn shutdown_cancelled(&mut self) {
        self.shutdown = None;
    }

    /// A pod that a shutdown kept down, or that was evicted, may run again.
    pub(super) fn pod_restored(&mut self, uid: &PodUid, now: Stamp, out: &mut Vec<Notice>) {
        let Some(pod) = self.pods.get(uid) else {
            return;
        };
        let back = is_to_be_restored(pod) || pressure::returns(pod, self, now.time);
        if self.shutdown.is_some() || !back {
            return;
        }
        let cause = pod.verdict.as_ref().map(|verdict| verdict.cause);
        if let Some(Cause::Evicted | Cause::OverLimit) = cause {
            return self.on(uid, now, out, |pod, _, _| {
                if let Some(verdict) = &mut pod.verdict {
                    verdict.returning = true;
                }
            });
        }
        if cause != Some(Cause::RejectedAtShutdown) {
            let kept_out = self.kept_out(&pod.spec).is_some();
            self.on(uid, now, out, |pod, _, _| {
                pod.restore(now);
                // What is left of one that was sent away meanwhile goes; then it waits like others.
                if kept_out {
                    admit::stop(pod, None, now);
                }
            });
            // A more important one may have waited for him to be there: he can go again.
            return self.admit(now, out);
        }
        // It was never let in: whether it is has to be looked at.
        if let Some(mut pod) = self.pods.remove(uid) {
            pod.restore(now);
            self.judge(pod, &mut Capacity::default(), now, out);
            self.on(uid, now, out, |_, _, _| {});
            // Who had to go for it may have left more than it takes.
            self.admit(now, out);
        }
    }
}

/// A pod that goes, or has failed, anyway has no more time than the others; of one that is held there is nothing to stop.
fn stop(pod: &mut PodState, grace_ms: u64, now: Stamp, out: &mut Vec<Notice>) {
    if pod.hold.is_some() {
        return;
    }
    let grace_ms = grace_ms.min(pod.spec.grace_ms);
    let from = |since: Stamp| now.time.since(since.time).saturating_add(grace_ms);
    match (&mut pod.stopping, &mut pod.verdict) {
        (Some(stopping), _) => stopping.asked_ms = stopping.asked_ms.min(from(stopping.since)),
        (None, Some(verdict)) => verdict.grace_ms = verdict.grace_ms.min(from(verdict.since)),
        (None, None) => pod.fail(Cause::NodeShutdown, STOPPED, grace_ms, now),
    }
    pod.settle(now, out);
}

impl PodState {
    /// It is not let in.
    pub(super) fn reject_at_shutdown(&mut self, now: Stamp, out: &mut Vec<Notice>) {
        let message = format!("Pod was rejected: {REJECTED}");
        self.fail(Cause::RejectedAtShutdown, &message, 0, now);
        let reason = Cause::RejectedAtShutdown.as_str();
        Notices::new(out, self).pod(Kind::Warning, reason, REJECTED.to_owned());
    }

    /// It begins again, as if its containers had never run: also those that are never restarted. What they came to is
    /// remembered, and how long they wait when they fail.
    fn restore(&mut self, now: Stamp) {
        self.created = now;
        self.verdict = None;
        self.sandbox = Sandbox::None;
        (self.create_retry, self.lost_retry) = Default::default();
        self.remove_retry = Retry::default();
        self.begin_round(Begun::Restored, now.time);
    }
}
