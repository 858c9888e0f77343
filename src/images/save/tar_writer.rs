//! A writer of tar streams in the POSIX format, the same bytes for the same entries on every machine. What does not
//! fit a header goes into PAX records: long names, times with fractions, extended attributes.

use std::io::{self, Read, Write};

use tar::{EntryType, Header};

use super::super::tar_reader::Kind;

const BLOCK: u64 = 512;

/// Names up to this length fit a header.
const MAX_NAME_BYTES: usize = 100;

/// The bytes that are copied at once.
const BUFFER_BYTES: usize = 128 << 10;

/// An entry without its data.
#[derive(Debug)]
pub(crate) struct Entry<'a> {
    pub(crate) name: &'a [u8],
    /// Target of a link.
    pub(crate) link: &'a [u8],
    pub(crate) kind: Kind,
    pub(crate) mode: u32,
    pub(crate) uid: u64,
    pub(crate) gid: u64,
    /// Seconds and nanoseconds since 1970.
    pub(crate) mtime: (i64, i64),
    pub(crate) device: (u32, u32),
    pub(crate) xattrs: &'a [(Vec<u8>, Vec<u8>)],
    /// Length of the data.
    pub(crate) size: u64,
    /// Length of the file with its holes, if the data begins with a map of them (GNU tar's format 1.0).
    pub(crate) sparse: Option<u64>,
}

impl<'a> Entry<'a> {
    /// A file of root's, as archives have them.
    pub(crate) fn file(name: &'a [u8], size: u64) -> Self {
        Self {
            name,
            link: b"",
            kind: Kind::File,
            mode: 0o644,
            uid: 0,
            gid: 0,
            mtime: (0, 0),
            device: (0, 0),
            xattrs: &[],
            size,
            sparse: None,
        }
    }

    /// Likewise a directory.
    pub(crate) fn directory(name: &'a [u8]) -> Self {
        Self {
            kind: Kind::Directory,
            mode: 0o755,
            ..Self::file(name, 0)
        }
    }
}

/// Writes a header, with PAX records before it where it needs some. The data must follow ([`copy`]).
pub(crate) fn head(out: &mut dyn Write, entry: &Entry<'_>) -> io::Result<()> {
    let records = records(entry);
    if !records.is_empty() {
        let mut header = header(EntryType::XHeader, 0o644, records.len() as u64);
        set_name(&mut header, b"PaxHeader", b"");
        out.write_all(finished(&mut header))?;
        out.write_all(&records)?;
        pad(out, records.len() as u64)?;
    }
    let mut header = header(kind(entry.kind), entry.mode, entry.size);
    header.set_uid(entry.uid);
    header.set_gid(entry.gid);
    header.set_mtime(u64::try_from(entry.mtime.0).unwrap_or(0));
    if matches!(entry.kind, Kind::Char | Kind::Block) {
        header.set_device_major(entry.device.0)?;
        header.set_device_minor(entry.device.1)?;
    }
    set_name(&mut header, entry.name, entry.link);
    out.write_all(finished(&mut header))
}

/// Writes the data of an entry, exactly `size` bytes, and what fills up its last block.
pub(crate) fn copy(out: &mut dyn Write, data: &mut dyn Read, size: u64) -> io::Result<()> {
    copy_exactly(out, data, size)?;
    pad(out, size)
}

/// Copies `size` bytes; fails if there are fewer.
pub(super) fn copy_exactly(out: &mut dyn Write, data: &mut dyn Read, size: u64) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER_BYTES.min(usize::try_from(size).unwrap_or(BUFFER_BYTES))];
    let mut left = size;
    while left > 0 {
        let most = usize::try_from(left).unwrap_or(usize::MAX);
        let most = most.min(buffer.len());
        let n = match data.read(&mut buffer[..most]) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(n) => n,
            Err(why) if why.kind() == io::ErrorKind::Interrupted => continue,
            Err(why) => return Err(why),
        };
        out.write_all(&buffer[..n])?;
        left -= n as u64;
    }
    Ok(())
}

/// Writes the end of an archive.
pub(crate) fn end(out: &mut dyn Write) -> io::Result<()> {
    out.write_all(&[[0; 512]; 2].concat())
}

/// The length of an archive with these files.
pub(super) fn length(files: impl Iterator<Item = u64>) -> u64 {
    let rounded = files.map(|size| BLOCK + size.next_multiple_of(BLOCK));
    rounded.sum::<u64>() + 2 * BLOCK
}

/// Fills up the last block of `size` bytes of data.
pub(crate) fn pad(out: &mut dyn Write, size: u64) -> io::Result<()> {
    let padding = usize::try_from(size.next_multiple_of(BLOCK) - size).unwrap_or(0);
    out.write_all(&[0; 512][..padding])
}

fn header(kind: EntryType, mode: u32, size: u64) -> Header {
    let mut header = Header::new_ustar();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header.set_size(size);
    header
}

fn finished(header: &mut Header) -> &[u8; 512] {
    header.set_cksum();
    header.as_bytes()
}

/// Names as they are: the crate's own functions refuse some that images have.
fn set_name(header: &mut Header, name: &[u8], link: &[u8]) {
    let old = header.as_old_mut();
    let (name, link) = (cut(name), cut(link));
    old.name[..name.len()].copy_from_slice(name);
    old.linkname[..link.len()].copy_from_slice(link);
}

fn cut(name: &[u8]) -> &[u8] {
    &name[..name.len().min(MAX_NAME_BYTES)]
}

fn kind(kind: Kind) -> EntryType {
    match kind {
        Kind::File => EntryType::Regular,
        Kind::HardLink => EntryType::Link,
        Kind::Symlink => EntryType::Symlink,
        Kind::Char => EntryType::Char,
        Kind::Block => EntryType::Block,
        Kind::Directory => EntryType::Directory,
        Kind::Fifo => EntryType::Fifo,
    }
}

/// The PAX records that an entry needs.
fn records(entry: &Entry<'_>) -> Vec<u8> {
    let mut records = Vec::new();
    for (key, value) in entry.xattrs {
        // No record can have such a key.
        if !key.contains(&b'=') {
            let key = [b"SCHILY.xattr.", key.as_slice()].concat();
            record(&mut records, &key, value);
        }
    }
    if entry.link.len() > MAX_NAME_BYTES {
        record(&mut records, b"linkpath", entry.link);
    }
    if entry.mtime.0 < 0 || entry.mtime.1 != 0 {
        record(&mut records, b"mtime", seconds(entry.mtime).as_bytes());
    }
    if entry.name.len() > MAX_NAME_BYTES {
        record(&mut records, b"path", entry.name);
    }
    if let Some(size) = entry.sparse {
        record(&mut records, b"GNU.sparse.major", b"1");
        record(&mut records, b"GNU.sparse.minor", b"0");
        record(&mut records, b"GNU.sparse.name", entry.name);
        record(
            &mut records,
            b"GNU.sparse.realsize",
            size.to_string().as_bytes(),
        );
    }
    records
}

/// A time as a decimal number. Nanoseconds count forwards, also before 1970.
fn seconds((seconds, nanos): (i64, i64)) -> String {
    match (seconds, nanos) {
        (seconds, 0) => seconds.to_string(),
        (..0, nanos) => {
            format!("-{}.{:09}", -(seconds + 1), 1_000_000_000 - nanos)
        }
        _ => format!("{seconds}.{nanos:09}"),
    }
}

/// `LENGTH KEY=VALUE\n`, where the length counts itself.
fn record(records: &mut Vec<u8>, key: &[u8], value: &[u8]) {
    let rest = key.len() + value.len() + 3;
    let mut length = rest + 1;
    while rest + length.to_string().len() != length {
        length += 1;
    }
    records.extend_from_slice(format!("{length} ").as_bytes());
    records.extend_from_slice(key);
    records.push(b'=');
    records.extend_from_slice(value);
    records.push(b'\n');
}

#[cfg(test)]
mod tests {
    use super::super::super::tar_reader::TarReader;
    use super::*;

    #[test]
    fn what_is_written_is_read_back() {
        let long = [b"d/".repeat(300), b"file".to_vec()].concat();
        let attributes = [(b"user.note".to_vec(), b"a\nb\0c".to_vec())];
        let entries = [
            Entry {
                mtime: (1_700_000_000, 500),
                xattrs: &attributes,
                mode: 0o6755,
                uid: 4_000_000_000,
                ..Entry::file(&long, 5)
            },
            Entry {
                kind: Kind::Symlink,
                link: &long,
                mtime: (-2, 500_000_000),
                ..Entry::file(b"link", 0)
            },
            Entry {
                kind: Kind::Char,
                device: (5, 70_000),
                ..Entry::file(b"dev", 0)
            },
            Entry::directory(b"folder/"),
        ];
        let mut tar = Vec::new();
        for entry in &entries {
            head(&mut tar, entry).unwrap();
            copy(&mut tar, &mut &b"hello"[..], entry.size).unwrap();
        }
        end(&mut tar).unwrap();
        let mut reader = TarReader::streaming(tar.as_slice(), "it".to_owned());
        for entry in &entries {
            let found = reader.next().unwrap().unwrap();
            assert_eq!((found.kind, found.size), (entry.kind, entry.size));
            assert_eq!(
                (found.name.as_slice(), found.link.as_slice()),
                (entry.name, entry.link)
            );
            assert_eq!(
                (found.mode, found.uid, found.gid),
                (entry.mode, entry.uid, 0)
            );
            assert_eq!((found.mtime, found.device), (entry.mtime, entry.device));
            assert_eq!(found.xattrs, entry.xattrs);
        }
        assert!(reader.next().unwrap().is_none());
        assert!(copy(&mut tar, &mut &b"short"[..], 6).is_err());
    }

    #[test]
    fn the_length_is_known_before() {
        let mut tar = Vec::new();
        for size in [0, 1, 512, 513] {
            head(&mut tar, &Entry::file(b"x", size)).unwrap();
            copy(&mut tar, &mut io::repeat(1), size).unwrap();
        }
        end(&mut tar).unwrap();
        assert_eq!(length([0, 1, 512, 513].into_iter()), tar.len() as u64);
    }
}
