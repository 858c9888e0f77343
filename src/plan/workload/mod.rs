//! Documents that stand for pods (Deployments, StatefulSets, …): which of their pods are wanted now.
//!
//! Files ask for pods ([`Workloads::asked`]); [`NodeState::desired`] is what of it is wanted now. Of a document with pods
//! of an earlier template these go step by step, and the new ones come step by step (`stage/`). There is no loop but the
//! planner's own: a step is taken when a pod of a document has become ready, or unready, or is gone, and when a time is
//! over that [`next`] names.

mod away;
pub mod cron;
mod images;
mod instead;
pub mod job;
pub(super) mod notice;
mod progress;
mod resume;
pub mod retention;
pub mod revisions;
mod shown;
mod stage;
pub mod status;
mod trial;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

pub use self::progress::Progress;
pub use self::shown::Shown;

use self::notice::Scales;
use self::revisions::Subject;
use super::event::Desired;
use super::stop::Target;
use super::{Event, NodeFact, NodeState, Notice, PodState, Stamp, Step, Time, Wall, bundle, probe};
use crate::spec::{PodKey, PodSpec, PodUid, Reason, Workload, WorkloadKey, WorkloadKind};
use crate::types::{Gather, SortedMap};

/// What is known of documents that stand for pods.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Workloads {
    /// What files ask for, if there is such a document among it.
    asked: Option<Desired>,
    /// The pods that are wanted of that now, in the order of their UIDs.
    staged: Vec<Arc<PodSpec>>,
    /// How far each of them is.
    progress: SortedMap<WorkloadKey, Box<Progress>>,
    /// What Jobs have achieved.
    pub jobs: job::Jobs,
    /// When CronJobs ran.
    pub crons: cron::Crons,
    /// What files said before, and what is in force instead.
    pub histories: revisions::Histories,
    /// A step may have become possible.
    due: bool,
    /// When a step becomes possible if nothing happens.
    wake: Option<Time>,
    /// Grows whenever the status of one of them may have changed.
    pub changes: u64,
    /// Grows whenever [`Workloads::rollouts`] has changed.
    pub rollout_changes: u64,
}

impl Workloads {
    /// Whether files ask for this, although it may not be wanted yet.
    pub(super) fn asks_for(&self, target: &Target) -> bool {
        self.asked.as_ref().is_some_and(|asked| target.is_of(asked))
    }

    /// What was kept of Jobs from before the agent restart or reboot; with `rebooted` its times mean nothing.
    pub fn with_jobs(kept: &[(WorkloadKey, job::JobRecord)], rebooted: bool, now: Stamp) -> Self {
        let mut workloads = Self::default();
        workloads.jobs.recovered(kept, rebooted, now);
        workloads
    }

    /// What was kept of CronJobs.
    pub fn with_crons(self, kept: &[(WorkloadKey, cron::CronRecord)]) -> Self {
        let crons = cron::Crons::recovered(kept);
        Self { crons, ..self }
    }

    /// The number of changes of what is kept of Jobs and CronJobs.
    pub fn job_changes(&self) -> u64 {
        self.jobs.changes + self.crons.changes
    }

    /// How far the others were before the agent restart.
    pub fn with_rollouts(self, kept: Vec<(WorkloadKey, Progress)>) -> Self {
        let kept = kept.into_iter();
        let progress = kept.map(|(key, progress)| (key, Box::new(progress)));
        let progress = progress.gather();
        Self { progress, ..self }
    }

    /// What was kept of documents' revisions.
    pub fn with_histories(self, histories: revisions::Histories) -> Self {
        Self { histories, ..self }
    }

    /// No document is asked for any more. What Jobs and CronJobs have done stays known, and so do revisions.
    fn leave(&mut self) {
        *self = Self {
            changes: self.changes,
            rollout_changes: self.rollout_changes + 1,
            jobs: std::mem::take(&mut self.jobs),
            crons: std::mem::take(&mut self.crons),
            histories: std::mem::take(&mut self.histories),
            ..Self::default()
        };
    }

    /// Whether a document stops its rollout by itself.
    pub fn is_paused(&self, subject: &Subject) -> bool {
        let Subject::Workload(key) = subject else {
            return false;
        };
        let asked = self.asked.iter();
        asked
            .filter_map(|asked| asked.workloads.get(key))
            .any(|workload| workload.paused)
    }

    /// Whether a pod does not start because its document was paused when it came.
    pub(super) fn is_unstarted(&self, pod: &PodSpec) -> bool {
        let subject = pod.workload.clone().map(Subject::Workload);
        subject.is_some_and(|subject| self.histories.is_unstarted(&subject))
    }

    /// How far all but Jobs are, to be kept for an agent restart.
    pub fn rollouts(&self) -> Vec<(WorkloadKey, Progress)> {
        let all = self.progress.iter();
        all.map(|(key, progress)| (key.clone(), Progress::clone(progress)))
            .collect()
    }
}

/// What of a pod decides about steps, or shows in the status of its document.
type Standing = (bool, bool, bool, bool, bool, u32);

fn standing(pod: &PodState) -> Standing {
    (
        is_ready(pod),
        ready_on_its_way_out(pod).is_some(),
        pod.stopping().is_some(),
        pod.hold().is_some(),
        pod.finished(),
        match of_job(&pod.spec) {
            Some(_) => job::restarts(pod),
            None => 0,
        },
    )
}

/// The Job that a pod belongs to.
fn of_job(pod: &PodSpec) -> Option<&WorkloadKey> {
    let key = pod.workload.as_ref()?;
    (key.kind == WorkloadKind::Job).then_some(key)
}

/// Since when a pod is ready; by the probes that it has now.
fn ready_since(pod: &PodState) -> Option<Time> {
    let since = pod.flags.ready_at.filter(|_| is_ready(pod))?;
    Some(probe::proved_at(pod).map_or(since, |proved| since.max(proved)))
}

/// Since when a terminating pod of a StatefulSet is ready: the status of its document counts it.
fn ready_on_its_way_out(pod: &PodState) -> Option<Time> {
    let of_set = |key: &WorkloadKey| key.kind == WorkloadKind::StatefulSet;
    let counts = pod.stopping().is_some() && pod.spec.workload.as_ref().is_some_and(of_set);
    pod.flags.ready_at.filter(|_| counts)
}

/// A terminating pod is not ready, although its containers still run; nor is one that still runs another image, or whose
/// readiness or liveness probe was edited and has not succeeded since.
fn is_ready(pod: &PodState) -> bool {
    let goes_on = pod.stopping().is_none() && pod.verdict.is_none();
    pod.flags.ready.yes && goes_on && !bundle::outdated(pod) && !probe::is_unproved(pod)
}

/// When a document came, if no file said it before: when its file was written, as far as clocks may be right.
fn came(desired: &Desired, key: &WorkloadKey, now: Wall) -> Option<Wall> {
    let modified = desired.workloads.get(key).map(|w| w.modified);
    [modified, Some(now)]
        .into_iter()
        .flatten()
        .filter(|at| at.is_set())
        .min()
}

/// The next step: a turn of all documents, if one may have become possible.
pub(super) fn next(state: &NodeState, now: Time) -> Step {
    if state.desired.is_none() {
        return Step::Rest;
    }
    let turn = || Step::Record(Event::Node(NodeFact::WorkloadTurn));
    // While the node shuts down, no step becomes possible by itself.
    let wake = (state.workloads.wake).filter(|_| state.shutdown.is_none());
    match wake {
        _ if state.workloads.due => turn(),
        Some(at) => Step::when(at, now, turn),
        None => Step::Rest,
    }
}

impl NodeState {
    /// All pods that files ask for, wanted now or later.
    pub fn asked_pods(&self) -> impl Iterator<Item = PodUid> {
        let asked = self.workloads.asked.iter();
        let asked = asked.flat_map(|asked| asked.pods.values());
        asked.map(|pod| self.incarnations.next(&pod.key, &pod.template))
    }

    /// All documents as clients see them.
    pub fn shown_workloads(&self) -> impl Iterator<Item = Shown> {
        let workloads = &self.workloads;
        let asked = workloads.asked.iter();
        let of_files = asked.flat_map(|asked| asked.workloads.values());
        let of_files = of_files.map(|workload| (workload, workload.modified));
        // Jobs of CronJobs are in no file.
        let made = workloads.crons.made.values();
        let made = made.map(|made| (&made.workload, made.created));
        let all = of_files.chain(made);
        all.map(|(workload, written)| Shown::of(self, workload, written))
    }

    /// The files were read.
    pub(super) fn desired_changed(&mut self, desired: &Desired, now: Stamp, out: &mut Vec<Notice>) {
        let workloads = &mut self.workloads;
        workloads.changes += 1;
        if desired.leaving {
            workloads.leave();
            return self.want(desired, now, out);
        }
        let jobs = |desired: &Desired| -> BTreeSet<WorkloadKey> {
            let of_pods = desired.pods.values().filter_map(|pod| of_job(pod));
            of_pods.cloned().collect()
        };
        let before = workloads.asked.as_ref();
        let crons = &mut workloads.crons;
        let mut jobs_before = before.map(jobs).unwrap_or_default();
        let all_before = before.map(|before| &before.workloads);
        jobs_before.extend(crons.jobs_of(all_before.into_iter().flat_map(|all| all.keys())));
        let asked = |key: &WorkloadKey| desired.workloads.contains_key(key);
        crons.retain(asked, |key| {
            all_before.is_some_and(|all| all.contains_key(key))
        });
        for (key, cron) in desired.workloads.iter().filter(|(_, w)| w.cron.is_some()) {
            crons.came(cron, came(desired, key, now.wall));
        }
        let mut jobs = jobs(desired);
        jobs.extend(crons.jobs_of(desired.workloads.keys()));
        let strays = crons.strays(asked);
        let kept = |key: &WorkloadKey| jobs.contains(key) || strays.contains(key);
        workloads.jobs.retain(kept, &jobs_before);
        self.note_revisions(desired, now.wall);
        let workloads = &mut self.workloads;
        let none = desired.workloads.is_empty() && desired.editions.is_empty();
        if none && jobs.is_empty() && strays.is_empty() {
            workloads.leave();
            return self.want(desired, now, out);
        }
        workloads.rollout_changes += 1;
        let pods_last = |w: &Workload| w.job.is_none() && w.cron.is_none();
        let all = &mut workloads.progress;
        all.retain(|key, _| desired.workloads.get(key).is_some_and(|w| pods_last(w)));
        let rolled_out = desired.workloads.iter().filter(|(_, w)| pods_last(w));
        for (key, workload) in rolled_out {
            if !all.contains_key(key) {
                all.insert(key.clone(), Box::new(Progress::new(workload, now)));
            }
            let Some(progress) = all.get_mut(key) else {
                continue;
            };
            progress.asked(workload, now);
            let history = workloads.histories.of_workload(key);
            let history = history.filter(|history| history.trial.is_some());
            // What was progress before a reboot is none after it.
            let history = history.filter(|_| !workload.resumed && progress.best == (0, 0, 0));
            progress.best = history.map_or(progress.best, |history| history.best);
        }
        workloads.progress.shrink_to_fit();
        workloads.asked = Some(desired.clone());
        let before = match self.desired {
            Some(_) => Scales::of(self.workloads.staged.iter()),
            None => Scales::found(self),
        };
        let staged = self.staged(now, out);
        self.want_staged(&staged, &before, now, out);
    }

    /// The wall clock was set.
    pub(super) fn clock_set(&mut self) {
        self.workloads_due();
    }

    /// A step may have become possible.
    pub(super) fn workloads_due(&mut self) {
        self.workloads.due |= self.workloads.asked.is_some();
    }

    /// What was known of CronJobs after so many changes is on disk.
    pub(super) fn crons_kept(&mut self, changes: u64) {
        self.workloads.crons.kept = changes;
        self.workloads_due();
    }

    /// Compares what files say with what they said before.
    fn note_revisions(&mut self, desired: &Desired, now: Wall) {
        let mut histories = std::mem::take(&mut self.workloads.histories);
        let ready = |key: &PodKey| {
            let mut pods = self.pods.values().filter(|pod| pod.spec.key == *key);
            let pod = pods.find(|pod| is_ready(pod) && pod.spec.workload.is_none())?;
            let before = self.desired.as_ref()?.pods.get(&pod.spec.uid)?;
            (before.manifest == pod.spec.manifest).then(|| Arc::clone(before))
        };
        histories.read(desired, now, ready);
        self.workloads.histories = histories;
    }

    /// Takes the steps that are possible.
    pub(super) fn workload_turn(&mut self, now: Stamp, out: &mut Vec<Notice>) {
        self.workloads.due = false;
        self.workloads.wake = None;
        self.workloads.changes += 1;
        if self.workloads.asked.is_none() {
            return;
        }
        if self.shutdown.is_some() {
            return self.count_while_down(now);
        }
        let staged = self.staged(now, out);
        let before = &self.workloads.staged;
        let mut pairs = before.iter().zip(staged.pods.values());
        let same =
            before.len() == staged.pods.len() && pairs.all(|(one, two)| Arc::ptr_eq(one, two));
        if !same {
            // Every pod is planned again.
            self.hold_changes += 1;
            let before = Scales::of(before.iter());
            self.want_staged(&staged, &before, now, out);
        }
    }

    fn want_staged(
        &mut self,
        staged: &Desired,
        before: &Scales,
        now: Stamp,
        out: &mut Vec<Notice>,
    ) {
        let asked = |key: &WorkloadKey| staged.workloads.contains_key(key);
        Scales::of(staged.pods.values()).report(before, asked, out);
        self.workloads.staged = staged.pods.values().cloned().collect();
        self.want(staged, now, out);
        // Pods that came or went in this step are progress.
        self.workloads.due = true;
    }

    /// These were stopped or started: their rollouts have as much time as new ones.
    pub(super) fn workloads_concern(&mut self, targets: &BTreeSet<Target>, now: Stamp) {
        for target in targets {
            if let Target::Workload(key) = target
                && let Some(progress) = self.workloads.progress.get_mut(key)
            {
                (progress.since, progress.failed) = (now.time, false);
            }
            if let Target::Workload(key) = target
                && self.stops.has_workload(key)
            {
                self.workloads.histories.resume(key);
            }
            let subject = match target {
                Target::Workload(key) => Subject::Workload(key.clone()),
                Target::Pod(key) => Subject::Pod(key.clone()),
            };
            self.workloads.histories.spare(&subject);
        }
        self.workloads_due();
    }

    /// What of this pod decides about steps, if it belongs to a document or is in the way of one.
    pub(super) fn standing(&self, pod: Option<&PodUid>) -> Option<Standing> {
        let pod = self.pods.get(pod?)?;
        let key = &pod.spec.key;
        let judged = pod.spec.workload.is_some()
            || self.workloads.histories.of_pod(key).is_some()
            || self.workloads.jobs.waits_for(key);
        judged.then(|| standing(pod))
    }

    /// Notes that a step may have become possible, if a pod's standing has changed. `others`: so has that of others.
    pub(super) fn standing_was(
        &mut self,
        pod: Option<&PodUid>,
        before: Option<Standing>,
        others: bool,
    ) {
        if self.workloads.asked.is_some() && (others || before != self.standing(pod)) {
            self.workloads.due = true;
        }
    }

    /// What is wanted now.
    fn staged(&mut self, now: Stamp, out: &mut Vec<Notice>) -> Desired {
        let Some(asked) = self.workloads.asked.take() else {
            return Desired::default();
        };
        let mut progress = std::mem::take(&mut self.workloads.progress);
        let keys = asked.pods.values().map(|pod| (&pod.key, pod));
        let asked_pods: BTreeMap<_, _> = keys.gather();
        let mut jobs = std::mem::take(&mut self.workloads.jobs);
        let mut crons = std::mem::take(&mut self.workloads.crons);
        let mut histories = std::mem::take(&mut self.workloads.histories);
        // Pods of a document that cannot be read any more go on as they are.
        let staged =
            |key: &WorkloadKey| asked.workloads.contains_key(key) || key.kind == WorkloadKind::Job;
        let mut pods: BTreeMap<PodUid, Arc<_>> = (asked.pods.iter())
            .filter(|(_, pod)| !pod.workload.as_ref().is_some_and(staged))
            .map(|(uid, pod)| (uid.clone(), Arc::clone(pod)))
            .gather();
        let unread = asked.pods.values().filter_map(|pod| of_job(pod));
        let unread = unread.filter(|key| !asked.workloads.contains_key(key));
        for pod in unread.flat_map(|key| job::Jobs::unread(self, key)) {
            pods.insert(pod.uid.clone(), Arc::clone(pod));
        }
        // The same of a CronJob's, unless all files are in force: then its own has gone.
        let strays = match asked.complete {
            true => BTreeSet::new(),
            false => crons.strays(|key| asked.workloads.contains_key(key)),
        };
        for pod in strays.iter().flat_map(|key| job::Jobs::unread(self, key)) {
            let here = self.pods.get(&pod.uid);
            if here.is_some_and(|here| !here.finished()) {
                pods.insert(pod.uid.clone(), Arc::clone(pod));
            }
        }
        for (key, workload) in asked.workloads.iter() {
            if let Some(cron) = &workload.cron {
                let mut of_jobs = BTreeMap::new();
                for (one, first) in crons.made_jobs(workload, cron) {
                    let Some(job) = &one.job else { continue };
                    let (wanted, wake) =
                        jobs.turn(self, (&one, job), Some(&first), &asked_pods, now, out);
                    of_jobs.insert(one.key.clone(), wanted);
                    self.workloads.wake = self.workloads.wake.into_iter().chain(wake).min();
                }
                let taken = |key: &WorkloadKey| asked.workloads.contains_key(key);
                let stopped = self.stops.has_workload(key);
                let wake = crons.turn((workload, cron), &mut jobs, taken, (now, stopped), out);
                self.workloads.wake = self.workloads.wake.into_iter().chain(wake).min();
                of_jobs.retain(|key, _| crons.made.contains_key(key));
                let wanted = of_jobs.into_values().flatten();
                pods.extend(wanted.map(|pod| (pod.uid.clone(), pod)));
                continue;
            }
            if let Some(job) = &workload.job {
                let first = workload.pods.first();
                let first = first.and_then(|first| asked_pods.get(first).copied());
                let (wanted, wake) = jobs.turn(self, (workload, job), first, &asked_pods, now, out);
                pods.extend(wanted.into_iter().map(|pod| (pod.uid.clone(), pod)));
                self.workloads.wake = self.workloads.wake.into_iter().chain(wake).min();
                continue;
            }
            let Some(progress) = progress.get_mut(key) else {
                continue;
            };
            let new: Vec<_> = (workload.pods.iter())
                .filter_map(|pod| asked_pods.get(pod).copied())
                .collect();
            let subject = Subject::Workload(key.clone());
            let resumed = histories.is_resumed(&subject) && workload.resumed;
            let halfway = histories.halfway(&subject).filter(|_| resumed);
            let mut stage = stage::Stage::of(self, workload, &new, halfway, now);
            if histories.is_unstarted(&subject) && !stage.keep_unstarted() {
                histories.has_started(&subject);
            }
            if stage.lacks_former()
                && histories.may_resume(key)
                && !(progress.has_waited(now.time) && histories.is_unheeded(&subject))
            {
                stage.await_former(&histories.updated(&subject));
            }
            let wanted = stage.wanted(progress);
            pods.extend(wanted.map(|pod| (pod.uid.clone(), Arc::clone(pod))));
            if !resumed && key.kind == WorkloadKind::StatefulSet {
                histories.note_updated(&subject, workload, &stage.updated());
            }
            let before = Progress::clone(progress);
            progress.resumed = histories.is_resumed(&subject);
            let unready = match workload.rollback && !progress.complete {
                true => stage.unready(self),
                false => Vec::new(),
            };
            progress.note_kept_away(stage.kept_away, now.time);
            if progress.kept_away {
                histories.rest(&subject, now.time);
            }
            let deadline_ms = stage.deadline_ms(self.cordon.is_some());
            let wake = stage.note(progress, now, deadline_ms, |best, within_ms| {
                histories.fails_at(&subject, best, within_ms, now.time)
            });
            let kept = Progress {
                figures: progress.figures,
                replicas_here: progress.replicas_here,
                ..before
            };
            let (failed, changed) = (kept.failed, kept != **progress);
            let goes_on = resumed && stage.goes_on(progress);
            let misses = stage.misses_former(progress) && histories.may_resume(key);
            let is_quiet = self.shutdown.is_none() && self.cordon.is_none();
            let is_alone = !misses && is_quiet && stage.has_no_former(progress);
            let awaits = stage.awaits_former();
            self.workloads.rollout_changes += u64::from(changed);
            // What stood still may go on.
            self.workloads.due |= failed && !progress.failed;
            if progress.failed && !failed {
                let message = status::timed_out(key);
                out.push(notice::of(key, Reason::ProgressDeadlineExceeded, message));
            }
            if goes_on {
                histories.go_on(&subject);
            }
            let again = match misses {
                true => progress.bring_back(key, &mut histories, now.time),
                false => None,
            };
            let until = progress.waits_until();
            let until = until.filter(|at| awaits && *at > now.time);
            let wake = wake.into_iter().chain(again).chain(until).min();
            if resumed {
                // Whether the good template works is known.
            } else if progress.complete {
                histories.passed(&subject, &workload.revision);
            } else if progress.failed && workload.rollback {
                let within_ms = workload.progress_deadline_ms.unwrap_or(0);
                let why = trial::why(within_ms, &unready);
                if let Some(message) = histories.fail(&subject, &why) {
                    out.push(notice::of(key, Reason::RolledBack, message));
                }
            } else if is_alone {
                histories.alone(&subject, workload);
            }
            self.workloads.wake = self.workloads.wake.into_iter().chain(wake).min();
        }
        let wake = trial::judge(&mut histories, self, &asked, now.time, out);
        self.workloads.wake = self.workloads.wake.into_iter().chain(wake).min();
        let mut workloads = Arc::clone(&asked.workloads);
        if !crons.made.is_empty() {
            let made = crons.made.iter();
            let made = made.map(|(key, made)| (key.clone(), Arc::clone(&made.workload)));
            Arc::make_mut(&mut workloads).extend(made);
        }
        let desired = Desired {
            pods,
            services: asked.services.clone(),
            workloads,
            complete: asked.complete,
            ..Desired::default()
        };
        self.workloads.asked = Some(asked);
        self.workloads.progress = progress;
        self.workloads.jobs = jobs;
        self.workloads.crons = crons;
        self.workloads.histories = histories;
        desired
    }
}

#[cfg(test)]
#[path = "workload_test.rs"]
mod tests;
