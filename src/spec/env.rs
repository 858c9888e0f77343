//! Environment variables: `env` entries, with references to the pod's own fields resolved. Those to other objects are
//! in `env_from.rs`.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Container, EnvVarSource, ObjectFieldSelector, Pod, ResourceFieldSelector,
};

use super::env_from;
use super::error::{Path, Report};
use super::huge_pages;
use super::names;
use super::pod::{EnvValue, EnvVar};
use crate::types::quantity::Quantity;

/// Takes values derived from resources from another version of the pod; all others stay.
pub(crate) fn same_but_resources(ours: &mut [EnvVar], theirs: &[EnvVar]) {
    let follows = |value: &EnvValue| match value {
        EnvValue::Resource(_)
        | EnvValue::NodeCpu { .. }
        | EnvValue::NodeMemory { .. }
        | EnvValue::NodeStorage { .. } => true,
        EnvValue::Literal(_)
        | EnvValue::Metadata(_)
        | EnvValue::Uid
        | EnvValue::Key(_)
        | EnvValue::FileKey(_)
        | EnvValue::HostIp
        | EnvValue::HostIps
        | EnvValue::PodIp
        | EnvValue::PodIps
        | EnvValue::NodeName => false,
    };
    for (ours, theirs) in ours.iter_mut().zip(theirs) {
        if follows(&ours.value) {
            ours.value.clone_from(&theirs.value);
        }
    }
}

/// Validates and converts a container's `env`.
pub(crate) fn convert(
    pod: &Pod,
    container: &Container,
    path: &Path<'_>,
    report: &Report,
) -> Vec<EnvVar> {
    let list = path.field("env");
    let mut result = Vec::with_capacity(container.env.as_ref().map_or(0, Vec::len));
    for (index, variable) in container.env.iter().flatten().enumerate() {
        let path = list.index(index);
        if variable.name.is_empty() {
            report.required(&path.field("name"));
        } else if let Some(problem) = names::env_name(&variable.name) {
            report.invalid(&path.field("name"), &variable.name, problem);
        }
        let literal = variable.value.clone().unwrap_or_default();
        if literal.contains('\0') {
            report.invalid(
                &path.field("value"),
                &literal,
                "must not contain a zero byte",
            );
        }
        let value = match &variable.value_from {
            None => Some(EnvValue::Literal(literal)),
            Some(from) => {
                let path = path.field("valueFrom");
                if !literal.is_empty() {
                    report.invalid(&path, "", "may not be specified when `value` is not empty");
                }
                source(pod, container, from, &path, report)
            }
        };
        if let Some(value) = value {
            result.push(EnvVar {
                name: variable.name.clone(),
                value,
            });
        }
    }
    result
}

fn source(
    pod: &Pod,
    container: &Container,
    from: &EnvVarSource,
    path: &Path<'_>,
    report: &Report,
) -> Option<EnvValue> {
    let given = [
        from.field_ref.is_some(),
        from.resource_field_ref.is_some(),
        from.config_map_key_ref.is_some(),
        from.secret_key_ref.is_some(),
        from.file_key_ref.is_some(),
    ];
    match given.iter().filter(|given| **given).count() {
        1 => {}
        0 if report.is_wrong_below(path) => return None,
        0 => {
            let detail = "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or \
                          `fileKeyRef`";
            report.invalid(path, "", detail);
            return None;
        }
        _ => {
            let detail = "may not have more than one field specified at a time";
            report.invalid(path, "", detail);
            return None;
        }
    }
    if let Some(field) = &from.field_ref {
        return field_ref(pod, field, &path.field("fieldRef"), report);
    }
    if let Some(resource) = &from.resource_field_ref {
        let path = path.field("resourceFieldRef");
        return resource_ref(pod, Some(container), resource, &path, report);
    }
    env_from::key(from, path, report)
}

/// Fields of the metadata that a variable or a file may have.
const METADATA_PATHS: [&str; 5] = [
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "metadata.labels",
    "metadata.annotations",
];

const FIELD_PATHS: [&str; 11] = [
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "metadata.labels['<KEY>']",
    "metadata.annotations['<KEY>']",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
];

fn field_ref(
    pod: &Pod,
    field: &ObjectFieldSelector,
    path: &Path<'_>,
    report: &Report,
) -> Option<EnvValue> {
    if field.api_version.as_deref().is_some_and(|v| v != "v1") {
        let version = field.api_version.as_deref().unwrap_or_default();
        report.unsupported(&path.field("apiVersion"), version, &["v1"]);
        return None;
    }
    let metadata = &pod.metadata;
    let text = |value: &Option<String>| Some(EnvValue::Metadata(value.clone().unwrap_or_default()));
    let at = path.field("fieldPath");
    match field.field_path.as_str() {
        "" => {
            report.required(&at);
            None
        }
        "metadata.name" => text(&metadata.name),
        "metadata.namespace" => text(&metadata.namespace),
        "metadata.uid" => Some(EnvValue::Uid),
        "spec.nodeName" => Some(EnvValue::NodeName),
        "spec.serviceAccountName" => text(
            &pod.spec
                .as_ref()
                .and_then(|s| s.service_account_name.clone()),
        ),
        "status.hostIP" => Some(EnvValue::HostIp),
        "status.hostIPs" => Some(EnvValue::HostIps),
        "status.podIP" => Some(EnvValue::PodIp),
        "status.podIPs" => Some(EnvValue::PodIps),
        other => {
            let found = subscript(pod, other);
            if found.is_none() {
                report.unsupported(&at, other, &FIELD_PATHS);
            }
            found
        }
    }
}

/// The value of `metadata.labels['<KEY>']` or `metadata.annotations['<KEY>']`.
fn subscript(pod: &Pod, path: &str) -> Option<EnvValue> {
    let (field, key) = path.strip_suffix("']")?.split_once("['")?;
    let map = match field {
        "metadata.labels" => &pod.metadata.labels,
        "metadata.annotations" => &pod.metadata.annotations,
        _ => return None,
    };
    let value = map.as_ref().and_then(|map| map.get(key)).cloned();
    Some(EnvValue::Metadata(value.unwrap_or_default()))
}

/// Returns the field that a file of a volume has: one of the metadata, also all labels or annotations, one a line.
pub(super) fn field_of_volume(
    pod: &Pod,
    field: &ObjectFieldSelector,
    path: &Path<'_>,
    report: &Report,
) -> Option<EnvValue> {
    let lines = |map: &Option<BTreeMap<String, String>>| {
        let lines = map.iter().flatten();
        let lines: Vec<_> = lines
            .map(|(k, v)| format!("{k}={}", go_quoted(v)))
            .collect();
        Some(EnvValue::Metadata(lines.join("\n")))
    };
    match field.field_path.as_str() {
        "metadata.labels" => lines(&pod.metadata.labels),
        "metadata.annotations" => lines(&pod.metadata.annotations),
        "" | "metadata.name" | "metadata.namespace" | "metadata.uid" => {
            field_ref(pod, field, path, report)
        }
        other => {
            let found = subscript(pod, other);
            if found.is_none() {
                report.unsupported(&path.field("fieldPath"), other, &METADATA_PATHS);
            }
            found
        }
    }
}

/// The text in double quotes as Go writes it (`%q`).
fn go_quoted(text: &str) -> String {
    let mut quoted = String::from('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            '\u{7}' => quoted.push_str("\\a"),
            '\u{8}' => quoted.push_str("\\b"),
            '\u{b}' => quoted.push_str("\\v"),
            '\u{c}' => quoted.push_str("\\f"),
            c if c.is_ascii_control() => quoted.push_str(&format!("\\x{:02x}", c as u32)),
            c if c.is_control() => quoted.push_str(&format!("\\u{:04x}", c as u32)),
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

pub(super) fn resource_ref(
    pod: &Pod,
    own: Option<&Container>,
    reference: &ResourceFieldSelector,
    path: &Path<'_>,
    report: &Report,
) -> Option<EnvValue> {
    let spec = pod.spec.as_ref()?;
    let init = spec.init_containers.iter().flatten();
    let mut all = spec.containers.iter().chain(init);
    let container = match reference.container_name.as_deref() {
        None | Some("") => match own {
            Some(own) => own,
            None => {
                report.required(&path.field("containerName"));
                return None;
            }
        },
        Some(name) => match all.find(|c| c.name == name) {
            Some(container) => container,
            None => {
                report.not_found(&path.field("containerName"), name);
                return None;
            }
        },
    };
    let at = path.field("resource");
    if reference.resource.is_empty() {
        report.required(&at);
        return None;
    }
    let Some((kind, resource)) = reference
        .resource
        .split_once('.')
        .filter(|(kind, name)| ["limits", "requests"].contains(kind) && is_known(name))
    else {
        let known = [
            "limits.cpu",
            "limits.memory",
            "limits.ephemeral-storage",
            "requests.cpu",
            "requests.memory",
            "requests.ephemeral-storage",
        ];
        report.unsupported(&at, &reference.resource, &known);
        return None;
    };
    let divisor = divisor(reference, resource, path, report)?;
    Some(figure(container, kind, resource, divisor))
}

/// Returns the resource divided and rounded up; the node's stands in for a limit that is not set.
fn figure(container: &Container, kind: &str, resource: &str, divisor: u64) -> EnvValue {
    let resources = container.resources.as_ref();
    let map = resources.and_then(|r| match kind {
        "limits" => r.limits.as_ref(),
        _ => r.requests.as_ref(),
    });
    let amount = map
        .and_then(|m| m.get(resource))
        .and_then(|q| Quantity::parse(&q.0).ok())
        .filter(|q| q.nano() > 0);
    match (amount, resource) {
        (Some(amount), _) => {
            // cpu is rounded to thousandths before the division.
            let amount = match resource {
                "cpu" => amount.ceil_milli(),
                _ => amount.ceil(),
            };
            let divisor = i128::from(divisor);
            let quotient = amount / divisor + i128::from(amount % divisor != 0);
            EnvValue::Resource(quotient.to_string())
        }
        // Without a limit for huge pages a container cannot use any.
        (None, _) if kind == "requests" || huge_pages::is_resource(resource) => {
            EnvValue::Resource("0".to_owned())
        }
        (None, "cpu") => EnvValue::NodeCpu {
            divisor_milli: divisor,
        },
        (None, "memory") => EnvValue::NodeMemory {
            divisor_bytes: divisor,
        },
        (None, _) => EnvValue::NodeStorage {
            divisor_bytes: divisor,
        },
    }
}

fn is_known(resource: &str) -> bool {
    matches!(resource, "cpu" | "memory" | "ephemeral-storage") || huge_pages::is_resource(resource)
}

/// Returns the divisor in thousandths for cpu, in whole units otherwise; 0 means 1.
fn divisor(
    reference: &ResourceFieldSelector,
    resource: &str,
    path: &Path<'_>,
    report: &Report,
) -> Option<u64> {
    let written = reference.divisor.as_ref().map_or("0", |q| q.0.as_str());
    let at = path.field("divisor");
    let divisor = match Quantity::parse(written) {
        Ok(divisor) => divisor,
        Err(error) => {
            report.invalid(&at, written, error);
            return None;
        }
    };
    let cpu = resource == "cpu";
    if divisor.nano() == 0 {
        return Some(if cpu { 1000 } else { 1 });
    }
    let text = divisor.to_string();
    let (allowed, list): (bool, _) = if cpu {
        (matches!(text.as_str(), "1" | "1m"), "1m and 1")
    } else {
        let suffix = text.strip_prefix('1');
        let known = [
            "", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei",
        ];
        (
            suffix.is_some_and(|s| known.contains(&s)),
            "1, 1k, 1M, 1G, 1T, 1P, 1E, 1Ki, 1Mi, 1Gi, 1Ti, 1Pi, 1Ei",
        )
    };
    if !allowed {
        // Messages name all sizes of huge pages as one resource, as Kubernetes does.
        let resource = match huge_pages::is_resource(resource) {
            true => "hugepages",
            false => resource,
        };
        let detail =
            format_args!("only divisor's values {list} are supported with the {resource} resource");
        report.invalid(&at, written, detail);
        return None;
    }
    let amount = if cpu {
        divisor.ceil_milli()
    } else {
        divisor.ceil()
    };
    u64::try_from(amount).ok()
}
