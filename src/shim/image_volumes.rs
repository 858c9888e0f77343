//! The writable directories that an image asks for with `VOLUME`.
//!
//! They are directories of one more overlay of the image's layers, whose writable part outlives the container and goes
//! with its pod: they hold what the image has there, with its owners and modes, cost nothing until they are written to,
//! and no crash can leave half of them. Binds of them go into `config.json` as if the pod had asked for them first.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::ShimError;
use super::protocol::{ImageVolumes, StartRequest, SubPath};
use super::rootfs::{self, Lasting};
use crate::sys::beneath;

/// Where nothing of an image is mounted: what lies there is the runtime's.
const RESERVED: [&str; 3] = ["/dev", "/proc", "/sys"];

/// Mounts them, with the root filesystem at `root`, and adds them to the mounts of `config.json`.
pub(super) fn prepare(
    request: &StartRequest,
    config: &mut Value,
    root: BorrowedFd<'_>,
) -> Result<(), ShimError> {
    let (Some(volumes), Some(fixed)) = (&request.image_volumes, request.fixed_mounts) else {
        return Ok(());
    };
    unmount(request)?;
    let overlay = mount_point(&request.bundle);
    rootfs::overlay(&overlay, &request.layers, &volumes.folder, Lasting::Pod)?;
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
        // A link may lead to where there can be none. A file is no volume.
        let reserved = RESERVED.iter().any(|reserved| seen.starts_with(reserved));
        let Some(own) = own.filter(|_| !reserved && seen != Path::new("/")) else {
            continue;
        };
        let target = bind_point(&request.bundle, number);
        rootfs::bind_sub_path(&SubPath {
            volume: overlay.clone(),
            path: own.strip_prefix("/").unwrap_or(&own).to_owned(),
            target: target.clone(),
        })?;
        binds.push(json!({
            "destination": path, "type": "bind", "source": target, "options": ["rbind", "rprivate", "rw"],
        }));
    }
    if let Some(mounts) = config["mounts"].as_array_mut() {
        let at = fixed.min(mounts.len());
        mounts.splice(at..at, binds);
    }
    Ok(())
}

/// Takes the mounts of [`prepare`] away. What was written stays.
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
