//! A connection to the system bus: calls, properties and signals. Descriptors come with answers.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use smol::Async;
use smol::io::{AsyncReadExt, AsyncWriteExt};

use crate::sys::dbus::{self, Argument, Call, Kind, Message};
use crate::sys::fdpass;

/// The system bus.
pub const BUS: &str = "/run/dbus/system_bus_socket";

/// The timeout of a call.
pub const PATIENCE: Duration = Duration::from_secs(5);

/// Longest line of the greeting.
const MAX_LINE: usize = 1024;

/// Why the bus, or a service on it, could not be used.
#[derive(Debug, thiserror::Error)]
pub enum BusError {
    /// There is no bus, it has gone, or it does not answer in time.
    #[error("the system bus does not answer ({what})")]
    Silent {
        /// The operation.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// The call was refused.
    #[error("{what} was refused: {reason}")]
    Refused {
        /// The operation.
        what: &'static str,
        /// The error's name and text.
        reason: String,
    },
}

type Result<T, E = BusError> = std::result::Result<T, E>;

/// A connection.
#[derive(Debug)]
pub struct Bus {
    stream: Async<UnixStream>,
    serial: u32,
    /// The bytes of incomplete messages.
    bytes: Vec<u8>,
    /// The received descriptors, in the order of their messages.
    files: Vec<OwnedFd>,
    /// Signals that arrived while an answer was awaited.
    signals: Vec<Message>,
}

/// The path of the system bus; as with other programs, the environment can name another one.
pub fn path() -> PathBuf {
    let address = std::env::var("DBUS_SYSTEM_BUS_ADDRESS").unwrap_or_default();
    let path = address.strip_prefix("unix:path=");
    let path = path.and_then(|rest| rest.split([',', ';']).next());
    path.unwrap_or(BUS).into()
}

impl Bus {
    /// Connects to a bus, usually [`BUS`].
    ///
    /// # Errors
    /// Fails if there is no bus.
    pub async fn connect(bus: &Path) -> Result<Self> {
        let mut bus = Self {
            stream: in_time("connecting", greet(bus)).await?,
            serial: 0,
            bytes: Vec::new(),
            files: Vec::new(),
            signals: Vec::new(),
        };
        bus.bus("Hello", &[]).await?;
        Ok(bus)
    }

    /// Receives the signals of this rule from now on.
    ///
    /// # Errors
    /// Fails if the bus does not answer.
    pub async fn add_match(&mut self, rule: &str) -> Result<()> {
        self.bus("AddMatch", &[Argument::String(rule)]).await
    }

    /// A property, by its object (service and path) and its name (interface and property).
    ///
    /// # Errors
    /// Fails if the service does not answer.
    pub async fn property(
        &mut self,
        (destination, path): (&str, &str),
        (interface, name): (&str, &'static str),
    ) -> Result<Message> {
        let call = Call {
            destination,
            path,
            interface: "org.freedesktop.DBus.Properties",
            member: "Get",
        };
        let arguments = [interface, name].map(Argument::String);
        Ok(self.call(name, call, &arguments).await?.0)
    }

    /// Waits for the next signal. Cancelling the wait loses nothing.
    ///
    /// # Errors
    /// Fails if the bus has gone.
    pub async fn signal(&mut self) -> Result<Message> {
        loop {
            if !self.signals.is_empty() {
                return Ok(self.signals.remove(0));
            }
            let read = self.read().await;
            read.map_err(|source| BusError::Silent {
                what: "waiting",
                source,
            })?;
        }
    }

    async fn bus(&mut self, member: &'static str, arguments: &[Argument<'_>]) -> Result<()> {
        let call = Call {
            destination: "org.freedesktop.DBus",
            path: "/org/freedesktop/DBus",
            interface: "org.freedesktop.DBus",
            member,
        };
        self.call(member, call, arguments).await.map(drop)
    }

    /// Makes a call, and waits for the answer and its descriptors.
    ///
    /// # Errors
    /// Fails if there is no answer in time, or an error.
    pub async fn call(
        &mut self,
        what: &'static str,
        call: Call<'_>,
        arguments: &[Argument<'_>],
    ) -> Result<(Message, Vec<OwnedFd>)> {
        self.serial += 1;
        let bytes = dbus::call(self.serial, call, arguments);
        let answer = in_time(what, async {
            self.stream.write_all(&bytes).await?;
            loop {
                if let Some(answer) = self.read().await? {
                    return Ok(answer);
                }
            }
        });
        let (message, files) = answer.await?;
        match message.kind {
            Kind::Error => Err(BusError::Refused {
                what,
                reason: format!("{} {}", message.error, message.text().unwrap_or_default()),
            }),
            Kind::Call | Kind::Return | Kind::Signal | Kind::Other => Ok((message, files)),
        }
    }

    /// Takes the next message: keeps a signal, and returns the answer of the newest call.
    async fn read(&mut self) -> io::Result<Option<(Message, Vec<OwnedFd>)>> {
        loop {
            let whole = dbus::first(&self.bytes).map_err(io::Error::other)?;
            let Some((message, length)) = whole else {
                self.stream.readable().await?;
                let mut buffer = [0; 4096];
                let socket = self.stream.get_ref().as_fd();
                match fdpass::receive(socket, &mut buffer, &mut self.files) {
                    Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                    Ok(count) => self.bytes.extend(&buffer[..count]),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Err(error) => return Err(error),
                }
                continue;
            };
            self.bytes.drain(..length);
            let count = usize::try_from(message.files).unwrap_or(usize::MAX);
            let files = self.files.drain(..count.min(self.files.len())).collect();
            if message.kind == Kind::Signal {
                self.signals.push(message);
                return Ok(None);
            }
            if message.reply_to == self.serial {
                return Ok(Some((message, files)));
            }
        }
    }
}

/// Connects and authenticates with the credentials that the kernel attests.
async fn greet(bus: &Path) -> io::Result<Async<UnixStream>> {
    let mut stream = Async::<UnixStream>::connect(bus).await?;
    let uid = nix::unistd::geteuid().to_string();
    let uid: String = uid.bytes().map(|byte| format!("{byte:02x}")).collect();
    let hello = format!("\0AUTH EXTERNAL {uid}\r\n");
    for (say, expect) in [
        (hello.as_str(), "OK "),
        ("NEGOTIATE_UNIX_FD\r\n", "AGREE_UNIX_FD"),
    ] {
        stream.write_all(say.as_bytes()).await?;
        // Byte by byte: bytes after the greeting must stay in the socket.
        let mut line = Vec::new();
        while !line.ends_with(b"\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).await?;
            line.push(byte[0]);
            if line.len() > MAX_LINE {
                return Err(io::ErrorKind::InvalidData.into());
            }
        }
        if !line.starts_with(expect.as_bytes()) {
            let text = String::from_utf8_lossy(&line).trim().to_owned();
            return Err(io::Error::other(text));
        }
    }
    stream.write_all(b"BEGIN\r\n").await?;
    Ok(stream)
}

async fn in_time<T>(what: &'static str, work: impl Future<Output = io::Result<T>>) -> Result<T> {
    let late = async {
        smol::Timer::after(PATIENCE).await;
        Err(io::ErrorKind::TimedOut.into())
    };
    let done = smol::future::or(work, late).await;
    done.map_err(|source| BusError::Silent { what, source })
}

/// A bus of the tests.
#[cfg(test)]
#[path = "../../tests/common/bus.rs"]
pub(in crate::effects) mod fake;
