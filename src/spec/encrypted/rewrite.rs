//! A manifest file whose Secrets are to be encrypted: it is cut into documents, and only those that hold a plain Secret
//! are written again. The others keep every byte, comments included.

use std::collections::BTreeMap;

use super::super::convert::{self, ConvertContext};
use super::super::error::FieldError;
use super::super::parse::{self, parse, text};
use super::super::value::Value;
use super::{APPLIED, Content, FIELD, Opened, Outcome, Plain, found};
use crate::types::Gather;

/// The length of a line of encrypted content.
const LINE: usize = 76;

/// A piece of the file.
#[derive(Debug)]
enum Piece {
    /// It stays as it is written.
    Kept(String),
    /// The line that begins a document, and a document with plain Secrets.
    Secrets(String, Box<Value>),
}

/// A manifest file whose Secrets are to be encrypted.
#[derive(Debug)]
pub struct Manifest(Vec<Piece>);

/// The content of a Secret that is to be encrypted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// The Secret's namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its content with its name and namespace, as it is encrypted.
    pub plain: Plain,
}

impl Manifest {
    /// Reads a manifest file. Documents without a plain Secret are not checked.
    ///
    /// # Errors
    ///
    /// Those of the Secrets. None of them repeats a value.
    pub fn read(bytes: &[u8], file: &str) -> Result<Self, Vec<FieldError>> {
        let whole = match text(bytes) {
            Ok(whole) => whole,
            Err(_) => return Err(checked(bytes, file).err().unwrap_or_default()),
        };
        let mut pieces = Vec::new();
        for (line, mark, body) in documents(whole) {
            // As many lines as come before, so that errors name the right one.
            let padded = "\n".repeat(line) + body;
            let values = match parse(&padded) {
                Ok(values) => values,
                Err(_) => return Err(checked(padded.as_bytes(), file).err().unwrap_or_default()),
            };
            if !values.iter().any(has_plain_secret) {
                pieces.push(Piece::Kept(format!("{mark}{body}")));
                continue;
            }
            checked(padded.as_bytes(), file)?;
            // JSON may have several documents in a row.
            for (index, value) in values.into_iter().enumerate() {
                let mark = match index {
                    0 => mark,
                    _ => "---\n",
                };
                pieces.push(Piece::Secrets(mark.to_owned(), Box::new(value)));
            }
        }
        Ok(Self(pieces))
    }

    /// The contents that are to be encrypted, in the order of the file.
    pub fn parts(&self) -> Vec<Part> {
        let mut parts = Vec::new();
        for piece in &self.0 {
            if let Piece::Secrets(_, value) = piece {
                each_secret(&mut value.clone(), &mut |secret| parts.push(part(secret)));
            }
        }
        parts
    }

    /// The file with the encrypted contents, given in the order of [`Self::parts`], in place of the plain ones.
    pub fn with(self, ciphers: Vec<String>) -> String {
        let mut ciphers = ciphers.into_iter();
        let mut text = String::new();
        for piece in self.0 {
            match piece {
                Piece::Kept(kept) => text += &kept,
                Piece::Secrets(mark, mut value) => {
                    each_secret(&mut value, &mut |secret| {
                        replace(secret, &ciphers.next().unwrap_or_default());
                    });
                    text += &mark;
                    if !mark.is_empty() && !mark.ends_with('\n') {
                        text.push('\n');
                    }
                    text += &parse::yaml(&value);
                }
            }
        }
        text
    }
}

/// The documents of a file: the line on which each begins (from 0), the line that begins it, and its text. In YAML, a line
/// that begins with `---` or `...` ends a document wherever it is, even in quoted text.
fn documents(text: &str) -> Vec<(usize, &str, &str)> {
    let is_mark = |line: &str| {
        let rest = line.strip_prefix("---").or(line.strip_prefix("..."));
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with([' ', '\t', '\r', '\n']))
    };
    let mut cuts = vec![(0, 0, "")];
    let mut offset = 0;
    for (number, line) in text.split_inclusive('\n').enumerate() {
        // What follows the mark on its line is part of the document.
        if is_mark(line) {
            let bare = line[3..].trim().is_empty() || line[3..].trim_start().starts_with('#');
            let mark = if bare { line } else { &line[..3] };
            cuts.push((offset, number, mark));
        }
        offset += line.len();
    }
    let ends = cuts.iter().skip(1).map(|cut| cut.0).chain([text.len()]);
    let pieces = cuts.iter().zip(ends);
    pieces
        .map(|((start, number, mark), end)| {
            let begin = start + mark.len();
            let line = number + usize::from(mark.ends_with('\n'));
            (line, *mark, &text[begin..end])
        })
        .collect()
}

/// The errors of a document with Secrets. Encrypted ones beside the plain ones are not decrypted for that.
fn checked(bytes: &[u8], file: &str) -> Result<(), Vec<FieldError>> {
    let unread = found(bytes).into_iter();
    let opened: Opened = unread.map(|sealed| (sealed, Outcome::Unread)).gather();
    let context = ConvertContext {
        opened: &opened,
        ..ConvertContext::of("")
    };
    convert::documents(bytes, file, &context).map(|_| ())
}

fn is_plain_secret(value: &Value) -> bool {
    let kind = value.get("kind").and_then(Value::scalar_text);
    kind.as_deref() == Some("Secret") && value.get(FIELD).is_none()
        || kind.as_deref() == Some("Secret") && is_mixed(value)
}

/// Whether a Secret has both encrypted and plain content, which is an error.
fn is_mixed(value: &Value) -> bool {
    ["data", "stringData"]
        .iter()
        .any(|f| value.get(f).is_some())
}

fn has_plain_secret(value: &Value) -> bool {
    let mut any = false;
    each_secret(&mut value.clone(), &mut |_| any = true);
    any
}

/// Calls `then` for the document, or each item of a list, that is a plain Secret.
fn each_secret(value: &mut Value, then: &mut impl FnMut(&mut Value)) {
    if is_plain_secret(value) {
        then(value);
        return;
    }
    // Items of a typed list need not name their kind.
    let implied = value.get("kind").and_then(Value::scalar_text).as_deref() == Some("SecretList");
    let Value::Map(fields) = value else { return };
    for (_, items) in fields.iter_mut().filter(|(key, _)| key == "items") {
        let Value::List(items) = items else { continue };
        for item in items {
            if let (true, Value::Map(fields)) = (implied && item.get("kind").is_none(), &mut *item)
            {
                let word = |word: &str| Value::String(word.to_owned());
                fields.insert(0, ("kind".to_owned(), word("Secret")));
                if !fields.iter().any(|(key, _)| key == "apiVersion") {
                    fields.insert(0, ("apiVersion".to_owned(), word("v1")));
                }
            }
            if is_plain_secret(item) {
                then(item);
            }
        }
    }
}

/// The content of a valid Secret.
fn part(secret: &Value) -> Part {
    let metadata = secret.get("metadata");
    let word = |key: &str| {
        let found = metadata.and_then(|metadata| metadata.get(key));
        found.and_then(Value::scalar_text).unwrap_or_default()
    };
    let map = |field: &str| -> BTreeMap<String, String> {
        let Some(Value::Map(entries)) = secret.get(field) else {
            return BTreeMap::new();
        };
        let entries = entries.iter();
        entries
            .map(|(key, value)| (key.clone(), value.scalar_text().unwrap_or_default()))
            .gather()
    };
    let namespace = match word("namespace") {
        none if none.is_empty() => "default".to_owned(),
        given => given,
    };
    let content = Content {
        namespace: namespace.clone(),
        name: word("name"),
        data: map("data"),
        string_data: map("stringData"),
    };
    Part {
        namespace,
        name: content.name.clone(),
        // Texts with keys that are texts cannot fail.
        plain: Plain(serde_json::to_vec(&content).unwrap_or_default()),
    }
}

/// Puts the encrypted content in the place of the plain one, and removes what repeats it.
fn replace(secret: &mut Value, cipher: &str) {
    let clean: Vec<char> = cipher.chars().filter(|c| !c.is_whitespace()).collect();
    let lines: Vec<String> = clean.chunks(LINE).map(String::from_iter).collect();
    let Value::Map(fields) = secret else { return };
    fields.retain(|(key, _)| !["data", "stringData"].contains(&key.as_str()));
    for (_, metadata) in fields.iter_mut().filter(|(key, _)| key == "metadata") {
        let Value::Map(metadata) = metadata else {
            continue;
        };
        for (_, annotations) in metadata.iter_mut().filter(|(key, _)| key == "annotations") {
            annotations.remove(APPLIED);
        }
        metadata.retain(|(key, value)| key != "annotations" || *value != Value::Map(Vec::new()));
    }
    fields.push((FIELD.to_owned(), Value::String(lines.join("\n"))));
}
