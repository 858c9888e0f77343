//! The synchronisation of the kernel's clock.

/// Whether a program (NTP, PTP) keeps the clock synchronised.
pub fn is_synchronized() -> bool {
    // SAFETY: all-zero is a valid `timex` that asks for nothing to be changed.
    let mut timex: libc::timex = unsafe { std::mem::zeroed() };
    // SAFETY: `timex` is valid for the kernel to fill in.
    let state = unsafe { libc::adjtimex(&raw mut timex) };
    state >= 0 && state != libc::TIME_ERROR && timex.status & libc::STA_UNSYNC == 0
}
