//! A text as values of Secrets are compared with it: without what escaping adds, and with the places that each byte
//! came from. Values are made plain in the same way, so that a value matches each of its escaped forms: those of JSON,
//! of Rust (`\u{1b}`, what our tables and messages print), and each of them within the other.

/// What marks a text as cut (`api/events.rs`, `effects/probe/hook.rs`).
const DOTS: &[u8] = b"...";

/// What a backslash means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Backslash {
    /// Nothing: what follows it stands for itself.
    Nothing,
    /// It begins an escaped character, however many there are.
    Escapes,
}

/// A plain text.
#[derive(Debug, Default)]
pub(super) struct Plain {
    pub(super) bytes: Vec<u8>,
    /// For each byte, where its character begins and ends in the text. Dropped backslashes belong to what follows.
    places: Vec<(usize, usize)>,
    /// Where the text may have been cut: lengths of `bytes`, ascending.
    pub(super) cuts: Vec<usize>,
}

impl Plain {
    /// Makes a text plain. `lines`: any of its lines may have been cut.
    ///
    /// A tab counts as a space. Other control characters but newlines are dropped, and what is no UTF-8 or beyond
    /// 16 bits, of which programs write other forms.
    pub(super) fn new(text: &[u8], backslash: Backslash, lines: bool) -> Self {
        let mut plain = Self::default();
        let mut at = 0;
        for chunk in text.utf8_chunks() {
            let (valid, end) = (chunk.valid(), at + chunk.valid().len());
            // Where dropped backslashes begin.
            let mut from = at;
            while at < end {
                let rest = &valid[valid.len() - (end - at)..];
                let next = rest.chars().next().unwrap_or_default();
                let (length, meant) = match (next, backslash) {
                    ('\\', Backslash::Nothing) => (1, None),
                    ('\\', Backslash::Escapes) => escaped(rest),
                    _ => (next.len_utf8(), Some(next)),
                };
                if text[at..].starts_with(DOTS) || lines && next == '\n' {
                    plain.cuts.push(plain.bytes.len());
                }
                at += length;
                match meant.and_then(counted) {
                    Some(char) => plain.add(char, (from, at)),
                    None if next == '\\' => continue,
                    None => {}
                }
                from = at;
            }
            at += chunk.invalid().len();
        }
        plain.cuts.push(plain.bytes.len());
        plain
    }

    fn add(&mut self, char: char, place: (usize, usize)) {
        let mut utf8 = [0; 4];
        for byte in char.encode_utf8(&mut utf8).bytes() {
            self.bytes.push(byte);
            self.places.push(place);
        }
    }

    /// The place of some bytes in the text.
    pub(super) fn place(&self, first: usize, end: usize) -> (usize, usize) {
        (self.places[first].0, self.places[end - 1].1)
    }
}

/// A character as it is compared; `None`: it is dropped.
fn counted(char: char) -> Option<char> {
    match char {
        '\t' => Some(' '),
        '\n' => Some(char),
        '\\' | char::REPLACEMENT_CHARACTER => None,
        char => (!char.is_control() && char < '\u{10000}').then_some(char),
    }
}

/// The length of what a text begins with, backslashes and what they escape, and the character that is meant.
fn escaped(text: &str) -> (usize, Option<char>) {
    let tail = text.trim_start_matches('\\');
    let slashes = text.len() - tail.len();
    let digits = |from: usize, most: usize| {
        let digits = tail.bytes().skip(from).take(most);
        digits.take_while(u8::is_ascii_hexdigit).count()
    };
    let (braces, from, most) = match tail.as_bytes() {
        [b't', ..] => return (slashes + 1, Some('\t')),
        [b'n', ..] => return (slashes + 1, Some('\n')),
        [b'r' | b'b' | b'f' | b'0', ..] => return (slashes + 1, None),
        [b'u', b'{', ..] => (1, 2, 6),
        [b'u', ..] => (0, 1, 4),
        [b'x', ..] => (0, 1, 2),
        _ => return (slashes, None),
    };
    let found = digits(from, most);
    let (end, after) = (from + found, &tail[from + found..]);
    let whole = match braces {
        1 => found > 0 && after.starts_with('}'),
        _ => found == most,
    };
    match whole {
        true => {
            let code = u32::from_str_radix(&tail[from..end], 16).unwrap_or_default();
            // Half of a pair is no character.
            (slashes + end + braces, char::from_u32(code))
        }
        // Cut in its middle.
        false if after.is_empty() || after.starts_with("...") || after.starts_with('\n') => {
            (slashes + end, None)
        }
        false => (slashes, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_way_of_escaping_a_text_leads_to_the_same_one() {
        for text in [
            "plain",
            "a\"b\\c\td\u{1b}e'f",
            "C:\\temp\\u0041\\new\n",
            "ends in \\",
            "\\\\\t\0x\r\u{7f}\u{85}\u{200e}\u{301}\u{fffd}\u{1f600}",
        ] {
            let plain = |text: &str| Plain::new(text.as_bytes(), Backslash::Escapes, false).bytes;
            let debug = format!("{text:?}");
            let json = serde_json::to_string(text).unwrap();
            let twice = serde_json::to_string(&debug[1..debug.len() - 1]).unwrap();
            let wanted = plain(text);
            assert_eq!(plain(&text.escape_debug().to_string()), wanted, "{text:?}");
            assert_eq!(
                plain(&text.escape_default().to_string()),
                wanted,
                "{text:?}"
            );
            for quoted in [debug, json, twice] {
                let inner = &quoted[1..quoted.len() - 1];
                assert_eq!(plain(inner), wanted, "{quoted}");
            }
        }
    }

    #[test]
    fn an_escape_that_is_cut_off_counts_for_nothing() {
        for text in ["ab\\u{1", "ab\\u001...", "ab\\x", "ab\\"] {
            let plain = Plain::new(text.as_bytes(), Backslash::Escapes, false);
            assert!(
                plain.bytes.starts_with(b"ab") && plain.cuts[0] == 2,
                "{text}: {plain:?}"
            );
        }
    }
}
