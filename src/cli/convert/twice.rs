//! Keys that a mapping has twice. Compose refuses them: one of the two would be lost in silence.

use std::collections::BTreeSet;

use crate::spec::error::join;
use crate::spec::position::Positions;
use crate::spec::value::Value;

/// Refuses documents with such a key, by the place where it is given again.
pub(super) fn refused(text: &str, name: &str, documents: &[Value]) -> Result<(), String> {
    let mut all = documents.iter().enumerate();
    let found = all.find_map(|(index, document)| Some((index, again("", document)?)));
    let Some((index, again)) = found else {
        return Ok(());
    };
    let positions = Positions::find(text, [(index, &*again.path)].into_iter());
    let (line, column) = positions.of(index, &again.path, 1);
    Err(format!(
        "{name}:{line}:{column}: the key `{}` is given more than once in this mapping",
        again.key
    ))
}

/// A key that is given again.
struct Again {
    path: String,
    key: String,
}

fn again(path: &str, value: &Value) -> Option<Again> {
    match value {
        Value::Map(entries) => {
            let mut seen = BTreeSet::new();
            entries.iter().find_map(|(key, value)| {
                let path = join(path, key);
                match seen.insert(&**key) {
                    true => again(&path, value),
                    false => Some(Again {
                        path,
                        key: key.clone(),
                    }),
                }
            })
        }
        Value::List(items) => {
            let mut items = items.iter().enumerate();
            items.find_map(|(index, value)| again(&format!("{path}[{index}]"), value))
        }
        Value::Null | Value::Bool(_) | Value::Int(_) | Value::Float(_) | Value::String(_) => None,
    }
}
