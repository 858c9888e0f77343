//! What do people see? A pod's manifest with `metadata` and `status` as the kubelet would fill them
//! (kubelet-behaviour §3). State alone decides, no clock: a status changes only when an event was recorded.

mod container;
mod service;
mod text;

use std::net::IpAddr;

use k8s_openapi::api::core::v1 as core;

use super::state::{Flag, Run};
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
    let mut containers: Vec<_> = state
        .containers
        .iter()
        .map(|c| container(state, c, settings))
        .collect();
    containers.sort_by(|a, b| a.name.cmp(&b.name));
    core::PodStatus {
        phase: Some(phase.as_str().to_owned()),
        conditions: Some(conditions(state, phase)),
        host_ip: host.first().cloned(),
        host_ips: some(host.into_iter().map(|ip| core::HostIP { ip }).collect()),
        pod_ip: ips.first().cloned(),
        pod_ips: some(ips.into_iter().map(|ip| core::PodIP { ip }).collect()),
        start_time: Some(time(state.created.wall)),
        container_statuses: Some(containers),
        qos_class: Some(state.spec.qos.as_str().to_owned()),
        ..core::PodStatus::default()
    }
}

/// The phase (kubelet-behaviour §3.1).
pub fn phase(state: &PodState) -> Phase {
    let (mut running, mut waiting, mut stopped, mut for_good, mut well) = (0, 0, 0, 0, 0);
    for container in &state.containers {
        match &container.run {
            Run::None => waiting += 1,
            Run::Running { .. } => running += 1,
            Run::Ended(ended) => {
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
        Phase::Succeeded => Some("PodCompleted"),
        Phase::Pending | Phase::Running | Phase::Failed => None,
    };
    let (reason, message) = match phase {
        _ if state.ready.yes => (None, None),
        Phase::Succeeded => (Some("PodCompleted"), None),
        Phase::Failed => (Some("PodFailed"), None),
        Phase::Pending | Phase::Running => (Some("ContainersNotReady"), Some(unready(state))),
    };
    vec![
        condition("PodReadyToStartContainers", state.sandbox_ready, None, None),
        condition("Initialized", always, initialized, None),
        condition("Ready", state.ready, reason, message.clone()),
        condition("ContainersReady", state.ready, reason, message),
        condition("PodScheduled", always, None, None),
    ]
}

/// In manifest order, as a Go slice prints.
fn unready(state: &PodState) -> String {
    let names: Vec<&str> = state
        .containers
        .iter()
        .filter(|c| !c.run.is_running())
        .map(|c| c.name.as_str())
        .collect();
    format!("containers with unready status: [{}]", names.join(" "))
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
