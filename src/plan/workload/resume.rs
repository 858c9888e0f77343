//! Rollouts whose pods are gone before they ended: all of them by a reboot, or because a person stopped them, or some of
//! the former ones while it stands still. The pods of the good template come back first, and the file's template is
//! rolled out beside them once more. Otherwise a power cut would leave nothing but a template that may not work.

use std::sync::Arc;

use serde_json::Value;

use super::Progress;
use super::revisions::{Cause, Histories, History, Instead, Subject};
use crate::plan::Time;
use crate::spec::{Workload, WorkloadKey, WorkloadKind};

/// How long pods that come one after the other have to come back.
pub(super) const WITHIN_MS: u64 = 600_000;

/// The time between two such steps of a rollout that stands still.
const AGAIN_MS: u64 = 600_000;

/// A good template that could not be put in force in so many looks at the file is refused.
const UNHEEDED: u8 = 3;

/// An interrupted rollout.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Resumed {
    /// What is in force until its pods are back.
    pub(super) instead: Instead,
    /// They are: the file's own template is about to be in force again.
    pub(super) over: bool,
    /// How often its file was read and said what it says now.
    unheeded: u8,
}

impl Progress {
    /// Brings the missing pods of the good template back. Returns when, if that is to wait.
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
}

impl Histories {
    /// The node has rebooted, but for documents of which this is known.
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

    /// Pods of a document have gone: its good template is in force until they are back, if its rollout had not ended.
    pub(super) fn resume(&mut self, key: &WorkloadKey) {
        let subject = Subject::Workload(key.clone());
        let history = self.of(&subject);
        if let Some(instead) = history.and_then(|history| interrupted(history, key.kind)) {
            let resumed = Resumed {
                instead,
                over: false,
                unheeded: 0,
            };
            self.resumed.insert(subject, resumed);
            self.changes += 1;
        }
    }

    /// Whether the good template of a document is in force until its pods are back.
    pub(super) fn is_resumed(&self, subject: &Subject) -> bool {
        self.resumed.contains_key(subject)
    }

    /// Whether that is so of any document.
    pub fn is_any_resumed(&self) -> bool {
        !self.resumed.is_empty()
    }

    /// They are back: the file's template is to be in force.
    pub(super) fn go_on(&mut self, subject: &Subject) {
        if let Some(resumed) = self.resumed.get_mut(subject).filter(|r| !r.over) {
            resumed.over = true;
            self.changes += 1;
        }
    }

    /// A document was read with this template in its file. Returns whether its good one is in force for a while:
    /// `instead` says that it is another one than the file's.
    pub(super) fn resumes(&mut self, subject: &Subject, written: &Arc<str>, instead: bool) -> bool {
        let Some(resumed) = self.resumed.get_mut(subject) else {
            return false;
        };
        resumed.unheeded += u8::from(!instead);
        let is_refused = resumed.unheeded > UNHEEDED;
        let ends = resumed.instead.of != *written || is_refused || resumed.over && !instead;
        if !ends {
            return instead;
        }
        self.resumed.remove(subject);
        self.changes += 1;
        if let Some(history) = self.all.get_mut(subject).filter(|_| is_refused) {
            // It would be refused again.
            history.alone = true;
        }
        false
    }

    /// Why a client cannot change what is in force of a document now.
    pub(super) fn comes_back(&self, subject: &Subject) -> Option<String> {
        let resumed = self.resumed.get(subject);
        resumed.filter(|resumed| resumed.unheeded == 0).map(|_| {
            format!(
                "the pods of {subject} from before its rollout come back first; try again later"
            )
        })
    }

    /// No pod of an earlier template is left: after a reboot there is none to bring back.
    pub(super) fn alone(&mut self, subject: &Subject, workload: &Workload) {
        let Some(history) = self.all.get_mut(subject) else {
            return;
        };
        let in_force = workload.revision == history.written;
        if in_force && history.good.as_ref() != Some(&history.written) && !history.alone {
            history.alone = true;
            self.changes += 1;
            self.progress_changes += 1;
        }
    }
}

/// What brings the pods of the good template back.
fn interrupted(history: &History, kind: WorkloadKind) -> Option<Instead> {
    let good = history.good.as_ref();
    let good = good.filter(|good| **good != history.written)?;
    if history.alone || history.instead.is_some() {
        return None;
    }
    let last = history.revisions.last()?;
    if !stand_beside(last.text.as_deref()?, kind) {
        return None;
    }
    let back = history.revisions.iter().find(|r| r.hash == *good)?;
    Some(Instead {
        cause: Cause::Resumed,
        of: history.written.clone(),
        text: back.text.clone()?,
        note: None,
    })
}

/// Whether pods of an earlier template of this document go on while those of a new one come.
fn stand_beside(document: &str, kind: WorkloadKind) -> bool {
    let Ok(document) = serde_json::from_str::<Value>(document) else {
        return false;
    };
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
