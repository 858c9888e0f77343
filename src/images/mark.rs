//! Marks of layers, which show whether a layer still has its unpacked files. A mark covers all names, kinds, modes,
//! owners and sizes, in any order. Contents are not read: that would take as long as unpacking did.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use nix::fcntl::{AT_FDCWD, AtFlags, OFlag};
use nix::sys::stat::{FileStat, Mode, SFlag, fstatat};
use sha2::{Digest, Sha256};

use crate::sys::tree;

/// Deeper entries are left out: each level is an open folder.
const MAX_DEPTH: usize = 64;

/// A folder being walked.
struct Level {
    folder: OwnedFd,
    names: std::vec::IntoIter<OsString>,
    /// Length of the path down to it.
    path: usize,
}

/// The mark of a tree: how many entries, and the sum of their digests.
pub(super) fn of(root: &Path) -> io::Result<String> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let folder = nix::fcntl::openat(AT_FDCWD, root, flags, Mode::empty())?;
    let (mut entries, mut sum) = (0_u64, 0_u128);
    let mut path = Vec::new();
    let mut levels = vec![Level::new(folder, 0)?];
    while let Some(level) = levels.last_mut() {
        path.truncate(level.path);
        let Some(name) = level.names.next() else {
            levels.pop();
            continue;
        };
        let found = fstatat(
            &level.folder,
            name.as_os_str(),
            AtFlags::AT_SYMLINK_NOFOLLOW,
        )?;
        path.push(b'/');
        path.extend(name.as_bytes());
        entries += 1;
        sum = sum.wrapping_add(entry(&path, &found));
        if is_folder(&found) && levels.len() < MAX_DEPTH {
            let parent = levels
                .last()
                .expect("the one it was found in")
                .folder
                .as_fd();
            levels.push(Level::new(open(parent, &name)?, path.len())?);
        }
    }
    Ok(format!("{entries}-{sum:032x}"))
}

impl Level {
    fn new(folder: OwnedFd, path: usize) -> io::Result<Self> {
        let names = tree::names(folder.as_fd())?.into_iter();
        Ok(Self {
            folder,
            names,
            path,
        })
    }
}

fn open(parent: BorrowedFd<'_>, name: &OsString) -> io::Result<OwnedFd> {
    Ok(tree::open_folder(parent, name)?)
}

fn is_folder(found: &FileStat) -> bool {
    found.st_mode & SFlag::S_IFMT.bits() == SFlag::S_IFDIR.bits()
}

fn entry(path: &[u8], found: &FileStat) -> u128 {
    // File systems differ in the size of a folder.
    let size = if is_folder(found) { 0 } else { found.st_size };
    let mut hash = Sha256::new();
    hash.update(path);
    let figures = [
        u64::from(found.st_mode),
        u64::from(found.st_uid),
        u64::from(found.st_gid),
        u64::try_from(size).unwrap_or(0),
        found.st_rdev,
    ];
    for figure in figures {
        // No path has a zero byte, so none runs into the numbers.
        hash.update([0]);
        hash.update(figure.to_le_bytes());
    }
    let digest: [u8; 32] = hash.finalize().into();
    let half = digest.first_chunk().expect("32 bytes");
    u128::from_le_bytes(*half)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn whatever_is_not_as_it_was_shows() {
        let root = std::env::temp_dir().join(format!("coracle-mark-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        let make = || {
            fs::create_dir_all(root.join("etc/deep")).unwrap();
            fs::write(root.join("etc/passwd"), "root").unwrap();
            fs::write(root.join("etc/deep/file"), "").unwrap();
            symlink("passwd", root.join("etc/link")).unwrap();
        };
        make();
        let whole = of(&root).unwrap();
        assert!(whole.starts_with("5-"), "{whole}");
        let at = |name: &str| root.join(name);
        let changes: [(&str, &dyn Fn()); 5] = [
            ("shorter", &|| fs::write(at("etc/passwd"), "").unwrap()),
            ("gone", &|| fs::remove_file(at("etc/deep/file")).unwrap()),
            ("elsewhere", &|| {
                fs::rename(at("etc/deep/file"), at("etc/file")).unwrap();
            }),
            ("another mode", &|| {
                let mode = fs::Permissions::from_mode(0o4755);
                fs::set_permissions(at("etc/passwd"), mode).unwrap();
            }),
            ("a folder instead", &|| {
                fs::remove_file(at("etc/link")).unwrap();
                fs::create_dir(at("etc/link")).unwrap();
            }),
        ];
        for (what, change) in changes {
            change();
            assert_ne!(of(&root).unwrap(), whole, "{what}");
            fs::remove_dir_all(&root).unwrap();
            make();
            assert_eq!(of(&root).unwrap(), whole, "again after: {what}");
        }
        fs::remove_dir_all(&root).unwrap();
    }
}
