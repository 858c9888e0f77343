//! A document as a tree that preserves what typed objects do not: duplicate keys, and whether a scalar was a string or
//! a number.
//!
//! The tree's size is limited, so aliases cannot blow it up; the parsers limit its depth (128).

use std::cell::Cell;
use std::fmt;

use serde::de::{
    DeserializeSeed, Deserializer, EnumAccess, Error, MapAccess, SeqAccess, VariantAccess, Visitor,
};
use serde::ser::{Serialize, Serializer};

/// Limit of values in one file; an alias counts each time it is used, a long text as several.
pub(crate) const MAX_VALUES: usize = 1_000_000;

/// A value.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Value {
    /// Empty, `~` or `null`.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// An integer.
    Int(i128),
    /// A number with a fraction or an exponent.
    Float(f64),
    /// Text.
    String(String),
    /// A list.
    List(Vec<Value>),
    /// A mapping in the order written; keys may repeat.
    Map(Vec<(String, Value)>),
}

impl Value {
    /// Returns the last value of a key, which typed decoding uses too.
    pub(crate) fn get(&self, key: &str) -> Option<&Value> {
        match self {
            Value::Map(entries) => entries.iter().rev().find(|(k, _)| k == key).map(|(_, v)| v),
            _ => None,
        }
    }

    /// Removes a key.
    pub(crate) fn remove(&mut self, key: &str) {
        if let Value::Map(entries) = self {
            entries.retain(|(k, _)| k != key);
        }
    }

    /// Returns the name of the kind of value, for messages.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Value::Null => "nothing",
            Value::Bool(_) => "a boolean",
            Value::Int(_) | Value::Float(_) => "a number",
            Value::String(_) => "a string",
            Value::List(_) => "a list",
            Value::Map(_) => "a mapping",
        }
    }

    /// Returns a scalar as text; `None` for lists and mappings.
    pub(crate) fn scalar_text(&self) -> Option<String> {
        match self {
            Value::Null => Some(String::new()),
            Value::Bool(b) => Some(b.to_string()),
            Value::Int(i) => Some(i.to_string()),
            Value::Float(f) => Some(f.to_string()),
            Value::String(s) => Some(s.clone()),
            Value::List(_) | Value::Map(_) => None,
        }
    }
}

impl Serialize for Value {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Null => serializer.serialize_unit(),
            Self::Bool(value) => serializer.serialize_bool(*value),
            Self::Int(value) => serializer.serialize_i128(*value),
            Self::Float(value) => serializer.serialize_f64(*value),
            Self::String(text) => serializer.serialize_str(text),
            Self::List(items) => serializer.collect_seq(items),
            Self::Map(entries) => serializer.collect_map(entries.iter().map(|(k, v)| (k, v))),
        }
    }
}

/// Reads a [`Value`] from any format, and counts down from [`MAX_VALUES`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reader<'b> {
    /// Number of values that may still be read.
    pub(crate) left: &'b Cell<usize>,
    /// The tags that a value may have; it becomes a mapping with the tag as its only key.
    pub(crate) tags: &'static [&'static str],
}

/// Bytes of text that count as one value: an alias of a long text is a copy of it.
const TEXT_BYTES: usize = 64;

impl<'b> Reader<'b> {
    /// One that takes no tags.
    pub(crate) fn plain(left: &'b Cell<usize>) -> Self {
        Self { left, tags: &[] }
    }

    /// Counts down.
    fn spend<E: Error>(self, values: usize) -> Result<(), E> {
        match self.left.get().checked_sub(values) {
            Some(left) => self.left.set(left),
            None => {
                return Err(E::custom(format!(
                    "more than {MAX_VALUES} values in one file (are there aliases of aliases?)"
                )));
            }
        }
        Ok(())
    }
}

impl<'de> DeserializeSeed<'de> for Reader<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        self.spend(1)?;
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Reader<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value without a YAML tag")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, v: bool) -> Result<Value, E> {
        Ok(Value::Bool(v))
    }

    fn visit_i64<E>(self, v: i64) -> Result<Value, E> {
        Ok(Value::Int(v.into()))
    }

    fn visit_u64<E>(self, v: u64) -> Result<Value, E> {
        Ok(Value::Int(v.into()))
    }

    fn visit_i128<E>(self, v: i128) -> Result<Value, E> {
        Ok(Value::Int(v))
    }

    fn visit_u128<E: Error>(self, v: u128) -> Result<Value, E> {
        i128::try_from(v)
            .map(Value::Int)
            .map_err(|_| E::custom(format!("number {v} is too large")))
    }

    fn visit_f64<E>(self, v: f64) -> Result<Value, E> {
        Ok(Value::Float(v))
    }

    fn visit_str<E: Error>(self, v: &str) -> Result<Value, E> {
        self.spend(v.len() / TEXT_BYTES)?;
        Ok(Value::String(v.to_owned()))
    }

    fn visit_string<E: Error>(self, v: String) -> Result<Value, E> {
        self.spend(v.len() / TEXT_BYTES)?;
        Ok(Value::String(v))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element_seed(self)? {
            items.push(item);
        }
        Ok(Value::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut entries = Vec::new();
        let mut merged = Vec::new();
        while let Some(key) = map.next_key_seed(self)? {
            let Some(key) = key.scalar_text() else {
                return Err(A::Error::custom("a mapping's key must be a string"));
            };
            let value = map.next_value_seed(self)?;
            if key == "<<" {
                merged.push(value);
            } else {
                entries.push((key, value));
            }
        }
        merge(&mut entries, merged).map_err(A::Error::custom)?;
        Ok(Value::Map(entries))
    }

    fn visit_enum<A: EnumAccess<'de>>(self, tagged: A) -> Result<Value, A::Error> {
        if self.tags.is_empty() {
            return Err(A::Error::custom("YAML tags (`!name`) are not supported"));
        }
        let (tag, value) = tagged.variant::<String>()?;
        let tag = format!("!{}", tag.trim_start_matches('!'));
        if !self.tags.contains(&&*tag) {
            let message = format!("the YAML tag `{tag}` is not supported");
            return Err(A::Error::custom(message));
        }
        let value = value.newtype_variant_seed(self)?;
        Ok(Value::Map(vec![(tag, value)]))
    }
}

/// Merges YAML's `<<` key as kubectl does: keys of the mapping itself take precedence.
fn merge(entries: &mut Vec<(String, Value)>, merged: Vec<Value>) -> Result<(), &'static str> {
    for value in merged {
        let sources = match value {
            Value::List(items) => items,
            single => vec![single],
        };
        for source in sources {
            let Value::Map(source) = source else {
                return Err("`<<` must be given a mapping or a list of mappings");
            };
            for (key, value) in source {
                if !entries.iter().any(|(k, _)| *k == key) {
                    entries.push((key, value));
                }
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::spec::parse::parse;

    #[test]
    fn aliases_of_a_long_text_do_not_grow_without_a_bound() {
        let text = "x".repeat(1 << 20);
        let aliases = |count| format!("a: &a {text}\nb: [{}]", "*a, ".repeat(count));
        assert!(parse(&aliases(50)).is_ok());
        let problem = parse(&aliases(100)).expect_err("100 MiB");
        assert!(
            problem.message.contains("more than 1000000 values"),
            "{}",
            problem.message
        );
    }
}
