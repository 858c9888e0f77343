//! Claims that end with their StatefulSet, or with a pod of it: `persistentVolumeClaimRetentionPolicy`.

use std::cell::Cell;

use super::{Input, Node};
use crate::effects::volume::claim;
use crate::plan::workload::retention::{Fate, fates};
use crate::spec::{Object, PodKey};
use crate::types::Gather;

/// What is known of such claims.
#[derive(Debug)]
pub(super) struct EndingClaims {
    /// Something has happened by which one may end.
    pub(super) due: Cell<bool>,
    /// What was to be done is being done.
    busy: bool,
    /// There may be some of sets that no file asks for.
    left: bool,
}

impl Default for EndingClaims {
    fn default() -> Self {
        Self {
            due: Cell::new(true),
            busy: false,
            left: true,
        }
    }
}

impl Node {
    /// Removes the claims that are to end, and notes which ones will. What fails is tried again after the next change.
    pub(super) fn end_claims(&mut self) {
        let Some(desired) = &self.state.desired else {
            return;
        };
        if self.ending_claims.busy || !self.ending_claims.due.take() {
            return;
        }
        let mut sets = desired.workloads.values();
        if !self.ending_claims.left && !sets.any(|set| set.retention.is_some()) {
            return;
        }
        let layout = self.tools.config.layout.clone();
        let bound: Vec<_> = claim::records(&layout)
            .into_iter()
            .map(|record| {
                let (namespace, name) = (record.namespace, record.name);
                (PodKey::new(namespace, name), record.owner)
            })
            .collect();
        self.ending_claims.left = bound.iter().any(|(_, owner)| owner.is_some());
        let claims = self.documents.iter();
        let claims = claims.filter(|(object, _)| matches!(**object, Object::Claim(_)));
        let documents = claims.map(|(object, _)| {
            let key = object.key();
            let (namespace, name) = (key.namespace, key.name);
            PodKey::new(namespace, name)
        });
        let fates = fates(
            &self.state,
            &bound,
            &documents.gather(),
            self.bundles.are_on_trial(),
        );
        if fates.is_empty() {
            return;
        }
        self.ending_claims.busy = true;
        let inputs = self.tools.inputs.clone();
        super::spawn(async move {
            super::unblock(move || {
                for (key, fate) in fates {
                    match fate {
                        Fate::Owned(owner) => {
                            if let Err(error) = claim::own(&layout, &key, owner) {
                                let error = crate::chain(&error);
                                tracing::warn!("claim `{key}`: {error}, keeping it for good");
                            }
                        }
                        Fate::Removed => match claim::remove(&layout, &key.namespace, &key.name) {
                            Ok(()) => tracing::info!(
                                "removed claim `{key}` with its data, as its StatefulSet says"
                            ),
                            Err(error) => {
                                tracing::warn!("could not remove claim `{key}`: {error}, ignoring");
                            }
                        },
                    }
                }
            })
            .await;
            let _ = inputs.send(Input::ClaimsEnded).await;
        });
    }

    /// What was to be done is.
    pub(super) fn claims_ended(&mut self) {
        self.ending_claims.busy = false;
        self.ending_claims.left = true;
        self.settle_claims();
    }
}
