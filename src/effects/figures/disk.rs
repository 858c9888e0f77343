//! How much of a disk does a folder take? Looked at without following symlinks or crossing mounts, and never for longer
//! than the one who asks is ready to wait: what others fill may have any number of files.

use std::ffi::OsString;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use nix::fcntl::{AtFlags, OFlag};
use nix::sys::stat::{FileStat, Mode, fstatat};

use crate::sys::tree;

/// Folders that lie deeper are not looked into.
const MAX_DEPTH: usize = 32;

/// What a folder takes, with all that is in it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Taken {
    /// Blocks, in bytes. A file with several names counts once for each.
    pub bytes: u64,
    /// Files and folders.
    pub inodes: u64,
}

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

/// Blocking. What a folder takes; `None` if it is not there, or if more than `budget` files are in it. The budget shrinks
/// by those that were looked at.
pub fn taken(folder: &Path, budget: &mut u32) -> Option<Taken> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let root = nix::fcntl::open(folder, flags, Mode::empty()).ok()?;
    let own = nix::sys::stat::fstat(&root).ok()?;
    let mut taken = Taken::default();
    add(&mut taken, &own);
    walk(&root, budget, &mut taken, 0)?;
    Some(taken)
}

fn walk(folder: &OwnedFd, budget: &mut u32, taken: &mut Taken, depth: usize) -> Option<()> {
    let names = tree::names(folder.as_fd()).unwrap_or_default();
    let mut folders: Vec<OsString> = Vec::new();
    for name in names {
        *budget = budget.checked_sub(1)?;
        // Gone meanwhile.
        let Ok(found) = fstatat(folder, name.as_os_str(), AtFlags::AT_SYMLINK_NOFOLLOW) else {
            continue;
        };
        add(taken, &found);
        if found.st_mode & libc::S_IFMT == libc::S_IFDIR {
            folders.push(name);
        }
    }
    for name in folders.iter().filter(|_| depth < MAX_DEPTH) {
        if let Ok(next) = tree::open_folder(folder.as_fd(), name) {
            walk(&next, budget, taken, depth + 1)?;
        }
    }
    Some(())
}

fn add(taken: &mut Taken, found: &FileStat) {
    let blocks = u64::try_from(found.st_blocks).unwrap_or(0);
    taken.bytes = taken.bytes.saturating_add(blocks.saturating_mul(512));
    taken.inodes += 1;
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
