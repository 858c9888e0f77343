//! What has been told to people? A bounded list of Kubernetes events; the same one again is counted, not repeated.

use std::collections::VecDeque;

use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use k8s_openapi::jiff::Timestamp;

use super::object::Key;
use crate::spec::Stamp;

/// The oldest event beyond this is forgotten.
const MAX_EVENTS: usize = 1000;

/// Something worth telling.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventRecord {
    /// The pod's namespace; for the node `default`.
    pub namespace: String,
    /// Name of the pod or node.
    pub name: String,
    /// UID of the pod; for the node its name.
    pub uid: String,
    /// What it is about.
    pub kind: ObjectKind,
    /// `spec.containers{web}`, or empty.
    pub field_path: String,
    /// How bad.
    pub type_: EventType,
    /// One CamelCase word.
    pub reason: String,
    /// The sentence.
    pub message: String,
    /// When.
    pub at: Stamp,
}

/// What an event is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ObjectKind {
    /// A pod.
    Pod,
    /// The node.
    Node,
}

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventType {
    /// As it should be.
    Normal,
    /// Somebody should look.
    Warning,
}

impl EventType {
    /// The Kubernetes word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Normal => "Normal",
            Self::Warning => "Warning",
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct EventRing {
    seen: VecDeque<Seen>,
    serial: u64,
}

#[derive(Debug)]
struct Seen {
    record: EventRecord,
    first: Stamp,
    count: i32,
    name: String,
}

impl EventRing {
    /// The event to show, and the key of one that is to be shown no longer.
    pub(crate) fn push(&mut self, record: &EventRecord) -> (Event, Option<Key>) {
        let same = |old: &Seen| {
            EventRecord {
                at: record.at,
                ..old.record.clone()
            } == *record
        };
        if let Some(index) = self.seen.iter().rposition(same) {
            // Counted up, it is the newest again.
            if let Some(mut seen) = self.seen.remove(index) {
                seen.count = seen.count.saturating_add(1);
                seen.record.at = record.at;
                let event = seen.event();
                self.seen.push_back(seen);
                return (event, None);
            }
        }
        self.serial += 1;
        let seen = Seen {
            record: record.clone(),
            first: record.at,
            count: 1,
            name: format!("{}.{:x}.{:x}", record.name, record.at.wall.0, self.serial),
        };
        let event = seen.event();
        self.seen.push_back(seen);
        let forgotten = (self.seen.len() > MAX_EVENTS)
            .then(|| self.seen.pop_front())
            .flatten()
            .map(|old| (old.record.namespace, old.name));
        (event, forgotten)
    }
}

impl Seen {
    fn event(&self) -> Event {
        let record = &self.record;
        Event {
            metadata: ObjectMeta {
                name: Some(self.name.clone()),
                namespace: Some(record.namespace.clone()),
                uid: Some(self.name.clone()),
                creation_timestamp: time(self.first),
                ..ObjectMeta::default()
            },
            involved_object: ObjectReference {
                api_version: Some("v1".to_owned()),
                kind: Some(
                    match record.kind {
                        ObjectKind::Pod => "Pod",
                        ObjectKind::Node => "Node",
                    }
                    .to_owned(),
                ),
                namespace: match record.kind {
                    ObjectKind::Pod => Some(record.namespace.clone()),
                    ObjectKind::Node => None,
                },
                name: Some(record.name.clone()),
                uid: Some(record.uid.clone()),
                field_path: (!record.field_path.is_empty()).then(|| record.field_path.clone()),
                ..ObjectReference::default()
            },
            type_: Some(record.type_.as_str().to_owned()),
            reason: Some(record.reason.clone()),
            message: Some(record.message.clone()),
            count: Some(self.count),
            first_timestamp: time(self.first),
            last_timestamp: time(record.at),
            source: Some(EventSource {
                component: Some("coracle".to_owned()),
                host: None,
            }),
            ..Event::default()
        }
    }
}

fn time(stamp: Stamp) -> Option<Time> {
    let at = Timestamp::from_microsecond(stamp.wall.0).ok()?;
    // Kubernetes' `Time` has whole seconds.
    Timestamp::from_second(at.as_second()).ok().map(Time)
}
