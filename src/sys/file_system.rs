//! The size and free space of the file system of a path, and the kinds of file systems that the kernel has.

use std::path::Path;
use std::sync::OnceLock;

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

/// Whether `/proc/filesystems`, as `known`, names a kind.
pub fn names(known: &str, kind: &str) -> bool {
    let mut lines = known.lines();
    lines.any(|line| line.split_whitespace().last() == Some(kind))
}

/// Whether the kernel has POSIX message queues, which are never a module.
pub fn has_message_queues() -> bool {
    static KNOWN: OnceLock<bool> = OnceLock::new();
    *KNOWN.get_or_init(|| {
        let known = super::file::read_text("/proc/filesystems");
        known.map_or(true, |known| names(&known, "mqueue"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_of_file_system_is_found_by_its_whole_name() {
        let known = "nodev\ttmpfs\n\text4\nnodev\tdevpts";
        for (kind, there) in [
            ("tmpfs", true),
            ("ext4", true),
            ("ext", false),
            ("nodev", false),
        ] {
            assert_eq!(names(known, kind), there, "{kind}");
        }
    }
}
