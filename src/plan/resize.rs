//! Is there room for what a running pod is to have from now on, and how far is it with that? (kubelet-behaviour §3.5,
//! §9.10)
//!
//! ```text
//! edited ──► waits (Deferred, Infeasible) ──room──► in force (`PodState::spec`) ──Resize──► in the cgroups
//!                                                        └─ restart of the container, where its policy says so ─┘
//! ```

use std::cmp::Reverse;
use std::sync::Arc;

use k8s_openapi::api::core::v1 as core;
use serde_json::json;

use super::notice::{Kind, Notices};
pub use super::room::Capacity;
use super::room::not_enough;
use super::state::{ContainerState, Retry, Run, Sandbox};
use super::{Action, NodeState, Notice, PodState, Stamp, Time, Wall};
use crate::spec::{ContainerResources, ContainerSpec, PodResources, PodSpec, PodUid, QosClass};

/// A resize that failed is tried again after 1 s, then twice that, … at most 30 s.
pub const RESIZE_RETRY_MS: (u64, u64) = (1_000, 30_000);

/// Who may swap (kubelet-behaviour §8.1, part A13).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Swapping {
    /// Nobody, or there is nothing to swap to.
    #[default]
    Nobody,
    /// Containers of Burstable pods whose memory request is not their limit.
    Burstable,
    /// All.
    Everybody,
}

/// From this priority on a pod never swaps.
const CRITICAL: i32 = 2_000_000_000;

impl Swapping {
    /// Whether a container with these figures may.
    fn allows(self, pod: &PodSpec, figures: &ContainerResources) -> bool {
        let request = memory_request(figures);
        let qualifies = pod.qos == QosClass::Burstable
            && request > 0
            && figures.memory_limit_bytes != Some(request);
        match (self, pod.swap_max_bytes) {
            _ if pod.priority >= CRITICAL => false,
            (Self::Nobody, _) => false,
            // The pod's own figure stands in place of shares.
            (Self::Burstable | Self::Everybody, Some(own)) => own > 0,
            (Self::Burstable, None) => qualifies,
            (Self::Everybody, None) => true,
        }
    }
}

fn memory_request(figures: &ContainerResources) -> u64 {
    let limit = figures.memory_limit_bytes;
    figures.memory_request_bytes.or(limit).unwrap_or(0)
}

/// Other resources that are asked for and not given yet.
#[derive(Debug, Clone, PartialEq)]
pub struct Pending {
    /// The pod as it is to be.
    pub spec: Arc<PodSpec>,
    /// Since when.
    pub since: Stamp,
    /// Why not yet; `None` until that was looked at.
    pub refusal: Option<Refusal>,
}

/// Why resources are not given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// There will never be enough; else there may be when other pods go.
    pub infeasible: bool,
    /// The sentence for people.
    pub message: String,
}

impl Refusal {
    /// The Kubernetes word.
    pub fn reason(&self) -> &'static str {
        match self.infeasible {
            true => "Infeasible",
            false => "Deferred",
        }
    }

    /// `reason` of the event about it.
    pub fn event(&self) -> &'static str {
        match self.infeasible {
            true => "ResizeInfeasible",
            false => "ResizeDeferred",
        }
    }

    /// Label `reason_detail` of the kubelet's metric, which counts those that can never be.
    pub fn detail(&self) -> Option<&'static str> {
        match self.infeasible {
            true if self.message == SWAPS => Some("swap_limitation"),
            true => Some("insufficient_node_allocatable"),
            false => None,
        }
    }
}

/// How far the cgroups of a pod are.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Resizing {
    /// What the pod's cgroup was given last.
    pub actuated: PodResources,
    /// Condition `PodResizeInProgress`: since when, if so.
    pub since: Option<Wall>,
    /// Why the last try failed.
    pub error: Option<String>,
    /// Waits after tries that failed.
    pub retry: Retry,
}

/// What is said to who may not be resized for its swap.
const SWAPS: &str = "In-place resize of containers with swap is not supported.";

impl NodeState {
    /// Whether another memory request is for a container that may swap, and would not be restarted for it: how much it may
    /// swap follows from that request (§8.3).
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

    /// Gives waiting pods what they ask for as far as there is room, in the kubelet's order.
    pub(super) fn admit_resizes(&mut self, now: Stamp, out: &mut Vec<Notice>) {
        let waits = |p: &&PodState| p.pending.is_some() && p.stopping.is_none();
        let mut order: Vec<_> = self.pods.values().filter(waits).map(rank).collect();
        order.sort();
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
                    pod.forget_crashes_before(&pending.spec);
                    pod.spec = pending.spec;
                    pod.resizing.error = None;
                    pod.resizing.retry = Retry::default();
                    if pod.is_resizing() {
                        let text = summary("Pod resize started", &pod.spec, None);
                        Notices::new(out, pod).pod(Kind::Normal, "ResizeStarted", text);
                    }
                    pod.settle(now, out);
                }
                Some(refusal) => {
                    if pending.refusal.as_ref() != Some(&refusal) {
                        let title = format!("Pod resize {}", refusal.reason());
                        let text = summary(&title, &pending.spec, Some(&refusal.message));
                        Notices::new(out, pod).pod(Kind::Warning, refusal.event(), text);
                    }
                    pending.refusal = Some(refusal);
                    pod.pending = Some(pending);
                }
            }
        }
    }

    /// Why there is no room for the pod with the cpu and memory of this manifest. Who asks for no more than he has is
    /// always welcome, also on a node that gives more than it has.
    pub(super) fn refusal(&self, pod: &PodState, wanted: &PodSpec) -> Option<Refusal> {
        if pod.hold.is_none() && self.swaps_as_it_runs(pod, wanted) {
            return Some(Refusal {
                infeasible: true,
                message: SWAPS.to_owned(),
            });
        }
        let capacity = self.settings.capacity.as_ref()?;
        // Who is not let in yet may ask for anything.
        if pod.hold.is_some() {
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

/// Who asks for no more first, then by priority, class and age.
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
    /// What is to be shown as its manifest: also what it waits for.
    pub fn wanted(&self) -> &Arc<PodSpec> {
        self.pending.as_ref().map_or(&self.spec, |p| &p.spec)
    }

    /// What a container came to with other resources is no reason to wait with these, as with another image.
    fn forget_crashes_before(&mut self, new: &PodSpec) {
        let specs = self.spec.all_containers().zip(new.all_containers());
        for ((old, new), container) in specs.zip(&mut self.containers) {
            if old.resources != new.resources {
                container.backoff = None;
                container.permitted = None;
            }
        }
    }

    /// Whether the cgroups are not yet as they are to be.
    pub fn is_resizing(&self) -> bool {
        let differs = |(spec, c): (&ContainerSpec, &ContainerState)| {
            c.run.is_running() && c.figures(spec) != spec.resources
        };
        let live = self.is_live();
        live && (self.resizing.actuated != self.spec.resources || self.each().any(differs))
    }

    /// Whether there is something to resize, and will be.
    fn is_live(&self) -> bool {
        let going = self.stopping.is_some() || self.verdict.is_some();
        matches!(self.sandbox, Sandbox::Ready { .. }) && !going
    }

    /// The order to do so, as far as that can be done without a restart. It waits for those that are being restarted:
    /// what they have until then may be more than the pod is to have.
    pub(super) fn resize(&self) -> Option<Action> {
        let restarts = |(spec, c): (&ContainerSpec, &ContainerState)| {
            c.run.is_running() && (c.kill.is_some() || c.resize_restarts(spec))
        };
        if self.resizing.since.is_none() || self.each().any(restarts) {
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

    /// It was done.
    pub(super) fn resized(
        &mut self,
        to: PodResources,
        containers: &[(String, ContainerResources)],
    ) {
        self.resizing.actuated = to;
        self.resizing.error = None;
        self.resizing.retry = Retry::default();
        for (name, resources) in containers {
            if let Some(c) = self.container_mut(name).filter(|c| c.run.is_running()) {
                let attempt = c.run.attempt();
                if let Some(asked) = c.asked.as_mut().filter(|a| Some(a.attempt) == attempt) {
                    asked.resources = Some(*resources);
                }
            }
        }
    }

    /// It could not be done (entirely).
    pub(super) fn resize_failed(&mut self, error: &str, now: Time, out: &mut Vec<Notice>) {
        let (first, max) = RESIZE_RETRY_MS;
        self.resizing.retry.fail(now, first, max);
        if self.resizing.error.replace(error.to_owned()).is_none() {
            let text = summary("Pod resize error", &self.spec, Some(error));
            Notices::new(out, self).pod(Kind::Warning, "ResizeError", text);
        }
    }

    /// Notes whether it is under way, and tells when it is done.
    pub(super) fn note_resize(&mut self, now: Wall, out: &mut Vec<Notice>) {
        if self.is_resizing() {
            self.resizing.since.get_or_insert(now);
            return;
        }
        let live = self.is_live();
        if self.resizing.since.take().is_some() && live {
            let text = summary("Pod resize completed", &self.spec, None);
            Notices::new(out, self).pod(Kind::Normal, "ResizeCompleted", text);
        }
        self.resizing.error = None;
        self.resizing.retry = Retry::default();
    }
}

impl ContainerState {
    /// What its newest run has.
    pub fn figures(&self, spec: &ContainerSpec) -> ContainerResources {
        let asked = self.asked().and_then(|asked| asked.resources);
        asked.unwrap_or(spec.resources)
    }

    /// Whether it has to be restarted to get what it is to have.
    pub(super) fn resize_restarts(&self, spec: &ContainerSpec) -> bool {
        let (old, new) = (self.figures(spec), spec.resources);
        let cpu = (old.cpu_request_milli, old.cpu_limit_milli)
            != (new.cpu_request_milli, new.cpu_limit_milli);
        let memory = (old.memory_request_bytes, old.memory_limit_bytes)
            != (new.memory_request_bytes, new.memory_limit_bytes);
        let running = matches!(self.run, Run::Running { .. });
        running && (cpu && spec.resize_restarts.cpu || memory && spec.resize_restarts.memory)
    }
}

/// The kubelet's words about it.
fn summary(title: &str, spec: &PodSpec, error: Option<&str>) -> String {
    let list = |containers: &[core::Container]| -> Vec<_> {
        let one = |c: &core::Container| json!({ "name": c.name, "resources": c.resources });
        containers.iter().map(one).collect()
    };
    let mut text = json!({});
    if let Some(pod) = &spec.manifest.spec {
        if let Some(inits) = pod.init_containers.as_ref().filter(|c| !c.is_empty()) {
            text["initContainers"] = list(inits).into();
        }
        text["containers"] = list(&pod.containers).into();
    }
    text["generation"] = spec.manifest.metadata.generation.unwrap_or(0).into();
    if let Some(error) = error {
        text["error"] = error.into();
    }
    format!("{title}: {text}")
}
