//! How many pods of a document there are: what its status shows, and what its rollout goes by.

use super::super::{Progress, ready_on_its_way_out};
use super::Stage;
use crate::plan::Stamp;
use crate::spec::WorkloadKind;
use crate::spec::workload::Update;

impl Stage<'_> {
    /// Notes how many pods there are and should be, and whether enough of them are available.
    pub(in crate::plan::workload) fn count(&self, progress: &mut Progress, now: Stamp) {
        progress.figures = self.figures();
        progress.replicas_here = match self.elsewhere {
            true => 0,
            false => self.new.len(),
        };
        let unavailable = match self.workload.update {
            Update::Rolling { unavailable, .. } => unavailable as usize,
            Update::Recreate | Update::InPlace { .. } | Update::OnDelete => 0,
        };
        let enough = progress.replicas_here.saturating_sub(unavailable);
        let available = progress.figures.available as usize;
        progress.available.set(available >= enough, now.wall);
    }

    fn figures(&self) -> Figures {
        let live_new = self.new.iter().filter_map(|new| new.here.as_ref());
        let live_new = live_new.filter(|here| here.pod.stopping().is_none());
        let mut figures = Figures::default();
        for here in live_new {
            figures.available += u32::from(self.is_available(here.ready));
            figures.ready += u32::from(here.ready.is_some());
            match here.outdated {
                true => figures.old += 1,
                false => {
                    figures.updated += 1;
                    figures.updated_steady += u32::from(self.is_steady(here.ready));
                }
            }
        }
        for old in self.staying_surplus() {
            figures.surplus += 1;
            figures.available += u32::from(self.is_available(old.ready));
            figures.ready += u32::from(old.ready.is_some());
        }
        for old in self.live() {
            figures.old += 1;
            figures.available += u32::from(self.is_available(old.ready));
            figures.ready += u32::from(old.ready.is_some());
        }
        if self.workload.key.kind == WorkloadKind::StatefulSet {
            self.count_going(&mut figures);
        }
        figures
    }

    fn count_going(&self, figures: &mut Figures) {
        let here = self.new.iter().filter_map(|new| new.here.as_ref());
        let here = here.map(|here| here.pod);
        let all = here.chain(self.old.iter().map(|old| old.pod));
        for pod in all.filter(|pod| pod.stopping().is_some()) {
            let ready = ready_on_its_way_out(pod);
            figures.going += 1;
            figures.going_ready += u32::from(ready.is_some());
            figures.going_available += u32::from(self.is_available(ready));
        }
    }
}

/// How many pods there are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(in crate::plan::workload) struct Figures {
    /// Of the current template.
    pub(in crate::plan::workload) updated: u32,
    pub(in crate::plan::workload) updated_steady: u32,
    /// Of earlier ones.
    pub(in crate::plan::workload) old: u32,
    /// Of the current template, and too many.
    pub(in crate::plan::workload) surplus: u32,
    /// Of all templates.
    pub(in crate::plan::workload) ready: u32,
    pub(in crate::plan::workload) available: u32,
    /// The terminating ones of a StatefulSet, which are in no other figure.
    pub(in crate::plan::workload) going: u32,
    /// Those of them whose containers are still ready.
    pub(in crate::plan::workload) going_ready: u32,
    pub(in crate::plan::workload) going_available: u32,
}
