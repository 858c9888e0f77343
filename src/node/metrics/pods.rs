//! Metrics of the current pods and containers.

use std::collections::BTreeMap;

use super::{gauge, labels, one};
use crate::api::Metric;
use crate::plan::run::Run;
use crate::plan::state::{Role, Sandbox};
use crate::plan::{NodeState, PodState};

/// Pods and containers by state.
pub(in super::super) fn of_pods(state: &NodeState) -> Vec<Metric> {
    let tally = Tally::of(state);
    let mut all = tally.pods();
    all.extend(tally.containers());
    all.extend(tally.resizes());
    all
}

/// How many pods and containers are in each state.
#[derive(Debug, Default)]
struct Tally {
    desired: f64,
    active: f64,
    /// By lifecycle phase, and whether the pod is wanted.
    working: BTreeMap<(&'static str, bool), f64>,
    /// Pods with a sandbox.
    live: f64,
    running: f64,
    exited: f64,
    ephemeral: f64,
    resizing: f64,
    deferred: f64,
    infeasible: f64,
}

impl Tally {
    fn of(state: &NodeState) -> Self {
        let desired = state.desired.as_ref().map(|desired| &desired.pods);
        let number = u32::try_from(desired.map_or(0, BTreeMap::len));
        let mut tally = Self {
            desired: number.map_or(0.0, f64::from),
            ..Self::default()
        };
        for (uid, pod) in &state.pods {
            tally.add(pod, desired.is_some_and(|pods| pods.contains_key(uid)));
        }
        tally
    }

    fn add(&mut self, pod: &PodState, wanted: bool) {
        if pod.hold().is_none() {
            *self.working.entry((lifecycle(pod), wanted)).or_default() += 1.0;
        }
        self.active += f64::from(u8::from(!pod.finished()));
        self.resizing += f64::from(u8::from(pod.flags.resizing.is_some()));
        match pod.pending.as_ref().and_then(|p| p.refusal.as_ref()) {
            Some(refusal) if refusal.infeasible => self.infeasible += 1.0,
            Some(_) => self.deferred += 1.0,
            None => {}
        }
        self.live += f64::from(u8::from(matches!(pod.sandbox, Sandbox::Ready { .. })));
        for container in &pod.containers {
            match &container.run {
                Run::None => {}
                Run::Running(_) => self.running += 1.0,
                Run::Ended(_) => self.exited += 1.0,
            }
            self.ephemeral += f64::from(u8::from(container.role == Role::Ephemeral));
        }
    }

    fn pods(&self) -> Vec<Metric> {
        let working = self.working.iter().map(|((lifecycle, wanted), n)| {
            let config = if *wanted { "desired" } else { "orphan" };
            let of = [
                ("lifecycle", *lifecycle),
                ("config", config),
                ("static", "true"),
            ];
            (labels(&of), *n)
        });
        vec![
            gauge(
                "kubelet_desired_pods",
                "The number of pods the kubelet is being instructed to run. static is true if the pod is not from the apiserver.",
                vec![(labels(&[("static", "true")]), self.desired)],
            ),
            gauge(
                "kubelet_active_pods",
                "The number of pods the kubelet considers active and which are being considered when admitting new pods. static is \
                 true if the pod is not from the apiserver.",
                vec![(labels(&[("static", "true")]), self.active)],
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
                one(self.live),
            ),
        ]
    }

    fn containers(&self) -> Vec<Metric> {
        vec![
            gauge(
                "kubelet_running_containers",
                "Number of containers currently running",
                vec![
                    (labels(&[("container_state", "running")]), self.running),
                    (labels(&[("container_state", "exited")]), self.exited),
                ],
            ),
            gauge(
                "kubelet_managed_ephemeral_containers",
                "Current number of ephemeral containers in pods managed by this kubelet.",
                one(self.ephemeral),
            ),
        ]
    }

    fn resizes(&self) -> Vec<Metric> {
        vec![
            gauge(
                "kubelet_pod_pending_resizes",
                "Number of pending resizes for pods.",
                vec![
                    (labels(&[("reason", "deferred")]), self.deferred),
                    (labels(&[("reason", "infeasible")]), self.infeasible),
                ],
            ),
            gauge(
                "kubelet_pod_in_progress_resizes",
                "Number of in-progress resizes for pods.",
                one(self.resizing),
            ),
        ]
    }
}

/// The state that the kubelet's pod worker would be in: syncing, terminating, or terminated.
fn lifecycle(pod: &PodState) -> &'static str {
    let ends = pod.stopping().is_some() || pod.verdict.is_some() || pod.finished();
    match ends {
        false => "sync",
        true if pod.any_running() => "terminating",
        true => "terminated",
    }
}
