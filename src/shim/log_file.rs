//! A log on disk: appended, rotated by size. Write errors lose lines, are counted and reported, and never block a
//! container.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use super::log::LONGEST;
use super::stamp::Stamp;
use super::{rotate, warn};
use crate::sys::clock;

/// The current log of one attempt.
pub(super) struct LogFile {
    path: PathBuf,
    max_bytes: u64,
    max_files: u32,
    file: Option<File>,
    size: u64,
    /// Bytes that could not be written, and why.
    lost: Option<(u64, io::Error)>,
    /// The last write stopped within a line.
    torn: bool,
    /// The second in which rotating last failed: it is tried and reported once a second.
    failed: i64,
    compressor: Option<i32>,
}

impl LogFile {
    /// Nothing is opened yet.
    pub(super) fn new(path: PathBuf, max_bytes: u64, max_files: u32) -> Self {
        Self {
            path,
            max_bytes,
            max_files,
            file: None,
            size: 0,
            lost: None,
            torn: false,
            failed: 0,
            compressor: None,
        }
    }

    /// The path of the current log.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Its current size.
    pub(super) fn size(&self) -> u64 {
        self.size
    }

    /// Reopens the log with the next line.
    pub(super) fn close(&mut self) {
        self.file = None;
    }

    /// The running compressor, if any.
    pub(super) fn compressor(&self) -> Option<i32> {
        self.compressor
    }

    /// Whether `pid` was this log's compressor, which has ended.
    pub(super) fn compressor_ended(&mut self, pid: i32) -> bool {
        let mine = self.compressor == Some(pid);
        if mine {
            self.compressor = None;
            self.tidy();
        }
        mine
    }

    /// Adds one record to `output`, and writes that to disk once it is long.
    pub(super) fn record(
        &mut self,
        stamp: &Stamp,
        name: &str,
        tag: char,
        parts: [&[u8]; 2],
        output: &mut Vec<u8>,
    ) {
        // Writing to a Vec cannot fail.
        let _ = write!(output, "{} {name} {tag} ", stamp.text);
        for part in parts {
            output.extend_from_slice(part);
        }
        output.push(b'\n');
        if output.len() > LONGEST {
            self.flush(output);
        }
    }

    /// Writes `output`, or counts it as lost. Never fails, never waits for space.
    pub(super) fn flush(&mut self, output: &mut Vec<u8>) {
        if output.is_empty() {
            return;
        }
        let result = self.write(output);
        if let Err((written, error)) = result {
            self.torn |= written > 0 && output.get(written - 1) != Some(&b'\n');
            let count = (output.len() - written) as u64;
            let before = self.lost.take().map_or(0, |(count, _)| count);
            if before == 0 {
                warn(format_args!(
                    "could not write log `{}`: {error}, dropping output",
                    self.path.display()
                ));
            }
            self.lost = Some((before + count, error));
            self.file = None;
        }
        output.clear();
        output.shrink_to(2 * LONGEST);
    }

    fn write(&mut self, output: &[u8]) -> Result<(), (usize, io::Error)> {
        self.rotate(output.len() as u64);
        self.open().map_err(|error| (0, error))?;
        if self.torn || self.lost.is_some() {
            self.tell_loss().map_err(|error| (0, error))?;
        }
        self.write_all(output)
    }

    fn write_all(&mut self, output: &[u8]) -> Result<(), (usize, io::Error)> {
        let Some(file) = &mut self.file else {
            return Err((0, io::Error::from(io::ErrorKind::NotFound)));
        };
        let mut written = 0;
        while written < output.len() {
            match file.write(&output[written..]) {
                Ok(0) => return Err((written, io::Error::from(io::ErrorKind::WriteZero))),
                Ok(count) => {
                    written += count;
                    self.size += count as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err((written, error)),
            }
        }
        Ok(())
    }

    fn tell_loss(&mut self) -> io::Result<()> {
        let mut line = String::new();
        if self.torn {
            line.push('\n');
        }
        if let Some((count, error)) = &self.lost {
            line.push_str(&format!(
                "{} stderr F [coracle: {count} bytes of output were lost: {error}]\n",
                Stamp::now().text
            ));
        }
        self.write_all(line.as_bytes())
            .map_err(|(_, error)| error)?;
        self.torn = false;
        self.lost = None;
        Ok(())
    }

    /// Opens the log unless it is open.
    pub(super) fn open(&mut self) -> io::Result<()> {
        if self.file.is_some() {
            return Ok(());
        }
        if let Some(folder) = self.path.parent() {
            fs::create_dir_all(folder)?;
        }
        let file = File::options()
            .create(true)
            .append(true)
            .mode(0o640)
            .open(&self.path)?;
        self.size = file.metadata()?.len();
        self.file = Some(file);
        Ok(())
    }

    fn rotate(&mut self, more: u64) {
        let (now, _) = clock::wall_ns();
        let full = self.max_bytes > 0 && self.size > 0 && self.size + more > self.max_bytes;
        if !full || now == self.failed || self.file.is_none() {
            return;
        }
        if let Err(error) = rotate::rename(&self.path, now) {
            self.failed = now;
            warn(format_args!(
                "could not rotate log `{}`: {error}, ignoring",
                self.path.display()
            ));
            return;
        }
        self.file = None;
        self.size = 0;
        self.tidy();
    }

    fn tidy(&mut self) {
        if let Err(error) = rotate::prune(&self.path, self.max_files, self.compressor.is_some()) {
            warn(format_args!(
                "could not remove old logs of `{}`: {error}, ignoring",
                self.path.display()
            ));
        }
        if self.compressor.is_none() {
            self.compressor = rotate::compress(&self.path);
        }
    }
}
