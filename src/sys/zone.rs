//! The tz database of the machine.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::file;

/// Where the files of the zones are, by name.
const DATABASE: &str = "/usr/share/zoneinfo";
/// The machine's own zone.
const LOCAL: &str = "/etc/localtime";
/// The largest files are 4 KiB.
const MAX_BYTES: u64 = 64 << 10;

/// Reads the files of these time zones; the empty name is the machine's own zone. What cannot be read is left out.
pub fn read(names: BTreeSet<String>) -> BTreeMap<String, Vec<u8>> {
    let content = |name: String| {
        let path = match name.as_str() {
            "" => LOCAL.into(),
            name if is_name(name) => Path::new(DATABASE).join(name),
            _ => return None,
        };
        Some((name, file::read_bounded(&path, MAX_BYTES).ok()?))
    };
    names.into_iter().filter_map(content).collect()
}

/// Whether it stays below the folder.
fn is_name(name: &str) -> bool {
    let part = |part: &str| {
        let mut letters = part.bytes();
        let letter = |c: u8| c.is_ascii_alphanumeric() || b"_+-".contains(&c);
        !part.is_empty() && letters.all(letter)
    };
    name.len() <= 100 && name.split('/').all(part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_below_the_folder() {
        for (name, expected) in [
            ("Europe/Berlin", true),
            ("America/Argentina/Buenos_Aires", true),
            ("Etc/GMT+5", true),
            ("../../etc/passwd", false),
            ("/etc/passwd", false),
            ("Europe//Berlin", false),
            ("posix/./UTC", false),
            ("a\0b", false),
        ] {
            assert_eq!(is_name(name), expected, "{name}");
        }
    }
}
