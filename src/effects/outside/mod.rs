//! Things outside coracle that pods start after: devices, files, mounts and units of systemd.

pub mod paths;
pub mod units;

use std::os::unix::fs::FileTypeExt;
use std::{fs, io};

use crate::spec::after::Outside;
use crate::sys::{clock_sync, mount};

/// Blocking. Whether each of these devices, files and mounts is there, in their order; others are not.
///
/// # Errors
/// Fails if the mount table cannot be read.
pub fn look(wanted: &[Outside]) -> io::Result<Vec<bool>> {
    let any_mount = wanted.iter().any(|one| matches!(one, Outside::Mount(_)));
    let mounts = match any_mount {
        true => mount::table()?,
        false => Vec::new(),
    };
    let there = wanted.iter().map(|one| match one {
        Outside::Device(path) => fs::metadata(path).is_ok_and(|found| {
            let kind = found.file_type();
            kind.is_block_device() || kind.is_char_device()
        }),
        Outside::File(path) => fs::metadata(path).is_ok(),
        Outside::Mount(path) => mounts.iter().any(|m| m.target.as_os_str() == path.as_str()),
        Outside::TimeSync => clock_sync::is_synchronized(),
        Outside::Unit(_) => false,
    });
    Ok(there.collect())
}
