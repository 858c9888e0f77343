//! Evicted pods. An evicted pod fails and gives up its disk and memory. It starts again when the node is no longer
//! under pressure, because no controller would recreate it. Each eviction doubles its wait, so that a pod that
//! causes the pressure does not bring the node down again and again.

use serde::{Deserialize, Serialize};

use super::super::notice::{Annotations, Notices};
use super::super::restart::RESET_MS;
use super::super::shutdown::is_gone;
use super::super::verdict::Cause;
use super::super::{Event, NodeState, Notice, PodFact, PodState, Stamp, Step, Time};
use super::rank::may_go;
use super::{Met, Signal};
use crate::spec::{PodUid, Reason};
use crate::types::quantity::Quantity;
use crate::types::usage::{PodUsage, Space};

/// The wait before an evicted pod starts again, beside that for the node: the first, which doubles, and the
/// longest.
const WAIT_MS: (u64, u64) = (10_000, 300_000);

/// The decision to evict a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Eviction {
    /// Why it is evicted.
    pub reason: EvictionReason,
    /// `status.message`.
    pub message: String,
    /// Annotations of its event.
    pub annotations: Annotations,
    /// The grace period of its containers, in milliseconds.
    pub grace_ms: u64,
}

/// Why a pod is evicted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum EvictionReason {
    /// The node is short of this resource.
    Shortage(Signal),
    /// A volume exceeds its `sizeLimit`.
    EmptyDirLimit,
    /// The pod uses more disk than the limits of all its containers.
    PodLimit,
    /// A container uses more disk than its limit.
    ContainerLimit,
    /// A claim that the pod uses is over its size.
    ClaimSize,
}

impl EvictionReason {
    /// Label `eviction_signal` of the kubelet's metric.
    pub fn signal(self) -> &'static str {
        match self {
            Self::Shortage(signal) => signal.as_str(),
            Self::EmptyDirLimit => "emptydirfs.limit",
            Self::PodLimit => "ephemeralpodfs.limit",
            Self::ContainerLimit => "ephemeralcontainerfs.limit",
            Self::ClaimSize => "persistentvolumeclaim.size",
        }
    }

    fn cause(self) -> Cause {
        match self {
            Self::Shortage(_) => Cause::Evicted,
            Self::EmptyDirLimit | Self::PodLimit | Self::ContainerLimit | Self::ClaimSize => {
                Cause::OverLimit
            }
        }
    }
}

/// The recent evictions of a pod. Written to disk with its verdict.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Evictions {
    /// The number in a row, without a long run between two of them.
    pub times: u32,
}

impl Evictions {
    fn wait_ms(self) -> u64 {
        let factor = 1_u64 << self.times.saturating_sub(1).min(32);
        WAIT_MS.0.saturating_mul(factor).min(WAIT_MS.1)
    }
}

/// The kubelet's message about a shortage and the evicted pod, and the same as annotations: the containers that use
/// more than they request, how much, and of what (`pkg/kubelet/eviction/helpers.go`).
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

/// Restores the next evicted pod that may run again.
pub(super) fn restorable(state: &NodeState, now: Time) -> Step {
    if state.shutdown.is_some() {
        return Step::Rest;
    }
    let due = |(uid, pod)| Some((may_return(pod, state)?, uid));
    let first: Option<(Time, &PodUid)> = state.pods.iter().filter_map(due).min();
    first.map_or(Step::Rest, |(at, uid)| {
        let restored = || {
            Step::Record(Event::Pod {
                uid: uid.clone(),
                fact: PodFact::Restored,
            })
        };
        Step::when(at, now, restored)
    })
}

/// When this pod may run again; `None` if it was not evicted, or the node is under pressure that keeps it out.
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
            // A shortage observed before an agent restart counts for as long as if this agent had observed it.
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
    /// Evicts a pod, unless it is already stopping.
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
            Notices::new(out, pod)
                .with(annotations.clone())
                .pod(Reason::Evicted, message.clone());
        });
        match eviction.reason {
            EvictionReason::Shortage(_) => self.pressure.changes(now.time),
            EvictionReason::EmptyDirLimit
            | EvictionReason::PodLimit
            | EvictionReason::ContainerLimit
            | EvictionReason::ClaimSize => {}
        }
    }
}
