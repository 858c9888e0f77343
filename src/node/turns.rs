//! Who may begin, when many pods want to at once, as after a boot? A few at a time, those of the highest priority first:
//! on a small machine all would be slow together, and the urgent ones no sooner there than the others.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use smol::channel::{Sender, bounded};

/// How many pods begin at once. Half of the time of each is waiting for the kernel.
const AT_ONCE: usize = 4;

/// A queue of those who wait to begin.
#[derive(Debug, Clone)]
pub(super) struct Turns(Arc<Mutex<Queue>>);

#[derive(Debug)]
struct Queue {
    free: usize,
    /// Of the next that comes.
    number: u64,
    /// By priority, and by when they came.
    waiting: BTreeMap<(Reverse<i32>, u64), Sender<Turn>>,
}

/// Given to the next when it is dropped.
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
        turn.expect("whoever waits is given a turn before he is forgotten")
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
            // One who waits no longer drops what he is given, and so gives it on.
            let _ = next.try_send(Turn(self.0.clone()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_urgent_begin_first_and_those_who_gave_up_hold_up_nobody() {
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
