//! Netlink messages of the kernel's packet filter (the netfilter family): built, sent, received and parsed.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use netlink_sys::protocols::NETLINK_NETFILTER;
use netlink_sys::{Socket as RawSocket, SocketAddr};
use nix::sys::socket::{setsockopt, sockopt};

/// `struct nlmsghdr` and `struct nfgenmsg`.
const HEADER: usize = 16;
const GENERIC: usize = 4;
const REQUEST: u16 = 1;
const ACK: u16 = 4;
const DUMP: u16 = 0x300;
const ERROR: u16 = 2;
const DONE: u16 = 3;
/// Nested attributes and those in network byte order carry a mark in their type.
const TYPE: u16 = 0x3fff;
/// The kernel sends at most 32 KiB at a time.
const ROOM: usize = 64 << 10;
/// The buffer of a group's messages until they are read; memory is used only while it is full.
const WATCH_BUFFER: usize = 4 << 20;

/// One message, without its headers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// The subsystem of netfilter.
    pub subsystem: u8,
    /// The message type within that subsystem.
    pub kind: u8,
    /// Address family.
    pub family: u8,
    /// The sender's port: in most programs the process id.
    pub sender: u32,
    /// The attributes, unparsed.
    pub attributes: Vec<u8>,
}

impl Message {
    /// The first attribute of that type.
    pub fn attribute(&self, kind: u16) -> Option<&[u8]> {
        attribute(&self.attributes, kind)
    }
}

/// The first attribute of that type among these.
pub fn attribute(bytes: &[u8], kind: u16) -> Option<&[u8]> {
    let mut rest = bytes;
    while let Some((length, found)) = two_numbers(rest) {
        let value = rest.get(4..usize::from(length))?;
        if found & TYPE == kind {
            return Some(value);
        }
        rest = rest.get(aligned(usize::from(length))..)?;
    }
    None
}

/// Appends an attribute.
pub fn put(bytes: &mut Vec<u8>, kind: u16, value: &[u8]) {
    let length = u16::try_from(value.len() + 4).unwrap_or(u16::MAX);
    bytes.extend(length.to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(value);
    bytes.resize(aligned(bytes.len()), 0);
}

/// An attribute made of others.
pub const NESTED: u16 = 0x8000;

fn aligned(length: usize) -> usize {
    length.next_multiple_of(4)
}

fn two_numbers(bytes: &[u8]) -> Option<(u16, u16)> {
    let [a, b, c, d] = *bytes.first_chunk()?;
    Some((u16::from_ne_bytes([a, b]), u16::from_ne_bytes([c, d])))
}

/// A socket in the network namespace it was opened in.
#[derive(Debug)]
pub struct Socket {
    raw: RawSocket,
    buffer: Vec<u8>,
    sequence: u32,
}

impl Socket {
    /// For requests; they block.
    pub fn new() -> io::Result<Self> {
        let mut raw = RawSocket::new(NETLINK_NETFILTER)?;
        raw.bind_auto()?;
        raw.connect(&SocketAddr::new(0, 0))?;
        Ok(Self {
            raw,
            buffer: Vec::with_capacity(ROOM),
            sequence: 0,
        })
    }

    /// A socket for a group's messages; never blocks.
    pub fn listening(group: u32) -> io::Result<Self> {
        let socket = Self::new()?;
        socket.raw.set_non_blocking(true)?;
        // The default buffer overflows when a hundred pods start at once, and lost messages count as foreign
        // changes. Without the right to a larger one the default has to do.
        let _best_effort = setsockopt(&socket, sockopt::RcvBufForce, &WATCH_BUFFER);
        socket.raw.add_membership(group)?;
        Ok(socket)
    }

    /// The messages of one datagram.
    pub fn receive(&mut self) -> io::Result<Vec<Message>> {
        self.datagram()?;
        let mut found = Vec::new();
        each(&self.buffer, |part| {
            found.extend(part.message());
            true
        });
        Ok(found)
    }

    /// Requests a list and passes on each message.
    pub fn dump(
        &mut self,
        subsystem: u8,
        kind: u8,
        family: u8,
        mut take: impl FnMut(Message),
    ) -> io::Result<()> {
        self.send(subsystem, kind, DUMP, family, &[])?;
        loop {
            self.datagram()?;
            let mut end = None;
            each(&self.buffer, |part| {
                match part.kind {
                    DONE => end = Some(Ok(())),
                    ERROR => end = Some(part.error()),
                    _ => part.message().into_iter().for_each(&mut take),
                }
                end.is_none()
            });
            if let Some(result) = end {
                return result;
            }
        }
    }

    /// Sends a request and waits until it is done.
    pub fn request(
        &mut self,
        subsystem: u8,
        kind: u8,
        family: u8,
        attributes: &[u8],
    ) -> io::Result<()> {
        self.send(subsystem, kind, ACK, family, attributes)?;
        loop {
            self.datagram()?;
            let mut end = None;
            each(&self.buffer, |part| {
                if part.kind == ERROR {
                    end = Some(part.error());
                }
                end.is_none()
            });
            if let Some(result) = end {
                return result;
            }
        }
    }

    fn send(
        &mut self,
        subsystem: u8,
        kind: u8,
        flags: u16,
        family: u8,
        attributes: &[u8],
    ) -> io::Result<()> {
        self.sequence += 1;
        let length = u32::try_from(HEADER + GENERIC + attributes.len())
            .map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
        let mut bytes = Vec::with_capacity(HEADER + GENERIC + attributes.len());
        bytes.extend(length.to_ne_bytes());
        bytes.extend(u16::from_be_bytes([subsystem, kind]).to_ne_bytes());
        bytes.extend((REQUEST | flags).to_ne_bytes());
        bytes.extend(self.sequence.to_ne_bytes());
        bytes.extend([0; 4]);
        bytes.extend([family, 0, 0, 0]);
        bytes.extend(attributes);
        self.raw.send(&bytes, 0).map(drop)
    }

    fn datagram(&mut self) -> io::Result<()> {
        self.buffer.clear();
        self.raw.recv(&mut self.buffer, 0).map(drop)
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.raw.as_fd()
    }
}

struct Part<'b> {
    kind: u16,
    sender: u32,
    body: &'b [u8],
}

impl Part<'_> {
    fn message(&self) -> Option<Message> {
        let (generic, attributes) = self.body.split_at_checked(GENERIC)?;
        let [subsystem, kind] = self.kind.to_be_bytes();
        Some(Message {
            subsystem,
            kind,
            family: *generic.first()?,
            sender: self.sender,
            attributes: attributes.to_vec(),
        })
    }

    fn error(&self) -> io::Result<()> {
        match self
            .body
            .first_chunk()
            .map(|code| i32::from_ne_bytes(*code))
        {
            Some(0) => Ok(()),
            Some(code) => Err(io::Error::from_raw_os_error(code.saturating_neg())),
            None => Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

/// Walks through a datagram until `take` has enough.
fn each<'b>(mut bytes: &'b [u8], mut take: impl FnMut(Part<'b>) -> bool) {
    let number = |bytes: &[u8], at: usize| {
        let four = bytes.get(at..).and_then(|rest| rest.first_chunk());
        four.map_or(0, |four| u32::from_ne_bytes(*four))
    };
    while bytes.len() >= HEADER {
        let length = number(bytes, 0) as usize;
        let Some(body) = bytes.get(HEADER..length) else {
            return;
        };
        let kind = bytes
            .get(4..)
            .and_then(two_numbers)
            .map_or(0, |(kind, _)| kind);
        let sender = number(bytes, 12);
        if !take(Part { kind, sender, body }) {
            return;
        }
        bytes = bytes.get(aligned(length)..).unwrap_or_default();
    }
}
