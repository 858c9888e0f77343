//! How is a path opened that somebody else made up? With `openat2(2)`, which lets the kernel refuse to leave a
//! directory: no check-then-open race, no string comparison.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};
use nix::sys::stat::Mode;

/// How to open: flags (`O_CLOEXEC` is always added) and the mode of a file made by `O_CREAT`.
#[derive(Debug, Clone, Copy)]
pub struct How {
    /// `O_*` flags.
    pub flags: OFlag,
    /// Mode of a new file; ignored without `O_CREAT`.
    pub mode: Mode,
}

impl How {
    /// A directory, only to be used as the base of other `*at` calls.
    pub fn dir() -> Self {
        Self {
            flags: OFlag::O_PATH | OFlag::O_DIRECTORY,
            mode: Mode::empty(),
        }
    }

    /// A file or directory for reading.
    pub fn read() -> Self {
        Self {
            flags: OFlag::O_RDONLY,
            mode: Mode::empty(),
        }
    }
}

/// Opens `path` below `dirfd`: no component may be a symlink or lead out of the directory (`ELOOP`, `EXDEV`).
/// An empty path is the directory itself.
pub fn open_beneath(dirfd: impl AsFd, path: &Path, how: How) -> io::Result<OwnedFd> {
    let resolve = ResolveFlag::RESOLVE_BENEATH
        | ResolveFlag::RESOLVE_NO_SYMLINKS
        | ResolveFlag::RESOLVE_NO_MAGICLINKS;
    open(dirfd, path, how, resolve)
}

/// Opens `path` as if `dirfd` were `/`: symlinks are followed, but absolute ones and `..` end at that root.
pub fn open_in_root(dirfd: impl AsFd, path: &Path, how: How) -> io::Result<OwnedFd> {
    let resolve = ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_MAGICLINKS;
    open(dirfd, path, how, resolve)
}

fn open(dirfd: impl AsFd, path: &Path, how: How, resolve: ResolveFlag) -> io::Result<OwnedFd> {
    let path = if path.as_os_str().is_empty() {
        Path::new(".")
    } else {
        path
    };
    // The kernel refuses a mode without O_CREAT.
    let mode = if how.flags.contains(OFlag::O_CREAT) {
        how.mode
    } else {
        Mode::empty()
    };
    loop {
        let open_how = OpenHow::new()
            .flags(how.flags | OFlag::O_CLOEXEC)
            .mode(mode)
            .resolve(resolve);
        match openat2(dirfd.as_fd(), path, open_how) {
            // EAGAIN: a rename elsewhere raced with the walk; the kernel asks to try again.
            Err(nix::errno::Errno::EAGAIN | nix::errno::Errno::EINTR) => {}
            other => return Ok(other?),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_symlink_out_is_refused_beneath_and_clamped_in_root() {
        let dir = std::env::temp_dir().join(format!("coracle-openat-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(dir.join("etc")).unwrap();
        fs::write(dir.join("etc/passwd"), "inside").unwrap();
        std::os::unix::fs::symlink("/etc", dir.join("abs")).unwrap();
        std::os::unix::fs::symlink("../../../../etc", dir.join("dots")).unwrap();
        let fd = fs::File::open(&dir).unwrap();

        for link in ["abs/passwd", "dots/passwd"] {
            assert!(open_beneath(&fd, Path::new(link), How::read()).is_err());
            let file = open_in_root(&fd, Path::new(link), How::read()).unwrap();
            let text = io::read_to_string(fs::File::from(file)).unwrap();
            assert_eq!(text, "inside");
        }
        assert!(open_beneath(&fd, Path::new("../x"), How::read()).is_err());
        open_beneath(&fd, Path::new(""), How::dir()).unwrap();
        fs::remove_dir_all(&dir).unwrap();
    }
}
