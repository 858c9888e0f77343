//! Coracle's own annotations, `coracle.dev/…`. An unknown one gets a warning, because a misspelling would silently have
//! no effect. Annotations of other domains are ignored, apart from those that network plugins go by.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::error::{Path, Report};
use super::value::Value;
use super::workload::job::EDITION;
use super::{after, aliases, backoff, device, pinned, rollback, suggest, swap, uid};

/// The domain of coracle's annotations.
const DOMAIN: &str = "coracle.dev";

/// With `true`, the health of a boot depends on the pod (`coracle help health`).
pub const REQUIRED: &str = "coracle.dev/required";

/// Annotations of pods.
pub(crate) const OF_PODS: [&str; 10] = [
    after::ANNOTATION,
    backoff::ANNOTATION,
    device::ANNOTATION,
    swap::ANNOTATION,
    uid::RESTART_ON_CHANGE,
    uid::CONFIGURATION,
    pinned::IMAGES,
    REQUIRED,
    rollback::ANNOTATION,
    rollback::WITHIN,
];

/// Annotations of documents that stand for pods.
const OF_WORKLOADS: [&str; 2] = [rollback::ANNOTATION, rollback::WITHIN];

/// Annotations of services.
pub(crate) const OF_SERVICES: [&str; 1] = [aliases::ANNOTATION];

/// Annotations of pods that network plugins go by, and what is the case without them.
const OF_PLUGINS: [(&str, &str); 4] = [
    ("k8s.v1.cni.cncf.io/networks", ONE_INTERFACE),
    ("v1.multus-cni.io/default-network", ONE_INTERFACE),
    ("kubernetes.io/ingress-bandwidth", NO_LIMIT),
    ("kubernetes.io/egress-bandwidth", NO_LIMIT),
];

const ONE_INTERFACE: &str = "there are no network plugins here: a pod has the one interface `eth0`";
const NO_LIMIT: &str = "traffic of pods is not limited here";

/// Warns of annotations of a pod without effect here, which would otherwise be missed.
pub(crate) fn of_plugins(metadata: &ObjectMeta, path: &Path<'_>, report: &Report) {
    let given = metadata.annotations.as_ref();
    for (key, what) in OF_PLUGINS {
        if given.is_some_and(|given| given.contains_key(key)) {
            report.warn(&path.field(key), format_args!("accepted, but {what}"));
        }
    }
}

/// Warns of unknown annotations and of labels in coracle's domain; `known` are the annotations of this kind of object.
pub(crate) fn check(metadata: &ObjectMeta, known: &[&str], path: &Path<'_>, report: &Report) {
    let at = path.field("annotations");
    for key in metadata.annotations.iter().flatten().map(|(key, _)| key) {
        let of_container =
            key.starts_with(device::OF_CONTAINER) && known.contains(&device::ANNOTATION);
        if !known.contains(&key.as_str()) && !of_container {
            stranger(key, known, &at, report);
        }
    }
    let at = path.field("labels");
    let labels = metadata.labels.iter().flatten().map(|(key, _)| key);
    // Pods of Jobs have it, also those that a client saved.
    for key in labels.filter(|key| *key != EDITION) {
        if known.contains(&key.as_str()) {
            report.warn(
                &at.field(key),
                "has no effect as a label: it is an annotation",
            );
        } else {
            stranger(key, known, &at, report);
        }
    }
}

/// The same for a document that stands for pods, as it is written. Its pods have the annotations of their template.
pub(crate) fn check_workload(document: &Value, path: &Path<'_>, report: &Report) {
    let annotations = document.get("metadata").and_then(|m| m.get("annotations"));
    let Some(Value::Map(entries)) = annotations else {
        return;
    };
    let at = path.field("metadata");
    let at = at.field("annotations");
    let others = entries.iter().map(|(key, _)| key.as_str());
    for key in others.filter(|key| !OF_WORKLOADS.contains(key)) {
        match OF_PODS.contains(&key) || device::is_annotation(key) {
            true => report.warn(
                &at.field(key),
                "without effect here: it belongs in the metadata of the pod template",
            ),
            false => stranger(key, &OF_WORKLOADS, &at, report),
        }
    }
}

fn stranger(key: &str, known: &[&str], path: &Path<'_>, report: &Report) {
    let Some((domain, name)) = key.split_once('/') else {
        return;
    };
    let below = |domain: &str| domain.to_ascii_lowercase().ends_with(".coracle.dev");
    if !domain.eq_ignore_ascii_case(DOMAIN) && !below(domain) {
        return;
    }
    let names: Vec<&str> = known
        .iter()
        .filter_map(|key| key.split_once('/').map(|(_, name)| name))
        .collect();
    let advice = match suggest::nearest(name, &names) {
        Some(near) => format!("; did you mean `{DOMAIN}/{near}`?"),
        None if OF_PODS.contains(&key) => "; it is one of pods".to_owned(),
        None if OF_SERVICES.contains(&key) => "; it is one of services".to_owned(),
        None => String::new(),
    };
    report.warn(
        &path.field(key),
        format_args!("unknown to coracle, without effect{advice}"),
    );
}
