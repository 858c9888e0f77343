//! What the workers may do. Each gives up the rest before it reads a byte from outside: those that talk to registries
//! cannot unpack, and the one that unpacks has no network.
//!
//! | | fetch | import | save |
//! |---|---|---|---|
//! | capabilities | none | owners, modes, devices and attributes of files | all files, `trusted.*` attributes |
//! | namespaces | | network, IPC and host name of its own, empty | the same |
//! | writes (Landlock) | `pulls` of the store | the store | nothing |
//! | reads (Landlock) | records, certificates, what resolving a name needs | the store, the archive | the store |
//! | system calls (seccomp) | files, threads, sockets of IP | files and their owners, threads | files, threads |
//!
//! `get` fetches a document: the same as `fetch` without the store.
//!
//! None runs a program, starts a process or signals one. A kernel without Landlock (before Linux 5.19) or without
//! seccomp leaves that layer out.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use nix::sched::{CloneFlags, unshare};

use super::import::STREAM;
use crate::sys::capability::{self, keep_only};
use crate::sys::landlock::{self, Access, Tcp};
use crate::sys::seccomp::{self, Condition};

/// What resolving a name needs. The C library is linked into coracle: it asks `hosts` and DNS, and no module of the
/// system.
const RESOLVER: [&str; 6] = [
    "/etc/resolv.conf",
    "/etc/hosts",
    "/etc/nsswitch.conf",
    "/etc/host.conf",
    "/etc/gai.conf",
    "/etc/services",
];

/// Tells a download's data of this boot from that of earlier ones.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// The maximum of links to certificates that are followed.
const MAX_LINKS: usize = 1000;

/// System calls of both: memory, threads, time, and files that are named or open already. It is a list of what is
/// allowed, because the program is static: the calls that it and its C library make are known at build time, and new
/// ones of the kernel stay out. Names of 32-bit machines are in it, too.
const CALLS: &str = "\
    access arm_fadvise64_64 arm_sync_file_range brk clock_getres clock_getres_time64 clock_gettime clock_gettime64 \
    clock_nanosleep clock_nanosleep_time64 close close_range copy_file_range dup dup2 dup3 exit exit_group faccessat \
    faccessat2 fadvise64 fadvise64_64 fallocate fdatasync flock fstat fstat64 fstatat64 fstatfs fstatfs64 fsync \
    ftruncate ftruncate64 futex futex_time64 getcwd getdents64 getegid getegid32 geteuid geteuid32 getgid getgid32 \
    getpid getppid getrandom getrlimit getrusage gettid gettimeofday getuid getuid32 _llseek lseek lstat lstat64 \
    madvise membarrier mkdir mkdirat mmap mmap2 mprotect mremap munmap nanosleep newfstatat open openat openat2 poll \
    ppoll ppoll_time64 pread64 preadv pwrite64 pwritev read readlink readlinkat readv rename renameat renameat2 \
    restart_syscall riscv_flush_icache rmdir rseq rt_sigaction rt_sigprocmask rt_sigreturn sched_getaffinity \
    sched_yield sendfile sendfile64 set_robust_list set_tid_address sigaltstack sigreturn splice stat stat64 statfs \
    statfs64 statx sync_file_range sync_file_range2 syncfs sysinfo ugetrlimit umask uname unlink unlinkat write \
    writev";

/// Of the import worker: owners, modes, times, attributes, links and devices. Of these calls Landlock refuses links and
/// devices outside the store.
const OWNER_CALLS: &str = "\
    chmod chown chown32 fchmod fchmodat fchmodat2 fchown fchown32 fchownat fgetxattr flistxattr fremovexattr \
    fsetxattr getxattr lchown lchown32 lgetxattr link linkat listxattr llistxattr lremovexattr lsetxattr mknod \
    mknodat removexattr setxattr symlink symlinkat truncate truncate64 utimensat utimensat_time64";

/// Of the save worker.
const ATTRIBUTE_CALLS: &str = "fgetxattr flistxattr getxattr lgetxattr listxattr llistxattr";

/// Of the fetch worker: sockets of the families in [`FAMILIES`], which only ask.
const SOCKET_CALLS: &str = "\
    bind connect getpeername getsockname getsockopt _newselect pselect6 pselect6_time64 recv recvfrom recvmmsg \
    recvmmsg_time64 recvmsg select send sendmmsg sendmsg sendto setsockopt shutdown";

/// IP, and netlink, by which the C library learns which kinds of addresses the node has. A unix socket would lead to
/// the services of the node, coracle's own API among them.
const FAMILIES: [i32; 3] = [libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK];

/// `FIONBIO` and `FIONREAD`.
const SOCKET_REQUESTS: [u64; 2] = [0x5421, 0x541b];

const WHOLE: u64 = 0xffff_ffff;

/// `PR_SET_NAME`, of a thread, and `PR_SET_VMA`, of memory: the C library's names for what it makes.
const NAMES: [u64; 2] = [15, 0x5356_4d41];

/// Leaves the import worker what unpacking `archive` into `store` needs.
pub(super) fn import(store: &Path, archive: &Path) -> io::Result<()> {
    leave()?;
    // A rule needs a folder.
    fs::create_dir_all(store)?;
    let mut paths = vec![(store.to_owned(), Access::Write)];
    if archive != Path::new(STREAM) {
        paths.push((archive.to_owned(), Access::Read));
    }
    landlock::restrict(&paths, Tcp::Nothing)?;
    keep_only(&[
        capability::CHOWN,
        capability::DAC_OVERRIDE,
        capability::FOWNER,
        capability::FSETID,
        capability::MKNOD,
        capability::SETFCAP,
        // overlayfs marks a folder that hides lower ones by a `trusted.*` attribute.
        capability::SYS_ADMIN,
    ])?;
    filter(&[CALLS, OWNER_CALLS], common())
}

/// Leaves the save worker what reading `store` needs.
pub(super) fn save(store: &Path) -> io::Result<()> {
    leave()?;
    landlock::restrict(&[(store.to_owned(), Access::Read)], Tcp::Nothing)?;
    // Files of any owner, and overlayfs's attributes (`trusted.*`).
    keep_only(&[capability::DAC_OVERRIDE, capability::SYS_ADMIN])?;
    filter(&[CALLS, ATTRIBUTE_CALLS], common())
}

/// Goes to empty namespaces.
fn leave() -> io::Result<()> {
    Ok(unshare(
        CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWIPC | CloneFlags::CLONE_NEWUTS,
    )?)
}

/// Leaves the fetch worker what a download into `store` needs. Its own capabilities must be gone.
pub(super) fn fetch(store: &Path, certificates: &[PathBuf]) -> io::Result<()> {
    let mut paths = vec![(store.join("pulls"), Access::Write)];
    let held = ["records", "refs", "blobs"].map(|part| store.join(part));
    let read = held.into_iter().chain([BOOT_ID.into()]);
    paths.extend(read.map(|path| (path, Access::Read)));
    connect(paths, certificates)
}

/// Leaves the worker that fetches a document what that needs: it writes no file.
pub(super) fn get(certificates: &[PathBuf]) -> io::Result<()> {
    connect(Vec::new(), certificates)
}

/// Lets the process connect to servers, beside these paths.
fn connect(mut paths: Vec<(PathBuf, Access)>, certificates: &[PathBuf]) -> io::Result<()> {
    let read = RESOLVER.map(PathBuf::from).into_iter();
    let read = read.chain(resolv_folder());
    let read = read.chain(certificates.iter().flat_map(|place| with_links(place)));
    paths.extend(read.map(|path| (path, Access::Read)));
    landlock::restrict(&paths, Tcp::Connect)?;
    let mut conditions = common();
    conditions.extend(FAMILIES.map(|family| Condition {
        call: "socket",
        argument: 0,
        mask: WHOLE,
        value: u64::try_from(family).unwrap_or(WHOLE),
    }));
    // Whether a socket waits, and how much has arrived: the resolver asks for it.
    conditions.extend(SOCKET_REQUESTS.map(|request| Condition {
        call: "ioctl",
        argument: 1,
        mask: WHOLE,
        value: request,
    }));
    filter(&[CALLS, SOCKET_CALLS], conditions)
}

fn filter(lists: &[&'static str], conditions: Vec<Condition>) -> io::Result<()> {
    let calls = lists.iter().flat_map(|list| list.split_whitespace());
    seccomp::allow_only(calls, &conditions).map(drop)
}

/// Calls that are harmless with some arguments only.
fn common() -> Vec<Condition> {
    let thread = libc::CLONE_THREAD as u64;
    let namespaces = (libc::CLONE_NEWNS
        | libc::CLONE_NEWUSER
        | libc::CLONE_NEWPID
        | libc::CLONE_NEWNET
        | libc::CLONE_NEWIPC
        | libc::CLONE_NEWUTS
        | libc::CLONE_NEWCGROUP) as u64;
    let of = |call, argument, mask, value| Condition {
        call,
        argument,
        mask,
        value,
    };
    let mut all = vec![
        // Threads, but no processes. `clone3` hides its flags; the C library then uses this one.
        of("clone", 0, (thread | namespaces) & WHOLE, thread),
        // A panic aborts this process.
        of("tgkill", 0, WHOLE, u64::from(std::process::id())),
        // Its own limits.
        of("prlimit64", 0, WHOLE, 0),
    ];
    all.extend(NAMES.map(|name| of("prctl", 0, WHOLE, name)));
    for call in ["fcntl", "fcntl64"] {
        // Duplicates, flags and locks, which are 0 to 7, but no signals to others.
        all.push(of(call, 1, WHOLE & !7, 0));
        let duplicate = u64::try_from(libc::F_DUPFD_CLOEXEC).unwrap_or(WHOLE);
        all.push(of(call, 1, WHOLE, duplicate));
    }
    all
}

/// The folder of the file that `/etc/resolv.conf` leads to, where a service keeps it: it is replaced when the network
/// changes, and a rule is about the old file. One in `/etc` itself stays as it was when the download began.
fn resolv_folder() -> Option<PathBuf> {
    let file = fs::canonicalize(RESOLVER[0]).ok()?;
    let folder = file.parent()?;
    let own = folder.strip_prefix("/run").ok()?;
    (own != Path::new("")).then(|| folder.to_owned())
}

/// A folder of certificates, and what links in it and in its folders lead to.
fn with_links(folder: &Path) -> Vec<PathBuf> {
    let mut all = vec![folder.to_owned()];
    let mut folders = vec![(folder.to_owned(), 0)];
    while let Some((folder, depth)) = folders.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            let path = entry.path();
            let is_link = entry.file_type().is_ok_and(|kind| kind.is_symlink());
            if is_link && all.len() < MAX_LINKS {
                all.push(path.clone());
            }
            if depth == 0 && path.is_dir() {
                folders.push((path, 1));
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::net::UdpSocket;
    use std::os::unix::net::UnixStream;
    use std::process::Command;
    use std::thread;

    use nix::errno::Errno;
    use nix::sys::prctl::set_no_new_privs;

    use super::*;

    /// Confines a thread, and runs a function in it.
    fn confined(
        confine: impl FnOnce(&Path) -> io::Result<()> + Send + 'static,
        work: impl FnOnce(&Path) + Send + 'static,
    ) {
        let name = thread::current()
            .name()
            .unwrap_or_default()
            .replace("::", "-");
        let dir = std::env::temp_dir().join(format!("coracle-{name}-{}", std::process::id()));
        fs::create_dir_all(dir.join("store/pulls")).unwrap();
        fs::create_dir_all(dir.join("outside")).unwrap();
        fs::write(dir.join("archive"), "x").unwrap();
        let at = dir.clone();
        let thread = thread::spawn(move || {
            set_no_new_privs().unwrap();
            confine(&at).unwrap();
            work(&at);
        });
        thread.join().unwrap();
        fs::remove_dir_all(dir).unwrap();
    }

    /// A system call that must be refused as if the kernel did not have it.
    fn assert_missing(what: &str, call: libc::c_long, arguments: [libc::c_long; 3]) {
        let [a, b, c] = arguments;
        // SAFETY: the filter refuses the call before the kernel looks at its arguments; all are numbers or null.
        let done = unsafe { libc::syscall(call, a, b, c, 0, 0, 0) };
        assert_eq!((done, Errno::last()), (-1, Errno::ENOSYS), "{what}");
    }

    fn assert_no_escape() {
        let own = libc::c_long::from(nix::unistd::getpid().as_raw());
        for (what, call, arguments) in [
            ("ptrace", libc::SYS_ptrace, [0; 3]),
            ("mount", libc::SYS_mount, [0; 3]),
            ("umount2", libc::SYS_umount2, [0; 3]),
            ("fsopen", libc::SYS_fsopen, [0; 3]),
            ("move_mount", libc::SYS_move_mount, [0; 3]),
            ("open_tree", libc::SYS_open_tree, [0; 3]),
            ("pivot_root", libc::SYS_pivot_root, [0; 3]),
            ("chroot", libc::SYS_chroot, [0; 3]),
            ("setns", libc::SYS_setns, [0; 3]),
            ("unshare", libc::SYS_unshare, [0; 3]),
            ("bpf", libc::SYS_bpf, [0; 3]),
            ("keyctl", libc::SYS_keyctl, [0; 3]),
            ("add_key", libc::SYS_add_key, [0; 3]),
            ("userfaultfd", libc::SYS_userfaultfd, [0; 3]),
            ("perf_event_open", libc::SYS_perf_event_open, [0; 3]),
            ("io_uring_setup", libc::SYS_io_uring_setup, [0; 3]),
            ("open_by_handle_at", libc::SYS_open_by_handle_at, [0; 3]),
            ("init_module", libc::SYS_init_module, [0; 3]),
            ("finit_module", libc::SYS_finit_module, [0; 3]),
            ("kexec_load", libc::SYS_kexec_load, [0; 3]),
            ("reboot", libc::SYS_reboot, [0; 3]),
            ("swapon", libc::SYS_swapon, [0; 3]),
            ("process_vm_readv", libc::SYS_process_vm_readv, [0; 3]),
            ("process_vm_writev", libc::SYS_process_vm_writev, [0; 3]),
            ("pidfd_open", libc::SYS_pidfd_open, [own, 0, 0]),
            ("execve", libc::SYS_execve, [0; 3]),
            ("execveat", libc::SYS_execveat, [0; 3]),
            ("clone3", libc::SYS_clone3, [0; 3]),
            ("a process", libc::SYS_clone, [libc::SIGCHLD.into(), 0, 0]),
            ("kill", libc::SYS_kill, [own, 0, 0]),
            ("a signal elsewhere", libc::SYS_tgkill, [1, 1, 0]),
            ("limits of another", libc::SYS_prlimit64, [1, 0, 0]),
            ("setuid", libc::SYS_setuid, [0; 3]),
            ("memfd_create", libc::SYS_memfd_create, [0; 3]),
            ("TIOCSTI", libc::SYS_ioctl, [0, 0x5412, 0]),
            ("F_SETOWN", libc::SYS_fcntl, [0, 8, own]),
            ("F_SETSIG", libc::SYS_fcntl, [0, 10, 9]),
            ("seccomp's listener", libc::SYS_seccomp, [1, 8, 0]),
        ] {
            assert_missing(what, call, arguments);
        }
        // Threads work: downloads are made by several.
        let answer = thread::Builder::new().name("another".to_owned());
        assert_eq!(answer.spawn(|| 7).unwrap().join().unwrap(), 7);
        assert!(Command::new("/bin/true").status().is_err());
        let other = File::open("/etc/passwd").unwrap_err();
        assert_eq!(other.raw_os_error(), Some(libc::EACCES));
    }

    #[test]
    fn a_fetch_asks_by_ip_and_writes_where_pulls_are() {
        confined(
            |dir| {
                keep_only(&[])?;
                fetch(&dir.join("store"), &[])
            },
            |dir| {
                assert_no_escape();
                let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
                socket.set_nonblocking(true).unwrap();
                let unix = UnixStream::pair().map(drop).unwrap_err();
                assert_eq!(unix.raw_os_error(), Some(libc::ENOSYS));
                let packet = libc::AF_PACKET.into();
                for family in [libc::c_long::from(libc::AF_UNIX), packet] {
                    assert_missing("socket", libc::SYS_socket, [family, 1, 0]);
                }
                assert_missing("listen", libc::SYS_listen, [0; 3]);
                assert_missing("chmod", libc::SYS_fchmodat, [0; 3]);
                assert_missing("mknod", libc::SYS_mknodat, [0; 3]);
                assert_missing("setxattr", libc::SYS_setxattr, [0; 3]);
                fs::write(dir.join("store/pulls/a"), "x").unwrap();
                fs::rename(dir.join("store/pulls/a"), dir.join("store/pulls/b")).unwrap();
                for outside in ["store/a", "outside/a", "archive"] {
                    let why = fs::write(dir.join(outside), "y").unwrap_err();
                    assert_eq!(why.raw_os_error(), Some(libc::EACCES), "{outside}");
                }
                fs::read("/etc/hosts").unwrap();
                fs::read(BOOT_ID).unwrap();
            },
        );
    }

    #[test]
    fn a_save_reads_the_store_and_writes_nothing() {
        confined(
            |dir| {
                fs::write(dir.join("store/a"), "x")?;
                save(&dir.join("store"))
            },
            |dir| {
                assert_no_escape();
                assert_missing("socket", libc::SYS_socket, [libc::AF_INET.into(), 1, 0]);
                assert_missing("chown", libc::SYS_fchownat, [0; 3]);
                assert_missing("setxattr", libc::SYS_setxattr, [0; 3]);
                fs::read(dir.join("store/a")).unwrap();
                for file in ["store/a", "store/b", "outside/a", "archive"] {
                    let why = fs::write(dir.join(file), "y").unwrap_err();
                    assert_eq!(why.raw_os_error(), Some(libc::EACCES), "{file}");
                }
                let why = fs::read(dir.join("archive")).unwrap_err();
                assert_eq!(why.raw_os_error(), Some(libc::EACCES));
            },
        );
    }

    #[test]
    fn an_import_has_no_sockets_and_writes_where_the_store_is() {
        confined(
            |dir| import(&dir.join("store"), &dir.join("archive")),
            |dir| {
                assert_no_escape();
                for family in [libc::AF_INET, libc::AF_UNIX, libc::AF_NETLINK] {
                    assert_missing("socket", libc::SYS_socket, [family.into(), 1, 0]);
                }
                fs::read(dir.join("archive")).unwrap();
                fs::write(dir.join("store/a"), "x").unwrap();
                fs::hard_link(dir.join("store/a"), dir.join("store/b")).unwrap();
                fs::rename(dir.join("store/b"), dir.join("store/pulls/b")).unwrap();
                std::os::unix::fs::chown(dir.join("store/a"), Some(7), Some(7)).unwrap();
                for outside in ["outside/a", "archive"] {
                    let why = fs::write(dir.join(outside), "y").unwrap_err();
                    assert_eq!(why.raw_os_error(), Some(libc::EACCES), "{outside}");
                }
                let why = fs::hard_link(dir.join("store/a"), dir.join("outside/b")).unwrap_err();
                assert!(
                    matches!(why.raw_os_error(), Some(libc::EACCES | libc::EXDEV)),
                    "{why}"
                );
            },
        );
    }
}
