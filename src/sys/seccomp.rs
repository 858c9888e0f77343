//! A filter of system calls, for the calling thread and those it starts.

use std::io;

use libseccomp::error::{SeccompErrno, SeccompError};
use libseccomp::{
    ScmpAction, ScmpArch, ScmpArgCompare, ScmpCompareOp, ScmpFilterContext, ScmpSyscall,
};

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

/// An architecture whose programs this machine may run, as the kernel names it to a filter.
#[derive(Debug)]
pub struct Architecture {
    /// `AUDIT_ARCH_…`.
    pub token: u32,
    /// Whether arguments have 64 bits.
    pub is_wide: bool,
    /// Its sets of calls.
    pub sets: &'static [CallSet],
}

/// The calls of an architecture, or of one of its ABIs.
#[derive(Debug)]
pub struct CallSet {
    arch: ScmpArch,
    /// The number that its calls begin with.
    pub first: u32,
}

#[cfg(target_arch = "x86_64")]
const ARCHITECTURES: &[Architecture] = &[
    Architecture {
        token: 0xc000_003e,
        is_wide: true,
        sets: &[
            CallSet::new(ScmpArch::X8664, 0),
            CallSet::new(ScmpArch::X32, 0x4000_0000),
        ],
    },
    Architecture {
        token: 0x4000_0003,
        is_wide: false,
        sets: &[CallSet::new(ScmpArch::X86, 0)],
    },
];
#[cfg(target_arch = "aarch64")]
const ARCHITECTURES: &[Architecture] = &[
    Architecture {
        token: 0xc000_00b7,
        is_wide: true,
        sets: &[CallSet::new(ScmpArch::Aarch64, 0)],
    },
    ARM,
];
#[cfg(target_arch = "arm")]
const ARCHITECTURES: &[Architecture] = &[ARM];
#[cfg(any(target_arch = "arm", target_arch = "aarch64"))]
const ARM: Architecture = Architecture {
    token: 0x4000_0028,
    is_wide: false,
    sets: &[CallSet::new(ScmpArch::Arm, 0)],
};
#[cfg(target_arch = "riscv64")]
const ARCHITECTURES: &[Architecture] = &[Architecture {
    token: 0xc000_00f3,
    is_wide: true,
    sets: &[CallSet::new(ScmpArch::Riscv64, 0)],
}];

impl Architecture {
    /// The machine's own, and those whose programs it runs beside.
    pub fn of_this_machine() -> &'static [Self] {
        ARCHITECTURES
    }
}

/// Calls that libseccomp takes for parts of `socketcall` and `ipc` on x86, and Linux has had of their own since 4.3 and
/// 5.1.
const OWN_ON_X86: [(&str, u32); 27] = [
    ("recvmmsg", 337),
    ("sendmmsg", 345),
    ("socket", 359),
    ("socketpair", 360),
    ("bind", 361),
    ("connect", 362),
    ("listen", 363),
    ("accept4", 364),
    ("getsockopt", 365),
    ("setsockopt", 366),
    ("getsockname", 367),
    ("getpeername", 368),
    ("sendto", 369),
    ("sendmsg", 370),
    ("recvfrom", 371),
    ("recvmsg", 372),
    ("shutdown", 373),
    ("semget", 393),
    ("semctl", 394),
    ("shmget", 395),
    ("shmctl", 396),
    ("shmat", 397),
    ("shmdt", 398),
    ("msgget", 399),
    ("msgsnd", 400),
    ("msgrcv", 401),
    ("msgctl", 402),
];

impl CallSet {
    const fn new(arch: ScmpArch, first: u32) -> Self {
        Self { arch, first }
    }

    /// The number of a call; `None` if there is none, or libseccomp does not know it.
    pub fn number(&self, name: &str) -> Option<u32> {
        if self.arch == ScmpArch::X86
            && let Some((_, number)) = OWN_ON_X86.iter().find(|(call, _)| *call == name)
        {
            return Some(*number);
        }
        let call = ScmpSyscall::from_name_by_arch(name, self.arch).ok()?;
        // Negative numbers stand for the calls of other architectures.
        u32::try_from(i32::from(call)).ok()
    }

    /// The name of a call.
    pub fn name(&self, number: u32) -> Option<String> {
        let call = ScmpSyscall::from_raw_syscall(i32::try_from(number).ok()?);
        call.get_name_by_arch(self.arch).ok()
    }
}

/// Puts a program of `struct sock_filter`s in force for the calling thread, which needs CAP_SYS_ADMIN or `no_new_privs`.
pub fn load(program: &[u8]) -> io::Result<()> {
    let steps = program.chunks_exact(8).map(|step| libc::sock_filter {
        code: u16::from_ne_bytes([step[0], step[1]]),
        jt: step[2],
        jf: step[3],
        k: u32::from_ne_bytes([step[4], step[5], step[6], step[7]]),
    });
    let mut steps: Vec<_> = steps.collect();
    let program = libc::sock_fprog {
        len: u16::try_from(steps.len()).map_err(|_| io::ErrorKind::InvalidData)?,
        filter: steps.as_mut_ptr(),
    };
    let mode = libc::SECCOMP_SET_MODE_FILTER;
    // SAFETY: the kernel copies the program, whose steps live until the call returns.
    match unsafe { libc::syscall(libc::SYS_seccomp, mode, 0u32, &raw const program) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Whether the kernel has filters: without a program it reports a bad address.
pub fn is_supported() -> bool {
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
