//! Pods of the good template that come back (`resume.rs`).

use std::sync::Arc;

use super::super::Progress;
use super::super::resume::WITHIN_MS;
use super::{Old, Stage};
use crate::spec::workload::Update;
use crate::spec::{PodSpec, WorkloadKind};

impl Stage<'_> {
    /// The pods of the good template that are missing, beside all others that there is room for.
    pub(super) fn back(&self, surge: usize) -> Vec<&Arc<PodSpec>> {
        let (missing, most) = (self.missing(), self.new.len() + surge);
        let room = most.saturating_sub(self.old.len());
        let mut wanted = self.first_new(missing.min(room));
        let old: Vec<&Old<'_>> = self.live().collect();
        wanted.extend(self.last_to_go(old, most - missing));
        wanted
    }

    /// How many pods of the good template there are to be beside those that serve.
    fn missing(&self) -> usize {
        let serving = self.live().filter(|old| self.is_available(old.ready));
        self.new.len().saturating_sub(serving.count())
    }

    /// Whether the pods of an interrupted rollout are back, or took too long.
    pub(in crate::plan::workload) fn goes_on(&self, progress: &Progress) -> bool {
        let all = match self.workload.update {
            Update::Rolling { .. } => self.missing(),
            Update::Recreate | Update::InPlace { .. } | Update::OnDelete => progress.replicas_here,
        };
        let here = progress.figures.updated as usize >= all;
        !self.stopped && (here || progress.failed)
    }

    /// How long it may take without progress, in milliseconds.
    pub(in crate::plan::workload) fn deadline_ms(&self, cordoned: bool) -> Option<u64> {
        // Such a rollout waits for a person, however long that takes.
        let stays = match self.workload.update {
            Update::OnDelete => true,
            Update::InPlace { partition, .. } => partition > 0,
            Update::Rolling { .. } | Update::Recreate => false,
        };
        let ends = self.resumed && !stays && !cordoned;
        let own = self.workload.progress_deadline_ms;
        own.or(ends.then_some(WITHIN_MS))
    }

    /// Whether a rollout that stands still has fewer pods than its strategy allows: some were deleted or evicted, or the file
    /// asks for more.
    pub(in crate::plan::workload) fn misses_former(&self, progress: &Progress) -> bool {
        let Update::Rolling { unavailable, .. } = self.workload.update else {
            return false;
        };
        let figures = &progress.figures;
        // A pod that was ready before may be ready again soon.
        let steady = (progress.best.1).min(figures.updated as usize);
        let serving = figures.old as usize + steady.max(figures.updated_steady as usize);
        let enough = self.new.len().saturating_sub(unavailable as usize);
        self.stands_still(progress)
            && !(progress.complete || self.resumed || self.stopped)
            && serving < enough
    }

    /// Whether no pod of an earlier template is left to bring back. In a StatefulSet one new pod is enough: the former
    /// template must not run on data of the new one.
    pub(in crate::plan::workload) fn has_no_former(&self, progress: &Progress) -> bool {
        let kind = self.workload.key.kind;
        let beside = match self.workload.update {
            Update::Recreate => self.workload.paused,
            Update::OnDelete => true,
            Update::Rolling { .. } | Update::InPlace { .. } => kind != WorkloadKind::DaemonSet,
        };
        let none_left = kind == WorkloadKind::StatefulSet || self.old.iter().all(|old| old.surplus);
        beside && !self.stopped && none_left && progress.figures.updated > 0
    }
}
