//! The watch on coracle's tables. The kernel reports every change and the process that made it.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};

use super::Firewall;
use super::nft::OwnRuns;
use crate::sys::nfnetlink::{Message, Socket};

/// The kernel's group and subsystem for packet rules.
const GROUP: u32 = 7;
const SUBSYSTEM: u8 = 10;
/// In messages about tables, chains, rules, sets and elements alike: the name of the table.
const TABLE: u16 = 1;
/// The kinds of those messages: NFT_MSG_NEWTABLE to NFT_MSG_DELSETELEM without the one about generations.
const KINDS: std::ops::RangeInclusive<u8> = 0..=14;
/// Families of the two tables.
const INET: u8 = 1;
const BRIDGE: u8 = 7;
/// Datagrams at a time, so that a busy firewall cannot occupy the agent.
const AT_ONCE: usize = 1000;

/// Reports changes by other programs. Readable when there is something to [`Watch::drain`].
#[derive(Debug)]
pub struct Watch {
    socket: Socket,
    own: OwnRuns,
    table: String,
}

impl Firewall {
    /// Begins to watch the tables of that name in the caller's network namespace.
    pub fn watch(&self, bridge: &str) -> io::Result<Watch> {
        Ok(Watch {
            socket: Socket::listening(GROUP)?,
            own: self.own_runs().clone(),
            table: bridge.to_owned(),
        })
    }
}

impl Watch {
    /// Reads all pending messages. Returns whether another program changed or deleted something in the tables, or
    /// messages were lost.
    pub fn drain(&mut self) -> bool {
        let mut changed = false;
        for _ in 0..AT_ONCE {
            match self.socket.receive() {
                Ok(messages) => changed |= messages.iter().any(|m| self.is_foreign(m)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return changed,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // Lost messages (ENOBUFS), or a broken socket: both count as a change.
                Err(_) => changed = true,
            }
        }
        // Still readable: the rest is read next time, and checked for foreign changes then.
        changed
    }

    fn is_foreign(&self, message: &Message) -> bool {
        let name = || {
            message
                .attribute(TABLE)
                .map(|name| name.strip_suffix(&[0]).unwrap_or(name))
        };
        message.subsystem == SUBSYSTEM
            && KINDS.contains(&message.kind)
            && [INET, BRIDGE].contains(&message.family)
            && name() == Some(self.table.as_bytes())
            && !self.own.contains(message.sender)
    }
}

impl AsFd for Watch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl AsRawFd for Watch {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_fd().as_raw_fd()
    }
}
