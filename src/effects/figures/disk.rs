//! How much of a disk does a folder take? Looked at without following symlinks or crossing mounts, and never for longer
//! than the one who asks is ready to wait: what others fill may have any number of files.

use std::path::{Path, PathBuf};

use crate::sys::disk_usage;
pub use crate::sys::disk_usage::Taken;

/// A file system.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FileSystem {
    /// Bytes anybody may still write.
    pub available_bytes: u64,
    /// All bytes.
    pub capacity_bytes: u64,
    /// Files that can still be made; 0 if there is no fixed number, as for the next one.
    pub inodes_free: u64,
    /// All files.
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

/// Blocking. What a folder takes; `None` if it is not there, or if not less than `budget` files are in it. The budget
/// shrinks by those that were looked at.
pub fn taken(folder: &Path, budget: &mut u32) -> Option<Taken> {
    let mut left = u64::from(*budget);
    let found = disk_usage::of(folder, None, &mut left);
    *budget = u32::try_from(left).unwrap_or(0);
    (found.inodes > 0 && left > 0).then_some(found)
}

/// Blocking. What single files take.
pub fn taken_by_files(paths: &[PathBuf]) -> Taken {
    disk_usage::of_files(paths)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_folder_takes_what_its_files_take_and_too_many_are_not_counted() {
        let dir = std::env::temp_dir().join(format!("coracle-taken-{}", std::process::id()));
        fs::create_dir_all(dir.join("a/b")).unwrap();
        let none = taken(&dir, &mut 10).unwrap();
        fs::write(dir.join("a/b/c"), vec![1; 100_000]).unwrap();
        std::os::unix::fs::symlink("/usr", dir.join("elsewhere")).unwrap();
        let mut budget = 10;
        let some = taken(&dir, &mut budget).unwrap();
        let few = taken(&dir, &mut 3);
        fs::remove_dir_all(&dir).unwrap();
        let gone = taken(&dir, &mut 10);
        assert_eq!((none.inodes, some.inodes), (3, 5));
        let more = some.bytes - none.bytes;
        assert!((100_000..200_000).contains(&more), "{more}");
        assert_eq!(budget, 6);
        assert_eq!((few, gone), (None, None));
    }
}
