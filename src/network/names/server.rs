//! The sockets' loops, with limits on clients and queries. Each query is answered at once if possible, and becomes
//! a task if other servers must be asked. Everything has a limit, because clients are not trusted.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use domain::base::Message;
use domain::base::iana::{OptRcode, Rcode};
use smol::{Async, Executor, Timer};

use super::answer::{Knowledge, Outcome, answer};
use super::query::{Query, Transport, UDP_LIMIT_BYTES, compose, refuse};
use super::slots::Slot;
use super::upstream::{read_message, within, write_message};
use super::{Names, Sockets};

/// The timeout of a silent connection, and of sending or receiving a message.
const TCP_IDLE: Duration = Duration::from_secs(10);
/// After this many datagrams other tasks get their turn.
const BATCH: usize = 16;
/// The pause when the kernel has no memory or descriptors.
const PAUSE: Duration = Duration::from_millis(100);

impl Names {
    /// Answers for ever. Parts that do not wait are short.
    pub async fn serve(self: Arc<Self>, sockets: Sockets) {
        let executor = Executor::new();
        let mut loops: Pin<Box<dyn Future<Output = ()> + Send + '_>> = Box::pin(async {});
        for socket in sockets.udp {
            let next = self.listen_udp(socket, &executor);
            loops = Box::pin(async { smol::future::zip(loops, next).await.1 });
        }
        for socket in sockets.tcp {
            let next = self.listen_tcp(socket, &executor);
            loops = Box::pin(async { smol::future::zip(loops, next).await.1 });
        }
        executor.run(loops).await;
    }

    async fn listen_udp(
        self: &Arc<Self>,
        socket: Arc<Async<UdpSocket>>,
        executor: &Executor<'static>,
    ) {
        loop {
            let mut read = socket.readable().await;
            for _ in 0..BATCH {
                read = read.and_then(|()| self.take_datagram(&socket, executor));
            }
            match read {
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => {
                    tracing::debug!("could not read a DNS query: {error}");
                    Timer::after(PAUSE).await;
                }
                Ok(()) | Err(_) => smol::future::yield_now().await,
            }
        }
    }

    /// An answer that does not fit into the socket's buffer is lost, as datagrams may be.
    fn take_datagram(
        self: &Arc<Self>,
        socket: &Arc<Async<UdpSocket>>,
        executor: &Executor<'static>,
    ) -> io::Result<()> {
        let mut buffer = [0; UDP_LIMIT_BYTES + 1];
        let (bytes, client) = socket.get_ref().recv_from(&mut buffer)?;
        let question = &buffer[..bytes];
        let reply = match self.first_answer(question, client, Transport::Udp) {
            First::Said(reply) => reply,
            First::Later(outcome, slot) => {
                let (names, socket) = (self.clone(), socket.clone());
                let question = question.to_vec();
                let task = async move {
                    let _slot = slot;
                    let reply = names.ask(&question, Transport::Udp, outcome).await;
                    let _ = socket.get_ref().send_to(&reply, client);
                };
                executor.spawn(task).detach();
                None
            }
        };
        if let Some(reply) = reply {
            let _ = socket.get_ref().send_to(&reply, client);
        }
        Ok(())
    }

    async fn listen_tcp(
        self: &Arc<Self>,
        socket: Async<TcpListener>,
        executor: &Executor<'static>,
    ) {
        loop {
            match socket.accept().await {
                Ok((stream, client)) => {
                    // Accepting does not wait while there are more connections, and other tasks need their turn.
                    smol::future::yield_now().await;
                    let Some(slot) = self.connections.take(client.ip()) else {
                        continue;
                    };
                    let names = self.clone();
                    let task = async move {
                        let _slot = slot;
                        let ended = names.talk(stream, client).await;
                        tracing::trace!("DNS connection of {client}: {ended:?}");
                    };
                    executor.spawn(task).detach();
                }
                Err(error) => {
                    tracing::debug!("could not accept a DNS connection: {error}");
                    Timer::after(PAUSE).await;
                }
            }
        }
    }

    /// Reads one query after the other, until the client closes the connection or is silent for too long.
    async fn talk(&self, mut stream: Async<TcpStream>, client: SocketAddr) -> io::Result<()> {
        loop {
            let question = within(TCP_IDLE, read_message(&mut stream, UDP_LIMIT_BYTES)).await?;
            let reply = match self.first_answer(&question, client, Transport::Tcp) {
                First::Said(Some(reply)) => reply,
                First::Said(None) => return Ok(()),
                First::Later(outcome, _slot) => self.ask(&question, Transport::Tcp, outcome).await,
            };
            within(TCP_IDLE, write_message(&mut stream, &reply)).await?;
            // A client that sends queries without a pause must not occupy the loop.
            smol::future::yield_now().await;
        }
    }

    /// The answer that is possible at once.
    fn first_answer(&self, question: &[u8], client: SocketAddr, transport: Transport) -> First {
        let known = self.known();
        if !known.may_ask(client.ip()) {
            return First::Said(refuse(question, Rcode::REFUSED));
        }
        let knowledge = Knowledge {
            zone: &known.zone,
            ranges: &known.reach.ranges,
            complete: known.complete,
            turn: self.turn.fetch_add(1, Ordering::Relaxed),
        };
        match answer(knowledge, question, transport) {
            Outcome::Ignore => First::Said(None),
            Outcome::Answer(reply) => First::Said(Some(reply)),
            outcome @ (Outcome::Forward | Outcome::Follow(_)) => {
                match self.questions.take(client.ip()) {
                    Some(slot) => First::Later(outcome, slot),
                    None => First::Said(failure(question, transport)),
                }
            }
        }
    }

    /// The answer of other servers.
    async fn ask(&self, question: &[u8], transport: Transport, outcome: Outcome) -> Vec<u8> {
        let Ok(query) = Query::read(question, transport) else {
            return Vec::new();
        };
        let own: Vec<IpAddr> = self.known().reach.own.clone();
        let reply = match &outcome {
            Outcome::Follow(links) => {
                let asked = compose(links.target(), query.rtype);
                let said = self.upstream.ask(&own, &asked, transport).await;
                // Aliases alone would say that the target does not exist.
                said.map(|said| links.finish(&query, Message::from_slice(&said).ok()))
            }
            Outcome::Ignore | Outcome::Answer(_) | Outcome::Forward => {
                self.upstream.ask(&own, question, transport).await
            }
        };
        match reply {
            Some(reply) if reply.len() <= query.limit_bytes() => reply,
            Some(_) => query.truncated(),
            None => query.error(OptRcode::SERVFAIL),
        }
    }
}

/// The first result of a query.
enum First {
    Said(Option<Vec<u8>>),
    Later(Outcome, Slot),
}

fn failure(question: &[u8], transport: Transport) -> Option<Vec<u8>> {
    match Query::read(question, transport) {
        Ok(query) => Some(query.error(OptRcode::SERVFAIL)),
        Err(refusal) => refusal,
    }
}
