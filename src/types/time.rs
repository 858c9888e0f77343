//! Times: a monotonic clock for decisions, and the wall clock for display.

use serde::{Deserialize, Serialize};

/// Milliseconds of CLOCK_BOOTTIME, which counts suspended time and never jumps. Invalid after a reboot.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Time(pub u64);

impl Time {
    /// Returns the time `ms` milliseconds later.
    pub fn plus(self, ms: u64) -> Self {
        Self(self.0.saturating_add(ms))
    }

    /// Returns the milliseconds since `earlier`; 0 if that is later.
    pub fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// Microseconds of the wall clock since 1970, for display: of all decisions only those about CronJobs depend on it.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Wall(pub i64);

impl Wall {
    /// Whether the clock may be right: it shows a time since the first second of 2025.
    pub fn is_set(self) -> bool {
        self.0 >= 1_735_689_600_000_000
    }
}

/// A time on both clocks.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Stamp {
    /// Time for decisions.
    pub time: Time,
    /// Time for display.
    pub wall: Wall,
}

/// Parses a Go duration (`1m30s`, `100ms`, `0`) into milliseconds, rounded; `None` if it is invalid or negative.
pub fn duration_ms(text: &str) -> Option<u64> {
    if text == "0" {
        return Some(0);
    }
    if text.is_empty() {
        return None;
    }
    let (mut rest, mut total) = (text, 0.0);
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let amount: f64 = rest[..digits].parse().ok()?;
        let tail = &rest[digits..];
        let end = tail
            .find(|c: char| c.is_ascii_digit())
            .unwrap_or(tail.len());
        total += amount
            * match &tail[..end] {
                "ms" => 1.0,
                "s" => 1_000.0,
                "m" => 60_000.0,
                "h" => 3_600_000.0,
                "us" | "µs" => 0.001,
                _ => return None,
            };
        rest = &tail[end..];
    }
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "durations are positive, and what is too long saturates"
    )]
    Some(total.round() as u64)
}
