//! What follows from a change of a pod: it is written down, shown, and what it left is cleared away.

use super::{Node, memory, metrics};
use crate::spec::PodUid;

impl Node {
    /// Shows the pods that changed, and what depends on all of them.
    pub(super) fn show_changed(&mut self) {
        let changed = self.agenda.take_changed();
        for uid in &changed {
            let Some(pod) = self.state.pods.get(uid) else {
                self.forget(uid);
                continue;
            };
            self.hooks.keep(pod);
            self.devices.look_at(uid, pod);
            self.write_edits(uid);
            self.keep_exits(uid);
            self.note_exits(uid);
            self.publish(uid);
            self.clean(uid);
        }
        self.keep_files();
        self.show_kept_workloads();
        self.views.keep_up(&self.state, &self.tools.facts.now());
        self.tell_of_drain();
        self.end_claims();
        // An empty node has a status, too.
        self.manager.status(&self.state, self.leaving);
        if !changed.is_empty() {
            self.share_among_classes();
        }
    }

    /// `/metrics`.
    pub(super) fn metrics(&self) -> Vec<crate::api::Metric> {
        let mut all = self.counters.metrics(&self.state);
        all.extend(metrics::of_pods(&self.state));
        all.extend(metrics::of_node(&self.tools.facts.now().name));
        all.push(metrics::of_cgroups(self.tools.sandboxes.cgroups.mode()));
        all.push(metrics::of_rules(&self.tools.sandboxes.network));
        all.extend(self.shutdown.metrics());
        all
    }

    /// Clears away what earlier runs left. To be called after every start and end of a run, which are all shown.
    pub(super) fn clean(&self, uid: &PodUid) {
        if let Some(pod) = self.state.pods.get(uid) {
            let max_dead = self.tools.sandboxes.settings.now().max_dead_containers;
            let sandboxes = &self.tools.sandboxes;
            self.tools.cleaning.look_at(pod, max_dead, sandboxes);
        }
    }

    pub(super) fn forget(&mut self, uid: &PodUid) {
        self.tools.cleaning.forget(uid);
        self.probes.forget(uid);
        self.hooks.forget(uid);
        self.devices.forget(uid);
        self.counters.forget(uid);
        self.saved.forget(uid);
        self.black_box.forget(uid);
        self.shown.forget(uid);
        self.freed.note(memory::SMALL);
        self.ending_claims.due.set(true);
    }

    /// Gives memory back to the system, also that of tables which had many more entries.
    pub(super) fn give_back(&mut self) {
        self.saved.compact();
        self.shown.compact();
        self.freed.give_back();
    }

    pub(super) fn publish(&mut self, uid: &PodUid) {
        if let Some(pod) = self.state.pods.get(uid) {
            // Saved first: what a client has seen survives an agent restart.
            self.saved.checkpoint(pod);
            let facts = self.tools.facts.now();
            self.shown.pod(pod, &facts, &self.state.settings);
        }
    }

    /// Writes down a pod that was edited.
    pub(super) fn write_edits(&mut self, uid: &PodUid) {
        let Some(pod) = self.state.pods.get(uid) else {
            return;
        };
        let edited = self.saved.is_edited(pod);
        if !self.saved.edits(pod) {
            // Tried again with the next turn.
            self.agenda.show(uid);
        } else if edited && pod.spec.has_downward_files() {
            self.refresh_volumes(vec![pod.spec.clone()]);
        }
    }

    pub(super) fn checkpoint(&mut self, uid: &PodUid) {
        if let Some(pod) = self.state.pods.get(uid) {
            self.saved.checkpoint(pod);
        }
    }
}
