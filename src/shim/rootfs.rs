//! A container's root filesystem: an overlay of the image's layers under a writable one, and sub-paths of volumes,
//! bound so that no symlink in them can lead outside. All mounts exist only in the shim's mount namespace, and end
//! with it.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};

use super::ShimError;
use super::image_volumes;
use super::protocol::{StartRequest, SubPath};
use crate::sys::{beneath, tree};

/// The mount point in the bundle.
pub(super) fn mount_point(bundle: &Path) -> PathBuf {
    bundle.join("rootfs")
}

/// Makes all mounts of a start; returns the root. After an error some may exist: [`unmount_all`] removes them.
pub(super) fn prepare(request: &StartRequest, cwd: &Path) -> Result<OwnedFd, ShimError> {
    let target = mount_point(&request.bundle);
    overlay(
        &target,
        &request.layers,
        &request.writable_layer,
        Lasting::Attempt,
    )?;
    let root = beneath::place(&target).map_err(ShimError::path("open", &target))?;
    // The runtime mounts there and writes below: a symlink of the image would lead it to the node.
    for name in ["dev", "proc", "sys"] {
        let path = Path::new(name);
        beneath::plain_folder(root.as_fd(), name, 0o755)
            .map_err(ShimError::path("make mount point", path))?;
    }
    // As other runtimes do: a working directory that the image lacks is created.
    beneath::canonical(root.as_fd(), cwd)
        .and_then(|cwd| beneath::open_or_make(root.as_fd(), &cwd, 0o755))
        .map_err(ShimError::path("make working folder", cwd))?;
    request.sub_paths.iter().try_for_each(bind_sub_path)?;
    Ok(root)
}

/// Unmounts what [`prepare`] mounted. The agent removes the writable layer: that may take long, and a shim has one
/// thread.
pub(super) fn unmount_all(request: &StartRequest) -> Result<(), ShimError> {
    for sub_path in &request.sub_paths {
        unmount(&sub_path.target)?;
    }
    image_volumes::unmount(request)?;
    unmount(&mount_point(&request.bundle))
}

fn remove_folder(path: &Path) -> Result<(), ShimError> {
    tree::remove(path).map_err(ShimError::path("remove", path))
}

/// Unmounts everything mounted at `path`.
pub(super) fn unmount(path: &Path) -> Result<(), ShimError> {
    loop {
        match umount2(path, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW) {
            Ok(()) | Err(Errno::EINTR) => {}
            Err(Errno::EINVAL | Errno::ENOENT) => return Ok(()),
            Err(errno) => return Err(ShimError::path("unmount", path)(errno.into())),
        }
    }
}

/// The lifetime of data written to an overlay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lasting {
    /// As long as the mount.
    Attempt,
    /// As long as the pod, also across a power cut.
    Pod,
}

/// Mounts `layers` (topmost first) under the `upper` of a folder. Every folder is named by a descriptor number relative to
/// `/proc/self/fd`: mount options must fit a page, and a path may contain the colon or comma that separates them.
pub(super) fn overlay(
    target: &Path,
    layers: &[PathBuf],
    writable: &Path,
    lasting: Lasting,
) -> Result<(), ShimError> {
    if lasting == Lasting::Attempt {
        remove_folder(writable)?;
    }
    fs::create_dir_all(target).map_err(ShimError::path("make folder", target))?;
    let (upper, work) = (writable.join("upper"), writable.join("work"));
    for folder in [&upper, &work] {
        fs::create_dir_all(folder).map_err(ShimError::path("make folder", folder))?;
    }
    let open = |path: &PathBuf| beneath::place(path).map_err(ShimError::path("open", path));
    let lower: Vec<OwnedFd> = layers.iter().map(open).collect::<Result<_, _>>()?;
    let (upper, work) = (open(&upper)?, open(&work)?);
    let mut options = String::from("lowerdir=");
    for (index, layer) in lower.iter().enumerate() {
        let colon = if index == 0 { "" } else { ":" };
        // Writing to a String cannot fail.
        let _ = write!(options, "{colon}{}", layer.as_raw_fd());
    }
    let _ = write!(
        options,
        ",upperdir={},workdir={}",
        upper.as_raw_fd(),
        work.as_raw_fd()
    );
    let fds = Path::new("/proc/self/fd");
    std::env::set_current_dir(fds).map_err(ShimError::path("enter", fds))?;
    let mounted = mount_overlay(target, &options, lasting);
    let root = Path::new("/");
    std::env::set_current_dir(root).map_err(ShimError::path("enter", root))?;
    mounted.map_err(|errno| ShimError::path("mount overlay on", target)(errno.into()))
}

/// `volatile` spares the disk: the writable layer never outlives its attempt, so nothing in it needs syncing.
/// Kernels before 5.10 do not support it. Lasting data may meet the same layers unpacked again, which `index` would
/// refuse.
fn mount_overlay(target: &Path, options: &str, lasting: Lasting) -> nix::Result<()> {
    let attempt = |options: &str| {
        mount(
            Some("overlay"),
            target,
            Some("overlay"),
            MsFlags::empty(),
            Some(options),
        )
    };
    if lasting == Lasting::Pod {
        return attempt(&format!("{options},index=off"));
    }
    match attempt(&format!("{options},volatile")) {
        Err(Errno::EINVAL) => attempt(options),
        other => other,
    }
}

pub(super) fn bind_sub_path(sub_path: &SubPath) -> Result<(), ShimError> {
    let SubPath {
        volume,
        path,
        target,
    } = sub_path;
    let mode = fs::metadata(volume)
        .map_err(ShimError::path("inspect volume", volume))?
        .mode();
    let root = beneath::place(volume).map_err(ShimError::path("open volume", volume))?;
    let place = beneath::open_or_make(root.as_fd(), path, mode & 0o7777)
        .map_err(ShimError::path("open sub-path", &volume.join(path)))?;
    let source = PathBuf::from(format!("/proc/self/fd/{}", place.as_raw_fd()));
    let is_folder = fs::metadata(&source)
        .map_err(ShimError::path("inspect sub-path", &volume.join(path)))?
        .is_dir();
    unmount(target)?;
    make_target(target, is_folder).map_err(ShimError::path("make mount point", target))?;
    mount(
        Some(&source),
        target,
        None::<&str>,
        MsFlags::MS_BIND,
        None::<&str>,
    )
    .map_err(|errno| ShimError::path("bind sub-path on", target)(errno.into()))
}

fn make_target(target: &Path, is_folder: bool) -> io::Result<()> {
    if is_folder {
        return fs::create_dir_all(target);
    }
    if let Some(parent) = target.parent() {
        fs::create_dir_all(parent)?;
    }
    fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(target)
        .map(drop)
}
