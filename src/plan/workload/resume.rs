//! Interrupted rollouts: a reboot or `coracle stop` ends all pods, or a rollout that stands still loses some of its former
//! ones. The pods of the last good template come back first, then the new one is rolled out beside them again: the file's,
//! or what a client put in force instead. Otherwise a power cut would leave only a template that may not work.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::Value;

use super::Progress;
use super::revisions::{Cause, Histories, History, Instead, Read, Subject};
use crate::plan::Time;
use crate::spec::{Workload, WorkloadKey, WorkloadKind};

/// How long pods that start in order have to come back, if the document has no deadline.
pub(super) const WITHIN_MS: u64 = 600_000;

/// The time between two steps that bring pods back while a rollout stands still.
const AGAIN_MS: u64 = 600_000;

/// How long missing pods of a StatefulSet wait for a good template that is not put in force.
const HEED_MS: u64 = 30_000;

/// After so many reads without effect the good template counts as refused.
const UNHEEDED: u8 = 3;

/// Limit of the ordinals of a StatefulSet that are recorded.
const MAX_UPDATED: usize = 1_000;

/// An interrupted rollout.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Resumed {
    /// What is in force until its pods are back.
    pub(super) instead: Instead,
    by_hand: bool,
    /// The template that is rolled out, if it had pods before.
    to: Option<Arc<str>>,
    /// The pods are back, and the new template is about to take effect again.
    pub(super) over: bool,
    /// The number of reads of the file in which `instead` had no effect.
    unheeded: u8,
}

/// How far an interrupted rollout was, and how it goes on.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Halfway {
    /// The ordinals of a StatefulSet whose pods had a template after the good one.
    pub(super) updated: BTreeSet<u64>,
    /// A person says when pods get the new template: by deleting them, or by a smaller `partition`.
    pub(super) by_hand: bool,
    /// The new template, if it had pods before.
    pub(super) to: Option<Arc<str>>,
}

impl Progress {
    /// Brings the missing pods of the good template back. Returns the time of the next try if it is too early.
    pub(super) fn bring_back(
        &mut self,
        key: &WorkloadKey,
        histories: &mut Histories,
        now: Time,
    ) -> Option<Time> {
        let at = self.brought_back.map(|before| before.plus(AGAIN_MS));
        if at.is_some_and(|at| at > now) {
            return at;
        }
        self.brought_back = Some(now);
        histories.resume(key);
        None
    }

    /// Until when missing pods wait for a template that is to be in force again.
    pub(super) fn waits_until(&self) -> Option<Time> {
        self.brought_back.map(|at| at.plus(HEED_MS))
    }

    /// Whether that time is over.
    pub(super) fn has_waited(&self, now: Time) -> bool {
        self.waits_until().is_some_and(|at| at <= now)
    }
}

impl Histories {
    /// Resumes the rollouts that a reboot interrupted: those that `is_known` says nothing of.
    pub fn resumed(mut self, is_known: impl Fn(&WorkloadKey) -> bool) -> Self {
        let keys = self.all.keys().filter_map(|subject| match subject {
            Subject::Workload(key) if !is_known(key) => Some(key.clone()),
            _ => None,
        });
        for key in keys.collect::<Vec<_>>() {
            self.resume(&key);
        }
        self
    }

    /// Whether pods of a good template could come back.
    pub(super) fn may_resume(&self, key: &WorkloadKey) -> bool {
        let history = self.of_workload(key);
        history.is_some_and(|history| interrupted(history, key.kind).is_some())
    }

    /// Puts the good template of a document in force until its pods are back, if a rollout was interrupted.
    pub(super) fn resume(&mut self, key: &WorkloadKey) {
        let subject = Subject::Workload(key.clone());
        let history = self.of(&subject);
        let interrupted = history.and_then(|history| interrupted(history, key.kind));
        if let Some(resumed) = interrupted {
            let before = self.resumed.get(&subject);
            if before.is_some_and(|before| !before.over && before.instead == resumed.instead) {
                return;
            }
            self.resumed.insert(subject, resumed);
            self.changes += 1;
        }
    }

    /// Whether the good template of a document is in force until its pods are back.
    pub(super) fn is_resumed(&self, subject: &Subject) -> bool {
        self.resumed.contains_key(subject)
    }

    /// Whether a read of the file did not put the good template in force.
    pub(super) fn is_unheeded(&self, subject: &Subject) -> bool {
        let resumed = self.resumed.get(subject);
        resumed.is_some_and(|resumed| resumed.unheeded > 0)
    }

    /// How far the rollout was, if it is so.
    pub(super) fn halfway(&self, subject: &Subject) -> Option<Halfway> {
        let resumed = self.resumed.get(subject)?;
        Some(Halfway {
            updated: self.updated(subject),
            by_hand: resumed.by_hand,
            to: resumed.to.clone(),
        })
    }

    /// The ordinals of a StatefulSet whose pods had a template after the good one.
    pub(super) fn updated(&self, subject: &Subject) -> BTreeSet<u64> {
        let history = self.of(subject);
        history.map_or_else(BTreeSet::new, |history| history.updated.clone())
    }

    /// Whether that is so of any document.
    pub fn is_any_resumed(&self) -> bool {
        !self.resumed.is_empty()
    }

    /// The pods are back: the new template takes effect again.
    pub(super) fn go_on(&mut self, subject: &Subject) {
        if let Some(resumed) = self.resumed.get_mut(subject).filter(|r| !r.over) {
            resumed.over = true;
            self.changes += 1;
        }
    }

    /// Notes that a document was read. Returns whether that changes nothing of its history: the good template is in force
    /// for a while.
    pub(super) fn resumes(&mut self, subject: &Subject, read: &Read<'_>) -> bool {
        let in_force = read.resumed;
        let (Some(resumed), Some(history)) =
            (self.resumed.get_mut(subject), self.all.get_mut(subject))
        else {
            return false;
        };
        resumed.unheeded += u8::from(!in_force);
        let undone = history.instead.as_deref();
        let undone = undone.filter(|instead| instead.cause == Cause::Undone);
        let ended = undone.is_some_and(|instead| instead.of != *read.edition);
        // Then the file's own template is in force, neither the good nor the new one.
        let neither = !in_force
            && !resumed.over
            && history.instead.is_some()
            && history
                .revisions
                .last()
                .is_some_and(|last| last.hash != *read.hash);
        let same_file = resumed.instead.of == *read.written && !ended;
        let is_refused = resumed.unheeded > UNHEEDED || neither && same_file;
        if same_file && !is_refused && (in_force || !resumed.over) {
            return in_force;
        }
        // Another try would end the same way.
        history.refused |= is_refused;
        self.resumed.remove(subject);
        self.changes += 1;
        // The file is read again without it.
        in_force || neither && same_file
    }

    /// Why a client cannot restart a document now.
    pub(super) fn comes_back(&self, subject: &Subject) -> Option<String> {
        let resumed = self.resumed.get(subject);
        resumed.filter(|resumed| resumed.unheeded == 0).map(|_| {
            format!(
                "the pods of {subject} from before its rollout come back first; try again later"
            )
        })
    }

    /// Notes that no pod of an earlier template is left, so that a reboot brings none back.
    pub(super) fn alone(&mut self, subject: &Subject, workload: &Workload) {
        if let Some(history) = self.on_its_way(subject, workload)
            && !history.alone
        {
            history.alone = true;
            self.changes += 1;
            self.progress_changes += 1;
        }
    }

    /// Notes that pods of these ordinals of a StatefulSet are to have the new template. It does not rest: it is on disk
    /// about when they start to write.
    pub(super) fn note_updated(
        &mut self,
        subject: &Subject,
        workload: &Workload,
        ordinals: &BTreeSet<u64>,
    ) {
        let Some(history) = self.on_its_way(subject, workload) else {
            return;
        };
        if history.good.is_none() || ordinals.is_subset(&history.updated) {
            return;
        }
        if history.updated.len() >= MAX_UPDATED {
            history.updated.clear();
        }
        history.updated.extend(ordinals);
        // Versions that do not know ordinals start all pods with what the file says.
        history.alone = true;
        self.changes += 1;
    }

    /// The history of a document whose newest template is in force and has not reached all pods yet.
    fn on_its_way(&mut self, subject: &Subject, workload: &Workload) -> Option<&mut History> {
        let history = self.all.get_mut(subject)?;
        let last = &history.revisions.last()?.hash;
        let is_new = workload.revision == *last && history.good.as_ref() != Some(last);
        is_new.then_some(&mut **history)
    }
}

/// How an interrupted rollout goes on: with the good template in force at first.
fn interrupted(history: &History, kind: WorkloadKind) -> Option<Resumed> {
    let (good, last) = (history.good.as_ref()?, history.revisions.last()?);
    if history.refused || history.unstarted {
        return None;
    }
    let to = Some(&last.hash).filter(|last| *last != good);
    let instead = history.instead.as_deref();
    if to.is_some() && instead.is_some_and(|instead| instead.after.is_none()) {
        // The former version put it in force, and did not note which pods have it.
        return None;
    }
    let rolled_back = instead.is_some_and(|instead| instead.cause == Cause::RolledBack);
    if rolled_back && history.is_pending() && to.is_some() {
        // The good one is about to be in force for good.
        return None;
    }
    let none_left = match to {
        Some(_) => history.alone && history.updated.is_empty(),
        // What a client asked for had no time to take effect.
        None => !history.is_pending(),
    };
    if none_left {
        return None;
    }
    let document = serde_json::from_str::<Value>(&last.text.as_ref()?.text()).ok()?;
    if !stand_beside(&document, kind) {
        return None;
    }
    let back = history.revisions.iter().find(|r| r.hash == *good)?;
    let instead = Instead {
        cause: Cause::Resumed,
        of: history.written.clone(),
        text: back.text.as_ref()?.text().into(),
        note: None,
        replaced: None,
        after: None,
    };
    let update = &document["spec"]["updateStrategy"];
    let partition = update["rollingUpdate"]["partition"].as_u64();
    let by_hand = update["type"] == "OnDelete" || partition.is_some_and(|below| below > 0);
    Some(Resumed {
        instead,
        by_hand,
        to: to.cloned(),
        over: false,
        unheeded: 0,
    })
}

/// Whether pods of two templates of this document may run side by side.
fn stand_beside(document: &Value, kind: WorkloadKind) -> bool {
    let says = |field: &str, type_: &str| document["spec"][field]["type"] == type_;
    match kind {
        WorkloadKind::Deployment => {
            !says("strategy", "Recreate") || document["spec"]["paused"] == true
        }
        WorkloadKind::DaemonSet => says("updateStrategy", "OnDelete"),
        WorkloadKind::ReplicaSet
        | WorkloadKind::ReplicationController
        | WorkloadKind::StatefulSet => true,
        WorkloadKind::Job | WorkloadKind::CronJob => false,
    }
}
