//! Facts about containers: started, failed to start, exited, signalled.

use std::sync::Arc;

use super::super::event::{Instance, StartFailure};
use super::super::notice::Notices;
use super::super::probe::Tracks;
use super::super::run::{Course, Ended, Past, Run, Running};
use super::super::state::{ContainerState, Image, Retry, StartError};
use super::super::{Action, Notice, PodState, Settings, Stamp, Time, restart};
use super::sandbox::kill_failed;
use super::{SIGNAL_RETRY_MS, START_RETRY_MS, is_signal_to, is_start_of};
use crate::spec::Reason;
use crate::types::{Effective, Exit, StopSignal};

/// Ends the run: it becomes the last state, and the next start begins with the image again.
pub(in crate::plan) fn end_run(
    container: &mut ContainerState,
    attempt: u32,
    image_id: String,
    exit: Exit,
) {
    // The new image may have been looked for while this run was alive.
    let found = match &container.image {
        Image::Ready { .. } if container.run.is_running() => Some(container.image.clone()),
        Image::Ready { .. } | Image::Unknown | Image::Failed { .. } => None,
    };
    let mut course = begin_course(container, attempt);
    course.stop.retry = Retry::default();
    let lasted_ms = exit.finished.time.since(exit.started.time);
    if lasted_ms > restart::RESET_MS && !exit.is_start_error() {
        container.start_error = None;
    }
    container.image = found.unwrap_or(Image::Unknown);
    container.run = Run::Ended(Box::new(Past {
        ended: Ended {
            attempt,
            image_id,
            exit,
            on_request: course.on_request(),
        },
        course,
    }));
}

/// Takes the newest run out, for this one to take its place: returns its own course so far, or a new one. An earlier
/// run becomes the previous one.
fn begin_course(container: &mut ContainerState, attempt: u32) -> Course {
    container.next_attempt = container.next_attempt.max(attempt.saturating_add(1));
    container.image = Image::Unknown;
    match std::mem::replace(&mut container.run, Run::None) {
        // It is this run that ends: no other starts before.
        Run::Running(run) => return run.course,
        Run::Ended(past) => container.previous = Some(past.ended),
        Run::None => {}
    }
    let starting = &mut container.starting;
    Course {
        asked: starting
            .take_if(|asked| asked.attempt == attempt)
            .map(|asked| asked.of),
        ..Course::default()
    }
}

/// Emits the events of a start, once for each run, in words of earlier kubelets: those of v1.36 do not name the
/// container.
pub(super) fn emit_started(pod: &PodState, name: &str, out: &mut Vec<Notice>) {
    let mut notices = Notices::new(out, pod);
    notices.container(name, Reason::Created, format!("Created container: {name}"));
    notices.container(name, Reason::Started, format!("Started container {name}"));
}

pub(super) fn container_started(
    pod: &mut PodState,
    instance: &Instance,
    (pid, effective): (u32, &Effective),
    at: Stamp,
    out: &mut Vec<Notice>,
) {
    let Some(Action::StartContainer { image_id, .. }) =
        pod.in_flight.take_if(|a| is_start_of(a, instance))
    else {
        return;
    };
    let spec = pod.spec.container(&instance.container);
    let probes = spec.map(|s| s.probes.clone()).unwrap_or_default();
    if let Some(container) = pod.container_mut(&instance.container)
        // Otherwise the exit came first.
        && container.next_attempt <= instance.attempt
    {
        let mut course = begin_course(container, instance.attempt);
        if let Some(asked) = &mut course.asked {
            asked.effective.clone_from(effective);
        }
        container.run = Run::Running(Box::new(Running {
            course,
            tracks: Tracks::new(&probes, at.time),
            ..Running::new(instance.attempt, image_id, pid, at)
        }));
    }
    wake_targeting(pod, &instance.container);
    emit_started(pod, &instance.container, out);
}

/// Ephemeral containers that target this one and could not start without its processes stop waiting.
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
    if !pod.answered(|a| is_start_of(a, instance)) {
        return;
    }
    let name = &instance.container;
    let image_id = String::new();
    let outdated = std::mem::take(&mut pod.configuration_changed);
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
            if failure == StartFailure::Config && outdated {
                retry.at = retry.at.min(now.time);
            }
            container.start_error = Some(StartError {
                attempt: instance.attempt,
                failure,
                message: message.to_owned(),
                retry,
            });
        }
        StartFailure::Run => {
            let image_id = match &container.image {
                Image::Ready { id, .. } => id.clone(),
                Image::Unknown | Image::Failed { .. } => image_id,
            };
            let exit = Exit::not_started(message.to_owned(), now);
            end_run(container, instance.attempt, image_id, exit);
            let text = format!("Created container: {name}");
            Notices::new(out, pod).container(name, Reason::Created, text);
        }
    }
    let text = format!("Error: {message}");
    Notices::new(out, pod).container(name, Reason::Failed, text);
    emit_backoff(pod, settings, name, now.time, out);
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
            ..
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
        (Run::Running(run), _) if run.attempt == instance.attempt => run.image_id.clone(),
        // The exit came before the start was acknowledged.
        (Run::None | Run::Ended(_), Some(image_id))
            if container.next_attempt <= instance.attempt =>
        {
            image_id
        }
        (Run::None | Run::Running(_) | Run::Ended(_), _) => return,
    };
    end_run(container, instance.attempt, image_id, exit.clone());
    emit_backoff(pod, settings, &instance.container, now, out);
}

/// Emits one back-off event for each exit.
pub(super) fn emit_backoff(
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
        Notices::new(out, pod).container(name, Reason::BackOffRestart, text);
    }
}

pub(super) fn signal_sent(
    pod: &mut PodState,
    instance: &Instance,
    signal: StopSignal,
    at: Time,
    now: Time,
) {
    pod.answered(|a| is_signal_to(a, instance));
    let Some(container) = pod.container_mut(&instance.container) else {
        return;
    };
    if container.run.attempt() != Some(instance.attempt) {
        return;
    }
    let Some(Course { stop, .. }) = container.run.course_mut() else {
        return;
    };
    stop.retry = Retry::default();
    match signal {
        StopSignal::Stop => stop.sent = Some(stop.sent.map_or(at, |old| old.min(at))),
        StopSignal::Kill => stop.killed = Some(now),
    }
}

pub(super) fn signal_failed(
    pod: &mut PodState,
    instance: &Instance,
    error: &str,
    now: Time,
    out: &mut Vec<Notice>,
) {
    if !pod.answered(|a| is_signal_to(a, instance)) {
        return;
    }
    let container = pod.container_mut(&instance.container);
    if let Some(course) = container.and_then(|c| c.run.course_mut()) {
        let (first, max) = SIGNAL_RETRY_MS;
        course.stop.retry.fail(now, first, max);
    }
    kill_failed(pod, error, out);
}
