//! A file or a directory as a tar stream. No link is followed below the path itself. A file is as long in the stream as
//! it was when it was opened, whatever becomes of it meanwhile; holes are left out, and so is what a copy cannot stand
//! for: devices, pipes, sockets, and the kernel's own file systems.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, openat, readlinkat};
use nix::sys::stat::{FileStat, Mode, SFlag, fstat, fstatat, stat};
use nix::sys::statfs::{self, fstatfs};
use nix::unistd::{Whence, lseek};

use super::{BUFFER_BYTES, MAX_DEPTH, MAX_PATH_BYTES, Notes, shown, why};
use crate::images::{Entry, Kind, tar_writer};
use crate::sys::tree::Entries;

/// The maximum number of pieces of a sparse file; what is behind them is taken as one.
const MAX_PIECES: usize = 4096;

/// Most of a file that has no length, such as those in `/proc`.
const UNSIZED_BYTES: u64 = 1 << 20;

/// The end of a file that may be missing when it is read, in bytes; it is replaced by zeros.
const MAX_MISSING_BYTES: u64 = 64 << 20;

/// Writes the file or directory at `path` under the name `name`; without a name, what is in the directory. The path's
/// last component may be a symlink. An error leaves the stream without its end.
pub(crate) fn pack(
    out: &mut dyn Write,
    path: &Path,
    name: Option<&OsStr>,
    notes: &mut Notes<'_>,
) -> Result<(), String> {
    let shown = shown(path.as_os_str().as_bytes());
    let failed = |errno: Errno| format!("{shown}: {}", why(&errno.into()));
    let open = |flags: OFlag| {
        let flags = flags | OFlag::O_NONBLOCK | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
        nix::fcntl::open(path, flags, Mode::empty()).map_err(failed)
    };
    let mut packer = Packer {
        out,
        notes,
        buffer: vec![0; BUFFER_BYTES],
    };
    match (kind(&stat(path).map_err(failed)?), name) {
        (SFlag::S_IFDIR, name) => {
            let folder = open(OFlag::O_RDONLY | OFlag::O_DIRECTORY)?;
            packer.tree(&folder, name.unwrap_or(OsStr::new(".")))?;
        }
        (SFlag::S_IFREG, Some(name)) => {
            let file = File::from(open(OFlag::O_RDONLY)?);
            packer.file(&file, name.as_bytes())?;
        }
        (SFlag::S_IFREG, None) => return Err(format!("{shown}: not a directory")),
        (other, _) => {
            let words = words(other);
            return Err(format!("{shown} is {words}, no file or directory"));
        }
    }
    tar_writer::end(packer.out).map_err(lost)
}

/// A directory being read.
struct Level {
    entries: Entries,
    /// Its file system.
    device: libc::dev_t,
    /// The length of its parent's path.
    before: usize,
}

struct Packer<'a, 'n> {
    out: &'a mut dyn Write,
    notes: &'a mut Notes<'n>,
    buffer: Vec<u8>,
}

impl Packer<'_, '_> {
    fn tree(&mut self, root: &OwnedFd, name: &OsStr) -> Result<(), String> {
        let mut path = name.as_bytes().to_vec();
        let mut levels = Vec::new();
        self.enter(&mut levels, root, &path, 0)?;
        while let Some(level) = levels.last_mut() {
            match level.entries.next_kind() {
                Ok(Some((name, _))) => {
                    let before = path.len();
                    path.push(b'/');
                    path.extend_from_slice(name.as_bytes());
                    let depth = levels.len();
                    self.entry(&mut levels, &name, &path, before)?;
                    if levels.len() == depth {
                        path.truncate(before);
                    }
                }
                end => {
                    if let Err(errno) = end {
                        self.failed(&path, errno);
                    }
                    path.truncate(level.before);
                    levels.pop();
                }
            }
        }
        Ok(())
    }

    /// Writes a directory itself and begins to read it.
    fn enter(
        &mut self,
        levels: &mut Vec<Level>,
        folder: &OwnedFd,
        path: &[u8],
        before: usize,
    ) -> Result<(), String> {
        let opened = fstat(folder).and_then(|found| Ok((found, Entries::of(folder.as_fd())?)));
        let (found, entries) = match opened {
            Ok(opened) => opened,
            Err(errno) => {
                self.failed(path, errno);
                return Ok(());
            }
        };
        let name = [path, b"/"].concat();
        self.head(&of(&name, Kind::Directory, &found))?;
        levels.push(Level {
            entries,
            device: found.st_dev,
            before,
        });
        Ok(())
    }

    /// Writes one entry of the deepest level, or makes it the next level.
    fn entry(
        &mut self,
        levels: &mut Vec<Level>,
        name: &OsStr,
        path: &[u8],
        before: usize,
    ) -> Result<(), String> {
        let Some(level) = levels.last() else {
            return Ok(());
        };
        let folder = level.entries.fd();
        let found = match fstatat(folder, name, AtFlags::AT_SYMLINK_NOFOLLOW) {
            Ok(found) => found,
            // It has gone meanwhile.
            Err(Errno::ENOENT) => return Ok(()),
            Err(errno) => {
                self.failed(path, errno);
                return Ok(());
            }
        };
        if path.len() >= MAX_PATH_BYTES {
            self.left_out(path, "its path is too long");
            return Ok(());
        }
        let open = |flags: OFlag| {
            let own = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
            let flags = flags | own | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
            openat(folder, name, flags, Mode::empty())
        };
        match kind(&found) {
            SFlag::S_IFDIR if levels.len() >= MAX_DEPTH => {
                self.left_out(path, "directories are nested too deeply");
            }
            SFlag::S_IFDIR => match open(OFlag::O_DIRECTORY) {
                Ok(folder) if found.st_dev != level.device && is_the_kernels(&folder) => {
                    let text = format!("{} is left out: the kernel's own files", shown(path));
                    self.notes.warning(&text);
                }
                Ok(folder) => self.enter(levels, &folder, path, before)?,
                Err(errno) => self.failed(path, errno),
            },
            SFlag::S_IFREG => match open(OFlag::empty()) {
                Ok(file) => self.file(&file.into(), path)?,
                Err(errno) => self.failed(path, errno),
            },
            SFlag::S_IFLNK => match readlinkat(folder, name) {
                Ok(target) => self.head(&Entry {
                    link: target.as_bytes(),
                    ..of(path, Kind::Symlink, &found)
                })?,
                Err(errno) => self.failed(path, errno),
            },
            other => {
                let text = format!("{} is left out: {}", shown(path), words(other));
                self.notes.warning(&text);
            }
        }
        Ok(())
    }

    fn file(&mut self, file: &File, path: &[u8]) -> Result<(), String> {
        let found = match fstat(file) {
            // Another file may have taken its place since it was looked at.
            Ok(found) if kind(&found) == SFlag::S_IFREG => found,
            Ok(found) => {
                self.left_out(path, &format!("it is {} now", words(kind(&found))));
                return Ok(());
            }
            Err(errno) => {
                self.failed(path, errno);
                return Ok(());
            }
        };
        let size = u64::try_from(found.st_size).unwrap_or(0);
        if size == 0 {
            return self.without_length(file, path, &found);
        }
        let missing = match pieces(file, &found, size) {
            None => {
                self.head(&Entry {
                    size,
                    ..of(path, Kind::File, &found)
                })?;
                self.data(file, path, (0, size))?
            }
            Some(pieces) => self.sparse(file, path, &found, (size, &pieces))?,
        };
        let after = fstat(file).ok();
        let same = |after: FileStat| {
            (after.st_size, after.st_mtime, after.st_mtime_nsec)
                == (found.st_size, found.st_mtime, found.st_mtime_nsec)
        };
        if missing > 0 {
            let text = format!(
                "{} became shorter while it was read: its last {missing} bytes are zeros in the copy",
                shown(path)
            );
            self.notes.error(&text);
        } else if !after.is_some_and(same) {
            let text = format!("{} changed while it was read", shown(path));
            self.notes.warning(&text);
        }
        Ok(())
    }

    /// An empty file, or one of those whose content the kernel makes when it is read.
    fn without_length(&mut self, file: &File, path: &[u8], found: &FileStat) -> Result<(), String> {
        let mut content = Vec::new();
        // Whatever could be read counts: most of these files fail only to make a reader wait.
        let read = file.take(UNSIZED_BYTES).read_to_end(&mut content);
        if let (Err(error), true) = (read, content.is_empty()) {
            self.notes
                .error(&format!("{}: {}", shown(path), why(&error)));
        }
        let size = content.len() as u64;
        if size == UNSIZED_BYTES {
            let text = format!("{} is cut off after {size} bytes", shown(path));
            self.notes.error(&text);
        }
        self.head(&Entry {
            size,
            ..of(path, Kind::File, found)
        })?;
        tar_writer::copy(self.out, &mut content.as_slice(), size).map_err(lost)
    }

    /// A file with holes, in the format 1.0 of GNU tar: its map comes first in its data. Returns how much was missing.
    fn sparse(
        &mut self,
        file: &File,
        path: &[u8],
        found: &FileStat,
        (size, pieces): (u64, &[(u64, u64)]),
    ) -> Result<u64, String> {
        let mut map = format!("{}\n", pieces.len());
        for (offset, length) in pieces {
            map.push_str(&format!("{offset}\n{length}\n"));
        }
        let mut map = map.into_bytes();
        map.resize(map.len().next_multiple_of(512), 0);
        let data: u64 = pieces.iter().map(|(_, length)| length).sum();
        self.head(&Entry {
            size: map.len() as u64 + data,
            sparse: Some(size),
            ..of(path, Kind::File, found)
        })?;
        self.out.write_all(&map).map_err(lost)?;
        let mut missing = 0;
        for piece in pieces {
            missing += self.bytes(file, path, *piece)?;
        }
        tar_writer::pad(self.out, data).map_err(lost)?;
        Ok(missing)
    }

    /// A piece of a file, and what fills up its last block.
    fn data(&mut self, file: &File, path: &[u8], piece: (u64, u64)) -> Result<u64, String> {
        let missing = self.bytes(file, path, piece)?;
        tar_writer::pad(self.out, piece.1).map_err(lost)?;
        Ok(missing)
    }

    /// Exactly this piece of a file. Returns how many bytes of it are missing, and zeros in the stream.
    fn bytes(
        &mut self,
        file: &File,
        path: &[u8],
        (mut offset, mut left): (u64, u64),
    ) -> Result<u64, String> {
        while left > 0 {
            let most = self
                .buffer
                .len()
                .min(usize::try_from(left).unwrap_or(usize::MAX));
            let length = match file.read_at(&mut self.buffer[..most], offset) {
                Ok(0) => break,
                Ok(length) => length,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => {
                    self.notes
                        .error(&format!("{}: {}", shown(path), why(&error)));
                    break;
                }
            };
            self.out.write_all(&self.buffer[..length]).map_err(lost)?;
            offset += length as u64;
            left -= length as u64;
        }
        if left > MAX_MISSING_BYTES {
            return Err(format!("{} became shorter while it was read", shown(path)));
        }
        if left > 0 {
            io::copy(&mut io::repeat(0).take(left), &mut self.out).map_err(lost)?;
        }
        Ok(left)
    }

    fn head(&mut self, entry: &Entry<'_>) -> Result<(), String> {
        tar_writer::head(self.out, entry).map_err(lost)
    }

    fn failed(&mut self, path: &[u8], errno: Errno) {
        self.notes
            .error(&format!("{}: {}", shown(path), why(&errno.into())));
    }

    fn left_out(&mut self, path: &[u8], why: &str) {
        self.notes
            .error(&format!("{} is left out: {why}", shown(path)));
    }
}

/// The stream's other end has gone.
fn lost(error: io::Error) -> String {
    format!("could not write the archive: {}", why(&error))
}

fn kind(found: &FileStat) -> SFlag {
    SFlag::from_bits_truncate(found.st_mode & libc::S_IFMT)
}

fn words(kind: SFlag) -> &'static str {
    match kind {
        SFlag::S_IFDIR => "a directory",
        SFlag::S_IFLNK => "a symbolic link",
        SFlag::S_IFIFO => "a pipe",
        SFlag::S_IFSOCK => "a socket",
        _ => "a device",
    }
}

/// Whether a folder is the root of a file system without files of its own: such trees have no end, or no meaning
/// elsewhere.
fn is_the_kernels(folder: &OwnedFd) -> bool {
    let theirs = [
        statfs::PROC_SUPER_MAGIC,
        statfs::SYSFS_MAGIC,
        statfs::CGROUP_SUPER_MAGIC,
        statfs::CGROUP2_SUPER_MAGIC,
    ];
    fstatfs(folder).is_ok_and(|found| theirs.contains(&found.filesystem_type()))
}

/// Where a file has data; `None` if it has no holes, or the file system knows of none.
fn pieces(file: &File, found: &FileStat, size: u64) -> Option<Vec<(u64, u64)>> {
    let stored = u64::try_from(found.st_blocks).ok()?.saturating_mul(512);
    if stored >= size {
        return None;
    }
    let mut pieces = Vec::new();
    let mut at = 0;
    while at < size && pieces.len() < MAX_PIECES {
        let from = libc::off64_t::try_from(at).ok()?;
        let begin = match lseek(file, from, Whence::SeekData) {
            Ok(begin) => u64::try_from(begin).ok()?,
            // The rest is a hole.
            Err(Errno::ENXIO) => size,
            Err(_) => return None,
        };
        if begin >= size {
            break;
        }
        let from = libc::off64_t::try_from(begin).ok()?;
        let end = match pieces.len() + 1 {
            MAX_PIECES => size,
            _ => u64::try_from(lseek(file, from, Whence::SeekHole).ok()?).ok()?,
        };
        at = end.clamp(begin, size);
        if at == begin {
            return None;
        }
        pieces.push((begin, at - begin));
    }
    if pieces == [(0, size)] {
        return None;
    }
    // As GNU tar: the map ends where the file does.
    pieces.push((size, 0));
    Some(pieces)
}

#[allow(
    clippy::useless_conversion,
    clippy::unnecessary_cast,
    reason = "the types of stat differ between targets"
)]
fn of<'a>(path: &'a [u8], kind: Kind, found: &FileStat) -> Entry<'a> {
    Entry {
        kind,
        mode: found.st_mode & 0o7777,
        uid: found.st_uid.into(),
        gid: found.st_gid.into(),
        mtime: (found.st_mtime as i64, found.st_mtime_nsec as i64),
        ..Entry::file(path, 0)
    }
}
