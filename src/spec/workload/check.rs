//! What an API server checks of a document, beside its pods.

use k8s_openapi::api::core::v1::Pod;

use super::selector as chosen;
use super::written::Spec;
use super::{MAX_REPLICAS, WorkloadKind, job};
use crate::spec::error::{Path, Report};
use crate::spec::value::Value;
use crate::spec::{configuration, names, rollback, suggest};

pub(super) fn selector(
    kind: WorkloadKind,
    spec: &Spec,
    pod: &Pod,
    path: &Path<'_>,
    report: &Report,
) {
    let at = path.field("selector");
    let labels = pod.metadata.labels.clone().unwrap_or_default();
    let at_labels = path.field("template");
    let at_labels = at_labels.field("metadata");
    let at_labels = at_labels.field("labels");
    let controller = kind == WorkloadKind::ReplicationController || kind == WorkloadKind::Job;
    let Some(chosen) = &spec.selector else {
        match controller {
            true if labels.is_empty() && kind != WorkloadKind::Job => report.required(&at),
            true => {}
            false => report.error_hint(
                &at,
                "Required value",
                "write `matchLabels` with the labels of `spec.template.metadata`".to_owned(),
            ),
        }
        return;
    };
    if kind == WorkloadKind::Job && job::is_made(chosen) {
        return;
    }
    if chosen::check(chosen, &at, report) && !controller {
        let kind = kind.as_str().to_lowercase();
        let detail = format_args!("empty selector is invalid for {kind}");
        report.error(&at, format_args!("Invalid value: {{}}: {detail}"));
    } else if !chosen::matches(chosen, &labels) {
        let shown = serde_json::to_string(&labels).unwrap_or_default();
        report.error(
            &at_labels,
            format_args!("Invalid value: {shown}: `selector` does not match template `labels`"),
        );
    }
}

pub(super) fn template(kind: WorkloadKind, pod: &Pod, path: &Path<'_>, report: &Report) {
    for name in [rollback::ANNOTATION, rollback::WITHIN] {
        let annotations = pod.metadata.annotations.as_ref();
        if annotations.is_some_and(|all| all.contains_key(name)) {
            let at = path.field("metadata");
            let at = at.field("annotations");
            let detail = "it belongs into the metadata of the document, not of its template";
            report.forbidden(&at.field(name), detail);
        }
    }
    let path = &path.field("spec");
    let Some(spec) = &pod.spec else { return };
    let policy = spec.restart_policy.as_deref().unwrap_or("Always");
    if kind == WorkloadKind::Job {
        if policy == "Always" {
            let at = path.field("restartPolicy");
            report.unsupported(&at, policy, &["OnFailure", "Never"]);
        }
        return;
    }
    if policy != "Always" {
        report.unsupported(&path.field("restartPolicy"), policy, &["Always"]);
    }
    if spec.active_deadline_seconds.is_some() {
        report.forbidden(
            &path.field("activeDeadlineSeconds"),
            "these pods run for ever",
        );
    }
}

/// The number of pods that are asked for.
pub(super) fn replicas(spec: &Spec, path: &Path<'_>, report: &Report) -> u32 {
    let at = path.field("replicas");
    let given = spec.replicas.unwrap_or(1);
    not_negative(given, &at, report);
    if given > MAX_REPLICAS {
        let detail = format_args!("must be less than or equal to {MAX_REPLICAS} on one node");
        report.invalid(&at, given, detail);
        return 1;
    }
    u32::try_from(given).unwrap_or(0)
}

/// `minReadySeconds` and `progressDeadlineSeconds` in milliseconds.
pub(super) fn times(
    kind: WorkloadKind,
    spec: &Spec,
    path: &Path<'_>,
    report: &Report,
) -> (u64, Option<u64>) {
    let seconds = |given: i32| u64::try_from(given).unwrap_or(0).saturating_mul(1000);
    let min_ready = spec.min_ready_seconds.unwrap_or(0);
    not_negative(min_ready, &path.field("minReadySeconds"), report);
    if let Some(limit) = spec.revision_history_limit {
        not_negative(limit, &path.field("revisionHistoryLimit"), report);
    }
    let least = min_ready;
    let min_ready = seconds(min_ready);
    if kind != WorkloadKind::Deployment {
        return (min_ready, None);
    }
    let deadline = spec.progress_deadline_seconds.unwrap_or(600);
    let at = path.field("progressDeadlineSeconds");
    not_negative(deadline, &at, report);
    if deadline >= 0 && deadline <= least {
        report.invalid(&at, deadline, "must be greater than minReadySeconds");
    }
    (min_ready, Some(seconds(deadline)))
}

pub(super) fn stateful(spec: &Spec, path: &Path<'_>, report: &Report) {
    let policy = spec.pod_management_policy.as_str();
    let policies = ["OrderedReady", "Parallel"];
    if !policy.is_empty() && !policies.contains(&policy) {
        report.unsupported(&path.field("podManagementPolicy"), policy, &policies);
    }
    let retention = &spec.persistent_volume_claim_retention_policy;
    let at = path.field("persistentVolumeClaimRetentionPolicy");
    for (field, given) in [
        ("whenDeleted", &retention.when_deleted),
        ("whenScaled", &retention.when_scaled),
    ] {
        if !matches!(given.as_str(), "" | "Retain" | "Delete") {
            report.unsupported(&at.field(field), given, &["Delete", "Retain"]);
        }
    }
    not_negative(spec.first(), &path.field("ordinals").field("start"), report);
    let list = path.field("volumeClaimTemplates");
    for (index, claim) in spec.volume_claim_templates.iter().enumerate() {
        let at = list.index(index);
        let at = at.field("metadata");
        let at = at.field("name");
        match claim.metadata.name.as_deref().unwrap_or_default() {
            "" => report.required(&at),
            name => {
                if let Some(problem) = names::dns_label(name) {
                    report.invalid(&at, name, problem);
                }
            }
        }
        configuration::claim_of(claim.clone(), &list.index(index), report);
    }
}

pub(super) fn not_negative<T: Into<i64>>(given: T, path: &Path<'_>, report: &Report) {
    let given = given.into();
    if given < 0 {
        report.invalid(path, given, "must be greater than or equal to 0");
    }
}

/// Removes the fields of a mapping that it does not have, and reports them.
pub(super) fn only(value: &mut Value, path: &Path<'_>, fields: &[&str], report: &Report) {
    let Value::Map(entries) = value else { return };
    entries.retain(|(key, _)| {
        let known = fields.contains(&key.as_str());
        if !known {
            let at = path.field(key);
            match suggest::nearest(key, fields) {
                Some(near) => {
                    report.error_hint(&at, "unknown field", format!("did you mean `{near}`?"));
                }
                None => report.error(&at, "unknown field"),
            }
        }
        known
    });
}
