//! The node's room: how much of it is granted, and what is missing for a pod. One arithmetic for admission and for
//! resizes (Kubernetes docs: Resource Management, Reserve Compute Resources; the kubelet's
//! `pkg/kubelet/lifecycle`).

use super::hold::Rejection;
use super::state::Sandbox;
use super::{Action, NodeState, PodState};
use crate::spec::{HugePages, PodSpec, PodUid, Reason, Resource};

/// Amounts of shared resources: the node's allocatable, what is granted, or what a pod requests.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Capacity {
    /// Number of pods.
    pub pods: u64,
    /// cpu in thousandths of a core.
    pub cpu_milli: u64,
    /// Memory in bytes.
    pub memory_bytes: u64,
    /// Ephemeral storage in bytes.
    pub storage_bytes: u64,
    /// Huge pages in bytes, by size.
    pub huge_pages: HugePages,
}

/// A shortage of one resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Shortage {
    /// The resource.
    pub(super) resource: Resource,
    /// The requested amount.
    wanted: u64,
    /// The amount granted to other pods.
    given: u64,
    /// The node's allocatable amount.
    capacity: u64,
}

impl Shortage {
    /// The missing amount.
    pub(super) fn missing(&self) -> u64 {
        let wanted = self.given.saturating_add(self.wanted);
        wanted.saturating_sub(self.capacity)
    }

    pub(super) fn rejection(&self) -> Rejection {
        let (name, wanted, given) = (self.resource, self.wanted, self.given);
        Rejection {
            reason: Reason::OutOf(name),
            message: not_enough(&name.to_string(), wanted, given, self.capacity),
        }
    }
}

impl Capacity {
    /// What a pod requests.
    pub(super) fn of(pod: &PodSpec) -> Self {
        Self {
            pods: 1,
            cpu_milli: pod.resources.cpu_request_milli,
            memory_bytes: pod.resources.memory_request_bytes,
            storage_bytes: pod.storage_request_bytes,
            huge_pages: pod.huge_pages.clone(),
        }
    }

    /// Each amount, in the kubelet's order.
    fn rows(&self) -> impl Iterator<Item = (Resource, u64)> {
        let rows = [
            (Resource::Pods, self.pods),
            (Resource::Cpu, self.cpu_milli),
            (Resource::Memory, self.memory_bytes),
            (Resource::EphemeralStorage, self.storage_bytes),
        ];
        let huge = self.huge_pages.iter();
        let huge = huge.map(|(size, bytes)| (Resource::HugePages(*size), *bytes));
        rows.into_iter().chain(huge)
    }

    /// The amount of this resource.
    pub(super) fn get(&self, resource: Resource) -> u64 {
        let found = self.rows().find(|(name, _)| *name == resource);
        found.map_or(0, |(_, amount)| amount)
    }

    /// The sum of both.
    pub(super) fn plus(mut self, other: Self) -> Self {
        for (size, bytes) in other.huge_pages {
            let sum = self.huge_pages.entry(size).or_default();
            *sum = sum.saturating_add(bytes);
        }
        Self {
            pods: self.pods.saturating_add(other.pods),
            cpu_milli: self.cpu_milli.saturating_add(other.cpu_milli),
            memory_bytes: self.memory_bytes.saturating_add(other.memory_bytes),
            storage_bytes: self.storage_bytes.saturating_add(other.storage_bytes),
            ..self
        }
    }

    /// What is short for `wanted` with `given` granted to other pods. A resource that is not requested is never
    /// short.
    pub(super) fn short_of(&self, wanted: &Self, given: &Self) -> Vec<Shortage> {
        let all = wanted.rows().map(|(resource, wanted)| Shortage {
            given: given.get(resource),
            capacity: self.get(resource),
            resource,
            wanted,
        });
        all.filter(|row| row.wanted > 0 && row.missing() > 0)
            .collect()
    }
}

impl PodState {
    /// Whether its requests count as granted: from admission until nothing of it runs any more. A pod that a
    /// shutdown stopped keeps them.
    pub(super) fn takes_room(&self) -> bool {
        // A container that is being started may run before its start is reported.
        let starting = matches!(self.in_flight, Some(Action::StartContainer { .. }));
        let done = self.sandbox == Sandbox::Removed || self.finished() && !starting;
        self.hold().is_none() && (!done || self.comes_back())
    }

    /// Whether it is stopped for now, and keeps its place.
    pub(super) fn comes_back(&self) -> bool {
        let verdict = self.verdict.as_ref();
        self.stopping().is_none() && verdict.is_some_and(|verdict| verdict.cause.keeps_place())
    }

    /// Whether it holds its node ports, or is about to: they belong to its sandbox, whatever runs in it.
    pub(super) fn takes_ports(&self) -> bool {
        let made = matches!(self.sandbox, Sandbox::Ready { .. } | Sandbox::Lost);
        let making = matches!(self.in_flight, Some(Action::CreateSandbox { .. }));
        made || making || self.takes_room()
    }
}

impl NodeState {
    /// What all pods but this one are granted.
    pub(super) fn given(&self, except: Option<&PodUid>) -> Capacity {
        let counts = |pod: &&PodState| pod.takes_room() && Some(&pod.spec.uid) != except;
        let pods = self.pods.values().filter(counts);
        let amounts = pods.map(|pod| Capacity::of(&pod.spec));
        amounts.fold(Capacity::default(), Capacity::plus)
    }

    /// Whether there is room for this pod once these have gone.
    pub(super) fn has_room_without(&self, gone: impl Fn(&PodState) -> bool, pod: &PodSpec) -> bool {
        let stays = |p: &&PodState| p.takes_room() && p.spec.uid != pod.uid && !gone(p);
        let pods = self.pods.values().filter(stays);
        let amounts = pods.map(|pod| Capacity::of(&pod.spec));
        let given = amounts.fold(Capacity::default(), Capacity::plus);
        let capacity = self.settings.capacity.as_ref();
        capacity.is_none_or(|all| all.short_of(&Capacity::of(pod), &given).is_empty())
    }

    /// What is short for a pod that is to be admitted; `claimed` is reserved for other pods.
    pub(super) fn short_of(&self, pod: &PodSpec, claimed: &Capacity) -> Vec<Shortage> {
        let Some(capacity) = &self.settings.capacity else {
            return Vec::new();
        };
        let given = self.given(Some(&pod.uid)).plus(claimed.clone());
        capacity.short_of(&Capacity::of(pod), &given)
    }
}

/// The kubelet's message about it.
pub(super) fn not_enough(name: &str, wanted: u64, given: u64, capacity: u64) -> String {
    format!(
        "Node didn't have enough resource: {name}, requested: {wanted}, used: {given}, capacity: {capacity}"
    )
}
