//! The manifest files on disk: which there are, and their content, both with a limit.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::spec::is_manifest_file;

/// Largest manifest file, as on the kubelet.
pub(super) const MAX_FILE: u64 = 10 << 20;

/// The maximum number of files; those beyond, by name, are not read.
pub(super) const MAX_FILES: usize = 4096;

/// What distinguishes two versions of a file without reading it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Fingerprint {
    device: u64,
    inode: u64,
    pub(super) size: u64,
    pub(super) modified_ns: i128,
    /// When the kernel saw the last change. Programs can set the time of modification, as `tar` does, and not this.
    changed_ns: i128,
}

/// The state of each manifest file; the number of files beyond the limit, and the first of these.
pub(super) type Listed = (BTreeMap<PathBuf, Fingerprint>, Option<(usize, PathBuf)>);

/// The manifest files: the regular files of the directory (symlinks followed) whose names may be those of manifests. If there are too many, the `known` ones stay, and others follow by name.
pub(super) fn list(path: &Path, known: impl Fn(&Path) -> bool) -> io::Result<Listed> {
    let metadata = fs::metadata(path)?;
    if !metadata.is_dir() && !metadata.is_file() {
        return Err(not_a_file());
    }
    if !metadata.is_dir() {
        return Ok(([(path.to_owned(), fingerprint(&metadata))].into(), None));
    }
    let (mut found, mut new) = (BTreeMap::new(), BTreeMap::new());
    let mut beyond: Option<(usize, PathBuf)> = None;
    for entry in fs::read_dir(path)? {
        let path = entry?.path();
        if is_ignored(&path) {
            continue;
        }
        // A link may lead to a disk that is away for a while: it stays in the list, with an error when it is read. Only a
        // file that was removed meanwhile is absent.
        let metadata = fs::metadata(&path).map(|metadata| (metadata.is_file(), metadata));
        let metadata = metadata.or_else(|_| fs::symlink_metadata(&path).map(|link| (true, link)));
        if let Ok((true, metadata)) = metadata {
            let files = if known(&path) { &mut found } else { &mut new };
            files.insert(path, fingerprint(&metadata));
        }
        if found.len() + new.len() > MAX_FILES
            && let Some((last, _)) = new.pop_last()
        {
            let (number, first) = beyond.unwrap_or_else(|| (0, last.clone()));
            beyond = Some((number + 1, first.min(last)));
        }
    }
    found.append(&mut new);
    Ok((found, beyond))
}

pub(super) fn is_ignored(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    !is_manifest_file(&name)
}

fn fingerprint(metadata: &fs::Metadata) -> Fingerprint {
    let ns = |seconds: i64, ns: i64| i128::from(seconds) * 1_000_000_000 + i128::from(ns);
    Fingerprint {
        device: metadata.dev(),
        inode: metadata.ino(),
        size: metadata.size(),
        modified_ns: ns(metadata.mtime(), metadata.mtime_nsec()),
        changed_ns: ns(metadata.ctime(), metadata.ctime_nsec()),
    }
}

pub(super) fn read(path: &Path) -> io::Result<Vec<u8>> {
    // Non-blocking, in case a FIFO has taken the file's place.
    let file = File::options()
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(path)?;
    if !file.metadata()?.is_file() {
        return Err(not_a_file());
    }
    let mut bytes = Vec::new();
    file.take(MAX_FILE + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_FILE {
        return Err(io::Error::new(
            io::ErrorKind::FileTooLarge,
            "larger than 10 MiB, the limit for manifest files",
        ));
    }
    Ok(bytes)
}

fn not_a_file() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "not a regular file")
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use super::*;

    #[test]
    fn a_version_with_the_size_and_the_time_of_the_one_before_is_another_one() {
        let path = std::env::temp_dir().join(format!("coracle-same-{}.yaml", std::process::id()));
        let modified = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
        let version = |text: &str| {
            let mut file = File::options();
            let file = file.write(true).create(true).truncate(true).open(&path);
            let mut file = file.expect("opened");
            io::Write::write_all(&mut file, text.as_bytes()).expect("written");
            file.set_modified(modified).expect("set");
            fingerprint(&file.metadata().expect("there"))
        };
        let one = version("a: 1");
        // The kernel's clock for files is coarse: it may take some milliseconds.
        let mut others = (0..1_000_000).map(|_| version("a: 2"));
        let other = others.find(|other| *other != one).expect("told apart");
        let same = |of: &Fingerprint| (of.inode, of.size, of.modified_ns);
        assert_eq!(same(&one), same(&other));
        fs::remove_file(path).expect("removed");
    }
}
