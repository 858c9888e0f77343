//! What of the pods is on disk for an agent restart: each pod's manifest and memory on tmpfs, and the state files. A
//! file is written only if it differs from what was written last.

use std::collections::HashMap;
use std::hash::BuildHasher;
use std::sync::Arc;

use super::exits::Exits;
use super::state_file::StateFiles;
use super::{checkpoint, recover};
use crate::layout::Layout;
use crate::plan::memory::PodMemory;
use crate::plan::{Action, PodState};
use crate::spec::{PodSpec, PodUid};

/// What was written last.
#[derive(Debug)]
pub(super) struct Saved {
    layout: Layout,
    /// The manifest of each pod.
    manifests: HashMap<PodUid, Arc<PodSpec>>,
    /// The hash of each pod's memory.
    memories: HashMap<PodUid, u64>,
    /// How containers ended, for the next boot.
    pub(super) exits: Exits,
    /// What pods leave to the next ones of their names.
    pub(super) files: StateFiles,
}

impl Saved {
    pub(super) fn new(layout: &Layout, files: StateFiles) -> Self {
        Self {
            layout: layout.clone(),
            manifests: HashMap::new(),
            memories: HashMap::new(),
            exits: Exits::default(),
            files,
        }
    }

    /// Notes that the pod's manifest is on disk as it is here, or that the task that makes its sandbox writes it.
    pub(super) fn has(&mut self, spec: &Arc<PodSpec>) {
        self.manifests.insert(spec.uid.clone(), Arc::clone(spec));
    }

    /// Whether the pod was edited since its manifest was written.
    pub(super) fn is_edited(&self, pod: &PodState) -> bool {
        let old = self.manifests.get(&pod.spec.uid);
        old.is_some_and(|old| !Arc::ptr_eq(old, &pod.spec))
    }

    /// Writes the pod's manifest if it was edited; `false` if that has to be tried again. While the pod's sandbox is
    /// made, the task that makes it does so.
    pub(super) fn edits(&mut self, pod: &PodState) -> bool {
        let Some(old) = self.manifests.get(&pod.spec.uid) else {
            return true;
        };
        let making = matches!(pod.in_flight, Some(Action::CreateSandbox { .. }));
        if making || Arc::ptr_eq(old, &pod.spec) {
            return true;
        }
        let same = old.manifest == pod.spec.manifest;
        let written = same || recover::write_manifest(&self.layout, &pod.spec);
        if written {
            self.has(&pod.spec);
        }
        written
    }

    /// Writes the pod's memory if it has changed.
    pub(super) fn checkpoint(&mut self, pod: &PodState) {
        let uid = &pod.spec.uid;
        let (content, hash) = self.content(pod);
        let path = self.layout.pod_run(uid).checkpoint();
        if self.memories.get(uid) != Some(&hash) && checkpoint::write(&path, &content) {
            self.memories.insert(uid.clone(), hash);
        }
    }

    /// Whether the pod's memory is on disk as it is now.
    pub(super) fn has_checkpoint(&self, pod: &PodState) -> bool {
        self.memories.get(&pod.spec.uid) == Some(&self.content(pod).1)
    }

    /// The pod's memory as it is written, and its hash. The keys of the hash are random, because containers choose parts of
    /// the content.
    fn content(&self, pod: &PodState) -> (Vec<u8>, u64) {
        let content = checkpoint::content(&PodMemory::of(pod));
        let hash = self.memories.hasher().hash_one(&content);
        (content, hash)
    }

    /// The pod is gone, and its files with it.
    pub(super) fn forget(&mut self, uid: &PodUid) {
        self.manifests.remove(uid);
        self.memories.remove(uid);
        self.exits.forget(uid);
    }

    /// Gives back the memory of tables that had many more entries.
    pub(super) fn compact(&mut self) {
        self.manifests.shrink_to_fit();
        self.memories.shrink_to_fit();
    }
}
