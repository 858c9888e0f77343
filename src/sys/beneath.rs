//! How is a path below a folder opened so that nothing in it leads outside? `openat2` with RESOLVE_IN_ROOT.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Component, Path, PathBuf};

use super::process::c_string;

const RESOLVE_NO_MAGICLINKS: u64 = 0x02;
const RESOLVE_IN_ROOT: u64 = 0x10;

/// Opens a folder or file as a mere place (O_PATH).
pub fn place(path: &Path) -> io::Result<OwnedFd> {
    Ok(File::options()
        .read(true)
        .custom_flags(libc::O_PATH)
        .open(path)?
        .into())
}

/// Opens `path` as a place with `root` as its `/`: symlinks and `..` stay inside.
pub fn open(root: BorrowedFd<'_>, path: &Path) -> io::Result<OwnedFd> {
    // SAFETY: all-zero is the documented base value of this struct.
    let mut how: libc::open_how = unsafe { std::mem::zeroed() };
    how.flags = (libc::O_PATH | libc::O_CLOEXEC) as u64;
    how.resolve = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS;
    let name = c_string(if path.as_os_str().is_empty() {
        Path::new(".")
    } else {
        path
    });
    loop {
        // SAFETY: name and struct are valid for the call, the size is the struct's own.
        let fd = unsafe {
            libc::syscall(
                libc::SYS_openat2,
                root.as_raw_fd(),
                name.as_ptr(),
                &how,
                size_of::<libc::open_how>(),
            )
        };
        if fd >= 0 {
            // SAFETY: the kernel just made this descriptor for us.
            return Ok(unsafe { OwnedFd::from_raw_fd(i32::try_from(fd).unwrap_or(-1)) });
        }
        let error = io::Error::last_os_error();
        // EAGAIN: something was renamed while `..` was walked; the kernel asks to try again.
        match error.raw_os_error() {
            Some(libc::EINTR | libc::EAGAIN) => {}
            _ => return Err(error),
        }
    }
}

/// Like [`open`], and makes missing folders with `mode` on the way. `..` is refused.
pub fn open_or_make(root: BorrowedFd<'_>, path: &Path, mode: u32) -> io::Result<OwnedFd> {
    let mut so_far = PathBuf::new();
    let mut at = open(root, &so_far)?;
    for component in path.components() {
        let name = match component {
            Component::Normal(name) => name,
            Component::RootDir | Component::CurDir => continue,
            Component::ParentDir | Component::Prefix(_) => {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidInput,
                    "`..` is not allowed here",
                ));
            }
        };
        so_far.push(name);
        at = match open(root, &so_far) {
            Ok(next) => next,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                make(at.as_fd(), name.as_ref(), mode)?;
                open(root, &so_far)?
            }
            Err(error) => return Err(error),
        };
    }
    Ok(at)
}

fn make(parent: BorrowedFd<'_>, name: &Path, mode: u32) -> io::Result<()> {
    let name = c_string(name);
    // SAFETY: the name is terminated and valid for both calls.
    unsafe {
        if libc::mkdirat(parent.as_raw_fd(), name.as_ptr(), mode as libc::mode_t) != 0 {
            let error = io::Error::last_os_error();
            return match error.kind() {
                io::ErrorKind::AlreadyExists => Ok(()),
                _ => Err(error),
            };
        }
        // The umask took bits away; a symlink put in place of the folder is not followed out: the name is beneath
        // a folder that was opened, and only its mode changes.
        libc::fchmodat(
            parent.as_raw_fd(),
            name.as_ptr(),
            mode as libc::mode_t,
            libc::AT_SYMLINK_NOFOLLOW,
        );
    }
    Ok(())
}
