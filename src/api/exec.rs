//! Exec, and the copy of files, which is a program of the shim's own. The handler asks the pod's shim to start the program, upgrades the connection to frames
//! ([`super::exec_frame`]), and carries bytes both ways until the program has ended. If one side goes away, the other
//! is closed: closing the shim's connection kills the program.

use std::convert::Infallible;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;

use hyper::body::Bytes;
use hyper::header::{CONNECTION, HeaderValue, UPGRADE};
use hyper::{Request, Response, StatusCode};
use k8s_openapi::api::core::v1::Pod;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use serde::Deserialize;
use smol::Async;
use smol::channel::{self, Receiver};
use smol::io::{AsyncReadExt, AsyncWriteExt};
use smol_hyper::rt::FuturesIo;

use super::door::{Patient, Ticket};
use super::error::ApiError;
use super::exec_frame::{self as frame, ExecStatus, Resize};
use super::logs::{choose_container, status_of};
use super::query::Query;
use super::server::{Body, Context, Spawner, reply};
use crate::effects::exec::{DRAIN, Program, exit_code, read_or_tire};
use crate::shim::protocol::{Copy, ExecRequest};
use crate::spec::PodUid;
use crate::sys::pty;

pub(crate) async fn answer(
    request: Request<Bytes>,
    context: Arc<Context>,
    spawner: Spawner,
    query: &Query,
    (namespace, name): (&str, &str),
) -> Result<Response<Body>, ApiError> {
    let (pod, container) = running_container(&request, &context, query, (namespace, name))?;
    let argv = command(query, request.body())?;
    if argv.is_empty() {
        return Err(ApiError::bad_request(
            "you must specify at least one command for the container",
        ));
    }
    let tty = query.flag("tty")?;
    let size = query.number("cols")?.zip(query.number("rows")?);
    let asked = ExecRequest {
        container,
        argv,
        env: Vec::new(),
        tty,
        size,
        keep: None,
        copy: None,
    };
    let socket = shim_socket(&context, &pod);
    let session = Program::start(&socket, asked, query.flag("stdin")?)
        .await
        .map_err(|error| {
            let message = format!("could not exec in pod {name}: {error}");
            match error.kind() {
                io::ErrorKind::NotFound => ApiError::command_not_found(message),
                io::ErrorKind::PermissionDenied => ApiError::command_not_executable(message),
                _ => ApiError::internal(message),
            }
        })?;
    Ok(switch(request, &spawner, session, Vec::new()))
}

/// The command: in the query, or for one that is too long for a head in the body.
fn command(query: &Query, body: &[u8]) -> Result<Vec<String>, ApiError> {
    #[derive(Deserialize)]
    struct Asked {
        command: Vec<String>,
    }
    if body.is_empty() {
        return Ok(query.all("command"));
    }
    serde_json::from_slice(body)
        .map(|asked: Asked| asked.command)
        .map_err(|error| ApiError::bad_request(format!("the body is no command: {error}")))
}

/// Copies files: a tar stream out of the container on standard output, or into it on standard input.
pub(crate) async fn copy(
    request: Request<Bytes>,
    context: Arc<Context>,
    spawner: Spawner,
    query: &Query,
    (namespace, name): (&str, &str),
) -> Result<Response<Body>, ApiError> {
    let (pod, container) = running_container(&request, &context, query, (namespace, name))?;
    let text = |key: &str| query.get(key).map(str::to_owned);
    let (from, to) = (text("from"), text("to"));
    let (copy, stdin) = match (from, to) {
        (Some(path), None) => (Copy::Out { path }, false),
        (None, Some(path)) => {
            let (name, keep) = (text("name"), query.flag("keep")?);
            (Copy::In { path, name, keep }, true)
        }
        _ => {
            let text = "either `from` or `to` is needed: a path in the container";
            return Err(ApiError::bad_request(text));
        }
    };
    let asked = ExecRequest {
        container,
        // What an old shim looks for, and does not find.
        argv: vec!["coracle cp".to_owned()],
        env: Vec::new(),
        tty: false,
        size: None,
        keep: None,
        copy: Some(copy),
    };
    let session = Program::start(&shim_socket(&context, &pod), asked, stdin).await;
    let session = session.map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => ApiError::bad_request(format!(
            "pod {name} was started by a version of coracle that cannot copy files; it can once it has been restarted"
        )),
        _ => ApiError::internal(format!("could not copy files of pod {name}: {error}")),
    })?;
    Ok(switch(request, &spawner, session, Vec::new()))
}

/// Returns the container named in the query; refuses if it does not run or the connection cannot be upgraded.
pub(super) fn running_container(
    request: &Request<Bytes>,
    context: &Context,
    query: &Query,
    (namespace, name): (&str, &str),
) -> Result<(Pod, String), ApiError> {
    let upgrade = request.headers().get(UPGRADE);
    if upgrade.and_then(|v| v.to_str().ok()) != Some(frame::PROTOCOL) {
        return Err(ApiError::bad_request(format!(
            "exec, attach and cp need `Upgrade: {}`: kubectl's protocols are not spoken here, use `coracle exec`, \
             `coracle attach` or `coracle cp`",
            frame::PROTOCOL
        )));
    }
    let pod = context
        .store
        .pod(namespace, name)
        .ok_or_else(|| ApiError::not_found("pods", name))?;
    let container = choose_container(&pod, query.get("container"))?;
    let running = status_of(&pod, &container).and_then(|s| s.state?.running);
    match running {
        Some(_) => Ok((pod, container)),
        None => Err(ApiError::bad_request(format!(
            "container {container} in pod {name} is not running"
        ))),
    }
}

/// Returns the path of the pod's shim socket.
pub(super) fn shim_socket(context: &Context, pod: &Pod) -> PathBuf {
    let uid = PodUid::from(pod.metadata.uid.as_deref().unwrap_or_default());
    context.layout.pod_run(&uid).shim_socket()
}

/// Upgrades the connection to frames, which a task then carries, starting with the frames `earlier`.
pub(super) fn switch(
    request: Request<Bytes>,
    spawner: &Spawner,
    session: Program,
    earlier: Vec<u8>,
) -> Response<Body> {
    // Held until the session has ended.
    let ticket = request.extensions().get::<Arc<Ticket>>().cloned();
    let upgraded = hyper::upgrade::on(request);
    spawner
        .spawn(async move {
            let _ticket = ticket;
            if let Ok(upgraded) = upgraded.await
                && let Ok(parts) = upgraded.downcast::<FuturesIo<Patient>>()
            {
                let client = parts.io.into_inner().into_inner();
                run(session, client, &parts.read_buf, &earlier).await;
            }
        })
        .detach();
    let mut response = reply(StatusCode::SWITCHING_PROTOCOLS, "text/plain", "");
    let headers = response.headers_mut();
    headers.insert(UPGRADE, HeaderValue::from_static(frame::PROTOCOL));
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    response
}

/// Carries bytes until the program has ended or the client has gone.
async fn run(session: Program, client: Async<UnixStream>, early: &[u8], earlier: &[u8]) {
    let Program {
        shim,
        stdin,
        stdout,
        stderr,
        terminal,
        attached,
    } = session;
    let out = smol::lock::Mutex::new(&client);
    let input = Input {
        pipe: stdin,
        terminal: terminal.as_ref(),
        attached: attached.then_some(&shim),
    };
    let from_client = async {
        // The end of its input means that the client has gone.
        let _ = incoming(&client, early, input).await;
        None
    };
    // Closed when the program has ended.
    let (running, ended) = channel::bounded::<Infallible>(1);
    let exit = async {
        let code = exit_code(&shim).await;
        drop(running);
        code
    };
    let outputs = smol::future::zip(outgoing(&stdout, frame::STDOUT, &out, &ended), async {
        match &stderr {
            Some(stderr) => outgoing(stderr, frame::STDERR, &out, &ended).await,
            None => Ok(()),
        }
    });
    let to_client = async {
        // A broken pipe to the client ends the session through `from_client`.
        let outputs = async {
            out.lock().await.write_all(earlier).await?;
            let (stdout, stderr) = outputs.await;
            stdout.and(stderr)
        };
        let (code, _) = smol::future::zip(exit, outputs).await;
        Some(code)
    };
    // `from_client` cannot detect this: it reads nothing while the program leaves its input unread.
    let gone = async {
        match hang_up(&client).await {
            Ok(()) => None,
            Err(_) => smol::future::pending().await,
        }
    };
    let from_client = smol::future::or(gone, from_client);
    let status = match smol::future::or(from_client, to_client).await {
        Some(Ok(code)) => ExecStatus {
            exit_code: Some(code),
            error: None,
        },
        Some(Err(error)) => ExecStatus {
            exit_code: None,
            error: Some(format!("lost the shim: {error}")),
        },
        None => return,
    };
    let status = serde_json::to_vec(&status).unwrap_or_default();
    // A client that has gone gets no status.
    let _ = write_frame(&out, frame::STATUS, &status).await;
}

/// Waits until the client has closed its side, whatever it sent before.
pub(super) async fn hang_up(client: &Async<UnixStream>) -> io::Result<()> {
    hang_ups(client)?.readable().await
}

/// Becomes readable when the client has closed both directions, whatever it sent before. Readability of the connection
/// does not show that (input may lie unread forever), so this is an epoll of its own without events: it reports hang-ups
/// only.
pub(super) fn hang_ups(client: &Async<UnixStream>) -> io::Result<Async<OwnedFd>> {
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
    epoll.add(client, EpollEvent::new(EpollFlags::empty(), 0))?;
    Async::new(epoll.0)
}

/// Where a client's input goes.
struct Input<'s> {
    pipe: Option<Async<std::fs::File>>,
    terminal: Option<&'s Async<std::fs::File>>,
    /// The shim of the attached container, which outlives the session and may have other writers.
    attached: Option<&'s Async<UnixStream>>,
}

impl Input<'_> {
    /// The client has closed its input.
    async fn end(&mut self) {
        match (&mut self.pipe, self.terminal, self.attached) {
            (Some(_), _, Some(shim)) => {
                self.pipe = None;
                // The session ends with the shim anyway.
                let _ = Program::end_input(shim).await;
            }
            (Some(pipe), Some(_), None) => {
                // On a terminal, the end of input is a character.
                let _ = pipe.write_all(&[4]).await;
            }
            (Some(_), None, None) | (None, _, _) => {}
        }
        self.pipe = None;
    }
}

async fn incoming(client: &Async<UnixStream>, early: &[u8], mut into: Input<'_>) -> io::Result<()> {
    let mut input = early.chain(client);
    let mut data = Vec::new();
    loop {
        let mut head = [0; 5];
        input.read_exact(&mut head).await?;
        let (channel, length) = frame::parse_header(head)
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "frame too long"))?;
        data.resize(length, 0);
        input.read_exact(&mut data).await?;
        match channel {
            frame::STDIN => {
                if let Some(pipe) = &mut into.pipe
                    && pipe.write_all(&data).await.is_err()
                {
                    into.pipe = None;
                }
            }
            frame::RESIZE => {
                if let (Some(terminal), Ok(size)) =
                    (into.terminal, serde_json::from_slice::<Resize>(&data))
                {
                    // Resizing fails harmlessly if the terminal's program is gone.
                    let _ = pty::set_size(terminal, size.width, size.height);
                }
            }
            frame::CLOSE_STDIN => into.end().await,
            _ => {}
        }
        smol::future::yield_now().await;
    }
}

/// Carries output to the client at the client's pace. It ends with the pipe, or when the program has ended and the pipe
/// is silent.
async fn outgoing(
    source: &Async<std::fs::File>,
    channel: u8,
    out: &smol::lock::Mutex<&Async<UnixStream>>,
    ended: &Receiver<Infallible>,
) -> io::Result<()> {
    let mut patience = DRAIN;
    let mut buffer = vec![0; 16 * 1024];
    loop {
        let length = match read_or_tire(source, &mut buffer, ended, &mut patience).await {
            // The terminal has hung up: its other side is closed.
            Err(error) if error.raw_os_error() == Some(nix::libc::EIO) => return Ok(()),
            other => other?,
        };
        if length == 0 {
            return Ok(());
        }
        write_frame(out, channel, &buffer[..length]).await?;
        // A fast program with a fast client would otherwise keep everything else waiting.
        smol::future::yield_now().await;
    }
}

async fn write_frame(
    out: &smol::lock::Mutex<&Async<UnixStream>>,
    channel: u8,
    data: &[u8],
) -> io::Result<()> {
    let mut out = out.lock().await;
    out.write_all(&frame::header(channel, data)).await?;
    out.write_all(data).await
}
