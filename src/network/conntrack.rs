//! The kernel's connection tracking: its entries are listed, and stale ones deleted. A kernel that cannot list them
//! has none that matter.

use std::io;
use std::net::{IpAddr, SocketAddr};

use crate::sys::nfnetlink::{NESTED, Socket, attribute, put};

const SUBSYSTEM: u8 = 1;
const GET: u8 = 1;
const BOTH_FAMILIES: u8 = 0;
const DELETE: u8 = 2;
const ORIGINAL: u16 = 1;
const REPLY: u16 = 2;
const ID: u16 = 12;
const ZONE: u16 = 18;
/// The maximum number of connections deleted in one go.
const MAX: usize = 65_536;

/// A tracked connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Connection {
    /// Transport, by its number.
    pub protocol: u8,
    /// The destination address, as the client sent it.
    pub to: IpAddr,
    /// The destination port.
    pub port: u16,
    /// The source of the replies: another one if the destination was rewritten.
    pub answers_from: SocketAddr,
    family: u8,
    /// Its identity for the kernel.
    name: Vec<u8>,
}

/// Deletes the connections that `is_stale`; returns how many. Addresses of both families.
pub fn forget(is_stale: impl Fn(&Connection) -> bool) -> io::Result<usize> {
    let mut socket = Socket::new()?;
    let mut stale = Vec::new();
    let result = socket.dump(SUBSYSTEM, GET, BOTH_FAMILIES, |message| {
        let found = connection(message.family, &message.attributes);
        if stale.len() < MAX {
            stale.extend(found.filter(|found| is_stale(found)));
        }
    });
    match result {
        Err(error) if is_unable(&error) => return Ok(0),
        result => result?,
    }
    let mut count = 0;
    for found in &stale {
        match socket.request(SUBSYSTEM, DELETE, found.family, &found.name) {
            Ok(()) => count += 1,
            // Ended by itself meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(count)
}

/// The kernel has no connection tracking, or cannot list it.
fn is_unable(error: &io::Error) -> bool {
    [libc::EINVAL, libc::EOPNOTSUPP, libc::EPROTONOSUPPORT]
        .into_iter()
        .any(|code| error.raw_os_error() == Some(code))
}

fn connection(family: u8, attributes: &[u8]) -> Option<Connection> {
    let original = attribute(attributes, ORIGINAL)?;
    let (protocol, to, port) = tuple(original, Side::Destination)?;
    let (_, ip, from_port) = tuple(attribute(attributes, REPLY)?, Side::Source)?;
    let mut name = Vec::new();
    put(&mut name, ORIGINAL | NESTED, original);
    for kind in [ID, ZONE] {
        if let Some(value) = attribute(attributes, kind) {
            put(&mut name, kind, value);
        }
    }
    Some(Connection {
        protocol,
        to,
        port,
        answers_from: SocketAddr::new(ip, from_port),
        family,
        name,
    })
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Source,
    Destination,
}

/// Transport, and address and port of one side.
fn tuple(bytes: &[u8], side: Side) -> Option<(u8, IpAddr, u16)> {
    let (v4, v6, port) = match side {
        Side::Source => (1, 3, 2),
        Side::Destination => (2, 4, 3),
    };
    let (addresses, transport) = (attribute(bytes, 1)?, attribute(bytes, 2)?);
    let ip = match attribute(addresses, v4) {
        Some(ip) => IpAddr::from(<[u8; 4]>::try_from(ip).ok()?),
        None => IpAddr::from(<[u8; 16]>::try_from(attribute(addresses, v6)?).ok()?),
    };
    let protocol = *attribute(transport, 1)?.first()?;
    let port = attribute(transport, port).and_then(|port| port.first_chunk());
    Some((
        protocol,
        ip,
        port.map_or(0, |port| u16::from_be_bytes(*port)),
    ))
}

#[cfg(test)]
impl Connection {
    pub(super) fn for_test(protocol: u8, to: IpAddr, port: u16, answers_from: SocketAddr) -> Self {
        Self {
            protocol,
            to,
            port,
            answers_from,
            family: 0,
            name: Vec::new(),
        }
    }
}
