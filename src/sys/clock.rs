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

/// The first second of 2025: an earlier wall clock is not set.
const SET_SINCE_S: libc::time_t = 1_735_689_600;

/// Milliseconds since midnight of the local time zone; `None` while the clock is not set.
pub fn local_ms_of_day() -> Option<u64> {
    let (seconds, nanos) = wall_ns();
    let seconds = libc::time_t::try_from(seconds).ok()?;
    if seconds < SET_SINCE_S {
        return None;
    }
    unsafe extern "C" {
        safe fn tzset();
    }
    // `localtime_r` alone would not see that the time zone has changed.
    tzset();
    // SAFETY: an all-zero `tm` is valid: its pointer may be null.
    let mut local: libc::tm = unsafe { std::mem::zeroed() };
    // SAFETY: both pointers are valid for the time of the call, and `localtime_r` is thread-safe.
    let filled = unsafe { libc::localtime_r(&raw const seconds, &raw mut local) };
    if filled.is_null() {
        return None;
    }
    let of_day = (local.tm_hour * 60 + local.tm_min) * 60 + local.tm_sec.min(59);
    let of_day = u64::try_from(of_day).ok()?;
    Some(of_day * 1000 + u64::from(nanos) / 1_000_000)
}

/// Both clocks exist on every supported kernel, so reading them cannot fail.
fn read(clock: ClockId) -> Duration {
    clock_gettime(clock).map_or(Duration::ZERO, Duration::from)
}
