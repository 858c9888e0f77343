//! Verdicts: pods that have failed whatever their containers do, because they were active for too long or the node
//! has no place for them any more. Their containers are stopped, none starts again, and the pod stays visible as
//! failed (Kubernetes docs: Termination of Pods, Node-pressure Eviction; KEP-2000; KEP-2712; the kubelet's
//! `pkg/kubelet/lifecycle`).

use serde::{Deserialize, Serialize};

use super::action::Keep;
use super::notice::Notices;
use super::{Event, Notice, PodFact, PodState, Stamp, Step, Time};
use crate::spec::Reason;

/// The failure of a pod. Written to disk before its containers are stopped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// The cause.
    pub cause: Cause,
    /// `status.message`.
    pub message: String,
    /// When it failed.
    pub since: Stamp,
    /// The grace period of its containers, in milliseconds.
    pub grace_ms: u64,
    /// An event reported that the grace was not enough.
    #[serde(default)]
    pub overdue: bool,
    /// The rest of it is removed, for the pod is recreated.
    #[serde(default)]
    pub returning: bool,
}

/// Why a pod has failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Cause {
    /// It was active for longer than `activeDeadlineSeconds`.
    DeadlineExceeded,
    /// The node shuts down.
    NodeShutdown,
    /// It was refused because the node was shutting down.
    RejectedAtShutdown,
    /// The node is under pressure.
    Evicted,
    /// It uses more disk than its limit.
    OverLimit,
    /// It was preempted by a pod of higher priority.
    Preempted,
}

impl Cause {
    /// `status.reason`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::DeadlineExceeded => "DeadlineExceeded",
            Self::NodeShutdown => "Terminated",
            Self::RejectedAtShutdown => "NodeShutdown",
            Self::Evicted | Self::OverLimit => "Evicted",
            Self::Preempted => "Preempting",
        }
    }

    /// Whether the pod runs again by itself, in the place that it keeps meanwhile.
    pub fn keeps_place(self) -> bool {
        match self {
            Self::DeadlineExceeded | Self::RejectedAtShutdown | Self::Preempted => false,
            Self::NodeShutdown | Self::Evicted | Self::OverLimit => true,
        }
    }

    /// Whether the node caused it rather than the pod: condition `DisruptionTarget`.
    pub fn disrupts(self) -> bool {
        match self {
            Self::DeadlineExceeded | Self::RejectedAtShutdown | Self::OverLimit => false,
            Self::NodeShutdown | Self::Evicted | Self::Preempted => true,
        }
    }
}

/// The least time after which a preempted pod is reported overdue; it is 1.5 times the grace period if that is
/// more.
const OVERDUE_MS: u64 = 10_000;

/// Records that this pod has been active, or stopping, for too long.
pub fn next(pod: &PodState, now: Time) -> Step {
    let uid = || pod.spec.uid.clone();
    if let Some(at) = deadline(pod) {
        let exceeded = || {
            Step::Record(Event::Pod {
                uid: uid(),
                fact: PodFact::DeadlineExceeded,
            })
        };
        return Step::when(at, now, exceeded);
    }
    let exceeded = || {
        Step::Record(Event::Pod {
            uid: uid(),
            fact: PodFact::GraceExceeded,
        })
    };
    overdue(pod).map_or(Step::Rest, |at| Step::when(at, now, exceeded))
}

/// When the kubelet stops waiting for a pod that is preempted or stopped for a shutdown (Kubernetes docs:
/// Termination of Pods).
fn overdue(pod: &PodState) -> Option<Time> {
    let verdict = pod.verdict.as_ref()?;
    let waits = verdict.cause.disrupts() && !verdict.overdue && pod.any_running();
    let wait_ms = verdict.grace_ms.saturating_add(verdict.grace_ms / 2);
    waits.then(|| verdict.since.time.plus(wait_ms.max(OVERDUE_MS)))
}

/// It still runs. Its termination continues.
pub(super) fn grace_exceeded(pod: &mut PodState, now: Time, out: &mut Vec<Notice>) {
    if overdue(pod).is_none_or(|at| now < at) {
        return;
    }
    if let Some(verdict) = &mut pod.verdict {
        verdict.overdue = true;
    }
    let message = "Container runtime did not kill the pod within specified grace period.";
    Notices::new(out, pod).pod(Reason::ExceededGracePeriod, message.to_owned());
}

/// Counted from the pod's start time (Kubernetes docs: Termination of Pods).
fn deadline(pod: &PodState) -> Option<Time> {
    let over = pod.stopping().is_some() || pod.verdict.is_some() || pod.finished();
    let over = over || pod.hold().is_some();
    let active_ms = pod.spec.active_deadline_ms.filter(|_| !over)?;
    Some(pod.created.time.plus(active_ms))
}

pub(super) fn deadline_exceeded(pod: &mut PodState, now: Stamp, out: &mut Vec<Notice>) {
    if deadline(pod).is_none_or(|at| now.time < at) {
        return;
    }
    let message = "Pod was active on the node longer than the specified deadline";
    let grace_ms = pod.spec.grace_ms;
    pod.fail(Cause::DeadlineExceeded, message, grace_ms, now);
    Notices::new(out, pod).pod(Reason::DeadlineExceeded, message.to_owned());
}

impl Cause {
    /// What is kept of a pod that has failed for it, once it has ended.
    pub(super) fn keeps(self) -> Keep {
        match self {
            Self::DeadlineExceeded
            | Self::NodeShutdown
            | Self::RejectedAtShutdown
            | Self::Preempted => Keep::Everything,
            Self::Evicted | Self::OverLimit => Keep::Logs,
        }
    }
}

impl PodState {
    /// Whether it was evicted and is about to be recreated.
    pub(super) fn returns(&self) -> bool {
        self.verdict.as_ref().is_some_and(|v| v.returning)
    }

    /// Records the pod's failure; an earlier failure or end stays as it is.
    pub(super) fn fail(&mut self, cause: Cause, message: &str, grace_ms: u64, now: Stamp) {
        if self.verdict.is_none() && !self.finished() {
            self.verdict = Some(Verdict {
                cause,
                message: message.to_owned(),
                since: now,
                grace_ms,
                overdue: false,
                returning: false,
            });
        }
    }
}
