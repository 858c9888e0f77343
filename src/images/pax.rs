//! Extension headers: PAX records and the maps of sparse files.

use std::io;

use tar::GnuSparseHeader;

/// The maximum number of pieces, more than any real sparse file has.
const MAX_CHUNKS: usize = 1 << 16;

/// The maximum number of extended attributes of one file.
const MAX_XATTRS: usize = 256;

/// The records that are used.
#[derive(Debug, Default)]
pub(crate) struct Pax {
    pub(crate) path: Option<Vec<u8>>,
    pub(crate) link: Option<Vec<u8>>,
    pub(crate) size: Option<u64>,
    pub(crate) uid: Option<u64>,
    pub(crate) gid: Option<u64>,
    pub(crate) mtime: Option<(i64, i64)>,
    pub(crate) xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    /// The map, if it is in the records (formats 0.0 and 0.1).
    pub(crate) sparse: Option<Sparse>,
    /// Format 1.0: the map precedes the data.
    pub(crate) sparse_map_in_data: bool,
    pub(crate) sparse_size: u64,
}

/// The map of a sparse file's data.
#[derive(Debug, Clone, Default)]
pub(crate) struct Sparse {
    /// Its length, holes included.
    pub(crate) size: u64,
    /// Offset and length of each piece of data, ascending.
    pub(crate) chunks: Vec<(u64, u64)>,
}

impl Sparse {
    /// Checks that the pieces ascend, lie inside the file, and make up exactly the data.
    pub(crate) fn check(&self, data: u64) -> Result<(), &'static str> {
        let mut end = 0;
        let mut sum = 0u64;
        for (offset, length) in &self.chunks {
            if *offset < end {
                return Err("a sparse map that does not ascend");
            }
            end = offset
                .checked_add(*length)
                .ok_or("a sparse map that overflows")?;
            sum += length;
        }
        if end > self.size {
            return Err("a sparse map that reaches behind its file's end");
        }
        if sum != data {
            return Err("a sparse map that does not fit its data");
        }
        Ok(())
    }

    pub(crate) fn extend_gnu(&mut self, headers: &[GnuSparseHeader]) -> io::Result<()> {
        for header in headers.iter().filter(|header| !header.is_empty()) {
            if self.chunks.len() >= MAX_CHUNKS {
                return Err(io::Error::other("a sparse map with too many pieces"));
            }
            self.chunks.push((header.offset()?, header.length()?));
        }
        Ok(())
    }
}

/// Reads the records `<length> <key>=<value>\n`.
pub(crate) fn parse(mut data: &[u8]) -> Result<Pax, &'static str> {
    const BAD: &str = "a malformed PAX header";
    let mut pax = Pax::default();
    let mut offset = None;
    let mut old_chunks = Vec::new();
    let mut sparse_name = None;
    while !data.is_empty() && data[0] != 0 {
        let space = data.iter().take(20).position(|b| *b == b' ').ok_or(BAD)?;
        let length = decimal(&data[..space]).ok_or(BAD)?;
        let length = usize::try_from(length).map_err(|_| BAD)?;
        if length <= space + 1 || length > data.len() || data[length - 1] != b'\n' {
            return Err(BAD);
        }
        let record = &data[space + 1..length - 1];
        data = &data[length..];
        let equals = record.iter().position(|b| *b == b'=').ok_or(BAD)?;
        let (key, value) = (&record[..equals], &record[equals + 1..]);
        let number = || decimal(value).ok_or("a PAX header with a malformed number");
        match key {
            // An empty value cancels the record.
            b"path" => pax.path = (!value.is_empty()).then(|| value.to_vec()),
            b"GNU.sparse.name" => sparse_name = Some(value.to_vec()),
            b"linkpath" => pax.link = (!value.is_empty()).then(|| value.to_vec()),
            b"size" => pax.size = Some(number()?),
            b"uid" => pax.uid = Some(number()?),
            b"gid" => pax.gid = Some(number()?),
            b"mtime" => pax.mtime = timestamp(value),
            b"GNU.sparse.size" | b"GNU.sparse.realsize" => pax.sparse_size = number()?,
            b"GNU.sparse.major" => pax.sparse_map_in_data = number()? == 1,
            b"GNU.sparse.offset" => offset = Some(number()?),
            b"GNU.sparse.numbytes" => {
                old_chunks.push((offset.take().ok_or("a malformed sparse map")?, number()?));
            }
            b"GNU.sparse.map" => old_chunks = map(value).ok_or("a malformed sparse map")?,
            _ => {
                if let Some(name) = key.strip_prefix(b"SCHILY.xattr.") {
                    pax.xattrs.push((name.to_vec(), value.to_vec()));
                }
            }
        }
        if old_chunks.len() > MAX_CHUNKS || pax.xattrs.len() > MAX_XATTRS {
            return Err("a PAX header with too many records");
        }
    }
    // GNU tar's `path` of a sparse file is a placeholder for readers that do not support sparse files.
    pax.path = sparse_name.or(pax.path);
    if !old_chunks.is_empty() && !pax.sparse_map_in_data {
        pax.sparse = Some(Sparse {
            size: pax.sparse_size,
            chunks: old_chunks,
        });
    }
    Ok(pax)
}

fn map(value: &[u8]) -> Option<Vec<(u64, u64)>> {
    let numbers: Vec<u64> = value
        .split(|b| *b == b',')
        .map(decimal)
        .collect::<Option<_>>()?;
    if !numbers.len().is_multiple_of(2) {
        return None;
    }
    Some(numbers.chunks(2).map(|pair| (pair[0], pair[1])).collect())
}

fn decimal(text: &[u8]) -> Option<u64> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// `1700000000.25`, also negative.
fn timestamp(text: &[u8]) -> Option<(i64, i64)> {
    let text = std::str::from_utf8(text).ok()?;
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let seconds: i64 = whole.parse().ok()?;
    let digits: String = fraction
        .chars()
        .chain("000000000".chars())
        .take(9)
        .collect();
    let nanos: i64 = digits.parse().ok().filter(|n| *n >= 0)?;
    if whole.starts_with('-') && nanos > 0 {
        return Some((seconds - 1, 1_000_000_000 - nanos));
    }
    Some((seconds, nanos))
}

/// Reads the decimal map of format 1.0: a count, then offset and length of each piece, one number a line.
#[derive(Debug, Default)]
pub(crate) struct MapReader {
    numbers: Vec<u64>,
    current: Option<u64>,
}

impl MapReader {
    pub(crate) fn complete(&self) -> bool {
        let Some(count) = self.numbers.first() else {
            return false;
        };
        // The count was checked against the limit when it was read.
        self.numbers.len() as u64 > count * 2
    }

    pub(crate) fn feed(&mut self, block: &[u8]) -> Result<(), &'static str> {
        const BAD: &str = "a malformed sparse map";
        for byte in block {
            if self.complete() {
                return Ok(());
            }
            match byte {
                b'0'..=b'9' => {
                    let digit = u64::from(byte - b'0');
                    let number = self.current.unwrap_or(0);
                    let number = number.checked_mul(10).and_then(|n| n.checked_add(digit));
                    self.current = Some(number.ok_or(BAD)?);
                }
                b'\n' => {
                    let number = self.current.take().ok_or(BAD)?;
                    if self.numbers.is_empty() && number > MAX_CHUNKS as u64 {
                        return Err("a sparse map with too many pieces");
                    }
                    self.numbers.push(number);
                }
                _ => return Err(BAD),
            }
        }
        Ok(())
    }

    pub(crate) fn chunks(&self) -> Vec<(u64, u64)> {
        self.numbers[1..]
            .chunks_exact(2)
            .map(|pair| (pair[0], pair[1]))
            .collect()
    }
}
