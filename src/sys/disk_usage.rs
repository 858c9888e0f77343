//! The disk use of a tree that other programs write to. The walk follows no symlinks, crosses no mounts and is
//! bounded: neither the depth nor the size of the tree can exhaust the caller.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag};
use nix::sys::stat::{FileStat, Mode, fstat, fstatat};

use super::tree::{Entries, open_folder};

/// Folders are counted down to this depth; one descriptor is open for each.
const MAX_DEPTH: usize = 256;

/// The disk use of a tree.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Taken {
    /// Blocks, in bytes; files with several names count once.
    pub bytes: u64,
    /// Files and folders.
    pub inodes: u64,
}

impl Taken {
    /// The sum of both.
    pub fn plus(self, other: Self) -> Self {
        Self {
            bytes: self.bytes.saturating_add(other.bytes),
            inodes: self.inodes.saturating_add(other.inodes),
        }
    }

    fn add(&mut self, found: &FileStat) {
        let blocks = u64::try_from(found.st_blocks).unwrap_or(0);
        self.bytes = self.bytes.saturating_add(blocks.saturating_mul(512));
        self.inodes += 1;
    }
}

/// Counts a tree, or one file, up to `budget` entries, which are subtracted from it. Missing and vanishing entries
/// count as nothing. With `only`, counts just those entries of the folder itself.
pub fn of(path: &Path, only: Option<&dyn Fn(&OsStr) -> bool>, budget: &mut u64) -> Taken {
    let mut taken = Taken::default();
    let mut several = HashSet::new();
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let Ok(root) = nix::fcntl::open(path, flags, Mode::empty()) else {
        return taken;
    };
    let (Ok(own), Ok(entries)) = (fstat(&root), Entries::of(root.as_fd())) else {
        return taken;
    };
    taken.add(&own);
    let mut levels = vec![entries];
    while let Some(deepest) = levels.last_mut() {
        let next = match *budget {
            0 => Ok(None),
            _ => deepest.next_kind(),
        };
        let Ok(Some((name, _))) = next else {
            levels.pop();
            continue;
        };
        if levels.len() == 1 && only.is_some_and(|only| !only(&name)) {
            continue;
        }
        *budget -= 1;
        let folder = levels.last().map(Entries::fd).expect("at least one");
        let Ok(found) = fstatat(folder, name.as_os_str(), AtFlags::AT_SYMLINK_NOFOLLOW) else {
            continue;
        };
        let is_folder = found.st_mode & libc::S_IFMT == libc::S_IFDIR;
        if found.st_dev != own.st_dev
            || (!is_folder && found.st_nlink > 1 && !several.insert(found.st_ino))
        {
            continue;
        }
        taken.add(&found);
        if is_folder
            && levels.len() < MAX_DEPTH
            && let Ok(below) = enter(folder, &name)
        {
            levels.push(below);
        }
    }
    taken
}

/// Counts single files. A missing file counts as nothing.
pub fn of_files(paths: &[impl AsRef<Path>]) -> Taken {
    let mut taken = Taken::default();
    for path in paths {
        if let Ok(found) = nix::sys::stat::lstat(path.as_ref()) {
            taken.add(&found);
        }
    }
    taken
}

fn enter(folder: BorrowedFd<'_>, name: &OsStr) -> Result<Entries, Errno> {
    open_folder(folder, name).and_then(|fd| Entries::of(fd.as_fd()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn temporary(name: &str) -> std::path::PathBuf {
        let dir = std::env::temp_dir().join(format!("coracle-usage-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(&dir).unwrap();
        dir
    }

    #[test]
    fn blocks_are_counted_once_and_symlinks_are_not_followed() {
        let dir = temporary("blocks");
        fs::create_dir_all(dir.join("a/b")).unwrap();
        fs::write(dir.join("a/b/file"), vec![1; 1 << 20]).unwrap();
        fs::hard_link(dir.join("a/b/file"), dir.join("again")).unwrap();
        std::os::unix::fs::symlink("/usr", dir.join("elsewhere")).unwrap();
        fs::File::create(dir.join("hole"))
            .and_then(|file| file.set_len(1 << 30))
            .unwrap();
        let taken = of(&dir, None, &mut 100);
        assert_eq!(taken.inodes, 6, "{taken:?}");
        let expected = (1 << 20)..(1 << 20) + 100_000;
        assert!(expected.contains(&taken.bytes), "{taken:?}");
        let some = |name: &OsStr| name == "again";
        assert_eq!(of(&dir, Some(&some), &mut 100).inodes, 2);
        assert_eq!(of(&dir.join("nowhere"), None, &mut 100), Taken::default());
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn there_is_an_end_to_the_work() {
        let dir = temporary("work");
        for name in 0..20 {
            fs::write(dir.join(name.to_string()), "").unwrap();
        }
        let mut budget = 8;
        assert_eq!(of(&dir, None, &mut budget).inodes, 9);
        assert_eq!(budget, 0);
        let mut deep = dir.clone();
        for _ in 0..MAX_DEPTH + 20 {
            deep.push("d");
        }
        fs::create_dir_all(&deep).unwrap();
        let taken = of(&dir, None, &mut 1_000);
        assert_eq!(taken.inodes, 21 + u64::try_from(MAX_DEPTH).unwrap());
        fs::remove_dir_all(dir).unwrap();
    }
}
