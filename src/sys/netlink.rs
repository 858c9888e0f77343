//! Rtnetlink: requests, acknowledgements and dumps for links, addresses and routes over a blocking socket, and a
//! socket that receives changes.
//!
//! A socket belongs for ever to the network namespace its opening thread was in. Requests are built from typed
//! messages; answers are returned raw, so that those of a kernel newer than the message types stay readable.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr};

/// Length of a message's own header.
const HEADER_BYTES: usize = 16;
/// An acknowledgement, with an error number.
const TYPE_ERROR: u16 = 2;
/// The end of a dump.
const TYPE_DONE: u16 = 3;
/// The maximum number of restarts of a dump that was interrupted by changes.
const DUMP_ATTEMPTS: usize = 5;
/// Flag of a dump's part: it was interrupted.
const DUMP_DISTURBED: u16 = 0x10;

/// One message of a dump.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Raw {
    /// `RTM_*`.
    pub kind: u16,
    /// The bytes after the netlink header.
    pub body: Vec<u8>,
}

/// A request with its `NLM_F_*` flags beyond REQUEST and ACK.
pub type Request = (RouteNetlinkMessage, u16);

/// A socket for requests.
pub struct Netlink {
    socket: Socket,
    sequence: u32,
}

impl std::fmt::Debug for Netlink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Netlink").finish_non_exhaustive()
    }
}

impl Netlink {
    /// Opens one in the calling thread's network namespace.
    pub fn open() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind_auto()?;
        // An acknowledgement need not repeat the request.
        let _older_kernel = socket.set_cap_ack(true);
        Ok(Self {
            socket,
            sequence: 0,
        })
    }

    /// Sends all requests in one go; the kernel executes them in this order, also those after one that fails. One
    /// result each.
    pub fn batch(&mut self, requests: Vec<Request>) -> io::Result<Vec<io::Result<()>>> {
        let first = self.sequence.wrapping_add(1);
        let count = requests.len();
        let mut bytes = Vec::new();
        for (message, flags) in requests {
            self.append(&mut bytes, message, flags | NLM_F_ACK);
        }
        if count == 0 {
            return Ok(Vec::new());
        }
        self.socket.send_to(&bytes, &SocketAddr::new(0, 0), 0)?;
        let mut results: Vec<Option<io::Result<()>>> = (0..count).map(|_| None).collect();
        while results.iter().any(Option::is_none) {
            for (header, body) in self.receive()? {
                let index = header.sequence.wrapping_sub(first) as usize;
                if header.kind == TYPE_ERROR
                    && let Some(slot) = results.get_mut(index)
                {
                    *slot = Some(error_of(&body).map_or(Ok(()), Err));
                }
            }
        }
        Ok(results.into_iter().flatten().collect())
    }

    /// One request, acknowledged.
    pub fn request(&mut self, message: RouteNetlinkMessage, flags: u16) -> io::Result<()> {
        self.batch(vec![(message, flags)])?.pop().unwrap_or(Ok(()))
    }

    /// One request that is answered with one message.
    pub fn get(&mut self, message: RouteNetlinkMessage) -> io::Result<Raw> {
        let mut bytes = Vec::new();
        self.append(&mut bytes, message, 0);
        self.socket.send_to(&bytes, &SocketAddr::new(0, 0), 0)?;
        loop {
            for (header, body) in self.receive()? {
                if header.sequence != self.sequence {
                    continue;
                }
                if header.kind == TYPE_ERROR {
                    return Err(error_of(&body).unwrap_or_else(|| io::Error::other("no answer")));
                }
                let kind = header.kind;
                return Ok(Raw { kind, body });
            }
        }
    }

    /// All entries of a kind. The dump is restarted if something changed meanwhile, so that nothing is missing.
    pub fn dump(&mut self, message: RouteNetlinkMessage) -> io::Result<Vec<Raw>> {
        for _ in 0..DUMP_ATTEMPTS {
            if let Some(found) = self.dump_once(message.clone())? {
                return Ok(found);
            }
        }
        Err(io::ErrorKind::Interrupted.into())
    }

    fn dump_once(&mut self, message: RouteNetlinkMessage) -> io::Result<Option<Vec<Raw>>> {
        let mut bytes = Vec::new();
        self.append(&mut bytes, message, NLM_F_DUMP);
        self.socket.send_to(&bytes, &SocketAddr::new(0, 0), 0)?;
        let (mut found, mut disturbed) = (Vec::new(), false);
        loop {
            for (header, body) in self.receive()? {
                if header.sequence != self.sequence {
                    continue;
                }
                disturbed |= header.flags & DUMP_DISTURBED != 0;
                match header.kind {
                    TYPE_ERROR => {
                        return Err(error_of(&body).unwrap_or_else(|| io::Error::other("no dump")));
                    }
                    TYPE_DONE => return Ok((!disturbed).then_some(found)),
                    kind => found.push(Raw { kind, body }),
                }
            }
        }
    }

    fn append(&mut self, bytes: &mut Vec<u8>, message: RouteNetlinkMessage, flags: u16) {
        self.sequence = self.sequence.wrapping_add(1);
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST | flags;
        header.sequence_number = self.sequence;
        let mut message = NetlinkMessage::new(header, NetlinkPayload::from(message));
        message.finalize();
        let start = bytes.len();
        bytes.resize(start + message.buffer_len().next_multiple_of(4), 0);
        message.serialize(&mut bytes[start..]);
    }

    fn receive(&self) -> io::Result<Vec<(Header, Vec<u8>)>> {
        Ok(split(&self.socket.recv_from_full()?.0))
    }
}

/// What a netlink header says.
struct Header {
    kind: u16,
    flags: u16,
    sequence: u32,
}

/// The messages of one datagram; a truncated one is left out.
fn split(mut bytes: &[u8]) -> Vec<(Header, Vec<u8>)> {
    let mut messages = Vec::new();
    while bytes.len() >= HEADER_BYTES {
        let length = u32_at(bytes, 0) as usize;
        if length < HEADER_BYTES || length > bytes.len() {
            break;
        }
        let header = Header {
            kind: u16::from_ne_bytes([bytes[4], bytes[5]]),
            flags: u16::from_ne_bytes([bytes[6], bytes[7]]),
            sequence: u32_at(bytes, 8),
        };
        messages.push((header, bytes[HEADER_BYTES..length].to_vec()));
        bytes = &bytes[length.next_multiple_of(4).min(bytes.len())..];
    }
    messages
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// The error of an acknowledgement, if it is one.
fn error_of(body: &[u8]) -> Option<io::Error> {
    if body.len() < 4 {
        return Some(io::Error::other("an answer that is cut off"));
    }
    match i32::from_ne_bytes([body[0], body[1], body[2], body[3]]) {
        0 => None,
        code => Some(io::Error::from_raw_os_error(-code)),
    }
}

/// A socket that receives changes in the namespace it was opened in. Non-blocking, to be polled for reading.
pub struct Subscription {
    socket: Socket,
}

impl std::fmt::Debug for Subscription {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Subscription").finish_non_exhaustive()
    }
}

impl Subscription {
    /// `groups`: a mask of `RTMGRP_*`.
    pub fn open(groups: u32) -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind(&SocketAddr::new(0, groups))?;
        socket.set_non_blocking(true)?;
        Ok(Self { socket })
    }

    /// The kinds (`RTM_*`) of the next messages; `None` if there are none now. ENOBUFS: some were lost.
    pub fn receive(&self) -> io::Result<Option<Vec<u16>>> {
        match self.socket.recv_from_full() {
            Ok((bytes, _)) => Ok(Some(
                split(&bytes)
                    .into_iter()
                    .map(|(header, _)| header.kind)
                    .collect(),
            )),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl AsFd for Subscription {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
