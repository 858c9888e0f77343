//! Log entries with fields for systemd's journal. Its native protocol: one datagram an entry
//! (systemd.io/JOURNAL_NATIVE_PROTOCOL).

use std::io;
use std::os::unix::net::UnixDatagram;
use std::time::Duration;

/// The socket of the journal.
const SOCKET: &str = "/run/systemd/journal/socket";

/// How long an entry waits for room in the journal's queue.
const PATIENCE: Duration = Duration::from_secs(1);

/// Values are cut to this, so that an entry fits into a datagram.
const MAX_VALUE: usize = 16 * 1024;

/// A connection to the journal.
#[derive(Debug)]
pub struct Journal {
    socket: UnixDatagram,
}

impl Journal {
    /// The journal, if standard error goes there: only then are fields useful.
    pub fn behind_stderr() -> Option<Self> {
        let said = std::env::var("JOURNAL_STREAM").ok()?;
        let stat = nix::sys::stat::fstat(io::stderr()).ok()?;
        if said != format!("{}:{}", stat.st_dev, stat.st_ino) {
            return None;
        }
        let socket = UnixDatagram::unbound().ok()?;
        socket.connect(SOCKET).ok()?;
        // A journal that hangs must not block the agent.
        socket.set_write_timeout(Some(PATIENCE)).ok()?;
        Some(Self { socket })
    }

    /// Sends one entry.
    pub fn send(&self, entry: &Entry) -> io::Result<()> {
        self.socket.send(&entry.bytes).map(|_| ())
    }
}

/// An entry being built.
#[derive(Debug, Default)]
pub struct Entry {
    bytes: Vec<u8>,
}

impl Entry {
    /// Adds a field. `name`: capital letters, digits and `_`, a letter first.
    pub fn field(&mut self, name: &str, value: &str) {
        let mut end = value.len().min(MAX_VALUE);
        while !value.is_char_boundary(end) {
            end -= 1;
        }
        let value = &value[..end];
        self.bytes.extend_from_slice(name.as_bytes());
        if value.contains('\n') {
            self.bytes.push(b'\n');
            let length = u64::try_from(value.len()).unwrap_or(u64::MAX);
            self.bytes.extend_from_slice(&length.to_le_bytes());
        } else {
            self.bytes.push(b'=');
        }
        self.bytes.extend_from_slice(value.as_bytes());
        self.bytes.push(b'\n');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_of_several_lines_goes_with_its_length() {
        let mut entry = Entry::default();
        entry.field("PRIORITY", "4");
        entry.field("MESSAGE", "one\ntwo");
        let expected = b"PRIORITY=4\nMESSAGE\n\x07\0\0\0\0\0\0\0one\ntwo\n";
        assert_eq!(entry.bytes, expected);
    }

    #[test]
    fn a_long_value_is_cut_between_characters() {
        let mut entry = Entry::default();
        entry.field("A", &"é".repeat(MAX_VALUE));
        assert_eq!(entry.bytes.len(), "A=\n".len() + MAX_VALUE);
        let mut entry = Entry::default();
        entry.field("A", &format!("x{}", "é".repeat(MAX_VALUE)));
        assert!(std::str::from_utf8(&entry.bytes).is_ok());
    }
}
