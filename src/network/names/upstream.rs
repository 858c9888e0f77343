//! Queries to the node's resolvers, over the client's transport. They are asked in their order, each once those before it
//! did not answer for a while, and those go on waiting: a slow link still has answers. Only an answer to exactly this
//! query from exactly that server is accepted.

use std::collections::BTreeMap;
use std::collections::hash_map::RandomState;
use std::future::{Future, poll_fn};
use std::hash::BuildHasher;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};

use domain::base::Message;
use domain::base::iana::Rcode;
use smol::io::{AsyncReadExt, AsyncWriteExt};
use smol::{Async, Timer};

use super::query::{Transport, UDP_LIMIT_BYTES};
use super::resolv_conf::ResolvConf;
use crate::sys::clock;
use crate::types::InOrder;

/// A client waits five seconds before it asks again.
const PATIENCE: Duration = Duration::from_secs(5);
/// After so long without an answer the next server is asked, or the same one again: datagrams get lost.
const TRY: Duration = Duration::from_millis(1500);
/// A server that did not answer so often in a row is asked last for a while.
const STRIKES: u8 = 2;
const REST: Duration = Duration::from_secs(30);

/// The node's resolvers.
#[derive(Debug)]
pub(super) struct Upstream {
    conf: ResolvConf,
    /// Those that did not answer lately, so that an unreachable one costs time only now and then.
    silent: Mutex<BTreeMap<SocketAddr, Silence>>,
    /// The generator of unpredictable ids.
    secret: RandomState,
    counter: AtomicU64,
}

/// How often in a row a server did not answer, and when that was last.
#[derive(Debug, Clone, Copy)]
struct Silence {
    strikes: u8,
    since: Instant,
}

/// An answer of one server; `None`: it is reachable, but refuses or fails.
type Said = Option<Vec<u8>>;

/// The servers that were asked and have not answered.
type Asked<'a> = Vec<(SocketAddr, Pin<Box<dyn Future<Output = Said> + Send + 'a>>)>;

impl Upstream {
    pub(super) fn new(resolv_conf: PathBuf) -> Self {
        Self {
            conf: ResolvConf::new(resolv_conf),
            silent: Mutex::default(),
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
        let servers = servers.iter().filter(|server| !skip.contains(&server.ip()));
        self.ask_all(servers.copied().collect(), question, transport)
            .await
    }

    async fn ask_all(
        &self,
        servers: Vec<SocketAddr>,
        question: &[u8],
        transport: Transport,
    ) -> Option<Vec<u8>> {
        let servers = self.in_order(servers);
        let until = clock::now() + PATIENCE;
        // A datagram is repeated when all others were asked in between.
        let again = TRY.saturating_mul(u32::try_from(servers.len()).unwrap_or(1));
        let mut asked: Asked<'_> = Vec::new();
        let mut missed: Vec<SocketAddr> = Vec::new();
        let mut left = servers.into_iter();
        loop {
            let next = left.next();
            if let Some(server) = next {
                let said = self.ask_one(server, question, transport, again);
                asked.push((server, Box::pin(said)));
            }
            // The last ones have until the end.
            let patience = match left.len() {
                0 => until.saturating_duration_since(clock::now()),
                _ => TRY,
            };
            match within(patience, async { Ok(first_of(&mut asked).await) }).await {
                Ok(Some((server, said))) => {
                    self.heard(server);
                    if said.is_some() {
                        return said;
                    }
                }
                // None is left of those that were asked.
                Ok(None) if left.len() == 0 => return None,
                Ok(None) => {}
                Err(_) if left.len() == 0 => {
                    let silent = asked.iter().map(|(server, _)| *server);
                    let silent = silent.filter(|server| !missed.contains(server));
                    silent.for_each(|server| self.missed(server));
                    return None;
                }
                Err(_) => {
                    next.into_iter().for_each(|server| self.missed(server));
                    missed.extend(next);
                }
            }
        }
    }

    /// Those that rest come last.
    fn in_order(&self, mut servers: Vec<SocketAddr>) -> Vec<SocketAddr> {
        let mut silent = self.silent.lock().expect("no panic holds this lock");
        silent.retain(|server, _| servers.contains(server));
        let now = clock::now();
        let rests = |server: &SocketAddr| {
            let silence = silent.get(server);
            silence.is_some_and(|silence| {
                silence.strikes >= STRIKES && now.duration_since(silence.since) < REST
            })
        };
        servers.order_by_key(rests);
        servers
    }

    fn heard(&self, server: SocketAddr) {
        let mut silent = self.silent.lock().expect("no panic holds this lock");
        silent.remove(&server);
    }

    fn missed(&self, server: SocketAddr) {
        let mut silent = self.silent.lock().expect("no panic holds this lock");
        let before = silent.get(&server).map_or(0, |silence| silence.strikes);
        let silence = Silence {
            strikes: before.saturating_add(1).min(STRIKES),
            since: clock::now(),
        };
        silent.insert(server, silence);
    }

    /// Waits for one server's answer.
    async fn ask_one(
        &self,
        server: SocketAddr,
        question: &[u8],
        transport: Transport,
        again: Duration,
    ) -> Said {
        let mut asked = question.to_vec();
        asked[..2].copy_from_slice(&self.number());
        let answer = match transport {
            Transport::Udp => by_udp(server, &asked, again).await,
            Transport::Tcp => by_tcp(server, &asked).await,
        };
        let mut answer = answer.ok()?;
        if !rcode(&answer).is_some_and(is_final) {
            return None;
        }
        as_asked(&mut answer, question);
        Some(answer)
    }

    fn number(&self) -> [u8; 2] {
        let counted = self.counter.fetch_add(1, Ordering::Relaxed);
        let [a, b, ..] = self.secret.hash_one(counted).to_ne_bytes();
        [a, b]
    }
}

/// What the first of these says, which is asked no more. `None`: there are none.
async fn first_of(asked: &mut Asked<'_>) -> Option<(SocketAddr, Said)> {
    poll_fn(|context| {
        for place in 0..asked.len() {
            let (server, said) = &mut asked[place];
            let server = *server;
            if let Poll::Ready(said) = said.as_mut().poll(context) {
                drop(asked.remove(place));
                return Poll::Ready(Some((server, said)));
            }
        }
        match asked.is_empty() {
            true => Poll::Ready(None),
            false => Poll::Pending,
        }
    })
    .await
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

/// From a socket of its own, whose port the kernel chooses at random, and which receives from no other address. The query
/// is repeated `again` and again: a late answer to the first one counts, too.
async fn by_udp(server: SocketAddr, asked: &[u8], again: Duration) -> io::Result<Vec<u8>> {
    let any: IpAddr = match server {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0))?;
    socket.connect(server)?;
    let socket = Async::new(socket)?;
    socket.send(asked).await?;
    loop {
        match within(again, socket.readable()).await {
            Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                socket.send(asked).await?;
                continue;
            }
            readable => readable?,
        }
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
    use std::sync::Arc;

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

    /// A server that answers with this code, but not at once; `None`: never. It counts the queries.
    fn server(rcode: u8, after: Option<Duration>) -> (SocketAddr, Arc<AtomicU64>) {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = socket.local_addr().unwrap();
        let counted = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&counted);
        std::thread::spawn(move || {
            let mut buffer = [0; 512];
            while let Ok((length, client)) = socket.recv_from(&mut buffer) {
                counter.fetch_add(1, Ordering::Relaxed);
                let Some(after) = after else { continue };
                let mut answer = buffer[..length].to_vec();
                (answer[2], answer[3]) = (0x81, 0x80 | rcode);
                std::thread::sleep(after);
                let _ = socket.send_to(&answer, client);
            }
        });
        (address, counted)
    }

    /// The code of the answer to one query.
    fn code(upstream: &Upstream, servers: &[SocketAddr]) -> Option<u8> {
        let answer = upstream.ask_all(servers.to_vec(), QUESTION, Transport::Udp);
        smol::block_on(answer).map(|answer| answer[3] & 0xf)
    }

    #[test]
    fn the_order_of_the_file_comes_first_again_after_a_lost_answer() {
        let upstream = Upstream::new(PathBuf::new());
        let at_once = Some(Duration::ZERO);
        let ((first, _), (second, _)) = (server(0, at_once), server(3, at_once));
        let ((silent, asked), (fails, _)) = (server(0, None), server(2, at_once));
        assert_eq!(code(&upstream, &[first, second]), Some(0));
        // One that cannot say for this name is no reason to leave it.
        assert_eq!(code(&upstream, &[fails, second]), Some(3));
        assert_eq!(code(&upstream, &[fails]), None);
        assert_eq!(code(&upstream, &[]), None);
        for _ in 0..STRIKES {
            assert_eq!(code(&upstream, &[silent, second]), Some(3));
        }
        let before = asked.load(Ordering::Relaxed);
        assert_eq!(before, u64::from(STRIKES));
        // It rests now, and the order of the others is that of the file.
        assert_eq!(code(&upstream, &[silent, second]), Some(3));
        assert_eq!(asked.load(Ordering::Relaxed), before);
        assert_eq!(code(&upstream, &[first, second]), Some(0));
    }

    #[test]
    fn a_slow_server_is_waited_for_while_others_are_asked() {
        let upstream = Upstream::new(PathBuf::new());
        let (slow, _) = server(0, Some(TRY + Duration::from_millis(500)));
        assert_eq!(code(&upstream, &[slow]), Some(0));
        let (silent, _) = server(3, None);
        assert_eq!(code(&upstream, &[slow, silent]), Some(0));
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
