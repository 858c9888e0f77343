//! A container started, could not, ended, was signalled.

use std::sync::Arc;

use super::super::event::{Instance, StartFailure};
use super::super::hook::Hooks;
use super::super::notice::{Kind, Notices};
use super::super::probe::Tracks;
use super::super::state::{ContainerState, Ended, Image, Retry, Run, StartError, Stop};
use super::super::{Action, Notice, PodState, Settings, Stamp, Time, restart};
use super::sandbox::kill_failed;
use super::{SIGNAL_RETRY_MS, START_RETRY_MS, is_start_of};
use crate::spec::{Effective, Exit, StopSignal};

/// The run is over: the one before it is remembered, and the next start begins with the image again.
pub(in crate::plan) fn end_run(
    container: &mut ContainerState,
    attempt: u32,
    image_id: String,
    exit: Exit,
) {
    // The image that is to take its place was looked for while it ran.
    let found = match &container.image {
        Image::Ready { .. } if container.run.is_running() => Some(container.image.clone()),
        Image::Ready { .. } | Image::Unknown | Image::Failed { .. } => None,
    };
    forget_start(container, attempt);
    let lasted_ms = exit.finished.time.since(exit.started.time);
    if lasted_ms > restart::RESET_MS && !exit.is_start_error() {
        container.start_error = None;
    }
    container.image = found.unwrap_or(Image::Unknown);
    container.tracks = Tracks::default();
    container.kill = None;
    if container.hooks.attempt != attempt {
        container.hooks = Hooks::of(attempt);
    }
    container.run = Run::Ended(Ended {
        attempt,
        image_id,
        exit,
    });
}

/// A new run takes the place of the newest one.
pub(super) fn forget_start(container: &mut ContainerState, attempt: u32) {
    if let Run::Ended(ended) = &container.run
        && ended.attempt != attempt
    {
        container.previous = Some(ended.clone());
        container.stop = Stop::default();
    }
    container.next_attempt = container.next_attempt.max(attempt.saturating_add(1));
    if let Some(asked) = container.starting.take_if(|asked| asked.attempt == attempt) {
        container.asked = Some(asked);
    }
    container.image = Image::Unknown;
    container.stop.retry = Retry::default();
}

/// Created and started, as said once for each run, in words of earlier kubelets: those of v1.36 do not name the container.
pub(super) fn say_started(pod: &PodState, name: &str, out: &mut Vec<Notice>) {
    let mut notices = Notices::new(out, pod);
    notices.container(
        name,
        Kind::Normal,
        "Created",
        format!("Created container: {name}"),
    );
    notices.container(
        name,
        Kind::Normal,
        "Started",
        format!("Started container {name}"),
    );
}

pub(super) fn container_started(
    pod: &mut PodState,
    instance: &Instance,
    (pid, effective): (u32, &Effective),
    at: Stamp,
    out: &mut Vec<Notice>,
) {
    if !pod
        .in_flight
        .as_ref()
        .is_some_and(|a| is_start_of(a, instance))
    {
        return;
    }
    let Some(Action::StartContainer { image_id, .. }) = pod.in_flight.take() else {
        return;
    };
    let spec = pod.spec.container(&instance.container);
    let probes = spec.map(|s| s.probes.clone()).unwrap_or_default();
    if let Some(container) = pod.container_mut(&instance.container)
        // Else its exit came first.
        && container.next_attempt <= instance.attempt
    {
        forget_start(container, instance.attempt);
        container.stop = Stop::default();
        container.tracks = Tracks::new(&probes, at.time);
        container.hooks = Hooks::of(instance.attempt);
        container.run = Run::Running {
            attempt: instance.attempt,
            image_id,
            pid,
            started: at,
        };
        if let Some(asked) = &mut container.asked {
            asked.effective.clone_from(effective);
        }
    }
    wake_targeting(pod, &instance.container);
    say_started(pod, &instance.container, out);
}

/// Ephemeral containers that were to see this one's processes, and could not while there were none, need not wait.
fn wake_targeting(pod: &mut PodState, target: &str) {
    let specs = Arc::clone(&pod.spec);
    for (spec, container) in specs.all_containers().zip(&mut pod.containers) {
        if spec.target.as_deref() == Some(target)
            && let Some(error) = &mut container.start_error
        {
            error.retry.at = Time(0);
        }
    }
}

pub(super) fn start_failed(
    pod: &mut PodState,
    settings: &Settings,
    instance: &Instance,
    (failure, message): (StartFailure, &str),
    now: Stamp,
    out: &mut Vec<Notice>,
) {
    let name = &instance.container;
    let image_id = String::new();
    let Some(container) = pod.container_mut(name) else {
        return;
    };
    if container.next_attempt > instance.attempt {
        return;
    }
    match failure {
        StartFailure::Config | StartFailure::Create => {
            container.image = Image::Unknown;
            let former = container.start_error.take();
            let mut retry = former.map_or_else(Retry::default, |error| error.retry);
            retry.fail(now.time, START_RETRY_MS.0, START_RETRY_MS.1);
            container.start_error = Some(StartError {
                attempt: instance.attempt,
                failure,
                message: message.to_owned(),
                retry,
            });
        }
        StartFailure::Run => {
            let image_id = match &container.image {
                Image::Ready { id } => id.clone(),
                Image::Unknown | Image::Failed { .. } => image_id,
            };
            let exit = Exit::not_started(message.to_owned(), now);
            end_run(container, instance.attempt, image_id, exit);
            let text = format!("Created container: {name}");
            Notices::new(out, pod).container(name, Kind::Normal, "Created", text);
        }
    }
    let text = format!("Error: {message}");
    Notices::new(out, pod).container(name, Kind::Warning, "Failed", text);
    say_backoff(pod, settings, name, now.time, out);
}

pub(super) fn container_exited(
    pod: &mut PodState,
    settings: &Settings,
    instance: &Instance,
    exit: &Exit,
    now: Time,
    out: &mut Vec<Notice>,
) {
    let starting = match &pod.in_flight {
        Some(Action::StartContainer {
            instance: started,
            image_id,
        }) if started == instance => Some(image_id.clone()),
        Some(
            Action::StartContainer { .. }
            | Action::CreateSandbox { .. }
            | Action::EnsureImage { .. }
            | Action::Resize { .. }
            | Action::Signal { .. }
            | Action::RemoveSandbox { .. },
        )
        | None => None,
    };
    let Some(container) = pod.container_mut(&instance.container) else {
        return;
    };
    let image_id = match (&container.run, starting) {
        (
            Run::Running {
                attempt, image_id, ..
            },
            _,
        ) if *attempt == instance.attempt => image_id.clone(),
        // The exit came before the start was acknowledged.
        (Run::None | Run::Ended(_), Some(image_id))
            if container.next_attempt <= instance.attempt =>
        {
            container.stop = Stop::default();
            image_id
        }
        (Run::None | Run::Running { .. } | Run::Ended(_), _) => return,
    };
    end_run(container, instance.attempt, image_id, exit.clone());
    say_backoff(pod, settings, &instance.container, now, out);
}

/// Tells once for each exit that the container has to wait.
pub(super) fn say_backoff(
    pod: &PodState,
    settings: &Settings,
    name: &str,
    now: Time,
    out: &mut Vec<Notice>,
) {
    let waits = pod
        .container(name)
        .is_some_and(|c| pod.wants_start(c) && restart::earliest(c, pod.waits(settings)) > now);
    if waits {
        let text = format!(
            "Back-off restarting failed container {name} in pod {}",
            pod.spec.kubelet_name()
        );
        Notices::new(out, pod).container(name, Kind::Warning, "BackOff", text);
    }
}

pub(super) fn signal_sent(
    pod: &mut PodState,
    instance: &Instance,
    signal: StopSignal,
    at: Time,
    now: Time,
) {
    let Some(container) = pod.container_mut(&instance.container) else {
        return;
    };
    if container.run.attempt() != Some(instance.attempt) {
        return;
    }
    container.stop.retry = Retry::default();
    match signal {
        StopSignal::Stop => {
            let first = container.stop.sent.map_or(at, |old| old.min(at));
            container.stop.sent = Some(first);
        }
        StopSignal::Kill => container.stop.killed = Some(now),
    }
}

pub(super) fn signal_failed(
    pod: &mut PodState,
    instance: &Instance,
    error: &str,
    now: Time,
    out: &mut Vec<Notice>,
) {
    if let Some(container) = pod.container_mut(&instance.container) {
        let (first, max) = SIGNAL_RETRY_MS;
        container.stop.retry.fail(now, first, max);
    }
    kill_failed(pod, error, out);
}
