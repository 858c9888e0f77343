//! What becomes of a pod that is evicted? It fails, and gives up what it had on disk and in memory. When the node is no
//! longer short of anything it starts again, for nobody is there who would make it anew: later each time, so that a pod
//! that is the cause does not bring the node down again and again.

use serde::{Deserialize, Serialize};

use super::super::notice::{Annotations, Kind, Notices};
use super::super::restart::RESET_MS;
use super::super::shutdown::is_gone;
use super::super::verdict::{Cause, Due};
use super::super::{Event, NodeState, Notice, PodState, Stamp, Time};
use super::rank::may_go;
use super::{Met, Signal};
use crate::spec::PodUid;
use crate::spec::quantity::Quantity;
use crate::spec::usage::{PodUsage, Space};

/// The wait before an evicted pod starts again, beside that for the node: it doubles from the first to the second.
const WAIT_MS: (u64, u64) = (10_000, 300_000);

/// That a pod is to be evicted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Eviction {
    /// Why.
    pub reason: Reason,
    /// `status.message`.
    pub message: String,
    /// What its event carries for programs.
    pub annotations: Annotations,
    /// How long its containers have to end, in milliseconds.
    pub grace_ms: u64,
}

/// Why a pod is evicted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// The node is short of this.
    Shortage(Signal),
    /// A volume has outgrown its `sizeLimit`.
    EmptyDirLimit,
    /// The pod has more on disk than all its containers may have.
    PodLimit,
    /// A container has more on disk than it may.
    ContainerLimit,
}

impl Reason {
    /// Label `eviction_signal` of the kubelet's metric.
    pub fn signal(self) -> &'static str {
        match self {
            Self::Shortage(signal) => signal.as_str(),
            Self::EmptyDirLimit => "emptydirfs.limit",
            Self::PodLimit => "ephemeralpodfs.limit",
            Self::ContainerLimit => "ephemeralcontainerfs.limit",
        }
    }

    fn cause(self) -> Cause {
        match self {
            Self::Shortage(_) => Cause::Evicted,
            Self::EmptyDirLimit | Self::PodLimit | Self::ContainerLimit => Cause::OverLimit,
        }
    }
}

/// How often a pod was evicted lately. To be written down with its verdict.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Evictions {
    /// In a row, without a long run between two of them.
    pub times: u32,
}

impl Evictions {
    fn wait_ms(self) -> u64 {
        let factor = 1_u64 << self.times.saturating_sub(1).min(32);
        WAIT_MS.0.saturating_mul(factor).min(WAIT_MS.1)
    }
}

/// The kubelet's sentences about a shortage and the pod that goes for it, and the same for programs: which containers use
/// more than they ask for, how much each, and of what (annotations of `pkg/kubelet/eviction/helpers.go`).
pub(super) fn message(
    met: &Met,
    space: Space,
    pod: &PodState,
    usage: Option<&PodUsage>,
) -> (String, Annotations) {
    let signal = met.threshold.signal;
    let resource = signal.resource();
    let quantity = signal.show(met.threshold.quantity(space));
    let available = signal.show(space.available);
    let mut text = format!(
        "The node was low on resource: {resource}. Threshold quantity: {quantity}, available: {available}. "
    );
    let Some(usage) = usage else {
        return (text, Annotations::new());
    };
    let (mut offenders, mut usages) = (Vec::new(), Vec::new());
    let containers = &usage.containers;
    for (name, used) in containers {
        let Some(spec) = pod.spec.container(name) else {
            continue;
        };
        let (used, asked) = match signal {
            Signal::Memory | Signal::PodsMemory => (
                used.memory_bytes.unwrap_or(0),
                spec.resources.memory_request_bytes.unwrap_or(0),
            ),
            Signal::NodefsBytes | Signal::ImagefsBytes => {
                ((used.layer + used.logs).bytes, spec.storage.request_bytes)
            }
            Signal::NodefsInodes | Signal::ImagefsInodes | Signal::Pids => continue,
        };
        if used > asked {
            let (used, asked) = (Quantity::bytes(used), Quantity::bytes(asked));
            text.push_str(&format!(
                "Container {name} was using {used}, request is {asked}, has larger consumption of {resource}. "
            ));
            offenders.push(name.as_str());
            usages.push(used.to_string());
        }
    }
    let annotations = Annotations::from([
        ("offending_containers", offenders.join(",")),
        ("offending_containers_usage", usages.join(",")),
        ("starved_resource", resource.to_owned()),
    ]);
    (text, annotations)
}

/// The next evicted pod that may run again, or when one may.
pub(super) fn restorable(state: &NodeState, now: Time) -> Option<Due> {
    if state.shutdown.is_some() {
        return None;
    }
    let due = |(uid, pod)| Some((may_return(pod, state)?, uid));
    let (at, uid): (Time, &PodUid) = state.pods.iter().filter_map(due).min()?;
    Some(match now < at {
        true => Due::At(at),
        false => Due::Now(Event::PodRestored { pod: uid.clone() }),
    })
}

/// When this pod may run again; `None` if it was not evicted, or the node is short of something that would keep it out.
fn may_return(pod: &PodState, state: &NodeState) -> Option<Time> {
    let verdict = pod
        .verdict
        .as_ref()
        .filter(|v| is_gone(pod) && !v.returning)?;
    let since = verdict.since.time;
    let from = match verdict.cause {
        Cause::OverLimit => since,
        Cause::Evicted => {
            let pressure = &state.pressure;
            // What an earlier agent saw counts for as long as if this one had seen it.
            since
                .plus(pressure.policy.transition_ms)
                .max(pressure.clear_since()?)
        }
        Cause::DeadlineExceeded
        | Cause::NodeShutdown
        | Cause::RejectedAtShutdown
        | Cause::Preempted => return None,
    };
    if state.under_pressure(&pod.spec).is_some() {
        return None;
    }
    Some(from.plus(pod.evictions.wait_ms()))
}

/// Whether it may run again now.
pub(in super::super) fn returns(pod: &PodState, state: &NodeState, now: Time) -> bool {
    may_return(pod, state).is_some_and(|at| at <= now)
}

impl NodeState {
    /// A pod is evicted, unless it goes anyway.
    pub(in super::super) fn pod_evicted(
        &mut self,
        uid: &PodUid,
        eviction: &Eviction,
        now: Stamp,
        out: &mut Vec<Notice>,
    ) {
        if self.pods.get(uid).is_none_or(|pod| !may_go(pod)) {
            return;
        }
        self.on(uid, now, out, |pod, _, out| {
            let ran = now.time.since(pod.created.time);
            pod.evictions.times = match ran > RESET_MS {
                true => 1,
                false => pod.evictions.times.saturating_add(1),
            };
            let cause = eviction.reason.cause();
            pod.fail(cause, &eviction.message, eviction.grace_ms, now);
            let (message, annotations) = (&eviction.message, &eviction.annotations);
            Notices::new(out, pod).with(annotations.clone()).pod(
                Kind::Warning,
                cause.as_str(),
                message.clone(),
            );
        });
        match eviction.reason {
            Reason::Shortage(_) => self.pressure.changes(now.time),
            Reason::EmptyDirLimit | Reason::PodLimit | Reason::ContainerLimit => {}
        }
    }
}
