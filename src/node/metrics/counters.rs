//! What happened how often? Facts are counted as they are recorded; that is all the work there is for them.

use std::collections::BTreeMap;

use super::{counter, histogram, labels, one};
use crate::api::{Metric, Spread};
use crate::plan::event::Instance;
use crate::plan::resize::Refusal;
use crate::plan::state::{Ended, Role};
use crate::plan::{Action, Event, NodeState, PodState, Time, restart, status};
use crate::spec::{PodKey, PodUid};

/// The kubelet's limits for how long a pod takes to start, in seconds.
const START_LIMITS: [f64; 25] = [
    0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 20.0, 30.0, 45.0, 60.0, 120.0, 180.0, 240.0,
    300.0, 360.0, 480.0, 600.0, 900.0, 1200.0, 1800.0, 2700.0, 3600.0,
];

/// Those for how long a resize takes, in milliseconds.
const RESIZE_LIMITS: [f64; 14] = [
    10.0, 50.0, 100.0, 500.0, 1e3, 2e3, 5e3, 1e4, 2e4, 3e4, 6e4, 12e4, 3e5, 6e5,
];

/// What only grows, since this agent started.
#[derive(Debug)]
pub(in super::super) struct Counters {
    pods: f64,
    pod_errors: f64,
    /// Pods that were deleted, and came again.
    restarted_pods: f64,
    /// From when a pod was first seen until it ran.
    start_seconds: Spread,
    /// By type.
    containers: BTreeMap<&'static str, f64>,
    /// By code and type.
    container_errors: BTreeMap<(&'static str, &'static str), f64>,
    /// By type, exit code and reason.
    ended_containers: BTreeMap<(&'static str, i32, &'static str), f64>,
    lost_sandboxes: f64,
    hook_fallbacks: f64,
    /// By what was short, or outgrown.
    evictions: BTreeMap<&'static str, f64>,
    /// By reason.
    rejections: BTreeMap<String, f64>,
    /// By what they were removed for.
    images: BTreeMap<&'static str, f64>,
    /// Since when pods are being given other resources.
    resizing: BTreeMap<PodUid, Time>,
    /// How long that took, by success.
    resize_ms: BTreeMap<bool, Spread>,
    /// Resizes that can never be, by reason.
    infeasible: BTreeMap<&'static str, f64>,
}

/// What was so just before a fact was recorded, and may be different then.
#[derive(Debug, Default)]
pub(in super::super) struct Before {
    pod: Option<PodUid>,
    /// It has not run yet.
    pending: bool,
    /// The name it leaves, if it goes.
    leaves: Option<PodKey>,
    /// The number of each container's newest run, if that has ended.
    ended: Vec<Option<u32>>,
}

impl Default for Counters {
    fn default() -> Self {
        Self {
            pods: 0.0,
            pod_errors: 0.0,
            restarted_pods: 0.0,
            start_seconds: Spread::within(&START_LIMITS, Vec::new()),
            containers: BTreeMap::new(),
            container_errors: BTreeMap::new(),
            ended_containers: BTreeMap::new(),
            lost_sandboxes: 0.0,
            hook_fallbacks: 0.0,
            evictions: BTreeMap::new(),
            rejections: BTreeMap::new(),
            images: BTreeMap::new(),
            resizing: BTreeMap::new(),
            resize_ms: BTreeMap::new(),
            infeasible: BTreeMap::new(),
        }
    }
}

impl Counters {
    /// The fact is about to be recorded.
    pub(in super::super) fn count(
        &mut self,
        event: &Event,
        state: &NodeState,
        now: Time,
    ) -> Before {
        let type_of = |instance: &Instance| {
            let pod = state.pods.get(&instance.pod);
            let found = pod.and_then(|pod| pod.container(&instance.container));
            container_type(found.map_or(Role::Main, |container| container.role))
        };
        let about = event.pod().and_then(|uid| state.pods.get(uid));
        match event {
            Event::SandboxCreated { .. } => self.pods += 1.0,
            Event::SandboxFailed { .. } => self.pod_errors += 1.0,
            Event::SandboxLost { .. } => {
                self.lost_sandboxes += 1.0;
                return Before::of(about);
            }
            Event::SandboxRemoved { .. } | Event::ContainerExited { .. } => {
                return Before::of(about);
            }
            Event::ContainerStarted { instance, .. } => {
                *self.containers.entry(type_of(instance)).or_default() += 1.0;
                return Before::of(about);
            }
            Event::ContainerStartFailed {
                instance, failure, ..
            } => {
                let code = status::start_failure(*failure);
                self.not_started(code, type_of(instance));
                return Before::of(about);
            }
            Event::ImageFailed {
                pod,
                container,
                failure,
                ..
            } => {
                let instance = Instance {
                    pod: pod.clone(),
                    container: container.clone(),
                    attempt: 0,
                };
                let (code, _) = status::image_failure("", *failure, "", false);
                self.not_started(code, type_of(&instance));
            }
            Event::PodEvicted { eviction, .. } => {
                *self.evictions.entry(eviction.reason.signal()).or_default() += 1.0;
            }
            Event::HookDone { outcome, .. } => {
                self.hook_fallbacks += f64::from(u8::from(outcome.fell_back.is_some()));
                return Before::of(about);
            }
            Event::ActionStarted(Action::Resize { pod, .. }) => {
                self.resizing.insert(pod.clone(), now);
            }
            Event::Resized { pod } => self.resized(pod, true, now),
            Event::ResizeFailed { pod, .. } => self.resized(pod, false, now),
            Event::DesiredChanged(_)
            | Event::PodRecovered(_)
            | Event::DeleteRequested { .. }
            | Event::FormerEnds { .. }
            | Event::DeadlineExceeded { .. }
            | Event::GraceExceeded { .. }
            | Event::RetryRequested { .. }
            | Event::ConditionsSet { .. }
            | Event::ShutdownBegun { .. }
            | Event::ShutdownRecovered(_)
            | Event::ShutdownTurnOver
            | Event::ShutdownCancelled
            | Event::PolicyChanged(_)
            | Event::ReliefBegun(_)
            | Event::Observed(_)
            | Event::Reclaimed
            | Event::Alarmed
            | Event::Cordoned
            | Event::DrainBegun { .. }
            | Event::CordonRecovered(_)
            | Event::DrainTurn
            | Event::Uncordoned
            | Event::PodRestored { .. }
            | Event::ActionStarted(_)
            | Event::SandboxRemoveFailed { .. }
            | Event::ImageReady { .. }
            | Event::ImagesChanged
            | Event::Warned { .. }
            | Event::NodeAddressesChanged
            | Event::SettingsChanged(_)
            | Event::EphemeralAdded { .. }
            | Event::HookStarted(_)
            | Event::TimePassed { .. }
            | Event::ProbeStarted(_)
            | Event::ProbeDone { .. }
            | Event::SignalSent { .. }
            | Event::SignalFailed { .. } => {}
        }
        Before::default()
    }

    /// It was recorded: what has come of it. Facts that are late or come again have changed nothing.
    pub(in super::super) fn came_of(&mut self, before: &Before, state: &NodeState, now: Time) {
        let found = before.pod.as_ref().and_then(|uid| state.pods.get(uid));
        if let Some(key) = before.leaves.as_ref()
            && found.is_none_or(|pod| pod.stopping.is_none())
        {
            let mut pods = state.pods.values();
            let next = pods.find(|pod| pod.spec.key == *key && pod.hold.is_none());
            self.restarted_pods += f64::from(u8::from(next.is_some()));
            return;
        }
        let Some(pod) = found else {
            return;
        };
        if before.pending && status::phase(pod) == status::Phase::Running {
            self.start_seconds
                .add(ms_between(pod.created.time, now) / 1000.0);
        }
        for (container, before) in pod.containers.iter().zip(&before.ended) {
            let ended = container.run.ended();
            if let Some(Ended { exit, .. }) = ended.filter(|run| Some(run.attempt) != *before) {
                let type_ = container_type(container.role);
                let series = (type_, exit.code, restart::reason(exit));
                *self.ended_containers.entry(series).or_default() += 1.0;
            }
        }
    }

    fn resized(&mut self, pod: &PodUid, success: bool, now: Time) {
        if let Some(since) = self.resizing.remove(pod) {
            let of = labels(&[("success", if success { "true" } else { "false" })]);
            let spread = self.resize_ms.entry(success);
            let spread = spread.or_insert_with(|| Spread::within(&RESIZE_LIMITS, of));
            spread.add(ms_between(since, now));
        }
    }

    /// The pod is gone; nothing more is heard of what was under way for it.
    pub(in super::super) fn forget(&mut self, pod: &PodUid) {
        self.resizing.remove(pod);
    }

    /// A resize was refused, or for another reason than before.
    pub(in super::super) fn not_resized(&mut self, refusal: &Refusal) {
        if let Some(detail) = refusal.detail() {
            *self.infeasible.entry(detail).or_default() += 1.0;
        }
    }

    fn not_started(&mut self, code: &'static str, type_: &'static str) {
        *self.container_errors.entry((code, type_)).or_default() += 1.0;
    }

    /// A pod was not let in, or for another reason than before.
    pub(in super::super) fn rejected(&mut self, reason: &str) {
        *self.rejections.entry(reason.to_owned()).or_default() += 1.0;
    }

    /// So many images were removed, for `reason`.
    pub(in super::super) fn images_removed(&mut self, reason: &'static str, count: u32) {
        *self.images.entry(reason).or_default() += f64::from(count);
    }

    /// How often what happened.
    pub(in super::super) fn metrics(&self, state: &NodeState) -> Vec<Metric> {
        let evictions = self.evictions.iter();
        let evictions = evictions.map(|(signal, n)| (labels(&[("eviction_signal", signal)]), *n));
        let rejections = self.rejections.iter();
        let rejections = rejections.map(|(reason, n)| (labels(&[("reason", reason)]), *n));
        let preemptions = state.preemptions.iter().map(|(resource, n)| {
            let n = u32::try_from(*n).map_or(f64::INFINITY, f64::from);
            (labels(&[("preemption_signal", resource)]), n)
        });
        let images = self.images.iter();
        let images = images.map(|(reason, n)| (labels(&[("reason", reason)]), *n));
        let infeasible = self.infeasible.iter();
        let infeasible = infeasible.map(|(detail, n)| (labels(&[("reason_detail", detail)]), *n));
        let started = self.containers.iter();
        let started = started.map(|(type_, n)| (labels(&[("container_type", type_)]), *n));
        let errors = self.container_errors.iter().map(|((code, type_), n)| {
            let of = labels(&[("code", code), ("container_type", type_)]);
            (of, *n)
        });
        let ended = self.ended_containers.iter();
        let ended = ended.map(|((type_, code, reason), n)| {
            let code = code.to_string();
            let of = [
                ("container_type", *type_),
                ("exit_code", &code),
                ("reason", reason),
            ];
            (labels(&of), *n)
        });
        vec![
            counter(
                "kubelet_evictions",
                "Cumulative number of pod evictions by eviction signal",
                evictions.collect(),
            ),
            counter(
                "kubelet_admission_rejections_total",
                "Cumulative number pod admission rejections by the Kubelet.",
                rejections.collect(),
            ),
            counter(
                "kubelet_preemptions",
                "Cumulative number of pod preemptions by preemption resource",
                preemptions.collect(),
            ),
            counter(
                "kubelet_image_garbage_collected_total",
                "Total number of images garbage collected by the kubelet, whether through disk usage or image age.",
                images.collect(),
            ),
            counter(
                "kubelet_started_pods_total",
                "Cumulative number of pods started",
                one(self.pods),
            ),
            counter(
                "kubelet_started_pods_errors_total",
                "Cumulative number of errors when starting pods",
                one(self.pod_errors),
            ),
            counter(
                "kubelet_restarted_pods_total",
                "Number of pods that have been restarted because they were deleted and recreated with the same UID while \
                 the kubelet was watching them (common for static pods, extremely uncommon for API pods)",
                vec![(labels(&[("static", "true")]), self.restarted_pods)],
            ),
            histogram(
                "kubelet_pod_start_duration_seconds",
                "Duration in seconds from kubelet seeing a pod for the first time to the pod starting to run",
                vec![self.start_seconds.clone()],
            ),
            histogram(
                "kubelet_pod_resize_duration_milliseconds",
                "Duration in milliseconds to actuate a pod resize",
                self.resize_ms.values().cloned().collect(),
            ),
            counter(
                "kubelet_pod_infeasible_resizes_total",
                "Number of infeasible resizes for pods.",
                infeasible.collect(),
            ),
            counter(
                "coracle_lost_sandboxes_total",
                "Sandboxes whose shim died.",
                one(self.lost_sandboxes),
            ),
            counter(
                "kubelet_lifecycle_handler_http_fallbacks_total",
                "The number of times lifecycle handlers successfully fell back to http from https.",
                one(self.hook_fallbacks),
            ),
            counter(
                "kubelet_started_containers_total",
                "Cumulative number of containers started",
                started.collect(),
            ),
            counter(
                "kubelet_started_containers_errors_total",
                "Cumulative number of errors when starting containers",
                errors.collect(),
            ),
            counter(
                "kubelet_terminated_containers_total",
                "Cumulative number of terminated containers",
                ended.collect(),
            ),
        ]
    }
}

impl Before {
    fn of(pod: Option<&PodState>) -> Self {
        pod.map_or_else(Self::default, |pod| Self {
            pod: Some(pod.spec.uid.clone()),
            pending: status::phase(pod) == status::Phase::Pending,
            leaves: pod.stopping.map(|_| pod.spec.key.clone()),
            ended: pod
                .containers
                .iter()
                .map(|c| c.run.ended().map(|run| run.attempt))
                .collect(),
        })
    }
}

/// The kubelet's word; to it a sidecar is an init container.
fn container_type(role: Role) -> &'static str {
    match role {
        Role::Init | Role::Sidecar => "init_container",
        Role::Main => "container",
        Role::Ephemeral => "ephemeral_container",
    }
}

#[expect(clippy::cast_precision_loss, reason = "Prometheus counts in doubles")]
fn ms_between(since: Time, now: Time) -> f64 {
    now.since(since) as f64
}
