//! A container's status: its state, the state before, and why it waits (Kubernetes docs: Pod Lifecycle).

use k8s_openapi::api::core::v1 as core;

use super::super::event::{ImageFailure, StartFailure};
use super::super::run::{Ended, Run};
use super::super::state::{ContainerState, Image, Role, Sandbox, StartError};
use super::super::{Action, PodState, Settings, restart};
use super::text::{container_id, go_duration, resources, some_text, time};
use crate::spec::{ContainerSpec, Reason};
use crate::types::{LOST_MESSAGE, LinuxUser, Wall, size};

pub(super) fn container(
    state: &PodState,
    c: &ContainerState,
    manifest: &core::PodSpec,
    settings: &Settings,
) -> core::ContainerStatus {
    let uid = &state.spec.uid;
    let id = |attempt| container_id(&state.instance(&c.name, attempt));
    let spec = state.spec.container(&c.name);
    let (shown, last) = shown(state, c, settings);
    let effective = c.asked().map(|asked| &asked.effective);
    let inits = manifest.init_containers.iter().flatten();
    let mut all = inits.chain(&manifest.containers);
    let manifest = all.find(|m| m.name == c.name);
    debug_assert!(spec.is_some(), "{uid}: {} is in the spec", c.name);
    let given = manifest.and_then(|m| m.resources.clone());
    let given = given.unwrap_or_default();
    let ran = c.run.attempt().is_some();
    core::ContainerStatus {
        name: c.name.clone(),
        image: match (c.asked(), spec) {
            (Some(asked), _) => asked.image.clone(),
            (None, Some(spec)) => spec.image.clone(),
            (None, None) => String::new(),
        },
        image_id: c.run.image_id().unwrap_or_default().to_owned(),
        container_id: c.run.attempt().map(&id),
        restart_count: i32::try_from(c.restart_count()).unwrap_or(i32::MAX),
        ready: c.ready(),
        started: (c.role != Role::Ephemeral).then(|| c.started()),
        state: Some(shown),
        last_state: Some(match last {
            Some(ended) if c.removed_in_place() => removed_in_place(ended, id(ended.attempt)),
            Some(ended) => terminated(ended, id(ended.attempt)),
            None => core::ContainerState::default(),
        }),
        allocated_resources: given.requests.clone().filter(|_| ran),
        resources: ran.then(|| in_effect(c, spec, given)),
        volume_mounts: manifest.and_then(volume_mounts),
        stop_signal: effective.and_then(|e| e.stop_signal.clone()),
        user: effective.and_then(|e| e.user.as_ref()).map(user),
        ..core::ContainerStatus::default()
    }
}

/// The shown state, and the end that is shown as the state before.
fn shown<'a>(
    state: &PodState,
    c: &'a ContainerState,
    settings: &Settings,
) -> (core::ContainerState, Option<&'a Ended>) {
    let last = c.previous.as_ref().or(c.former.as_ref());
    match (&c.run, waiting(state, c, settings)) {
        // Its `postStart` hook is not done: it is not shown as running yet.
        (Run::Running(run), _) if !run.up => {
            let failure = run.course.hooks.failure.clone();
            let reason = match failure {
                Some(_) => POST_START,
                None => starting(state),
            };
            (waits(reason, failure), last)
        }
        (Run::Running(run), _) => (running(run.began.wall), last),
        (run, Some((reason, message))) => (waits(reason, message), run.ended().or(last)),
        (Run::Ended(past), None) => {
            let id = container_id(&state.instance(&c.name, past.ended.attempt));
            (terminated(&past.ended, id), last)
        }
        // It does not wait any more.
        (Run::None, None) => (lost(), last),
    }
}

fn waits(reason: &str, message: Option<String>) -> core::ContainerState {
    core::ContainerState {
        waiting: Some(core::ContainerStateWaiting {
            reason: Some(reason.to_owned()),
            message,
        }),
        ..core::ContainerState::default()
    }
}

fn running(since: Wall) -> core::ContainerState {
    core::ContainerState {
        running: Some(core::ContainerStateRunning {
            started_at: Some(time(since)),
        }),
        ..core::ContainerState::default()
    }
}

/// The state of a container that should have run, but of which there is no record.
fn lost() -> core::ContainerState {
    core::ContainerState {
        terminated: Some(core::ContainerStateTerminated {
            exit_code: 137,
            reason: Some("ContainerStatusUnknown".to_owned()),
            message: Some(LOST_MESSAGE.to_owned()),
            ..core::ContainerStateTerminated::default()
        }),
        ..core::ContainerState::default()
    }
}

/// The resources in effect: those of the manifest, unless the run still has others.
fn in_effect(
    c: &ContainerState,
    spec: Option<&ContainerSpec>,
    given: core::ResourceRequirements,
) -> core::ResourceRequirements {
    match spec.map(|spec| (c.figures(spec), spec.resources)) {
        Some((now, new)) if c.run.is_running() && now != new => resources(given, &now),
        Some(_) | None => given,
    }
}

fn user(of: &LinuxUser) -> core::ContainerUser {
    let groups = of.groups.iter().copied().map(i64::from).collect();
    core::ContainerUser {
        linux: Some(core::LinuxContainerUser {
            uid: of.uid.into(),
            gid: of.gid.into(),
            supplemental_groups: Some(groups),
        }),
    }
}

fn volume_mounts(manifest: &core::Container) -> Option<Vec<core::VolumeMountStatus>> {
    let show = |mount: &core::VolumeMount| core::VolumeMountStatus {
        name: mount.name.clone(),
        mount_path: mount.mount_path.clone(),
        read_only: mount.read_only,
        recursive_read_only: (mount.read_only == Some(true)).then(|| recursive(mount).to_owned()),
        ..core::VolumeMountStatus::default()
    };
    let mounts = manifest.volume_mounts.as_ref()?;
    Some(mounts.iter().map(show).collect())
}

/// Whether mounts below a read-only one are read-only, too; `IfPossible` always is.
fn recursive(mount: &core::VolumeMount) -> &'static str {
    match mount.recursive_read_only.as_deref() {
        Some("Enabled" | "IfPossible") => "Enabled",
        Some(_) | None => "Disabled",
    }
}

/// The reason shown for a container whose `postStart` hook failed.
const POST_START: &str = "PostStartHookError";

const IN_PLACE: &str = "The container is removed because RestartAllContainers in place";

/// The end of a run that was removed to restart the pod in place.
fn removed_in_place(ended: &Ended, id: String) -> core::ContainerState {
    let mut state = terminated(ended, id);
    if let Some(terminated) = &mut state.terminated {
        terminated.exit_code = 137;
        terminated.reason = Some("RestartingAllContainers".to_owned());
        terminated.message = Some(IN_PLACE.to_owned());
    }
    state
}

/// Whether this container would have started next, but the pod is over: the kubelet takes it for lost.
fn never_runs(state: &PodState, c: &ContainerState) -> bool {
    let over = !matches!(state.sandbox, Sandbox::Ready { .. }) && state.finished();
    c.role == Role::Main && c.run == Run::None && over && state.is_initialized()
}

/// Whether a container of an earlier round is shown like one that never ran.
fn begins(c: &ContainerState) -> bool {
    c.role != Role::Main || c.restored()
}

fn starting(state: &PodState) -> &'static str {
    if state.spec.init_containers.is_empty() {
        "ContainerCreating"
    } else {
        "PodInitializing"
    }
}

pub(super) fn terminated(ended: &Ended, id: String) -> core::ContainerState {
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

/// Why a container that is due to start does not run; `None` if its end is shown instead.
pub(super) fn waiting(
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
    if reason.is_none() && c.removed_in_place() {
        return Some(("RestartingAllContainers", Some(IN_PLACE.to_owned())));
    }
    if never_runs(state, c) {
        return None;
    }
    match (&c.run, reason) {
        (_, Some((reason, message))) => Some((reason, Some(message))),
        (Run::None, None) => Some((starting(state), None)),
        // Once a container starts again, the runs of the previous sandbox are history; all of them, if the node
        // stopped the pod.
        (Run::Ended(_), None) if c.stale() && state.wants_start(c) && begins(c) => {
            Some((starting(state), None))
        }
        // Its program could not be executed, and is tried again at once.
        (Run::Ended(past), None) if past.ended.exit.is_start_error() && state.wants_start(c) => {
            let text = some_text(&past.ended.exit.message);
            Some((start_failure(StartFailure::Run), text))
        }
        (Run::Running(_) | Run::Ended(_), None) => None,
    }
}

pub(super) fn trouble(
    state: &PodState,
    c: &ContainerState,
    settings: &Settings,
) -> Option<(&'static str, String)> {
    // Once it would be its turn.
    if (c.role != Role::Main || state.is_initialized())
        && let Some((reason, message)) = state.device_trouble(c)
    {
        let reason = match reason {
            Reason::DeviceRefused => "DeviceRefused",
            _ => "DeviceMissing",
        };
        return Some((reason, message));
    }
    if let Some(StartError {
        failure, message, ..
    }) = c.start_error()
    {
        return Some((start_failure(*failure), message.clone()));
    }
    if let Some(message) = pulling(state, c) {
        return Some((starting(state), message));
    }
    if let Image::Failed {
        volume,
        failure,
        message,
        retry,
    } = &c.image
    {
        let own = state.spec.container(&c.name).map(|spec| &spec.image);
        let mounted = volume
            .as_ref()
            .and_then(|name| state.spec.image_volume(name));
        let image = mounted.map(|volume| &volume.image).or(own);
        let image = image.map_or("", String::as_str);
        return Some(image_failure(image, *failure, message, retry.failures > 1));
    }
    let Some(delay) = restart::delay_ms(c, state.waits(settings)) else {
        let failure = c.hook_failure().filter(|_| !c.stale())?;
        return Some((POST_START, failure.to_owned()));
    };
    // Also after a failed hook: the back-off is what delays its start.
    let text = format!(
        "back-off {} restarting failed container={} pod={}",
        go_duration(delay),
        c.name,
        state.spec.kubelet_name()
    );
    Some(("CrashLoopBackOff", text))
}

/// How far the pull is that the container waits for.
fn pulling(state: &PodState, c: &ContainerState) -> Option<String> {
    let (image, percent, bytes) = state.look_up.pulling.as_ref()?;
    match &state.in_flight {
        Some(Action::EnsureImage { container, .. }) if *container == c.name => Some(format!(
            "Pulling image \"{image}\": {percent}% of {}",
            size(*bytes)
        )),
        Some(_) | None => None,
    }
}

/// The reason shown for a container that could not be started.
pub fn start_failure(failure: StartFailure) -> &'static str {
    match failure {
        StartFailure::Config => "CreateContainerConfigError",
        StartFailure::Create => "CreateContainerError",
        StartFailure::Run => "RunContainerError",
    }
}

/// Reason and message for an image that is not available, for the first time or `again`.
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
        ImageFailure::Window { .. } => (
            "ImagePullBackOff",
            format!("Back-off pulling image \"{image}\": {error}"),
        ),
        ImageFailure::Pull if again => (
            "ImagePullBackOff",
            format!("Back-off pulling image \"{image}\": ErrImagePull: {error}"),
        ),
        ImageFailure::Pull => ("ErrImagePull", error.to_owned()),
        ImageFailure::Signature if again => {
            let (reason, text) = image_failure(image, failure, error, false);
            (
                "ImagePullBackOff",
                format!("Back-off pulling image \"{image}\": {reason}: {text}"),
            )
        }
        ImageFailure::Signature => (
            "SignatureValidationFailed",
            format!(
                "image pull failed for {image} because the signature validation failed: {error}"
            ),
        ),
    }
}
