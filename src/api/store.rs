//! The objects that clients see. The node writes them after every turn of its loop; handlers read them. One lock is
//! held for look-ups only; watchers are woken through channels of capacity one, so a slow client costs nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, MutexGuard};

use k8s_openapi::Metadata;
use k8s_openapi::api::core::v1::{Endpoints, Node, Pod, Service};
use k8s_openapi::api::scheduling::v1::PriorityClass;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use k8s_openapi::jiff::Timestamp;
use serde_json::json;
use smol::channel::{Receiver, Sender, bounded};

use super::events::{EventRecord, EventRing};
use super::files::FileStatus;
use super::object::{Body, Change, Collection, Key, Object, key_of};
use super::selector;
use crate::plan::workload::Shown;
use crate::spec::configuration::{Object as Document, ObjectKind};
use crate::spec::{WorkloadKey, WorkloadKind, read_object, uid};
use crate::sys::{allocator, clock};
use crate::types::Gather;

/// Kind of a collection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Pods,
    Nodes,
    Events,
    Services,
    Endpoints,
    PriorityClasses,
    ConfigMaps,
    Secrets,
    ServiceAccounts,
    Namespaces,
    Claims,
    Volumes,
    /// PodDisruptionBudgets: there are none, but clients ask for them.
    Budgets,
    /// Documents that stand for pods.
    Workloads(WorkloadKind),
}

impl Kind {
    pub(crate) const ALL: [Self; 20] = [
        Self::Pods,
        Self::Nodes,
        Self::Events,
        Self::Services,
        Self::Endpoints,
        Self::PriorityClasses,
        Self::ConfigMaps,
        Self::Secrets,
        Self::ServiceAccounts,
        Self::Namespaces,
        Self::Claims,
        Self::Volumes,
        Self::Budgets,
        Self::Workloads(WorkloadKind::Deployment),
        Self::Workloads(WorkloadKind::ReplicaSet),
        Self::Workloads(WorkloadKind::ReplicationController),
        Self::Workloads(WorkloadKind::StatefulSet),
        Self::Workloads(WorkloadKind::DaemonSet),
        Self::Workloads(WorkloadKind::Job),
        Self::Workloads(WorkloadKind::CronJob),
    ];

    /// The kind of a configuration document.
    fn of(kind: ObjectKind) -> Self {
        match kind {
            ObjectKind::ConfigMap => Self::ConfigMaps,
            ObjectKind::Secret => Self::Secrets,
            ObjectKind::ServiceAccount => Self::ServiceAccounts,
            ObjectKind::Namespace => Self::Namespaces,
            ObjectKind::PersistentVolumeClaim => Self::Claims,
            ObjectKind::PersistentVolume => Self::Volumes,
        }
    }
}

/// The objects that clients see.
#[derive(Debug)]
pub struct Store {
    inner: Mutex<Inner>,
    /// The agent's start: the creation of what no file defines.
    started: Time,
}

#[derive(Debug)]
struct Inner {
    version: u64,
    pods: Collection,
    nodes: Collection,
    /// The removals of events; the events are in the ring.
    events_gone: Collection,
    services: Collection,
    endpoints: Collection,
    priority_classes: Collection,
    config_maps: Collection,
    secrets: Collection,
    service_accounts: Collection,
    namespaces: Collection,
    claims: Collection,
    volumes: Collection,
    budgets: Collection,
    workloads: BTreeMap<WorkloadKind, Collection>,
    /// When objects of files were created, by kind and UID: the time of the first file that was seen. An edit changes
    /// that of the file.
    created: BTreeMap<(&'static str, String), Time>,
    ring: EventRing,
    /// `None` until they have been read.
    files: Option<Vec<FileStatus>>,
    watchers: Vec<Sender<()>>,
}

impl Default for Store {
    fn default() -> Self {
        Self::new()
    }
}

impl Store {
    /// An empty store. Versions start at the wall clock, so that a version from before an agent restart is
    /// recognised as too old rather than mistaken for a current one.
    pub fn new() -> Self {
        let start = u64::try_from(clock::wall_us()).unwrap_or(1).max(1);
        let collection = || Collection::starting_at(start);
        let seconds = i64::try_from(start / 1_000_000).unwrap_or_default();
        let store = Self {
            started: Time(Timestamp::from_second(seconds).unwrap_or_default()),
            inner: Mutex::new(Inner {
                version: start,
                pods: collection(),
                nodes: collection(),
                events_gone: collection(),
                services: collection(),
                endpoints: collection(),
                priority_classes: collection(),
                config_maps: collection(),
                secrets: collection(),
                service_accounts: collection(),
                namespaces: collection(),
                claims: collection(),
                volumes: collection(),
                budgets: collection(),
                workloads: (WorkloadKind::ALL.into_iter())
                    .map(|kind| (kind, collection()))
                    .gather(),
                created: BTreeMap::new(),
                ring: EventRing::default(),
                files: None,
                watchers: Vec::new(),
            }),
        };
        // Clients look it up before anything else.
        store.set_configuration(&[(Arc::new(Document::namespace("default")), None)]);
        store
    }

    /// Shows a pod with its status. Does nothing if it is unchanged.
    pub fn upsert_pod(&self, pod: Pod) {
        let mut object = Object::new(&pod.metadata);
        object.mark.hash = NonZeroU32::new(selector::mark(&pod));
        self.upsert(Kind::Pods, object, |version| {
            let mut pod = pod.clone();
            pod.metadata.resource_version = Some(version.to_string());
            to_json(&pod)
        });
    }

    /// Removes a pod, if it still has that UID.
    pub fn remove_pod(&self, namespace: &str, name: &str, uid: &str) {
        let mut inner = self.lock();
        let version = inner.version + 1;
        let key = (namespace.into(), name.into());
        if inner.pods.remove(&key, Some(uid), version) {
            inner.changed(version);
        }
    }

    /// Shows the node.
    pub fn set_node(&self, node: Node) {
        let object = Object::new(&node.metadata);
        self.lock().ring.set_host(&object.key.1);
        self.upsert(Kind::Nodes, object, |version| {
            let mut node = node.clone();
            node.metadata.resource_version = Some(version.to_string());
            to_json(&node)
        });
    }

    /// Adds an event, or counts up an equal one; beyond the limit the oldest are dropped. Returns the line for
    /// [`Store::restore_events`].
    pub fn push_event(&self, record: &EventRecord) -> String {
        let mut inner = self.lock();
        let version = inner.version + 1;
        let recorded = inner.ring.push(record, version);
        inner.changed(version);
        for gone in recorded.forgotten {
            let version = inner.version + 1;
            inner.events_gone.bury(&gone, version);
            inner.changed(version);
        }
        recorded.line
    }

    /// Restores the events from before an agent restart: from all their lines, or from [`Store::event_lines`] and the
    /// lines since. Set the node first.
    pub fn restore_events(&self, lines: &[u8]) {
        let mut inner = self.lock();
        let before = inner.version;
        let version = inner.ring.restore(lines, before);
        inner.changed(version);
    }

    /// Returns the lines of all events.
    pub fn event_lines(&self) -> String {
        self.lock().ring.lines()
    }

    /// Moves stored objects together in memory: events and removals outlive their objects, and a page of the heap
    /// cannot be returned to the system while it contains one of them.
    pub fn compact(&self) {
        let mut inner = self.lock();
        let packed = Kind::ALL.map(|kind| inner.collection(kind).pack());
        let events = inner.ring.pack();
        // Trim first, so that the freed pages are whole before they are reused.
        allocator::trim();
        inner.ring.unpack(events);
        let host = Arc::clone(&inner.ring.host);
        for (kind, packed) in Kind::ALL.into_iter().zip(&packed) {
            inner.collection(kind).unpack(packed, &host);
        }
    }

    /// Replaces all services.
    pub fn set_services(&self, services: &[Service]) {
        self.set_all(Kind::Services, services);
    }

    /// Replaces all endpoints.
    pub fn set_endpoints(&self, endpoints: &[Endpoints]) {
        self.set_all(Kind::Endpoints, endpoints);
    }

    /// Replaces all priority classes.
    pub fn set_priority_classes(&self, classes: &[PriorityClass]) {
        let mut classes = classes.to_vec();
        for class in &mut classes {
            let created = &mut class.metadata.creation_timestamp;
            created.get_or_insert_with(|| self.started.clone());
        }
        self.set_all(Kind::PriorityClasses, &classes);
    }

    /// Replaces all configuration documents, each with the time of its file, if it has one. Clients do not see values of Secrets.
    pub fn set_configuration(&self, documents: &[(Arc<Document>, Option<Time>)]) {
        for kind in ObjectKind::ALL {
            let of_kind = documents.iter().filter(|(object, _)| object.kind() == kind);
            let mut wanted = BTreeSet::new();
            for (document, created) in of_kind {
                let mut object = Object::new(document.metadata());
                object.uid = uid::shown(kind.as_str(), document.metadata()).into();
                wanted.insert(object.key.clone());
                let implied = (kind == ObjectKind::Namespace).then_some(&self.started);
                let uid = object.uid.clone();
                let created = self.created(Kind::of(kind), &uid, created.as_ref().or(implied));
                let created = json!(created);
                self.upsert(Kind::of(kind), object, |version| {
                    let mut shown = document.shown();
                    let metadata = &mut shown["metadata"];
                    metadata["uid"] = (*uid).into();
                    metadata["resourceVersion"] = version.to_string().into();
                    if !created.is_null() {
                        metadata["creationTimestamp"] = created.clone();
                    }
                    to_json(&shown)
                });
            }
            self.remove_others(Kind::of(kind), &wanted);
        }
    }

    /// Shows a document that stands for pods. Does nothing if it is unchanged.
    pub fn upsert_workload(&self, shown: Shown) {
        let key = &shown.workload.key;
        let object = Object::of(key_of(key), "");
        let kind = Kind::Workloads(key.kind);
        let shown = Box::new(shown);
        self.upsert_body(kind, object, |_| Body::Document(shown.clone()));
    }

    /// Removes all documents of this kind but these.
    pub fn keep_workloads(&self, kind: WorkloadKind, known: &BTreeSet<&WorkloadKey>) {
        let known: BTreeSet<Key> = known.iter().map(|key| key_of(key)).collect();
        self.remove_others(Kind::Workloads(kind), &known);
    }

    /// Replaces the list of manifest files.
    pub fn set_files(&self, files: Vec<FileStatus>) {
        self.lock().files = Some(files);
    }

    /// The manifest files; `None` before they were read for the first time.
    pub fn files(&self) -> Option<Vec<FileStatus>> {
        self.lock().files.clone()
    }

    /// Returns the pod with that name.
    pub fn pod(&self, namespace: &str, name: &str) -> Option<Pod> {
        let key = (namespace.into(), name.into());
        let json = self.lock().pods.get(&key)?.json();
        read_object(&serde_json::from_slice(&json).ok()?)
    }

    pub(crate) fn get(&self, kind: Kind, key: &Key) -> Option<Arc<Object>> {
        let mut inner = self.lock();
        match kind {
            Kind::Events => inner.ring.get(key),
            _ => inner.collection(kind).get(key),
        }
    }

    /// Returns all objects of a kind and their version: by name, events by last occurrence.
    pub(crate) fn list(&self, kind: Kind) -> (u64, Vec<Arc<Object>>) {
        let mut inner = self.lock();
        let objects = inner.newer(kind, 0);
        (inner.version, objects)
    }

    /// The version of the current state.
    pub(crate) fn version(&self) -> u64 {
        self.lock().version
    }

    /// Returns the changes since a version, and the version they lead to; `None` if that version is unknown or too old.
    pub(crate) fn since(&self, kind: Kind, version: u64) -> Option<(u64, Vec<Change>)> {
        let mut inner = self.lock();
        let now = inner.version;
        if version > now {
            return None;
        }
        let newer = inner.newer(kind, version);
        let changes = inner.collection(kind).since(version, &newer)?;
        Some((now, changes))
    }

    /// Returns a channel that becomes readable after any change.
    pub(crate) fn subscribe(&self) -> Receiver<()> {
        let (sender, receiver) = bounded(1);
        self.lock().watchers.push(sender);
        receiver
    }

    fn set_all<T>(&self, kind: Kind, items: &[T])
    where
        T: Metadata<Ty = ObjectMeta> + serde::Serialize + Clone,
    {
        let mut wanted = BTreeSet::new();
        for item in items {
            let mut object = Object::new(item.metadata());
            object.uid = uid::shown(super::resource::of(kind).object, item.metadata()).into();
            let uid = object.uid.clone();
            let created = self.created(kind, &uid, item.metadata().creation_timestamp.as_ref());
            wanted.insert(object.key.clone());
            self.upsert(kind, object, |version| {
                let mut item = item.clone();
                let metadata = item.metadata_mut();
                metadata.uid = Some(uid.to_string());
                metadata.creation_timestamp = created.clone();
                metadata.resource_version = Some(version.to_string());
                to_json(&item)
            });
        }
        self.remove_others(kind, &wanted);
    }

    /// When an object was created whose file is of this time.
    fn created(&self, kind: Kind, uid: &str, file: Option<&Time>) -> Option<Time> {
        let of = (super::resource::of(kind).object, uid.to_owned());
        let mut inner = self.lock();
        file.map(|file| {
            inner
                .created
                .entry(of)
                .or_insert_with(|| file.clone())
                .clone()
        })
    }

    /// Removes all objects of a kind but the wanted ones.
    fn remove_others(&self, kind: Kind, wanted: &BTreeSet<Key>) {
        let mut inner = self.lock();
        let shown = inner.collection(kind).all().map(|o| o.key.clone());
        let gone: Vec<Key> = shown.filter(|key| !wanted.contains(key)).collect();
        for key in gone {
            let version = inner.version + 1;
            if inner.collection(kind).remove(&key, None, version) {
                inner.changed(version);
            }
        }
        let left = inner.collection(kind).all().map(|o| o.uid.clone());
        let left: BTreeSet<Box<str>> = left.collect();
        let name = super::resource::of(kind).object;
        let is_left = |(of, uid): &(&'static str, String)| *of != name || left.contains(&**uid);
        inner.created.retain(|of, _| is_left(of));
    }

    fn upsert(&self, kind: Kind, object: Object, json: impl Fn(u64) -> String) {
        self.upsert_body(kind, object, |version| Body::json(&json(version)));
    }

    fn upsert_body(&self, kind: Kind, object: Object, body: impl Fn(u64) -> Body) {
        let mut inner = self.lock();
        // Two versions a change: if an object with the same name but another UID is replaced, its removal has the
        // first.
        let version = inner.version + 2;
        if inner.collection(kind).upsert(object, version, body) {
            inner.changed(version);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // A panic while the lock was held loses one update at most, and updates are repeated.
        self.inner.lock().unwrap_or_else(|bad| bad.into_inner())
    }
}

impl Inner {
    /// The objects of a kind that are newer than this version.
    fn newer(&mut self, kind: Kind, version: u64) -> Vec<Arc<Object>> {
        if kind == Kind::Events {
            return self.ring.newer(version);
        }
        let all = self.collection(kind).all();
        all.filter(|object| object.version > version)
            .cloned()
            .collect()
    }

    fn collection(&mut self, kind: Kind) -> &mut Collection {
        match kind {
            Kind::Pods => &mut self.pods,
            Kind::Nodes => &mut self.nodes,
            Kind::Events => &mut self.events_gone,
            Kind::Services => &mut self.services,
            Kind::Endpoints => &mut self.endpoints,
            Kind::PriorityClasses => &mut self.priority_classes,
            Kind::ConfigMaps => &mut self.config_maps,
            Kind::Secrets => &mut self.secrets,
            Kind::ServiceAccounts => &mut self.service_accounts,
            Kind::Namespaces => &mut self.namespaces,
            Kind::Claims => &mut self.claims,
            Kind::Volumes => &mut self.volumes,
            Kind::Budgets => &mut self.budgets,
            Kind::Workloads(kind) => {
                let all = &mut self.workloads;
                all.get_mut(&kind).expect("each kind has its collection")
            }
        }
    }

    fn changed(&mut self, version: u64) {
        self.version = version;
        self.watchers.retain(|watcher| {
            !watcher.is_closed() && {
                // A full channel means that the watcher will look anyway.
                let _ = watcher.try_send(());
                true
            }
        });
    }
}

fn to_json(value: &impl serde::Serialize) -> String {
    // Kubernetes types have string keys only, so this cannot fail.
    serde_json::to_string(value).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::events::ObjectKind as About;
    use crate::plan::NodeState;
    use crate::spec::Severity;
    use crate::spec::convert::{self, ConvertContext};
    use crate::types::{Stamp, Wall};

    #[test]
    fn what_others_keep_is_shared_also_after_compaction() {
        let store = Store::new();
        for reason in ["Pulled", "Started"] {
            store.push_event(&EventRecord {
                namespace: "default".to_owned(),
                name: "web".to_owned(),
                uid: "u".to_owned(),
                kind: About::Pod,
                field_path: String::new(),
                type_: Severity::Normal,
                reason: reason.to_owned(),
                message: "it is so".to_owned(),
                annotations: BTreeMap::new(),
                at: Stamp::default(),
            });
        }
        let workload = || {
            let text = concat!(
                r#"{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"web"},"spec":{"replicas":2,"#,
                r#""selector":{"matchLabels":{"app":"web"}},"template":{"metadata":{"labels":{"app":"web"}},"#,
                r#""spec":{"containers":[{"name":"c","image":"i"}]}}}}"#
            );
            let found = convert::documents(text.as_bytes(), "f", &ConvertContext::of("n"));
            Arc::new(found.expect("valid").workloads.remove(0))
        };
        let state = NodeState::default();
        let first = workload();
        store.upsert_workload(Shown::of(&state, &first, Wall::default()));
        let shown = |kind| {
            let (_, all) = store.list(kind);
            let text = |object: &Arc<Object>| String::from_utf8(object.json().to_vec()).unwrap();
            all.iter().map(text).collect::<Vec<_>>()
        };
        let kinds = [Kind::Events, Kind::Workloads(WorkloadKind::Deployment)];
        let before = kinds.map(shown);
        assert!(before[0][1].contains(r#""reason":"Started""#), "{before:?}");
        for part in [
            r#""generation":1,"name":"web","namespace":"default","resourceVersion":""#,
            r#""replicas":2,"#,
        ] {
            assert!(before[1][0].contains(part), "{before:?}");
        }
        store.compact();
        assert_eq!(kinds.map(shown), before);
        let (version, _) = store.list(Kind::Events);
        store.upsert_workload(Shown::of(&state, &first, Wall::default()));
        assert_eq!(store.list(Kind::Events).0, version, "nothing has changed");
        let mut inner = store.lock();
        let deployments = inner.collection(kinds[1]);
        let object = deployments.all().next().unwrap();
        let Body::Document(shown) = &object.body else {
            panic!("{object:?}");
        };
        assert!(Arc::ptr_eq(&shown.workload, &first));
        drop(inner);
        // Its file is read again, and says the same.
        let again = workload();
        store.upsert_workload(Shown::of(&state, &again, Wall::default()));
        assert_eq!(store.version(), version);
        let object = store.get(kinds[1], &("default".into(), "web".into()));
        let Body::Document(shown) = &object.unwrap().body else {
            panic!("a document");
        };
        assert!(Arc::ptr_eq(&shown.workload, &again));
    }
}
