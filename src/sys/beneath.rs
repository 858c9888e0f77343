//! Paths below a folder, opened or created so that no symlink in them leads outside.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Component, Path, PathBuf};

use nix::fcntl::{AtFlags, OFlag};
use nix::sys::stat::Mode;
use nix::unistd::{Gid, Uid, UnlinkatFlags, fchownat, unlinkat};

use super::openat;
use super::process::c_string;

/// Opens a folder or file as a place only (O_PATH).
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

/// Opens `path` below `root` as a place and makes missing folders with `mode` on the way. Symlinks stay inside;
/// `..` is refused.
pub fn open_or_make(root: BorrowedFd<'_>, path: &Path, mode: u32) -> io::Result<OwnedFd> {
    open_or_make_for(root, path, (mode, None))
}

/// The same; folders that are made belong to this user and group.
pub fn open_or_make_for(
    root: BorrowedFd<'_>,
    path: &Path,
    new: (u32, Option<u32>),
) -> io::Result<OwnedFd> {
    open_or_make_by(open, root, path, new)
}

/// The same, but symlinks that are absolute or lead out of `root` are refused (`EXDEV`).
pub fn open_or_make_inside(
    root: BorrowedFd<'_>,
    path: &Path,
    new: (u32, Option<u32>),
) -> io::Result<OwnedFd> {
    open_or_make_by(open_inside, root, path, new)
}

/// Opens `path` below `root` as a place. Symlinks that lead out of it are refused (`EXDEV`).
fn open_inside(root: BorrowedFd<'_>, path: &Path) -> io::Result<OwnedFd> {
    let how = openat::How {
        flags: OFlag::O_PATH,
        mode: Mode::empty(),
    };
    openat::open_inside(root, path, how)
}

fn open_or_make_by(
    open: impl Fn(BorrowedFd<'_>, &Path) -> io::Result<OwnedFd>,
    root: BorrowedFd<'_>,
    path: &Path,
    (mode, owner): (u32, Option<u32>),
) -> io::Result<OwnedFd> {
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
                if let Some(owner) = owner {
                    let (uid, gid) = (Uid::from_raw(owner), Gid::from_raw(owner));
                    let flags = AtFlags::AT_SYMLINK_NOFOLLOW;
                    fchownat(&at, name, Some(uid), Some(gid), flags)?;
                }
                open(root, &so_far)?
            }
            Err(error) => return Err(error),
        };
    }
    Ok(at)
}

/// The maximum number of symlinks on the way to a place, as in the kernel.
const MAX_LINKS: usize = 40;

/// The target of `path` with `root` as its `/`: an absolute path without symlinks and `..`. Missing components are
/// taken as written. The answer holds as long as nothing in `root` is renamed or replaced.
pub fn canonical(root: BorrowedFd<'_>, path: &Path) -> io::Result<PathBuf> {
    resolve(path, |below| link_at(root, below))
}

/// The same for a root that only the caller changes. Needs no `openat2(2)`, which emulators of other machines may lack.
pub fn canonical_in(root: &Path, path: &Path) -> io::Result<PathBuf> {
    resolve(path, |below| {
        match std::fs::read_link(root.join(below)) {
            Ok(target) => Ok(Some(target)),
            // No symlink.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(None),
            Err(error) => Err(error),
        }
    })
}

/// Resolves symlinks, whose targets `link_at` returns for a path below the root that has none before its end.
fn resolve(
    path: &Path,
    link_at: impl Fn(&Path) -> io::Result<Option<PathBuf>>,
) -> io::Result<PathBuf> {
    let mut found = PathBuf::from("/");
    let mut links = 0;
    let mut left: Vec<OsString> = reversed(path);
    while let Some(name) = left.pop() {
        if name == ".." {
            found.pop();
            continue;
        }
        found.push(&name);
        let below = found.strip_prefix("/").expect("it begins there");
        match link_at(below) {
            Ok(Some(target)) => {
                links += 1;
                if links > MAX_LINKS {
                    return Err(io::Error::from_raw_os_error(libc::ELOOP));
                }
                found.pop();
                if target.is_absolute() {
                    found = PathBuf::from("/");
                }
                left.extend(reversed(&target));
            }
            Ok(None) => {}
            Err(error) => match error.kind() {
                io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => {}
                _ => return Err(error),
            },
        }
    }
    Ok(found)
}

fn reversed(path: &Path) -> Vec<OsString> {
    let names = path.components().filter_map(|component| match component {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    });
    let mut names: Vec<OsString> = names.collect();
    names.reverse();
    names
}

/// The target of a symlink; `None` for anything else.
fn link_at(root: BorrowedFd<'_>, path: &Path) -> io::Result<Option<PathBuf>> {
    let how = openat::How {
        flags: OFlag::O_PATH | OFlag::O_NOFOLLOW,
        mode: Mode::empty(),
    };
    let parent = path.parent().unwrap_or(Path::new(""));
    let folder = openat::open_beneath(root, parent, openat::How::dir())?;
    let name = path.file_name().expect("it ends with a name");
    match nix::fcntl::readlinkat(&folder, name) {
        Ok(target) => Ok(Some(target.into())),
        // No symlink, but it may be missing.
        Err(nix::errno::Errno::EINVAL) => {
            openat::open_beneath(&folder, Path::new(name), how).map(|_| None)
        }
        Err(errno) => Err(errno.into()),
    }
}

/// Whether a canonical path is a folder; `None` if it is missing.
pub fn is_folder(root: BorrowedFd<'_>, path: &Path) -> io::Result<Option<bool>> {
    match open(root, path) {
        Ok(place) => {
            let found = nix::sys::stat::fstat(&place)?;
            Ok(Some(found.st_mode & libc::S_IFMT == libc::S_IFDIR))
        }
        Err(error) => match error.kind() {
            io::ErrorKind::NotFound => Ok(None),
            io::ErrorKind::NotADirectory => Ok(Some(false)),
            _ => Err(error),
        },
    }
}

/// Makes `name` in `folder` a plain folder: anything else of that name is unlinked.
pub fn plain_folder(folder: BorrowedFd<'_>, name: &str, mode: u32) -> io::Result<()> {
    let found = nix::sys::stat::fstatat(folder, name, AtFlags::AT_SYMLINK_NOFOLLOW);
    match found {
        Ok(found) if found.st_mode & libc::S_IFMT == libc::S_IFDIR => return Ok(()),
        Ok(_) => unlinkat(folder, name, UnlinkatFlags::NoRemoveDir)?,
        Err(nix::errno::Errno::ENOENT) => {}
        Err(errno) => return Err(errno.into()),
    }
    make(folder, name.as_ref(), mode)
}

/// Opens `path` below `root` as a mount point for a file: if it is missing, an empty file is made, with its
/// folders.
pub fn open_or_make_file(root: BorrowedFd<'_>, path: &Path) -> io::Result<OwnedFd> {
    let parent = open_or_make(root, path.parent().unwrap_or(Path::new("")), 0o755)?;
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    let flags = OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_WRONLY | OFlag::O_NOFOLLOW;
    let mode = Mode::from_bits_truncate(0o644);
    match nix::fcntl::openat(parent, name, flags | OFlag::O_CLOEXEC, mode) {
        Ok(_) | Err(nix::errno::Errno::EEXIST) => open(root, path),
        Err(errno) => Err(errno.into()),
    }
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
        // The umask removed bits. A symlink in place of the folder is not followed outside: the name is beneath a
        // folder that was opened, and only its mode changes.
        libc::fchmodat(
            parent.as_raw_fd(),
            name.as_ptr(),
            mode as libc::mode_t,
            libc::AT_SYMLINK_NOFOLLOW,
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    fn folder(name: &str) -> (PathBuf, OwnedFd) {
        let dir =
            std::env::temp_dir().join(format!("coracle-beneath-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(dir.join("a/b")).unwrap();
        let root = place(&dir).unwrap();
        (dir, root)
    }

    #[test]
    fn a_canonical_path_has_no_symlinks_and_stays_inside() {
        let (dir, root) = folder("canonical");
        for (link, target) in [
            ("up", "../../.."),
            ("abs", "/a/b"),
            ("twice", "abs/../up"),
            ("self", "."),
            ("a/dev", "/dev"),
            ("loop", "loop"),
            ("broken", "/none/x"),
        ] {
            symlink(target, dir.join(link)).unwrap();
        }
        fs::write(dir.join("file"), "").unwrap();
        for (path, expected) in [
            ("/", "/"),
            ("a/b/c", "/a/b/c"),
            ("/abs/c", "/a/b/c"),
            ("/up", "/"),
            ("/up/etc", "/etc"),
            ("/twice", "/a/up"),
            ("/self/self/a", "/a"),
            ("/a/dev/x", "/dev/x"),
            ("/broken/y", "/none/x/y"),
            ("/a/../../b", "/b"),
            ("/none/../a", "/a"),
            ("/file/x", "/file/x"),
        ] {
            let found = canonical(root.as_fd(), Path::new(path)).unwrap();
            assert_eq!(found, Path::new(expected), "{path}");
            let found = canonical_in(&dir, Path::new(path)).unwrap();
            assert_eq!(found, Path::new(expected), "{path}");
        }
        assert!(canonical(root.as_fd(), Path::new("/loop/x")).is_err());
        assert!(canonical_in(&dir, Path::new("/loop/x")).is_err());
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn a_plain_folder_takes_the_place_of_anything_else() {
        let (dir, root) = folder("plain");
        symlink("a", dir.join("link")).unwrap();
        fs::write(dir.join("file"), "").unwrap();
        for name in ["link", "file", "a", "fresh"] {
            plain_folder(root.as_fd(), name, 0o755).unwrap();
            assert!(
                fs::symlink_metadata(dir.join(name)).unwrap().is_dir(),
                "{name}"
            );
        }
        assert!(dir.join("a/b").is_dir(), "what is plain stays as it is");
        fs::remove_dir_all(dir).unwrap();
    }
}
