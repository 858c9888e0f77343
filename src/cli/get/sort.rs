//! `get --sort-by`: the order of what is shown.

use std::cmp::Ordering;

use serde_json::Value;

use super::super::args::Resource;
use super::super::error::{CliError, Result};
use super::super::jsonpath::Column;
use crate::types::InOrder;
use crate::types::quantity::Quantity;

/// Checks a path before anything is asked for.
pub(super) fn column(path: &str) -> Result<Column> {
    Column::parse(path)
        .map_err(|why| CliError::usage(format!("`{path}` is not a path to sort by: {why}")))
}

/// Sorts the objects of each kind by the value of a column, as kubectl does: those without one come first, then numbers, or
/// quantities by size if all are, or texts with the numbers in them by size.
pub(super) fn sort_by(path: &str, by: &Column, items: &mut [(Resource, Value)]) -> Result<()> {
    if !items.is_empty() && items.iter().all(|(_, item)| value(by, item).is_none()) {
        let error = CliError::new(format!("none of the objects has the field `{path}`"));
        return Err(error.hint("--sort-by=.metadata.creationTimestamp, --sort-by=.metadata.name"));
    }
    for of_kind in items.chunk_by_mut(|one, other| one.0 == other.0) {
        let texts = of_kind.iter();
        let mut texts = texts.filter_map(|(_, item)| value(by, item)?.as_str());
        let quantities = texts.all(|text| Quantity::parse(text).is_ok());
        let mut keyed: Vec<(Key, (Resource, Value))> = of_kind
            .iter_mut()
            .map(|item| {
                let key = Key::of(value(by, &item.1), quantities);
                (key, (item.0, item.1.take()))
            })
            .collect();
        keyed.order_by(|(one, _), (other, _)| one.compare(other));
        for (place, (_, item)) in of_kind.iter_mut().zip(keyed) {
            *place = item;
        }
    }
    Ok(())
}

fn value<'v>(by: &Column, item: &'v Value) -> Option<&'v Value> {
    by.first(item).filter(|value| !value.is_null())
}

/// What an object is sorted by: values of different types are in the order of the variants.
enum Key {
    Missing,
    Switch(bool),
    Number(f64),
    Quantity(i128),
    Text(String),
    /// A mapping or a list.
    Other,
}

impl Key {
    fn of(value: Option<&Value>, quantities: bool) -> Self {
        match value {
            None | Some(Value::Null) => Self::Missing,
            Some(Value::Bool(switch)) => Self::Switch(*switch),
            Some(Value::Number(number)) => Self::Number(number.as_f64().unwrap_or_default()),
            Some(Value::String(text)) => match Quantity::parse(text).ok().filter(|_| quantities) {
                Some(quantity) => Self::Quantity(quantity.nano()),
                None => Self::Text(text.clone()),
            },
            Some(_) => Self::Other,
        }
    }

    fn rank(&self) -> u8 {
        match self {
            Self::Missing => 0,
            Self::Switch(_) => 1,
            Self::Number(_) => 2,
            Self::Quantity(_) => 3,
            Self::Text(_) => 4,
            Self::Other => 5,
        }
    }

    fn compare(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Self::Switch(one), Self::Switch(other)) => one.cmp(other),
            (Self::Number(one), Self::Number(other)) => one.total_cmp(other),
            (Self::Quantity(one), Self::Quantity(other)) => one.cmp(other),
            (Self::Text(one), Self::Text(other)) => natural(one, other),
            (one, other) => one.rank().cmp(&other.rank()),
        }
    }
}

/// Compares texts; numbers in them count as such: `pod-9` comes before `pod-10`.
fn natural(one: &str, other: &str) -> Ordering {
    let (mut left, mut right) = (one.as_bytes(), other.as_bytes());
    while let (Some(a), Some(b)) = (left.first(), right.first()) {
        if !(a.is_ascii_digit() && b.is_ascii_digit()) {
            if a != b {
                return a.cmp(b);
            }
            (left, right) = (&left[1..], &right[1..]);
            continue;
        }
        let (a, b) = (number(&mut left), number(&mut right));
        let by_size = a.len().cmp(&b.len()).then(a.cmp(b));
        if by_size.is_ne() {
            return by_size;
        }
    }
    left.len().cmp(&right.len()).then(one.cmp(other))
}

/// Takes the digits at the beginning, without leading zeros.
fn number<'t>(text: &mut &'t [u8]) -> &'t [u8] {
    let is_digit = |c: &&u8| c.is_ascii_digit();
    let (digits, rest) = text.split_at(text.iter().take_while(is_digit).count());
    *text = rest;
    let zeros = digits.iter().take_while(|c| **c == b'0').count();
    &digits[zeros..]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_are_in_the_order_of_kubectl() {
        let sorted = |path: &str, values: &[Value]| {
            let items = values
                .iter()
                .map(|v| (Resource::Pods, json!({ "a": { "b": v } })));
            let mut items: Vec<_> = items.collect();
            sort_by(path, &column(path).unwrap(), &mut items).unwrap();
            let values = items.into_iter().map(|(_, mut item)| item["a"]["b"].take());
            values.collect::<Vec<_>>()
        };
        for values in [
            vec![json!(-1), json!(2), json!(10.5), json!(30)],
            vec![
                json!("pod"),
                json!("pod-9"),
                json!("pod-10"),
                json!("pod-010x"),
                json!("pods"),
            ],
            vec![json!("100m"), json!("1"), json!("500Mi"), json!("1Gi")],
            vec![json!("2026-01-02T00:00:00Z"), json!("2026-01-10T00:00:00Z")],
            vec![json!(false), json!(true)],
            // Not all are quantities; types and what is missing have places of their own.
            vec![
                json!(null),
                json!(true),
                json!(3),
                json!("1.9"),
                json!("1.9.1"),
                json!("1.10"),
            ],
        ] {
            let mut turned = values.clone();
            for _ in 0..values.len() {
                turned.rotate_left(1);
                for path in [".a.b", "{.a.b}", "a.b"] {
                    assert_eq!(sorted(path, &turned), values, "{turned:?}");
                }
            }
        }
    }

    #[test]
    fn kinds_stay_together_and_a_field_that_nothing_has_is_an_error() {
        let named = |kind: Resource, name: &str| (kind, json!({ "metadata": { "name": name } }));
        let mut items = vec![
            named(Resource::Pods, "b"),
            (Resource::Pods, json!({})),
            named(Resource::Pods, "a"),
            named(Resource::Services, "z"),
            named(Resource::Services, "a"),
        ];
        let sort = |path: &str, items: &mut [(Resource, Value)]| {
            column(path).and_then(|by| sort_by(path, &by, items))
        };
        sort(".metadata.name", &mut items).unwrap();
        let names: Vec<_> = items
            .iter()
            .map(|(_, i)| i["metadata"]["name"].as_str())
            .collect();
        assert_eq!(names, [None, Some("a"), Some("b"), Some("a"), Some("z")]);
        let error = sort(".metadata.nmae", &mut items).unwrap_err();
        assert!(error.to_string().contains("`.metadata.nmae`"), "{error}");
        assert_eq!(sort(".metadata[", &mut []).unwrap_err().exit_code(), 2);
        sort(".metadata.name", &mut []).unwrap();
    }
}
