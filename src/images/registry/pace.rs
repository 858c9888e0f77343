//! How fast data arrives. A peer that sends a byte now and then never stalls, and would never end.

use std::time::{Duration, Instant};

use super::request::MIN_BYTES;
use crate::sys::clock;

/// Counts what arrives in each window of time.
#[derive(Debug)]
pub(super) struct Pace {
    window: Duration,
    begun: Instant,
    bytes: u64,
}

impl Pace {
    pub(super) fn new(window: Duration) -> Self {
        Self {
            window,
            begun: clock::now(),
            bytes: 0,
        }
    }

    /// Counts bytes; `false` if the window that ends now had too few.
    pub(super) fn keeps(&mut self, bytes: usize) -> bool {
        self.keeps_at(bytes, clock::now())
    }

    fn keeps_at(&mut self, bytes: usize, now: Instant) -> bool {
        self.bytes += bytes as u64;
        if now.duration_since(self.begun) < self.window {
            return true;
        }
        let enough = self.bytes >= MIN_BYTES;
        (self.begun, self.bytes) = (now, 0);
        enough
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_window_needs_enough_bytes() {
        let window = Duration::from_secs(10);
        let mut pace = Pace::new(window);
        let start = pace.begun;
        let enough = usize::try_from(MIN_BYTES).unwrap();
        for (after, bytes, expected) in [
            (1, 1, true),
            (9, 1, true),
            (10, enough - 2, true),
            (11, 0, true),
            (19, 0, true),
            (20, 10, false),
            (31, enough, true),
            (41, enough - 1, false),
        ] {
            let now = start + Duration::from_secs(after);
            assert_eq!(pace.keeps_at(bytes, now), expected, "after {after}s");
        }
    }
}
