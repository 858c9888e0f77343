//! `fsGroup`: a volume's files belong to a group and are open to it, like the kubelet's `SetVolumeOwnership`.
//!
//! What a volume contains is hostile, and may change meanwhile. Each entry is opened once without following a symlink or
//! crossing a mount, and changed through what was opened. The root comes last: a root that belongs to the group says
//! that everything below it does.

use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, OpenHow, ResolveFlag, openat2};
use nix::sys::stat::{FileStat, Mode, fstat};
use nix::unistd::{Gid, fchownat};

use crate::sys::tree::Entries;

/// Folders are changed down to this depth; one descriptor is open for each.
const MAX_DEPTH: usize = 256;

/// The maximum number of entries of a volume.
const MAX_ENTRIES: u64 = 10_000_000;

/// What the group may do with the files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Files {
    /// Read and write them.
    Writable,
    /// Read them, as those of a ConfigMap.
    ReadOnly,
}

/// When files get their owner: `fsGroupChangePolicy`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// Each time.
    Always,
    /// Unless the volume's root has the group and mode that it should have.
    OnRootMismatch,
}

/// Gives a volume to a group: files get mode `rw-rw----`, or `r--r-----`, beside the mode they have, folders also `--x--x---`
/// and the setgid bit, so that new files in them have the same group. Idempotent.
///
/// Errors: a tree that is too deep or too large, and what the system says about an entry.
pub fn give(root: &Path, group: u32, files: Files, change: Change) -> io::Result<()> {
    let top = open_root(root)?;
    let found = fstat(&top)?;
    if change == Change::OnRootMismatch && fits(&found, group, files) {
        return Ok(());
    }
    if is(&found, libc::S_IFDIR) {
        each_below(top.as_fd(), &mut |entry, found| {
            set(entry, found, group, files)
        })?;
    }
    set(top.as_fd(), &found, group, files)
}

/// Opens the root of a volume as a place.
pub(super) fn open_root(root: &Path) -> io::Result<OwnedFd> {
    let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    Ok(nix::fcntl::open(root, flags, Mode::empty())?)
}

/// Calls `then` for everything in a folder, open as a place. A folder comes before what is in it.
pub(super) fn each_below(
    top: BorrowedFd<'_>,
    then: &mut dyn FnMut(BorrowedFd<'_>, &FileStat) -> io::Result<()>,
) -> io::Result<()> {
    let mut levels = vec![Entries::of(top)?];
    let mut seen = 0;
    while let Some(deepest) = levels.last_mut() {
        let Some((name, _)) = deepest.next_kind()? else {
            levels.pop();
            continue;
        };
        seen += 1;
        if seen > MAX_ENTRIES {
            let why = format!("it has more than {MAX_ENTRIES} files");
            return Err(io::Error::other(why));
        }
        let Some(entry) = open(deepest.fd(), &name)? else {
            continue;
        };
        let found = fstat(&entry)?;
        then(entry.as_fd(), &found)?;
        if is(&found, libc::S_IFDIR) {
            if levels.len() == MAX_DEPTH {
                let why = format!("it has folders deeper than {MAX_DEPTH}");
                return Err(io::Error::other(why));
            }
            levels.push(Entries::of(entry.as_fd())?);
        }
    }
    Ok(())
}

/// Opens an entry without following it; `None` if it has vanished, or is a mount point.
fn open(folder: BorrowedFd<'_>, name: &OsStr) -> io::Result<Option<OwnedFd>> {
    let how = OpenHow::new()
        .flags(OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC)
        .resolve(
            ResolveFlag::RESOLVE_BENEATH
                | ResolveFlag::RESOLVE_NO_SYMLINKS
                | ResolveFlag::RESOLVE_NO_XDEV,
        );
    loop {
        match openat2(folder, name, how) {
            Ok(entry) => return Ok(Some(entry)),
            Err(Errno::ENOENT | Errno::EXDEV) => return Ok(None),
            // EAGAIN: a rename elsewhere raced with the walk; the kernel asks to try again.
            Err(Errno::EAGAIN | Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Changes what is open. A symlink has no mode of its own.
fn set(entry: BorrowedFd<'_>, found: &FileStat, group: u32, files: Files) -> io::Result<()> {
    let moves = found.st_gid != group;
    if moves {
        let (empty, group) = (Path::new(""), Some(Gid::from_raw(group)));
        fchownat(entry, empty, None, group, AtFlags::AT_EMPTY_PATH)?;
    }
    let mode = found.st_mode & 0o7777;
    let wanted = mode | bits(found, files);
    // A change of the group takes the setuid bit away.
    if is(found, libc::S_IFLNK) || !moves && wanted == mode {
        return Ok(());
    }
    // The link leads to what is open, whatever now has its name.
    let place = format!("/proc/self/fd/{}", entry.as_raw_fd());
    fs::set_permissions(place, Permissions::from_mode(wanted))
}

/// The bits that an entry gets.
fn bits(found: &FileStat, files: Files) -> u32 {
    let of_file = match files {
        Files::Writable => 0o660,
        Files::ReadOnly => 0o440,
    };
    match is(found, libc::S_IFDIR) {
        true => of_file | 0o2110,
        false => of_file,
    }
}

/// Whether a volume's root looks as if all of it belonged to the group.
fn fits(found: &FileStat, group: u32, files: Files) -> bool {
    let bits = bits(found, files);
    is(found, libc::S_IFDIR) && found.st_gid == group && found.st_mode & bits == bits
}

fn is(found: &FileStat, kind: libc::mode_t) -> bool {
    found.st_mode & libc::S_IFMT == kind
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, chown, lchown, symlink};
    use std::path::PathBuf;

    use super::*;
    use crate::sys::tree;

    const GROUP: u32 = 2000;

    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let dir =
                std::env::temp_dir().join(format!("coracle-owner-{name}-{}", std::process::id()));
            tree::remove(&dir).unwrap();
            fs::create_dir_all(dir.join("volume")).unwrap();
            Self(dir)
        }

        fn volume(&self) -> PathBuf {
            self.0.join("volume")
        }

        fn make(&self, name: &str, mode: u32) -> PathBuf {
            let path = self.volume().join(name);
            match name.ends_with('/') {
                true => fs::create_dir_all(&path).unwrap(),
                false => fs::write(&path, "").unwrap(),
            }
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            path
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = tree::remove(&self.0);
        }
    }

    fn shown(path: &Path) -> (u32, u32) {
        let found = fs::symlink_metadata(path).unwrap();
        (found.gid(), found.mode() & 0o7777)
    }

    #[test]
    fn files_and_folders_belong_to_the_group_and_are_open_to_it() {
        let scratch = Scratch::new("modes");
        let outside = scratch.0.join("outside");
        fs::write(&outside, "").unwrap();
        fs::set_permissions(&outside, Permissions::from_mode(0o600)).unwrap();
        let before = shown(&outside);
        let folder = scratch.make("d/", 0o700);
        let file = scratch.make("d/f", 0o604);
        let program = scratch.make("d/p", 0o4700);
        let link = scratch.volume().join("link");
        symlink(&outside, &link).unwrap();
        let pipe = scratch.volume().join("pipe");
        nix::unistd::mkfifo(&pipe, Mode::from_bits_truncate(0o600)).unwrap();
        fs::set_permissions(scratch.volume(), Permissions::from_mode(0o755)).unwrap();
        give(&scratch.volume(), GROUP, Files::Writable, Change::Always).unwrap();
        for (path, mode) in [
            (&scratch.volume(), 0o2775),
            (&folder, 0o2770),
            (&file, 0o664),
            (&program, 0o4760),
            (&pipe, 0o660),
            (&link, 0o777),
        ] {
            assert_eq!(shown(path), (GROUP, mode), "{}", path.display());
        }
        assert_eq!(shown(&outside), before);

        let scratch = Scratch::new("read");
        let folder = scratch.make("d/", 0o700);
        let file = scratch.make("d/f", 0o400);
        give(&scratch.volume(), GROUP, Files::ReadOnly, Change::Always).unwrap();
        assert_eq!(shown(&folder), (GROUP, 0o2750));
        assert_eq!(shown(&file), (GROUP, 0o440));
        // A volume that is a file.
        give(&file, 7, Files::ReadOnly, Change::OnRootMismatch).unwrap();
        assert_eq!(shown(&file), (7, 0o440));
    }

    #[test]
    fn a_root_that_fits_is_enough_unless_files_are_always_changed() {
        let scratch = Scratch::new("policy");
        let file = scratch.make("f", 0o600);
        let give = |change| give(&scratch.volume(), GROUP, Files::Writable, change).unwrap();
        give(Change::OnRootMismatch);
        assert_eq!(shown(&file), (GROUP, 0o660));
        chown(&file, None, Some(1)).unwrap();
        give(Change::OnRootMismatch);
        assert_eq!(shown(&file).0, 1);
        // Each of these says that the volume has to be looked at again.
        let root = scratch.volume();
        let spoil: [&dyn Fn(); 3] = [
            &|| lchown(&root, None, Some(1)).unwrap(),
            &|| fs::set_permissions(&root, Permissions::from_mode(0o775)).unwrap(),
            &|| fs::set_permissions(&root, Permissions::from_mode(0o2755)).unwrap(),
        ];
        for spoil in spoil {
            chown(&file, None, Some(1)).unwrap();
            spoil();
            give(Change::OnRootMismatch);
            assert_eq!(shown(&file), (GROUP, 0o660));
        }
        chown(&file, None, Some(1)).unwrap();
        give(Change::Always);
        assert_eq!(shown(&file).0, GROUP);
    }

    #[test]
    fn a_mount_below_a_volume_and_a_tree_without_end_are_left_alone() {
        use nix::mount::{MntFlags, MsFlags, mount, umount2};
        let scratch = Scratch::new("edges");
        let point = scratch.make("mounted/", 0o755);
        let tmpfs = Some("tmpfs");
        let mode = Some("mode=700,size=64k");
        mount(tmpfs, &point, tmpfs, MsFlags::empty(), mode).unwrap();
        let of_mount = give(&scratch.volume(), GROUP, Files::Writable, Change::Always);
        let (own, root) = (shown(&point), shown(&scratch.volume()));
        umount2(&point, MntFlags::MNT_DETACH).unwrap();
        of_mount.unwrap();
        assert_eq!((own, root.0), ((0, 0o700), GROUP));

        let mut deep = scratch.volume();
        for _ in 0..MAX_DEPTH + 1 {
            deep.push("d");
        }
        fs::create_dir_all(&deep).unwrap();
        let failed = give(&scratch.volume(), 7, Files::Writable, Change::Always);
        let why = failed.expect_err("too deep").to_string();
        assert_eq!(why, "it has folders deeper than 256");
        // The root shows that the work was not finished.
        assert_eq!(shown(&scratch.volume()).0, GROUP);
    }
}
