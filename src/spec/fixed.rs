//! The parts of a manifest that cannot change while the pod runs, compared field by field; all others can be edited in
//! a running pod (`coracle help differences`).
//!
//! Formatting and explicit defaults make no difference.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Pod, PodSpec};
use serde_json::{Map, Value};

use super::device;
use super::error::{Path, Report};
use super::pinned;
use super::pod::QosClass;
use super::priority::CRITICAL;
use super::resources::{self, Figures};
use super::rollback::RESTARTED_AT;
use super::uid;
use crate::types::Gather;

/// Fields of the pod's spec that can change: those that apply while it runs, and the node's name, which the manifest
/// does not decide.
const CHANGEABLE: [&str; 6] = [
    "terminationGracePeriodSeconds",
    "activeDeadlineSeconds",
    "nodeName",
    "preemptionPolicy",
    "priority",
    "priorityClassName",
];

/// Fields of each container that can change.
const CHANGEABLE_OF_CONTAINERS: [&str; 6] = [
    "image",
    "imagePullPolicy",
    "livenessProbe",
    "readinessProbe",
    "startupProbe",
    "resizePolicy",
];

/// Resources that can be changed in place.
const RESIZABLE: [&str; 2] = ["cpu", "memory"];

/// A manifest in two parts.
#[derive(Debug)]
pub(crate) struct Parts {
    /// Fields that require a new pod, as in the manifest; and `status.qosClass`, which decides the pod's place in the
    /// cgroup tree.
    pub(crate) fixed: Value,
    /// Fields that can change in a running pod.
    pub(crate) changeable: Value,
}

impl Parts {
    /// Splits a defaulted manifest.
    pub(crate) fn of(pod: &Pod) -> Self {
        // Serializing these types to a value cannot fail: all keys are strings.
        let mut spec = serde_json::to_value(&pod.spec).unwrap_or_default();
        let priority = pod
            .spec
            .as_ref()
            .and_then(|spec| spec.priority)
            .unwrap_or(0);
        let mut changeable = Map::new();
        if let Value::Object(fields) = &mut spec {
            changeable = split(fields, &CHANGEABLE);
            changeable.remove("nodeName");
            // The kernel's OOM score of a critical pod is set when its containers start.
            if priority >= CRITICAL {
                fields.insert("priority".to_owned(), priority.into());
            }
            for list in ["initContainers", "containers"] {
                let containers = fields.get_mut(list).and_then(Value::as_array_mut);
                let parts = containers.into_iter().flatten().map(|container| {
                    let Value::Object(fields) = container else {
                        return Value::Null;
                    };
                    Value::Object(split(fields, &CHANGEABLE_OF_CONTAINERS))
                });
                changeable.insert(list.to_owned(), parts.collect());
            }
        }
        let class = pod.spec.as_ref().map_or(QosClass::BestEffort, class);
        let own = [
            "kubernetes.io/config.hash",
            "kubernetes.io/config.source",
            uid::CONFIGURATION,
            pinned::IMAGES,
        ];
        let annotations = pod.metadata.annotations.iter().flatten();
        let annotations = annotations.filter(|(key, _)| !own.contains(&key.as_str()));
        let entry = |(key, value): (&String, &String)| (key.clone(), value.as_str().into());
        // A container gets its devices when it starts, and a restart of a document's pods replaces them.
        let (devices, annotations): (Vec<_>, Vec<_>) =
            annotations.partition(|(key, _)| device::is_annotation(key) || *key == RESTARTED_AT);
        let annotations: Map<String, Value> = annotations.into_iter().map(entry).gather();
        let mut kept: Map<String, Value> = devices.into_iter().map(entry).gather();
        let configuration = serde_json::json!(uid::configuration(&pod.metadata));
        kept.insert(uid::CONFIGURATION.to_owned(), configuration);
        Self {
            fixed: serde_json::json!({
                "spec": spec,
                "status": { "qosClass": class.as_str() },
                "metadata": { "annotations": kept },
            }),
            changeable: serde_json::json!({
                "metadata": { "labels": pod.metadata.labels, "annotations": annotations },
                "spec": changeable,
            }),
        }
    }
}

/// Takes these fields, and the resizable part of `resources`, out of an object.
fn split(fields: &mut Map<String, Value>, names: &[&str]) -> Map<String, Value> {
    let mut taken = Map::new();
    for name in names {
        if let Some(value) = fields.remove(*name) {
            taken.insert((*name).to_owned(), value);
        }
    }
    if let Some(Value::Object(resources)) = fields.get_mut("resources") {
        let mut resized = Map::new();
        for map in ["requests", "limits"] {
            if let Some(Value::Object(amounts)) = resources.get_mut(map) {
                let some = RESIZABLE.iter();
                let some =
                    some.filter_map(|name| Some(((*name).to_owned(), amounts.remove(*name)?)));
                let some: Map<_, _> = some.gather();
                resized.insert(map.to_owned(), some.into());
            }
        }
        taken.insert("resources".to_owned(), resized.into());
    }
    taken
}

/// Returns the QoS class of a manifest that may be invalid.
fn class(spec: &PodSpec) -> QosClass {
    let silent = Report::new(0);
    let of = |resources: &Option<_>| match resources {
        Some(resources) => resources::convert(resources, &Path::Root, &silent),
        None => Default::default(),
    };
    let pod = spec.resources.as_ref().map(|_| of(&spec.resources));
    let all = spec.init_containers.iter().flatten();
    let all = all.chain(&spec.containers).map(|c| of(&c.resources));
    resources::qos(pod.as_ref(), &Figures::lasting(all.collect()))
}

/// Returns the paths of fields that differ: `spec.containers[0].args`, or `spec.volumes` if the number of items
/// differs.
pub(crate) fn differences(old: &Value, new: &Value) -> Vec<String> {
    let mut found = Vec::new();
    compare("", (Some(old), Some(new)), &Path::Root, &mut found);
    found
}

fn compare(
    key: &str,
    pair: (Option<&Value>, Option<&Value>),
    path: &Path<'_>,
    found: &mut Vec<String>,
) {
    let present = |value: Option<&Value>| value.is_some_and(|v| !is_absent(key, v));
    match pair {
        (old, new) if !present(old) && !present(new) => {}
        (Some(Value::Object(old)), Some(Value::Object(new))) => {
            let keys: BTreeSet<&String> = old.keys().chain(new.keys()).gather();
            for key in keys {
                compare(key, (old.get(key), new.get(key)), &path.field(key), found);
            }
        }
        (Some(Value::Array(old)), Some(Value::Array(new))) if old.len() == new.len() => {
            for (index, pair) in old.iter().zip(new).enumerate() {
                let pair = (Some(pair.0), Some(pair.1));
                compare("", pair, &path.index(index), found);
            }
        }
        (old, new) if old == new => {}
        _ => found.push(path.to_string()),
    }
}

/// Whether a field has the same meaning as leaving it out.
pub(crate) fn is_absent(key: &str, value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(value) => !value && FALSE_BY_DEFAULT.contains(&key),
        Value::Number(_) => false,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.iter().all(|(k, v)| is_absent(k, v)),
    }
}

/// Fields whose default is `false`; for others, such as `allowPrivilegeEscalation`, it is not.
const FALSE_BY_DEFAULT: [&str; 11] = [
    "hostIPC",
    "hostNetwork",
    "hostPID",
    "privileged",
    "readOnly",
    "readOnlyRootFilesystem",
    "setHostnameAsFQDN",
    "shareProcessNamespace",
    "stdin",
    "stdinOnce",
    "tty",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_name_the_field_and_ignore_equivalent_values() {
        let old = serde_json::json!({
            "a": { "list": [1, { "x": "1" }], "tty": false, "gone": "" },
            "b": [1], "c": { "k/y": 1 }, "same": null,
        });
        let new = serde_json::json!({
            "a": { "list": [1, { "x": "2" }], "more": [] },
            "b": [1, 2], "c": { "k/y": 2 }, "new": true,
        });
        let found = differences(&old, &new);
        assert_eq!(found, ["a.list[1].x", "b", "c[k/y]", "new"]);
        assert_eq!(differences(&old, &old), [""; 0]);
    }
}
