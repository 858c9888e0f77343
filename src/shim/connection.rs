//! One agent's connection: a byte stream that never blocks. A peer that does not read is dropped. A peer that shuts
//! down its writing side counts as gone, and its program is killed.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use super::frame::{self, FrameError};
use super::protocol::{Message, Request};
use crate::sys::fdpass;

/// The maximum of unsent bytes before a peer counts as gone.
const MOST_UNSENT: usize = 1 << 20;

/// The maximum of open files that a peer may send ahead of its request.
const MOST_FDS: usize = 8;

/// A connection, identified by a number that is never reused.
pub(super) struct Connection {
    pub(super) number: u64,
    stream: UnixStream,
    input: Vec<u8>,
    output: Vec<u8>,
    /// Goes with the first byte of `output`.
    passing: Option<OwnedFd>,
    pub(super) fds: Vec<OwnedFd>,
    pub(super) subscribed: bool,
    pub(super) closed: bool,
}

impl Connection {
    pub(super) fn new(number: u64, stream: UnixStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self {
            number,
            stream,
            input: Vec::new(),
            output: Vec::new(),
            passing: None,
            fds: Vec::new(),
            subscribed: false,
            closed: false,
        })
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    pub(super) fn has_output(&self) -> bool {
        !self.output.is_empty()
    }

    /// Reads the available bytes.
    pub(super) fn fill(&mut self) {
        let mut buffer = [0; 4096];
        loop {
            match fdpass::receive(self.stream.as_fd(), &mut buffer, &mut self.fds) {
                Ok(0) => self.closed = true,
                Ok(count) => {
                    self.input.extend_from_slice(&buffer[..count]);
                    self.closed |= self.fds.len() > MOST_FDS;
                    if count == buffer.len() && self.input.len() <= super::protocol::MAX_FRAME {
                        continue;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) => self.closed = true,
            }
            return;
        }
    }

    /// The next complete request.
    pub(super) fn next(&mut self) -> Result<Option<Request>, FrameError> {
        frame::decode(&mut self.input)
    }

    /// Sends a message, with an open file if given, as far as the peer accepts it now.
    pub(super) fn send(&mut self, message: &Message, fd: Option<OwnedFd>) {
        let Ok(bytes) = frame::encode(message) else {
            self.closed = true;
            return;
        };
        if fd.is_some() {
            // The file must travel with this message's first byte.
            self.flush();
            if self.has_output() {
                self.closed = true;
                return;
            }
            self.passing = fd;
        }
        self.output.extend_from_slice(&bytes);
        self.flush();
        self.closed |= self.output.len() > MOST_UNSENT;
    }

    pub(super) fn flush(&mut self) {
        while !self.output.is_empty() {
            let fds: Vec<BorrowedFd<'_>> = self.passing.iter().map(AsFd::as_fd).collect();
            match fdpass::send(self.stream.as_fd(), &self.output, &fds) {
                Ok(count) => {
                    self.passing = None;
                    self.output.drain(..count);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => {
                    self.closed = true;
                    self.output.clear();
                }
            }
        }
        self.output = Vec::new();
    }
}
