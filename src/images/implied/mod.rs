//! Directories that a layer only implies: it has entries below them, but no entry for them. Engines that unpack a layer
//! over those below it leave such a directory as it was. Here layers are unpacked alone, and images share them; overlayfs
//! shows a directory as its topmost layer has it. An image in which that makes a difference gets one more layer, on top:
//! nothing but directories, each with owner, mode and time from the topmost layer that has an entry for it.
//!
//! Where a lower layer has a symlink to a directory, such as `/bin` to `/usr/bin`, those engines follow it. Here the implied
//! directory hides it; the additional layer has the symlink again, and hard links to the files where it leads to.

mod moved;
mod stack;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::ops::Bound;
use std::os::fd::AsFd;
use std::os::unix::fs::{PermissionsExt, lchown};
use std::path::{Path, PathBuf};

use nix::sys::stat::UtimensatFlags;

use self::stack::{Looks, Shown, Stack};
use super::entry::{OPAQUE, timespec};
use super::mark;
use crate::sys::xattr;
use crate::types::InOrder;

/// This many directories of a layer are kept in mind, and are compared in an image, the shallowest first: those that have
/// an owner or mode of their own, like `/tmp` and `/home/user`, lie there.
const MAX_DIRECTORIES: usize = 1000;

/// The maximum of their names while a layer is unpacked.
const MAX_HELD_BYTES: usize = 8 << 20;

/// The maximum of their names in a layer's record.
const MAX_BYTES: usize = 256 << 10;

/// The directories that a layer implies, collected while it is unpacked. The layer's root is the empty path.
#[derive(Debug)]
pub(super) struct Implied {
    paths: BTreeSet<PathBuf>,
    /// The length of all paths that were added.
    bytes: usize,
}

impl Implied {
    /// Of a layer without entries.
    pub(super) fn new() -> Self {
        Self {
            paths: BTreeSet::from([PathBuf::new()]),
            bytes: 0,
        }
    }

    /// A directory was made because something lies in it. Hostile layers have long paths, each of which implies many: what
    /// is too much counts as if it had an entry.
    pub(super) fn made(&mut self, path: PathBuf) {
        self.bytes = self.bytes.saturating_add(path.as_os_str().len());
        if self.bytes <= MAX_HELD_BYTES {
            self.paths.insert(path);
        }
    }

    /// The directory has an entry.
    pub(super) fn has_entry(&mut self, path: &Path) {
        self.paths.remove(path);
    }

    /// The directory is gone, with those in it.
    pub(super) fn gone(&mut self, path: &Path) {
        let from = (Bound::Included(path), Bound::Unbounded);
        let below = self.paths.range::<Path, _>(from);
        let below = below.take_while(|other| other.starts_with(path));
        for other in below.cloned().collect::<Vec<PathBuf>>() {
            self.paths.remove(&other);
        }
    }

    /// Those to keep in the layer's record.
    pub(super) fn kept(self) -> Vec<String> {
        let mut left = MAX_BYTES;
        let paths = self
            .paths
            .into_iter()
            .filter_map(|path| path.to_str().map(str::to_owned));
        let mut paths: Vec<String> = shallowest(paths);
        paths.retain(|path| {
            let taken = left.checked_sub(path.len());
            left = taken.unwrap_or(left);
            taken.is_some()
        });
        paths
    }
}

/// The first of these paths by depth.
fn shallowest(paths: impl Iterator<Item = String>) -> Vec<String> {
    let mut paths: Vec<String> = paths.collect();
    paths.order_by(|a, b| (depth(a), a).cmp(&(depth(b), b)));
    paths.truncate(MAX_DIRECTORIES);
    paths
}

fn depth(path: &str) -> usize {
    Path::new(path).components().count()
}

/// A layer of an image: where it is unpacked, and the directories that it implies.
pub(super) struct Part {
    pub(super) root: PathBuf,
    pub(super) implied: Vec<String>,
}

/// What the additional layer of an image has.
#[derive(Clone, Default)]
struct Additional {
    directories: BTreeMap<PathBuf, Looks>,
    /// Those that hide what lower layers have in them.
    opaque: BTreeSet<PathBuf>,
    /// Hard links by their paths: the file on the node that each is a name of.
    links: BTreeMap<PathBuf, PathBuf>,
}

/// Makes the additional layer of an image in `folder`, which does not exist. Returns its mark ([`mark::of`]), or `None` if
/// the image needs none. `parts`: the image's layers, topmost first.
pub(super) fn make_layer(parts: &[Part], folder: &Path) -> io::Result<Option<String>> {
    let stack = Stack::of(parts)?;
    // What the lowest layer implies is nowhere below it.
    let above = parts.split_last().map_or(&[][..], |(_, above)| above);
    let implied: BTreeSet<&String> = above.iter().flat_map(|part| &part.implied).collect();
    let mut layer = Additional::default();
    let mut moved: Vec<PathBuf> = Vec::new();
    for path in shallowest(implied.into_iter().cloned()) {
        if stack.is_spent() {
            break;
        }
        let path = PathBuf::from(path);
        if moved.iter().any(|symlink| path.starts_with(symlink)) {
            continue;
        }
        match stack.shown(&path)? {
            Shown::Nothing => {}
            Shown::Directory(found) => {
                let covered = |path: &Path| layer.links.contains_key(path);
                if found.differs() && !path.ancestors().any(covered) {
                    layer.parents(&stack, &path)?;
                    layer.directories.insert(path, found.meant);
                }
            }
            Shown::Hidden(symlink) => {
                layer.follow(&stack, &symlink, &path)?;
                moved.push(path);
            }
        }
    }
    if layer.directories.is_empty() {
        return Ok(None);
    }
    layer.make(folder)?;
    mark::of(folder).map(Some)
}

impl Additional {
    /// Adds the parent directories of a path, as the image has them.
    fn parents(&mut self, stack: &Stack<'_>, path: &Path) -> io::Result<()> {
        for parent in path.ancestors().skip(1) {
            if !self.directories.contains_key(parent)
                && let Shown::Directory(found) = stack.shown(parent)?
            {
                self.directories.insert(parent.to_owned(), found.meant);
            }
        }
        Ok(())
    }

    fn make(&self, folder: &Path) -> io::Result<()> {
        for path in self.directories.keys() {
            fs::create_dir_all(folder.join(path))?;
        }
        for (path, of) in &self.links {
            fs::hard_link(of, folder.join(path))?;
        }
        // The deepest first: making a directory changes the time of the one that it is in.
        for (path, looks) in self.directories.iter().rev() {
            let at = folder.join(path);
            if self.opaque.contains(path) {
                let at = File::open(&at)?;
                xattr::set_at(at.as_fd(), OsStr::new("."), OsStr::new(OPAQUE), b"y")?;
            }
            lchown(&at, Some(looks.owner.0), Some(looks.owner.1))?;
            fs::set_permissions(&at, fs::Permissions::from_mode(looks.mode))?;
            let time = timespec(looks.mtime);
            let here = nix::fcntl::AT_FDCWD;
            let flags = UtimensatFlags::NoFollowSymlink;
            nix::sys::stat::utimensat(here, &at, &time, &time, flags)?;
        }
        Ok(())
    }
}
