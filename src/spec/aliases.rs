//! Further names of a service, from an annotation (`coracle help network`): those that Kubernetes does not allow, and
//! those that several services share.

use std::collections::BTreeMap;

use super::error::{Path, Report};

/// The annotation: `coracle.dev/aliases: app_db, db.example.com`.
pub const ANNOTATION: &str = "coracle.dev/aliases";

/// The names by which podman's and docker's containers know their node.
pub const OF_NODE: [&str; 2] = ["host.containers.internal", "host.docker.internal"];

/// Limit of a service's aliases.
pub const MAX: usize = 32;
/// Limit of a name in bytes. DNS allows 253 (RFC 1035), namespace and domain included.
const MAX_NAME: usize = 150;
/// Limit of a label in bytes (RFC 1035).
const MAX_LABEL: usize = 63;

/// Whether an alias may have this name: labels of letters, digits, `-` and `_`, with dots between them.
pub fn is_valid(name: &str) -> bool {
    let letter = |c: u8| c.is_ascii_alphanumeric() || b"-_".contains(&c);
    let label = |label: &str| (1..=MAX_LABEL).contains(&label.len()) && label.bytes().all(letter);
    name.len() <= MAX_NAME && name.split('.').all(label)
}

/// Returns the aliases of a service's annotation, in lower case: DNS knows no other.
pub(super) fn of(
    annotations: Option<&BTreeMap<String, String>>,
    path: &Path<'_>,
    report: &Report,
) -> Vec<String> {
    let Some(text) = annotations.and_then(|all| all.get(ANNOTATION)) else {
        return Vec::new();
    };
    let mut found = Vec::new();
    for name in text.split(',').map(str::trim) {
        if !is_valid(name) {
            let problem = match name {
                "" => "must be names separated by commas, and one is empty".to_owned(),
                _ => format!(
                    "`{name}` must consist of letters, digits, `-` and `_`, in labels of at most {MAX_LABEL} characters with dots \
                     between them, {MAX_NAME} in all"
                ),
            };
            report.invalid(&path.field(ANNOTATION), text, problem);
            return Vec::new();
        }
        let name = name.to_ascii_lowercase();
        if !found.contains(&name) {
            found.push(name);
        }
    }
    if found.len() > MAX {
        let problem = format!("must have at most {MAX} names");
        report.invalid(&path.field(ANNOTATION), text, problem);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_labels_that_dns_can_carry() {
        for name in [
            "app_db",
            "xmpp.meet.jitsi",
            "_x",
            "-",
            "A1",
            &"a".repeat(63),
        ] {
            assert!(is_valid(name), "{name}");
        }
        let long = ["a".repeat(60), "b".repeat(60), "c".repeat(60)].join(".");
        for name in [
            "",
            ".",
            "a.",
            "a..b",
            "a b",
            "ä",
            "*",
            "a/b",
            &"a".repeat(64),
            &long,
        ] {
            assert!(!is_valid(name), "{name}");
        }
    }
}
