//! What do people see? A pod's manifest with `metadata` and `status` as the kubelet would fill them
//! (kubelet-behaviour §3). State alone decides, no clock: a status changes only when an event was recorded.

mod container;
mod service;
mod text;

use std::net::IpAddr;

use k8s_openapi::api::core::v1 as core;

use crate::spec::RestartAction;

use super::stage::incomplete;
use super::state::{ContainerState, Flag, Role, Run};
use super::verdict::Verdict;
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
}

/// The whole pod as it is shown.
pub fn pod(state: &PodState, node: &NodeFacts, settings: &Settings) -> core::Pod {
    let mut pod = (*state.spec.manifest).clone();
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
    let mut containers = show(state.mains());
    containers.sort_by(|a, b| a.name.cmp(&b.name));
    core::PodStatus {
        phase: Some(phase.as_str().to_owned()),
        conditions: Some(conditions(state, phase)),
        host_ip: host.first().cloned(),
        host_ips: some(host.into_iter().map(|ip| core::HostIP { ip }).collect()),
        pod_ip: ips.first().cloned(),
        pod_ips: some(ips.into_iter().map(|ip| core::PodIP { ip }).collect()),
        start_time: Some(time(state.created.wall)),
        init_container_statuses: some(show(state.inits())),
        container_statuses: Some(containers),
        reason: state.verdict.as_ref().map(|v| v.cause.as_str().to_owned()),
        message: state.verdict.as_ref().map(|v| v.message.clone()),
        ephemeral_container_statuses: some(show(state.ephemerals())),
        qos_class: Some(state.spec.qos.as_str().to_owned()),
        ..core::PodStatus::default()
    }
}

/// The phase (kubelet-behaviour §3.1).
pub fn phase(state: &PodState) -> Phase {
    if state.verdict.is_some() || state.init_failed() {
        return Phase::Failed;
    }
    let (mut running, mut waiting, mut stopped, mut for_good, mut well) = (0, 0, 0, 0, 0);
    let ran = state.mains().iter().any(|c| c.current().is_some());
    for container in &state.containers {
        match (&container.run, container.role) {
            (_, Role::Ephemeral) => {}
            (Run::None, _) => waiting += 1,
            (Run::Running { .. }, Role::Init) => waiting += 1,
            (Run::Running { .. }, Role::Sidecar) => {
                running += 1;
                waiting += u32::from(!ran && !container.started());
            }
            (Run::Running { .. }, Role::Main) => running += 1,
            // It failed and is tried again, or was taken away: neither is waiting for a first success.
            (Run::Ended(_), Role::Init) => {
                waiting += u32::from(container.stale() && !container.removed_in_place());
            }
            (Run::Ended(_), Role::Sidecar) => {}
            (Run::Ended(ended), Role::Main) => {
                stopped += 1;
                for_good += u32::from(!state.wants_start(container));
                well += u32::from(ended.exit.code == 0);
            }
        }
    }
    if waiting > 0 {
        Phase::Pending
    } else if running > 0 || stopped != for_good {
        Phase::Running
    } else if stopped == well {
        Phase::Succeeded
    } else {
        Phase::Failed
    }
}

fn conditions(state: &PodState, phase: Phase) -> Vec<core::PodCondition> {
    let created = state.created.wall;
    let always = Flag {
        yes: true,
        since: created,
    };
    let initialized = match phase {
        Phase::Succeeded => (Some("PodCompleted"), None),
        _ if state.initialized.yes => (None, None),
        Phase::Pending | Phase::Running | Phase::Failed => {
            let text = names("incomplete", state.inits().iter().filter(|c| incomplete(c)));
            (Some("ContainersNotInitialized"), Some(text))
        }
    };
    let initialized_flag = match phase {
        // Also if the init containers never ran in this round.
        Phase::Succeeded if !state.initialized.yes => always,
        Phase::Succeeded | Phase::Pending | Phase::Running | Phase::Failed => state.initialized,
    };
    let (reason, message) = match phase {
        _ if state.ready.yes => (None, None),
        Phase::Succeeded => (Some("PodCompleted"), None),
        Phase::Failed => (Some("PodFailed"), None),
        Phase::Pending | Phase::Running => {
            let counts = |c: &&ContainerState| c.role != Role::Init && !c.ready();
            let text = names("unready", state.of_manifest().iter().filter(counts));
            (Some("ContainersNotReady"), Some(text))
        }
    };
    let disruption = state.verdict.as_ref().filter(|v| v.cause.disrupts());
    let mut all: Vec<_> = disruption.into_iter().map(disrupted).collect();
    all.extend([
        condition("PodReadyToStartContainers", state.sandbox_ready, None, None),
        condition(
            "Initialized",
            initialized_flag,
            initialized.0,
            initialized.1,
        ),
        condition("Ready", state.ready, reason, message.clone()),
        condition("ContainersReady", state.ready, reason, message),
        condition("PodScheduled", always, None, None),
    ]);
    let rules = state.spec.all_containers().flat_map(|c| &c.restart_rules);
    if rules
        .into_iter()
        .any(|r| r.action == RestartAction::RestartAllContainers)
    {
        let (reason, message) = match phase {
            _ if state.restarting_all.yes => (
                Some("RestartAllContainersStarted"),
                Some("container exited with restart policy rule".to_owned()),
            ),
            Phase::Succeeded => (Some("PodCompleted"), None),
            Phase::Failed => (Some("PodFailed"), None),
            Phase::Pending | Phase::Running => (None, None),
        };
        let type_ = "AllContainersRestarting";
        all.push(condition(type_, state.restarting_all, reason, message));
    }
    all
}

fn disrupted(verdict: &Verdict) -> core::PodCondition {
    let since = Flag {
        yes: true,
        since: verdict.since.wall,
    };
    let message = Some(verdict.message.clone());
    condition(
        "DisruptionTarget",
        since,
        Some("TerminationByKubelet"),
        message,
    )
}

/// In manifest order, as a Go slice prints.
fn names<'s>(what: &str, some: impl Iterator<Item = &'s ContainerState>) -> String {
    let names: Vec<&str> = some.map(|c| c.name.as_str()).collect();
    format!("containers with {what} status: [{}]", names.join(" "))
}

fn condition(
    type_: &str,
    flag: Flag,
    reason: Option<&str>,
    message: Option<String>,
) -> core::PodCondition {
    core::PodCondition {
        type_: type_.to_owned(),
        status: if flag.yes { "True" } else { "False" }.to_owned(),
        last_transition_time: Some(time(flag.since)),
        reason: reason.map(str::to_owned),
        message,
        ..core::PodCondition::default()
    }
}
