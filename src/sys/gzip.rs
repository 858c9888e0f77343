//! The header and trailer of gzip files (RFC 1952), without a look at the content.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};

/// The first bytes.
const MAGIC: [u8; 3] = [0x1f, 0x8b, 8];

/// Whether a file is obviously not compressed data, such as an empty one after a power cut.
pub fn is_void(mut file: File) -> io::Result<bool> {
    let mut head = [0; MAGIC.len()];
    match file.read_exact(&mut head) {
        Ok(()) => Ok(head != MAGIC),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(true),
        Err(error) => Err(error),
    }
}

/// Whether a compressed file seems to hold at least so many bytes, by its beginning and the number at its end.
pub fn holds(mut file: File, bytes: u64) -> io::Result<bool> {
    if is_void(file.try_clone()?)? || file.metadata()?.len() < 18 {
        return Ok(false);
    }
    let mut size = [0; 4];
    file.seek(SeekFrom::End(-4))?;
    file.read_exact(&mut size)?;
    Ok(u64::from(u32::from_le_bytes(size)) >= bytes)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn a_file_that_was_cut_off_or_is_empty_holds_nothing() {
        let path = std::env::temp_dir().join(format!("coracle-gzip-{}", std::process::id()));
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::new(6));
        encoder.write_all(&[7; 1000]).unwrap();
        let whole = encoder.finish().unwrap();
        let with = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            let open = || File::open(&path).unwrap();
            (
                is_void(open()).unwrap(),
                holds(open(), 1000).unwrap(),
                holds(open(), 1001).unwrap(),
            )
        };
        assert_eq!(with(&whole), (false, true, false));
        assert_eq!(with(&whole[..17]), (false, false, false));
        assert_eq!(with(&[0; 99]), (true, false, false));
        assert_eq!(with(b""), (true, false, false));
        std::fs::remove_file(path).unwrap();
    }
}
