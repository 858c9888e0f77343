//! What do others get to see? The planner's state as API objects.

use std::collections::BTreeMap;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::Service;

use super::checkpoint::Checkpoint;
use super::journal::Journal;
use crate::api::{EventRecord, EventType, ObjectKind, Store};
use crate::effects::sandbox::NodeFacts;
use crate::plan::event::Round;
use crate::plan::notice::{Kind, Notice};
use crate::plan::state::PodState;
use crate::plan::{Settings, status};
use crate::spec::cluster::ClusterView;
use crate::spec::{PodKey, PodUid, Stamp};

/// Shows a pod as it is now.
pub(super) fn pod(store: &Store, state: &PodState, facts: &NodeFacts, settings: &Settings) {
    let node = status::NodeFacts {
        name: facts.name.clone(),
        ips: facts.ips.clone(),
    };
    store.upsert_pod(status::pod(state, &node, settings));
}

/// Shows it no longer.
pub(super) fn pod_gone(store: &Store, key: &PodKey, uid: &PodUid) {
    store.remove_pod(&key.namespace, &key.name, uid.as_str());
}

/// Shows the services with the `addresses` they have, and the pods behind them.
pub(super) fn services(
    store: &Store,
    manifests: &[Service],
    addresses: &BTreeMap<PodKey, Vec<IpAddr>>,
    view: &ClusterView,
) {
    let shown: Vec<Service> = manifests
        .iter()
        .map(|manifest| {
            let key = PodKey {
                namespace: manifest.metadata.namespace.clone().unwrap_or_default(),
                name: manifest.metadata.name.clone().unwrap_or_default(),
            };
            let own = addresses.get(&key).map(Vec::as_slice).unwrap_or_default();
            status::service(manifest, own)
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
                s.metadata.name.as_ref() == Some(&key.name)
                    && s.metadata.namespace.as_ref() == Some(&key.namespace)
            });
            let since = of.and_then(|s| s.metadata.creation_timestamp.clone());
            endpoints.metadata.creation_timestamp = since;
            endpoints
        })
        .collect();
    store.set_endpoints(&endpoints);
}

/// Shows that this agent has come up.
pub(super) fn node_started(journal: &mut Journal, node: &str) {
    let message = "Starting coracle.";
    node_event(journal, node, EventType::Normal, "Starting", message);
}

/// Shows that secrets may get to a disk: there is swap, and no tmpfs can be kept out of it.
pub(super) fn memory_volumes_may_be_swapped(journal: &mut Journal, node: &str) {
    let message = "The tmpfs noswap option is not supported. Memory-backed volumes (e.g. secrets, emptyDirs, etc.) might be \
                   swapped to disk and should no longer be considered secure.";
    let reason = "PossibleMemoryBackedVolumesOnDisk";
    tracing::warn!("{reason}: {message}");
    node_event(journal, node, EventType::Warning, reason, message);
}

/// Shows an event of the node.
pub(super) fn node_event(
    journal: &mut Journal,
    node: &str,
    type_: EventType,
    reason: &str,
    message: &str,
) {
    journal.push(&EventRecord {
        namespace: "default".to_owned(),
        name: node.to_owned(),
        uid: node.to_owned(),
        kind: ObjectKind::Node,
        field_path: String::new(),
        type_,
        reason: reason.to_owned(),
        message: message.to_owned(),
        annotations: BTreeMap::new(),
        at: super::now(),
    });
}

/// Shows an event, and logs what went wrong.
pub(super) fn notice(journal: &mut Journal, notice: &Notice, at: Stamp) {
    let type_ = match notice.kind {
        Kind::Normal => EventType::Normal,
        Kind::Warning => EventType::Warning,
    };
    let about = notice.field_path.as_deref().unwrap_or("");
    match notice.kind {
        Kind::Normal => {
            tracing::debug!(pod = %notice.pod, about, "{}: {}", notice.reason, notice.message)
        }
        Kind::Warning => {
            tracing::warn!(pod = %notice.pod, about, "{}: {}", notice.reason, notice.message)
        }
    }
    journal.push(&EventRecord {
        namespace: notice.pod.namespace.clone(),
        name: notice.pod.name.clone(),
        uid: notice.uid.to_string(),
        kind: ObjectKind::Pod,
        field_path: about.to_owned(),
        type_,
        reason: notice.reason.clone().into_owned(),
        message: notice.message.clone(),
        annotations: (notice.annotations.iter())
            .map(|(name, value)| ((*name).to_owned(), value.clone()))
            .collect(),
        at,
    });
}

/// What the next agent has to know of the pod.
pub(super) fn checkpoint(state: &PodState) -> Checkpoint {
    let backoff: BTreeMap<_, _> = state
        .containers
        .iter()
        .filter_map(|c| Some((c.name.clone(), c.backoff?)))
        .collect();
    let errors = state.containers.iter();
    let errors = errors.filter_map(|c| Some((c.name.clone(), c.start_error.clone()?)));
    let rounds = state.containers.iter();
    let rounds = rounds.filter(|c| c.round != Round::default());
    let health = state.containers.iter();
    let health = health.filter_map(|c| Some((c.name.clone(), c.health()?)));
    let hooks = state.containers.iter().filter(|c| !c.hooks.is_new());
    let hooks = hooks.map(|c| (c.name.clone(), c.hooks.clone()));
    let kills = state.containers.iter();
    let kills = kills.filter_map(|c| Some((c.name.clone(), c.kill?)));
    Checkpoint {
        created: Some(state.created),
        backoff,
        start_errors: errors.collect(),
        waits: state.sandbox_waits(),
        rounds: rounds.map(|c| (c.name.clone(), c.round)).collect(),
        health: health.collect(),
        hooks: hooks.collect(),
        kills: kills.collect(),
        actuated: Some(state.resizing.actuated),
        asked: state
            .containers
            .iter()
            .map(|c| (c.name.clone(), c.all_asked()))
            .collect(),
        stopping: state.stopping,
        verdict: state.verdict.clone(),
        evictions: state.evictions,
        finishing: state.finishing,
        foreign: Some(state.foreign.clone()),
        flags: Some(state.flags),
    }
}
