//! Kubernetes events: a bounded list. A repeated event is counted, and many similar events are combined (the kubelet's
//! `pkg/kubelet/events`), so that one noisy pod does not push out the events of others.
//!
//! Each event is a line of text in a log. A new or updated event appends a line, and the list is what the newest lines
//! say: it can be restored from them. The objects that clients see are made when they are asked for.

use std::collections::{BTreeMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use k8s_openapi::jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::object::{Body, EventBody, Key, Mark, Object};
use crate::spec::{Severity, WorkloadKind};
use crate::types::{Gather, PackedText, Stamp};

/// Limit of events; beyond it the oldest are dropped.
const MAX_EVENTS: usize = 1000;
/// Limit of the lines' bytes; beyond it the oldest are dropped.
const MAX_BYTES: usize = 384 * 1024;
/// Longest message in bytes (Kubernetes' limit of an event's `note`).
const MAX_MESSAGE: usize = 1024;
/// Limit of messages of one object, container, type and reason within [`SIMILAR_MS`]; those beyond are combined.
const MAX_SIMILAR: usize = 10;
/// Ten minutes (client-go's event aggregator).
const SIMILAR_MS: u64 = 600_000;

/// An event to record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventRecord {
    /// The object's namespace; for the node `default`.
    pub namespace: String,
    /// Name of the object.
    pub name: String,
    /// UID of the object; for the node its name.
    pub uid: String,
    /// Kind of the object.
    pub kind: ObjectKind,
    /// `spec.containers{web}`, or empty.
    pub field_path: String,
    /// Severity.
    pub type_: Severity,
    /// One CamelCase word.
    pub reason: String,
    /// The sentence; cut after 1024 bytes, as Kubernetes does.
    pub message: String,
    /// `metadata.annotations`; values are cut as the message is.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// When it occurred.
    pub at: Stamp,
}

/// What an event is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ObjectKind {
    /// A pod.
    Pod,
    /// The node.
    Node,
    /// A document that stands for pods.
    Workload(WorkloadKind),
    /// A service.
    Service,
}

impl ObjectKind {
    /// `apiVersion` and `kind`.
    fn words(self) -> (&'static str, &'static str) {
        match self {
            Self::Pod => ("v1", "Pod"),
            Self::Node => ("v1", "Node"),
            Self::Service => ("v1", "Service"),
            Self::Workload(kind) => (kind.version(), kind.as_str()),
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct EventRing {
    /// The node's name.
    pub(crate) host: Arc<str>,
    /// To compare events by hash. Its keys are random, because containers choose parts of messages.
    hashes: RandomState,
    /// Ordered by the last occurrence.
    seen: VecDeque<Seen>,
    serial: u64,
    /// Total length of the lines.
    bytes: usize,
}

/// One event, small in memory.
#[derive(Debug)]
struct Seen {
    serial: u64,
    first: Stamp,
    last: Stamp,
    count: i32,
    /// Combined from similar events.
    combined: bool,
    /// A hash of all but message and time.
    about: u64,
    /// A hash of the message; that of a combined event is never compared.
    message: u64,
    /// The version of its object, and that of its first occurrence.
    versions: (u64, u64),
    /// The record, as [`short`] writes it.
    record: PackedText,
    /// The size of its line.
    bytes: usize,
}

/// All of an event.
#[derive(Debug, Serialize, Deserialize)]
struct Line {
    serial: u64,
    first: Stamp,
    count: i32,
    combined: bool,
    record: EventRecord,
}

/// Result of recording an event.
#[derive(Debug)]
pub(crate) struct Recorded {
    /// Events that were dropped.
    pub(crate) forgotten: Vec<Object>,
    /// The line to append to the log, with its newline.
    pub(crate) line: String,
}

/// All events as two pieces of memory.
#[derive(Debug)]
pub(crate) struct Packed {
    /// The events without their records, and the length of each record.
    seen: Vec<(Seen, usize)>,
    /// The records, one after the other.
    records: String,
}

impl EventRing {
    /// Sets the node's name. Events share it.
    pub(crate) fn set_host(&mut self, host: &str) {
        if *self.host != *host {
            self.host = host.into();
        }
    }

    /// Records an event: a new one, or another occurrence of an earlier one, which becomes the newest. Its object has this
    /// version.
    pub(crate) fn push(&mut self, record: &EventRecord, version: u64) -> Recorded {
        let mut record = EventRecord {
            message: shortened(&record.message),
            annotations: (record.annotations.iter())
                .map(|(name, value)| (name.clone(), shortened(value)))
                .gather(),
            ..record.clone()
        };
        let hashes @ (about, message) = self.hashes(&record);
        let same = |old: &Seen| !old.combined && old.message == message && old.about == about;
        let mut known = self.seen.iter().rposition(same);
        let mut combined = false;
        if known.is_none() && self.similar_lately(about, record.at) >= MAX_SIMILAR - 1 {
            combined = true;
            record.message = shortened(&format!(
                "(combined from similar events): {}",
                record.message
            ));
            let same = |old: &Seen| old.combined && old.about == about;
            known = self.seen.iter().rposition(same);
        }
        let known = known.and_then(|index| self.take(index));
        let since = known.as_ref().map_or(version, |old| old.versions.1);
        let (serial, first, count) = match known {
            Some(old) => (old.serial, old.first, old.count.saturating_add(1)),
            None => {
                self.serial += 1;
                (self.serial, record.at, 1)
            }
        };
        let line = Line {
            serial,
            first,
            count,
            combined,
            record,
        };
        let text = line.text();
        Recorded {
            forgotten: self.add(&line, hashes, (version, since), text.len()),
            line: text,
        }
    }

    /// Restores events from lines, oldest first. A torn or broken line loses only its event. Their objects have versions
    /// after this one; returns the last.
    pub(crate) fn restore(&mut self, lines: &[u8], mut version: u64) -> u64 {
        for text in lines.split(|byte| *byte == b'\n') {
            let text = std::str::from_utf8(text).unwrap_or_default();
            let Ok(line) = serde_json::from_str::<Line>(text) else {
                continue;
            };
            self.serial = self.serial.max(line.serial);
            let known = self.seen.iter().rposition(|s| s.serial == line.serial);
            known.and_then(|index| self.take(index));
            version += 1;
            let (hashes, versions) = (self.hashes(&line.record), (version, version));
            self.add(&line, hashes, versions, text.len() + 1);
        }
        self.seen.shrink_to_fit();
        version
    }

    /// The objects of the events that are newer than this version, oldest first.
    pub(crate) fn newer(&self, version: u64) -> Vec<Arc<Object>> {
        let newer = self.seen.iter().filter(|seen| seen.versions.0 > version);
        let objects = newer.filter_map(|seen| self.object(seen));
        objects.map(Arc::new).collect()
    }

    /// The object of an event.
    pub(crate) fn get(&self, key: &Key) -> Option<Arc<Object>> {
        let serial = key.1.rsplit('.').next()?;
        let serial = u64::from_str_radix(serial, 16).ok()?;
        let seen = self.seen.iter().find(|seen| seen.serial == serial)?;
        let object = self.object(seen).filter(|object| object.key == *key);
        object.map(Arc::new)
    }

    fn object(&self, seen: &Seen) -> Option<Object> {
        let line = seen.line()?;
        let key = line.key();
        Some(Object {
            uid: (*key.1).into(),
            key,
            body: Body::Event(Box::new(EventBody {
                line: line.text().into(),
                host: Arc::clone(&self.host),
            })),
            version: seen.versions.0,
            since: seen.versions.1,
            mark: Mark {
                hash: None,
                since: seen.versions.0,
            },
        })
    }

    /// All lines, oldest first.
    pub(crate) fn lines(&self) -> String {
        let lines = self.seen.iter().filter_map(Seen::line);
        lines.map(|line| line.text()).collect()
    }

    /// Takes all events out.
    pub(crate) fn pack(&mut self) -> Packed {
        let seen = std::mem::take(&mut self.seen);
        let mut packed = Packed {
            seen: Vec::with_capacity(seen.len()),
            records: String::with_capacity(seen.iter().map(|seen| seen.record.len()).sum()),
        };
        for mut seen in seen {
            let record = std::mem::take(&mut seen.record).text();
            packed.records.push_str(&record);
            packed.seen.push((seen, record.len()));
        }
        packed
    }

    /// Puts them back.
    pub(crate) fn unpack(&mut self, packed: Packed) {
        let mut rest = &*packed.records;
        self.seen = VecDeque::with_capacity(packed.seen.len());
        for (seen, length) in packed.seen {
            let (record, after) = rest.split_at(length);
            rest = after;
            let record = PackedText::of(record);
            self.seen.push_back(Seen { record, ..seen });
        }
    }

    /// The hashes of a [`Seen`].
    fn hashes(&self, record: &EventRecord) -> (u64, u64) {
        let about = (
            (&record.namespace, &record.name, &record.uid, record.kind),
            (&record.field_path, record.type_, &record.reason),
        );
        (
            self.hashes.hash_one(about),
            self.hashes.hash_one(&record.message),
        )
    }

    fn similar_lately(&self, about: u64, at: Stamp) -> usize {
        let lately = |old: &&Seen| {
            !old.combined && old.about == about && at.time.since(old.last.time) <= SIMILAR_MS
        };
        self.seen.iter().filter(lately).count()
    }

    fn take(&mut self, index: usize) -> Option<Seen> {
        let seen = self.seen.remove(index)?;
        self.bytes -= seen.bytes;
        Some(seen)
    }

    /// Appends an event and drops the oldest beyond the limits.
    fn add(
        &mut self,
        line: &Line,
        (about, message): (u64, u64),
        versions: (u64, u64),
        bytes: usize,
    ) -> Vec<Object> {
        self.bytes += bytes;
        self.seen.push_back(Seen {
            serial: line.serial,
            first: line.first,
            last: line.record.at,
            count: line.count,
            combined: line.combined,
            about,
            message,
            versions,
            record: PackedText::of(&short(&line.record)),
            bytes,
        });
        let mut forgotten = Vec::new();
        while self.seen.len() > MAX_EVENTS || self.bytes > MAX_BYTES {
            let Some(old) = self.take(0) else { break };
            forgotten.extend(self.object(&old));
        }
        forgotten
    }
}

/// The JSON of the event of a line, as `host` shows it in this version.
pub(crate) fn shown(line: &str, host: &str, version: u64) -> Vec<u8> {
    let Ok(line) = serde_json::from_str::<Line>(line) else {
        return Vec::new();
    };
    let mut event = line.event(host);
    event.metadata.resource_version = Some(version.to_string());
    serde_json::to_vec(&event).unwrap_or_default()
}

fn shortened(message: &str) -> String {
    if message.len() <= MAX_MESSAGE {
        return message.to_owned();
    }
    let end = (0..=MAX_MESSAGE - 3)
        .rev()
        .find(|at| message.is_char_boundary(*at));
    format!("{}...", &message[..end.unwrap_or(0)])
}

/// A record without the names of its fields and without its time, which a [`Seen`] has.
fn short(record: &EventRecord) -> String {
    let about = (&record.namespace, &record.name, &record.uid, record.kind);
    let said = (record.type_, &record.reason, &record.message);
    let whole = (about, &record.field_path, said, &record.annotations);
    serde_json::to_string(&whole).expect("plain data")
}

impl Seen {
    /// Its line; never `None`, as the record was written here.
    fn line(&self) -> Option<Line> {
        let (about, field_path, said, annotations) =
            serde_json::from_str(&self.record.text()).ok()?;
        let (namespace, name, uid, kind) = about;
        let (type_, reason, message) = said;
        Some(Line {
            serial: self.serial,
            first: self.first,
            count: self.count,
            combined: self.combined,
            record: EventRecord {
                namespace,
                name,
                uid,
                kind,
                field_path,
                type_,
                reason,
                message,
                annotations,
                at: self.last,
            },
        })
    }
}

impl Line {
    /// As it is in the log, with the newline.
    fn text(&self) -> String {
        let mut text = serde_json::to_string(self).expect("plain data");
        text.push('\n');
        text
    }

    fn name(&self) -> String {
        format!(
            "{}.{:x}.{:x}",
            self.record.name, self.first.wall.0, self.serial
        )
    }

    /// Namespace and name.
    fn key(&self) -> Key {
        (self.record.namespace.as_str().into(), self.name().into())
    }

    fn event(&self, host: &str) -> Event {
        let record = &self.record;
        let (version, kind) = record.kind.words();
        let name = self.name();
        let component = "coracle".to_owned();
        Event {
            metadata: ObjectMeta {
                name: Some(name.clone()),
                namespace: Some(record.namespace.clone()),
                uid: Some(name),
                creation_timestamp: time(self.first),
                annotations: match record.annotations.is_empty() {
                    true => None,
                    false => Some(record.annotations.clone()),
                },
                ..ObjectMeta::default()
            },
            involved_object: ObjectReference {
                api_version: Some(version.to_owned()),
                kind: Some(kind.to_owned()),
                namespace: match record.kind {
                    ObjectKind::Pod | ObjectKind::Workload(_) | ObjectKind::Service => {
                        Some(record.namespace.clone())
                    }
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
                component: Some(component.clone()),
                host: Some(host.to_owned()),
            }),
            reporting_component: Some(component),
            reporting_instance: Some(host.to_owned()),
            ..Event::default()
        }
    }
}

fn time(stamp: Stamp) -> Option<Time> {
    let at = Timestamp::from_microsecond(stamp.wall.0).ok()?;
    // Kubernetes' `Time` has whole seconds.
    Timestamp::from_second(at.as_second()).ok().map(Time)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(ring: &mut EventRing, message: &str, second: u32) -> Recorded {
        let stamp = Stamp {
            time: crate::types::Time(u64::from(second) * 1000),
            wall: crate::types::Wall(i64::from(second) * 1_000_000),
        };
        let version = ring.seen.back().map_or(0, |last| last.versions.0) + 1;
        let record = EventRecord {
            namespace: "default".into(),
            name: "web".into(),
            uid: "u".into(),
            kind: ObjectKind::Pod,
            field_path: "spec.containers{c}".into(),
            type_: Severity::Warning,
            reason: "Unhealthy".into(),
            message: message.into(),
            annotations: BTreeMap::from([("about".into(), format!("it: {message}"))]),
            at: stamp,
        };
        ring.push(&record, version)
    }

    fn shown(ring: &EventRing) -> Vec<(String, i32)> {
        let row = |line: Line| (line.record.message, line.count);
        ring.seen
            .iter()
            .map(|seen| row(seen.line().unwrap()))
            .collect()
    }

    fn event(line: &str) -> Event {
        serde_json::from_str::<Line>(line).unwrap().event("node")
    }

    #[test]
    fn a_repeated_event_is_counted_and_becomes_the_newest() {
        let mut ring = EventRing::default();
        record(&mut ring, "a", 1);
        record(&mut ring, "b", 2);
        let event = event(&record(&mut ring, "a", 7).line);
        let second = |t: Option<Time>| t.unwrap().0.as_second();
        assert_eq!(
            (second(event.first_timestamp), second(event.last_timestamp)),
            (1, 7)
        );
        assert_eq!(shown(&ring), [("b".to_owned(), 1), ("a".to_owned(), 2)]);
    }

    #[test]
    fn similar_events_are_combined_with_the_newest_message() {
        let mut ring = EventRing::default();
        for n in 0..50 {
            record(&mut ring, &n.to_string(), n);
        }
        let all = shown(&ring);
        assert_eq!(all.len(), MAX_SIMILAR);
        let last = "(combined from similar events): 49".to_owned();
        assert_eq!(all.last(), Some(&(last, 41)));
        record(&mut ring, "3", 50);
        assert_eq!(shown(&ring).last(), Some(&("3".to_owned(), 2)));
        record(&mut ring, "later", 1000);
        assert_eq!(shown(&ring).last(), Some(&("later".to_owned(), 1)));
    }

    #[test]
    fn the_list_is_restored_from_its_lines_even_if_the_last_is_torn() {
        let mut ring = EventRing::default();
        let mut lines = String::new();
        for (at, message) in ["a", "b", "a", "c"].into_iter().enumerate() {
            lines += &*record(&mut ring, message, u32::try_from(at).unwrap()).line;
        }
        for cut in 0..lines.len() {
            let whole =
                lines[..cut].matches('\n').count() + usize::from(lines.as_bytes()[cut] == b'\n');
            let mut again = EventRing::default();
            again.restore(&lines.as_bytes()[..cut], 0);
            let expected: &[(&str, i32)] = match whole {
                0 => &[],
                1 => &[("a", 1)],
                2 => &[("a", 1), ("b", 1)],
                3 => &[("b", 1), ("a", 2)],
                _ => &[("b", 1), ("a", 2), ("c", 1)],
            };
            let expected: Vec<_> = expected
                .iter()
                .map(|(m, n)| ((*m).to_owned(), *n))
                .collect();
            assert_eq!(shown(&again), expected, "cut at {cut}");
            record(&mut again, "new", 9);
            let name = &again.newer(0).pop().unwrap().key.1;
            assert!(!lines.contains(&**name), "a name is given once");
        }
        let mut again = EventRing::default();
        assert_eq!(again.restore(lines.as_bytes(), 7), 11);
        assert_eq!(again.lines(), ring.lines());
        let newest = again
            .seen
            .back()
            .map(|seen| seen.line().unwrap().event("node"));
        let annotations = newest.and_then(|c| c.metadata.annotations);
        assert_eq!(annotations.unwrap()["about"], "it: c");
    }

    #[test]
    fn neither_number_nor_size_grows_without_bound() {
        let mut ring = EventRing::default();
        let mut forgotten = 0;
        for n in 0..3000u32 {
            // Far enough apart not to be combined.
            forgotten += record(&mut ring, &n.to_string(), n * 1000).forgotten.len();
        }
        assert_eq!((ring.seen.len(), forgotten), (MAX_EVENTS, 2000));
        for n in 3000..4000u32 {
            record(&mut ring, &format!("{n}{}", "ä".repeat(5000)), n * 1000);
        }
        assert!(ring.lines().len() <= MAX_BYTES);
        assert_eq!(ring.lines().len(), ring.bytes);
        let longest = shown(&ring).iter().map(|(m, _)| m.len()).max();
        assert!(longest.is_some_and(|l| l <= MAX_MESSAGE && l > MAX_MESSAGE - 5));
    }
}
