//! Numbers of pods in the notation of `status.completedIndexes`: `1,3-5,7`. It is short, because the record is written
//! whenever a pod has ended.

use std::collections::BTreeSet;

use serde::{Deserialize, Deserializer, Serializer, de};

use crate::spec::workload::job::MAX_COMPLETIONS;

/// The text of these numbers.
pub(super) fn ranges(numbers: &BTreeSet<u32>) -> String {
    let mut text = String::new();
    let mut all = numbers.iter().copied().peekable();
    while let Some(first) = all.next() {
        let mut last = first;
        while let Some(next) = all.next_if_eq(&(last + 1)) {
            last = next;
        }
        let gap = if text.is_empty() { "" } else { "," };
        text += &match last - first {
            0 => format!("{gap}{first}"),
            // As upstream writes two in a row.
            1 => format!("{gap}{first},{last}"),
            _ => format!("{gap}{first}-{last}"),
        };
    }
    text
}

/// For `#[serde(with)]`.
pub(super) fn serialize<S: Serializer>(numbers: &BTreeSet<u32>, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(&ranges(numbers))
}

/// For `#[serde(with)]`.
pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<BTreeSet<u32>, D::Error> {
    let text = String::deserialize(from)?;
    let mut numbers = BTreeSet::new();
    for part in text.split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u32, u32) = match (first.parse(), last.parse()) {
            (Ok(first), Ok(last)) if last < MAX_COMPLETIONS => (first, last),
            _ => return Err(de::Error::custom(format_args!("`{part}` is no index"))),
        };
        numbers.extend(first..=last);
    }
    Ok(numbers)
}
