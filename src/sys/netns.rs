//! Network namespaces: made, pinned and entered. This runs on threads of their own that end there, so that no other
//! code of this process ever runs in a foreign namespace.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::thread;

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, setns, unshare};

use super::user_namespace::Holder;

/// The namespace of the calling thread.
const OWN: &str = "/proc/thread-self/ns/net";

/// The ids of the user namespace that a network namespace belongs to: the first of the caller's, and their number.
pub type Users = Option<(u32, u32)>;

/// Makes a network namespace, pins it at `pin` and runs `inside` in it. `before` runs first, in the caller's
/// namespace but on the same thread. The pin is removed again if a step fails. With `users` it belongs to a new user
/// namespace, which lasts as long ([`super::user_namespace::owner`]).
pub fn make<B, T, E>(
    pin: &Path,
    users: Users,
    before: impl FnOnce() -> Result<B, E> + Send,
    inside: impl FnOnce(B, BorrowedFd<'_>) -> Result<T, E> + Send,
) -> Result<T, E>
where
    T: Send,
    E: From<io::Error> + Send,
{
    on_own_thread(|| {
        let prepared = before()?;
        leave(users)?;
        let namespace = pin_own(pin).inspect_err(|_| {
            let _first_error_counts = unpin(pin);
        })?;
        inside(prepared, namespace.as_fd())
    })
}

/// Runs `inside` in the namespace that is pinned at `pin`.
pub fn enter<B, T, E>(
    pin: &Path,
    before: impl FnOnce() -> Result<B, E> + Send,
    inside: impl FnOnce(B, BorrowedFd<'_>) -> Result<T, E> + Send,
) -> Result<T, E>
where
    T: Send,
    E: From<io::Error> + Send,
{
    on_own_thread(|| {
        let prepared = before()?;
        let namespace = File::open(pin)?;
        setns(namespace.as_fd(), CloneFlags::CLONE_NEWNET).map_err(io::Error::from)?;
        inside(prepared, namespace.as_fd())
    })
}

/// Removes a pin; the namespace ends with its last process. A missing pin is fine.
pub fn unpin(pin: &Path) -> io::Result<()> {
    super::mount::unmount(pin)?;
    match std::fs::remove_file(pin) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// Whether a namespace is pinned at `pin`: a file that a crash left without its mount does not count.
pub fn is_pin(pin: &Path) -> bool {
    nix::sys::statfs::statfs(pin)
        .is_ok_and(|found| found.filesystem_type() == nix::sys::statfs::NSFS_MAGIC)
}

/// Takes the thread to a new namespace.
fn leave(users: Users) -> io::Result<()> {
    let Some((first, count)) = users else {
        return Ok(unshare(CloneFlags::CLONE_NEWNET)?);
    };
    let holder = Holder::make(first, count, CloneFlags::CLONE_NEWNET)?;
    Ok(setns(holder.namespace("net")?, CloneFlags::CLONE_NEWNET)?)
}

fn pin_own(pin: &Path) -> io::Result<File> {
    OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o444)
        .open(pin)?;
    mount(Some(OWN), pin, None::<&str>, MsFlags::MS_BIND, None::<&str>)?;
    File::open(OWN)
}

fn on_own_thread<T: Send, E: From<io::Error> + Send>(
    work: impl FnOnce() -> Result<T, E> + Send,
) -> Result<T, E> {
    thread::scope(|scope| {
        let thread = thread::Builder::new()
            .name("netns".to_owned())
            .spawn_scoped(scope, work)?;
        thread
            .join()
            .unwrap_or_else(|_| Err(io::Error::other("the thread panicked").into()))
    })
}
