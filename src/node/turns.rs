//! Turns at pod start, for when many pods start at once, as after a boot. A few start at a time, by priority: on a
//! small machine all together would be slow, and the urgent ones would be no sooner up than the others.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use smol::channel::{Sender, bounded};

/// How many pods start at once. Half of the time of each is waiting for the kernel.
const AT_ONCE: usize = 4;

/// The queue of pods that wait to start.
#[derive(Debug, Clone)]
pub(super) struct Turns(Arc<Mutex<Queue>>);

#[derive(Debug)]
struct Queue {
    free: usize,
    /// The ticket of the next arrival.
    number: u64,
    /// By priority, then arrival.
    waiting: BTreeMap<(Reverse<i32>, u64), Sender<Turn>>,
}

/// A turn, passed on to the next in the queue when it is dropped.
#[derive(Debug)]
pub(super) struct Turn(Turns);

impl Default for Turns {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(Queue {
            free: AT_ONCE,
            number: 0,
            waiting: BTreeMap::new(),
        })))
    }
}

impl Turns {
    /// Waits for a turn.
    pub(super) async fn take(&self, priority: i32) -> Turn {
        let given = {
            let mut queue = self.queue();
            if queue.free > 0 {
                queue.free -= 1;
                return Turn(self.clone());
            }
            let (sender, given) = bounded(1);
            let number = queue.number;
            queue.number += 1;
            queue.waiting.insert((Reverse(priority), number), sender);
            given
        };
        let turn = given.recv().await;
        turn.expect("a waiter is given its turn before its entry is removed")
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.0.lock().expect("no panic holds this lock")
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let next = {
            let mut queue = self.0.queue();
            let next = queue.waiting.pop_first();
            if next.is_none() {
                queue.free += 1;
            }
            next
        };
        if let Some((_, next)) = next {
            // A waiter that was dropped drops the turn that it is given, and so passes it on.
            let _ = next.try_send(Turn(self.0.clone()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_urgent_begin_first_and_dropped_waiters_delay_no_other() {
        let turns = Turns::default();
        let executor = smol::LocalExecutor::new();
        smol::block_on(executor.run(async {
            let mut held = Vec::new();
            for _ in 0..AT_ONCE {
                held.push(turns.take(0).await);
            }
            let order = std::rc::Rc::new(std::cell::RefCell::new(Vec::new()));
            let wait = |name: &'static str, priority| {
                let (turns, order) = (turns.clone(), order.clone());
                executor.spawn(async move {
                    let _turn = turns.take(priority).await;
                    order.borrow_mut().push(name);
                })
            };
            let low = wait("low", -1);
            let first = wait("first", 0);
            let gone = wait("gone", 2_000);
            let second = wait("second", 0);
            let high = wait("high", 1_000);
            while turns.queue().waiting.len() < 5 {
                smol::future::yield_now().await;
            }
            gone.cancel().await;
            held.pop();
            smol::future::zip(
                smol::future::zip(low, first),
                smol::future::zip(second, high),
            )
            .await;
            assert_eq!(*order.borrow(), ["high", "first", "second", "low"]);
            drop(held);
            let queue = turns.queue();
            assert_eq!((queue.free, queue.waiting.len()), (AT_ONCE, 0));
        }));
    }
}
