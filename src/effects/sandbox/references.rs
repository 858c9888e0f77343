//! Environment variables from other objects (`env_from`, `env` with `valueFrom`): keys of ConfigMaps and Secrets, and files of the pod's volumes. The messages
//! are the kubelet's (`makeEnvironmentVariables`).

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::path::Path;

use super::{ConfigError, ContainerOrder};
use crate::spec::{EnvFrom, FileKeyRef, KeyRef, ObjectKind, VolumeSource};
use crate::sys::beneath;
use crate::sys::openat::{self, Found};

/// Limit of a file with variables in bytes: a container writes it.
const MAX_FILE: u64 = 64 << 10;

/// Adds a variable for each key.
pub(super) fn all_keys(
    order: &ContainerOrder<'_>,
    source: &EnvFrom,
    known: &mut BTreeMap<String, String>,
) -> Result<(), ConfigError> {
    let namespace = &order.pod.key.namespace;
    let found = order
        .configuration
        .get(source.kind, namespace, &source.name);
    let Some(object) = found else {
        return match source.optional {
            true => Ok(()),
            false => Err(not_found(source.kind, &source.name)),
        };
    };
    for (key, value) in object.texts() {
        let name = format!("{}{key}", source.prefix);
        let text = text(value, || origin(source.kind, namespace, &source.name, key))?;
        known.insert(name, text);
    }
    Ok(())
}

/// The value of a key; `None` if it is missing and may be.
pub(super) fn key(
    order: &ContainerOrder<'_>,
    wanted: &KeyRef,
) -> Result<Option<String>, ConfigError> {
    let (namespace, name) = (&order.pod.key.namespace, &wanted.name);
    let Some(object) = order.configuration.get(wanted.kind, namespace, name) else {
        return match wanted.optional {
            true => Ok(None),
            false => Err(not_found(wanted.kind, name)),
        };
    };
    match object.text(&wanted.key) {
        Some(value) => {
            let text = text(value, || origin(wanted.kind, namespace, name, &wanted.key))?;
            Ok(Some(text))
        }
        None if wanted.optional => Ok(None),
        None => Err(ConfigError::Reference(format!(
            "couldn't find key {} in {} {namespace}/{name}",
            wanted.key,
            wanted.kind.as_str()
        ))),
    }
}

/// The value of a variable in a file; `None` if it is missing and may be.
pub(super) fn file_key(
    order: &ContainerOrder<'_>,
    wanted: &FileKeyRef,
) -> Result<Option<String>, ConfigError> {
    let root = order.volumes.get(&wanted.volume);
    let volume = order.pod.volumes.iter().find(|v| v.name == wanted.volume);
    let is_empty_dir = volume.is_some_and(|v| {
        matches!(
            v.source,
            VolumeSource::EmptyDir { .. } | VolumeSource::MemoryDir { .. }
        )
    });
    let Some(root) = root.filter(|_| is_empty_dir) else {
        return Err(ConfigError::Reference(format!(
            "cannot find the volume \"{}\" referenced by FileKeyRef",
            wanted.volume
        )));
    };
    let failed = |error: &dyn std::fmt::Display| {
        ConfigError::Reference(format!(
            "environment variable key \"{}\": could not read `{}` of volume \"{}\": {error}",
            wanted.key, wanted.path, wanted.volume
        ))
    };
    let text = match read(root, Path::new(&wanted.path)) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound && wanted.optional => {
            return Ok(None);
        }
        Err(error) => return Err(failed(&error)),
    };
    let mut variables = parse(&text).map_err(|error| failed(&error))?;
    match variables.remove(&wanted.key) {
        Some(value) => Ok(Some(value)),
        None if wanted.optional => Ok(None),
        None => Err(ConfigError::Reference(format!(
            "environment variable key \"{}\" not found in file \"{}\"",
            wanted.key, wanted.path
        ))),
    }
}

/// Reads a regular file below `root`; symlinks cannot lead out of it.
fn read(root: &Path, path: &Path) -> io::Result<String> {
    let root = beneath::place(root)?;
    let file = match openat::read_regular_in_root(&root, path)? {
        Found::Regular(file) => file,
        Found::Whiteout | Found::Other => return Err(io::Error::other("it is not a regular file")),
    };
    let mut text = String::new();
    file.take(MAX_FILE + 1).read_to_string(&mut text)?;
    match text.len() as u64 > MAX_FILE {
        true => Err(io::Error::other("it is larger than 64 KiB")),
        false => Ok(text),
    }
}

/// Reads the lines `NAME='value'`. A value may contain anything but single quotes, also line breaks; empty lines and
/// those that begin with `#` are skipped (KEP-3721).
fn parse(text: &str) -> Result<BTreeMap<String, String>, String> {
    let mut found = BTreeMap::new();
    let (mut rest, mut line) = (text, 1);
    while !rest.is_empty() {
        let (first, after) = rest.split_once('\n').unwrap_or((rest, ""));
        if first.trim().is_empty() || first.trim_start().starts_with('#') {
            (rest, line) = (after, line + 1);
            continue;
        }
        let wrong = || format!("line {line}: must be NAME='value'");
        let (name, value) = rest.split_once('=').ok_or_else(wrong)?;
        let value = value.strip_prefix('\'').ok_or_else(wrong)?;
        let (value, tail) = value.split_once('\'').ok_or_else(wrong)?;
        let (end, after) = tail.split_once('\n').unwrap_or((tail, ""));
        let name = name.trim_start();
        if name.is_empty() || name.contains(char::is_whitespace) || !end.trim().is_empty() {
            return Err(wrong());
        }
        if value.contains('\0') {
            return Err(format!("line {line}: the value has a zero byte"));
        }
        line += 1 + value.matches('\n').count();
        found.insert(name.to_owned(), value.to_owned());
        rest = after;
    }
    Ok(found)
}

fn not_found(kind: ObjectKind, name: &str) -> ConfigError {
    let kind = kind.as_str().to_lowercase();
    ConfigError::Reference(format!("{kind} \"{name}\" not found"))
}

fn origin(kind: ObjectKind, namespace: &str, name: &str, key: &str) -> String {
    format!("key {key} in {} {namespace}/{name}", kind.as_str())
}

/// The value as text; a variable can hold nothing else.
fn text(value: &[u8], origin: impl Fn() -> String) -> Result<String, ConfigError> {
    match std::str::from_utf8(value) {
        Ok(text) if !text.contains('\0') => Ok(text.to_owned()),
        _ => Err(ConfigError::Reference(format!(
            "{} cannot be an environment variable: it is not text; mount it as a file",
            origin()
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_with_variables_have_quoted_values() {
        let text = "# comment\n\nA='one'\n  B='two # = \"x\"'  \nC='a\nb'\nD=''";
        let found = parse(text).expect("valid");
        let pairs: Vec<_> = found
            .iter()
            .map(|(k, v)| (k.as_str(), v.as_str()))
            .collect();
        let expected = [
            ("A", "one"),
            ("B", "two # = \"x\""),
            ("C", "a\nb"),
            ("D", ""),
        ];
        assert_eq!(pairs, expected);
        for (bad, line) in [
            ("A=one", "line 1"),
            ("A='x'\nB", "line 2"),
            ("A='x", "line 1"),
            ("A='x' y", "line 1"),
            ("A='1\n2'\nB C='x'", "line 3"),
            ("='x'", "line 1"),
        ] {
            let error = parse(bad).expect_err(bad);
            assert!(error.starts_with(line), "{bad}: {error}");
        }
    }
}
