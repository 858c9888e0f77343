//! State files: what an agent restart needs beside the pods' folders. Each is written beside the loop, once for all
//! changes since the last write; how far rollouts are, which is on flash, at most once a second, as many documents
//! change together. A failed write is repeated (`slot.rs`). A lost
//! write may at most give a new pod the UID of an earlier one, or a condition a later time, or a rollout its whole time
//! again.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::slot::Slot;
use super::{Input, Node};
use crate::layout::Layout;
use crate::plan::incarnation::Incarnations;
use crate::plan::workload::cron::CronRecord;
use crate::plan::workload::job::JobRecord;
use crate::plan::workload::revisions::{Histories, History, Subject};
use crate::plan::{Event, NodeFact};
use crate::spec::WorkloadKey;
use crate::sys::file::{self, Durability};
use crate::types::Time;

/// Largest file that is read: a thousand pods, with room to spare.
const MAX_BYTES: u64 = 4 << 20;

/// The time between two writes of the revisions of documents for no more than how far rollouts are.
const REST_MS: u64 = 1000;

/// All state files.
#[derive(Debug)]
pub(super) struct StateFiles {
    /// The UIDs of removed pods.
    incarnations: StateFile,
    /// Since when pods are held.
    holds: StateFile,
    /// What Jobs have achieved.
    jobs: StateFile,
    /// The changes of CronJobs in that.
    crons: u64,
    /// How far rollouts are.
    rollouts: StateFile,
    /// The revisions of documents.
    revisions: StateFile,
    /// The changes in them that do not rest.
    decisions: u64,
}

/// What Jobs have achieved, with the boot in which the times of it mean something.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct KeptJobs {
    pub(super) boot_id: String,
    pub(super) jobs: Vec<(WorkloadKey, JobRecord)>,
    /// When CronJobs ran.
    #[serde(default)]
    pub(super) crons: Vec<(WorkloadKey, CronRecord)>,
}

impl StateFiles {
    /// `incarnations` is what was read of them.
    pub(super) fn new(layout: &Layout, incarnations: &Incarnations) -> Self {
        let lasting = |path, seen| StateFile::new(path, Durability::Process, seen);
        Self {
            incarnations: lasting(layout.incarnations(), incarnations.changes()),
            holds: lasting(layout.holds(), 0),
            // A Job that is complete must not run again.
            jobs: StateFile::new(layout.jobs(), Durability::PowerCut, 0),
            crons: 0,
            rollouts: lasting(layout.rollouts(), 0),
            revisions: StateFile {
                rest_ms: REST_MS,
                ..StateFile::new(layout.revisions(), Durability::PowerCut, 0)
            },
            decisions: 0,
        }
    }
}

impl StateFiles {
    /// Ends when what Jobs have achieved is on disk, or its write has failed; `None`: there is nothing to wait for.
    pub(super) fn jobs_written(&self) -> Option<impl Future<Output = ()> + use<>> {
        self.jobs.slot.is_due().then(|| self.jobs.written())
    }
}

impl Node {
    /// Writes changes soon.
    pub(super) fn keep_files(&mut self) {
        self.keep_files_at(Some(super::now().time));
    }

    /// Without a time, no file rests.
    fn keep_files_at(&mut self, now: Option<Time>) {
        let state = &self.state;
        let incarnations = &state.incarnations;
        let files = &mut self.saved.files;
        let changes = incarnations.changes();
        files.incarnations.keep(changes, now, || json(incarnations));
        let holds = || json(&state.holds());
        files.holds.keep(state.hold_changes, now, holds);
        let workloads = &state.workloads;
        let jobs = &workloads.jobs;
        let kept = || KeptJobs {
            boot_id: super::boot::id(),
            jobs: jobs.records(),
            crons: workloads.crons.records(),
        };
        let (changes, crons) = (workloads.job_changes(), workloads.crons.changes);
        files.jobs.keep(changes, now, || json(&kept()));
        if files.crons != crons {
            files.crons = crons;
            // A run of a CronJob begins after that, also where the write fails.
            let (written, inputs) = (files.jobs.written(), self.tools.inputs.clone());
            super::spawn(async move {
                written.await;
                let kept = Event::Node(NodeFact::CronsKept(crons));
                let _ = inputs.send(Input::Event(kept)).await;
            });
        }
        let changes = workloads.rollout_changes;
        let kept = || json(&workloads.rollouts());
        files.rollouts.keep(changes, now, kept);
        if let Some(written) = self.keep_revisions(now) {
            written.detach();
        }
    }

    /// Blocking. Writes what is left.
    pub(super) fn flush_files(&mut self) {
        self.keep_files_at(None);
        let files = &self.saved.files;
        for file in [
            &files.incarnations,
            &files.holds,
            &files.jobs,
            &files.rollouts,
            &files.revisions,
        ] {
            // The slot logs a failure.
            let _ = file.slot.write();
        }
    }
}

impl StateFiles {
    /// When the revisions of documents are due that rest.
    pub(super) fn next(&self) -> Option<Time> {
        self.revisions.due
    }

    /// What writes the revisions of documents, if they have changed. Without a time, or if what is in force has changed,
    /// the file does not rest.
    pub(super) fn begin_revisions(
        &mut self,
        histories: &Histories,
        now: Option<Time>,
    ) -> Option<impl Future<Output = ()> + use<>> {
        let decisions = histories.changes - histories.progress_changes;
        let now = now.filter(|_| decisions == self.decisions);
        self.decisions = decisions;
        let file = &mut self.revisions;
        if !file.begins(histories.changes, now) {
            return None;
        }
        let _ = file.slot.set(Some(json(&histories.records())));
        Some(file.written())
    }
}

/// Writes one file.
#[derive(Debug)]
struct StateFile {
    /// The newest state, by its number of changes.
    seen: u64,
    slot: Arc<Slot>,
    /// The time between two writes.
    rest_ms: u64,
    /// Until when it is not written.
    rests_until: Time,
    /// When it is written, if something has changed while it rests.
    due: Option<Time>,
}

impl StateFile {
    /// `seen` is the number of changes in the file now.
    fn new(path: PathBuf, durability: Durability, seen: u64) -> Self {
        Self {
            seen,
            slot: Slot::new(path, durability),
            rest_ms: 0,
            rests_until: Time::default(),
            due: None,
        }
    }

    /// Whether a write begins now: something has changed, and the file does not rest.
    fn begins(&mut self, changes: u64, now: Option<Time>) -> bool {
        if self.seen == changes {
            return false;
        }
        if now.is_some_and(|now| now < self.rests_until) {
            self.due = Some(self.rests_until);
            return false;
        }
        self.seen = changes;
        self.rests_until = now.unwrap_or_default().plus(self.rest_ms);
        self.due = None;
        true
    }

    /// Writes the file soon if anything has changed.
    fn keep(&mut self, changes: u64, now: Option<Time>, content: impl FnOnce() -> Vec<u8>) {
        if !self.begins(changes, now) {
            return;
        }
        // A pending write takes it along.
        if self.slot.set(Some(content())) {
            super::spawn(self.written());
        }
    }

    /// Writes the newest state, once.
    fn written(&self) -> impl Future<Output = ()> + use<> {
        let written = Arc::clone(&self.slot).written();
        async move {
            // The slot logs a failure, and repeats the write.
            let _ = written.await;
        }
    }
}

fn json<T: Serialize>(state: &T) -> Vec<u8> {
    serde_json::to_vec(state).expect("plain data")
}

/// The file's content; empty if it is missing or broken.
pub(super) fn read<T: Default + DeserializeOwned>(path: &Path) -> T {
    read_up_to(path, MAX_BYTES)
}

/// The same of the revisions of documents, which have texts.
pub(super) fn read_revisions(path: &Path) -> Vec<(Subject, History)> {
    read_up_to(path, 4 * MAX_BYTES)
}

fn read_up_to<T: Default + DeserializeOwned>(path: &Path, limit: u64) -> T {
    let bytes = match file::read_bounded(path, limit) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return T::default(),
        Err(error) => {
            tracing::warn!("could not read `{}`: {error}, ignoring", path.display());
            return T::default();
        }
    };
    serde_json::from_slice(&bytes).unwrap_or_else(|error| {
        tracing::warn!("`{}` is broken ({error}), ignoring", path.display());
        T::default()
    })
}
