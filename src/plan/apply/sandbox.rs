//! A sandbox was made, could not be made, was lost, could not be removed.

use crate::spec::Exit;
use std::collections::BTreeMap;
use std::net::IpAddr;

use super::super::admit::{end_lost_runs, sandbox_changed};
use super::super::event::SandboxFailure;
use super::super::notice::{Kind, Notices};
use super::super::state::{Retry, Sandbox};
use super::super::{Action, Notice, PodState, Stamp, Time};
use super::container::end_run;
use super::{SANDBOX_RETRY_MS, SANDBOX_STABLE_MS, VOLUME_RETRY_MS};

pub(super) fn sandbox_created(
    pod: &mut PodState,
    ips: &[IpAddr],
    next_attempts: &BTreeMap<String, u32>,
    now: Time,
) {
    pod.sandbox = Sandbox::Ready { since: now };
    pod.create_retry = Retry::default();
    pod.waits_for_host_port = false;
    pod.ips = ips.to_vec();
    for (name, next) in next_attempts {
        if let Some(container) = pod.container_mut(name) {
            container.next_attempt = container.next_attempt.max(*next);
        }
    }
}

pub(super) fn sandbox_remove_failed(
    pod: &mut PodState,
    error: &str,
    now: Time,
    out: &mut Vec<Notice>,
) {
    let (first, max) = SANDBOX_RETRY_MS;
    pod.remove_retry.fail(now, first, max);
    kill_failed(pod, error, out);
}

pub(super) fn sandbox_failed(
    pod: &mut PodState,
    failure: &SandboxFailure,
    now: Time,
    out: &mut Vec<Notice>,
) {
    pod.waits_for_host_port = matches!(failure, SandboxFailure::HostPort { .. });
    let mut notices = Notices::new(out, pod);
    let (first, max) = match failure {
        SandboxFailure::Volume { volume, error } => {
            let message = format!("MountVolume.SetUp failed for volume \"{volume}\" : {error}");
            notices.pod(Kind::Warning, "FailedMount", message);
            VOLUME_RETRY_MS
        }
        SandboxFailure::HostPort { message: error } | SandboxFailure::Sandbox(error) => {
            let message = format!("Failed to create pod sandbox: {error}");
            notices.pod(Kind::Warning, "FailedCreatePodSandBox", message);
            SANDBOX_RETRY_MS
        }
    };
    pod.create_retry.fail(now, first, max);
}

/// A sandbox is gone and its ports of the node with it: they may be what this pod waits for.
pub(super) fn host_ports_freed(pod: &mut PodState) {
    if std::mem::take(&mut pod.waits_for_host_port) {
        pod.create_retry = Retry::default();
    }
}

pub(super) fn warned(pod: &PodState, warnings: &[(String, String)], out: &mut Vec<Notice>) {
    for (reason, message) in warnings {
        Notices::new(out, pod).pod(Kind::Warning, reason.clone(), message.clone());
    }
}

/// Also the outcome of starting or signalling: what was being started may have run, so its number is spent and the
/// policy has the word.
pub(super) fn sandbox_lost(pod: &mut PodState, now: Stamp, out: &mut Vec<Notice>) {
    let Sandbox::Ready { since } = pod.sandbox else {
        return;
    };
    pod.sandbox = Sandbox::Lost;
    match pod.in_flight.take() {
        Some(Action::StartContainer { instance, image_id }) => {
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
    if pod.stopping.is_none() && !pod.finished() {
        sandbox_changed(pod, out);
    }
}

/// A sandbox that was there since then is lost: one that gets lost soon again is made later.
pub(in crate::plan) fn count_loss(pod: &mut PodState, since: Time, now: Time) {
    if now.since(since) >= SANDBOX_STABLE_MS {
        pod.lost_retry = Retry::default();
    }
    if pod.lost_retry.failures == 0 {
        pod.lost_retry.failures = 1;
    } else {
        // The first loss costs nothing, so the series begins with the second.
        let (first, max) = SANDBOX_RETRY_MS;
        pod.lost_retry.fail(now, first / 2, max);
    }
}

pub(super) fn kill_failed(pod: &PodState, error: &str, out: &mut Vec<Notice>) {
    let message = format!("error killing pod: {error}");
    Notices::new(out, pod).pod(Kind::Warning, "FailedKillPod", message);
}
