//! The status of documents that stand for pods, in the fields and words of Kubernetes' controllers.

use serde_json::{Value, json};

use super::Progress;
use super::revisions::Cause;
use crate::plan::state::Flag;
use crate::plan::{NodeState, Wall, status};
use crate::spec::{Workload, WorkloadKey, WorkloadKind};

/// Returns a document's `status`; `None` before the files were read.
pub fn of(state: &NodeState, workload: &Workload) -> Option<Value> {
    if let Some(job) = &workload.job {
        return state.workloads.jobs.status(state, workload, job);
    }
    if workload.cron.is_some() {
        return state.workloads.crons.status(workload);
    }
    let progress = state.workloads.progress.get(&workload.key)?;
    let all = progress.replicas_here;
    let here = &progress.figures;
    let replicas = here.updated + here.old;
    let mut shown = match workload.key.kind {
        WorkloadKind::Deployment => json!({
            "replicas": replicas,
            "updatedReplicas": here.updated,
            "readyReplicas": here.ready,
            "availableReplicas": here.available,
            "unavailableReplicas": all.saturating_sub(here.available),
            "conditions": conditions(state, workload, progress),
        }),
        WorkloadKind::ReplicaSet | WorkloadKind::ReplicationController => json!({
            "replicas": replicas,
            "fullyLabeledReplicas": replicas,
            "readyReplicas": here.ready,
            "availableReplicas": here.available,
        }),
        WorkloadKind::StatefulSet => json!({
            "replicas": replicas,
            "readyReplicas": here.ready,
            "availableReplicas": here.available,
            "currentReplicas": if here.old > 0 { here.old } else { here.updated },
            "updatedReplicas": here.updated,
            "currentRevision": current_revision(state, workload, here.old),
            "updateRevision": revision(workload, &workload.revision),
        }),
        WorkloadKind::Job | WorkloadKind::CronJob => return None,
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
    if workload.key.kind != WorkloadKind::Deployment && rolled_back(state, workload).is_some() {
        let conditions = conditions(state, workload, progress);
        shown["conditions"] = json!([conditions[1]]);
    }
    shown["observedGeneration"] = json!(generation(state, &workload.key));
    Some(shown)
}

/// `metadata.generation` of a document.
pub fn generation(state: &NodeState, key: &WorkloadKey) -> u64 {
    let history = state.workloads.histories.of_workload(key);
    let generation = history.map(|history| history.generation);
    let generation = generation.or_else(|| state.workloads.crons.generation(key));
    generation.unwrap_or(1).max(1)
}

/// When a document came, if that is known.
pub fn since(state: &NodeState, key: &WorkloadKey) -> Option<Wall> {
    let workloads = &state.workloads;
    let history = workloads.histories.of_workload(key);
    history.map_or_else(|| workloads.crons.since(key), |history| history.since)
}

/// The revision of the pods that a rollout has not reached: the one before.
fn current_revision(state: &NodeState, workload: &Workload, old: usize) -> String {
    let history = state.workloads.histories.of_workload(&workload.key);
    let mut all = history
        .iter()
        .flat_map(|history| history.revisions.iter().rev());
    let before = all.find(|before| before.hash != workload.revision);
    let before = before.filter(|_| old > 0).map(|before| &before.hash);
    revision(workload, before.unwrap_or(&workload.revision))
}

/// The name of a revision, as the StatefulSet controller has it.
fn revision(workload: &Workload, hash: &str) -> String {
    format!("{}-{hash}", workload.key.name)
}

/// Why something else is in force of a document than its file says, for people.
pub fn note<'s>(state: &'s NodeState, workload: &Workload) -> Option<(Cause, &'s str)> {
    let history = state.workloads.histories.of_workload(&workload.key)?;
    let instead = history.instead.as_ref()?;
    Some((instead.cause, instead.note.as_deref()?))
}

/// The same, if the rollout was taken back.
fn rolled_back<'s>(state: &'s NodeState, workload: &Workload) -> Option<&'s str> {
    let (cause, note) = note(state, workload)?;
    (cause == Cause::RolledBack).then_some(note)
}

fn conditions(state: &NodeState, workload: &Workload, progress: &Progress) -> Value {
    let name = &workload.key.name;
    let back = rolled_back(state, workload);
    let mut flag = progress.progressing;
    let available = match progress.available.yes {
        true => (
            "MinimumReplicasAvailable",
            "Deployment has minimum availability.".to_owned(),
        ),
        false => (
            "MinimumReplicasUnavailable",
            "Deployment does not have minimum availability.".to_owned(),
        ),
    };
    let progressing = match (progress.complete, progress.failed) {
        // Clients of Kubernetes take this reason for a failure.
        _ if back.is_some() => {
            flag.yes = false;
            let note = back.unwrap_or_default();
            let message = format!("{} Rolled back: {note}.", timed_out(&workload.key));
            ("ProgressDeadlineExceeded", message)
        }
        (true, _) => (
            "NewReplicaSetAvailable",
            format!("Deployment {name:?} has successfully progressed."),
        ),
        (false, true) => ("ProgressDeadlineExceeded", timed_out(&workload.key)),
        (false, false) if workload.paused => {
            ("DeploymentPaused", "Deployment is paused".to_owned())
        }
        (false, false) => (
            "ReplicaSetUpdated",
            format!("Deployment {name:?} is progressing."),
        ),
    };
    json!([
        condition("Available", progress.available, available),
        condition("Progressing", flag, progressing),
    ])
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
