//! Files of one attempt's log, rotated ones oldest first, then the current one, and the start of its last lines, found
//! backwards without reading the rest.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use flate2::read::MultiGzDecoder;
use smol::future::yield_now;

use super::log_line::Record;
use crate::sys::gzip;
use crate::sys::openat::{self, Found};
use crate::types::InOrder;

/// Size of a read, in bytes.
pub(crate) const BLOCK: usize = 32 * 1024;

/// A record longer than this (the shim cuts at 16 KiB) is split.
pub(crate) const MAX_RECORD: u64 = 64 * 1024;

/// Bytes at the end of a log that are searched for the last lines: a container may write endless lines.
pub(crate) const MAX_TAIL: u64 = 16 << 20;

/// Limit of directory entries: a container may have the directory mounted.
const MAX_NAMES: usize = 10_000;

/// Size of a read of a compressed file, in bytes: at most this much text before the damage is lost with it.
const PIECE: usize = 4096;

/// Length of `YYYYMMDD-HHMMSS`; a number may follow.
const STAMP: usize = 15;

/// One file of a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LogFile {
    pub(crate) path: PathBuf,
    /// Rotation time in its name (empty for the current file), and its index within that second.
    pub(crate) rotated: (String, u32),
    pub(crate) gzip: bool,
}

/// Returns the files of one attempt in writing order. A missing directory is an empty list.
pub(crate) fn files_of(dir: &Path, attempt: u32) -> io::Result<Vec<LogFile>> {
    let current = format!("{attempt}.log");
    let mut files: Vec<LogFile> = Vec::new();
    for name in names(dir)? {
        let Some(rest) = name.strip_prefix(&current) else {
            continue;
        };
        let gzip = rest.ends_with(".gz");
        let stamp = rest.strip_suffix(".gz").unwrap_or(rest);
        let fine = stamp.is_empty() && !gzip
            || stamp.strip_prefix('.').is_some_and(|s| {
                !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit() || b == b'-')
            });
        if fine {
            files.push(LogFile {
                path: dir.join(&name),
                rotated: place(stamp.trim_start_matches('.')),
                gzip,
            });
        }
    }
    // A plain file is removed once its compressed one is complete, and counts until then. After a power cut it may be
    // back with less than it had; then the compressed one counts.
    files.order_by_key(|f| (f.is_current(), f.rotated.clone(), f.gzip));
    files.dedup_by(|later, kept| {
        let twins = later.rotated == kept.rotated;
        if twins && later.gzip && later.outlasts(kept) {
            std::mem::swap(later, kept);
        }
        twins
    });
    Ok(files)
}

impl LogFile {
    /// Whether the file is still written to.
    pub(crate) fn is_current(&self) -> bool {
        self.rotated.0.is_empty()
    }

    /// Whether a compressed file is obviously empty or broken. Damage further in shows when it is read.
    pub(crate) fn is_void(&self) -> bool {
        let void = || open(&self.path).and_then(gzip::is_void);
        self.gzip && void().unwrap_or(false)
    }

    /// Whether this compressed file holds more than the plain one.
    fn outlasts(&self, plain: &Self) -> bool {
        let more = || {
            let length = open(&plain.path)?.metadata()?.len();
            gzip::holds(open(&self.path)?, length + 1)
        };
        more().unwrap_or(false)
    }
}

/// Parses when an old log was rotated, and its index within that second.
fn place(rotated: &str) -> (String, u32) {
    let second = rotated.get(..STAMP).unwrap_or(rotated);
    let number = rotated.get(STAMP + 1..).and_then(|n| n.parse().ok());
    (second.to_owned(), number.unwrap_or(0))
}

/// Returns the smallest attempt above `attempt` that has a log.
pub(crate) fn next_attempt(dir: &Path, attempt: u32) -> io::Result<Option<u32>> {
    let attempts = attempts(dir)?.into_iter();
    Ok(attempts.filter(|&found| found > attempt).min())
}

/// Returns the largest attempt up to `most` that has a log.
pub(crate) fn newest_attempt(dir: &Path, most: u32) -> io::Result<Option<u32>> {
    let attempts = attempts(dir)?.into_iter();
    Ok(attempts.filter(|&found| found <= most).max())
}

fn attempts(dir: &Path) -> io::Result<Vec<u32>> {
    let names = names(dir)?.into_iter();
    let attempt = |name: String| name.split_once(".log")?.0.parse().ok();
    Ok(names.filter_map(attempt).collect())
}

fn names(dir: &Path) -> io::Result<Vec<String>> {
    let entries = match std::fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    entries
        .take(MAX_NAMES)
        .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
        .collect()
}

/// Opens a log file. A container may have the directory mounted, so anything but a regular file counts as missing.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    match openat::read_regular(path)? {
        Found::Regular(file) => Ok(file),
        Found::Whiteout | Found::Other => Err(io::ErrorKind::NotFound.into()),
    }
}

/// An open log file and its position.
pub(crate) struct Source {
    pub(crate) inode: u64,
    read: BufReader<Box<dyn Read + Send + Sync>>,
    /// The start of a record whose end is not written yet.
    begun: Vec<u8>,
    /// Bytes to skip first.
    skip: u64,
    /// The path of a compressed file.
    gzip: Option<PathBuf>,
    /// Whether the rest of a compressed file cannot be read: the file ends there.
    damaged: bool,
    /// Whether that is not to be logged.
    quiet: bool,
}

impl std::fmt::Debug for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Source")
            .field("inode", &self.inode)
            .finish_non_exhaustive()
    }
}

impl Source {
    /// Opens the file at `offset` (of the decompressed text).
    pub(crate) fn open(file: &LogFile, offset: u64) -> io::Result<Self> {
        use std::io::Seek as _;
        let mut raw = open(&file.path)?;
        let inode = raw.metadata()?.ino();
        let read: Box<dyn Read + Send + Sync> = if file.gzip {
            Box::new(MultiGzDecoder::new(raw))
        } else {
            raw.seek(io::SeekFrom::Start(offset))?;
            Box::new(raw)
        };
        let capacity = if file.gzip { PIECE } else { BLOCK };
        Ok(Self {
            inode,
            read: BufReader::with_capacity(capacity, read),
            begun: Vec::new(),
            skip: if file.gzip { offset } else { 0 },
            gzip: file.gzip.then(|| file.path.clone()),
            damaged: false,
            quiet: false,
        })
    }

    /// Skips a block; `false` if there is nothing left to skip.
    pub(crate) fn skip(&mut self) -> io::Result<bool> {
        let most = self.skip.min(BLOCK as u64);
        let passed = match io::copy(&mut (&mut self.read).take(most), &mut io::sink()) {
            Ok(passed) => passed,
            Err(error) => {
                self.break_off(error)?;
                0
            }
        };
        self.skip = match passed {
            0 => 0,
            passed => self.skip - passed,
        };
        Ok(passed > 0)
    }

    /// Reads the next complete record without its newline into `record`; `false` at the current end.
    pub(crate) fn next(&mut self, record: &mut Vec<u8>) -> io::Result<bool> {
        let room = MAX_RECORD.saturating_sub(self.begun.len() as u64);
        if self.damaged {
            return Ok(false);
        }
        let read = (&mut self.read)
            .take(room)
            .read_until(b'\n', &mut self.begun);
        if let Err(error) = read {
            self.break_off(error)?;
            return Ok(false);
        }
        let whole = self.begun.last() == Some(&b'\n');
        if !whole && (self.begun.len() as u64) < MAX_RECORD {
            return Ok(false);
        }
        if whole {
            self.begun.pop();
        }
        record.clear();
        std::mem::swap(record, &mut self.begun);
        Ok(true)
    }

    /// Whether lines are missing at the end.
    pub(crate) fn is_damaged(&self) -> bool {
        self.damaged
    }

    /// A compressed file that cannot be read on ends: the files after it can be read all the same.
    fn break_off(&mut self, error: io::Error) -> io::Result<()> {
        let Some(path) = &self.gzip else {
            return Err(error);
        };
        if !self.quiet {
            let path = path.display();
            tracing::warn!("could not read all of log `{path}`: {error}, skipping the rest of it");
        }
        self.damaged = true;
        Ok(())
    }
}

/// Where the last lines of a log begin.
#[derive(Debug, Default)]
pub(crate) struct Start {
    /// Index of the file.
    pub(crate) file: usize,
    /// Offset in it.
    pub(crate) offset: u64,
    /// Files with lines that should be among them, but cannot be read.
    pub(crate) damaged: Vec<PathBuf>,
}

/// Finds where the last `lines` lines of `files` begin. Searches at most [`MAX_TAIL`] bytes, and yields after every
/// block.
pub(crate) async fn tail(files: &[LogFile], lines: u64) -> io::Result<Start> {
    let mut missing = Missing {
        lines,
        bytes: MAX_TAIL,
        damaged: Vec::new(),
    };
    for (index, file) in files.iter().enumerate().rev() {
        let begin = if file.gzip {
            tail_gzip(file, &mut missing).await?
        } else {
            tail_plain(&open(&file.path)?, &mut missing).await?
        };
        if let Some(offset) = begin {
            return Ok(Start {
                file: index,
                offset,
                damaged: missing.damaged,
            });
        }
    }
    Ok(Start {
        damaged: missing.damaged,
        ..Start::default()
    })
}

/// Lines and bytes left to search.
struct Missing {
    lines: u64,
    bytes: u64,
    damaged: Vec<PathBuf>,
}

/// Finds where the missing lines begin, if they do in this file.
async fn tail_plain(file: &File, missing: &mut Missing) -> io::Result<Option<u64>> {
    let end_of_file = file.metadata()?.len();
    let least = end_of_file.saturating_sub(missing.bytes);
    let mut at = end_of_file;
    let mut found = 0;
    // Records from `at` on are counted; `head` is the unparsed start of what was read.
    let mut head: Vec<u8> = Vec::new();
    let mut newest = true;
    // Start of the oldest counted record.
    let mut begin = end_of_file;
    while at > 0 {
        if at <= least {
            return Ok(Some(begin));
        }
        let size = usize::try_from(at.min(BLOCK as u64)).unwrap_or(BLOCK);
        at -= size as u64;
        let mut block = vec![0; size];
        file.read_exact_at(&mut block, at)?;
        block.append(&mut head);
        // Records end at newlines; walk them from the last.
        let mut end = block.len();
        while let Some(newline) = block[..end].iter().rposition(|&b| b == b'\n') {
            let record = &block[newline + 1..end];
            if count_from_end(record, &mut newest, &mut found, missing.lines) {
                return Ok(Some(at + end as u64 + 1));
            }
            begin = at + newline as u64 + 1;
            end = newline;
        }
        block.truncate(end);
        head = block;
        if head.len() as u64 > MAX_RECORD {
            head.clear();
        }
        if at == 0 && count_from_end(&head, &mut newest, &mut found, missing.lines) {
            return Ok(Some(end as u64 + 1));
        }
        yield_now().await;
    }
    missing.lines -= found;
    missing.bytes -= end_of_file.min(missing.bytes);
    Ok(None)
}

/// Counts a record; `true` if it ends one line more than wanted.
fn count_from_end(record: &[u8], newest: &mut bool, found: &mut u64, wanted: u64) -> bool {
    let Some(record) = Record::parse(record) else {
        return false;
    };
    // A line whose end was never written counts too, but only the newest line can be like that.
    let ends_line = !record.partial || *newest;
    *newest = false;
    if ends_line && *found == wanted {
        return true;
    }
    *found += u64::from(ends_line);
    false
}

async fn tail_gzip(file: &LogFile, missing: &mut Missing) -> io::Result<Option<u64>> {
    let mut record = Vec::new();
    let ends = |record: &[u8]| u64::from(Record::parse(record).is_some_and(|r| !r.partial));
    let mut read = 0;
    // Counted while the file is read, and used once all of it is.
    let mut source = Source::open(file, 0)?;
    source.quiet = true;
    let (mut lines, mut bytes) = (0, 0);
    while source.next(&mut record)? {
        lines += ends(&record);
        bytes += record.len() as u64 + 1;
        pause(&mut read, &record).await;
    }
    if source.damaged {
        missing.damaged.push(file.path.clone());
    }
    if lines <= missing.lines && bytes <= missing.bytes {
        missing.lines -= lines;
        missing.bytes -= bytes;
        return Ok(None);
    }
    let mut source = Source::open(file, 0)?;
    source.quiet = true;
    let mut skip = lines.saturating_sub(missing.lines);
    let least = bytes.saturating_sub(missing.bytes);
    let mut offset = 0;
    while (skip > 0 || offset < least) && source.next(&mut record)? {
        offset += record.len() as u64 + 1;
        skip = skip.saturating_sub(ends(&record));
        pause(&mut read, &record).await;
    }
    Ok(Some(offset))
}

/// Yields after every block.
async fn pause(read: &mut usize, record: &[u8]) {
    *read += record.len() + 1;
    if *read >= BLOCK {
        *read = 0;
        yield_now().await;
    }
}
