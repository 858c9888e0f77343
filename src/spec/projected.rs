//! Volumes of files that the node writes: `configMap`, `secret`, `downwardAPI` and `projected`.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{
    DownwardAPIVolumeFile, KeyToPath, Pod, ProjectedVolumeSource, Volume, VolumeProjection,
};

use super::configuration::ObjectKind;
use super::env::{field_of_volume, resource_ref};
use super::env_from::{check_key, check_name};
use super::error::{Path, Report};
use super::pod::{DownwardFile, KeyFile, Projected, Projection};

/// The mode of files without one, as the API server sets it.
pub(super) const DEFAULT_MODE: i32 = 0o644;

/// Validates and converts a volume of one of these kinds.
pub(super) fn volume(
    pod: &Pod,
    volume: &Volume,
    path: &Path<'_>,
    report: &Report,
) -> Option<Projected> {
    let (field, sources, mode) = if let Some(map) = &volume.config_map {
        let at = path.field("configMap");
        let source = keys(
            (ObjectKind::ConfigMap, &map.name, "name"),
            (map.items.as_deref(), map.optional),
            &at,
            report,
        );
        ("configMap", vec![source], map.default_mode)
    } else if let Some(secret) = &volume.secret {
        let at = path.field("secret");
        let name = secret.secret_name.clone().unwrap_or_default();
        let source = keys(
            (ObjectKind::Secret, &name, "secretName"),
            (secret.items.as_deref(), secret.optional),
            &at,
            report,
        );
        ("secret", vec![source], secret.default_mode)
    } else if let Some(downward) = &volume.downward_api {
        let at = path.field("downwardAPI");
        let source = files(pod, downward.items.as_deref(), &at, report);
        ("downwardAPI", vec![source], downward.default_mode)
    } else {
        let projected = volume.projected.as_ref()?;
        let at = path.field("projected");
        let sources = sources(pod, projected, &at, report);
        ("projected", sources, projected.default_mode)
    };
    let at = path.field(field);
    let default_mode = mode_of(mode, &at.field("defaultMode"), report);
    Some(Projected {
        sources,
        default_mode: default_mode.unwrap_or(0o644),
    })
}

fn sources(
    pod: &Pod,
    projected: &ProjectedVolumeSource,
    path: &Path<'_>,
    report: &Report,
) -> Vec<Projection> {
    let list = path.field("sources");
    let mut result = Vec::new();
    let mut paths = BTreeSet::new();
    for (index, source) in projected.sources.iter().flatten().enumerate() {
        let path = list.index(index);
        let Some(source) = projection(pod, source, &path, report) else {
            continue;
        };
        for written in source.paths() {
            if !paths.insert(written.to_owned()) {
                report.invalid(&path, written, "conflicting duplicate paths");
            }
        }
        result.push(source);
    }
    result
}

fn projection(
    pod: &Pod,
    source: &VolumeProjection,
    path: &Path<'_>,
    report: &Report,
) -> Option<Projection> {
    const NO_SERVER: &str = "remove it: there is no API server to log in to";
    let refused = [
        (
            "serviceAccountToken",
            source.service_account_token.is_some(),
            NO_SERVER,
        ),
        (
            "clusterTrustBundle",
            source.cluster_trust_bundle.is_some(),
            "put the certificates into a ConfigMap",
        ),
        (
            "podCertificate",
            source.pod_certificate.is_some(),
            "put key and certificate into a Secret",
        ),
    ];
    let mut count = 0;
    for (name, _, instead) in refused.iter().filter(|(_, given, _)| *given) {
        let detail = format_args!("{name} sources are not supported");
        report.refuse(&path.field(name), detail, instead);
        count += 1;
    }
    let (map, secret) = (source.config_map.as_ref(), source.secret.as_ref());
    let downward = source.downward_api.as_ref();
    count += usize::from(map.is_some());
    count += usize::from(secret.is_some()) + usize::from(downward.is_some());
    if count > 1 {
        report.forbidden(path, "may not specify more than 1 volume type");
        return None;
    }
    if let Some(map) = map {
        let named = (ObjectKind::ConfigMap, map.name.as_str(), "name");
        let wanted = (map.items.as_deref(), map.optional);
        return Some(keys(named, wanted, &path.field("configMap"), report));
    }
    if let Some(secret) = secret {
        let named = (ObjectKind::Secret, secret.name.as_str(), "name");
        let wanted = (secret.items.as_deref(), secret.optional);
        return Some(keys(named, wanted, &path.field("secret"), report));
    }
    if let Some(downward) = downward {
        let items = downward.items.as_deref();
        return Some(files(pod, items, &path.field("downwardAPI"), report));
    }
    if count == 0 && !report.is_wrong_below(path) {
        report.required(path);
    }
    None
}

fn keys(
    (kind, name, field): (ObjectKind, &str, &str),
    (items, optional): (Option<&[KeyToPath]>, Option<bool>),
    path: &Path<'_>,
    report: &Report,
) -> Projection {
    check_name(name, &path.field(field), report);
    let list = path.field("items");
    let item = |(index, item): (usize, &KeyToPath)| {
        let path = list.index(index);
        check_key(&item.key, &path.field("key"), report);
        check_path(&item.path, &path.field("path"), report);
        KeyFile {
            key: item.key.clone(),
            path: item.path.clone(),
            mode: mode_of(item.mode, &path.field("mode"), report),
        }
    };
    // An empty list means the same as none.
    let items = items.filter(|items| !items.is_empty());
    Projection::Keys {
        kind,
        name: name.to_owned(),
        items: items.map(|items| items.iter().enumerate().map(item).collect()),
        optional: optional == Some(true),
    }
}

fn files(
    pod: &Pod,
    items: Option<&[DownwardAPIVolumeFile]>,
    path: &Path<'_>,
    report: &Report,
) -> Projection {
    let list = path.field("items");
    let mut result = Vec::new();
    for (index, item) in items.unwrap_or_default().iter().enumerate() {
        let path = list.index(index);
        check_path(&item.path, &path.field("path"), report);
        let mode = mode_of(item.mode, &path.field("mode"), report);
        let value = match (&item.field_ref, &item.resource_field_ref) {
            (Some(field), None) => field_of_volume(pod, field, &path.field("fieldRef"), report),
            (None, Some(resource)) => {
                resource_ref(pod, None, resource, &path.field("resourceFieldRef"), report)
            }
            (Some(_), Some(_)) => {
                let detail = "fieldRef and resourceFieldRef can not be specified simultaneously";
                report.invalid(&path, "resource", detail);
                None
            }
            (None, None) => {
                report.error(
                    &path,
                    "Required value: one of fieldRef and resourceFieldRef is required",
                );
                None
            }
        };
        if let Some(value) = value {
            result.push(DownwardFile {
                path: item.path.clone(),
                mode,
                value,
            });
        }
    }
    Projection::Downward(result)
}

/// Checks the path of a file in a volume.
pub(super) fn check_path(text: &str, path: &Path<'_>, report: &Report) {
    if text.is_empty() {
        report.required(path);
    } else if text.starts_with('/') {
        report.invalid(path, text, "must be a relative path");
    } else if text.split('/').any(|part| part == "..") {
        report.invalid(path, text, "must not contain '..'");
    } else if text.starts_with("..") {
        report.invalid(path, text, "must not start with '..'");
    } else if text.contains('\0') {
        report.invalid(path, text, "must not contain a zero byte");
    } else if text.split('/').all(|part| part.is_empty() || part == ".") {
        report.invalid(path, text, "must name a file");
    }
}

fn mode_of(mode: Option<i32>, path: &Path<'_>, report: &Report) -> Option<u32> {
    let mode = mode?;
    let known = u32::try_from(mode).ok().filter(|mode| *mode <= 0o777);
    if known.is_none() {
        let detail = "must be a number between 0 and 0777 (octal), both inclusive";
        report.invalid(path, mode, detail);
    }
    known
}

impl Projection {
    /// The paths that are written in the manifest.
    fn paths(&self) -> Vec<&str> {
        match self {
            Self::Keys { items, .. } => {
                let items = items.iter().flatten();
                items.map(|item| item.path.as_str()).collect()
            }
            Self::Downward(files) => files.iter().map(|file| file.path.as_str()).collect(),
        }
    }
}
