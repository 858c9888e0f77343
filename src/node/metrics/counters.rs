//! What happened how often? Facts are counted as they are recorded; that is all the work there is for them.

use std::collections::BTreeMap;

use super::{counter, gauge, labels, one};
use crate::api::{Metric, MetricKind, Spread};
use crate::plan::event::Instance;
use crate::plan::state::{Ended, Role, Run, Sandbox};
use crate::plan::{Event, NodeState, PodState, Time, restart, status};
use crate::spec::PodUid;

/// The kubelet's limits for how long a pod takes to start, in seconds.
const START_LIMITS: [f64; 25] = [
    0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 20.0, 30.0, 45.0, 60.0, 120.0, 180.0, 240.0,
    300.0, 360.0, 480.0, 600.0, 900.0, 1200.0, 1800.0, 2700.0, 3600.0,
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
}

/// What was so just before a fact was recorded, and may be different then.
#[derive(Debug, Default)]
pub(in super::super) struct Before {
    pod: Option<PodUid>,
    /// It has not run yet.
    pending: bool,
    /// It goes.
    goes: bool,
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
        }
    }
}

impl Counters {
    /// The fact is about to be recorded.
    pub(in super::super) fn count(&mut self, event: &Event, state: &NodeState) -> Before {
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
            | Event::Resized { .. }
            | Event::ResizeFailed { .. }
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
        let Some(pod) = found else {
            return;
        };
        if before.goes && pod.stopping.is_none() {
            self.restarted_pods += f64::from(u8::from(pod.hold.is_none()));
            return;
        }
        if before.pending && status::phase(pod) == status::Phase::Running {
            #[expect(clippy::cast_precision_loss, reason = "Prometheus counts in doubles")]
            let ms = now.since(pod.created.time) as f64;
            self.start_seconds.add(ms / 1000.0);
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
            Metric {
                name: "kubelet_pod_start_duration_seconds".to_owned(),
                help: "Duration in seconds from kubelet seeing a pod for the first time to the pod starting to run"
                    .to_owned(),
                kind: MetricKind::Histogram(vec![self.start_seconds.clone()]),
                samples: Vec::new(),
            },
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
            goes: pod.stopping.is_some(),
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

/// How far the node's pods are.
pub(in super::super) fn of_pods(state: &NodeState) -> Vec<Metric> {
    let (mut live, mut running, mut exited, mut ephemeral) = (0.0, 0.0, 0.0, 0.0);
    let (mut active, mut resizing, mut deferred, mut infeasible) = (0.0, 0.0, 0.0, 0.0);
    let mut working: BTreeMap<_, f64> = BTreeMap::new();
    let desired = state.desired.as_ref().map(|desired| &desired.pods);
    for (uid, pod) in &state.pods {
        let wanted = desired.is_some_and(|pods| pods.contains_key(uid));
        if pod.hold.is_none() {
            *working.entry((lifecycle(pod), wanted)).or_default() += 1.0;
        }
        active += f64::from(u8::from(!pod.finished()));
        resizing += f64::from(u8::from(pod.resizing.since.is_some()));
        match pod.pending.as_ref().and_then(|p| p.refusal.as_ref()) {
            Some(refusal) if refusal.infeasible => infeasible += 1.0,
            Some(_) => deferred += 1.0,
            None => {}
        }
        live += f64::from(u8::from(matches!(pod.sandbox, Sandbox::Ready { .. })));
        for container in &pod.containers {
            match container.run {
                Run::None => {}
                Run::Running { .. } => running += 1.0,
                Run::Ended(_) => exited += 1.0,
            }
            ephemeral += f64::from(u8::from(container.role == Role::Ephemeral));
        }
    }
    let working = working.into_iter().map(|((lifecycle, wanted), n)| {
        let config = if wanted { "desired" } else { "orphan" };
        let of = [
            ("lifecycle", lifecycle),
            ("config", config),
            ("static", "true"),
        ];
        (labels(&of), n)
    });
    let desired = u32::try_from(desired.map_or(0, BTreeMap::len)).map_or(0.0, f64::from);
    vec![
        gauge(
            "kubelet_desired_pods",
            "The number of pods the kubelet is being instructed to run. static is true if the pod is not from the apiserver.",
            vec![(labels(&[("static", "true")]), desired)],
        ),
        gauge(
            "kubelet_active_pods",
            "The number of pods the kubelet considers active and which are being considered when admitting new pods. static is \
             true if the pod is not from the apiserver.",
            vec![(labels(&[("static", "true")]), active)],
        ),
        gauge(
            "kubelet_working_pods",
            "Number of pods the kubelet is actually running, broken down by lifecycle phase, whether the pod is desired, \
             orphaned, or runtime only (also orphaned), and whether the pod is static. An orphaned pod has been removed from \
             local configuration or force deleted in the API and consumes resources that are not otherwise visible.",
            working.collect(),
        ),
        gauge(
            "kubelet_running_pods",
            "Number of pods that have a running pod sandbox",
            one(live),
        ),
        gauge(
            "kubelet_running_containers",
            "Number of containers currently running",
            vec![
                (labels(&[("container_state", "running")]), running),
                (labels(&[("container_state", "exited")]), exited),
            ],
        ),
        gauge(
            "kubelet_managed_ephemeral_containers",
            "Current number of ephemeral containers in pods managed by this kubelet.",
            one(ephemeral),
        ),
        gauge(
            "kubelet_pod_pending_resizes",
            "Number of pending resizes for pods.",
            vec![
                (labels(&[("reason", "deferred")]), deferred),
                (labels(&[("reason", "infeasible")]), infeasible),
            ],
        ),
        gauge(
            "kubelet_pod_in_progress_resizes",
            "Number of in-progress resizes for pods.",
            one(resizing),
        ),
    ]
}

/// Where its worker would be: at it, ending it, or through with it.
fn lifecycle(pod: &PodState) -> &'static str {
    let ends = pod.stopping.is_some() || pod.verdict.is_some() || pod.finished();
    match ends {
        false => "sync",
        true if pod.any_running() => "terminating",
        true => "terminated",
    }
}
