//! What documents that stand for pods may say: the fields of all kinds together. [`fields`] knows which of them a kind
//! has.

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde::{Deserialize, Serialize};

use super::job::Policy;
use super::{WorkloadKind, success};

/// A document without its template.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Written {
    pub(super) metadata: ObjectMeta,
    pub(super) spec: Spec,
}

/// `spec` without `template`.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Spec {
    pub(super) replicas: Option<i32>,
    pub(super) selector: Option<LabelSelector>,
    pub(super) strategy: Strategy,
    pub(super) update_strategy: Strategy,
    pub(super) min_ready_seconds: Option<i32>,
    pub(super) progress_deadline_seconds: Option<i32>,
    pub(super) revision_history_limit: Option<i32>,
    pub(super) paused: bool,
    pub(super) service_name: String,
    pub(super) pod_management_policy: String,
    pub(super) volume_claim_templates: Vec<PersistentVolumeClaim>,
    pub(super) persistent_volume_claim_retention_policy: Retention,
    pub(super) ordinals: Option<Ordinals>,
    pub(super) completions: Option<i32>,
    pub(super) parallelism: Option<i32>,
    pub(super) completion_mode: String,
    pub(super) backoff_limit: Option<i32>,
    pub(super) backoff_limit_per_index: Option<i32>,
    pub(super) max_failed_indexes: Option<i32>,
    pub(super) active_deadline_seconds: Option<i64>,
    pub(super) ttl_seconds_after_finished: Option<i32>,
    pub(super) suspend: bool,
    pub(super) manual_selector: Option<bool>,
    pub(super) pod_failure_policy: Option<Policy>,
    pub(super) pod_replacement_policy: String,
    pub(super) success_policy: Option<success::Policy>,
    pub(super) managed_by: Option<String>,
}

impl Spec {
    /// The number of a StatefulSet's first pod.
    pub(super) fn first(&self) -> i32 {
        self.ordinals.as_ref().map_or(0, |ordinals| ordinals.start)
    }
}

/// How pods of an earlier template are replaced.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Strategy {
    #[serde(rename = "type")]
    pub(super) type_: String,
    pub(super) rolling_update: Option<RollingUpdate>,
}

/// How far a rolling update goes at once.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct RollingUpdate {
    pub(super) max_surge: Option<IntOrString>,
    pub(super) max_unavailable: Option<IntOrString>,
    pub(super) partition: Option<i32>,
}

/// What becomes of a StatefulSet's claims.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Retention {
    pub(super) when_deleted: String,
    pub(super) when_scaled: String,
}

/// The numbers of a StatefulSet's pods.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Ordinals {
    pub(super) start: i32,
}

/// The fields of a kind's `spec`.
pub(super) fn fields(kind: WorkloadKind) -> &'static [&'static str] {
    match kind {
        WorkloadKind::Deployment => &[
            "replicas",
            "selector",
            "template",
            "strategy",
            "minReadySeconds",
            "progressDeadlineSeconds",
            "revisionHistoryLimit",
            "paused",
        ],
        WorkloadKind::ReplicaSet | WorkloadKind::ReplicationController => {
            &["replicas", "selector", "template", "minReadySeconds"]
        }
        WorkloadKind::StatefulSet => &[
            "replicas",
            "selector",
            "template",
            "updateStrategy",
            "minReadySeconds",
            "revisionHistoryLimit",
            "serviceName",
            "podManagementPolicy",
            "volumeClaimTemplates",
            "persistentVolumeClaimRetentionPolicy",
            "ordinals",
        ],
        WorkloadKind::Job => &[
            "selector",
            "template",
            "completions",
            "parallelism",
            "completionMode",
            "backoffLimit",
            "backoffLimitPerIndex",
            "maxFailedIndexes",
            "activeDeadlineSeconds",
            "ttlSecondsAfterFinished",
            "suspend",
            "manualSelector",
            "podFailurePolicy",
            "podReplacementPolicy",
            "successPolicy",
            "managedBy",
        ],
        WorkloadKind::CronJob => &[
            "schedule",
            "timeZone",
            "concurrencyPolicy",
            "startingDeadlineSeconds",
            "successfulJobsHistoryLimit",
            "failedJobsHistoryLimit",
            "suspend",
            "jobTemplate",
        ],
        WorkloadKind::DaemonSet => &[
            "selector",
            "template",
            "updateStrategy",
            "minReadySeconds",
            "revisionHistoryLimit",
        ],
    }
}

/// The fields of a kind's rolling update.
pub(super) fn rolling_fields(kind: WorkloadKind) -> &'static [&'static str] {
    match kind {
        WorkloadKind::StatefulSet => &["partition", "maxUnavailable"],
        _ => &["maxSurge", "maxUnavailable"],
    }
}
