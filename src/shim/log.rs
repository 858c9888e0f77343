//! A container's output as a log. CRI format: `<RFC3339Nano> <stdout|stderr> <F|P> <content>`, one read at a time,
//! so that no stream starves; [`LogFile`] writes it to disk.

use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

use super::log_file::LogFile;
use super::stamp::Stamp;
use super::tap::Tap;
use super::warn;

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

/// The result of a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Found {
    /// Bytes; there may be more.
    Some,
    /// Nothing now.
    Nothing,
    /// The end of the stream.
    End,
}

/// One pipe or terminal of a container.
pub(super) struct Stream {
    name: &'static str,
    pub(super) fd: Option<OwnedFd>,
    /// The beginning of an unfinished line.
    pending: Vec<u8>,
}

/// The log of one attempt, and its input streams.
pub(super) struct Log {
    file: LogFile,
    pub(super) streams: [Stream; 2],
    /// The attached clients.
    pub(super) taps: Vec<Tap>,
}

impl Log {
    /// A log appended to `path`, with the given descriptors as input.
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
        let mut file = LogFile::new(path, max_bytes, max_files);
        // Early, so that a container without output has a log, too. Tried again at the first line.
        if let Err(error) = file.open() {
            warn(format_args!(
                "could not open log `{}`: {error}, retrying with the next line",
                file.path().display()
            ));
        }
        Self {
            file,
            streams: [stream("stdout", Some(stdout)), stream("stderr", stderr)],
            taps: Vec::new(),
        }
    }

    /// Reads once from stream `index` and writes the result to the log.
    pub(super) fn read(&mut self, index: usize, buffer: &mut Buffer) -> Found {
        let stream = &mut self.streams[index];
        let Some(fd) = &stream.fd else {
            return Found::End;
        };
        match nix::unistd::read(fd.as_fd(), &mut buffer.input) {
            Ok(0) => self.end(index, buffer),
            Ok(count) => {
                for tap in &mut self.taps {
                    tap.write(index, &buffer.input[..count]);
                }
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

    /// Attaches a client, and returns the size of the log so far. The client first gets the unfinished line: it may
    /// be a prompt.
    pub(super) fn attach(&mut self, mut tap: Tap) -> u64 {
        for (index, stream) in self.streams.iter().enumerate() {
            match stream.fd {
                Some(_) => tap.write(index, &stream.pending),
                None => tap.end(index),
            }
        }
        self.taps.push(tap);
        self.file.size()
    }

    /// Reads what is available and ends both streams, even if other processes hold their write ends.
    pub(super) fn finish(&mut self, buffer: &mut Buffer) {
        for index in 0..self.streams.len() {
            // A pipe holds at most 1 MiB; an orphan that keeps writing must not block the shim.
            for _ in 0..(2 << 20) / LONGEST {
                if self.read(index, buffer) != Found::Some {
                    break;
                }
            }
            self.end(index, buffer);
        }
        self.file.close();
    }

    fn end(&mut self, index: usize, buffer: &mut Buffer) -> Found {
        let stream = &mut self.streams[index];
        stream.fd = None;
        self.taps.iter_mut().for_each(|tap| tap.end(index));
        let rest = std::mem::take(&mut stream.pending);
        if !rest.is_empty() {
            let (stamp, name) = (Stamp::now(), stream.name);
            self.file
                .record(&stamp, name, 'P', [&rest, &[]], &mut buffer.output);
            self.file.flush(&mut buffer.output);
        }
        Found::End
    }

    /// Whether `pid` was this log's compressor, which has ended.
    pub(super) fn compressor_ended(&mut self, pid: i32, succeeded: bool) -> bool {
        self.file.compressor_ended(pid, succeeded)
    }

    /// The running compressor, if any.
    pub(super) fn compressor(&self) -> Option<i32> {
        self.file.compressor()
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

/// Adds `part` to the unfinished line; emits complete pieces of it.
fn split(stream: &mut Stream, mut part: &[u8], emit: &mut impl FnMut(&str, char, [&[u8]; 2])) {
    while stream.pending.len() + part.len() > LONGEST {
        let (now, later) = part.split_at(LONGEST - stream.pending.len());
        emit(stream.name, 'P', [&stream.pending, now]);
        stream.pending.clear();
        part = later;
    }
    stream.pending.extend_from_slice(part);
}

#[cfg(test)]
mod tests {
    use super::*;

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
