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
