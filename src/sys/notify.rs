//! How does a service manager hear how its service is? systemd's notification protocol (sd_notify(3)): lines of text in
//! datagrams.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::Path;

use super::process;

/// The manager, if it listens.
#[derive(Debug)]
pub struct Manager {
    socket: UnixDatagram,
    /// It wants to hear from the service at least so often, in milliseconds.
    pub watchdog_ms: Option<u64>,
}

impl Manager {
    /// The manager that started this process; `None` if there is none. What is said about it in the environment is
    /// taken out, for it is not meant for children. Before any thread exists.
    pub fn of_this_service() -> io::Result<Option<Self>> {
        let take = |name: &str| {
            let value = std::env::var_os(name);
            process::unset_env(name);
            value
        };
        let (address, interval) = (take("NOTIFY_SOCKET"), take("WATCHDOG_USEC"));
        let for_us = take("WATCHDOG_PID").is_none_or(|pid| {
            pid.to_str().and_then(|pid| pid.parse().ok()) == Some(std::process::id())
        });
        let Some(address) = address.filter(|address| !address.is_empty()) else {
            return Ok(None);
        };
        let microseconds = interval
            .as_deref()
            .and_then(OsStr::to_str)
            .and_then(|text| text.parse::<u64>().ok());
        let socket = UnixDatagram::unbound()?;
        socket.connect_addr(&socket_address(&address)?)?;
        socket.set_nonblocking(true)?;
        Ok(Some(Self {
            socket,
            watchdog_ms: microseconds.map(|us| us / 1000).filter(|_| for_us),
        }))
    }

    /// Says lines like `READY=1`.
    pub fn say(&self, lines: &str) -> io::Result<()> {
        self.socket.send(lines.as_bytes()).map(|_| ())
    }
}

/// `@name` stands for an abstract socket.
fn socket_address(text: &OsStr) -> io::Result<SocketAddr> {
    match text.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(Path::new(text)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_arrives_at_a_path_and_at_an_abstract_name() {
        let folder = std::env::temp_dir().join(format!("coracle-notify-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let path = folder.join("socket");
        let name = format!("@coracle-notify-{}", std::process::id());
        for text in [path.as_os_str(), OsStr::new(&name)] {
            let address = socket_address(text).unwrap();
            let manager = UnixDatagram::bind_addr(&address).unwrap();
            let socket = UnixDatagram::unbound().unwrap();
            socket.connect_addr(&address).unwrap();
            let service = Manager {
                socket,
                watchdog_ms: None,
            };
            service.say("READY=1\nSTATUS=fine").unwrap();
            let mut heard = [0; 64];
            let length = manager.recv(&mut heard).unwrap();
            assert_eq!(&heard[..length], b"READY=1\nSTATUS=fine");
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
