//! How to make a layer's tar again, byte for byte: everything of it except the contents of its files, which are in
//! the unpacked layer. So an image is saved with its own digests, and a check of contents needs no second digest of
//! them: the tar must have the layer's diff id again.
//!
//! A recipe takes about 40 bytes for each file, compressed. It is a sequence of parts:
//!
//! ```text
//! 0  length u32  bytes                            as they are
//! 1  path length u32  path  offset u64  length u64  content of a file, below the layer's root
//! ```
//!
//! A layer whose tar replaces its own files has none: their first contents are gone.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::bufread::GzDecoder;
use flate2::write::GzEncoder;

use crate::sys::openat::{Found, read_regular_in_root};

/// The longest recipe, compressed. Those of real layers have a few hundred kilobytes.
const MAX_BYTES: u64 = 32 << 20;

/// Bytes that are collected before they become a part.
const PART_BYTES: usize = 64 << 10;

/// Longest path of a part.
const MAX_PATH_BYTES: usize = 64 << 10;

const AS_IT_IS: u8 = 0;
const CONTENT: u8 = 1;

/// Reads a layer's tar for the unpacker, and writes the recipe of what goes through it. When that fails the layer is
/// unpacked without a recipe.
pub(super) struct Recorder<R> {
    inner: R,
    /// Bytes that are a file's content, and come next.
    content: u64,
    recipe: Option<Recipe>,
}

struct Recipe {
    out: GzEncoder<Limited<BufWriter<File>>>,
    /// Bytes that are no part yet.
    pending: Vec<u8>,
}

impl<R: Read> Recorder<R> {
    /// Writes the recipe to this file, which is made.
    pub(super) fn new(inner: R, recipe: &Path) -> Self {
        let recipe = File::create(recipe).ok().map(|file| Recipe {
            out: GzEncoder::new(Limited::new(BufWriter::new(file)), Compression::fast()),
            pending: Vec::new(),
        });
        Self {
            inner,
            content: 0,
            recipe,
        }
    }

    /// The next `length` bytes are the content of that file, from `offset` on.
    pub(super) fn content(&mut self, path: &Path, offset: u64, length: u64) {
        self.content = length;
        self.write(|recipe| recipe.content(path, offset, length));
    }

    /// The tar cannot be made again.
    pub(super) fn give_up(&mut self) {
        self.recipe = None;
    }

    /// Reads the rest; returns what was read from, and whether there is a recipe.
    pub(super) fn finish(mut self) -> io::Result<(R, bool)> {
        let mut buffer = vec![0; PART_BYTES];
        while self.read(&mut buffer)? > 0 {}
        let done = self.recipe.take().map(Recipe::finish);
        Ok((self.inner, done.is_some_and(|done| done.is_ok())))
    }

    fn write(&mut self, part: impl FnOnce(&mut Recipe) -> io::Result<()>) {
        if let Some(recipe) = &mut self.recipe
            && part(recipe).is_err()
        {
            self.give_up();
        }
    }
}

impl<R: Read> Read for Recorder<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = self.inner.read(buffer)?;
        let content = usize::try_from(self.content).unwrap_or(usize::MAX).min(n);
        self.content -= content as u64;
        if content < n {
            self.write(|recipe| recipe.as_it_is(&buffer[content..n]));
        }
        Ok(n)
    }
}

impl Recipe {
    fn as_it_is(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.pending.extend_from_slice(bytes);
        match self.pending.len() >= PART_BYTES {
            true => self.flush(),
            false => Ok(()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        for bytes in self.pending.chunks(PART_BYTES) {
            self.out.write_all(&[AS_IT_IS])?;
            write_length(&mut self.out, bytes.len())?;
            self.out.write_all(bytes)?;
        }
        self.pending.clear();
        Ok(())
    }

    fn content(&mut self, path: &Path, offset: u64, length: u64) -> io::Result<()> {
        self.flush()?;
        let path = path.as_os_str().as_bytes();
        self.out.write_all(&[CONTENT])?;
        write_length(&mut self.out, path.len())?;
        self.out.write_all(path)?;
        self.out.write_all(&offset.to_le_bytes())?;
        self.out.write_all(&length.to_le_bytes())
    }

    fn finish(mut self) -> io::Result<()> {
        self.flush()?;
        self.out.finish()?.inner.flush()
    }
}

fn write_length(out: &mut dyn Write, length: usize) -> io::Result<()> {
    let length = u32::try_from(length).map_err(io::Error::other)?;
    out.write_all(&length.to_le_bytes())
}

/// Writes the tar that the recipe describes. `root` has the layer's files.
pub(super) fn follow(recipe: &Path, root: &Path, out: &mut dyn Write) -> io::Result<()> {
    let root = File::open(root)?;
    let mut parts = GzDecoder::new(BufReader::new(File::open(recipe)?));
    let mut buffer = vec![0; PART_BYTES];
    let mut kind = [0];
    while parts.read(&mut kind)? > 0 {
        let length = number::<4>(&mut parts).map(u32::from_le_bytes)?;
        let length = usize::try_from(length).map_err(io::Error::other)?;
        if length > MAX_PATH_BYTES.max(PART_BYTES) {
            return Err(damaged());
        }
        parts.read_exact(&mut buffer[..length])?;
        match kind[0] {
            AS_IT_IS => out.write_all(&buffer[..length])?,
            CONTENT => {
                let path = std::ffi::OsString::from_vec(buffer[..length].to_vec());
                let offset = number::<8>(&mut parts).map(u64::from_le_bytes)?;
                let length = number::<8>(&mut parts).map(u64::from_le_bytes)?;
                copy(&root, &PathBuf::from(path), (offset, length), out)?;
            }
            _ => return Err(damaged()),
        }
    }
    Ok(())
}

fn damaged() -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        "the recipe of its tar is damaged",
    )
}

fn number<const N: usize>(parts: &mut impl Read) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    parts.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// Copies the content of a file.
fn copy(
    root: &File,
    path: &Path,
    (offset, length): (u64, u64),
    out: &mut dyn Write,
) -> io::Result<()> {
    let shown = |why: io::Error| io::Error::new(why.kind(), format!("`{}`: {why}", path.display()));
    let found = read_regular_in_root(root, path).map_err(shown)?;
    let Found::Regular(mut file) = found else {
        return Err(shown(io::Error::other("it is no file any more")));
    };
    if offset > 0 {
        file.seek(SeekFrom::Start(offset)).map_err(shown)?;
    }
    let mut left = length;
    let mut buffer = vec![0; PART_BYTES.min(usize::try_from(length).unwrap_or(PART_BYTES))];
    while left > 0 {
        let most = usize::try_from(left)
            .unwrap_or(usize::MAX)
            .min(buffer.len());
        let n = match file.read(&mut buffer[..most]) {
            Ok(0) => return Err(shown(io::Error::other("it is too short"))),
            Ok(n) => n,
            Err(why) if why.kind() == io::ErrorKind::Interrupted => continue,
            Err(why) => return Err(shown(why)),
        };
        out.write_all(&buffer[..n])?;
        left -= n as u64;
    }
    Ok(())
}

/// Fails when too much is written.
struct Limited<W> {
    inner: W,
    left: u64,
}

impl<W> Limited<W> {
    fn new(inner: W) -> Self {
        Self {
            inner,
            left: MAX_BYTES,
        }
    }
}

impl<W: Write> Write for Limited<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let n = self.inner.write(bytes)?;
        let left = self.left.checked_sub(n as u64);
        self.left = left.ok_or(io::ErrorKind::FileTooLarge)?;
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}
