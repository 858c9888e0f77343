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

use super::resume::Resumed;
use crate::plan::bundle::Trial;
use crate::plan::event::Desired;
use crate::plan::{Time, Wall};
use crate::spec::rollback::{CHANGE_CAUSE, MAX_TEXT, restarted};
use crate::spec::{PodKey, PodSpec, Workload, WorkloadKey};
use crate::types::Gather;

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
    pub cause: Option<String>,
    /// The document; `None`: it is too large to be kept.
    pub text: Option<Arc<str>>,
}

/// Why something else is in force than a file says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Cause {
    /// Its pods were not ready in time.
    RolledBack,
    /// A client asked for a former revision.
    Undone,
    /// A client restarted the pods.
    Restarted,
    /// The rollout was interrupted, and the pods of the good template come back first (`resume.rs`). Never on disk.
    Resumed,
}

/// What is in force instead of what a file says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Instead {
    /// Why.
    pub cause: Cause,
    /// The edition of the file that it takes the place of; of a restart and what is resumed, the file's template.
    pub of: Arc<str>,
    /// The document in force.
    pub text: Arc<str>,
    /// For people, at the file; `None`: it says the same.
    pub note: Option<String>,
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
    pub(super) all: BTreeMap<Subject, Box<History>>,
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

/// What is in force instead of what files say, by document.
pub type Overrides = BTreeMap<Subject, Instead>;

/// A document as it was read.
struct Read<'r> {
    edition: &'r Arc<str>,
    written: &'r Arc<str>,
    hash: &'r Arc<str>,
    cause: Option<String>,
    text: Arc<str>,
    limit: usize,
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

    /// What is in force instead of what files say.
    pub fn overrides(&self) -> Overrides {
        let all = self.all.iter();
        let instead = all.filter_map(|(subject, h)| Some((subject, h.instead.as_deref()?)));
        let resumed = self.resumed.iter().filter(|(_, resumed)| !resumed.over);
        let all = instead.chain(resumed.map(|(subject, resumed)| (subject, &resumed.instead)));
        all.map(|(subject, instead)| (subject.clone(), instead.clone()))
            .gather()
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
                text: Arc::clone(&workload.manifest),
                limit: workload.history,
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
        if self.resumes(&subject, read.written, read.hash != read.written) {
            // For a while only: nothing has changed.
            return;
        }
        let history = self.all.entry(subject).or_default();
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
                last.text = Some(Arc::clone(&read.text));
            } else if last.text.is_some() && history.instead.is_none() {
                last.text = text(read);
                last.cause = read.cause.clone();
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
        let Some(history) = self.all.get_mut(subject) else {
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
            return (now, None);
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

    /// The revision in force has failed: the good one comes back. Returns the sentence for people; `None`: there is none, or
    /// it is done.
    pub(super) fn fail(&mut self, subject: &Subject, why: &str) -> Option<String> {
        let history = self.all.get_mut(subject)?;
        let done = |instead: &Instead| instead.cause == Cause::RolledBack;
        if history.instead.as_deref().is_some_and(done) {
            return None;
        }
        let failed = history.revisions.last()?.number;
        let good = history.good.clone()?;
        let back = history.revisions.iter().find(|r| r.hash == good)?;
        if back.number == failed {
            return None;
        }
        let said = format!("revision {failed} was {why}");
        let (number, instead) = (
            back.number,
            history.instead_of(back, Cause::RolledBack, &said),
        );
        let instead = instead?;
        history.instead = instead.map(Box::new);
        history.trial = None;
        self.changes += 1;
        Some(format!("{said}; revision {number} is brought back"))
    }

    /// Puts a former revision in force, by default the one before. Returns its number, or why that cannot be.
    pub fn undo(
        &self,
        subject: &Subject,
        to: Option<u64>,
    ) -> Result<(u64, Option<Instead>), String> {
        let none = || format!("no rollout history found for {subject}");
        let history = self.all.get(subject).ok_or_else(none)?;
        let (last, before) = history.revisions.split_last().ok_or_else(none)?;
        let found = match to.filter(|number| *number > 0) {
            Some(number) if number == last.number => {
                return Err(format!(
                    "skipped rollback (current template already matches revision {number})"
                ));
            }
            Some(number) => before.iter().find(|r| r.number == number),
            None => before.last(),
        };
        let Some(found) = found else {
            return Err(match to {
                Some(number) if number > 0 => {
                    format!("unable to find specified revision {number} in history")
                }
                _ => none(),
            });
        };
        let said = format!("revision {} was undone by a client", last.number);
        let instead = history.instead_of(found, Cause::Undone, &said);
        let instead =
            instead.ok_or_else(|| format!("revision {} was too large to be kept", found.number))?;
        Ok((found.number, instead))
    }

    /// What replaces the pods of a document by others of the same template, since this time.
    pub fn restart(&self, subject: &Subject, at: &str) -> Result<Option<Instead>, String> {
        if let Some(why) = self.comes_back(subject) {
            return Err(why);
        }
        let history = self.of(subject);
        let text = history.and_then(|history| history.revisions.last()?.text.clone());
        let text = text.and_then(|text| restarted(&text, at));
        let (Some(history), Some(text)) = (history, text) else {
            return Err(format!(
                "the template of {subject} was too large to be kept"
            ));
        };
        let before = history.instead.as_deref().cloned();
        Ok(Some(match before {
            // What is in force stays so, and says why.
            Some(before) => Instead {
                text: text.into(),
                ..before
            },
            None => Instead {
                cause: Cause::Restarted,
                of: history.written.clone(),
                text: text.into(),
                note: None,
            },
        }))
    }

    /// A client has put this in force; `None`: what the file says.
    pub(in crate::plan) fn put(&mut self, subject: &Subject, instead: Option<&Instead>) {
        if let Some(history) = self.all.get_mut(subject) {
            history.instead = instead.cloned().map(Box::new);
            self.resumed.remove(subject);
            self.changes += 1;
        }
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

    /// Something else is to be in force, and is not yet: the file's own content is.
    pub(super) fn is_pending(&self) -> bool {
        let last = self.revisions.last();
        self.instead.is_some() && last.is_some_and(|last| last.hash == self.written)
    }

    /// What puts this revision in force: nothing, if the file has it. `None`: its text is not kept.
    fn instead_of(&self, revision: &Revision, cause: Cause, said: &str) -> Option<Option<Instead>> {
        if revision.hash == self.written {
            return Some(None);
        }
        let number = revision.number;
        Some(Some(Instead {
            cause,
            of: self.edition.clone(),
            text: revision.text.clone()?,
            note: Some(format!(
                "{said}; what revision {number} said is in force until the document changes"
            )),
        }))
    }
}

fn text(read: &Read<'_>) -> Option<Arc<str>> {
    (read.text.len() <= MAX_TEXT).then(|| Arc::clone(&read.text))
}

fn of_pod<'r>(pod: &PodSpec, edition: &'r Arc<str>, hash: &'r Arc<str>) -> Read<'r> {
    let cause = pod.manifest.annotation(CHANGE_CAUSE);
    Read {
        edition,
        written: edition,
        hash,
        cause: cause.map(|cause| cause.chars().take(MAX_CAUSE).collect()),
        text: pod.text(),
        limit: OF_POD,
    }
}

/// Why this content is there, as its author says.
fn cause(workload: &Workload) -> Option<String> {
    let object: serde_json::Value = serde_json::from_str(&workload.manifest).ok()?;
    let cause = object["metadata"]["annotations"][CHANGE_CAUSE].as_str()?;
    Some(cause.chars().take(MAX_CAUSE).collect())
}

#[cfg(test)]
#[path = "revisions_test.rs"]
mod tests;
