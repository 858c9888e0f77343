//! The work of `coracle image-worker fetch`: it downloads what the store lacks of an image into the pull's folder.

use std::collections::BTreeSet;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use super::super::error::ImageError;
use super::super::name;
use super::super::oci::{ConfigFile, Platform, parse};
use super::super::progress::{Amount, Cause, Fetched, Line, Progress};
use super::super::space::{KeepFree, MAX_UNPACKED_BYTES, Space};
use super::super::store::ImageStore;
use super::super::trust::Demand;
use super::blob::{Blob, Watch, download};
use super::bundle;
use super::certificates;
use super::error::FetchError;
use super::folder::PullFolder;
use super::request::{MAX_BYTES, Request};
use super::resolve::{MAX_MANIFEST_BYTES, Raw, Resolved, Search, manifest};
use super::session::Session;
use super::signatures;
use super::sources::Sources;
use super::web;
use crate::spec::ImageName;
use crate::sys::clock;
use crate::sys::file::read_bounded;

/// Layers that are downloaded at once.
const CONNECTIONS: usize = 3;

/// The stack of a download.
const STACK_BYTES: usize = 1 << 20;

/// The shortest interval between reports about one layer.
pub(super) const REPORT_EVERY: Duration = Duration::from_millis(100);

/// Reports progress, and what has arrived; fails once the client is gone, which ends the fetch.
pub(crate) type Report<'a> = dyn FnMut(Line) -> io::Result<()> + 'a;

/// Reads the request from `input` and carries it out. Where it fails, everything stays that arrived. `confine` gets
/// the store, which exists, and the paths with certificates, before any registry is asked.
pub(crate) fn run(
    input: impl Read,
    confine: impl FnOnce(&Path, &[PathBuf]) -> io::Result<()>,
    report: &mut Report<'_>,
) -> Result<Fetched, (String, Option<String>, Cause)> {
    let explain = |why: FetchError| (crate::chain(&why), why.hint(), why.cause());
    let request = read(input).map_err(explain)?;
    let store = prepare(&request, confine).map_err(explain)?;
    fetch(&request, &store, report).map_err(explain)
}

/// Makes the folders that the worker cannot make once it is confined.
fn prepare(
    request: &Request,
    confine: impl FnOnce(&Path, &[PathBuf]) -> io::Result<()>,
) -> Result<ImageStore, FetchError> {
    let store = ImageStore::make(&request.store)?;
    PullFolder::make_parent(&store)?;
    let certificates = certificates::places(&request.certificates);
    confine(store.dir(), &certificates)
        .map_err(|why| FetchError::Setup(format!("could not drop privileges: {why}")))?;
    Ok(store)
}

fn read(input: impl Read) -> Result<Request, FetchError> {
    let mut bytes = Vec::new();
    let read = input.take(MAX_BYTES).read_to_end(&mut bytes);
    read.map_err(|why| FetchError::Request(why.to_string()))?;
    // The parser's error could show a password.
    serde_json::from_slice(&bytes)
        .map_err(|why| FetchError::Request(format!("line {}, column {}", why.line(), why.column())))
}

fn fetch(
    request: &Request,
    store: &ImageStore,
    report: &mut Report<'_>,
) -> Result<Fetched, FetchError> {
    if request.bundle && web::is_url(&request.name) {
        return web::fetch(request, store, report);
    }
    let name = name::parse(&request.name)?;
    let platform = match &request.platform {
        Some(text) => Platform::parse(text)?,
        None => Platform::own(),
    };
    let reference = reference(&name)?;
    if request.bundle {
        return fetch_bundle(request, store, &name.to_string(), &reference, report);
    }
    let place = PullFolder::place(store, &name.to_string(), &platform.shown());
    let folder = PullFolder::make(&place)?;
    let sources = Sources::new(request)?;
    let begun = sources.first(|session| {
        if request.platform.is_none()
            && let Some(id) =
                unchanged(session, store, (&name, &reference), request.trust.as_ref())?
        {
            return Ok(Begun::Unchanged(id));
        }
        let top = Search::top(session, &reference)?;
        let found = Search::new(session, store, &folder, &platform).run(&top)?;
        if let Some(demand) = &request.trust {
            // Before any layer is downloaded. The digest of an index does not say which platform was meant.
            let index = Some(&top).filter(|_| request.platform.is_none());
            let used = signatures::verify(session, demand, (index, &found))?;
            folder.keep_signatures(&used)?;
        }
        Ok(Begun::Found(Box::new((top, found))))
    })?;
    // Who may read the manifest may have the image, whatever place the layers come from.
    let login = sources.login();
    let (top, found) = match begun {
        Begun::Found(found) => *found,
        Begun::Unchanged(id) => {
            // What cannot be removed now goes when it is old.
            let _ = folder.remove();
            return Ok(Fetched {
                id: Some(id),
                failures: sources.failures(),
                login,
                ..Fetched::default()
            });
        }
    };
    // Before they are looked for: from now on none of them goes.
    folder.keep_layers(found.layers.iter().map(|(_, diff_id)| diff_id))?;
    let missing = missing(store, &found)?;
    let keep = KeepFree {
        bytes: request.keep_bytes,
        inodes: request.keep_inodes,
    };
    check_room(&folder, &missing, keep)?;
    // Another platform's image must not be found by the digest of an index that has this machine's, too.
    let top = match &request.platform {
        Some(_) => &found.manifest,
        None => &top,
    };
    let chosen = request.platform.as_ref().map(|_| &platform);
    let described = (top.digest.as_str(), top.bytes.len());
    folder.describe(described, media_type(&top.bytes), chosen)?;
    let path = folder.path().to_owned();
    report(Line::Resolved { folder: path }).map_err(|_| ImageError::Abandoned)?;
    let folder = Arc::new(folder);
    let sources = Arc::new(sources);
    download_all(&sources, &folder, missing, keep, report)?;
    Ok(Fetched {
        folder: Some(folder.path().to_owned()),
        failures: sources.failures(),
        login,
        ..Fetched::default()
    })
}

/// Fetches a bundle with all that the store lacks of its images.
fn fetch_bundle(
    request: &Request,
    store: &ImageStore,
    name: &str,
    reference: &str,
    report: &mut Report<'_>,
) -> Result<Fetched, FetchError> {
    let place = PullFolder::place(store, name, "bundle");
    let folder = PullFolder::make(&place)?;
    let sources = Sources::new(request)?;
    let keep = KeepFree {
        bytes: request.keep_bytes,
        inodes: request.keep_inodes,
    };
    let mut space = Space::new(folder.path(), keep)?;
    let found = sources.first(|session| {
        let limits = (sources.throttle(), &mut space);
        match bundle::top(session, reference, &request.known)? {
            Ok(top) => bundle::find(session, store, &folder, limits, top).map(Ok),
            Err(known) => Ok(Err(known)),
        }
    })?;
    let mut found = match found {
        Ok(found) => found,
        Err(known) => {
            // What is in the way of that is removed with what is old.
            let _ = folder.remove();
            return Ok(Fetched {
                id: Some(known),
                failures: sources.failures(),
                ..Fetched::default()
            });
        }
    };
    let missing = std::mem::take(&mut found.missing);
    check_room(&folder, &missing, keep)?;
    let folder = Arc::new(folder);
    let sources = Arc::new(sources);
    download_all(&sources, &folder, missing, keep, report)?;
    found.complete(&folder)?;
    Ok(Fetched {
        folder: Some(folder.path().to_owned()),
        failures: sources.failures(),
        login: sources.login(),
        ..Fetched::default()
    })
}

/// What a registry says first.
enum Begun {
    /// The store has the image of this id already.
    Unchanged(String),
    /// The manifest or index that the name means, and the image in it.
    Found(Box<(Raw, Resolved)>),
}

/// The tag or digest to ask for. A digest decides, whatever the tag.
fn reference(name: &ImageName) -> Result<String, FetchError> {
    let bad = |why: &str| ImageError::Name {
        name: name.to_string(),
        why: why.to_owned(),
    };
    match (&name.digest, &name.tag) {
        (Some(digest), _) if name::is_digest(digest) => Ok(digest.clone()),
        (Some(_), _) => Err(bad("only sha256 digests are supported").into()),
        (None, Some(tag)) => Ok(tag.clone()),
        (None, None) => Err(bad("it has neither a tag nor a digest").into()),
    }
}

/// A request that fails after this time counts as waited for.
const LONG: Duration = Duration::from_secs(5);

/// The stored image, if the tag still means it. A request for the head alone does not count at registries that count
/// pulls.
fn unchanged(
    session: &Session,
    store: &ImageStore,
    (name, reference): (&ImageName, &str),
    trust: Option<&Demand>,
) -> Result<Option<String>, FetchError> {
    let Some(full) = name::tagged(name).filter(|_| name.digest.is_none()) else {
        return Ok(None);
    };
    // What is damaged is fetched again.
    let held = store.reference(&full).ok().flatten();
    let Some(record) = held.and_then(|held| store.readable(&held.id)) else {
        return Ok(None);
    };
    let config = read_bounded(store.blob_path(&record.id), MAX_MANIFEST_BYTES).unwrap_or_default();
    let fits = parse::<ConfigFile>(&config, "config")
        .is_ok_and(|file| file.platform().fitness(&Platform::own()) > 0);
    let whole = record.layers.iter().all(|layer| store.has_layer(layer));
    // Without its signatures it is fetched once more, which brings nothing but them.
    let trusted = trust.is_none_or(|demand| record.satisfies(demand));
    if !fits || !whole || !trusted {
        return Ok(None);
    }
    let what = format!("manifest `{reference}`");
    let asked = clock::now();
    let answer = match session.ask(&manifest(reference, what, true)) {
        Ok(answer) => answer,
        // The full request would wait as long once more.
        Err(why @ FetchError::Busy { .. }) => return Err(why),
        Err(why @ (FetchError::Connection { .. } | FetchError::Slow { .. }))
            if clock::now().duration_since(asked) > LONG =>
        {
            return Err(why);
        }
        // Not every registry answers it; the full request reports what is wrong.
        Err(_) => return Ok(None),
    };
    let now = answer.header("Docker-Content-Digest").unwrap_or_default();
    Ok(record
        .digests
        .iter()
        .any(|known| known == now)
        .then_some(record.id))
}

/// The layers that the store does not have, each once.
fn missing(store: &ImageStore, found: &Resolved) -> Result<Vec<Blob>, FetchError> {
    let mut seen = BTreeSet::new();
    let mut missing = Vec::new();
    let mut total = 0_u64;
    for (blob, diff_id) in &found.layers {
        if store.has_layer(diff_id) || !seen.insert(&blob.digest) {
            continue;
        }
        total = total.saturating_add(blob.size);
        missing.push(blob.clone());
    }
    match total > MAX_UNPACKED_BYTES {
        true => Err(FetchError::Image(ImageError::Limit {
            what: "the size of all layers".to_owned(),
            limit: MAX_UNPACKED_BYTES,
            unit: "bytes",
        })),
        false => Ok(missing),
    }
}

/// Fails before anything is downloaded if the disk cannot hold all of it.
fn check_room(folder: &PullFolder, missing: &[Blob], keep: KeepFree) -> Result<(), FetchError> {
    let there = |blob: &Blob| {
        let either = [folder.blob(&blob.digest), folder.partial(&blob.digest)];
        let found = either.iter().find_map(|path| std::fs::metadata(path).ok());
        found.map_or(0, |found| found.len()).min(blob.size)
    };
    let needed = missing.iter().map(|blob| blob.size - there(blob)).sum();
    Ok(Space::new(folder.path(), keep)?.reserve(needed)?)
}

/// What a download has to say.
enum Said {
    Progress(usize, u64),
    Arrived(usize),
    Ended(Result<(), FetchError>),
}

/// Downloads several blobs at once. The first failure ends all; the threads end with the process.
fn download_all(
    sources: &Arc<Sources>,
    folder: &Arc<PullFolder>,
    blobs: Vec<Blob>,
    keep: KeepFree,
    report: &mut Report<'_>,
) -> Result<(), FetchError> {
    let blobs = Arc::new(blobs);
    let next = Arc::new(AtomicUsize::new(0));
    let (say, heard) = sync_channel(64);
    for _ in 0..CONNECTIONS.min(blobs.len()) {
        let (sources, folder, blobs) = (sources.clone(), folder.clone(), blobs.clone());
        let (next, say) = (next.clone(), say.clone());
        let work = move || {
            let all = || -> Result<(), FetchError> {
                let mut space = Space::new(folder.path(), keep)?;
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(blob) = blobs.get(index) else {
                        return Ok(());
                    };
                    let mut watch = Watch {
                        throttle: sources.throttle(),
                        space: &mut space,
                        tick: &mut ticker(index, blob.size, &say),
                    };
                    sources.first(|session| download(session, &folder, blob, &mut watch))?;
                    let _ = say.send(Said::Arrived(index));
                }
            };
            // The receiver is gone only if all is over.
            let _ = say.send(Said::Ended(all()));
        };
        let started = thread::Builder::new().stack_size(STACK_BYTES).spawn(work);
        started.map_err(|why| FetchError::Setup(format!("could not start a thread: {why}")))?;
    }
    drop(say);
    let layers = blobs.len();
    let mut arrived = vec![0; layers];
    for said in heard {
        match said {
            Said::Progress(index, done_bytes) => {
                arrived[index] = done_bytes;
                let progress = Progress {
                    stage: "download".to_owned(),
                    layer: index + 1,
                    layers,
                    done_bytes,
                    total_bytes: blobs[index].size,
                    blob: Some(blobs[index].digest.clone()),
                    pull: Some(Amount {
                        done_bytes: arrived.iter().sum(),
                        total_bytes: blobs.iter().map(|blob| blob.size).sum(),
                    }),
                };
                report(Line::Progress(progress)).map_err(|_| ImageError::Abandoned)?;
            }
            Said::Arrived(index) => {
                let digest = blobs[index].digest.clone();
                report(Line::Arrived { digest }).map_err(|_| ImageError::Abandoned)?;
            }
            Said::Ended(result) => result?,
        }
    }
    Ok(())
}

/// Reports one blob's bytes, not too often, and always the last.
fn ticker(index: usize, size: u64, say: &SyncSender<Said>) -> impl FnMut(u64) + use<> {
    let say = say.clone();
    let mut next: Option<Instant> = None;
    move |done| {
        let now = clock::now();
        if done == size || next.is_none_or(|next| now >= next) {
            next = Some(now + REPORT_EVERY);
            let _ = say.send(Said::Progress(index, done));
        }
    }
}

/// The type that a manifest or index states; an index by its content otherwise.
fn media_type(bytes: &[u8]) -> &'static str {
    let document: serde_json::Value = serde_json::from_slice(bytes).unwrap_or_default();
    match document.get("manifests").is_some() {
        true => "application/vnd.oci.image.index.v1+json",
        false => "application/vnd.oci.image.manifest.v1+json",
    }
}
