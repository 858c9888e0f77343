//! Documents as an API server shows them. A file may say `defaultMode: 0440`, `replicas: 1.0` or `suspend: yes`; clients
//! that know the types of fields refuse to read that.

use k8s_openapi::api::core::v1::{Pod, PodSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::{WorkloadKind, cron, job, written};
use crate::spec::{decode, default};

/// Gives the fields of an admitted document their types, and its template its defaults.
pub fn typed(kind: WorkloadKind, document: &mut Value) {
    again::<ObjectMeta>(&mut document["metadata"]);
    spec(kind, &mut document["spec"]);
}

fn spec(kind: WorkloadKind, spec: &mut Value) {
    if kind == WorkloadKind::CronJob {
        let mut job = spec["jobTemplate"].take();
        again::<cron::Spec>(spec);
        said(spec);
        if let Some(metadata) = job.get_mut("metadata") {
            again::<ObjectMeta>(metadata);
        }
        self::spec(WorkloadKind::Job, &mut job["spec"]);
        spec["jobTemplate"] = job;
        return;
    }
    let template = template(spec["template"].take());
    let labels = template["metadata"]["labels"].clone();
    let of_labels = kind == WorkloadKind::ReplicationController;
    let selector = spec["selector"].take();
    if !selector.is_null() {
        spec["selector"] = match of_labels {
            true => json!({ "matchLabels": selector }),
            false => selector,
        };
    }
    again::<written::Spec>(spec);
    said(spec);
    let selector = spec["selector"].take();
    let made = kind == WorkloadKind::Job
        && decode::object::<LabelSelector>(&selector).is_some_and(|s| job::is_made(&s));
    let selector = match made {
        // It names a Job that was.
        true => Value::Null,
        false => selector,
    };
    let selector = match (selector.is_null(), of_labels) {
        // As servers fill it in where it need not be written. A Job's is made of its UID.
        (true, true) => labels,
        (true, false) if kind != WorkloadKind::Job => json!({ "matchLabels": labels }),
        (_, true) => selector["matchLabels"].clone(),
        (_, false) => selector,
    };
    if let Some(spec) = spec.as_object_mut() {
        spec.remove("selector");
        if !selector.is_null() {
            spec.insert("selector".to_owned(), selector);
        }
        spec.insert("template".to_owned(), template);
    }
}

/// A template with its defaults.
fn template(written: Value) -> Value {
    let Some(mut pod) = decode::object::<Pod>(&written) else {
        return written;
    };
    let node = pod.spec.as_mut().and_then(|spec| spec.node_name.take());
    let namespace = pod.metadata.namespace.take();
    let before = pod.spec.clone();
    default::pod(&mut pod, "");
    pod.metadata.namespace = namespace;
    if let (Some(spec), Some(before)) = (&mut pod.spec, before) {
        spec.node_name = node;
        as_in_templates(spec, before);
    }
    let mut shown = json!(pod);
    if let Some(shown) = shown.as_object_mut() {
        shown.retain(|field, _| ["metadata", "spec"].contains(&field.as_str()));
    }
    shown
}

/// Takes back the defaults that servers give to pods only: requests, and ports of the node for `hostNetwork`. An edit of
/// what they follow would contradict them.
fn as_in_templates(spec: &mut PodSpec, before: PodSpec) {
    spec.resources = before.resources;
    let init = spec.init_containers.iter_mut().flatten();
    let all = init.chain(&mut spec.containers);
    let inits = before.init_containers.into_iter().flatten();
    for (container, before) in all.zip(inits.chain(before.containers)) {
        container.resources = before.resources;
        let ports = container.ports.iter_mut().flatten();
        for (port, before) in ports.zip(before.ports.into_iter().flatten()) {
            port.host_port = before.host_port;
        }
    }
}

/// Decodes a part of a document as its type, and encodes it again.
fn again<T: DeserializeOwned + Serialize>(part: &mut Value) {
    if let Some(read) = decode::object::<T>(part) {
        *part = json!(read);
    }
}

/// Leaves out empty values, except in Kubernetes' own types, which do so themselves.
fn said(part: &mut Value) {
    match part {
        Value::Object(fields) => {
            let own = |name: &str| !["selector", "volumeClaimTemplates"].contains(&name);
            let fields_of_own = fields.iter_mut().filter(|(name, _)| own(name));
            fields_of_own.for_each(|(_, value)| said(value));
            fields.retain(|_, value| !is_empty(value));
        }
        Value::Array(items) => items.iter_mut().for_each(said),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        Value::Bool(true) | Value::Number(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::{apps::v1 as apps, batch::v1 as batch, core::v1 as core};
    use serde_json::from_value;

    use super::*;

    fn shown(kind: WorkloadKind, spec: Value) -> Value {
        let labels = json!({ "a": null });
        let mut document = json!({ "apiVersion": kind.version(), "kind": kind.as_str(),
            "metadata": { "name": "x", "labels": labels }, "spec": spec });
        typed(kind, &mut document);
        let known = |kind, spec: &Value| {
            let fields = spec.as_object().unwrap().keys();
            let strange = fields.filter(|field| !written::fields(kind).contains(&field.as_str()));
            assert_eq!(strange.collect::<Vec<_>>(), Vec::<&String>::new(), "{spec}");
        };
        known(kind, &document["spec"]);
        if kind == WorkloadKind::CronJob {
            known(WorkloadKind::Job, &document["spec"]["jobTemplate"]["spec"]);
        }
        assert_eq!(document["metadata"]["labels"]["a"], "");
        document
    }

    /// As files may write it.
    fn written() -> Value {
        json!({
            "metadata": { "labels": { "app": "x" } },
            "spec": {
                "containers": [{
                    "name": "main", "image": "busybox", "stdin": "no", "ports": [{ "containerPort": 80.0 }],
                    "resources": { "limits": { "cpu": 1 } }, "readinessProbe": { "tcpSocket": { "port": 80 } }
                }],
                "volumes": [{ "name": "v", "secret": { "secretName": "s", "defaultMode": "0440" } }]
            }
        })
    }

    #[test]
    fn clients_that_know_the_types_of_fields_can_read_each_kind() {
        let selector = json!({ "matchLabels": { "app": "x" } });
        let spec = |more: Value| {
            let mut spec = json!({ "template": written() });
            let more = more.as_object().unwrap().clone();
            spec.as_object_mut().unwrap().extend(more);
            spec
        };
        let deployment = shown(
            WorkloadKind::Deployment,
            spec(
                json!({ "replicas": 2.0, "paused": "yes", "selector": selector,
                "strategy": { "rollingUpdate": { "maxSurge": 1, "maxUnavailable": "50%" } } }),
            ),
        );
        let read: apps::Deployment = from_value(deployment).unwrap();
        let read = read.spec.unwrap();
        assert_eq!((read.replicas, read.paused), (Some(2), Some(true)));
        let pod = read.template.spec.unwrap();
        let container = &pod.containers[0];
        assert_eq!(
            container.ports.as_ref().unwrap()[0].protocol.as_deref(),
            Some("TCP")
        );
        assert_eq!(
            container.readiness_probe.as_ref().unwrap().period_seconds,
            Some(10)
        );
        let mode = |v: &core::Volume| v.secret.as_ref().unwrap().default_mode;
        assert_eq!(mode(&pod.volumes.unwrap()[0]), Some(0o440));
        assert_eq!(pod.node_name, None);

        let claims = json!([{ "metadata": { "name": "data" }, "spec": { "storageClassName": "",
            "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": 1000 } } } }]);
        let set = shown(
            WorkloadKind::StatefulSet,
            spec(
                json!({ "selector": selector, "ordinals": { "start": 1.0 }, "volumeClaimTemplates": claims,
                "updateStrategy": { "rollingUpdate": { "partition": 1.0 } } }),
            ),
        );
        let read: apps::StatefulSet = from_value(set).unwrap();
        let claims = read.spec.unwrap().volume_claim_templates.unwrap();
        let class = claims[0]
            .spec
            .as_ref()
            .unwrap()
            .storage_class_name
            .as_deref();
        assert_eq!(class, Some(""), "it says something");

        let read: batch::Job = from_value(shown(
            WorkloadKind::Job,
            spec(json!({ "backoffLimit": 2.0, "suspend": "off", "podFailurePolicy": { "rules": [
                { "action": "Ignore", "onPodConditions": [{ "type": "DisruptionTarget", "status": "True" }] } ] } })),
        ))
        .unwrap();
        let read = read.spec.unwrap();
        assert_eq!((read.backoff_limit, read.suspend), (Some(2), None));
        assert_eq!(read.pod_failure_policy.unwrap().rules.len(), 1);

        let cron = json!({ "schedule": "@daily", "suspend": "yes", "successfulJobsHistoryLimit": 0.0,
            "jobTemplate": { "metadata": { "labels": { "b": null } }, "spec": spec(json!({ "completions": 1.0 })) } });
        let read: batch::CronJob = from_value(shown(WorkloadKind::CronJob, cron)).unwrap();
        let read = read.spec;
        let limit = read.successful_jobs_history_limit;
        assert_eq!((read.suspend, limit), (Some(true), Some(0)));
        let job = read.job_template.spec.unwrap();
        assert_eq!((job.completions, job.selector), (Some(1), None));
    }

    #[test]
    fn templates_have_no_defaults_that_follow_other_fields() {
        let container = json!({ "name": "main", "image": "i", "ports": [{ "containerPort": 80 }],
            "resources": { "limits": { "memory": "1Gi" } } });
        let template = json!({ "spec": { "hostNetwork": true, "containers": [container] } });
        let document = shown(WorkloadKind::DaemonSet, json!({ "template": template }));
        let container = &document["spec"]["template"]["spec"]["containers"][0];
        assert_eq!(
            container["resources"],
            json!({ "limits": { "memory": "1Gi" } })
        );
        assert_eq!(
            container["ports"],
            json!([{ "containerPort": 80, "protocol": "TCP" }])
        );
    }

    #[test]
    fn a_selector_of_a_job_that_was_is_left_out() {
        let selector = json!({ "matchLabels": { "controller-uid": "x" } });
        let spec = json!({ "selector": selector, "template": written() });
        let document = shown(WorkloadKind::Job, spec);
        assert_eq!(document["spec"].get("selector"), None);
    }

    #[test]
    fn no_kind_has_fields_of_another() {
        for kind in WorkloadKind::ALL {
            let spec = match kind {
                WorkloadKind::CronJob => {
                    json!({ "jobTemplate": { "spec": { "template": written() } } })
                }
                _ => json!({ "template": written() }),
            };
            let document = shown(kind, spec);
            assert_eq!(document["spec"]["jobTemplate"].get("metadata"), None);
        }
    }

    #[test]
    fn a_selector_that_need_not_be_written_is_filled_in() {
        for (kind, expected) in [
            (
                WorkloadKind::Deployment,
                json!({ "matchLabels": { "app": "x" } }),
            ),
            (WorkloadKind::ReplicationController, json!({ "app": "x" })),
        ] {
            let document = shown(kind, json!({ "template": written() }));
            assert_eq!(document["spec"]["selector"], expected);
        }
        let selector = json!({ "app": "x" });
        let document = shown(
            WorkloadKind::ReplicationController,
            json!({ "selector": selector, "template": written() }),
        );
        assert_eq!(document["spec"]["selector"], selector);
        let read: core::ReplicationController = from_value(document).unwrap();
        assert_eq!(read.spec.unwrap().replicas, None);
    }
}
