//! The HTTP server: connections of root only, heads and bodies with limits and deadlines. `door.rs` limits their
//! number. Runs on an executor of its own, polled by the caller of [`serve`].

use std::convert::Infallible;
use std::io;
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, Limited, StreamBody};
use hyper::body::{Body as _, Bytes, Frame, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use serde::{Deserialize, Serialize};
use smol::Async;
use smol::channel::Sender;
use smol_hyper::rt::{FuturesIo, SmolTimer};

use super::command::Command;
use super::door::{Door, Guest, Held, Patience, Patient, Ticket};
use super::error::{ApiError, RETRY_AFTER_S, ServeError};
use super::images;
use super::query::Query;
use super::routes;
use super::store::Store;
use crate::layout::Layout;
use crate::sys::allocator;

/// Limit of request line and headers, in bytes.
const MAX_HEAD: usize = 32 * 1024;
/// Limit of a request body without a limit of its own, in bytes; the largest usual one is the command of an exec.
pub(crate) const MAX_BODY: usize = 256 * 1024;

/// Context of handlers.
#[derive(Debug, Clone)]
pub struct Context {
    /// Objects to show.
    pub store: Arc<Store>,
    /// Commands to the node.
    pub commands: Sender<Command>,
    /// Paths of logs and shims.
    pub layout: Layout,
    /// This node's name.
    pub node_name: String,
}

/// The body of every response.
pub(crate) type Body = UnsyncBoxBody<Bytes, io::Error>;

/// Runs the background work of a connection (an exec session).
pub(crate) type Spawner = Arc<smol::Executor<'static>>;

/// Serves until accepting connections fails permanently.
pub async fn serve(
    listener: Async<UnixListener>,
    context: Context,
) -> Result<Infallible, ServeError> {
    serve_with(listener, context, Patience::default()).await
}

/// Serves with other deadlines.
pub(crate) async fn serve_with(
    listener: Async<UnixListener>,
    context: Context,
    patience: Patience,
) -> Result<Infallible, ServeError> {
    let executor: Spawner = Arc::new(smol::Executor::new());
    let door = Door::new(patience);
    let context = Arc::new(context);
    let accept = async {
        loop {
            let stream = match listener.accept().await {
                Ok((stream, _)) => stream,
                // Out of descriptors or memory: free some by closing a waiting connection.
                Err(error) if transient(&error) => {
                    if door.shed() {
                        smol::future::yield_now().await;
                        continue;
                    }
                    tracing::warn!("could not accept an API connection: {error}, retrying in 1s");
                    smol::Timer::after(Duration::from_secs(1)).await;
                    continue;
                }
                Err(error) => return Err(ServeError::Accept(error)),
            };
            if !may_enter(&stream) {
                continue;
            }
            let (context, spawner) = (context.clone(), executor.clone());
            let (guest, leave) = door.enter();
            let pushed_out = async move {
                let _ = leave.recv().await;
                tracing::debug!("closing an API connection to make room for others");
            };
            let served = connection(stream, guest.clone(), context, spawner, patience);
            let served = async move {
                smol::future::or(pushed_out, served).await;
                if guest.was_large() {
                    allocator::trim();
                }
            };
            executor.spawn(served).detach();
            // Read a request that has arrived before the next connection can push this one out.
            smol::future::yield_now().await;
        }
    };
    executor.run(accept).await
}

fn transient(error: &io::Error) -> bool {
    use nix::libc::{ECONNABORTED, EINTR, EMFILE, ENFILE, ENOBUFS, ENOMEM};
    let passing = [ECONNABORTED, EINTR, EMFILE, ENFILE, ENOBUFS, ENOMEM];
    error
        .raw_os_error()
        .is_some_and(|code| passing.contains(&code))
}

/// Whether the peer is root or the agent's own user.
fn may_enter(stream: &Async<std::os::unix::net::UnixStream>) -> bool {
    getsockopt(stream, PeerCredentials)
        .is_ok_and(|peer| peer.uid() == 0 || peer.uid() == nix::unistd::geteuid().as_raw())
}

async fn connection(
    stream: Async<std::os::unix::net::UnixStream>,
    guest: Arc<Guest>,
    context: Arc<Context>,
    spawner: Spawner,
    patience: Patience,
) {
    let patient = Patient::new(stream, guest.clone());
    let service = service_fn(move |request: Request<Incoming>| {
        let (guest, context, spawner) = (guest.clone(), context.clone(), spawner.clone());
        // Not in the future: the end of the client's input may be read before that is polled.
        let asked = guest.asks(ends(&request));
        async move {
            let answered = answer(request, &guest, patience, context, spawner).await;
            let (response, ticket) = match answered {
                Ok((response, ticket)) => (response, Some(ticket)),
                Err(error) => (refuse(&error), None),
            };
            Ok::<_, Infallible>(response.map(|body| Held::new(body, asked, ticket)))
        }
    });
    let served = http1::Builder::new()
        .timer(SmolTimer::new())
        .header_read_timeout(patience.head)
        .max_buf_size(MAX_HEAD)
        .serve_connection(FuturesIo::new(patient), service)
        .with_upgrades()
        .await;
    if let Err(error) = served {
        tracing::debug!("API connection ended: {error}");
    }
}

/// Whether the whole request is there and its answer comes to an end by itself, so that a client that has stopped sending
/// waits for it. A followed log may be silent for days, and would keep its place for a client that has gone behind a proxy;
/// a watch has bookmarks.
fn ends(request: &Request<Incoming>) -> bool {
    let follows = Query::parse(request.uri().query()).flag("follow");
    request.body().is_end_stream() && !follows.unwrap_or(false)
}

/// Reads the rest of a request, takes a place for it, and answers it. The place is to be held until the end of the
/// answer's body; a session that the connection was upgraded to holds it, too.
async fn answer(
    request: Request<Incoming>,
    guest: &Arc<Guest>,
    patience: Patience,
    context: Arc<Context>,
    spawner: Spawner,
) -> Result<(Response<Body>, Arc<Ticket>), ApiError> {
    let (mut parts, body) = request.into_parts();
    let (cost, limit) = routes::cost(&parts);
    if images::is_sent(&parts) {
        let ticket = guest.admit(cost).await?;
        let request = Request::from_parts(parts, body);
        let response = images::import_sent(request, &context, patience.upload).await?;
        return Ok((response, ticket));
    }
    let limit = limit.unwrap_or(MAX_BODY);
    // A large body costs as much as the answer. A small one is read while its connection can still be pushed out.
    let large = match limit > MAX_BODY {
        true => Some(guest.admit(cost).await?),
        false => None,
    };
    let body = read_body(body, limit, patience.body).await?;
    let ticket: Arc<Ticket> = match large {
        Some(ticket) => ticket,
        None => guest.admit(cost).await?,
    };
    guest.note(body.len());
    parts.extensions.insert(ticket.clone());
    let request = Request::from_parts(parts, body);
    let response = routes::answer(request, context, spawner).await?;
    Ok((response, ticket))
}

async fn read_body(body: Incoming, limit: usize, patience: Duration) -> Result<Bytes, ApiError> {
    let too_large = || ApiError::too_large(format!("the request body is limited to {limit} bytes"));
    if body.size_hint().lower() > limit as u64 {
        return Err(too_large());
    }
    let read = async { Some(Limited::new(body, limit).collect().await) };
    let over = async {
        smol::Timer::after(patience).await;
        None
    };
    match smol::future::or(read, over).await {
        Some(Ok(body)) => Ok(body.to_bytes()),
        Some(Err(error)) if error.is::<http_body_util::LengthLimitError>() => Err(too_large()),
        Some(Err(error)) => Err(ApiError::bad_request(format!(
            "could not read the request body: {error}"
        ))),
        None => Err(ApiError::timeout(format!(
            "the request body did not arrive within {}s",
            patience.as_secs()
        ))),
    }
}

/// A complete answer.
pub(crate) fn reply(
    code: StatusCode,
    kind: &'static str,
    body: impl Into<Bytes>,
) -> Response<Body> {
    let body = Full::new(body.into()).map_err(|never| match never {});
    let mut response = Response::new(body.boxed_unsync());
    *response.status_mut() = code;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

/// A complete answer in JSON.
pub(crate) fn json(body: impl Into<Bytes>) -> Response<Body> {
    reply(StatusCode::OK, "application/json", body)
}

/// A list without metadata.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Items<T> {
    pub(crate) items: Vec<T>,
}

/// A complete answer from a value. Not every value has JSON (a path may not be UTF-8), and `json!` would panic.
pub(crate) fn json_of(value: &impl Serialize) -> Result<Response<Body>, ApiError> {
    serde_json::to_vec(value)
        .map(json)
        .map_err(|error| ApiError::internal(format!("could not make JSON of the answer: {error}")))
}

/// A streamed answer.
pub(crate) fn streamed<S>(kind: &'static str, stream: S) -> Response<Body>
where
    S: smol::stream::Stream<Item = io::Result<Bytes>> + Send + 'static,
{
    use smol::stream::StreamExt as _;
    let frames = stream.map(|chunk| chunk.map(Frame::data));
    let mut response = Response::new(StreamBody::new(frames).boxed_unsync());
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

/// A streamed answer of JSON lines.
pub(crate) fn json_lines(lines: smol::channel::Receiver<String>) -> Response<Body> {
    let lines = smol::stream::unfold(lines, |lines| async move {
        let line = lines.recv().await.ok()?;
        let line = Bytes::from(format!("{}\n", line.trim_end()));
        Some((Ok(line), lines))
    });
    streamed("application/x-ndjson", lines)
}

fn refuse(error: &ApiError) -> Response<Body> {
    let mut response = reply(error.code, "application/json", error.status().to_string());
    if error.code == StatusCode::TOO_MANY_REQUESTS {
        let headers = response.headers_mut();
        headers.insert(RETRY_AFTER, HeaderValue::from(RETRY_AFTER_S));
    }
    response
}
