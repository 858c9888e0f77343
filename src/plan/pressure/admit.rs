//! Admission while the node is under pressure (Kubernetes docs: Node-pressure Eviction).

use super::super::hold::Rejection;
use super::super::{NodeState, Notice, Stamp};
use super::{Condition, Observation};
use crate::spec::priority::CRITICAL;
use crate::spec::{PodSpec, QosClass, Reason};

impl NodeState {
    /// Refuses a pod while the node is under pressure, unless the pod is critical, tolerates the condition, or
    /// memory alone is short and it requests memory (Kubernetes docs: Node-pressure Eviction).
    pub(in super::super) fn under_pressure(&self, pod: &PodSpec) -> Option<Rejection> {
        let held: Vec<Condition> = self.pressure.held().collect();
        let asks = pod.qos != QosClass::BestEffort || pod.tolerates_memory_pressure;
        let only_memory = held == [Condition::Memory] && asks;
        if held.is_empty() || only_memory || pod.priority >= CRITICAL {
            return None;
        }
        let names: Vec<&str> = held.iter().map(|condition| condition.as_str()).collect();
        Some(Rejection {
            reason: Reason::Evicted,
            message: format!("The node had condition: [{}]. ", names.join(" ")),
        })
    }

    pub(in super::super) fn observed(
        &mut self,
        figures: &Observation,
        now: Stamp,
        out: &mut Vec<Notice>,
    ) {
        let before: Vec<Condition> = self.pressure.held().collect();
        self.pressure.observed(figures, now);
        let claims = self.claims_measured(&figures.claims);
        if claims || !self.pressure.held().eq(before) {
            self.admit(now, out);
        }
    }
}
