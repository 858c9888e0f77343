//! How much of the node is given away, and what is too little for whom? The one arithmetic for pods that come in and for
//! pods that want more (kubelet-behaviour §9.3, §9.7, §9.8).

use std::borrow::Cow;

use super::hold::Rejection;
use super::state::Sandbox;
use super::{Action, NodeState, PodState};
use crate::spec::{HugePages, PodSpec, PodUid};

/// Amounts of what pods share: what the node can give to them (its allocatable), what is given, what one asks for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Capacity {
    /// Places.
    pub pods: u64,
    /// cpu in thousandths of a core.
    pub cpu_milli: u64,
    /// Memory.
    pub memory_bytes: u64,
    /// Disk.
    pub storage_bytes: u64,
    /// Memory that is set aside as huge pages.
    pub huge_pages: HugePages,
}

/// Too little of one resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Shortage {
    /// The Kubernetes word for the resource.
    pub(super) resource: Cow<'static, str>,
    /// What is asked for.
    wanted: u64,
    /// What others are given.
    given: u64,
    /// What there is.
    capacity: u64,
}

impl Shortage {
    /// How much is missing.
    pub(super) fn missing(&self) -> u64 {
        let wanted = self.given.saturating_add(self.wanted);
        wanted.saturating_sub(self.capacity)
    }

    pub(super) fn rejection(&self) -> Rejection {
        let (name, wanted, given) = (&self.resource, self.wanted, self.given);
        Rejection {
            reason: Cow::Owned(format!("OutOf{name}")),
            message: not_enough(name, wanted, given, self.capacity),
        }
    }
}

impl Capacity {
    /// What a pod asks for.
    pub(super) fn of(pod: &PodSpec) -> Self {
        Self {
            pods: 1,
            cpu_milli: pod.resources.cpu_request_milli,
            memory_bytes: pod.resources.memory_request_bytes,
            storage_bytes: pod.storage_request_bytes,
            huge_pages: pod.huge_pages.clone(),
        }
    }

    /// Each amount with the Kubernetes word for it, in the kubelet's order.
    fn rows(&self) -> impl Iterator<Item = (Cow<'static, str>, u64)> {
        let rows = [
            ("pods", self.pods),
            ("cpu", self.cpu_milli),
            ("memory", self.memory_bytes),
            ("ephemeral-storage", self.storage_bytes),
        ];
        let rows = rows.map(|(name, amount)| (Cow::Borrowed(name), amount));
        let huge = self.huge_pages.iter();
        let huge = huge.map(|(size, bytes)| (Cow::Owned(size.resource()), *bytes));
        rows.into_iter().chain(huge)
    }

    /// The amount of that resource.
    pub(super) fn get(&self, resource: &str) -> u64 {
        let found = self.rows().find(|(name, _)| name == resource);
        found.map_or(0, |(_, amount)| amount)
    }

    /// Both together.
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

    /// What there is too little of here for somebody, with so much given to others. Of what nobody asks for there is
    /// always enough.
    pub(super) fn short_of(&self, wanted: &Self, given: &Self) -> Vec<Shortage> {
        let all = wanted.rows().map(|(resource, wanted)| Shortage {
            given: given.get(&resource),
            capacity: self.get(&resource),
            resource,
            wanted,
        });
        all.filter(|row| row.wanted > 0 && row.missing() > 0)
            .collect()
    }
}

impl PodState {
    /// Whether what it asks for is given to it: from when it was let in until nothing of it runs any more. A pod that was
    /// taken down for a while gets it back.
    pub(super) fn takes_room(&self) -> bool {
        // A container that is being started may run before it is heard of.
        let starting = matches!(self.in_flight, Some(Action::StartContainer { .. }));
        let done = self.sandbox == Sandbox::Removed || self.finished() && !starting;
        self.hold.is_none() && (!done || self.comes_back())
    }

    /// Whether it is down for a while, and keeps its place.
    pub(super) fn comes_back(&self) -> bool {
        let verdict = self.verdict.as_ref();
        self.stopping.is_none() && verdict.is_some_and(|verdict| verdict.cause.keeps_place())
    }

    /// Whether it has its ports of the node, or is about to: its sandbox has them, whatever runs in it.
    pub(super) fn takes_ports(&self) -> bool {
        let made = matches!(self.sandbox, Sandbox::Ready { .. } | Sandbox::Lost);
        let making = matches!(self.in_flight, Some(Action::CreateSandbox { .. }));
        made || making || self.takes_room()
    }
}

impl NodeState {
    /// What all pods but this one are given.
    pub(super) fn given(&self, except: Option<&PodUid>) -> Capacity {
        let counts = |pod: &&PodState| pod.takes_room() && Some(&pod.spec.uid) != except;
        let pods = self.pods.values().filter(counts);
        let amounts = pods.map(|pod| Capacity::of(&pod.spec));
        amounts.fold(Capacity::default(), Capacity::plus)
    }

    /// What there is too little of for a pod that is to come in; `claimed` is given to others soon.
    pub(super) fn short_of(&self, pod: &PodSpec, claimed: &Capacity) -> Vec<Shortage> {
        let given = self.given(Some(&pod.uid)).plus(claimed.clone());
        let capacity = self.settings.capacity.as_ref();
        capacity.map_or_else(Vec::new, |all| all.short_of(&Capacity::of(pod), &given))
    }
}

/// The kubelet's sentence about it.
pub(super) fn not_enough(name: &str, wanted: u64, given: u64, capacity: u64) -> String {
    format!(
        "Node didn't have enough resource: {name}, requested: {wanted}, used: {given}, capacity: {capacity}"
    )
}
