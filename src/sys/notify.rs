//! systemd's notification protocol (sd_notify(3)), by which a service reports its state to the service manager:
//! lines of text in datagrams.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::Path;

use nix::fcntl::{FcntlArg, FdFlag, fcntl};

use super::{fdpass, process};

/// The manager, if there is one.
#[derive(Debug)]
pub struct Manager {
    socket: UnixDatagram,
    /// The watchdog interval in milliseconds.
    pub watchdog_ms: Option<u64>,
    held: Vec<(String, OwnedFd)>,
}

/// Descriptors that the manager keeps while the service is down, and returns at its next start.
#[derive(Debug)]
pub struct Kept {
    socket: UnixDatagram,
    held: Vec<(String, OwnedFd)>,
}

impl Kept {
    /// Stores a descriptor with the manager, under a name. The manager drops a useless one (like the end of a pipe
    /// whose other end is closed) by itself.
    pub fn keep(&self, name: &str, file: BorrowedFd<'_>) -> io::Result<()> {
        let lines = format!("FDSTORE=1\nFDNAME={name}");
        fdpass::send(self.socket.as_fd(), lines.as_bytes(), &[file]).map(drop)
    }

    /// Removes all descriptors of a name from the manager's store.
    pub fn forget(&self, name: &str) -> io::Result<()> {
        let lines = format!("FDSTOREREMOVE=1\nFDNAME={name}");
        self.socket.send(lines.as_bytes()).map(drop)
    }

    /// The stored descriptors of a name.
    pub fn take(&mut self, name: &str) -> Option<OwnedFd> {
        let at = self.held.iter().position(|(n, _)| n == name)?;
        Some(self.held.swap_remove(at).1)
    }
}

impl Manager {
    /// The manager that started this process; `None` if there is none. Its variables are removed from the
    /// environment, because children must not see them. Before any thread exists.
    pub fn of_this_service() -> io::Result<Option<Self>> {
        let take = |name: &str| {
            let value = std::env::var_os(name);
            process::unset_env(name);
            value
        };
        let (address, interval) = (take("NOTIFY_SOCKET"), take("WATCHDOG_USEC"));
        let held = held(
            take("LISTEN_PID"),
            take("LISTEN_FDS"),
            take("LISTEN_FDNAMES"),
        );
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
            held,
        }))
    }

    /// The stored descriptors that the manager has returned to this process. To be called once.
    pub fn kept(&mut self) -> io::Result<Kept> {
        Ok(Kept {
            socket: self.socket.try_clone()?,
            held: std::mem::take(&mut self.held),
        })
    }

    /// Sends lines like `READY=1`.
    pub fn send(&self, lines: &str) -> io::Result<()> {
        self.socket.send(lines.as_bytes()).map(|_| ())
    }
}

/// The descriptors that this process was started with (sd_listen_fds(3)), by name; children do not get them.
fn held(
    pid: Option<OsString>,
    count: Option<OsString>,
    names: Option<OsString>,
) -> Vec<(String, OwnedFd)> {
    const FIRST: i32 = 3;
    let number = |text: Option<OsString>| text?.to_str()?.parse::<u32>().ok();
    if number(pid) != Some(std::process::id()) {
        return Vec::new();
    }
    let names = names.unwrap_or_default().to_string_lossy().into_owned();
    let count = number(count).unwrap_or(0).min(64);
    let own = |file: i32| {
        // SAFETY: borrowed for one call, which fails if it is not open.
        let borrowed = unsafe { BorrowedFd::borrow_raw(file) };
        fcntl(borrowed, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC)).ok()?;
        // SAFETY: it is open, was left to this process, and nothing else in it knows of it.
        Some(unsafe { OwnedFd::from_raw_fd(file) })
    };
    let files = (FIRST..).zip(0..count).map(|(file, _)| own(file));
    let named = names.split(':').map(str::to_owned).zip(files);
    named
        .filter_map(|(name, file)| Some((name, file?)))
        .collect()
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
                held: Vec::new(),
            };
            service.send("READY=1\nSTATUS=fine").unwrap();
            let mut received = [0; 64];
            let length = manager.recv(&mut received).unwrap();
            assert_eq!(&received[..length], b"READY=1\nSTATUS=fine");
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
