//! Files that the node writes into a volume, as the kubelet does (`pkg/volume/util/atomic_writer.go`): they lie in a
//! folder with a name of its own, `..data` is a symlink to that folder, and each visible name is a symlink through
//! `..data`. A change replaces `..data` by one rename, so that a reader sees the old files or the new ones.
//!
//! Repeated after a crash at any line it comes to the same end: folders that `..data` does not lead to are removed.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown, symlink};
use std::path::{Component, Path, PathBuf};

use crate::sys::{clock, file, tree};
use crate::types::Gather;

/// The symlink to the files in force.
const DATA: &str = "..data";
const NEW_DATA: &str = "..data_tmp";

/// A file to write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Content {
    pub(super) bytes: Vec<u8>,
    pub(super) mode: u32,
}

/// Files by their paths in the volume: relative, without `..`.
pub(super) type Files = BTreeMap<PathBuf, Content>;

/// Brings the volume at `root`, which exists, to these files; does nothing if it has them. With `group`, that group may read them.
pub(super) fn write(root: &Path, files: &Files, group: Option<u32>) -> io::Result<()> {
    let files = with_group(files, group);
    own(&File::open(root)?, group, 0o755)?;
    let current = fs::read_link(root.join(DATA)).ok();
    let current = current.filter(|name| is_ours(name));
    if let Some(name) = &current
        && holds(&root.join(name), &files, group).unwrap_or(false)
    {
        return tidy(root, name, &files);
    }
    let name = free_name(root)?;
    let folder = root.join(&name);
    fs::create_dir(&folder)?;
    own(&File::open(&folder)?, group, 0o755)?;
    for (path, content) in &files {
        write_file(&folder, path, content, group)?;
    }
    let link = root.join(NEW_DATA);
    file::remove_file(&link)?;
    symlink(&name, &link)?;
    fs::rename(&link, root.join(DATA))?;
    tidy(root, &name, &files)
}

/// The files with the modes that let `group` read them (the kubelet's `SetVolumeOwnership` of read-only volumes).
fn with_group(files: &Files, group: Option<u32>) -> Files {
    let mut files = files.clone();
    if group.is_some() {
        files.values_mut().for_each(|file| file.mode |= 0o440);
    }
    files
}

/// Whether this is the name of a folder of ours.
fn is_ours(name: &Path) -> bool {
    let name = name.to_string_lossy();
    name.starts_with("..") && name.len() > 2 && !name.contains('/')
}

/// `..<date>.<number>`, as the kubelet names them.
fn free_name(root: &Path) -> io::Result<PathBuf> {
    let now = clock::timestamp()
        .strftime("..%Y_%m_%d_%H_%M_%S")
        .to_string();
    for number in 0..u32::MAX {
        let name = PathBuf::from(format!("{now}.{number:09}"));
        if fs::symlink_metadata(root.join(&name)).is_err() {
            return Ok(name);
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

fn own(folder: &File, group: Option<u32>, mode: u32) -> io::Result<()> {
    let mode = match group {
        Some(_) => mode | 0o2000,
        None => mode,
    };
    let now = folder.metadata()?;
    if group.is_some_and(|group| group != now.gid()) {
        fchown(folder, None, group)?;
    }
    if now.mode() & 0o7777 != mode {
        folder.set_permissions(Permissions::from_mode(mode))?;
    }
    Ok(())
}

fn write_file(folder: &Path, path: &Path, content: &Content, group: Option<u32>) -> io::Result<()> {
    let mut parent = folder.to_owned();
    let parts: Vec<Component<'_>> = path.components().collect();
    for part in &parts[..parts.len().saturating_sub(1)] {
        parent.push(part);
        match fs::create_dir(&parent) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        own(&File::open(&parent)?, group, 0o755)?;
    }
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW)
        .open(folder.join(path))?;
    file.write_all(&content.bytes)?;
    if group.is_some() {
        fchown(&file, None, group)?;
    }
    // The umask must not take anything away.
    file.set_permissions(Permissions::from_mode(content.mode))
}

/// Whether the folder has these files, and no others.
fn holds(folder: &Path, files: &Files, group: Option<u32>) -> io::Result<bool> {
    let mut found = 0;
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder)? {
            let entry = entry?;
            match entry.file_type()?.is_dir() {
                true => folders.push(entry.path()),
                false => found += 1,
            }
        }
    }
    if found != files.len() {
        return Ok(false);
    }
    for (path, content) in files {
        let path = folder.join(path);
        let now = fs::symlink_metadata(&path)?;
        let same = now.mode() & 0o7777 == content.mode
            && now.len() == content.bytes.len() as u64
            && group.is_none_or(|group| group == now.gid());
        if !same || file::read_bounded(&path, now.len())? != content.bytes {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Makes the visible names, and removes those that are gone and the folders of earlier files.
fn tidy(root: &Path, current: &Path, files: &Files) -> io::Result<()> {
    let first = files.keys().filter_map(|path| path.components().next());
    let visible: BTreeSet<PathBuf> = first.map(|part| PathBuf::from(part.as_os_str())).gather();
    for name in &visible {
        let (link, target) = (root.join(name), Path::new(DATA).join(name));
        if fs::read_link(&link).ok().as_ref() != Some(&target) {
            tree::remove(&link)?;
            symlink(&target, &link)?;
        }
    }
    for entry in fs::read_dir(root)? {
        let name = PathBuf::from(entry?.file_name());
        let stays = visible.contains(&name) || name == current || name == Path::new(DATA);
        if !stays {
            tree::remove(&root.join(&name))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(list: &[(&str, &str, u32)]) -> Files {
        let file = |(path, text, mode): &(&str, &str, u32)| {
            let content = Content {
                bytes: text.as_bytes().to_vec(),
                mode: *mode,
            };
            (PathBuf::from(path), content)
        };
        list.iter().map(file).collect()
    }

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("coracle-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir(&folder).expect("made");
        folder
    }

    #[test]
    fn a_change_is_one_rename_and_leaves_nothing() {
        let root = folder("volume-files");
        write(
            &root,
            &files(&[("a", "one", 0o644), ("b/c", "two", 0o400)]),
            None,
        )
        .expect("written");
        assert_eq!(fs::read_to_string(root.join("a")).expect("a"), "one");
        assert_eq!(fs::read_to_string(root.join("b/c")).expect("c"), "two");
        assert_eq!(
            fs::read_link(root.join("b")).expect("link"),
            Path::new("..data/b")
        );
        assert_eq!(
            fs::metadata(root.join("b/c")).expect("c").mode() & 0o7777,
            0o400
        );
        let first = fs::read_link(root.join(DATA)).expect("data");

        write(
            &root,
            &files(&[("a", "one", 0o644), ("b/c", "two", 0o400)]),
            None,
        )
        .expect("same");
        assert_eq!(fs::read_link(root.join(DATA)).expect("data"), first);

        write(
            &root,
            &files(&[("a", "new", 0o644), ("d", "", 0o644)]),
            None,
        )
        .expect("changed");
        let mut names: Vec<_> = fs::read_dir(&root).expect("root").flatten().collect();
        names.retain(|entry| !entry.file_name().to_string_lossy().starts_with("..2"));
        let mut names: Vec<_> = names.iter().map(|entry| entry.file_name()).collect();
        names.sort();
        assert_eq!(names, ["..data", "a", "d"]);
        assert_eq!(fs::read_to_string(root.join("a")).expect("a"), "new");
        assert_eq!(fs::read_dir(&root).expect("root").count(), 4);
        fs::remove_dir_all(&root).expect("removed");
    }

    #[test]
    fn what_a_crash_left_is_cleared_away() {
        let root = folder("volume-crash");
        let wanted = files(&[("a", "one", 0o644)]);
        fs::create_dir_all(root.join("..2000_01_01_00_00_00.000000000")).expect("left");
        symlink("nowhere", root.join(NEW_DATA)).expect("left");
        fs::write(root.join("a"), "not a link").expect("left");
        write(&root, &wanted, None).expect("written");
        assert_eq!(fs::read_to_string(root.join("a")).expect("a"), "one");
        assert_eq!(fs::read_dir(&root).expect("root").count(), 3);
        fs::remove_dir_all(&root).expect("removed");
    }

    #[test]
    fn a_group_may_read_what_is_its() {
        let root = folder("volume-group");
        write(&root, &files(&[("a", "one", 0o400)]), Some(4711)).expect("written");
        let file = fs::metadata(root.join("a")).expect("a");
        assert_eq!((file.gid(), file.mode() & 0o7777), (4711, 0o440));
        let own = fs::metadata(&root).expect("root");
        assert_eq!((own.gid(), own.mode() & 0o7777), (4711, 0o2755));
        fs::remove_dir_all(&root).expect("removed");
    }
}
