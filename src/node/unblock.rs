//! Threads for blocking work. They end when there is nothing to do, so that an idle agent has no thread that wakes
//! up (the usual pool of the async ecosystem keeps its threads, which wake up twice a second for ever). Work that
//! waits for a thread is done by the priority of its pod.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex};
use std::time::Duration;

use smol::channel::bounded;

use crate::spec::PodSpec;

/// The threads of a lane: enough to keep a few slow disks and dying processes from delaying the rest.
const MAX_THREADS: usize = 8;

/// Those that look at paths of other file systems, which may never come back.
const MAX_LOOKS: usize = 64;

/// A thread without work ends after this.
const PATIENCE: Duration = Duration::from_secs(1);

/// Most work is a few system calls deep.
const STACK_BYTES: usize = 512 << 10;

type Work = Box<dyn FnOnce() + Send>;

/// The priority of the node's own work.
const FIRST: i32 = i32::MAX;

#[derive(Default)]
struct Pool {
    /// By priority, then arrival.
    queue: BTreeMap<(Reverse<i32>, u64), Work>,
    /// The number of the next job.
    number: u64,
    threads: usize,
    idle: usize,
}

/// Threads that do not wait for those of the other lane.
struct Lane {
    max_threads: usize,
    pool: Mutex<Pool>,
    work_arrived: Condvar,
}

impl Lane {
    const fn new(max_threads: usize) -> Self {
        Self {
            max_threads,
            pool: Mutex::new(Pool {
                queue: BTreeMap::new(),
                number: 0,
                threads: 0,
                idle: 0,
            }),
            work_arrived: Condvar::new(),
        }
    }
}

static NODE: Lane = Lane::new(MAX_THREADS);
/// Work that may wait for the packet filter, directly or not: a stuck `nft` delays pods on the bridge and nothing
/// else.
static BRIDGE: Lane = Lane::new(MAX_THREADS);

/// Work that nothing waits for.
static CLEANING: Lane = Lane::new(MAX_THREADS);

/// Looks at paths that pods start after: a dead file server delays nothing else.
static OUTSIDE: Lane = Lane::new(MAX_THREADS);

/// Looks at the paths of the node that pods use as volumes.
static HOST_PATHS: Lane = Lane::new(MAX_LOOKS);

/// Runs `work` on a thread of the default lane and waits for its result without blocking.
pub(super) async fn unblock<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    run(&NODE, FIRST, work).await
}

/// The same for work on a pod that has nothing to do with its network.
pub(super) async fn unblock_of<T: Send + 'static>(
    pod: &PodSpec,
    work: impl FnOnce() -> T + Send + 'static,
) -> T {
    run(&NODE, pod.priority, work).await
}

/// The same for work on the pods' network.
pub(super) async fn unblock_bridge<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> T {
    run(&BRIDGE, FIRST, work).await
}

/// The same for long work that nothing waits for.
pub(super) async fn unblock_cleaning<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> T {
    run(&CLEANING, FIRST, work).await
}

/// The same for paths that pods start after.
pub(super) async fn unblock_outside<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> T {
    run(&OUTSIDE, FIRST, work).await
}

/// The same for the paths of the node that pods use as volumes.
pub(super) async fn unblock_host_path<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> T {
    run(&HOST_PATHS, FIRST, work).await
}

/// The same for work that may concern the network of this pod.
pub(super) async fn unblock_for<T: Send + 'static>(
    pod: &PodSpec,
    work: impl FnOnce() -> T + Send + 'static,
) -> T {
    let lane = if pod.uses_bridge() { &BRIDGE } else { &NODE };
    run(lane, pod.priority, work).await
}

async fn run<T: Send + 'static>(
    lane: &'static Lane,
    priority: i32,
    work: impl FnOnce() -> T + Send + 'static,
) -> T {
    let (sender, receiver) = bounded(1);
    let work = Box::new(move || {
        let _ = sender.try_send(work());
    });
    submit(lane, priority, work);
    receiver
        .recv()
        .await
        .expect("the work sends its result unless it panics")
}

fn submit(lane: &'static Lane, priority: i32, work: Work) {
    let mut pool = lane.pool.lock().expect("no panic holds this lock");
    let number = pool.number;
    pool.number += 1;
    pool.queue.insert((Reverse(priority), number), work);
    if pool.queue.len() > pool.idle && pool.threads < lane.max_threads {
        let thread = std::thread::Builder::new()
            .name("unblock".into())
            .stack_size(STACK_BYTES);
        match thread.spawn(|| serve(lane)) {
            Ok(_) => pool.threads += 1,
            // A running thread gets to it; if there is none, the agent cannot work on this machine.
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
        if let Some((_, work)) = pool.queue.pop_first() {
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
