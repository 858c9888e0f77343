//! What is to be done now? [`plan()`] looks at every pod by itself, so a pod's decision costs a few comparisons and no
//! allocation unless there is something to do: planning the whole node after every event takes microseconds for
//! hundreds of pods, and no cache of wake-ups can be wrong. [`plan_pod`] is there for whoever wants one pod's.

use super::action::Keep;
use super::kill::KillReason;
use super::state::{ContainerState, Image, Role, Run, Sandbox};
use super::verdict::Cause;
use super::{Action, NodeState, Plan, PodState, Settings, Time, hook, restart};
use crate::spec::{ContainerSpec, StopSignal};

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
    if pod.in_flight.is_some() || pod.hold.is_some() {
        return Step::Rest;
    }
    if pod.stopping.is_some() {
        return match pod.any_running() {
            true => kill_each(pod, now),
            false => remove(pod, Keep::Nothing, now),
        };
    }
    if pod.finished() {
        let cause = pod.verdict.as_ref().map(|verdict| verdict.cause);
        return match pod.sandbox {
            // It comes again like any new pod.
            _ if cause == Some(Cause::Preempted) || pod.returns() => {
                remove(pod, Keep::Nothing, now)
            }
            Sandbox::None | Sandbox::Removed => Step::Rest,
            Sandbox::Ready { .. } | Sandbox::Lost => {
                let cause = pod.verdict.as_ref().map(|verdict| verdict.cause);
                remove(pod, cause.map_or(Keep::Everything, Cause::keeps), now)
            }
        };
    }
    match pod.sandbox {
        Sandbox::Ready { .. } if pod.restarts_all() || pod.complete() => kill_each(pod, now),
        Sandbox::Ready { .. } => {
            let starts = if pod.is_initialized() {
                let some = pod.of_manifest().iter().filter(|c| c.role != Role::Init);
                start_each(pod, some, settings, now)
            } else {
                initialize(pod, settings, now)
            };
            let added = start_each(pod, pod.ephemerals().iter(), settings, now);
            // Room is made before anybody starts who needs it.
            let resize = match pod.resize() {
                Some(action) => when(pod.resizing.retry.at, now, || action),
                None => Step::Rest,
            };
            let kills = kill_each(pod, now);
            let starts = resize.or(added).or(starts);
            kills.or(starts).or(look_ahead(pod, now))
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
        .filter(|c| pod.wants_start(c) && !is_held_up(pod, c))
        .map(|c| start(pod, c, settings, now))
        .fold(Step::Rest, Step::or)
}

/// Whether an earlier container is not through with its `postStart` hook (kubelet-behaviour §2.6). What was added is
/// for finding out why.
fn is_held_up(pod: &PodState, container: &ContainerState) -> bool {
    let mut earlier = pod.each().take_while(|(_, c)| c.name != container.name);
    container.role != Role::Ephemeral && earlier.any(|(spec, c)| hook::holds_up(spec, c))
}

/// One init container at a time; the newest that ran in this round tells which. Sidecars before it are kept running.
fn initialize(pod: &PodState, settings: &Settings, now: Time) -> Step {
    let inits = pod.inits();
    let newest = inits.iter().rposition(|c| c.current().is_some());
    let turn = newest.map_or(0, |at| match (inits[at].role, inits[at].done_well()) {
        (Role::Init, true) => at + 1,
        (Role::Sidecar, _) if inits[at].started() => at + 1,
        (Role::Init | Role::Sidecar | Role::Main | Role::Ephemeral, _) => at,
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
    let mut at = restart::earliest(container, pod.waits(settings));
    if container.role != Role::Ephemeral && container.current().is_none() {
        at = at.max(pod.round_starts(settings));
    }
    if let Some(error) = container.start_error() {
        at = at.max(error.retry.at);
    }
    if let Image::Failed { retry, .. } = &container.image {
        at = at.max(retry.at);
    }
    when(at, now, || match &container.image {
        Image::Ready { id } => Action::StartContainer {
            instance: pod.instance(&container.name, container.next_attempt),
            image_id: id.clone(),
        },
        Image::Unknown | Image::Failed { .. } => look_for_image(pod, container),
    })
}

fn look_for_image(pod: &PodState, container: &ContainerState) -> Action {
    Action::EnsureImage {
        pod: pod.spec.uid.clone(),
        container: container.name.clone(),
    }
}

/// Before a container that runs is replaced because of another image there has to be that image: what serves is not
/// given up for what cannot.
fn look_ahead(pod: &PodState, now: Time) -> Step {
    let look = |(spec, c): (&ContainerSpec, &ContainerState)| {
        if !c.run.is_running() || c.kill.is_some() || !c.is_outdated(spec) {
            return Step::Rest;
        }
        match &c.image {
            Image::Ready { .. } => Step::Rest,
            Image::Unknown => Step::Do(look_for_image(pod, c)),
            Image::Failed { retry, .. } => when(retry.at, now, || look_for_image(pod, c)),
        }
    };
    pod.each().map(look).fold(Step::Rest, Step::or)
}

/// Signals to whatever is being ended, regular containers first. Sidecars of a pod that ends have to wait for the
/// containers they serve: until all others and the sidecars after them are gone, or the grace period is over
/// (kubelet-behaviour §6.3).
fn kill_each(pod: &PodState, now: Time) -> Step {
    let inits = pod.inits().len();
    let hooked = |at: usize| {
        let done = pod.containers[at].hooks.pre_stop.done.is_some();
        let mut specs = pod.spec.all_containers();
        !done
            && specs
                .nth(at)
                .is_some_and(|spec| spec.lifecycle.pre_stop.is_some())
    };
    let kill = |at: usize| {
        let c = &pod.containers[at];
        let (Run::Running { attempt, .. }, Some(kill)) = (&c.run, &c.kill) else {
            return Step::Rest;
        };
        let order = Order {
            instance: (pod, c, *attempt),
        };
        let waits = c.role == Role::Sidecar && kill.reason == KillReason::Stopping;
        match c.stop.sent.or(c.stop.asked) {
            _ if kill.at_once => order.kill(now, now),
            Some(first) => order.stop(kill.expires(c.role, &c.hooks, first), now),
            None if hooked(at) && now < kill.hook_ends() => Step::WakeAt(kill.hook_ends()),
            None if waits && now < kill.turn_ends(&c.hooks) && !has_turn(pod, at) => {
                Step::WakeAt(kill.turn_ends(&c.hooks))
            }
            None => order.signal(StopSignal::Stop, now),
        }
    };
    let mains_first = (inits..pod.containers.len()).chain(0..inits);
    mains_first.map(kill).fold(Step::Rest, Step::or)
}

fn has_turn(pod: &PodState, sidecar: usize) -> bool {
    let later = |(at, c): (usize, &ContainerState)| match c.role {
        Role::Main => c.run.is_running(),
        Role::Sidecar => at > sidecar && c.run.is_running(),
        Role::Init | Role::Ephemeral => false,
    };
    !pod.containers.iter().enumerate().any(later)
}

/// Signals to one run.
struct Order<'p> {
    instance: (&'p PodState, &'p ContainerState, u32),
}

impl Order<'_> {
    fn signal(&self, signal: StopSignal, now: Time) -> Step {
        let (pod, container, attempt) = self.instance;
        when(container.stop.retry.at, now, || Action::Signal {
            instance: pod.instance(&container.name, attempt),
            signal,
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
        if stop.sent.is_none() && stop.killed.is_none() {
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
