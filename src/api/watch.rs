//! What changes from now on? A stream of `{"type":…,"object":…}` lines. It tells the newest state of whatever changed,
//! not every step between, so a slow client costs no memory; who asks for a version too long ago gets 410 and lists again.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper::body::Bytes;
use smol::channel::Receiver;
use smol::future;

use super::error::ApiError;
use super::list_options::ListOptions;
use super::object::{Change, Key, Object};
use super::routes::shown;
use super::selector::Selector;
use super::store::{Kind, Store};
use super::table::{self, Include};

/// How often bookmarks are sent.
const BOOKMARK_EVERY: Duration = Duration::from_secs(60);

/// The annotation of the bookmark that follows what there was when a watch began.
const INITIAL_EVENTS_END: &str = "k8s.io/initial-events-end";

/// Where a watch is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum From {
    /// Before everything there is.
    Everything,
    /// Before whatever comes now.
    Now,
    /// At a version that the client knows from elsewhere.
    Version(u64),
    /// At a version that it was led to.
    Here(u64),
}

/// One client's watch.
#[derive(Debug)]
pub(crate) struct Watch {
    store: Arc<Store>,
    kind: Kind,
    selector: Selector,
    /// How a Table's rows show their objects; `None`: no Tables.
    table: Option<Include>,
    from: From,
    /// A bookmark follows what there is.
    tell_initial_end: bool,
    /// What the client was told of and has not seen go.
    known: BTreeSet<Key>,
    changed: Receiver<()>,
    bookmarks: bool,
    end: Instant,
    done: bool,
}

impl Watch {
    pub(crate) fn new(
        store: Arc<Store>,
        kind: Kind,
        options: &ListOptions,
        selector: Selector,
        table: Option<Include>,
    ) -> Self {
        let from = match (options.initial, options.version) {
            (Some(true), Some(version)) => match store.since(kind, version) {
                // Not older than a version that is to come, or was in another life: told as too old.
                None if version > store.version() => From::Version(version),
                _ => From::Everything,
            },
            (Some(true) | None, None) => From::Everything,
            (Some(false), None) => From::Now,
            (Some(false) | None, Some(version)) => From::Version(version),
        };
        Self {
            changed: store.subscribe(),
            store,
            kind,
            selector,
            table,
            from,
            tell_initial_end: options.initial == Some(true),
            known: BTreeSet::new(),
            bookmarks: options.bookmarks,
            end: Instant::now() + options.timeout,
            done: false,
        }
    }

    /// The next lines; `None` at the end.
    pub(crate) async fn next(&mut self) -> Option<Bytes> {
        while !self.done {
            let lines = self.pending();
            if !lines.is_empty() {
                return Some(lines.into());
            }
            let now = Instant::now();
            if now >= self.end {
                self.done = true;
                // So that the next watch can go on from here.
                return self.bookmarks.then(|| self.bookmark(false).into());
            }
            let nap = (self.end - now).min(BOOKMARK_EVERY);
            let woken = async { self.changed.recv().await.is_ok() };
            let timer = async {
                smol::Timer::after(nap).await;
                false
            };
            let woken = future::or(woken, timer).await;
            if !woken && self.bookmarks && Instant::now() < self.end {
                return Some(self.bookmark(false).into());
            }
        }
        None
    }

    fn pending(&mut self) -> Vec<u8> {
        let mut out = Vec::new();
        let version = match self.from {
            From::Everything | From::Now => {
                let (now, objects) = self.store.list(self.kind);
                for object in objects.iter().filter(|o| self.selector.matches(o)) {
                    self.known.insert(object.key.clone());
                    if self.from == From::Everything {
                        self.line(&mut out, "ADDED", object);
                    }
                }
                self.from = From::Here(now);
                if self.tell_initial_end {
                    out.extend_from_slice(&self.bookmark(true));
                }
                return out;
            }
            From::Version(version) => {
                // What has not changed since then was known to match, or not to.
                let (_, objects) = self.store.list(self.kind);
                let unchanged = objects.iter().filter(|o| o.version <= version);
                let known = unchanged.filter(|o| self.selector.matches(o));
                self.known.extend(known.map(|o| o.key.clone()));
                version
            }
            From::Here(version) => version,
        };
        let Some((now, changes)) = self.store.since(self.kind, version) else {
            let gone = ApiError::gone(format!("too old resource version: {version}"));
            let error = serde_json::json!({ "type": "ERROR", "object": gone.status() });
            self.done = true;
            return format!("{error}\n").into_bytes();
        };
        for change in changes {
            self.tell(&mut out, &change);
        }
        self.from = From::Here(now);
        out
    }

    fn tell(&mut self, out: &mut Vec<u8>, change: &Change) {
        let object = change.object();
        let matches = self.selector.matches(object);
        match change {
            Change::Deleted(_) => {
                if self.known.remove(&object.key) || matches {
                    self.line(out, "DELETED", object);
                }
            }
            Change::Added(_) if matches => {
                self.known.insert(object.key.clone());
                self.line(out, "ADDED", object);
            }
            Change::Modified(_) if matches => {
                self.known.insert(object.key.clone());
                self.line(out, "MODIFIED", object);
            }
            // It no longer matches: for this client it is gone, if it may have heard of it.
            Change::Added(_) => {
                if self.known.remove(&object.key) {
                    self.line(out, "DELETED", object);
                }
            }
            Change::Modified(_) => {
                let unsure = matches!(self.from, From::Version(_));
                if self.known.remove(&object.key) || unsure {
                    self.line(out, "DELETED", object);
                }
            }
        }
    }

    fn line(&self, out: &mut Vec<u8>, what: &str, object: &Object) {
        out.extend_from_slice(format!("{{\"type\":\"{what}\",\"object\":").as_bytes());
        match self.table {
            Some(include) => {
                out.extend_from_slice(&table::of(self.kind, object.version, include, [object]));
            }
            None => out.extend_from_slice(&shown(self.kind, object)),
        }
        out.extend_from_slice(b"}\n");
    }

    /// Says which version the client has got to, by an object of which nothing else is said. In a Table it is a row, as from
    /// the API server, and whole, so that clients find its annotation.
    fn bookmark(&self, initial_end: bool) -> Vec<u8> {
        let version = match self.from {
            From::Everything | From::Now => 0,
            From::Version(version) | From::Here(version) => version,
        };
        let (kind, group) = super::routes::kind_and_group(self.kind);
        let mut metadata = serde_json::json!({ "resourceVersion": version.to_string() });
        metadata["creationTimestamp"] = serde_json::Value::Null;
        if initial_end {
            metadata["annotations"] = serde_json::json!({ INITIAL_EVENTS_END: "true" });
        }
        let object = serde_json::json!({ "kind": kind, "apiVersion": group, "metadata": metadata });
        let mut out = b"{\"type\":\"BOOKMARK\",\"object\":".to_vec();
        match self.table {
            Some(include) => out.extend_from_slice(&table::bookmark(self.kind, include, object)),
            None => out.extend_from_slice(object.to_string().as_bytes()),
        }
        out.extend_from_slice(b"}\n");
        out
    }
}
