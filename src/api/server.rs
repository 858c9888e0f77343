//! Who is let in, and how much may they cost? Connections of root only, a bounded number of them, bounded headers and
//! bodies, and a deadline for headers. Runs on an executor of its own, polled by whoever awaits [`serve`].

use std::convert::Infallible;
use std::io;
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, Limited, StreamBody};
use hyper::body::{Bytes, Frame, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use serde::{Deserialize, Serialize};
use smol::Async;
use smol::channel::Sender;
use smol_hyper::rt::{FuturesIo, SmolTimer};

use super::command::Command;
use super::error::{ApiError, ServeError};
use super::routes;
use super::store::Store;
use crate::layout::Layout;

/// So many connections at once; further ones wait in the backlog.
const MAX_CONNECTIONS: usize = 64;
/// Request line and headers.
const MAX_HEAD: usize = 32 * 1024;
/// Request bodies that have no limit of their own; the largest real one is a `DeleteOptions`.
const MAX_BODY: usize = 256 * 1024;
/// For a request's headers to arrive, also on an idle connection.
const HEADER_TIMEOUT: Duration = Duration::from_secs(30);

/// What handlers need.
#[derive(Debug, Clone)]
pub struct Context {
    /// What is to see.
    pub store: Arc<Store>,
    /// Where wishes go.
    pub commands: Sender<Command>,
    /// Where logs and shims are.
    pub layout: Layout,
    /// This node's name.
    pub node_name: String,
}

/// The body of every response.
pub(crate) type Body = UnsyncBoxBody<Bytes, io::Error>;

/// Runs background work of a connection (an exec session).
pub(crate) type Spawner = Arc<smol::Executor<'static>>;

/// Serves until accepting fails for good.
pub async fn serve(
    listener: Async<UnixListener>,
    context: Context,
) -> Result<Infallible, ServeError> {
    let executor: Spawner = Arc::new(smol::Executor::new());
    let permits = Arc::new(smol::lock::Semaphore::new(MAX_CONNECTIONS));
    let context = Arc::new(context);
    let accept = async {
        loop {
            let permit = permits.acquire_arc().await;
            let stream = match listener.accept().await {
                Ok((stream, _)) => stream,
                // Out of descriptors or memory: some will be free again soon.
                Err(error) if transient(&error) => {
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
            executor
                .spawn(async move {
                    connection(stream, context, spawner).await;
                    drop(permit);
                })
                .detach();
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

/// Root, or whoever runs the agent.
fn may_enter(stream: &Async<std::os::unix::net::UnixStream>) -> bool {
    getsockopt(stream, PeerCredentials)
        .is_ok_and(|peer| peer.uid() == 0 || peer.uid() == nix::unistd::geteuid().as_raw())
}

async fn connection(
    stream: Async<std::os::unix::net::UnixStream>,
    context: Arc<Context>,
    spawner: Spawner,
) {
    let service = service_fn(move |request: Request<Incoming>| {
        let (context, spawner) = (context.clone(), spawner.clone());
        async move {
            let response = routes::answer(request, context, spawner).await;
            Ok::<_, Infallible>(response.unwrap_or_else(|error| refuse(&error)))
        }
    });
    let served = http1::Builder::new()
        .timer(SmolTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .max_buf_size(MAX_HEAD)
        .serve_connection(FuturesIo::new(stream), service)
        .with_upgrades()
        .await;
    if let Err(error) = served {
        tracing::debug!("API connection ended: {error}");
    }
}

/// Reads a request's body up to the limit.
pub(crate) async fn read_body(body: Incoming) -> Result<Bytes, ApiError> {
    read_body_up_to(body, MAX_BODY).await
}

/// Reads a request's body up to this many bytes.
pub(crate) async fn read_body_up_to(body: Incoming, limit: usize) -> Result<Bytes, ApiError> {
    match Limited::new(body, limit).collect().await {
        Ok(body) => Ok(body.to_bytes()),
        Err(error) if error.is::<http_body_util::LengthLimitError>() => Err(ApiError::too_large(
            format!("the request body is limited to {limit} bytes"),
        )),
        Err(error) => Err(ApiError::bad_request(format!(
            "could not read the request body: {error}"
        ))),
    }
}

/// A whole answer.
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

/// A whole answer in JSON.
pub(crate) fn json(body: impl Into<Bytes>) -> Response<Body> {
    reply(StatusCode::OK, "application/json", body)
}

/// A list without more.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Items<T> {
    pub(crate) items: Vec<T>,
}

/// A value as a whole answer. Not every value can be JSON (a path may not be UTF-8), and `json!` would panic.
pub(crate) fn json_of(value: &impl Serialize) -> Result<Response<Body>, ApiError> {
    serde_json::to_vec(value)
        .map(json)
        .map_err(|error| ApiError::internal(format!("could not make JSON of the answer: {error}")))
}

/// An answer that comes bit by bit.
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

/// An answer of lines of JSON, as they come.
pub(crate) fn json_lines(lines: smol::channel::Receiver<String>) -> Response<Body> {
    let lines = smol::stream::unfold(lines, |lines| async move {
        let line = lines.recv().await.ok()?;
        let line = Bytes::from(format!("{}\n", line.trim_end()));
        Some((Ok(line), lines))
    });
    streamed("application/x-ndjson", lines)
}

fn refuse(error: &ApiError) -> Response<Body> {
    reply(error.code, "application/json", error.status().to_string())
}
