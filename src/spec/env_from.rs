//! Environment variables from other objects: `envFrom`, and the keys of ConfigMaps, Secrets and files in `env`.

use k8s_openapi::api::core::v1::{Container, EnvVarSource, FileKeySelector};

use super::configuration::{ObjectKind, key_problem};
use super::error::{Path, Report};
use super::names;
use super::pod::{EnvFrom, EnvValue, FileKeyRef, KeyRef};
use super::projected::check_path;

/// Validates and converts a container's `envFrom`.
pub(crate) fn convert(container: &Container, path: &Path<'_>, report: &Report) -> Vec<EnvFrom> {
    let list = path.field("envFrom");
    let mut result = Vec::new();
    for (index, source) in container.env_from.iter().flatten().enumerate() {
        let path = list.index(index);
        let prefix = source.prefix.clone().unwrap_or_default();
        if let Some(problem) = names::env_name(&prefix) {
            report.invalid(&path.field("prefix"), &prefix, problem);
        }
        let map = source.config_map_ref.as_ref();
        let map = map.map(|r| (ObjectKind::ConfigMap, "configMapRef", &r.name, r.optional));
        let secret = source.secret_ref.as_ref();
        let secret = secret.map(|r| (ObjectKind::Secret, "secretRef", &r.name, r.optional));
        let (kind, field, name, optional) = match (map, secret) {
            (Some(one), None) | (None, Some(one)) => one,
            (Some(_), Some(_)) => {
                let detail = "may not have more than one field specified at a time";
                report.invalid(&path, "", detail);
                continue;
            }
            (None, None) => {
                if !report.is_wrong_below(&path) {
                    let detail = "must specify one of: `configMapRef` or `secretRef`";
                    report.invalid(&path, "", detail);
                }
                continue;
            }
        };
        check_name(name, &path.field(field).field("name"), report);
        result.push(EnvFrom {
            prefix,
            kind,
            name: name.clone(),
            optional: optional == Some(true),
        });
    }
    result
}

/// Validates and converts a reference to a key; exactly one is given.
pub(super) fn key(from: &EnvVarSource, path: &Path<'_>, report: &Report) -> Option<EnvValue> {
    if let Some(file) = &from.file_key_ref {
        return Some(file_key(file, &path.field("fileKeyRef"), report));
    }
    let map = from.config_map_key_ref.as_ref();
    let map = map.map(|r| {
        (
            ObjectKind::ConfigMap,
            "configMapKeyRef",
            &r.name,
            &r.key,
            r.optional,
        )
    });
    let secret = from.secret_key_ref.as_ref();
    let secret = secret.map(|r| {
        (
            ObjectKind::Secret,
            "secretKeyRef",
            &r.name,
            &r.key,
            r.optional,
        )
    });
    let (kind, field, name, key, optional) = map.or(secret)?;
    let path = path.field(field);
    check_name(name, &path.field("name"), report);
    check_key(key, &path.field("key"), report);
    Some(EnvValue::Key(KeyRef {
        kind,
        name: name.clone(),
        key: key.clone(),
        optional: optional == Some(true),
    }))
}

fn file_key(file: &FileKeySelector, path: &Path<'_>, report: &Report) -> EnvValue {
    if file.volume_name.is_empty() {
        report.required(&path.field("volumeName"));
    }
    check_path(&file.path, &path.field("path"), report);
    let at = path.field("key");
    if file.key.is_empty() {
        report.required(&at);
    } else if let Some(problem) = names::env_name(&file.key) {
        report.invalid(&at, &file.key, problem);
    }
    EnvValue::FileKey(FileKeyRef {
        volume: file.volume_name.clone(),
        path: file.path.clone(),
        key: file.key.clone(),
        optional: file.optional == Some(true),
    })
}

/// Checks the name of a ConfigMap or Secret.
pub(super) fn check_name(name: &str, path: &Path<'_>, report: &Report) {
    if name.is_empty() {
        report.required(path);
    } else if let Some(problem) = names::dns_subdomain(name) {
        report.invalid(path, name, problem);
    }
}

/// Checks a key of a ConfigMap or Secret.
pub(super) fn check_key(key: &str, path: &Path<'_>, report: &Report) {
    if key.is_empty() {
        report.required(path);
    } else if let Some(problem) = key_problem(key) {
        report.invalid(path, key, problem);
    }
}
