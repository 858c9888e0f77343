//! Queries to the node's resolvers. They are asked one after the other, over the client's transport, and only an
//! answer to exactly this query from exactly that server is accepted.

use std::collections::hash_map::RandomState;
use std::future::Future;
use std::hash::BuildHasher;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use domain::base::Message;
use domain::base::iana::Rcode;
use smol::io::{AsyncReadExt, AsyncWriteExt};
use smol::{Async, Timer};

use super::query::{Transport, UDP_LIMIT_BYTES};
use super::resolv_conf::ResolvConf;
use crate::sys::clock;

/// A client waits five seconds before it asks again.
const PATIENCE: Duration = Duration::from_secs(5);
/// The timeout of one server. Datagrams get lost.
const TRY: Duration = Duration::from_millis(1500);

/// The node's resolvers.
#[derive(Debug)]
pub(super) struct Upstream {
    conf: ResolvConf,
    /// The index of the server that answered last, so that an unreachable one costs time only once.
    favourite: AtomicUsize,
    /// The generator of unpredictable ids.
    secret: RandomState,
    counter: AtomicU64,
}

/// The result of asking one server.
enum Said {
    Answer(Vec<u8>),
    /// It is reachable, but refuses or fails.
    No,
    Silent,
}

impl Upstream {
    pub(super) fn new(resolv_conf: PathBuf) -> Self {
        Self {
            conf: ResolvConf::new(resolv_conf),
            favourite: AtomicUsize::new(0),
            secret: RandomState::new(),
            counter: AtomicU64::new(0),
        }
    }

    /// The answer with the id and the spelling of the query. `None`: no server has one. Servers at addresses in
    /// `skip` are not asked.
    pub(super) async fn ask(
        &self,
        skip: &[IpAddr],
        question: &[u8],
        transport: Transport,
    ) -> Option<Vec<u8>> {
        let servers = self.conf.servers();
        let servers: Vec<SocketAddr> = servers
            .iter()
            .filter(|server| !skip.contains(&server.ip()))
            .copied()
            .collect();
        let until = clock::now() + PATIENCE;
        let first = self.favourite.load(Ordering::Relaxed);
        loop {
            let mut silent = false;
            for place in (first..)
                .map(|place| place % servers.len().max(1))
                .take(servers.len())
            {
                let left = until.saturating_duration_since(clock::now()).min(TRY);
                if left.is_zero() {
                    return None;
                }
                match self
                    .ask_one(servers[place], question, transport, left)
                    .await
                {
                    Said::Answer(answer) => {
                        self.favourite.store(place, Ordering::Relaxed);
                        return Some(answer);
                    }
                    Said::No => {}
                    Said::Silent => silent = true,
                }
            }
            // A server that refused would refuse again. TCP loses nothing.
            if !silent || transport == Transport::Tcp {
                return None;
            }
        }
    }

    async fn ask_one(
        &self,
        server: SocketAddr,
        question: &[u8],
        transport: Transport,
        patience: Duration,
    ) -> Said {
        let mut asked = question.to_vec();
        asked[..2].copy_from_slice(&self.number());
        let answer = async {
            match transport {
                Transport::Udp => by_udp(server, &asked).await,
                Transport::Tcp => by_tcp(server, &asked).await,
            }
        };
        match within(patience, answer).await {
            Ok(mut answer) if rcode(&answer).is_some_and(is_final) => {
                as_asked(&mut answer, question);
                Said::Answer(answer)
            }
            Err(error) if error.kind() == io::ErrorKind::TimedOut => Said::Silent,
            Ok(_) | Err(_) => Said::No,
        }
    }

    fn number(&self) -> [u8; 2] {
        let counted = self.counter.fetch_add(1, Ordering::Relaxed);
        let [a, b, ..] = self.secret.hash_one(counted).to_ne_bytes();
        [a, b]
    }
}

/// The future's result, or `TimedOut`.
pub(super) async fn within<T>(
    patience: Duration,
    work: impl Future<Output = io::Result<T>>,
) -> io::Result<T> {
    let late = async {
        Timer::after(patience).await;
        Err(io::ErrorKind::TimedOut.into())
    };
    smol::future::or(work, late).await
}

/// From a socket of its own, whose port the kernel chooses at random, and which receives from no other address.
async fn by_udp(server: SocketAddr, asked: &[u8]) -> io::Result<Vec<u8>> {
    let any: IpAddr = match server {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0))?;
    socket.connect(server)?;
    let socket = Async::new(socket)?;
    socket.send(asked).await?;
    loop {
        socket.readable().await?;
        match receive(&socket) {
            Ok(answer) if is_answer(&answer, asked) => return Ok(answer),
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
            Ok(_) | Err(_) => {}
        }
    }
}

/// The buffer is on the stack only while there is something to read: hundreds of queries may wait. A message that
/// is too long is one octet longer than allowed.
fn receive(socket: &Async<UdpSocket>) -> io::Result<Vec<u8>> {
    let mut buffer = [0; UDP_LIMIT_BYTES + 1];
    let bytes = socket.get_ref().recv(&mut buffer)?;
    Ok(buffer[..bytes].to_vec())
}

async fn by_tcp(server: SocketAddr, asked: &[u8]) -> io::Result<Vec<u8>> {
    let mut stream = Async::<TcpStream>::connect(server).await?;
    write_message(&mut stream, asked).await?;
    let answer = read_message(&mut stream, usize::from(u16::MAX)).await?;
    match is_answer(&answer, asked) {
        true => Ok(answer),
        false => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// Reads one message with its length before it; an error if it is longer than the limit.
pub(super) async fn read_message(
    stream: &mut Async<TcpStream>,
    limit_bytes: usize,
) -> io::Result<Vec<u8>> {
    let mut length = [0; 2];
    stream.read_exact(&mut length).await?;
    let length = usize::from(u16::from_be_bytes(length));
    if length > limit_bytes {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut message = vec![0; length];
    stream.read_exact(&mut message).await?;
    Ok(message)
}

/// Writes one message with its length before it.
pub(super) async fn write_message(stream: &mut Async<TcpStream>, message: &[u8]) -> io::Result<()> {
    let length = u16::try_from(message.len()).map_err(|_| io::ErrorKind::InvalidData)?;
    // In one piece, so that it goes in one packet.
    let mut bytes = length.to_be_bytes().to_vec();
    bytes.extend_from_slice(message);
    stream.write_all(&bytes).await
}

/// Whether it answers exactly that query. A server that could not parse the query need not repeat it.
fn is_answer(answer: &[u8], asked: &[u8]) -> bool {
    let (Ok(answer), Ok(asked)) = (Message::from_slice(answer), Message::from_slice(asked)) else {
        return false;
    };
    let (header, counts) = (answer.header(), answer.header_counts());
    let silent_no = header.qr()
        && header.id() == asked.header().id()
        && header.rcode() != Rcode::NOERROR
        && counts.qdcount() == 0
        && counts.ancount() == 0;
    silent_no || answer.is_answer(asked)
}

fn rcode(answer: &[u8]) -> Option<Rcode> {
    Some(Message::from_slice(answer).ok()?.header().rcode())
}

/// With any other code the next server may have an answer.
fn is_final(rcode: Rcode) -> bool {
    !matches!(rcode, Rcode::SERVFAIL | Rcode::REFUSED)
}

/// Gives an answer the id and the spelling of the client's query.
fn as_asked(answer: &mut [u8], question: &[u8]) {
    answer[..2].copy_from_slice(&question[..2]);
    let Some(end) = question_end(question) else {
        return;
    };
    if let (Some(repeated), Some(asked)) = (answer.get_mut(12..end), question.get(12..end))
        && repeated.eq_ignore_ascii_case(asked)
    {
        repeated.copy_from_slice(asked);
    }
}

/// Where the question section ends.
fn question_end(message: &[u8]) -> Option<usize> {
    let mut section = Message::from_slice(message).ok()?.question();
    section.next()?.ok()?;
    Some(section.pos())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const QUESTION: &[u8] = b"\x12\x34\x01\0\0\x01\0\0\0\0\0\0\x03wWw\x02ex\0\0\x01\0\x01";

    #[test]
    fn an_answer_gets_the_number_and_the_spelling_of_the_question() {
        let mut answer = b"\0\x07\x81\x80\0\x01\0\0\0\0\0\0\x03www\x02ex\0\0\x01\0\x01".to_vec();
        as_asked(&mut answer, QUESTION);
        assert_eq!(
            (&answer[..2], &answer[12..]),
            (&QUESTION[..2], &QUESTION[12..])
        );
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_are_handled_without_panic(
            start in 0..QUESTION.len(), rest in prop::collection::vec(any::<u8>(), 0..80)
        ) {
            let mut answer = [&QUESTION[..start], &rest].concat();
            if let Some(flags) = answer.get_mut(2) {
                *flags |= 0x80;
            }
            if is_answer(&answer, QUESTION) && rcode(&answer).is_some() {
                as_asked(&mut answer, QUESTION);
                prop_assert_eq!(&answer[..2], &QUESTION[..2]);
            }
            // In production the query was parsed before, but nothing depends on that.
            is_answer(QUESTION, &answer);
            question_end(&answer);
        }
    }
}
