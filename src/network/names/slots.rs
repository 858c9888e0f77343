//! Limits on concurrent use: a number of slots in all, and for each client.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Slots that are taken and given back.
#[derive(Debug)]
pub(super) struct Slots {
    limit: usize,
    limit_each: usize,
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    all: usize,
    by_client: HashMap<IpAddr, usize>,
}

/// One slot, given back on drop.
#[derive(Debug)]
pub(super) struct Slot {
    slots: Arc<Slots>,
    client: IpAddr,
}

impl Slots {
    pub(super) fn new(limit: usize, limit_each: usize) -> Arc<Self> {
        Arc::new(Self {
            limit,
            limit_each,
            taken: Mutex::default(),
        })
    }

    /// `None`: no slot is free, at least for this client.
    pub(super) fn take(self: &Arc<Self>, client: IpAddr) -> Option<Slot> {
        let mut taken = self.lock();
        let mine = taken.by_client.get(&client).copied().unwrap_or(0);
        if taken.all >= self.limit || mine >= self.limit_each {
            return None;
        }
        taken.all += 1;
        taken.by_client.insert(client, mine + 1);
        Some(Slot {
            slots: self.clone(),
            client,
        })
    }

    fn lock(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut taken = self.slots.lock();
        taken.all -= 1;
        if let Some(mine) = taken.by_client.get_mut(&self.client) {
            *mine -= 1;
            if *mine == 0 {
                taken.by_client.remove(&self.client);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_client_cannot_take_all_places_and_gets_them_again_once_given_back() {
        let slots = Slots::new(3, 2);
        let [a, b] = [1, 2].map(|n| IpAddr::from([10, 0, 0, n]));
        let held = [slots.take(a), slots.take(a)];
        assert!(held.iter().all(Option::is_some) && slots.take(a).is_none());
        let other = slots.take(b);
        assert!(other.is_some() && slots.take(b).is_none());
        drop((held, other));
        assert!(slots.lock().by_client.is_empty() && slots.take(a).is_some());
    }
}
