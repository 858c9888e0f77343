//! Where does work go that may block? To a few threads that end when there is nothing to do, so that an idle agent
//! has one thread less to wake up for each (the usual pool of the async ecosystem keeps its threads, and they wake up
//! twice a second for ever).

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex};
use std::time::Duration;

use smol::channel::bounded;

use crate::spec::PodSpec;

/// Of each lane. Enough to keep a few slow disks and dying processes from holding up the rest.
const MAX_THREADS: usize = 8;

/// A thread without work ends after this.
const PATIENCE: Duration = Duration::from_secs(1);

/// Most work is a few system calls deep.
const STACK_BYTES: usize = 512 << 10;

type Work = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct Pool {
    queue: VecDeque<Work>,
    threads: usize,
    idle: usize,
}

/// Threads that do not wait for those of the other lane.
struct Lane {
    pool: Mutex<Pool>,
    work_arrived: Condvar,
}

impl Lane {
    const fn new() -> Self {
        Self {
            pool: Mutex::new(Pool {
                queue: VecDeque::new(),
                threads: 0,
                idle: 0,
            }),
            work_arrived: Condvar::new(),
        }
    }
}

static NODE: Lane = Lane::new();
/// What may wait for the packet filter, or for somebody who does: a stuck `nft` holds up pods on the bridge and nobody else.
static BRIDGE: Lane = Lane::new();

/// What nobody waits for.
static CLEANING: Lane = Lane::new();

/// Runs `work` on a thread of its own kind and waits for its result without blocking.
pub(super) async fn unblock<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    run(&NODE, work).await
}

/// The same for work that has to do with the pods' network.
pub(super) async fn unblock_bridge<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> T {
    run(&BRIDGE, work).await
}

/// The same for work that may take long and that nobody waits for.
pub(super) async fn unblock_cleaning<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> T {
    run(&CLEANING, work).await
}

/// The same for work that may have to do with the network of this pod.
pub(super) async fn unblock_for<T: Send + 'static>(
    pod: &PodSpec,
    work: impl FnOnce() -> T + Send + 'static,
) -> T {
    let lane = if pod.host_network { &NODE } else { &BRIDGE };
    run(lane, work).await
}

async fn run<T: Send + 'static>(
    lane: &'static Lane,
    work: impl FnOnce() -> T + Send + 'static,
) -> T {
    let (sender, receiver) = bounded(1);
    let work = Box::new(move || {
        let _ = sender.try_send(work());
    });
    submit(lane, work);
    receiver
        .recv()
        .await
        .expect("the work sends its result unless it panics")
}

fn submit(lane: &'static Lane, work: Work) {
    let mut pool = lane.pool.lock().expect("no panic holds this lock");
    pool.queue.push_back(work);
    if pool.queue.len() > pool.idle && pool.threads < MAX_THREADS {
        let thread = std::thread::Builder::new()
            .name("unblock".into())
            .stack_size(STACK_BYTES);
        match thread.spawn(|| serve(lane)) {
            Ok(_) => pool.threads += 1,
            // Some thread gets to it; without any, there is no agent to be had on this machine.
            Err(error) if pool.threads > 0 => {
                tracing::warn!("could not start a thread: {error}, going on with fewer")
            }
            Err(error) => panic!("could not start a thread: {error}"),
        }
    }
    drop(pool);
    lane.work_arrived.notify_one();
}

fn serve(lane: &Lane) {
    let mut pool = lane.pool.lock().expect("no panic holds this lock");
    loop {
        if let Some(work) = pool.queue.pop_front() {
            drop(pool);
            work();
            pool = lane.pool.lock().expect("no panic holds this lock");
            continue;
        }
        pool.idle += 1;
        let (woken, waited) = lane
            .work_arrived
            .wait_timeout(pool, PATIENCE)
            .expect("no panic holds this lock");
        pool = woken;
        pool.idle -= 1;
        if waited.timed_out() && pool.queue.is_empty() {
            pool.threads -= 1;
            return;
        }
    }
}
