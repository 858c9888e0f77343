//! Claims that end with what they were made for: `persistentVolumeClaimRetentionPolicy` of StatefulSets. Nothing else ever
//! removes the data of a claim by itself, so all doubts are for keeping it.

use std::collections::BTreeSet;

use super::revisions::{Cause, Subject};
use crate::plan::{NodeState, claims};
use crate::spec::workload::{Owner, Retention};
use crate::spec::{PodKey, Workload, WorkloadKey, WorkloadKind};

/// What is to be done with a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fate {
    /// This is its owner now.
    Owned(Option<Owner>),
    /// It is to be removed with its data.
    Removed,
}

/// What is to be done with bound claims, given each one's owner as it is written down. `documents`: the claims that files
/// ask for. `on_trial`: other files may come back.
pub fn fates(
    state: &NodeState,
    bound: &[(PodKey, Option<Owner>)],
    documents: &BTreeSet<PodKey>,
    on_trial: bool,
) -> Vec<(PodKey, Fate)> {
    let Some(desired) = state.desired.as_ref().filter(|desired| desired.complete) else {
        return Vec::new();
    };
    let sets = desired.workloads.values();
    let sets = sets.filter(|set| set.retention.is_some());
    let owners: Vec<(PodKey, Owner)> = sets.flat_map(|set| owned(set)).collect();
    let used = |claim: &PodKey| {
        let mut pods = state.pods.values();
        pods.any(|pod| claims::of(&pod.spec).any(|used| used == *claim))
    };
    let mut fates = Vec::new();
    for (claim, before) in bound {
        let now = owners.iter().find(|(key, _)| key == claim);
        let now = now.map(|(_, owner)| owner);
        if documents.contains(claim) {
            if now != before.as_ref() {
                fates.push((claim.clone(), Fate::Owned(now.cloned())));
            }
            continue;
        }
        let Some(before) = before else { continue };
        let set = WorkloadKey {
            kind: WorkloadKind::StatefulSet,
            namespace: claim.namespace.clone(),
            name: before.set.as_str().into(),
        };
        let ends = match desired.workloads.get(&set) {
            // Both what the file says now and what it said while the pod was wanted.
            Some(set) => before.when_scaled && is_scaled_away(set, claim),
            None => before.when_deleted,
        };
        if ends && !on_trial && !may_come_back(state, &set) && !used(claim) {
            fates.push((claim.clone(), Fate::Removed));
        }
    }
    fates
}

/// Whether a claim is one of those that the set has for each pod, but of a pod that is too many. One whose template is not
/// there any more stays: its pod may be wanted.
fn is_scaled_away(set: &Workload, claim: &PodKey) -> bool {
    let policy = set.retention.as_deref();
    let policy = policy.filter(|policy| policy.when_scaled);
    let mut volumes = policy.iter().flat_map(|policy| &policy.volumes);
    volumes.any(|volume| {
        let pod = claim.name.strip_prefix(volume.as_str());
        let pod = pod.and_then(|rest| rest.strip_prefix('-'));
        let ordinal = pod
            .and_then(|pod| pod.strip_prefix(&*set.key.name))
            .and_then(|rest| rest.strip_prefix('-'));
        ordinal.is_some_and(|ordinal| ordinal.parse::<u32>().is_ok())
            && !set.pods.iter().any(|wanted| Some(&*wanted.name) == pod)
    })
}

/// Whether another template of the set may be put in force, which may have more pods.
fn may_come_back(state: &NodeState, set: &WorkloadKey) -> bool {
    let histories = &state.workloads.histories;
    let history = histories.of(&Subject::Workload(set.clone()));
    history.is_some_and(|history| {
        let instead = history.instead.as_ref();
        history.trial.is_some() || instead.is_some_and(|i| i.cause != Cause::Restarted)
    })
}

/// The claims that a set asks for.
fn owned(set: &Workload) -> impl Iterator<Item = (PodKey, Owner)> + '_ {
    let policy = set.retention.as_deref();
    let of_pod = move |pod: &PodKey, policy: &Retention| {
        let owner = Owner {
            set: set.key.name.to_string(),
            when_deleted: policy.when_deleted,
            when_scaled: policy.when_scaled,
        };
        let claim =
            |volume: &String| PodKey::new(pod.namespace.clone(), format!("{volume}-{}", pod.name));
        let claims = policy.volumes.iter().map(claim);
        claims
            .map(|claim| (claim, owner.clone()))
            .collect::<Vec<_>>()
    };
    let pods = policy
        .into_iter()
        .flat_map(|policy| set.pods.iter().map(move |pod| (pod, policy)));
    pods.flat_map(move |(pod, policy)| of_pod(pod, policy))
}

#[cfg(test)]
#[path = "retention_test.rs"]
mod tests;
