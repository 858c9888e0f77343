//! Which pod comes first? That of the highest priority, when many are to be looked at, as after a boot.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use super::state::NodeState;
use crate::spec::PodUid;

/// Some pods in the order in which they are to be looked at. Pods that are gone come last.
pub fn urgent_first(state: &NodeState, pods: BTreeSet<PodUid>) -> Vec<PodUid> {
    let mut order: Vec<PodUid> = pods.into_iter().collect();
    let priority = |uid: &PodUid| state.pods.get(uid).map(|pod| pod.spec.priority);
    order.sort_by_key(|uid| Reverse(priority(uid)));
    order
}
