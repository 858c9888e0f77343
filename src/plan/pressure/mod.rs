//! Is the node short of something, and what gives way? Every ten seconds, or when the kernel says that memory gets short,
//! the node is looked at. What is short shows as a condition; after its grace, nodes that are short of disk clear away what
//! nobody uses, and if that does not help one pod after the other is evicted (kubelet-behaviour §10).
//!
//! ```text
//! Look ──► Observed ──┬─ nothing is met ───────────────────────────────► Look in 10 s
//!                     ├─ disk: Reclaim ──► Reclaimed ─────────────────► Look at once
//!                     ├─ pods are to be compared: Look at them, at once
//!                     └─ PodEvicted ──► it is gone, or 30 s are over ──► Look
//! ```
//!
//! Invariant: what is done follows from figures that were read since anything was last done about it, not long ago.

mod admit;
mod evict;
pub mod images;
mod limits;
mod rank;
mod signal;
mod watch;

use std::collections::BTreeMap;
use std::sync::Arc;

use super::shutdown::is_gone;
use super::state::{Flag, Sandbox};
use super::verdict::{Cause, Due};
use super::{Event, NodeState, PodState, Stamp, Time, Wall};
use crate::spec::PodUid;
use crate::spec::usage::{NodeUsage, PodUsage, Space};
pub use evict::{Eviction, Evictions, Reason};
use images::{Goal, ImagePolicy};
pub use signal::{Amount, Condition, Signal, Threshold};
pub use watch::{BRAKE_MS, Watch};

pub(super) use evict::returns;

/// The node is looked at so often.
pub const LOOK_MS: u64 = 10_000;
/// When the kernel calls, not sooner than this after the last look.
pub const PAUSE_MS: u64 = 500;
/// An evicted pod has so long to give up what it has, before the node is looked at again.
pub const CLEANUP_MS: u64 = 30_000;
/// The kernel takes back what nobody has any more within this time.
pub const SETTLE_MS: u64 = 1_000;
/// What nobody uses is cleared away no more often than this.
pub const RECLAIM_MS: u64 = 60_000;
/// Images are looked through no more often than this.
pub const IMAGES_MS: u64 = 300_000;
/// Disk use of pods is looked at for this part of the time at most.
const WALK_SHARE: u64 = 20;
/// Grace of pods that go for a hard threshold or a limit of their own.
const GRACE_MS: u64 = 1_000;

/// From when on the node is short of something, and what it does then.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    /// Hard and soft ones.
    pub thresholds: Vec<Threshold>,
    /// How long a condition stays after the last time it was observed.
    pub transition_ms: u64,
    /// Longest grace of a pod evicted for a soft threshold.
    pub max_pod_grace_ms: u64,
    /// Whether limits of disk use count.
    pub storage_limits: bool,
    /// When images are removed; `None`: only if the node is short of disk.
    pub images: Option<ImagePolicy>,
}

impl Default for Policy {
    /// Nothing is watched.
    fn default() -> Self {
        Self {
            thresholds: Vec::new(),
            transition_ms: 300_000,
            max_pod_grace_ms: 0,
            storage_limits: false,
            images: None,
        }
    }
}

/// What the node is told to do about it; one at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// Read figures.
    /// → `Observed`
    Look {
        /// Memory and processes of pods, too.
        pods: bool,
        /// Whose disk use.
        disk: Walk,
    },
    /// Clear away what nobody uses.
    /// → `Reclaimed`
    Reclaim {
        /// For what.
        signal: Signal,
        /// Volumes of pods that have finished.
        volumes: bool,
        /// Images.
        images: bool,
    },
    /// Remove images.
    /// → `Reclaimed`
    CollectImages {
        /// How many.
        goal: Goal,
        /// Where.
        space: Space,
    },
}

/// Whose disk use is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Walk {
    /// Nobody's.
    Nobody,
    /// That of pods with limits.
    Limited,
    /// Everybody's.
    Everybody,
}

impl Walk {
    /// Whether this pod's is.
    pub fn includes(self, pod: &PodState) -> bool {
        match self {
            Self::Nobody => false,
            Self::Limited => limits::has_some(&pod.spec),
            Self::Everybody => true,
        }
    }
}

/// What was read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Observation {
    /// Of the node.
    pub node: NodeUsage,
    /// Of the pods that were asked for.
    pub pods: BTreeMap<PodUid, PodUsage>,
    /// How long the look at disks took.
    pub walk_ms: u64,
}

/// The newest figures.
#[derive(Debug, Clone, PartialEq)]
struct Seen {
    at: Time,
    figures: Observation,
    /// What was asked for.
    pods: bool,
    disk: Walk,
    /// Nothing was done since that may have changed them.
    fresh: bool,
}

impl Seen {
    /// Figures of a pod, if they are of the one there is now.
    fn of(&self, pod: &PodState) -> Option<&PodUsage> {
        let usage = self.figures.pods.get(&pod.spec.uid)?;
        (pod.created.time < self.at).then_some(usage)
    }
}

/// A threshold that is met.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Met {
    threshold: Threshold,
    since: Time,
}

/// A condition of the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Held {
    flag: Flag,
    /// When a threshold was last found to be met.
    observed: Option<Time>,
}

/// What is known of the node's shortages.
#[derive(Debug, Clone, PartialEq)]
pub struct Pressure {
    policy: Arc<Policy>,
    seen: Option<Seen>,
    met: Vec<Met>,
    conditions: [Held; 3],
    in_flight: Option<Order>,
    /// The next look.
    look_at: Time,
    /// The next look at disks.
    walk_at: Time,
    reclaimed: Option<Time>,
    collected: Option<Time>,
    /// What was given up lately may not have come back before this.
    settled: Time,
    /// Since when no condition holds, as far as this agent has seen.
    clear_since: Option<Time>,
}

impl Default for Pressure {
    fn default() -> Self {
        let none = Held {
            flag: Flag {
                yes: false,
                since: Wall(0),
            },
            observed: None,
        };
        Self {
            policy: Arc::default(),
            seen: None,
            met: Vec::new(),
            conditions: [none; 3],
            in_flight: None,
            look_at: Time(0),
            walk_at: Time(0),
            reclaimed: None,
            collected: None,
            settled: Time(0),
            clear_since: None,
        }
    }
}

/// What comes next.
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    /// This is to be recorded.
    Record(Event),
    /// This is to be done; `ReliefBegun` is recorded first.
    Do(Order),
    /// Nothing before this moment.
    At(Time),
    /// Nothing until something happens.
    Rest,
}

/// What is to be done, or recorded, about the node's shortages and the pods that were evicted for them. Nothing until the
/// manifests were read for the first time.
pub fn next(state: &NodeState, now: Time) -> Step {
    if state.desired.is_none() {
        return Step::Rest;
    }
    let relief = |at: Option<Time>| match (relieve(state, now), at) {
        (Step::Rest, Some(at)) => Step::At(at),
        (Step::At(one), Some(other)) => Step::At(one.min(other)),
        (step, _) => step,
    };
    match evict::restorable(state, now) {
        Some(Due::Now(event)) => Step::Record(event),
        Some(Due::At(at)) => relief(Some(at)),
        None => relief(None),
    }
}

fn relieve(state: &NodeState, now: Time) -> Step {
    let pressure = &state.pressure;
    if pressure.in_flight.is_some() || !watches(state) {
        return Step::Rest;
    }
    if let Some(end) = cleanup_ends(state).filter(|end| now < *end) {
        return Step::At(end);
    }
    if now >= pressure.look_at {
        return Step::Do(look(state, now));
    }
    let fresh = pressure.seen.as_ref().filter(|seen| seen.fresh);
    let step = fresh.and_then(|seen| act(state, seen, now));
    step.unwrap_or(Step::At(pressure.look_at))
}

/// Until when somebody is waited for who was evicted for a shortage, also by a former agent.
fn cleanup_ends(state: &NodeState) -> Option<Time> {
    let ends = |pod: &PodState| {
        let verdict = pod.verdict.as_ref().filter(|v| v.cause == Cause::Evicted)?;
        (!is_gone(pod)).then(|| verdict.since.time.plus(CLEANUP_MS))
    };
    state.pods.values().filter_map(ends).max()
}

/// Whether there is anything to look for.
fn watches(state: &NodeState) -> bool {
    let policy = &state.pressure.policy;
    !policy.thresholds.is_empty() || policy.images.is_some() || has_limits(state)
}

fn has_limits(state: &NodeState) -> bool {
    let there = |pod: &PodState| matches!(pod.sandbox, Sandbox::Ready { .. });
    let mut pods = state.pods.values().filter(|pod| there(pod));
    state.pressure.policy.storage_limits && pods.any(|pod| limits::has_some(&pod.spec))
}

/// The look that is due now: at pods only if something is met, or they have limits.
fn look(state: &NodeState, now: Time) -> Order {
    let pressure = &state.pressure;
    let met = |condition| {
        let mut met = pressure.met.iter();
        met.any(|met| met.threshold.signal.condition() == condition)
    };
    let disk = match () {
        () if now < pressure.walk_at => Walk::Nobody,
        () if met(Condition::Disk) => Walk::Everybody,
        () if has_limits(state) => Walk::Limited,
        () => Walk::Nobody,
    };
    Order::Look {
        pods: met(Condition::Memory) || met(Condition::Pid),
        disk,
    }
}

/// What follows from figures nothing was done about yet.
fn act(state: &NodeState, seen: &Seen, now: Time) -> Option<Step> {
    let pressure = &state.pressure;
    if pressure.policy.storage_limits
        && let Some((pod, eviction)) = limits::over(state)
    {
        return Some(Step::Record(Event::PodEvicted { pod, eviction }));
    }
    if let Some(step) = collect_images(pressure, seen, now) {
        return Some(step);
    }
    let mut due: Vec<&Met> = pressure.met.iter().collect();
    due.retain(|met| now.since(met.since) >= met.threshold.grace_ms);
    due.sort_by_key(|met| (met.threshold.signal, met.threshold.grace_ms));
    due.into_iter()
        .find_map(|met| relieve_of(state, seen, met, now))
}

fn collect_images(pressure: &Pressure, seen: &Seen, now: Time) -> Option<Step> {
    let last = pressure.collected;
    if last.is_some_and(|last| now.since(last) < IMAGES_MS) {
        return None;
    }
    let space = seen.figures.node.imagefs?.bytes;
    let goal = pressure.policy.images.as_ref()?.goal(space)?;
    Some(Step::Do(Order::CollectImages { goal, space }))
}

/// One step against one shortage; `None` if there is none that could be taken.
fn relieve_of(state: &NodeState, seen: &Seen, met: &Met, now: Time) -> Option<Step> {
    let pressure = &state.pressure;
    let signal = met.threshold.signal;
    let disk = signal.condition() == Condition::Disk;
    let apart = seen.figures.node.images_apart;
    let recently = |at: Time| now.since(at) < RECLAIM_MS;
    if disk && !pressure.reclaimed.is_some_and(recently) {
        return Some(Step::Do(Order::Reclaim {
            signal,
            volumes: !apart || !signal.of_images(),
            images: !apart || signal.of_images(),
        }));
    }
    let (pods, walk) = match disk {
        true => (seen.pods, Walk::Everybody),
        false => (true, Walk::Nobody),
    };
    if (pods && !seen.pods) || seen.disk < walk {
        let wait = seen.disk < walk && now < pressure.walk_at;
        return (!wait).then_some(Step::Do(Order::Look { pods, disk: walk }));
    }
    let (pod, usage) = rank::first(state, signal)?;
    let space = signal.space(&seen.figures.node)?;
    let soft = met.threshold.grace_ms > 0;
    let (message, annotations) = evict::message(met, space, pod, usage);
    let eviction = Eviction {
        reason: Reason::Shortage(signal),
        message,
        annotations,
        grace_ms: match soft {
            true => pressure.policy.max_pod_grace_ms.min(pod.spec.grace_ms),
            false => GRACE_MS,
        },
    };
    let pod = pod.spec.uid.clone();
    Some(Step::Record(Event::PodEvicted { pod, eviction }))
}

impl Pressure {
    /// Whether this condition holds, and since when it does or does not.
    pub fn condition(&self, condition: Condition) -> Flag {
        self.conditions[condition as usize].flag
    }

    /// The conditions that hold.
    pub fn held(&self) -> impl Iterator<Item = Condition> {
        let all = Condition::ALL.into_iter();
        all.filter(|condition| self.condition(*condition).yes)
    }

    /// What the order under way is.
    pub fn in_flight(&self) -> Option<Order> {
        self.in_flight
    }

    /// Since when no condition holds.
    fn clear_since(&self) -> Option<Time> {
        match self.policy.thresholds.is_empty() {
            true => Some(Time(0)),
            false => self.clear_since,
        }
    }

    /// What was seen is no longer so: somebody gives up what he has, or has done so.
    pub(super) fn changes(&mut self, now: Time) {
        self.settled = now.plus(SETTLE_MS);
        self.look_at = self.settled;
        if let Some(seen) = &mut self.seen {
            seen.fresh = false;
        }
    }

    pub(super) fn policy_changed(&mut self, policy: &Arc<Policy>, now: Stamp) {
        self.policy = Arc::clone(policy);
        self.met
            .retain(|met| policy.thresholds.contains(&met.threshold));
        if self.seen.is_none() {
            for held in &mut self.conditions {
                held.flag.since = now.wall;
            }
        }
        if policy.thresholds.is_empty() {
            for held in &mut self.conditions {
                held.observed = None;
                held.flag.set(false, now.wall);
            }
        }
        self.look_at = now.time;
    }

    pub(super) fn relief_begun(&mut self, order: Order) {
        self.in_flight = Some(order);
    }

    fn observed(&mut self, figures: &Observation, now: Stamp) {
        let Some(Order::Look { pods, disk }) = self
            .in_flight
            .take_if(|order| matches!(order, Order::Look { .. }))
        else {
            return;
        };
        let before = std::mem::take(&mut self.met);
        for threshold in &self.policy.thresholds {
            let was = before.iter().find(|met| met.threshold == *threshold);
            let space = threshold.signal.space(&figures.node);
            if space.is_some_and(|space| threshold.is_met(space, was.is_some())) {
                self.met.push(Met {
                    threshold: *threshold,
                    since: was.map_or(now.time, |met| met.since),
                });
            }
        }
        self.note_conditions(now);
        self.look_at = now.time.plus(LOOK_MS);
        if disk != Walk::Nobody {
            let pause = figures.walk_ms.saturating_mul(WALK_SHARE);
            self.walk_at = now.time.plus(pause);
        }
        self.seen = Some(Seen {
            at: now.time,
            figures: figures.clone(),
            pods,
            disk,
            fresh: true,
        });
    }

    fn note_conditions(&mut self, now: Stamp) {
        let transition_ms = self.policy.transition_ms;
        for condition in Condition::ALL {
            let mut met = self.met.iter();
            let met = met.any(|met| met.threshold.signal.condition() == condition);
            let held = &mut self.conditions[condition as usize];
            held.observed = match met {
                true => Some(now.time),
                false => held.observed,
            };
            let lately = |at: Time| now.time.since(at) < transition_ms;
            let yes = met || held.observed.is_some_and(lately);
            held.flag.set(yes, now.wall);
        }
        let clear = self.held().next().is_none();
        let since = self.clear_since.unwrap_or(now.time);
        self.clear_since = clear.then_some(since);
    }

    pub(super) fn reclaimed(&mut self, now: Time) {
        match self.in_flight {
            Some(Order::Reclaim { .. }) => self.reclaimed = Some(now),
            Some(Order::CollectImages { .. }) => self.collected = Some(now),
            Some(Order::Look { .. }) | None => return,
        }
        self.in_flight = None;
        self.look_at = now.max(self.settled);
        if let Some(seen) = &mut self.seen {
            seen.fresh = false;
        }
    }

    /// The kernel says that memory gets short.
    pub(super) fn alarmed(&mut self, now: Time) {
        let last = self.seen.as_ref().map_or(Time(0), |seen| seen.at);
        let soon = now.max(last.plus(PAUSE_MS)).max(self.settled);
        self.look_at = self.look_at.min(soon);
    }
}
