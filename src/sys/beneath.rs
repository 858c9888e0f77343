//! How is a place below a folder reached, and made where it is missing, so that nothing in it leads outside?

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Component, Path, PathBuf};

use nix::fcntl::OFlag;
use nix::sys::stat::Mode;

use super::openat;
use super::process::c_string;

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
    let how = openat::How {
        flags: OFlag::O_PATH,
        mode: Mode::empty(),
    };
    openat::open_in_root(root, path, how)
}

/// Opens `path` below `root` as a place and makes missing folders with `mode` on the way. Symlinks stay inside; `..`
/// is refused.
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
