//! Former values of Secrets in this boot. A container that started with one may still log it after the document has
//! changed. They are kept on the tmpfs of configuration documents, for root only, and serve only to mask texts. The oldest
//! go when the limits are reached.

use std::collections::BTreeSet;
use std::io;

use k8s_openapi::ByteString;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::layout::Layout;
use crate::sys::file::{self, Durability};

/// The longest file of the documents in force, or of former values.
const MAX_DOCUMENTS: u64 = 64 << 20;

/// Longer values are not kept, in bytes: they do not fit into the part of an output that is kept.
const MAX_VALUE: usize = 16 << 10;

/// The most that is kept, in values and in bytes.
const MAX_VALUES: usize = 1024;
const MAX_BYTES: usize = 1 << 20;

/// A value, and the Secret that has it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
struct Of {
    namespace: String,
    name: String,
    value: ByteString,
}

/// Keeps the values of the documents in force that the `next` ones lack.
pub fn keep(layout: &Layout, next: &[u8]) -> io::Result<()> {
    let Ok(now) = file::read_bounded(layout.configuration(), MAX_DOCUMENTS) else {
        // The first documents of this boot.
        return Ok(());
    };
    if now == next {
        return Ok(());
    }
    let next: BTreeSet<Of> = found(next).into_iter().collect();
    let gone: Vec<Of> = found(&now)
        .into_iter()
        .filter(|of| !next.contains(of))
        .collect();
    if gone.is_empty() {
        return Ok(());
    }
    let kept = serde_json::to_vec(&with(former(layout), gone))?;
    file::replace(&layout.former_secrets(), &kept, 0o600, Durability::Process)
}

/// The values that are kept.
#[derive(Debug, Default)]
pub struct Former(Vec<Of>);

impl Former {
    /// Reads them.
    pub fn load(layout: &Layout) -> Self {
        Self(former(layout))
    }

    /// Those of the Secrets that are asked for, by namespace and name.
    pub fn values(&self, wanted: impl Fn(&str, &str) -> bool) -> Vec<Vec<u8>> {
        let all = self.0.iter();
        let wanted = all.filter(|of| wanted(&of.namespace, &of.name));
        wanted.map(|of| of.value.0.clone()).collect()
    }
}

/// The values of the Secrets in force. `None`: no agent has written them in this boot.
pub fn in_force(layout: &Layout) -> Option<Vec<Vec<u8>>> {
    let bytes = file::read_bounded(layout.configuration(), MAX_DOCUMENTS).ok()?;
    serde_json::from_slice::<Value>(&bytes).ok()?;
    Some(found(&bytes).into_iter().map(|of| of.value.0).collect())
}

fn former(layout: &Layout) -> Vec<Of> {
    let bytes = file::read_bounded(layout.former_secrets(), MAX_DOCUMENTS).unwrap_or_default();
    serde_json::from_slice(&bytes).unwrap_or_default()
}

/// The values, oldest first, with more.
fn with(mut kept: Vec<Of>, gone: Vec<Of>) -> Vec<Of> {
    kept.retain(|of| !gone.contains(of));
    let short = |of: &Of| of.value.0.len() <= MAX_VALUE;
    kept.extend(gone.into_iter().filter(short));
    let mut bytes = 0;
    let fit = kept.iter().rev().take(MAX_VALUES).take_while(|of| {
        bytes += of.value.0.len();
        bytes <= MAX_BYTES
    });
    let extra = kept.len() - fit.count();
    kept.drain(..extra);
    kept
}

/// The values in saved documents.
fn found(documents: &[u8]) -> Vec<Of> {
    let documents: Value = serde_json::from_slice(documents).unwrap_or_default();
    let files = documents.as_object().into_iter().flatten();
    let all = files.flat_map(|(_, documents)| documents.as_array().into_iter().flatten());
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut found = Vec::new();
    for secret in all.filter(|document| document["kind"] == "Secret") {
        let mut add = |bytes: Vec<u8>| {
            found.push(Of {
                namespace: text(&secret["metadata"]["namespace"]),
                name: text(&secret["metadata"]["name"]),
                value: ByteString(bytes),
            });
        };
        for (_, value) in secret["data"].as_object().into_iter().flatten() {
            // Programs are given either form.
            add(text(value).into_bytes());
            if let Ok(bytes) = serde_json::from_value::<ByteString>(value.clone()) {
                add(bytes.0);
            }
        }
        for (_, value) in secret["stringData"].as_object().into_iter().flatten() {
            add(text(value).into_bytes());
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn documents(name: &str, value: &str) -> Vec<u8> {
        let metadata = json!({ "namespace": "default", "name": name });
        let secret = json!({ "kind": "Secret", "metadata": metadata, "data": { "key": value } });
        serde_json::to_vec(&json!({ "/m/a.yaml": [secret] })).unwrap()
    }

    #[test]
    fn a_value_is_known_after_it_was_changed_or_removed() {
        let run_dir = std::env::temp_dir().join(format!("coracle-former-{}", std::process::id()));
        let layout = Layout {
            run_dir: run_dir.clone(),
            ..Layout::default()
        };
        std::fs::create_dir_all(layout.configuration_dir()).unwrap();
        assert_eq!(in_force(&layout), None);
        // `former` and `newer`.
        for next in [
            documents("db", "Zm9ybWVy"),
            documents("db", "bmV3ZXI="),
            b"{}".to_vec(),
            b"{}".to_vec(),
        ] {
            keep(&layout, &next).unwrap();
            std::fs::write(layout.configuration(), next).unwrap();
        }
        assert_eq!(in_force(&layout), Some(Vec::new()));
        let known =
            Former::load(&layout).values(|namespace, name| (namespace, name) == ("default", "db"));
        for value in ["former", "newer", "Zm9ybWVy"] {
            assert!(known.contains(&value.as_bytes().to_vec()), "{value}");
        }
        assert!(
            Former::load(&layout)
                .values(|_, name| name == "other")
                .is_empty()
        );
        let mode = std::fs::metadata(layout.former_secrets()).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::mode(&mode.permissions());
        assert_eq!(mode & 0o777, 0o600);
        std::fs::remove_dir_all(run_dir).unwrap();
    }

    #[test]
    fn the_oldest_values_are_forgotten_when_they_are_too_much() {
        let of = |n: usize, length: usize| Of {
            namespace: "default".to_owned(),
            name: n.to_string(),
            value: ByteString(vec![b'x'; length]),
        };
        let many = with(Vec::new(), (0..2 * MAX_VALUES).map(|n| of(n, 1)).collect());
        assert_eq!((many.len(), &*many[0].name), (MAX_VALUES, "1024"));
        let large = with(many, vec![of(0, MAX_VALUE + 1)]);
        assert_eq!(large.len(), MAX_VALUES, "it is left out alone");
        let fit = MAX_BYTES / MAX_VALUE;
        let full = with(large, (0..fit + 1).map(|n| of(n, MAX_VALUE)).collect());
        assert_eq!((full.len(), &*full[0].name), (fit, "1"));
    }
}
