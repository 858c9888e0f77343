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

pub(super) fn map<const N: usize>(entries: [(&str, Value); N]) -> Value {
    Value::Map(entries.map(|(key, value)| (key.to_owned(), value)).into())
}

pub(super) fn texts(words: impl IntoIterator<Item = String>) -> Value {
    Value::List(words.into_iter().map(Value::String).collect())
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

/// Sets a key that is not there yet, or replaces its value.
pub(super) fn set(entries: &mut Entries, key: &str, value: Value) {
    match entries.iter_mut().find(|(k, _)| k == key) {
        Some((_, old)) => *old = value,
        None => entries.push((key.to_owned(), value)),
    }
}

/// The items of a list; a single value is a list of one, nothing is an empty one.
pub(super) fn items(value: Option<&Value>) -> Vec<&Value> {
    match value {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::List(items)) => items.iter().collect(),
        Some(single) => vec![single],
    }
}

/// The scalars of a list, or the single one.
pub(super) fn scalars(value: Option<&Value>) -> Vec<String> {
    let items = items(value).into_iter();
    items.filter_map(Value::scalar_text).collect()
}

/// A scalar as text; `None` if there is nothing.
pub(super) fn scalar(value: &Value, key: &str) -> Option<String> {
    let text = value.get(key).filter(|v| **v != Value::Null)?;
    text.scalar_text()
}

/// Whether a key is on. A variable may have made the value a string.
pub(super) fn is_on(value: &Value, key: &str) -> bool {
    scalar(value, key).is_some_and(|word| is_yes(&word))
}

/// Whether a word means that something is on, in whatever case.
pub(super) fn is_yes(word: &str) -> bool {
    let word = word.to_ascii_lowercase();
    matches!(&*word, "true" | "yes" | "1" | "on" | "y" | "t")
}

/// The pairs of a mapping, or of a list of `KEY=VALUE`; without a value it is `None`.
pub(super) fn pairs(value: Option<&Value>) -> Vec<(String, Option<String>)> {
    match value {
        Some(Value::Map(entries)) => {
            let pair = |(key, value): &(String, Value)| {
                let given = Some(value).filter(|v| **v != Value::Null);
                (key.clone(), given.and_then(Value::scalar_text))
            };
            entries.iter().map(pair).collect()
        }
        value => {
            let words = scalars(value).into_iter();
            let pair = |word: String| match word.split_once('=') {
                Some((key, value)) => (key.to_owned(), Some(value.to_owned())),
                None => (word, None),
            };
            words.map(pair).collect()
        }
    }
}
