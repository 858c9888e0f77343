//! A reader of tar streams: one member after the other, with PAX, GNU long names and sparse files.
//!
//! The `tar` crate decodes the 512-byte headers; its own iterator is not used because it reads extension headers of
//! any size into memory. Here everything kept has a limit, and nothing is trusted.

use std::io::{self, Read, Seek, SeekFrom};

use tar::{EntryType, Header};

use super::error::ImageError;
use super::pax::{self, Pax, Sparse};

const BLOCK: u64 = 512;

/// Longest extension header (PAX records, GNU long name).
const MAX_EXTENSION_BYTES: u64 = 1 << 20;

/// Longest name or link target: the kernel takes no longer path.
const MAX_NAME_BYTES: usize = 4096;

/// The kind of a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    File,
    HardLink,
    Symlink,
    Char,
    Block,
    Directory,
    Fifo,
}

/// One member without its data.
#[derive(Debug, Clone)]
pub(crate) struct Member {
    /// As written, unchecked.
    pub(crate) name: Vec<u8>,
    /// Target of a link, as written.
    pub(crate) link: Vec<u8>,
    pub(crate) kind: Kind,
    pub(crate) mode: u32,
    pub(crate) uid: u64,
    pub(crate) gid: u64,
    /// Seconds and nanoseconds.
    pub(crate) mtime: (i64, i64),
    pub(crate) device: (u32, u32),
    pub(crate) xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    /// Length of the data in the stream.
    pub(crate) size: u64,
    /// Where its data starts in the stream.
    pub(crate) offset: u64,
    pub(crate) sparse: Option<Sparse>,
}

impl Member {
    /// The name as shown in messages.
    pub(crate) fn shown(&self) -> String {
        let name = String::from_utf8_lossy(&self.name);
        name.chars()
            .take(200)
            .flat_map(char::escape_debug)
            .collect()
    }
}

/// The extension headers before a member.
#[derive(Default)]
struct Extensions {
    /// GNU long name.
    name: Option<Vec<u8>>,
    /// GNU long link target.
    link: Option<Vec<u8>>,
    pax: Pax,
}

impl Extensions {
    /// Takes the member's name and link target: of PAX records, else GNU headers, else the member's own header.
    fn names(&mut self, header: &Header) -> (Vec<u8>, Vec<u8>) {
        let name = self.pax.path.take();
        let name = name.or(self.name.take().map(until_nul));
        let link = self.pax.link.take();
        let link = link.or(self.link.take().map(until_nul));
        let own_link = || Some(header.link_name_bytes()?.into_owned());
        (
            name.unwrap_or_else(|| header.path_bytes().into_owned()),
            link.or_else(own_link).unwrap_or_default(),
        )
    }
}

/// Reads members in order; [`Read`] gives the current member's data.
pub(crate) struct TarReader<R> {
    inner: R,
    /// The name of the stream in messages.
    what: String,
    skip: fn(&mut R, u64) -> io::Result<()>,
    position: u64,
    /// Data of the current member not read yet.
    left: u64,
    padding: u64,
}

impl<R: Read> TarReader<R> {
    /// A stream that can only be read forwards.
    pub(crate) fn streaming(inner: R, what: String) -> Self {
        Self {
            inner,
            what,
            skip: |inner, bytes| {
                let read = io::copy(&mut inner.take(bytes), &mut io::sink())?;
                if read < bytes {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                Ok(())
            },
            position: 0,
            left: 0,
            padding: 0,
        }
    }

    /// A file: unneeded data is skipped by seeking, so a missing end is not noticed here.
    pub(crate) fn seeking(inner: R, what: String) -> Self
    where
        R: Seek,
    {
        let mut reader = Self::streaming(inner, what);
        reader.skip = |inner, bytes| {
            let bytes = i64::try_from(bytes).map_err(|_| io::ErrorKind::UnexpectedEof)?;
            inner.seek(SeekFrom::Current(bytes)).map(drop)
        };
        reader
    }

    /// The stream behind the last member.
    pub(crate) fn into_inner(self) -> R {
        self.inner
    }

    /// The stream itself.
    pub(crate) fn inner(&mut self) -> &mut R {
        &mut self.inner
    }

    /// An error of reading the stream.
    pub(crate) fn broken(&self, why: &io::Error, at: &str) -> ImageError {
        broken(&self.what, why, at)
    }

    /// The next member; the rest of the last one is skipped.
    pub(crate) fn next(&mut self) -> Result<Option<Member>, ImageError> {
        let mut before = Extensions::default();
        loop {
            let Some(header) = self.header()? else {
                return Ok(None);
            };
            let size = header.entry_size().map_err(|e| self.malformed(&e))?;
            match header.entry_type() {
                EntryType::GNULongName => before.name = Some(self.extension(size)?),
                EntryType::GNULongLink => before.link = Some(self.extension(size)?),
                EntryType::XHeader => {
                    before.pax = pax::parse(&self.extension(size)?).map_err(|why| {
                        ImageError::Malformed {
                            what: self.what.clone(),
                            why: why.to_owned(),
                        }
                    })?;
                }
                // Defaults for all members; no image builder writes any that matter.
                EntryType::XGlobalHeader => drop(self.extension(size)?),
                _ => return self.member(&header, size, before).map(Some),
            }
        }
    }

    fn member(
        &mut self,
        header: &Header,
        size: u64,
        mut before: Extensions,
    ) -> Result<Member, ImageError> {
        let (name, link) = before.names(header);
        if name.len().max(link.len()) > MAX_NAME_BYTES {
            return Err(ImageError::Limit {
                what: format!("a name in {}", self.what),
                limit: MAX_NAME_BYTES as u64,
                unit: "bytes",
            });
        }
        let mut pax = before.pax;
        let kind = self.kind(header, &name)?;
        let size = pax.size.unwrap_or(size);
        // Only files have data; some writers put a size on links and directories all the same.
        let size = if kind == Kind::File { size } else { 0 };
        self.expect_data(size)?;
        let sparse = self.sparse(header, kind, &mut pax)?;
        let number = |value: io::Result<u64>| value.map_err(|e| self.malformed(&e));
        // A date before 1970 is written in base 256 and negative: no reason to refuse an image.
        let seconds = header.mtime().ok().and_then(|t| i64::try_from(t).ok());
        let device = |value: io::Result<Option<u32>>| value.ok().flatten().unwrap_or(0);
        Ok(Member {
            kind,
            mode: header.mode().map_err(|e| self.malformed(&e))? & 0o7777,
            uid: pax.uid.map_or_else(|| number(header.uid()), Ok)?,
            gid: pax.gid.map_or_else(|| number(header.gid()), Ok)?,
            mtime: pax.mtime.unwrap_or((seconds.unwrap_or(0), 0)),
            device: (device(header.device_major()), device(header.device_minor())),
            xattrs: pax.xattrs,
            size: self.left,
            offset: self.position,
            sparse,
            name,
            link,
        })
    }

    fn kind(&self, header: &Header, name: &[u8]) -> Result<Kind, ImageError> {
        Ok(match header.entry_type() {
            EntryType::Regular if name.ends_with(b"/") => Kind::Directory,
            EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => Kind::File,
            EntryType::Link => Kind::HardLink,
            EntryType::Symlink => Kind::Symlink,
            EntryType::Char => Kind::Char,
            EntryType::Block => Kind::Block,
            EntryType::Directory => Kind::Directory,
            EntryType::Fifo => Kind::Fifo,
            other => {
                return Err(ImageError::Malformed {
                    what: self.what.clone(),
                    why: format!(
                        "entry `{}` has the unknown type `{}`",
                        String::from_utf8_lossy(name),
                        char::from(other.as_byte()).escape_default()
                    ),
                });
            }
        })
    }

    /// Skips to the next header; `None` at the end of the archive.
    fn header(&mut self) -> Result<Option<Header>, ImageError> {
        let skipped = (self.skip)(&mut self.inner, self.left);
        skipped.map_err(|e| self.broken(&e, "an entry's data"))?;
        match (self.skip)(&mut self.inner, self.padding) {
            // Some writers do not even fill up the last block.
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            other => other.map_err(|e| self.broken(&e, "an entry's data"))?,
        }
        self.position += self.left + self.padding;
        (self.left, self.padding) = (0, 0);
        let mut header = Header::new_old();
        let bytes = header.as_mut_bytes();
        let mut filled = 0;
        while filled < bytes.len() {
            match self.inner.read(&mut bytes[filled..]) {
                // Some archives lack the two empty blocks at the end.
                Ok(0) if filled == 0 => return Ok(None),
                Ok(0) => {
                    return Err(broken(
                        &self.what,
                        &io::ErrorKind::UnexpectedEof.into(),
                        "an entry's header",
                    ));
                }
                Ok(n) => filled += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(broken(&self.what, &e, "an entry's header")),
            }
        }
        self.position += BLOCK;
        if bytes.iter().all(|b| *b == 0) {
            return Ok(None);
        }
        if !is_header(bytes) {
            return Err(ImageError::Malformed {
                what: self.what.clone(),
                why: format!("no tar header at byte {}", self.position - BLOCK),
            });
        }
        Ok(Some(header))
    }

    fn expect_data(&mut self, size: u64) -> Result<(), ImageError> {
        if size > 1 << 60 {
            return Err(ImageError::Limit {
                what: format!("the size of an entry in {}", self.what),
                limit: 1 << 60,
                unit: "bytes",
            });
        }
        self.left = size;
        self.padding = (BLOCK - size % BLOCK) % BLOCK;
        Ok(())
    }

    fn extension(&mut self, size: u64) -> Result<Vec<u8>, ImageError> {
        if size > MAX_EXTENSION_BYTES {
            return Err(ImageError::Limit {
                what: format!("an extension header in {}", self.what),
                limit: MAX_EXTENSION_BYTES,
                unit: "bytes",
            });
        }
        self.expect_data(size)?;
        let mut data = Vec::new();
        self.by_ref()
            .take(size)
            .read_to_end(&mut data)
            .map_err(|e| self.broken(&e, "an extension header"))?;
        Ok(data)
    }

    /// The map of a sparse file, in one of its three formats; `None` for any other member.
    fn sparse(
        &mut self,
        header: &Header,
        kind: Kind,
        pax: &mut Pax,
    ) -> Result<Option<Sparse>, ImageError> {
        let sparse = if header.entry_type() == EntryType::GNUSparse {
            Some(self.gnu_sparse(header)?)
        } else if pax.sparse_map_in_data && kind == Kind::File {
            let real = pax.sparse_size;
            Some(self.pax_sparse(real)?)
        } else {
            pax.sparse.take()
        };
        if let Some(sparse) = &sparse {
            sparse
                .check(self.left)
                .map_err(|why| ImageError::Malformed {
                    what: self.what.clone(),
                    why: why.to_owned(),
                })?;
        }
        Ok(sparse)
    }

    /// Old GNU format: four pieces in the header, more in blocks between header and data.
    fn gnu_sparse(&mut self, header: &Header) -> Result<Sparse, ImageError> {
        let gnu = header.as_gnu().ok_or_else(|| ImageError::Malformed {
            what: self.what.clone(),
            why: "a sparse entry without a GNU header".to_owned(),
        })?;
        let mut sparse = Sparse {
            size: gnu.real_size().map_err(|e| self.malformed(&e))?,
            chunks: Vec::new(),
        };
        sparse
            .extend_gnu(&gnu.sparse)
            .map_err(|e| self.malformed(&e))?;
        let mut more = gnu.is_extended();
        while more {
            let mut block = tar::GnuExtSparseHeader::new();
            self.inner
                .read_exact(block.as_mut_bytes())
                .map_err(|e| self.broken(&e, "a sparse map"))?;
            self.position += BLOCK;
            sparse
                .extend_gnu(&block.sparse)
                .map_err(|e| self.malformed(&e))?;
            more = block.is_extended();
        }
        Ok(sparse)
    }

    /// PAX format 1.0: the map is decimal text in front of the data.
    fn pax_sparse(&mut self, size: u64) -> Result<Sparse, ImageError> {
        let before = self.left;
        let mut numbers = pax::MapReader::default();
        while !numbers.complete() {
            let mut block = [0; 512];
            self.read_exact(&mut block)
                .map_err(|e| self.broken(&e, "a sparse map"))?;
            numbers.feed(&block).map_err(|why| ImageError::Malformed {
                what: self.what.clone(),
                why: why.to_owned(),
            })?;
        }
        debug_assert!(self.left <= before);
        Ok(Sparse {
            size,
            chunks: numbers.chunks(),
        })
    }

    fn malformed(&self, why: &io::Error) -> ImageError {
        ImageError::Malformed {
            what: self.what.clone(),
            why: why.to_string(),
        }
    }
}

impl<R: Read> Read for TarReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = usize::try_from(self.left)
            .unwrap_or(usize::MAX)
            .min(buffer.len());
        if most == 0 {
            return Ok(0);
        }
        let n = self.inner.read(&mut buffer[..most])?;
        if n == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.left -= n as u64;
        self.position += n as u64;
        Ok(n)
    }
}

/// Whether a block is a tar header, by its checksum.
pub(crate) fn is_header(block: &[u8; 512]) -> bool {
    // The checksum's own field counts as spaces.
    let sum: u32 = block
        .iter()
        .enumerate()
        .map(|(i, b)| {
            if (148..156).contains(&i) {
                32
            } else {
                u32::from(*b)
            }
        })
        .sum();
    Header::from_byte_slice(block).cksum().ok() == Some(sum)
}

/// An error of reading `what`.
pub(crate) fn broken(what: &str, why: &io::Error, at: &str) -> ImageError {
    if why.kind() == io::ErrorKind::UnexpectedEof {
        ImageError::Truncated {
            what: what.to_owned(),
            at: at.to_owned(),
        }
    } else {
        ImageError::Malformed {
            what: what.to_owned(),
            why: why.to_string(),
        }
    }
}

fn until_nul(mut bytes: Vec<u8>) -> Vec<u8> {
    if let Some(end) = bytes.iter().position(|b| *b == 0) {
        bytes.truncate(end);
    }
    bytes
}
