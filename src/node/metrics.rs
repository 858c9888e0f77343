//! What can be counted? The kubelet's metrics that have a meaning here, by their names (kubelet-behaviour §12.3).

use std::collections::BTreeMap;

use crate::api::{Metric, MetricKind, Spread};
use crate::effects::cgroup::Mode;
use crate::effects::network::{Network, Traffic};
use crate::effects::probe::Outcome;
use crate::plan::event::{ProbeOrder, StartFailure};
use crate::plan::state::Run;
use crate::plan::{Event, NodeState, status};
use crate::spec::{PodKey, PodUid, ProbeKind};

/// What only grows, since this agent started.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pods: f64,
    pod_errors: f64,
    containers: f64,
    container_errors: BTreeMap<&'static str, f64>,
    lost_sandboxes: f64,
    hook_fallbacks: f64,
    /// By what was short, or outgrown.
    evictions: BTreeMap<&'static str, f64>,
    /// By reason.
    rejections: BTreeMap<String, f64>,
}

impl Counters {
    pub(super) fn count(&mut self, event: &Event) {
        match event {
            Event::SandboxCreated { .. } => self.pods += 1.0,
            Event::SandboxFailed { .. } => self.pod_errors += 1.0,
            Event::SandboxLost { .. } => self.lost_sandboxes += 1.0,
            Event::ContainerStarted { .. } => self.containers += 1.0,
            Event::PodEvicted { eviction, .. } => {
                *self.evictions.entry(eviction.reason.signal()).or_default() += 1.0;
            }
            Event::HookDone { outcome, .. } => {
                self.hook_fallbacks += f64::from(u8::from(outcome.fell_back.is_some()));
            }
            Event::ContainerStartFailed { failure, .. } => {
                let code = match failure {
                    StartFailure::Config | StartFailure::Create | StartFailure::Run => {
                        status::start_failure(*failure)
                    }
                };
                *self.container_errors.entry(code).or_default() += 1.0;
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
            | Event::SandboxRemoved { .. }
            | Event::SandboxRemoveFailed { .. }
            | Event::ImageReady { .. }
            | Event::ImageFailed { .. }
            | Event::ImagesChanged
            | Event::Resized { .. }
            | Event::ResizeFailed { .. }
            | Event::Warned { .. }
            | Event::NodeAddressesChanged
            | Event::SettingsChanged(_)
            | Event::EphemeralAdded { .. }
            | Event::ContainerExited { .. }
            | Event::HookStarted(_)
            | Event::TimePassed { .. }
            | Event::ProbeStarted(_)
            | Event::ProbeDone { .. }
            | Event::SignalSent { .. }
            | Event::SignalFailed { .. } => {}
        }
    }

    /// A pod was not let in, or for another reason than before.
    pub(super) fn rejected(&mut self, reason: &str) {
        *self.rejections.entry(reason.to_owned()).or_default() += 1.0;
    }

    /// Everything as it is now.
    pub(super) fn metrics(&self, state: &NodeState) -> Vec<Metric> {
        let (mut running_pods, mut running, mut exited) = (0.0, 0.0, 0.0);
        let (mut active, mut resizing, mut deferred, mut infeasible) = (0.0, 0.0, 0.0, 0.0);
        for pod in state.pods.values() {
            active += f64::from(u8::from(!pod.finished()));
            resizing += f64::from(u8::from(pod.resizing.since.is_some()));
            match pod.pending.as_ref().and_then(|p| p.refusal.as_ref()) {
                Some(refusal) if refusal.infeasible => infeasible += 1.0,
                Some(_) => deferred += 1.0,
                None => {}
            }
            running_pods += f64::from(u8::from(pod.any_running()));
            for container in &pod.containers {
                match container.run {
                    Run::None => {}
                    Run::Running { .. } => running += 1.0,
                    Run::Ended(_) => exited += 1.0,
                }
            }
        }
        let desired = state
            .desired
            .as_ref()
            .map_or(0, |desired| desired.pods.len());
        let errors = self.container_errors.iter();
        let errors: Vec<_> = errors
            .map(|(code, n)| {
                (
                    labels(&[("code", code), ("container_type", "container")]),
                    *n,
                )
            })
            .collect();
        let evictions = self.evictions.iter();
        let evictions = evictions.map(|(signal, n)| (labels(&[("eviction_signal", signal)]), *n));
        let rejections = self.rejections.iter();
        let rejections = rejections.map(|(reason, n)| (labels(&[("reason", reason)]), *n));
        let preemptions = state.preemptions.iter().map(|(resource, n)| {
            let n = u32::try_from(*n).map_or(f64::INFINITY, f64::from);
            (labels(&[("preemption_signal", resource)]), n)
        });
        vec![
            counter(
                "kubelet_evictions",
                "Cumulative number of pod evictions by eviction signal",
                evictions.collect(),
            ),
            counter(
                "kubelet_admission_rejections_total",
                "Pods that were not let in at once.",
                rejections.collect(),
            ),
            counter(
                "kubelet_preemptions",
                "Pods that were ended to make room for others.",
                preemptions.collect(),
            ),
            gauge(
                "coracle_build_info",
                "The running version.",
                vec![(labels(&[("version", env!("CARGO_PKG_VERSION"))]), 1.0)],
            ),
            gauge(
                "kubelet_desired_pods",
                "Pods that manifests ask for.",
                vec![(
                    labels(&[("static", "true")]),
                    u32::try_from(desired).map_or(0.0, f64::from),
                )],
            ),
            gauge(
                "kubelet_running_pods",
                "Pods with a running container.",
                one(running_pods),
            ),
            gauge(
                "kubelet_running_containers",
                "Containers by state.",
                vec![
                    (labels(&[("container_state", "running")]), running),
                    (labels(&[("container_state", "exited")]), exited),
                ],
            ),
            gauge(
                "kubelet_active_pods",
                "Pods that are not over.",
                vec![(labels(&[("static", "true")]), active)],
            ),
            gauge(
                "kubelet_pod_pending_resizes",
                "Pods that wait for other resources, by what keeps them from having them.",
                vec![
                    (labels(&[("reason", "deferred")]), deferred),
                    (labels(&[("reason", "infeasible")]), infeasible),
                ],
            ),
            gauge(
                "kubelet_pod_in_progress_resizes",
                "Pods that are being given other resources.",
                one(resizing),
            ),
            counter(
                "kubelet_started_pods_total",
                "Sandboxes made.",
                one(self.pods),
            ),
            counter(
                "kubelet_started_pods_errors_total",
                "Sandboxes that could not be made.",
                one(self.pod_errors),
            ),
            counter(
                "coracle_lost_sandboxes_total",
                "Sandboxes whose shim died.",
                one(self.lost_sandboxes),
            ),
            counter(
                "kubelet_lifecycle_handler_http_fallbacks_total",
                "Hooks by HTTPS that were answered by HTTP.",
                one(self.hook_fallbacks),
            ),
            counter(
                "kubelet_started_containers_total",
                "Containers started.",
                vec![(labels(&[("container_type", "container")]), self.containers)],
            ),
            counter(
                "kubelet_started_containers_errors_total",
                "Containers that could not be started.",
                errors,
            ),
        ]
    }
}

/// What probes came to, of the pods there are.
#[derive(Debug, Default)]
pub(super) struct ProbeCounters {
    series: BTreeMap<ProbeSeries, ProbeCounts>,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct ProbeSeries {
    pod: PodUid,
    container: String,
    probe: ProbeKind,
}

#[derive(Debug)]
struct ProbeCounts {
    key: PodKey,
    /// By result.
    results: BTreeMap<&'static str, f64>,
    /// Of those that did not fail, as the kubelet counts.
    seconds: Spread,
}

impl ProbeCounters {
    pub(super) fn count(
        &mut self,
        order: &ProbeOrder,
        key: &PodKey,
        outcome: &Outcome,
        seconds: f64,
    ) {
        let series = ProbeSeries {
            pod: order.instance.pod.clone(),
            container: order.instance.container.clone(),
            probe: order.probe,
        };
        let counts = self.series.entry(series).or_insert_with(|| ProbeCounts {
            key: key.clone(),
            results: BTreeMap::new(),
            seconds: Spread::new(Vec::new()),
        });
        let result = match outcome {
            Outcome::Success(_) | Outcome::Warning(_) => "successful",
            Outcome::Failure(_) => "failed",
            Outcome::Error(_) => "unknown",
        };
        *counts.results.entry(result).or_default() += 1.0;
        if result != "failed" {
            counts.seconds.add(seconds);
        }
    }

    /// The pod is gone.
    pub(super) fn forget(&mut self, pod: &PodUid) {
        self.series.retain(|series, _| series.pod != *pod);
    }

    pub(super) fn metrics(&self) -> Vec<Metric> {
        let (mut totals, mut spreads) = (Vec::new(), Vec::new());
        for (series, counts) in &self.series {
            let common = [
                ("probe_type", series.probe.as_str()),
                ("container", series.container.as_str()),
                ("pod", counts.key.name.as_str()),
                ("namespace", counts.key.namespace.as_str()),
            ];
            for (result, count) in &counts.results {
                let mut all = labels(&common);
                all.extend(labels(&[
                    ("pod_uid", series.pod.as_str()),
                    ("result", result),
                ]));
                totals.push((all, *count));
            }
            spreads.push(counts.seconds.labelled(labels(&common)));
        }
        vec![
            counter(
                "prober_probe_total",
                "Cumulative number of a liveness, readiness or startup probe for a container by result.",
                totals,
            ),
            Metric {
                name: "prober_probe_duration_seconds".to_owned(),
                help: "Duration in seconds for a probe response.".to_owned(),
                kind: MetricKind::Histogram(spreads),
                samples: Vec::new(),
            },
        ]
    }
}

/// Which version of cgroups pods are in.
pub(super) fn of_cgroups(mode: Mode) -> Metric {
    let version = match mode {
        Mode::V1 => 1.0,
        Mode::V2 => 2.0,
    };
    gauge(
        "kubelet_cgroup_version",
        "cgroup version on the hosts.",
        one(version),
    )
}

/// How long packet rules take.
pub(super) fn of_rules(network: &Network) -> Metric {
    gauge(
        "coracle_firewall_apply_seconds",
        "How long the last change of packet rules took.",
        one(network.firewall().last_run().as_secs_f64()),
    )
}

/// Reads one figure of a pod's traffic.
type Read = fn(&Traffic) -> u64;

/// What went through the pods' interfaces, under the names cAdvisor gave it.
pub(super) fn of_traffic(
    keys: &BTreeMap<PodUid, PodKey>,
    traffic: &BTreeMap<PodUid, Traffic>,
) -> Vec<Metric> {
    const FIGURES: [(&str, &str, Read); 8] = [
        ("receive_bytes", "Bytes received.", |t| t.rx_bytes),
        ("receive_packets", "Packets received.", |t| t.rx_packets),
        (
            "receive_packets_dropped",
            "Packets dropped while receiving.",
            |t| t.rx_dropped,
        ),
        ("receive_errors", "Errors while receiving.", |t| t.rx_errors),
        ("transmit_bytes", "Bytes sent.", |t| t.tx_bytes),
        ("transmit_packets", "Packets sent.", |t| t.tx_packets),
        (
            "transmit_packets_dropped",
            "Packets dropped while sending.",
            |t| t.tx_dropped,
        ),
        ("transmit_errors", "Errors while sending.", |t| t.tx_errors),
    ];
    let known: Vec<_> = traffic
        .iter()
        .filter_map(|(uid, traffic)| Some((keys.get(uid)?, traffic)))
        .collect();
    FIGURES
        .iter()
        .map(|(name, help, read)| {
            let samples = known.iter().map(|(key, traffic)| {
                let labels = labels(&[
                    ("interface", "eth0"),
                    ("namespace", &key.namespace),
                    ("pod", &key.name),
                ]);
                #[expect(clippy::cast_precision_loss, reason = "Prometheus counts in doubles")]
                let value = read(traffic) as f64;
                (labels, value)
            });
            counter(
                &format!("container_network_{name}_total"),
                help,
                samples.collect(),
            )
        })
        .collect()
}

pub(super) type Samples = Vec<(Vec<(String, String)>, f64)>;

pub(super) fn labels(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect()
}

pub(super) fn one(value: f64) -> Samples {
    vec![(Vec::new(), value)]
}

pub(super) fn gauge(name: &str, help: &str, samples: Samples) -> Metric {
    Metric {
        name: name.to_owned(),
        help: help.to_owned(),
        kind: MetricKind::Gauge,
        samples,
    }
}

pub(super) fn counter(name: &str, help: &str, samples: Samples) -> Metric {
    Metric {
        name: name.to_owned(),
        help: help.to_owned(),
        kind: MetricKind::Counter,
        samples,
    }
}
