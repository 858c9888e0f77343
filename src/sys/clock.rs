//! What time is it? The only place that reads clocks.

use nix::time::{ClockId, clock_gettime};

/// Milliseconds of CLOCK_BOOTTIME.
pub fn boot_ms() -> u64 {
    let now =
        clock_gettime(ClockId::CLOCK_BOOTTIME).expect("CLOCK_BOOTTIME exists since Linux 2.6.39");
    u64::try_from(now.tv_sec()).unwrap_or(0) * 1000
        + u64::try_from(now.tv_nsec()).unwrap_or(0) / 1_000_000
}

/// Microseconds of CLOCK_REALTIME since 1970.
pub fn wall_us() -> i64 {
    let now = clock_gettime(ClockId::CLOCK_REALTIME).expect("CLOCK_REALTIME always exists");
    i64::from(now.tv_sec()) * 1_000_000 + i64::from(now.tv_nsec()) / 1000
}
