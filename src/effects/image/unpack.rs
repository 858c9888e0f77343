//! How does a layer become a directory? Every entry is made relative to a directory opened with `openat2`, so the
//! kernel itself keeps hostile names and symlinks inside the layer.
//!
//! The result is an overlayfs lower directory: whiteouts are 0:0 character devices, opaque directories carry
//! `trusted.overlay.opaque`. A parent directory that has no entry of its own is made `root:root 0755`.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::FileExt;
use std::path::{Component, Path, PathBuf};

use nix::fcntl::{AtFlags, OFlag, openat, readlinkat};
use nix::sys::stat::{
    FchmodatFlags, Mode, SFlag, UtimensatFlags, fchmodat, fstatat, makedev, mkdirat, mknodat,
    utimensat,
};
use nix::sys::time::TimeSpec;
use nix::unistd::{Gid, Uid, UnlinkatFlags, fchownat, linkat, symlinkat, unlinkat};

use super::error::ImageError;
use super::space::Space;
use super::tar_reader::{Kind, Member, TarReader};
use crate::sys::openat::{How, open_beneath, open_in_root};
use crate::sys::xattr;

/// Most entries of a layer.
const MAX_ENTRIES: u64 = 1_000_000;

/// Deepest directory; deeper trees only exist to break programs that walk them.
const MAX_DEPTH: usize = 256;

const OPAQUE: &str = "trusted.overlay.opaque";

/// Unpacks one layer.
pub(crate) struct Unpacker<'a> {
    root: OwnedFd,
    /// The layer's name in messages.
    layer: String,
    space: &'a mut Space,
    /// The directory entries were last made in.
    parent: Option<(PathBuf, OwnedFd)>,
    /// Directories' times, set at the end because making entries changes them.
    times: Vec<(PathBuf, (i64, i64))>,
    buffer: Vec<u8>,
}

/// A failure of one entry, before it is known to which it belongs.
enum Fault {
    Refused(&'static str),
    Io(io::Error),
    Other(ImageError),
}

impl<E: Into<io::Error>> From<E> for Fault {
    fn from(why: E) -> Self {
        Self::Io(why.into())
    }
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
            buffer: vec![0; 128 << 10],
        }
    }

    /// Makes all entries; `progress` is called now and then.
    pub(crate) fn run<R: Read>(
        mut self,
        tar: &mut TarReader<R>,
        progress: &mut dyn FnMut(),
    ) -> Result<(), ImageError> {
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
            progress();
        }
        self.set_times()
    }

    fn entry<R: Read>(
        &mut self,
        member: &Member,
        tar: &mut TarReader<R>,
        progress: &mut dyn FnMut(),
    ) -> Result<(), Fault> {
        let path = relative(&member.name)?;
        let Some(name) = path.file_name().map(OsStr::to_owned) else {
            return self.root_entry(member);
        };
        let parent = self.parent(path.parent().unwrap_or(Path::new("")))?;
        if let Some(hidden) = name.as_bytes().strip_prefix(b".wh.") {
            return whiteout(&parent, OsStr::from_bytes(hidden)).inspect(|()| self.parent = None);
        }
        let hid_lower = self.make_room(&parent, &name, member.kind)?;
        match member.kind {
            Kind::File => self.file(&parent, &name, member, tar, progress)?,
            Kind::HardLink => return self.hard_link(&parent, &name, &member.link),
            Kind::Symlink => {
                if member.link.is_empty() || member.link.contains(&0) {
                    return Err(Fault::Refused("a symlink without a usable target"));
                }
                symlinkat(OsStr::from_bytes(&member.link), &parent, name.as_os_str())?;
            }
            Kind::Directory => {
                match mkdirat(&parent, name.as_os_str(), Mode::from_bits_truncate(0o700)) {
                    // make_room left it because it is a directory already.
                    Ok(()) | Err(nix::errno::Errno::EEXIST) => {}
                    Err(why) => return Err(why.into()),
                }
                if hid_lower {
                    xattr::set_at(parent.as_fd(), &name, OsStr::new(OPAQUE), b"y")?;
                }
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
        self.times.push((PathBuf::new(), member.mtime));
        metadata(&self.root.try_clone()?, OsStr::new("."), member)
    }

    /// Opens (and makes) the directory an entry goes to.
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
        for part in path.components() {
            let part = Path::new(part.as_os_str());
            fd = match open_beneath(&fd, part, How::dir()) {
                Ok(next) => next,
                Err(why) if why.kind() == io::ErrorKind::NotFound => {
                    self.space.take_entry().map_err(Fault::Other)?;
                    mkdirat(&fd, part, Mode::from_bits_truncate(0o755))?;
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

    /// A parent is a symlink: it is followed inside the layer only, and nothing is made on the way.
    fn through_symlinks(&self, path: &Path) -> Result<OwnedFd, Fault> {
        let fd =
            open_in_root(&self.root, path, How::dir()).map_err(|why| match why.raw_os_error() {
                Some(libc::ENOENT | libc::ELOOP | libc::ENOTDIR) => {
                    Fault::Refused("its path leads through a symlink to no directory of this layer")
                }
                _ => Fault::Io(why),
            })?;
        // Chains of symlinks could nest directories deeper than any name says.
        use std::os::fd::AsRawFd;
        let real = readlinkat(
            nix::fcntl::AT_FDCWD,
            format!("/proc/self/fd/{}", fd.as_raw_fd()).as_str(),
        )?;
        if Path::new(&real).components().count() > 2 * MAX_DEPTH {
            return Err(Fault::Refused("directories are nested too deeply"));
        }
        Ok(fd)
    }

    /// Removes what an entry replaces. Says whether that was a whiteout, so that a directory in its place hides the
    /// lower layers'.
    fn make_room(&mut self, parent: &OwnedFd, name: &OsStr, kind: Kind) -> Result<bool, Fault> {
        let found = match fstatat(parent, name, AtFlags::AT_SYMLINK_NOFOLLOW) {
            Err(nix::errno::Errno::ENOENT) => return Ok(false),
            other => other?,
        };
        let format = SFlag::from_bits_truncate(found.st_mode & libc::S_IFMT);
        if format == SFlag::S_IFDIR {
            if kind == Kind::Directory {
                return Ok(false);
            }
            use std::os::fd::AsRawFd;
            let base = PathBuf::from(format!("/proc/self/fd/{}", parent.as_raw_fd()));
            std::fs::remove_dir_all(base.join(name))?;
            // Directories below it are gone, and the cached parent may be one of them.
            self.parent = None;
            self.times
                .retain(|(path, _)| path.file_name() != Some(name) || path.as_os_str().is_empty());
            return Ok(false);
        }
        unlinkat(parent, name, UnlinkatFlags::NoRemoveDir)?;
        self.parent = None;
        Ok(format == SFlag::S_IFCHR && found.st_rdev == 0)
    }

    fn file<R: Read>(
        &mut self,
        parent: &OwnedFd,
        name: &OsStr,
        member: &Member,
        tar: &mut TarReader<R>,
        progress: &mut dyn FnMut(),
    ) -> Result<(), Fault> {
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
                progress();
            }
        }
        Ok(())
    }

    /// The target is a file of the same layer, by the specification.
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

    fn set_times(self) -> Result<(), ImageError> {
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
                        layer: self.layer,
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

/// `/` and `./` in front are taken off, as other engines do; `..` is refused.
fn relative(name: &[u8]) -> Result<PathBuf, Fault> {
    if name.contains(&0) {
        return Err(Fault::Refused("a NUL byte in its name"));
    }
    let mut path = PathBuf::new();
    for part in Path::new(&OsString::from_vec(name.to_vec())).components() {
        match part {
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
            Component::ParentDir => return Err(Fault::Refused("`..` in its name")),
            Component::Normal(part) => path.push(part),
        }
    }
    if path.components().count() > MAX_DEPTH {
        return Err(Fault::Refused("directories are nested too deeply"));
    }
    Ok(path)
}

/// `.wh.<hidden>`: the lower layers' `hidden` is gone. `.wh..wh..opq`: everything of the lower layers' directory is.
fn whiteout(parent: &OwnedFd, hidden: &OsStr) -> Result<(), Fault> {
    match hidden.as_bytes() {
        b".wh..opq" => {
            xattr::set_at(parent.as_fd(), OsStr::new("."), OsStr::new(OPAQUE), b"y")?;
            return Ok(());
        }
        // AUFS's own files, of no meaning elsewhere.
        name if name.starts_with(b".wh.") => return Ok(()),
        b"" | b"." | b".." => return Err(Fault::Refused("a whiteout of nothing")),
        _ => {}
    }
    match mknodat(parent, hidden, SFlag::S_IFCHR, Mode::empty(), 0) {
        Ok(()) => Ok(()),
        // The layer itself brings something of that name, before its whiteout. A directory must then hide the
        // lower one; anything else does so anyway.
        Err(nix::errno::Errno::EEXIST) => {
            let found = fstatat(parent, hidden, AtFlags::AT_SYMLINK_NOFOLLOW)?;
            if found.st_mode & libc::S_IFMT == libc::S_IFDIR {
                xattr::set_at(parent.as_fd(), hidden, OsStr::new(OPAQUE), b"y")?;
            }
            Ok(())
        }
        Err(why) => Err(why.into()),
    }
}

fn device(parent: &OwnedFd, name: &OsStr, member: &Member) -> Result<(), Fault> {
    let format = match member.kind {
        Kind::Char => SFlag::S_IFCHR,
        Kind::Block => SFlag::S_IFBLK,
        _ => SFlag::S_IFIFO,
    };
    let (major, minor) = member.device;
    let number = makedev(major.into(), minor.into());
    mknodat(
        parent,
        name,
        format,
        Mode::from_bits_truncate(0o600),
        number,
    )?;
    Ok(())
}

/// Owner, then mode (chown clears setuid), then attributes (chown clears capabilities), then times.
fn metadata(parent: &OwnedFd, name: &OsStr, member: &Member) -> Result<(), Fault> {
    const BAD_ID: Fault = Fault::Refused("an owner that is no 32-bit number");
    let id = |id: u64| {
        u32::try_from(id)
            .ok()
            .filter(|id| *id != u32::MAX)
            .ok_or(BAD_ID)
    };
    let (uid, gid) = (
        Uid::from_raw(id(member.uid)?),
        Gid::from_raw(id(member.gid)?),
    );
    fchownat(
        parent,
        name,
        Some(uid),
        Some(gid),
        AtFlags::AT_SYMLINK_NOFOLLOW,
    )?;
    if member.kind != Kind::Symlink {
        // Not a symlink: it was made a moment ago, in a directory only this process writes to.
        let mode = Mode::from_bits_truncate(member.mode);
        fchmodat(parent, name, mode, FchmodatFlags::FollowSymlink)?;
    }
    for (key, value) in &member.xattrs {
        if !wanted(key) {
            continue;
        }
        match xattr::set_at(parent.as_fd(), name, OsStr::from_bytes(key), value) {
            Ok(()) => {}
            // Attributes the filesystem does not know, or not on this kind of entry, are lost, as elsewhere. A lost
            // file capability would break the program.
            Err(why)
                if key != b"security.capability"
                    && matches!(why.raw_os_error(), Some(libc::ENOTSUP | libc::EPERM)) => {}
            Err(why) => return Err(why.into()),
        }
    }
    if member.kind != Kind::Directory {
        let time = timespec(member.mtime);
        utimensat(parent, name, &time, &time, UtimensatFlags::NoFollowSymlink)?;
    }
    Ok(())
}

/// overlayfs's own attributes would let a layer redirect lookups, and labels belong to another machine's policy.
fn wanted(key: &[u8]) -> bool {
    let own = [b"trusted.overlay.".as_slice(), b"user.overlay."];
    let kept = [b"user.".as_slice(), b"trusted.", b"system.posix_acl_"];
    !own.iter().any(|prefix| key.starts_with(prefix))
        && !key.contains(&0)
        && (key == b"security.capability" || kept.iter().any(|prefix| key.starts_with(prefix)))
}

#[allow(
    clippy::useless_conversion,
    clippy::cast_possible_truncation,
    reason = "time_t and long are 32 bits wide on some targets"
)]
fn timespec((seconds, nanos): (i64, i64)) -> TimeSpec {
    TimeSpec::new(seconds as libc::time_t, nanos as libc::c_long)
}
