//! Is it YAML or JSON at all? Bytes become trees, within limits on size, depth and aliases.
//!
//! The only file that knows the parsers.

use std::cell::Cell;

use serde::de::DeserializeSeed;

use super::error::Problem;
use super::value::{MAX_VALUES, Reader, Value};

/// Largest manifest file, the kubelet's limit.
pub const MAX_BYTES: usize = 10 << 20;

/// The file as text.
pub(crate) fn text(bytes: &[u8]) -> Result<&str, Problem> {
    if bytes.len() > MAX_BYTES {
        let message = format!(
            "file has {} bytes, more than the limit of 10 MiB",
            bytes.len()
        );
        return Err(syntax(message, (1, 1)));
    }
    match std::str::from_utf8(bytes) {
        Ok(text) => Ok(text.strip_prefix('\u{feff}').unwrap_or(text)),
        Err(error) => {
            let valid = String::from_utf8_lossy(&bytes[..error.valid_up_to()]);
            let line = valid.matches('\n').count() + 1;
            let column = valid.chars().rev().take_while(|c| *c != '\n').count() + 1;
            Err(syntax("file is not UTF-8".to_owned(), (line, column)))
        }
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

/// All documents, empty ones as [`Value::Null`].
pub(crate) fn parse(text: &str) -> Result<Vec<Value>, Problem> {
    let left = Cell::new(MAX_VALUES);
    if let Some(at) = too_deep(text) {
        let message = format!("nested more than {MAX_BRACKETS} brackets deep");
        return Err(syntax(message, at));
    }
    if text.trim_start().starts_with('{') {
        // What is no JSON may still be YAML in braces, whose error then counts.
        if let Ok(values) = parse_json(text, Reader { left: &left }) {
            return Ok(values);
        }
        left.set(MAX_VALUES);
    }
    let mut values = Vec::new();
    for document in serde_yaml::Deserializer::from_str(text) {
        match (Reader { left: &left }).deserialize(document) {
            Ok(value) => values.push(value),
            Err(error) => {
                let place = error.location().map(|at| (at.line(), at.column()));
                let message = error.to_string();
                // An empty stream is no error.
                if message.starts_with("EOF while parsing") {
                    break;
                }
                // The place is shown before the message; it need not be in it too.
                let bare = match message.split(" at line ").next().unwrap_or_default() {
                    "repetition limit exceeded" => "too many aliases of aliases",
                    bare => bare,
                };
                return Err(syntax(
                    format!("not valid YAML: {bare}"),
                    place.unwrap_or((1, 1)),
                ));
            }
        }
    }
    Ok(values)
}

/// Brackets open at once, beyond which a file is not even parsed: the YAML scanner's time grows with their square.
/// They are counted in text too, where they come in pairs or in small numbers.
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

/// One or more JSON documents after one another.
fn parse_json(text: &str, reader: Reader<'_>) -> Result<Vec<Value>, serde_json::Error> {
    let mut values = Vec::new();
    let mut stream = serde_json::Deserializer::from_str(text);
    while stream.end().is_err() {
        values.push(reader.deserialize(&mut stream)?);
    }
    Ok(values)
}
