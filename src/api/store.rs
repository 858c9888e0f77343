//! What is there to see right now? The node writes here after every turn of its loop; handlers read. One lock, held
//! only for look-ups; watchers are woken through channels of capacity one, so a slow client costs nothing.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{SystemTime, UNIX_EPOCH};

use hyper::body::Bytes;
use k8s_openapi::Metadata;
use k8s_openapi::api::core::v1::{Endpoints, Event, Node, Pod, Service};
use k8s_openapi::api::scheduling::v1::PriorityClass;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Deserialize;
use serde_json::Value;
use smol::channel::{Receiver, Sender, bounded};

use super::events::{EventRecord, EventRing};
use super::files::FileStatus;
use super::object::{Change, Collection, Key, Object};
use crate::sys::process;

/// Which collection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Pods,
    Nodes,
    Events,
    Services,
    Endpoints,
    PriorityClasses,
}

impl Kind {
    const ALL: [Self; 6] = [
        Self::Pods,
        Self::Nodes,
        Self::Events,
        Self::Services,
        Self::Endpoints,
        Self::PriorityClasses,
    ];
}

/// The snapshot that clients see.
#[derive(Debug)]
pub struct Store {
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    version: u64,
    pods: Collection,
    nodes: Collection,
    events: Collection,
    services: Collection,
    endpoints: Collection,
    priority_classes: Collection,
    ring: EventRing,
    files: Vec<FileStatus>,
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
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let start = now.map_or(1, |d| u64::try_from(d.as_micros()).unwrap_or(1).max(1));
        let collection = || Collection::starting_at(start);
        Self {
            inner: Mutex::new(Inner {
                version: start,
                pods: collection(),
                nodes: collection(),
                events: collection(),
                services: collection(),
                endpoints: collection(),
                priority_classes: collection(),
                ring: EventRing::default(),
                files: Vec::new(),
                watchers: Vec::new(),
            }),
        }
    }

    /// Shows a pod, status included. Nothing happens if it is shown already just so.
    pub fn upsert_pod(&self, pod: Pod) {
        let text = |t: Option<&String>| t.cloned().unwrap_or_default();
        let fields = vec![
            (
                "status.phase",
                text(pod.status.as_ref().and_then(|s| s.phase.as_ref())),
            ),
            (
                "spec.nodeName",
                text(pod.spec.as_ref().and_then(|s| s.node_name.as_ref())),
            ),
        ];
        let object = Object::new(&pod.metadata, fields);
        self.upsert(Kind::Pods, object, |version| {
            let mut pod = pod.clone();
            pod.metadata.resource_version = Some(version.to_string());
            to_json(&pod)
        });
    }

    /// Shows a pod no longer, if it is still the one with that UID.
    pub fn remove_pod(&self, namespace: &str, name: &str, uid: &str) {
        let mut inner = self.lock();
        let version = inner.version + 1;
        let key = (namespace.to_owned(), name.to_owned());
        if inner.pods.remove(&key, Some(uid), version) {
            inner.changed(version);
        }
    }

    /// Shows the node.
    pub fn set_node(&self, node: Node) {
        let object = Object::new(&node.metadata, Vec::new());
        self.lock().ring.host.clone_from(&object.key.1);
        self.upsert(Kind::Nodes, object, |version| {
            let mut node = node.clone();
            node.metadata.resource_version = Some(version.to_string());
            to_json(&node)
        });
    }

    /// Adds an event, or counts it up if it is the same as one before; of many the oldest are forgotten. Returns the line
    /// that [`Store::restore_events`] understands.
    pub fn push_event(&self, record: &EventRecord) -> String {
        let told = self.lock().ring.push(record);
        self.show_event(&told.event);
        for key in told.forgotten {
            let mut inner = self.lock();
            let version = inner.version + 1;
            if inner.events.remove(&key, None, version) {
                inner.changed(version);
            }
        }
        told.line
    }

    /// Shows the events of a former agent, of all the lines it was given or of [`Store::event_lines`] and those since. The
    /// node is to be known before.
    pub fn restore_events(&self, lines: &[u8]) {
        let events = {
            let mut inner = self.lock();
            inner.ring.restore(lines);
            inner.ring.events()
        };
        for event in events {
            self.show_event(&event);
        }
    }

    /// The lines of all events that are shown.
    pub fn event_lines(&self) -> String {
        self.lock().ring.lines()
    }

    /// Moves what is shown together in memory: events and removals outlive what they are about, and a page of the heap
    /// cannot be given back while one of them is in it.
    pub fn compact(&self) {
        let mut inner = self.lock();
        let packed = Kind::ALL.map(|kind| inner.collection(kind).pack());
        let lines = inner.ring.take_lines();
        // So that what they leave is whole before they come back to it.
        process::trim_memory();
        inner.ring.restore(lines.as_bytes());
        for (kind, packed) in Kind::ALL.into_iter().zip(&packed) {
            inner.collection(kind).unpack(packed);
        }
    }

    fn show_event(&self, event: &Event) {
        let object = Object::new(&event.metadata, Vec::new());
        self.upsert(Kind::Events, object, |version| {
            let mut event = event.clone();
            event.metadata.resource_version = Some(version.to_string());
            to_json(&event)
        });
    }

    /// Shows these services and no others.
    pub fn set_services(&self, services: &[Service]) {
        let fields = |service: &Service| {
            let spec = service.spec.as_ref();
            let of = |field: Option<&String>| field.cloned().unwrap_or_default();
            vec![
                ("spec.type", of(spec.and_then(|s| s.type_.as_ref()))),
                (
                    "spec.clusterIP",
                    of(spec.and_then(|s| s.cluster_ip.as_ref())),
                ),
            ]
        };
        self.set_all(Kind::Services, services, fields);
    }

    /// Shows these endpoints and no others.
    pub fn set_endpoints(&self, endpoints: &[Endpoints]) {
        self.set_all(Kind::Endpoints, endpoints, |_| Vec::new());
    }

    /// Shows these priority classes and no others.
    pub fn set_priority_classes(&self, classes: &[PriorityClass]) {
        self.set_all(Kind::PriorityClasses, classes, |_| Vec::new());
    }

    /// Replaces the list of manifest files.
    pub fn set_files(&self, files: Vec<FileStatus>) {
        self.lock().files = files;
    }

    /// The manifest files.
    pub fn files(&self) -> Vec<FileStatus> {
        self.lock().files.clone()
    }

    /// The pod of that name.
    pub fn pod(&self, namespace: &str, name: &str) -> Option<Pod> {
        let key = (namespace.to_owned(), name.to_owned());
        let json = self.lock().pods.get(&key)?.json.clone();
        // By way of a value, as everywhere: each way of reading a pod makes the binary 200 kB larger.
        let pod: Value = serde_json::from_slice(&json).ok()?;
        Pod::deserialize(&pod).ok()
    }

    pub(crate) fn get(&self, kind: Kind, key: &Key) -> Option<Arc<Object>> {
        self.lock().collection(kind).get(key)
    }

    /// All objects of a kind, and the version they are of: by name, events as they were last told.
    pub(crate) fn list(&self, kind: Kind) -> (u64, Vec<Arc<Object>>) {
        let mut inner = self.lock();
        let mut objects: Vec<_> = inner.collection(kind).all().cloned().collect();
        if kind == Kind::Events {
            objects.sort_by_key(|object| object.version);
        }
        (inner.version, objects)
    }

    /// The version of what is shown now.
    pub(crate) fn version(&self) -> u64 {
        self.lock().version
    }

    /// Changes since a version and the version they lead to; `None` if that version is not known (any more).
    pub(crate) fn since(&self, kind: Kind, version: u64) -> Option<(u64, Vec<Change>)> {
        let mut inner = self.lock();
        let now = inner.version;
        if version > now {
            return None;
        }
        let changes = inner.collection(kind).since(version)?;
        Some((now, changes))
    }

    /// A channel that becomes readable when anything has changed.
    pub(crate) fn subscribe(&self) -> Receiver<()> {
        let (sender, receiver) = bounded(1);
        self.lock().watchers.push(sender);
        receiver
    }

    fn set_all<T>(
        &self,
        kind: Kind,
        items: &[T],
        fields: impl Fn(&T) -> Vec<(&'static str, String)>,
    ) where
        T: Metadata<Ty = ObjectMeta> + serde::Serialize + Clone,
    {
        let mut wanted = BTreeSet::new();
        for item in items {
            let object = Object::new(item.metadata(), fields(item));
            wanted.insert(object.key.clone());
            self.upsert(kind, object, |version| {
                let mut item = item.clone();
                item.metadata_mut().resource_version = Some(version.to_string());
                to_json(&item)
            });
        }
        let mut inner = self.lock();
        let shown = inner.collection(kind).all().map(|o| o.key.clone());
        let gone: Vec<Key> = shown.filter(|key| !wanted.contains(key)).collect();
        for key in gone {
            let version = inner.version + 1;
            if inner.collection(kind).remove(&key, None, version) {
                inner.changed(version);
            }
        }
    }

    fn upsert(&self, kind: Kind, object: Object, json: impl Fn(u64) -> Bytes) {
        let mut inner = self.lock();
        // Two versions a change: if an object of the same name but another UID goes, it goes at the first.
        let version = inner.version + 2;
        if inner.collection(kind).upsert(object, version, json) {
            inner.changed(version);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // A panic while the lock was held can at worst have lost one update, and updates are repeated.
        self.inner.lock().unwrap_or_else(|bad| bad.into_inner())
    }
}

impl Inner {
    fn collection(&mut self, kind: Kind) -> &mut Collection {
        match kind {
            Kind::Pods => &mut self.pods,
            Kind::Nodes => &mut self.nodes,
            Kind::Events => &mut self.events,
            Kind::Services => &mut self.services,
            Kind::Endpoints => &mut self.endpoints,
            Kind::PriorityClasses => &mut self.priority_classes,
        }
    }

    fn changed(&mut self, version: u64) {
        self.version = version;
        self.watchers.retain(|watcher| {
            !watcher.is_closed() && {
                // A full channel means the watcher will look anyway.
                let _ = watcher.try_send(());
                true
            }
        });
    }
}

fn to_json(value: &impl serde::Serialize) -> Bytes {
    // Kubernetes types have string keys only, so this cannot fail.
    Bytes::from(serde_json::to_vec(value).unwrap_or_default())
}
