//! Trees as they are read and built: look-ups that take a value in each form that compose allows for it.

use crate::spec::value::Value;

/// The entries of a mapping.
pub(super) type Entries = Vec<(String, Value)>;

/// The key of an entry that becomes a comment.
pub(super) const COMMENT: &str = "#";

pub(super) fn text(text: impl Into<String>) -> Value {
    Value::String(text.into())
}

pub(super) fn number(number: impl Into<i128>) -> Value {
    Value::Int(number.into())
}

pub(super) fn map<const N: usize>(mut entries: [(&str, Value); N]) -> Value {
    map_of(&mut entries)
}

fn map_of(entries: &mut [(&str, Value)]) -> Value {
    let mut all = Entries::new();
    for (key, value) in entries {
        all.push(((*key).to_owned(), std::mem::replace(value, Value::Null)));
    }
    Value::Map(all)
}

/// A mapping whose values are texts.
pub(super) fn map_of_texts(entries: &[(&str, &str)]) -> Value {
    let mut all = Entries::new();
    for (key, value) in entries {
        all.push(((*key).to_owned(), text(*value)));
    }
    Value::Map(all)
}

/// A switch that is on.
pub(super) fn on() -> Value {
    Value::Bool(true)
}

pub(super) fn texts(words: Vec<String>) -> Value {
    Value::List(words.into_iter().map(Value::String).collect())
}

/// A document of Kubernetes.
pub(super) fn document(version: &str, kind: &str, metadata: Entries, spec: Entries) -> Value {
    let mut all = Entries::new();
    set_text(&mut all, "apiVersion", version);
    set_text(&mut all, "kind", kind);
    set(&mut all, "metadata", Value::Map(metadata));
    set(&mut all, "spec", Value::Map(spec));
    Value::Map(all)
}

/// What a comment can be added to.
pub(super) trait Commented {
    fn comment(&mut self, sentence: String);
}

impl Commented for Entries {
    fn comment(&mut self, sentence: String) {
        self.push((COMMENT.to_owned(), text(sentence)));
    }
}

impl Commented for Vec<Value> {
    fn comment(&mut self, sentence: String) {
        self.push(map([(COMMENT, text(sentence))]));
    }
}

pub(super) fn entries(value: Option<&Value>) -> &[(String, Value)] {
    match value {
        Some(Value::Map(entries)) => entries,
        _ => &[],
    }
}

/// The value of a key.
pub(super) fn find<'e>(entries: &'e [(String, Value)], key: &str) -> Option<&'e Value> {
    let found = entries.iter().find(|(known, _)| known == key);
    found.map(|(_, value)| value)
}

pub(super) fn find_mut<'e>(entries: &'e mut Entries, key: &str) -> Option<&'e mut Value> {
    let found = entries.iter_mut().find(|(known, _)| known == key);
    found.map(|(_, value)| value)
}

/// The mapping at a key, which is made if there is none.
pub(super) fn inner<'e>(entries: &'e mut Entries, key: &str) -> &'e mut Entries {
    if !matches!(find(entries, key), Some(Value::Map(_))) {
        set(entries, key, Value::Map(Vec::new()));
    }
    match find_mut(entries, key) {
        Some(Value::Map(found)) => found,
        _ => unreachable!("it was made"),
    }
}

pub(super) fn has(entries: &[(String, Value)], key: &str) -> bool {
    find(entries, key).is_some()
}

pub(super) fn remove(entries: &mut Entries, key: &str) {
    entries.retain(|(known, _)| known != key);
}

/// Sets a key that is not there yet, or replaces its value.
pub(super) fn set(entries: &mut Entries, key: &str, value: Value) {
    match find_mut(entries, key) {
        Some(old) => *old = value,
        None => entries.push((key.to_owned(), value)),
    }
}

pub(super) fn set_text(entries: &mut Entries, key: &str, value: &str) {
    set(entries, key, text(value));
}

pub(super) fn set_on(entries: &mut Entries, key: &str) {
    set(entries, key, on());
}

/// Sets a list, unless it is empty.
pub(super) fn set_list(entries: &mut Entries, key: &str, items: Vec<Value>) {
    if !items.is_empty() {
        set(entries, key, Value::List(items));
    }
}

/// Sets a mapping, unless it is empty.
pub(super) fn set_map(entries: &mut Entries, key: &str, inner: Entries) {
    if !inner.is_empty() {
        set(entries, key, Value::Map(inner));
    }
}

/// The items of a list; a single value is a list of one, nothing is an empty one.
pub(super) fn items(value: Option<&Value>) -> &[Value] {
    match value {
        None | Some(Value::Null) => &[],
        Some(Value::List(items)) => items,
        Some(single) => std::slice::from_ref(single),
    }
}

/// Makes texts of all scalars: compose takes any of them for a text. A number that is the mode of a file stays one, as
/// its digits alone do not say what it is.
pub(super) fn plain(value: &mut Value) {
    match value {
        Value::Null | Value::String(_) => {}
        Value::List(items) => {
            for item in items {
                let mode = item.get("mode").cloned();
                plain(item);
                if let (Value::Map(fields), Some(mode @ Value::Int(_))) = (item, mode) {
                    set(fields, "mode", mode);
                }
            }
        }
        Value::Map(entries) => entries.iter_mut().for_each(|(_, value)| plain(value)),
        scalar => *scalar = text(scalar.scalar_text().unwrap_or_default()),
    }
}

/// A value as text, if it is one; see [`plain`].
pub(super) fn word(value: &Value) -> Option<&str> {
    match value {
        Value::Null => Some(""),
        Value::String(text) => Some(text),
        _ => None,
    }
}

/// The texts of a list, or the single one.
pub(super) fn scalars(value: Option<&Value>) -> Vec<&str> {
    items(value).iter().filter_map(word).collect()
}

/// The text of a key; `None` if there is nothing.
pub(super) fn scalar<'v>(value: &'v Value, key: &str) -> Option<&'v str> {
    match value.get(key) {
        Some(Value::String(text)) => Some(text),
        _ => None,
    }
}

/// Whether a key is on. A variable may have made the value a string.
pub(super) fn is_on(value: &Value, key: &str) -> bool {
    scalar(value, key).is_some_and(is_yes)
}

/// Whether a word means that something is on, in whatever case.
pub(super) fn is_yes(word: &str) -> bool {
    let word = word.to_ascii_lowercase();
    matches!(&*word, "true" | "yes" | "1" | "on" | "y" | "t")
}

/// The pairs of a mapping, or of a list of `KEY=VALUE`; without a value it is `None`.
pub(super) fn pairs(value: Option<&Value>) -> Vec<(&str, Option<&str>)> {
    let mut all = Vec::new();
    match value {
        Some(Value::Map(entries)) => {
            for (key, value) in entries {
                let given = Some(value).filter(|value| **value != Value::Null);
                all.push((&**key, given.and_then(word)));
            }
        }
        value => {
            for word in scalars(value) {
                all.push(match word.split_once('=') {
                    Some((key, value)) => (key, Some(value)),
                    None => (word, None),
                });
            }
        }
    }
    all
}
