//! How much may still be written? A reserve is kept free, so that an archive never fills the node's disk, and never
//! makes the node evict pods.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::sys::statvfs::fstatvfs;

use super::error::{ImageError, io as io_error};
use crate::config::{Amount, Eviction, Signal};
use crate::effects::figures;

/// Free space and free inodes are looked at again after so many bytes.
const CHECK_BYTES: u64 = 8 << 20;

/// What an entry takes beside its data.
const ENTRY_BYTES: u64 = 4096;

/// And after so many entries.
const CHECK_ENTRIES: u64 = 512;

/// Kept free: 5 % of the filesystem, but not more than this.
const MAX_RESERVE_BYTES: u64 = 64 << 20;

/// Inodes kept free: 5 %, but not more than this.
const MAX_RESERVE_INODES: u64 = 1024;

/// Most an image (or a compressed archive) may unpack to, holes of sparse files included.
pub(crate) const MAX_UNPACKED_BYTES: u64 = 64 << 30;

/// What an import leaves free at least.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct KeepFree {
    /// Bytes.
    pub bytes: u64,
    /// Inodes.
    pub inodes: u64,
}

impl KeepFree {
    /// What eviction keeps free of the store's file system: the largest of its thresholds, hard and soft. Those of the
    /// node's file system count where the store lies on it.
    pub fn of(eviction: &Eviction, store: &Path, node: &Path) -> Self {
        let Some(fs) = figures::file_system(store) else {
            return Self::default();
        };
        let device = |path: &Path| std::fs::metadata(path).ok().map(|found| found.dev());
        let together = device(store) == device(node);
        let mut keep = Self::default();
        for threshold in eviction.hard.iter().chain(&eviction.soft) {
            let of = |capacity: u64| amount(threshold.below, capacity);
            match threshold.signal {
                Signal::ImagefsAvailable => keep.bytes = keep.bytes.max(of(fs.capacity_bytes)),
                Signal::ImagefsInodesFree => keep.inodes = keep.inodes.max(of(fs.inodes)),
                Signal::NodefsAvailable if together => {
                    keep.bytes = keep.bytes.max(of(fs.capacity_bytes));
                }
                Signal::NodefsInodesFree if together => {
                    keep.inodes = keep.inodes.max(of(fs.inodes));
                }
                Signal::NodefsAvailable
                | Signal::NodefsInodesFree
                | Signal::MemoryAvailable
                | Signal::ContainerfsAvailable
                | Signal::ContainerfsInodesFree
                | Signal::PidAvailable => {}
            }
        }
        keep
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "a share of a number is a smaller number"
)]
fn amount(below: Amount, capacity: u64) -> u64 {
    match below {
        Amount::Count(count) => count,
        Amount::Share(share) => (capacity as f64 * share) as u64,
    }
}

/// Counts what an import writes.
#[derive(Debug)]
pub(crate) struct Space {
    keep: KeepFree,
    /// Bytes that could be written when it was looked at last.
    margin: u64,
    dir: File,
    path: PathBuf,
    total: u64,
    unchecked_bytes: u64,
    unchecked_entries: u64,
}

impl Space {
    /// Watches the filesystem of `path`.
    pub(crate) fn new(path: &Path, keep: KeepFree) -> Result<Self, ImageError> {
        let mut space = Self {
            keep,
            margin: 0,
            dir: File::open(path).map_err(io_error("open", path))?,
            path: path.to_owned(),
            total: 0,
            unchecked_bytes: 0,
            unchecked_entries: 0,
        };
        space.check(0)?;
        Ok(space)
    }

    /// Says that `bytes` are going to be written.
    pub(crate) fn take(&mut self, bytes: u64) -> Result<(), ImageError> {
        self.take_hole(bytes)?;
        self.write(bytes)
    }

    /// Says that a file grows by `bytes` without taking space.
    pub(crate) fn take_hole(&mut self, bytes: u64) -> Result<(), ImageError> {
        self.total = self.total.saturating_add(bytes);
        if self.total > MAX_UNPACKED_BYTES {
            return Err(ImageError::Limit {
                what: "the unpacked image".to_owned(),
                limit: MAX_UNPACKED_BYTES,
                unit: "bytes",
            });
        }
        Ok(())
    }

    /// Says that an entry is going to be made.
    pub(crate) fn take_entry(&mut self) -> Result<(), ImageError> {
        self.unchecked_entries += 1;
        if self.unchecked_entries >= CHECK_ENTRIES {
            self.check(ENTRY_BYTES)?;
        }
        self.write(ENTRY_BYTES)
    }

    fn write(&mut self, bytes: u64) -> Result<(), ImageError> {
        self.unchecked_bytes += bytes;
        if self.unchecked_bytes >= CHECK_BYTES.min(self.margin) {
            self.check(bytes)?;
        }
        Ok(())
    }

    /// The error to report for a failed write: a full disk is told in words.
    pub(crate) fn write_error(
        &self,
        why: io::Error,
        otherwise: impl FnOnce(io::Error) -> ImageError,
    ) -> ImageError {
        match why.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ImageError::NoSpace {
                path: self.path.clone(),
                free_bytes: self.figures().map_or(0, |f| f.free),
                reserve_bytes: self.figures().map_or(0, |f| f.reserve),
            },
            _ => otherwise(why),
        }
    }

    /// Looks whether so many bytes may still be written.
    fn check(&mut self, bytes: u64) -> Result<(), ImageError> {
        (self.unchecked_bytes, self.unchecked_entries) = (0, 0);
        let figures = self.figures().map_err(io_error("read", &self.path))?;
        let spare = figures.free.checked_sub(figures.reserve);
        let margin = spare.and_then(|spare| spare.checked_sub(bytes));
        self.margin = margin.unwrap_or(0);
        if margin.is_none() || figures.few_inodes {
            return Err(ImageError::NoSpace {
                path: self.path.clone(),
                free_bytes: figures.free,
                reserve_bytes: figures.reserve,
            });
        }
        Ok(())
    }

    #[allow(
        clippy::useless_conversion,
        clippy::unnecessary_cast,
        reason = "the types of statvfs differ between 32 and 64 bit"
    )]
    fn figures(&self) -> io::Result<Figures> {
        let fs = fstatvfs(&self.dir)?;
        let unit = fs.fragment_size() as u64;
        let inodes = u64::from(fs.files());
        Ok(Figures {
            free: unit.saturating_mul(u64::from(fs.blocks_available())),
            reserve: (unit.saturating_mul(u64::from(fs.blocks())) / 20)
                .min(MAX_RESERVE_BYTES)
                .max(self.keep.bytes),
            // Filesystems without a fixed number of inodes say 0.
            few_inodes: inodes > 0
                && u64::from(fs.files_available())
                    < (inodes / 20).min(MAX_RESERVE_INODES).max(self.keep.inodes),
        })
    }
}

struct Figures {
    free: u64,
    reserve: u64,
    few_inodes: bool,
}
