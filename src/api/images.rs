//! Image paths: `GET /coracle/v1/images`, `GET …/inspect?name=`, `POST …/import`, `POST …/tag`, `GET …/save?name=`,
//! `POST …/prune`, `DELETE …?name=`.

use std::future::Future;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use http_body_util::BodyExt;
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderValue};
use hyper::http::request::Parts;
use hyper::{Method, Request, Response};
use serde::Deserialize;
use smol::channel::{Receiver, Sender};

use super::command::{Command, ImageArchive};
use super::error::ApiError;
use super::query::Query;
use super::routes::ask;
use super::server::{Body, Context, Items, json_lines, json_of, streamed};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ImportRequest {
    path: PathBuf,
    name: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct TagRequest {
    source: String,
    target: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct PruneRequest {
    #[serde(default)]
    all: bool,
    #[serde(default, rename = "dryRun")]
    dry_run: bool,
}

pub(crate) async fn list(context: &Context) -> Result<Response<Body>, ApiError> {
    let items = ask(context, |reply| Command::ListImages { reply }).await?;
    json_of(&Items { items })
}

pub(crate) async fn remove(context: &Context, query: &Query) -> Result<Response<Body>, ApiError> {
    let name = named(query)?;
    let force = query.flag("force")?;
    let removed = ask(context, |reply| Command::RemoveImage { name, force, reply }).await?;
    json_of(&removed)
}

/// Gives an image one more name.
pub(crate) async fn tag(
    request: Request<Bytes>,
    context: &Context,
) -> Result<Response<Body>, ApiError> {
    let TagRequest { source, target } = parse(&request.into_body())?;
    let name = ask(context, |reply| Command::TagImage {
        source,
        target,
        reply,
    });
    json_of(&serde_json::json!({ "name": name.await? }))
}

/// Shows everything that is known of an image.
pub(crate) async fn inspect(context: &Context, query: &Query) -> Result<Response<Body>, ApiError> {
    let name = named(query)?;
    json_of(&ask(context, |reply| Command::InspectImage { name, reply }).await?)
}

/// Sends images as an archive of known length. One that cannot be completed is cut off.
pub(crate) async fn save(context: &Context, query: &Query) -> Result<Response<Body>, ApiError> {
    let names: Vec<String> = query.all("name");
    if names.iter().all(String::is_empty) {
        return Err(ApiError::bad_request("query parameter `name` is missing"));
    }
    let archive = ask(context, |reply| Command::SaveImages { names, reply }).await?;
    let mut response = streamed("application/x-tar", archive.pieces);
    let length = HeaderValue::from(archive.bytes);
    response.headers_mut().insert(CONTENT_LENGTH, length);
    Ok(response)
}

/// The image that a request is about.
fn named(query: &Query) -> Result<String, ApiError> {
    let name = query.get("name").filter(|name| !name.is_empty());
    let name = name.ok_or_else(|| ApiError::bad_request("query parameter `name` is missing"))?;
    Ok(name.to_owned())
}

pub(crate) async fn prune(
    request: Request<Bytes>,
    context: &Context,
) -> Result<Response<Body>, ApiError> {
    let body = request.into_body();
    let asked = match body.is_empty() {
        true => PruneRequest::default(),
        false => parse(&body)?,
    };
    let PruneRequest { all, dry_run } = asked;
    let prune = |reply| Command::PruneImages {
        all,
        dry_run,
        reply,
    };
    let removed = ask(context, prune).await?;
    json_of(&removed)
}

/// Imports an archive on the node.
pub(crate) async fn import_file(
    request: Request<Bytes>,
    context: &Context,
) -> Result<Response<Body>, ApiError> {
    let asked: ImportRequest = parse(&request.into_body())?;
    if !asked.path.is_absolute() {
        let path = asked.path.display();
        return Err(ApiError::bad_request(format!(
            "path `{path}` is not absolute"
        )));
    }
    let lines = import(context, ImageArchive::Path(asked.path), asked.name).await?;
    Ok(json_lines(lines))
}

fn parse<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, ApiError> {
    serde_json::from_slice(body)
        .map_err(|error| ApiError::bad_request(format!("invalid request body: {error}")))
}

/// Whether the body is an archive, which must not be read as a whole. Any other content type is JSON, because that is
/// what curl sends by default.
pub(crate) fn is_sent(request: &Parts) -> bool {
    const KINDS: [&str; 5] = ["x-tar", "octet-stream", "gzip", "x-gzip", "zstd"];
    let kind = request.headers.get(CONTENT_TYPE);
    let kind = kind.and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim();
    let kind = kind.strip_prefix("application/").unwrap_or_default();
    let path = request.uri.path().trim_matches('/');
    request.method == Method::POST && path == "coracle/v1/images/import" && KINDS.contains(&kind)
}

/// Imports an archive from the body. A client that sends nothing for `patience` aborts the import.
pub(crate) async fn import_sent(
    request: Request<Incoming>,
    context: &Context,
    patience: Duration,
) -> Result<Response<Body>, ApiError> {
    let query = Query::parse(request.uri().query());
    if query.dry_run(request.method())? {
        return Err(ApiError::bad_request(
            "the dryRun option is not supported here: an import cannot be rehearsed",
        ));
    }
    let name = query.get("name").filter(|name| !name.is_empty());
    let name = name.map(ToOwned::to_owned);
    let (pieces, archive) = smol::channel::bounded(4);
    let lines = import(context, ImageArchive::Sent(archive), name).await?;
    let received = receive(request.into_body(), pieces, patience);
    Ok(answer_while(lines, received))
}

/// Passes on the body. A client that disconnects or stalls aborts the import. Only the client's time counts: the worker
/// may take as long as it needs.
async fn receive(mut body: Incoming, pieces: Sender<io::Result<Bytes>>, patience: Duration) {
    loop {
        let next = async {
            body.frame()
                .await
                .map(|frame| frame.map_err(io::Error::other))
        };
        let stalled = async {
            smol::Timer::after(patience).await;
            let why = format!("the client sent nothing for {}s", patience.as_secs_f32());
            Some(Err(io::Error::new(io::ErrorKind::TimedOut, why)))
        };
        let Some(frame) = smol::future::or(next, stalled).await else {
            return;
        };
        let piece = match frame {
            Ok(frame) => match frame.into_data() {
                Ok(data) => Ok(data),
                // Trailers.
                Err(_) => continue,
            },
            Err(error) => Err(error),
        };
        let failed = piece.is_err();
        // The worker may need no more.
        if pieces.send(piece).await.is_err() || failed {
            return;
        }
    }
}

/// Streams lines of an answer while another future runs. When the reader goes, both end.
fn answer_while(
    lines: Receiver<String>,
    work: impl Future<Output = ()> + Send + 'static,
) -> Response<Body> {
    let work = Some(Box::pin(work));
    let state = (lines, work);
    let stream = smol::stream::unfold(state, |(lines, mut work)| async move {
        let line = loop {
            let Some(running) = &mut work else {
                break lines.recv().await.ok();
            };
            let next = async { Some(lines.recv().await.ok()) };
            let worked = async {
                running.await;
                None
            };
            match smol::future::or(next, worked).await {
                Some(line) => break line,
                None => work = None,
            }
        };
        let line = Bytes::from(format!("{}\n", line?.trim_end()));
        Some((Ok(line), (lines, work)))
    });
    streamed("application/x-ndjson", stream)
}

async fn import(
    context: &Context,
    archive: ImageArchive,
    name: Option<String>,
) -> Result<Receiver<String>, ApiError> {
    let (progress, lines) = smol::channel::bounded(16);
    let command = Command::ImportImage {
        archive,
        name,
        progress,
    };
    context
        .commands
        .send(command)
        .await
        .map_err(|_| ApiError::unavailable())?;
    Ok(lines)
}
