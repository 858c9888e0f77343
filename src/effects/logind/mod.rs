//! The client of systemd-logind. At a shutdown logind notifies the holders of a delay lock and waits for them, up
//! to its `InhibitDelayMaxSec` (KEP-2000; KEP-2712; <https://systemd.io/INHIBITOR_LOCKS/>).

pub mod settings;

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use smol::Async;
use smol::io::{AsyncReadExt, AsyncWriteExt};

use crate::sys::dbus::{self, Argument, Call, Kind, Message};
use crate::sys::fdpass;
use crate::sys::file::{self, Durability};

/// The drop-in of logind settings that lasts until the next boot. Nothing of it stays when coracle is uninstalled,
/// and no flash is written.
pub const OVERRIDE: &str = "/run/systemd/logind.conf.d/99-coracle.conf";

/// The system bus.
pub const BUS: &str = "/run/dbus/system_bus_socket";

/// The time that logind has to wait beyond the pods' time: for what is saved after the last pod.
pub const MARGIN: Duration = Duration::from_secs(1);

const SERVICE: &str = "org.freedesktop.login1";
const PATH: &str = "/org/freedesktop/login1";
const MANAGER: &str = "org.freedesktop.login1.Manager";

/// The timeout of a call.
const PATIENCE: Duration = Duration::from_secs(5);

/// Longest line of the greeting.
const MAX_LINE: usize = 1024;

/// Why logind could not be used.
#[derive(Debug, thiserror::Error)]
pub enum LogindError {
    /// There is no bus, it has gone, or it does not answer in time.
    #[error("the system bus does not answer ({what})")]
    Bus {
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
    /// The setting could not be written.
    #[error("could not write `{}`", path.display())]
    Override {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

type Result<T, E = LogindError> = std::result::Result<T, E>;

/// A connection to logind.
#[derive(Debug)]
pub struct Logind {
    stream: Async<UnixStream>,
    serial: u32,
    /// The bytes of incomplete messages.
    bytes: Vec<u8>,
    /// The received descriptors, in the order of their messages.
    files: Vec<OwnedFd>,
    /// Signals that arrived while an answer was awaited.
    signals: Vec<Message>,
}

/// A notification of logind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Notification {
    /// The machine goes down (`true`), or stays up after all.
    Preparing(bool),
    /// logind has restarted or ended: locks have to be taken again.
    Changed,
}

/// logind's current limit for delay locks, asked over a connection of its own.
///
/// # Errors
/// Fails if there is no bus, or no logind on it.
pub async fn delay_max(bus: &Path) -> Result<Duration> {
    let late = async {
        smol::Timer::after(PATIENCE).await;
        Err(LogindError::Bus {
            what: "asking",
            source: io::ErrorKind::TimedOut.into(),
        })
    };
    let asked = async { Logind::connect(bus).await?.delay_max().await };
    smol::future::or(asked, late).await
}

/// The path of the system bus; as with other programs, the environment can name another one.
pub fn bus() -> PathBuf {
    let address = std::env::var("DBUS_SYSTEM_BUS_ADDRESS").unwrap_or_default();
    let path = address.strip_prefix("unix:path=");
    let path = path.and_then(|rest| rest.split([',', ';']).next());
    path.unwrap_or(BUS).into()
}

/// Whether logind waits long enough for pods that need `total` to stop.
pub fn enough(waits: Duration, total: Duration) -> bool {
    waits >= total.saturating_add(MARGIN)
}

impl Logind {
    /// Connects to a bus, usually [`BUS`], and receives shutdown signals from now on.
    ///
    /// # Errors
    /// Fails if there is no bus.
    pub async fn connect(bus: &Path) -> Result<Self> {
        let greeted = in_time("connecting", greet(bus)).await?;
        let mut logind = Self {
            stream: greeted,
            serial: 0,
            bytes: Vec::new(),
            files: Vec::new(),
            signals: Vec::new(),
        };
        logind.bus("Hello", &[]).await?;
        let shutdowns = format!(
            "type='signal',sender='{SERVICE}',path='{PATH}',interface='{MANAGER}',member='PrepareForShutdown'"
        );
        let owners = format!(
            "type='signal',sender='org.freedesktop.DBus',member='NameOwnerChanged',arg0='{SERVICE}'"
        );
        for rule in [shutdowns, owners] {
            logind.bus("AddMatch", &[Argument::String(&rule)]).await?;
        }
        Ok(logind)
    }

    /// logind's limit for delay locks, as logind itself reports it.
    ///
    /// # Errors
    /// Fails if logind does not answer.
    pub async fn delay_max(&mut self) -> Result<Duration> {
        let what = "InhibitDelayMaxUSec";
        let value = self.property(what).await?.property_number();
        let us = value.ok_or_else(|| nonsense(what))?;
        Ok(Duration::from_micros(us))
    }

    /// Whether a shutdown has begun and is being held up.
    ///
    /// # Errors
    /// Fails if logind does not answer.
    pub async fn preparing(&mut self) -> Result<bool> {
        let what = "PreparingForShutdown";
        let value = self.property(what).await?.property_truth();
        value.ok_or_else(|| nonsense(what))
    }

    /// Takes a delay lock; it is held until all copies of the descriptor are closed.
    ///
    /// # Errors
    /// Fails if logind does not answer, or refuses because a shutdown has begun.
    pub async fn inhibit(&mut self, who: &str, why: &str) -> Result<OwnedFd> {
        let arguments = ["shutdown", who, why, "delay"].map(Argument::String);
        let call = Call {
            destination: SERVICE,
            path: PATH,
            interface: MANAGER,
            member: "Inhibit",
        };
        let (_, mut files) = self.call("Inhibit", call, &arguments).await?;
        files.pop().ok_or_else(|| nonsense("Inhibit"))
    }

    /// Makes logind wait up to `seconds`, by writing [`OVERRIDE`] and reloading logind. The result is known only
    /// from [`Self::delay_max`]: another file may win, and the reload takes a moment.
    ///
    /// # Errors
    /// Fails if the file cannot be written, or the service manager does not answer.
    pub async fn raise_delay(&mut self, seconds: u64) -> Result<()> {
        write_override(Path::new(OVERRIDE), seconds)?;
        const HANGUP: i32 = 1;
        let arguments = [
            Argument::String("systemd-logind.service"),
            Argument::String("all"),
            Argument::Int32(HANGUP),
        ];
        let call = Call {
            destination: "org.freedesktop.systemd1",
            path: "/org/freedesktop/systemd1",
            interface: "org.freedesktop.systemd1.Manager",
            member: "KillUnit",
        };
        self.call("KillUnit", call, &arguments).await.map(drop)
    }

    /// Waits for the next notification. Cancelling the wait loses nothing.
    ///
    /// # Errors
    /// Fails if the bus has gone.
    pub async fn next(&mut self) -> Result<Notification> {
        loop {
            while !self.signals.is_empty() {
                let signal = self.signals.remove(0);
                match signal.member.as_str() {
                    "PrepareForShutdown" if signal.interface == MANAGER => {
                        if let Some(begins) = signal.truth() {
                            return Ok(Notification::Preparing(begins));
                        }
                    }
                    "NameOwnerChanged" => return Ok(Notification::Changed),
                    _ => {}
                }
            }
            let read = self.read().await;
            read.map_err(|source| LogindError::Bus {
                what: "waiting",
                source,
            })?;
        }
    }

    async fn property(&mut self, name: &'static str) -> Result<Message> {
        let call = Call {
            destination: SERVICE,
            path: PATH,
            interface: "org.freedesktop.DBus.Properties",
            member: "Get",
        };
        let arguments = [MANAGER, name].map(Argument::String);
        Ok(self.call(name, call, &arguments).await?.0)
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
    async fn call(
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
            Kind::Error => Err(LogindError::Refused {
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
    done.map_err(|source| LogindError::Bus { what, source })
}

fn nonsense(what: &'static str) -> LogindError {
    LogindError::Bus {
        what,
        source: io::ErrorKind::InvalidData.into(),
    }
}

fn write_override(path: &Path, seconds: u64) -> Result<()> {
    let text = format!(
        "# Written by coracle: its pods need that long to stop.\n[Login]\nInhibitDelayMaxSec={seconds}\n"
    );
    let failed = |source| LogindError::Override {
        path: path.to_owned(),
        source,
    };
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).map_err(failed)?;
    }
    file::replace(path, text.as_bytes(), 0o644, Durability::Process).map_err(failed)
}

#[cfg(test)]
#[path = "logind_test.rs"]
mod tests;
