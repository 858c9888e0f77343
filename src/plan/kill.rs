//! Kills: which containers are stopped, why, and with how much grace. A kill begins with the fact that makes it
//! necessary, is written to disk before any signal, and its grace only ever gets shorter (Kubernetes docs:
//! Termination of Pods; the kubelet's `pkg/kubelet/kuberuntime`).
//!
//! ```text
//! kill ──► preStop hook ──► its turn (sidecars) ──► stop signal ──what is left of the grace, 2 s at least──► SIGKILL
//! ```
//!
//! A hook that is lost in an agent restart (an HTTP request; a program goes on in the shim) is repeated with the
//! whole grace. The number of repeats is limited, so that an agent that keeps crashing does not put off the end for
//! ever (`coracle help differences`).

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::hook::{Hooks, Progress};
use super::notice::Notices;
use super::run::{Course, Running};
use super::state::{ContainerState, Image, Role};
use super::{Notice, PodState, Time, probe};
use crate::spec::{ContainerSpec, Hook, PodSpec, ProbeKind, Reason, RestartPolicy};

/// The end of a run. Written to disk before the first signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kill {
    /// Why the run is ended.
    pub reason: KillReason,
    /// When the kill began.
    pub since: Time,
    /// The time from then to SIGKILL. At least [`Kill::FLOOR_MS`] of it follow the stop signal, even if it is less.
    pub grace_ms: u64,
    /// SIGKILL at once, without hook or stop signal.
    pub at_once: bool,
    /// How often it began again because the agent died before the hook was done.
    #[serde(default)]
    pub again: u8,
}

/// Why a run is ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum KillReason {
    /// The pod is removed, or has finished.
    Stopping,
    /// The pod restarts in place.
    InPlace,
    /// It failed its liveness probe.
    Liveness,
    /// It failed its startup probe.
    Startup,
    /// Its `postStart` hook failed.
    PostStartHook,
    /// Its manifest has a new image.
    DefinitionChanged,
    /// Its resources cannot be changed while it runs.
    Resize,
    /// A device that it has lost is back.
    Device,
    /// A client asked for it.
    Requested,
}

impl KillReason {
    /// Whether another run follows a kill for this reason, whatever the exit code: the kubelet decides that with
    /// the kill (the kubelet's `pkg/kubelet/kuberuntime`). After a failed `postStart` hook the kubelet decides by
    /// the exit code, as after any exit.
    fn replaces(self, policy: RestartPolicy) -> bool {
        match self {
            Self::DefinitionChanged | Self::Resize | Self::Device | Self::Requested => true,
            Self::Liveness | Self::Startup => policy != RestartPolicy::Never,
            Self::Stopping | Self::InPlace | Self::PostStartHook => false,
        }
    }
}

impl Kill {
    /// The shortest time between the stop signal and SIGKILL, unless SIGKILL comes at once.
    pub const FLOOR_MS: u64 = 2_000;

    /// The maximum number of times that a kill begins again.
    pub const MOST_AGAIN: u8 = 3;

    /// When the agent stops waiting for the `preStop` hook.
    pub(super) fn hook_ends(&self) -> Time {
        self.since.plus(self.grace_ms)
    }

    /// When the `preStop` hook was over, and how much grace it left: it costs whole seconds.
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

    /// When a sidecar stops waiting for its turn.
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
    /// Begins the kills that the newest fact makes necessary, with one event for each run.
    pub(super) fn note_kills(&mut self, now: Time, out: &mut Vec<Notice>) {
        if !self.any_running() {
            return;
        }
        let of_all = self.kill_of_all(now);
        let pod = Arc::clone(&self.spec);
        for (at, spec) in pod.all_containers().enumerate() {
            let back = self.device_is_back(&self.containers[at]);
            let c = &mut self.containers[at];
            // Ephemeral containers keep running while the pod restarts in place.
            let ephemeral = c.role == Role::Ephemeral;
            let stays = |kill: &Kill| ephemeral && kill.reason == KillReason::InPlace;
            let of_all = of_all.filter(|kill| !stays(kill));
            let signalled = c.stop().asked.is_some();
            if let Some(kill) = c.kill_mut() {
                if let Some(other) = of_all {
                    kill.shorten(&other, signalled);
                }
                continue;
            }
            let wanted = of_all.or_else(|| kill_of_one(&pod, spec, (c, back), now));
            let (Some(wanted), Some(run)) = (wanted, c.run.running_mut()) else {
                continue;
            };
            run.kill = Some(wanted);
            let policy = spec.restart_policy.unwrap_or(pod.restart_policy);
            if wanted.reason.replaces(policy) {
                run.course.asked.get_or_insert_with(|| spec.asked()).again = true;
            }
            let text = text(policy, spec, at, &wanted, &pod);
            Notices::new(out, self).container(&spec.name, Reason::Killing, text);
        }
    }

    /// Restarts the kills whose hooks were lost with the agent. Sidecars keep waiting for the containers that they
    /// serve.
    pub(super) fn repeat_lost_hooks(&mut self, now: Time) {
        let pod = Arc::clone(&self.spec);
        let lost: Vec<bool> = pod
            .all_containers()
            .zip(&self.containers)
            .map(|(spec, c)| loses_hook(spec, c))
            .collect();
        let stopping =
            |c: &ContainerState| c.kill().is_some_and(|k| k.reason == KillReason::Stopping);
        let mut all = self.containers.iter().zip(&lost);
        let of_pod = all.any(|(c, lost)| *lost && stopping(c));
        for (c, lost) in self.containers.iter_mut().zip(lost) {
            let open = c.stop().asked.is_none();
            let waits = of_pod && c.role == Role::Sidecar && open && stopping(c);
            if let Some(kill) = c.kill_mut().filter(|_| lost || waits)
                && kill.again < Kill::MOST_AGAIN
            {
                (kill.since, kill.again) = (now, kill.again + 1);
            }
        }
    }

    /// The latest moment at which a kill may begin again: after it the pod has no more time.
    pub(super) fn bound_repeated_kills(&mut self, until: Time) {
        let kills = self
            .containers
            .iter_mut()
            .filter_map(ContainerState::kill_mut);
        for kill in kills.filter(|kill| kill.again > 0) {
            kill.grace_ms = kill.grace_ms.min(until.since(kill.since));
        }
    }

    /// Why every container of the pod ends, if they do.
    fn kill_of_all(&self, now: Time) -> Option<Kill> {
        let kill = |reason, since, grace_ms, at_once| {
            Some(Kill {
                reason,
                since,
                grace_ms,
                at_once,
                again: 0,
            })
        };
        if let Some(stopping) = &self.stopping() {
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
            let since = self.finishing().unwrap_or(now);
            return kill(KillReason::Stopping, since, self.spec.grace_ms, false);
        }
        None
    }
}

impl Kill {
    /// A second reason may leave a run less time, never more. The first one stays the reason, unless a sidecar
    /// still has time to wait for the containers that it serves.
    fn shorten(&mut self, other: &Kill, signalled: bool) {
        if other.grace_ms < self.grace_ms {
            // The grace of the other kill counts from its own start.
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

/// Whether an agent restart loses this container's `preStop` hook, or the time that it had. A sleep goes on without
/// an agent.
fn loses_hook(spec: &ContainerSpec, c: &ContainerState) -> bool {
    let carried_out = match spec.lifecycle.pre_stop {
        Some(Hook::Exec(_) | Hook::HttpGet(_) | Hook::TcpSocket) => true,
        Some(Hook::Sleep { .. }) | None => false,
    };
    let lost = |run: &Running| {
        let Course { hooks, stop, .. } = &run.course;
        let hook = &hooks.pre_stop;
        let open = stop.asked.is_none() && hook.done.is_none() && !hook.held;
        open && run.kill.is_some_and(|kill| !kill.at_once)
    };
    carried_out && c.run.running().is_some_and(lost)
}

/// Why this container alone ends, if it does. `back`: because of a device.
fn kill_of_one(
    pod: &PodSpec,
    spec: &ContainerSpec,
    (c, back): (&ContainerState, bool),
    now: Time,
) -> Option<Kill> {
    let kill = |reason, grace_ms| Kill {
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
        _ if c.hook_failure().is_some() => (KillReason::PostStartHook, None),
        Some(ProbeKind::Startup) => (KillReason::Startup, probes.startup.as_ref()),
        Some(ProbeKind::Liveness | ProbeKind::Readiness) => {
            (KillReason::Liveness, probes.liveness.as_ref())
        }
        None if c.resize_restarts(spec) => (KillReason::Resize, None),
        None if back => (KillReason::Device, None),
        None => return None,
    };
    let own = probe.and_then(|probe| probe.grace_ms);
    Some(kill(reason, own.unwrap_or(pod.grace_ms)))
}

/// The kubelet's event message for a kill.
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
        KillReason::PostStartHook => {
            // By `OnFailure` that depends on the exit code.
            let again = Some(again).filter(|_| policy == RestartPolicy::Always);
            let again = again.unwrap_or_default();
            format!("{what} {name} failed postStart hook{again}")
        }
        KillReason::DefinitionChanged if main => {
            format!("Container {name} definition changed, will be restarted")
        }
        KillReason::DefinitionChanged => format!("Init container {name} definition changed"),
        KillReason::Resize => format!("Container {name} resize requires restart"),
        KillReason::Device => format!("{what} {name} restarts: its device is back"),
        KillReason::Requested => format!("{what} {name} restarts on request"),
    }
}
