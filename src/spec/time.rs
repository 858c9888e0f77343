//! What is a moment? A number that only grows, for deciding, and a wall-clock stamp beside it, for showing.

use serde::{Deserialize, Serialize};

/// Milliseconds of CLOCK_BOOTTIME: grows also while the machine sleeps, never jumps. Means nothing after a reboot.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Time(pub u64);

impl Time {
    /// This moment and `ms` milliseconds more.
    pub fn plus(self, ms: u64) -> Self {
        Self(self.0.saturating_add(ms))
    }

    /// Milliseconds since `earlier`, 0 if that is later.
    pub fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// Microseconds of the wall clock since 1970, for display only: nothing is ever decided by it.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Wall(pub i64);

/// One moment on both clocks.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Stamp {
    /// For deciding.
    pub time: Time,
    /// For showing.
    pub wall: Wall,
}
