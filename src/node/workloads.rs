//! Documents that stand for pods, as clients see them.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Value, json};

use super::{Input, Node};
use crate::plan::Action;
use crate::plan::status::time;
use crate::plan::stop::Target;
use crate::plan::workload::revisions::Subject;
use crate::plan::workload::status;
use crate::spec::{PodSpec, Workload, WorkloadKey, WorkloadKind};

/// Annotation of a shown document: why something else is in force than its file says.
const REVISION_NOTE: &str = "coracle.dev/in-force";

/// What was shown of them.
#[derive(Debug, Default)]
pub(super) struct Workloads {
    /// The documents in force, each with the time of its file.
    documents: Vec<(Arc<Workload>, Time)>,
    /// For each document, a hash of its key and of what it was shown with last beside its file.
    beside: BTreeSet<u64>,
    /// What had changed in the planner's state when they were shown last.
    changes: Option<u64>,
    /// They are shown once what Jobs have achieved is on disk.
    pub(super) waits: bool,
}

impl Workloads {
    /// These documents are in force.
    pub(super) fn set(&mut self, documents: Vec<(Arc<Workload>, Time)>) {
        self.documents = documents;
        self.beside.clear();
        self.changes = None;
    }
}

impl Node {
    /// What has to be on disk before a pod is removed: the result of a Job that has no other trace of it.
    pub(super) fn before_removal(
        &mut self,
        action: &Action,
        spec: &PodSpec,
    ) -> Option<impl Future<Output = ()> + use<>> {
        let of_job = spec.workload.as_ref();
        let of_job = of_job.is_some_and(|key| key.kind == WorkloadKind::Job);
        if !of_job || !matches!(action, Action::RemoveSandbox { .. }) {
            return None;
        }
        self.keep_files();
        self.saved.files.jobs_written()
    }

    /// Shows the documents once what Jobs have achieved is on disk: what a client has seen survives a power cut.
    pub(super) fn show_kept_workloads(&mut self) {
        match self.saved.files.jobs_written() {
            None => self.show_workloads(),
            Some(written) if !self.workloads.waits => {
                self.workloads.waits = true;
                let inputs = self.tools.inputs.clone();
                super::spawn(async move {
                    written.await;
                    let _ = inputs.send(Input::JobsKept).await;
                });
            }
            Some(_) => {}
        }
    }

    /// Shows the documents of which something but the file has changed.
    fn show_workloads(&mut self) {
        let changes = Some(self.state.workloads.changes);
        if self.workloads.changes == changes {
            return;
        }
        self.workloads.changes = changes;
        self.ending_claims.due.set(true);
        // Jobs of CronJobs are in no file.
        let made = self.state.workloads.crons.made.values();
        let made = made.map(|made| (Arc::clone(&made.workload), time(made.created)));
        let documents = self.workloads.documents.iter().cloned();
        let all: Vec<_> = documents.chain(made).collect();
        let before = std::mem::take(&mut self.workloads.beside);
        for (workload, created) in &all {
            let status = status::of(&self.state, workload).unwrap_or_default();
            let annotations = self.annotations(workload);
            let stops = &self.state.stops;
            let stopped = stops.has(&Target::Workload(workload.key.clone()));
            let since = status::since(&self.state, &workload.key).map(time);
            let since = since.as_ref().unwrap_or(created);
            let generation = status::generation(&self.state, &workload.key);
            let mut beside = DefaultHasher::new();
            (&workload.key, &status, &annotations, stopped).hash(&mut beside);
            (since.0.as_second(), generation).hash(&mut beside);
            let beside = beside.finish();
            self.workloads.beside.insert(beside);
            if before.contains(&beside) {
                continue;
            }
            let meta = (since, generation, stopped);
            let over = over(workload, meta, status, annotations);
            let (store, file) = (&self.shown.store, &workload.manifest);
            store.upsert_workload(&workload.key, file, &over);
        }
        for kind in WorkloadKind::ALL {
            let of_kind = all.iter().filter(|(w, _)| w.key.kind == kind);
            let known: BTreeSet<&WorkloadKey> = of_kind.map(|(w, _)| &w.key).collect();
            self.shown.store.keep_workloads(kind, &known);
        }
    }

    /// The number of the document's revision, and why something else is in force than its file says.
    fn annotations(&self, workload: &Workload) -> Value {
        let subject = Subject::Workload(workload.key.clone());
        let history = self.state.workloads.histories.of(&subject);
        let last = history.and_then(|history| history.revisions.last());
        let mut annotations = json!({});
        if let (Some(last), WorkloadKind::Deployment) = (last, workload.key.kind) {
            annotations["deployment.kubernetes.io/revision"] = json!(last.number.to_string());
        }
        if let Some((_, note)) = status::note(&self.state, workload) {
            annotations[REVISION_NOTE] = json!(note);
        }
        annotations
    }
}

/// What an API server adds to a document, as a merge patch.
fn over(
    workload: &Workload,
    (created, generation, stopped): (&Time, u64, bool),
    status: Value,
    annotations: Value,
) -> Value {
    let written: Value = serde_json::from_str(&workload.manifest).unwrap_or_default();
    let is_given = |field: &str| !written["spec"][field].is_null();
    let mut spec = json!({});
    let mut default = |field: &str, value: Value| {
        if !is_given(field) && !value.is_null() {
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
            if stopped {
                spec["suspend"] = json!(true);
            }
        }
        (None, Some(job)) => {
            default("parallelism", json!(job.parallelism));
            default("completions", json!(job.completions));
            default("backoffLimit", json!(job.backoff_limit));
        }
        (None, None) if workload.key.kind == WorkloadKind::DaemonSet => {}
        (None, None) => default("replicas", json!(1)),
    }
    let mut metadata = json!({
        "namespace": workload.key.namespace,
        "uid": workload.key.uid().to_string(),
        "creationTimestamp": created,
        "generation": generation,
    });
    if annotations.as_object().is_some_and(|all| !all.is_empty()) {
        metadata["annotations"] = annotations;
    }
    json!({ "metadata": metadata, "spec": spec, "status": status })
}
