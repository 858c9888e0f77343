//! Container restarts: whether and when an exited container starts again, by restart policy and back-off
//! (Kubernetes docs: Pod Lifecycle).
//!
//! The back-off counts from the newest exit. The first restart is immediate; then 10 s, 20 s, … up to the longest
//! wait. A run that ended more than 600 s after its start was permitted resets the series.
//!
//! For a container that the planner killed to start it again, for a failed probe, the exit before that one counts.
//! The kubelet does the same: it kills and starts in one step, before it has seen the newest exit. Such a container
//! has two restarts without a wait, and starts at once if it ran for longer than its wait.

use serde::{Deserialize, Serialize};

use super::run::Ended;
use super::state::ContainerState;
use super::{PodState, Settings, Time};
use crate::spec::{PodSpec, RestartPolicy};
use crate::types::Exit;

/// A run that lasts longer than this resets the back-off.
pub const RESET_MS: u64 = 600_000;

/// Crash back-off of one container (Kubernetes docs: Pod Lifecycle).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CrashBackoff {
    /// The wait that applies to the newest exit.
    pub delay_ms: u64,
    /// When the last restart was permitted.
    pub permitted: Time,
    /// A client does not want to wait for the next one.
    #[serde(default)]
    pub waived: bool,
}

/// The back-off of one pod's containers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Waits {
    /// The wait before the second restart.
    pub initial_ms: u64,
    /// The longest wait.
    pub max_ms: u64,
}

impl Waits {
    /// The pod's own back-off, or else the node's. A longest wait below the first one shortens that, too.
    pub fn of(pod: &PodSpec, settings: &Settings) -> Self {
        let own = &pod.restart_backoff;
        let initial = own.initial_ms.unwrap_or(settings.initial_restart_period_ms);
        let max_ms = own.max_ms.unwrap_or_else(|| {
            let given = own.initial_ms.unwrap_or(0);
            settings.max_restart_period_ms.max(given)
        });
        Self {
            initial_ms: initial.min(max_ms),
            max_ms,
        }
    }
}

/// Whether the policy restarts a container after this exit.
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

/// The exit to count from: the one before the newest, if the newest run was killed to be started again, and whether
/// there is one.
fn killed_after(container: &ContainerState) -> Option<Option<&Ended>> {
    // A container whose hook failed is killed before the restart is decided.
    let by_itself = container.hook_failure().is_some();
    let killed = container.stop().asked.is_some() && !by_itself && !container.stale();
    killed.then_some(container.previous.as_ref())
}

/// The wait that applies to the newest exit; `None` if the container may start at once.
pub fn delay_ms(container: &ContainerState, waits: Waits) -> Option<u64> {
    let ended = container.run.ended()?;
    let permitted = container.permitted == Some(container.next_attempt);
    if container.follows() || permitted || container.ended_on_request() {
        return None;
    }
    let backoff = container.backoff.as_ref()?;
    let finished = ended.exit.finished.time;
    if backoff.waived || expired(backoff, finished) {
        return None;
    }
    let delay = backoff.delay_ms.min(waits.max_ms);
    match killed_after(container) {
        Some(Some(before)) if finished.since(before.exit.finished.time) >= delay => None,
        Some(Some(_) | None) | None => Some(delay),
    }
}

/// When the container may start; `Time(0)` if nothing holds it back.
pub fn earliest(container: &ContainerState, waits: Waits) -> Time {
    match (delay_ms(container, waits), container.run.ended()) {
        (Some(delay), Some(ended)) => ended.exit.finished.time.plus(delay),
        (Some(_), None) | (None, _) => Time(0),
    }
}

/// Records that a start was permitted: the next exit waits longer. Called once for each attempt.
pub(super) fn permit(container: &mut ContainerState, attempt: u32, waits: Waits, now: Time) {
    if container.permitted == Some(attempt) {
        // A request to skip the wait is for one start.
        if let Some(backoff) = &mut container.backoff {
            backoff.waived = false;
        }
        return;
    }
    container.permitted = Some(attempt);
    let Some(ended) = container.run.ended() else {
        return;
    };
    let failed = ended.exit.code != 0 && !ended.exit.is_lost() && !ended.exit.is_cut_short();
    let replaced = container.asked().is_some_and(|asked| asked.again);
    if failed && !replaced && !container.restored() {
        container.failures = container.failures.saturating_add(1);
    }
    if container.ended_on_request() {
        // A person ended the run: the series stays where it was.
        if let Some(backoff) = &mut container.backoff {
            (backoff.permitted, backoff.waived) = (now, false);
        }
        return;
    }
    let first = killed_after(container).is_some_and(|before| before.is_none());
    if first && container.backoff.is_none() {
        return;
    }
    if container.restored() && container.backoff.is_none_or(|backoff| backoff.waived) {
        // The node ended the run, not the container: the series stays where it was.
        if let Some(backoff) = &mut container.backoff {
            (backoff.permitted, backoff.waived) = (now, false);
        }
        return;
    }
    let delay_ms = match container.backoff {
        Some(old) if !expired(&old, ended.exit.finished.time) => old.delay_ms.saturating_mul(2),
        Some(_) | None => waits.initial_ms,
    };
    container.backoff = Some(CrashBackoff {
        delay_ms: delay_ms.min(waits.max_ms),
        permitted: now,
        waived: false,
    });
}

impl PodState {
    /// The back-off of its containers.
    pub fn waits(&self, settings: &Settings) -> Waits {
        Waits::of(&self.spec, settings)
    }
}

/// The reason shown for an exit.
pub fn reason(exit: &Exit) -> &'static str {
    if exit.is_start_error() {
        "StartError"
    } else if exit.is_lost() {
        "ContainerStatusUnknown"
    } else if exit.is_cut_short() {
        "Unknown"
    } else if exit.oom_killed {
        "OOMKilled"
    } else if exit.code == 0 {
        "Completed"
    } else {
        "Error"
    }
}
