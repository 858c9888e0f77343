//! hostPath: a path of the node, checked against `type` and never changed.

use std::fs::{self, FileType, OpenOptions};
use std::io;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::VolumeError;
use crate::spec::HostPathType;
use crate::sys::file;

/// Checks the path, and creates it where the type says so.
pub(super) fn ensure(path: &Path, kind: HostPathType) -> Result<PathBuf, VolumeError> {
    let access = |action, source| VolumeError::Access {
        action,
        path: path.to_owned(),
        source,
    };
    let found = match fs::metadata(path) {
        Ok(metadata) => Some(metadata.file_type()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) if kind == HostPathType::Any => return Err(access("inspect", error)),
        Err(_) => None,
    };
    match (kind, found) {
        // As in other container engines: a missing path without a type is created as a directory.
        (HostPathType::Any | HostPathType::DirectoryOrCreate, None) => {
            file::make_dirs(path, 0o755).map_err(|source| access("make", source))?;
        }
        (HostPathType::FileOrCreate, None) => {
            // `create_new` makes nothing where a symlink leads that a container has put there.
            let made = OpenOptions::new()
                .write(true)
                .create_new(true)
                .mode(0o644)
                .open(path);
            match made {
                // Another pod may have made it just now.
                Err(_) if fs::metadata(path).is_ok_and(|found| found.is_file()) => {}
                other => drop(other.map_err(|source| access("make", source))?),
            }
        }
        (kind, found) => {
            if let Some(expected) = mismatch(kind, found) {
                return Err(VolumeError::HostPathType {
                    path: path.to_owned(),
                    expected,
                });
            }
        }
    }
    Ok(path.to_owned())
}

/// The required type of the path, if it is not that.
fn mismatch(kind: HostPathType, found: Option<FileType>) -> Option<&'static str> {
    let is = |test: fn(&FileType) -> bool| found.as_ref().is_some_and(test);
    let (fits, expected) = match kind {
        HostPathType::Any => (found.is_some(), "there"),
        HostPathType::DirectoryOrCreate | HostPathType::Directory => {
            (is(FileType::is_dir), "a directory")
        }
        HostPathType::FileOrCreate | HostPathType::File => (is(FileType::is_file), "a file"),
        HostPathType::Socket => (is(FileTypeExt::is_socket), "a socket file"),
        HostPathType::CharDevice => (is(FileTypeExt::is_char_device), "a character device"),
        HostPathType::BlockDevice => (is(FileTypeExt::is_block_device), "a block device"),
    };
    (!fits).then_some(expected)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_type_refuses_what_it_is_not_in_the_kubelets_words() {
        let table = [
            (HostPathType::Directory, "/proc/self/status", "a directory"),
            (
                HostPathType::DirectoryOrCreate,
                "/proc/self/status",
                "a directory",
            ),
            (HostPathType::File, "/proc", "a file"),
            (HostPathType::FileOrCreate, "/proc", "a file"),
            (HostPathType::Socket, "/proc", "a socket file"),
            (HostPathType::CharDevice, "/proc", "a character device"),
            (HostPathType::BlockDevice, "/dev/null", "a block device"),
            (HostPathType::Directory, "/does/not/exist", "a directory"),
        ];
        for (kind, path, expected) in table {
            let error = ensure(path.as_ref(), kind).expect_err("must be refused");
            assert_eq!(
                error.to_string(),
                format!("hostPath type check failed: {path} is not {expected}")
            );
        }
    }

    #[test]
    fn what_fits_is_left_as_it_is() {
        assert!(ensure("/dev/null".as_ref(), HostPathType::CharDevice).is_ok());
        assert!(ensure("/proc".as_ref(), HostPathType::Directory).is_ok());
        assert!(ensure("/proc/self/status".as_ref(), HostPathType::Any).is_ok());
    }
}
