//! Facts about sandboxes: created, not created, lost, not removed.

use crate::spec::Reason;
use crate::types::Exit;
use std::collections::BTreeMap;
use std::net::IpAddr;

use super::super::admit::{end_lost_runs, sandbox_changed};
use super::super::event::SandboxFailure;
use super::super::notice::Notices;
use super::super::state::{Retry, Sandbox};
use super::super::{Action, Notice, PodState, Stamp, Time};
use super::configuration::retry_at;
use super::container::end_run;
use super::{SANDBOX_RETRY_MS, SANDBOX_STABLE_MS, VOLUME_RETRY_MS};

pub(super) fn sandbox_created(
    pod: &mut PodState,
    (ips, next_attempts): (&[IpAddr], &BTreeMap<String, u32>),
    warnings: &[(Reason, String)],
    now: Time,
    out: &mut Vec<Notice>,
) {
    if !pod.answered(|a| matches!(a, Action::CreateSandbox { .. })) {
        return;
    }
    pod.sandbox = Sandbox::Ready { since: now };
    pod.retries.create = Retry::default();
    pod.retries.for_host_port = false;
    pod.ips = ips.to_vec();
    for (name, next) in next_attempts {
        if let Some(container) = pod.container_mut(name) {
            container.next_attempt = container.next_attempt.max(*next);
        }
    }
    warned(pod, None, warnings, out);
}

pub(super) fn sandbox_remove_failed(
    pod: &mut PodState,
    error: &str,
    now: Time,
    out: &mut Vec<Notice>,
) {
    if !pod.answered(|a| matches!(a, Action::RemoveSandbox { .. })) {
        return;
    }
    let (first, max) = SANDBOX_RETRY_MS;
    pod.retries.remove.fail(now, first, max);
    kill_failed(pod, error, out);
}

pub(super) fn sandbox_failed(
    pod: &mut PodState,
    failure: &SandboxFailure,
    now: Time,
    out: &mut Vec<Notice>,
) {
    if !pod.answered(|a| matches!(a, Action::CreateSandbox { .. })) {
        return;
    }
    pod.retries.for_host_port = matches!(failure, SandboxFailure::HostPort { .. });
    let mut notices = Notices::new(out, pod);
    let (first, max) = match failure {
        SandboxFailure::Volume { volume, error } => {
            let message = format!("MountVolume.SetUp failed for volume \"{volume}\" : {error}");
            notices.pod(Reason::FailedMount, message);
            VOLUME_RETRY_MS
        }
        SandboxFailure::HostPort { message: error } | SandboxFailure::Sandbox(error) => {
            let message = format!("Failed to create pod sandbox: {error}");
            notices.pod(Reason::FailedCreatePodSandBox, message);
            SANDBOX_RETRY_MS
        }
    };
    pod.retries.create.fail(now, first, max);
    pod.retries.create.at = retry_at(pod, pod.retries.create.at, now);
}

/// Records that a sandbox is gone. It frees its node ports, which this pod may be waiting for.
pub(super) fn host_ports_freed(pod: &mut PodState) {
    if std::mem::take(&mut pod.retries.for_host_port) {
        pod.retries.create = Retry::default();
    }
}

/// Emits the warnings, about the container if one is named.
pub(super) fn warned(
    pod: &PodState,
    container: Option<&str>,
    warnings: &[(Reason, String)],
    out: &mut Vec<Notice>,
) {
    let mut notices = Notices::new(out, pod);
    for (reason, message) in warnings {
        match container {
            Some(name) => notices.container(name, *reason, message.clone()),
            None => notices.pod(*reason, message.clone()),
        }
    }
}

/// Records a lost sandbox. It is also an outcome of starting or signalling: the container being started may have
/// run, so its attempt number is spent and the restart policy decides.
pub(super) fn sandbox_lost(pod: &mut PodState, now: Stamp, out: &mut Vec<Notice>) {
    let Sandbox::Ready { since } = pod.sandbox else {
        return;
    };
    pod.sandbox = Sandbox::Lost;
    match pod.in_flight.take() {
        Some(Action::StartContainer {
            instance, image_id, ..
        }) => {
            if let Some(container) = pod.container_mut(&instance.container)
                && container.next_attempt <= instance.attempt
            {
                let exit = Exit::lost(now, now);
                end_run(container, instance.attempt, image_id, exit);
            }
        }
        Some(Action::Signal { .. }) | None => {}
        Some(
            other @ (Action::CreateSandbox { .. }
            | Action::EnsureImage { .. }
            | Action::Resize { .. }
            | Action::RemoveSandbox { .. }),
        ) => pod.in_flight = Some(other),
    }
    end_lost_runs(pod, now);
    count_loss(pod, since, now.time);
    if pod.stopping().is_none() && !pod.finished() {
        sandbox_changed(pod, out);
    }
}

/// Records the loss of a sandbox that was created at `since`. A sandbox lost soon after its creation is recreated
/// later.
pub(in crate::plan) fn count_loss(pod: &mut PodState, since: Time, now: Time) {
    if now.since(since) >= SANDBOX_STABLE_MS {
        pod.retries.lost = Retry::default();
    }
    if pod.retries.lost.failures == 0 {
        pod.retries.lost.failures = 1;
    } else {
        // The first loss costs no wait, so the series begins with the second.
        let (first, max) = SANDBOX_RETRY_MS;
        pod.retries.lost.fail(now, first / 2, max);
    }
}

pub(super) fn kill_failed(pod: &PodState, error: &str, out: &mut Vec<Notice>) {
    let message = format!("error killing pod: {error}");
    Notices::new(out, pod).pod(Reason::FailedKillPod, message);
}
