//! Counters of events. Facts are counted as they are recorded, at no further cost.

use std::collections::BTreeMap;

use super::{Samples, counter, histogram, labels, one};
use crate::api::{Metric, Spread};
use crate::plan::event::ImageFailure;
use crate::plan::resize::Refusal;
use crate::plan::run::Ended;
use crate::plan::state::Role;
use crate::plan::{Action, Event, NodeState, PodFact, PodState, RunFact, restart, status};
use crate::spec::{PodKey, PodUid, Reason};
use crate::types::Time;

/// The kubelet's buckets for pod start durations, in seconds.
const START_LIMITS: [f64; 25] = [
    0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 20.0, 30.0, 45.0, 60.0, 120.0, 180.0, 240.0,
    300.0, 360.0, 480.0, 600.0, 900.0, 1200.0, 1800.0, 2700.0, 3600.0,
];

/// The kubelet's buckets for resize durations, in milliseconds.
const RESIZE_LIMITS: [f64; 14] = [
    10.0, 50.0, 100.0, 500.0, 1e3, 2e3, 5e3, 1e4, 2e4, 3e4, 6e4, 12e4, 3e5, 6e5,
];

/// The counters of this agent since its start.
#[derive(Debug)]
pub(in super::super) struct Counters {
    pods: f64,
    pod_errors: f64,
    /// Pods that were deleted and recreated.
    restarted_pods: f64,
    /// The time from when a pod was first seen until it ran.
    start_seconds: Spread,
    /// By container type.
    containers: BTreeMap<&'static str, f64>,
    /// By code and container type.
    container_errors: BTreeMap<(&'static str, &'static str), f64>,
    /// By container type, exit code and reason.
    ended_containers: BTreeMap<(&'static str, i32, &'static str), f64>,
    lost_sandboxes: f64,
    hook_fallbacks: f64,
    /// By eviction signal.
    evictions: BTreeMap<&'static str, f64>,
    /// By reason.
    rejections: BTreeMap<String, f64>,
    /// By reason of the removal.
    images: BTreeMap<&'static str, f64>,
    /// When the current resizes began.
    resizing: BTreeMap<PodUid, Time>,
    /// Resize durations, by success.
    resize_ms: BTreeMap<bool, Spread>,
    /// Infeasible resizes, by reason.
    infeasible: BTreeMap<&'static str, f64>,
}

/// The state just before a fact is recorded, as far as the fact may change it.
#[derive(Debug, Default)]
pub(in super::super) struct Before {
    pod: Option<PodUid>,
    /// Whether the pod has not run yet.
    pending: bool,
    /// The pod's name, if the fact removes it.
    leaves: Option<PodKey>,
    /// The attempt number of each container's newest run, if that has ended.
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
    /// Notes the state before a fact is recorded.
    pub(in super::super) fn count(
        &mut self,
        event: &Event,
        state: &NodeState,
        now: Time,
    ) -> Before {
        match event {
            Event::Node(_) => Before::default(),
            Event::Pod { uid, fact } => self.count_of_pod(uid, fact, state.pods.get(uid), now),
            Event::Run { instance, fact } => {
                let pod = state.pods.get(&instance.pod);
                self.count_of_run(type_of(pod, &instance.container), fact, pod)
            }
        }
    }

    fn count_of_pod(
        &mut self,
        uid: &PodUid,
        fact: &PodFact,
        pod: Option<&PodState>,
        now: Time,
    ) -> Before {
        match fact {
            PodFact::SandboxCreated { .. } => self.pods += 1.0,
            PodFact::SandboxFailed { .. } => self.pod_errors += 1.0,
            PodFact::SandboxLost => {
                self.lost_sandboxes += 1.0;
                return Before::of(pod);
            }
            PodFact::SandboxRemoved => return Before::of(pod),
            // A closed window is no error.
            PodFact::ImageFailed {
                failure: ImageFailure::Window { .. },
                ..
            } => {}
            PodFact::ImageFailed {
                container, failure, ..
            } => {
                let (code, _) = status::image_failure("", *failure, "", false);
                self.not_started(code, type_of(pod, container));
            }
            PodFact::Evicted { eviction } => {
                *self.evictions.entry(eviction.reason.signal()).or_default() += 1.0;
            }
            PodFact::ActionStarted(Action::Resize { .. }) => {
                self.resizing.insert(uid.clone(), now);
            }
            PodFact::Resized => self.resized(uid, true, now),
            PodFact::ResizeFailed { .. } => self.resized(uid, false, now),
            PodFact::Recovered(_)
            | PodFact::FormerEnds { .. }
            | PodFact::DeleteRequested { .. }
            | PodFact::DeadlineExceeded
            | PodFact::GraceExceeded
            | PodFact::EphemeralAdded { .. }
            | PodFact::RetryRequested { .. }
            | PodFact::RestartRequested { .. }
            | PodFact::ConditionsSet { .. }
            | PodFact::Restored
            | PodFact::ActionStarted(_)
            | PodFact::SandboxRemoveFailed { .. }
            | PodFact::ImageReady { .. }
            | PodFact::Pulling { .. }
            | PodFact::Warned { .. }
            | PodFact::DevicesSeen { .. }
            | PodFact::TimePassed
            | PodFact::WaitedLong => {}
        }
        Before::default()
    }

    fn count_of_run(
        &mut self,
        type_: &'static str,
        fact: &RunFact,
        pod: Option<&PodState>,
    ) -> Before {
        match fact {
            RunFact::Started { .. } => *self.containers.entry(type_).or_default() += 1.0,
            RunFact::StartFailed { failure, .. } => {
                self.not_started(status::start_failure(*failure), type_);
            }
            RunFact::HookDone { outcome, .. } => {
                self.hook_fallbacks += f64::from(u8::from(outcome.fell_back.is_some()));
            }
            RunFact::Exited { .. } => {}
            RunFact::SignalSent { .. }
            | RunFact::SignalFailed { .. }
            | RunFact::ProbeStarted(_)
            | RunFact::ProbeDone { .. }
            | RunFact::HookStarted(_) => return Before::default(),
        }
        Before::of(pod)
    }

    /// Counts the changes of a recorded fact. Late and repeated facts have changed nothing.
    pub(in super::super) fn came_of(&mut self, before: &Before, state: &NodeState, now: Time) {
        let found = before.pod.as_ref().and_then(|uid| state.pods.get(uid));
        if let Some(key) = before.leaves.as_ref()
            && found.is_none_or(|pod| pod.stopping().is_none())
        {
            let mut pods = state.pods.values();
            let next = pods.find(|pod| pod.spec.key == *key && pod.hold().is_none());
            self.restarted_pods += f64::from(u8::from(next.is_some()));
            return;
        }
        let Some(pod) = found else {
            return;
        };
        // A container may be known to have ended before it is known to have started.
        let mut mains = pod.containers.iter().filter(|c| c.role == Role::Main);
        let started = status::phase(pod) != status::Phase::Pending
            && mains.any(|container| container.run.attempt().is_some());
        if before.pending && started {
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

    /// The pod is removed: its pending durations never end.
    pub(in super::super) fn forget(&mut self, pod: &PodUid) {
        self.resizing.remove(pod);
    }

    /// Counts a resize that became infeasible, or infeasible for another reason.
    pub(in super::super) fn not_resized(&mut self, refusal: &Refusal) {
        if let Some(detail) = refusal.detail() {
            *self.infeasible.entry(detail).or_default() += 1.0;
        }
    }

    fn not_started(&mut self, code: &'static str, type_: &'static str) {
        *self.container_errors.entry((code, type_)).or_default() += 1.0;
    }

    /// Counts a pod that was refused, or refused for another reason than before.
    pub(in super::super) fn rejected(&mut self, reason: Reason) {
        *self.rejections.entry(reason.to_string()).or_default() += 1.0;
    }

    /// Counts images removed for `reason`.
    pub(in super::super) fn images_removed(&mut self, reason: &'static str, count: u32) {
        *self.images.entry(reason).or_default() += f64::from(count);
    }

    /// The counters as metrics.
    pub(in super::super) fn metrics(&self, state: &NodeState) -> Vec<Metric> {
        let mut all = self.of_room(state);
        all.extend(self.of_pods());
        all.extend(self.of_containers());
        all
    }

    /// What the node refused or removed for want of room.
    fn of_room(&self, state: &NodeState) -> Vec<Metric> {
        let preemptions = state.preemptions.iter().map(|(resource, n)| {
            let n = u32::try_from(*n).map_or(f64::INFINITY, f64::from);
            (labels(&[("preemption_signal", &resource.to_string())]), n)
        });
        vec![
            counter(
                "kubelet_evictions",
                "Cumulative number of pod evictions by eviction signal",
                by("eviction_signal", &self.evictions),
            ),
            counter(
                "kubelet_admission_rejections_total",
                "Cumulative number pod admission rejections by the Kubelet.",
                by("reason", &self.rejections),
            ),
            counter(
                "kubelet_preemptions",
                "Cumulative number of pod preemptions by preemption resource",
                preemptions.collect(),
            ),
            counter(
                "kubelet_image_garbage_collected_total",
                "Total number of images garbage collected by the kubelet, whether through disk usage or image age.",
                by("reason", &self.images),
            ),
        ]
    }

    /// Starts, restarts and resizes of pods, and lost sandboxes.
    fn of_pods(&self) -> Vec<Metric> {
        vec![
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
                by("reason_detail", &self.infeasible),
            ),
            counter(
                "coracle_lost_sandboxes_total",
                "Sandboxes whose shim died.",
                one(self.lost_sandboxes),
            ),
        ]
    }

    /// Hooks, starts and ends of containers.
    fn of_containers(&self) -> Vec<Metric> {
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
                "kubelet_lifecycle_handler_http_fallbacks_total",
                "The number of times lifecycle handlers successfully fell back to http from https.",
                one(self.hook_fallbacks),
            ),
            counter(
                "kubelet_started_containers_total",
                "Cumulative number of containers started",
                by("container_type", &self.containers),
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

/// One series for each value of a label.
fn by<K: AsRef<str>>(label: &str, counts: &BTreeMap<K, f64>) -> Samples {
    let series = counts.iter();
    let series = series.map(|(value, n)| (labels(&[(label, value.as_ref())]), *n));
    series.collect()
}

impl Before {
    fn of(pod: Option<&PodState>) -> Self {
        pod.map_or_else(Self::default, |pod| Self {
            pod: Some(pod.spec.uid.clone()),
            pending: status::phase(pod) == status::Phase::Pending,
            leaves: pod.stopping().map(|_| pod.spec.key.clone()),
            ended: pod
                .containers
                .iter()
                .map(|c| c.run.ended().map(|run| run.attempt))
                .collect(),
        })
    }
}

/// The container's type as metrics name it.
fn type_of(pod: Option<&PodState>, container: &str) -> &'static str {
    let found = pod.and_then(|pod| pod.container(container));
    container_type(found.map_or(Role::Main, |container| container.role))
}

/// The kubelet's word for the type; it counts a sidecar as an init container.
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
