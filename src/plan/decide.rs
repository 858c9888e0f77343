//! What is to be done now? [`plan()`] looks at every pod by itself, so a pod's decision costs a few comparisons and no
//! allocation unless there is something to do: planning the whole node after every event takes microseconds for
//! hundreds of pods, and no cache of wake-ups can be wrong. [`plan_pod`] is there for whoever wants one pod's.

use super::action::Keep;
use super::event::Instance;
use super::state::{ContainerState, Image, Run, Sandbox, Stopping};
use super::{Action, NodeState, Plan, PodState, Settings, Time, restart};
use crate::spec::StopSignal;

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
        return stop(pod, stopping, now);
    }
    if pod.finished() {
        return match pod.sandbox {
            Sandbox::None | Sandbox::Removed => Step::Rest,
            Sandbox::Ready { .. } | Sandbox::Lost => remove(pod, Keep::Everything, now),
        };
    }
    match pod.sandbox {
        Sandbox::Ready { .. } => pod
            .containers
            .iter()
            .filter(|c| pod.wants_start(c))
            .map(|c| start(pod, c, settings, now))
            .fold(Step::Rest, Step::or),
        Sandbox::None | Sandbox::Lost | Sandbox::Removed => {
            let at = pod.create_retry.at.max(pod.lost_retry.at);
            when(at, now, || Action::CreateSandbox {
                pod: pod.spec.uid.clone(),
            })
        }
    }
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

/// Signals to whatever runs, and when nothing does, away with the rest.
fn stop(pod: &PodState, stopping: &Stopping, now: Time) -> Step {
    if !pod.any_running() {
        return remove(pod, Keep::Nothing, now);
    }
    pod.containers
        .iter()
        .map(|c| match c.run {
            Run::Running { attempt, .. } => {
                signal(pod.instance(&c.name, attempt), c, stopping, now)
            }
            Run::None | Run::Ended(_) => Step::Rest,
        })
        .fold(Step::Rest, Step::or)
}

fn signal(instance: Instance, container: &ContainerState, stopping: &Stopping, now: Time) -> Step {
    let stop = &container.stop;
    // A stop signal that could not be sent must not put off the end for ever.
    let deadline = match stop.sent.or(stop.asked) {
        Some(first) => first.plus(stopping.grace_ms()),
        None if stopping.grace_ms() == 0 => now,
        None => return when(stop.retry.at, now, || order(instance, StopSignal::Stop)),
    };
    let kill_at = match stop.killed {
        Some(last) => last.plus(KILL_AGAIN_MS),
        None => deadline,
    };
    let kill = when(kill_at.max(stop.retry.at), now, || {
        order(instance.clone(), StopSignal::Kill)
    });
    if stop.sent.is_none() && stop.killed.is_none() && now < deadline {
        return kill.or(when(stop.retry.at, now, || {
            order(instance, StopSignal::Stop)
        }));
    }
    kill
}

fn order(instance: Instance, signal: StopSignal) -> Action {
    let reason = format!("Stopping container {}", instance.container);
    Action::Signal {
        instance,
        signal,
        reason,
    }
}

fn remove(pod: &PodState, keep: Keep, now: Time) -> Step {
    when(pod.remove_retry.at, now, || Action::RemoveSandbox {
        pod: pod.spec.uid.clone(),
        keep,
    })
}
