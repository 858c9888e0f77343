//! Compression formats: plain, gzip or zstd, recognised by the first bytes and never by a name.

use std::io::{self, BufRead, BufReader, Read};

use flate2::bufread::MultiGzDecoder;
use ruzstd::decoding::StreamingDecoder;

/// A zstd frame may ask for this much memory; `zstd --ultra -22` asks for 128 MiB.
const MAX_WINDOW_BYTES: u64 = 128 << 20;

/// A compression format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Packing {
    /// No compression.
    Plain,
    /// gzip, any number of members.
    Gzip,
    /// zstd, any number of frames.
    Zstd,
}

impl Packing {
    /// Recognises the format by the first four bytes.
    pub(crate) fn detect(start: &[u8]) -> Self {
        match start {
            [0x1f, 0x8b, ..] => Self::Gzip,
            [0x28, 0xb5, 0x2f, 0xfd, ..] => Self::Zstd,
            // A skippable frame may come first (zstd:chunked, pzstd).
            [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => Self::Zstd,
            _ => Self::Plain,
        }
    }
}

/// The bytes of a blob that [`window`] looks at.
pub(crate) const HEADER_BYTES: u64 = 18;

/// The memory that a blob's decompression takes beside a little, by its first bytes: of zstd the window of the first
/// frame (RFC 8878, section 3.1.1.1).
pub(crate) fn window(start: &[u8]) -> u64 {
    if Packing::detect(start) != Packing::Zstd {
        return 0;
    }
    let at = |index: usize| u64::from(start.get(index).copied().unwrap_or(0));
    if start[0] != 0x28 {
        // A skippable frame: what follows is unknown.
        return MAX_WINDOW_BYTES;
    }
    let descriptor = start.get(4).copied().unwrap_or(0);
    if descriptor & 0x20 == 0 {
        let base = 1_u64 << (10 + (at(5) >> 3));
        return base + base / 8 * (at(5) & 7);
    }
    // A single segment: all of its content.
    let dictionary = [0, 1, 2, 4][usize::from(descriptor & 3)];
    let length = [1, 2, 4, 8][usize::from(descriptor >> 6)];
    (0..length).fold(0, |sum, byte| sum | at(5 + dictionary + byte) << (8 * byte))
}

/// Decompresses `inner`, whatever its format.
pub(crate) fn decoder<'a, R: Read + 'a>(inner: R) -> io::Result<Box<dyn Read + 'a>> {
    let mut inner = BufReader::with_capacity(64 << 10, inner);
    Ok(match Packing::detect(inner.fill_buf()?) {
        Packing::Plain => Box::new(inner),
        Packing::Gzip => Box::new(MultiGzDecoder::new(inner)),
        Packing::Zstd => Box::new(ZstdFrames(State::Between(inner))),
    })
}

/// Reads frame after frame; ruzstd's reader stops after the first.
struct ZstdFrames<R: BufRead>(State<R>);

enum State<R: BufRead> {
    Between(R),
    Inside(Box<StreamingDecoder<R, ruzstd::decoding::FrameDecoder>>),
    Ended,
}

impl<R: BufRead> Read for ZstdFrames<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        loop {
            match std::mem::replace(&mut self.0, State::Ended) {
                State::Ended => return Ok(0),
                State::Between(inner) => self.0 = start_frame(inner)?,
                State::Inside(mut frame) => {
                    let n = match frame.read(buffer) {
                        Ok(n) => n,
                        // ruzstd hides the kind of error; an input at its end indicates truncation.
                        Err(_) if frame.get_mut().fill_buf()?.is_empty() => {
                            return Err(io::ErrorKind::UnexpectedEof.into());
                        }
                        Err(why) => return Err(why),
                    };
                    if n > 0 {
                        self.0 = State::Inside(frame);
                        return Ok(n);
                    }
                    self.0 = State::Between(frame.into_inner());
                }
            }
        }
    }
}

fn start_frame<R: BufRead>(mut inner: R) -> io::Result<State<R>> {
    loop {
        let start = inner.fill_buf()?;
        if start.is_empty() {
            return Ok(State::Ended);
        }
        // A skippable frame's magic number starts with a byte no other frame starts with.
        if !(0x50..=0x5f).contains(&start[0]) {
            break;
        }
        let mut header = [0; 8];
        inner.read_exact(&mut header)?;
        let length = u32::from_le_bytes([header[4], header[5], header[6], header[7]]);
        let skipped = io::copy(&mut (&mut inner).take(length.into()), &mut io::sink())?;
        if skipped < u64::from(length) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    let frame = StreamingDecoder::new_with_max_window_size(inner, MAX_WINDOW_BYTES)
        .map_err(|why| io::Error::new(io::ErrorKind::InvalidData, why.to_string()))?;
    Ok(State::Inside(Box::new(frame)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_that_a_frame_asks_for_is_known_before() {
        let magic = [0x28, 0xb5, 0x2f, 0xfd];
        for (rest, expected) in [
            // By `zstd -3` from a pipe, by `zstd --ultra -22 --long=27`.
            (&[0x04, 0x58][..], 2 << 20),
            (&[0x04, 0x88], 128 << 20),
            (&[0x04, 0x59], (2 << 20) + (2 << 20) / 8),
            // A single segment of 5 bytes, and of 70 000 in four bytes.
            (&[0x24, 5], 5),
            (&[0xa4, 0x70, 0x11, 0x01, 0x00], 70_000),
            (&[], 1 << 10),
        ] {
            let start = [&magic[..], rest].concat();
            assert_eq!(window(&start), expected, "{rest:x?}");
        }
        assert_eq!(
            window(&[0x50, 0x2a, 0x4d, 0x18, 1, 0, 0, 0]),
            MAX_WINDOW_BYTES
        );
        assert_eq!(
            (
                window(&[0x1f, 0x8b, 8, 0]),
                window(b""),
                window(&magic[..2])
            ),
            (0, 0, 0)
        );
    }
}
