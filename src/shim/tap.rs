//! Attached clients as readers of a container's output, beside its log. Each gets the output as it is read, and the
//! container waits for none of them. A client that does not read in time misses output, and gets a note of how
//! much.

use std::os::fd::{AsFd, OwnedFd};

use super::ShimError;
use crate::sys::fdpass;

/// An attached client.
pub(super) struct Tap {
    /// Its connection: the client is detached when that closes.
    pub(super) connection: u64,
    /// Whether it may write to the container.
    pub(super) stdin: bool,
    sinks: [Sink; 2],
}

/// The target of one output stream.
struct Sink {
    fd: Option<OwnedFd>,
    /// Bytes missed and not yet reported.
    missed: u64,
}

impl Tap {
    /// `fds` are for standard output (or the terminal) and standard error, as far as given.
    pub(super) fn new(connection: u64, stdin: bool, fds: Vec<OwnedFd>) -> Result<Self, ShimError> {
        for fd in &fds {
            fdpass::set_nonblocking(fd).map_err(ShimError::system("set up an attached output"))?;
        }
        let mut fds = fds.into_iter();
        let sinks = [fds.next(), fds.next()].map(|fd| Sink { fd, missed: 0 });
        Ok(Self {
            connection,
            stdin,
            sinks,
        })
    }

    /// Passes on what was read from stream `index`.
    pub(super) fn write(&mut self, index: usize, bytes: &[u8]) {
        self.sinks[index].write(bytes);
    }

    /// Ends stream `index`.
    pub(super) fn end(&mut self, index: usize) {
        let sink = &mut self.sinks[index];
        sink.tell();
        sink.fd = None;
    }
}

impl Sink {
    fn write(&mut self, bytes: &[u8]) {
        self.tell();
        let taken = match self.missed {
            0 => self.push(bytes),
            _ => 0,
        };
        self.missed += bytes.len().saturating_sub(taken) as u64;
    }

    /// Reports how much is missing, if there is room for that. Such a short text is taken whole or not at all.
    fn tell(&mut self) {
        if self.missed == 0 {
            return;
        }
        let text = format!(
            "\r\n[coracle: {} bytes were not read in time; `coracle logs` has them]\r\n",
            self.missed
        );
        if self.push(text.as_bytes()) == text.len() {
            self.missed = 0;
        }
    }

    /// The number of bytes taken.
    fn push(&mut self, bytes: &[u8]) -> usize {
        let mut taken = 0;
        while let (Some(fd), true) = (&self.fd, taken < bytes.len()) {
            match nix::unistd::write(fd.as_fd(), &bytes[taken..]) {
                Ok(count) => taken += count,
                Err(nix::Error::EINTR) => {}
                Err(nix::Error::EAGAIN) => break,
                // The client does not read any more.
                Err(_) => self.fd = None,
            }
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use nix::fcntl::{FcntlArg, fcntl};

    use super::*;

    #[test]
    fn a_slow_client_learns_how_much_it_missed_and_delays_nothing() {
        let (reader, writer) = nix::unistd::pipe().expect("a pipe");
        // 16 pages of the kernel.
        let room = fcntl(&writer, FcntlArg::F_GETPIPE_SZ).expect("a pipe has a size");
        let room = usize::try_from(room).expect("a size");
        let mut tap = Tap::new(1, false, vec![writer]).expect("made");
        let piece = [b'x'; 4096];
        for _ in 0..2 * room / piece.len() {
            tap.write(0, &piece);
        }
        let mut reader = std::fs::File::from(reader);
        let mut begin = vec![0; room];
        reader.read_exact(&mut begin).expect("a pipe holds so much");
        tap.write(0, b"later");
        tap.end(0);
        let mut rest = String::new();
        reader.read_to_string(&mut rest).expect("text");
        let note = format!("{room} bytes were not read in time; `coracle logs` has them");
        assert_eq!(rest, format!("\r\n[coracle: {note}]\r\nlater"));
    }

    #[test]
    fn a_client_that_has_gone_costs_nothing() {
        let (reader, writer) = nix::unistd::pipe().expect("a pipe");
        let mut tap = Tap::new(1, false, vec![writer]).expect("made");
        drop(reader);
        tap.write(0, b"into the void");
        tap.write(1, b"no such stream");
        assert!(tap.sinks[0].fd.is_none());
    }
}
