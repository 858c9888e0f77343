//! What time is it? The only reader of clocks.

/// Milliseconds of CLOCK_BOOTTIME.
pub fn boot_ms() -> u64 {
    let now = read(libc::CLOCK_BOOTTIME);
    u64::try_from(i64::from(now.tv_sec) * 1000 + i64::from(now.tv_nsec) / 1_000_000).unwrap_or(0)
}

/// Microseconds of CLOCK_REALTIME since 1970.
pub fn wall_us() -> i64 {
    let now = read(libc::CLOCK_REALTIME);
    i64::from(now.tv_sec) * 1_000_000 + i64::from(now.tv_nsec) / 1000
}

/// Seconds and nanoseconds of CLOCK_REALTIME since 1970.
pub fn wall_ns() -> (i64, u32) {
    let now = read(libc::CLOCK_REALTIME);
    (
        i64::from(now.tv_sec),
        u32::try_from(now.tv_nsec).unwrap_or(0),
    )
}

fn read(clock: libc::clockid_t) -> libc::timespec {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `now` is a valid timespec for the call to fill; both clocks exist on every supported kernel.
    unsafe { libc::clock_gettime(clock, &mut now) };
    now
}
