//! The disk use of a folder, measured without following symlinks or crossing mounts, and with a budget: containers
//! may create any number of files.

use std::path::{Path, PathBuf};

use crate::sys::disk_usage;
pub use crate::sys::disk_usage::Taken;

/// Blocking. The disk use of a folder; `None` if it is missing, or has at least `budget` files. The budget shrinks
/// by the files inspected.
pub fn taken(folder: &Path, budget: &mut u32) -> Option<Taken> {
    let mut left = u64::from(*budget);
    let found = disk_usage::of(folder, None, &mut left);
    *budget = u32::try_from(left).unwrap_or(0);
    (found.inodes > 0 && left > 0).then_some(found)
}

/// Blocking. The disk use of single files.
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
