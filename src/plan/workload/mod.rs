//! Documents that stand for pods (Deployments, StatefulSets, …): which of their pods are wanted now.
//!
//! Files ask for pods ([`Workloads::asked`]); [`NodeState::desired`] is what of it is wanted now. Of a document with pods
//! of an earlier template these go step by step, and the new ones come step by step (`stage.rs`). There is no loop but the
//! planner's own: a step is taken when a pod of a document has become ready, or unready, or is gone, and when a time is
//! over that [`next`] names.

mod stage;
pub mod status;

use std::collections::BTreeMap;
use std::sync::Arc;

use super::event::Desired;
use super::state::Flag;
use super::{Event, NodeFact, NodeState, Notice, PodState, Stamp, Step, Time, bundle};
use crate::spec::{PodSpec, PodUid, Workload, WorkloadKey};
use crate::types::Gather;

/// What is known of documents that stand for pods.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Workloads {
    /// What files ask for, if there is such a document among it.
    asked: Option<Desired>,
    /// The pods that are wanted of that now.
    staged: BTreeMap<PodUid, Arc<PodSpec>>,
    /// How far each of them is.
    progress: BTreeMap<WorkloadKey, Progress>,
    /// A step may have become possible.
    due: bool,
    /// When a step becomes possible if nothing happens.
    wake: Option<Time>,
    /// Grows whenever the status of one of them may have changed.
    pub changes: u64,
}

/// How far a document's pods are.
#[derive(Debug, Clone, PartialEq)]
struct Progress {
    revision: String,
    /// The number of wanted pods.
    replicas: usize,
    /// The best so far: pods of the current template that are there, that were available, and pods of earlier ones that are
    /// gone.
    best: (usize, usize, usize),
    /// Since when it is so.
    since: Time,
    /// It was too long without progress.
    failed: bool,
    /// All pods are of the current template and available.
    complete: bool,
    /// How many pods there are.
    figures: stage::Figures,
    /// How many there should be.
    replicas_here: usize,
    /// How many pods of the current template were let in.
    let_in: usize,
    /// Since when pods are ready, where that matters.
    ready: BTreeMap<PodUid, Time>,
    /// Enough pods are available.
    available: Flag,
    /// It is complete, or makes progress.
    progressing: Flag,
}

impl Progress {
    fn new(workload: &Workload, now: Stamp) -> Self {
        let flag = |yes| Flag {
            yes,
            since: now.wall,
        };
        Self {
            revision: workload.revision.clone(),
            replicas: workload.pods.len(),
            best: (0, 0, 0),
            since: now.time,
            failed: false,
            complete: false,
            figures: stage::Figures::default(),
            replicas_here: 0,
            let_in: 0,
            ready: BTreeMap::new(),
            available: flag(false),
            progressing: flag(true),
        }
    }
}

/// What of a pod decides about steps.
type Standing = (bool, bool, bool, bool);

fn standing(pod: &PodState) -> Standing {
    (
        is_ready(pod),
        pod.stopping().is_some(),
        pod.hold().is_some(),
        pod.finished(),
    )
}

/// A terminating pod is not ready, although its containers still run; nor is one that still runs another image.
fn is_ready(pod: &PodState) -> bool {
    let goes_on = pod.stopping().is_none() && pod.verdict.is_none();
    pod.flags.ready.yes && goes_on && !bundle::outdated(pod)
}

/// The next step: a turn of all documents, if one may have become possible.
pub(super) fn next(state: &NodeState, now: Time) -> Step {
    if state.shutdown.is_some() || state.desired.is_none() {
        return Step::Rest;
    }
    let turn = || Step::Record(Event::Node(NodeFact::WorkloadTurn));
    match state.workloads.wake {
        _ if state.workloads.due => turn(),
        Some(at) => Step::when(at, now, turn),
        None => Step::Rest,
    }
}

impl NodeState {
    /// The files were read.
    pub(super) fn desired_changed(&mut self, desired: &Desired, now: Stamp, out: &mut Vec<Notice>) {
        let workloads = &mut self.workloads;
        workloads.changes += 1;
        if desired.workloads.is_empty() {
            *workloads = Workloads {
                changes: workloads.changes,
                ..Workloads::default()
            };
            return self.want(desired, now, out);
        }
        let known = std::mem::take(&mut workloads.progress);
        let mut known: BTreeMap<_, _> = known;
        for (key, workload) in &desired.workloads {
            let mut progress = (known.remove(key)).unwrap_or_else(|| Progress::new(workload, now));
            if progress.revision != workload.revision || progress.replicas != workload.pods.len() {
                let fresh = Progress::new(workload, now);
                progress = Progress {
                    ready: progress.ready,
                    available: progress.available,
                    progressing: progress.progressing,
                    ..fresh
                };
            }
            workloads.progress.insert(key.clone(), progress);
        }
        workloads.asked = Some(desired.clone());
        let staged = self.staged(now);
        self.workloads.staged.clone_from(&staged.pods);
        self.want(&staged, now, out);
    }

    /// Takes the steps that are possible.
    pub(super) fn workload_turn(&mut self, now: Stamp, out: &mut Vec<Notice>) {
        self.workloads.due = false;
        self.workloads.wake = None;
        self.workloads.changes += 1;
        if self.workloads.asked.is_none() {
            return;
        }
        let staged = self.staged(now);
        let before = &self.workloads.staged;
        let mut pairs = before.iter().zip(&staged.pods);
        let same = before.len() == staged.pods.len()
            && pairs.all(|(one, two)| one.0 == two.0 && Arc::ptr_eq(one.1, two.1));
        if !same {
            // Every pod is planned again.
            self.hold_changes += 1;
            self.workloads.staged.clone_from(&staged.pods);
            self.want(&staged, now, out);
        }
    }

    /// What of this pod decides about steps, if it belongs to a document.
    pub(super) fn standing(&self, pod: Option<&PodUid>) -> Option<Standing> {
        let pod = self.pods.get(pod?)?;
        pod.spec.workload.as_ref()?;
        Some(standing(pod))
    }

    /// Notes that a step may have become possible, if a pod's standing has changed. `held`: others were held, or admitted.
    pub(super) fn standing_was(
        &mut self,
        pod: Option<&PodUid>,
        before: Option<Standing>,
        held: bool,
    ) {
        if self.workloads.asked.is_some() && (held || before != self.standing(pod)) {
            self.workloads.due = true;
        }
    }

    /// What is wanted now.
    fn staged(&mut self, now: Stamp) -> Desired {
        let Some(asked) = self.workloads.asked.take() else {
            return Desired::default();
        };
        let mut progress = std::mem::take(&mut self.workloads.progress);
        let keys = asked.pods.values().map(|pod| (&pod.key, pod));
        let asked_pods: BTreeMap<_, _> = keys.gather();
        // Pods of a document that cannot be read any more go on as they are.
        let staged = |key: &WorkloadKey| asked.workloads.contains_key(key);
        let mut pods: BTreeMap<PodUid, Arc<_>> = (asked.pods.iter())
            .filter(|(_, pod)| !pod.workload.as_ref().is_some_and(staged))
            .map(|(uid, pod)| (uid.clone(), Arc::clone(pod)))
            .gather();
        for (key, workload) in &asked.workloads {
            let Some(progress) = progress.get_mut(key) else {
                continue;
            };
            let new: Vec<_> = (workload.pods.iter())
                .filter_map(|pod| asked_pods.get(pod).copied())
                .collect();
            let stage = stage::Stage::of(self, workload, &new, progress, now);
            let wanted = stage.wanted(progress);
            pods.extend(wanted.map(|pod| (pod.uid.clone(), Arc::clone(pod))));
            let wake = stage.note(progress, now);
            self.workloads.wake = self.workloads.wake.into_iter().chain(wake).min();
        }
        let desired = Desired {
            pods,
            services: asked.services.clone(),
            workloads: asked.workloads.clone(),
        };
        self.workloads.asked = Some(asked);
        self.workloads.progress = progress;
        desired
    }
}

#[cfg(test)]
#[path = "workload_test.rs"]
mod tests;
