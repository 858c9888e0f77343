//! The standard streams as commands write them: a full pipe is waited for, also in non-blocking mode, and a standard
//! error that takes nothing ends no command.

use std::fmt;
use std::io::{self, Write};
use std::os::fd::AsFd;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// A stream without a buffer. Another program may have made its pipe or terminal non-blocking.
#[derive(Debug)]
pub(super) struct Patient<F>(pub(super) F);

impl<F: AsFd> Write for Patient<F> {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        loop {
            match nix::unistd::write(&self.0, data) {
                Err(Errno::EAGAIN) => {
                    let mut room = [PollFd::new(self.0.as_fd(), PollFlags::POLLOUT)];
                    match poll(&mut room, PollTimeout::NONE) {
                        Ok(_) | Err(Errno::EINTR) => {}
                        Err(error) => return Err(error.into()),
                    }
                }
                other => return Ok(other?),
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes to the standard error.
pub(super) fn say(text: fmt::Arguments<'_>) {
    // There is no other place to report that it cannot be written.
    let _ = Patient(io::stderr()).write_all(text.to_string().as_bytes());
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Read;

    use nix::fcntl::OFlag;
    use nix::unistd::pipe2;

    use super::*;

    #[test]
    fn a_full_pipe_in_non_blocking_mode_is_waited_for() {
        let (read, write) = pipe2(OFlag::O_CLOEXEC).unwrap();
        nix::fcntl::fcntl(&write, nix::fcntl::FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).unwrap();
        let data: Vec<u8> = (0..300_000_u32).map(|n| n.to_le_bytes()[0]).collect();
        let expected = data.clone();
        let writer = std::thread::spawn(move || Patient(write).write_all(&data));
        let mut got = Vec::new();
        File::from(read).read_to_end(&mut got).unwrap();
        writer.join().unwrap().unwrap();
        assert!(got == expected, "{} bytes", got.len());
    }
}
