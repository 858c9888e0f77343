//! How are the pods now?

use std::collections::BTreeMap;

use super::{gauge, labels, one};
use crate::api::Metric;
use crate::plan::state::{Role, Run, Sandbox};
use crate::plan::{NodeState, PodState};

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
