//! In-place resize: whether a running pod's new resources fit on the node, and how far they are applied (Kubernetes
//! docs: Pod Lifecycle; KEP-1287).
//!
//! ```text
//! edited ──► waits (Deferred, Infeasible) ──room──► in force (`PodState::spec`) ──Resize──► in the cgroups
//!                                                        └─ restart of the container, where its policy says so ─┘
//! ```

use std::cmp::Reverse;
use std::sync::Arc;

use k8s_openapi::api::core::v1 as core;
use serde_json::json;

use super::notice::Notices;
pub use super::room::Capacity;
use super::room::not_enough;
use super::state::{ContainerState, Retry, Sandbox};
use super::{Action, NodeState, Notice, PodState, Stamp, Time, Wall};
use crate::spec::priority::CRITICAL;
use crate::spec::{
    ContainerResources, ContainerSpec, PodResources, PodSpec, PodUid, QosClass, Reason,
};
use crate::types::InOrder;
pub use crate::types::Swapping;

/// The wait before a failed resize is tried again: 1 s, doubling up to 30 s.
pub const RESIZE_RETRY_MS: (u64, u64) = (1_000, 30_000);

impl Swapping {
    /// Whether a container with these resources may swap.
    fn allows(self, pod: &PodSpec, figures: &ContainerResources) -> bool {
        let request = memory_request(figures);
        let qualifies = pod.qos == QosClass::Burstable
            && request > 0
            && figures.memory_limit_bytes != Some(request);
        match (self, pod.swap_max_bytes) {
            // As on the kubelet, critical pods never swap.
            _ if pod.priority >= CRITICAL => false,
            (Self::Off, _) => false,
            // The pod's own limit replaces the containers' shares.
            (Self::Burstable | Self::All, Some(own)) => own > 0,
            (Self::Burstable, None) => qualifies,
            (Self::All, None) => true,
        }
    }
}

fn memory_request(figures: &ContainerResources) -> u64 {
    let limit = figures.memory_limit_bytes;
    figures.memory_request_bytes.or(limit).unwrap_or(0)
}

/// Requested resources that are not granted yet.
#[derive(Debug, Clone, PartialEq)]
pub struct Pending {
    /// The pod with its new resources.
    pub spec: Arc<PodSpec>,
    /// When they were requested.
    pub since: Stamp,
    /// Why they are not granted; `None` until that was checked.
    pub refusal: Option<Refusal>,
}

/// Why resources are not granted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The node can never grant them; otherwise it may once other pods are gone.
    pub infeasible: bool,
    /// The message for people.
    pub message: String,
}

impl Refusal {
    /// The reason of condition `PodResizePending`.
    pub fn reason(&self) -> &'static str {
        match self.infeasible {
            true => "Infeasible",
            false => "Deferred",
        }
    }

    /// The reason of its event.
    pub fn event(&self) -> Reason {
        match self.infeasible {
            true => Reason::ResizeInfeasible,
            false => Reason::ResizeDeferred,
        }
    }

    /// Label `reason_detail` of the kubelet's metric, which counts infeasible resizes.
    pub fn detail(&self) -> Option<&'static str> {
        match self.infeasible {
            true if self.message == SWAPS => Some("swap_limitation"),
            true => Some("insufficient_node_allocatable"),
            false => None,
        }
    }
}

/// How far the resources are applied to a pod's cgroups.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Resizing {
    /// The resources last written to the pod's cgroup.
    pub actuated: PodResources,
    /// Why the last try failed.
    pub error: Option<String>,
    /// The wait after failed tries.
    pub retry: Retry,
}

/// The message for a pod that cannot be resized because it may swap.
const SWAPS: &str = "In-place resize of containers with swap is not supported.";

impl NodeState {
    /// Whether the new memory request is for a container that may swap and is not restarted for it: its swap limit
    /// follows from that request (KEP-2400).
    fn swaps_as_it_runs(&self, pod: &PodState, wanted: &PodSpec) -> bool {
        let rule = self.settings.swap;
        let differs = |new: &ContainerSpec| {
            let old = pod.spec.container(&new.name);
            old.is_some_and(|old| {
                memory_request(&old.resources) != memory_request(&new.resources)
                    && !old.resize_restarts.memory
                    && (rule.allows(&pod.spec, &old.resources)
                        || rule.allows(wanted, &new.resources))
            })
        };
        wanted.all_containers().any(differs)
    }

    /// Grants pending resizes as far as there is room, in the kubelet's order.
    pub(super) fn admit_resizes(&mut self, now: Stamp, out: &mut Vec<Notice>) {
        let waits = |p: &&PodState| p.pending.is_some() && p.stopping().is_none();
        let mut order: Vec<_> = self.pods.values().filter(waits).map(rank).collect();
        order.order();
        for (.., uid) in order {
            let waiting = self.pods.get(&uid);
            let refusal = waiting.and_then(|pod| self.refusal(pod, pod.wanted()));
            let Some(pod) = self.pods.get_mut(&uid) else {
                continue;
            };
            let Some(mut pending) = pod.pending.take() else {
                continue;
            };
            match refusal {
                None => {
                    self.hold_changes += 1;
                    pod.flags.resize_pending = None;
                    pod.forget_crashes_before(&pending.spec);
                    pod.spec = pending.spec;
                    pod.resizing.error = None;
                    pod.resizing.retry = Retry::default();
                    if pod.is_resizing() {
                        let text = summary("Pod resize started", &pod.spec, None);
                        Notices::new(out, pod).pod(Reason::ResizeStarted, text);
                    }
                    pod.settle(now, out);
                }
                Some(refusal) => {
                    if pending.refusal.as_ref() != Some(&refusal) {
                        self.hold_changes += 1;
                        let title = format!("Pod resize {}", refusal.reason());
                        let text = summary(&title, &pending.spec, Some(&refusal.message));
                        Notices::new(out, pod).pod(refusal.event(), text);
                    }
                    pending.refusal = Some(refusal);
                    pod.pending = Some(pending);
                }
            }
        }
    }

    /// Why there is no room for the pod with these resources. A pod that requests no more than it has always fits,
    /// even on an overcommitted node.
    pub(super) fn refusal(&self, pod: &PodState, wanted: &PodSpec) -> Option<Refusal> {
        if pod.hold().is_none() && self.swaps_as_it_runs(pod, wanted) {
            return Some(Refusal {
                infeasible: true,
                message: SWAPS.to_owned(),
            });
        }
        let capacity = self.settings.capacity.as_ref()?;
        // A held pod may request anything.
        if pod.hold().is_some() {
            return None;
        }
        let given = self.given(Some(&pod.spec.uid));
        let (old, new) = (pod.spec.resources, wanted.resources);
        let cpu = |r: &PodResources| r.cpu_request_milli;
        let memory = |r: &PodResources| r.memory_request_bytes;
        let rows = [
            (
                "cpu",
                cpu(&old),
                cpu(&new),
                given.cpu_milli,
                capacity.cpu_milli,
            ),
            (
                "memory",
                memory(&old),
                memory(&new),
                given.memory_bytes,
                capacity.memory_bytes,
            ),
        ];
        let more = || rows.iter().filter(|(_, old, new, ..)| new > old);
        let never = more().rfind(|(_, _, new, _, capacity)| new > capacity);
        if let Some((name, _, new, _, capacity)) = never {
            return Some(Refusal {
                infeasible: true,
                message: format!(
                    "Node didn't have enough capacity: {name}, requested: {new}, capacity: {capacity}"
                ),
            });
        }
        let short = |(_, _, new, used, capacity): &&(_, _, u64, u64, u64)| {
            new.saturating_add(*used) > *capacity
        };
        let (name, _, new, used, capacity) = more().find(short)?;
        Some(Refusal {
            infeasible: false,
            message: not_enough(name, *new, *used, *capacity),
        })
    }
}

/// The order of pending resizes: first those that request no more, then by priority, class and age.
fn rank(pod: &PodState) -> (bool, Reverse<i32>, bool, Time, PodUid) {
    let pending = pod.pending.as_ref();
    let (old, new) = (
        pod.spec.resources,
        pending.map_or(pod.spec.resources, |p| p.spec.resources),
    );
    let more = new.cpu_request_milli > old.cpu_request_milli
        || new.memory_request_bytes > old.memory_request_bytes;
    let since = pending.map_or(Time(0), |p| p.since.time);
    let guaranteed = pod.spec.qos == QosClass::Guaranteed;
    (
        more,
        Reverse(pod.spec.priority),
        !guaranteed,
        since,
        pod.spec.uid.clone(),
    )
}

impl PodState {
    /// The manifest to show, including pending resources.
    pub fn wanted(&self) -> &Arc<PodSpec> {
        self.pending.as_ref().map_or(&self.spec, |p| &p.spec)
    }

    /// Resets the back-off of containers with new resources: earlier failures do not delay these.
    fn forget_crashes_before(&mut self, new: &PodSpec) {
        let specs = self.spec.all_containers().zip(new.all_containers());
        for ((old, new), container) in specs.zip(&mut self.containers) {
            if old.resources != new.resources {
                container.backoff = None;
                container.permitted = None;
            }
        }
    }

    /// Whether the cgroups differ from the spec.
    pub fn is_resizing(&self) -> bool {
        let differs = |(spec, c): (&ContainerSpec, &ContainerState)| {
            c.run.is_running() && c.figures(spec) != spec.resources
        };
        let live = self.is_live();
        live && (self.resizing.actuated != self.spec.resources || self.each().any(differs))
    }

    /// Whether there is a resize to apply.
    fn is_live(&self) -> bool {
        let going = self.stopping().is_some() || self.verdict.is_some();
        matches!(self.sandbox, Sandbox::Ready { .. }) && !going
    }

    /// The resize action, as far as the pod can be resized without a restart. It waits for containers that are
    /// being restarted: until then they may have more than the pod's new limit.
    pub(super) fn resize(&self) -> Option<Action> {
        let restarts = |(spec, c): (&ContainerSpec, &ContainerState)| {
            c.run.is_running() && (c.kill().is_some() || c.resize_restarts(spec))
        };
        if self.flags.resizing.is_none() || self.each().any(restarts) {
            return None;
        }
        let containers = self
            .each()
            .map(|(spec, c)| (c.name.clone(), spec.resources));
        Some(Action::Resize {
            pod: self.spec.uid.clone(),
            to: self.spec.resources,
            containers: containers.collect(),
        })
    }

    /// Records a successful resize.
    pub(super) fn resized(&mut self) {
        let is_resize = |action: &mut Action| matches!(action, Action::Resize { .. });
        let Some(Action::Resize { to, containers, .. }) = self.in_flight.take_if(is_resize) else {
            return;
        };
        self.resizing.actuated = to;
        self.resizing.error = None;
        self.resizing.retry = Retry::default();
        for (name, resources) in containers {
            if let Some(container) = self.container_mut(&name)
                && let Some(run) = container.run.running_mut()
                && let Some(asked) = &mut run.course.asked
            {
                asked.resources = Some(resources);
            }
        }
    }

    /// Records a resize that failed, entirely or in part.
    pub(super) fn resize_failed(&mut self, error: &str, now: Time, out: &mut Vec<Notice>) {
        if !self.answered(|a| matches!(a, Action::Resize { .. })) {
            return;
        }
        let (first, max) = RESIZE_RETRY_MS;
        self.resizing.retry.fail(now, first, max);
        if self.resizing.error.replace(error.to_owned()).is_none() {
            let text = summary("Pod resize error", &self.spec, Some(error));
            Notices::new(out, self).pod(Reason::ResizeError, text);
        }
    }

    /// Updates `PodResizeInProgress`, and emits an event on completion.
    pub(super) fn note_resize(&mut self, now: Wall, out: &mut Vec<Notice>) {
        if self.is_resizing() {
            self.flags.resizing.get_or_insert(now);
            return;
        }
        let live = self.is_live();
        if self.flags.resizing.take().is_some() && live {
            let text = summary("Pod resize completed", &self.spec, None);
            Notices::new(out, self).pod(Reason::ResizeCompleted, text);
        }
        self.resizing.error = None;
        self.resizing.retry = Retry::default();
    }
}

impl ContainerState {
    /// The resources of its newest run.
    pub fn figures(&self, spec: &ContainerSpec) -> ContainerResources {
        let asked = self.asked().and_then(|asked| asked.resources);
        asked.unwrap_or(spec.resources)
    }

    /// Whether it must be restarted to get its new resources.
    pub(super) fn resize_restarts(&self, spec: &ContainerSpec) -> bool {
        let (old, new) = (self.figures(spec), spec.resources);
        let cpu = (old.cpu_request_milli, old.cpu_limit_milli)
            != (new.cpu_request_milli, new.cpu_limit_milli);
        let memory = (old.memory_request_bytes, old.memory_limit_bytes)
            != (new.memory_request_bytes, new.memory_limit_bytes);
        let running = self.run.is_running();
        running && (cpu && spec.resize_restarts.cpu || memory && spec.resize_restarts.memory)
    }
}

/// The kubelet's event message.
fn summary(title: &str, spec: &PodSpec, error: Option<&str>) -> String {
    let list = |containers: &[core::Container]| -> Vec<_> {
        let one = |c: &core::Container| json!({ "name": c.name, "resources": c.resources });
        containers.iter().map(one).collect()
    };
    let mut text = json!({});
    let pod = spec.manifest.spec();
    if let Some(inits) = pod.init_containers.filter(|c| !c.is_empty()) {
        text["initContainers"] = list(&inits).into();
    }
    if let Some(resources) = &pod.resources {
        text["resources"] = json!(resources);
    }
    text["containers"] = list(&pod.containers).into();
    text["generation"] = spec.manifest.generation().unwrap_or(0).into();
    if let Some(error) = error {
        text["error"] = error.into();
    }
    format!("{title}: {text}")
}
