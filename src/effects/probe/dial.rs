//! Connections of probes, with Go's error texts.
//!
//! The kubelet sets SO_LINGER to one second, so that an unanswered close is dropped after that. Here SO_LINGER
//! would hold the agent's only thread in `close`; TCP_USER_TIMEOUT has the same effect without blocking.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::AsRawFd;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, SockFlag, SockProtocol, SockType, SockaddrStorage, setsockopt, socket, sockopt,
};
use smol::Async;
use smol::io::{AsyncRead, AsyncWrite};

/// The maximum number of concurrent name lookups; a hanging name server holds each thread for long.
const MAX_LOOKUPS: usize = 16;

static LOOKUPS: AtomicUsize = AtomicUsize::new(0);

/// The maximum read from one connection: far more than a valid answer, so that a server cannot keep the agent busy
/// with endless frames or interim answers.
const ANSWER_BYTES: usize = 256 << 10;

/// A connection with a limit on what is read.
#[derive(Debug)]
pub(super) struct Connection {
    stream: Async<TcpStream>,
    left: usize,
}

impl Connection {
    /// The addresses of both ends.
    pub(super) fn ends(&self) -> Option<(SocketAddr, SocketAddr)> {
        let stream = self.stream.get_ref();
        Some((stream.local_addr().ok()?, stream.peer_addr().ok()?))
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        if self.left == 0 {
            let text = format!("the answer is longer than {ANSWER_BYTES} bytes");
            return Poll::Ready(Err(io::Error::other(text)));
        }
        let room = buffer.len().min(self.left);
        let read = Pin::new(&mut self.stream).poll_read(context, &mut buffer[..room]);
        if let Poll::Ready(Ok(length)) = read {
            self.left -= length;
        }
        read
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_close(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_close(context)
    }
}

/// The result of a lookup or connection.
#[derive(Debug)]
pub(super) enum DialError {
    /// The other side's failure, in Go's words.
    Refused(String),
    /// A failure of the node itself.
    Own(String),
}

/// Connects to a host by name or address. The kernel and the name server set the timeouts.
pub(super) async fn dial(
    host: &str,
    port: u16,
    timeout: Duration,
) -> Result<Connection, DialError> {
    let ips = match host.parse() {
        Ok(ip) => vec![ip],
        Err(_) => look_up(host).await?,
    };
    let mut failed = DialError::Refused(format!("dial tcp: lookup {host}: no such host"));
    for ip in ips {
        let address = SocketAddr::new(ip, port);
        match connect(address).await {
            Ok(stream) => {
                let ms = timeout.max(Duration::from_secs(1)).as_millis();
                // Without it, the kernel's own timeout applies.
                let ms = u32::try_from(ms).unwrap_or(u32::MAX);
                let _ = setsockopt(&stream, sockopt::TcpUserTimeout, &ms);
                let _ = stream.get_ref().set_nodelay(true);
                return Ok(Connection {
                    stream,
                    left: ANSWER_BYTES,
                });
            }
            Err(error) => failed = refused(address, &error),
        }
    }
    Err(failed)
}

/// Like `Async::connect`, but a connection that is made at once, as to a pod of this machine, is not awaited.
async fn connect(address: SocketAddr) -> io::Result<Async<TcpStream>> {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::Inet,
        SocketAddr::V6(_) => AddressFamily::Inet6,
    };
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket = socket(family, SockType::Stream, flags, SockProtocol::Tcp)?;
    match nix::sys::socket::connect(socket.as_raw_fd(), &SockaddrStorage::from(address)) {
        Ok(()) | Err(Errno::EINPROGRESS) => {}
        Err(error) => return Err(error.into()),
    }
    let stream = TcpStream::from(socket);
    let connected = stream.peer_addr().is_ok();
    let stream = Async::new_nonblocking(stream)?;
    if !connected {
        stream.writable().await?;
        if let Some(error) = stream.get_ref().take_error()? {
            return Err(error);
        }
    }
    Ok(stream)
}

fn refused(address: SocketAddr, error: &io::Error) -> DialError {
    let text = go_text(error);
    match error.raw_os_error().map(Errno::from_raw) {
        Some(Errno::EMFILE | Errno::ENFILE | Errno::ENOBUFS | Errno::ENOMEM) => {
            DialError::Own(format!("dial tcp {address}: socket: {text}"))
        }
        _ => DialError::Refused(format!("dial tcp {address}: connect: {text}")),
    }
}

/// Asks the node's resolver on a thread of its own: libc has no other way.
async fn look_up(host: &str) -> Result<Vec<IpAddr>, DialError> {
    let unfound = || DialError::Refused(format!("dial tcp: lookup {host}: no such host"));
    if LOOKUPS.fetch_add(1, Ordering::Relaxed) >= MAX_LOOKUPS {
        LOOKUPS.fetch_sub(1, Ordering::Relaxed);
        return Err(DialError::Own(format!(
            "dial tcp: lookup {host}: too many lookups at a time"
        )));
    }
    let (sender, receiver) = smol::channel::bounded(1);
    let asked = (host.to_owned(), 0);
    let thread = std::thread::Builder::new().name("look up".to_owned());
    let started = thread.spawn(move || {
        let found = asked.to_socket_addrs();
        let _ = sender.try_send(found.map(|all| all.map(|one| one.ip()).collect()));
        LOOKUPS.fetch_sub(1, Ordering::Relaxed);
    });
    if let Err(error) = started {
        LOOKUPS.fetch_sub(1, Ordering::Relaxed);
        return Err(DialError::Own(error.to_string()));
    }
    match receiver.recv().await {
        Ok(Ok(ips)) => Ok(ips),
        Ok(Err(_)) | Err(_) => Err(unfound()),
    }
}

/// An error of the system as Go writes it: `connection refused`.
pub(super) fn go_text(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(number) => {
            let text = Errno::from_raw(number).desc();
            let mut letters = text.chars();
            letters.next().map_or_else(String::new, |first| {
                first.to_lowercase().chain(letters).collect()
            })
        }
        None if error.kind() == io::ErrorKind::UnexpectedEof => "EOF".to_owned(),
        None => error.to_string(),
    }
}

/// `host:port`, with brackets around addresses of IPv6.
pub(super) fn join_host_port(host: &str, port: u16) -> String {
    match host.contains(':') {
        true => format!("[{host}]:{port}"),
        false => format!("{host}:{port}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn system_errors_are_in_gos_words() {
        let table = [
            (libc::ECONNREFUSED, "connection refused"),
            (libc::EHOSTUNREACH, "no route to host"),
            (libc::ENETUNREACH, "network is unreachable"),
            (libc::ECONNRESET, "connection reset by peer"),
            (libc::ETIMEDOUT, "connection timed out"),
            (libc::EPIPE, "broken pipe"),
        ];
        for (number, expected) in table {
            assert_eq!(go_text(&io::Error::from_raw_os_error(number)), expected);
        }
    }

    #[test]
    fn addresses_of_ipv6_stand_in_brackets() {
        assert_eq!(join_host_port("fd00::1", 80), "[fd00::1]:80");
        assert_eq!(join_host_port("10.0.0.1", 80), "10.0.0.1:80");
    }
}
