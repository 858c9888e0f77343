//! Signal masks and handlers. The shim reads its signals from a descriptor; programs that it starts get the
//! defaults.

use std::io;

use nix::sys::signal::{SigHandler, SigSet, SigmaskHow, Signal, signal, sigprocmask};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::time::TimeSpec;

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

/// The signals that are not ignored. What a program finds ignored at its start, as by `nohup`, is to stay so.
pub fn heeded(signals: &[Signal]) -> Vec<Signal> {
    let ignored = |signal: Signal| {
        let mut now = std::mem::MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY: nothing is set, and the C library writes one sigaction; all zero is a valid one, too.
        let now = unsafe {
            libc::sigaction(signal as i32, std::ptr::null(), now.as_mut_ptr());
            now.assume_init()
        };
        now.sa_sigaction == libc::SIG_IGN
    };
    let all = signals.iter().copied();
    all.filter(|signal| !ignored(*signal)).collect()
}

/// Unblocks all signals and resets their handlers, which a program expects at its start. Rust's runtime ignores
/// SIGPIPE, and the shim blocks the signals that it reads from a descriptor; both would be inherited across an
/// exec.
pub fn reset() {
    // All zero means "default" in every architecture's layout. By system call, because the C library refuses to
    // touch signals 32 and 33, which the parent may have ignored.
    let default = [0u64; 8];
    for number in 1..=64 as libc::c_long {
        // SAFETY: the kernel reads one sigaction, which is shorter than the buffer, and is not asked for the old one;
        // numbers it does not let anyone change only fail.
        unsafe {
            let old: *mut u64 = std::ptr::null_mut();
            libc::syscall(
                libc::SYS_rt_sigaction,
                number,
                default.as_ptr(),
                old,
                8usize,
            );
        }
    }
    // Emptying the mask cannot fail.
    let _ = sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::empty()), None);
}

/// Lets the kernel reap this process's children, as it does for parents that ignore their end.
pub fn let_kernel_reap() -> io::Result<()> {
    // SAFETY: ignoring a signal runs no code of ours.
    unsafe { signal(Signal::SIGCHLD, SigHandler::SigIgn) }?;
    Ok(())
}

/// Lets SIGPIPE end the process, as it does for programs that are not written in Rust.
pub fn default_sigpipe() -> io::Result<()> {
    // SAFETY: the default action runs no code of ours.
    unsafe { signal(Signal::SIGPIPE, SigHandler::SigDfl) }?;
    Ok(())
}

/// SIGPIPE is blocked for this thread as long as this exists, and one that arrived meanwhile is forgotten.
#[derive(Debug)]
pub struct WithoutSigpipe {
    before: SigSet,
}

/// Writes of this thread to a pipe without a reader fail, and do not end the process.
pub fn without_sigpipe() -> io::Result<WithoutSigpipe> {
    let mut set = SigSet::empty();
    set.add(Signal::SIGPIPE);
    let before = set.thread_swap_mask(SigmaskHow::SIG_BLOCK)?;
    Ok(WithoutSigpipe { before })
}

impl Drop for WithoutSigpipe {
    fn drop(&mut self) {
        if !self.before.contains(Signal::SIGPIPE) {
            let mut set = SigSet::empty();
            set.add(Signal::SIGPIPE);
            let none = TimeSpec::new(0, 0);
            // SAFETY: the kernel reads one set and one time, and is not asked for details. It fails if there is none.
            unsafe { libc::sigtimedwait(set.as_ref(), std::ptr::null_mut(), none.as_ref()) };
        }
        let _ = self.before.thread_set_mask();
    }
}
