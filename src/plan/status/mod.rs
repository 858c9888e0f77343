//! A pod as shown to clients: its manifest with `metadata` and `status` as the kubelet would fill them (Kubernetes
//! docs: Pod Lifecycle). It depends on state alone, not on a clock: a status changes only when an event was
//! recorded.

mod conditions;
mod container;
mod service;
mod text;

use std::net::IpAddr;

use k8s_openapi::api::core::v1 as core;

use super::run::Run;
use super::state::{ContainerState, Role, Sandbox};
use super::verdict::{Cause, Verdict};
use super::{PodState, Settings, Wall};
use crate::spec::ContainerResources;
use crate::types::InOrder;
use container::container;
pub use container::{image_failure, start_failure};
pub use service::{ALLOCATED, endpoints, service};
use text::{addresses, resources, some};
pub use text::{container_id, go_duration, time};

/// The node's part of every pod's status.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeFacts {
    /// The node's name.
    pub name: String,
    /// The node's addresses, that of the default route first.
    pub ips: Vec<IpAddr>,
}

/// `status.phase`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// A container has not run yet.
    Pending,
    /// A container runs or will run again.
    Running,
    /// All containers ended successfully.
    Succeeded,
    /// All containers ended, at least one with a failure.
    Failed,
}

impl Phase {
    /// The phase's name in Kubernetes.
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

/// The whole pod as clients see it.
pub fn pod(state: &PodState, node: &NodeFacts, settings: &Settings) -> core::Pod {
    let mut metadata = state.wanted().manifest.metadata();
    metadata.uid = Some(state.spec.uid.to_string());
    metadata.creation_timestamp = Some(time(state.created.wall));
    if let Some(stopping) = &state.stopping() {
        let seconds = i64::try_from(stopping.asked_ms / 1000).unwrap_or(i64::MAX);
        let after_us = seconds.saturating_mul(1_000_000);
        let at = Wall(stopping.since.wall.0.saturating_add(after_us));
        metadata.deletion_timestamp = Some(time(at));
        metadata.deletion_grace_period_seconds = Some(seconds);
    }
    let in_force = state.spec.manifest.spec();
    let status = status(state, &in_force, node, settings);
    let mut spec = match &state.pending {
        Some(pending) => pending.spec.manifest.spec(),
        None => in_force,
    };
    spec.node_name = Some(node.name.clone());
    core::Pod {
        metadata,
        spec: Some(spec),
        status: Some(status),
    }
}

/// `manifest`: the `spec` in force.
fn status(
    state: &PodState,
    manifest: &core::PodSpec,
    node: &NodeFacts,
    settings: &Settings,
) -> core::PodStatus {
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
        let shown = some.iter().map(|c| container(state, c, manifest, settings));
        shown.collect()
    };
    // A held pod shows nothing but the reason.
    let hold = state.hold();
    let shown = |some: Vec<_>| Some(some).filter(|_| hold.is_none());
    let mut containers = show(state.mains());
    containers.order_by(|a, b| a.name.cmp(&b.name));
    let has_sandbox = matches!(state.sandbox, Sandbox::Ready { .. });
    let own = pod_level(state, manifest).filter(|_| has_sandbox);
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
        allocated_resources: own.as_ref().and_then(|own| own.requests.clone()),
        resources: own,
        ..core::PodStatus::default()
    }
}

/// The pod's own resources, as far as they are in its cgroup.
fn pod_level(state: &PodState, manifest: &core::PodSpec) -> Option<core::ResourceRequirements> {
    let own = manifest.resources.clone()?;
    let now = state.resizing.actuated;
    Some(match now == state.spec.resources {
        true => own,
        false => resources(
            own,
            &ContainerResources {
                cpu_request_milli: Some(now.cpu_request_milli),
                cpu_limit_milli: now.cpu_limit_milli,
                memory_request_bytes: Some(now.memory_request_bytes),
                memory_limit_bytes: now.memory_limit_bytes,
            },
        ),
    })
}

/// The status of a pod that was refused at a shutdown (Kubernetes docs: Pod Lifecycle; KEP-2000; KEP-2712).
fn refused(state: &PodState, verdict: &Verdict) -> core::PodStatus {
    core::PodStatus {
        phase: Some(Phase::Failed.as_str().to_owned()),
        reason: Some(verdict.cause.as_str().to_owned()),
        message: Some(verdict.message.clone()),
        qos_class: Some(state.spec.qos.as_str().to_owned()),
        ..core::PodStatus::default()
    }
}

/// The phase to show (Kubernetes docs: Pod Lifecycle). A pod shows as over only once nothing of it runs any more: a
/// client that sees that may take what the pod used.
pub fn phase(state: &PodState) -> Phase {
    let outcome = outcome(state);
    let runs = |c: &ContainerState| c.run.is_running();
    if !outcome.is_terminal() || !state.containers.iter().any(runs) {
        return outcome;
    }
    match counted(state) {
        Phase::Pending => Phase::Pending,
        Phase::Running | Phase::Succeeded | Phase::Failed => Phase::Running,
    }
}

/// What the first container that waits waits for.
pub(super) fn waiting(state: &PodState, settings: &Settings) -> Option<&'static str> {
    let mut all = state.containers.iter();
    all.find_map(|c| container::waiting(state, c, settings).map(|(reason, _)| reason))
}

/// The phase that the pod is heading for, which its conditions show at once.
fn outcome(state: &PodState) -> Phase {
    if state.verdict.is_some() || state.init_failed() {
        return Phase::Failed;
    }
    counted(state)
}

/// The phase by its containers alone.
fn counted(state: &PodState) -> Phase {
    let (mut waiting, mut running, mut again, mut failed) = (false, false, false, false);
    let ran = state.mains().iter().any(|c| c.current().is_some());
    for container in &state.containers {
        match (&container.run, container.role) {
            (_, Role::Ephemeral) => {}
            (Run::None, _) => waiting = true,
            // Like a container of a new pod.
            (Run::Ended(_), _) if container.restored() => waiting = true,
            (Run::Running(_), Role::Init) => waiting = true,
            (Run::Running(_), Role::Sidecar) => {
                running = true;
                waiting |= !ran && !container.started();
            }
            (Run::Running(run), Role::Main) if !run.up => match &container.previous {
                // It waits for its first run, or for another.
                None => waiting = true,
                Some(_) => again = true,
            },
            (Run::Running(_), Role::Main) => running = true,
            // It failed and is tried again, or was removed: neither is waiting for a first success. Nor is a
            // container of the previous sandbox, if the pod did all its work there.
            (Run::Ended(_), Role::Init) => {
                let replaced = container.stale() && !container.removed_in_place();
                waiting |= replaced && !state.complete();
            }
            (Run::Ended(_), Role::Sidecar) => {}
            (Run::Ended(past), Role::Main) => {
                again |= state.wants_start(container);
                failed |= past.ended.exit.code != 0;
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
