//! Detached copies of mounted trees: made in one mount namespace, attached in another.

use std::ffi::CStr;
use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::Path;

use super::process::c_string;

const EMPTY: &CStr = c"";

/// How later mounts propagate between the copy and its original.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spread {
    /// Not at all.
    Private,
    /// From the original to the copy.
    Slave,
    /// Both ways.
    Shared,
}

/// Which mounts of a copy are read-only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadOnly {
    /// None but those that were.
    No,
    /// The topmost one.
    Top,
    /// All.
    All,
}

/// Copies what is mounted at `source`, and everything below it, as `mount --rbind` does.
pub fn copy(source: &Path, read_only: ReadOnly, spread: Spread) -> io::Result<OwnedFd> {
    copy_with(source, (read_only, spread), libc::AT_RECURSIVE)
}

/// Copies the mount at `source` without those below it, as `mount --bind` does.
pub fn copy_one(source: &Path, read_only: ReadOnly, spread: Spread) -> io::Result<OwnedFd> {
    copy_with(source, (read_only, spread), 0)
}

/// Copies what is mounted at `source`, and everything below it; the copies receive and send later mounts as the originals
/// do.
pub fn copy_as_it_is(source: &Path) -> io::Result<OwnedFd> {
    clone(source, libc::AT_RECURSIVE)
}

fn clone(source: &Path, depth: i32) -> io::Result<OwnedFd> {
    let path = c_string(source);
    let flags = libc::OPEN_TREE_CLONE | libc::OPEN_TREE_CLOEXEC;
    let flags = flags | depth.cast_unsigned();
    // SAFETY: the path is terminated and lives through the call.
    let number =
        unsafe { libc::syscall(libc::SYS_open_tree, libc::AT_FDCWD, path.as_ptr(), flags) };
    let number = i32::try_from(number).unwrap_or(-1);
    if number < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just opened it, and it belongs to nothing else.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

#[allow(
    clippy::useless_conversion,
    reason = "the kernel's flags of mounts have 32 bits on 32-bit machines"
)]
fn copy_with(
    source: &Path,
    (read_only, spread): (ReadOnly, Spread),
    depth: i32,
) -> io::Result<OwnedFd> {
    let tree = clone(source, depth)?;
    let propagation = match spread {
        Spread::Private => libc::MS_PRIVATE,
        Spread::Slave => libc::MS_SLAVE,
        Spread::Shared => libc::MS_SHARED,
    };
    set(tree.as_fd(), 0, propagation.into(), libc::AT_RECURSIVE)?;
    match read_only {
        ReadOnly::No => {}
        ReadOnly::Top => set(tree.as_fd(), libc::MOUNT_ATTR_RDONLY, 0, 0)?,
        ReadOnly::All => set(tree.as_fd(), libc::MOUNT_ATTR_RDONLY, 0, libc::AT_RECURSIVE)?,
    }
    Ok(tree)
}

/// Ignores device nodes, programs or set-user-ID bits in a copy. Concerns the topmost mount only.
pub fn restrict(
    tree: BorrowedFd<'_>,
    (nodev, noexec, nosuid): (bool, bool, bool),
) -> io::Result<()> {
    let of = |yes: bool, attribute: u64| if yes { attribute } else { 0 };
    let attributes = of(nodev, libc::MOUNT_ATTR_NODEV)
        | of(noexec, libc::MOUNT_ATTR_NOEXEC)
        | of(nosuid, libc::MOUNT_ATTR_NOSUID);
    match attributes {
        0 => Ok(()),
        some => set(tree, some, 0, 0),
    }
}

/// Attaches a copy at `target`, which must be in the caller's mount namespace.
pub fn attach(tree: BorrowedFd<'_>, target: BorrowedFd<'_>) -> io::Result<()> {
    const FROM_EMPTY: libc::c_long = 0x4;
    const TO_EMPTY: libc::c_long = 0x40;
    // SAFETY: both paths are empty and terminated, both descriptors are open.
    let done = unsafe {
        libc::syscall(
            libc::SYS_move_mount,
            tree.as_raw_fd(),
            EMPTY.as_ptr(),
            target.as_raw_fd(),
            EMPTY.as_ptr(),
            FROM_EMPTY | TO_EMPTY,
        )
    };
    if done != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Shows the topmost mount of a copy with the ids of a user namespace: its id 0 owns what 0 owns on disk (Linux 5.12; a
/// tmpfs from 6.3 on). The copy must not be attached yet.
pub fn map_ids(tree: BorrowedFd<'_>, users: BorrowedFd<'_>) -> io::Result<()> {
    set_all(tree, (libc::MOUNT_ATTR_IDMAP, Some(users)), 0, 0)
}

/// The same for all mounts of a copy, or none of them.
pub fn map_ids_below(tree: BorrowedFd<'_>, users: BorrowedFd<'_>) -> io::Result<()> {
    let attribute = (libc::MOUNT_ATTR_IDMAP, Some(users));
    set_all(tree, attribute, 0, libc::AT_RECURSIVE)
}

fn set(tree: BorrowedFd<'_>, attributes: u64, propagation: u64, flags: i32) -> io::Result<()> {
    set_all(tree, (attributes, None), propagation, flags)
}

fn set_all(
    tree: BorrowedFd<'_>,
    (attributes, users): (u64, Option<BorrowedFd<'_>>),
    propagation: u64,
    flags: i32,
) -> io::Result<()> {
    // SAFETY: a structure of numbers, of which none is one that means nothing.
    let mut wanted: libc::mount_attr = unsafe { mem::zeroed() };
    wanted.attr_set = attributes;
    wanted.propagation = propagation;
    let number = users.map_or(0, |users| users.as_raw_fd());
    wanted.userns_fd = u64::try_from(number).unwrap_or_default();
    // SAFETY: the structure is whole and its size is passed.
    let done = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            tree.as_raw_fd(),
            EMPTY.as_ptr(),
            libc::AT_EMPTY_PATH | flags,
            &raw const wanted,
            mem::size_of::<libc::mount_attr>(),
        )
    };
    if done != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
