//! A log on disk: appended, rotated by size. Write errors lose lines, are counted and reported, and never block a
//! container.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
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
    /// The second in which the open file was last looked at: it may have been removed by another program.
    looked: i64,
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
            looked: 0,
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

    /// Whether `pid` was this log's compressor, which has ended. What it could not compress is left to the next
    /// rotation: a disk that is full stays so for a while.
    pub(super) fn compressor_ended(&mut self, pid: i32, succeeded: bool) -> bool {
        if self.compressor != Some(pid) {
            return false;
        }
        self.compressor = None;
        if succeeded {
            self.tidy();
        } else {
            warn(format_args!(
                "could not compress old logs of `{}`, retrying after the next rotation",
                self.path.display()
            ));
            self.prune();
        }
        true
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
            self.torn = torn_after(self.torn, output, written);
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
            // None of the output is written yet.
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
        if let Err((written, error)) = self.write_all(line.as_bytes()) {
            self.torn = torn_after(self.torn, line.as_bytes(), written);
            return Err(error);
        }
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
        self.look(now);
        let full = self.max_bytes > 0 && self.size > 0 && self.size + more > self.max_bytes;
        if !full || now == self.failed || self.file.is_none() {
            return;
        }
        if let Err(error) = rotate::rename(&self.path, now) {
            if error.kind() == io::ErrorKind::NotFound {
                self.forget();
                return;
            }
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

    /// Once a second, sees whether the open file was removed: its name is where the next line belongs.
    fn look(&mut self, now: i64) {
        if now == self.looked {
            return;
        }
        self.looked = now;
        let file = self.file.as_ref().map(File::metadata);
        if let Some(Ok(found)) = file
            && found.nlink() == 0
        {
            self.forget();
        }
    }

    /// The log was removed by another program: the next line begins a new one.
    fn forget(&mut self) {
        self.file = None;
        self.size = 0;
        self.torn = false;
    }

    fn tidy(&mut self) {
        self.prune();
        if self.compressor.is_none() {
            self.compressor = rotate::compress(&self.path);
        }
    }

    fn prune(&self) {
        if let Err(error) = rotate::prune(&self.path, self.max_files, self.compressor.is_some()) {
            warn(format_args!(
                "could not remove old logs of `{}`: {error}, ignoring",
                self.path.display()
            ));
        }
    }
}

/// Whether a log ends within a line after a write of `output` stopped after `written` bytes.
fn torn_after(torn: bool, output: &[u8], written: usize) -> bool {
    match written.checked_sub(1) {
        Some(last) => output.get(last) != Some(&b'\n'),
        None => torn,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A log in a folder of its own.
    struct Log(PathBuf, LogFile);

    impl Log {
        fn new(name: &str, max_bytes: u64) -> Self {
            let name = format!("coracle-log-{name}-{}", std::process::id());
            let folder = std::env::temp_dir().join(name);
            let _ = fs::remove_dir_all(&folder);
            let file = LogFile::new(folder.join("0.log"), max_bytes, 3);
            Self(folder, file)
        }

        fn put(&mut self, line: &str) {
            self.1.flush(&mut line.as_bytes().to_vec());
        }

        fn text(&self) -> String {
            fs::read_to_string(self.1.path()).unwrap()
        }
    }

    impl Drop for Log {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_removed_log_begins_again_when_it_would_be_rotated() {
        let mut log = Log::new("rotated", 8);
        log.put("before\n");
        fs::remove_file(log.1.path()).unwrap();
        log.put("after\n");
        assert_eq!(log.text(), "after\n");
        assert_eq!(log.1.size(), 6);
        log.put("more\n");
        assert_eq!(log.text(), "more\n", "it is rotated as before");
    }

    #[test]
    fn a_removed_log_begins_again_within_a_second() {
        let mut log = Log::new("small", 0);
        log.put("before\n");
        fs::remove_file(log.1.path()).unwrap();
        log.1.looked = 0;
        log.put("after\n");
        assert_eq!(log.text(), "after\n");
    }

    #[test]
    fn a_failed_compression_waits_for_the_next_rotation() {
        let mut log = Log::new("compressor", 0);
        log.put("now\n");
        let old = |day: u32| log.0.join(format!("0.log.2026010{day}-000000"));
        for day in [1, 2] {
            fs::write(old(day), "x").unwrap();
        }
        let temporary = log.0.join("0.log.20260101-000000.tmp");
        fs::write(&temporary, "x").unwrap();
        log.1.compressor = Some(7);
        assert!(!log.1.compressor_ended(8, false));
        assert!(log.1.compressor_ended(7, false));
        assert_eq!(log.1.compressor(), None);
        assert!(!temporary.exists());
    }

    #[test]
    fn a_log_is_torn_where_a_write_stopped_within_a_line() {
        for (torn, output, written, expected) in [
            (false, "ab\ncd\n", 0, false),
            (true, "ab\ncd\n", 0, true),
            (false, "ab\ncd\n", 2, true),
            (true, "ab\ncd\n", 3, false),
            (true, "\nlost", 1, false),
            (false, "\nlost", 4, true),
        ] {
            let found = torn_after(torn, output.as_bytes(), written);
            assert_eq!(found, expected, "{torn} {output:?} {written}");
        }
    }
}
