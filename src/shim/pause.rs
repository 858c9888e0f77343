//! The first process of a pod's own process namespace (`shareProcessNamespace`): it holds the namespace while containers
//! come and go, and orphans in there become its children.
//!
//! Containers see it, and those with CAP_SYS_PTRACE may enter it: it has an empty root, no rights and no descriptors.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use nix::sys::wait::waitpid;
use nix::unistd::{Gid, Pid, Uid, chdir, pause, pivot_root, setgroups, setresgid, setresuid};

use super::ShimError;
use super::user_namespace::Users;
use crate::sys::process::{self, Fork};
use crate::sys::{capability, fdpass, signals};

/// `nobody`, as in the kubelet's pause image.
const NOBODY: u32 = 65_535;

/// Forks it; returns its pid once it has no rights any more. `place` is a folder to mount its root on, in a mount
/// namespace of its own. With `users` the process namespace belongs to that user namespace.
pub(super) fn start(place: &Path, users: Option<&Users>) -> Result<i32, ShimError> {
    let (near, far) = fdpass::pair().map_err(ShimError::system("make a socket pair"))?;
    let forked = match users {
        Some(users) => fork_inside(users),
        None => process::fork_first(),
    };
    match forked.map_err(ShimError::system("make a process namespace"))? {
        Fork::Child => {
            drop(near);
            let failed = confine(place).err();
            if let Some(errno) = failed {
                let _ = nix::unistd::write(&far, errno.desc().as_bytes());
                process::exit_now(1);
            }
            let _ = nix::unistd::write(&far, READY);
            process::close_except(&mut []);
            loop {
                pause();
            }
        }
        Fork::Parent(pid) => {
            drop(far);
            let said = listen(&near);
            if said == READY {
                return Ok(pid);
            }
            // It is reaped like all others.
            let _ = process::kill(pid, libc::SIGKILL);
            let why = match said.is_empty() {
                true => "its first process ended at once".into(),
                false => String::from_utf8_lossy(&said),
            };
            Err(ShimError::Create(format!(
                "could not make the pod's process namespace: {why}"
            )))
        }
    }
}

/// Forks it, as a child of the shim, by one that has joined the user namespace: the shim could not return from there.
fn fork_inside(users: &Users) -> io::Result<Fork> {
    let (near, far) = fdpass::pair()?;
    match process::fork()? {
        Fork::Child => {
            drop(near);
            match users.enter().and_then(|()| process::fork_first_sibling()) {
                Ok(Fork::Child) => return Ok(Fork::Child),
                Ok(Fork::Parent(pid)) => {
                    process::write_to(far.as_raw_fd(), pid.to_string().as_bytes())
                }
                Err(error) => {
                    process::write_to(far.as_raw_fd(), format!("E{error}").as_bytes());
                }
            }
            process::exit_now(0);
        }
        Fork::Parent(courier) => {
            drop(far);
            let said = String::from_utf8_lossy(&listen(&near)).into_owned();
            while waitpid(Pid::from_raw(courier), None) == Err(Errno::EINTR) {}
            said.parse()
                .map(Fork::Parent)
                .map_err(|_| io::Error::other(said.trim_start_matches('E').to_owned()))
        }
    }
}

/// The first message on a socket; empty if it closes.
fn listen(socket: &OwnedFd) -> Vec<u8> {
    let mut said = vec![0; 128];
    let length = loop {
        match nix::unistd::read(socket, &mut said) {
            Err(Errno::EINTR) => {}
            other => break other.unwrap_or(0),
        }
    };
    said.truncate(length);
    said
}

/// The message of a process that needs nothing more.
const READY: &[u8] = b"ready";

/// Gives up everything that the shim has: its root, its user and its capabilities.
fn confine(place: &Path) -> Result<(), Errno> {
    let errno = |error: std::io::Error| Errno::from_raw(error.raw_os_error().unwrap_or(0));
    process::set_name(c"pause");
    // Its memory is a copy of the shim's, whose arguments are paths of the node.
    process::set_command_line(c"/pause");
    signals::let_kernel_reap().map_err(errno)?;
    unshare(CloneFlags::CLONE_NEWNS)?;
    let none = None::<&str>;
    let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
    mount(none, "/", none, private, none)?;
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC | MsFlags::MS_RDONLY;
    let tmpfs = Some("tmpfs");
    mount(tmpfs, place, tmpfs, flags, Some("mode=555,size=4k"))?;
    chdir(place)?;
    // The old root comes to lie on top of the new one, and goes.
    pivot_root(".", ".")?;
    umount2(".", MntFlags::MNT_DETACH)?;
    chdir("/")?;
    setgroups(&[])?;
    let (group, user) = (Gid::from_raw(NOBODY), Uid::from_raw(NOBODY));
    setresgid(group, group, group)?;
    setresuid(user, user, user)?;
    capability::keep_only(&[]).map_err(errno)?;
    process::set_no_new_privileges().map_err(errno)?;
    // Last: a change of the user cancels it.
    process::end_with_parent().map_err(errno)
}
