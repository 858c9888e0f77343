//! A filter of system calls, for the calling thread and those it starts.

use std::io;

use libseccomp::error::{SeccompErrno, SeccompError};
use libseccomp::{ScmpAction, ScmpArgCompare, ScmpCompareOp, ScmpFilterContext, ScmpSyscall};

/// Lets a call through only with some values of an argument.
#[derive(Debug, Clone, Copy)]
pub struct Condition {
    /// The call's name.
    pub call: &'static str,
    /// The argument's number, from 0.
    pub argument: u32,
    /// The bits that count.
    pub mask: u64,
    /// What they must be.
    pub value: u64,
}

/// Lets only these calls through, and those that meet one of the conditions; the names of all architectures may be
/// given. Any other call fails with ENOSYS, as if the kernel did not have it: C libraries then use an older one. A call
/// by the numbers of another architecture, x32 included, kills the process. The thread gets `no_new_privs`. Returns
/// `false`, with nothing changed, where the kernel has no filters.
pub fn allow_only<'a>(
    calls: impl IntoIterator<Item = &'a str>,
    conditions: &[Condition],
) -> io::Result<bool> {
    if !is_supported() {
        return Ok(false);
    }
    let mut filter = ScmpFilterContext::new(ScmpAction::Errno(libc::ENOSYS)).map_err(failed)?;
    filter
        .set_act_badarch(ScmpAction::KillProcess)
        .map_err(failed)?;
    // The processor's speculation need not be limited for it: the program stays coracle's own.
    // A kernel before Linux 4.17 cannot be told so.
    let _ = filter.set_ctl_ssb(true);
    for call in calls.into_iter().filter_map(number) {
        filter.add_rule(ScmpAction::Allow, call).map_err(failed)?;
    }
    for condition in conditions {
        let Some(call) = number(condition.call) else {
            continue;
        };
        let masked = ScmpCompareOp::MaskedEqual(condition.mask);
        let compared = ScmpArgCompare::new(condition.argument, masked, condition.value);
        filter
            .add_rule_conditional(ScmpAction::Allow, call, &[compared])
            .map_err(failed)?;
    }
    filter.load().map_err(failed)?;
    Ok(true)
}

/// The version of libseccomp in this program: `2.5.4`.
pub fn library_version() -> String {
    let version = libseccomp::ScmpVersion::current();
    version.map_or_else(|_| String::new(), |version| version.to_string())
}

/// Whether the kernel has filters: without a program it reports a bad address.
fn is_supported() -> bool {
    let nothing = std::ptr::null::<libc::sock_fprog>();
    // SAFETY: the kernel refuses the null pointer, or the whole operation.
    unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            0u32,
            nothing,
        )
    };
    io::Error::last_os_error().raw_os_error() == Some(libc::EFAULT)
}

/// The call's number here; `None` if this architecture does not have it, or libseccomp does not know it.
fn number(name: &str) -> Option<ScmpSyscall> {
    let call = ScmpSyscall::from_name(name).ok()?;
    // Negative numbers stand for the calls of other architectures.
    (i32::from(call) >= 0).then_some(call)
}

fn failed(why: SeccompError) -> io::Error {
    match why.errno() {
        Some(SeccompErrno::ENOMEM) => io::ErrorKind::OutOfMemory.into(),
        _ => io::Error::other(why.to_string()),
    }
}
