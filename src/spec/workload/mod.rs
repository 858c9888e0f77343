//! Workload documents: Deployments, ReplicaSets, ReplicationControllers, StatefulSets, DaemonSets, Jobs and CronJobs. Each
//! stands for pods of its template, which are made here, once, with all their names (those of Jobs when they are due):
//! `plan/workload/` decides when each of them comes and goes. The rules and messages are the API server's (`pkg/apis/apps/validation`).

mod check;
pub mod cron;
pub mod job;
mod make;
pub mod schedule;
mod selector;
pub mod success;
mod typed;
mod update;
mod written;

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Serialize};

use super::pod::{PodKey, PodSpec, PodUid};
use super::{names, uid};
use crate::types::{SharedText, Wall};

pub use cron::CronJob;
pub use job::Job;
pub(super) use make::{make, read};
pub use typed::typed;

/// Limit of pods of one document: one node runs no more.
pub(crate) const MAX_REPLICAS: i32 = 1_000;

/// Limit of former templates that are kept of one document, and their usual number.
const MAX_HISTORY: i32 = 10;

/// Label of a pod with the hash of the template that it was made from.
pub const TEMPLATE_HASH: &str = "pod-template-hash";
/// The same for kinds whose pods keep their names.
pub const REVISION_HASH: &str = "controller-revision-hash";
/// The steady time of pods that nothing but their containers makes ready.
const STEADY_MS: u64 = 10_000;

/// A kind of document that stands for pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum WorkloadKind {
    /// `Deployment`.
    Deployment,
    /// `ReplicaSet`.
    ReplicaSet,
    /// `ReplicationController`.
    ReplicationController,
    /// `StatefulSet`.
    StatefulSet,
    /// `DaemonSet`.
    DaemonSet,
    /// `Job`.
    Job,
    /// `CronJob`.
    CronJob,
}

impl WorkloadKind {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Deployment,
        Self::ReplicaSet,
        Self::ReplicationController,
        Self::StatefulSet,
        Self::DaemonSet,
        Self::Job,
        Self::CronJob,
    ];

    /// `kind` of a document.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Deployment => "Deployment",
            Self::ReplicaSet => "ReplicaSet",
            Self::ReplicationController => "ReplicationController",
            Self::StatefulSet => "StatefulSet",
            Self::DaemonSet => "DaemonSet",
            Self::Job => "Job",
            Self::CronJob => "CronJob",
        }
    }

    /// `apiVersion` of a document.
    pub fn version(self) -> &'static str {
        match self {
            Self::ReplicationController => "v1",
            Self::Job | Self::CronJob => "batch/v1",
            Self::Deployment | Self::ReplicaSet | Self::StatefulSet | Self::DaemonSet => "apps/v1",
        }
    }

    /// Whether documents of this version are read: also of those before `apps/v1`, which many manifests still have.
    pub(super) fn has_version(self, version: &str) -> bool {
        let older = ["apps/v1beta2", "apps/v1beta1", "extensions/v1beta1"];
        version == self.version()
            || self.version() == "apps/v1" && older.contains(&version)
            || self == Self::CronJob && version == "batch/v1beta1"
    }

    /// The kind of that name.
    pub fn of(kind: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|known| known.as_str() == kind)
    }

    /// The label that tells the revisions of its pods apart.
    pub fn hash_label(self) -> &'static str {
        match self {
            Self::Deployment | Self::ReplicaSet | Self::ReplicationController => TEMPLATE_HASH,
            Self::StatefulSet | Self::DaemonSet => REVISION_HASH,
            Self::Job | Self::CronJob => job::EDITION,
        }
    }
}

/// Which document: its kind, namespace and name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct WorkloadKey {
    /// The kind.
    pub kind: WorkloadKind,
    /// The namespace.
    pub namespace: Arc<str>,
    /// The name.
    pub name: Arc<str>,
}

impl WorkloadKey {
    /// The name of the revision with this hash, which is the value of its pods' [`WorkloadKind::hash_label`]. As in
    /// Kubernetes, that of a StatefulSet begins with the set's name. Where that is too long for a label, it is the
    /// hash.
    pub fn revision_name(&self, hash: &str) -> String {
        let full = format!("{}-{hash}", self.name);
        match self.kind {
            WorkloadKind::StatefulSet if names::label_value(&full).is_none() => full,
            _ => hash.to_owned(),
        }
    }

    /// The hash in such a name. Pods of former versions have the hash alone, also those of a StatefulSet.
    fn hash_in<'n>(&self, revision: &'n str) -> &'n str {
        let full = (self.kind == WorkloadKind::StatefulSet).then_some(revision);
        let rest = full.and_then(|full| full.strip_prefix(&*self.name));
        let hash = rest.and_then(|rest| rest.strip_prefix('-'));
        hash.unwrap_or(revision)
    }

    /// Its UID: a hash of kind, namespace and name, so that pods find their document again after every restart.
    pub fn uid(&self) -> PodUid {
        uid::of_name(self.kind.as_str(), &self.namespace, &self.name)
    }

    /// The document that a pod was made from: its controller, if that has this node's UID.
    pub fn of_pod(metadata: &ObjectMeta) -> Option<Self> {
        let owners = metadata.owner_references.iter().flatten();
        owners
            .filter(|owner| owner.controller == Some(true))
            .find_map(|owner| {
                let key = Self {
                    kind: WorkloadKind::of(&owner.kind)?,
                    namespace: metadata.namespace.as_deref().unwrap_or_default().into(),
                    name: owner.name.as_str().into(),
                };
                (key.uid().as_str() == owner.uid).then_some(key)
            })
    }
}

impl fmt::Display for WorkloadKey {
    /// As kubectl writes it: `deployment default/web`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = self.kind.as_str().to_lowercase();
        write!(f, "{kind} {}/{}", self.namespace, self.name)
    }
}

/// How pods of an earlier template are replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Update {
    /// A few at a time.
    Rolling {
        /// So many pods may be there beyond `replicas`.
        surge: u32,
        /// So many of `replicas` may be missing.
        unavailable: u32,
    },
    /// All at once, before the first new one starts.
    Recreate,
    /// A few at a time in place, from the highest ordinal down to this one.
    InPlace {
        /// The lowest ordinal that is updated.
        partition: u32,
        /// So many may be missing.
        unavailable: u32,
    },
    /// When a client deletes them.
    OnDelete,
}

/// A valid document that stands for pods.
#[derive(Debug, Clone, PartialEq)]
pub struct Workload {
    /// Which document.
    pub key: WorkloadKey,
    /// The pods that it asks for, in the order of their ordinals.
    pub pods: Vec<PodKey>,
    /// The hash of its template.
    pub revision: Arc<str>,
    /// The same of a Job as former versions had it, if it was another: with what its priority class says.
    pub formerly: Option<Arc<str>>,
    /// The hash of the template in its file. Another template is in force if it differs from `revision`.
    pub written: Arc<str>,
    /// The last good template is in force, until the pods of an interrupted rollout are back.
    pub resumed: bool,
    /// The hash of all that its file says.
    pub edition: Arc<str>,
    /// A rollout that fails is taken back.
    pub rollback: bool,
    /// So many former templates are kept.
    pub history: usize,
    /// How pods of an earlier template are replaced.
    pub update: Update,
    /// A pod starts when those before it are available, and they stop in the reverse order.
    pub ordered: bool,
    /// How long a pod has to be ready until it counts as available, in milliseconds.
    pub min_ready_ms: u64,
    /// How long a new pod has to be ready until an old one goes for it, in milliseconds: one that has no readiness probe
    /// and crashes is ready for a moment each time.
    pub steady_ms: u64,
    /// A rollout that makes no progress for so long has failed, in milliseconds.
    pub progress_deadline_ms: Option<u64>,
    /// Nothing is rolled out.
    pub paused: bool,
    /// Its pods are to end.
    pub job: Option<Box<Job>>,
    /// Its Jobs begin at set times.
    pub cron: Option<Box<CronJob>>,
    /// Which claims of its pods are removed; `None`: none.
    pub retention: Option<Box<Retention>>,
    /// The document as it is shown, without status: JSON.
    pub manifest: SharedText,
    /// When its file was written last; the beginning of time if that is not known.
    pub modified: Wall,
}

/// The claims of a StatefulSet's pods that are removed with their data: `persistentVolumeClaimRetentionPolicy`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Retention {
    /// The names of the templates of claims.
    pub volumes: Vec<String>,
    /// All, when the set is gone.
    pub when_deleted: bool,
    /// Those of pods that are too many.
    pub when_scaled: bool,
}

/// The StatefulSet that a claim was made for, and whether it ends with that. Kept beside the claim's data, as it is to be
/// known when the file has gone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Owner {
    /// The name of the set, which has the claim's namespace.
    pub set: String,
    /// The claim ends with the set.
    pub when_deleted: bool,
    /// It ends when the set gets fewer pods.
    pub when_scaled: bool,
}

impl PodSpec {
    /// The hash of the template that it was made from, if it belongs to a document.
    pub fn revision(&self) -> Option<&str> {
        let key = self.workload.as_ref()?;
        let found = self.manifest.label(key.kind.hash_label());
        match key.kind {
            WorkloadKind::Job => found.or_else(|| self.manifest.label(job::CONTROLLER_UID[0])),
            _ => Some(key.hash_in(found?)),
        }
    }
}

/// The names of pods as files ask for them: Jobs that run none have no first one.
pub fn pod_names<'d>(
    pods: impl Iterator<Item = &'d PodSpec>,
    workloads: impl Iterator<Item = &'d Workload>,
) -> Vec<PodKey> {
    let idle = workloads.filter(|w| w.job.as_ref().is_some_and(|job| job.is_idle()));
    let idle: BTreeSet<&WorkloadKey> = idle.map(|workload| &workload.key).collect();
    let of_idle = |pod: &&PodSpec| pod.workload.as_ref().is_some_and(|key| idle.contains(key));
    let names = pods.filter(|pod| !of_idle(pod));
    names.map(|pod| pod.key.clone()).collect()
}
