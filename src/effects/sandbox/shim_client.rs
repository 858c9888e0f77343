//! The agent's connection to a shim, one for each pod. Requests are answered in order; exits arrive in between.

use std::collections::VecDeque;
use std::io;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use smol::Async;
use smol::channel::{Sender, bounded};
use smol::io::{AsyncReadExt, AsyncWriteExt};

use super::SandboxError;
use crate::shim::protocol::{MAX_FRAME, Message, Reply, Request, VERSION};
use crate::sys::unix_socket;
use crate::types::Exit;

/// libcontainer has no timeouts: a shim that does not answer for this long counts as dead.
pub(super) const REQUEST_PATIENCE: Duration = Duration::from_secs(60);

/// The same for the greeting, which the agent's start waits for. A dead shim refuses the connection at once; a live one may
/// be late because of slow storage.
const HELLO_PATIENCE: Duration = Duration::from_secs(30);

/// An exit reported by the shim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exited {
    /// The container's name.
    pub container: String,
    /// The attempt number.
    pub attempt: u32,
    /// How it ended.
    pub exit: Exit,
}

/// The waiting requests, in order; `None` once the shim is gone.
type Waiters = Mutex<Option<VecDeque<Sender<Reply>>>>;

/// A connection to a shim. Cheap to clone; all clones share it.
#[derive(Debug, Clone)]
pub struct ShimClient {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    stream: Async<UnixStream>,
    sending: smol::lock::Mutex<()>,
    waiters: Waiters,
}

impl ShimClient {
    /// Connects. Answers arrive only while [`ShimClient::listen`] runs.
    pub fn connect(path: &Path) -> Result<Self, SandboxError> {
        let stream = unix_socket::connect(path)
            .and_then(Async::new)
            .map_err(|source| SandboxError::Shim {
                action: "connect to",
                source,
            })?;
        let waiters = Mutex::new(Some(VecDeque::new()));
        Ok(Self {
            shared: Arc::new(Shared {
                stream,
                sending: smol::lock::Mutex::new(()),
                waiters,
            }),
        })
    }

    /// Sends a request and waits for its answer.
    pub async fn request(&self, request: &Request) -> Result<Reply, SandboxError> {
        self.request_within(request, REQUEST_PATIENCE).await
    }

    /// Greets the shim. A live shim is at most in the middle of starting a container.
    pub async fn hello(&self) -> Result<Reply, SandboxError> {
        let hello = Request::Hello {
            version: VERSION,
            subscribe: true,
        };
        self.request_within(&hello, HELLO_PATIENCE).await
    }

    async fn request_within(
        &self,
        request: &Request,
        patience: Duration,
    ) -> Result<Reply, SandboxError> {
        let answer = async {
            let (sender, receiver) = bounded(1);
            {
                let _turn = self.shared.sending.lock().await;
                let frame = encode(request)?;
                match self
                    .shared
                    .waiters
                    .lock()
                    .expect("no panic holds this lock")
                    .as_mut()
                {
                    Some(waiters) => waiters.push_back(sender),
                    None => return Err(gone()),
                }
                let mut stream = &self.shared.stream;
                stream
                    .write_all(&frame)
                    .await
                    .map_err(|source| SandboxError::Shim {
                        action: "write to",
                        source,
                    })?;
            }
            receiver.recv().await.map_err(|_| gone())
        };
        let given_up = async {
            smol::Timer::after(patience).await;
            let source = io::Error::new(io::ErrorKind::TimedOut, "it does not answer");
            Err(SandboxError::Shim {
                action: "read from",
                source,
            })
        };
        smol::future::or(answer, given_up).await
    }

    /// Passes on answers and exits until the shim is gone.
    pub async fn listen(&self, exits: impl AsyncFn(Exited)) {
        let mut stream = &self.shared.stream;
        // Whatever ended the reading: without a readable connection this shim is lost.
        while let Ok(message) = read_message(&mut stream).await {
            match message {
                Message::Reply(reply) => {
                    let waiter = self
                        .shared
                        .waiters
                        .lock()
                        .expect("no panic holds this lock")
                        .as_mut()
                        .and_then(VecDeque::pop_front);
                    if let Some(waiter) = waiter {
                        let _ = waiter.try_send(reply);
                    }
                }
                Message::Exited {
                    container,
                    attempt,
                    exit,
                } => {
                    exits(Exited {
                        container,
                        attempt,
                        exit,
                    })
                    .await
                }
                Message::ExecExited { .. } | Message::KeptEnded(_) => {}
            }
        }
        self.shared
            .waiters
            .lock()
            .expect("no panic holds this lock")
            .take();
    }

    /// Ends the connection: `listen` returns, open requests fail.
    pub fn close(&self) {
        let _ = self
            .shared
            .stream
            .get_ref()
            .shutdown(std::net::Shutdown::Both);
    }
}

fn encode(request: &Request) -> Result<Vec<u8>, SandboxError> {
    let body = serde_json::to_vec(request).expect("requests are plain data");
    let length = u32::try_from(body.len())
        .ok()
        .filter(|_| body.len() <= MAX_FRAME)
        .ok_or_else(|| {
            let source = io::Error::new(
                io::ErrorKind::InvalidInput,
                "the request is larger than a frame",
            );
            SandboxError::Shim {
                action: "write to",
                source,
            }
        })?;
    let mut frame = length.to_be_bytes().to_vec();
    frame.extend_from_slice(&body);
    Ok(frame)
}

async fn read_message(stream: &mut &Async<UnixStream>) -> io::Result<Message> {
    let mut length = [0; 4];
    stream.read_exact(&mut length).await?;
    let length = usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX);
    if length > MAX_FRAME {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "frame too long"));
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await?;
    Ok(serde_json::from_slice(&body)?)
}

fn gone() -> SandboxError {
    SandboxError::Shim {
        action: "read from",
        source: io::Error::new(io::ErrorKind::BrokenPipe, "the shim is gone"),
    }
}
