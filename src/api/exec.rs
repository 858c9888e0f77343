//! How does a client run a program in a container? The handler asks the pod's shim, upgrades the connection to frames
//! ([`super::exec_frame`]), and carries bytes both ways until the program has ended. If either side goes away, so does
//! the other: closing the shim's connection kills the program.

use std::convert::Infallible;
use std::io::{self, IoSlice};
use std::os::fd::AsFd;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper::body::Incoming;
use hyper::header::{CONNECTION, HeaderValue, UPGRADE};
use hyper::{Request, Response, StatusCode};
use nix::fcntl::OFlag;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use nix::unistd::pipe2;
use smol::Async;
use smol::channel::{self, Receiver};
use smol::io::{AsyncReadExt, AsyncWriteExt};
use smol_hyper::rt::FuturesIo;

use super::error::ApiError;
use super::exec_frame::{self as frame, ExecStatus, Resize};
use super::logs::{choose_container, status_of};
use super::query::Query;
use super::server::{Body, Context, Spawner, reply};
use crate::shim::protocol::{
    ExecRequest, FailedStep, MAX_FRAME, Message, Reply, Request as ShimRequest, VERSION,
};
use crate::spec::PodUid;
use crate::sys::{fdpass, pty, unix_socket};

/// Once the program has ended, an output is waited for so long in all while it is silent: a child may hold the pipe for
/// ever. What the program itself wrote is in the pipe by then, and takes the time that the client needs to read it.
const DRAIN: Duration = Duration::from_millis(500);

/// The agent's ends of a program's input and output.
#[derive(Debug)]
struct Session {
    shim: Async<UnixStream>,
    stdin: Option<Async<std::fs::File>>,
    stdout: Async<std::fs::File>,
    stderr: Option<Async<std::fs::File>>,
    tty: bool,
}

pub(crate) async fn answer(
    request: Request<Incoming>,
    context: Arc<Context>,
    spawner: Spawner,
    query: &Query,
    (namespace, name): (&str, &str),
) -> Result<Response<Body>, ApiError> {
    let upgrade = request.headers().get(UPGRADE);
    if upgrade.and_then(|v| v.to_str().ok()) != Some(frame::PROTOCOL) {
        return Err(ApiError::bad_request(format!(
            "exec needs `Upgrade: {}`",
            frame::PROTOCOL
        )));
    }
    let pod = context
        .store
        .pod(namespace, name)
        .ok_or_else(|| ApiError::not_found("pods", name))?;
    let container = choose_container(&pod, query.get("container"))?;
    let running = status_of(&pod, &container).and_then(|s| s.state?.running);
    if running.is_none() {
        return Err(ApiError::bad_request(format!(
            "container {container} in pod {name} is not running"
        )));
    }
    let argv = query.all("command");
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
    };
    let uid = PodUid::from(pod.metadata.uid.as_deref().unwrap_or_default());
    let socket = context.layout.pod_run(&uid).shim_socket();
    let session = start(&socket, asked, query.flag("stdin")?)
        .await
        .map_err(|error| {
            let message = format!("could not exec in pod {name}: {error}");
            match error.kind() {
                io::ErrorKind::NotFound => ApiError::command_not_found(message),
                io::ErrorKind::PermissionDenied => ApiError::command_not_executable(message),
                _ => ApiError::internal(message),
            }
        })?;
    let upgraded = hyper::upgrade::on(request);
    spawner
        .spawn(async move {
            if let Ok(upgraded) = upgraded.await
                && let Ok(parts) = upgraded.downcast::<FuturesIo<Async<UnixStream>>>()
            {
                run(session, parts.io.into_inner(), &parts.read_buf).await;
            }
        })
        .detach();
    let mut response = reply(StatusCode::SWITCHING_PROTOCOLS, "text/plain", "");
    let headers = response.headers_mut();
    headers.insert(UPGRADE, HeaderValue::from_static(frame::PROTOCOL));
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    Ok(response)
}

/// Asks the shim.
async fn start(socket: &Path, asked: ExecRequest, stdin: bool) -> io::Result<Session> {
    let shim = Async::new(unix_socket::connect(socket).map_err(io::Error::other)?)?;
    let hello = ShimRequest::Hello {
        version: VERSION,
        subscribe: false,
    };
    send(&shim, &hello, &[]).await?;
    match receive(&shim).await?.0 {
        Message::Reply(Reply::Hello { .. }) => {}
        other => return Err(unexpected(&other)),
    }
    let tty = asked.tty;
    let file = |fd: OwnedFd| Async::new(std::fs::File::from(fd));
    if tty {
        send(&shim, &ShimRequest::Exec(Box::new(asked)), &[]).await?;
        let master = started(receive(&shim).await?)?
            .ok_or_else(|| io::Error::other("the shim sent no terminal"))?;
        let input = match stdin {
            true => Some(file(master.try_clone()?)?),
            false => None,
        };
        return Ok(Session {
            shim,
            stdin: input,
            stdout: file(master)?,
            stderr: None,
            tty,
        });
    }
    let (in_read, in_write) = pipe2(OFlag::O_CLOEXEC)?;
    let (out_read, out_write) = pipe2(OFlag::O_CLOEXEC)?;
    let (err_read, err_write) = pipe2(OFlag::O_CLOEXEC)?;
    let fds = [
        in_read.as_raw_fd(),
        out_write.as_raw_fd(),
        err_write.as_raw_fd(),
    ];
    send(&shim, &ShimRequest::Exec(Box::new(asked)), &fds).await?;
    // Only the program may hold these now, or we would never see the end of its output.
    drop((in_read, out_write, err_write));
    started(receive(&shim).await?)?;
    Ok(Session {
        shim,
        stdin: match stdin {
            true => Some(file(in_write)?),
            false => None,
        },
        stdout: file(out_read)?,
        stderr: Some(file(err_read)?),
        tty,
    })
}

fn started((message, fd): (Message, Option<OwnedFd>)) -> io::Result<Option<OwnedFd>> {
    match message {
        Message::Reply(Reply::ExecStarted { .. }) => Ok(fd),
        Message::Reply(Reply::Failed {
            step: FailedStep::Run,
            message,
        }) => {
            // The shells' distinction between 127 and 126.
            let missing = message.contains("not found") || message.contains("no such file");
            let kind = match missing {
                true => io::ErrorKind::NotFound,
                false => io::ErrorKind::PermissionDenied,
            };
            Err(io::Error::new(kind, message))
        }
        Message::Reply(Reply::Failed { message, .. }) => Err(io::Error::other(message)),
        other => Err(unexpected(&other)),
    }
}

fn unexpected(message: &Message) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        format!("unexpected answer of the shim: {message:?}"),
    )
}

/// Carries bytes until the program has ended or the client has gone.
async fn run(session: Session, client: Async<UnixStream>, early: &[u8]) {
    let Session {
        shim,
        stdin,
        stdout,
        stderr,
        tty,
    } = session;
    let out = smol::lock::Mutex::new(&client);
    let size_of = &stdout;
    let from_client = async {
        // Its end means the client has gone.
        let _ = incoming(&client, early, stdin, tty.then_some(size_of)).await;
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
        let (code, _) = smol::future::zip(exit, outputs).await;
        Some(code)
    };
    // `from_client` reads nothing while the program leaves its input unread, so it cannot tell.
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
    // A client that has gone cannot be told.
    let _ = write_frame(&out, frame::STATUS, &status).await;
}

/// Waits until the client has closed its side, whatever it sent before. Not "readable" (input may lie unread for ever),
/// so by an epoll of its own that asks for nothing: hang-ups are always told.
async fn hang_up(client: &Async<UnixStream>) -> io::Result<()> {
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
    epoll.add(client, EpollEvent::new(EpollFlags::empty(), 0))?;
    Async::new(epoll.0)?.readable().await
}

/// Waits for the program's end.
async fn exit_code(shim: &Async<UnixStream>) -> io::Result<i32> {
    loop {
        if let (Message::ExecExited { code }, _) = receive(shim).await? {
            return Ok(code);
        }
    }
}

async fn incoming(
    client: &Async<UnixStream>,
    early: &[u8],
    mut stdin: Option<Async<std::fs::File>>,
    terminal: Option<&Async<std::fs::File>>,
) -> io::Result<()> {
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
                if let Some(pipe) = &mut stdin
                    && pipe.write_all(&data).await.is_err()
                {
                    stdin = None;
                }
            }
            frame::RESIZE => {
                if let (Some(terminal), Ok(size)) =
                    (terminal, serde_json::from_slice::<Resize>(&data))
                {
                    // A terminal whose program is gone cannot be resized, which does no harm.
                    let _ = pty::set_size(terminal, size.width, size.height);
                }
            }
            frame::CLOSE_STDIN => {
                if let (Some(pipe), Some(_)) = (&mut stdin, terminal) {
                    // The end of input on a terminal is a character.
                    let _ = pipe.write_all(&[4]).await;
                }
                stdin = None;
            }
            _ => {}
        }
    }
}

/// Carries output to the client, however slowly that reads. It ends with the pipe, or with silence after the program.
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
            // The terminal has hung up: nobody holds its other side any more.
            Err(error) if error.raw_os_error() == Some(nix::libc::EIO) => return Ok(()),
            other => other?,
        };
        if length == 0 {
            return Ok(());
        }
        write_frame(out, channel, &buffer[..length]).await?;
    }
}

/// Reads what there is, or waits for it: once the program has ended, only as long as there is `patience` left. 0 is the
/// end.
async fn read_or_tire(
    mut source: &Async<std::fs::File>,
    buffer: &mut [u8],
    ended: &Receiver<Infallible>,
    patience: &mut Duration,
) -> io::Result<usize> {
    let mut silent_since = None;
    let silence = async {
        // Nothing is ever sent: this waits until the channel is closed.
        let _ = ended.recv().await;
        silent_since = Some(Instant::now());
        smol::Timer::after(*patience).await;
        Ok(0)
    };
    // Reading comes first: what the program left in the pipe is there without waiting.
    let read = smol::future::or(source.read(buffer), silence).await;
    if let Some(since) = silent_since {
        *patience = patience.saturating_sub(since.elapsed());
    }
    read
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

/// Sends a frame to the shim, with descriptors on its first byte.
async fn send(shim: &Async<UnixStream>, request: &ShimRequest, fds: &[RawFd]) -> io::Result<()> {
    let body = serde_json::to_vec(request)?;
    let length = u32::try_from(body.len()).map_err(io::Error::other)?;
    let mut bytes = length.to_be_bytes().to_vec();
    bytes.extend_from_slice(&body);
    let sent = shim
        .write_with(|socket| {
            let rights = [ControlMessage::ScmRights(fds)];
            let rights: &[ControlMessage<'_>] = if fds.is_empty() { &[] } else { &rights };
            let data = [IoSlice::new(&bytes)];
            let sent = sendmsg::<()>(
                socket.as_raw_fd(),
                &data,
                rights,
                MsgFlags::MSG_NOSIGNAL,
                None,
            );
            Ok(sent?)
        })
        .await?;
    let mut rest: &Async<UnixStream> = shim;
    rest.write_all(&bytes[sent..]).await
}

/// Receives a frame of the shim and the descriptor that may come with it.
async fn receive(shim: &Async<UnixStream>) -> io::Result<(Message, Option<OwnedFd>)> {
    let mut head = [0; 4];
    let mut fds = Vec::new();
    let got = shim
        .read_with(|socket| fdpass::receive(socket.as_fd(), &mut head, &mut fds))
        .await?;
    if got == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let mut rest: &Async<UnixStream> = shim;
    rest.read_exact(&mut head[got..]).await?;
    let length = usize::try_from(u32::from_be_bytes(head)).unwrap_or(usize::MAX);
    if length > MAX_FRAME {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "frame too long"));
    }
    let mut body = vec![0; length];
    rest.read_exact(&mut body).await?;
    Ok((serde_json::from_slice(&body)?, fds.into_iter().next()))
}
