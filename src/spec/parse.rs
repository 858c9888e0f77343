//! Parsing of YAML and JSON into trees, with limits on size, depth and aliases.
//!
//! No other file knows the parsers.

use std::cell::Cell;

use serde::de::DeserializeSeed;

use super::error::{Hint, Problem};
use super::escape;
use super::syntax::{explain, place};
use super::value::{MAX_VALUES, Reader, Value};

/// Limit of a manifest file in bytes, as the kubelet's.
pub const MAX_BYTES: usize = 10 << 20;

/// Returns the file as text.
pub(crate) fn text(bytes: &[u8]) -> Result<&str, Problem> {
    if bytes.len() > MAX_BYTES {
        let message = format!(
            "file has {} bytes, more than the limit of 10 MiB",
            bytes.len()
        );
        return Err(syntax(message, (1, 1)));
    }
    if [GZIP, ELF, ZIP, ZSTD]
        .iter()
        .any(|magic| bytes.starts_with(magic))
        || is_tar(bytes)
    {
        let hint = "manifests are YAML or JSON; image archives are imported by `coracle image import FILE`";
        return Err(Problem {
            hint: Some(Hint::Text(hint.to_owned())),
            ..syntax("file is not text".to_owned(), (1, 1))
        });
    }
    if let Some(encoding) = other_encoding(bytes) {
        let message = format!("file is {encoding}, not UTF-8");
        return Err(Problem {
            hint: Some(Hint::Text(UTF_8.to_owned())),
            ..syntax(message, (1, 1))
        });
    }
    match std::str::from_utf8(bytes) {
        Ok(text) => Ok(text.strip_prefix('\u{feff}').unwrap_or(text)),
        Err(error) => {
            let valid = String::from_utf8_lossy(&bytes[..error.valid_up_to()]);
            Err(Problem {
                hint: Some(Hint::Text(UTF_8.to_owned())),
                ..syntax("file is not UTF-8".to_owned(), place(&valid, valid.len()))
            })
        }
    }
}

const GZIP: &[u8] = b"\x1f\x8b";
const ELF: &[u8] = b"\x7fELF";
const ZIP: &[u8] = b"PK\x03\x04";
const ZSTD: &[u8] = b"\x28\xb5\x2f\xfd";

fn is_tar(bytes: &[u8]) -> bool {
    bytes.get(257..262) == Some(b"ustar") && bytes.contains(&0)
}

const UTF_8: &str = "save it as UTF-8";

/// Returns another encoding that some editors and shells write: recognized by its mark, or by zero bytes beside the
/// first letters.
fn other_encoding(bytes: &[u8]) -> Option<&'static str> {
    match bytes {
        [0xff, 0xfe, 0, 0, ..] | [0, 0, 0xfe, 0xff, ..] | [_, 0, 0, 0, ..] | [0, 0, 0, _, ..] => {
            Some("UTF-32")
        }
        [0xff, 0xfe, ..] | [0xfe, 0xff, ..] | [_, 0, _, 0, ..] | [0, _, 0, _, ..] => Some("UTF-16"),
        _ => None,
    }
}

fn syntax(message: String, at: (usize, usize)) -> Problem {
    Problem {
        document: 0,
        path: String::new(),
        occurrence: 0,
        message,
        hint: None,
        at: Some(at),
    }
}

/// Parses all documents; empty ones are [`Value::Null`].
pub(crate) fn parse(text: &str) -> Result<Vec<Value>, Problem> {
    parse_tagged(text, &[])
}

/// Like [`parse`]; values may have these tags ([`Reader::tags`]).
pub(crate) fn parse_tagged(
    text: &str,
    tags: &'static [&'static str],
) -> Result<Vec<Value>, Problem> {
    if let Some(at) = too_deep(text) {
        let message = format!("nested more than {MAX_BRACKETS} brackets deep");
        return Err(syntax(message, at));
    }
    if let Some(at) = too_many(text) {
        let message = format!("more than {MAX_ENTRIES} entries and lines in one file");
        return Err(syntax(message, at));
    }
    let left = Cell::new(MAX_VALUES);
    if text.trim_start().starts_with('{') {
        // Text that is not JSON may be YAML flow style; then the YAML error counts.
        if let Ok(values) = parse_json(text, Reader::plain(&left)) {
            return Ok(values);
        }
        left.set(MAX_VALUES);
    }
    let mended = escape::mend(text);
    let mut values = Vec::new();
    for document in serde_yaml::Deserializer::from_str(&mended.text) {
        match (Reader { left: &left, tags }).deserialize(document) {
            Ok(value) => values.push(value),
            Err(error) => {
                let place = error.location().map(|at| (at.line(), at.column()));
                let message = error.to_string();
                // An empty stream is not an error.
                if message.starts_with("EOF while parsing") {
                    break;
                }
                let explained = explain(&mended.text, place, &message);
                return Err(Problem {
                    hint: explained.hint.map(|hint| Hint::Text(hint.to_owned())),
                    ..syntax(explained.message, mended.written(explained.at))
                });
            }
        }
    }
    Ok(values)
}

/// Limit of open brackets; a file beyond it is not parsed, because the YAML scanner's time grows with their square.
/// Brackets in strings count too; they come in pairs or in small numbers.
const MAX_BRACKETS: usize = 512;

fn too_deep(text: &str) -> Option<(usize, usize)> {
    let mut open = 0_usize;
    for (number, line) in text.lines().enumerate() {
        for (column, byte) in line.bytes().enumerate() {
            match byte {
                b'[' | b'{' => open += 1,
                b']' | b'}' => open = open.saturating_sub(1),
                _ => {}
            }
            if open > MAX_BRACKETS {
                return Some((number + 1, column + 1));
            }
        }
    }
    None
}

/// Limit of entries and lines; a file beyond it is not parsed, because the YAML reader takes some 400 bytes for each,
/// all at once. Those in strings count too.
const MAX_ENTRIES: usize = 200_000;

fn too_many(text: &str) -> Option<(usize, usize)> {
    let mut found = 0_usize;
    for (number, line) in text.lines().enumerate() {
        let line = line.as_bytes();
        found += usize::from(!line.is_empty());
        for (column, byte) in line.iter().enumerate() {
            let follows = |space: &u8| matches!(space, b' ' | b'\t');
            found += match byte {
                b',' | b'[' | b'{' => 1,
                b':' | b'-' | b'?' => usize::from(line.get(column + 1).is_some_and(follows)),
                _ => 0,
            };
            if found > MAX_ENTRIES {
                return Some((number + 1, column + 1));
            }
        }
    }
    None
}

/// A document as YAML.
pub(crate) fn yaml(value: &Value) -> String {
    // Every tree has a form in YAML.
    serde_yaml::to_string(value).unwrap_or_default()
}

/// A document as JSON.
pub(crate) fn json(value: &Value) -> String {
    // Every tree has a form in JSON.
    serde_json::to_string(value).unwrap_or_default()
}

/// Parses one or more JSON documents in a row.
fn parse_json(text: &str, reader: Reader<'_>) -> Result<Vec<Value>, serde_json::Error> {
    let mut values = Vec::new();
    let mut stream = serde_json::Deserializer::from_str(text);
    while stream.end().is_err() {
        values.push(reader.deserialize(&mut stream)?);
    }
    Ok(values)
}
