//! A reader of container logs. It reads the CRI files of one attempt in order, including rotated and compressed ones,
//! and joins partial records into lines. It can follow the log through rotation and into the next attempt, until the
//! container is gone. Memory is bounded by one block, one chunk and one unfinished line a stream.
//!
//! Files are read without a thread: a block of a regular file comes from the page cache in microseconds.

use std::cmp::Ordering;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use inotify::{Inotify, WatchMask};
use k8s_openapi::jiff::Timestamp;
use smol::Async;
use smol::channel::Receiver;

use super::log_files::{BLOCK, LogFile, Source, Start, files_of, next_attempt, tail};
use super::log_line::Record;

/// Approximate size of a chunk, in bytes.
const CHUNK: usize = 16 * 1024;

/// Bytes to examine before yielding, wanted or not.
const WORK: usize = 2 * BLOCK;

/// Limit of a line, in bytes; a longer one is passed on in pieces.
const MAX_LINE: usize = 256 * 1024;

/// What to read of a container's log.
#[derive(Debug, Clone)]
pub struct LogOptions {
    /// The container's log directory.
    pub dir: PathBuf,
    /// Number of the attempt.
    pub attempt: u32,
    /// Wait at the end for more, including later attempts.
    pub follow: bool,
    /// Only the last lines; their number.
    pub tail_lines: Option<u64>,
    /// Only records from this time on.
    pub since: Option<Timestamp>,
    /// Prefix each line with its time.
    pub timestamps: bool,
    /// Stop after this many bytes.
    pub limit_bytes: Option<u64>,
}

/// Whether a container may still write, and when to check again.
pub struct Liveness {
    /// `false` once the container has ended and will not restart.
    pub alive: Box<dyn Fn() -> bool + Send + Sync>,
    /// Becomes readable when the answer may have changed.
    pub changed: Receiver<()>,
}

impl std::fmt::Debug for Liveness {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Liveness").finish_non_exhaustive()
    }
}

/// The newest record that was passed on.
#[derive(Debug)]
struct Seen {
    time: String,
    /// The record was found again. Everything after it is new, even if the clock was set back meanwhile.
    met: bool,
}

/// A position in a log.
#[derive(Debug)]
pub struct LogReader {
    options: LogOptions,
    /// Files of the attempt that are not opened yet, next first.
    ahead: std::collections::VecDeque<(LogFile, u64)>,
    source: Option<Source>,
    pending: [Vec<u8>; 2],
    left: u64,
    last_time: String,
    /// Skip records up to this one: they were passed on from a file that has been compressed since.
    seen: Option<Seen>,
    watch: Option<Watch>,
    liveness: Option<Liveness>,
    /// What to open after a last read of the open file.
    leaving: Option<Next>,
    /// Bytes examined since the last yield.
    worked: usize,
    record: Vec<u8>,
    done: bool,
    /// Files that were known to be damaged at first.
    damaged: Vec<PathBuf>,
}

/// What to read after the open file.
#[derive(Debug)]
enum Next {
    /// These files.
    Files(Vec<LogFile>),
    /// These files, one of which contains the last record that was passed on.
    Found(Vec<LogFile>),
    /// The next attempt.
    Attempt,
    /// Nothing: the log has ended.
    End,
}

#[derive(Debug)]
struct Watch {
    inotify: Inotify,
    ready: Async<OwnedFd>,
}

impl LogReader {
    /// Finds the start of the log. Following requires `liveness`.
    pub async fn open(options: LogOptions, liveness: Option<Liveness>) -> io::Result<Self> {
        // Watch before the first read, so that anything written after that read wakes the reader.
        let watch = match options.follow {
            true => Some(Watch::new(&options.dir)?),
            false => None,
        };
        let mut files = files_of(&options.dir, options.attempt)?;
        let start = match options.tail_lines {
            Some(lines) => tail(&files, lines).await?,
            None => Start::default(),
        };
        files.drain(..start.file);
        let mut ahead: std::collections::VecDeque<_> =
            files.into_iter().map(|file| (file, 0)).collect();
        if let Some(first) = ahead.front_mut() {
            first.1 = start.offset;
        }
        let mut reader = Self {
            left: options.limit_bytes.unwrap_or(u64::MAX),
            options,
            ahead,
            source: None,
            pending: [Vec::new(), Vec::new()],
            last_time: String::new(),
            seen: None,
            watch,
            liveness,
            leaving: None,
            worked: 0,
            record: Vec::new(),
            done: false,
            damaged: start.damaged,
        };
        if reader.options.tail_lines.is_none() {
            let void = reader.ahead.iter().map(|(file, _)| file);
            let void = void.filter(|file| file.is_void() && !reader.too_old(file));
            reader.damaged = void.map(|file| file.path.clone()).collect();
        }
        Ok(reader)
    }

    /// Files that are known to be damaged before anything is read of them: lines are missing.
    pub fn damaged(&self) -> &[PathBuf] {
        &self.damaged
    }

    /// Returns the next chunk; `None` at the end.
    pub async fn next(&mut self) -> io::Result<Option<Vec<u8>>> {
        loop {
            let alive = self.options.follow && self.liveness.as_ref().is_some_and(|l| (l.alive)());
            let chunk = self.available(alive)?;
            if !chunk.is_empty() {
                return Ok(Some(chunk));
            }
            if self.done {
                return Ok(None);
            }
            match self.worked >= WORK {
                true => smol::future::yield_now().await,
                false => self.wait().await?,
            }
        }
    }

    /// Reads what is available without waiting, within the work limit. Sets `done` if nothing can follow.
    fn available(&mut self, alive: bool) -> io::Result<Vec<u8>> {
        let mut out = Vec::new();
        self.worked = 0;
        while !self.done && out.len() < CHUNK && self.worked < WORK {
            if self.source.is_none() && !self.open_next()? {
                if alive && !self.next_attempt()? {
                    break;
                }
                if !alive {
                    self.finish(&mut out);
                }
                continue;
            }
            let mut record = std::mem::take(&mut self.record);
            let got = match &mut self.source {
                Some(source) => {
                    if source.skip()? {
                        self.worked += BLOCK;
                        self.record = record;
                        continue;
                    }
                    source.next(&mut record)?
                }
                None => false,
            };
            self.worked += record.len();
            if got {
                self.take(&record, &mut out);
            }
            self.record = record;
            if !got && !self.leave_source(alive, &mut out)? {
                break;
            }
        }
        Ok(out)
    }

    /// Handles the end of an open file; `true` if there is a file to read next, or the end is final.
    fn leave_source(&mut self, alive: bool, out: &mut Vec<u8>) -> io::Result<bool> {
        if self.source.as_ref().is_some_and(Source::is_damaged) {
            self.end_lines(out);
        }
        if !self.ahead.is_empty() {
            self.source = None;
            return Ok(true);
        }
        if !self.options.follow {
            self.finish(out);
            return Ok(true);
        }
        if let Some(next) = self.leaving.take() {
            return self.go_on(next, out);
        }
        self.seen = None;
        let inode = self.source.as_ref().map(|s| s.inode);
        let files = files_of(&self.options.dir, self.options.attempt)?;
        let place = files
            .iter()
            .position(|file| std::fs::metadata(&file.path).ok().map(|meta| meta.ino()) == inode);
        // The file may have grown between the last read and this check: read once more.
        self.leaving = match place {
            Some(place) if place + 1 < files.len() => {
                Some(Next::Files(files.into_iter().skip(place + 1).collect()))
            }
            None if !files.is_empty() => Some(Next::Found(files)),
            _ if next_attempt(&self.options.dir, self.options.attempt)?.is_some() => {
                Some(Next::Attempt)
            }
            _ if !alive => Some(Next::End),
            _ => None,
        };
        Ok(self.leaving.is_some())
    }

    /// Closes the open file; `true` if there is a file to read next, or the end is final.
    fn go_on(&mut self, next: Next, out: &mut Vec<u8>) -> io::Result<bool> {
        self.source = None;
        match next {
            Next::Files(files) => self.ahead = files.into_iter().map(|f| (f, 0)).collect(),
            Next::Found(files) => {
                self.seen = self.seen();
                self.ahead = files.into_iter().map(|f| (f, 0)).collect();
            }
            Next::Attempt => {
                self.flush(out);
                return self.next_attempt();
            }
            Next::End => self.finish(out),
        }
        Ok(true)
    }

    fn open_next(&mut self) -> io::Result<bool> {
        while let Some((file, offset)) = self.ahead.pop_front() {
            if self.too_old(&file) {
                continue;
            }
            match Source::open(&file, offset) {
                Ok(source) => {
                    self.source = Some(source);
                    return Ok(true);
                }
                // The file was rotated or removed since it was listed.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    let files = files_of(&self.options.dir, self.options.attempt)?;
                    let later = files.into_iter().filter(|f| {
                        f.is_current()
                            || (!file.is_current() && f.rotated >= file.rotated)
                            || (file.is_current() && !f.gzip)
                    });
                    self.seen = self.seen();
                    let later: Vec<_> = later.filter(|f| *f != file).map(|f| (f, 0)).collect();
                    self.ahead = later.into();
                }
                Err(error) => return Err(error),
            }
        }
        // No file was listed at first; one may exist now.
        if self.last_time.is_empty() && self.options.follow && self.options.tail_lines.is_none() {
            let files = files_of(&self.options.dir, self.options.attempt)?;
            self.ahead = files.into_iter().map(|f| (f, 0)).collect();
            if let Some((file, _)) = self.ahead.pop_front() {
                self.source = Source::open(&file, 0).ok();
            }
        }
        Ok(self.source.is_some())
    }

    /// Whether the whole file was written before `since`.
    fn too_old(&self, file: &LogFile) -> bool {
        let Some(since) = self.options.since else {
            return false;
        };
        let written = std::fs::metadata(&file.path).map(|meta| meta.mtime());
        !file.is_current() && written.is_ok_and(|secs| secs < since.as_second())
    }

    fn next_attempt(&mut self) -> io::Result<bool> {
        let Some(next) = next_attempt(&self.options.dir, self.options.attempt)? else {
            return Ok(false);
        };
        self.options.attempt = next;
        let files = files_of(&self.options.dir, next)?;
        self.ahead = files.into_iter().map(|f| (f, 0)).collect();
        Ok(true)
    }

    fn seen(&self) -> Option<Seen> {
        (!self.last_time.is_empty()).then(|| Seen {
            time: self.last_time.clone(),
            met: false,
        })
    }

    fn take(&mut self, raw: &[u8], out: &mut Vec<u8>) {
        let Some(record) = Record::parse(raw) else {
            return;
        };
        if let Some(seen) = &mut self.seen {
            match record.time.cmp(&seen.time) {
                Ordering::Equal => seen.met = true,
                Ordering::Less if !seen.met => {}
                Ordering::Less | Ordering::Greater => self.seen = None,
            }
            if self.seen.is_some() {
                return;
            }
        }
        self.last_time.clear();
        self.last_time.push_str(record.time);
        if let (Some(since), Some(time)) = (self.options.since, record.timestamp())
            && time < since
        {
            return;
        }
        let line = &mut self.pending[usize::from(record.stderr)];
        if line.is_empty() && self.options.timestamps {
            line.extend_from_slice(record.time.as_bytes());
            line.push(b' ');
        }
        line.extend_from_slice(record.content);
        if !record.partial {
            line.push(b'\n');
        }
        if !record.partial || line.len() > MAX_LINE {
            let line = std::mem::take(line);
            self.emit(&line, out);
        }
    }

    fn emit(&mut self, line: &[u8], out: &mut Vec<u8>) {
        let room = usize::try_from(self.left).unwrap_or(usize::MAX);
        let line = &line[..line.len().min(room)];
        out.extend_from_slice(line);
        self.left -= line.len() as u64;
        self.done |= self.left == 0;
    }

    /// Passes on lines that will never be finished.
    fn flush(&mut self, out: &mut Vec<u8>) {
        for stream in 0..2 {
            let line = std::mem::take(&mut self.pending[stream]);
            self.emit(&line, out);
        }
    }

    /// Ends lines whose rest is lost, so that they do not run into the next.
    fn end_lines(&mut self, out: &mut Vec<u8>) {
        for stream in 0..2 {
            let mut line = std::mem::take(&mut self.pending[stream]);
            if !line.is_empty() {
                line.push(b'\n');
                self.emit(&line, out);
            }
        }
    }

    fn finish(&mut self, out: &mut Vec<u8>) {
        self.flush(out);
        self.done = true;
    }

    async fn wait(&mut self) -> io::Result<()> {
        let (Some(watch), Some(liveness)) = (&mut self.watch, &self.liveness) else {
            self.done = true;
            return Ok(());
        };
        let written = async {
            watch.ready.readable().await?;
            watch.clear()
        };
        let changed = async {
            if liveness.changed.recv().await.is_err() {
                // The store is gone, and so is everything that could write.
                smol::future::pending::<()>().await;
            }
            Ok(())
        };
        smol::future::or(written, changed).await
    }
}

impl Watch {
    fn new(dir: &std::path::Path) -> io::Result<Self> {
        let inotify = Inotify::init()?;
        let mask = WatchMask::MODIFY
            | WatchMask::CREATE
            | WatchMask::MOVED_FROM
            | WatchMask::MOVED_TO
            | WatchMask::DELETE_SELF;
        inotify.watches().add(dir, mask)?;
        let ready = Async::new(inotify.as_fd().try_clone_to_owned()?)?;
        Ok(Self { inotify, ready })
    }

    /// Drains inotify events; their content does not matter.
    fn clear(&mut self) -> io::Result<()> {
        let mut buffer = [0; 4096];
        match self.inotify.read_events(&mut buffer) {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
            _ => Ok(()),
        }
    }
}
