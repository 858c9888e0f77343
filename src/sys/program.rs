//! Runs of small programs: input, output and errors go through pipes, all of them and the time with a limit. Nothing of
//! them is ever in a file or in an argument.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::{clock, process, signals};

/// The maximum of error output that is kept; the rest is dropped.
const MAX_COMPLAINT: usize = 16 << 10;

/// What a program wrote, and how it ended.
#[derive(Debug)]
pub struct Finished {
    /// How it ended.
    pub status: ExitStatus,
    /// Its output.
    pub output: Vec<u8>,
    /// The beginning of its error output.
    pub complaint: Vec<u8>,
}

/// Why a run has no result.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// A system call failed.
    #[error("{0}")]
    System(#[from] io::Error),
    /// It was killed, because it did not end in time.
    #[error("does not end")]
    Stuck,
    /// It was killed, because it wrote too much.
    #[error("writes more than {0} bytes")]
    TooMuch(usize),
}

/// Blocking. Runs a program with this input until it ends, at most for `patience`, and reads at most `limit` bytes of its
/// output.
///
/// # Errors
///
/// If it cannot be started, or is killed for exceeding a limit. A program that fails is no error.
pub fn run(
    command: &mut Command,
    input: &[u8],
    patience: Duration,
    limit: usize,
) -> Result<Finished, RunError> {
    // It may end without reading its input.
    let _quiet = signals::without_sigpipe()?;
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let talked = talk(&mut child, input, patience, limit);
    if talked.is_err() {
        let _ = child.kill();
    }
    let status = child.wait()?;
    let (output, complaint) = talked?;
    Ok(Finished {
        status,
        output,
        complaint,
    })
}

/// Writes the input and reads both outputs until they and the program have ended.
fn talk(
    child: &mut Child,
    mut input: &[u8],
    patience: Duration,
    limit: usize,
) -> Result<(Vec<u8>, Vec<u8>), RunError> {
    let until = clock::now() + patience;
    let (mut stdin, mut stdout, mut stderr) =
        (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let pipes = [
        stdin.as_ref().map(AsFd::as_fd),
        stdout.as_ref().map(AsFd::as_fd),
        stderr.as_ref().map(AsFd::as_fd),
    ];
    pipes.into_iter().flatten().try_for_each(nonblocking)?;
    let (mut output, mut complaint) = (Vec::new(), Vec::new());
    loop {
        if input.is_empty() {
            stdin = None;
        }
        let mut fds = Vec::new();
        fds.extend(
            stdin
                .as_ref()
                .map(|p| PollFd::new(p.as_fd(), PollFlags::POLLOUT)),
        );
        fds.extend(
            stdout
                .as_ref()
                .map(|p| PollFd::new(p.as_fd(), PollFlags::POLLIN)),
        );
        fds.extend(
            stderr
                .as_ref()
                .map(|p| PollFd::new(p.as_fd(), PollFlags::POLLIN)),
        );
        if fds.is_empty() {
            break;
        }
        let left = until.saturating_duration_since(clock::now());
        let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
        match poll(&mut fds, timeout) {
            Ok(0) => return Err(RunError::Stuck),
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => return Err(io::Error::from(error).into()),
        }
        drop(fds);
        if let Some(pipe) = &mut stdin {
            match pipe.write(input) {
                Ok(written) => input = &input[written..],
                Err(error) if again(&error) => {}
                Err(_) => input = &[],
            }
        }
        if read(&mut stdout, &mut output)? {
            stdout = None;
        }
        if output.len() > limit {
            return Err(RunError::TooMuch(limit));
        }
        if read(&mut stderr, &mut complaint)? {
            stderr = None;
        }
        complaint.truncate(MAX_COMPLAINT);
    }
    let left = until.saturating_duration_since(clock::now());
    process::wait_at_most(child, left);
    match child.try_wait()? {
        Some(_) => Ok((output, complaint)),
        None => Err(RunError::Stuck),
    }
}

/// Adds what is there; returns whether the pipe is at its end.
fn read(pipe: &mut Option<impl Read>, found: &mut Vec<u8>) -> io::Result<bool> {
    let Some(pipe) = pipe else { return Ok(false) };
    let mut buffer = [0; 16 << 10];
    match pipe.read(&mut buffer) {
        Ok(0) => Ok(true),
        Ok(read) => {
            found.extend_from_slice(&buffer[..read]);
            Ok(false)
        }
        Err(error) if again(&error) => Ok(false),
        Err(error) => Err(error),
    }
}

fn again(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
    )
}

fn nonblocking(pipe: BorrowedFd<'_>) -> io::Result<()> {
    let flags = OFlag::from_bits_retain(fcntl(pipe, FcntlArg::F_GETFL)?);
    fcntl(pipe, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(20);

    fn shell(script: &str) -> Command {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn input_and_output_may_be_larger_than_pipes() {
        let input = vec![7; 1 << 20];
        let done = run(
            &mut shell("cat; echo no >&2; exit 3"),
            &input,
            PATIENCE,
            2 << 20,
        );
        let done = done.expect("a shell");
        assert_eq!(done.status.code(), Some(3));
        assert!(done.output == input, "{} bytes", done.output.len());
        assert_eq!(done.complaint, b"no\n");
    }

    #[test]
    fn a_program_that_does_not_read_does_not_end_its_parent() {
        // As the command line does.
        signals::default_sigpipe().expect("a signal");
        let input = vec![7; 1 << 20];
        let done = run(
            &mut shell("exec <&-; echo read nothing"),
            &input,
            PATIENCE,
            100,
        );
        assert_eq!(done.expect("a shell").output, b"read nothing\n");
    }

    #[test]
    fn limits_end_it() {
        let patience = Duration::from_millis(50);
        let stuck = run(&mut shell("exec sleep 1000"), b"", patience, 100);
        assert!(matches!(stuck, Err(RunError::Stuck)), "{stuck:?}");
        let silent = run(&mut shell("exec >&- 2>&- sleep 1000"), b"", patience, 100);
        assert!(matches!(silent, Err(RunError::Stuck)), "{silent:?}");
        let long = run(&mut shell("exec cat /dev/zero"), b"", PATIENCE, 100);
        assert!(matches!(long, Err(RunError::TooMuch(100))), "{long:?}");
        let none = run(&mut Command::new("/no/such"), b"", PATIENCE, 100);
        assert!(matches!(none, Err(RunError::System(_))), "{none:?}");
    }
}
