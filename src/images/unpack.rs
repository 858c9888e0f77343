//! The unpacking of a layer into a directory. Every entry is made relative to a directory opened with `openat2`, so
//! the kernel itself keeps hostile names and symlinks inside the layer.
//!
//! The result is an overlayfs lower directory: whiteouts are 0:0 character devices, opaque directories carry
//! `trusted.overlay.opaque`. A parent directory that has no entry of its own is made `root:root 0755`, and reported
//! ([`super::implied`]).

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use nix::fcntl::{AtFlags, OFlag, openat, readlinkat};
use nix::sys::stat::{Mode, SFlag, UtimensatFlags, fstatat, mkdirat, utimensat};
use nix::unistd::{UnlinkatFlags, linkat, symlinkat, unlinkat};

use super::entry::{Fault, MAX_DEPTH, device, hide_lower, metadata, relative, timespec, whiteout};
use super::error::ImageError;
use super::implied::Implied;
use super::recipe::Recorder;
use super::space::Space;
use super::tar_reader::{Kind, Member, TarReader};
use crate::sys::openat::{How, open_beneath, open_in_root};
use crate::sys::tree;

/// The maximum number of entries of a layer.
const MAX_ENTRIES: u64 = 1_000_000;

/// Unpacks one layer.
pub(crate) struct Unpacker<'a> {
    root: OwnedFd,
    /// The layer's name in messages.
    layer: String,
    space: &'a mut Space,
    /// The directory of the newest entry.
    parent: Option<(PathBuf, OwnedFd)>,
    /// Directories' times, set at the end because making entries changes them.
    times: Vec<(PathBuf, (i64, i64))>,
    /// Whether an entry took the place of another: what that was is gone.
    replaced: bool,
    implied: Implied,
    buffer: Vec<u8>,
}

impl<'a> Unpacker<'a> {
    /// Unpacks into the (empty) directory `root`.
    pub(crate) fn new(root: File, layer: String, space: &'a mut Space) -> Self {
        Self {
            root: root.into(),
            layer,
            space,
            parent: None,
            times: Vec::new(),
            replaced: false,
            implied: Implied::new(),
            buffer: vec![0; 128 << 10],
        }
    }

    /// Makes all entries; `progress` is called regularly. Returns the directories that the layer only implies.
    pub(crate) fn run<R: Read>(
        mut self,
        tar: &mut TarReader<Recorder<R>>,
        progress: &mut dyn FnMut() -> Result<(), ImageError>,
    ) -> Result<Vec<String>, ImageError> {
        let mut entries = 0;
        while let Some(member) = tar.next()? {
            entries += 1;
            if entries > MAX_ENTRIES {
                return Err(ImageError::Limit {
                    what: format!("the number of entries in {}", self.layer),
                    limit: MAX_ENTRIES,
                    unit: "entries",
                });
            }
            self.space.take_entry()?;
            let shown = member.shown();
            match self.entry(&member, tar, progress) {
                Ok(()) => {}
                Err(Fault::Other(why)) => return Err(why),
                Err(Fault::Refused(why)) => {
                    return Err(ImageError::Entry {
                        layer: self.layer,
                        entry: shown,
                        why: why.to_owned(),
                    });
                }
                Err(Fault::Io(why)) => {
                    let layer = self.layer;
                    return Err(self.space.write_error(why, |source| ImageError::Unpack {
                        layer,
                        entry: shown,
                        source,
                    }));
                }
            }
            progress()?;
        }
        if self.replaced {
            tar.inner().give_up();
        }
        self.set_times()?;
        Ok(self.implied.kept())
    }

    fn entry<R: Read>(
        &mut self,
        member: &Member,
        tar: &mut TarReader<Recorder<R>>,
        progress: &mut dyn FnMut() -> Result<(), ImageError>,
    ) -> Result<(), Fault> {
        let path = relative(&member.name)?;
        let Some(name) = path.file_name().map(OsStr::to_owned) else {
            return self.root_entry(member);
        };
        let parent = self.parent(path.parent().unwrap_or(Path::new("")))?;
        if let Some(hidden) = name.as_bytes().strip_prefix(b".wh.") {
            return whiteout(&parent, OsStr::from_bytes(hidden)).inspect(|()| self.parent = None);
        }
        let hid_lower = self.make_room(&parent, &path, &name, member.kind)?;
        match member.kind {
            Kind::File => self.file(&parent, &path, member, tar, progress)?,
            Kind::HardLink => return self.hard_link(&parent, &name, &member.link),
            Kind::Symlink => {
                if member.link.is_empty() || member.link.contains(&0) {
                    return Err(Fault::Refused("a symlink without a usable target"));
                }
                symlinkat(OsStr::from_bytes(&member.link), &parent, name.as_os_str())?;
            }
            Kind::Directory => {
                match mkdirat(&parent, name.as_os_str(), Mode::from_bits_truncate(0o700)) {
                    // `make_room` left it because it is a directory already.
                    Ok(()) | Err(nix::errno::Errno::EEXIST) => {}
                    Err(why) => return Err(why.into()),
                }
                if hid_lower {
                    hide_lower(&parent, &name)?;
                }
                self.implied.has_entry(&path);
                self.times.push((path, member.mtime));
            }
            Kind::Char | Kind::Block | Kind::Fifo => device(&parent, &name, member)?,
        }
        metadata(&parent, &name, member)
    }

    /// The layer's own root.
    fn root_entry(&mut self, member: &Member) -> Result<(), Fault> {
        if member.kind != Kind::Directory {
            return Err(Fault::Refused("the root of a layer must be a directory"));
        }
        self.implied.has_entry(Path::new(""));
        self.times.push((PathBuf::new(), member.mtime));
        metadata(&self.root.try_clone()?, OsStr::new("."), member)
    }

    /// Opens (and makes) the directory of an entry.
    fn parent(&mut self, path: &Path) -> Result<OwnedFd, Fault> {
        if let Some((cached, fd)) = &self.parent
            && cached == path
        {
            return Ok(fd.try_clone()?);
        }
        let fd = match open_beneath(&self.root, path, How::dir()) {
            Ok(fd) => fd,
            Err(why) => match why.raw_os_error() {
                Some(libc::ENOENT) => self.make_parents(path)?,
                Some(libc::ELOOP) => self.through_symlinks(path)?,
                Some(libc::ENOTDIR) => return Err(Fault::Refused("a parent is not a directory")),
                _ => return Err(why.into()),
            },
        };
        self.parent = Some((path.to_owned(), fd.try_clone()?));
        Ok(fd)
    }

    fn make_parents(&mut self, path: &Path) -> Result<OwnedFd, Fault> {
        let mut fd = self.root.try_clone()?;
        let mut made = PathBuf::new();
        for part in path.components() {
            let part = Path::new(part.as_os_str());
            made.push(part);
            fd = match open_beneath(&fd, part, How::dir()) {
                Ok(next) => next,
                Err(why) if why.kind() == io::ErrorKind::NotFound => {
                    self.space.take_entry().map_err(Fault::Other)?;
                    mkdirat(&fd, part, Mode::from_bits_truncate(0o755))?;
                    self.implied.made(made.clone());
                    open_beneath(&fd, part, How::dir())?
                }
                Err(why) if why.raw_os_error() == Some(libc::ELOOP) => {
                    return self.through_symlinks(path);
                }
                Err(why) if why.raw_os_error() == Some(libc::ENOTDIR) => {
                    return Err(Fault::Refused("a parent is not a directory"));
                }
                Err(why) => return Err(why.into()),
            };
        }
        Ok(fd)
    }

    /// Resolves a parent that is a symlink: it is followed inside the layer only, and nothing is made on the way.
    fn through_symlinks(&self, path: &Path) -> Result<OwnedFd, Fault> {
        let fd =
            open_in_root(&self.root, path, How::dir()).map_err(|why| match why.raw_os_error() {
                Some(libc::ENOENT | libc::ELOOP | libc::ENOTDIR) => {
                    Fault::Refused("its path leads through a symlink to no directory of this layer")
                }
                _ => Fault::Io(why),
            })?;
        // Chains of symlinks could nest directories deeper than any name does.
        let real = readlinkat(
            nix::fcntl::AT_FDCWD,
            format!("/proc/self/fd/{}", fd.as_raw_fd()).as_str(),
        )?;
        if Path::new(&real).components().count() > 2 * MAX_DEPTH {
            return Err(Fault::Refused("directories are nested too deeply"));
        }
        Ok(fd)
    }

    /// Removes what an entry replaces. Returns whether that was a whiteout, so that a directory in its place hides
    /// the lower layers' one.
    fn make_room(
        &mut self,
        parent: &OwnedFd,
        path: &Path,
        name: &OsStr,
        kind: Kind,
    ) -> Result<bool, Fault> {
        let found = match fstatat(parent, name, AtFlags::AT_SYMLINK_NOFOLLOW) {
            Err(nix::errno::Errno::ENOENT) => return Ok(false),
            other => other?,
        };
        let format = SFlag::from_bits_truncate(found.st_mode & libc::S_IFMT);
        if format == SFlag::S_IFDIR {
            if kind == Kind::Directory {
                return Ok(false);
            }
            self.replaced = true;
            tree::remove_at(parent.as_fd(), Path::new(name))?;
            // Directories below it are gone, and the cached parent may be one of them.
            self.parent = None;
            self.times.retain(|(other, _)| !other.starts_with(path));
            self.implied.gone(path);
            return Ok(false);
        }
        unlinkat(parent, name, UnlinkatFlags::NoRemoveDir)?;
        self.replaced = true;
        self.parent = None;
        Ok(format == SFlag::S_IFCHR && found.st_rdev == 0)
    }

    fn file<R: Read>(
        &mut self,
        parent: &OwnedFd,
        path: &Path,
        member: &Member,
        tar: &mut TarReader<Recorder<R>>,
        progress: &mut dyn FnMut() -> Result<(), ImageError>,
    ) -> Result<(), Fault> {
        let name = path.file_name().unwrap_or_default();
        let flags =
            OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let mut file = File::from(openat(
            parent,
            name,
            flags,
            Mode::from_bits_truncate(0o600),
        )?);
        let whole = [(0, member.size)];
        let chunks = match &member.sparse {
            Some(sparse) => {
                self.space.take_hole(sparse.size).map_err(Fault::Other)?;
                file.set_len(sparse.size)?;
                sparse.chunks.as_slice()
            }
            None => &whole,
        };
        for (offset, length) in chunks {
            let (mut offset, mut left) = (*offset, *length);
            if left > 0 {
                tar.inner().content(path, offset, left);
            }
            while left > 0 {
                let most = usize::try_from(left)
                    .unwrap_or(usize::MAX)
                    .min(self.buffer.len());
                let n = match tar.read(&mut self.buffer[..most]) {
                    Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                    other => other.map_err(|e| {
                        Fault::Other(tar.broken(&e, &format!("`{}`", member.shown())))
                    })?,
                };
                self.space.take(n as u64).map_err(Fault::Other)?;
                if member.sparse.is_some() {
                    file.write_all_at(&self.buffer[..n], offset)?;
                } else {
                    file.write_all(&self.buffer[..n])?;
                }
                offset += n as u64;
                left -= n as u64;
                progress().map_err(Fault::Other)?;
            }
        }
        Ok(())
    }

    /// By the specification, the target is a file of the same layer.
    fn hard_link(&mut self, parent: &OwnedFd, name: &OsStr, target: &[u8]) -> Result<(), Fault> {
        const MISSING: &str = "a hard link to a file that is not in this layer";
        let target = relative(target)?;
        let Some(target_name) = target.file_name() else {
            return Err(Fault::Refused("a hard link to the root"));
        };
        let folder = target.parent().unwrap_or(Path::new(""));
        let from = open_beneath(&self.root, folder, How::dir())
            .or_else(|_| open_in_root(&self.root, folder, How::dir()))
            .map_err(|_| Fault::Refused(MISSING))?;
        match linkat(&from, target_name, parent, name, AtFlags::empty()) {
            Ok(()) => Ok(()),
            Err(nix::errno::Errno::ENOENT) => Err(Fault::Refused(MISSING)),
            Err(nix::errno::Errno::EPERM) => Err(Fault::Refused("a hard link to a directory")),
            Err(why) => Err(why.into()),
        }
    }

    fn set_times(&self) -> Result<(), ImageError> {
        for (path, mtime) in self.times.iter().rev() {
            let time = timespec(*mtime);
            let set = open_beneath(&self.root, path, How::dir())
                .or_else(|_| open_in_root(&self.root, path, How::dir()))
                .and_then(|fd| {
                    Ok(utimensat(
                        &fd,
                        ".",
                        &time,
                        &time,
                        UtimensatFlags::NoFollowSymlink,
                    )?)
                });
            match set {
                // It was replaced by a later entry.
                Err(why) if why.kind() == io::ErrorKind::NotFound => {}
                Err(why) if why.kind() == io::ErrorKind::NotADirectory => {}
                Err(source) => {
                    return Err(ImageError::Unpack {
                        layer: self.layer.clone(),
                        entry: path.display().to_string(),
                        source,
                    });
                }
                Ok(()) => {}
            }
        }
        Ok(())
    }
}
