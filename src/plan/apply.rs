//! What does a fact change? One arm for each event; facts that come late, twice or out of order change nothing.
//!
//! Outcomes are believed only while the action they answer is in flight, facts about a container only if they are
//! about its newest run or the one being started. Nothing is decided here: waits are recorded, not waited for.

use super::action::Keep;
use super::admit::{end_lost_runs, sandbox_changed};
use super::event::{ImageFailure, Instance, SandboxFailure, StartFailure};
use super::notice::{Kind, Notices};
use super::state::{ContainerState, Ended, Image, Retry, Run, Sandbox, StartError, Stop};
use super::{Action, Event, NodeState, Notice, PodState, Settings, Stamp, Time, restart, status};
use crate::spec::{Exit, PodUid, StopSignal};

/// A container that could not be created is tried again after this long.
pub const START_RETRY_MS: u64 = 10_000;
/// Image back-off: 10 s, doubling up to 300 s.
pub const IMAGE_RETRY_MS: (u64, u64) = (10_000, 300_000);
/// Volume failures: 500 ms, doubling up to 122 s.
pub const VOLUME_RETRY_MS: (u64, u64) = (500, 122_000);
/// Other failures of making or removing a sandbox: 1 s, doubling up to 60 s.
pub const SANDBOX_RETRY_MS: (u64, u64) = (1_000, 60_000);
/// Signals that could not be sent: 1 s, doubling up to 10 s.
pub const SIGNAL_RETRY_MS: (u64, u64) = (1_000, 10_000);
/// A sandbox that lived this long is replaced at once when it is lost.
pub const SANDBOX_STABLE_MS: u64 = 60_000;

impl NodeState {
    /// Records a fact; returns what is worth telling people.
    pub fn apply(&mut self, event: &Event, now: Stamp) -> Vec<Notice> {
        let mut out = Vec::new();
        match event {
            Event::DesiredChanged(desired) => self.desired_changed(desired, now),
            Event::PodRecovered(recovered) => self.pod_recovered(recovered, now, &mut out),
            Event::DeleteRequested { pod, grace_ms } => self.delete_requested(pod, *grace_ms, now),
            Event::SandboxRemoved { pod } => self.sandbox_removed(pod, now),
            Event::ImagesChanged => self.pods.values_mut().for_each(|p| images_changed(p, now)),
            Event::ActionStarted(action) => self.on(action.pod(), now, |pod, settings| {
                action_started(pod, settings, action, now.time, &mut out);
            }),
            Event::SandboxCreated {
                pod,
                ips,
                next_attempts,
            } => self.on(pod, now, |pod, _| {
                if pod.answered(|a| matches!(a, Action::CreateSandbox { .. })) {
                    pod.sandbox = Sandbox::Ready { since: now.time };
                    pod.create_retry = Retry::default();
                    pod.ips.clone_from(ips);
                    for (name, next) in next_attempts {
                        if let Some(container) = pod.container_mut(name) {
                            container.next_attempt = container.next_attempt.max(*next);
                        }
                    }
                }
            }),
            Event::SandboxFailed { pod, failure } => self.on(pod, now, |pod, _| {
                if pod.answered(|a| matches!(a, Action::CreateSandbox { .. })) {
                    sandbox_failed(pod, failure, now.time, &mut out);
                }
            }),
            Event::SandboxLost { pod } => {
                self.on(pod, now, |pod, _| sandbox_lost(pod, now, &mut out));
            }
            Event::SandboxRemoveFailed { pod, error } => self.on(pod, now, |pod, _| {
                if pod.answered(|a| matches!(a, Action::RemoveSandbox { .. })) {
                    let (first, max) = SANDBOX_RETRY_MS;
                    pod.remove_retry.fail(now.time, first, max);
                    kill_failed(pod, error, &mut out);
                }
            }),
            Event::ImageReady {
                pod,
                container,
                image_id,
            } => self.on(pod, now, |pod, _| {
                if pod.answered(|a| is_image_of(a, container)) {
                    image_ready(pod, container, image_id, &mut out);
                }
            }),
            Event::ImageFailed {
                pod,
                container,
                failure,
                message,
            } => self.on(pod, now, |pod, _| {
                if pod.answered(|a| is_image_of(a, container)) {
                    image_failed(pod, container, *failure, message, now.time, &mut out);
                }
            }),
            Event::ContainerStarted { instance, pid, at } => {
                self.on(&instance.pod, now, |pod, _| {
                    container_started(pod, instance, *pid, *at, &mut out);
                });
            }
            Event::ContainerStartFailed {
                instance,
                failure,
                message,
            } => self.on(&instance.pod, now, |pod, settings| {
                if pod.answered(|a| is_start_of(a, instance)) {
                    start_failed(pod, settings, instance, (*failure, message), now, &mut out);
                }
            }),
            Event::ContainerExited { instance, exit } => {
                self.on(&instance.pod, now, |pod, settings| {
                    container_exited(pod, settings, instance, exit, now.time, &mut out);
                });
            }
            Event::SignalSent {
                instance,
                signal,
                at,
            } => self.on(&instance.pod, now, |pod, _| {
                pod.answered(|a| is_signal_to(a, instance));
                signal_sent(pod, instance, *signal, *at, now.time);
            }),
            Event::SignalFailed { instance, error } => self.on(&instance.pod, now, |pod, _| {
                if pod.answered(|a| is_signal_to(a, instance)) {
                    if let Some(container) = pod.container_mut(&instance.container) {
                        let (first, max) = SIGNAL_RETRY_MS;
                        container.stop.retry.fail(now.time, first, max);
                    }
                    kill_failed(pod, error, &mut out);
                }
            }),
        }
        out
    }

    /// Changes one pod, then notes which of its conditions changed with it.
    fn on(&mut self, uid: &PodUid, now: Stamp, change: impl FnOnce(&mut PodState, &Settings)) {
        if let Some(pod) = self.pods.get_mut(uid) {
            change(pod, &self.settings);
            pod.note_conditions(now);
        }
    }

    fn sandbox_removed(&mut self, uid: &PodUid, now: Stamp) {
        let Some(pod) = self.pods.get_mut(uid) else {
            return;
        };
        match pod.in_flight {
            Some(Action::RemoveSandbox { keep, .. }) => match keep {
                Keep::Everything => {
                    pod.in_flight = None;
                    pod.sandbox = Sandbox::Removed;
                    pod.remove_retry = Retry::default();
                    pod.note_conditions(now);
                }
                Keep::Nothing => {
                    self.pods.remove(uid);
                    self.admit(now);
                }
            },
            // Late: the pod has moved on.
            Some(
                Action::CreateSandbox { .. }
                | Action::EnsureImage { .. }
                | Action::StartContainer { .. }
                | Action::Signal { .. },
            )
            | None => {}
        }
    }
}

impl PodState {
    /// Clears the action in flight if it is the one answered; whether it was.
    fn answered(&mut self, is_it: impl FnOnce(&Action) -> bool) -> bool {
        let yes = self.in_flight.as_ref().is_some_and(is_it);
        if yes {
            self.in_flight = None;
        }
        yes
    }

    fn note_conditions(&mut self, now: Stamp) {
        let sandbox = matches!(self.sandbox, Sandbox::Ready { .. });
        let ready = self.containers.iter().all(|c| c.run.is_running());
        self.sandbox_ready.set(sandbox, now.wall);
        self.ready.set(ready, now.wall);
    }
}

fn is_image_of(action: &Action, name: &str) -> bool {
    matches!(action, Action::EnsureImage { container, .. } if container == name)
}

fn is_start_of(action: &Action, of: &Instance) -> bool {
    matches!(action, Action::StartContainer { instance, .. } if instance == of)
}

fn is_signal_to(action: &Action, to: &Instance) -> bool {
    matches!(action, Action::Signal { instance, .. } if instance == to)
}

fn action_started(
    pod: &mut PodState,
    settings: &Settings,
    action: &Action,
    now: Time,
    out: &mut Vec<Notice>,
) {
    match action {
        Action::CreateSandbox { .. } | Action::RemoveSandbox { .. } => {}
        Action::EnsureImage { .. } => pod.images_changed = false,
        Action::StartContainer { instance, .. } => {
            if let Some(container) = pod.container_mut(&instance.container) {
                restart::permit(container, instance.attempt, settings, now);
            }
        }
        Action::Signal {
            instance, reason, ..
        } => {
            let first = pod
                .container_mut(&instance.container)
                .filter(|c| c.run.attempt() == Some(instance.attempt) && c.stop.asked.is_none());
            if let Some(container) = first {
                container.stop.asked = Some(now);
                Notices::new(out, pod).container(
                    &instance.container,
                    Kind::Normal,
                    "Killing",
                    reason.clone(),
                );
            }
        }
    }
    pod.in_flight = Some(action.clone());
}

fn sandbox_failed(pod: &mut PodState, failure: &SandboxFailure, now: Time, out: &mut Vec<Notice>) {
    let mut notices = Notices::new(out, pod);
    let (first, max) = match failure {
        SandboxFailure::Volume { volume, error } => {
            let message = format!("MountVolume.SetUp failed for volume \"{volume}\" : {error}");
            notices.pod(Kind::Warning, "FailedMount", message);
            VOLUME_RETRY_MS
        }
        SandboxFailure::Sandbox(error) => {
            let message = format!("Failed to create pod sandbox: {error}");
            notices.pod(Kind::Warning, "FailedCreatePodSandBox", message);
            SANDBOX_RETRY_MS
        }
    };
    pod.create_retry.fail(now, first, max);
}

/// Also the outcome of starting or signalling: what was being started may have run, so its number is spent and the
/// policy has the word.
fn sandbox_lost(pod: &mut PodState, now: Stamp, out: &mut Vec<Notice>) {
    let Sandbox::Ready { since } = pod.sandbox else {
        return;
    };
    pod.sandbox = Sandbox::Lost;
    match pod.in_flight.take() {
        Some(Action::StartContainer { instance, image_id }) => {
            if let Some(container) = pod.container_mut(&instance.container)
                && container.next_attempt <= instance.attempt
            {
                let exit = restart::lost_exit(now, now);
                end_run(container, instance.attempt, image_id, exit);
            }
        }
        Some(Action::Signal { .. }) | None => {}
        Some(
            other @ (Action::CreateSandbox { .. }
            | Action::EnsureImage { .. }
            | Action::RemoveSandbox { .. }),
        ) => pod.in_flight = Some(other),
    }
    end_lost_runs(pod, now);
    if now.time.since(since) >= SANDBOX_STABLE_MS {
        pod.lost_retry = Retry::default();
    }
    if pod.lost_retry.failures == 0 {
        pod.lost_retry.failures = 1;
    } else {
        // The first loss costs nothing, so the series begins with the second.
        let (first, max) = SANDBOX_RETRY_MS;
        pod.lost_retry.fail(now.time, first / 2, max);
    }
    if pod.stopping.is_none() && !pod.finished() {
        sandbox_changed(pod, out);
    }
}

fn kill_failed(pod: &PodState, error: &str, out: &mut Vec<Notice>) {
    let message = format!("error killing pod: {error}");
    Notices::new(out, pod).pod(Kind::Warning, "FailedKillPod", message);
}

fn image_ready(pod: &mut PodState, name: &str, image_id: &str, out: &mut Vec<Notice>) {
    let image = pod
        .spec
        .container(name)
        .map_or_else(String::new, |c| c.image.clone());
    if let Some(container) = pod.container_mut(name) {
        container.image = Image::Ready {
            id: image_id.to_owned(),
        };
        Notices::new(out, pod).container(
            name,
            Kind::Normal,
            "Pulled",
            format!("Container image \"{image}\" already present on machine"),
        );
    }
}

/// Containers of the pod that wait for the same image wait together.
fn image_failed(
    pod: &mut PodState,
    name: &str,
    failure: ImageFailure,
    message: &str,
    now: Time,
    out: &mut Vec<Notice>,
) {
    let Some(spec) = pod.spec.container(name).cloned() else {
        return;
    };
    let mut retry = match pod.container(name).map(|c| &c.image) {
        Some(Image::Failed { retry, .. }) => *retry,
        Some(Image::Unknown | Image::Ready { .. }) | None => Retry::default(),
    };
    let again = retry.failures > 0;
    retry.fail(now, IMAGE_RETRY_MS.0, IMAGE_RETRY_MS.1);
    if std::mem::take(&mut pod.images_changed) {
        retry.at = now;
    }
    let pod_spec = std::sync::Arc::clone(&pod.spec);
    for (container, other) in pod.containers.iter_mut().zip(&pod_spec.containers) {
        let same = other.image == spec.image && other.pull_policy == spec.pull_policy;
        if same && !container.run.is_running() {
            container.image = Image::Failed {
                failure,
                message: message.to_owned(),
                retry,
            };
        }
    }
    let (reason, text) = status::image_failure(&spec.image, failure, message, false);
    let mut notices = Notices::new(out, pod);
    match failure {
        ImageFailure::NeverPull => notices.container(name, Kind::Warning, reason, text),
        ImageFailure::Inspect => notices.container(name, Kind::Warning, "InspectFailed", text),
        ImageFailure::Pull => {
            let text = format!("Failed to pull image \"{}\": {message}", spec.image);
            notices.container(name, Kind::Warning, "Failed", text);
        }
    }
    notices.container(name, Kind::Warning, "Failed", format!("Error: {reason}"));
    if again && failure == ImageFailure::Pull {
        let text = format!("Back-off pulling image \"{}\"", spec.image);
        notices.container(name, Kind::Normal, "BackOff", text);
        let text = "Error: ImagePullBackOff".to_owned();
        notices.container(name, Kind::Warning, "Failed", text);
    }
}

fn images_changed(pod: &mut PodState, now: Stamp) {
    pod.images_changed = matches!(pod.in_flight, Some(Action::EnsureImage { .. }));
    for container in &mut pod.containers {
        if let Image::Failed { retry, .. } = &mut container.image {
            retry.at = retry.at.min(now.time);
        }
    }
}

/// The run is over: the one before it is remembered, and the next start begins with the image again.
pub(super) fn end_run(container: &mut ContainerState, attempt: u32, image_id: String, exit: Exit) {
    forget_start(container, attempt);
    container.run = Run::Ended(Ended {
        attempt,
        image_id,
        exit,
    });
}

/// A new run takes the place of the newest one.
fn forget_start(container: &mut ContainerState, attempt: u32) {
    if let Run::Ended(ended) = &container.run
        && ended.attempt != attempt
    {
        container.previous = Some(ended.clone());
    }
    container.next_attempt = container.next_attempt.max(attempt.saturating_add(1));
    container.image = Image::Unknown;
    container.start_error = None;
    container.stop.retry = Retry::default();
}

/// Created and started, as said once for each run.
fn say_started(pod: &PodState, name: &str, out: &mut Vec<Notice>) {
    let mut notices = Notices::new(out, pod);
    notices.container(
        name,
        Kind::Normal,
        "Created",
        "Container created".to_owned(),
    );
    notices.container(
        name,
        Kind::Normal,
        "Started",
        "Container started".to_owned(),
    );
}

fn container_started(
    pod: &mut PodState,
    instance: &Instance,
    pid: u32,
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
    if let Some(container) = pod.container_mut(&instance.container)
        // Else its exit came first.
        && container.next_attempt <= instance.attempt
    {
        forget_start(container, instance.attempt);
        container.stop = Stop::default();
        container.run = Run::Running {
            attempt: instance.attempt,
            image_id,
            pid,
            started: at,
        };
    }
    say_started(pod, &instance.container, out);
}

fn start_failed(
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
            container.start_error = Some(StartError {
                failure,
                message: message.to_owned(),
                retry_at: now.time.plus(START_RETRY_MS),
            });
        }
        StartFailure::Run => {
            let image_id = match &container.image {
                Image::Ready { id } => id.clone(),
                Image::Unknown | Image::Failed { .. } => image_id,
            };
            let exit = restart::start_error_exit(message, now);
            end_run(container, instance.attempt, image_id, exit);
            let text = "Container created".to_owned();
            Notices::new(out, pod).container(name, Kind::Normal, "Created", text);
        }
    }
    let text = format!("Error: {message}");
    Notices::new(out, pod).container(name, Kind::Warning, "Failed", text);
    say_backoff(pod, settings, name, now.time, out);
}

fn container_exited(
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
fn say_backoff(pod: &PodState, settings: &Settings, name: &str, now: Time, out: &mut Vec<Notice>) {
    let waits = pod
        .container(name)
        .is_some_and(|c| pod.wants_start(c) && restart::earliest(c, settings) > now);
    if waits {
        let text = format!(
            "Back-off restarting failed container {name} in pod {}",
            pod.spec.kubelet_name()
        );
        Notices::new(out, pod).container(name, Kind::Warning, "BackOff", text);
    }
}

fn signal_sent(pod: &mut PodState, instance: &Instance, signal: StopSignal, at: Time, now: Time) {
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
