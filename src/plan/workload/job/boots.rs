//! A Job over reboots: which of its pods the end of a boot cut short, and the time that it was active in earlier boots.
//!
//! What the node does to a pod is no failure. But a pod that takes the machine down would do so at every boot: from the
//! fourth time on it counts.

use serde::{Deserialize, Serialize};

use super::{JobRecord, Own, restarts};
use crate::plan::{Stamp, Time};
use crate::spec::workload::job::Job;

/// How often pods of an index may be cut short before that counts as a failure.
const FREE_CUTS: u32 = 3;

/// Active time is noted in steps of a tenth of `activeDeadlineSeconds`, or of this if it is longer, in milliseconds.
const MIN_STEP_MS: u64 = 30_000;

/// The newest pod of an index that was let in.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Begun {
    number: u32,
    /// It is there.
    at_work: bool,
    /// The boot ended while it was.
    cut: bool,
    /// How often a boot ended under a pod of the index.
    cuts: u32,
    /// Its restarts after failures, in this boot.
    restarts: u32,
    /// The same in earlier boots.
    former_restarts: u32,
}

impl JobRecord {
    /// The machine has rebooted. Times of the boot before mean nothing.
    pub(super) fn rebooted(&mut self, now: Stamp) {
        self.failed_at = self.failed_at.map(|_| now.time);
        for at in self.index_failed_at.values_mut() {
            *at = now.time;
        }
        if let Some(started) = &mut self.started {
            started.time = now.time;
        }
        if let Some(end) = &mut self.ended {
            end.rebooted(now);
        }
        self.former_ms = self.active_ms;
        for begun in self.begun.values_mut() {
            begun.cut |= std::mem::take(&mut begun.at_work);
            begun.former_restarts += std::mem::take(&mut begun.restarts);
        }
    }

    /// The node shuts down: what ends now is not cut short. Returns whether anything was at work.
    pub(super) fn shut_down(&mut self) -> bool {
        let mut any = false;
        for begun in self.begun.values_mut() {
            any |= std::mem::take(&mut begun.at_work);
        }
        any
    }

    /// Counts the pods that were cut short too often.
    pub(super) fn count_cuts(&mut self, job: &Job, now: Stamp) {
        let mut failed = Vec::new();
        for (index, begun) in &mut self.begun {
            if !std::mem::take(&mut begun.cut) {
                continue;
            }
            begun.cuts = begun.cuts.saturating_add(1);
            if begun.cuts > FREE_CUTS {
                failed.push((*index, begun.number));
            }
        }
        if self.ended.is_some() {
            return;
        }
        for (index, number) in failed {
            self.next.insert(index, number.saturating_add(1));
            self.pause(job, index, now);
            self.fails(job, index, false);
        }
    }

    /// Notes which pods are at work.
    pub(super) fn note_begun(&mut self, own: &[Own<'_>]) {
        let mut before = std::mem::take(&mut self.begun);
        before.retain(|index, _| {
            !self.succeeded.contains(index) && !self.failed_indexes.contains(index)
        });
        for begun in before.values_mut() {
            begun.at_work = false;
        }
        self.begun = before;
        let here =
            |own: &&Own<'_>| own.runs() && own.pod.hold().is_none() && own.pod.verdict.is_none();
        for own in own.iter().filter(here) {
            let begun = self.begun.entry(own.index).or_default();
            if begun.number != own.number {
                *begun = Begun {
                    number: own.number,
                    cuts: begun.cuts,
                    ..Begun::default()
                };
            }
            begun.at_work = true;
            begun.restarts = restarts(own.pod);
        }
    }

    /// The restarts of this pod in earlier boots.
    pub(super) fn former_restarts(&self, own: &Own<'_>) -> u32 {
        let begun = self
            .begun
            .get(&own.index)
            .filter(|begun| begun.number == own.number);
        begun.map_or(0, |begun| begun.former_restarts)
    }

    /// Notes for how long it was active. Returns when to note it again.
    pub(super) fn note_active(&mut self, job: &Job, now: Stamp) -> Option<Time> {
        let Some(started) = self.started else {
            (self.active_ms, self.former_ms) = (0, 0);
            return None;
        };
        let step_ms = (job.deadline_ms? / 10).max(MIN_STEP_MS);
        if self.ended.is_some() {
            return None;
        }
        let active_ms = self.former_ms.saturating_add(now.time.since(started.time));
        if active_ms >= self.active_ms.saturating_add(step_ms) {
            self.active_ms = active_ms;
        }
        let next_ms = self
            .active_ms
            .saturating_add(step_ms)
            .saturating_sub(self.former_ms);
        Some(started.time.plus(next_ms))
    }

    /// When it will have been active for too long.
    pub(super) fn ends_at(&self, job: &Job) -> Option<Time> {
        let started = self.started.filter(|_| self.ended.is_none())?;
        Some(
            started
                .time
                .plus(job.deadline_ms?.saturating_sub(self.former_ms)),
        )
    }
}
