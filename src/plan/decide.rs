//! The next step in a pod's lifecycle. A pod's decision costs a few comparisons and no allocation unless there is
//! something to do.

use super::action::Keep;
use super::kill::KillReason;
use super::run::{Course, Stop};
use super::state::{ContainerState, Image, Role, Sandbox};
use super::verdict::Cause;
use super::{Action, PodState, Settings, Step, Task, Time, hook, restart};
use crate::spec::ContainerSpec;
use crate::types::StopSignal;

/// A container that was killed and does not end is killed again after this long.
pub const KILL_AGAIN_MS: u64 = 30_000;

/// Begins the next action of a pod. It has one at a time.
pub fn next(pod: &PodState, settings: &Settings, now: Time) -> Step {
    if pod.in_flight.is_some() || pod.hold().is_some() {
        return Step::Rest;
    }
    if pod.stopping().is_some() {
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
            // A resize comes before the starts that need its room.
            let resize = match pod.resize() {
                Some(action) => when(pod.resizing.retry.at, now, || action),
                None => Step::Rest,
            };
            let kills = kill_each(pod, now);
            let starts = resize.or(added).or(starts);
            kills.or(starts).or(look_ahead(pod, now))
        }
        Sandbox::None | Sandbox::Lost | Sandbox::Removed => {
            let at = pod.retries.create.at.max(pod.retries.lost.at);
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

/// Whether an earlier container is not through with its `postStart` hook (the kubelet's `pkg/kubelet/kuberuntime`). What was
/// added is for finding out why.
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
    Step::when(at, now, || Step::Begin(Task::Act(action())))
}

/// Image first, then the container; both wait for whatever failed before, and the container for its devices.
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
    if matches!(container.image, Image::Ready { .. }) && pod.lacks_devices(container) {
        return Step::Rest;
    }
    when(at, now, || match &container.image {
        Image::Ready { id, volumes } => Action::StartContainer {
            instance: pod.instance(&container.name, container.next_attempt),
            image_id: id.clone(),
            volumes: volumes.clone(),
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
        if !c.run.is_running() || c.kill().is_some() || !c.is_outdated(spec) {
            return Step::Rest;
        }
        match &c.image {
            Image::Ready { .. } => Step::Rest,
            Image::Unknown => when(now, now, || look_for_image(pod, c)),
            Image::Failed { retry, .. } => when(retry.at, now, || look_for_image(pod, c)),
        }
    };
    pod.each().map(look).fold(Step::Rest, Step::or)
}

/// Signals to whatever is being ended, regular containers first. Sidecars of a pod that ends have to wait for the
/// containers they serve: until all others and the sidecars after them are gone, or the grace period is over
/// (Kubernetes docs: Termination of Pods).
fn kill_each(pod: &PodState, now: Time) -> Step {
    let inits = pod.inits().len();
    let hooked = |at: usize| {
        let spec = pod.spec.all_containers().nth(at);
        spec.is_some_and(|spec| spec.lifecycle.pre_stop.is_some())
    };
    let kill = |at: usize| {
        let c = &pod.containers[at];
        let (Some(run), Some(kill)) = (c.run.running(), c.kill()) else {
            return Step::Rest;
        };
        let Course { hooks, stop, .. } = &run.course;
        let order = Order {
            instance: (pod, c, run.attempt),
            stop,
        };
        let waits = c.role == Role::Sidecar && kill.reason == KillReason::Stopping;
        match stop.sent.or(stop.asked) {
            _ if kill.at_once => order.kill(now, now),
            Some(first) => order.stop(kill.expires(c.role, hooks, first), now),
            None if hooks.pre_stop.done.is_none() && hooked(at) && now < kill.hook_ends() => {
                Step::WakeAt(kill.hook_ends())
            }
            None if waits && now < kill.turn_ends(hooks) && !has_turn(pod, at) => {
                Step::WakeAt(kill.turn_ends(hooks))
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
    stop: &'p Stop,
}

impl Order<'_> {
    fn signal(&self, signal: StopSignal, now: Time) -> Step {
        let (pod, container, attempt) = self.instance;
        when(self.stop.retry.at, now, || Action::Signal {
            instance: pod.instance(&container.name, attempt),
            signal,
        })
    }

    /// A kill at that moment, and again if that does not help.
    fn kill(&self, at: Time, now: Time) -> Step {
        let stop = self.stop;
        let at = stop.killed.map_or(at, |last| last.plus(KILL_AGAIN_MS));
        match now < at.max(stop.retry.at) {
            true => Step::WakeAt(at.max(stop.retry.at)),
            false => self.signal(StopSignal::Kill, now),
        }
    }

    /// The stop signal again if it could not be sent, which must not put off the end for ever.
    fn stop(&self, deadline: Time, now: Time) -> Step {
        let stop = self.stop;
        let kill = self.kill(deadline, now);
        if stop.sent.is_none() && stop.killed.is_none() {
            return kill.or(self.signal(StopSignal::Stop, now));
        }
        kill
    }
}

fn remove(pod: &PodState, keep: Keep, now: Time) -> Step {
    when(pod.retries.remove.at, now, || Action::RemoveSandbox {
        pod: pod.spec.uid.clone(),
        keep,
    })
}
