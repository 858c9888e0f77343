//! The root of a mount namespace on a machine that runs from its initramfs. That file system is the bottom of every
//! mount namespace: pivot_root(2) refuses to replace it (EINVAL), so no container could get a root of its own.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::statfs::{FsType, TMPFS_MAGIC, statfs};
use nix::unistd::{chroot, fchdir};
use procfs::process::Process;

use super::mount_tree;

/// linux/magic.h. Not every platform's libc has it; where the type is signed and has 32 bits, it is negative.
#[allow(
    overflowing_literals,
    reason = "the type differs between machines, and a magic number has 32 bits"
)]
const RAMFS_MAGIC: FsType = FsType(0x8584_58f6);

/// Whether `/` is the bottom of the mount namespace, as on an initramfs. From Linux 7 on, something lies below it.
pub fn is_initramfs() -> io::Result<bool> {
    // The mount table of a node may be long: it is read only where the answer may be yes.
    let kind = statfs("/")?.filesystem_type();
    if kind != TMPFS_MAGIC && kind != RAMFS_MAGIC {
        return Ok(false);
    }
    Ok(bottom()?.is_some())
}

/// The mount points right on `/`, if that is the bottom of the namespace: it is its own parent.
fn bottom() -> io::Result<Option<Vec<PathBuf>>> {
    let table = Process::myself().and_then(|me| me.mountinfo());
    let table: Vec<_> = table.map_err(io::Error::other)?.into_iter().collect();
    let root = table
        .iter()
        .find(|entry| entry.mnt_id == entry.pid && entry.mount_point == Path::new("/"));
    Ok(root.map(|root| {
        let above = table
            .iter()
            .filter(|entry| entry.pid == root.mnt_id && entry.mnt_id != root.mnt_id);
        above.map(|entry| entry.mount_point.clone()).collect()
    }))
}

/// Moves this process onto a copy of the bottom, which lies on the bottom itself and is a root like any other. All
/// that was mounted is in the copy, and goes on receiving what is mounted on the node; on the bottom nothing is left
/// but its files, which no path of a container leads to. Does nothing where `/` is not the bottom. The mount namespace must be
/// the caller's own, and the process must have one thread.
pub fn lift() -> io::Result<()> {
    if !is_initramfs()? {
        return Ok(());
    }
    let Some(above) = bottom()? else {
        return Ok(());
    };
    let copy = mount_tree::copy_as_it_is(Path::new("/"))?;
    // From here on, nothing that is done to the bottom reaches the node.
    let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
    mount(None::<&str>, "/", None::<&str>, private, None::<&str>)?;
    for path in above {
        match umount2(&path, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW) {
            // It stays out of sight: another mount of the same place was unmounted with it, or an outer container locked it.
            Ok(()) | Err(Errno::EINVAL | Errno::ENOENT) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    let root = File::open("/")?;
    mount_tree::attach(
        std::os::fd::AsFd::as_fd(&copy),
        std::os::fd::AsFd::as_fd(&root),
    )?;
    fchdir(&copy)?;
    Ok(chroot(".")?)
}
