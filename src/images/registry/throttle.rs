//! The limit on how fast blobs arrive (`coracle.pullRate`), for all connections of a worker together.

use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::sys::clock;

/// Lets so many bytes a second through. What a limit holds back waits at the sender, by TCP's flow control.
#[derive(Debug)]
pub(super) struct Throttle {
    bytes_per_second: u64,
    /// When the next bytes may arrive.
    next: Mutex<Option<Instant>>,
}

impl Throttle {
    /// Without a limit if 0.
    pub(super) fn new(bytes_per_second: u64) -> Self {
        Self {
            bytes_per_second,
            next: Mutex::default(),
        }
    }

    /// How many of up to `most` bytes are to be read at once, so that none waits for long.
    pub(super) fn piece(&self, most: usize) -> usize {
        match self.bytes_per_second {
            0 => most,
            rate => usize::try_from(rate / 4).map_or(most, |piece| piece.clamp(1, most)),
        }
    }

    /// Waits until so many bytes may have arrived.
    pub(super) fn pass(&self, bytes: usize) {
        let wait = self.wait(bytes, clock::now());
        if !wait.is_zero() {
            thread::sleep(wait);
        }
    }

    fn wait(&self, bytes: usize, now: Instant) -> Duration {
        if self.bytes_per_second == 0 {
            return Duration::ZERO;
        }
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        let micros = (bytes as u64).saturating_mul(1_000_000) / self.bytes_per_second;
        let done = next.map_or(now, |next| next.max(now)) + Duration::from_micros(micros);
        *next = Some(done);
        done.duration_since(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_connections_share_one_rate_and_a_rest_earns_no_burst() {
        let throttle = Throttle::new(1000);
        let start = clock::now();
        let at = |ms| start + Duration::from_millis(ms);
        for (now, bytes, expected) in [
            (0, 250, 250),
            (0, 250, 500),
            (400, 100, 200),
            (600, 100, 100),
            (9000, 100, 100),
        ] {
            let wait = throttle.wait(bytes, at(now));
            assert_eq!(wait, Duration::from_millis(expected), "at {now}");
        }
        assert_eq!(throttle.piece(64 << 10), 250);
        let free = Throttle::new(0);
        assert_eq!(free.wait(usize::MAX, start), Duration::ZERO);
        assert_eq!(free.piece(64 << 10), 64 << 10);
    }
}
