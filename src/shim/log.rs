//! How does output become a log? CRI format: `<RFC3339Nano> <stdout|stderr> <F|P> <content>`. Trouble with the disk
//! loses lines, is counted and told, and never makes a container wait.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use super::rotate;
use super::warn;
use crate::sys::clock;

/// Longest content of one record; longer lines are split into `P` records that end with an `F`.
pub(super) const LONGEST: usize = 16 * 1024;

/// One buffer for all readers, so that a chatty container costs no memory.
pub(super) struct Buffer {
    input: Vec<u8>,
    output: Vec<u8>,
}

impl Buffer {
    pub(super) fn new() -> Self {
        Self {
            input: vec![0; LONGEST],
            output: Vec::new(),
        }
    }
}

/// What a read found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Found {
    /// Bytes; there may be more.
    Some,
    /// Nothing now.
    Nothing,
    /// The end.
    End,
}

/// One pipe or terminal of a container.
pub(super) struct Stream {
    name: &'static str,
    pub(super) fd: Option<OwnedFd>,
    /// The beginning of a line whose end has not come.
    pending: Vec<u8>,
}

/// The log of one attempt, and what is read into it.
pub(super) struct Log {
    file: LogFile,
    pub(super) streams: [Stream; 2],
}

struct LogFile {
    path: PathBuf,
    max_bytes: u64,
    max_files: u32,
    file: Option<File>,
    size: u64,
    /// Bytes that could not be written, and why.
    lost: Option<(u64, io::Error)>,
    /// The last write stopped within a line.
    torn: bool,
    /// Second of the last rotation: names have seconds, so there is at most one a second.
    rotated: i64,
    compressor: Option<i32>,
}

impl Log {
    /// A log appended to `path`, fed by the given descriptors.
    pub(super) fn new(
        path: PathBuf,
        max_bytes: u64,
        max_files: u32,
        stdout: OwnedFd,
        stderr: Option<OwnedFd>,
    ) -> Self {
        let stream = |name, fd| Stream {
            name,
            fd,
            pending: Vec::new(),
        };
        let mut file = LogFile {
            path,
            max_bytes,
            max_files,
            file: None,
            size: 0,
            lost: None,
            torn: false,
            rotated: 0,
            compressor: None,
        };
        // Early, so that a container without output has a log too. Tried again at the first line.
        if let Err(error) = file.open() {
            warn(format_args!(
                "could not open log `{}`: {error}, retrying with the next line",
                file.path.display()
            ));
        }
        Self {
            file,
            streams: [stream("stdout", Some(stdout)), stream("stderr", stderr)],
        }
    }

    /// Reads once from stream `index` and writes what came.
    pub(super) fn read(&mut self, index: usize, buffer: &mut Buffer) -> Found {
        let stream = &mut self.streams[index];
        let Some(fd) = &stream.fd else {
            return Found::End;
        };
        match nix::unistd::read(fd.as_fd(), &mut buffer.input) {
            Ok(0) => self.end(index, buffer),
            Ok(count) => {
                let stamp = Stamp::now();
                feed(stream, &buffer.input[..count], &mut |name, tag, parts| {
                    self.file
                        .record(&stamp, name, tag, parts, &mut buffer.output);
                });
                self.file.flush(&mut buffer.output);
                Found::Some
            }
            Err(nix::Error::EAGAIN | nix::Error::EINTR) => Found::Nothing,
            // EIO: the last holder of a terminal has closed it.
            Err(_) => self.end(index, buffer),
        }
    }

    /// Reads what is there now and ends both streams, whoever may still hold their other ends.
    pub(super) fn finish(&mut self, buffer: &mut Buffer) {
        for index in 0..self.streams.len() {
            // A pipe holds at most 1 MiB; an orphan that writes on must not keep us here.
            for _ in 0..(2 << 20) / LONGEST {
                if self.read(index, buffer) != Found::Some {
                    break;
                }
            }
            self.end(index, buffer);
        }
        self.file.file = None;
    }

    fn end(&mut self, index: usize, buffer: &mut Buffer) -> Found {
        let stream = &mut self.streams[index];
        stream.fd = None;
        let rest = std::mem::take(&mut stream.pending);
        if !rest.is_empty() {
            let (stamp, name) = (Stamp::now(), stream.name);
            self.file
                .record(&stamp, name, 'P', [&rest, &[]], &mut buffer.output);
            self.file.flush(&mut buffer.output);
        }
        Found::End
    }

    /// Says whether `pid` was this log's compressor, which has ended.
    pub(super) fn compressor_ended(&mut self, pid: i32) -> bool {
        let mine = self.file.compressor == Some(pid);
        if mine {
            self.file.compressor = None;
            self.file.tidy();
        }
        mine
    }

    /// The compressor at work, if any.
    pub(super) fn compressor(&self) -> Option<i32> {
        self.file.compressor
    }
}

/// Cuts `input` into records, keeping an unfinished line for later. The content of a record comes in two parts.
fn feed(stream: &mut Stream, input: &[u8], emit: &mut impl FnMut(&str, char, [&[u8]; 2])) {
    let mut rest = input;
    while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
        let (line, after) = rest.split_at(end);
        split(stream, line, emit);
        emit(stream.name, 'F', [&stream.pending, &[]]);
        stream.pending.clear();
        rest = &after[1..];
    }
    split(stream, rest, emit);
    if stream.pending.is_empty() {
        stream.pending = Vec::new();
    }
}

/// Adds `part` to the unfinished line; emits full pieces of it.
fn split(stream: &mut Stream, mut part: &[u8], emit: &mut impl FnMut(&str, char, [&[u8]; 2])) {
    while stream.pending.len() + part.len() > LONGEST {
        let (now, later) = part.split_at(LONGEST - stream.pending.len());
        emit(stream.name, 'P', [&stream.pending, now]);
        stream.pending.clear();
        part = later;
    }
    stream.pending.extend_from_slice(part);
}

impl LogFile {
    fn record(
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

    fn flush(&mut self, output: &mut Vec<u8>) {
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

    fn open(&mut self) -> io::Result<()> {
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
        if !full || now == self.rotated || self.file.is_none() {
            return;
        }
        self.rotated = now;
        if let Err(error) = rotate::rename(&self.path, now) {
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

struct Stamp {
    text: String,
}

impl Stamp {
    fn now() -> Self {
        let (seconds, nanos) = clock::wall_ns();
        Self {
            text: rfc3339_nano(seconds, nanos),
        }
    }
}

/// `2026-01-02T03:04:05.000000006Z`.
pub(super) fn rfc3339_nano(seconds: i64, nanos: u32) -> String {
    let [year, month, day, hour, minute, second] = civil(seconds);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{nanos:09}Z")
}

/// Year, month, day, hour, minute, second of a UTC time (Howard Hinnant's `civil_from_days`).
pub(super) fn civil(seconds: i64) -> [i64; 6] {
    let (days, rest) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 {
        shifted_month + 3
    } else {
        shifted_month - 9
    };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    [year, month, day, rest / 3600, rest / 60 % 60, rest % 60]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_in_other_runtimes() {
        assert_eq!(rfc3339_nano(0, 0), "1970-01-01T00:00:00.000000000Z");
        assert_eq!(
            rfc3339_nano(951_782_399, 5),
            "2000-02-28T23:59:59.000000005Z"
        );
        assert_eq!(
            rfc3339_nano(1_709_210_096, 120),
            "2024-02-29T12:34:56.000000120Z"
        );
    }

    fn records(chunks: &[&[u8]]) -> (Vec<(char, usize)>, usize) {
        let mut stream = Stream {
            name: "stdout",
            fd: None,
            pending: Vec::new(),
        };
        let mut found = Vec::new();
        for chunk in chunks {
            feed(&mut stream, chunk, &mut |_, tag, parts| {
                found.push((tag, parts[0].len() + parts[1].len()));
            });
        }
        (found, stream.pending.len())
    }

    #[test]
    fn lines_are_cut_and_long_ones_split() {
        assert_eq!(
            records(&[b"ab\ncd", b"e\n\nf"]),
            (vec![('F', 2), ('F', 3), ('F', 0)], 1)
        );
        let long = vec![b'x'; 40_000];
        let mut chunks: Vec<&[u8]> = long.chunks(LONGEST).collect();
        chunks.push(b"\n");
        assert_eq!(
            records(&chunks),
            (vec![('P', 16384), ('P', 16384), ('F', 7232)], 0)
        );
        let exact = vec![b'x'; LONGEST];
        assert_eq!(records(&[&exact, b"\n"]), (vec![('F', 16384)], 0));
    }
}
