//! Rollouts whose pods are all gone before they ended: by a reboot, or because a person stopped them. The pods of the good
//! template come back first, and the file's template is rolled out beside them once more. Otherwise a power cut would
//! leave nothing but a template that may not work.

use serde_json::Value;

use super::revisions::{Cause, Histories, History, Instead, Subject};
use crate::spec::{Workload, WorkloadKey, WorkloadKind, rollback};

/// How long pods that come one after the other have to come back.
pub(super) const WITHIN_MS: u64 = 600_000;

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

    /// All pods of a document go: its good template is in force until they are back, if its rollout had not ended.
    pub(super) fn resume(&mut self, key: &WorkloadKey) {
        let subject = Subject::Workload(key.clone());
        let history = self.all.get(&subject);
        if let Some(instead) = history.and_then(|history| interrupted(history, key.kind)) {
            self.resumed.insert(subject, instead);
            self.changes += 1;
        }
    }

    /// Whether the good template of a document is in force until its pods are back.
    pub(super) fn is_resumed(&self, subject: &Subject) -> bool {
        self.resumed.contains_key(subject)
    }

    /// They are back: the file's template is in force.
    pub(super) fn go_on(&mut self, subject: &Subject) {
        self.changes += u64::from(self.resumed.remove(subject).is_some());
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
    if history.alone || history.instead.is_some() || history.trial.is_some() {
        return None;
    }
    let last = history.revisions.last()?;
    if !stand_beside(last.text.as_deref()?, kind) {
        return None;
    }
    let back = history.revisions.iter().find(|r| r.hash == *good)?;
    Some(Instead {
        cause: Cause::Resumed,
        of: history.edition.clone(),
        text: back.text.clone()?,
        note: None,
    })
}

/// Whether pods of an earlier template of this document go on while those of a new one come. One that may be taken back
/// has a time of its own for its new template, reboots included.
fn stand_beside(document: &str, kind: WorkloadKind) -> bool {
    let Ok(document) = serde_json::from_str::<Value>(document) else {
        return false;
    };
    let says = |field: &str, type_: &str| document["spec"][field]["type"] == type_;
    let beside = match kind {
        WorkloadKind::Deployment => !says("strategy", "Recreate"),
        WorkloadKind::DaemonSet => says("updateStrategy", "OnDelete"),
        WorkloadKind::ReplicaSet
        | WorkloadKind::ReplicationController
        | WorkloadKind::StatefulSet => true,
        WorkloadKind::Job | WorkloadKind::CronJob => false,
    };
    beside && document["metadata"]["annotations"][rollback::ANNOTATION] != "true"
}
