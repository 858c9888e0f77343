//! The name server's sockets: UDP and TCP on addresses of the bridge, on port 53, or all on another port if a name
//! server of the node has 53.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, SockaddrStorage, bind, listen, setsockopt, socket,
    sockopt,
};
use smol::Async;

/// Tried in this order, then any free port. Always the same, so that rules from before an agent restart stay valid.
const PORTS: [u16; 4] = [53, 1053, 10053, 20053];
/// How often a port that was free for the first socket may be taken for another.
const FREE_PORT_TRIES: usize = 8;
/// Connections waiting to be accepted.
const BACKLOG: i32 = 64;

/// Open sockets of the name server.
#[derive(Debug)]
pub struct Sockets {
    pub(super) udp: Vec<Arc<Async<UdpSocket>>>,
    pub(super) tcp: Vec<Async<TcpListener>>,
}

impl Sockets {
    /// Binds UDP and TCP on each address, which need not exist yet. If one of them is taken on port 53, all of them
    /// go to another port, which is returned: packets for port 53 must be redirected to it.
    ///
    /// While coracle has port 53 on any address, no other name server can start on all addresses of the node.
    pub fn bind(addresses: &[IpAddr]) -> io::Result<(Self, Option<u16>)> {
        Self::bind_first(addresses, &PORTS)
    }

    /// The same, but leaves port 53 to name servers that may start later. Always returns a port.
    pub fn bind_apart(addresses: &[IpAddr]) -> io::Result<(Self, Option<u16>)> {
        Self::bind_first(addresses, &PORTS[1..])
    }

    fn bind_first(addresses: &[IpAddr], ports: &[u16]) -> io::Result<(Self, Option<u16>)> {
        let mut failed = io::Error::from(io::ErrorKind::AddrInUse);
        for port in ports.iter().copied().chain([0; FREE_PORT_TRIES]) {
            match Self::bind_port(addresses, port) {
                Ok((sockets, bound)) => return Ok((sockets, (bound != PORTS[0]).then_some(bound))),
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => failed = error,
                Err(error) => return Err(error),
            }
        }
        Err(failed)
    }

    /// Port 0 stands for one that is free for the first socket.
    fn bind_port(addresses: &[IpAddr], mut port: u16) -> io::Result<(Self, u16)> {
        let (mut udp, mut tcp) = (Vec::new(), Vec::new());
        for address in addresses {
            let socket =
                UdpSocket::from(open(SocketAddr::new(*address, port), SockType::Datagram)?);
            port = socket.local_addr()?.port();
            udp.push(Arc::new(Async::new(socket)?));
            let socket = open(SocketAddr::new(*address, port), SockType::Stream)?;
            tcp.push(Async::new(TcpListener::from(socket))?);
        }
        Ok((Self { udp, tcp }, port))
    }
}

fn open(at: SocketAddr, kind: SockType) -> io::Result<OwnedFd> {
    let family = match at {
        SocketAddr::V4(_) => AddressFamily::Inet,
        SocketAddr::V6(_) => AddressFamily::Inet6,
    };
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket = socket(family, kind, flags, None)?;
    if at.is_ipv6() {
        setsockopt(&socket, sockopt::Ipv6V6Only, &true)?;
    }
    // A fresh IPv6 address cannot be bound for a second or two during its duplicate check; the bridge may even be
    // recreated under the socket.
    setsockopt(&socket, sockopt::IpFreebind, &true)?;
    if kind == SockType::Stream {
        // Connections closed before the agent restart must not keep the port. With UDP it would let two servers share
        // it.
        setsockopt(&socket, sockopt::ReuseAddr, &true)?;
    }
    bind_and_listen(&socket, at, kind)?;
    Ok(socket)
}

fn bind_and_listen(socket: &OwnedFd, at: SocketAddr, kind: SockType) -> io::Result<()> {
    use std::os::fd::AsRawFd;
    bind(socket.as_raw_fd(), &SockaddrStorage::from(at))?;
    if kind == SockType::Stream {
        listen(socket, Backlog::new(BACKLOG)?)?;
    }
    Ok(())
}
