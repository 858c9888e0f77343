//! The order in which pods start: a pod is held until everything that it starts after is there (annotation
//! `coracle.dev/after`, `coracle help order`). A pod that was let in does not wait again, except for an item with the
//! option `again`: the pod is stopped when that is lost, and the next pod of its name waits.
//!
//! ```text
//! held ──all is there, or may be missing after its time-out──► let in ──an item with `again` is lost──► stopped ─► held
//!   └── time-out: reported once
//! ```

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::hold::Rejection;
use super::notice::Notices;
use super::state::{ContainerState, Stage};
use super::status::{self, Phase};
use super::{Event, NodeState, Notice, PodFact, PodState, Stamp, Step, Time, admit};
use crate::spec::after::{Item, Milestone, Need, Outside};
use crate::spec::{PodKey, PodSpec, PodUid, Reason};
use crate::types::Gather;

/// The message of a pod before anything is known. It is shown, and no event reports it.
pub(super) const UNKNOWN: &str = "What the pod starts after is being looked for.";

/// What was last seen of something outside coracle.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Seen {
    /// Whether it is there.
    pub there: bool,
    /// Why that cannot be found out, for people.
    pub problem: Option<String>,
}

/// What was last seen of everything that pods wait for; what is missing here is not known yet.
pub type Outsides = BTreeMap<Outside, Seen>;

/// What the node knows of the things that pods start after.
#[derive(Debug, Clone, Default)]
pub struct Order {
    /// Whether any pod has the annotation.
    used: bool,
    /// What is known of things outside coracle.
    seen: Outsides,
}

/// How far a pod's waiting is. It is saved.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Waiting {
    /// When it began: time-outs count from here.
    pub since: Option<Stamp>,
    /// When the pod was admitted.
    pub let_in: Option<Stamp>,
    /// Each item, in the order of the annotation.
    pub items: Vec<Progress>,
}

/// One item of a pod that waits, or has waited.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// What it is, as text: `default/db:ready`.
    pub need: String,
    /// Since when it is there; `None` while it is not.
    pub met: Option<Stamp>,
    /// Its time-out has passed, and an event has reported that.
    pub overdue: bool,
}

/// How far another pod is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Level {
    started: bool,
    ready: bool,
    complete: bool,
    /// It has failed for good.
    failed: bool,
}

/// How far all pods are.
#[derive(Debug, Default)]
pub(super) struct Levels(BTreeMap<PodKey, Level>);

/// What is known of one item.
enum Found {
    There,
    /// With the reason.
    Missing(String),
    Unknown,
}

impl Waiting {
    /// Records the admission of a pod that had something to wait for.
    pub(super) fn let_in_at(&mut self, now: Stamp) {
        if self.since.is_some() {
            self.let_in.get_or_insert(now);
        }
    }

    /// Brings the items in line with the annotation; what is known of an item stays.
    fn follow(&mut self, items: &[Item]) {
        let named = |item: &Item| item.need.to_string();
        if self
            .items
            .iter()
            .map(|p| &p.need)
            .eq(items.iter().map(named).collect::<Vec<_>>().iter())
        {
            return;
        }
        let old = std::mem::take(&mut self.items);
        self.items = (items.iter().map(named))
            .map(|need| {
                let known = old.iter().find(|progress| progress.need == need);
                known.cloned().unwrap_or(Progress {
                    need,
                    met: None,
                    overdue: false,
                })
            })
            .collect();
    }
}

impl PodState {
    /// The containers are started as soon as each of them runs and has come up, or is done for good.
    fn level(&self) -> Level {
        let counts = match self.stage {
            Stage::Admitted { .. } => self.verdict.is_none(),
            Stage::Held(_) | Stage::Stopping(_) => false,
        };
        let up =
            |c: &ContainerState| c.started() || c.run.ended().is_some() && !self.left_to_run(c);
        let phase = status::phase(self);
        Level {
            started: counts && self.shows_initialized() && self.mains().iter().all(up),
            ready: counts && self.flags.ready.yes,
            complete: counts && phase == Phase::Succeeded,
            failed: phase == Phase::Failed,
        }
    }
}

impl Levels {
    /// Of all existing pods.
    fn of(state: &NodeState) -> Self {
        let pods = state.pods.values();
        Self(pods.map(|pod| (pod.spec.key.clone(), pod.level())).gather())
    }

    /// Those that admission needs: of the existing pods, and of `waiting` ones.
    pub(super) fn for_admission(state: &NodeState, waiting: &[PodState]) -> Self {
        if waiting.iter().all(|pod| pod.spec.after.is_empty()) {
            return Self::default();
        }
        let mut levels = Self::of(state);
        for pod in waiting {
            levels.0.insert(pod.spec.key.clone(), pod.level());
        }
        levels
    }
}

impl Order {
    /// Records what was seen outside.
    pub(super) fn saw(&mut self, seen: &Outsides) {
        self.seen.clone_from(seen);
    }

    fn look_for(&self, need: &Need, levels: &Levels) -> Found {
        let (key, milestone) = match need {
            Need::Outside(outside) => return self.look_outside(outside),
            Need::Pod { key, milestone } => (key, milestone),
        };
        let (there, lacks) = match (levels.0.get(key), milestone) {
            (None, _) => (false, "does not exist"),
            (Some(level), Milestone::Started) => (level.started, "has not started"),
            (Some(level), Milestone::Ready) => (level.ready, "is not ready"),
            (Some(level), Milestone::Complete) if level.failed => (false, "has failed"),
            (Some(level), Milestone::Complete) => (level.complete, "has not completed"),
        };
        match there {
            true => Found::There,
            false => Found::Missing(format!("pod `{key}` {lacks}")),
        }
    }

    fn look_outside(&self, outside: &Outside) -> Found {
        let Some(seen) = self.seen.get(outside) else {
            return Found::Unknown;
        };
        if seen.there {
            return Found::There;
        }
        let lacks = match outside {
            Outside::Device(path) => format!("device `{path}` is not there"),
            Outside::File(path) => format!("file `{path}` is not there"),
            Outside::Mount(path) => format!("nothing is mounted at `{path}`"),
            Outside::Unit(name) => format!("unit `{name}` is not active"),
            Outside::TimeSync => "the clock is not synchronised".to_owned(),
        };
        Found::Missing(match &seen.problem {
            Some(problem) => format!("{lacks} ({problem})"),
            None => lacks,
        })
    }

    /// What this pod lacks; `None` if that is nothing. A pod that has waited for long enough may lack some items.
    fn lacks(&self, pod: &PodSpec, waiting: &Waiting, levels: &Levels) -> Option<String> {
        let (mut missing, mut unknown) = (Vec::new(), false);
        for (item, progress) in pod.after.iter().zip(&waiting.items) {
            if item.start && progress.overdue {
                continue;
            }
            match self.look_for(&item.need, levels) {
                Found::There => {}
                Found::Missing(why) => missing.push(why),
                Found::Unknown => unknown = true,
            }
        }
        match missing.is_empty() {
            true => unknown.then(|| UNKNOWN.to_owned()),
            false => Some(format!("The pod waits: {}.", missing.join("; "))),
        }
    }
}

impl NodeState {
    /// Notes whether any pod has the annotation.
    pub(super) fn note_order(&mut self) {
        let desired = self
            .desired
            .iter()
            .flat_map(|desired| desired.pods.values());
        let pods = self.pods.values().map(|pod| &pod.spec);
        self.order.used = desired.chain(pods).any(|pod| !pod.after.is_empty());
    }

    /// Why the pod may not start yet because of its order.
    pub(super) fn too_early(
        &self,
        pod: &mut PodState,
        levels: &Levels,
        now: Stamp,
        out: &mut Vec<Notice>,
    ) -> Option<Rejection> {
        if pod.spec.after.is_empty() {
            return None;
        }
        let spec = pod.spec.clone();
        let since = *pod.waiting.since.get_or_insert(now);
        pod.waiting.follow(&spec.after);
        // It was let in before the agent restart, and then nothing was done yet.
        if pod.waiting.let_in.is_some() {
            return None;
        }
        for (index, item) in spec.after.iter().enumerate() {
            let found = self.order.look_for(&item.need, levels);
            let progress = &mut pod.waiting.items[index];
            match found {
                Found::There => drop(progress.met.get_or_insert(now)),
                Found::Missing(_) | Found::Unknown => {
                    progress.met = None;
                    let due = item.timeout_ms.map(|ms| since.time.plus(ms));
                    if due.is_some_and(|at| at <= now.time) && !progress.overdue {
                        progress.overdue = true;
                        Notices::new(out, pod).pod(Reason::DependencyTimeout, overdue(item));
                    }
                }
            }
        }
        let message = self.order.lacks(&spec, &pod.waiting, levels)?;
        Some(Rejection {
            reason: Reason::WaitingForDependencies,
            message,
        })
    }

    /// What a new pod of this spec would wait for, as far as that is known. What no pod waits for now is not looked for.
    pub(super) fn would_wait(&self, pod: &PodSpec) -> Option<Rejection> {
        let mut waiting = Waiting::default();
        waiting.follow(&pod.after);
        let mut message = self.order.lacks(pod, &waiting, &Levels::of(self))?;
        if message == UNKNOWN {
            let outside = pod
                .after
                .iter()
                .filter(|i| matches!(i.need, Need::Outside(_)));
            let named: Vec<String> = outside.map(|item| item.need.to_string()).collect();
            message = format!("Not looked for yet: {}.", named.join(", "));
        }
        Some(Rejection {
            reason: Reason::WaitingForDependencies,
            message,
        })
    }

    /// How far the pod is, if anything can depend on it.
    pub(super) fn level_of(&self, pod: Option<&PodUid>) -> Option<Level> {
        let pod = pod.filter(|_| self.order.used)?;
        self.pods.get(pod).map(PodState::level)
    }

    /// Records what follows from a fact for the pods that wait, and for those that lose what they started after.
    pub(super) fn order_changed(&mut self, now: Stamp, out: &mut Vec<Notice>) {
        if !self.order.used || self.desired.is_none() || self.shutdown.is_some() {
            return;
        }
        // One that is stopped may be what another started after.
        while self.lose_one(now, out) {}
        if self.pods.values().any(waits) {
            self.admit(now, out);
        }
    }

    /// Stops one pod that has lost something it starts after each time; returns whether there was one.
    fn lose_one(&mut self, now: Stamp, out: &mut Vec<Notice>) -> bool {
        let stays = |pod: &PodState| {
            let here = matches!(pod.stage, Stage::Admitted { .. }) && pod.verdict.is_none();
            here && pod.spec.after.iter().any(|item| item.again) && !pod.complete()
        };
        if !self.pods.values().any(stays) {
            return false;
        }
        let levels = Levels::of(self);
        for pod in self.pods.values_mut().filter(|pod| stays(pod)) {
            let spec = pod.spec.clone();
            pod.waiting.follow(&spec.after);
            let items = spec.after.iter().zip(&mut pod.waiting.items);
            let mut lost = None;
            for (item, progress) in items.filter(|(item, _)| item.again) {
                match self.order.look_for(&item.need, &levels) {
                    Found::There => drop(progress.met.get_or_insert(now)),
                    Found::Missing(why) if progress.met.is_some() => lost = Some(why),
                    // It never was there: the pod started without it.
                    Found::Missing(_) | Found::Unknown => {}
                }
            }
            if let Some(why) = lost {
                let message = format!("The pod is stopped and waits again: {why}.");
                Notices::new(out, pod).pod(Reason::DependencyLost, message);
                admit::stop(pod, None, now);
                pod.settle(now, out);
                self.network_changes += 1;
                self.hold_changes += 1;
                return true;
            }
        }
        false
    }

    /// The pods that this one starts after, directly or not.
    pub(super) fn starts_after(&self, pod: &PodSpec) -> BTreeSet<PodKey> {
        let mut found = BTreeSet::new();
        let mut open: Vec<&Item> = pod.after.iter().collect();
        while let Some(item) = open.pop() {
            if let Need::Pod { key, .. } = &item.need
                && found.insert(key.clone())
            {
                let mut pods = self.pods.values();
                let next = pods.find(|other| other.spec.key == *key);
                open.extend(next.into_iter().flat_map(|next| &next.spec.after));
            }
        }
        found
    }

    /// What has to be looked for outside coracle.
    pub fn wanted_outside(&self) -> BTreeSet<Outside> {
        if !self.order.used {
            return Default::default();
        }
        let pods = self.pods.values().flat_map(|pod| {
            let held = pod.hold().is_some();
            let gone = pod.stopping().is_some() || pod.finished();
            let items = pod.spec.after.iter();
            items.filter(move |item| held || item.again && !gone)
        });
        let outside = pods.filter_map(|item| match &item.need {
            Need::Outside(outside) => Some(outside.clone()),
            Need::Pod { .. } => None,
        });
        outside.gather()
    }
}

/// Records that an item of a held pod has timed out.
pub(super) fn next(state: &NodeState, pod: &PodState, now: Time) -> Step {
    if pod.spec.after.is_empty() || state.shutdown.is_some() || !waits(pod) {
        return Step::Rest;
    }
    let Some(since) = pod.waiting.since else {
        return Step::Rest;
    };
    let items = pod.spec.after.iter().zip(&pod.waiting.items);
    let open = items.filter(|(_, progress)| progress.met.is_none() && !progress.overdue);
    let due = open.filter_map(|(item, _)| Some(since.time.plus(item.timeout_ms?)));
    due.min().map_or(Step::Rest, |at| {
        Step::when(at, now, || {
            Step::Record(Event::Pod {
                uid: pod.spec.uid.clone(),
                fact: PodFact::WaitedLong,
            })
        })
    })
}

/// Whether its order holds it.
fn waits(pod: &PodState) -> bool {
    let hold = pod.hold();
    hold.is_some_and(|hold| hold.reason == Reason::WaitingForDependencies)
}

fn overdue(item: &Item) -> String {
    let waited = match item.timeout_ms.unwrap_or(0) {
        ms if ms % 1000 == 0 => format!("{}s", ms / 1000),
        ms => format!("{ms}ms"),
    };
    let then = match item.start {
        true => "The pod starts without it",
        false => "The pod goes on waiting",
    };
    format!("`{}` was not there after {waited}. {then}.", item.need)
}
