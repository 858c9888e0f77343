//! Documents that something else is in force of than their file says: a former content, or the same with restarted pods.
//! The planner has decided that (`plan/workload/revisions.rs`), and it was written to disk before.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Loaded, Manifests};
use crate::plan::workload::revisions::{Cause, Instead, Overrides, Subject};
use crate::spec::convert::{self, ConvertContext, Documents};
use crate::spec::priority::{Others, PriorityClasses};
use crate::spec::{FieldError, PodKey, PodSpec, Workload, WorkloadKey, rollback};
use crate::types::Gather;

/// What a file itself says of such documents.
#[derive(Debug, Clone, Default)]
pub(in crate::node) struct Own {
    pods: Vec<Arc<PodSpec>>,
    /// With their pods.
    workloads: Vec<(Arc<Workload>, Vec<Arc<PodSpec>>)>,
}

impl Manifests {
    /// Puts in force what is to be in force instead of what files say.
    pub(super) fn put_instead(&mut self) {
        let context = ConvertContext {
            pod_security: self.pod_security,
            ..ConvertContext::of(&self.node_name)
        };
        let entries = self.entries.values_mut();
        for loaded in entries.filter_map(|entry| entry.applied.as_mut().map(Arc::make_mut)) {
            loaded.put_instead(&self.instead, &context, &self.classes);
        }
    }

    /// What files say of pods whose edits may be taken back.
    pub(super) fn editions(&self) -> BTreeMap<PodKey, Arc<str>> {
        let applied = self.entries.values().filter_map(|e| e.applied.as_deref());
        let pods = applied.flat_map(|loaded| {
            let kept = |pod: &&Arc<PodSpec>| {
                let replaced = loaded.own.pods.iter();
                replaced.map(|own| &own.key).all(|own| *own != pod.key)
            };
            loaded
                .own
                .pods
                .iter()
                .chain(loaded.pods.iter().filter(kept))
        });
        pods.filter(|pod| pod.rollback_within_ms().is_some())
            .map(|pod| (pod.key.clone(), pod.edition().into()))
            .gather()
    }
}

impl Loaded {
    pub(super) fn put_instead(
        &mut self,
        all: &Overrides,
        context: &ConvertContext<'_>,
        classes: &PriorityClasses,
    ) {
        self.put_back();
        for (subject, instead) in all {
            let done = match subject {
                Subject::Workload(key) => self.workload_instead(key, instead, context, classes),
                Subject::Pod(key) => self.pod_instead(key, instead),
            };
            if let Some(Err(problem)) = done {
                let note =
                    format!("{subject}: what is to be in force instead is refused: {problem}");
                tracing::warn!("{note}, keeping what the file says");
                self.notes.push(note);
            } else if let Some(note) = instead.note.as_ref().filter(|_| done.is_some()) {
                self.notes.push(format!("{subject}: {note}"));
            }
        }
    }

    /// All is as the file says.
    fn put_back(&mut self) {
        self.notes.clear();
        let own = std::mem::take(&mut self.own);
        for pod in own.pods {
            self.pods.retain(|other| other.key != pod.key);
            self.pods.push(pod);
        }
        for (workload, pods) in own.workloads {
            self.take_workload(&workload.key);
            self.workloads.push(workload);
            self.pods.extend(pods);
        }
    }

    /// Whether something else is in force of one of its documents, which is to be shown.
    pub(super) fn is_rolled_back(&self) -> bool {
        let own = self.own.pods.len() + self.own.workloads.len();
        own > 0 && !self.notes.is_empty()
    }

    /// The documents that stand for pods, as they are in the file.
    pub(super) fn said_workloads(&self) -> impl Iterator<Item = &Workload> {
        let own = &self.own.workloads;
        let kept = move |workload: &&Arc<Workload>| own.iter().all(|(o, _)| o.key != workload.key);
        let kept = self.workloads.iter().filter(kept);
        own.iter().map(|(own, _)| own).chain(kept).map(Arc::as_ref)
    }

    /// Takes a document and its pods out.
    fn take_workload(&mut self, key: &WorkloadKey) -> Option<(Arc<Workload>, Vec<Arc<PodSpec>>)> {
        let at = self.workloads.iter().position(|other| other.key == *key)?;
        let theirs = |pod: &Arc<PodSpec>| pod.workload.as_ref() == Some(key);
        let (pods, others) = self.pods.drain(..).partition(theirs);
        self.pods = others;
        Some((self.workloads.remove(at), pods))
    }

    /// `None`: the file says something else by now.
    fn workload_instead(
        &mut self,
        key: &WorkloadKey,
        instead: &Instead,
        context: &ConvertContext<'_>,
        classes: &PriorityClasses,
    ) -> Option<Result<(), String>> {
        let own = self.workloads.iter().find(|other| other.key == *key)?;
        let of = match instead.cause {
            Cause::Restarted | Cause::Resumed => &own.written,
            Cause::RolledBack | Cause::Undone => &own.edition,
        };
        if *of != instead.of {
            return None;
        }
        let made = match former(own, instead, context, classes) {
            Ok(made) => made,
            Err(problem) => return Some(Err(problem)),
        };
        let own = self.take_workload(key)?;
        self.workloads
            .extend(made.workloads.into_iter().map(Arc::new));
        self.pods.extend(made.pods.into_iter().map(Arc::new));
        self.own.workloads.push(own);
        Some(Ok(()))
    }

    fn pod_instead(&mut self, key: &PodKey, instead: &Instead) -> Option<Result<(), String>> {
        let own = |pod: &Arc<PodSpec>| pod.key == *key && pod.workload.is_none();
        let at = self.pods.iter().position(own)?;
        if *self.pods[at].edition() != *instead.of {
            return None;
        }
        match convert::admitted(instead.text.as_bytes()) {
            Ok(pod) if pod.key == *key => {
                let own = std::mem::replace(&mut self.pods[at], Arc::new(pod));
                self.own.pods.push(own);
                Some(Ok(()))
            }
            Ok(_) => Some(Err("it has the name of another pod".to_owned())),
            Err(errors) => Some(Err(first(&errors))),
        }
    }
}

/// The document with the template that is to be in force.
fn former(
    own: &Workload,
    instead: &Instead,
    context: &ConvertContext<'_>,
    classes: &PriorityClasses,
) -> Result<Documents, String> {
    let text = rollback::with_template(&own.manifest.text(), &instead.text);
    let text = text.ok_or("it is no document")?;
    let found = convert::documents_beside(text.as_bytes(), "kept", context, Others::All(classes));
    let mut made = found.map_err(|errors| first(&errors))?;
    match made.workloads.as_mut_slice() {
        [workload] if workload.key == own.key => {
            workload.written.clone_from(&own.written);
            workload.edition.clone_from(&own.edition);
            workload.resumed = instead.cause == Cause::Resumed;
            workload.modified = own.modified;
            Ok(made)
        }
        _ => Err("it is another document".to_owned()),
    }
}

fn first(errors: &[FieldError]) -> String {
    errors.first().map(ToString::to_string).unwrap_or_default()
}
