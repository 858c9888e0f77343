//! Untrusted paths, opened with `openat2(2)`: the kernel itself refuses to leave a directory, without a
//! check-then-open race or string comparison.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};
use nix::sys::stat::{Mode, SFlag, fstat};

/// How often a walk is tried again because something was renamed meanwhile: a container that renames without end must
/// not keep the caller for ever.
const MAX_RACES: u32 = 10_000;

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

/// Opens `path` below `dirfd`: symlinks are followed, but absolute ones and those that lead out of the directory are
/// refused (`EXDEV`).
pub fn open_inside(dirfd: impl AsFd, path: &Path, how: How) -> io::Result<OwnedFd> {
    let resolve = ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_MAGICLINKS;
    open(dirfd, path, how, resolve)
}

/// The kind of file at an untrusted path.
#[derive(Debug)]
pub enum Found {
    /// A regular file, open for reading.
    Regular(File),
    /// An overlay's whiteout: the path is hidden.
    Whiteout,
    /// Anything else; it was not opened.
    Other,
}

/// Opens `path` as if `dirfd` were `/` if it is a regular file. Nothing else is opened, not even for a moment: a
/// pipe would block the caller, and opening a device may have effects.
pub fn read_regular_in_root(dirfd: impl AsFd, path: &Path) -> io::Result<Found> {
    let place = How {
        flags: OFlag::O_PATH,
        mode: Mode::empty(),
    };
    read_if_regular(open_in_root(dirfd, path, place)?)
}

/// Opens `path` if it is a regular file, in the same way. Its last component may not be a symlink; the folders are
/// trusted.
pub fn read_regular(path: &Path) -> io::Result<Found> {
    let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    read_if_regular(nix::fcntl::open(path, flags, Mode::empty())?)
}

fn read_if_regular(place: OwnedFd) -> io::Result<Found> {
    let found = fstat(&place)?;
    let kind = found.st_mode & SFlag::S_IFMT.bits();
    if kind == SFlag::S_IFCHR.bits() && found.st_rdev == 0 {
        return Ok(Found::Whiteout);
    }
    if kind != SFlag::S_IFREG.bits() {
        return Ok(Found::Other);
    }
    // The same file: the link leads to what is open, whatever now has its name.
    let file = File::options()
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(format!("/proc/self/fd/{}", place.as_raw_fd()))?;
    Ok(Found::Regular(file))
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
    let mut races = 0;
    loop {
        let open_how = OpenHow::new()
            .flags(how.flags | OFlag::O_CLOEXEC)
            .mode(mode)
            .resolve(resolve);
        match openat2(dirfd.as_fd(), path, open_how) {
            Err(Errno::EINTR) => {}
            // A rename elsewhere raced with the walk; the kernel asks to try again.
            Err(Errno::EAGAIN) if races < MAX_RACES => races += 1,
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

        std::os::unix::fs::symlink("../etc", dir.join("etc/inside")).unwrap();
        let inside = open_inside(&fd, Path::new("etc/inside/passwd"), How::read()).unwrap();
        assert_eq!(
            io::read_to_string(fs::File::from(inside)).unwrap(),
            "inside"
        );
        for link in ["abs/passwd", "dots/passwd"] {
            let escape = open_inside(&fd, Path::new(link), How::read()).unwrap_err();
            assert_eq!(escape.raw_os_error(), Some(libc::EXDEV), "{link}");
            assert!(open_beneath(&fd, Path::new(link), How::read()).is_err());
            let file = open_in_root(&fd, Path::new(link), How::read()).unwrap();
            let text = io::read_to_string(fs::File::from(file)).unwrap();
            assert_eq!(text, "inside");
        }
        assert!(open_beneath(&fd, Path::new("../x"), How::read()).is_err());
        open_beneath(&fd, Path::new(""), How::dir()).unwrap();
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn only_regular_files_are_opened_and_nothing_makes_us_wait() {
        use nix::sys::stat::mknod;
        let dir = std::env::temp_dir().join(format!("coracle-regular-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(dir.join("folder")).unwrap();
        fs::write(dir.join("file"), "text").unwrap();
        std::os::unix::fs::symlink("/file", dir.join("link")).unwrap();
        std::os::unix::fs::symlink("fifo", dir.join("to-fifo")).unwrap();
        std::os::unix::fs::symlink("loop", dir.join("loop")).unwrap();
        nix::unistd::mkfifo(&dir.join("fifo"), Mode::from_bits_truncate(0o600)).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(dir.join("socket")).unwrap();
        // Any user may make whiteouts, and root may make devices.
        let zero = nix::sys::stat::makedev(0, 0);
        mknod(&dir.join("whiteout"), SFlag::S_IFCHR, Mode::empty(), zero).unwrap();
        let console = nix::sys::stat::makedev(5, 1);
        let device = mknod(&dir.join("device"), SFlag::S_IFCHR, Mode::empty(), console).is_ok();
        let fd = fs::File::open(&dir).unwrap();

        let open = |name: &str| read_regular_in_root(&fd, Path::new(name));
        for name in ["file", "link"] {
            let Found::Regular(file) = open(name).unwrap() else {
                panic!("{name} is a regular file");
            };
            assert_eq!(io::read_to_string(file).unwrap(), "text");
        }
        for name in ["fifo", "to-fifo", "socket", "folder"] {
            assert!(matches!(open(name).unwrap(), Found::Other), "{name}");
            let direct = read_regular(&dir.join(name)).unwrap();
            assert!(matches!(direct, Found::Other), "{name}");
        }
        if device {
            assert!(matches!(open("device").unwrap(), Found::Other));
        }
        assert!(matches!(open("whiteout").unwrap(), Found::Whiteout));
        assert!(open("loop").is_err() && open("absent").is_err());
        let through_link = read_regular(&dir.join("link")).unwrap();
        assert!(matches!(through_link, Found::Other));
        fs::remove_dir_all(&dir).unwrap();
    }
}
