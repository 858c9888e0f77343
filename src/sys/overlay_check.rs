//! Support for overlay mounts, found by trial in the mount namespace of a child, so that nothing is left behind.

use std::io;
use std::path::Path;

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork};

/// Mounts a throw-away overlay below `base`. Call it from a single-threaded process: it forks.
pub fn try_mount(base: &Path) -> io::Result<()> {
    let dir = base.join(format!(".coracle-doctor-{}", std::process::id()));
    let result = prepare(&dir).and_then(|()| in_child(&dir));
    let removed = super::tree::remove(&dir);
    result.and(removed)
}

fn prepare(dir: &Path) -> io::Result<()> {
    for part in ["lower", "upper", "work", "merged"] {
        std::fs::create_dir_all(dir.join(part))?;
    }
    Ok(())
}

fn in_child(dir: &Path) -> io::Result<()> {
    // SAFETY: the caller is single-threaded, so the child may use the allocator; it leaves through `_exit`.
    match unsafe { fork() }? {
        ForkResult::Child => {
            let code = match mount_overlay(dir) {
                Ok(()) => 0,
                Err(error) => error as i32,
            };
            // SAFETY: `_exit` runs no handlers of the parent's.
            unsafe { libc::_exit(code) }
        }
        ForkResult::Parent { child } => match waitpid(child, None)? {
            WaitStatus::Exited(_, 0) => Ok(()),
            WaitStatus::Exited(_, code) => Err(io::Error::from_raw_os_error(code)),
            other => Err(io::Error::other(format!("the trial ended with {other:?}"))),
        },
    }
}

fn mount_overlay(dir: &Path) -> nix::Result<()> {
    let none: Option<&str> = None;
    unshare(CloneFlags::CLONE_NEWNS)?;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)?;
    let part = |name: &str| dir.join(name).display().to_string();
    let options = format!(
        "lowerdir={},upperdir={},workdir={}",
        part("lower"),
        part("upper"),
        part("work")
    );
    mount(
        Some("overlay"),
        &dir.join("merged"),
        Some("overlay"),
        MsFlags::empty(),
        Some(options.as_str()),
    )
}
