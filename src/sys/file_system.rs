//! The size and free space of the file system of a path.

use std::path::Path;

/// A file system.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FileSystem {
    /// Bytes available to unprivileged users.
    pub available_bytes: u64,
    /// All bytes.
    pub capacity_bytes: u64,
    /// Available inodes; 0 if there is no fixed number, as for the next one.
    pub inodes_free: u64,
    /// All inodes.
    pub inodes: u64,
}

/// Blocking. The file system that a path is on.
#[allow(
    clippy::unnecessary_cast,
    clippy::useless_conversion,
    reason = "the types of statvfs are narrower on 32-bit machines"
)]
pub fn file_system(path: &Path) -> Option<FileSystem> {
    let fs = nix::sys::statvfs::statvfs(path).ok()?;
    let unit = fs.fragment_size() as u64;
    Some(FileSystem {
        available_bytes: unit.saturating_mul(fs.blocks_available() as u64),
        capacity_bytes: unit.saturating_mul(fs.blocks() as u64),
        inodes_free: fs.files_free() as u64,
        inodes: fs.files() as u64,
    })
}
