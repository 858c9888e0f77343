//! A Kubernetes object as stored for readers. Most are kept as the JSON that is sent, packed: this is small in memory,
//! and lists and watches need no serializer. Of events and of documents that stand for pods, only what their JSON is made
//! of is kept, and shared with what keeps it anyway.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::num::NonZeroU32;
use std::sync::Arc;

use hyper::body::Bytes;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::events;
use crate::plan::workload::Shown;
use crate::spec::WorkloadKey;
use crate::types::{Gather, InOrder, PackedText};

/// Limit of removals that are kept for watchers that come back.
const MAX_REMOVED: usize = 256;

/// Limit of the bytes of kept removals; the newest is kept in any case.
const MAX_REMOVED_BYTES: usize = 1 << 20;

/// Namespace (empty for nodes) and name.
pub(crate) type Key = (Arc<str>, Arc<str>);

/// The key of a document, which shares its names.
pub(crate) fn key_of(key: &WorkloadKey) -> Key {
    (Arc::clone(&key.namespace), Arc::clone(&key.name))
}

/// One stored object.
#[derive(Debug, Clone)]
pub(crate) struct Object {
    pub(crate) key: Key,
    /// Empty for a document that stands for pods: see [`Object::uid`].
    pub(crate) uid: Box<str>,
    pub(crate) body: Body,
    pub(crate) version: u64,
    /// Version of its creation.
    pub(crate) since: u64,
    pub(crate) mark: Mark,
}

/// Since when what selectors of the kind look at is what it is, so that a watch knows whether an object that does not match
/// did so before.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Mark {
    /// A hash of it; `None`: not known.
    pub(crate) hash: Option<NonZeroU32>,
    /// The version.
    pub(crate) since: u64,
}

/// What an object's JSON is made of.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Body {
    /// The JSON as sent.
    Json(PackedText),
    /// An event.
    Event(Box<EventBody>),
    /// A document that stands for pods, which the planner keeps, and what is added to it.
    Document(Box<Shown>),
}

/// An event's line, and the node's name.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct EventBody {
    pub(crate) line: Box<str>,
    pub(crate) host: Arc<str>,
}

impl Body {
    /// The body with this JSON.
    pub(crate) fn json(json: &str) -> Self {
        Self::Json(PackedText::of(json))
    }

    /// The bytes that are kept for it when its object is gone.
    fn len(&self) -> usize {
        match self {
            Self::Json(json) => json.len(),
            Self::Event(event) => event.line.len(),
            Self::Document(shown) => shown.workload.manifest.len(),
        }
    }
}

impl Object {
    /// Takes key and UID of an object's metadata.
    pub(crate) fn new(meta: &ObjectMeta) -> Self {
        let key = (
            meta.namespace.as_deref().unwrap_or_default().into(),
            meta.name.as_deref().unwrap_or_default().into(),
        );
        Self::of(key, meta.uid.as_deref().unwrap_or_default())
    }

    /// An object without content; the collection fills in `body` and versions.
    pub(crate) fn of(key: Key, uid: &str) -> Self {
        Self {
            key,
            uid: uid.into(),
            body: Body::json(""),
            version: 0,
            since: 0,
            mark: Mark::default(),
        }
    }

    /// `metadata.uid`.
    pub(crate) fn uid(&self) -> String {
        match &self.body {
            Body::Document(shown) => shown.workload.key.uid().to_string(),
            Body::Json(_) | Body::Event(_) => self.uid.to_string(),
        }
    }

    /// Returns the JSON.
    pub(crate) fn json(&self) -> Bytes {
        match &self.body {
            Body::Json(json) => json.text().into(),
            Body::Event(event) => events::shown(&event.line, &event.host, self.version).into(),
            Body::Document(shown) => shown.json(self.version).to_string().into(),
        }
    }

    /// Reads `metadata.labels`.
    pub(crate) fn labels(&self) -> BTreeMap<String, String> {
        #[derive(Default, Deserialize)]
        struct Labelled {
            metadata: Metadata,
        }
        #[derive(Default, Deserialize)]
        struct Metadata {
            labels: Option<BTreeMap<String, Option<String>>>,
        }
        let read: Labelled = serde_json::from_slice(&self.json()).unwrap_or_default();
        let labels = read.metadata.labels.into_iter().flatten();
        // A document may have `null` for an empty value.
        labels
            .map(|(name, value)| (name, value.unwrap_or_default()))
            .gather()
    }

    /// Returns the object with its current version in the metadata: the JSON of a removed object has the version
    /// before.
    pub(crate) fn restamped(&self) -> Self {
        let mut object = self.clone();
        if let Ok(mut json) = serde_json::from_slice::<Value>(&self.json()) {
            json["metadata"]["resourceVersion"] = self.version.to_string().into();
            object.body = Body::json(&json.to_string());
        }
        object
    }
}

/// A packed object.
#[derive(Debug, Serialize, Deserialize)]
struct Row {
    key: (String, String),
    uid: Box<str>,
    body: PackedBody,
    version: u64,
    since: u64,
    mark: Mark,
}

/// A packed [`Body`].
#[derive(Debug, Serialize, Deserialize)]
enum PackedBody {
    Json(PackedText),
    Event(Box<str>),
    /// The number of the document among those of [`Packed`].
    Document(usize),
}

/// A packed collection.
#[derive(Debug, Default)]
pub(crate) struct Packed {
    rows: Vec<u8>,
    documents: Vec<Shown>,
}

/// A change as reported to a watcher.
#[derive(Debug, Clone)]
pub(crate) enum Change {
    Added(Arc<Object>),
    Modified(Arc<Object>),
    Deleted(Arc<Object>),
}

impl Change {
    /// The object as it was at the change.
    pub(crate) fn object(&self) -> &Arc<Object> {
        match self {
            Self::Added(object) | Self::Modified(object) | Self::Deleted(object) => object,
        }
    }
}

/// A stored object, found by its key.
#[derive(Debug)]
struct Stored(Arc<Object>);

impl Borrow<Key> for Stored {
    fn borrow(&self) -> &Key {
        &self.0.key
    }
}

impl PartialEq for Stored {
    fn eq(&self, other: &Self) -> bool {
        self.0.key == other.0.key
    }
}

impl Eq for Stored {}

impl PartialOrd for Stored {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Stored {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.key.cmp(&other.0.key)
    }
}

/// Objects of one kind. Watchers get the newest state of what changed since their version, not every step between.
#[derive(Debug, Default)]
pub(crate) struct Collection {
    objects: BTreeSet<Stored>,
    removed: VecDeque<Arc<Object>>,
    /// Total size of the JSON of kept removals.
    removed_bytes: usize,
    /// Removals up to this version are dropped.
    forgotten: u64,
}

impl Collection {
    /// An empty collection that knows no changes before `version`.
    pub(crate) fn starting_at(version: u64) -> Self {
        Self {
            forgotten: version,
            ..Self::default()
        }
    }

    /// Stores `object` under a version from `next` unless it is unchanged. `render` makes the body for a version.
    pub(crate) fn upsert(
        &mut self,
        mut object: Object,
        version: u64,
        render: impl Fn(u64) -> Body,
    ) -> bool {
        let before = self.get(&object.key);
        let same_one = before.as_ref().filter(|old| old.uid == object.uid);
        if let Some(old) = same_one {
            let body = render(old.version);
            if body == old.body {
                // The file was read again: the planner has a new copy, which is shared.
                if matches!(body, Body::Document(_)) {
                    let same = Object {
                        body,
                        ..Object::clone(old)
                    };
                    self.objects.replace(Stored(Arc::new(same)));
                }
                return false;
            }
        }
        object.version = version;
        object.since = same_one.map_or(version, |old| old.since);
        let same_mark = same_one.map(|old| old.mark);
        let same_mark = same_mark.filter(|old| old.hash.is_some() && old.hash == object.mark.hash);
        object.mark.since = same_mark.map_or(version, |old| old.since);
        object.body = render(version);
        if let (Some(old), true) = (before.as_ref(), same_one.is_none()) {
            self.bury(old, version - 1);
        }
        self.objects.replace(Stored(Arc::new(object)));
        true
    }

    /// Removes an object, if it still has this UID.
    pub(crate) fn remove(&mut self, key: &Key, uid: Option<&str>, version: u64) -> bool {
        let old = self.get(key);
        let Some(old) = old.filter(|old| uid.is_none_or(|uid| *old.uid == *uid)) else {
            return false;
        };
        self.objects.remove(key);
        self.bury(&old, version);
        true
    }

    /// Notes a removal.
    pub(crate) fn bury(&mut self, old: &Object, version: u64) {
        let mut gone = old.clone();
        gone.version = version;
        self.removed_bytes += gone.body.len();
        self.removed.push_back(Arc::new(gone));
        while self.removed.len() > MAX_REMOVED
            || self.removed_bytes > MAX_REMOVED_BYTES && self.removed.len() > 1
        {
            let Some(oldest) = self.removed.pop_front() else {
                break;
            };
            self.removed_bytes -= oldest.body.len();
            self.forgotten = oldest.version;
        }
    }

    /// Takes out all objects and kept removals as one piece of memory.
    pub(crate) fn pack(&mut self) -> Packed {
        let objects = std::mem::take(&mut self.objects);
        let removed = std::mem::take(&mut self.removed);
        let mut documents = Vec::new();
        let mut row = |object: &Arc<Object>| Row {
            key: (object.key.0.to_string(), object.key.1.to_string()),
            uid: object.uid.clone(),
            body: match &object.body {
                Body::Json(json) => PackedBody::Json(json.clone()),
                Body::Event(event) => PackedBody::Event(event.line.clone()),
                Body::Document(shown) => {
                    documents.push(Shown::clone(shown));
                    PackedBody::Document(documents.len() - 1)
                }
            },
            version: object.version,
            since: object.since,
            mark: object.mark,
        };
        let objects: Vec<Row> = objects.iter().map(|stored| row(&stored.0)).collect();
        let removed: Vec<Row> = removed.iter().map(row).collect();
        let rows = serde_json::to_vec(&(objects, removed)).expect("plain data");
        Packed { rows, documents }
    }

    /// Puts packed objects back. `host` is the node's name.
    pub(crate) fn unpack(&mut self, packed: &Packed, host: &Arc<str>) {
        // Most objects have the same namespace.
        let mut namespace: Arc<str> = "default".into();
        let mut object = |row: Row| {
            if *namespace != *row.key.0 {
                namespace = row.key.0.into();
            }
            let (body, key) = match row.body {
                PackedBody::Json(json) => (Body::Json(json), None),
                PackedBody::Event(line) => {
                    let host = Arc::clone(host);
                    (Body::Event(Box::new(EventBody { line, host })), None)
                }
                PackedBody::Document(number) => {
                    let shown = &packed.documents[number];
                    let body = Body::Document(Box::new(shown.clone()));
                    (body, Some(key_of(&shown.workload.key)))
                }
            };
            Arc::new(Object {
                key: key.unwrap_or_else(|| (Arc::clone(&namespace), row.key.1.into())),
                uid: row.uid,
                body,
                version: row.version,
                since: row.since,
                mark: row.mark,
            })
        };
        let (objects, removed): (Vec<Row>, Vec<Row>) =
            serde_json::from_slice(&packed.rows).expect("plain data");
        let objects = objects.into_iter().map(&mut object);
        self.objects = objects.map(Stored).collect();
        self.removed = removed.into_iter().map(object).collect();
    }

    pub(crate) fn get(&self, key: &Key) -> Option<Arc<Object>> {
        self.objects.get(key).map(|stored| stored.0.clone())
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &Arc<Object>> {
        self.objects.iter().map(|stored| &stored.0)
    }

    /// Returns all changes since `version`, in order; `None` if that is too long ago. `newer` are the objects that are
    /// newer than it.
    pub(crate) fn since(&self, version: u64, newer: &[Arc<Object>]) -> Option<Vec<Change>> {
        if version < self.forgotten {
            return None;
        }
        let mut changes: Vec<Change> = self
            .removed
            .iter()
            .filter(|gone| gone.version > version && gone.since <= version)
            .map(|gone| Change::Deleted(gone.clone()))
            .collect();
        for object in newer {
            changes.push(if object.since > version {
                Change::Added(object.clone())
            } else {
                Change::Modified(object.clone())
            });
        }
        changes.order_by_key(|change| change.object().version);
        Some(changes)
    }
}
