//! Pods of the good template that come back (`resume.rs`).

use std::collections::BTreeSet;
use std::sync::Arc;

use super::super::Progress;
use super::super::resume::{Halfway, WITHIN_MS};
use super::{Here, New, Old, Stage, ordinal};
use crate::spec::workload::Update;
use crate::spec::{PodSpec, WorkloadKind};
use crate::types::Gather;

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

    /// Whether the pods of an interrupted rollout are back, or took too long. Those that the node keeps down are not: an
    /// agent restart forgets held pods, and only a document that has not gone on brings them back then.
    pub(in crate::plan::workload) fn goes_on(&self, progress: &Progress) -> bool {
        let here = match self.workload.update {
            Update::Rolling { .. } => progress.figures.updated as usize >= self.missing(),
            Update::Recreate | Update::InPlace { .. } | Update::OnDelete => self.is_back(),
        };
        !self.stopped && !self.kept_away && (here || progress.failed)
    }

    /// Whether all pods of the good template that come back are there. Those that the new template reaches by itself must
    /// be available: it reaches pods that do not work first.
    fn is_back(&self) -> bool {
        let back = |new: &New<'_>| {
            let here = new.here.as_ref().filter(|_| new.stays());
            let own = here.filter(|here| !here.outdated);
            own.is_some_and(|here| !self.is_reached(new) || self.is_available(here.ready))
        };
        let mut coming = self.new.iter().filter(|new| !self.was_updated(new));
        self.elsewhere || coming.all(back)
    }

    /// Whether the new template reaches this pod of a StatefulSet without a person.
    fn is_reached(&self, new: &New<'_>) -> bool {
        let in_place = matches!(self.workload.update, Update::InPlace { .. });
        let is_set = self.workload.key.kind == WorkloadKind::StatefulSet;
        in_place && is_set && ordinal(new.wanted) >= self.partition()
    }

    /// Whether pods that start in order come after one that has the new template.
    fn waits_for_updated(&self) -> bool {
        let updated = self.new.iter().position(|new| self.was_updated(new));
        let coming = self.new.iter().rposition(|new| !self.was_updated(new));
        self.workload.ordered && updated.is_some_and(|first| coming > Some(first))
    }

    /// How long it may take without progress, in milliseconds.
    pub(in crate::plan::workload) fn deadline_ms(&self, cordoned: bool) -> Option<u64> {
        // Such a rollout waits for a person, however long that takes, unless its pods wait for one that it keeps away, or
        // it has not reached all that it reaches by itself.
        let mut coming = self.new.iter().filter(|new| !self.was_updated(new));
        let on_its_way = self.waits_for_updated() || coming.any(|new| self.is_reached(new));
        let by_hand = |halfway: &Halfway| halfway.by_hand && !on_its_way;
        let resumed = self.resumed.as_ref();
        let ends = resumed.is_some_and(|halfway| !by_hand(halfway)) && !cordoned;
        let own = self.workload.progress_deadline_ms;
        own.or(ends.then_some(WITHIN_MS))
    }

    /// Whether a rollout that stands still, or at its partition, has fewer pods than its strategy allows: some were deleted
    /// or evicted, or the file asks for more.
    pub(in crate::plan::workload) fn misses_former(&self, progress: &Progress) -> bool {
        let Update::Rolling { unavailable, .. } = self.workload.update else {
            return self.awaits_former() && !self.stopped;
        };
        let figures = &progress.figures;
        // A pod that was ready before may be ready again soon.
        let steady = (progress.best.1).min(figures.updated as usize);
        let serving = figures.old as usize + steady.max(figures.updated_steady as usize);
        let enough = self.new.len().saturating_sub(unavailable as usize);
        self.stands_still(progress)
            && !(progress.complete || self.resumed.is_some() || self.stopped)
            && serving < enough
    }

    /// Whether a pod below the partition of a StatefulSet is missing.
    pub(in crate::plan::workload) fn lacks_former(&self) -> bool {
        self.resumed.is_none() && self.below_and_missing().next().is_some()
    }

    /// Keeps the missing pods for the last good template, except those that had a later one.
    pub(in crate::plan::workload) fn await_former(&mut self, updated: &BTreeSet<u64>) {
        let awaited = self
            .below_and_missing()
            .filter(|number| !updated.contains(number));
        self.awaited = awaited.collect();
    }

    pub(in crate::plan::workload) fn awaits_former(&self) -> bool {
        !self.awaited.is_empty()
    }

    fn below_and_missing(&self) -> impl Iterator<Item = u64> {
        let missing = self.new.iter().filter(|new| new.here.is_none());
        let numbers = missing.map(|new| ordinal(new.wanted));
        numbers.filter(|number| *number < self.partition())
    }

    /// Whether the good template of an interrupted rollout is in force, and this pod had the new one before, or has it. One
    /// that is held has not run with it.
    pub(super) fn was_updated(&self, new: &New<'_>) -> bool {
        let Some(halfway) = &self.resumed else {
            return false;
        };
        let has = |here: &Here<'_>| {
            let revision = here.pod.wanted().revision();
            here.pod.hold().is_none() && revision.is_some() && revision == halfway.to.as_deref()
        };
        halfway.updated.contains(&ordinal(new.wanted)) || new.here.as_ref().is_some_and(has)
    }

    /// Whether this pod was held with the new template before the good one was in force, and has not run with it.
    pub(super) fn comes_back_held(&self, new: &New<'_>, here: &Here<'_>) -> bool {
        let is_held = here.outdated && here.pod.hold().is_some();
        is_held && self.resumed.is_some() && !self.was_updated(new)
    }

    /// The ordinals of pods that have the current template and were let in: they may write.
    pub(in crate::plan::workload) fn updated(&self) -> BTreeSet<u64> {
        let runs = |new: &&New<'_>| {
            let here = new.here.as_ref();
            here.is_some_and(|here| !here.outdated && here.pod.hold().is_none())
        };
        let updated = self.new.iter().filter(runs);
        updated.map(|new| ordinal(new.wanted)).gather()
    }

    /// Whether no pod of an earlier template is left to bring back. Of a StatefulSet that is known by ordinal.
    pub(in crate::plan::workload) fn has_no_former(&self, progress: &Progress) -> bool {
        let kind = self.workload.key.kind;
        let beside = match self.workload.update {
            Update::Recreate => self.workload.paused,
            Update::OnDelete => true,
            Update::Rolling { .. } | Update::InPlace { .. } => kind != WorkloadKind::DaemonSet,
        };
        let none_left = self.old.iter().all(|old| old.surplus);
        let by_ordinal = kind == WorkloadKind::StatefulSet;
        beside && !by_ordinal && !self.stopped && none_left && progress.figures.updated > 0
    }
}
