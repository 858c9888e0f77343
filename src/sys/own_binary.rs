//! The own binary, started from a view that no process can write to. A process in a container can open the file of
//! a program that is about to enter it (`/proc/<pid>/exe`), keep it, and write once nothing runs from it any more
//! (CVE-2019-5736). From a read-only view of the file, every such attempt fails.

use std::fs::File;
use std::io::{self, Seek, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};

/// The program's own file, to be executed through `/proc/self/fd/<n>`: a detached read-only mount of it, which
/// costs nothing; before Linux 5.12 a sealed copy in memory.
pub fn read_only() -> io::Result<OwnedFd> {
    detached_mount().or_else(|_| sealed_copy())
}

fn detached_mount() -> io::Result<OwnedFd> {
    let path = c"/proc/self/exe";
    let flags = libc::OPEN_TREE_CLONE | libc::OPEN_TREE_CLOEXEC;
    // SAFETY: the path is terminated and valid for the call; the flags are integers.
    let fd = unsafe { libc::syscall(libc::SYS_open_tree, libc::AT_FDCWD, path.as_ptr(), flags) };
    let Some(fd) = i32::try_from(fd).ok().filter(|fd| *fd >= 0) else {
        return Err(io::Error::last_os_error());
    };
    // SAFETY: the kernel just made this descriptor for us.
    let tree = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: all-zero is a valid mount_attr that changes nothing.
    let mut attributes: libc::mount_attr = unsafe { std::mem::zeroed() };
    attributes.attr_set = libc::MOUNT_ATTR_RDONLY;
    // SAFETY: descriptor, terminated path and structure are valid for the call, the size is the structure's own.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            tree.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            &raw const attributes,
            size_of::<libc::mount_attr>(),
        )
    };
    match result {
        0 => Ok(tree),
        _ => Err(io::Error::last_os_error()),
    }
}

fn sealed_copy() -> io::Result<OwnedFd> {
    let mut own = File::open("/proc/self/exe")?;
    let mut copy = File::from(memfd_create(
        c"coracle",
        MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING,
    )?);
    io::copy(&mut own, &mut copy)?;
    copy.flush()?;
    copy.rewind()?;
    fcntl(&copy, FcntlArg::F_ADD_SEALS(SealFlag::all()))?;
    Ok(copy.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_view_can_be_executed_but_not_written_either_way() {
        let mount = detached_mount().expect("root on a current kernel");
        let flags = nix::sys::statvfs::fstatvfs(&mount)
            .expect("a file system")
            .flags();
        assert!(flags.contains(nix::sys::statvfs::FsFlags::ST_RDONLY));
        let copy = sealed_copy().expect("memory for a copy");
        assert!(
            File::from(copy.try_clone().expect("duplicated"))
                .write_all(b"x")
                .is_err()
        );
        for view in [mount, copy] {
            let path = format!("/proc/self/fd/{}", view.as_raw_fd());
            let listed = std::process::Command::new(&path)
                .arg("--list")
                .output()
                .expect("it starts");
            assert!(listed.status.success());
        }
    }
}
