//! One entry of a layer: its name is checked, owner, mode and attributes are set, whiteouts are translated to
//! overlayfs's form. No function here follows a symlink.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};

use nix::fcntl::AtFlags;
use nix::sys::stat::{
    FchmodatFlags, Mode, SFlag, UtimensatFlags, fchmodat, fstatat, makedev, mknodat, utimensat,
};
use nix::sys::time::TimeSpec;
use nix::unistd::{Gid, Uid, fchownat};

use super::error::ImageError;
use super::tar_reader::{Kind, Member};
use crate::sys::xattr;

/// The deepest directory; deeper trees exist only to break programs that walk them.
pub(super) const MAX_DEPTH: usize = 256;

pub(super) const OPAQUE: &str = "trusted.overlay.opaque";

/// A failure of one entry, without the entry's name.
pub(super) enum Fault {
    Refused(&'static str),
    Io(io::Error),
    Other(ImageError),
}

impl<E: Into<io::Error>> From<E> for Fault {
    fn from(why: E) -> Self {
        Self::Io(why.into())
    }
}

/// Makes a directory hide what lower layers have in theirs.
pub(super) fn hide_lower(parent: &OwnedFd, name: &OsStr) -> Result<(), Fault> {
    Ok(xattr::set_at(
        parent.as_fd(),
        name,
        OsStr::new(OPAQUE),
        b"y",
    )?)
}

/// `/` and `./` in front are taken off, as other engines do; `..` is refused.
pub(super) fn relative(name: &[u8]) -> Result<PathBuf, Fault> {
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
pub(super) fn whiteout(parent: &OwnedFd, hidden: &OsStr) -> Result<(), Fault> {
    match hidden.as_bytes() {
        b".wh..opq" => {
            hide_lower(parent, OsStr::new("."))?;
            return Ok(());
        }
        // AUFS's own files, without meaning elsewhere.
        name if name.starts_with(b".wh.") => return Ok(()),
        b"" | b"." | b".." => return Err(Fault::Refused("a whiteout of nothing")),
        _ => {}
    }
    match mknodat(parent, hidden, SFlag::S_IFCHR, Mode::empty(), 0) {
        Ok(()) => Ok(()),
        // The layer itself has an entry of that name, before its whiteout. A directory must then hide the lower
        // one; anything else does so anyway.
        Err(nix::errno::Errno::EEXIST) => {
            let found = fstatat(parent, hidden, AtFlags::AT_SYMLINK_NOFOLLOW)?;
            if found.st_mode & libc::S_IFMT == libc::S_IFDIR {
                hide_lower(parent, hidden)?;
            }
            Ok(())
        }
        Err(why) => Err(why.into()),
    }
}

pub(super) fn device(parent: &OwnedFd, name: &OsStr, member: &Member) -> Result<(), Fault> {
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
pub(super) fn metadata(parent: &OwnedFd, name: &OsStr, member: &Member) -> Result<(), Fault> {
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
            // Attributes that the filesystem does not support, or not on this kind of entry, are lost, as
            // elsewhere. A lost file capability would break the program.
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

/// Whether to keep an attribute: file capabilities, access lists and `user.` attributes. overlayfs's attributes
/// would let a layer redirect lookups, others in `trusted.` are for programs of the node, and labels belong to
/// another machine's policy.
pub(super) fn wanted(key: &[u8]) -> bool {
    const KEPT: [&[u8]; 3] = [
        b"security.capability",
        b"system.posix_acl_access",
        b"system.posix_acl_default",
    ];
    let of_users = key.starts_with(b"user.") && !key.starts_with(b"user.overlay.");
    !key.contains(&0) && (of_users || KEPT.contains(&key))
}

#[allow(
    clippy::useless_conversion,
    clippy::cast_possible_truncation,
    reason = "time_t and long are 32 bits wide on some targets"
)]
pub(crate) fn timespec((seconds, nanos): (i64, i64)) -> TimeSpec {
    TimeSpec::new(seconds as libc::time_t, nanos as libc::c_long)
}
