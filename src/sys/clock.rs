//! The clocks. No other file reads one.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use nix::time::{ClockId, clock_gettime};

/// A moment of CLOCK_MONOTONIC, for measuring and waiting within one process.
pub fn now() -> Instant {
    Instant::now()
}

/// The wall clock, for people.
pub fn timestamp() -> Timestamp {
    Timestamp::now()
}

/// Milliseconds of CLOCK_BOOTTIME.
pub fn boot_ms() -> u64 {
    u64::try_from(read(ClockId::CLOCK_BOOTTIME).as_millis()).unwrap_or(u64::MAX)
}

/// Microseconds of CLOCK_REALTIME since 1970.
pub fn wall_us() -> i64 {
    i64::try_from(read(ClockId::CLOCK_REALTIME).as_micros()).unwrap_or(i64::MAX)
}

/// Seconds and nanoseconds of CLOCK_REALTIME since 1970.
pub fn wall_ns() -> (i64, u32) {
    let now = read(ClockId::CLOCK_REALTIME);
    (
        i64::try_from(now.as_secs()).unwrap_or(i64::MAX),
        now.subsec_nanos(),
    )
}

/// Both clocks exist on every supported kernel, so reading them cannot fail.
fn read(clock: ClockId) -> Duration {
    clock_gettime(clock).map_or(Duration::ZERO, Duration::from)
}
