//! What changes from now on? A stream of `{"type":…,"object":…}` lines. It tells the newest state of whatever changed,
//! not every step between, so a slow client costs no memory; who asks for a version too long ago gets 410 and lists again.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper::body::Bytes;
use smol::channel::Receiver;
use smol::future;

use super::error::ApiError;
use super::object::{Change, Key, Object};
use super::query::Query;
use super::routes::shown;
use super::selector::Selector;
use super::store::{Kind, Store};
use super::table;

/// Without `timeoutSeconds` a watch ends after this, as clients of Kubernetes expect.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(3600);

/// How often bookmarks are sent.
const BOOKMARK_EVERY: Duration = Duration::from_secs(60);

/// One client's watch.
#[derive(Debug)]
pub(crate) struct Watch {
    store: Arc<Store>,
    kind: Kind,
    selector: Selector,
    as_table: bool,
    /// `None`: begin with everything there is.
    version: Option<u64>,
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
        query: &Query,
        selector: Selector,
        as_table: bool,
    ) -> Result<Self, ApiError> {
        let version = query.number::<u64>("resourceVersion")?.filter(|v| *v != 0);
        let timeout = query.number::<u64>("timeoutSeconds")?.filter(|s| *s != 0);
        let timeout = timeout.map_or(DEFAULT_TIMEOUT, |s| Duration::from_secs(s.min(86_400)));
        Ok(Self {
            changed: store.subscribe(),
            store,
            kind,
            selector,
            as_table,
            version,
            known: BTreeSet::new(),
            bookmarks: query.flag("allowWatchBookmarks")?,
            end: Instant::now() + timeout,
            done: false,
        })
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
                break;
            }
            let nap = (self.end - now).min(BOOKMARK_EVERY);
            let woken = async { self.changed.recv().await.is_ok() };
            let timer = async {
                smol::Timer::after(nap).await;
                false
            };
            let woken = future::or(woken, timer).await;
            if !woken && self.bookmarks && Instant::now() < self.end {
                return Some(self.bookmark());
            }
        }
        None
    }

    fn pending(&mut self) -> Vec<u8> {
        let mut out = Vec::new();
        let Some(version) = self.version else {
            let (now, objects) = self.store.list(self.kind);
            for object in objects.into_iter().filter(|o| self.selector.matches(o)) {
                self.known.insert(object.key.clone());
                self.line(&mut out, "ADDED", &object);
            }
            self.version = Some(now);
            return out;
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
        self.version = Some(now);
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
            // It no longer matches: for this client it is gone.
            Change::Added(_) | Change::Modified(_) => {
                if self.known.remove(&object.key) {
                    self.line(out, "DELETED", object);
                }
            }
        }
    }

    fn line(&self, out: &mut Vec<u8>, what: &str, object: &Object) {
        out.extend_from_slice(format!("{{\"type\":\"{what}\",\"object\":").as_bytes());
        match self.as_table {
            true => out.extend_from_slice(&table::of(self.kind, object.version, [object])),
            false => out.extend_from_slice(&shown(self.kind, object)),
        }
        out.extend_from_slice(b"}\n");
    }

    fn bookmark(&self) -> Bytes {
        let (kind, group) = match self.kind {
            Kind::Pods => ("Pod", "v1"),
            Kind::Nodes => ("Node", "v1"),
            Kind::Events => ("Event", "v1"),
            Kind::Services => ("Service", "v1"),
            Kind::Endpoints => ("Endpoints", "v1"),
            Kind::PriorityClasses => ("PriorityClass", "scheduling.k8s.io/v1"),
        };
        let version = self.version.unwrap_or_default().to_string();
        let mark = serde_json::json!({ "type": "BOOKMARK", "object": {
            "kind": kind, "apiVersion": group, "metadata": { "resourceVersion": version } } });
        format!("{mark}\n").into()
    }
}
