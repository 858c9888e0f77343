//! What do people see? A pod's manifest with `metadata` and `status` as the kubelet would fill them
//! (kubelet-behaviour §3). State alone decides, no clock: a status changes only when an event was recorded.

use std::fmt::Write as _;
use std::net::IpAddr;

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::apis::meta::v1 as meta;
use k8s_openapi::jiff;
use sha2::{Digest, Sha256};

use super::event::{ImageFailure, Instance, StartFailure};
use super::state::{ContainerState, Ended, Flag, Image, Run, StartError};
use super::{PodState, Settings, Wall, restart};

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

fn container(state: &PodState, c: &ContainerState, settings: &Settings) -> core::ContainerStatus {
    let uid = &state.spec.uid;
    let id = |attempt| container_id(&state.instance(&c.name, attempt));
    let spec = state.spec.container(&c.name);
    let mut last = c.previous.as_ref();
    let shown = match (&c.run, waiting(state, c, settings)) {
        (Run::Running { started, .. }, _) => core::ContainerState {
            running: Some(core::ContainerStateRunning {
                started_at: Some(time(started.wall)),
            }),
            ..core::ContainerState::default()
        },
        (run, Some((reason, message))) => {
            last = run.ended().or(last);
            core::ContainerState {
                waiting: Some(core::ContainerStateWaiting {
                    reason: Some(reason.to_owned()),
                    message,
                }),
                ..core::ContainerState::default()
            }
        }
        (Run::Ended(ended), None) => terminated(ended, id(ended.attempt)),
        (Run::None, None) => core::ContainerState::default(),
    };
    let image_id = match &c.run {
        Run::None => String::new(),
        Run::Running { image_id, .. } => image_id.clone(),
        Run::Ended(ended) => ended.image_id.clone(),
    };
    let running = c.run.is_running();
    let manifest = state
        .spec
        .manifest
        .spec
        .as_ref()
        .and_then(|s| s.containers.iter().find(|m| m.name == c.name));
    debug_assert!(spec.is_some(), "{uid}: {} is in the spec", c.name);
    core::ContainerStatus {
        name: c.name.clone(),
        image: spec.map_or_else(String::new, |s| s.image.clone()),
        image_id,
        container_id: c.run.attempt().map(&id),
        restart_count: i32::try_from(c.restart_count()).unwrap_or(i32::MAX),
        ready: running,
        started: Some(running),
        state: Some(shown),
        last_state: Some(match last {
            Some(ended) => terminated(ended, id(ended.attempt)),
            None => core::ContainerState::default(),
        }),
        resources: running.then(|| {
            manifest
                .and_then(|m| m.resources.clone())
                .unwrap_or_default()
        }),
        volume_mounts: manifest
            .and_then(|m| m.volume_mounts.as_ref())
            .map(|mounts| {
                mounts
                    .iter()
                    .map(|mount| core::VolumeMountStatus {
                        name: mount.name.clone(),
                        mount_path: mount.mount_path.clone(),
                        read_only: mount.read_only,
                        recursive_read_only: (mount.read_only == Some(true))
                            .then(|| "Disabled".to_owned()),
                        ..core::VolumeMountStatus::default()
                    })
                    .collect()
            }),
        ..core::ContainerStatus::default()
    }
}

fn terminated(ended: &Ended, id: String) -> core::ContainerState {
    let exit = &ended.exit;
    core::ContainerState {
        terminated: Some(core::ContainerStateTerminated {
            exit_code: exit.code,
            signal: None,
            reason: Some(restart::reason(exit).to_owned()),
            message: some_text(&exit.message),
            started_at: Some(time(exit.started.wall)),
            finished_at: Some(time(exit.finished.wall)),
            container_id: Some(id),
        }),
        ..core::ContainerState::default()
    }
}

/// Why a container that is to start does not run; `None` if its end is shown instead.
fn waiting(
    state: &PodState,
    c: &ContainerState,
    settings: &Settings,
) -> Option<(&'static str, Option<String>)> {
    if c.run.is_running() {
        return None;
    }
    let reason = if state.wants_start(c) {
        trouble(state, c, settings)
    } else {
        None
    };
    match (&c.run, reason) {
        (_, Some((reason, message))) => Some((reason, Some(message))),
        (Run::None, None) => Some(("ContainerCreating", None)),
        (Run::Running { .. } | Run::Ended(_), None) => None,
    }
}

fn trouble(
    state: &PodState,
    c: &ContainerState,
    settings: &Settings,
) -> Option<(&'static str, String)> {
    if let Some(StartError {
        failure, message, ..
    }) = &c.start_error
    {
        return Some((start_failure(*failure), message.clone()));
    }
    if let Image::Failed {
        failure,
        message,
        retry,
    } = &c.image
    {
        let image = state.spec.container(&c.name).map_or("", |s| &s.image);
        return Some(image_failure(image, *failure, message, retry.failures > 1));
    }
    let delay = restart::delay_ms(c, settings)?;
    let text = format!(
        "back-off {} restarting failed container={} pod={}",
        go_duration(delay),
        c.name,
        state.spec.kubelet_name()
    );
    Some(("CrashLoopBackOff", text))
}

/// The reason shown for a container that could not be started.
pub fn start_failure(failure: StartFailure) -> &'static str {
    match failure {
        StartFailure::Config => "CreateContainerConfigError",
        StartFailure::Create => "CreateContainerError",
        StartFailure::Run => "RunContainerError",
    }
}

/// Reason and message for an image that is not to be had, for the first time or `again`.
pub fn image_failure(
    image: &str,
    failure: ImageFailure,
    error: &str,
    again: bool,
) -> (&'static str, String) {
    match failure {
        ImageFailure::NeverPull => (
            "ErrImageNeverPull",
            format!("Container image \"{image}\" is not present with pull policy of Never"),
        ),
        ImageFailure::Inspect => (
            "ImageInspectError",
            format!("Failed to inspect image \"{image}\": {error}"),
        ),
        ImageFailure::Pull if again => (
            "ImagePullBackOff",
            format!("Back-off pulling image \"{image}\": ErrImagePull: {error}"),
        ),
        ImageFailure::Pull => ("ErrImagePull", error.to_owned()),
    }
}

/// `coracle://` and 64 hex digits that are always the same for the same run.
pub fn container_id(instance: &Instance) -> String {
    let text = format!(
        "{}/{}/{}",
        instance.pod, instance.container, instance.attempt
    );
    let mut id = String::from("coracle://");
    for byte in Sha256::digest(text.as_bytes()) {
        // Writing to a String cannot fail.
        let _ = write!(id, "{byte:02x}");
    }
    id
}

/// A duration as Go prints it: `500ms`, `10s`, `1m20s`, `1h0m0s`.
pub fn go_duration(ms: u64) -> String {
    if ms == 0 {
        return "0s".to_owned();
    }
    if ms < 1000 {
        return format!("{ms}ms");
    }
    let (hours, minutes, seconds, rest) =
        (ms / 3_600_000, ms / 60_000 % 60, ms / 1000 % 60, ms % 1000);
    let mut text = String::new();
    if hours > 0 {
        text = format!("{hours}h");
    }
    if hours > 0 || minutes > 0 {
        text = format!("{text}{minutes}m");
    }
    if rest == 0 {
        return format!("{text}{seconds}s");
    }
    let fraction = format!("{rest:03}");
    format!("{text}{seconds}.{}s", fraction.trim_end_matches('0'))
}

/// Kubernetes shows whole seconds.
fn time(wall: Wall) -> meta::Time {
    let seconds = wall.0.div_euclid(1_000_000);
    meta::Time(jiff::Timestamp::from_second(seconds).unwrap_or(jiff::Timestamp::UNIX_EPOCH))
}

/// At most one address of each family, the first one's family first.
fn addresses(ips: &[IpAddr]) -> Vec<String> {
    let first = ips.first();
    let second = ips
        .iter()
        .find(|ip| first.is_some_and(|f| f.is_ipv4() != ip.is_ipv4()));
    first
        .into_iter()
        .chain(second)
        .map(ToString::to_string)
        .collect()
}

fn some<T>(list: Vec<T>) -> Option<Vec<T>> {
    (!list.is_empty()).then_some(list)
}

fn some_text(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}
