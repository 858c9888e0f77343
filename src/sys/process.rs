//! Processes: fork, namespaces, identity and the few process-wide switches.

use std::convert::Infallible;
use std::ffi::{CString, OsStr};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::{AccessFlags, access};

/// Which side of a fork the caller is on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fork {
    /// The new process.
    Child,
    /// The caller, with the child's pid.
    Parent(i32),
}

/// Forks. The caller's process must have only one thread: then everything is allowed in the child.
pub fn fork() -> io::Result<Fork> {
    // SAFETY: coracle forks only in its single-threaded shim, so no lock can be held by a vanished thread.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(Fork::Child),
        pid => Ok(Fork::Parent(pid)),
    }
}

/// Forks a sibling: the new process is a child of the caller's parent. Same condition as [`fork`].
pub fn fork_sibling() -> io::Result<Fork> {
    clone(libc::c_long::from(libc::CLONE_PARENT | libc::SIGCHLD))
}

/// Forks the first process of a new process namespace. Same condition as [`fork`].
pub fn fork_first() -> io::Result<Fork> {
    clone(libc::c_long::from(libc::CLONE_NEWPID | libc::SIGCHLD))
}

/// Forks the first process of a new process namespace, as a sibling. Same condition as [`fork`].
pub fn fork_first_sibling() -> io::Result<Fork> {
    clone(libc::c_long::from(
        libc::CLONE_NEWPID | libc::CLONE_PARENT | libc::SIGCHLD,
    ))
}

fn clone(flags: libc::c_long) -> io::Result<Fork> {
    let none: libc::c_long = 0;
    // SAFETY: without CLONE_VM and with a null stack this is a fork; single-threaded as in `fork`.
    match unsafe { libc::syscall(libc::SYS_clone, flags, none, none, none, none) } {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(Fork::Child),
        pid => Ok(Fork::Parent(i32::try_from(pid).unwrap_or(i32::MAX))),
    }
}

/// Ends the process at once: no destructors, no exit handlers, no flushing.
pub fn exit_now(code: i32) -> ! {
    // SAFETY: _exit never returns and touches nothing.
    unsafe { libc::_exit(code) }
}

/// The path of a program: in the folders of PATH, or in those of administration's programs.
pub fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let usual = ["/usr/sbin", "/sbin", "/usr/local/sbin"].map(PathBuf::from);
    std::env::split_paths(&path)
        .filter(|folder| folder.is_absolute())
        .chain(usual)
        .map(|folder| folder.join(name))
        .find(|file| file.is_file() && access(file, AccessFlags::X_OK).is_ok())
}

/// Waits until a child has ended, up to a timeout; one that still runs is left alone, and never waited for.
pub fn wait_at_most(child: &mut std::process::Child, patience: Duration) {
    let ends = i32::try_from(child.id()).map_or(Err(io::Error::other("no pid")), open);
    if let Ok(ends) = ends {
        let timeout = PollTimeout::try_from(patience).unwrap_or(PollTimeout::MAX);
        let mut fds = [PollFd::new(ends.as_fd(), PollFlags::POLLIN)];
        while poll(&mut fds, timeout) == Err(Errno::EINTR) {}
        if fds[0].any() != Some(true) {
            return;
        }
    }
    let _ = child.wait();
}

/// Replaces the program; returns only the error.
pub fn exec(program: &CString, args: &[CString], env: &[CString]) -> io::Error {
    let result: nix::Result<Infallible> = nix::unistd::execve(program, args, env);
    match result {
        Ok(never) => match never {},
        Err(errno) => errno.into(),
    }
}

/// Sets an environment variable of a single-threaded process.
#[expect(
    clippy::disallowed_methods,
    reason = "the process has one thread and becomes another program's"
)]
pub fn set_env(name: &str, value: &str) {
    // SAFETY: called before any thread exists, or in a process that never has one.
    unsafe { std::env::set_var(name, value) };
}

/// Removes an environment variable of a single-threaded process.
#[expect(
    clippy::disallowed_methods,
    reason = "the process has one thread and becomes another program's"
)]
pub fn unset_env(name: &str) {
    // SAFETY: called before any thread exists, or in a process that never has one.
    unsafe { std::env::remove_var(name) };
}

/// Empties the environment of a single-threaded process, also of names that are not valid for [`unset_env`].
pub fn clear_env() {
    // SAFETY: called only in a process without other threads.
    unsafe { libc::clearenv() };
}

/// Orphaned descendants become children of the caller.
pub fn become_subreaper() -> io::Result<()> {
    prctl(libc::PR_SET_CHILD_SUBREAPER, 1)
}

/// Sets whether processes of the same user may inspect this one, which also decides the owner of its `/proc` files.
pub fn set_dumpable(dumpable: bool) -> io::Result<()> {
    prctl(libc::PR_SET_DUMPABLE, libc::c_ulong::from(dumpable))
}

/// Keeps programs started from here from gaining privileges.
pub fn set_no_new_privileges() -> io::Result<()> {
    prctl(libc::PR_SET_NO_NEW_PRIVS, 1)
}

/// Kills the caller when its parent ends.
pub fn end_with_parent() -> io::Result<()> {
    prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL as libc::c_ulong)
}

/// Sets the caller's name as `ps` shows it, at most 15 bytes.
pub fn set_name(name: &std::ffi::CStr) {
    // SAFETY: PR_SET_NAME reads a terminated string; a failure changes nothing that matters.
    unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr(), 0, 0, 0) };
}

/// Replaces the caller's command line, which others read in `/proc`, by a shorter one (proc(5), `arg_start`). Nothing may
/// use the arguments after that. It stays as it is where the kernel does not say where it lies; empty arguments follow where
/// its end cannot be moved (`PR_SET_MM`: CONFIG_CHECKPOINT_RESTORE and CAP_SYS_RESOURCE).
pub fn set_command_line(line: &std::ffi::CStr) {
    let bytes = line.to_bytes_with_nul();
    let place = procfs::process::Process::myself().and_then(|myself| myself.stat());
    let place = place.ok().and_then(|stat| stat.arg_start.zip(stat.arg_end));
    let Some((start, end)) = place.filter(|(start, _)| *start != 0) else {
        return;
    };
    let (Ok(start), Ok(length)) = (usize::try_from(start), usize::try_from(end - start)) else {
        return;
    };
    if length < bytes.len() {
        return;
    }
    let place = std::ptr::with_exposed_provenance_mut::<u8>(start);
    // SAFETY: the kernel put the arguments there, `length` bytes that are the process's own, writable, and not used any more.
    unsafe {
        std::ptr::write_bytes(place, 0, length);
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), place, bytes.len());
        let end = start + bytes.len();
        libc::prctl(libc::PR_SET_MM, libc::PR_SET_MM_ARG_END, end, 0, 0);
    }
}

fn prctl(option: libc::c_int, value: libc::c_ulong) -> io::Result<()> {
    let zero: libc::c_ulong = 0;
    // SAFETY: the options above take integers only.
    match unsafe { libc::prctl(option, value, zero, zero, zero) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Leaves the inherited session keyring for a new, empty one that children inherit.
pub fn join_new_keyring() -> io::Result<()> {
    // KEYCTL_JOIN_SESSION_KEYRING; all of keyctl's arguments are as wide as a register.
    let (join, no_name): (libc::c_long, libc::c_long) = (1, 0);
    // SAFETY: a null name asks for an anonymous keyring; nothing is read or written through it.
    match unsafe { libc::syscall(libc::SYS_keyctl, join, no_name) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// The machine's maximum number of processes and threads.
pub fn most() -> Option<u64> {
    let read = |name: &str| {
        let text = super::file::read_text(format!("/proc/sys/kernel/{name}")).ok()?;
        text.trim().parse::<u64>().ok()
    };
    Some(read("pid_max")?.min(read("threads-max").unwrap_or(u64::MAX)))
}

/// Sets the caller's own `oom_score_adj`. A value below the lowest so far needs CAP_SYS_RESOURCE.
pub fn set_oom_score_adj(score: i32) -> io::Result<()> {
    const FILE: &str = "/proc/self/oom_score_adj";
    let wanted = score.to_string();
    match super::file::read_text(FILE)?.trim() == wanted {
        true => Ok(()),
        false => std::fs::write(FILE, wanted),
    }
}

/// kill(2): a process, or with a negative number a process group.
pub fn kill(pid: i32, signal: i32) -> io::Result<()> {
    // SAFETY: takes integers only.
    match unsafe { libc::kill(pid, signal) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Whether this process runs: it exists, and is no zombie.
pub fn runs(pid: u32) -> bool {
    let stat = super::file::read_text(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name before it may contain anything, also parentheses.
    let state = stat
        .rsplit(") ")
        .next()
        .and_then(|rest| rest.chars().next());
    state.is_some_and(|state| !matches!(state, 'Z' | 'X' | 'x'))
}

/// A descriptor of a process (pidfd_open(2)): readable once it has ended.
pub fn open(pid: i32) -> io::Result<OwnedFd> {
    // SAFETY: takes integers only.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    let Some(fd) = i32::try_from(fd).ok().filter(|fd| *fd >= 0) else {
        return Err(io::Error::last_os_error());
    };
    // SAFETY: the kernel just made this descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Puts `fd` at number `at`, open across an exec.
pub fn place_fd(fd: BorrowedFd<'_>, at: i32) -> io::Result<()> {
    if fd.as_raw_fd() == at {
        // SAFETY: clears the close-on-exec flag of a descriptor we were lent.
        unsafe { libc::fcntl(at, libc::F_SETFD, 0) };
        return Ok(());
    }
    // SAFETY: dup2 onto a standard number; whatever was open there is meant to be replaced.
    match unsafe { libc::dup2(fd.as_raw_fd(), at) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Writes to a descriptor known by number only, as in forked children. Errors are ignored.
pub fn write_to(number: i32, bytes: &[u8]) {
    // SAFETY: reads `bytes` only; a number that is not open fails.
    unsafe { libc::write(number, bytes.as_ptr().cast(), bytes.len()) };
}

/// Closes a descriptor number that nothing in this process owns any more.
pub fn close_leaked(number: i32) {
    // SAFETY: the caller found this descriptor open without an owner.
    unsafe { libc::close(number) };
}

/// Closes every descriptor except these, whatever owns them: for forked children that are about to exec.
pub fn close_except(keep: &mut [i32]) {
    keep.sort_unstable();
    let mut next = 0;
    for kept in keep
        .iter()
        .filter_map(|fd| libc::c_uint::try_from(*fd).ok())
    {
        if kept > next {
            close_between(next, kept - 1);
        }
        next = next.max(kept + 1);
    }
    close_between(next, libc::c_uint::MAX);
}

fn close_between(first: libc::c_uint, last: libc::c_uint) {
    // SAFETY: takes integers only; the caller gives up what the descriptors stood for.
    unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
}

/// Sets close-on-exec on every descriptor from 3 on.
pub fn cloexec_rest() {
    // SAFETY: only flags of descriptors change.
    let done = unsafe { libc::syscall(libc::SYS_close_range, 3u32, u32::MAX, 4u32) };
    if done == 0 {
        return;
    }
    // Kernels before 5.11.
    for fd in 3..1024 {
        // SAFETY: as above; numbers that are not open only fail.
        unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) };
    }
}

/// Sets a resource limit by its number.
pub fn set_rlimit(resource: u32, soft: u64, hard: u64) -> io::Result<()> {
    let limit = libc::rlimit64 {
        rlim_cur: soft,
        rlim_max: hard,
    };
    // SAFETY: reads one limit through a valid pointer; the old one is not asked for.
    match unsafe { libc::prlimit64(0, resource as _, &limit, std::ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// A C string; inner NULs end it, as they would for the kernel.
pub fn c_string(text: impl AsRef<OsStr>) -> CString {
    use std::os::unix::ffi::OsStrExt;
    let bytes = text.as_ref().as_bytes();
    let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
    CString::new(&bytes[..end]).unwrap_or_default()
}

/// Gives the caller the lowest priority.
pub fn lowest_priority() {
    // SAFETY: changes only the caller's own priority.
    unsafe { libc::nice(19) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_runs_until_it_has_ended_reaped_or_not() {
        assert!(runs(std::process::id()));
        let mut child = std::process::Command::new("true")
            .spawn()
            .expect("true is there");
        let ended = open(i32::try_from(child.id()).expect("a pid")).expect("a child");
        let mut poll = [nix::poll::PollFd::new(
            std::os::fd::AsFd::as_fd(&ended),
            nix::poll::PollFlags::POLLIN,
        )];
        nix::poll::poll(&mut poll, nix::poll::PollTimeout::NONE).expect("it ends");
        assert!(!runs(child.id()), "a zombie");
        child.wait().expect("a child");
        assert!(!runs(child.id()));
    }
}
