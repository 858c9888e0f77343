//! Jobs: which pods of them are wanted now, and what has become of those that ended (Kubernetes docs: Jobs; upstream's
//! `pkg/controller/job`). What was achieved is kept in a [`JobRecord`], which outlasts agent restarts and reboots: it
//! stays achieved until the file asks for another edition of the Job.
//!
//! ```text
//! pod ends ─► its number is counted: the index has succeeded ──all of them──► its other pods stop ─► complete
//!                                 or failed ─► back-off ─► the index's next pod
//!                                            └ too often, or a rule says so ─► its pods stop ─► the Job has failed
//! ```

mod boots;
mod end;
mod outcome;
mod ranges;
mod status;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use self::end::End;
use super::notice;
use crate::plan::state::{ContainerState, Flag, Role};
use crate::plan::status::{Phase, phase};
use crate::plan::verdict::Cause;
use crate::plan::{NodeState, Notice, PodState, Stamp, Time, Wall};
use crate::spec::workload::job::{self, Job};
use crate::spec::{PodKey, PodSpec, Reason, Workload, WorkloadKey};

/// The wait for the pod after a failed one; each failure in a row doubles it.
const BACKOFF_MS: u64 = 10_000;
const MAX_BACKOFF_MS: u64 = 600_000;

/// So many pods that have ended are kept for their logs.
const KEPT: usize = 100;

/// Records of so many Jobs are kept of which no file speaks: it may be on a disk that is not there yet.
const MAX_STRAY: usize = 1_000;

/// What a Job has achieved.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct JobRecord {
    /// Of which edition: [`Workload::revision`].
    edition: Arc<str>,
    /// When it came, by a clock that may have been right.
    #[serde(default)]
    since: Option<Wall>,
    /// Grows with each change of what its file says, whose edition is `file`.
    #[serde(default)]
    generation: u64,
    #[serde(default)]
    file: Arc<str>,
    /// When it started; `None` while it is suspended.
    started: Option<Stamp>,
    /// Whether it is suspended, once it was.
    suspended: Option<Flag>,
    /// The indexes that have succeeded.
    #[serde(with = "ranges")]
    succeeded: BTreeSet<u32>,
    /// The indexes that have failed.
    #[serde(with = "ranges")]
    failed_indexes: BTreeSet<u32>,
    /// The number of failed pods that count, by index.
    failures: BTreeMap<u32, u32>,
    /// The number of the next pod of an open index that had some.
    next: BTreeMap<u32, u32>,
    /// Failures since the last success, and when the newest was.
    in_row: u32,
    failed_at: Option<Time>,
    /// With a limit for each index: when the newest failure of each open one was.
    #[serde(default)]
    index_failed_at: BTreeMap<u32, Time>,
    /// The newest pods of open indexes that were let in.
    #[serde(default)]
    begun: BTreeMap<u32, boots::Begun>,
    /// The active time noted last, in milliseconds, and the part of it from earlier boots.
    #[serde(default)]
    active_ms: u64,
    #[serde(default)]
    former_ms: u64,
    /// How it ends, once that is decided.
    ended: Option<End>,
}

/// All Jobs.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Jobs {
    records: BTreeMap<WorkloadKey, JobRecord>,
    /// Pods that are wanted and do not exist yet.
    made: BTreeMap<PodKey, Arc<PodSpec>>,
    /// Pods that cannot be made while another file's has their name.
    blocked: BTreeMap<PodKey, WorkloadKey>,
    /// Grows with every change of a record.
    pub changes: u64,
}

/// A pod of this edition.
struct Own<'s> {
    pod: &'s PodState,
    index: u32,
    number: u32,
    /// It is over: whether it has succeeded.
    over: Option<bool>,
}

impl Own<'_> {
    fn runs(&self) -> bool {
        self.over.is_none() && self.pod.stopping().is_none()
    }
}

/// Whether the pod is over, and has succeeded. What the node has done to it does not count.
fn over(pod: &PodState) -> Option<bool> {
    let verdict = pod.verdict.as_ref().map(|verdict| verdict.cause);
    if pod.stopping().is_some() || !matches!(verdict, None | Some(Cause::DeadlineExceeded)) {
        return None;
    }
    match phase(pod) {
        Phase::Succeeded => Some(true),
        Phase::Failed => Some(false),
        Phase::Pending | Phase::Running => None,
    }
}

fn own<'s>(state: &'s NodeState, workload: &Workload) -> Vec<Own<'s>> {
    let of_edition = |pod: &&PodState| {
        let has = |edition: &str| pod.spec.revision() == Some(edition);
        let known = has(&workload.revision) || workload.formerly.as_deref().is_some_and(has);
        pod.spec.workload.as_ref() == Some(&workload.key) && known
    };
    let pods = state.pods.values().filter(of_edition);
    let mut own: Vec<Own<'s>> = pods
        .filter_map(|pod| {
            let (index, number) = job::place(&pod.spec)?;
            let over = over(pod);
            Some(Own {
                pod,
                index,
                number,
                over,
            })
        })
        .collect();
    own.sort_unstable_by_key(|own| (own.index, own.number));
    own
}

/// How often containers of this pod were restarted because they failed: what the node or a client did does not count.
pub(super) fn restarts(pod: &PodState) -> u32 {
    let counts = |c: &&ContainerState| c.role != Role::Ephemeral;
    let all = pod.containers.iter().filter(counts);
    all.map(|c| c.failures).fold(0, u32::saturating_add)
}

impl Jobs {
    /// What was kept from before the agent restart or reboot; with `rebooted` its times mean nothing.
    pub(super) fn recovered(
        &mut self,
        kept: &[(WorkloadKey, JobRecord)],
        rebooted: bool,
        now: Stamp,
    ) {
        for (key, record) in kept {
            let mut record = record.clone();
            if rebooted {
                record.rebooted(now);
            }
            self.records.insert(key.clone(), record);
        }
    }

    /// The records, to be kept.
    pub fn records(&self) -> Vec<(WorkloadKey, JobRecord)> {
        let all = self.records.iter();
        all.map(|(key, record)| (key.clone(), record.clone()))
            .collect()
    }

    /// The node shuts down.
    pub(in crate::plan) fn shut_down(&mut self) {
        for record in self.records.values_mut() {
            self.changes += u64::from(record.shut_down());
        }
    }

    /// How and when this one has ended, if it has and its pods are gone.
    pub(super) fn ended(&self, key: &WorkloadKey) -> Option<(bool, Wall)> {
        let end = self.records.get(key)?.ended.as_ref()?;
        Some((end.complete, end.over()?.wall))
    }

    /// When this one came, if that is known.
    pub(super) fn since(&self, key: &WorkloadKey) -> Option<Wall> {
        self.records.get(key)?.since
    }

    pub(super) fn generation(&self, key: &WorkloadKey) -> Option<u64> {
        Some(self.records.get(key)?.generation)
    }

    /// Whether it ended so long ago.
    pub(super) fn is_over(&self, key: &WorkloadKey, ttl_ms: Option<u64>, now: Stamp) -> bool {
        let record = self.records.get(key);
        let goes_at = record.and_then(|record| record.goes_at(ttl_ms));
        goes_at.is_some_and(|at| at <= now.time)
    }

    /// Forgets one.
    pub(super) fn forget(&mut self, key: &WorkloadKey) {
        self.changes += u64::from(self.records.remove(key).is_some());
        self.made
            .retain(|_, pod| pod.workload.as_ref() != Some(key));
        self.blocked.retain(|_, of| of != key);
    }

    /// Forgets Jobs that files asked for before and do not any more.
    pub(super) fn retain(
        &mut self,
        asked: impl Fn(&WorkloadKey) -> bool,
        asked_before: &BTreeSet<WorkloadKey>,
    ) {
        let before = self.records.len();
        self.records
            .retain(|key, _| asked(key) || !asked_before.contains(key));
        let stray: Vec<WorkloadKey> = self
            .records
            .keys()
            .filter(|key| !asked(key))
            .cloned()
            .collect();
        for key in stray.iter().skip(MAX_STRAY) {
            self.records.remove(key);
        }
        self.changes += u64::from(before != self.records.len());
        self.blocked.retain(|_, of| asked(of));
    }

    /// Whether a pod of this name, of another file, is in the way.
    pub(super) fn waits_for(&self, name: &PodKey) -> bool {
        self.blocked.contains_key(name)
    }

    /// The pods that are wanted now, and when that may change if nothing happens. `first` is the Job's first pod, of which
    /// the others are made, `asked` what files ask for.
    pub(super) fn turn(
        &mut self,
        state: &NodeState,
        (workload, job): (&Workload, &Job),
        first: Option<&Arc<PodSpec>>,
        asked: &BTreeMap<&PodKey, &Arc<PodSpec>>,
        now: Stamp,
        out: &mut Vec<Notice>,
    ) -> (Vec<Arc<PodSpec>>, Option<Time>) {
        let record = self.records.entry(workload.key.clone()).or_default();
        let before = record.clone();
        if workload.formerly.as_ref() == Some(&record.edition) {
            record.edition.clone_from(&workload.revision);
        }
        if record.edition != workload.revision {
            *record = JobRecord {
                edition: workload.revision.clone(),
                ..JobRecord::default()
            };
        }
        if record.file != workload.edition {
            record.file = workload.edition.clone();
            record.generation += 1;
        }
        let came = [workload.modified, now.wall];
        let came = came.into_iter().filter(|at| at.is_set()).min();
        record.since = record.since.or(came);
        let own = own(state, workload);
        let was_decided = record.ended.is_some();
        let had_ended = record
            .ended
            .as_ref()
            .is_some_and(|end| end.over().is_some());
        let suspended = job.suspended || state.stops.has_workload(&workload.key);
        record.count_cuts(job, now);
        record.count(job, &own, now);
        if record.ended.is_none() {
            record.started = match suspended {
                true => None,
                false => record.started.or(Some(now)),
            };
            record.note_suspended(workload, suspended, now, out);
            if !suspended {
                record.ended = record.end(job, &own, now);
            }
        }
        if record.ended.as_ref().is_some_and(|end| !end.complete) && !was_decided {
            record.count_removed(&own);
        }
        if let Some(end) = &mut record.ended {
            end.note_left(&own, now);
            if end.over().is_some() && !had_ended {
                let (reason, message) = end.event();
                out.push(notice::of(&workload.key, reason, message));
            }
        }
        if state.shutdown.is_none() {
            record.note_begun(&own);
        }
        let mut wake = vec![record.ends_at(job), record.note_active(job, now)];
        let mut wanted = record.finished(job, &own, now, &mut wake);
        let (running, new) = match record.ended.is_some() || suspended {
            true => (Vec::new(), Vec::new()),
            false => record.at_work(job, &own, now, &mut wake),
        };
        wanted.extend(running);
        // A pod of an earlier edition may still have the name, or another file's.
        let taken = state.pods.values().map(|pod| (&pod.spec.key, &pod.spec));
        let taken: BTreeMap<&PodKey, &Arc<PodSpec>> = taken.collect();
        let of_another = |pod: &&Arc<PodSpec>| pod.workload.as_ref() != Some(&workload.key);
        let mut made = BTreeMap::new();
        let mut blocked = BTreeMap::new();
        for (index, number) in new {
            let Some(first) = first else { continue };
            let name = first.key.name.strip_suffix("0-0").unwrap_or_default();
            let key = PodKey::new(
                first.key.namespace.clone(),
                format!("{name}{index}-{number}"),
            );
            // Not all pods of other documents that files ask for are wanted.
            let of_file = asked.get(&key).filter(|pod| pod.workload.is_none());
            let mut holders = of_file.into_iter().chain(taken.get(&key));
            if holders.any(of_another) {
                if !self.blocked.contains_key(&key) {
                    let message = format!("Error creating: pods \"{}\" already exists", key.name);
                    out.push(notice::of(&workload.key, Reason::FailedCreate, message));
                }
                blocked.insert(key, workload.key.clone());
                continue;
            }
            if taken.contains_key(&key) {
                continue;
            }
            let known = self.made.get(&key).cloned();
            let known = known.filter(|known| known.revision() == Some(&*workload.revision));
            let pod = known.or_else(|| match (index, number) {
                (0, 0) => Some(Arc::clone(first)),
                _ => first.of_job(index, number).map(Arc::new),
            });
            let Some(pod) = pod else { continue };
            made.insert(key, Arc::clone(&pod));
            wanted.push(pod);
        }
        let of_others = |pod: &Arc<PodSpec>| pod.workload.as_ref() != Some(&workload.key);
        self.made.retain(|_, pod| of_others(pod));
        self.made.append(&mut made);
        self.blocked.retain(|_, of| *of != workload.key);
        self.blocked.append(&mut blocked);
        self.changes += u64::from(*record != before);
        let wake = wake.into_iter().flatten().filter(|at| *at > now.time).min();
        (wanted, wake)
    }

    /// The pods of a Job that cannot be read at the moment: those that there are.
    pub(super) fn unread<'s>(
        state: &'s NodeState,
        key: &WorkloadKey,
    ) -> impl Iterator<Item = &'s Arc<PodSpec>> {
        let own = move |pod: &&PodState| {
            pod.spec.workload.as_ref() == Some(key) && pod.stopping().is_none()
        };
        let own: Vec<_> = state
            .pods
            .values()
            .filter(own)
            .map(PodState::wanted)
            .collect();
        own.into_iter()
    }
}

impl JobRecord {
    /// Notes whether it is suspended.
    fn note_suspended(
        &mut self,
        workload: &Workload,
        now_suspended: bool,
        now: Stamp,
        out: &mut Vec<Notice>,
    ) {
        let suspended = self.suspended.is_some_and(|flag| flag.yes);
        if suspended == now_suspended {
            return;
        }
        self.suspended = Some(Flag {
            yes: now_suspended,
            since: now.wall,
        });
        let (reason, message) = match now_suspended {
            true => (Reason::Suspended, "Job suspended"),
            false => (Reason::Resumed, "Job resumed"),
        };
        out.push(notice::of(&workload.key, reason, message.to_owned()));
    }

    /// When its pods go that were kept for their logs.
    fn goes_at(&self, ttl_ms: Option<u64>) -> Option<Time> {
        Some(self.ended.as_ref()?.over()?.time.plus(ttl_ms?))
    }

    /// The pods that have ended and stay for a while.
    fn finished(
        &self,
        job: &Job,
        own: &[Own<'_>],
        now: Stamp,
        wake: &mut Vec<Option<Time>>,
    ) -> Vec<Arc<PodSpec>> {
        let goes_at = self.goes_at(job.ttl_ms);
        wake.push(goes_at);
        if goes_at.is_some_and(|at| at <= now.time) {
            return Vec::new();
        }
        let over = own.iter().rev().filter(|own| own.over.is_some());
        over.take(KEPT)
            .map(|own| Arc::clone(own.pod.wanted()))
            .collect()
    }

    /// The pods that go on, and the places of new ones.
    fn at_work(
        &self,
        job: &Job,
        own: &[Own<'_>],
        now: Stamp,
        wake: &mut Vec<Option<Time>>,
    ) -> (Vec<Arc<PodSpec>>, Vec<(u32, u32)>) {
        let closed =
            |index: &u32| self.succeeded.contains(index) || self.failed_indexes.contains(index);
        let room = match job.completions {
            Some(wanted) => {
                let left = (wanted as usize)
                    .saturating_sub(self.succeeded.len() + self.failed_indexes.len());
                left.min(job.parallelism as usize)
            }
            None => job.parallelism as usize,
        };
        let running = own.iter().filter(|own| own.runs() && !closed(&own.index));
        let running: Vec<&Own<'_>> = running.take(room).collect();
        let here: Vec<Arc<PodSpec>> = running
            .iter()
            .map(|own| Arc::clone(own.pod.wanted()))
            .collect();
        // Those on their way out still take their places.
        let going = own
            .iter()
            .filter(|own| own.pod.stopping().is_some())
            .count();
        let free = room.saturating_sub(here.len() + going);
        let indexes = match job.completions {
            Some(wanted) => 0..wanted,
            None if self.succeeded.is_empty() => 0..job.parallelism,
            None => 0..0,
        };
        let busy: BTreeSet<u32> = running.iter().map(|own| own.index).collect();
        let open = indexes.filter(|index| !closed(index) && !busy.contains(index));
        let all_wait = match job.backoff_limit_per_index {
            None => self.failed_at.map(|at| at.plus(pause(self.in_row))),
            Some(_) => None,
        };
        if free == 0 || all_wait.is_some_and(|at| at > now.time) {
            wake.push(all_wait);
            return (here, Vec::new());
        }
        let mut places = Vec::new();
        for index in open {
            match self.retry(index) {
                Some(at) if at > now.time => wake.push(Some(at)),
                _ => places.push((index, self.next.get(&index).copied().unwrap_or(0))),
            }
            if places.len() == free {
                break;
            }
        }
        (here, places)
    }

    /// With a limit for each index: when this one may have its next pod.
    fn retry(&self, index: u32) -> Option<Time> {
        let at = self.index_failed_at.get(&index)?;
        let failures = self.failures.get(&index).copied().unwrap_or(1);
        Some(at.plus(pause(failures)))
    }
}

/// The wait after so many failures in a row, in milliseconds.
fn pause(failures: u32) -> u64 {
    let factor = 1u64 << failures.saturating_sub(1).min(32);
    BACKOFF_MS.saturating_mul(factor).min(MAX_BACKOFF_MS)
}

#[cfg(test)]
#[path = "job_test.rs"]
mod tests;
