//! Directories that a layer only implies: it has entries below them, but no entry for them. Engines that unpack a layer
//! over those below it leave such a directory as it was. Here layers are unpacked alone, and images share them; overlayfs
//! shows a directory as its topmost layer has it. An image in which that makes a difference gets one more layer, on top:
//! nothing but directories, each with owner, mode and time from the topmost layer that has an entry for it.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown};
use std::path::{Path, PathBuf};

use super::entry::{MAX_DEPTH, OPAQUE};
use super::mark;
use crate::sys::{tree, xattr};
use crate::types::InOrder;

/// This many directories of a layer are kept in mind, and are compared in an image, the shallowest first: those that have
/// an owner or mode of their own, like `/tmp` and `/home/user`, lie there.
const MAX_DIRECTORIES: usize = 1000;

/// The maximum of their names in a layer's record.
const MAX_BYTES: usize = 256 << 10;

/// The directories that a layer implies, collected while it is unpacked. The layer's root is the empty path.
#[derive(Debug)]
pub(super) struct Implied(BTreeSet<PathBuf>);

impl Implied {
    /// Of a layer without entries.
    pub(super) fn new() -> Self {
        Self(BTreeSet::from([PathBuf::new()]))
    }

    /// A directory was made because something lies in it.
    pub(super) fn made(&mut self, path: PathBuf) {
        self.0.insert(path);
    }

    /// The directory has an entry.
    pub(super) fn has_entry(&mut self, path: &Path) {
        self.0.remove(path);
    }

    /// The directory is gone, with those in it.
    pub(super) fn gone(&mut self, path: &Path) {
        self.0.retain(|other| !other.starts_with(path));
    }

    /// Those to keep in the layer's record.
    pub(super) fn kept(self) -> Vec<String> {
        let mut left = MAX_BYTES;
        let paths = self
            .0
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

/// What is kept of a directory.
#[derive(Debug, Clone, Copy)]
struct Looks {
    mode: u32,
    owner: (u32, u32),
    mtime: (i64, i64),
}

/// A directory of an image.
struct Directory {
    /// As its topmost layer has it.
    shown: Looks,
    /// As the topmost layer with an entry for it has it.
    meant: Looks,
}

impl Directory {
    fn differs(&self) -> bool {
        (self.shown.mode, self.shown.owner) != (self.meant.mode, self.meant.owner)
    }
}

/// Makes the additional layer of an image in `folder`, which does not exist. Returns its mark ([`mark::of`]), or `None` if
/// the image needs none. `parts`: the image's layers, topmost first.
pub(super) fn make_layer(parts: &[Part], folder: &Path) -> io::Result<Option<String>> {
    let layers: Vec<Layer<'_>> = parts.iter().map(Layer::open).collect::<io::Result<_>>()?;
    // What the lowest layer implies is nowhere below it.
    let above = parts.split_last().map_or(&[][..], |(_, above)| above);
    let implied: BTreeSet<&String> = above.iter().flat_map(|part| &part.implied).collect();
    let mut wanted: BTreeMap<PathBuf, Looks> = BTreeMap::new();
    for path in shallowest(implied.into_iter().cloned()) {
        let path = PathBuf::from(path);
        let Some(found) = directory(&layers, &path)?.filter(Directory::differs) else {
            continue;
        };
        for parent in path.ancestors().skip(1) {
            if !wanted.contains_key(parent)
                && let Some(found) = directory(&layers, parent)?
            {
                wanted.insert(parent.to_owned(), found.meant);
            }
        }
        wanted.insert(path, found.meant);
    }
    if wanted.is_empty() {
        return Ok(None);
    }
    for path in wanted.keys() {
        fs::create_dir_all(folder.join(path))?;
    }
    // The deepest first: making a directory changes the time of the one that it is in.
    for (path, looks) in wanted.iter().rev() {
        let path = folder.join(path);
        lchown(&path, Some(looks.owner.0), Some(looks.owner.1))?;
        fs::set_permissions(&path, fs::Permissions::from_mode(looks.mode))?;
        let time = super::entry::timespec(looks.mtime);
        nix::sys::stat::utimensat(
            nix::fcntl::AT_FDCWD,
            &path,
            &time,
            &time,
            nix::sys::stat::UtimensatFlags::NoFollowSymlink,
        )?;
    }
    mark::of(folder).map(Some)
}

/// A directory of an image by its path; `None` if the image shows none there.
fn directory(layers: &[Layer<'_>], path: &Path) -> io::Result<Option<Directory>> {
    let mut shown = None;
    for layer in layers {
        let found = layer.at(path)?;
        match found.what {
            What::Nothing => {}
            What::Other => break,
            What::Directory(looks) => {
                let shown = *shown.get_or_insert(looks);
                if !layer.implied.contains(path) {
                    return Ok(Some(Directory {
                        shown,
                        meant: looks,
                    }));
                }
            }
        }
        if found.hides_lower {
            break;
        }
    }
    Ok(shown.map(|looks| Directory {
        shown: looks,
        meant: looks,
    }))
}

/// What a layer has at a path.
enum What {
    Nothing,
    Directory(Looks),
    /// A whiteout, too.
    Other,
}

struct Found {
    what: What,
    /// Whether a directory on the way hides what lower layers have in theirs.
    hides_lower: bool,
}

struct Layer<'a> {
    root: OwnedFd,
    implied: BTreeSet<&'a Path>,
}

impl<'a> Layer<'a> {
    fn open(part: &'a Part) -> io::Result<Self> {
        Ok(Self {
            root: File::open(&part.root)?.into(),
            implied: part.implied.iter().map(Path::new).collect(),
        })
    }

    fn at(&self, path: &Path) -> io::Result<Found> {
        let mut folder = self.root.try_clone()?;
        let mut hides_lower = false;
        let mut what = What::Directory(looks(&folder)?);
        // Names that are recorded are no deeper; of a damaged record nothing is believed.
        for name in path.components().take(MAX_DEPTH) {
            hides_lower |= is_opaque(&folder)?;
            folder = match tree::open_folder(folder.as_fd(), name.as_os_str()) {
                Ok(next) => next,
                Err(nix::errno::Errno::ENOENT) => {
                    what = What::Nothing;
                    break;
                }
                Err(nix::errno::Errno::ENOTDIR | nix::errno::Errno::ELOOP) => {
                    what = What::Other;
                    break;
                }
                Err(why) => return Err(why.into()),
            };
            what = What::Directory(looks(&folder)?);
        }
        Ok(Found { what, hides_lower })
    }
}

fn is_opaque(folder: &OwnedFd) -> io::Result<bool> {
    let all = xattr::all_at(folder.as_fd(), OsStr::new("."))?;
    Ok(all.iter().any(|(key, _)| key == OPAQUE.as_bytes()))
}

fn looks(folder: &OwnedFd) -> io::Result<Looks> {
    let found = File::from(folder.try_clone()?).metadata()?;
    Ok(Looks {
        mode: found.mode() & 0o7777,
        owner: (found.uid(), found.gid()),
        mtime: (found.mtime(), found.mtime_nsec()),
    })
}
