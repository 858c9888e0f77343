//! Documents that stand for pods, as clients see them.

use std::collections::BTreeSet;

use super::{Input, Node};
use crate::plan::Action;
use crate::spec::{PodSpec, WorkloadKey, WorkloadKind};

/// What was shown of them.
#[derive(Debug, Default)]
pub(super) struct Workloads {
    /// What had changed in the planner's state when they were shown last.
    changes: Option<u64>,
    /// They are shown once what Jobs have achieved is on disk.
    pub(super) waits: bool,
}

impl Node {
    /// What has to be on disk before a pod is removed: the result of a Job that has no other trace of it.
    pub(super) fn before_removal(
        &mut self,
        action: &Action,
        spec: &PodSpec,
    ) -> Option<impl Future<Output = ()> + use<>> {
        let of_job = spec.workload.as_ref();
        let of_job = of_job.is_some_and(|key| key.kind == WorkloadKind::Job);
        if !of_job || !matches!(action, Action::RemoveSandbox { .. }) {
            return None;
        }
        self.keep_files();
        self.saved.files.jobs_written()
    }

    /// Shows the documents once what Jobs have achieved is on disk: what a client has seen survives a power cut.
    pub(super) fn show_kept_workloads(&mut self) {
        match self.saved.files.jobs_written() {
            None => self.show_workloads(),
            Some(written) if !self.workloads.waits => {
                self.workloads.waits = true;
                let inputs = self.tools.inputs.clone();
                super::spawn(async move {
                    written.await;
                    let _ = inputs.send(Input::JobsKept).await;
                });
            }
            Some(_) => {}
        }
    }

    /// Shows the documents of which something but the file has changed.
    fn show_workloads(&mut self) {
        let changes = Some(self.state.workloads.changes);
        if self.workloads.changes == changes {
            return;
        }
        self.workloads.changes = changes;
        self.ending_claims.due.set(true);
        let shown = self.state.shown_workloads();
        let shown: Vec<_> = shown.collect();
        for kind in WorkloadKind::ALL {
            let keys = shown.iter().map(|shown| &shown.workload.key);
            let known: BTreeSet<&WorkloadKey> = keys.filter(|key| key.kind == kind).collect();
            self.shown.store.keep_workloads(kind, &known);
        }
        for one in shown {
            self.shown.store.upsert_workload(one);
        }
    }
}
