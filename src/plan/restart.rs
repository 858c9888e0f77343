//! Is an exited container started again, and when? Restart policy and crash back-off (kubelet-behaviour §4.2, §4.4).
//!
//! The wait is counted from the newest exit. The first restart is immediate; then 10 s, 20 s, … up to the longest
//! period. A run that ended more than 600 s after its start was permitted starts the series anew.

use super::event::CrashBackoff;
use super::state::{ContainerState, Role};
use super::{Settings, Time, Wall};
use crate::spec::{Exit, RestartPolicy};

/// The wait before the second restart.
pub const INITIAL_MS: u64 = 10_000;
/// A run that lasts longer than this is no crash loop.
pub const RESET_MS: u64 = 600_000;

/// Whether the policy starts a container again after this exit.
pub fn wanted(policy: RestartPolicy, exit: &Exit) -> bool {
    match policy {
        RestartPolicy::Always => true,
        RestartPolicy::OnFailure => exit.code != 0,
        RestartPolicy::Never => false,
    }
}

fn expired(backoff: &CrashBackoff, finished: Time) -> bool {
    finished.since(backoff.permitted) > RESET_MS
}

/// Whether the newest run, of an earlier round, is as good as removed: the next start is like a first one.
fn forgotten(container: &ContainerState) -> bool {
    container.stale() && (container.round.in_place || container.role != Role::Main)
}

/// The wait that applies to the newest exit; `None` if the container may start at once.
pub fn delay_ms(container: &ContainerState, settings: &Settings) -> Option<u64> {
    let ended = container.run.ended()?;
    if forgotten(container) {
        return None;
    }
    if container.permitted == Some(container.next_attempt) {
        return None;
    }
    let backoff = container.backoff.as_ref()?;
    if expired(backoff, ended.exit.finished.time) {
        return None;
    }
    Some(backoff.delay_ms.min(settings.max_restart_period_ms))
}

/// When the container may start; `Time(0)` if nothing holds it back.
pub fn earliest(container: &ContainerState, settings: &Settings) -> Time {
    match (delay_ms(container, settings), container.run.ended()) {
        (Some(delay), Some(ended)) => ended.exit.finished.time.plus(delay),
        (Some(_), None) | (None, _) => Time(0),
    }
}

/// Records that a start was permitted: the next exit waits longer. Once for each attempt.
pub(super) fn permit(container: &mut ContainerState, attempt: u32, settings: &Settings, now: Time) {
    if container.permitted == Some(attempt) {
        return;
    }
    container.permitted = Some(attempt);
    let Some(ended) = container.run.ended() else {
        return;
    };
    if forgotten(container) {
        return;
    }
    let max = settings.max_restart_period_ms;
    let delay_ms = match container.backoff {
        Some(old) if !expired(&old, ended.exit.finished.time) => old.delay_ms.saturating_mul(2),
        Some(_) | None => INITIAL_MS,
    };
    container.backoff = Some(CrashBackoff {
        delay_ms: delay_ms.min(max),
        permitted: now,
    });
}

/// The reason shown for an exit.
pub fn reason(exit: &Exit) -> &'static str {
    if exit.code == 128 && exit.signal.is_none() && exit.started.wall == Wall(0) {
        "StartError"
    } else if exit.is_lost() {
        "ContainerStatusUnknown"
    } else if exit.oom_killed {
        "OOMKilled"
    } else if exit.code == 0 {
        "Completed"
    } else {
        "Error"
    }
}
