//! The file of the black box: slots of a fixed size, each with a checksum, a number that grows, an entry and the end of
//! a container's output. A slot that does not match its checksum (a power cut while it was written) counts as free.
//! What is in a log is the container's: it is read with a bound, and never followed elsewhere.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use flate2::Crc;

use super::log_lines;
use super::mask::Secrets;
use crate::layout::log_file;
use crate::sys::openat::{self, Found};
use crate::types::InOrder;
use crate::types::black_box::Entry;

/// Size of a slot: a header, an entry, an output.
const SLOT: usize = 8192;
const HEADER: usize = 24;
const MAX_ENTRY: usize = SLOT - HEADER - MAX_OUTPUT;

/// The most that is kept of an output, in bytes.
pub const MAX_OUTPUT: usize = 4096;

/// No file has more slots.
const MAX_SLOTS: usize = 128;

const MAGIC: [u8; 4] = *b"CBB1";

/// The end of a log that is looked through.
const MAX_TAIL: u64 = 64 << 10;

/// A slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slot {
    /// Its index.
    pub index: usize,
    /// Its number: the larger, the newer.
    pub number: u64,
    /// What happened.
    pub entry: Entry,
    /// The end of the container's output; empty if that was not asked for.
    pub output: Vec<u8>,
}

/// Returns what is in the file, oldest first. A missing file is an empty one.
pub fn read(path: &Path, with_output: bool) -> io::Result<Vec<Slot>> {
    let file = match openat::read_regular(path) {
        Ok(Found::Regular(file)) => file,
        Ok(Found::Whiteout | Found::Other) => return Err(io::Error::other("not a regular file")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut bytes = vec![0; SLOT];
    let mut slots: Vec<Slot> = Vec::new();
    for index in 0..MAX_SLOTS {
        let length = read_at(&file, &mut bytes, (index * SLOT) as u64)?;
        if length == 0 {
            break;
        }
        slots.extend(parse(index, &bytes[..length], with_output));
    }
    slots.order_by_key(|slot| slot.number);
    // Of an entry that was written again, the newest version counts.
    let newest: std::collections::BTreeMap<u64, u64> = slots
        .iter()
        .map(|slot| (slot.entry.id, slot.number))
        .collect();
    slots.retain(|slot| newest.get(&slot.entry.id) == Some(&slot.number));
    Ok(slots)
}

fn read_at(file: &File, bytes: &mut [u8], at: u64) -> io::Result<usize> {
    let mut length = 0;
    while length < bytes.len() {
        match file.read_at(&mut bytes[length..], at + length as u64) {
            Ok(0) => break,
            Ok(more) => length += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(length)
}

fn parse(index: usize, bytes: &[u8], with_output: bool) -> Option<Slot> {
    let number = |at: usize, length: usize| {
        let bytes = bytes.get(at..at + length)?;
        let each = bytes.iter().rev();
        Some(each.fold(0_u64, |sum, byte| sum << 8 | u64::from(*byte)))
    };
    if bytes.get(..4)? != MAGIC {
        return None;
    }
    let entry = usize::try_from(number(16, 2)?).ok()?;
    let output = usize::try_from(number(18, 2)?).ok()?;
    let end = HEADER + entry + output;
    let mut crc = Crc::new();
    crc.update(bytes.get(8..end)?);
    if u64::from(crc.sum()) != number(4, 4)? {
        return None;
    }
    let text = &bytes[HEADER + entry..end];
    Some(Slot {
        index,
        number: number(8, 8)?,
        entry: serde_json::from_slice(&bytes[HEADER..HEADER + entry]).ok()?,
        output: if with_output {
            text.to_vec()
        } else {
            Vec::new()
        },
    })
}

/// The file, open for writing.
#[derive(Debug)]
pub struct Writer(File);

impl Writer {
    /// Opens the file, or makes an empty one, which only root can read.
    pub fn open(path: &Path) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false).mode(0o600);
        options.custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
        Ok(Self(options.open(path)?))
    }

    /// Writes a slot; the end of the output counts.
    pub fn put(&self, slot: &Slot) -> io::Result<()> {
        let mut entry = serde_json::to_vec(&slot.entry)?;
        if entry.len() > MAX_ENTRY {
            let short = Entry {
                message: String::new(),
                ..slot.entry.clone()
            };
            entry = serde_json::to_vec(&short)?;
        }
        if entry.len() > MAX_ENTRY {
            return Err(io::Error::other("the entry is too long"));
        }
        let output = &slot.output[slot.output.len().saturating_sub(MAX_OUTPUT)..];
        let length = |of: usize| u16::try_from(of).unwrap_or(u16::MAX).to_le_bytes();
        let mut bytes = Vec::with_capacity(HEADER + entry.len() + output.len());
        bytes.extend(MAGIC);
        bytes.extend([0; 4]);
        bytes.extend(slot.number.to_le_bytes());
        bytes.extend(length(entry.len()));
        bytes.extend(length(output.len()));
        bytes.extend([0; 4]);
        bytes.extend(entry);
        bytes.extend(output);
        let mut crc = Crc::new();
        crc.update(&bytes[8..]);
        bytes[4..8].copy_from_slice(&crc.sum().to_le_bytes());
        self.0.write_all_at(&bytes, (slot.index * SLOT) as u64)
    }

    /// Waits until all of it is on disk.
    pub fn flush(&self) -> io::Result<()> {
        self.0.sync_data()
    }
}

/// The last lines that a run wrote to its standard error, or to its standard output if there are none; without what is
/// secret. `logs` is the container's folder of logs.
pub fn last_output(logs: &Path, attempt: u32, secrets: &Secrets) -> io::Result<Vec<u8>> {
    let lines = log_lines::last(&log_file(logs, attempt), MAX_TAIL, secrets)?;
    let errors = lines.iter().any(|line| line.is_error);
    let mut text = Vec::new();
    for line in lines.into_iter().filter(|line| line.is_error == errors) {
        text.extend(line.text);
        if line.is_whole {
            text.push(b'\n');
        }
    }
    Ok(text[text.len().saturating_sub(MAX_OUTPUT)..].to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Wall;

    fn slot(index: usize, number: u64, id: u64, reason: &str) -> Slot {
        Slot {
            index,
            number,
            entry: Entry {
                id,
                ..Entry::new(reason, "a message", Wall(7))
            },
            output: vec![b'x'; 5000],
        }
    }

    fn scratch(name: &str) -> std::path::PathBuf {
        let folder =
            std::env::temp_dir().join(format!("coracle-box-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        folder
    }

    #[test]
    fn a_write_that_is_cut_off_anywhere_costs_only_its_own_slot() {
        let folder = scratch("torn");
        let path = folder.join("black-box");
        assert_eq!(read(&path, true).unwrap(), []);
        let writer = Writer::open(&path).unwrap();
        for (index, number, id) in [(0, 1, 1), (2, 2, 2), (1, 3, 1)] {
            writer.put(&slot(index, number, id, "Error")).unwrap();
        }
        writer.flush().unwrap();
        let found = read(&path, true).unwrap();
        let numbers: Vec<u64> = found.iter().map(|slot| slot.number).collect();
        assert_eq!(numbers, [2, 3], "the newer version of an entry counts");
        assert_eq!(found[0].output.len(), MAX_OUTPUT);
        let whole = std::fs::read(&path).unwrap();
        // The last write, to slot 1: torn after each byte, over zeros.
        let end = HEADER + 200;
        for torn in 0..end {
            let mut bytes = whole.clone();
            bytes[SLOT + torn..SLOT * 2].fill(0);
            std::fs::write(&path, &bytes).unwrap();
            let found = read(&path, false).unwrap();
            let numbers: Vec<u64> = found.iter().map(|slot| slot.number).collect();
            assert_eq!(
                numbers,
                [1, 2],
                "torn after {torn} bytes: the former version is there"
            );
        }
        for byte in 0..end {
            let mut bytes = whole.clone();
            bytes[byte] ^= 0x40;
            std::fs::write(&path, &bytes).unwrap();
            assert!(read(&path, true).unwrap().len() <= 3);
        }
        std::fs::write(&path, b"no slots at all").unwrap();
        assert_eq!(read(&path, true).unwrap(), []);
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn the_output_is_the_end_of_standard_error_or_else_of_standard_output() {
        let folder = scratch("output");
        let long = "a".repeat(3000);
        let secret = Secrets::new(&[b"pa55word\nsecond line".to_vec()]);
        for (sentence, log, expected) in [
            (
                "both",
                "T stdout F out\nT stderr F err\n",
                "err\n".to_owned(),
            ),
            (
                "only output",
                "T stdout F one\nT stdout F two\n",
                "one\ntwo\n".to_owned(),
            ),
            (
                "parts of a line",
                "T stderr P:x one \nT stderr F two\n",
                "one two\n".to_owned(),
            ),
            (
                "a torn record",
                "T stderr F one\nT stde",
                "one\n".to_owned(),
            ),
            (
                "a secret",
                "T stderr F is pa55word\nT stderr F second line!\n",
                "is <secret>\n!\n".to_owned(),
            ),
            (
                "the rest of one, in a log that was rotated",
                "T stderr F word is it\nT stderr F word\n",
                "<secret> is it\nword\n".to_owned(),
            ),
            ("nothing", "", String::new()),
            (
                "much",
                &format!("T stderr F {long}\nT stderr F {long}\n"),
                format!("{}\n{long}\n", "a".repeat(MAX_OUTPUT - 3002)),
            ),
        ] {
            std::fs::write(folder.join("3.log"), log).unwrap();
            let found = last_output(&folder, 3, &secret).unwrap();
            assert_eq!(String::from_utf8(found).unwrap(), expected, "{sentence}");
        }
        assert!(last_output(&folder, 4, &secret).is_err());
        std::os::unix::fs::symlink("/etc/passwd", folder.join("5.log")).unwrap();
        assert!(last_output(&folder, 5, &secret).is_err());
        std::fs::remove_dir_all(folder).unwrap();
    }
}
