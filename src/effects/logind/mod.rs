//! The client of systemd-logind. At a shutdown logind notifies the holders of a delay lock and waits for them, up
//! to its `InhibitDelayMaxSec` (KEP-2000; KEP-2712; <https://systemd.io/INHIBITOR_LOCKS/>).

pub mod settings;

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub use super::bus::path as bus;
use super::bus::{Bus, BusError, PATIENCE};
use crate::sys::dbus::{Argument, Call, Message};
use crate::sys::file::{self, Durability};

/// The drop-in of logind settings that lasts until the next boot. Nothing of it stays when coracle is uninstalled,
/// and no flash is written.
pub const OVERRIDE: &str = "/run/systemd/logind.conf.d/99-coracle.conf";

/// The time that logind has to wait beyond the pods' time: for what is saved after the last pod.
pub const MARGIN: Duration = Duration::from_secs(1);

const SERVICE: &str = "org.freedesktop.login1";
const PATH: &str = "/org/freedesktop/login1";
const MANAGER: &str = "org.freedesktop.login1.Manager";

/// Why logind could not be used.
#[derive(Debug, thiserror::Error)]
pub enum LogindError {
    /// The system bus does not answer, or logind refuses.
    #[error(transparent)]
    Bus(#[from] BusError),
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
    bus: Bus,
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
        Err(BusError::Silent {
            what: "asking",
            source: io::ErrorKind::TimedOut.into(),
        }
        .into())
    };
    let asked = async { Logind::connect(bus).await?.delay_max().await };
    smol::future::or(asked, late).await
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
        let mut bus = Bus::connect(bus).await?;
        let shutdowns = format!(
            "type='signal',sender='{SERVICE}',path='{PATH}',interface='{MANAGER}',member='PrepareForShutdown'"
        );
        let owners = format!(
            "type='signal',sender='org.freedesktop.DBus',member='NameOwnerChanged',arg0='{SERVICE}'"
        );
        for rule in [shutdowns, owners] {
            bus.add_match(&rule).await?;
        }
        Ok(Self { bus })
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
        let (_, mut files) = self.bus.call("Inhibit", call, &arguments).await?;
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
        self.bus.call("KillUnit", call, &arguments).await?;
        Ok(())
    }

    /// Waits for the next notification. Cancelling the wait loses nothing.
    ///
    /// # Errors
    /// Fails if the bus has gone.
    pub async fn next(&mut self) -> Result<Notification> {
        loop {
            let signal = self.bus.signal().await?;
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
    }

    async fn property(&mut self, name: &'static str) -> Result<Message> {
        Ok(self.bus.property((SERVICE, PATH), (MANAGER, name)).await?)
    }
}

fn nonsense(what: &'static str) -> LogindError {
    LogindError::Bus(BusError::Silent {
        what,
        source: io::ErrorKind::InvalidData.into(),
    })
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
