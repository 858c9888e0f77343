//! CronJobs: which of their Jobs there are, and when the next one begins (Kubernetes docs: CronJob; upstream's
//! `pkg/controller/cronjob`). They are the only decisions that go by the wall clock, which may jump.
//!
//! ```text
//!            settled           not settled      settled              now
//! ──────┬──────────────────┬─────────────────┬───────────┬────────────┴─────► wall clock
//!       │ each time of the schedule has run, │           │ due: the last time that is missing here;
//!       │ or has been passed over for good   │           │ what was before it is passed over
//! ```
//!
//! What is settled is kept, so no time runs twice: not after the clock was set back, nor after a restart or a power cut. A
//! run counts once this is on disk ([`Crons::kept`]), and its pods start after that. A clock that was ahead for a while
//! settles what it has shown only; between that and the present nothing is settled, so runs go on once it is right.
//!
//! A clock that was never set since boot ([`Wall::is_set`]) starts nothing, and says nothing about what was missed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{job, notice};
use crate::plan::{Notice, Stamp, Time, Wall, status};
use crate::spec::workload::cron::{Concurrency, CronJob, job_key};
use crate::spec::{PodSpec, Reason, Workload, WorkloadKey, WorkloadKind};

/// So many stretches of settled time are kept apart; each jump of the clock can make one.
const MAX_SETTLED: usize = 16;
/// So many Jobs of one CronJob may be at work.
const MAX_ACTIVE: usize = 100;
/// With more missed runs there is a warning (upstream's limit).
const MANY: usize = 100;
/// Records of so many CronJobs are kept of which no file speaks: it may be on a disk that is not there yet.
const MAX_STRAY: usize = 1_000;

/// What is known of a CronJob.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct CronRecord {
    /// When its file was written first, by a clock that may have been right.
    #[serde(default)]
    since: Option<Wall>,
    /// The edition of its file.
    #[serde(default)]
    edition: Arc<str>,
    /// Grows with each change of its file, as `metadata.generation` does; 0 in records of former versions.
    #[serde(default)]
    generation: u64,
    /// Its schedule and time zone: a changed one has missed nothing.
    schedule: String,
    /// From and to, in seconds of the wall clock, in ascending order: what was scheduled there is done with.
    settled: Vec<(i64, i64)>,
    /// Its Jobs, by their times.
    runs: BTreeMap<i64, Run>,
    last_schedule: Option<i64>,
    last_success: Option<Wall>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Run {
    created: Wall,
    /// It has ended: whether it is complete.
    ended: Option<bool>,
    /// The change that made it.
    #[serde(skip)]
    change: u64,
}

/// A Job as its CronJob makes it.
#[derive(Debug, Clone, PartialEq)]
pub struct MadeJob {
    /// The Job.
    pub workload: Arc<Workload>,
    /// When it was made.
    pub created: Wall,
    /// The first of its pods.
    first: Arc<PodSpec>,
    /// The edition of the CronJob.
    edition: Arc<str>,
}

/// All CronJobs.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Crons {
    records: BTreeMap<WorkloadKey, CronRecord>,
    /// The Jobs of those that files ask for.
    pub made: BTreeMap<WorkloadKey, MadeJob>,
    /// What was said about a time that did not run.
    said: BTreeMap<WorkloadKey, (Reason, i64)>,
    /// Grows with every change of a record.
    pub changes: u64,
    /// The last change that is on disk.
    pub kept: u64,
}

impl CronRecord {
    /// Up to when everything is settled, seen from now.
    fn floor(&self, now: i64) -> Option<i64> {
        let begun = self.settled.iter().filter(|(from, _)| *from <= now);
        begun.map(|(_, to)| *to).max()
    }

    /// The first time after the settled ones.
    fn next(&self, floor: i64, cron: &CronJob) -> Option<i64> {
        let mut next = cron.schedule.next(floor, &cron.zone)?;
        // What a clock that was ahead has shown.
        for (from, to) in &self.settled {
            if (*from..=*to).contains(&next) {
                next = cron.schedule.next(*to, &cron.zone)?;
            }
        }
        Some(next)
    }

    /// This time is settled. `floor`: nothing is missing between that one and this.
    fn settle(&mut self, at: i64, floor: Option<i64>) {
        match self.settled.iter_mut().find(|(_, to)| Some(*to) == floor) {
            Some((_, to)) => *to = at,
            None => self.settled.push((at, at)),
        }
        self.settled.sort_unstable();
        while self.settled.len() > MAX_SETTLED {
            let first = self.least(at);
            let (from, to) = self.settled.remove(first);
            self.settled[first] = (from, to.max(self.settled[first].1));
        }
    }

    /// The first of the two stretches that become one: nothing runs between them any more. The present may be at what is
    /// settled now or at what was settled before it, as the clock may be ahead: what follows on these stays free.
    fn least(&self, at: i64) -> usize {
        let presents = [Some(at), self.last_schedule];
        let first_present = presents.into_iter().flatten().min().unwrap_or(at);
        if self.settled[1].1 < first_present {
            // The past.
            return 0;
        }
        let is_present = |(from, to): (i64, i64)| {
            let mut presents = presents.iter().flatten();
            presents.any(|present| (from..=to).contains(present))
        };
        let pairs = self.settled.windows(2).enumerate();
        let free = pairs.filter(|(_, pair)| !is_present(pair[0]));
        let least = free.min_by_key(|(_, pair)| pair[1].0.saturating_sub(pair[0].1));
        least.map_or(0, |(first, _)| first)
    }

    /// So many times after `floor` up to `until`; not more than are many.
    fn missed(&self, cron: &CronJob, floor: i64, until: i64) -> usize {
        let next = |at: &i64| cron.schedule.next(*at, &cron.zone);
        let all = std::iter::successors(next(&floor), next);
        all.take_while(|at| *at <= until).take(MANY + 1).count()
    }

    fn active(&self) -> impl Iterator<Item = i64> {
        let all = self.runs.iter().filter(|(_, run)| run.ended.is_none());
        all.map(|(at, _)| *at)
    }
}

impl Crons {
    /// What was kept from before the agent restart or reboot.
    pub(super) fn recovered(kept: &[(WorkloadKey, CronRecord)]) -> Self {
        Self {
            records: kept.iter().cloned().collect(),
            ..Self::default()
        }
    }

    /// The records, to be kept.
    pub fn records(&self) -> Vec<(WorkloadKey, CronRecord)> {
        let all = self.records.iter();
        all.map(|(key, record)| (key.clone(), record.clone()))
            .collect()
    }

    /// The Jobs of these CronJobs.
    pub(super) fn jobs_of<'k>(
        &self,
        keys: impl Iterator<Item = &'k WorkloadKey>,
    ) -> BTreeSet<WorkloadKey> {
        let known = keys.filter_map(|key| Some((key, self.records.get(key)?)));
        known
            .flat_map(|(key, record)| record.runs.keys().map(|at| job_key(key, *at)))
            .collect()
    }

    /// The Jobs of those of which no file speaks.
    pub(super) fn strays(&self, asked: impl Fn(&WorkloadKey) -> bool) -> BTreeSet<WorkloadKey> {
        self.jobs_of(self.records.keys().filter(|key| !asked(key)))
    }

    /// Forgets CronJobs that files asked for before and do not any more.
    pub(super) fn retain(
        &mut self,
        asked: impl Fn(&WorkloadKey) -> bool,
        asked_before: impl Fn(&WorkloadKey) -> bool,
    ) {
        let before = self.records.len();
        self.records
            .retain(|key, _| asked(key) || !asked_before(key));
        let strays = self.records.keys().filter(|key| !asked(key));
        let strays: Vec<WorkloadKey> = strays.skip(MAX_STRAY).cloned().collect();
        for key in strays {
            self.records.remove(&key);
        }
        let known = &self.records;
        self.said.retain(|key, _| known.contains_key(key));
        self.made.clear();
        self.changes += u64::from(before != self.records.len());
    }

    /// Makes the Jobs that there are, of their template as it is now. Returns those whose pods may start.
    pub(super) fn made_jobs(
        &mut self,
        workload: &Workload,
        cron: &CronJob,
    ) -> Vec<(Arc<Workload>, Arc<PodSpec>)> {
        let Some(record) = self.records.get(&workload.key) else {
            return Vec::new();
        };
        let mut all = Vec::new();
        for (at, run) in &record.runs {
            let key = job_key(&workload.key, *at);
            let known = self.made.get(&key);
            if known.is_none_or(|made| made.edition != workload.revision)
                && let Some((job, first)) = cron.job(&workload.key, *at)
            {
                let made = MadeJob {
                    workload: Arc::new(job),
                    first: Arc::new(first),
                    created: run.created,
                    edition: workload.revision.clone(),
                };
                self.made.insert(key.clone(), made);
            }
            if let Some(made) = self.made.get(&key).filter(|_| run.change <= self.kept) {
                all.push((Arc::clone(&made.workload), Arc::clone(&made.first)));
            }
        }
        all
    }

    /// Notes which Jobs have ended, forgets old ones, and begins the next one if it is time. Returns when to ask again if
    /// nothing happens. `taken`: there is a Job of that name already, which is no CronJob's; `stopped`: it is kept from running as if it were
    /// suspended.
    pub(super) fn turn(
        &mut self,
        (workload, cron): (&Workload, &CronJob),
        jobs: &mut job::Jobs,
        taken: impl Fn(&WorkloadKey) -> bool,
        (now, stopped): (Stamp, bool),
        out: &mut Vec<Notice>,
    ) -> Option<Time> {
        let key = &workload.key;
        let mut record = self.records.remove(key).unwrap_or_default();
        let before = record.clone();
        let said = self.said.remove(key);
        let mut say = |reason: Reason, message: String| {
            out.push(notice::of(key, reason, message));
        };
        for (at, run) in &mut record.runs {
            let name = job_key(key, *at);
            let ended = jobs.ended(&name);
            if let (None, Some((complete, at))) = (run.ended, ended) {
                run.ended = Some(complete);
                if complete {
                    record.last_success = record.last_success.max(Some(at));
                }
                let condition = if complete { "Complete" } else { "Failed" };
                let message = format!("Saw completed job: {}, condition: {condition}", name.name);
                say(Reason::SawCompletedJob, message);
            }
        }
        for (complete, limit) in [(true, cron.keep_succeeded), (false, cron.keep_failed)] {
            let ended = record.runs.iter().rev();
            let ended = ended.filter(|(_, run)| run.ended == Some(complete));
            let old: Vec<i64> = ended.skip(limit).map(|(at, _)| *at).collect();
            let over = |at: &i64| jobs.is_over(&job_key(key, *at), cron.ttl_ms(), now);
            let over = record.runs.keys().copied().filter(over).collect::<Vec<_>>();
            for at in old.into_iter().chain(over) {
                if record.runs.remove(&at).is_some() {
                    let job = job_key(key, at);
                    say(
                        Reason::SuccessfulDelete,
                        format!("Deleted job {}", job.name),
                    );
                    self.made.remove(&job);
                    jobs.forget(&job);
                }
            }
        }
        let (due, wake) = record.due((cron, stopped), jobs_room(cron, &record), now);
        let told = match due {
            Due::Nothing => None,
            Due::Not(reason, at, message) => {
                if said != Some((reason, at)) {
                    say(reason, message);
                }
                Some((reason, at))
            }
            Due::Run { at, floor, missed } => {
                if missed > MANY {
                    say(Reason::TooManyMissedTimes, TOO_MANY.to_owned());
                }
                record.settle(at, floor);
                record.last_schedule = Some(at);
                if cron.concurrency == Concurrency::Replace {
                    let active: Vec<i64> = record.active().collect();
                    for at in active {
                        record.runs.remove(&at);
                        let job = job_key(key, at);
                        say(
                            Reason::SuccessfulDelete,
                            format!("Deleted job {}", job.name),
                        );
                        self.made.remove(&job);
                        jobs.forget(&job);
                    }
                }
                let job = job_key(key, at);
                if !taken(&job) {
                    say(
                        Reason::SuccessfulCreate,
                        format!("Created job {}", job.name),
                    );
                    jobs.forget(&job);
                    record.runs.insert(
                        at,
                        Run {
                            created: now.wall,
                            ended: None,
                            change: self.changes + 1,
                        },
                    );
                }
                None
            }
        };
        if let Some(told) = told {
            self.said.insert(key.clone(), told);
        }
        self.changes += u64::from(record != before);
        self.records.insert(key.clone(), record);
        wake
    }

    /// A CronJob's file was read. It came then, unless it was there before.
    pub(super) fn came(&mut self, workload: &Workload, since: Option<Wall>) {
        let record = self.records.entry(workload.key.clone()).or_default();
        if since.is_some() && record.since.is_none() {
            record.since = since;
            self.changes += 1;
        }
        if record.edition != workload.revision {
            record.edition.clone_from(&workload.revision);
            record.generation += 1;
            self.changes += 1;
        }
    }

    /// Its `metadata.generation`, if that is known.
    pub(super) fn generation(&self, key: &WorkloadKey) -> Option<u64> {
        Some(self.records.get(key)?.generation)
    }

    /// When its file was written first, if that is known.
    pub(super) fn since(&self, key: &WorkloadKey) -> Option<Wall> {
        self.records.get(key)?.since
    }

    /// The CronJob's `status`; `None` before the files were read.
    pub(super) fn status(&self, workload: &Workload) -> Option<Value> {
        let record = self.records.get(&workload.key)?;
        let active = record.active().map(|at| {
            let key = job_key(&workload.key, at);
            json!({
                "apiVersion": WorkloadKind::Job.version(),
                "kind": WorkloadKind::Job.as_str(),
                "namespace": key.namespace,
                "name": key.name,
                "uid": key.uid().to_string(),
            })
        });
        let mut shown = json!({});
        let active: Vec<Value> = active.collect();
        if !active.is_empty() {
            shown["active"] = json!(active);
        }
        let last = record
            .last_schedule
            .map(|at| Wall(at.saturating_mul(1_000_000)));
        for (field, time) in [
            ("lastScheduleTime", last),
            ("lastSuccessfulTime", record.last_success),
        ] {
            if let Some(time) = time {
                shown[field] = json!(status::time(time));
            }
        }
        Some(shown)
    }
}

const TOO_MANY: &str = "too many missed start times. Set or decrease .spec.startingDeadlineSeconds or check clock skew";
const FORBIDDEN: &str =
    "Not starting job because prior execution is running and concurrency policy is Forbid";
const NO_ROOM: &str = "Not starting job because so many are running already";
const UNSET: &str = "The clock was not set since the machine has started: runs wait for that";

/// Why no other Job may begin now.
fn jobs_room(cron: &CronJob, record: &CronRecord) -> Option<&'static str> {
    match (cron.concurrency, record.active().count()) {
        (Concurrency::Forbid, 1..) => Some(FORBIDDEN),
        (Concurrency::Allow, MAX_ACTIVE..) => Some(NO_ROOM),
        _ => None,
    }
}

/// What is due.
enum Due {
    Nothing,
    /// Something that does not begin, and why.
    Not(Reason, i64, String),
    /// A run, with the number of times that were missed. `floor`: the one before it was settled then.
    Run {
        at: i64,
        floor: Option<i64>,
        missed: usize,
    },
}

impl CronRecord {
    /// What is due, and when the next time is. `busy`: no other Job may begin.
    fn due(
        &mut self,
        (cron, stopped): (&CronJob, bool),
        busy: Option<&'static str>,
        now: Stamp,
    ) -> (Due, Option<Time>) {
        if !now.wall.is_set() {
            let due = Due::Not(Reason::ClockNotSet, 0, UNSET.to_owned());
            return (due, None);
        }
        let seconds = now.wall.0.div_euclid(1_000_000);
        let new = self.schedule != cron.written;
        let floor = match self.floor(seconds) {
            Some(floor) if !new || floor >= seconds => floor,
            // What was before it is not missed.
            _ => {
                self.settle(seconds, None);
                seconds
            }
        };
        if new {
            self.schedule.clone_from(&cron.written);
        }
        if cron.suspended || stopped {
            return (Due::Nothing, None);
        }
        let wake = |at: Option<i64>| {
            let us = at?.saturating_mul(1_000_000).saturating_sub(now.wall.0);
            // Not a moment too soon: the clock of timers has coarser units.
            let ms = u64::try_from(us / 1_000).unwrap_or(0);
            Some(now.time.plus(ms + 2))
        };
        let latest = cron.schedule.latest(floor, seconds, &cron.zone);
        let Some(at) = latest else {
            return (Due::Nothing, wake(self.next(floor, cron)));
        };
        let next = wake(self.next(at, cron));
        if cron.deadline_s.is_some_and(|most| seconds - at > most) {
            let message = format!("Missed scheduled time to start a job: {}", cron.shown(at));
            return (Due::Not(Reason::MissSchedule, at, message), next);
        }
        if let Some(why) = busy {
            // Its end is the next moment that matters.
            return (Due::Not(Reason::JobAlreadyActive, at, why.to_owned()), None);
        }
        let reached = cron.deadline_s.map(|most| seconds.saturating_sub(most));
        let missed = self.missed(cron, reached.map_or(floor, |at| at.max(floor)), seconds);
        let floor = (self.missed(cron, floor, seconds) == 1).then_some(floor);
        (Due::Run { at, floor, missed }, next)
    }
}

#[cfg(test)]
#[path = "cron_test.rs"]
mod tests;
