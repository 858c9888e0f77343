//! Documents that stand for pods, as clients see them: what their files say, and what an API server adds.

use std::num::NonZeroU64;
use std::sync::Arc;

use serde_json::{Value, json};

use super::status::{self, Status};
use crate::plan::{self, NodeState, Wall};
use crate::spec::workload::job::CONTROLLER_UID;
use crate::spec::workload::typed;
use crate::spec::{Workload, WorkloadKind};

/// Annotation of a shown document: why something else is in force than its file says.
const REVISION_NOTE: &str = "coracle.dev/in-force";

/// A document as clients see it, small in memory. It becomes JSON when a client asks for it.
#[derive(Debug, Clone)]
pub struct Shown {
    /// The document.
    pub workload: Arc<Workload>,
    /// `creationTimestamp`.
    created: Wall,
    /// `metadata.generation`.
    generation: u64,
    /// A client has stopped its pods.
    stopped: bool,
    /// The number of its revision in force.
    revision: Option<NonZeroU64>,
    /// Why something else is in force than its file says.
    note: Option<Box<str>>,
    status: Option<Status>,
}

impl PartialEq for Shown {
    /// Whether clients see the same.
    fn eq(&self, other: &Self) -> bool {
        let rest = |one: &Self| {
            let times = (one.created, one.generation);
            (times, one.stopped, one.revision)
        };
        rest(self) == rest(other)
            && (&self.note, &self.status) == (&other.note, &other.status)
            && self.workload.manifest == other.workload.manifest
    }
}

impl Shown {
    /// A document as it is now. `written` is the time of its file, or when it was made.
    pub fn of(state: &NodeState, workload: &Arc<Workload>, written: Wall) -> Self {
        let key = &workload.key;
        let history = state.workloads.histories.of_workload(key);
        let last = history.and_then(|history| history.revisions.last());
        let last = last.filter(|_| key.kind == WorkloadKind::Deployment);
        let note = status::note(state, workload);
        Self {
            workload: Arc::clone(workload),
            created: status::since(state, key).unwrap_or(written),
            generation: status::generation(state, key),
            stopped: state.stops.has_workload(key),
            revision: last.and_then(|last| NonZeroU64::new(last.number)),
            note: note.map(|(_, note)| note.into()),
            status: Status::of(state, workload),
        }
    }

    /// Returns the JSON, of this version.
    pub fn json(&self, version: u64) -> Value {
        let workload = &*self.workload;
        let mut whole: Value = serde_json::from_str(&workload.manifest.text()).unwrap_or_default();
        typed(workload.key.kind, &mut whole);
        let metadata = &mut whole["metadata"];
        metadata["namespace"] = json!(workload.key.namespace);
        metadata["uid"] = json!(workload.key.uid().as_str());
        metadata["creationTimestamp"] = json!(plan::status::time(self.created));
        metadata["generation"] = json!(self.generation);
        metadata["resourceVersion"] = json!(version.to_string());
        if let Some(number) = self.revision {
            let number = number.to_string();
            metadata["annotations"]["deployment.kubernetes.io/revision"] = json!(number);
        }
        if let Some(note) = &self.note {
            metadata["annotations"][REVISION_NOTE] = json!(note);
        }
        self.fill_in(&mut whole["spec"]);
        if let Some(status) = &self.status {
            whole["status"] = status.json(workload, self.generation, self.note.as_deref());
        }
        whole
    }

    /// Adds what an API server fills in.
    fn fill_in(&self, spec: &mut Value) {
        let workload = &*self.workload;
        if workload.job.is_some() {
            // Those of the Job that a client saved.
            let labels = spec.pointer_mut("/template/metadata/labels");
            for (name, label) in labels.and_then(Value::as_object_mut).into_iter().flatten() {
                if CONTROLLER_UID.contains(&name.as_str()) {
                    *label = json!(workload.key.uid().as_str());
                }
            }
        }
        let mut default = |field: &str, value: Value| {
            if spec[field].is_null() && !value.is_null() {
                spec[field] = value;
            }
        };
        match (&workload.cron, &workload.job) {
            (Some(cron), _) => {
                default("concurrencyPolicy", json!("Allow"));
                default("suspend", json!(false));
                default("successfulJobsHistoryLimit", json!(cron.keep_succeeded));
                default("failedJobsHistoryLimit", json!(cron.keep_failed));
                // Stopped by a client, it runs as little as if its file said so.
                if self.stopped {
                    spec["suspend"] = json!(true);
                }
            }
            (None, Some(job)) => {
                default("parallelism", json!(job.parallelism));
                default("completions", json!(job.completions));
                default("backoffLimit", json!(job.backoff_limit));
                default("completionMode", json!("NonIndexed"));
                default("suspend", json!(false));
                let labels = json!({ CONTROLLER_UID[0]: workload.key.uid().as_str() });
                default("selector", json!({ "matchLabels": labels }));
            }
            (None, None) => match workload.key.kind {
                WorkloadKind::Deployment => {
                    default("replicas", json!(1));
                    default("progressDeadlineSeconds", json!(600));
                    let rolling = json!({ "maxSurge": "25%", "maxUnavailable": "25%" });
                    fill_in_strategy(&mut spec["strategy"], &rolling);
                }
                WorkloadKind::StatefulSet => {
                    default("replicas", json!(1));
                    default("podManagementPolicy", json!("OrderedReady"));
                    fill_in_strategy(&mut spec["updateStrategy"], &json!({ "partition": 0 }));
                }
                WorkloadKind::DaemonSet => {
                    let rolling = json!({ "maxSurge": 0, "maxUnavailable": 1 });
                    fill_in_strategy(&mut spec["updateStrategy"], &rolling);
                }
                _ => default("replicas", json!(1)),
            },
        }
    }
}

/// Adds what a strategy is by default. `kubectl rollout status` asks for its type.
fn fill_in_strategy(strategy: &mut Value, rolling: &Value) {
    if strategy["type"].is_null() {
        strategy["type"] = json!("RollingUpdate");
    }
    if strategy["type"] != "RollingUpdate" {
        return;
    }
    for (field, value) in rolling.as_object().into_iter().flatten() {
        let written = &mut strategy["rollingUpdate"][field];
        if written.is_null() {
            *written = value.clone();
        }
    }
}
