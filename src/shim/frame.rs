//! Frames: messages in a byte stream. Four bytes of length, big-endian, then JSON. Shared by the shim, the agent
//! and the blocking [`Client`].

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::protocol::{MAX_FRAME, Message, Reply, Request, VERSION};
use crate::sys::fdpass;

/// Why a frame could not be read.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// The length is over [`MAX_FRAME`].
    #[error("frame of {0} bytes is over the limit of {MAX_FRAME}")]
    TooLong(usize),
    /// The content is not the expected message.
    #[error("frame is not a valid message")]
    Json(#[from] serde_json::Error),
    /// The stream failed.
    #[error("connection failed")]
    Io(#[from] io::Error),
    /// The stream ended.
    #[error("connection closed")]
    Closed,
}

/// Encodes a message.
pub fn encode(message: &impl Serialize) -> Result<Vec<u8>, FrameError> {
    let mut bytes = vec![0; 4];
    serde_json::to_writer(&mut bytes, message)?;
    let length = bytes.len() - 4;
    let prefix = u32::try_from(length).map_err(|_| FrameError::TooLong(length))?;
    if length > MAX_FRAME {
        return Err(FrameError::TooLong(length));
    }
    bytes[..4].copy_from_slice(&prefix.to_be_bytes());
    Ok(bytes)
}

/// Removes one message from the front of `bytes`, if a complete one is there.
pub fn decode<T: DeserializeOwned>(bytes: &mut Vec<u8>) -> Result<Option<T>, FrameError> {
    let Some(prefix) = bytes.first_chunk::<4>() else {
        return Ok(None);
    };
    let length = u32::from_be_bytes(*prefix) as usize;
    if length > MAX_FRAME {
        return Err(FrameError::TooLong(length));
    }
    let Some(body) = bytes.get(4..4 + length) else {
        return Ok(None);
    };
    let message = serde_json::from_slice(body)?;
    bytes.drain(..4 + length);
    if bytes.is_empty() {
        *bytes = Vec::new();
    }
    Ok(Some(message))
}

/// A blocking connection to a shim.
#[derive(Debug)]
pub struct Client {
    stream: UnixStream,
    bytes: Vec<u8>,
    fds: Vec<OwnedFd>,
}

impl Client {
    /// Connects; reads and writes fail after `timeout`.
    pub fn connect(socket: &Path, timeout: Duration) -> Result<Self, FrameError> {
        let stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(timeout))?;
        stream.set_write_timeout(Some(timeout))?;
        Ok(Self {
            stream,
            bytes: Vec::new(),
            fds: Vec::new(),
        })
    }

    /// Says hello; the answer is a [`Reply::Hello`].
    pub fn hello(&mut self, subscribe: bool) -> Result<Reply, FrameError> {
        self.call(&Request::Hello {
            version: VERSION,
            subscribe,
        })
    }

    /// Sends a request, with open files on its first byte.
    pub fn send(&mut self, request: &Request, fds: &[BorrowedFd<'_>]) -> Result<(), FrameError> {
        let bytes = encode(request)?;
        let mut sent = fdpass::send(self.stream.as_fd(), &bytes, fds)?;
        while sent < bytes.len() {
            sent += fdpass::send(self.stream.as_fd(), &bytes[sent..], &[])?;
        }
        Ok(())
    }

    /// Sends a request and waits for its reply; exits reported in between are dropped.
    pub fn call(&mut self, request: &Request) -> Result<Reply, FrameError> {
        self.send(request, &[])?;
        loop {
            if let Message::Reply(reply) = self.receive()? {
                return Ok(reply);
            }
        }
    }

    /// Waits for the next message.
    pub fn receive(&mut self) -> Result<Message, FrameError> {
        loop {
            if let Some(message) = decode(&mut self.bytes)? {
                return Ok(message);
            }
            let mut buffer = [0; 4096];
            match fdpass::receive(self.stream.as_fd(), &mut buffer, &mut self.fds) {
                Ok(0) => return Err(FrameError::Closed),
                Ok(count) => self.bytes.extend_from_slice(&buffer[..count]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// The files received so far.
    pub fn take_fds(&mut self) -> Vec<OwnedFd> {
        std::mem::take(&mut self.fds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_come_out_as_they_went_in_however_the_bytes_are_cut() {
        let one = Request::Shutdown;
        let two = Request::Hello {
            version: 1,
            subscribe: true,
        };
        let mut stream = encode(&one).unwrap();
        stream.extend(encode(&two).unwrap());
        let mut bytes = Vec::new();
        let mut found: Vec<Request> = Vec::new();
        for byte in stream {
            bytes.push(byte);
            while let Some(request) = decode(&mut bytes).unwrap() {
                found.push(request);
            }
        }
        assert_eq!(found, [one, two]);
        assert!(bytes.is_empty());
    }

    #[test]
    fn a_frame_over_the_limit_is_refused_before_its_body_comes() {
        let mut bytes = u32::try_from(MAX_FRAME + 1).unwrap().to_be_bytes().to_vec();
        assert!(matches!(
            decode::<Request>(&mut bytes),
            Err(FrameError::TooLong(_))
        ));
    }
}
