//! The `RuntimeDefault` seccomp profile: the allow list of other runtimes.
//!
//! Compared call by call with `seccomp/default_linux.go` of github.com/moby/profiles at commit 02e898b137ae (autumn 2026,
//! Linux 6.13's calls) on 2026-11-22.
//! A test fails when the table changes, until it was compared again. Deliberate differences:
//! - `socketcall` of 32-bit machines is refused: it hides the address family behind a pointer, so that it would reach
//!   every family refused here. C libraries ask for `socket` itself first since Linux 4.3 has it everywhere.
//! - Calls the profile does not know, such as `file_getattr`, fail with ENOSYS.
//!
//! Known calls that are not allowed fail with EPERM. Calls that libseccomp did not know at its build fail with
//! ENOSYS: C libraries fall back to older calls only on that. Names that an architecture or libseccomp does not have
//! are skipped when the filter is built.

mod filter;

pub use filter::filter;

use std::collections::BTreeSet;

use libcontainer::oci_spec::runtime::{
    LinuxSeccomp, LinuxSeccompAction as Action, LinuxSeccompArg, LinuxSeccompArgBuilder,
    LinuxSeccompOperator as Operator, LinuxSyscall,
};

use crate::types::Gather;

/// Allowed for all containers.
const ALWAYS: &str = "\
    accept accept4 access adjtimex alarm bind brk cachestat capget capset chdir chmod chown chown32 clock_adjtime \
    clock_adjtime64 clock_getres clock_getres_time64 clock_gettime clock_gettime64 clock_nanosleep \
    clock_nanosleep_time64 close close_range connect copy_file_range creat dup dup2 dup3 epoll_create epoll_create1 \
    epoll_ctl epoll_ctl_old epoll_pwait epoll_pwait2 epoll_wait epoll_wait_old eventfd eventfd2 execve execveat exit \
    exit_group faccessat faccessat2 fadvise64 fadvise64_64 fallocate fanotify_mark fchdir fchmod fchmodat fchmodat2 \
    fchown fchown32 fchownat fcntl fcntl64 fdatasync fgetxattr flistxattr flock fork fremovexattr fsetxattr fstat \
    fstat64 fstatat64 fstatfs fstatfs64 fsync ftruncate ftruncate64 futex futex_requeue futex_time64 futex_wait \
    futex_waitv futex_wake futimesat get_robust_list get_thread_area getcpu getcwd getdents getdents64 getegid \
    getegid32 geteuid geteuid32 getgid getgid32 getgroups getgroups32 getitimer getpeername getpgid getpgrp getpid \
    getppid getpriority getrandom getresgid getresgid32 getresuid getresuid32 getrlimit getrusage getsid getsockname \
    getsockopt gettid gettimeofday getuid getuid32 getxattr getxattrat inotify_add_watch inotify_init inotify_init1 \
    inotify_rm_watch io_cancel io_destroy io_getevents io_pgetevents io_pgetevents_time64 io_setup io_submit ioctl \
    ioprio_get ioprio_set ipc kill landlock_add_rule landlock_create_ruleset landlock_restrict_self lchown lchown32 \
    lgetxattr link linkat listen listmount listxattr listxattrat llistxattr _llseek lremovexattr lseek lsetxattr lstat lstat64 madvise \
    map_shadow_stack membarrier memfd_create memfd_secret mincore mkdir mkdirat mknod mknodat mlock mlock2 mlockall \
    mmap mmap2 mprotect mq_getsetattr mq_notify mq_open mq_timedreceive mq_timedreceive_time64 mq_timedsend \
    mq_timedsend_time64 mq_unlink mremap mseal msgctl msgget msgrcv msgsnd msync munlock munlockall munmap \
    name_to_handle_at nanosleep newfstatat _newselect open openat openat2 pause pidfd_open pidfd_send_signal pipe \
    pipe2 pkey_alloc pkey_free pkey_mprotect poll ppoll ppoll_time64 prctl pread64 preadv preadv2 prlimit64 \
    process_mrelease process_vm_readv process_vm_writev pselect6 pselect6_time64 ptrace pwrite64 pwritev pwritev2 \
    read readahead readlink readlinkat readv recv recvfrom recvmmsg recvmmsg_time64 recvmsg remap_file_pages \
    removexattr removexattrat rename renameat renameat2 restart_syscall rmdir rseq rt_sigaction rt_sigpending rt_sigprocmask \
    rt_sigqueueinfo rt_sigreturn rt_sigsuspend rt_sigtimedwait rt_sigtimedwait_time64 rt_tgsigqueueinfo \
    sched_get_priority_max sched_get_priority_min sched_getaffinity sched_getattr sched_getparam sched_getscheduler \
    sched_rr_get_interval sched_rr_get_interval_time64 sched_setaffinity sched_setattr sched_setparam \
    sched_setscheduler sched_yield seccomp select semctl semget semop semtimedop semtimedop_time64 send sendfile \
    sendfile64 sendmmsg sendmsg sendto set_robust_list set_thread_area set_tid_address setfsgid setfsgid32 setfsuid \
    setfsuid32 setgid setgid32 setgroups setgroups32 setitimer setpgid setpriority setregid setregid32 setresgid \
    setresgid32 setresuid setresuid32 setreuid setreuid32 setrlimit setsid setsockopt setuid setuid32 setxattr setxattrat shmat \
    shmctl shmdt shmget shutdown sigaltstack signalfd signalfd4 sigprocmask sigreturn socketpair splice \
    stat stat64 statfs statfs64 statmount statx symlink symlinkat sync sync_file_range syncfs sysinfo tee tgkill time \
    timer_create timer_delete timer_getoverrun timer_gettime timer_gettime64 timer_settime timer_settime64 \
    timerfd_create timerfd_gettime timerfd_gettime64 timerfd_settime timerfd_settime64 times tkill truncate \
    truncate64 ugetrlimit umask uname unlink unlinkat utime utimensat utimensat_time64 utimes vfork vmsplice wait4 \
    waitid waitpid write writev";

/// Allowed on one architecture: Rust's name for it, calls.
const BY_ARCHITECTURE: &[(&str, &str)] = &[
    ("x86_64", "arch_prctl modify_ldt uretprobe"),
    ("x86", "modify_ldt"),
    (
        "arm",
        "arm_fadvise64_64 arm_sync_file_range breakpoint cacheflush set_tls sync_file_range2",
    ),
    (
        "aarch64",
        "arm_fadvise64_64 arm_sync_file_range breakpoint cacheflush set_tls sync_file_range2",
    ),
    ("riscv64", "riscv_flush_icache riscv_hwprobe"),
];

/// Allowed with a capability.
const BY_CAPABILITY: &[(&str, &str)] = &[
    ("CAP_BPF", "bpf"),
    ("CAP_DAC_READ_SEARCH", "open_by_handle_at"),
    ("CAP_PERFMON", "perf_event_open"),
    (
        SYS_ADMIN,
        "bpf clone clone3 fanotify_init fsconfig fsmount fsopen fspick lookup_dcookie lsm_get_self_attr \
         lsm_list_modules lsm_set_self_attr mount mount_setattr move_mount open_tree perf_event_open quotactl \
         quotactl_fd setdomainname sethostname setns syslog umount umount2 unshare",
    ),
    ("CAP_SYS_BOOT", "reboot"),
    ("CAP_SYS_CHROOT", "chroot"),
    ("CAP_SYS_MODULE", "delete_module finit_module init_module"),
    (
        "CAP_SYS_NICE",
        "get_mempolicy mbind set_mempolicy set_mempolicy_home_node",
    ),
    ("CAP_SYS_PACCT", "acct"),
    ("CAP_SYS_PTRACE", "kcmp pidfd_getfd process_madvise"),
    ("CAP_SYS_RAWIO", "ioperm iopl"),
    (
        "CAP_SYS_TIME",
        "clock_settime clock_settime64 settimeofday stime",
    ),
    ("CAP_SYS_TTY_CONFIG", "vhangup"),
    ("CAP_SYSLOG", "syslog"),
];

const SYS_ADMIN: &str = "CAP_SYS_ADMIN";

/// Allowed for no container. Like the calls of missing capabilities they fail with EPERM, not ENOSYS.
const NEVER: &str = "\
    add_key io_uring_enter io_uring_register io_uring_setup kexec_file_load kexec_load keyctl migrate_pages move_pages \
    nfsservctl pivot_root request_key socketcall swapoff swapon sysfs _sysctl uselib userfaultfd ustat vm86 vm86old";

/// The allowed arguments of `personality`: Linux, Linux 32, both without randomised addresses, and the query.
const PERSONALITIES: [u64; 5] = [0x0, 0x8, 0x2_0000, 0x2_0008, 0xffff_ffff];

/// Address families that containers may not use: AF_ALG (38), which exposes the kernel's cryptography
/// (CVE-2026-31431 wrote to the page cache through it), AF_VSOCK (40), which reaches the host of a virtual machine
/// past all network policy, and those that newer kernels dropped: DECnet, Econet, ATMSVC, IrDA, WANPIPE, ISDN,
/// CAIF.
const REFUSED_FAMILIES: [u64; 9] = [12, 19, 20, 23, 25, 34, 37, 38, 40];

/// AF_MCTP, the newest known address family.
const AF_NEWEST: u64 = 45;

/// CLONE_NEW{NS,CGROUP,UTS,IPC,USER,PID,NET}: none of them may be set.
const CLONE_NAMESPACES: u64 = 0x7e02_0000;

/// Linux: not permitted.
const EPERM: u32 = 1;

/// Linux: no such system call. Also makes programs fall back from `clone3`, whose flags a filter cannot see, to `clone`.
const ENOSYS: u32 = 38;

/// The RuntimeDefault profile for a container with these capabilities (`CAP_…`).
pub fn runtime_default(capabilities: &BTreeSet<String>) -> LinuxSeccomp {
    let administrator = capabilities.contains(SYS_ADMIN);
    let mut allowed: BTreeSet<&str> = ALWAYS.split_whitespace().gather();
    for (architecture, calls) in BY_ARCHITECTURE {
        if *architecture == std::env::consts::ARCH {
            allowed.extend(calls.split_whitespace());
        }
    }
    let mut refused: BTreeSet<&str> = NEVER.split_whitespace().gather();
    for (capability, calls) in BY_CAPABILITY {
        let list = match capabilities.contains(*capability) {
            true => &mut allowed,
            false => &mut refused,
        };
        list.extend(calls.split_whitespace());
    }
    // Some calls come with either of two capabilities; `clone` and `clone3` have rules of their own.
    refused.retain(|name| !allowed.contains(name) && !["clone", "clone3"].contains(name));
    let mut rules = vec![
        rule(allowed, Action::ScmpActAllow, None),
        rule(refused, Action::ScmpActErrno, None),
    ];
    for value in PERSONALITIES {
        let equal = argument(value, None, Operator::ScmpCmpEq);
        rules.push(rule(["personality"], Action::ScmpActAllow, Some(equal)));
    }
    socket_rules(&mut rules);
    if !administrator {
        clone_rules(&mut rules);
    }
    let mut profile = LinuxSeccomp::default();
    profile.set_default_action(Action::ScmpActErrno);
    profile.set_default_errno_ret(Some(ENOSYS));
    // No architecture named: a shim before 0.3 has libseccomp make the filter, for the native one only.
    profile.set_architectures(None);
    profile.set_syscalls(Some(rules));
    profile
}

/// Every known family that is not refused. A rule like "not AF_VSOCK" is unsafe: filters compare 64 bits, and the
/// kernel then drops the upper half. Exactly one rule fits each value: libseccomp does not define which of two
/// would win.
fn socket_rules(rules: &mut Vec<LinuxSyscall>) {
    let mut add = |action, value, operator| {
        let argument = argument(value, None, operator);
        rules.push(rule(["socket"], action, Some(argument)));
    };
    let first_refused = REFUSED_FAMILIES[0];
    add(Action::ScmpActAllow, first_refused, Operator::ScmpCmpLt);
    for family in first_refused..=AF_NEWEST {
        let action = match REFUSED_FAMILIES.contains(&family) {
            true => Action::ScmpActErrno,
            false => Action::ScmpActAllow,
        };
        add(action, family, Operator::ScmpCmpEq);
    }
    add(Action::ScmpActErrno, AF_NEWEST, Operator::ScmpCmpGt);
}

/// `clone` without namespaces. `clone3` is left to the default, which is ENOSYS.
fn clone_rules(rules: &mut Vec<LinuxSyscall>) {
    // libcontainer takes the mask from the second value, other runtimes from the first.
    let none_set = argument(0, Some(CLONE_NAMESPACES), Operator::ScmpCmpMaskedEq);
    rules.push(rule(["clone"], Action::ScmpActAllow, Some(none_set)));
    for bit in (0..u64::BITS).map(|shift| 1 << shift) {
        if CLONE_NAMESPACES & bit != 0 {
            let set = argument(bit, Some(bit), Operator::ScmpCmpMaskedEq);
            rules.push(rule(["clone"], Action::ScmpActErrno, Some(set)));
        }
    }
}

fn rule<'a>(
    names: impl IntoIterator<Item = &'a str>,
    action: Action,
    argument: Option<LinuxSeccompArg>,
) -> LinuxSyscall {
    let mut rule = LinuxSyscall::default();
    rule.set_names(names.into_iter().map(str::to_owned).collect());
    rule.set_action(action);
    if action == Action::ScmpActErrno {
        rule.set_errno_ret(Some(EPERM));
    }
    rule.set_args(argument.map(|argument| vec![argument]));
    rule
}

fn argument(value: u64, value_two: Option<u64>, op: Operator) -> LinuxSeccompArg {
    let mut builder = LinuxSeccompArgBuilder::default()
        .index(0usize)
        .value(value)
        .op(op);
    if let Some(value_two) = value_two {
        builder = builder.value_two(value_two);
    }
    builder
        .build()
        .expect("every field without a default is set above")
}

#[cfg(test)]
mod tests {
    use sha2::{Digest, Sha256};

    use super::*;

    fn allowed(capabilities: &[&str], call: &str) -> bool {
        let set = capabilities.iter().map(|name| (*name).to_owned()).collect();
        let profile = runtime_default(&set);
        profile.syscalls().iter().flatten().any(|rule| {
            rule.action() == Action::ScmpActAllow
                && rule.args().is_none()
                && rule.names().iter().any(|name| name == call)
        })
    }

    #[test]
    fn capabilities_open_their_calls_and_no_others() {
        assert!(allowed(&[], "openat"));
        assert!(!allowed(&[], "mount"));
        assert!(allowed(&["CAP_SYS_ADMIN"], "mount"));
        assert!(!allowed(&["CAP_SYS_ADMIN"], "reboot"));
        assert!(!allowed(&["CAP_CHOWN"], "keyctl"));
        assert!(!allowed(&[], "io_uring_setup"));
    }

    #[test]
    fn clone_is_free_for_administrators_only() {
        assert!(!allowed(&[], "clone"));
        assert!(allowed(&["CAP_SYS_ADMIN"], "clone"));
        let plain = runtime_default(&BTreeSet::new());
        let clone3 = "clone3".to_owned();
        let named = plain
            .syscalls()
            .iter()
            .flatten()
            .any(|rule| rule.names().contains(&clone3));
        assert!(!named);
        assert_eq!(plain.default_errno_ret(), Some(ENOSYS));
    }

    #[test]
    fn no_rule_lets_a_socket_family_with_upper_bits_pass() {
        let profile = runtime_default(&BTreeSet::new());
        let passes = |family: u64| {
            let rules = profile.syscalls().iter().flatten();
            let named = rules.filter(|rule| rule.names().contains(&"socket".to_owned()));
            let hits = |rule: &&LinuxSyscall| {
                let argument = &rule.args().as_ref().unwrap()[0];
                match argument.op() {
                    Operator::ScmpCmpLt => family < argument.value(),
                    Operator::ScmpCmpEq => family == argument.value(),
                    Operator::ScmpCmpGt => family > argument.value(),
                    other => panic!("not expected: {other:?}"),
                }
            };
            let hit: Vec<_> = named.filter(hits).map(LinuxSyscall::action).collect();
            assert_eq!(hit.len(), 1, "family {family}");
            hit[0] == Action::ScmpActAllow
        };
        let refused = [12, 19, 20, 23, 25, 34, 37, 38, 40];
        for family in 0..=45 {
            assert_eq!(
                passes(family),
                !refused.contains(&family),
                "family {family}"
            );
        }
        for family in [
            46,
            47,
            0x1_0000_0026,
            0x1_0000_0028,
            0x1_0000_0001,
            u64::MAX,
        ] {
            assert!(!passes(family), "family {family}");
        }
    }

    /// The published profile as a digest, made on the day of the comparison: its calls for all containers, then
    /// those of each capability. `clone` and `clone3` come with CAP_SYS_ADMIN, the calls that CAP_SYS_PTRACE
    /// repeats are left out.
    #[test]
    fn the_table_is_what_was_compared_with_the_published_profile_on_2026_11_22() {
        let mut always: BTreeSet<&str> = ALWAYS.split_whitespace().collect();
        always.extend(["socketcall", "uretprobe", "riscv_hwprobe"]);
        assert_eq!(always.len(), 364, "calls for all containers");
        let words = |calls: BTreeSet<&str>| calls.into_iter().collect::<Vec<_>>().join(" ");
        let mut text = words(always);
        for (capability, calls) in BY_CAPABILITY {
            let calls = words(calls.split_whitespace().collect());
            text.push_str(&format!("\n{capability}: {calls}"));
        }
        let digest = Sha256::digest(text.as_bytes());
        let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(
            hex, "02c129c545939a00a407008d043fa3dbced0659392da922a48e4f25c047dce3c",
            "compare the table with a published profile again"
        );
    }

    #[test]
    fn no_call_is_both_allowed_and_refused() {
        for capabilities in [vec![], vec!["CAP_BPF"], vec!["CAP_SYS_ADMIN"]] {
            let set = capabilities.iter().map(|name| (*name).to_owned()).collect();
            let profile = runtime_default(&set);
            let rules = profile.syscalls().as_ref().unwrap();
            assert_eq!(rules[1].errno_ret(), Some(EPERM));
            let both = |name: &&String| rules[0].names().contains(name);
            assert_eq!(rules[1].names().iter().find(both), None);
            assert_eq!(allowed(&capabilities, "bpf"), !capabilities.is_empty());
        }
    }
}
