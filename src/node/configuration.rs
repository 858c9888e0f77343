//! The configuration documents in force: containers that wait for one start, and the files of volumes in running pods
//! follow changes.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::{Input, Node, task, unblock_cleaning};
use crate::plan::{Event, NodeFact, PodFact};
use crate::spec::{Configuration, ObjectKey, ObjectKind, PodSpec, Reason};
use crate::types::Gather;

impl Node {
    /// Puts these documents in force.
    pub(super) fn configure(&mut self, configuration: Configuration) {
        let current = &self.tools.sandboxes.configuration;
        let changed = configuration.differences(&current.now());
        if changed.is_empty() {
            return;
        }
        current.replace(Arc::new(configuration));
        let objects: BTreeSet<ObjectKey> = changed.into_iter().gather();
        let is_claim = |key: &ObjectKey| key.kind == ObjectKind::PersistentVolumeClaim;
        if objects.iter().any(is_claim) {
            self.settle_claims();
        }
        let affected = |spec: &Arc<PodSpec>| {
            let references = spec.references_of_volumes();
            references.iter().any(|key| objects.contains(key))
        };
        // Also those whose volumes are being made: they may have read the former documents.
        let all = self.state.pods.values().map(|pod| pod.spec.clone());
        let pods: Vec<_> = all.filter(affected).collect();
        if !pods.is_empty() {
            self.refresh_volumes(pods);
        }
        self.record(&Event::Node(NodeFact::ConfigurationChanged { objects }));
    }

    /// Writes the files of these pods' volumes again, beside the loop and after earlier writes, so that the newest form of a
    /// pod is written last. What fails is reported, and tried again with the next change or the pod's next sandbox.
    pub(super) fn refresh_volumes(&mut self, pods: Vec<Arc<PodSpec>>) {
        let (sandboxes, inputs) = (self.tools.sandboxes.clone(), self.tools.inputs.clone());
        let facts = self.tools.facts.now();
        let former = self.refreshing.take();
        self.refreshing = Some(task(async move {
            if let Some(former) = former {
                former.await;
            }
            let failures = unblock_cleaning(move || {
                let failed = pods.iter().filter_map(|spec| {
                    let failure = sandboxes.refresh_volumes(spec, &facts).err()?;
                    Some((spec.uid.clone(), failure))
                });
                failed.collect::<Vec<_>>()
            });
            for (uid, failure) in failures.await {
                let message = format!(
                    "MountVolume.SetUp failed for volume \"{}\" : {}",
                    failure.volume, failure.source
                );
                let fact = PodFact::Warned {
                    container: None,
                    warnings: vec![(Reason::FailedMount, message)],
                };
                let _ = inputs.send(Input::Event(Event::Pod { uid, fact })).await;
            }
        }));
    }
}
