//! What do people see? A pod's manifest with `metadata` and `status` as the kubelet would fill them
//! (kubelet-behaviour §3). State alone decides, no clock: a status changes only when an event was recorded.

mod conditions;
mod container;
mod service;
mod text;

use std::net::IpAddr;

use k8s_openapi::api::core::v1 as core;

use super::state::{ContainerState, Role, Run};
use super::verdict::{Cause, Verdict};
use super::{PodState, Settings, Wall};
use container::container;
pub use container::{image_failure, start_failure};
pub use service::{endpoints, service};
use text::{addresses, some};
pub use text::{container_id, go_duration, time};

/// What every pod's status says about the node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeFacts {
    /// Its name.
    pub name: String,
    /// Its addresses, the one of the default route first.
    pub ips: Vec<IpAddr>,
}

/// `status.phase`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Something has not run yet.
    Pending,
    /// Something runs or will run again.
    Running,
    /// Everything ended well.
    Succeeded,
    /// Everything ended, something not well.
    Failed,
}

impl Phase {
    /// The Kubernetes word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "Pending",
            Self::Running => "Running",
            Self::Succeeded => "Succeeded",
            Self::Failed => "Failed",
        }
    }

    /// Whether the pod is over.
    fn is_terminal(self) -> bool {
        match self {
            Self::Pending | Self::Running => false,
            Self::Succeeded | Self::Failed => true,
        }
    }
}

/// The whole pod as it is shown.
pub fn pod(state: &PodState, node: &NodeFacts, settings: &Settings) -> core::Pod {
    let mut pod = (*state.wanted().manifest).clone();
    pod.metadata.uid = Some(state.spec.uid.to_string());
    pod.metadata.creation_timestamp = Some(time(state.created.wall));
    if let Some(stopping) = &state.stopping {
        let seconds = i64::try_from(stopping.asked_ms / 1000).unwrap_or(i64::MAX);
        let after_us = seconds.saturating_mul(1_000_000);
        let at = Wall(stopping.since.wall.0.saturating_add(after_us));
        pod.metadata.deletion_timestamp = Some(time(at));
        pod.metadata.deletion_grace_period_seconds = Some(seconds);
    }
    if let Some(spec) = &mut pod.spec {
        spec.node_name = Some(node.name.clone());
    }
    pod.status = Some(status(state, node, settings));
    pod
}

fn status(state: &PodState, node: &NodeFacts, settings: &Settings) -> core::PodStatus {
    let phase = phase(state);
    let verdict = state.verdict.as_ref().filter(|_| phase.is_terminal());
    if let Some(verdict) = verdict.filter(|v| v.cause == Cause::RejectedAtShutdown) {
        return refused(state, verdict);
    }
    let host = addresses(&node.ips);
    let ips = if state.spec.host_network {
        host.clone()
    } else {
        addresses(&state.ips)
    };
    let show = |some: &[ContainerState]| -> Vec<_> {
        let shown = some.iter().map(|c| container(state, c, settings));
        shown.collect()
    };
    // Of a pod that is not let in there is nothing but the reason.
    let hold = state.hold.as_ref();
    let shown = |some: Vec<_>| Some(some).filter(|_| hold.is_none());
    let mut containers = show(state.mains());
    containers.sort_by(|a, b| a.name.cmp(&b.name));
    core::PodStatus {
        phase: Some(phase.as_str().to_owned()),
        conditions: Some(conditions::all(state, outcome(state))),
        observed_generation: conditions::generation(state),
        host_ip: host.first().cloned(),
        host_ips: some(host.into_iter().map(|ip| core::HostIP { ip }).collect()),
        pod_ip: ips.first().cloned(),
        pod_ips: some(ips.into_iter().map(|ip| core::PodIP { ip }).collect()),
        start_time: hold.is_none().then(|| time(state.created.wall)),
        init_container_statuses: shown(show(state.inits())).and_then(some),
        container_statuses: shown(containers),
        reason: hold
            .map(|hold| hold.reason.to_string())
            .or_else(|| verdict.map(|v| v.cause.as_str().to_owned())),
        message: hold
            .map(|hold| hold.message.clone())
            .or_else(|| verdict.map(|v| v.message.clone())),
        ephemeral_container_statuses: shown(show(state.ephemerals())).and_then(some),
        qos_class: Some(state.spec.qos.as_str().to_owned()),
        ..core::PodStatus::default()
    }
}

/// Of a pod that came when the node was shutting down there is nothing else to say (kubelet-behaviour §3.6, §7.6).
fn refused(state: &PodState, verdict: &Verdict) -> core::PodStatus {
    core::PodStatus {
        phase: Some(Phase::Failed.as_str().to_owned()),
        reason: Some(verdict.cause.as_str().to_owned()),
        message: Some(verdict.message.clone()),
        qos_class: Some(state.spec.qos.as_str().to_owned()),
        ..core::PodStatus::default()
    }
}

/// The phase that is shown (kubelet-behaviour §3.1). That a pod is over is said once nothing of it runs any more: who sees
/// it over may take what it used.
pub fn phase(state: &PodState) -> Phase {
    let outcome = outcome(state);
    let runs = |c: &ContainerState| matches!(c.run, Run::Running { .. });
    if !outcome.is_terminal() || !state.containers.iter().any(runs) {
        return outcome;
    }
    match counted(state) {
        Phase::Pending => Phase::Pending,
        Phase::Running | Phase::Succeeded | Phase::Failed => Phase::Running,
    }
}

/// What the pod comes to, which its conditions tell at once.
fn outcome(state: &PodState) -> Phase {
    if state.verdict.is_some() || state.init_failed() {
        return Phase::Failed;
    }
    counted(state)
}

/// The phase by what its containers do and did alone.
fn counted(state: &PodState) -> Phase {
    let (mut waiting, mut running, mut again, mut failed) = (false, false, false, false);
    let ran = state.mains().iter().any(|c| c.current().is_some());
    for container in &state.containers {
        match (&container.run, container.role) {
            (_, Role::Ephemeral) => {}
            (Run::None, _) => waiting = true,
            // Like one of a new pod.
            (Run::Ended(_), _) if container.restored() => waiting = true,
            (Run::Running { .. }, Role::Init) => waiting = true,
            (Run::Running { .. }, Role::Sidecar) => {
                running = true;
                waiting |= !ran && !container.started();
            }
            (Run::Running { .. }, Role::Main) if !container.up => match &container.previous {
                // As one that waits: for its first time, or for another.
                None => waiting = true,
                Some(_) => again = true,
            },
            (Run::Running { .. }, Role::Main) => running = true,
            // It failed and is tried again, or was taken away: neither is waiting for a first success. Nor is one of
            // a former sandbox, if the pod turns out to have done all its work there.
            (Run::Ended(_), Role::Init) => {
                let anew = container.stale() && !container.removed_in_place();
                waiting |= anew && !state.complete();
            }
            (Run::Ended(_), Role::Sidecar) => {}
            (Run::Ended(ended), Role::Main) => {
                again |= state.wants_start(container);
                failed |= ended.exit.code != 0;
            }
        }
    }
    if waiting {
        Phase::Pending
    } else if running || again {
        Phase::Running
    } else if failed {
        Phase::Failed
    } else {
        Phase::Succeeded
    }
}
