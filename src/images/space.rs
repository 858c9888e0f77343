//! The disk space left for imports. A reserve is kept free, so that an archive never fills the node's disk, and
//! never makes the node evict pods.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nix::sys::statvfs::fstatvfs;

use super::error::{ImageError, io as io_error};
use crate::config::{Eviction, Signal};
use crate::sys::file_system::file_system;

/// Free space and free inodes are checked again after this many bytes.
const CHECK_BYTES: u64 = 8 << 20;

/// The space of an entry beside its data.
const ENTRY_BYTES: u64 = 4096;

/// They are also checked after this many entries.
const CHECK_ENTRIES: u64 = 512;

/// Kept free: 5 % of the filesystem, but not more than this.
const MAX_RESERVE_BYTES: u64 = 64 << 20;

/// Inodes kept free: 5 %, but not more than this.
const MAX_RESERVE_INODES: u64 = 1024;

/// The maximum unpacked size of an image (or a compressed archive), holes of sparse files included.
pub(crate) const MAX_UNPACKED_BYTES: u64 = 64 << 30;

/// The minimum that an import leaves free.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct KeepFree {
    /// Bytes.
    pub bytes: u64,
    /// Inodes.
    pub inodes: u64,
}

impl KeepFree {
    /// The space that eviction keeps free on the store's file system: the largest of its thresholds, hard and soft.
    /// Thresholds of the node's file system count if the store is on it.
    pub fn of(eviction: &Eviction, store: &Path, node: &Path) -> Self {
        let Some(fs) = file_system(store) else {
            return Self::default();
        };
        let device = |path: &Path| std::fs::metadata(path).ok().map(|found| found.dev());
        let together = device(store) == device(node);
        let mut keep = Self::default();
        for threshold in eviction.hard.iter().chain(&eviction.soft) {
            let of = |capacity: u64| threshold.below.of(capacity);
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

/// Counts the writes of an import. Its clones count together, for threads that work on one import.
#[derive(Debug, Clone)]
pub(crate) struct Space(Arc<Mutex<Account>>);

#[derive(Debug)]
struct Account {
    keep: KeepFree,
    /// The bytes available at the last check.
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
        let mut account = Account {
            keep,
            margin: 0,
            dir: File::open(path).map_err(io_error("open", path))?,
            path: path.to_owned(),
            total: 0,
            unchecked_bytes: 0,
            unchecked_entries: 0,
        };
        account.check(0)?;
        Ok(Self(Arc::new(Mutex::new(account))))
    }

    /// Checks whether `bytes` can be written at all, before any is.
    pub(crate) fn reserve(&mut self, bytes: u64) -> Result<(), ImageError> {
        self.account().check(bytes)
    }

    /// Announces that `bytes` will be written.
    pub(crate) fn take(&mut self, bytes: u64) -> Result<(), ImageError> {
        let mut account = self.account();
        account.take_hole(bytes)?;
        account.write(bytes)
    }

    /// Announces that a file grows by `bytes` without taking space.
    pub(crate) fn take_hole(&mut self, bytes: u64) -> Result<(), ImageError> {
        self.account().take_hole(bytes)
    }

    /// Announces that an entry will be made.
    pub(crate) fn take_entry(&mut self) -> Result<(), ImageError> {
        self.account().take_entry()
    }

    /// The error to report for a failed write: a full disk has an error of its own.
    pub(crate) fn write_error(
        &self,
        why: io::Error,
        otherwise: impl FnOnce(io::Error) -> ImageError,
    ) -> ImageError {
        match why.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => self.account().full(),
            _ => otherwise(why),
        }
    }

    fn account(&self) -> MutexGuard<'_, Account> {
        // It is consistent even after a panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Account {
    fn take_hole(&mut self, bytes: u64) -> Result<(), ImageError> {
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

    fn take_entry(&mut self) -> Result<(), ImageError> {
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

    fn full(&self) -> ImageError {
        ImageError::NoSpace {
            path: self.path.clone(),
            free_bytes: self.figures().map_or(0, |f| f.free),
            reserve_bytes: self.figures().map_or(0, |f| f.reserve),
        }
    }

    /// Checks whether this many bytes may still be written.
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
            // Filesystems without a fixed number of inodes report 0.
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
