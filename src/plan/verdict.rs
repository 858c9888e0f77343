//! Has a pod failed whatever its containers do? It was active for too long, or the node has no place for it any more.
//! Its containers are stopped, nothing is started any more, and it stays to be seen as failed
//! (kubelet-behaviour §6.7, §7.5, §9.8, §10.2).

use serde::{Deserialize, Serialize};

use super::action::Keep;
use super::notice::{Kind, Notices};
use super::{Event, Notice, PodState, Stamp, Time};

/// That a pod has failed. To be written down before anything is done about it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// Why.
    pub cause: Cause,
    /// `status.message`.
    pub message: String,
    /// Since when.
    pub since: Stamp,
    /// How long its containers have to end, in milliseconds.
    pub grace_ms: u64,
    /// People were told that this was not enough.
    #[serde(default)]
    pub overdue: bool,
    /// What is left of it goes, for the pod is made anew.
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
    /// It came when the node was shutting down.
    RejectedAtShutdown,
    /// The node is short of something.
    Evicted,
    /// It has more on disk than it may.
    OverLimit,
    /// A pod of higher priority needs its place.
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

    /// Whether it was the node's doing rather than the pod's: condition `DisruptionTarget`.
    pub fn disrupts(self) -> bool {
        match self {
            Self::DeadlineExceeded | Self::RejectedAtShutdown | Self::OverLimit => false,
            Self::NodeShutdown | Self::Evicted | Self::Preempted => true,
        }
    }
}

/// Whoever has to make room for others is missed when half as long again as his grace is over, or this.
const OVERDUE_MS: u64 = 10_000;

/// Whether time alone changes what is to be said about something.
#[derive(Debug, Clone, PartialEq)]
pub enum Due {
    /// It has: this is to be recorded.
    Now(Event),
    /// It will, at this moment.
    At(Time),
}

/// When this pod will have been active, or on its way out, for too long; `None` if never.
pub fn due(pod: &PodState, now: Time) -> Option<Due> {
    let uid = || pod.spec.uid.clone();
    let (at, event) = match deadline(pod) {
        Some(at) => (at, Event::DeadlineExceeded { pod: uid() }),
        None => (overdue(pod)?, Event::GraceExceeded { pod: uid() }),
    };
    Some(match now < at {
        true => Due::At(at),
        false => Due::Now(event),
    })
}

/// When the kubelet stops waiting for a pod that makes room for others or for a shutdown (§6.4).
fn overdue(pod: &PodState) -> Option<Time> {
    let verdict = pod.verdict.as_ref()?;
    let waits = verdict.cause.disrupts() && !verdict.overdue && pod.any_running();
    let wait_ms = verdict.grace_ms.saturating_add(verdict.grace_ms / 2);
    waits.then(|| verdict.since.time.plus(wait_ms.max(OVERDUE_MS)))
}

/// It is still there. Its end goes on.
pub(super) fn grace_exceeded(pod: &mut PodState, now: Time, out: &mut Vec<Notice>) {
    if overdue(pod).is_none_or(|at| now < at) {
        return;
    }
    if let Some(verdict) = &mut pod.verdict {
        verdict.overdue = true;
    }
    let message = "Container runtime did not kill the pod within specified grace period.";
    Notices::new(out, pod).pod(Kind::Warning, "ExceededGracePeriod", message.to_owned());
}

/// Counted from the pod's start time (§6.7).
fn deadline(pod: &PodState) -> Option<Time> {
    let over = pod.stopping.is_some() || pod.verdict.is_some() || pod.finished();
    let over = over || pod.hold.is_some();
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
    Notices::new(out, pod).pod(Kind::Normal, "DeadlineExceeded", message.to_owned());
}

impl Cause {
    /// What stays of a pod that has failed for it, once it has ended.
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
    /// Whether it was evicted and is about to be made anew.
    pub(super) fn returns(&self) -> bool {
        self.verdict.as_ref().is_some_and(|v| v.returning)
    }

    /// The pod has failed from now on; what has failed or ended before stays as it is.
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
