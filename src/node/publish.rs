//! The planner's state as API objects, and events.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Service;

use super::journal::Journal;
use crate::api::{EventRecord, ObjectKind, Store};
use crate::effects::facts::NodeFacts;
use crate::plan::notice::Notice;
use crate::plan::state::PodState;
use crate::plan::{Settings, status};
use crate::spec::cluster::{ClusterView, Refusal};
use crate::spec::{PodKey, PodUid, Reason, Severity, uid};
use crate::types::{Gather, Stamp};

/// What clients see: the objects of the API and the events.
#[derive(Debug)]
pub(super) struct Shown {
    pub(super) store: Arc<Store>,
    journal: Journal,
    /// The node's name.
    node: String,
    /// The names under which pods are shown.
    pods: HashMap<PodUid, PodKey>,
}

impl Shown {
    pub(super) fn new(store: Arc<Store>, journal: Journal, node: &str) -> Self {
        Self {
            store,
            journal,
            node: node.to_owned(),
            pods: HashMap::new(),
        }
    }

    /// Shows a pod as it is now.
    pub(super) fn pod(&mut self, state: &PodState, facts: &NodeFacts, settings: &Settings) {
        let node = status::NodeFacts {
            name: facts.name.clone(),
            ips: facts.ips.clone(),
        };
        self.store.upsert_pod(status::pod(state, &node, settings));
        let key = state.spec.key.clone();
        self.pods.insert(state.spec.uid.clone(), key);
    }

    /// Removes a pod that is gone.
    pub(super) fn forget(&mut self, uid: &PodUid) {
        if let Some(key) = self.pods.remove(uid) {
            self.store
                .remove_pod(&key.namespace, &key.name, uid.as_str());
        }
    }

    /// Gives back the memory of tables that had many more entries.
    pub(super) fn compact(&mut self) {
        self.pods.shrink_to_fit();
        self.store.compact();
    }

    /// Shows an event of the node.
    pub(super) fn node_event(&mut self, reason: Reason, message: &str) {
        self.journal.push(&EventRecord {
            namespace: "default".to_owned(),
            name: self.node.clone(),
            uid: self.node.clone(),
            kind: ObjectKind::Node,
            field_path: String::new(),
            type_: reason.severity(),
            reason: reason.to_string(),
            message: message.to_owned(),
            annotations: BTreeMap::new(),
            at: super::now(),
        });
    }

    /// Shows and logs what a service does not have.
    pub(super) fn refusal(&mut self, refusal: &Refusal) {
        let Refusal {
            service,
            reason,
            message,
        } = refusal;
        tracing::warn!(%service, "{reason}: {message}");
        self.journal.push(&EventRecord {
            namespace: service.namespace.to_string(),
            name: service.name.to_string(),
            uid: uid::of_name("Service", &service.namespace, &service.name).to_string(),
            kind: ObjectKind::Service,
            field_path: String::new(),
            type_: reason.severity(),
            reason: reason.to_string(),
            message: message.clone(),
            annotations: BTreeMap::new(),
            at: super::now(),
        });
    }

    /// Shows an event of a pod or a document that stands for pods, and logs what went wrong.
    pub(super) fn notice(&mut self, notice: &Notice, at: Stamp) {
        let type_ = notice.reason.severity();
        let about = notice.field_path.as_deref().unwrap_or("");
        let (key, kind) = (&notice.key, notice.workload);
        match (type_, kind) {
            (Severity::Normal, _) => {
                tracing::debug!(object = %key, about, "{}: {}", notice.reason, notice.message)
            }
            (Severity::Warning, None) => {
                tracing::warn!(pod = %key, about, "{}: {}", notice.reason, notice.message)
            }
            (Severity::Warning, Some(kind)) => {
                let (reason, message) = (notice.reason, &notice.message);
                tracing::warn!(
                    "{} {key}: {reason}: {message}",
                    kind.as_str().to_lowercase()
                );
            }
        }
        self.journal.push(&EventRecord {
            namespace: key.namespace.to_string(),
            name: key.name.to_string(),
            uid: notice.uid.to_string(),
            kind: kind.map_or(ObjectKind::Pod, ObjectKind::Workload),
            field_path: about.to_owned(),
            type_,
            reason: notice.reason.to_string(),
            message: notice.message.clone(),
            annotations: (notice.annotations.iter())
                .map(|(name, value)| ((*name).to_owned(), value.clone()))
                .gather(),
            at,
        });
    }
}

/// What services have, and what they do not, since when.
pub(super) struct Assigned<'a> {
    pub(super) addresses: &'a BTreeMap<PodKey, Vec<IpAddr>>,
    pub(super) refused: &'a [(Refusal, Stamp)],
}

/// Shows the services with what they have, and the pods behind them.
pub(super) fn services(
    store: &Store,
    manifests: &[Service],
    assigned: &Assigned<'_>,
    view: &ClusterView,
) {
    let shown: Vec<Service> = manifests
        .iter()
        .map(|manifest| {
            let key = PodKey::new(
                manifest.metadata.namespace.as_deref().unwrap_or_default(),
                manifest.metadata.name.as_deref().unwrap_or_default(),
            );
            let own = assigned.addresses.get(&key);
            let own = own.map(Vec::as_slice).unwrap_or_default();
            let refused = assigned.refused.iter();
            let refused = refused.filter(|(refusal, _)| refusal.service == key);
            status::service(manifest, own, refused)
        })
        .collect();
    store.set_services(&shown);
    // As in Kubernetes, there are none of names that stand for something elsewhere.
    let inside = view.services.iter().filter(|s| !s.spec.selector.is_empty());
    let endpoints: Vec<_> = inside
        .map(|entry| {
            let mut endpoints = status::endpoints(entry);
            let key = &entry.spec.key;
            let of = shown.iter().find(|s| {
                s.metadata.name.as_deref() == Some(&*key.name)
                    && s.metadata.namespace.as_deref() == Some(&*key.namespace)
            });
            let since = of.and_then(|s| s.metadata.creation_timestamp.clone());
            endpoints.metadata.creation_timestamp = since;
            endpoints
        })
        .collect();
    store.set_endpoints(&endpoints);
}
