//! Permissions that libcontainer leaves wider open than other engines, corrected between create and start.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::ShimError;
use crate::sys::beneath;
use crate::sys::cgroup::Hierarchy;

/// Character devices that libcontainer allows to all containers: network tunnels, and the node's own console.
const DENIED: [(i64, i64); 2] = [(10, 200), (5, 1)];

/// A device of `config.json`.
#[derive(Deserialize)]
pub(super) struct BundleDevice {
    path: PathBuf,
}

/// The limits of `config.json`, as far as they matter here.
#[derive(Deserialize, Default)]
pub(super) struct BundleResources {
    #[serde(default)]
    devices: Vec<BundleDeviceRule>,
}

#[derive(Deserialize)]
struct BundleDeviceRule {
    allow: bool,
    r#type: Option<String>,
    major: Option<i64>,
    minor: Option<i64>,
    access: Option<String>,
}

/// Denies the devices above to a container whose rules begin with "none", but for what its rules allow of them. Only
/// cgroup v1 has such rules.
pub(super) fn deny_devices(
    hierarchies: &[Hierarchy],
    group: &str,
    resources: &BundleResources,
) -> Result<(), ShimError> {
    if resources.devices.first().is_none_or(|rule| rule.allow) {
        return Ok(());
    }
    for hierarchy in hierarchies.iter().filter(|hierarchy| !hierarchy.v2) {
        let path = hierarchy.folder(group).join("devices.deny");
        if !path.exists() {
            continue;
        }
        for (major, minor) in DENIED {
            let number = format!("c {major}:{minor}");
            fs::write(&path, format!("{number} rwm")).map_err(ShimError::path("write", &path))?;
            let asked = |rule: &&BundleDeviceRule| {
                let same = (rule.major, rule.minor) == (Some(major), Some(minor));
                rule.allow && rule.r#type.as_deref() == Some("c") && same
            };
            for rule in resources.devices.iter().filter(asked) {
                let path = hierarchy.folder(group).join("devices.allow");
                let access = rule.access.as_deref().unwrap_or_default();
                fs::write(&path, format!("{number} {access}"))
                    .map_err(ShimError::path("write", &path))?;
            }
        }
    }
    Ok(())
}

/// Resets the modes of folders made for device nodes (`/dev/net`), which libcontainer makes without a umask and so
/// writable for all users. `pid` is the container's first process.
pub(super) fn close_device_folders(pid: i32, devices: &[BundleDevice]) -> Result<(), ShimError> {
    let root = PathBuf::from(format!("/proc/{pid}/root"));
    for device in devices {
        let folders = device.path.ancestors().skip(1);
        for folder in folders.take_while(|folder| *folder != Path::new("/dev")) {
            match close_folder(&root, folder) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(ShimError::path("restrict", folder)(error));
                }
                _ => {}
            }
        }
    }
    Ok(())
}

fn close_folder(root: &Path, folder: &Path) -> io::Result<()> {
    let root = beneath::place(root)?;
    let device = |path: &Path| -> io::Result<_> {
        let place = beneath::open(root.as_fd(), path)?;
        let name = PathBuf::from(format!("/proc/self/fd/{}", place.as_raw_fd()));
        let found = fs::metadata(&name)?;
        Ok((place, name, found))
    };
    let (_, _, dev) = device(Path::new("/dev"))?;
    let (_place, name, found) = device(folder)?;
    // A volume mounted there keeps its mode.
    if found.dev() == dev.dev() && found.is_dir() && found.mode() & 0o7777 == 0o777 {
        fs::set_permissions(&name, fs::Permissions::from_mode(0o755))?;
    }
    Ok(())
}
