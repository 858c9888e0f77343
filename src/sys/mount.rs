//! Mounting, unmounting and the mount table.

use std::ffi::{CString, OsString};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use procfs::ProcError;
use procfs::process::Process;

/// One line of the mount table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// The mount point.
    pub target: PathBuf,
    /// File system type: `cgroup2`, `tmpfs`.
    pub kind: String,
    /// Super block options without values: `memory`, `rw`.
    pub super_options: Vec<String>,
}

/// The mount table of this process.
pub fn table() -> io::Result<Vec<Mount>> {
    let list = Process::myself()
        .and_then(|me| me.mountinfo())
        .map_err(proc_error)?;
    Ok(list
        .into_iter()
        .map(|entry| Mount {
            target: decoded(&entry.mount_point.to_string_lossy()),
            kind: entry.fs_type,
            super_options: entry
                .super_options
                .into_iter()
                .map(|(name, value)| match value {
                    Some(value) => format!("{name}={value}"),
                    None => name,
                })
                .collect(),
        })
        .collect())
}

/// A path of the mount table, in which spaces, tabs, newlines and backslashes are written as `\040` and so on.
pub(super) fn decoded(field: &str) -> PathBuf {
    let mut bytes = Vec::new();
    let mut rest = field.as_bytes();
    while let Some((first, more)) = rest.split_first() {
        let code = match rest {
            [b'\\', b'0', b'4', b'0', ..] => Some(b' '),
            [b'\\', b'0', b'1', b'1', ..] => Some(b'\t'),
            [b'\\', b'0', b'1', b'2', ..] => Some(b'\n'),
            [b'\\', b'1', b'3', b'4', ..] => Some(b'\\'),
            _ => None,
        };
        bytes.push(code.unwrap_or(*first));
        rest = if code.is_some() { &rest[4..] } else { more };
    }
    PathBuf::from(OsString::from_vec(bytes))
}

/// Whether something is mounted right at `path`. The table also has mounts that lie hidden below another one, so the
/// path itself is asked first.
fn is_mounted(path: &Path) -> io::Result<bool> {
    if let Some(root) = is_mount_root(path) {
        return Ok(root);
    }
    let path = real(path)?;
    Ok(table()?.iter().any(|mount| mount.target == path))
}

/// Whether a path leads to the root of a mount; `None` if the kernel does not tell (before Linux 5.8).
fn is_mount_root(path: &Path) -> Option<bool> {
    // statx(2): 256 bytes, with the attributes from byte 8 and those that are known from byte 56.
    const ATTRIBUTES: usize = 1;
    const KNOWN: usize = 7;
    const MOUNT_ROOT: u64 = 0x2000;
    let path = CString::new(path.as_os_str().as_bytes()).ok()?;
    let mut found = [0_u64; 32];
    // SAFETY: the path ends with a zero byte, and the kernel writes at most 256 bytes, the size of `found`.
    let done = unsafe {
        libc::syscall(
            libc::SYS_statx,
            libc::AT_FDCWD,
            path.as_ptr(),
            libc::AT_NO_AUTOMOUNT,
            0,
            found.as_mut_ptr(),
        )
    };
    (done == 0 && found[KNOWN] & MOUNT_ROOT != 0).then_some(found[ATTRIBUTES] & MOUNT_ROOT != 0)
}

/// The path without links, as the mount table has it: `/var/run` is a link on most systems. Nothing is mounted at a missing
/// one.
fn real(path: &Path) -> io::Result<PathBuf> {
    match path.canonicalize() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(path.to_owned()),
        real => real,
    }
}

/// Makes `path` a mount point of its own whose mounts do not propagate to or from other namespaces' peers. It is
/// idempotent.
pub fn make_private(path: &Path) -> io::Result<()> {
    if !is_mounted(path)? {
        mount(
            Some(path),
            path,
            None::<&str>,
            MsFlags::MS_BIND,
            None::<&str>,
        )?;
    }
    mount(
        None::<&str>,
        path,
        None::<&str>,
        MsFlags::MS_PRIVATE,
        None::<&str>,
    )?;
    Ok(())
}

/// Makes a mount point shared: mounts below it spread to its copies in other mount namespaces, and back.
pub fn share(path: &Path) -> io::Result<()> {
    let none = None::<&str>;
    Ok(mount(none, path, none, MsFlags::MS_SHARED, none)?)
}

/// Unmounts what is mounted right in a folder, in this mount namespace only, after a copy of the table was made
/// (`unshare`). The folder's own mount stays: its unmount would spread to other namespaces through a shared parent
/// (mount_namespaces(7)). A folder that is no mount point is left as it is.
pub fn let_go(folder: &Path) -> io::Result<()> {
    let private = MsFlags::MS_PRIVATE | MsFlags::MS_REC;
    match mount(None::<&str>, folder, None::<&str>, private, None::<&str>) {
        Ok(()) => {}
        Err(Errno::EINVAL | Errno::ENOENT) => return Ok(()),
        Err(errno) => return Err(errno.into()),
    }
    for entry in std::fs::read_dir(folder)? {
        unmount(&entry?.path())?;
    }
    Ok(())
}

/// Unmounts all mounts on `path`, lazily, with what is mounted below them; a missing one is fine.
pub fn unmount(path: &Path) -> io::Result<()> {
    loop {
        match umount2(path, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW) {
            Ok(()) => {}
            Err(Errno::EINVAL | Errno::ENOENT) => return Ok(()),
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Mounts a tmpfs, kept out of swap if `noswap` asks for it and the kernel supports it (Linux 6.4). A mounted one
/// is left as it is.
pub fn tmpfs(path: &Path, size_bytes: Option<u64>, noswap: bool) -> io::Result<()> {
    if is_mounted(path)? {
        return Ok(());
    }
    let size = size_bytes
        .map(|bytes| format!("size={bytes}"))
        .unwrap_or_default();
    let with_noswap = if size.is_empty() {
        "noswap".to_owned()
    } else {
        format!("{size},noswap")
    };
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    let try_mount = |options: &str| mount(Some("tmpfs"), path, Some("tmpfs"), flags, Some(options));
    if noswap && try_mount(&with_noswap).is_ok() {
        return Ok(());
    }
    Ok(try_mount(&size)?)
}

/// Mounts a hugetlbfs with pages of this size
/// (<https://docs.kernel.org/admin-guide/mm/hugetlbpage.html>). A mounted one is left as it is.
pub fn hugetlbfs(path: &Path, page_bytes: u64, size_bytes: Option<u64>) -> io::Result<()> {
    if is_mounted(path)? {
        return Ok(());
    }
    let size = size_bytes
        .map(|bytes| format!(",size={bytes}"))
        .unwrap_or_default();
    let options = format!("pagesize={page_bytes}{size}");
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    let (kind, options) = (Some("hugetlbfs"), Some(options.as_str()));
    Ok(mount(kind, path, kind, flags, options)?)
}

/// Whether the kernel can keep a tmpfs out of swap: tests it by a short mount in a folder of its own.
pub fn can_keep_from_swap(trial: &Path) -> bool {
    let _ = std::fs::create_dir(trial);
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    let mounted = mount(Some("tmpfs"), trial, Some("tmpfs"), flags, Some("noswap")).is_ok();
    if mounted {
        let _ = umount2(trial, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW);
    }
    let _ = std::fs::remove_dir(trial);
    mounted
}

/// Unmounts `path` and everything mounted on or below it, lazily; a missing mount is fine.
pub fn unmount_below(path: &Path) -> io::Result<()> {
    let path = real(path)?;
    let mut targets: Vec<PathBuf> = table()?
        .into_iter()
        .map(|mount| mount.target)
        .filter(|target| target.starts_with(&path))
        .collect();
    targets.sort_unstable();
    for target in targets.into_iter().rev() {
        match umount2(&target, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW) {
            Ok(()) | Err(Errno::EINVAL | Errno::ENOENT) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

fn proc_error(error: ProcError) -> io::Error {
    io::Error::other(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_the_mount_table_are_decoded() {
        for (field, expected) in [
            ("/run/coracle", "/run/coracle"),
            ("/a\\040b\\011c\\012d", "/a b\tc\nd"),
            ("/a\\134040", "/a\\040"),
            ("/a\\04", "/a\\04"),
        ] {
            assert_eq!(decoded(field), Path::new(expected), "{field}");
        }
    }

    #[test]
    fn a_path_is_asked_itself_whether_it_is_a_mount() {
        assert_eq!(is_mount_root(Path::new("/proc")), Some(true));
        assert_eq!(is_mount_root(Path::new("/proc/self")), Some(false));
        assert!(!is_mounted(Path::new("/nowhere/at/all")).unwrap());
    }
}
