//! Events of documents that stand for pods, in the words of Kubernetes' controllers (`pkg/controller`). A Deployment's
//! say how many pods of which template it wants, as it has no ReplicaSets here; those of the other kinds name each pod.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::plan::{NodeState, Notice, PodState};
use crate::spec::{PodKey, PodSpec, Reason, WorkloadKey, WorkloadKind};

/// An event of a document.
pub(super) fn of(key: &WorkloadKey, reason: Reason, message: String) -> Notice {
    Notice {
        workload: Some(key.kind),
        key: PodKey::new(key.namespace.clone(), key.name.clone()),
        uid: key.uid(),
        field_path: None,
        reason,
        message,
        annotations: BTreeMap::new(),
    }
}

/// The planner has made this pod.
pub(in crate::plan) fn created(pod: &PodSpec, out: &mut Vec<Notice>) {
    each(pod, Reason::SuccessfulCreate, ("Created", "create"), out);
}

/// The planner ends this pod.
pub(in crate::plan) fn deleted(pod: &PodState, out: &mut Vec<Notice>) {
    if pod.stopping().is_none() && !pod.finished() {
        let words = ("Deleted", "delete");
        each(&pod.spec, Reason::SuccessfulDelete, words, out);
    }
}

fn each(pod: &PodSpec, reason: Reason, (done, verb): (&str, &str), out: &mut Vec<Notice>) {
    let Some(key) = &pod.workload else { return };
    let name = &pod.key.name;
    let message = match key.kind {
        WorkloadKind::Deployment => return,
        WorkloadKind::StatefulSet => {
            let set = &key.name;
            format!("{verb} Pod {name} in StatefulSet {set} successful")
        }
        _ => format!("{done} pod: {name}"),
    };
    out.push(of(key, reason, message));
}

/// How many pods of each template the Deployments want.
#[derive(Debug, Default)]
pub(super) struct Scales(BTreeMap<(WorkloadKey, String), usize>);

impl Scales {
    /// Of pods that are wanted.
    pub(super) fn of<'p>(pods: impl Iterator<Item = &'p Arc<PodSpec>>) -> Self {
        let mut scales = Self::default();
        for pod in pods {
            if let Some(key) = &pod.workload
                && key.kind == WorkloadKind::Deployment
            {
                let revision = pod.revision().unwrap_or_default().to_owned();
                *scales.0.entry((key.clone(), revision)).or_default() += 1;
            }
        }
        scales
    }

    /// Before the files were read: the pods that are there.
    pub(super) fn found(state: &NodeState) -> Self {
        let pods = state.pods.values().filter(|pod| pod.stopping().is_none());
        Self::of(pods.map(|pod| &pod.spec))
    }

    /// What has changed since then. A Deployment that no file asks for any more has no events.
    pub(super) fn report(
        &self,
        before: &Self,
        asked: impl Fn(&WorkloadKey) -> bool,
        out: &mut Vec<Notice>,
    ) {
        let changed = self
            .0
            .keys()
            .chain(before.0.keys().filter(|key| !self.0.contains_key(key)));
        for of_template @ (key, revision) in changed {
            let count = |scales: &Self| scales.0.get(of_template).copied().unwrap_or(0);
            let (from, to) = (count(before), count(self));
            let direction = match to > from {
                true => "up",
                false => "down",
            };
            if from != to && asked(key) {
                let set = format!("{}-{revision}", key.name);
                let message = format!("Scaled {direction} replica set {set} from {from} to {to}");
                out.push(of(key, Reason::ScalingReplicaSet, message));
            }
        }
    }
}

#[cfg(test)]
#[path = "notice_test.rs"]
mod tests;
