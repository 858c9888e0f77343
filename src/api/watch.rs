//! Watches: streams of `{"type":…,"object":…}` lines. A watch reports the newest state of what has changed, not every
//! step, so a slow client costs no memory. A version from too long ago is answered with 410, and the client lists
//! again.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper::body::Bytes;
use smol::channel::Receiver;
use smol::future;

use super::error::ApiError;
use super::list_options::ListOptions;
use super::object::{Change, Key, Object};
use super::read::{Form, in_form};
use super::resource::Resource;
use super::selector::Selector;
use super::store::{Kind, Store};
use super::table;
use crate::sys::clock;

/// Interval of bookmarks.
const BOOKMARK_EVERY: Duration = Duration::from_secs(60);

/// The annotation of the bookmark that ends the initial objects.
const INITIAL_EVENTS_END: &str = "k8s.io/initial-events-end";

/// Position of a watch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum From {
    /// Before all existing objects.
    Everything,
    /// Before the next change.
    Now,
    /// At a version that the client names.
    Version(u64),
    /// At a version that this watch has reached.
    Here(u64),
}

/// One client's watch.
#[derive(Debug)]
pub(crate) struct Watch {
    store: Arc<Store>,
    kind: Kind,
    selector: Selector,
    form: Form,
    from: From,
    /// Send a bookmark after the initial objects.
    tell_initial_end: bool,
    /// Objects that the client was sent and that are not reported as deleted.
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
        form: Form,
    ) -> Self {
        let from = match (options.initial, options.version) {
            (Some(true), Some(version)) => match store.since(kind, version) {
                // A version from the future, or from before an agent restart, is reported as too old.
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
            form,
            from,
            tell_initial_end: options.initial == Some(true),
            known: BTreeSet::new(),
            bookmarks: options.bookmarks,
            end: clock::now() + options.timeout,
            done: false,
        }
    }

    /// Returns the next lines; `None` at the end.
    pub(crate) async fn next(&mut self) -> Option<Bytes> {
        while !self.done {
            let lines = self.pending();
            if !lines.is_empty() {
                return Some(lines.into());
            }
            let now = clock::now();
            if now >= self.end {
                self.done = true;
                // Lets the client's next watch continue from here.
                return self.bookmarks.then(|| self.bookmark(false).into());
            }
            let nap = (self.end - now).min(BOOKMARK_EVERY);
            let woken = async { self.changed.recv().await.is_ok() };
            let timer = async {
                smol::Timer::after(nap).await;
                false
            };
            let woken = future::or(woken, timer).await;
            if !woken && self.bookmarks && clock::now() < self.end {
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
                // Whether an unchanged object matches is the same as then.
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
                    // A client that watches from that version again must not see the deletion twice.
                    self.line(out, "DELETED", &object.restamped());
                }
            }
            Change::Added(_) if matches => {
                self.known.insert(object.key.clone());
                self.line(out, "ADDED", object);
            }
            Change::Modified(_) if matches => {
                let is_new = self.known.insert(object.key.clone());
                // At a version that the client names, what it knows is not certain.
                let what = match self.from {
                    From::Here(_) if is_new => "ADDED",
                    _ => "MODIFIED",
                };
                self.line(out, what, object);
            }
            // It no longer matches: report it as deleted, if the client may know it.
            Change::Added(_) => {
                if self.known.remove(&object.key) {
                    self.line(out, "DELETED", object);
                }
            }
            Change::Modified(_) => {
                // What a selector looks at may have been other at the version that the client knows.
                let changed = matches!(self.from, From::Version(from) if object.mark.since > from);
                let unsure = changed && self.selector.may_have_matched(object);
                if self.known.remove(&object.key) || unsure {
                    self.line(out, "DELETED", object);
                }
            }
        }
    }

    fn line(&self, out: &mut Vec<u8>, what: &str, object: &Object) {
        out.extend_from_slice(format!("{{\"type\":\"{what}\",\"object\":").as_bytes());
        out.extend_from_slice(&in_form(self.kind, object, self.form));
        out.extend_from_slice(b"}\n");
    }

    /// Reports the version that the watch has reached, with an otherwise empty object. In a Table it is a complete row,
    /// as from the API server, so that clients find its annotation.
    fn bookmark(&self, initial_end: bool) -> Vec<u8> {
        let version = match self.from {
            From::Everything | From::Now => 0,
            From::Version(version) | From::Here(version) => version,
        };
        let Resource {
            object: kind,
            group,
            ..
        } = super::resource::of(self.kind);
        let mut metadata = serde_json::json!({ "resourceVersion": version.to_string() });
        metadata["creationTimestamp"] = serde_json::Value::Null;
        if initial_end {
            metadata["annotations"] = serde_json::json!({ INITIAL_EVENTS_END: "true" });
        }
        let object = serde_json::json!({ "kind": kind, "apiVersion": group, "metadata": metadata });
        let mut out = b"{\"type\":\"BOOKMARK\",\"object\":".to_vec();
        match self.form {
            Form::Whole => out.extend_from_slice(object.to_string().as_bytes()),
            Form::Metadata => {
                out.extend_from_slice(table::partial(&object).to_string().as_bytes());
            }
            Form::Table(include) => {
                out.extend_from_slice(&table::bookmark(self.kind, include, object));
            }
        }
        out.extend_from_slice(b"}\n");
        out
    }
}
