//! Device nodes below a folder like `/dev`, found by untrusted paths and patterns. Symbolic links are followed as long
//! as they stay below it; nothing is opened but as a place.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Metadata};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use nix::fcntl::OFlag;
use nix::sys::stat::{Mode, major, minor};

use super::clock;
use super::openat::{self, How};

/// The maximum number of symlinks on the way to a node, as in the kernel.
const MAX_LINKS: usize = 40;

/// The maximum number of a folder's entries that are compared with a pattern.
const MAX_ENTRIES: usize = 4096;

/// A device node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// Whether it is a block device; otherwise it is a character device.
    pub block: bool,
    /// The kernel's driver.
    pub major: u32,
    /// The device among those of its driver.
    pub minor: u32,
    /// The file.
    pub inode: u64,
    /// Permissions.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// The time since owner or mode changed; `None` if the clock says that this is still to come.
    pub age: Option<Duration>,
}

/// What is at a path.
#[derive(Debug)]
pub enum Found {
    /// A device node, with its path without links, relative to the folder.
    Node(PathBuf, Node),
    /// Nothing.
    Nothing,
    /// Something else, or a link that leads out of the folder.
    Other(&'static str),
}

/// Folders, and what in them an answer depends on.
pub type Seen = BTreeMap<PathBuf, Names>;

/// The names in a folder that an answer depends on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Names {
    /// All of them.
    All,
    /// These.
    Some(BTreeSet<OsString>),
}

/// A folder of device nodes.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    place: OwnedFd,
    /// The folders that were looked at so far, and for what.
    seen: Seen,
}

impl Folder {
    /// Opens the folder.
    pub fn open(path: &Path) -> io::Result<Self> {
        let root = File::open("/")?;
        // `/dev` itself is trusted and may be a link.
        let place = openat::open_in_root(&root, path, How::dir())?;
        Ok(Self {
            path: path.to_owned(),
            place,
            seen: Seen::new(),
        })
    }

    /// The folders whose changes may change the answers given so far.
    pub fn seen(self) -> Seen {
        self.seen
    }

    /// What is at a path relative to the folder.
    pub fn find(&mut self, path: &Path) -> io::Result<Found> {
        let mut found = PathBuf::new();
        let mut links = 0;
        let Some(mut left) = reversed(path) else {
            return Ok(Found::Other("not a path below it"));
        };
        while let Some(name) = left.pop() {
            if name == ".." {
                if !found.pop() {
                    return Ok(Found::Other("a link that leads out of it"));
                }
                continue;
            }
            self.note(&found, Some(&name));
            let parent = match openat::open_beneath(&self.place, &found, How::dir()) {
                Ok(parent) => parent,
                Err(error) => return nothing(error),
            };
            match nix::fcntl::readlinkat(&parent, name.as_os_str()) {
                Ok(target) => {
                    links += 1;
                    if links > MAX_LINKS {
                        return Ok(Found::Other("a link with too many others behind it"));
                    }
                    let mut target = Path::new(&target);
                    if target.is_absolute() {
                        match target.strip_prefix(&self.path) {
                            Ok(below) => (target, found) = (below, PathBuf::new()),
                            Err(_) => return Ok(Found::Other("a link that leads out of it")),
                        }
                    }
                    let more = target.components().rev().filter_map(|part| match part {
                        Component::Normal(name) => Some(name.to_owned()),
                        Component::ParentDir => Some("..".into()),
                        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
                    });
                    left.extend(more);
                }
                // No link.
                Err(nix::errno::Errno::EINVAL) => found.push(name),
                Err(errno) => return nothing(errno.into()),
            }
        }
        self.inspect(found)
    }

    fn inspect(&self, found: PathBuf) -> io::Result<Found> {
        let how = How {
            flags: OFlag::O_PATH | OFlag::O_NOFOLLOW,
            mode: Mode::empty(),
        };
        let found_there = match openat::open_beneath(&self.place, &found, how) {
            Ok(place) => File::from(place).metadata()?,
            Err(error) => return nothing(error),
        };
        let kind = found_there.file_type();
        Ok(match () {
            () if kind.is_block_device() => Found::Node(found, node(&found_there, true)),
            () if kind.is_char_device() && found_there.rdev() != 0 => {
                Found::Node(found, node(&found_there, false))
            }
            () if kind.is_dir() => Found::Other("a folder"),
            () if kind.is_fifo() => Found::Other("a pipe"),
            () if kind.is_socket() => Found::Other("a socket"),
            () if kind.is_file() => Found::Other("a regular file"),
            () => Found::Other("not a device"),
        })
    }

    /// The paths that match a pattern of `*`, `?` and `[…]` in each of its parts, relative to the folder, in order;
    /// at most this many.
    pub fn matches(&mut self, pattern: &Path, most: usize) -> io::Result<Vec<PathBuf>> {
        let mut found = vec![PathBuf::new()];
        for part in pattern.components() {
            let Component::Normal(part) = part else {
                return Ok(Vec::new());
            };
            let mut next = Vec::new();
            for folder in found {
                if !is_pattern(part) {
                    next.push(folder.join(part));
                    continue;
                }
                let mut names = self.names(&folder)?;
                names.retain(|name| matches(part.as_bytes(), name.as_bytes()));
                names.sort();
                next.extend(names.into_iter().map(|name| folder.join(name)));
            }
            next.truncate(most);
            found = next;
        }
        Ok(found)
    }

    /// The names in a folder; none if there is no such folder.
    fn names(&mut self, folder: &Path) -> io::Result<Vec<OsString>> {
        self.note(folder, None);
        let how = How {
            flags: OFlag::O_RDONLY | OFlag::O_DIRECTORY,
            mode: Mode::empty(),
        };
        let open = match openat::open_beneath(&self.place, folder, how) {
            Ok(open) => open,
            Err(error) => return nothing(error).map(|_| Vec::new()),
        };
        // The same folder: the link leads to what is open, whatever now has its name.
        let entries = fs::read_dir(format!("/proc/self/fd/{}", open.as_raw_fd()))?;
        let entries = entries.take(MAX_ENTRIES).filter_map(Result::ok);
        Ok(entries.map(|entry| entry.file_name()).collect())
    }

    /// Notes that an answer depends on this name in this folder, or on all names.
    fn note(&mut self, folder: &Path, name: Option<&OsStr>) {
        // A missing folder shows when it appears in the one above.
        if folder.parent().is_some() {
            let (parent, own) = (folder.parent(), folder.file_name());
            self.note_one(parent.unwrap_or(Path::new("")), own);
        }
        self.note_one(folder, name);
    }

    fn note_one(&mut self, folder: &Path, name: Option<&OsStr>) {
        let path = match folder.as_os_str().is_empty() {
            true => self.path.clone(),
            false => self.path.join(folder),
        };
        note(&mut self.seen, path, name);
    }
}

/// Notes that an answer depends on this name in a folder, or on all names.
pub fn note(seen: &mut Seen, folder: PathBuf, name: Option<&OsStr>) {
    let names = seen.entry(folder);
    let names = names.or_insert_with(|| Names::Some(BTreeSet::new()));
    match (names, name) {
        (Names::All, _) => {}
        (names, None) => *names = Names::All,
        (Names::Some(names), Some(name)) => {
            names.insert(name.to_owned());
        }
    }
}

/// Adds what another answer depends on.
pub fn merge(seen: &mut Seen, more: Seen) {
    for (folder, names) in more {
        match names {
            Names::All => note(seen, folder, None),
            Names::Some(names) => {
                for name in names {
                    note(seen, folder.clone(), Some(&name));
                }
            }
        }
    }
}

/// Notes that an answer depends on whether there is something at an absolute path.
pub fn note_path(seen: &mut Seen, path: &Path) {
    for place in path.ancestors() {
        if let (Some(folder), Some(name)) = (place.parent(), place.file_name()) {
            note(seen, folder.to_owned(), Some(name));
        }
    }
}

fn node(file: &Metadata, block: bool) -> Node {
    let number = |of: u64| u32::try_from(of).unwrap_or(u32::MAX);
    let changed_us = file.ctime().saturating_mul(1_000_000);
    let changed_us = changed_us.saturating_add(file.ctime_nsec() / 1_000);
    let age_us = clock::wall_us().saturating_sub(changed_us);
    Node {
        block,
        major: number(major(file.rdev())),
        minor: number(minor(file.rdev())),
        inode: file.ino(),
        mode: file.mode() & 0o7777,
        uid: file.uid(),
        gid: file.gid(),
        age: u64::try_from(age_us).ok().map(Duration::from_micros),
    }
}

/// The names of a path from its end; `None` with anything but names in it.
fn reversed(path: &Path) -> Option<Vec<OsString>> {
    let parts = path.components().rev().map(|part| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir | Component::RootDir | Component::CurDir | Component::Prefix(_) => {
            None
        }
    });
    parts.collect()
}

fn nothing(error: io::Error) -> io::Result<Found> {
    match error.raw_os_error() {
        // A link took the place of a folder meanwhile: the change is seen again.
        Some(libc::ENOENT | libc::ENOTDIR | libc::ELOOP) => Ok(Found::Nothing),
        _ => Err(error),
    }
}

fn is_pattern(part: &OsStr) -> bool {
    part.as_bytes().iter().any(|byte| b"*?[".contains(byte))
}

/// Whether a name matches a pattern, in time of the product of their lengths at most. Hidden names match only if
/// the pattern begins with a dot.
fn matches(pattern: &[u8], name: &[u8]) -> bool {
    if name.starts_with(b".") && !pattern.starts_with(b".") {
        return false;
    }
    let (mut p, mut n) = (0, 0);
    // Where to go on if the rest does not match: after the last `*`, one more letter left out.
    let mut again = None;
    loop {
        let step = match pattern.get(p) {
            Some(b'*') => {
                again = Some((p + 1, n));
                p += 1;
                continue;
            }
            None if n == name.len() => return true,
            Some(_) if n < name.len() => one(&pattern[p..], name[n]),
            Some(_) | None => None,
        };
        match (step, again) {
            (Some(length), _) => (p, n) = (p + length, n + 1),
            (None, Some((after, from))) if from < name.len() => {
                again = Some((after, from + 1));
                (p, n) = (after, from + 1);
            }
            (None, _) => return false,
        }
    }
}

/// Whether the first element of a pattern matches a letter; returns its length.
fn one(pattern: &[u8], letter: u8) -> Option<usize> {
    match pattern[0] {
        b'?' => Some(1),
        b'[' => {
            let not = pattern.get(1).is_some_and(|sign| b"!^".contains(sign));
            let begin = 1 + usize::from(not);
            // A `]` at the beginning stands for itself.
            let end = pattern
                .iter()
                .skip(begin + 1)
                .position(|byte| *byte == b']');
            let Some(end) = end.map(|at| at + begin + 1) else {
                return (letter == b'[').then_some(1);
            };
            let (mut set, mut inside) = (&pattern[begin..end], false);
            while let [first, rest @ ..] = set {
                (set, inside) = match rest {
                    [b'-', last, rest @ ..] => (rest, inside || (*first..=*last).contains(&letter)),
                    _ => (rest, inside || *first == letter),
                };
            }
            (inside != not).then_some(end + 1)
        }
        other => (other == letter).then_some(1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    use nix::sys::stat::SFlag;

    #[test]
    fn patterns_match_as_in_a_shell() {
        for (pattern, name, expected) in [
            ("*", "a", true),
            ("*", ".a", false),
            (".*", ".a", true),
            ("tty*", "ttyUSB0", true),
            ("tty*0", "ttyUSB0", true),
            ("tty*1", "ttyUSB0", false),
            ("tty?", "ttyUSB0", false),
            ("a?c", "abc", true),
            ("[a-c]1", "b1", true),
            ("[!a-c]1", "b1", false),
            ("[^a-c]1", "d1", true),
            ("[]x]", "]", true),
            ("[x", "[x", true),
            ("*a*b*c", "xaxbxbxc", true),
            ("*a*b*c", "xaxbxbx", false),
            ("", "", true),
            ("**", "x", true),
            ("a", "", false),
        ] {
            let found = matches(pattern.as_bytes(), name.as_bytes());
            assert_eq!(found, expected, "{pattern} {name}");
        }
        let hostile = "*a".repeat(500);
        assert!(!matches(hostile.as_bytes(), "a".repeat(255).as_bytes()));
    }

    #[test]
    fn only_nodes_below_the_folder_are_found_whatever_links_say() {
        let dir = std::env::temp_dir().join(format!("coracle-nodes-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(dir.join("by-id")).unwrap();
        let mode = Mode::from_bits_truncate(0o640);
        let number = nix::sys::stat::makedev(1, 5);
        nix::sys::stat::mknod(&dir.join("zero"), SFlag::S_IFCHR, mode, number).unwrap();
        let number = nix::sys::stat::makedev(7, 300);
        nix::sys::stat::mknod(&dir.join("disk"), SFlag::S_IFBLK, mode, number).unwrap();
        nix::unistd::mkfifo(&dir.join("pipe"), mode).unwrap();
        fs::write(dir.join("file"), "").unwrap();
        for (link, target) in [
            ("by-id/one", "../zero".to_owned()),
            ("by-id/two", format!("{}/disk", dir.display())),
            ("by-id/out", "../../../../dev/zero".to_owned()),
            ("by-id/abs", "/dev/zero".to_owned()),
            ("by-id/loop", "loop".to_owned()),
            ("by-id/gone", "../none".to_owned()),
            ("folder", "by-id".to_owned()),
        ] {
            symlink(target, dir.join(link)).unwrap();
        }
        let mut folder = Folder::open(&dir).unwrap();
        let mut find = |path: &str| match folder.find(Path::new(path)).unwrap() {
            Found::Node(real, node) => {
                format!(
                    "{} {} {}:{}",
                    real.display(),
                    node.block,
                    node.major,
                    node.minor
                )
            }
            Found::Nothing => "nothing".to_owned(),
            Found::Other(what) => what.to_owned(),
        };
        for (path, expected) in [
            ("zero", "zero false 1:5"),
            ("by-id/one", "zero false 1:5"),
            ("folder/one", "zero false 1:5"),
            ("by-id/two", "disk true 7:300"),
            ("by-id/out", "a link that leads out of it"),
            ("by-id/abs", "a link that leads out of it"),
            ("by-id/loop", "a link with too many others behind it"),
            ("by-id/gone", "nothing"),
            ("by-id/none", "nothing"),
            ("none/x", "nothing"),
            ("zero/x", "nothing"),
            ("pipe", "a pipe"),
            ("file", "a regular file"),
            ("by-id", "a folder"),
            ("../zero", "not a path below it"),
        ] {
            assert_eq!(find(path), expected, "{path}");
        }
        let all = folder.matches(Path::new("by-id/[ot]*"), 10).unwrap();
        assert_eq!(
            all,
            ["by-id/one", "by-id/out", "by-id/two"].map(PathBuf::from)
        );
        assert_eq!(folder.matches(Path::new("*/one"), 1).unwrap().len(), 1);
        let seen = folder.seen();
        assert_eq!(seen[&dir], Names::All);
        assert_eq!(seen[&dir.join("by-id")], Names::All);
        // Where a missing folder would show.
        let mut folder = Folder::open(&dir).unwrap();
        folder.find(Path::new("serial/by-id/x")).unwrap();
        let seen = folder.seen();
        assert_eq!(seen[&dir], Names::Some(["serial".into()].into()));
        assert_eq!(seen.len(), 1);
        fs::remove_dir_all(dir).unwrap();
    }
}
