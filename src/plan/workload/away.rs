//! Documents and pods that the node keeps down: while it shuts down, or because its cordon refuses them. That time does
//! not count for a rollout or a trial, which has its whole time again once the pods may run, as after `coracle start`.

use std::collections::{BTreeMap, BTreeSet};

use super::revisions::{Histories, Subject};
use super::stage::Stage;
use super::{NodeState, Progress, Stamp, Time};
use crate::spec::{PodUid, WorkloadKey};
use crate::types::Gather;

impl Progress {
    /// Notes whether the node keeps pods of the document down. What had failed before stays so.
    pub(super) fn note_kept_away(&mut self, kept_away: bool, now: Time) {
        let was = std::mem::replace(&mut self.kept_away, kept_away);
        if was && !kept_away && !self.failed {
            self.since = now;
        }
    }
}

impl Histories {
    /// The time of the revision in force stands still, and begins again when pods may run. That is kept on disk, for an
    /// agent restart before then.
    pub(super) fn rest(&mut self, subject: &Subject, now: Time) {
        let history = self.of(subject);
        let trial = history.and_then(|history| history.trial.as_ref());
        let resting = trial.and_then(|trial| trial.resting(self.boot(), now));
        if let Some(trial) = resting {
            self.set_trial(subject, trial);
        }
    }

    /// The same of all.
    fn rest_all(&mut self, now: Time) {
        self.steady.clear();
        let all = self.all.iter();
        let on_trial = all.filter(|(_, history)| history.trial.is_some());
        for subject in on_trial.map(|(of, _)| of.clone()).collect::<Vec<_>>() {
            self.rest(&subject, now);
        }
    }
}

impl NodeState {
    /// A drain stops these pods. Of a rollout that it interrupts, the pods of the last good template come back first, as
    /// after a reboot.
    pub(in crate::plan) fn rollouts_drained(&mut self, pods: &[PodUid]) {
        let going = pods.iter().filter_map(|uid| self.pods.get(uid));
        let of: BTreeSet<&WorkloadKey> =
            going.filter_map(|pod| pod.spec.workload.as_ref()).gather();
        for key in of {
            self.workloads.histories.resume(key);
        }
        self.workloads_due();
    }

    /// The turn of all documents while the node shuts down: their pods are counted, and nothing else.
    pub(super) fn count_while_down(&mut self, now: Stamp) {
        let mut workloads = std::mem::take(&mut self.workloads);
        workloads.histories.rest_all(now.time);
        let asked = workloads.asked.iter();
        let pods = asked.clone().flat_map(|asked| asked.pods.values());
        let pods: BTreeMap<_, _> = pods.map(|pod| (&pod.key, pod)).gather();
        for (key, workload) in asked.flat_map(|asked| asked.workloads.iter()) {
            let Some(progress) = workloads.progress.get_mut(key) else {
                continue;
            };
            let new = workload.pods.iter();
            let new: Vec<_> = new.filter_map(|pod| pods.get(pod).copied()).collect();
            let before = (progress.available, progress.kept_away);
            Stage::of(self, workload, &new, None, now).count(progress, now);
            progress.note_kept_away(true, now.time);
            let changed = before != (progress.available, progress.kept_away);
            workloads.rollout_changes += u64::from(changed);
        }
        self.workloads = workloads;
    }
}
