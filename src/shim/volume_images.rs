//! Images as volumes of a pod (KEP-4639): read-only overlays of their layers.
//!
//! Each container has mounts of its own, which end with it. They cannot be written to, and nothing in them is run or
//! used as a device, whatever the image contains.

use std::fs;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::mount::{MsFlags, mount};

use super::ShimError;
use super::protocol::StartRequest;
use super::rootfs::{self, Folders};
use super::user_namespace::Users;

/// Whether a part of one of these images is mounted here.
pub(super) fn has_part(request: &StartRequest, source: &Path) -> bool {
    let images = &request.volume_images;
    let mut parts = request.sub_paths.iter();
    parts
        .any(|part| part.target == source && images.iter().any(|image| image.target == part.volume))
}

/// Mounts the images, with `users` with the pod's ids; an earlier mount is replaced.
pub(super) fn mount_all(request: &StartRequest, users: Option<&Users>) -> Result<(), ShimError> {
    unmount_all(request)?;
    let empty = request.bundle.join("empty");
    for image in &request.volume_images {
        rootfs::with_layers(&image.target, &image.layers, users, |layers| {
            mount_one(&image.target, layers, &empty)
        })?;
    }
    Ok(())
}

/// Unmounts what [`mount_all`] mounted.
pub(super) fn unmount_all(request: &StartRequest) -> Result<(), ShimError> {
    let mut images = request.volume_images.iter();
    images.try_for_each(|image| rootfs::unmount(&image.target))
}

/// An overlay without a writable part needs two layers: empty ones make up for those that an image lacks. A bind of a
/// single layer would show the marks of files that it hides.
fn mount_one(target: &Path, layers: &[PathBuf], empty: &Path) -> Result<(), ShimError> {
    let mut layers = layers.to_vec();
    for number in layers.len()..2 {
        let folder = empty.join(number.to_string());
        fs::create_dir_all(&folder).map_err(ShimError::path("make folder", &folder))?;
        layers.push(folder);
    }
    fs::create_dir_all(target).map_err(ShimError::path("make folder", target))?;
    let folders = Folders::open(&layers)?;
    let options = folders.lower();
    let flags = MsFlags::MS_RDONLY | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC | MsFlags::MS_NOSUID;
    let overlay = Some("overlay");
    let mounted = folders.among(|| mount(overlay, target, overlay, flags, Some(&*options)));
    mounted?.map_err(|errno: Errno| ShimError::path("mount an image on", target)(errno.into()))
}
