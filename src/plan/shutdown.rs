//! Graceful node shutdown: pods stop in groups by rising priority, each group with a time limit; no pod is admitted
//! meanwhile (KEP-2000; KEP-2712; `coracle help differences`).
//!
//! ```text
//! begun ─► the lowest group stops ──all its pods are gone, or its time is over──► the next group ─► … ─► ended
//!   └──────────── cancelled ─► each stopped pod starts again as soon as it has ended
//! ```

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::after::Levels;
use super::notice::Notices;
use super::room::Capacity;
use super::round::Begun;
use super::state::{Sandbox, SandboxRetries, Stage};
use super::verdict::Cause;
use super::{
    Event, NodeFact, NodeState, Notice, PodFact, PodState, Stamp, Step, Time, admit, pressure,
};
use crate::spec::{PodUid, Reason};
pub use crate::types::Group;
use crate::types::InOrder;

/// `status.message` of pods that were stopped.
const STOPPED: &str = "Pod was terminated in response to imminent node shutdown.";

/// The message of a pod that is refused.
const REJECTED: &str = "Pod was rejected as the node is shutting down.";

/// A shutdown of the node. Written to disk before any pod is stopped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shutdown {
    /// The origin of the request.
    pub asked_by: AskedBy,
    /// When it began.
    pub since: Stamp,
    /// The groups by rising priority, as they were when it began.
    pub groups: Vec<Group>,
    /// The current group: an index of `groups`, or their number when all are through.
    pub turn: usize,
    /// When its turn began.
    pub turn_since: Time,
    /// When the last group was through.
    pub ended: Option<Stamp>,
}

/// The origin of a shutdown, which alone can cancel it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum AskedBy {
    /// systemd-logind, for the whole machine.
    Logind,
    /// A person or a script, by command or signal.
    Command,
}

impl Shutdown {
    /// When the time of the current group is over; `None` when all are through.
    pub fn turn_ends(&self) -> Option<Time> {
        let group = self.groups.get(self.turn)?;
        Some(self.turn_since.plus(group.seconds.saturating_mul(1000)))
    }

    /// Whether no pod of the current group is left to wait for.
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
        group.order_by(|one, two| one.spec.key.cmp(&two.spec.key));
    }
    members
}

/// Records the end of a turn, or restores a pod after a cancelled shutdown.
pub fn next(state: &NodeState, now: Time) -> Step {
    match &state.shutdown {
        Some(shutdown) => match shutdown.turn_ends() {
            Some(_) if shutdown.turn_over(&state.pods, now) => {
                Step::Record(Event::Node(NodeFact::ShutdownTurnOver))
            }
            Some(end) => Step::WakeAt(end),
            None => Step::Rest,
        },
        None => {
            let pod = state.pods.values().find(|pod| is_to_be_restored(pod));
            pod.map_or(Step::Rest, |pod| {
                let pod = pod.spec.uid.clone();
                Step::Record(Event::Pod {
                    uid: pod,
                    fact: PodFact::Restored,
                })
            })
        }
    }
}

/// Whether nothing of the pod runs or is mounted, or is about to be.
pub fn is_gone(pod: &PodState) -> bool {
    let sandbox = matches!(pod.sandbox, Sandbox::None | Sandbox::Removed);
    // A pod that was never set up counts as gone once nothing will set it up.
    let will = pod.sandbox == Sandbox::None && pod.verdict.is_none() && pod.hold().is_none();
    sandbox && !will && pod.in_flight.is_none() && pod.stopping().is_none()
}

/// Whether only a shutdown keeps it stopped, and it has ended.
fn is_to_be_restored(pod: &PodState) -> bool {
    let cause = pod.verdict.as_ref().map(|verdict| verdict.cause);
    match cause {
        Some(Cause::NodeShutdown | Cause::RejectedAtShutdown) => is_gone(pod),
        Some(Cause::DeadlineExceeded | Cause::Evicted | Cause::OverLimit | Cause::Preempted)
        | None => false,
    }
}

impl NodeState {
    /// Begins a shutdown, unless one has begun already.
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
        groups.order_by_key(|group| group.priority);
        self.shutdown = Some(Shutdown {
            asked_by,
            since: now,
            groups,
            turn: 0,
            turn_since: now.time,
            ended: None,
        });
        self.workloads.jobs.shut_down();
        self.take_turns(now, out);
    }

    /// Restores a shutdown from before an agent restart.
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

    /// Stops the pods of the current group, and moves on to the next group as long as no pod is left to wait for.
    pub(super) fn take_turns(&mut self, now: Stamp, out: &mut Vec<Notice>) {
        let Some(shutdown) = &mut self.shutdown else {
            return;
        };
        self.network_changes += 1;
        while let Some(group) = shutdown.groups.get(shutdown.turn) {
            let grace_ms = group.seconds.saturating_mul(1000);
            let until = shutdown.turn_since.plus(grace_ms);
            for pod in self.pods.values_mut() {
                // Pods of earlier groups were stopped before.
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

    /// Cancels the shutdown. Each pod that it stopped starts again as soon as it has ended.
    pub(super) fn shutdown_cancelled(&mut self) {
        self.shutdown = None;
        // Meanwhile the pods of documents were only counted.
        self.workloads_due();
    }

    /// Restores a pod that a shutdown stopped, or that was evicted.
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
            let kept_out =
                self.kept_out(&pod.spec).is_some() || self.kept_down(&pod.spec).is_some();
            self.on(uid, now, out, |pod, _, _| {
                pod.restore(now);
                // A pod that a cordon keeps out, or that was stopped, is removed, and then held like others.
                if kept_out {
                    admit::stop(pod, None, now);
                }
            });
            // A more important pod may have waited to preempt this one: now it can.
            return self.admit(now, out);
        }
        // It was never admitted: check now whether it can be.
        if let Some(mut pod) = self.pods.remove(uid) {
            pod.restore(now);
            // It has nothing on the node that would have to be resized.
            if let Some(pending) = pod.pending.take() {
                pod.spec = pending.spec;
                pod.flags.resize_pending = None;
            }
            let levels = Levels::for_admission(self, std::slice::from_ref(&pod));
            self.admit_or_hold(pod, (&mut Capacity::default(), &levels), now, out);
            self.on(uid, now, out, |_, _, _| {});
            // The pods preempted for it may have left more room than it takes.
            self.admit(now, out);
        }
    }
}

/// Bounds the grace of a pod that is stopping or has failed by the group's time. A held pod has nothing to stop.
fn stop(pod: &mut PodState, grace_ms: u64, now: Stamp, out: &mut Vec<Notice>) {
    if pod.hold().is_some() {
        return;
    }
    let grace_ms = grace_ms.min(pod.spec.grace_ms);
    let from = |since: Stamp| now.time.since(since.time).saturating_add(grace_ms);
    match (&mut pod.stage, &mut pod.verdict) {
        (Stage::Stopping(stopping), _) => {
            stopping.asked_ms = stopping.asked_ms.min(from(stopping.since))
        }
        (_, Some(verdict)) => verdict.grace_ms = verdict.grace_ms.min(from(verdict.since)),
        (_, None) => pod.fail(Cause::NodeShutdown, STOPPED, grace_ms, now),
    }
    pod.settle(now, out);
}

impl PodState {
    /// Refuses the pod.
    pub(super) fn reject_at_shutdown(&mut self, now: Stamp, out: &mut Vec<Notice>) {
        let message = format!("Pod was rejected: {REJECTED}");
        self.fail(Cause::RejectedAtShutdown, &message, 0, now);
        Notices::new(out, self).pod(Reason::NodeShutdown, REJECTED.to_owned());
    }

    /// Restores the pod as if its containers had never run, including those that are never restarted. Their last
    /// state and their back-off stay.
    fn restore(&mut self, now: Stamp) {
        self.created = now;
        self.verdict = None;
        self.sandbox = Sandbox::None;
        self.retries = SandboxRetries {
            for_host_port: self.retries.for_host_port,
            ..SandboxRetries::default()
        };
        self.begin_round(Begun::Restored, now.time);
    }
}
