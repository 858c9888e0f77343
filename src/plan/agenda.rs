//! One turn: [`Agenda::record`] takes a fact in, [`Agenda::next`] says what follows from all facts so far.
//!
//! ```text
//!          ┌────────────── Record(event): record it ◄─────────────┐
//! wait ──► record(fact) ──► next() ── Begin(task): record that it begins, begin it
//!   ▲                         └────── WakeAt(time) | Rest ──► publish what changed
//!   └─────────────────────────────────────────────────────────────┘
//! ```
//!
//! Only pods that a fact concerns, or whose moment has come, are planned, the most urgent first: an idle node costs
//! nothing. A new agenda plans everything and must come to the same step ([`Agenda::new`]; the simulator compares
//! them after each turn).

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use super::event::{HookOrder, Order, ProbeOrder};
use super::run::Running;
use super::{Action, Event, NodeFact, NodeState, Notice, PodFact, PodState, RunFact, Stamp, Time};
use super::{after, cordon, decide, hook, pressure, probe, shutdown, verdict, workload};
use crate::spec::PodUid;
use crate::types::merge;

/// What follows from the facts.
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    /// Record this: it follows from the time or from an earlier fact.
    Record(Event),
    /// Begin this, after [`Task::begun`] is recorded and saved.
    Begin(Task),
    /// Nothing before this time, which is in the future.
    WakeAt(Time),
    /// Nothing until something happens.
    Rest,
}

/// Something that the node does. Each task ends in one event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Task {
    /// A step in a pod's lifecycle.
    Act(Action),
    /// A lifecycle hook.
    Hook(HookOrder),
    /// A probe.
    Probe(ProbeOrder),
    /// A measure against the node's shortages.
    Relieve(Order),
}

impl Task {
    /// That it begins.
    pub fn begun(&self) -> Event {
        match self.clone() {
            Self::Act(action) => Event::action_started(action),
            Self::Hook(order) => order.started(),
            Self::Probe(order) => order.started(),
            Self::Relieve(order) => Event::Node(NodeFact::ReliefBegun(order)),
        }
    }
}

impl Step {
    /// The first step that can be taken now, or else the earlier wake-up.
    pub(super) fn or(self, other: Self) -> Self {
        self.or_else(|| other)
    }

    /// The same. Evaluates the other step only if this one cannot be taken now.
    pub(super) fn or_else(self, other: impl FnOnce() -> Self) -> Self {
        let at = match self {
            Self::Record(_) | Self::Begin(_) => return self,
            Self::WakeAt(at) => Some(at),
            Self::Rest => None,
        };
        match (at, other()) {
            (Some(at), Self::WakeAt(other)) => Self::WakeAt(at.min(other)),
            (Some(at), Self::Rest) => Self::WakeAt(at),
            (_, step) => step,
        }
    }

    /// The step from this time on, and a wake-up before.
    pub(super) fn when(at: Time, now: Time, step: impl FnOnce() -> Self) -> Self {
        match now < at {
            true => Self::WakeAt(at),
            false => step(),
        }
    }

    fn action(self) -> Result<Self, Option<Time>> {
        match self {
            Self::Record(_) | Self::Begin(_) => Ok(self),
            Self::WakeAt(at) => Err(Some(at)),
            Self::Rest => Err(None),
        }
    }
}

/// The pods to plan now, and when to plan the others.
#[derive(Debug, Clone)]
pub struct Agenda {
    /// The pods to plan, by priority; removed pods come last.
    queue: BTreeSet<(Reverse<Option<i32>>, PodUid)>,
    /// When each pod is planned again if nothing happens to it.
    wakes: BTreeMap<PodUid, Time>,
    /// Whether to plan for the node as a whole.
    node: bool,
    /// When the node as a whole is planned again if nothing happens.
    node_wake: Option<Time>,
    /// The pods whose status may have changed since [`Agenda::take_changed`], in the order of their UIDs.
    changed: Vec<PodUid>,
    /// The value of [`NodeState::hold_changes`] at the last fact.
    hold_changes: u64,
}

impl Agenda {
    /// An agenda that plans and shows everything.
    pub fn new(state: &NodeState) -> Self {
        let mut agenda = Self {
            queue: BTreeSet::new(),
            wakes: BTreeMap::new(),
            node: true,
            node_wake: None,
            changed: state.pods.keys().cloned().collect(),
            hold_changes: state.hold_changes,
        };
        agenda.touch_all(state);
        agenda
    }

    /// Records a fact and the pods it concerns. Returns the events to publish.
    pub fn record(&mut self, state: &mut NodeState, event: &Event, now: Stamp) -> Vec<Notice> {
        // Another pod may wait for the name of a removed one.
        let concerns_all = match event {
            Event::Node(fact) => fact.concerns_all_pods(state),
            Event::Pod { fact, .. } => matches!(fact, PodFact::SandboxRemoved),
            Event::Run { .. } => false,
        };
        if concerns_all {
            // Also those that the fact removes.
            self.touch_all(state);
            self.show_all(state);
        }
        let before = health(state, event);
        let notices = state.apply(event, now);
        for pod in &state.touched {
            self.touch(state, pod);
            self.show(pod);
        }
        let held = std::mem::replace(&mut self.hold_changes, state.hold_changes);
        if concerns_all || held != state.hold_changes {
            // The fact may have removed its own pod, whose wake-up goes with it.
            event
                .pod()
                .into_iter()
                .for_each(|pod| self.touch(state, pod));
            self.touch_all(state);
            self.show_all(state);
        } else if let Some(pod) = event.pod() {
            self.touch(state, pod);
            if before.is_none() || before != health(state, event) {
                self.show(pod);
            }
        } else if matches!(event, Event::Node(NodeFact::DesiredChanged(_))) {
            self.show_all(state);
        }
        // The begin of a probe does not concern the node as a whole.
        self.node |= !matches!(
            event,
            Event::Run {
                fact: RunFact::ProbeStarted(_),
                ..
            }
        );
        notices
    }

    /// The next step. After [`Step::Record`] and [`Step::Begin`] the caller records that and asks again.
    pub fn next(&mut self, state: &NodeState, now: Time) -> Step {
        self.pass(state, now);
        if self.node {
            match next_of_node(state, now).action() {
                Ok(step) => return step,
                Err(wake) => (self.node, self.node_wake) = (false, wake),
            }
        }
        while let Some(first) = self.queue.first().cloned() {
            let uid = &first.1;
            let pod = state.pods.get(uid);
            let next = pod.map_or(Step::Rest, |pod| next_of_pod(state, pod, now));
            let next = next.action();
            match next {
                Err(Some(wake)) => drop(self.wakes.insert(uid.clone(), wake)),
                Ok(_) | Err(None) => drop(self.wakes.remove(uid)),
            }
            if let Ok(step) = next {
                return step;
            }
            self.queue.remove(&first);
        }
        self.wake_at().map_or(Step::Rest, Step::WakeAt)
    }

    /// Takes the pods whose status may have changed, or that are gone.
    pub fn take_changed(&mut self) -> Vec<PodUid> {
        std::mem::take(&mut self.changed)
    }

    /// Has a pod shown again.
    pub fn show(&mut self, pod: &PodUid) {
        if let Err(at) = self.changed.binary_search(pod) {
            self.changed.insert(at, pod.clone());
        }
    }

    fn show_all(&mut self, state: &NodeState) {
        merge(&mut self.changed, state.pods.keys().cloned());
    }

    /// When to plan again if nothing happens.
    pub fn wake_at(&self) -> Option<Time> {
        let pods = self.wakes.values().copied();
        pods.chain(self.node_wake).min()
    }

    /// Queues the pods whose wake-up has come.
    fn pass(&mut self, state: &NodeState, now: Time) {
        self.node |= self.node_wake.is_some_and(|at| at <= now);
        let due = self.wakes.iter().filter(|(_, at)| **at <= now);
        let due: Vec<PodUid> = due.map(|(uid, _)| uid.clone()).collect();
        for uid in due {
            self.wakes.remove(&uid);
            self.touch(state, &uid);
        }
    }

    fn touch(&mut self, state: &NodeState, uid: &PodUid) {
        let priority = state.pods.get(uid).map(|pod| pod.spec.priority);
        self.queue.insert((Reverse(priority), uid.clone()));
    }

    fn touch_all(&mut self, state: &NodeState) {
        let all = state.pods.iter();
        self.queue
            .extend(all.map(|(uid, pod)| (Reverse(Some(pod.spec.priority)), uid.clone())));
    }
}

/// The next step for the node as a whole: turns of a shutdown or a drain, then its shortages.
fn next_of_node(state: &NodeState, now: Time) -> Step {
    shutdown::next(state, now)
        .or_else(|| cordon::next(state))
        .or_else(|| workload::next(state, now))
        .or_else(|| pressure::next(state, now))
}

/// The next step for one pod.
fn next_of_pod(state: &NodeState, pod: &PodState, now: Time) -> Step {
    let time = verdict::next(pod, now).or_else(|| hook::next_sleep(pod, now));
    // Nothing begins before the manifests are read for the first time.
    if state.desired.is_none() {
        return time;
    }
    time.or_else(|| hook::next(pod, now))
        .or_else(|| after::next(state, pod, now))
        .or_else(|| decide::next(pod, &state.settings, now))
        .or_else(|| probe::next(pod, now))
}

/// What a fact about a probe may change in the status or in the saved memory; `None` for any other fact.
fn health(state: &NodeState, event: &Event) -> Option<Vec<Option<[bool; 4]>>> {
    let Event::Run {
        instance,
        fact: RunFact::ProbeStarted(_) | RunFact::ProbeDone { .. },
    } = event
    else {
        return None;
    };
    let pod = state.pods.get(&instance.pod)?;
    let all = pod.containers.iter();
    let all = all.map(|c| c.run.running());
    let health = |run: &Running| {
        let unproved = run.tracks.unproved();
        [run.started, run.ready, unproved, run.kill.is_some()]
    };
    Some(all.map(|run| run.map(health)).collect())
}
