//! A bundle's archive on a web server. It is downloaded as a blob is, into a partial file that outlives the worker; but
//! no digest says what it has to be. Pieces belong together if their server names them alike, and what is in the
//! archive is verified when it is read.
//!
//! ```text
//! pulls/<key>/archive.tar    the whole archive; it stays until it is applied, or its server has another one
//! pulls/<key>/archive.json   what the server names it by
//! pulls/<key>/partial/…      what has arrived ([`super::partial`])
//! ```

use std::path::PathBuf;
use std::time::Instant;

use serde::{Deserialize, Serialize};

use super::super::digest;
use super::super::error::{ImageError, io as io_error};
use super::super::gc;
use super::super::progress::{Amount, Fetched, Line, Progress};
use super::super::space::{KeepFree, Space};
use super::super::store::{ImageStore, read_json};
use super::blob::{BUFFER_BYTES, Idle, range, validator};
use super::document::{follow, refused};
use super::error::FetchError;
use super::fetch::{REPORT_EVERY, Report};
use super::folder::PullFolder;
use super::http::{Answer, Http};
use super::partial::Partial;
use super::proxy::Proxies;
use super::request::Request;
use super::throttle::Throttle;
use super::url::Url;
use crate::sys::clock;
use crate::sys::file::{Durability, replace};

/// The longest name of a document by its server.
const MAX_NAME_BYTES: usize = 1024;

/// Whether a bundle's name is the URL of an archive.
pub(super) fn is_url(name: &str) -> bool {
    name.starts_with("https://") || name.starts_with("http://")
}

/// What is known of the whole archive.
#[derive(Debug, Serialize, Deserialize)]
struct Whole {
    /// Its server names it so.
    named: Option<String>,
}

/// How a request ended.
enum End {
    /// The server has what is there, or known.
    Same,
    /// All of it has arrived; the server names it so.
    Whole(Option<String>),
    /// The same, if the connection has not broken: no length was announced.
    Ended(Option<String>),
    /// Not all of it has.
    Cut(FetchError),
}

struct Download<'a, 'r> {
    http: &'a Http,
    url: &'a Url,
    folder: &'a PullFolder,
    /// What is there, or known, as the server named it.
    held: &'a [String],
    throttle: Throttle,
    space: Space,
    report: &'a mut Report<'r>,
    reported: Option<Instant>,
}

/// Fetches the archive, unless the server still names it as one that is known.
pub(super) fn fetch(
    request: &Request,
    store: &ImageStore,
    report: &mut Report<'_>,
) -> Result<Fetched, FetchError> {
    let url = Url::parse(&request.name).map_err(FetchError::Setup)?;
    let place = PullFolder::place(store, &request.name, "archive");
    let folder = PullFolder::make(&place)?;
    let http = Http::new(
        request.certificates.clone(),
        request.plain_http.clone(),
        request.patience,
        Proxies::of(|variable| std::env::var(variable).ok()),
    );
    let keep = KeepFree {
        bytes: request.keep_bytes,
        inodes: request.keep_inodes,
    };
    let there = whole(&folder);
    let held = match &there {
        Some(named) => std::slice::from_ref(named),
        None => &request.known,
    };
    let mut download = Download {
        http: &http,
        url: &url,
        folder: &folder,
        held,
        throttle: Throttle::new(request.bytes_per_second),
        space: Space::new(folder.path(), keep)?,
        report,
        reported: None,
    };
    let arrived = download.run()?;
    let fetched = |named| Fetched {
        folder: Some(archive(&folder)),
        validator: named,
        ..Fetched::default()
    };
    Ok(match (arrived, there) {
        (Some(named), _) => fetched(named),
        (None, Some(named)) => fetched(Some(named)),
        (None, None) => Fetched {
            id: Some(String::new()),
            ..Fetched::default()
        },
    })
}

fn archive(folder: &PullFolder) -> PathBuf {
    folder.path().join("archive.tar")
}

fn record(folder: &PullFolder) -> PathBuf {
    folder.path().join("archive.json")
}

/// What the archive that is there was named by, if it can be asked for by that.
fn whole(folder: &PullFolder) -> Option<String> {
    let whole: Whole = read_json(&record(folder)).ok().flatten()?;
    whole.named.filter(|_| archive(folder).is_file())
}

impl Download<'_, '_> {
    /// Asks until all has arrived; returns what the server names it by. `None`: it is there, or known.
    fn run(&mut self) -> Result<Option<Option<String>>, FetchError> {
        let key = digest::of(self.url.full().as_bytes());
        let mut partial = Partial::open(self.folder, &key, u64::MAX)?;
        let mut idle = Idle::new(partial.len());
        loop {
            let (named, certain) = match self.go_on(&mut partial) {
                Ok(End::Same) => return Ok(None),
                Ok(End::Whole(named)) => (named, true),
                Ok(End::Ended(named)) => (named, false),
                Ok(End::Cut(why)) => {
                    idle.count(partial.len(), why)?;
                    continue;
                }
                Err(why) if why.is_interruption() => {
                    idle.count(partial.len(), why)?;
                    continue;
                }
                Err(why) => return Err(why),
            };
            self.forget_whole()?;
            partial.finish_as(&archive(self.folder))?;
            // Where an end may be a break, it is not asked for by name until it was read.
            self.remember(named.clone().filter(|_| certain))?;
            return Ok(Some(named));
        }
    }

    fn forget_whole(&mut self) -> Result<(), ImageError> {
        // The server is not to say any more that it is there.
        self.held = &[];
        gc::remove(&record(self.folder))?;
        gc::remove(&archive(self.folder))
    }

    fn remember(&self, named: Option<String>) -> Result<(), ImageError> {
        let path = record(self.folder);
        let bytes = serde_json::to_vec(&Whole { named }).expect("plain data");
        replace(&path, &bytes, 0o600, Durability::PowerCut).map_err(io_error("write", &path))
    }

    /// One request.
    fn go_on(&mut self, partial: &mut Partial) -> Result<End, FetchError> {
        let origin = self.url.origin.to_string();
        if partial.validator(&origin).is_none() {
            // Nothing would say that the rest belongs to it.
            partial.restart(&origin, None)?;
        }
        let from = partial.len();
        let headers = headers(partial, &origin, self.held);
        let answer = follow(self.http, self.url, |_| headers.clone())?;
        let strong = validator(&answer);
        let bad = |why: &str| FetchError::Answer {
            url: answer.url.to_string(),
            why: why.to_owned(),
        };
        // Bytes of the answer that are there already: servers may ignore ranges.
        let mut skipped = 0;
        let length = answer.length();
        let total = match answer.status {
            304 if from == 0 && !self.held.is_empty() => return Ok(End::Same),
            206 if from > 0 => {
                let range = answer.header("Content-Range").and_then(range);
                let other = strong.is_some() && strong.as_deref() != partial.validator(&origin);
                match range.filter(|(start, _)| *start == from && !other) {
                    Some((_, total)) => Some(total),
                    None => {
                        partial.restart(&origin, None)?;
                        return Ok(End::Cut(bad("a part was sent that was not asked for")));
                    }
                }
            }
            416 if from > 0 => {
                let all = format!("bytes */{from}");
                let held = partial.validator(&origin).map(str::to_owned);
                let same = strong.is_none() || strong == held;
                if same && answer.header("Content-Range").map(str::trim) == Some(&all) {
                    // The worker ended when everything had arrived.
                    return Ok(End::Whole(held));
                }
                partial.restart(&origin, None)?;
                return Ok(End::Cut(bad("the archive is shorter than it was")));
            }
            200 => {
                let same = strong.is_some() && strong.as_deref() == partial.validator(&origin);
                match same && from > 0 && length.is_none_or(|total| total >= from) {
                    true => skipped = from,
                    false => partial.restart(&origin, strong.clone())?,
                }
                if partial.len() == 0 {
                    // The server has a new archive. The disk may not hold both.
                    self.forget_whole()?;
                }
                length
            }
            _ => return Err(refused(&answer)),
        };
        if let Some(total) = total {
            self.space.reserve(total.saturating_sub(partial.len()))?;
        }
        partial.name(&origin, strong)?;
        let named = name(&answer);
        let cut = FetchError::Connection {
            url: answer.url.to_string(),
            why: "the connection ended too early".to_owned(),
            hint: None,
        };
        let received = self.receive(answer, partial, (skipped, total));
        if total.is_none() && matches!(received, Err(FetchError::Image(_))) {
            // It may have no end: the disk is not left full of it.
            partial.restart(&origin, None)?;
        }
        received?;
        Ok(match total {
            Some(total) if partial.len() != total => End::Cut(cut),
            Some(_) => End::Whole(named),
            None => End::Ended(named),
        })
    }

    /// Takes the body of an answer, up to its length.
    fn receive(
        &mut self,
        answer: Answer,
        partial: &mut Partial,
        (mut skipped, total): (u64, Option<u64>),
    ) -> Result<(), FetchError> {
        let mut pieces = answer.body(&self.http.patience());
        let mut buffer = vec![0; self.throttle.piece(BUFFER_BYTES)];
        loop {
            self.tell(partial.len(), total);
            let left = total.map_or(u64::MAX, |total| total.saturating_sub(partial.len()));
            let n = match left {
                0 => 0,
                _ => pieces.read(&mut buffer)?,
            };
            if n == 0 {
                return Ok(());
            }
            self.throttle.pass(n);
            let old = skipped.min(n as u64);
            skipped -= old;
            let new = &buffer[usize::try_from(old).unwrap_or(n)..n];
            let new = &new[..new.len().min(usize::try_from(left).unwrap_or(usize::MAX))];
            if new.is_empty() {
                continue;
            }
            self.space.take(new.len() as u64)?;
            partial.append(new).map_err(|why| {
                let error = |why| io_error("write", partial.path())(why);
                FetchError::Image(self.space.write_error(why, error))
            })?;
        }
    }

    /// Reports how much is there, not too often. A client that is gone ends the process by itself.
    fn tell(&mut self, done_bytes: u64, total: Option<u64>) {
        let now = clock::now();
        let whole = total == Some(done_bytes);
        if self.reported.is_some_and(|last| now < last + REPORT_EVERY) && !whole {
            return;
        }
        self.reported = Some(now);
        let total_bytes = total.unwrap_or(done_bytes);
        let _ = (self.report)(Line::Progress(Progress {
            stage: "download".to_owned(),
            layer: 1,
            layers: 1,
            done_bytes,
            total_bytes,
            blob: None,
            pull: Some(Amount {
                done_bytes,
                total_bytes,
            }),
        }));
    }
}

/// Asks for the rest; or for all of it, unless it is what is held.
fn headers(partial: &Partial, origin: &str, held: &[String]) -> Vec<(&'static str, String)> {
    let mut headers = vec![("Accept", "*/*".to_owned())];
    match (partial.len(), partial.validator(origin)) {
        (from @ 1.., Some(validator)) => {
            headers.push(("Range", format!("bytes={from}-")));
            headers.push(("If-Range", validator.to_owned()));
        }
        _ => headers.extend(held.iter().map(|named| {
            let is_tag = named.starts_with('"') || named.starts_with("W/");
            let header = if is_tag {
                "If-None-Match"
            } else {
                "If-Modified-Since"
            };
            (header, named.clone())
        })),
    }
    headers
}

/// What the server names the document by, to ask whether it has another one.
fn name(answer: &Answer) -> Option<String> {
    let is_tag = |named: &&str| named.starts_with('"') || named.starts_with("W/\"");
    let etag = answer.header("ETag").filter(is_tag);
    let named = etag.or(answer.header("Last-Modified"))?;
    (named.len() <= MAX_NAME_BYTES).then(|| named.to_owned())
}
