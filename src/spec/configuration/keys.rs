//! Keys of ConfigMaps and Secrets, which are names of files, too (`IsConfigMapKey` of `apimachinery`).

use crate::spec::error::{Path, Report};

/// Why this cannot be a key.
pub(crate) fn problem(key: &str) -> Option<String> {
    if key.len() > 253 {
        return Some("must be no more than 253 bytes".to_owned());
    }
    let allowed = |b: u8| b.is_ascii_alphanumeric() || b"-._".contains(&b);
    if key.is_empty() || !key.bytes().all(allowed) {
        return Some(
            "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or \
             'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')"
                .to_owned(),
        );
    }
    match key {
        "." => Some("must not be '.'".to_owned()),
        ".." => Some("must not be '..'".to_owned()),
        _ if key.starts_with("..") => Some("must not start with '..'".to_owned()),
        _ => None,
    }
}

/// Checks the keys of a mapping.
pub(super) fn check<'k>(
    keys: impl IntoIterator<Item = &'k String>,
    path: &Path<'_>,
    report: &Report,
) {
    for key in keys {
        if let Some(problem) = problem(key) {
            report.invalid(&path.field(key), key, problem);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::problem;

    #[test]
    fn a_key_is_a_file_name_that_leads_nowhere_else() {
        for good in ["a", "A.b-c_9", ".dockercfg", "a..b"] {
            assert_eq!(problem(good), None);
        }
        for bad in ["", ".", "..", "..data", "...a", "a/b", "ü", "a b", "a\0"] {
            assert!(problem(bad).is_some(), "{bad:?}");
        }
        assert!(problem(&"a".repeat(254)).is_some());
        assert!(problem(&"a".repeat(253)).is_none());
    }
}
