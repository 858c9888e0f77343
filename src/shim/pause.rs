//! The first process of a pod's own process namespace (`shareProcessNamespace`): it holds the namespace while containers
//! come and go, and orphans in there become its children.
//!
//! Containers see it, and those with CAP_SYS_PTRACE may enter it: it has an empty root, no rights and no descriptors.

use std::path::Path;

use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use nix::unistd::{Gid, Uid, chdir, pause, pivot_root, setgroups, setresgid, setresuid};

use super::ShimError;
use crate::sys::process::{self, Fork};
use crate::sys::{capability, fdpass, signals};

/// `nobody`, as in the kubelet's pause image.
const NOBODY: u32 = 65_535;

/// Forks it; returns its pid once it has no rights any more. `place` is a folder to mount its root on, in a mount
/// namespace of its own.
pub(super) fn start(place: &Path) -> Result<i32, ShimError> {
    let (near, far) = fdpass::pair().map_err(ShimError::system("make a socket pair"))?;
    match process::fork_first().map_err(ShimError::system("make a process namespace"))? {
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
            let mut said = [0; 128];
            let length = loop {
                match nix::unistd::read(&near, &mut said) {
                    Err(Errno::EINTR) => {}
                    other => break other.unwrap_or(0),
                }
            };
            if said[..length] == *READY {
                return Ok(pid);
            }
            // It is reaped like all others.
            let _ = process::kill(pid, libc::SIGKILL);
            let why = match length {
                0 => "its first process ended at once".into(),
                _ => String::from_utf8_lossy(&said[..length]),
            };
            Err(ShimError::Create(format!(
                "could not make the pod's process namespace: {why}"
            )))
        }
    }
}

/// The message of a process that needs nothing more.
const READY: &[u8] = b"ready";

/// Gives up everything that the shim has: its root, its user and its capabilities.
fn confine(place: &Path) -> Result<(), Errno> {
    let errno = |error: std::io::Error| Errno::from_raw(error.raw_os_error().unwrap_or(0));
    process::set_name(c"pause");
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
