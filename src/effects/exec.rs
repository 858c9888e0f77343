//! Programs in containers, and attached clients, as the agent holds them. The agent asks the pod's shim on a
//! connection of its own, and holds one end of each stream. Dropping the [`Program`] closes the connection: that
//! kills a program it started, but not one it was attached to.

use std::convert::Infallible;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use nix::unistd::pipe2;
use smol::Async;
use smol::channel::Receiver;
use smol::io::{AsyncReadExt, AsyncWriteExt};

use crate::shim::protocol::{
    AttachRequest, ExecRequest, FailedStep, KeptEnd, MAX_FRAME, Message, Reply,
    Request as ShimRequest, VERSION,
};
use crate::sys::{clock, fdpass, unix_socket};
use crate::types::Time;

/// Once the program has ended, the total time to wait for silent output: a child may hold the pipe for ever. The
/// program's own output is in the pipe by then, and is read at the client's pace.
pub(crate) const DRAIN: Duration = Duration::from_millis(500);

/// A running program, as the agent holds it.
#[derive(Debug)]
pub(crate) struct Program {
    /// Its connection, which also reports its end.
    pub(crate) shim: Async<UnixStream>,
    /// Its standard input, if requested.
    pub(crate) stdin: Option<Async<std::fs::File>>,
    /// Its standard output; the terminal's, if it has one.
    pub(crate) stdout: Async<std::fs::File>,
    /// Its standard error, unless that comes with the output.
    pub(crate) stderr: Option<Async<std::fs::File>>,
    /// Its terminal, to be resized, if it has one.
    pub(crate) terminal: Option<Async<std::fs::File>>,
    /// Whether it ran before: it then outlives its client.
    pub(crate) attached: bool,
}

impl Program {
    /// Asks the shim to start it. `NotFound` and `PermissionDenied` concern the program.
    pub(crate) async fn start(socket: &Path, asked: ExecRequest, stdin: bool) -> io::Result<Self> {
        let shim = connect(socket).await?;
        let tty = asked.tty;
        if tty {
            send(&shim, &ShimRequest::Exec(Box::new(asked)), &[]).await?;
            let master = started(receive(&shim).await?)?
                .ok_or_else(|| io::Error::other("the shim sent no terminal"))?;
            let input = match stdin {
                true => Some(file(master.try_clone()?)?),
                false => None,
            };
            return Ok(Self {
                shim,
                stdin: input,
                terminal: Some(file(master.try_clone()?)?),
                stdout: file(master)?,
                stderr: None,
                attached: false,
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
        // Only the program may hold these now, or its output would never end.
        drop((in_read, out_write, err_write));
        started(receive(&shim).await?)?;
        Ok(Self {
            shim,
            stdin: match stdin {
                true => Some(file(in_write)?),
                false => None,
            },
            stdout: file(out_read)?,
            stderr: Some(file(err_read)?),
            terminal: None,
            attached: false,
        })
    }

    /// Attaches to the container's output and, if requested, its input. Also returns the size of its current log,
    /// whose content came before.
    pub(crate) async fn attach(socket: &Path, asked: AttachRequest) -> io::Result<(Self, u64)> {
        let shim = connect(socket).await?;
        let stdin = asked.stdin;
        let (out_read, out_write) = pipe2(OFlag::O_CLOEXEC)?;
        let (err_read, err_write) = pipe2(OFlag::O_CLOEXEC)?;
        for pipe in [&out_write, &err_write] {
            // The shim waits for no client: the larger the pipe, the less is missed. The default size works, too.
            let _ = fcntl(pipe, FcntlArg::F_SETPIPE_SZ(ATTACHED_PIPE));
        }
        let fds = [out_write.as_raw_fd(), err_write.as_raw_fd()];
        send(&shim, &ShimRequest::Attach(Box::new(asked)), &fds).await?;
        drop((out_write, err_write));
        let (tty, log_bytes, fd) = match receive(&shim).await? {
            (Message::Reply(Reply::Attached { tty, log_bytes }), fd) => (tty, log_bytes, fd),
            (Message::Reply(Reply::Failed { message, .. }), _) => {
                return Err(io::Error::other(message));
            }
            (other, _) => return Err(unexpected(&other)),
        };
        let input = match (&fd, stdin) {
            (Some(fd), true) => Some(file(fd.try_clone()?)?),
            (Some(_), false) | (None, _) => None,
        };
        let session = Self {
            shim,
            stdin: input,
            stdout: file(out_read)?,
            stderr: (!tty).then(|| file(err_read)).transpose()?,
            terminal: fd.filter(|_| tty).map(file).transpose()?,
            attached: true,
        };
        Ok((session, log_bytes))
    }

    /// Notifies the shim that an attached client will write nothing more.
    pub(crate) async fn end_input(shim: &Async<UnixStream>) -> io::Result<()> {
        send(shim, &ShimRequest::EndInput, &[]).await
    }
}

/// Starts a program that the shim keeps ([`ExecRequest::keep`]), or joins it. Closing the connection does not end
/// it.
pub(crate) async fn start_kept(socket: &Path, asked: ExecRequest) -> io::Result<Async<UnixStream>> {
    let shim = connect(socket).await?;
    let null = std::fs::File::options()
        .read(true)
        .write(true)
        .open("/dev/null")?;
    let fds = [null.as_raw_fd(); 3];
    send(&shim, &ShimRequest::Exec(Box::new(asked)), &fds).await?;
    started(receive(&shim).await?)?;
    Ok(shim)
}

/// Waits for the end of a kept program. A shim too old to keep programs reports the exit code only, and kills the
/// program when the connection closes.
pub(crate) async fn kept_end(shim: &Async<UnixStream>) -> io::Result<KeptEnd> {
    loop {
        match receive(shim).await?.0 {
            Message::KeptEnded(end) => return Ok(*end),
            Message::ExecExited { code } => {
                return Ok(KeptEnd {
                    code,
                    timed_out: false,
                    output: String::new(),
                    errors: String::new(),
                    at: Time(clock::boot_ms()),
                });
            }
            Message::Reply(_) | Message::Exited { .. } => {}
        }
    }
}

/// The buffer for the output of an attached client that reads slowly.
const ATTACHED_PIPE: i32 = 1 << 20;

fn file(fd: OwnedFd) -> io::Result<Async<std::fs::File>> {
    Async::new(std::fs::File::from(fd))
}

async fn connect(socket: &Path) -> io::Result<Async<UnixStream>> {
    // A shim that hangs lets its queue run full: that must not block.
    let (_folder, short) = unix_socket::shorten(socket).map_err(io::Error::other)?;
    let shim = Async::<UnixStream>::connect(short)
        .await
        .map_err(io::Error::other)?;
    let hello = ShimRequest::Hello {
        version: VERSION,
        subscribe: false,
    };
    send(&shim, &hello, &[]).await?;
    match receive(&shim).await?.0 {
        Message::Reply(Reply::Hello { .. }) => Ok(shim),
        other => Err(unexpected(&other)),
    }
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

/// Waits for the program's end.
pub(crate) async fn exit_code(shim: &Async<UnixStream>) -> io::Result<i32> {
    loop {
        if let (Message::ExecExited { code }, _) = receive(shim).await? {
            return Ok(code);
        }
    }
}

/// Reads what is available, or waits for it: once the program has ended, only as long as there is `patience` left.
/// 0 is the end.
pub(crate) async fn read_or_tire(
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
    // Reading comes first: what the program left in the pipe is available at once.
    let read = smol::future::or(source.read(buffer), silence).await;
    if let Some(since) = silent_since {
        *patience = patience.saturating_sub(since.elapsed());
    }
    read
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
