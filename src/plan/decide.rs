//! What is to be done now? [`plan()`] looks at every pod by itself, so a pod's decision costs a few comparisons and no
//! allocation unless there is something to do: planning the whole node after every event takes microseconds for
//! hundreds of pods, and no cache of wake-ups can be wrong. [`plan_pod`] is there for whoever wants one pod's.

use super::action::Keep;
use super::state::{ContainerState, Image, Role, Run, Sandbox, Stopping};
use super::{Action, NodeState, Plan, PodState, Settings, Time, probe, restart};
use crate::spec::{ContainerSpec, ProbeKind, StopSignal};

/// A container that was killed and does not end is killed again after this long.
pub const KILL_AGAIN_MS: u64 = 30_000;

/// One pod's decision: do this now, or ask again then, or (neither) wait for an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Do it now.
    Do(Action),
    /// Nothing before this moment, which is in the future.
    WakeAt(Time),
    /// Nothing until something happens.
    Rest,
}

impl Step {
    /// The first thing to do, else the earlier moment.
    fn or(self, other: Step) -> Step {
        match (self, other) {
            (Self::Do(action), _) | (_, Self::Do(action)) => Self::Do(action),
            (Self::WakeAt(a), Self::WakeAt(b)) => Self::WakeAt(a.min(b)),
            (Self::WakeAt(at), Self::Rest) | (Self::Rest, Self::WakeAt(at)) => Self::WakeAt(at),
            (Self::Rest, Self::Rest) => Self::Rest,
        }
    }
}

/// What to do now on the whole node, and when to ask again. Empty until the manifests were read for the first time.
pub fn plan(state: &NodeState, now: Time) -> Plan {
    let mut plan = Plan::default();
    if state.desired.is_none() {
        return plan;
    }
    for pod in state.pods.values() {
        match plan_pod(pod, &state.settings, now) {
            Step::Do(action) => plan.actions.push(action),
            Step::WakeAt(at) => plan.wake_at = Some(plan.wake_at.map_or(at, |old| old.min(at))),
            Step::Rest => {}
        }
    }
    plan
}

/// What to do now for one pod.
pub fn plan_pod(pod: &PodState, settings: &Settings, now: Time) -> Step {
    if pod.in_flight.is_some() {
        return Step::Rest;
    }
    if let Some(stopping) = &pod.stopping {
        let ending = Ending {
            since: stopping.since.time,
            grace_ms: stopping.grace_ms(),
        };
        return match pod.any_running() {
            true => stop(pod, &ending, now),
            false => remove(pod, Keep::Nothing, now),
        };
    }
    if pod.finished() {
        return match pod.sandbox {
            Sandbox::None | Sandbox::Removed => Step::Rest,
            Sandbox::Ready { .. } | Sandbox::Lost => remove(pod, Keep::Everything, now),
        };
    }
    match pod.sandbox {
        Sandbox::Ready { .. } if pod.restarts_all() => kill_all(pod, now),
        Sandbox::Ready { .. } if pod.complete() => {
            let ending = Ending {
                since: pod.finishing.unwrap_or(now),
                grace_ms: pod.spec.grace_ms.max(Stopping::FLOOR_MS),
            };
            stop(pod, &ending, now)
        }
        Sandbox::Ready { .. } => {
            let starts = if pod.is_initialized() {
                let some = pod.containers.iter().filter(|c| c.role != Role::Init);
                start_each(pod, some, settings, now)
            } else {
                initialize(pod, settings, now)
            };
            kill_failed(pod, now).or(starts)
        }
        Sandbox::None | Sandbox::Lost | Sandbox::Removed => {
            let at = pod.create_retry.at.max(pod.lost_retry.at);
            when(at, now, || Action::CreateSandbox {
                pod: pod.spec.uid.clone(),
            })
        }
    }
}

/// Starts whichever of these containers is to be started.
fn start_each<'p>(
    pod: &'p PodState,
    containers: impl Iterator<Item = &'p ContainerState>,
    settings: &Settings,
    now: Time,
) -> Step {
    containers
        .filter(|c| pod.wants_start(c))
        .map(|c| start(pod, c, settings, now))
        .fold(Step::Rest, Step::or)
}

/// One init container at a time; the newest that ran in this round tells which. Sidecars before it are kept running.
fn initialize(pod: &PodState, settings: &Settings, now: Time) -> Step {
    let inits = pod.inits();
    let newest = inits.iter().rposition(|c| c.current().is_some());
    let turn = newest.map_or(0, |at| match (inits[at].role, inits[at].done_well()) {
        (Role::Init, true) => at + 1,
        (Role::Sidecar, _) if inits[at].started() => at + 1,
        (Role::Init | Role::Sidecar | Role::Main, _) => at,
    });
    let sidecar = |(at, c): &(usize, &ContainerState)| *at == turn || c.role == Role::Sidecar;
    let some = inits.iter().enumerate().take(turn + 1).filter(sidecar);
    start_each(pod, some.map(|(_, c)| c), settings, now)
}

fn when(at: Time, now: Time, action: impl FnOnce() -> Action) -> Step {
    if now < at {
        Step::WakeAt(at)
    } else {
        Step::Do(action())
    }
}

/// Image first, then the container; both wait for whatever failed before.
fn start(pod: &PodState, container: &ContainerState, settings: &Settings, now: Time) -> Step {
    let mut at = restart::earliest(container, settings);
    if let Some(error) = &container.start_error {
        at = at.max(error.retry_at);
    }
    if let Image::Failed { retry, .. } = &container.image {
        at = at.max(retry.at);
    }
    when(at, now, || match &container.image {
        Image::Ready { id } => Action::StartContainer {
            instance: pod.instance(&container.name, container.next_attempt),
            image_id: id.clone(),
        },
        Image::Unknown | Image::Failed { .. } => Action::EnsureImage {
            pod: pod.spec.uid.clone(),
            container: container.name.clone(),
        },
    })
}

/// Stops whatever fails its liveness or startup probe, and goes on where a former agent had begun to.
fn kill_failed(pod: &PodState, now: Time) -> Step {
    let kill = |(spec, c): (&ContainerSpec, &ContainerState)| {
        let Run::Running { attempt, .. } = c.run else {
            return Step::Rest;
        };
        let failed = probe::failed(c);
        let first = c.stop.sent.or(c.stop.asked);
        if failed.is_none() && first.is_none() {
            return Step::Rest;
        }
        let order = Order {
            instance: (pod, c, attempt),
            reason: Reason::Unhealthy(failed),
        };
        match first {
            Some(first) => {
                let grace = probe::grace_ms(pod, spec, c).max(Stopping::FLOOR_MS);
                order.stop(first.plus(grace), now)
            }
            None => order.signal(StopSignal::Stop, now),
        }
    };
    pod.each().map(kill).fold(Step::Rest, Step::or)
}

/// How long a pod has to end.
#[derive(Debug, Clone, Copy)]
struct Ending {
    since: Time,
    grace_ms: u64,
}

/// Signals to whatever runs. Sidecars have to wait for the containers they serve: until all others and the sidecars
/// after them are gone, or the grace period is over (kubelet-behaviour §6.3).
fn stop(pod: &PodState, ending: &Ending, now: Time) -> Step {
    let expiry = ending.since.plus(ending.grace_ms);
    let stop = |(at, c): (usize, &ContainerState)| {
        let Run::Running { attempt, .. } = c.run else {
            return Step::Rest;
        };
        let order = Order {
            instance: (pod, c, attempt),
            reason: Reason::Stopping,
        };
        let first = c.stop.sent.or(c.stop.asked);
        match (c.role, first) {
            _ if ending.grace_ms == 0 => order.kill(now, now),
            (Role::Sidecar, None) if now < expiry && !has_turn(pod, at) => Step::WakeAt(expiry),
            (Role::Sidecar, Some(first)) => {
                order.stop(expiry.max(first.plus(Stopping::FLOOR_MS)), now)
            }
            (Role::Init | Role::Main, Some(first)) => order.stop(first.plus(ending.grace_ms), now),
            (Role::Init | Role::Sidecar | Role::Main, None) => order.signal(StopSignal::Stop, now),
        }
    };
    let steps = pod.containers.iter().enumerate().map(stop);
    steps.fold(Step::Rest, Step::or)
}

fn has_turn(pod: &PodState, sidecar: usize) -> bool {
    let later = |(at, c): (usize, &ContainerState)| match c.role {
        Role::Main => c.run.is_running(),
        Role::Sidecar => at > sidecar && c.run.is_running(),
        Role::Init => false,
    };
    !pod.containers.iter().enumerate().any(later)
}

/// `RestartAllContainers`: whatever still runs is killed at once, regular containers first.
fn kill_all(pod: &PodState, now: Time) -> Step {
    let kill = |c: &ContainerState| match c.run {
        Run::Running { attempt, .. } => Order {
            instance: (pod, c, attempt),
            reason: Reason::InPlace,
        }
        .kill(now, now),
        Run::None | Run::Ended(_) => Step::Rest,
    };
    let steps = pod.mains().iter().chain(pod.inits()).map(kill);
    steps.fold(Step::Rest, Step::or)
}

/// Signals to one run.
struct Order<'p> {
    instance: (&'p PodState, &'p ContainerState, u32),
    reason: Reason,
}

/// Why a container is signalled, as the kubelet says it.
#[derive(Debug, Clone, Copy)]
enum Reason {
    Stopping,
    InPlace,
    /// A probe failed; which is forgotten with the agent that saw it.
    Unhealthy(Option<ProbeKind>),
}

impl Reason {
    fn text(self, pod: &PodState, container: &ContainerState) -> String {
        let name = &container.name;
        let probe = match self {
            Self::Stopping => return format!("Stopping container {name}"),
            Self::InPlace => return "killing".to_owned(),
            Self::Unhealthy(Some(ProbeKind::Startup)) => "startup",
            Self::Unhealthy(Some(ProbeKind::Liveness | ProbeKind::Readiness) | None) => "liveness",
        };
        let what = match container.role {
            Role::Sidecar | Role::Init => "Init container",
            Role::Main => "Container",
        };
        let again = match container.role {
            Role::Main if pod.restarts_after_probe(container) => ", will be restarted",
            Role::Main | Role::Sidecar | Role::Init => "",
        };
        format!("{what} {name} failed {probe} probe{again}")
    }
}

impl Order<'_> {
    fn signal(&self, signal: StopSignal, now: Time) -> Step {
        let (pod, container, attempt) = self.instance;
        when(container.stop.retry.at, now, || Action::Signal {
            instance: pod.instance(&container.name, attempt),
            signal,
            reason: self.reason.text(pod, container),
        })
    }

    /// A kill at that moment, and again if that does not help.
    fn kill(&self, at: Time, now: Time) -> Step {
        let stop = &self.instance.1.stop;
        let at = stop.killed.map_or(at, |last| last.plus(KILL_AGAIN_MS));
        match now < at.max(stop.retry.at) {
            true => Step::WakeAt(at.max(stop.retry.at)),
            false => self.signal(StopSignal::Kill, now),
        }
    }

    /// The stop signal again if it could not be sent, which must not put off the end for ever.
    fn stop(&self, deadline: Time, now: Time) -> Step {
        let stop = &self.instance.1.stop;
        let kill = self.kill(deadline, now);
        if stop.sent.is_none() && stop.killed.is_none() && now < deadline {
            return kill.or(self.signal(StopSignal::Stop, now));
        }
        kill
    }
}

fn remove(pod: &PodState, keep: Keep, now: Time) -> Step {
    when(pod.remove_retry.at, now, || Action::RemoveSandbox {
        pod: pod.spec.uid.clone(),
        keep,
    })
}
