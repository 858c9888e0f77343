//! Pods of the good template that come back (`resume.rs`).

use std::sync::Arc;

use super::super::Progress;
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

    /// Whether the pods of an interrupted rollout are back, or do not come (`resume.rs`).
    pub(in crate::plan::workload) fn goes_on(&self, progress: &Progress) -> bool {
        let all = match self.workload.update {
            Update::Rolling { .. } => self.missing(),
            Update::Recreate | Update::InPlace { .. } | Update::OnDelete => progress.replicas_here,
        };
        let here = progress.figures.updated as usize >= all;
        !self.stopped && (here || progress.failed)
    }

    /// Whether there are fewer pods of earlier templates beside a rollout that stands still than it has to spare: some
    /// were deleted or evicted, or the file asks for more.
    pub(in crate::plan::workload) fn misses_former(&self, progress: &Progress) -> bool {
        let Update::Rolling { unavailable, .. } = self.workload.update else {
            return false;
        };
        let serving = progress.figures.old + progress.figures.updated_steady;
        let enough = self.new.len().saturating_sub(unavailable as usize);
        self.stands_still(progress)
            && !(progress.complete || self.resumed || self.stopped)
            && (serving as usize) < enough
    }

    /// Whether the rollout goes on with new pods alone, where it could have had others beside them.
    pub(in crate::plan::workload) fn has_no_former(&self, progress: &Progress) -> bool {
        let beside = (self.workload.update != Update::Recreate || self.workload.paused)
            && self.workload.key.kind != WorkloadKind::DaemonSet;
        let figures = &progress.figures;
        beside && !self.stopped && figures.old == 0 && figures.updated > 0
    }
}
