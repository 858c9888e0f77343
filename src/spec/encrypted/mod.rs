//! Secrets whose content lies encrypted in the manifest: the field `encryptedData`, in place of `data` and
//! `stringData`, holds what `systemd-creds` made of them. The node has it decrypted and hands over the outcome; name,
//! namespace and type stay readable, and what is encrypted repeats name and namespace.

mod rewrite;

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::error::{Path, Report};
use super::parse::{parse, text};
use super::value::Value;

pub use rewrite::{Manifest, Part};

/// The field that holds the encrypted content.
pub const FIELD: &str = "encryptedData";

/// The annotation in which kubectl keeps a document that it applied: all of its content.
pub(super) const APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// The longest encrypted content in bytes: a credential of systemd (1 MiB) with its header, in base64.
const MAX_CIPHER: usize = 1_600_000;

/// The longest name of a credential (`credential_name_valid` of systemd).
const MAX_NAME: usize = 255;

/// The encrypted content of a Secret.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Sealed {
    /// The Secret's namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The content in base64, without line breaks.
    pub cipher: String,
}

impl Sealed {
    /// The name of the credential: it belongs to this Secret and to no other.
    pub fn credential(&self) -> String {
        credential(&self.namespace, &self.name)
    }

    /// Identifies the content with its name.
    pub fn digest(&self) -> [u8; 32] {
        let mut hash = Sha256::new();
        for part in [&self.namespace, &self.name, &self.cipher] {
            hash.update(part.as_bytes());
            hash.update([0]);
        }
        hash.finalize().into()
    }
}

/// The name under which the content of a Secret is encrypted: `<namespace>.<name>`, or a digest if that is too long. A
/// namespace has no dot, so no two Secrets share a name.
pub fn credential(namespace: &str, name: &str) -> String {
    let plain = format!("{namespace}.{name}");
    if plain.len() <= MAX_NAME {
        return plain;
    }
    let hash = Sha256::digest(plain.as_bytes());
    let hash: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256-{hash}")
}

/// Decrypted content. It is in no text that is made for people.
#[derive(Clone, PartialEq, Eq)]
pub struct Plain(pub Vec<u8>);

impl fmt::Debug for Plain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Plain(…)")
    }
}

/// What became of an encrypted content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// It was decrypted.
    Plain(Plain),
    /// It could not be decrypted, and why: the document is refused.
    Refused(String),
    /// It could not be decrypted, which says nothing about the document: the rest of it is checked.
    Unread,
}

/// The outcomes of a file's encrypted contents.
pub type Opened = BTreeMap<Sealed, Outcome>;

/// What is encrypted.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Content {
    namespace: String,
    name: String,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    data: BTreeMap<String, String>,
    #[serde(
        default,
        rename = "stringData",
        skip_serializing_if = "BTreeMap::is_empty"
    )]
    string_data: BTreeMap<String, String>,
}

/// The encrypted contents of a manifest file. A file that cannot be read has none; its conversion reports why.
pub fn found(bytes: &[u8]) -> Vec<Sealed> {
    let Ok(text) = text(bytes) else {
        return Vec::new();
    };
    // Nearly all files have none and are not parsed for it.
    if !text.contains(FIELD) {
        return Vec::new();
    }
    let mut all = Vec::new();
    for value in parse(text).unwrap_or_default() {
        collect(&value, &mut all);
    }
    all
}

fn collect(value: &Value, all: &mut Vec<Sealed>) {
    if let Some(Value::String(written)) = value.get(FIELD) {
        let metadata = value.get("metadata");
        let word = |key: &str| match metadata.and_then(|metadata| metadata.get(key)) {
            Some(Value::String(word)) => word.clone(),
            _ => String::new(),
        };
        all.push(sealed(&word("namespace"), &word("name"), written));
    }
    if let Some(Value::List(items)) = value.get("items") {
        items.iter().for_each(|item| collect(item, all));
    }
}

fn sealed(namespace: &str, name: &str, written: &str) -> Sealed {
    let namespace = match namespace {
        "" => "default",
        given => given,
    };
    Sealed {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        cipher: written.split_ascii_whitespace().collect(),
    }
}

/// Takes the encrypted content out of a Secret's document.
pub(crate) fn take(value: &mut Value, path: &Path<'_>, report: &Report) -> Option<String> {
    let at = path.field(FIELD);
    let written = match value.get(FIELD)? {
        Value::String(text) => Some(text.clone()),
        other => {
            report.error(&at, format_args!("must be a string, not {}", other.kind()));
            None
        }
    };
    for field in ["data", "stringData"] {
        if value.get(field).is_some_and(|other| *other != Value::Null) {
            report.error_hint(
                &path.field(field),
                format_args!("Forbidden: may not be set when `{FIELD}` is"),
                "encrypt all of it: `coracle secret encrypt` writes the document again".to_owned(),
            );
        }
    }
    value.remove(FIELD);
    written
}

/// The decrypted content as the fields `data` and `stringData` of a document, or `None` if it is unknown. The outcome is
/// looked up by the name of the document and the text as it was written.
pub(crate) fn content(
    (namespace, name): (&str, &str),
    written: &str,
    opened: &Opened,
    path: &Path<'_>,
    report: &Report,
) -> Option<Value> {
    let at = path.field(FIELD);
    let sealed = sealed(namespace, name, written);
    let is_symbol = |b: u8| b.is_ascii_alphanumeric() || b"+/=".contains(&b);
    let fault = match sealed.cipher.len() {
        0 => Some("is empty"),
        long if long > MAX_CIPHER => Some("is longer than any that `systemd-creds` makes"),
        _ if !sealed.cipher.bytes().all(is_symbol) => Some("is not base64"),
        _ => None,
    };
    if let Some(fault) = fault {
        let how = "write it with `coracle secret encrypt`";
        report.error_hint(&at, fault, how.to_owned());
        return None;
    }
    match opened.get(&sealed) {
        Some(Outcome::Plain(plain)) => fields(&sealed, plain, &at, report),
        Some(Outcome::Refused(why)) => {
            report.error(&at, format_args!("could not be decrypted: {why}"));
            None
        }
        Some(Outcome::Unread) => None,
        None => {
            report.error(
                &at,
                "is not decrypted here: encrypted Secrets are read from manifest files only",
            );
            None
        }
    }
}

/// The fields of decrypted content. No message repeats any of it.
fn fields(sealed: &Sealed, plain: &Plain, at: &Path<'_>, report: &Report) -> Option<Value> {
    let Ok(content) = serde_json::from_slice::<Content>(&plain.0) else {
        let what = "was decrypted, but is not what `coracle secret encrypt` writes";
        report.error(at, what);
        return None;
    };
    if (&content.namespace, &content.name) != (&sealed.namespace, &sealed.name) {
        let what = "was encrypted for a Secret of another name or namespace";
        report.error(at, what);
        return None;
    }
    let map = |entries: BTreeMap<String, String>| {
        let entries = entries.into_iter();
        Value::Map(entries.map(|(k, v)| (k, Value::String(v))).collect())
    };
    Some(Value::Map(vec![
        ("data".to_owned(), map(content.data)),
        ("stringData".to_owned(), map(content.string_data)),
    ]))
}

#[cfg(test)]
#[path = "encrypted_test.rs"]
mod tests;
