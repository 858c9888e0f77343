//! emptyDir: a folder that every user may write to, on disk, as a tmpfs or as a hugetlbfs. It survives container
//! restarts, and is removed with the pod.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::VolumeError;
use super::ownership::{self, Change, Files};
use crate::spec::PageSize;
use crate::sys::{file, mount};

/// A folder on disk, mode 0777 whatever the umask.
pub(super) fn ensure_disk(path: &Path, fs_group: Option<u32>) -> Result<PathBuf, VolumeError> {
    // Only root may enter the folders above, so that host users do not reach into the volume.
    let parent = path.parent().expect("a volume lies in a pod's folder");
    file::make_dirs(parent, 0o750).map_err(|source| access("make", parent, source))?;
    match fs::create_dir(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            return Err(access("make", path, error));
        }
        _ => {}
    }
    open_to_all(path, 0o777, fs_group)
}

/// A tmpfs, kept out of swap where the kernel supports that.
pub(super) fn ensure_memory(
    path: &Path,
    size: Option<u64>,
    fs_group: Option<u32>,
) -> Result<PathBuf, VolumeError> {
    file::make_dirs(path, 0o750).map_err(|source| access("make", path, source))?;
    mount::tmpfs(path, size, true).map_err(|source| access("mount a tmpfs at", path, source))?;
    share(path)?;
    open_to_all(path, 0o1777, fs_group)
}

/// A hugetlbfs: files in it are made of huge pages.
pub(super) fn ensure_huge_pages(
    path: &Path,
    page_size: PageSize,
    size: Option<u64>,
    fs_group: Option<u32>,
) -> Result<PathBuf, VolumeError> {
    file::make_dirs(path, 0o750).map_err(|source| access("make", path, source))?;
    mount::hugetlbfs(path, page_size.bytes(), size)
        .map_err(|source| access("mount a hugetlbfs at", path, source))?;
    share(path)?;
    open_to_all(path, 0o777, fs_group)
}

/// Lets mounts in the volume reach other containers that ask for it (`mountPropagation`). The mount above it is private:
/// the volume itself spreads nowhere.
fn share(path: &Path) -> Result<(), VolumeError> {
    mount::share(path).map_err(|source| access("share mounts at", path, source))
}

/// Sets the mode; with `fsGroup` the group owns the folder and what is in it, and new files inherit it.
fn open_to_all(path: &Path, mode: u32, fs_group: Option<u32>) -> Result<PathBuf, VolumeError> {
    let setgid = fs_group.map_or(0, |_| 0o2000);
    fs::set_permissions(path, Permissions::from_mode(mode | setgid))
        .map_err(|source| access("open", path, source))?;
    if let Some(group) = fs_group {
        // Content comes only from the pod itself: as in the kubelet, it is not looked through again.
        ownership::give(path, group, Files::Writable, Change::OnRootMismatch)
            .map_err(|source| access("give to its group", path, source))?;
    }
    Ok(path.to_owned())
}

fn access(action: &'static str, path: &Path, source: io::Error) -> VolumeError {
    VolumeError::Access {
        action,
        path: path.to_owned(),
        source,
    }
}
