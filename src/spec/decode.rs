//! Decoding of a [`Value`] into a Kubernetes object through the object's own `Deserialize`. It reports *every* unknown
//! field and wrong type: after an error it supplies an empty value of the right type and continues.
//!
//! The field names come from the generated types themselves (`deserialize_struct`), so there is no table to keep.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::fmt;

use serde::de::{self, Deserialize, DeserializeOwned, DeserializeSeed, IntoDeserializer, Visitor};

use super::error::{Path, Report};
use super::value::{MAX_VALUES, Reader, Value};
use super::{belongs, suggest, volume};

/// Decodes `value`. `None` only after an error for which no empty value can stand in.
pub(crate) fn decode<'de, T: Deserialize<'de>>(
    value: &Value,
    path: &Path<'_>,
    report: &Report,
) -> Option<T> {
    let node = Node {
        value,
        path,
        report,
    };
    match T::deserialize(node) {
        Ok(decoded) => Some(decoded),
        Err(Failure(message)) => {
            if let Some(message) = message {
                report.error(path, message);
            }
            None
        }
    }
}

/// Reads an object that coracle's API shows: as [`decode`] does, so that the program has one reader of pods, which takes
/// 200 kB. Fields that are unknown do not matter.
///
/// `None` if it is no object at all.
pub fn object<T: DeserializeOwned>(json: &serde_json::Value) -> Option<T> {
    let left = Cell::new(MAX_VALUES);
    let value = json
        .as_object()
        .map(|_| Reader::plain(&left).deserialize(json));
    decode(&value?.ok()?, &Path::Root, &Report::admitted())
}

/// Reads an object from the JSON that was written from it, with the same reader. Its file was bounded; defaults have been
/// added since.
pub(super) fn again<T: DeserializeOwned>(json: &str) -> Option<T> {
    let left = Cell::new(usize::MAX);
    let mut text = serde_json::Deserializer::from_str(json);
    let value = Reader::plain(&left).deserialize(&mut text).ok()?;
    decode(&value, &Path::Root, &Report::admitted())
}

/// An error of the object's own code; `None` once it is reported.
#[derive(Debug, thiserror::Error)]
#[error("{}", .0.as_deref().unwrap_or("reported"))]
struct Failure(Option<String>);

impl de::Error for Failure {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self(Some(message.to_string()))
    }
}

/// A value, its path, and the report for errors.
#[derive(Clone, Copy)]
struct Node<'a> {
    value: &'a Value,
    path: &'a Path<'a>,
    report: &'a Report,
}

impl<'a> Node<'a> {
    fn wrong(&self, wanted: &str) {
        self.report.error(
            self.path,
            format_args!("must be {wanted}, not {}", self.value.kind()),
        );
        self.report.settle(self.path);
    }

    /// Deserializes a nested value; reports an error of its own code at its path.
    fn below<'de, T: DeserializeSeed<'de>>(
        &self,
        seed: T,
        value: &Value,
        path: &Path<'_>,
    ) -> Result<T::Value, Failure> {
        let node = Node {
            value,
            path,
            report: self.report,
        };
        seed.deserialize(node).map_err(|failure| {
            if let Some(message) = failure.0 {
                self.report.error(path, message);
            }
            Failure(None)
        })
    }

    fn text(&self) -> String {
        match self.value {
            Value::String(s) => s.clone(),
            Value::Null => String::new(),
            Value::Map(entries) if matches!(entries.as_slice(), [(_, inner)] if inner.scalar_text().is_some()) =>
            {
                let message = "must be a string, not a mapping";
                let hint = match self.path {
                    // Of a Service or a ReplicationController.
                    Path::Field(Path::Field(_, "selector"), "matchLabels") => {
                        "the selector of this kind is the labels themselves, without `matchLabels`"
                    }
                    _ => "quote it: outside quotes, `: ` makes a mapping of it",
                };
                self.report.error_hint(self.path, message, hint.to_owned());
                self.report.settle(self.path);
                String::new()
            }
            Value::List(_) | Value::Map(_) => {
                self.wrong("a string");
                String::new()
            }
            scalar => {
                let text = scalar.scalar_text().unwrap_or_default();
                self.report.unquoted(self.path, scalar.kind(), &text);
                self.report.settle(self.path);
                text
            }
        }
    }

    /// Returns an integer within the bounds of the field's type.
    fn integer(&self, min: i128, max: i128) -> i128 {
        match self.value {
            Value::Int(i) if (min..=max).contains(i) => *i,
            Value::Int(i) => {
                self.report.invalid(
                    self.path,
                    i,
                    format_args!("must be between {min} and {max}, inclusive"),
                );
                self.report.settle(self.path);
                0
            }
            // YAML's `30.0` and `3e1` are whole numbers, too, for clients that send JSON.
            Value::Float(f) if f.fract() == 0.0 && f.abs() < WHOLE => {
                #[expect(clippy::cast_possible_truncation, reason = "whole, and within bounds")]
                let whole = Value::Int(*f as i128);
                Node {
                    value: &whole,
                    path: self.path,
                    report: self.report,
                }
                .integer(min, max)
            }
            Value::Null => 0,
            Value::String(text) => match octal(text) {
                Some(i) if (min..=max).contains(&i) => i,
                _ => {
                    let hint = text
                        .trim()
                        .parse::<i64>()
                        .ok()
                        .map(|i| format!("write it without quotes: {i}"));
                    let message = "must be a whole number, not a string";
                    match hint {
                        Some(hint) => self.report.error_hint(self.path, message, hint),
                        None => self.report.error(self.path, message),
                    }
                    self.report.settle(self.path);
                    0
                }
            },
            _ => {
                self.wrong("a whole number");
                0
            }
        }
    }

    fn boolean(&self) -> bool {
        match self.value {
            Value::Bool(b) => *b,
            Value::Null => false,
            // Booleans of YAML 1.1, which kubectl reads.
            Value::String(text) if YES.contains(&&*text.to_ascii_lowercase()) => true,
            Value::String(text) if NO.contains(&&*text.to_ascii_lowercase()) => false,
            Value::String(text) => {
                let meant = match text.to_ascii_lowercase().as_str() {
                    "true" => "true",
                    "false" => "false",
                    _ => "true or false",
                };
                self.report.error_hint(
                    self.path,
                    "must be true or false, not a string",
                    format!("write {meant} without quotes"),
                );
                self.report.settle(self.path);
                false
            }
            _ => {
                self.wrong("true or false");
                false
            }
        }
    }

    fn entries(&self) -> &'a [(String, Value)] {
        match self.value {
            Value::Map(entries) => entries,
            Value::Null => &[],
            _ => {
                self.wrong("a mapping (`key: value`)");
                &[]
            }
        }
    }
}

/// From here on, not every whole number is one of floating point.
const WHOLE: f64 = 9_007_199_254_740_992.0;

const YES: [&str; 3] = ["yes", "on", "y"];

const NO: [&str; 3] = ["no", "off", "n"];

/// Parses a YAML 1.1 octal such as `0644`, which the parser returns as text. A quoted one is accepted, too.
fn octal(text: &str) -> Option<i128> {
    let digits = text.strip_prefix('0')?;
    let digits = digits.strip_prefix('o').unwrap_or(digits);
    i128::from_str_radix(digits, 8).ok()
}

macro_rules! integers {
    ($($method:ident $visit:ident $type:ty),*) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Failure> {
            let i = self.integer(<$type>::MIN.into(), <$type>::MAX.into());
            visitor.$visit(<$type>::try_from(i).unwrap_or_default())
        }
    )*};
}

impl<'de> de::Deserializer<'de> for Node<'_> {
    type Error = Failure;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Failure> {
        match self.value {
            Value::Null => visitor.visit_unit(),
            Value::Bool(b) => visitor.visit_bool(*b),
            Value::Int(i) => match i64::try_from(*i) {
                Ok(i) => visitor.visit_i64(i),
                Err(_) => visitor.visit_i128(*i),
            },
            Value::Float(f) => visitor.visit_f64(*f),
            Value::String(s) => visitor.visit_str(s),
            Value::List(_) => self.deserialize_seq(visitor),
            Value::Map(_) => self.deserialize_map(visitor),
        }
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Failure> {
        visitor.visit_bool(self.boolean())
    }

    integers!(
        deserialize_i8 visit_i8 i8, deserialize_i16 visit_i16 i16,
        deserialize_i32 visit_i32 i32, deserialize_i64 visit_i64 i64,
        deserialize_u8 visit_u8 u8, deserialize_u16 visit_u16 u16,
        deserialize_u32 visit_u32 u32, deserialize_u64 visit_u64 u64
    );

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Failure> {
        visitor.visit_string(self.text())
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Failure> {
        visitor.visit_string(self.text())
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Failure> {
        match self.value {
            Value::Null => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Failure> {
        if name != "Quantity" {
            return visitor.visit_newtype_struct(self);
        }
        // Quantities may be written as numbers.
        let text = match self.value {
            Value::Int(_) | Value::Float(_) => self.value.scalar_text().unwrap_or_default(),
            Value::Null => "0".to_owned(),
            _ => self.text(),
        };
        visitor.visit_newtype_struct(text.into_deserializer())
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Failure> {
        let items: &[Value] = match self.value {
            Value::List(items) => items,
            Value::Null => &[],
            _ => {
                self.report.error_hint(
                    self.path,
                    format_args!("must be a list, not {}", self.value.kind()),
                    "start each item with `- `".to_owned(),
                );
                self.report.settle(self.path);
                &[]
            }
        };
        visitor.visit_seq(Items {
            node: self,
            items: items.iter().enumerate(),
        })
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Failure> {
        visitor.visit_map(Entries {
            node: self,
            object: "",
            fields: None,
            entries: self.entries().iter(),
            current: None,
        })
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        object: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Failure> {
        visitor.visit_map(Entries {
            node: self,
            object,
            fields: Some(fields),
            entries: self.entries().iter(),
            current: None,
        })
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Failure> {
        visitor.visit_unit()
    }

    serde::forward_to_deserialize_any! {
        i128 u128 f32 f64 char bytes byte_buf unit unit_struct tuple tuple_struct enum identifier
    }
}

/// The items of a list.
struct Items<'a> {
    node: Node<'a>,
    items: std::iter::Enumerate<std::slice::Iter<'a, Value>>,
}

impl<'de> de::SeqAccess<'de> for Items<'_> {
    type Error = Failure;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, Failure> {
        let Some((index, value)) = self.items.next() else {
            return Ok(None);
        };
        let path = self.node.path.index(index);
        self.node.below(seed, value, &path).map(Some)
    }

    /// Without it, a list of one container has room for four as long as the pod lives.
    fn size_hint(&self) -> Option<usize> {
        Some(self.items.len())
    }
}

/// The entries of a mapping; with `fields`, those of an object.
struct Entries<'a> {
    node: Node<'a>,
    /// Name of the object's type.
    object: &'static str,
    fields: Option<&'static [&'static str]>,
    entries: std::slice::Iter<'a, (String, Value)>,
    current: Option<&'a (String, Value)>,
}

impl Entries<'_> {
    fn unknown(&self, key: &str, fields: &[&'static str]) {
        let (report, parent) = (self.node.report, self.node.path);
        let path = parent.field(key);
        // Suggest only a field that is not there yet, and settle it: one error for one mistake.
        let meant = |field: &str| {
            if self.node.value.get(field).is_none() {
                report.settle(&parent.field(field));
            }
        };
        if let Some((field, hint)) = belongs::elsewhere(self.object, key) {
            report.error_hint(&path, "unknown field", hint);
            meant(field);
        } else if let Some(near) = suggest::nearest(key, fields) {
            report.error_hint(&path, "unknown field", format!("did you mean `{near}`?"));
            meant(near);
        } else if self.object == "Volume" {
            report.error_hint(&path, "unknown field", volume::KINDS.to_owned());
        } else {
            report.error(&path, "unknown field");
        }
    }
}

impl<'de> de::MapAccess<'de> for Entries<'_> {
    type Error = Failure;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, Failure> {
        while let Some(entry) = self.entries.next() {
            if let Some(fields) = self.fields
                && !fields.contains(&entry.0.as_str())
            {
                self.unknown(&entry.0, fields);
                continue;
            }
            self.current = Some(entry);
            return seed
                .deserialize(entry.0.as_str().into_deserializer())
                .map(Some);
        }
        Ok(None)
    }

    fn next_value_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<T::Value, Failure> {
        let Some((key, value)) = self.current.take() else {
            return Err(de::Error::custom("a value was asked for before its key"));
        };
        let path = self.node.path.field(key);
        self.node.below(seed, value, &path)
    }
}

/// Whether this is two documents with nothing between them; reports it.
pub(crate) fn two_documents(value: &Value, report: &Report) -> bool {
    let Value::Map(entries) = value else {
        return false;
    };
    let twice = |wanted: &str| entries.iter().filter(|(key, _)| key == wanted).count() > 1;
    let both = twice("apiVersion") && twice("kind");
    let mut seen = BTreeSet::new();
    let again = entries.iter().find(|(key, _)| !seen.insert(key));
    if let Some((key, _)) = again.filter(|_| both) {
        report.second_document(&Path::Root.field(key));
    }
    both
}

/// Reports every duplicate key in the whole tree.
pub(crate) fn duplicate_keys(value: &Value, path: &Path<'_>, report: &Report) {
    match value {
        Value::Map(entries) => {
            let mut seen = std::collections::BTreeMap::new();
            for (key, value) in entries {
                let path = path.field(key);
                let times = seen.entry(key.as_str()).or_insert(0);
                if *times > 0 {
                    report.duplicate_key(&path, *times);
                }
                *times += 1;
                duplicate_keys(value, &path, report);
            }
        }
        Value::List(items) => {
            for (index, value) in items.iter().enumerate() {
                duplicate_keys(value, &path.index(index), report);
            }
        }
        Value::Null | Value::Bool(_) | Value::Int(_) | Value::Float(_) | Value::String(_) => {}
    }
}
