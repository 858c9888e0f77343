//! The writable directories that an image requests with `VOLUME`.
//!
//! They are directories of another overlay of the image's layers, whose writable part outlives the container and is
//! removed with its pod. They contain the image's files there with owners and modes, cost nothing until written to,
//! and no crash can leave a partial copy. Their binds go into `config.json` before those of the pod.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

use serde_json::json;

use super::ShimError;
use super::bundle::Bundle;
use super::protocol::{ImageVolumes, StartRequest, SubPath};
use super::rootfs::{self, Lasting, Writable};
use super::user_namespace::Users;
use crate::sys::beneath;

/// Paths that belong to the runtime: no volume of an image is mounted there.
const RESERVED: [&str; 3] = ["/dev", "/proc", "/sys"];

/// Mounts them, with the root filesystem at `root`, and adds them to the mounts of `config.json`.
pub(super) fn prepare(
    request: &StartRequest,
    bundle: &mut Bundle<'_>,
    root: BorrowedFd<'_>,
    users: Option<&Users>,
) -> Result<(), ShimError> {
    let (Some(volumes), Some(fixed)) = (&request.image_volumes, request.fixed_mounts) else {
        return Ok(());
    };
    unmount(request)?;
    let overlay = mount_point(&request.bundle);
    let writable = Writable {
        folder: &volumes.folder,
        lasting: Lasting::Pod,
    };
    rootfs::overlay(&overlay, &request.layers, writable, users)?;
    let inside = beneath::place(&overlay).map_err(ShimError::path("open", &overlay))?;
    let mut binds = Vec::new();
    for (number, path) in volumes.paths.iter().enumerate() {
        let seen = beneath::canonical(root, path).map_err(ShimError::path("resolve", path))?;
        let own = beneath::canonical(inside.as_fd(), path)
            .and_then(|own| {
                let is_folder = beneath::is_folder(inside.as_fd(), &own)?;
                Ok(is_folder.unwrap_or(true).then_some(own))
            })
            .map_err(ShimError::path("resolve", path))?;
        // A link may lead to a forbidden path. A file is no volume.
        let reserved = RESERVED.iter().any(|reserved| seen.starts_with(reserved));
        let Some(own) = own.filter(|_| !reserved && seen != Path::new("/")) else {
            continue;
        };
        let target = bind_point(&request.bundle, number);
        let sub_path = SubPath {
            volume: overlay.clone(),
            path: own.strip_prefix("/").unwrap_or(&own).to_owned(),
            target: target.clone(),
            mount: String::new(),
        };
        rootfs::bind_sub_path(&sub_path, users.map(Users::root))?;
        binds.push(json!({
            "destination": path, "type": "bind", "source": target, "options": ["rbind", "rprivate", "rw"],
        }));
    }
    let at = fixed.min(bundle.mounts.len());
    bundle.mounts.splice(at..at, binds);
    Ok(())
}

/// Unmounts what [`prepare`] mounted. Written data stays.
pub(super) fn unmount(request: &StartRequest) -> Result<(), ShimError> {
    let Some(ImageVolumes { paths, .. }) = &request.image_volumes else {
        return Ok(());
    };
    for number in 0..paths.len() {
        rootfs::unmount(&bind_point(&request.bundle, number))?;
    }
    rootfs::unmount(&mount_point(&request.bundle))
}

fn mount_point(bundle: &Path) -> PathBuf {
    bundle.join("image-volumes")
}

fn bind_point(bundle: &Path, number: usize) -> PathBuf {
    bundle.join(format!("image-volume-{number}"))
}
