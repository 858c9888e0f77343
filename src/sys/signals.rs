//! Which signals reach whom? The shim reads its own from a descriptor; programs it starts get a clean slate.

use std::io;

use nix::sys::signal::{SigSet, SigmaskHow, Signal, sigprocmask};
use nix::sys::signalfd::{SfdFlags, SignalFd};

/// Blocks `signals` for good and returns the descriptor they are read from.
pub fn watch(signals: &[Signal]) -> io::Result<SignalFd> {
    let mut set = SigSet::empty();
    for signal in signals {
        set.add(*signal);
    }
    sigprocmask(SigmaskHow::SIG_BLOCK, Some(&set), None)?;
    Ok(SignalFd::with_flags(
        &set,
        SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC,
    )?)
}

/// Nothing blocked, nothing ignored: what a program expects at its start. Rust's runtime ignores SIGPIPE, and the
/// shim blocks what it reads from a descriptor; both would be inherited across an exec.
pub fn reset() {
    for signal in 1..=64 {
        // SAFETY: setting a default disposition touches no memory; invalid numbers only fail.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
    // Emptying the mask cannot fail.
    let _ = sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::empty()), None);
}
