//! User namespaces, the namespaces that belong to them, and mounts seen with their ids.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::thread;

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, setns, unshare};
use nix::unistd::{Gid, Uid, setgroups, setresgid, setresuid};

use super::mount_tree::{self, ReadOnly, Spread};

/// A process that holds a user namespace, and other namespaces in it. It ends with this value; what is pinned or open
/// stays.
#[derive(Debug)]
pub struct Holder {
    pid: i32,
}

impl Holder {
    /// Makes a user namespace in which `count` ids from 0 on are the ids from `first` on of the caller's, for users and
    /// groups, and then the namespaces of `others`, which belong to it. May be called by a thread among others.
    pub fn make(first: u32, count: u32, others: CloneFlags) -> io::Result<Self> {
        let (order, orders) = nix::unistd::pipe2(OFlag::O_CLOEXEC)?;
        let (answer, answers) = nix::unistd::pipe2(OFlag::O_CLOEXEC)?;
        let holder = Self {
            pid: fork_holder(&order, &answers, others)?,
        };
        drop((order, answers));
        let map = format!("0 {first} {count}");
        for name in ["uid_map", "gid_map"] {
            // In one write, as the kernel requires.
            std::fs::write(format!("/proc/{}/{name}", holder.pid), &map)?;
        }
        File::from(orders).write_all(&[0])?;
        let mut errno = [0; 4];
        File::from(answer).read_exact(&mut errno)?;
        match i32::from_ne_bytes(errno) {
            0 => Ok(holder),
            errno => Err(io::Error::from_raw_os_error(errno)),
        }
    }

    /// One of its namespaces, by its name in `/proc/<pid>/ns`.
    pub fn namespace(&self, name: &str) -> io::Result<OwnedFd> {
        Ok(File::open(format!("/proc/{}/ns/{name}", self.pid))?.into())
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        // SAFETY: both take integers only; the process is an unreaped child of this one.
        unsafe {
            libc::kill(self.pid, libc::SIGKILL);
            // Without a signal of its end it is no concern of others that wait for children.
            while libc::waitpid(self.pid, std::ptr::null_mut(), libc::__WALL) == -1
                && Errno::last() == Errno::EINTR
            {}
        }
    }
}

/// Forks the process of a [`Holder`]; it makes the namespaces of `others` once a byte has come.
fn fork_holder(order: &OwnedFd, answers: &OwnedFd, others: CloneFlags) -> io::Result<i32> {
    let (none, flags) = (0 as libc::c_long, libc::c_long::from(libc::CLONE_NEWUSER));
    let [order, answers] = [order, answers].map(AsRawFd::as_raw_fd);
    let parent = nix::unistd::getpid().as_raw();
    // SAFETY: without CLONE_VM and with a null stack this is a fork.
    match unsafe { libc::syscall(libc::SYS_clone, flags, none, none, none, none) } {
        -1 => Err(io::Error::last_os_error()),
        // SAFETY: a child of a process with threads uses nothing but system calls, and leaves through `_exit` or a signal.
        0 => unsafe {
            // It ends with the thread that waits for it, unless that is gone already.
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            if libc::getppid() != parent {
                libc::_exit(1);
            }
            // Until it ends, locks and sockets would stay open.
            super::process::close_except(&mut [order, answers]);
            let mut byte = 0u8;
            if libc::read(order, (&raw mut byte).cast(), 1) != 1 {
                libc::_exit(1);
            }
            let errno = match libc::unshare(others.bits()) {
                0 => 0,
                _ => *libc::__errno_location(),
            };
            libc::write(answers, (&raw const errno).cast(), size_of::<i32>());
            loop {
                libc::pause();
            }
        },
        pid => Ok(i32::try_from(pid).unwrap_or(i32::MAX)),
    }
}

/// The user namespace that another namespace belongs to (ioctl_ns(2)).
pub fn owner(namespace: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    // _IO(0xb7, 0x1)
    const NS_GET_USERNS: libc::c_ulong = 0xb701;
    // SAFETY: takes no argument and returns a new descriptor.
    let fd = unsafe { libc::ioctl(namespace.as_raw_fd(), NS_GET_USERNS as _) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just opened it, and it belongs to nothing else.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Makes the calling process root in a user namespace, without groups. It must have only one thread.
pub fn enter(namespace: BorrowedFd<'_>) -> io::Result<()> {
    setns(namespace, CloneFlags::CLONE_NEWUSER)?;
    // Before the user: the node's groups would stay in force.
    setgroups(&[])?;
    let (user, group) = (Uid::from_raw(0), Gid::from_raw(0));
    setresgid(group, group, group)?;
    setresuid(user, user, user)?;
    Ok(())
}

/// Tries whether mounts can be id-mapped, and serve as layers of an overlay, on the file system of `scratch`: a folder
/// that is made for this and removed. Mounts nothing in the caller's mount namespace.
pub fn try_mounts(scratch: &Path) -> io::Result<Trial> {
    let holder = match Holder::make(65_536, 65_536, CloneFlags::empty()) {
        Ok(holder) => holder,
        Err(error) => return Ok(Trial::NoNamespace(error)),
    };
    let users = holder.namespace("user")?;
    for name in ["lower", "upper", "work"] {
        super::file::make_dirs(&scratch.join(name), 0o700)?;
    }
    let tried = thread::scope(|scope| {
        let thread = thread::Builder::new().name("userns".to_owned());
        let trial = thread.spawn_scoped(scope, || try_in_own_namespace(scratch, users.as_fd()))?;
        trial
            .join()
            .unwrap_or_else(|_| Err(io::Error::other("the thread panicked")))
    });
    let removed = super::tree::remove(scratch);
    tried.and_then(|trial| removed.map(|()| trial))
}

/// The outcome of [`try_mounts`].
#[derive(Debug)]
pub enum Trial {
    /// All of it works.
    Fine,
    /// No user namespace can be made.
    NoNamespace(io::Error),
    /// Mounts of this file system cannot be id-mapped.
    NoMapping(io::Error),
    /// Overlays do not take id-mapped mounts as layers.
    NoOverlay(io::Error),
}

impl Trial {
    /// What is missing, and where it would be found; `None` if nothing is.
    pub fn problem(&self) -> Option<String> {
        Some(match self {
            Self::Fine => return None,
            Self::NoNamespace(error) => format!(
                "the kernel makes no user namespace: {error} (CONFIG_USER_NS, sysctl `user.max_user_namespaces`)"
            ),
            Self::NoMapping(error) => format!(
                "its file system cannot be shown with other ids: {error} (ext4 and xfs can from Linux 5.12 on, btrfs \
                 from 5.15)"
            ),
            Self::NoOverlay(error) => format!(
                "overlays do not take layers that are shown with other ids: {error} (they do from Linux 5.19 on)"
            ),
        })
    }
}

/// On a thread that ends with it.
fn try_in_own_namespace(scratch: &Path, users: BorrowedFd<'_>) -> io::Result<Trial> {
    unshare(CloneFlags::CLONE_FS | CloneFlags::CLONE_NEWNS)?;
    let none = None::<&str>;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)?;
    let lower = scratch.join("lower");
    let tree = mount_tree::copy_one(&lower, ReadOnly::No, Spread::Private)?;
    if let Err(error) = mount_tree::map_ids(tree.as_fd(), users) {
        return Ok(Trial::NoMapping(error));
    }
    mount_tree::attach(tree.as_fd(), super::beneath::place(&lower)?.as_fd())?;
    // By relative names, which have no colon or comma.
    std::env::set_current_dir(scratch)?;
    let (overlay, options) = (
        Some("overlay"),
        "lowerdir=lower,upperdir=upper,workdir=work",
    );
    match mount(overlay, ".", overlay, MsFlags::empty(), Some(options)) {
        Ok(()) => Ok(Trial::Fine),
        Err(errno) => Ok(Trial::NoOverlay(errno.into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_holder_has_a_user_namespace_that_owns_its_others_and_ends_with_its_value() {
        let holder = Holder::make(200_000, 70_000, CloneFlags::CLONE_NEWNET).expect("root");
        let pid = holder.pid;
        for name in ["uid_map", "gid_map"] {
            let map = std::fs::read_to_string(format!("/proc/{pid}/{name}")).expect("it runs");
            let fields: Vec<&str> = map.split_whitespace().collect();
            assert_eq!(fields, ["0", "200000", "70000"]);
        }
        let inode = |fd: &OwnedFd| nix::sys::stat::fstat(fd).expect("open").st_ino;
        let network = holder.namespace("net").expect("it has one");
        let users = holder.namespace("user").expect("it has one");
        drop(holder);
        assert!(!Path::new(&format!("/proc/{pid}")).exists());
        let owner = owner(network.as_fd()).expect("the network namespace lasts");
        assert_eq!(inode(&owner), inode(&users));
        let own: OwnedFd = File::open("/proc/self/ns/user").expect("open").into();
        assert_ne!(inode(&owner), inode(&own));
    }

    #[test]
    fn an_error_of_the_kernel_comes_back() {
        // The id that means none.
        let error = Holder::make(u32::MAX - 1, 5, CloneFlags::empty()).expect_err("no such ids");
        assert_eq!(error.raw_os_error(), Some(libc::EINVAL));
        let error =
            Holder::make(65_536, 1, CloneFlags::CLONE_VFORK).expect_err("cannot be unshared");
        assert_eq!(error.raw_os_error(), Some(libc::EINVAL));
    }

    #[test]
    fn a_trial_leaves_nothing_behind() {
        let scratch = std::env::temp_dir().join(format!("coracle-userns-{}", std::process::id()));
        let mounts = || std::fs::read_to_string("/proc/self/mountinfo").expect("readable");
        let before = mounts();
        let trial = try_mounts(&scratch).expect("tried");
        assert!(matches!(trial, Trial::Fine), "{trial:?}");
        assert!(!scratch.exists());
        assert_eq!(mounts(), before);
    }
}
