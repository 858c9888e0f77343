//! An unpacked layer as a tar: the reverse of [`super::super::unpack`], in a stable order. The same files give the
//! same bytes, but not those that the layer came from.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use nix::fcntl::{AT_FDCWD, AtFlags, OFlag, openat, readlinkat};
use nix::sys::stat::{FileStat, Mode, SFlag, fstatat, major, minor};

use super::super::entry::{OPAQUE, wanted};
use super::super::tar_reader::Kind;
use super::tar_writer::{self, Entry};
use crate::sys::{tree, xattr};
use crate::types::InOrder;

/// The deepest directory, each of which is an open file. No layer that was unpacked here has more.
const MAX_DEPTH: usize = 600;

/// The name of the file that hides a directory of lower layers.
const OPAQUE_FILE: &[u8] = b".wh..wh..opq";

/// A directory being written.
struct Level {
    folder: OwnedFd,
    names: std::vec::IntoIter<OsString>,
    /// Length of its path with a slash behind it.
    path: usize,
}

impl Level {
    fn new(folder: OwnedFd, path: usize) -> io::Result<Self> {
        let mut names = tree::names(folder.as_fd())?;
        names.order();
        Ok(Self {
            folder,
            names: names.into_iter(),
            path,
        })
    }
}

/// Writes the layer whose files are below `root`.
pub(super) fn write(root: &Path, out: &mut dyn Write) -> io::Result<()> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let folder = openat(AT_FDCWD, root, flags, Mode::empty())?;
    let mut writer = Writer {
        out,
        links: BTreeMap::new(),
    };
    writer.root(&folder)?;
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
        path.extend(name.as_bytes());
        if format(&found) != SFlag::S_IFDIR {
            writer.entry(&level.folder, &name, &path, &found)?;
            continue;
        }
        if levels.len() >= MAX_DEPTH {
            return Err(io::Error::other("its directories are nested too deeply"));
        }
        path.push(b'/');
        let parent = &levels.last().expect("the one it was found in").folder;
        let folder = tree::open_folder(parent.as_fd(), &name)?;
        writer.directory(&folder, &path, &found)?;
        levels.push(Level::new(folder, path.len())?);
    }
    tar_writer::end(writer.out)
}

fn format(found: &FileStat) -> SFlag {
    SFlag::from_bits_truncate(found.st_mode & SFlag::S_IFMT.bits())
}

struct Writer<'a> {
    out: &'a mut dyn Write,
    /// The first name of each file with several.
    links: BTreeMap<(u64, u64), Vec<u8>>,
}

impl Writer<'_> {
    /// The layer's own root, unless it is as it would be without an entry.
    fn root(&mut self, folder: &OwnedFd) -> io::Result<()> {
        let found = nix::sys::stat::fstat(folder)?;
        let plain = (found.st_mode & 0o7777, found.st_uid, found.st_gid) == (0o755, 0, 0);
        let attributes = xattr::all_at(folder.as_fd(), ".".as_ref())?;
        if plain
            && !attributes
                .iter()
                .any(|(key, _)| wanted(key) || is_opaque(key))
        {
            return Ok(());
        }
        self.directory(folder, b"./", &found)
    }

    fn directory(&mut self, folder: &OwnedFd, path: &[u8], found: &FileStat) -> io::Result<()> {
        let mut attributes = xattr::all_at(folder.as_fd(), ".".as_ref())?;
        let opaque = attributes
            .iter()
            .any(|(key, value)| is_opaque(key) && value == b"y");
        attributes.retain(|(key, _)| wanted(key));
        let mut entry = of(path, Kind::Directory, found);
        entry.xattrs = &attributes;
        tar_writer::head(self.out, &entry)?;
        if opaque {
            let name = [path.strip_prefix(b"./").unwrap_or(path), OPAQUE_FILE].concat();
            tar_writer::head(self.out, &whiteout(&name))?;
        }
        Ok(())
    }

    fn entry(
        &mut self,
        folder: &OwnedFd,
        name: &OsString,
        path: &[u8],
        found: &FileStat,
    ) -> io::Result<()> {
        let kind = match format(found) {
            SFlag::S_IFREG => Kind::File,
            SFlag::S_IFLNK => Kind::Symlink,
            SFlag::S_IFCHR if found.st_rdev == 0 => {
                let length = path.len() - name.len();
                let name = [&path[..length], b".wh.", name.as_bytes()].concat();
                return tar_writer::head(self.out, &whiteout(&name));
            }
            SFlag::S_IFCHR => Kind::Char,
            SFlag::S_IFBLK => Kind::Block,
            SFlag::S_IFIFO => Kind::Fifo,
            _ => return Err(io::Error::other("a file of a kind that no layer has")),
        };
        if found.st_nlink > 1 {
            let file = (found.st_dev, found.st_ino);
            if let Some(first) = self.links.get(&file) {
                let mut entry = of(path, Kind::HardLink, found);
                entry.link = first;
                return tar_writer::head(self.out, &entry);
            }
            self.links.insert(file, path.to_vec());
        }
        let mut attributes = xattr::all_at(folder.as_fd(), name)?;
        attributes.retain(|(key, _)| wanted(key));
        let link = match kind {
            Kind::Symlink => readlinkat(folder, name.as_os_str())?,
            _ => OsString::new(),
        };
        let mut entry = of(path, kind, found);
        (entry.link, entry.xattrs) = (link.as_bytes(), &attributes);
        if kind != Kind::File {
            return tar_writer::head(self.out, &entry);
        }
        entry.size = u64::try_from(found.st_size).unwrap_or(0);
        tar_writer::head(self.out, &entry)?;
        let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let mut file = File::from(openat(folder, name.as_os_str(), flags, Mode::empty())?);
        tar_writer::copy(self.out, &mut file, entry.size)
    }
}

fn is_opaque(key: &[u8]) -> bool {
    key == OPAQUE.as_bytes()
}

fn whiteout(name: &[u8]) -> Entry<'_> {
    Entry {
        mode: 0,
        ..Entry::file(name, 0)
    }
}

#[allow(
    clippy::useless_conversion,
    clippy::unnecessary_cast,
    clippy::cast_possible_truncation,
    reason = "the types of stat differ between targets; device numbers have 32 bits at most"
)]
fn of<'a>(path: &'a [u8], kind: Kind, found: &FileStat) -> Entry<'a> {
    Entry {
        name: path,
        link: b"",
        kind,
        mode: found.st_mode & 0o7777,
        uid: found.st_uid.into(),
        gid: found.st_gid.into(),
        mtime: (found.st_mtime as i64, found.st_mtime_nsec as i64),
        device: (major(found.st_rdev) as u32, minor(found.st_rdev) as u32),
        xattrs: &[],
        size: 0,
        sparse: None,
    }
}
