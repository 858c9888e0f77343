//! SHA-256 digests of data as it is read.

use std::io::{self, Read, Write};

use sha2::{Digest as _, Sha256};

/// `sha256:<hex>` of some bytes.
pub(crate) fn of(bytes: &[u8]) -> String {
    format_digest(Sha256::digest(bytes).as_slice())
}

/// The part after `sha256:`; the whole text if there is no such prefix.
pub(crate) fn hex(digest: &str) -> &str {
    digest.strip_prefix("sha256:").unwrap_or(digest)
}

/// Hashes and counts the data read through it.
pub(crate) struct Hashing<R> {
    inner: R,
    state: Sha256,
    count: u64,
}

impl<R: Read> Hashing<R> {
    pub(crate) fn new(inner: R) -> Self {
        Self {
            inner,
            state: Sha256::new(),
            count: 0,
        }
    }

    /// Reads the rest, then returns digest and length of everything.
    pub(crate) fn finish(mut self) -> io::Result<(String, u64)> {
        let mut buffer = vec![0; 64 << 10];
        while self.read(&mut buffer)? > 0 {}
        Ok((format_digest(self.state.finalize().as_slice()), self.count))
    }
}

impl<R: Read> Read for Hashing<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = self.inner.read(buffer)?;
        self.state.update(&buffer[..n]);
        self.count += n as u64;
        Ok(n)
    }
}

/// Hashes and counts the data written through it.
pub(crate) struct Measuring<W> {
    inner: W,
    state: Sha256,
    count: u64,
}

impl<W: Write> Measuring<W> {
    pub(crate) fn new(inner: W) -> Self {
        Self {
            inner,
            state: Sha256::new(),
            count: 0,
        }
    }

    /// Digest and length of everything.
    pub(crate) fn finish(self) -> (String, u64) {
        (format_digest(self.state.finalize().as_slice()), self.count)
    }
}

impl<W: Write> Write for Measuring<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let n = self.inner.write(bytes)?;
        self.state.update(&bytes[..n]);
        self.count += n as u64;
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

/// `sha256:<hex>` of a finished state.
pub(crate) fn format_digest(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    let mut text = String::with_capacity(71);
    text.push_str("sha256:");
    for byte in bytes {
        let _ = write!(text, "{byte:02x}");
    }
    text
}
