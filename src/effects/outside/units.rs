//! The states of systemd's units, over D-Bus (`org.freedesktop.systemd1(5)`).

use std::path::Path;

use crate::effects::bus::{Bus, BusError};
use crate::sys::dbus::Call;

const SERVICE: &str = "org.freedesktop.systemd1";
const PATH: &str = "/org/freedesktop/systemd1";
const UNIT: &str = "org.freedesktop.systemd1.Unit";

/// How a unit is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnitState {
    /// As `systemctl is-active` says it.
    Active,
    /// systemd has the unit, and it is not active.
    Inactive,
    /// systemd has no unit of that name.
    NotFound,
}

/// A connection to systemd that reports changes of some units.
#[derive(Debug)]
pub struct Units {
    bus: Bus,
    names: Vec<String>,
}

impl Units {
    /// Connects to a bus and reports changes of these units from now on.
    ///
    /// # Errors
    /// Fails if there is no bus, or no systemd on it.
    pub async fn connect(bus: &Path, names: Vec<String>) -> Result<Self, BusError> {
        let mut bus = Bus::connect(bus).await?;
        for name in &names {
            let path = object(name);
            let rule = format!(
                "type='signal',sender='{SERVICE}',path='{path}',\
                 interface='org.freedesktop.DBus.Properties',member='PropertiesChanged'"
            );
            bus.add_match(&rule).await?;
        }
        let owner = format!(
            "type='signal',sender='org.freedesktop.DBus',member='NameOwnerChanged',arg0='{SERVICE}'"
        );
        bus.add_match(&owner).await?;
        let mut units = Self { bus, names };
        units.subscribe().await?;
        Ok(units)
    }

    /// systemd sends signals only while a client has subscribed.
    async fn subscribe(&mut self) -> Result<(), BusError> {
        let call = Call {
            destination: SERVICE,
            path: PATH,
            interface: "org.freedesktop.systemd1.Manager",
            member: "Subscribe",
        };
        self.bus.call("Subscribe", call, &[]).await.map(drop)
    }

    /// The states of the units, in the order of their names.
    ///
    /// # Errors
    /// Fails if systemd does not answer.
    pub async fn states(&mut self) -> Result<Vec<UnitState>, BusError> {
        let mut states = Vec::new();
        for name in self.names.clone() {
            let path = object(&name);
            let active = self.text(&path, "ActiveState").await?;
            states.push(match active.as_str() {
                "active" | "reloading" | "refreshing" => UnitState::Active,
                _ if self.text(&path, "LoadState").await? == "not-found" => UnitState::NotFound,
                _ => UnitState::Inactive,
            });
        }
        Ok(states)
    }

    async fn text(&mut self, path: &str, name: &'static str) -> Result<String, BusError> {
        let message = self.bus.property((SERVICE, path), (UNIT, name)).await?;
        message.property_text().ok_or(BusError::Silent {
            what: name,
            source: std::io::ErrorKind::InvalidData.into(),
        })
    }

    /// Waits until a unit may have changed. Cancelling the wait loses nothing.
    ///
    /// # Errors
    /// Fails if the bus or systemd has gone.
    pub async fn changed(&mut self) -> Result<(), BusError> {
        let signal = self.bus.signal().await?;
        match signal.member.as_str() {
            "NameOwnerChanged" => Err(BusError::Silent {
                what: "waiting",
                source: std::io::ErrorKind::ConnectionReset.into(),
            }),
            _ => Ok(()),
        }
    }
}

/// The path of a unit's object: all but letters and digits is written in hexadecimal.
fn object(name: &str) -> String {
    let mut path = format!("{PATH}/unit/");
    for (index, byte) in name.bytes().enumerate() {
        let plain = byte.is_ascii_alphabetic() || byte.is_ascii_digit() && index > 0;
        match plain {
            true => path.push(char::from(byte)),
            false => path.push_str(&format!("_{byte:02x}")),
        }
    }
    path
}

#[cfg(test)]
#[path = "units_test.rs"]
mod tests;
