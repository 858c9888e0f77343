//! Limits of connections and requests. Connections that wait (for a request's head, its body, or a turn), short
//! requests, and streams of each kind have limits of their own, so that none of them starves the others. A new
//! connection replaces the one that has waited longest; a stream beyond its limit is refused with 429.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker, ready};
use std::time::{Duration, Instant};

use hyper::body::{Body as HttpBody, Bytes, Frame, SizeHint};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use smol::Async;
use smol::channel::{Receiver, Sender, bounded};
use smol::future;
use smol::io::{AsyncRead, AsyncWrite};
use smol::lock::{Semaphore, SemaphoreGuardArc};

use super::error::ApiError;
use super::exec::hang_ups;
use super::server::Body;
use crate::sys::clock;
use crate::types::Gather;

/// Limit of connections that wait for their client or for a turn; beyond it the oldest is closed.
pub(super) const MAX_WAITING: usize = 64;

/// Buffers from this size on, in bytes, leave holes in the heap.
const LARGE: usize = 1 << 20;

/// Kind of a request, by the resources it takes while it is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Cost {
    /// A request with an immediate answer.
    Short,
    /// A preview of manifests: much memory.
    Plan,
    /// A watch: one descriptor.
    Watch,
    /// A log: a file and, when followed, two inotify instances, of which a user has 128.
    Log,
    /// exec and attach: pipes and a connection to the shim.
    Session,
    /// A connection to a port of a pod: two descriptors.
    Forward,
    /// An import, a pull, a drain or a shutdown, reported line by line.
    Progress,
}

impl Cost {
    const ALL: [Self; 7] = [
        Self::Short,
        Self::Plan,
        Self::Watch,
        Self::Log,
        Self::Session,
        Self::Forward,
        Self::Progress,
    ];

    /// Limit of requests of this kind. Together with the waiting connections they stay below the default limit of 1024
    /// descriptors.
    pub(super) fn most(self) -> usize {
        match self {
            Self::Short => 64,
            Self::Plan => 2,
            Self::Watch => 128,
            Self::Log | Self::Session => 48,
            Self::Forward => 96,
            Self::Progress => 16,
        }
    }

    /// Whether a request beyond the limit waits for a turn, because others end soon.
    fn waits(self) -> bool {
        match self {
            Self::Short | Self::Plan => true,
            Self::Watch | Self::Log | Self::Session | Self::Forward | Self::Progress => false,
        }
    }

    /// The plural in messages.
    fn name(self) -> &'static str {
        match self {
            Self::Short => "requests",
            Self::Plan => "plans",
            Self::Watch => "watches",
            Self::Log => "logs being read",
            Self::Session => "exec, attach and cp sessions",
            Self::Forward => "forwarded connections",
            Self::Progress => "imports, pulls, drains and shutdowns being followed",
        }
    }
}

/// Deadlines of clients.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Patience {
    /// For a request's head, also on a kept-alive connection.
    pub(crate) head: Duration,
    /// For a request's body.
    pub(crate) body: Duration,
    /// For a turn, when the limit is reached.
    pub(crate) turn: Duration,
    /// For a client that reads nothing of an answer. A log's reader may pause (a pager does) until another client needs
    /// its place.
    pub(crate) write: Duration,
    /// For the next bytes of an archive being sent, while the import waits for them.
    pub(crate) upload: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            head: Duration::from_secs(10),
            body: Duration::from_secs(10),
            turn: Duration::from_secs(10),
            write: Duration::from_secs(60),
            upload: Duration::from_secs(60),
        }
    }
}

/// Limits and accounts of all connections.
#[derive(Debug)]
pub(crate) struct Door {
    pub(crate) patience: Patience,
    rooms: BTreeMap<Cost, Arc<Semaphore>>,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    /// Number for the next guest that waits.
    next: u64,
    /// Waiting guests, oldest first; a message closes the connection.
    waiting: BTreeMap<u64, Sender<()>>,
    /// Paused readers of logs, with the start of the pause.
    paused: BTreeMap<u64, (Instant, Sender<()>)>,
}

impl Door {
    pub(crate) fn new(patience: Patience) -> Arc<Self> {
        let room = |cost: Cost| (cost, Arc::new(Semaphore::new(cost.most())));
        Arc::new(Self {
            patience,
            rooms: Cost::ALL.into_iter().map(room).gather(),
            inner: Mutex::default(),
        })
    }

    /// Registers a connection. It must close when the receiver gets a message.
    pub(crate) fn enter(self: &Arc<Self>) -> (Arc<Guest>, Receiver<()>) {
        let (leave, left) = bounded(1);
        let guest = Arc::new(Guest {
            door: self.clone(),
            leave,
            state: Mutex::new(State::default()),
            large: AtomicBool::new(false),
            asked: AtomicBool::new(false),
            held: Mutex::default(),
        });
        guest.wait();
        (guest, left)
    }

    /// Closes the connection that has waited longest; `false` if there is none.
    pub(crate) fn shed(&self) -> bool {
        let oldest = self.lock().waiting.pop_first();
        oldest.is_some_and(|(_, leave)| leave.try_send(()).is_ok())
    }

    /// Ends the log whose reader has paused longest, if it has paused long enough.
    fn end_paused(&self) -> bool {
        let mut inner = self.lock();
        let oldest = inner.paused.iter().min_by_key(|(_, (since, _))| *since);
        let Some((id, _)) = oldest
            .filter(|(_, (since, _))| clock::now().duration_since(*since) >= self.patience.write)
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
        // The state is consistent even after a panic: each change is a single insertion or removal.
        self.inner.lock().unwrap_or_else(|bad| bad.into_inner())
    }
}

/// One connection.
#[derive(Debug)]
pub(crate) struct Guest {
    door: Arc<Door>,
    leave: Sender<()>,
    state: Mutex<State>,
    /// The connection has carried a large answer or body.
    large: AtomicBool,
    /// A request is being answered whose answer ends without the client.
    asked: AtomicBool,
    /// To be woken when it is answered.
    held: Mutex<Option<Waker>>,
}

#[derive(Debug, Default)]
struct State {
    /// Its number among the waiting or paused guests.
    number: Option<u64>,
    /// Kind of the request being answered.
    cost: Option<Cost>,
}

impl Guest {
    /// Marks the connection as waiting for its client.
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

    /// Notes that a request's head has arrived, and whether its answer ends without the client. Dropping the result notes
    /// that the request is answered.
    pub(crate) fn asks(self: &Arc<Self>, ends: bool) -> Asked {
        self.asked.store(ends, Ordering::Relaxed);
        Asked(self.clone())
    }

    /// Wakes the reader that keeps the end of the client's input back.
    fn look_again(&self) {
        let mut held = self.held.lock().unwrap_or_else(|bad| bad.into_inner());
        if let Some(waker) = held.take() {
            waker.wake();
        }
    }

    /// Takes a place for a request that has arrived completely. Dropping the ticket frees the place.
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

    /// Records whether the client reads; `true` if a blocked write has the write deadline.
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
                let paused = (clock::now(), self.leave.clone());
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

    /// Records the size of a piece of data.
    pub(crate) fn note(&self, bytes: usize) {
        if bytes >= LARGE {
            self.large.store(true, Ordering::Relaxed);
        }
    }

    /// Whether to return memory to the system when the connection ends.
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

/// A request that is being answered.
#[derive(Debug)]
pub(crate) struct Asked(Arc<Guest>);

impl Drop for Asked {
    fn drop(&mut self) {
        self.0.asked.store(false, Ordering::Relaxed);
        self.0.look_again();
    }
}

/// The body of an answer; holds the ticket, if the request got one, until all of it is passed on.
pub(crate) struct Held {
    body: Body,
    asked: Asked,
    _ticket: Option<Arc<Ticket>>,
}

impl Held {
    pub(crate) fn new(body: Body, asked: Asked, ticket: Option<Arc<Ticket>>) -> Self {
        Self {
            body,
            asked,
            _ticket: ticket,
        }
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
            self.asked.0.note(bytes);
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

/// A connection with a deadline for clients that do not read. A client that has only closed its sending direction gets
/// the answer to what it asked before: the end of its input counts once all is answered, or when it is really gone.
#[derive(Debug)]
pub(crate) struct Patient {
    stream: Async<UnixStream>,
    guest: Arc<Guest>,
    /// Deadline of the blocked write.
    blocked: Option<smol::Timer>,
    /// Becomes readable when a client whose input has ended is gone.
    gone: Option<Async<OwnedFd>>,
}

impl Patient {
    pub(crate) fn new(stream: Async<UnixStream>, guest: Arc<Guest>) -> Self {
        Self {
            stream,
            guest,
            blocked: None,
            gone: None,
        }
    }

    pub(crate) fn into_inner(self) -> Async<UnixStream> {
        self.stream
    }

    /// Returns the result of a write, or an error if it has been blocked for too long.
    fn timed<T>(
        &mut self,
        cx: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if let Poll::Ready(done) = written {
            if self.blocked.take().is_some() {
                self.guest.pauses(false);
                self.guest.look_again();
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

    /// Keeps the end of the client's input back: ready when it is to be reported.
    fn ended(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let answers = self.guest.asked.load(Ordering::Relaxed) || self.blocked.is_some();
        if !answers || is_gone(&self.stream) {
            return Poll::Ready(());
        }
        if self.gone.is_none() {
            // Without a descriptor to see it go, it counts as gone.
            self.gone = hang_ups(&self.stream).ok();
        }
        let Some(gone) = &self.gone else {
            return Poll::Ready(());
        };
        if gone.poll_readable(cx).is_ready() {
            return Poll::Ready(());
        }
        let mut held = self
            .guest
            .held
            .lock()
            .unwrap_or_else(|bad| bad.into_inner());
        *held = Some(cx.waker().clone());
        Poll::Pending
    }
}

/// Whether the client has closed both directions.
fn is_gone(stream: &Async<UnixStream>) -> bool {
    let mut fds = [PollFd::new(stream.as_fd(), PollFlags::empty())];
    poll(&mut fds, PollTimeout::ZERO).is_ok_and(|count| count > 0)
}

impl AsyncRead for Patient {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let read = ready!(Pin::new(&mut self.stream).poll_read(cx, buffer));
        if matches!(read, Ok(0)) {
            ready!(self.ended(cx));
        }
        Poll::Ready(read)
    }
}

impl AsyncWrite for Patient {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.timed(cx, written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_close(cx)
    }
}
