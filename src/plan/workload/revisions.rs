//! The revisions of documents: what their files said before, which of them was good, and what is in force instead of what
//! a file says now.
//!
//! ```text
//! new content ── all pods ready ─────────────► good
//!      └──────── not ready in time ──────────► back to the good one, until the file says something else
//! ```
//!
//! The records outlive reboots: `node/rollouts.rs` writes them, and puts in force what they say only after that.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

pub use super::instead::{Cause, Instead, Overrides};
use super::resume::Resumed;
use crate::plan::bundle::Trial;
use crate::plan::event::Desired;
use crate::plan::{Time, Wall};
use crate::spec::rollback::{CHANGE_CAUSE, MAX_TEXT};
use crate::spec::{PodKey, PodSpec, Workload, WorkloadKey};
use crate::types::{Gather, SharedText, SortedMap};

/// Limit of all texts together, in bytes: beyond it former ones are forgotten.
const MAX_TEXTS: usize = 4 << 20;

/// Former manifests that are kept of a pod.
const OF_POD: usize = 10;

/// Limit of a sentence that an author gives, in characters.
const MAX_CAUSE: usize = 1024;

/// A document with revisions.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Subject {
    /// One that stands for pods.
    Workload(WorkloadKey),
    /// A pod.
    Pod(PodKey),
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Workload(key) => write!(f, "{key}"),
            Self::Pod(key) => write!(f, "pod {key}"),
        }
    }
}

/// One content of a document.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Revision {
    /// Grows with each change. A content that comes back has a new number.
    pub number: u64,
    /// The hash of its template; of a pod, of its manifest.
    pub hash: Arc<str>,
    /// `kubernetes.io/change-cause`.
    pub cause: Option<Box<str>>,
    /// The document; `None`: it is too large to be kept.
    pub text: Option<SharedText>,
}

/// What is kept of a document.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct History {
    /// When its file was written first, by a clock that may have been right; `None` for a pod.
    #[serde(default)]
    pub since: Option<Wall>,
    /// Grows with each change of what its file says or of what is in force instead, as `metadata.generation` does.
    #[serde(default)]
    pub generation: u64,
    /// Its revisions, the one in force last.
    pub revisions: Vec<Revision>,
    /// The hash of the last one whose pods were all ready.
    pub good: Option<Arc<str>>,
    /// The time that the one in force has, and what it has spent of it.
    pub trial: Option<Box<Trial>>,
    /// How far its rollout was when it made progress last.
    pub best: (usize, usize, usize),
    /// The edition of its file.
    pub edition: Arc<str>,
    /// The file's template.
    pub written: Arc<str>,
    /// What is in force instead.
    pub instead: Option<Box<Instead>>,
    /// No pod of an earlier template is left.
    #[serde(default = "unknown")]
    pub alone: bool,
    /// The good template is not valid beside the rest of the document any more.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub refused: bool,
    /// It was paused when it came, and still is: no pod of it starts.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unstarted: bool,
    /// Of a StatefulSet: the ordinals whose pods had a template after the good one, which must not run on their data.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub updated: BTreeSet<u64>,
}

/// Former versions did not know: then all pods start with what the file says.
fn unknown() -> bool {
    true
}

/// What is kept of all documents.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Histories {
    pub(super) all: SortedMap<Subject, Box<History>>,
    /// Interrupted rollouts.
    pub(super) resumed: BTreeMap<Subject, Resumed>,
    /// The boot that it is.
    boot: String,
    /// Since when pods on trial are ready.
    pub(super) steady: BTreeMap<PodKey, Time>,
    /// Grows with each change.
    pub changes: u64,
    /// Those of them that may be lost: how far a rollout is, which shows again.
    pub progress_changes: u64,
}

/// A document as it was read.
pub(super) struct Read<'r> {
    pub(super) edition: &'r Arc<str>,
    pub(super) written: &'r Arc<str>,
    pub(super) hash: &'r Arc<str>,
    cause: Option<Box<str>>,
    text: SharedText,
    limit: usize,
    /// The good template is in force for a while.
    pub(super) resumed: bool,
    paused: bool,
}

impl Histories {
    /// What was kept, in this boot.
    pub fn recovered(kept: Vec<(Subject, History)>, boot: String) -> Self {
        Self {
            all: (kept.into_iter())
                .map(|(subject, history)| (subject, Box::new(history)))
                .gather(),
            boot,
            ..Self::default()
        }
    }

    /// All of it, to be kept.
    pub fn records(&self) -> Vec<(&Subject, &History)> {
        let all = self.all.iter();
        all.map(|(subject, history)| (subject, &**history))
            .collect()
    }

    /// The history of a document.
    pub fn of(&self, subject: &Subject) -> Option<&History> {
        self.all.get(subject).map(Box::as_ref)
    }

    pub(super) fn of_pod(&self, key: &PodKey) -> Option<&History> {
        self.of(&Subject::Pod(key.clone()))
    }

    pub(super) fn of_workload(&self, key: &WorkloadKey) -> Option<&History> {
        self.of(&Subject::Workload(key.clone()))
    }

    /// The files were read. `former` returns the pod of this name as it ran before, if it was ready.
    pub(super) fn read(
        &mut self,
        desired: &Desired,
        now: Wall,
        former: impl Fn(&PodKey) -> Option<Arc<PodSpec>>,
    ) {
        let pods_last = |w: &Workload| w.job.is_none() && w.cron.is_none();
        let rolled_out = desired.workloads.iter().filter(|(_, w)| pods_last(w));
        for (key, workload) in rolled_out {
            let read = Read {
                edition: &workload.edition,
                written: &workload.written,
                hash: &workload.revision,
                cause: cause(workload),
                text: workload.manifest.clone(),
                limit: workload.history,
                resumed: workload.resumed,
                paused: workload.paused,
            };
            let since = super::came(desired, key, now);
            self.document(Subject::Workload(key.clone()), &read, since);
        }
        for pod in desired.pods.values() {
            let Some(edition) = desired.editions.get(&pod.key) else {
                continue;
            };
            let subject = Subject::Pod(pod.key.clone());
            if !self.all.contains_key(&subject)
                && let Some(former) = former(&pod.key)
            {
                // The annotation came with an edit: what ran before it was good.
                let hash = former.edition().into();
                self.document(subject.clone(), &of_pod(&former, &hash, &hash), None);
                self.passed(&subject, &hash);
            }
            let hash = pod.edition().into();
            self.document(subject, &of_pod(pod, edition, &hash), None);
        }
        if desired.complete {
            let before = self.all.len();
            self.all.retain(|subject, _| match subject {
                Subject::Workload(key) => desired.workloads.contains_key(key),
                Subject::Pod(key) => desired.editions.contains_key(key),
            });
            self.changes += u64::from(before != self.all.len());
            self.resumed
                .retain(|subject, _| self.all.contains_key(subject));
        }
        self.bound();
    }

    fn document(&mut self, subject: Subject, read: &Read<'_>, since: Option<Wall>) {
        if self.resumes(&subject, read) {
            // For a while only: nothing has changed.
            return;
        }
        let is_new = !self.all.contains_key(&subject);
        let history = self.all.get_or_default(subject);
        let unstarted = read.paused && (is_new || history.unstarted);
        if history.unstarted != unstarted {
            history.unstarted = unstarted;
            self.changes += 1;
        }
        let in_force = history
            .revisions
            .last()
            .is_some_and(|last| last.hash == *read.hash);
        if history.edition != *read.edition || history.written != *read.written || !in_force {
            // Records of former versions have none; it counts as the first.
            let had = u64::from(!history.revisions.is_empty());
            history.generation = history.generation.max(had) + 1;
        }
        if history.since.is_none() && since.is_some() {
            history.since = since;
            self.changes += 1;
        }
        if history.edition != *read.edition || history.written != *read.written {
            history.edition = Arc::clone(read.edition);
            history.written = Arc::clone(read.written);
            history.begin();
            self.changes += 1;
        }
        let ended = |instead: &mut Box<Instead>| {
            let of = match instead.cause {
                Cause::Restarted | Cause::Resumed => read.written,
                Cause::RolledBack | Cause::Undone => read.edition,
            };
            instead.of != *of
        };
        history.instead.take_if(ended);
        if let Some(last) = history.revisions.last_mut()
            && last.hash == *read.hash
        {
            if last.text.as_ref() == Some(&read.text) {
                // One copy in memory.
                last.text = Some(read.text.clone());
            } else if last.text.is_some() {
                // Also beside another template: the rest of it says how pods are replaced.
                last.text = text(read);
                if history.instead.is_none() {
                    last.cause = read.cause.clone();
                }
                self.changes += 1;
            }
            return;
        }
        let number = history.revisions.last().map_or(0, |last| last.number) + 1;
        let known = history.revisions.iter().position(|r| r.hash == *read.hash);
        let before = known.map(|at| history.revisions.remove(at));
        let undone = |instead: &Instead| instead.cause != Cause::Restarted;
        let cause = match history.instead.as_deref().is_some_and(undone) {
            // The document still says that of the revision that was undone. After a restart it is that of the last one.
            true => before.as_ref().or(history.revisions.last()),
            false => before.as_ref().filter(|_| read.cause.is_none()),
        };
        let cause = cause.map_or_else(|| read.cause.clone(), |former| former.cause.clone());
        // Most documents have one revision: spare room would be kept for nothing.
        history.revisions.reserve_exact(1);
        history.revisions.push(match before {
            Some(before) => Revision {
                number,
                cause,
                text: text(read),
                ..before
            },
            None => Revision {
                number,
                hash: Arc::clone(read.hash),
                cause,
                text: text(read),
            },
        });
        history.begin();
        while history.revisions.len() > read.limit + 1 {
            let Some(oldest) = history.droppable().next() else {
                break;
            };
            history.revisions.remove(oldest);
        }
        self.changes += 1;
    }

    /// Forgets the oldest texts if they are too large together.
    fn bound(&mut self) {
        let bytes = |revision: &Revision| revision.text.as_ref().map_or(0, |text| text.len());
        let of_history = |history: &History| history.revisions.iter().map(bytes).sum::<usize>();
        let histories = self.all.values().map(Box::as_ref);
        let mut all: usize = histories.map(of_history).sum();
        while all > MAX_TEXTS {
            let former = self
                .all
                .values_mut()
                .filter(|h| h.droppable().next().is_some());
            let Some(history) = former.max_by_key(|history| of_history(history)) else {
                break;
            };
            let Some(oldest) = history.droppable().next() else {
                break;
            };
            all -= bytes(&history.revisions.remove(oldest));
            self.changes += 1;
        }
        // What is in force is not needed for a way back.
        for history in self.all.values_mut().filter(|h| h.trial.is_none()) {
            let Some(last) = history.revisions.last_mut().filter(|_| all > MAX_TEXTS) else {
                continue;
            };
            all -= bytes(last);
            self.changes += u64::from(last.text.take().is_some());
        }
    }

    /// The boot that it is.
    pub(super) fn boot(&self) -> &str {
        &self.boot
    }

    /// Notes the time that the revision in force has spent.
    pub(super) fn set_trial(&mut self, subject: &Subject, trial: Trial) {
        if let Some(history) = self.all.get_mut(subject) {
            history.trial = Some(Box::new(trial));
            self.changes += 1;
            self.progress_changes += 1;
        }
    }

    /// All pods of the revision in force are ready.
    pub(super) fn passed(&mut self, subject: &Subject, hash: &Arc<str>) {
        // Of none that it has no pods of is known whether it works.
        let history = self.all.get_mut(subject);
        let Some(history) = history.filter(|history| !history.unstarted) else {
            return;
        };
        let known = history.trial.is_none() && history.updated.is_empty();
        if history.good.as_ref() != Some(hash) || !known {
            history.good = Some(Arc::clone(hash));
            history.trial = None;
            history.updated.clear();
            self.changes += 1;
            self.progress_changes += 1;
        }
    }

    /// Whether a document was paused when it came, and still is.
    pub(super) fn is_unstarted(&self, subject: &Subject) -> bool {
        self.of(subject).is_some_and(|history| history.unstarted)
    }

    /// Notes that there are pods of a document although it is paused.
    pub(super) fn has_started(&mut self, subject: &Subject) {
        if let Some(history) = self.all.get_mut(subject) {
            history.unstarted = false;
            self.changes += 1;
        }
    }

    /// When a rollout that is this far fails, and when its time is to be written down next.
    pub(super) fn fails_at(
        &mut self,
        subject: &Subject,
        best: (usize, usize, usize),
        within_ms: u64,
        now: Time,
    ) -> (Time, Option<Time>) {
        let Some(history) = self.all.get_mut(subject) else {
            return (now.plus(within_ms), None);
        };
        if history.is_pending() {
            // What is taken back has failed; what a client asked for has all of its time before it.
            let instead = history.instead.as_deref();
            let failed = instead.is_some_and(|instead| instead.cause == Cause::RolledBack);
            return (if failed { now } else { now.plus(within_ms) }, None);
        }
        let trial = match &history.trial {
            Some(trial) if history.best == best && !trial.rests_in(&self.boot) => {
                let as_of = trial.as_of(&self.boot, now);
                let much = as_of.spent_ms - trial.spent_ms >= trial.step_ms();
                let over = as_of.spent_ms >= within_ms && trial.spent_ms < within_ms;
                (trial.boot != self.boot || much && trial.spent_ms < within_ms || over)
                    .then_some(as_of)
            }
            _ => Some(Trial::new(within_ms, &self.boot, now)),
        };
        if let Some(trial) = trial {
            history.trial = Some(Box::new(trial));
            history.best = best;
            self.changes += 1;
            self.progress_changes += 1;
        }
        let Some(trial) = &history.trial else {
            return (now, None);
        };
        let left = within_ms.saturating_sub(trial.spent_ms);
        let record = (left > trial.step_ms()).then(|| trial.at.plus(trial.step_ms()));
        (trial.at.plus(left), record)
    }
}

impl History {
    /// The time of what is in force begins.
    fn begin(&mut self) {
        self.trial = None;
        self.best = (0, 0, 0);
        self.alone = false;
        self.refused = false;
    }

    /// The places of the revisions that are not needed, from the oldest on.
    fn droppable(&self) -> impl Iterator<Item = usize> {
        let last = self.revisions.len().saturating_sub(1);
        let former = self.revisions.iter().take(last).enumerate();
        former
            .filter(|(_, revision)| self.good.as_deref() != Some(&revision.hash))
            .map(|(at, _)| at)
    }
}

fn text(read: &Read<'_>) -> Option<SharedText> {
    (read.text.len() <= MAX_TEXT).then(|| read.text.clone())
}

fn of_pod<'r>(pod: &PodSpec, edition: &'r Arc<str>, hash: &'r Arc<str>) -> Read<'r> {
    let cause = pod.manifest.annotation(CHANGE_CAUSE);
    Read {
        edition,
        written: edition,
        hash,
        cause: cause.map(|cause| cause.chars().take(MAX_CAUSE).collect()),
        text: SharedText::of(&pod.text()),
        limit: OF_POD,
        resumed: false,
        paused: false,
    }
}

/// Why this content is there, as its author says.
fn cause(workload: &Workload) -> Option<Box<str>> {
    let object: serde_json::Value = serde_json::from_str(&workload.manifest.text()).ok()?;
    let cause = object["metadata"]["annotations"][CHANGE_CAUSE].as_str()?;
    Some(cause.chars().take(MAX_CAUSE).collect())
}

#[cfg(test)]
#[path = "revisions_test.rs"]
mod tests;
