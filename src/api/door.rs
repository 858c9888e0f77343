//! Who is let in, and at whose expense? Connections that wait (for a request's head, its body, or a turn), short requests,
//! and streams of each kind have bounds of their own, so that none of them keeps out the others. Of those that wait the
//! oldest gives way to a new one; a stream beyond its bound is refused with 429.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::net::UnixStream;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use hyper::body::{Body as HttpBody, Bytes, Frame, SizeHint};
use smol::Async;
use smol::channel::{Receiver, Sender, bounded};
use smol::future;
use smol::io::{AsyncRead, AsyncWrite};
use smol::lock::{Semaphore, SemaphoreGuardArc};

use super::error::ApiError;
use super::server::Body;

/// So many connections wait for something of their client or for a turn; the oldest beyond that is closed.
pub(super) const MAX_WAITING: usize = 64;

/// What takes so many bytes at once leaves holes in the heap.
const LARGE: usize = 1 << 20;

/// What a request costs while it is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Cost {
    /// An answer that is there at once.
    Short,
    /// Manifests to plan with: much memory.
    Plan,
    /// A watch: one descriptor.
    Watch,
    /// A log: a file and, when followed, two descriptors of inotify, of which a user has 128 instances.
    Log,
    /// exec and attach: pipes and a connection to the shim.
    Session,
    /// An import, a drain, a shutdown, told line by line.
    Progress,
}

impl Cost {
    const ALL: [Self; 6] = [
        Self::Short,
        Self::Plan,
        Self::Watch,
        Self::Log,
        Self::Session,
        Self::Progress,
    ];

    /// So many at once. Together, and with those that wait, they keep below the 1024 descriptors that a process has by default.
    pub(super) fn most(self) -> usize {
        match self {
            Self::Short => 64,
            Self::Plan => 2,
            Self::Watch => 128,
            Self::Log | Self::Session => 48,
            Self::Progress => 16,
        }
    }

    /// Whether one that finds no room waits for a turn: another's end is near.
    fn waits(self) -> bool {
        match self {
            Self::Short | Self::Plan => true,
            Self::Watch | Self::Log | Self::Session | Self::Progress => false,
        }
    }

    /// In messages.
    fn name(self) -> &'static str {
        match self {
            Self::Short => "requests",
            Self::Plan => "plans",
            Self::Watch => "watches",
            Self::Log => "logs being read",
            Self::Session => "exec and attach sessions",
            Self::Progress => "imports, drains and shutdowns being followed",
        }
    }
}

/// How long clients may take.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Patience {
    /// For a request's head, also on a connection that is kept for another request.
    pub(crate) head: Duration,
    /// For a request's body.
    pub(crate) body: Duration,
    /// For a turn, where all are taken.
    pub(crate) turn: Duration,
    /// Without reading anything of an answer. A log's reader may pause (a pager does), until another wants its place.
    pub(crate) write: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            head: Duration::from_secs(10),
            body: Duration::from_secs(10),
            turn: Duration::from_secs(10),
            write: Duration::from_secs(60),
        }
    }
}

/// All connections.
#[derive(Debug)]
pub(crate) struct Door {
    pub(crate) patience: Patience,
    rooms: BTreeMap<Cost, Arc<Semaphore>>,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    /// Of the next guest that waits.
    next: u64,
    /// The oldest first; what is sent makes it leave.
    waiting: BTreeMap<u64, Sender<()>>,
    /// Readers of logs that read nothing, since when.
    paused: BTreeMap<u64, (Instant, Sender<()>)>,
}

impl Door {
    pub(crate) fn new(patience: Patience) -> Arc<Self> {
        let room = |cost: Cost| (cost, Arc::new(Semaphore::new(cost.most())));
        Arc::new(Self {
            patience,
            rooms: Cost::ALL.into_iter().map(room).collect(),
            inner: Mutex::default(),
        })
    }

    /// Lets a connection in. It has to end when the receiver hears something.
    pub(crate) fn enter(self: &Arc<Self>) -> (Arc<Guest>, Receiver<()>) {
        let (leave, told) = bounded(1);
        let guest = Arc::new(Guest {
            door: self.clone(),
            leave,
            state: Mutex::new(State::default()),
            large: AtomicBool::new(false),
        });
        guest.wait();
        (guest, told)
    }

    /// Closes the connection that has waited the longest; whether there was one.
    pub(crate) fn shed(&self) -> bool {
        let oldest = self.lock().waiting.pop_first();
        oldest.is_some_and(|(_, leave)| leave.try_send(()).is_ok())
    }

    /// Ends the log whose reader has paused the longest, if that is long enough.
    fn end_paused(&self) -> bool {
        let mut inner = self.lock();
        let oldest = inner.paused.iter().min_by_key(|(_, (since, _))| *since);
        let Some((id, _)) = oldest.filter(|(_, (since, _))| since.elapsed() >= self.patience.write)
        else {
            return false;
        };
        let id = *id;
        let ended = inner.paused.remove(&id);
        ended.is_some_and(|(_, leave)| leave.try_send(()).is_ok())
    }

    async fn room(&self, cost: Cost) -> Result<SemaphoreGuardArc, ApiError> {
        let room = &self.rooms[&cost];
        if let Some(free) = room.try_acquire_arc() {
            return Ok(free);
        }
        if cost.waits() || cost == Cost::Log && self.end_paused() {
            let turn = async { Some(room.acquire_arc().await) };
            let over = async {
                smol::Timer::after(self.patience.turn).await;
                None
            };
            if let Some(free) = future::or(turn, over).await {
                return Ok(free);
            }
        }
        Err(ApiError::too_many(format!(
            "there are too many {} (at most {} at once), please try again later",
            cost.name(),
            cost.most()
        )))
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // What is left by a panic is whole: each change is one insertion or removal.
        self.inner.lock().unwrap_or_else(|bad| bad.into_inner())
    }
}

/// One connection.
#[derive(Debug)]
pub(crate) struct Guest {
    door: Arc<Door>,
    leave: Sender<()>,
    state: Mutex<State>,
    /// It had an answer, or sent something, that took much memory.
    large: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    /// Its number among those that wait, or that have paused.
    number: Option<u64>,
    /// What is being answered.
    cost: Option<Cost>,
}

impl Guest {
    /// It waits for something of its client.
    fn wait(&self) {
        let mut state = self.state();
        let number = {
            let mut inner = self.door.lock();
            inner.next += 1;
            let number = inner.next;
            inner.waiting.insert(number, self.leave.clone());
            number
        };
        *state = State {
            number: Some(number),
            cost: None,
        };
        drop(state);
        while self.door.lock().waiting.len() > MAX_WAITING {
            self.door.shed();
        }
    }

    /// Takes a place for a request, all of which is there. The place is free when the ticket is gone.
    pub(crate) async fn admit(self: &Arc<Self>, cost: Cost) -> Result<Arc<Ticket>, ApiError> {
        let room = self.door.room(cost).await?;
        let mut state = self.state();
        if let Some(number) = state.number.take() {
            self.door.lock().waiting.remove(&number);
        }
        state.cost = Some(cost);
        drop(state);
        Ok(Arc::new(Ticket {
            guest: self.clone(),
            _room: room,
        }))
    }

    /// Notes whether the client takes what is written; `true` if it may not go on like this for long.
    fn pauses(&self, blocked: bool) -> bool {
        let mut state = self.state();
        if state.cost != Some(Cost::Log) {
            return blocked;
        }
        let mut inner = self.door.lock();
        match (blocked, state.number) {
            (true, None) => {
                inner.next += 1;
                state.number = Some(inner.next);
                let paused = (Instant::now(), self.leave.clone());
                let number = inner.next;
                inner.paused.insert(number, paused);
            }
            (false, Some(number)) => {
                inner.paused.remove(&number);
                state.number = None;
            }
            (true, Some(_)) | (false, None) => {}
        }
        false
    }

    /// Notes how much was sent at once.
    pub(crate) fn note(&self, bytes: usize) {
        if bytes >= LARGE {
            self.large.store(true, Ordering::Relaxed);
        }
    }

    /// Whether there is memory to be given back when it has gone.
    pub(crate) fn was_large(&self) -> bool {
        self.large.load(Ordering::Relaxed)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|bad| bad.into_inner())
    }

    fn leave_lists(&self) {
        if let Some(number) = self.state().number.take() {
            let mut inner = self.door.lock();
            inner.waiting.remove(&number);
            inner.paused.remove(&number);
        }
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.leave_lists();
    }
}

/// A place among the requests that are being answered.
#[derive(Debug)]
pub(crate) struct Ticket {
    guest: Arc<Guest>,
    _room: SemaphoreGuardArc,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.guest.leave_lists();
        self.guest.wait();
    }
}

/// An answer's body, which keeps the place until all of it was handed on.
pub(crate) struct Held {
    body: Body,
    ticket: Arc<Ticket>,
}

impl Held {
    pub(crate) fn new(body: Body, ticket: Arc<Ticket>) -> Self {
        Self { body, ticket }
    }
}

impl HttpBody for Held {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let frame = Pin::new(&mut self.body).poll_frame(cx);
        if let Poll::Ready(Some(Ok(frame))) = &frame {
            let bytes = frame.data_ref().map_or(0, Bytes::len);
            self.ticket.guest.note(bytes);
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A connection whose client has to read what it asked for.
#[derive(Debug)]
pub(crate) struct Patient {
    stream: Async<UnixStream>,
    guest: Arc<Guest>,
    /// Since something could not be written.
    blocked: Option<smol::Timer>,
}

impl Patient {
    pub(crate) fn new(stream: Async<UnixStream>, guest: Arc<Guest>) -> Self {
        Self {
            stream,
            guest,
            blocked: None,
        }
    }

    pub(crate) fn into_inner(self) -> Async<UnixStream> {
        self.stream
    }

    /// What became of a write, or that it has taken too long.
    fn judge<T>(
        &mut self,
        cx: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if let Poll::Ready(done) = written {
            if self.blocked.take().is_some() {
                self.guest.pauses(false);
            }
            return Poll::Ready(done);
        }
        let patience = self.guest.door.patience.write;
        let first = self.blocked.is_none();
        let timer = self
            .blocked
            .get_or_insert_with(|| smol::Timer::after(patience));
        if !self.guest.pauses(true) {
            if first {
                *timer = smol::Timer::never();
            }
            return Poll::Pending;
        }
        ready!(Pin::new(timer).poll(cx));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for Patient {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Patient {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.judge(cx, written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_close(cx)
    }
}
