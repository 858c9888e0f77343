//! Node-pressure eviction. The node is inspected every ten seconds, or when the kernel signals that memory gets
//! short. A shortage shows as a condition. After its grace, a node that is short of disk first removes what is not
//! in use; if that is not enough, pods are evicted one after the other (Kubernetes docs: Node-pressure Eviction).
//!
//! ```text
//! Look ──► Observed ──┬─ no threshold is met ─────────────────────────► Look in 10 s
//!                     ├─ disk: Reclaim ──► Reclaimed ─────────────────► Look at once
//!                     ├─ pods are compared: Look at them, at once
//!                     └─ Evicted ──► it is gone, or 30 s are over ──► Look
//! ```
//!
//! Invariant: a decision uses recent figures that were read after the last action that may have changed them.

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
use super::verdict::Cause;
use super::{Event, NodeState, PodFact, PodState, Stamp, Step, Task, Time, Wall};
use crate::spec::{PodKey, PodUid};
use crate::types::InOrder;
use crate::types::usage::{NodeUsage, PodUsage, Space};
pub use evict::{Eviction, EvictionReason, Evictions};
use images::{Goal, ImagePolicy};
pub use signal::{Amount, Condition, Signal, Threshold};
pub use watch::{BRAKE_MS, Watch};

pub(super) use evict::returns;

/// The interval of inspections.
pub const LOOK_MS: u64 = 10_000;
/// The shortest interval before an inspection that the kernel triggers.
pub const PAUSE_MS: u64 = 500;
/// How long an evicted pod may take to give up its resources before the node is inspected again.
pub const CLEANUP_MS: u64 = 30_000;
/// How long the kernel may take to free what is no longer in use.
pub const SETTLE_MS: u64 = 1_000;
/// The shortest interval between removals of unused data.
pub const RECLAIM_MS: u64 = 60_000;
/// The shortest interval between image collections.
pub const IMAGES_MS: u64 = 300_000;
/// Measuring disk use of pods takes at most this share of the time.
const WALK_SHARE: u64 = 20;
/// Grace of pods evicted for a hard threshold or a limit of their own.
pub(super) const GRACE_MS: u64 = 1_000;

/// The thresholds of the node, and what happens beyond them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    /// Hard and soft thresholds.
    pub thresholds: Vec<Threshold>,
    /// How long a condition stays after the last time it was observed.
    pub transition_ms: u64,
    /// Longest grace of a pod evicted for a soft threshold.
    pub max_pod_grace_ms: u64,
    /// Whether limits of disk use are enforced.
    pub storage_limits: bool,
    /// The rules of image collection; `None`: images are collected only if the node is short of disk.
    pub images: Option<ImagePolicy>,
}

impl Default for Policy {
    /// A policy that watches nothing.
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

/// What the node does about pressure; one order at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// Read figures.
    /// → `Observed`
    Look {
        /// Read memory and processes of pods, too.
        pods: bool,
        /// The pods whose disk use is measured.
        disk: Walk,
    },
    /// Remove what is not in use.
    /// → `Reclaimed`
    Reclaim {
        /// The shortage to relieve.
        signal: Signal,
        /// Remove volumes of finished pods.
        volumes: bool,
        /// Remove unused images.
        images: bool,
    },
    /// Remove images.
    /// → `Reclaimed`
    CollectImages {
        /// How much to free.
        goal: Goal,
        /// The file system's space when the order was given.
        space: Space,
    },
}

/// The pods whose disk use is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Walk {
    /// No pod.
    None,
    /// Pods with limits.
    Limited,
    /// All pods.
    All,
}

impl Walk {
    /// Whether this pod is measured.
    pub fn includes(self, pod: &PodState) -> bool {
        match self {
            Self::None => false,
            Self::Limited => limits::has_some(&pod.spec),
            Self::All => true,
        }
    }
}

/// The figures read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Observation {
    /// Figures of the node.
    pub node: NodeUsage,
    /// Figures of the pods that were asked for.
    pub pods: BTreeMap<PodUid, PodUsage>,
    /// How many bytes the claims take that were measured.
    pub claims: BTreeMap<PodKey, u64>,
    /// How long measuring disk use took.
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
    /// No action since then may have changed them.
    fresh: bool,
}

impl Seen {
    /// The figures of a pod, if they belong to the current pod of that UID.
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

/// The state of the node's pressure.
#[derive(Debug, Clone, PartialEq)]
pub struct Pressure {
    policy: Arc<Policy>,
    seen: Option<Seen>,
    met: Vec<Met>,
    conditions: [Held; 3],
    in_flight: Option<Order>,
    /// When the next inspection is due.
    look_at: Time,
    /// When disk use may be measured again.
    walk_at: Time,
    reclaimed: Option<Time>,
    collected: Option<Time>,
    /// Whether an image did not fit on the disk, and unused images have not been removed for it yet.
    lacks_room: bool,
    /// When unused images were last removed for that reason.
    made_room: Option<Time>,
    /// Before this moment, resources given up lately may still be in use.
    settled: Time,
    /// Since when no condition holds, as far as this agent has observed.
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
            lacks_room: false,
            made_room: None,
            settled: Time(0),
            clear_since: None,
        }
    }
}

/// The next step against node pressure or for evicted pods. `Rest` until the manifests have been read for the first
/// time.
pub fn next(state: &NodeState, now: Time) -> Step {
    if state.desired.is_none() {
        return Step::Rest;
    }
    evict::restorable(state, now).or_else(|| relieve(state, now))
}

fn relieve(state: &NodeState, now: Time) -> Step {
    let pressure = &state.pressure;
    if pressure.in_flight.is_some() || !watches(state) {
        return Step::Rest;
    }
    if let Some(end) = cleanup_ends(state).filter(|end| now < *end) {
        return Step::WakeAt(end);
    }
    if now >= pressure.look_at {
        return begin(look(state, now));
    }
    let Some(seen) = pressure.seen.as_ref().filter(|seen| seen.fresh) else {
        return Step::WakeAt(pressure.look_at);
    };
    act(state, seen, now).unwrap_or_else(|| Step::WakeAt(pressure.acts_next(now)))
}

fn begin(order: Order) -> Step {
    Step::Begin(Task::Relieve(order))
}

/// When the agent stops waiting for evicted pods to end, including those evicted before an agent restart.
fn cleanup_ends(state: &NodeState) -> Option<Time> {
    let ends = |pod: &PodState| {
        let verdict = pod.verdict.as_ref().filter(|v| v.cause == Cause::Evicted)?;
        (!is_gone(pod)).then(|| verdict.since.time.plus(CLEANUP_MS))
    };
    state.pods.values().filter_map(ends).max()
}

/// Whether there is anything to watch.
fn watches(state: &NodeState) -> bool {
    let policy = &state.pressure.policy;
    !policy.thresholds.is_empty() || policy.images.is_some() || has_limits(state)
}

fn has_limits(state: &NodeState) -> bool {
    let there = |pod: &PodState| matches!(pod.sandbox, Sandbox::Ready { .. });
    let mut pods = state.pods.values().filter(|pod| there(pod));
    state.pressure.policy.storage_limits
        && (pods.any(|pod| limits::has_some(&pod.spec))
            || !state.measured_claims(Walk::Limited).is_empty())
}

/// The inspection that is due now: of pods only if a threshold is met, or they have limits.
fn look(state: &NodeState, now: Time) -> Order {
    let pressure = &state.pressure;
    let met = |condition| {
        let mut met = pressure.met.iter();
        met.any(|met| met.threshold.signal.condition() == condition)
    };
    let disk = match () {
        () if now < pressure.walk_at => Walk::None,
        () if met(Condition::Disk) => Walk::All,
        () if has_limits(state) => Walk::Limited,
        () => Walk::None,
    };
    Order::Look {
        pods: met(Condition::Memory) || met(Condition::Pid),
        disk,
    }
}

/// The step that follows from fresh figures.
fn act(state: &NodeState, seen: &Seen, now: Time) -> Option<Step> {
    let pressure = &state.pressure;
    if pressure.policy.storage_limits
        && let Some((pod, eviction)) = limits::over(state)
    {
        return Some(Step::Record(Event::Pod {
            uid: pod,
            fact: PodFact::Evicted { eviction },
        }));
    }
    if let Some(step) = collect_images(pressure, seen, now) {
        return Some(step);
    }
    let mut due: Vec<&Met> = pressure.met.iter().collect();
    due.retain(|met| now.since(met.since) >= met.threshold.grace_ms);
    due.order_by_key(|met| (met.threshold.signal, met.threshold.grace_ms));
    due.into_iter()
        .find_map(|met| relieve_of(state, seen, met, now))
}

fn collect_images(pressure: &Pressure, seen: &Seen, now: Time) -> Option<Step> {
    let within = |last: Option<Time>, ms| last.is_some_and(|last: Time| now.since(last) < ms);
    let room = pressure.lacks_room && !within(pressure.made_room, LOOK_MS);
    if !room && within(pressure.collected, IMAGES_MS) {
        return None;
    }
    let figures = seen.figures.node.imagefs;
    let space = figures.map(|figures| figures.bytes);
    let goal = match room {
        true => Goal::All,
        false => pressure.policy.images.as_ref()?.goal(space?)?,
    };
    let space = space.unwrap_or_default();
    Some(begin(Order::CollectImages { goal, space }))
}

/// One step against one shortage; `None` if none is possible.
fn relieve_of(state: &NodeState, seen: &Seen, met: &Met, now: Time) -> Option<Step> {
    let pressure = &state.pressure;
    let signal = met.threshold.signal;
    let disk = signal.condition() == Condition::Disk;
    let apart = seen.figures.node.images_apart;
    let recently = |at: Time| now.since(at) < RECLAIM_MS;
    if disk && !pressure.reclaimed.is_some_and(recently) {
        return Some(begin(Order::Reclaim {
            signal,
            volumes: !apart || !signal.of_images(),
            images: !apart || signal.of_images(),
        }));
    }
    let (pods, walk) = match disk {
        true => (seen.pods, Walk::All),
        false => (true, Walk::None),
    };
    if (pods && !seen.pods) || seen.disk < walk {
        let wait = seen.disk < walk && now < pressure.walk_at;
        return (!wait).then_some(begin(Order::Look { pods, disk: walk }));
    }
    let (pod, usage) = rank::first(state, signal)?;
    let space = signal.space(&seen.figures.node)?;
    let soft = met.threshold.grace_ms > 0;
    let (message, annotations) = evict::message(met, space, pod, usage);
    let eviction = Eviction {
        reason: EvictionReason::Shortage(signal),
        message,
        annotations,
        grace_ms: match soft {
            true => pressure.policy.max_pod_grace_ms.min(pod.spec.grace_ms),
            false => GRACE_MS,
        },
    };
    let pod = pod.spec.uid.clone();
    Some(Step::Record(Event::Pod {
        uid: pod,
        fact: PodFact::Evicted { eviction },
    }))
}

impl Pressure {
    /// The moment of the next inspection, or an earlier one at which the same figures may lead to another step.
    fn acts_next(&self, now: Time) -> Time {
        let graces = self.met.iter();
        let graces = graces.map(|met| met.since.plus(met.threshold.grace_ms));
        let reclaim = self.reclaimed.map(|at| at.plus(RECLAIM_MS));
        let collect = self.collected.map(|at| at.plus(IMAGES_MS));
        let room = self.made_room.map(|at| at.plus(LOOK_MS));
        let pauses = [reclaim, collect, room, Some(self.walk_at)];
        let moments = graces.chain(pauses.into_iter().flatten());
        let next = moments.filter(|at| *at > now).min();
        next.map_or(self.look_at, |at| at.min(self.look_at))
    }

    /// The pressure after an agent restart: the conditions that held, with their transition times, and the thresholds
    /// that were met. When a shortage was last observed is not known, so that the transition period counts from now.
    pub fn recovered(held: &[(Condition, Wall)], met: &[Threshold], now: Stamp) -> Self {
        let mut pressure = Self::default();
        for (condition, since) in held {
            pressure.conditions[*condition as usize] = Held {
                flag: Flag {
                    yes: true,
                    since: *since,
                },
                observed: Some(now.time),
            };
        }
        pressure.met = (met.iter())
            .map(|threshold| Met {
                threshold: *threshold,
                since: now.time,
            })
            .collect();
        pressure
    }

    /// The thresholds that are met.
    pub fn met(&self) -> impl Iterator<Item = &Threshold> {
        self.met.iter().map(|met| &met.threshold)
    }

    /// Whether this condition holds, and since when.
    pub fn condition(&self, condition: Condition) -> Flag {
        self.conditions[condition as usize].flag
    }

    /// The conditions that hold.
    pub fn held(&self) -> impl Iterator<Item = Condition> {
        let all = Condition::ALL.into_iter();
        all.filter(|condition| self.condition(*condition).yes)
    }

    /// Whether limits of disk use are enforced.
    pub(super) fn enforces_limits(&self) -> bool {
        self.policy.storage_limits
    }

    /// The order in flight.
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

    /// Marks the figures as outdated: a pod gives up its resources, or has done so.
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
            let none = self.conditions.iter_mut().filter(|held| !held.flag.yes);
            for held in none {
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
        if disk != Walk::None {
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
            Some(Order::CollectImages { goal, .. }) => {
                self.collected = Some(now);
                if goal == Goal::All {
                    (self.lacks_room, self.made_room) = (false, Some(now));
                }
            }
            Some(Order::Look { .. }) | None => return,
        }
        self.in_flight = None;
        self.look_at = now.max(self.settled);
        if let Some(seen) = &mut self.seen {
            seen.fresh = false;
        }
    }

    /// An image did not fit. Its pull leaves free what the thresholds require, so that none of them is met: without this,
    /// unused images would stay, and the image would never fit. A kubelet unpacks it, is short of disk then, and removes
    /// them.
    pub(super) fn image_lacks_room(&mut self, now: Time) {
        // Where nothing else may remove images, this does not, either.
        let thresholds = &self.policy.thresholds;
        let of_disk = |one: &Threshold| one.signal.condition() == Condition::Disk;
        self.lacks_room = self.policy.images.is_some() || thresholds.iter().any(of_disk);
        self.alarmed(now);
    }

    /// The kernel signals that memory gets short.
    pub(super) fn alarmed(&mut self, now: Time) {
        let last = self.seen.as_ref().map_or(Time(0), |seen| seen.at);
        let soon = now.max(last.plus(PAUSE_MS)).max(self.settled);
        self.look_at = self.look_at.min(soon);
    }
}
