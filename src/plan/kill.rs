//! Who is being ended, why, and how long has he got? A kill begins with the fact that makes it necessary, is written
//! down before anything is done about it, and never gets longer (kubelet-behaviour §2.4, §2.5, §6.1, §6.3).
//!
//! ```text
//! kill ──► preStop hook ──► its turn (sidecars) ──► stop signal ──what is left of the grace, 2 s at least──► SIGKILL
//! ```
//!
//! A hook that is lost with the agent is repeated, and has the whole grace again: a few times, so that agents that die
//! again and again put off no end for ever (part A22).

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::hook::{Hooks, Progress};
use super::notice::{Kind, Notices};
use super::state::{ContainerState, Image, Role, Run};
use super::{Notice, PodState, Time, probe};
use crate::spec::{ContainerSpec, Hook, PodSpec, ProbeKind, RestartPolicy};

/// That a run is being ended. To be written down before the first signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kill {
    /// The run's number.
    pub attempt: u32,
    /// Why.
    pub reason: KillReason,
    /// Since when.
    pub since: Time,
    /// How long from then to SIGKILL. At least [`Kill::FLOOR_MS`] of it come after the stop signal, even if it is less.
    pub grace_ms: u64,
    /// SIGKILL at once, and nothing before it.
    pub at_once: bool,
    /// How often it began again because an agent died before the hook was done.
    #[serde(default)]
    pub again: u8,
}

/// Why a run is ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum KillReason {
    /// The pod goes, or has nothing left to do.
    Stopping,
    /// The pod restarts in place.
    InPlace,
    /// It failed its liveness probe.
    Liveness,
    /// It failed its startup probe.
    Startup,
    /// Its `postStart` hook failed.
    PostStartHook,
    /// Its manifest asks for another image.
    DefinitionChanged,
    /// Its resources cannot be changed while it runs.
    Resize,
}

impl KillReason {
    /// Whether another run follows a kill for this reason, whatever the exit code: the kubelet decides that with the
    /// kill (kubelet-behaviour §2.4). After a failed `postStart` hook it decides by the exit code, like after any exit.
    fn replaces(self, policy: RestartPolicy) -> bool {
        match self {
            Self::DefinitionChanged | Self::Resize => true,
            Self::Liveness | Self::Startup => policy != RestartPolicy::Never,
            Self::Stopping | Self::InPlace | Self::PostStartHook => false,
        }
    }
}

impl Kill {
    /// The shortest time between the stop signal and SIGKILL for anybody who is not killed at once.
    pub const FLOOR_MS: u64 = 2_000;

    /// So often a kill begins again at most.
    pub const MOST_AGAIN: u8 = 3;

    /// Until when the `preStop` hook is waited for.
    pub(super) fn hook_ends(&self) -> Time {
        self.since.plus(self.grace_ms)
    }

    /// When the `preStop` hook, if any, was over, and what it left of the grace: it costs whole seconds.
    fn after_hook(&self, hooks: &Hooks) -> (Time, u64) {
        match hooks.pre_stop {
            Progress { begun: None, .. } => (self.since, self.grace_ms),
            Progress { done, .. } => {
                let over = done.unwrap_or(self.hook_ends()).min(self.hook_ends());
                let over = over.max(self.since);
                (over, self.less(self.grace_ms, over.since(self.since)))
            }
        }
    }

    fn less(&self, grace_ms: u64, waited_ms: u64) -> u64 {
        grace_ms.saturating_sub(waited_ms / 1000 * 1000)
    }

    /// Until when a sidecar waits for its turn.
    pub(super) fn turn_ends(&self, hooks: &Hooks) -> Time {
        let (over, left) = self.after_hook(hooks);
        over.plus(left)
    }

    /// When SIGKILL follows the stop signal sent at `first`. Waiting for a turn costs whole seconds, too.
    pub(super) fn expires(&self, role: Role, hooks: &Hooks, first: Time) -> Time {
        let (over, left) = self.after_hook(hooks);
        let left = match role {
            Role::Sidecar if self.reason == KillReason::Stopping => {
                self.less(left, first.since(over))
            }
            Role::Sidecar | Role::Main | Role::Init | Role::Ephemeral => left,
        };
        first.plus(left.max(Self::FLOOR_MS))
    }
}

impl PodState {
    /// Notes whom the newest fact makes it necessary to end, and tells so once for each run.
    pub(super) fn note_kills(&mut self, now: Time, out: &mut Vec<Notice>) {
        if !self.any_running() {
            return;
        }
        let of_all = self.kill_of_all(now);
        let pod = Arc::clone(&self.spec);
        for (at, spec) in pod.all_containers().enumerate() {
            let c = &mut self.containers[at];
            let Run::Running { attempt, .. } = c.run else {
                continue;
            };
            let signalled = c.stop.asked.is_some();
            // What was added goes on beside a pod that restarts in place.
            let stays =
                |kill: &Kill| c.role == Role::Ephemeral && kill.reason == KillReason::InPlace;
            let of_all = of_all.filter(|kill| !stays(kill));
            let wanted = match (&mut c.kill, of_all) {
                (Some(kill), Some(other)) => {
                    kill.shorten(&other, signalled);
                    continue;
                }
                (Some(_), None) => continue,
                (None, Some(kill)) => Some(kill),
                (None, None) => kill_of_one(&pod, spec, c, now),
            };
            let Some(wanted) = wanted.map(|kill| Kill { attempt, ..kill }) else {
                continue;
            };
            c.kill = Some(wanted);
            let policy = spec.restart_policy.unwrap_or(pod.restart_policy);
            if wanted.reason.replaces(policy) {
                let asked = c.asked.get_or_insert_with(|| spec.asked(attempt));
                asked.again = true;
            }
            let text = text(policy, spec, at, &wanted, &pod);
            Notices::new(out, self).container(&spec.name, Kind::Normal, "Killing", text);
        }
    }

    /// Begins the kills again whose hooks were lost with the agent. Sidecars go on waiting for those they serve.
    pub(super) fn repeat_lost_hooks(&mut self, now: Time) {
        let pod = Arc::clone(&self.spec);
        let lost: Vec<bool> = pod
            .all_containers()
            .zip(&self.containers)
            .map(|(spec, c)| loses_hook(spec, c))
            .collect();
        let stopping =
            |c: &ContainerState| c.kill.is_some_and(|k| k.reason == KillReason::Stopping);
        let mut all = self.containers.iter().zip(&lost);
        let of_pod = all.any(|(c, lost)| *lost && stopping(c));
        for (c, lost) in self.containers.iter_mut().zip(lost) {
            let waits = of_pod && c.role == Role::Sidecar && c.stop.asked.is_none() && stopping(c);
            if let Some(kill) = c.kill.as_mut().filter(|_| lost || waits)
                && kill.again < Kill::MOST_AGAIN
            {
                (kill.since, kill.again) = (now, kill.again + 1);
            }
        }
    }

    /// Kills that began again last until then at most: there is no more time for this pod.
    pub(super) fn bound_repeated_kills(&mut self, until: Time) {
        let kills = self.containers.iter_mut().filter_map(|c| c.kill.as_mut());
        for kill in kills.filter(|kill| kill.again > 0) {
            kill.grace_ms = kill.grace_ms.min(until.since(kill.since));
        }
    }

    /// Why every container of the pod is to end, if so.
    fn kill_of_all(&self, now: Time) -> Option<Kill> {
        let kill = |reason, since, grace_ms, at_once| {
            Some(Kill {
                attempt: 0,
                reason,
                since,
                grace_ms,
                at_once,
                again: 0,
            })
        };
        if let Some(stopping) = &self.stopping {
            let (since, grace_ms) = (stopping.since.time, stopping.grace_ms());
            return kill(KillReason::Stopping, since, grace_ms, false);
        }
        if let Some(verdict) = &self.verdict {
            let (since, grace_ms) = (verdict.since.time, verdict.grace_ms.max(1_000));
            return kill(KillReason::Stopping, since, grace_ms, false);
        }
        if self.restarts_all() {
            return kill(KillReason::InPlace, now, 0, true);
        }
        if self.complete() {
            let since = self.finishing.unwrap_or(now);
            return kill(KillReason::Stopping, since, self.spec.grace_ms, false);
        }
        None
    }
}

impl Kill {
    /// A second reason may leave a run less time, never more. The first one stays the reason, unless there is still
    /// time for a sidecar to wait for those it serves.
    fn shorten(&mut self, other: &Kill, signalled: bool) {
        if other.grace_ms < self.grace_ms {
            // What is said of the grace counts from when the other one began.
            let late_ms = match self.again {
                0 => 0,
                _ => self.since.since(other.since),
            };
            self.grace_ms = other.grace_ms.saturating_sub(late_ms);
        }
        self.at_once |= other.at_once;
        if !signalled && other.reason == KillReason::Stopping {
            self.reason = other.reason;
        }
    }
}

/// Whether an agent that dies takes the `preStop` hook of this container along, or the time it had for it. A sleep goes on
/// without an agent.
fn loses_hook(spec: &ContainerSpec, c: &ContainerState) -> bool {
    let carried_out = match spec.lifecycle.pre_stop {
        Some(Hook::Exec(_) | Hook::HttpGet(_) | Hook::TcpSocket) => true,
        Some(Hook::Sleep { .. }) | None => false,
    };
    let open = c.run.is_running() && c.stop.asked.is_none() && c.hooks.pre_stop.done.is_none();
    carried_out && open && c.kill.is_some_and(|kill| !kill.at_once)
}

/// Why this container in particular is to end, if so.
fn kill_of_one(pod: &PodSpec, spec: &ContainerSpec, c: &ContainerState, now: Time) -> Option<Kill> {
    let kill = |reason, grace_ms| Kill {
        attempt: 0,
        reason,
        since: now,
        grace_ms,
        at_once: false,
        again: 0,
    };
    if c.is_outdated(spec) && matches!(c.image, Image::Ready { .. }) {
        return Some(kill(KillReason::DefinitionChanged, pod.grace_ms));
    }
    let probes = &spec.probes;
    let (reason, probe) = match probe::failed(c) {
        _ if c.hooks.failure.is_some() => (KillReason::PostStartHook, None),
        Some(ProbeKind::Startup) => (KillReason::Startup, probes.startup.as_ref()),
        Some(ProbeKind::Liveness | ProbeKind::Readiness) => {
            (KillReason::Liveness, probes.liveness.as_ref())
        }
        None if c.resize_restarts(spec) => (KillReason::Resize, None),
        None => return None,
    };
    let own = probe.and_then(|probe| probe.grace_ms);
    Some(kill(reason, own.unwrap_or(pod.grace_ms)))
}

/// What people read about it, as the kubelet says it.
fn text(
    policy: RestartPolicy,
    spec: &ContainerSpec,
    at: usize,
    kill: &Kill,
    pod: &PodSpec,
) -> String {
    let name = &spec.name;
    let main = at >= pod.init_containers.len();
    let what = if main { "Container" } else { "Init container" };
    // The policies decide, not the rules: the container has no exit code yet.
    let again = match main && policy != RestartPolicy::Never {
        true => ", will be restarted",
        false => "",
    };
    match kill.reason {
        KillReason::Stopping => format!("Stopping container {name}"),
        // The kubelet says `killing` and `FailedPostStartHook`, which names no container.
        KillReason::InPlace => {
            format!("{what} {name} is removed because RestartAllContainers in place")
        }
        KillReason::Liveness => format!("{what} {name} failed liveness probe{again}"),
        KillReason::Startup => format!("{what} {name} failed startup probe{again}"),
        KillReason::PostStartHook => format!("{what} {name} failed postStart hook{again}"),
        KillReason::DefinitionChanged if main => {
            format!("Container {name} definition changed, will be restarted")
        }
        KillReason::DefinitionChanged => format!("Init container {name} definition changed"),
        KillReason::Resize => format!("Container {name} resize requires restart"),
    }
}
