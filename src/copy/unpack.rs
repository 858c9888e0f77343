//! Files of a tar stream that is not trusted. Each entry is made in a directory that was opened component by component
//! below the target: no name and no link in the stream leads out of it. Devices and pipes are never made, and no file
//! gets a set-user-id bit.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Component, Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, openat};
use nix::sys::stat::{
    FchmodatFlags, Mode, SFlag, UtimensatFlags, fchmod, fchmodat, fstat, futimens, mkdirat,
    utimensat,
};
use nix::unistd::{Gid, Uid, UnlinkatFlags, fchownat, ftruncate, linkat, symlinkat, unlinkat};

use super::{BUFFER_BYTES, MAX_DEPTH, Notes, shown, why};
use crate::images::{Kind, Member, TarReader, timespec};
use crate::sys::beneath::place;
use crate::sys::openat::{How, open_beneath};

/// The permissions that a copy keeps.
const PERMISSIONS: u32 = 0o777;

/// Where the files go.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place<'a> {
    /// A directory to put them into, or a path that does not exist yet.
    pub(crate) path: &'a Path,
    /// The name of the file or directory that is copied; `None`: what is in a directory is copied into `path` itself.
    pub(crate) name: Option<&'a OsStr>,
    /// Keep owners and all permissions. Otherwise the files belong to the caller, and its umask applies.
    pub(crate) keep: bool,
    /// Warn of symlinks that lead out of the copy.
    pub(crate) watch_links: bool,
}

/// Makes the files of a stream. An error ends the copy.
pub(crate) fn unpack(
    input: &mut dyn Read,
    to: Place<'_>,
    notes: &mut Notes<'_>,
) -> Result<(), String> {
    let mut tar = TarReader::streaming(input, "the archive".to_owned());
    let broken = |error| crate::chain(&error);
    let mut next = tar.next().map_err(broken)?;
    if next.is_none() {
        return Ok(());
    }
    // Only now: a copy of something that is not there makes nothing.
    let (root, name) = target(&to, next.as_ref())?;
    let mut unpacker = Unpacker {
        root,
        name,
        to,
        levels: Vec::new(),
        owners_refused: false,
        buffer: vec![0; BUFFER_BYTES],
        notes,
    };
    while let Some(member) = next {
        match unpacker.member(&member, &mut tar) {
            Ok(()) => {}
            Err(Fault::Entry(text)) => {
                let text = format!("{}: {text}", shown(&member.name));
                unpacker.notes.error(&text);
            }
            Err(Fault::End(text)) => return Err(format!("{}: {text}", shown(&member.name))),
        }
        next = tar.next().map_err(broken)?;
    }
    unpacker.leave(0);
    Ok(())
}

/// Finds the folder for the files, and the name for what is copied in it.
fn target(to: &Place<'_>, first: Option<&Member>) -> Result<(OwnedFd, Option<OsString>), String> {
    let path = to.path;
    let failed =
        |error: io::Error| format!("{}: {}", shown(path.as_os_str().as_bytes()), why(&error));
    let no_folder = || failed(io::Error::from_raw_os_error(libc::ENOTDIR));
    let wants_folder = path.as_os_str().as_bytes().ends_with(b"/");
    match fs::metadata(path) {
        Ok(found) if found.is_dir() => {
            Ok((place(path).map_err(failed)?, to.name.map(OsStr::to_owned)))
        }
        Ok(found) if found.is_file() => {
            let whole = fs::canonicalize(path).map_err(failed)?;
            match (to.name, whole.file_name(), wants_folder) {
                (Some(_), Some(name), false) => Ok((
                    place(parent(&whole)).map_err(failed)?,
                    Some(name.to_owned()),
                )),
                _ => Err(no_folder()),
            }
        }
        Ok(_) => Err(format!(
            "{} is no file or directory",
            shown(path.as_os_str().as_bytes())
        )),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let is_folder = first.is_some_and(|first| first.kind == Kind::Directory);
            match (to.name, path.file_name()) {
                (Some(_), Some(name)) if is_folder || !wants_folder => {
                    Ok((place(parent(path)).map_err(failed)?, Some(name.to_owned())))
                }
                (None, Some(_)) => {
                    fs::create_dir(path).map_err(failed)?;
                    Ok((place(path).map_err(failed)?, None))
                }
                _ => Err(failed(error)),
            }
        }
        Err(error) => Err(failed(error)),
    }
}

fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// A failure, without the entry's name.
enum Fault {
    /// Of this entry only.
    Entry(String),
    /// Of everything that comes after it, too.
    End(String),
}

impl From<Errno> for Fault {
    fn from(errno: Errno) -> Self {
        Self::from(io::Error::from(errno))
    }
}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Self {
        match error.raw_os_error() {
            Some(libc::ENOSPC | libc::EDQUOT | libc::EROFS) => Self::End(why(&error)),
            _ => Self::Entry(why(&error)),
        }
    }
}

/// An open directory on the way to the newest entry.
struct Level {
    name: OsString,
    folder: OwnedFd,
    /// Its mode and time, if it was made for an entry of its own: set at the end, because entries need rights and
    /// change times.
    made: Option<(u32, (i64, i64))>,
}

struct Unpacker<'a, 'n> {
    root: OwnedFd,
    /// What takes the place of the first component of all names.
    name: Option<OsString>,
    to: Place<'a>,
    levels: Vec<Level>,
    owners_refused: bool,
    buffer: Vec<u8>,
    notes: &'a mut Notes<'n>,
}

impl Unpacker<'_, '_> {
    fn member(&mut self, member: &Member, tar: &mut TarReader<&mut dyn Read>) -> Result<(), Fault> {
        let path = self.path(&member.name)?;
        let Some((name, folders)) = path.split_last() else {
            // The directory whose contents are copied.
            return Ok(());
        };
        match member.kind {
            Kind::Directory => return self.directory(&path, member),
            Kind::File => {
                self.enter(folders)?;
                return self.file(name, member, tar);
            }
            Kind::Symlink => self.symlink((folders, name), member)?,
            Kind::HardLink => return self.hard_link((folders, name), &member.link),
            Kind::Char | Kind::Block | Kind::Fifo => {
                let text = format!("{} is left out: a device or a pipe", shown(&member.name));
                self.notes.warning(&text);
                return Ok(());
            }
        }
        if self.to.keep {
            self.own(name, member, AtFlags::AT_SYMLINK_NOFOLLOW)?;
        }
        Ok(())
    }

    /// The components of a name, the first one replaced.
    fn path(&self, name: &[u8]) -> Result<Vec<OsString>, Fault> {
        let refuse = |why: &str| Err(Fault::Entry(format!("refused: {why}")));
        if name.contains(&0) {
            return refuse("a NUL byte in its name");
        }
        let mut path = Vec::new();
        for part in Path::new(OsStr::from_bytes(name)).components() {
            match part {
                Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
                Component::ParentDir => return refuse("`..` in its name"),
                Component::Normal(part) => path.push(part.to_owned()),
            }
        }
        if path.len() > MAX_DEPTH {
            return refuse("directories are nested too deeply");
        }
        if let (Some(name), Some(first)) = (&self.name, path.first_mut()) {
            first.clone_from(name);
        }
        Ok(path)
    }

    fn here(&self) -> BorrowedFd<'_> {
        self.levels
            .last()
            .map_or(self.root.as_fd(), |level| level.folder.as_fd())
    }

    /// Opens these folders, and makes those that are missing. Returns whether the last one is new.
    fn enter(&mut self, folders: &[OsString]) -> Result<bool, Fault> {
        let same = self.levels.iter().zip(folders);
        let same = same
            .take_while(|(level, name)| level.name == **name)
            .count();
        self.leave(same);
        let mut new = false;
        for name in &folders[same..] {
            let at = Path::new(name);
            let opened = match open_beneath(self.here(), at, How::dir()) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    mkdirat(self.here(), at, Mode::from_bits_truncate(PERMISSIONS))?;
                    new = true;
                    open_beneath(self.here(), at, How::dir())
                }
                opened => {
                    new = false;
                    opened
                }
            };
            let folder = opened.map_err(|error| match error.raw_os_error() {
                Some(libc::ELOOP) => {
                    let name = shown(name.as_bytes());
                    Fault::Entry(format!("refused: {name} is a symbolic link there"))
                }
                _ => error.into(),
            })?;
            self.levels.push(Level {
                name: name.clone(),
                folder,
                made: None,
            });
        }
        Ok(new)
    }

    /// Closes all folders but the first ones, and gives those that were made their modes and times.
    fn leave(&mut self, keep: usize) {
        while self.levels.len() > keep {
            let Some(level) = self.levels.pop() else {
                return;
            };
            let Some((mode, mtime)) = level.made else {
                continue;
            };
            let set = || -> nix::Result<()> {
                let has = fstat(&level.folder)?.st_mode & PERMISSIONS;
                let mode = match self.to.keep {
                    true => mode & PERMISSIONS,
                    false => mode & has,
                };
                if mode != has {
                    let mode = Mode::from_bits_truncate(mode);
                    fchmodat(&level.folder, ".", mode, FchmodatFlags::FollowSymlink)?;
                }
                let time = timespec(mtime);
                // A time that the file system does not take is no loss.
                let follow = UtimensatFlags::FollowSymlink;
                let _ = utimensat(&level.folder, ".", &time, &time, follow);
                Ok(())
            };
            if let Err(errno) = set() {
                let text = format!("{}: {}", shown(level.name.as_bytes()), why(&errno.into()));
                self.notes.error(&text);
            }
        }
    }

    fn directory(&mut self, path: &[OsString], member: &Member) -> Result<(), Fault> {
        if !self.enter(path)? {
            // It was there before, and stays as it is.
            return Ok(());
        }
        if self.to.keep {
            self.own(OsStr::new(""), member, AtFlags::AT_EMPTY_PATH)?;
        }
        if let Some(level) = self.levels.last_mut() {
            level.made = Some((member.mode, member.mtime));
        }
        Ok(())
    }

    fn file(
        &mut self,
        name: &OsStr,
        member: &Member,
        tar: &mut TarReader<&mut dyn Read>,
    ) -> Result<(), Fault> {
        let (file, new) = create(self.here(), name, member.mode & PERMISSIONS)?;
        let written = self.content(&file, member, tar);
        if written.is_err() && new {
            // Half a file helps nobody; the error that led here is reported.
            let _ = unlinkat(self.here(), name, UnlinkatFlags::NoRemoveDir);
        }
        written?;
        if new && self.to.keep {
            self.own(name, member, AtFlags::AT_SYMLINK_NOFOLLOW)?;
            fchmod(&file, Mode::from_bits_truncate(member.mode & PERMISSIONS))?;
        }
        let time = timespec(member.mtime);
        // A time that the file system does not take is no loss.
        let _ = futimens(&file, &time, &time);
        Ok(())
    }

    fn content(
        &mut self,
        file: &File,
        member: &Member,
        tar: &mut TarReader<&mut dyn Read>,
    ) -> Result<(), Fault> {
        let whole = [(0, member.size)];
        let pieces = match &member.sparse {
            Some(sparse) => {
                file.set_len(sparse.size)?;
                sparse.chunks.as_slice()
            }
            None => &whole,
        };
        for (offset, length) in pieces {
            let (mut offset, mut left) = (*offset, *length);
            while left > 0 {
                let most = self
                    .buffer
                    .len()
                    .min(usize::try_from(left).unwrap_or(usize::MAX));
                let length = match tar.read(&mut self.buffer[..most]) {
                    Ok(0) => return Err(Fault::End("the archive ends in it".to_owned())),
                    Ok(length) => length,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                    Err(error) => return Err(Fault::End(why(&error))),
                };
                file.write_all_at(&self.buffer[..length], offset)?;
                offset += length as u64;
                left -= length as u64;
            }
        }
        Ok(())
    }

    fn symlink(
        &mut self,
        (folders, name): (&[OsString], &OsStr),
        member: &Member,
    ) -> Result<(), Fault> {
        let target = OsStr::from_bytes(&member.link);
        self.enter(folders)?;
        again(self.here(), name, |folder| symlinkat(target, folder, name))?;
        let first = usize::from(self.name.is_some());
        if self.to.watch_links && leads_out(folders.len(), first, Path::new(target)) {
            let (link, target) = (shown(&member.name), shown(&member.link));
            let text = format!("{link} is a symbolic link that leads out of the copy, to {target}");
            self.notes.warning(&text);
        }
        Ok(())
    }

    /// A second name of a file of the same stream.
    fn hard_link(
        &mut self,
        (folders, name): (&[OsString], &OsStr),
        target: &[u8],
    ) -> Result<(), Fault> {
        let target = self.path(target)?;
        let Some((first_name, first_folders)) = target.split_last() else {
            return Err(Fault::Entry("refused: a link to no file".to_owned()));
        };
        let first_folders: PathBuf = first_folders.iter().collect();
        let from = open_beneath(&self.root, &first_folders, How::dir())?;
        self.enter(folders)?;
        again(self.here(), name, |folder| {
            linkat(
                &from,
                first_name.as_os_str(),
                folder,
                name,
                AtFlags::empty(),
            )
        })
    }

    /// Gives an entry here its owner.
    fn own(&mut self, name: &OsStr, member: &Member, flags: AtFlags) -> Result<(), Fault> {
        let id = |id: u64| u32::try_from(id).unwrap_or(u32::MAX);
        let owner = Some(Uid::from_raw(id(member.uid)));
        let group = Some(Gid::from_raw(id(member.gid)));
        match fchownat(self.here(), name, owner, group, flags) {
            Err(Errno::EPERM | Errno::EINVAL) => {
                if !self.owners_refused {
                    self.notes.warning(
                        "the container may not give files away: their owners are not kept",
                    );
                }
                self.owners_refused = true;
                Ok(())
            }
            other => Ok(other?),
        }
    }
}

/// Makes an entry; takes another one out of its way, unless that is a directory.
fn again(
    folder: BorrowedFd<'_>,
    name: &OsStr,
    make: impl Fn(BorrowedFd<'_>) -> nix::Result<()>,
) -> Result<(), Fault> {
    match make(folder) {
        Err(Errno::EEXIST) => {
            unlinkat(folder, name, UnlinkatFlags::NoRemoveDir)?;
            Ok(make(folder)?)
        }
        other => Ok(other?),
    }
}

/// Makes a file, in the place of another one if need be. Returns whether it is new: where the other cannot be replaced
/// (it is a mount, or the directory is not the caller's), its content is.
fn create(folder: BorrowedFd<'_>, name: &OsStr, mode: u32) -> Result<(File, bool), Fault> {
    let make = || {
        let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW;
        let mode = Mode::from_bits_truncate(mode);
        openat(folder, name, flags | OFlag::O_CLOEXEC, mode)
    };
    match make() {
        Err(Errno::EEXIST) => {}
        made => return Ok((made?.into(), true)),
    }
    match unlinkat(folder, name, UnlinkatFlags::NoRemoveDir) {
        Ok(()) => Ok((make()?.into(), true)),
        Err(Errno::EBUSY | Errno::EACCES | Errno::EPERM) => {
            let flags = OFlag::O_WRONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
            let flags = flags | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
            let file = openat(folder, name, flags, Mode::empty())?;
            if fstat(&file)?.st_mode & libc::S_IFMT != SFlag::S_IFREG.bits() {
                return Err(Fault::Entry(
                    "there is something else than a file".to_owned(),
                ));
            }
            ftruncate(&file, 0)?;
            Ok((file.into(), false))
        }
        Err(errno) => Err(errno.into()),
    }
}

/// Whether a symlink in a folder of this depth leads out of the copy, which begins at depth `first`.
fn leads_out(depth: usize, first: usize, target: &Path) -> bool {
    let mut depth = depth;
    for part in target.components() {
        match part {
            Component::RootDir | Component::Prefix(_) => return true,
            Component::CurDir => {}
            Component::Normal(_) => depth += 1,
            Component::ParentDir if depth <= first => return true,
            Component::ParentDir => depth -= 1,
        }
    }
    false
}
