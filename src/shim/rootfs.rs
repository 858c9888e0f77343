//! A container's root filesystem: an overlay of the image's layers under a writable one, and sub-paths of volumes,
//! bound so that no symlink in them can lead outside. All mounts exist only in the shim's mount namespace, and end
//! with it.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::statfs::OVERLAYFS_SUPER_MAGIC;

use super::ShimError;
use super::image_volumes;
use super::protocol::{StartRequest, SubPath};
use super::user_namespace::{self, Users};
use super::volume_images;
use crate::sys::{beneath, tree};

/// The mount point in the bundle.
pub(super) fn mount_point(bundle: &Path) -> PathBuf {
    bundle.join("rootfs")
}

/// Makes all mounts of a start; returns the root. After an error some may exist: [`unmount_all`] removes them.
pub(super) fn prepare(
    request: &StartRequest,
    cwd: &Path,
    users: Option<&Users>,
) -> Result<OwnedFd, ShimError> {
    let target = mount_point(&request.bundle);
    let writable = Writable {
        folder: &request.writable_layer,
        lasting: Lasting::Attempt,
    };
    overlay(&target, &request.layers, writable, users)?;
    let root = beneath::place(&target).map_err(ShimError::path("open", &target))?;
    // The runtime mounts there and writes below: a symlink of the image would lead it to the node.
    for name in ["dev", "proc", "sys"] {
        let path = Path::new(name);
        beneath::plain_folder(root.as_fd(), name, 0o755)
            .map_err(ShimError::path("make mount point", path))?;
    }
    // As other runtimes do: a working directory that the image lacks is created.
    beneath::canonical(root.as_fd(), cwd)
        .and_then(|cwd| {
            beneath::open_or_make_for(root.as_fd(), &cwd, (0o755, users.map(Users::root)))
        })
        .map_err(ShimError::path("make working folder", cwd))?;
    volume_images::mount_all(request, users)?;
    for sub_path in &request.sub_paths {
        bind_sub_path(sub_path, None).map_err(|source| ShimError::SubPath {
            mount: sub_path.mount.clone(),
            container: request.container.clone(),
            source: Box::new(source),
        })?;
    }
    Ok(root)
}

/// Unmounts what [`prepare`] mounted. The agent removes the writable layer: that may take long, and a shim has one
/// thread.
pub(super) fn unmount_all(request: &StartRequest) -> Result<(), ShimError> {
    user_namespace::unmount(&request.bundle)?;
    for sub_path in &request.sub_paths {
        unmount(&sub_path.target)?;
    }
    volume_images::unmount_all(request)?;
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

/// The writable layer of an overlay.
#[derive(Debug, Clone, Copy)]
pub(super) struct Writable<'a> {
    /// `upper` and `work` are made in it.
    pub(super) folder: &'a Path,
    pub(super) lasting: Lasting,
}

/// Mounts `layers` (topmost first) under a writable one; with `users` both are seen with the pod's ids.
pub(super) fn overlay(
    target: &Path,
    layers: &[PathBuf],
    writable: Writable<'_>,
    users: Option<&Users>,
) -> Result<(), ShimError> {
    let Writable { folder, lasting } = writable;
    if lasting == Lasting::Attempt {
        remove_folder(folder)?;
    }
    fs::create_dir_all(target).map_err(ShimError::path("make folder", target))?;
    let (upper, work) = (folder.join("upper"), folder.join("work"));
    for folder in [&upper, &work] {
        fs::create_dir_all(folder).map_err(ShimError::path("make folder", folder))?;
    }
    let (uid, gid) = owner_of_root(layers, users)?;
    std::os::unix::fs::lchown(&upper, Some(uid), Some(gid))
        .map_err(ShimError::path("chown", &upper))?;
    with_layers(target, layers, users, |layers| {
        stack(target, layers, (&upper, &work), lasting)
    })
}

/// The owner of the overlay's root, user and group: its topmost layer's. An id that the pod lacks is its root's.
fn owner_of_root(layers: &[PathBuf], users: Option<&Users>) -> Result<(u32, u32), ShimError> {
    let (uid, gid) = match layers.first() {
        Some(layer) => {
            let found = fs::metadata(layer).map_err(ShimError::path("look at", layer))?;
            (found.uid(), found.gid())
        }
        None => (0, 0),
    };
    let Some(users) = users else {
        return Ok((uid, gid));
    };
    let on_node = |id| users.on_node(id).unwrap_or(users.root());
    Ok((on_node(uid), on_node(gid)))
}

/// Does something with layers as the pod sees them: with `users` they are copies, beside `target`, that have the pod's ids.
pub(super) fn with_layers(
    target: &Path,
    layers: &[PathBuf],
    users: Option<&Users>,
    mount: impl FnOnce(&[PathBuf]) -> Result<(), ShimError>,
) -> Result<(), ShimError> {
    let Some(users) = users else {
        return mount(layers);
    };
    let folder = target.with_extension("layers");
    let copies = users.layers(layers, &folder);
    let mounted = copies.and_then(|copies| mount(&copies));
    // An overlay has copies of its own.
    let unmounted =
        (0..layers.len()).try_for_each(|number| unmount(&folder.join(number.to_string())));
    mounted.and(unmounted)
}

fn stack(
    target: &Path,
    layers: &[PathBuf],
    (upper, work): (&Path, &Path),
    lasting: Lasting,
) -> Result<(), ShimError> {
    let layers = Folders::open(layers)?;
    let folder = upper;
    let (upper, work) = (place(upper)?, place(work)?);
    let options = format!(
        "{},upperdir={},workdir={}",
        layers.lower(),
        upper.as_raw_fd(),
        work.as_raw_fd()
    );
    let mounted = layers.among(|| mount_overlay(target, &options, lasting));
    mounted?.map_err(|errno| match unfit(errno, upper.as_fd(), folder) {
        Some(why) => ShimError::Create(why),
        None => ShimError::path("mount overlay on", target)(errno.into()),
    })
}

/// Why there can be no overlay, where the kernel's error alone says too little.
fn unfit(errno: Errno, upper: BorrowedFd<'_>, path: &Path) -> Option<String> {
    if errno == Errno::ENODEV {
        let why = "the kernel has no overlay file system: CONFIG_OVERLAY_FS, or `modprobe overlay`";
        return Some(why.to_owned());
    }
    let found = nix::sys::statfs::fstatfs(upper).ok()?;
    (found.filesystem_type() == OVERLAYFS_SUPER_MAGIC).then(|| {
        format!(
            "`{}` is on an overlay, which cannot be the writable layer of another: put the agent's `--root` on a disk or \
             a tmpfs",
            path.display()
        )
    })
}

fn place(path: &Path) -> Result<OwnedFd, ShimError> {
    beneath::place(path).map_err(ShimError::path("open", path))
}

/// Open folders for an overlay. Each is named by its descriptor number relative to `/proc/self/fd`: mount options must
/// fit a page, and a path may contain the colon or comma that separates them.
#[derive(Debug)]
pub(super) struct Folders(Vec<OwnedFd>);

impl Folders {
    /// Opens them, topmost first.
    pub(super) fn open(paths: &[PathBuf]) -> Result<Self, ShimError> {
        let folders = paths.iter().map(|path| place(path));
        Ok(Self(folders.collect::<Result<_, _>>()?))
    }

    /// The mount option that names them.
    pub(super) fn lower(&self) -> String {
        let mut option = String::from("lowerdir=");
        for (index, layer) in self.0.iter().enumerate() {
            let colon = if index == 0 { "" } else { ":" };
            // Writing to a String cannot fail.
            let _ = write!(option, "{colon}{}", layer.as_raw_fd());
        }
        option
    }

    /// Does something while their names are valid.
    pub(super) fn among<T>(&self, mount: impl FnOnce() -> T) -> Result<T, ShimError> {
        let fds = Path::new("/proc/self/fd");
        std::env::set_current_dir(fds).map_err(ShimError::path("enter", fds))?;
        let mounted = mount();
        let root = Path::new("/");
        std::env::set_current_dir(root).map_err(ShimError::path("enter", root))?;
        Ok(mounted)
    }
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

/// Binds what is at a path of a volume; folders made on the way belong to `owner`, or root. As in the kubelet, a symlink
/// that leads out of the volume is an error.
pub(super) fn bind_sub_path(sub_path: &SubPath, owner: Option<u32>) -> Result<(), ShimError> {
    let SubPath {
        volume,
        path,
        target,
        ..
    } = sub_path;
    let mode = fs::metadata(volume)
        .map_err(ShimError::path("inspect volume", volume))?
        .mode();
    let root = beneath::place(volume).map_err(ShimError::path("open volume", volume))?;
    let place = beneath::open_or_make_inside(root.as_fd(), path, (mode & 0o7777, owner))
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

/// A mount point of this kind. One of an earlier start, when the sub-path was of the other kind, is in the way.
pub(super) fn make_target(target: &Path, is_folder: bool) -> io::Result<()> {
    match fs::symlink_metadata(target) {
        Ok(found) if found.is_dir() == is_folder => return Ok(()),
        Ok(found) if found.is_dir() => fs::remove_dir(target)?,
        Ok(_) => fs::remove_file(target)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
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
