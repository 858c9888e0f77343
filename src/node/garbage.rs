//! The removal of earlier runs' files, as soon as the planner keeps less than before. It runs on threads of its
//! own: removing a large layer takes its time, and only the removal of its pod waits for it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use super::unblock_cleaning;
use crate::effects::sandbox::Sandboxes;
use crate::plan::PodState;
use crate::plan::garbage::{Kept, kept};
use crate::spec::PodUid;

/// What was removed, by pod.
#[derive(Debug, Clone, Default)]
pub(super) struct Cleaning {
    pods: Arc<Mutex<HashMap<PodUid, Entry>>>,
}

#[derive(Debug, Default)]
struct Entry {
    /// What was kept last.
    kept: Vec<Kept>,
    gate: Gate,
}

/// Held during a removal for a pod. Once it is shut, nothing more is removed for this pod: the next pod of the same
/// UID counts its runs from the beginning.
#[derive(Debug, Clone, Default)]
pub(super) struct Gate(Arc<Mutex<bool>>);

impl Gate {
    /// Blocking, until running removals are done.
    pub(super) fn shut(&self) {
        *self.lock() = true;
    }

    fn lock(&self) -> MutexGuard<'_, bool> {
        self.0.lock().expect("no panic holds this lock")
    }
}

impl Cleaning {
    fn lock(&self) -> MutexGuard<'_, HashMap<PodUid, Entry>> {
        self.pods.lock().expect("no panic holds this lock")
    }

    /// Removes what the pod does not need any more, beside the loop. What cannot be removed now is tried again
    /// after the next run, and goes with the pod at the latest.
    pub(super) fn look_at(&self, pod: &PodState, max_dead: u32, sandboxes: &Sandboxes) {
        let now = kept(pod, max_dead);
        let mut pods = self.lock();
        let known = pods.get(&pod.spec.uid).map_or(&[][..], |e| &e.kept);
        if known == now {
            return;
        }
        let less: Vec<Kept> = now.iter().filter(|k| !known.contains(k)).cloned().collect();
        let entry = pods.entry(pod.spec.uid.clone()).or_default();
        entry.kept = now;
        let (gate, sandboxes, spec) = (entry.gate.clone(), sandboxes.clone(), pod.spec.clone());
        super::spawn(unblock_cleaning(move || {
            let shut = gate.lock();
            for kept in less.iter().filter(|_| !*shut) {
                let (logs, files) = (kept.logs_from, kept.files_from);
                if let Err(error) = sandboxes.remove_runs(&spec, &kept.container, logs, files) {
                    tracing::warn!(
                        pod = %spec.key, container = kept.container,
                        "could not clear away earlier runs: {}, going on", crate::chain(&error)
                    );
                }
            }
        }));
    }

    /// Removes the volumes of a finished pod, beside the loop.
    pub(super) fn remove_volumes(
        &self,
        uid: &PodUid,
        sandboxes: &Sandboxes,
    ) -> impl Future<Output = ()> + use<> {
        let (gate, sandboxes, uid) = (self.gate(uid), sandboxes.clone(), uid.clone());
        unblock_cleaning(move || {
            let shut = gate.lock();
            if !*shut && let Err(error) = sandboxes.remove_volumes(&uid) {
                let error = crate::chain(&error);
                tracing::warn!(pod = %uid, "could not remove its volumes: {error}, going on");
            }
        })
    }

    /// The pod's gate, for the task that removes the pod.
    pub(super) fn gate(&self, uid: &PodUid) -> Gate {
        self.lock().entry(uid.clone()).or_default().gate.clone()
    }

    /// The pod is removed.
    pub(super) fn forget(&self, uid: &PodUid) {
        self.lock().remove(uid);
    }
}
