//! The layers of an image, and what they show together.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::readlinkat;

use super::Part;
use crate::images::entry::{MAX_DEPTH, OPAQUE};
use crate::sys::{tree, xattr};

/// What is kept of a directory.
#[derive(Debug, Clone, Copy)]
pub(super) struct Looks {
    pub(super) mode: u32,
    pub(super) owner: (u32, u32),
    pub(super) mtime: (i64, i64),
}

/// A directory of an image.
pub(super) struct Directory {
    /// As its topmost layer has it.
    shown: Looks,
    /// As the topmost layer with an entry for it has it.
    pub(super) meant: Looks,
}

impl Directory {
    pub(super) fn differs(&self) -> bool {
        (self.shown.mode, self.shown.owner) != (self.meant.mode, self.meant.owner)
    }
}

/// A symlink under directories that layers above it only imply.
pub(super) struct Symlink {
    pub(super) target: PathBuf,
    /// The number of its layer, and of those above it with such a directory, topmost first.
    pub(super) layer: usize,
    pub(super) above: Vec<usize>,
}

/// What an image has at a path.
pub(super) enum Shown {
    /// Nothing, or no directory.
    Nothing,
    Directory(Directory),
    Hidden(Symlink),
}

/// The maximum number of directories that are looked at for an image. What is beyond stays as the layers have it: the work
/// is done under the store's lock, and a hostile image could make it endless.
const MAX_STEPS: u32 = 200_000;

/// The layers of an image, topmost first.
pub(super) struct Stack<'a> {
    layers: Vec<Layer<'a>>,
    steps: Cell<u32>,
}

struct Layer<'a> {
    part: &'a Part,
    root: OwnedFd,
    implied: BTreeSet<&'a Path>,
}

/// What a layer has at a path.
enum What {
    Nothing,
    Directory(Looks),
    Symlink(PathBuf),
    /// A whiteout, too.
    Other,
}

struct Found {
    what: What,
    /// Whether a directory on the way hides what lower layers have in theirs.
    hides_lower: bool,
}

impl<'a> Stack<'a> {
    pub(super) fn of(parts: &'a [Part]) -> io::Result<Self> {
        let layers = parts.iter().map(|part| {
            Ok(Layer {
                part,
                root: File::open(&part.root)?.into(),
                implied: part.implied.iter().map(Path::new).collect(),
            })
        });
        Ok(Self {
            layers: layers.collect::<io::Result<_>>()?,
            steps: Cell::new(0),
        })
    }

    /// Whether all steps have been taken.
    pub(super) fn is_spent(&self) -> bool {
        self.steps.get() >= MAX_STEPS
    }

    /// Counts steps.
    pub(super) fn count(&self, steps: usize) {
        let steps = u32::try_from(steps).unwrap_or(u32::MAX);
        self.steps.set(self.steps.get().saturating_add(steps));
    }

    fn at(&self, layer: &Layer<'_>, path: &Path) -> io::Result<Found> {
        self.count(1 + path.components().count());
        layer.at(path)
    }

    /// Where a path of a layer is on the node.
    pub(super) fn place(&self, layer: usize, path: &Path) -> PathBuf {
        self.layers[layer].part.root.join(path)
    }

    /// Whether a layer has a directory at the path without an entry for it.
    pub(super) fn is_implied(&self, layer: usize, path: &Path) -> bool {
        self.layers[layer].implied.contains(path)
    }

    /// Whether a layer above this one has anything at the path, or hides what lower layers have there.
    pub(super) fn is_covered(&self, layer: usize, path: &Path) -> io::Result<bool> {
        for above in &self.layers[..layer] {
            let found = self.at(above, path)?;
            if found.hides_lower || !matches!(found.what, What::Nothing) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// What the image has at a path.
    pub(super) fn shown(&self, path: &Path) -> io::Result<Shown> {
        let mut shown = None;
        let mut above = Vec::new();
        for (number, layer) in self.layers.iter().enumerate() {
            let found = self.at(layer, path)?;
            match found.what {
                What::Nothing => {}
                What::Symlink(target) if !above.is_empty() => {
                    return Ok(Shown::Hidden(Symlink {
                        target,
                        layer: number,
                        above,
                    }));
                }
                What::Other | What::Symlink(_) => break,
                What::Directory(meant) => {
                    let shown = *shown.get_or_insert(meant);
                    if !layer.implied.contains(path) {
                        return Ok(Shown::Directory(Directory { shown, meant }));
                    }
                    above.push(number);
                }
            }
            if found.hides_lower {
                break;
            }
        }
        Ok(shown.map_or(Shown::Nothing, |looks| {
            Shown::Directory(Directory {
                shown: looks,
                meant: looks,
            })
        }))
    }
}

impl Layer<'_> {
    fn at(&self, path: &Path) -> io::Result<Found> {
        let mut folder = self.root.try_clone()?;
        let mut hides_lower = false;
        let mut what = What::Directory(looks(&folder)?);
        // Names that are recorded are no deeper; of a damaged record nothing is believed.
        let mut names = path.components().take(MAX_DEPTH).peekable();
        while let Some(name) = names.next() {
            hides_lower |= is_opaque(&folder)?;
            let name = name.as_os_str();
            folder = match tree::open_folder(folder.as_fd(), name) {
                Ok(next) => next,
                Err(Errno::ENOENT) => {
                    what = What::Nothing;
                    break;
                }
                Err(Errno::ENOTDIR | Errno::ELOOP) => {
                    let target = readlinkat(&folder, name).ok();
                    let target = target.filter(|_| names.peek().is_none());
                    what = target.map_or(What::Other, |target| What::Symlink(target.into()));
                    break;
                }
                Err(why) => return Err(why.into()),
            };
            what = What::Directory(looks(&folder)?);
        }
        Ok(Found { what, hides_lower })
    }
}

pub(super) fn is_opaque(folder: &OwnedFd) -> io::Result<bool> {
    let all = xattr::all_at(folder.as_fd(), OsStr::new("."))?;
    Ok(all.iter().any(|(key, _)| key == OPAQUE.as_bytes()))
}

pub(super) fn looks(folder: &OwnedFd) -> io::Result<Looks> {
    let found = File::from(folder.try_clone()?).metadata()?;
    Ok(Looks {
        mode: found.mode() & 0o7777,
        owner: (found.uid(), found.gid()),
        mtime: (found.mtime(), found.mtime_nsec()),
    })
}
