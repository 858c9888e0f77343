//! An interactive session with a container, for `coracle exec`, `attach` and `debug`: one poll loop between terminal
//! and agent. Raw mode is undone on every way out, also when a signal ends the program.

use std::fs::File;
use std::io::{self, BufReader, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;
use nix::sys::socket::{MsgFlags, send};
use nix::sys::termios::{SetArg, Termios, cfmakeraw, tcgetattr, tcsetattr};

use super::client::Client;
use super::error::{CliError, Result};
use super::streams::Patient;
use crate::api::exec_frame::{self as frame, ExecStatus, Resize};
use crate::sys::{pty, signals};

/// How to connect to the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Manner {
    /// Pass input on.
    pub(super) stdin: bool,
    /// The program has a terminal.
    pub(super) tty: bool,
    /// The program outlives the session, and ctrl-p ctrl-q detaches.
    pub(super) detachable: bool,
}

impl Manner {
    /// Whether every key goes to the program.
    pub(super) fn is_raw(self) -> bool {
        self.tty && self.stdin && tcgetattr(io::stdin()).is_ok()
    }
}

/// How the session ended.
enum End {
    Status(ExecStatus),
    Detached,
    /// What the program writes could not be passed on.
    Unwritten(io::Error),
    /// The input for the program could not be read.
    Unread(io::Error),
}

/// Whether the program gets a terminal, if one is asked for. As with kubectl, input that is not from a terminal goes to a
/// program without one: on a terminal it would be echoed, and its end would not be seen.
pub(super) fn gets_terminal(stdin: bool, tty: bool) -> bool {
    if tty && stdin && tcgetattr(io::stdin()).is_err() {
        warn_no_terminal();
        return false;
    }
    tty
}

fn warn_no_terminal() {
    eprintln!("Unable to use a TTY - input is not a terminal or the right kind of file");
}

/// Runs a session until the program has ended, and returns its exit code, or until the user detaches. The request is a
/// path and a body, which may be empty.
pub(super) fn run(client: &Client, request: (&str, &str), manner: Manner) -> Result<ExitCode> {
    let terminal = match manner.tty && manner.stdin {
        true => tcgetattr(io::stdin()).ok(),
        false => None,
    };
    if manner.tty && manner.stdin && terminal.is_none() {
        // The container's terminal is there in any case: `attach` cannot choose.
        warn_no_terminal();
    }
    let (write, read) = client.upgrade_with(request, frame::PROTOCOL)?;
    let wakeups =
        Wakeups::new().map_err(|e| CliError::new("could not watch for signals").because(e))?;
    let raw = match &terminal {
        Some(before) => Some(RawMode::enter(before)?),
        None => None,
    };
    let mut session = Session {
        write,
        read,
        unsent: Vec::new(),
        stdin_open: manner.stdin,
        tty: manner.tty,
        keys: (manner.detachable && raw.is_some()).then(Keys::default),
    };
    let ended = session.pump(&wakeups);
    drop(raw);
    let end = ended.map_err(|e| match e.kind() {
        io::ErrorKind::Interrupted => CliError::new("stopped by a signal").code(130),
        _ => CliError::new("lost the agent").because(e),
    })?;
    match end {
        End::Unwritten(error) => Err(super::cannot_write(&error)),
        End::Unread(error) => {
            Err(CliError::new("could not read the standard input").because(error))
        }
        End::Detached => {
            eprintln!("\ndetached; the container goes on");
            Ok(ExitCode::SUCCESS)
        }
        End::Status(ExecStatus {
            exit_code: Some(code),
            ..
        }) => Ok(exit_code(code)),
        End::Status(ExecStatus { error, .. }) => Err(CliError::new(
            error.unwrap_or_else(|| "the session broke".to_owned()),
        )),
    }
}

/// Converts a program's exit code.
pub(super) fn exit_code(code: i32) -> ExitCode {
    ExitCode::from(u8::try_from(code & 0xff).unwrap_or(1))
}

/// Finds ctrl-p ctrl-q in the input.
#[derive(Debug, Default)]
struct Keys {
    /// A ctrl-p that may be the first of the two keys.
    held: bool,
}

impl Keys {
    const FIRST: u8 = 16;
    const SECOND: u8 = 17;

    /// Returns what to pass on; `None` after both keys.
    fn pass(&mut self, typed: &[u8]) -> Option<Vec<u8>> {
        let mut passed = Vec::with_capacity(typed.len() + 1);
        for key in typed {
            if std::mem::take(&mut self.held) {
                if *key == Self::SECOND {
                    return None;
                }
                passed.push(Self::FIRST);
            }
            match *key {
                Self::FIRST => self.held = true,
                other => passed.push(other),
            }
        }
        Some(passed)
    }
}

/// Returns the size of the terminal, whether standard input or output is connected to it.
pub(super) fn size() -> Option<(u16, u16)> {
    pty::size(io::stdin()).or_else(|| pty::size(io::stdout()))
}

/// Raw mode of the terminal, until dropped.
#[derive(Debug)]
struct RawMode<'a>(&'a Termios);

impl<'a> RawMode<'a> {
    fn enter(before: &'a Termios) -> Result<Self> {
        let mut raw = before.clone();
        cfmakeraw(&mut raw);
        let guard = Self(before);
        tcsetattr(io::stdin(), SetArg::TCSANOW, &raw)
            .map_err(|e| CliError::new("could not set the terminal to raw mode").because(e))?;
        Ok(guard)
    }
}

impl Drop for RawMode<'_> {
    fn drop(&mut self) {
        // Nothing else can be done on the way out.
        let _ = tcsetattr(io::stdin(), SetArg::TCSANOW, self.0);
    }
}

/// Signals as bytes in pipes: the terminal was resized, or the program must end.
#[derive(Debug)]
struct Wakeups {
    resized: UnixStream,
    ended: UnixStream,
    /// The other end, which stays open if all signals are ignored.
    _on_end: UnixStream,
}

impl Wakeups {
    fn new() -> io::Result<Self> {
        let (resized, on_resize) = UnixStream::pair()?;
        let (ended, on_end) = UnixStream::pair()?;
        signal_hook::low_level::pipe::register(Signal::SIGWINCH as i32, on_resize)?;
        for signal in signals::heeded(&[Signal::SIGHUP, Signal::SIGINT, Signal::SIGTERM]) {
            signal_hook::low_level::pipe::register(signal as i32, on_end.try_clone()?)?;
        }
        Ok(Self {
            resized,
            ended,
            _on_end: on_end,
        })
    }
}

#[derive(Debug)]
struct Session {
    write: UnixStream,
    read: BufReader<UnixStream>,
    /// Frames the agent has not accepted yet. No frame is added while there are any: this bounds memory, and neither
    /// side deadlocks waiting for the other to read.
    unsent: Vec<u8>,
    stdin_open: bool,
    tty: bool,
    /// Finds the keys that detach, if the session can be detached.
    keys: Option<Keys>,
}

/// Descriptors that are ready after a poll.
#[derive(Debug, Default)]
struct Ready {
    agent: bool,
    agent_takes: bool,
    ended: bool,
    resized: bool,
    input: bool,
}

impl Session {
    fn pump(&mut self, wakeups: &Wakeups) -> io::Result<End> {
        let stdin = File::from(io::stdin().as_fd().try_clone_to_owned()?);
        loop {
            // Frames already in the buffer do not make the socket readable.
            while !self.read.buffer().is_empty() {
                if let Some(end) = self.frame()? {
                    return Ok(end);
                }
            }
            let ready = self.wait(stdin.as_fd(), wakeups)?;
            if ready.ended {
                return Err(io::ErrorKind::Interrupted.into());
            }
            if ready.agent_takes {
                self.flush()?;
            }
            if ready.agent
                && let Some(end) = self.frame()?
            {
                return Ok(end);
            }
            if ready.resized {
                self.resize(wakeups)?;
            }
            if ready.input
                && let Some(end) = self.forward(&stdin)?
            {
                return Ok(end);
            }
        }
    }

    fn wait(&self, stdin: BorrowedFd<'_>, wakeups: &Wakeups) -> io::Result<Ready> {
        let watch = |fd| PollFd::new(fd, PollFlags::POLLIN);
        let idle = self.unsent.is_empty();
        let mut agent = watch(self.read.get_ref().as_fd());
        if !idle {
            agent.set_events(PollFlags::POLLIN | PollFlags::POLLOUT);
        }
        let mut fds = vec![agent, watch(wakeups.ended.as_fd())];
        if idle {
            fds.push(watch(wakeups.resized.as_fd()));
        }
        if idle && self.stdin_open {
            fds.push(watch(stdin));
        }
        match poll(&mut fds, PollTimeout::NONE) {
            Err(Errno::EINTR) => return Ok(Ready::default()),
            other => other?,
        };
        let ready = |index: usize| fds.get(index).is_some_and(|fd| fd.any() == Some(true));
        let found = fds[0].revents().unwrap_or(PollFlags::empty());
        Ok(Ready {
            agent: found.intersects(!PollFlags::POLLOUT),
            agent_takes: found.contains(PollFlags::POLLOUT),
            ended: ready(1),
            resized: ready(2),
            input: ready(3),
        })
    }

    fn frame(&mut self) -> io::Result<Option<End>> {
        let mut head = [0; 5];
        self.read.read_exact(&mut head)?;
        let (channel, length) = frame::parse_header(head)
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "frame too long"))?;
        let mut data = vec![0; length];
        self.read.read_exact(&mut data)?;
        match channel {
            frame::STDOUT => {
                let written = Patient(io::stdout().lock()).write_all(&data);
                Ok(written.err().map(End::Unwritten))
            }
            frame::STDERR => {
                // As for a program here that cannot write its errors, its end is what counts.
                let _ = Patient(io::stderr().lock()).write_all(&data);
                Ok(None)
            }
            frame::STATUS => Ok(Some(End::Status(serde_json::from_slice(&data)?))),
            _ => Ok(None),
        }
    }

    /// Passes input on. It ends the session if it cannot be read, or if it detaches.
    fn forward(&mut self, mut stdin: &File) -> io::Result<Option<End>> {
        let mut buffer = [0; 16 * 1024];
        let length = match stdin.read(&mut buffer) {
            Ok(length) => length,
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock
                ) =>
            {
                return Ok(None);
            }
            Err(error) => return Ok(Some(End::Unread(error))),
        };
        if length == 0 {
            self.stdin_open = false;
            self.send(frame::CLOSE_STDIN, &[])?;
            return Ok(None);
        }
        let typed = &buffer[..length];
        match &mut self.keys {
            None => self.send(frame::STDIN, typed)?,
            Some(keys) => match keys.pass(typed) {
                Some(passed) => self.send(frame::STDIN, &passed)?,
                None => return Ok(Some(End::Detached)),
            },
        }
        Ok(None)
    }

    fn resize(&mut self, wakeups: &Wakeups) -> io::Result<()> {
        let mut notices = [0; 64];
        let _ = (&wakeups.resized).read(&mut notices)?;
        match size().filter(|_| self.tty) {
            Some((width, height)) => {
                let size = serde_json::to_vec(&Resize { width, height })?;
                self.send(frame::RESIZE, &size)
            }
            None => Ok(()),
        }
    }

    fn send(&mut self, channel: u8, data: &[u8]) -> io::Result<()> {
        self.unsent.extend(frame::header(channel, data));
        self.unsent.extend_from_slice(data);
        self.flush()
    }

    /// Sends what the agent accepts without blocking.
    fn flush(&mut self) -> io::Result<()> {
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
        while !self.unsent.is_empty() {
            match send(self.write.as_raw_fd(), &self.unsent, flags) {
                Ok(sent) => drop(self.unsent.drain(..sent)),
                Err(Errno::EAGAIN) => break,
                Err(Errno::EINTR) => {}
                // The program has ended without reading its input; its exit status is still to be read.
                Err(Errno::EPIPE | Errno::ECONNRESET) => {
                    self.stdin_open = false;
                    self.unsent.clear();
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::Keys;

    #[test]
    fn ctrl_p_ctrl_q_detaches_and_everything_else_is_passed_on() {
        let mut keys = Keys::default();
        assert_eq!(keys.pass(b"ls\n"), Some(b"ls\n".to_vec()));
        assert_eq!(keys.pass(b"\x10"), Some(vec![]));
        assert_eq!(keys.pass(b"x"), Some(b"\x10x".to_vec()));
        assert_eq!(keys.pass(b"\x10\x10"), Some(b"\x10".to_vec()));
        assert_eq!(keys.pass(b"\x11"), None);
        assert_eq!(Keys::default().pass(b"\x11"), Some(b"\x11".to_vec()));
    }
}
