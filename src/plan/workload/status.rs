//! The status of documents that stand for pods, in the fields and words of Kubernetes' controllers.

use serde_json::{Value, json};

use super::Progress;
use super::revisions::Cause;
use super::stage::Figures;
use crate::plan::state::Flag;
use crate::plan::{NodeState, Wall, status};
use crate::spec::{Workload, WorkloadKey, WorkloadKind};

/// A document's `status`, small in memory: most of its JSON is the same for all of a kind.
#[derive(Debug, Clone, PartialEq)]
pub enum Status {
    /// That of a Job or CronJob, as it is sent.
    Json(Box<str>),
    /// That of a document of another kind.
    Pods(Pods),
}

/// How far the pods of a document are.
#[derive(Debug, Clone, PartialEq)]
pub struct Pods {
    /// How many there should be.
    wanted: u32,
    /// How many there are.
    here: Figures,
    /// Enough of them are available.
    available: Flag,
    /// They are complete, or make progress.
    progressing: Flag,
    rollout: Rollout,
    /// The hash of the template that pods have which a rollout has not reached.
    former: Option<Box<str>>,
}

/// How a rollout goes.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Rollout {
    Complete,
    Going,
    Paused,
    Failed,
    /// It was taken back, for the reason that the document has as its note.
    Back,
}

impl Status {
    /// The status of a document; `None` before the files were read.
    pub fn of(state: &NodeState, workload: &Workload) -> Option<Self> {
        let text = |value: Value| Self::Json(value.to_string().into());
        if let Some(job) = &workload.job {
            let jobs = &state.workloads.jobs;
            return jobs.status(state, workload, job).map(text);
        }
        if workload.cron.is_some() {
            return state.workloads.crons.status(workload).map(text);
        }
        let progress = state.workloads.progress.get(&workload.key)?;
        Some(Self::Pods(Pods::of(state, workload, progress)))
    }

    /// Returns the JSON. `generation` is the document's; `note`: why something else is in force than its file says.
    pub fn json(&self, workload: &Workload, generation: u64, note: Option<&str>) -> Value {
        match self {
            Self::Json(text) => serde_json::from_str(text).unwrap_or_default(),
            Self::Pods(pods) => pods.json(workload, generation, note.unwrap_or_default()),
        }
    }
}

impl Pods {
    fn of(state: &NodeState, workload: &Workload, progress: &Progress) -> Self {
        let rollout = match (rolled_back(state, workload), progress) {
            (Some(_), _) => Rollout::Back,
            (
                None,
                Progress {
                    complete: false,
                    failed: true,
                    ..
                },
            ) => Rollout::Failed,
            (None, _) if workload.paused => Rollout::Paused,
            (None, Progress { complete: true, .. }) => Rollout::Complete,
            (None, _) => Rollout::Going,
        };
        let here = Figures {
            updated_steady: 0,
            ..progress.figures
        };
        Self {
            wanted: u32::try_from(progress.replicas_here).unwrap_or(u32::MAX),
            former: (here.old > 0)
                .then(|| former(state, workload).map(Into::into))
                .flatten(),
            here,
            available: progress.available,
            progressing: Flag {
                since: progress.progressing.since.max(progress.pause_turned),
                ..progress.progressing
            },
            rollout,
        }
    }

    fn json(&self, workload: &Workload, generation: u64, note: &str) -> Value {
        let (all, here) = (self.wanted, &self.here);
        let replicas = here.updated + here.surplus + here.old;
        let mut shown = match workload.key.kind {
            WorkloadKind::Deployment => json!({
                "replicas": replicas,
                "updatedReplicas": here.updated,
                "readyReplicas": here.ready,
                "availableReplicas": here.available,
                "unavailableReplicas": replicas.saturating_sub(here.available),
                "conditions": self.conditions(&workload.key, note),
            }),
            WorkloadKind::ReplicaSet | WorkloadKind::ReplicationController => json!({
                "replicas": replicas,
                "fullyLabeledReplicas": replicas,
                "readyReplicas": here.ready,
                "availableReplicas": here.available,
            }),
            WorkloadKind::StatefulSet => json!({
                // Unlike other controllers, that of StatefulSets counts terminating pods (`computeReplicaStatus`).
                "replicas": replicas + here.going,
                "readyReplicas": here.ready + here.going_ready,
                "availableReplicas": here.available + here.going_available,
                "currentReplicas": if here.old > 0 { here.old } else { here.updated },
                "updatedReplicas": here.updated,
                "currentRevision": workload.key.revision_name(self.former.as_deref().unwrap_or(&workload.revision)),
                "updateRevision": workload.key.revision_name(&workload.revision),
            }),
            WorkloadKind::Job | WorkloadKind::CronJob => json!({}),
            WorkloadKind::DaemonSet => json!({
                "desiredNumberScheduled": all,
                "currentNumberScheduled": replicas,
                "updatedNumberScheduled": here.updated,
                "numberReady": here.ready,
                "numberAvailable": here.available,
                "numberUnavailable": all.saturating_sub(here.available),
                "numberMisscheduled": 0,
            }),
        };
        let is_back = matches!(self.rollout, Rollout::Back);
        if workload.key.kind != WorkloadKind::Deployment && is_back {
            let conditions = self.conditions(&workload.key, note);
            shown["conditions"] = json!([conditions[1]]);
        }
        shown["observedGeneration"] = json!(generation);
        shown
    }

    fn conditions(&self, key: &WorkloadKey, note: &str) -> Value {
        let name = &key.name;
        let mut flag = self.progressing;
        let available = match self.available.yes {
            true => (
                "MinimumReplicasAvailable",
                "Deployment has minimum availability.".to_owned(),
            ),
            false => (
                "MinimumReplicasUnavailable",
                "Deployment does not have minimum availability.".to_owned(),
            ),
        };
        let progressing = match self.rollout {
            // Clients of Kubernetes take this reason for a failure.
            Rollout::Back => {
                flag.yes = false;
                let message = format!("{} Rolled back: {note}.", timed_out(key));
                ("ProgressDeadlineExceeded", message)
            }
            Rollout::Complete => (
                "NewReplicaSetAvailable",
                format!("Deployment {name:?} has successfully progressed."),
            ),
            Rollout::Failed => ("ProgressDeadlineExceeded", timed_out(key)),
            Rollout::Paused => ("DeploymentPaused", "Deployment is paused".to_owned()),
            Rollout::Going => (
                "ReplicaSetUpdated",
                format!("Deployment {name:?} is progressing."),
            ),
        };
        let mut progressing = condition("Progressing", flag, progressing);
        if matches!(self.rollout, Rollout::Paused) {
            progressing["status"] = json!("Unknown");
        }
        json!([
            condition("Available", self.available, available),
            progressing
        ])
    }
}

/// `metadata.generation` of a document.
pub(super) fn generation(state: &NodeState, key: &WorkloadKey) -> u64 {
    let history = state.workloads.histories.of_workload(key);
    let generation = history.map(|history| history.generation);
    let generation = generation.or_else(|| state.workloads.crons.generation(key));
    let generation = generation.or_else(|| state.workloads.jobs.generation(key));
    generation.unwrap_or(1).max(1)
}

/// When a document came, if that is known.
pub(super) fn since(state: &NodeState, key: &WorkloadKey) -> Option<Wall> {
    let workloads = &state.workloads;
    if let Some(history) = workloads.histories.of_workload(key) {
        return history.since;
    }
    let of_file = !workloads.crons.made.contains_key(key);
    let of_job = || workloads.jobs.since(key).filter(|_| of_file);
    workloads.crons.since(key).or_else(of_job)
}

/// The hash of the template that pods have which the one in force has not reached. As in Kubernetes, it is the last one
/// whose pods were all ready, also if others came since then.
fn former<'s>(state: &'s NodeState, workload: &Workload) -> Option<&'s str> {
    let history = state.workloads.histories.of_workload(&workload.key)?;
    let differs = |hash: &&str| *hash != &*workload.revision;
    let mut hashes = (history.revisions.iter())
        .map(|before| &*before.hash)
        .filter(differs);
    match history.good.as_deref() {
        Some(good) if differs(&good) => Some(good),
        // It is in force until its pods are back (`resume.rs`), and the others have the file's.
        Some(_) => hashes.next_back(),
        None => hashes.next(),
    }
}

/// Why something else is in force of a document than its file says, for people.
pub(super) fn note(state: &NodeState, workload: &Workload) -> Option<(Cause, String)> {
    let history = state.workloads.histories.of_workload(&workload.key)?;
    let instead = history.instead.as_ref()?;
    Some((instead.cause, history.note()?))
}

/// The same, if the rollout was taken back.
fn rolled_back(state: &NodeState, workload: &Workload) -> Option<String> {
    let (cause, note) = note(state, workload)?;
    (cause == Cause::RolledBack).then_some(note)
}

/// The message of a rollout that stopped because it made no progress.
pub(super) fn timed_out(key: &WorkloadKey) -> String {
    let kind = key.kind.as_str();
    format!("{kind} {:?} has timed out progressing.", key.name)
}

fn condition(kind: &str, flag: Flag, (reason, message): (&str, String)) -> Value {
    let since = status::time(flag.since);
    json!({
        "type": kind,
        "status": if flag.yes { "True" } else { "False" },
        "reason": reason,
        "message": message,
        "lastTransitionTime": since,
        "lastUpdateTime": since,
    })
}
