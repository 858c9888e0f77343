//! Lifecycle hooks: which ones run now, and what their results change (Kubernetes docs: Container Lifecycle Hooks,
//! Termination of Pods). Like probes, hooks are not pod actions: they run beside them.
//!
//! ```text
//! started ──► postStart ──done──► up: probes, later containers          kill ──► preStop ──done, or no grace left──► stop signal
//!                 └─failed──► kill
//! ```
//!
//! The shim runs the program of an `exec` hook: it survives agent restarts, and the restarted agent joins it or
//! gets its result. A hook that was begun, is not known to be done and is not held by the shim (an HTTP request)
//! begins again, `preStop` with the whole grace (`kill.rs`). A sleep is timed by the planner's clock and survives,
//! too.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::event::Instance;
use super::notice::Notices;
use super::recovered::HeldHook;
use super::run::{Course, Run, Running};
use super::state::ContainerState;
use super::status::go_duration;
use super::{Event, Notice, PodFact, PodState, RunFact, Step, Task, Time};
use crate::spec::{ContainerSpec, Hook, HookKind, Reason};

/// The progress of one run's hooks. Written to disk before a hook begins, and once it is done.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hooks {
    /// Progress of `postStart`.
    pub post_start: Progress,
    /// Progress of `preStop`.
    pub pre_stop: Progress,
    /// Why `postStart` failed, for people.
    pub failure: Option<String>,
}

/// The progress of one hook.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// When it was first begun.
    pub begun: Option<Time>,
    /// When it was done, successfully or not.
    pub done: Option<Time>,
    /// This agent is running it.
    #[serde(skip)]
    pub in_flight: bool,
    /// It began before an agent restart, and the shim still runs it.
    #[serde(skip)]
    pub held: bool,
}

impl Progress {
    /// Whether it was begun and is not known to be done.
    fn is_open(&self) -> bool {
        self.begun.is_some() && self.done.is_none()
    }
}

impl Hooks {
    /// As they are saved: no agent carries one out.
    pub(super) fn resting(&self) -> Self {
        let mut hooks = self.clone();
        for progress in [&mut hooks.post_start, &mut hooks.pre_stop] {
            (progress.in_flight, progress.held) = (false, false);
        }
        hooks
    }

    /// Whether there is nothing to save.
    pub fn is_new(&self) -> bool {
        *self == Self::default()
    }

    fn of(&self, hook: HookKind) -> &Progress {
        match hook {
            HookKind::PostStart => &self.post_start,
            HookKind::PreStop => &self.pre_stop,
        }
    }

    fn of_mut(&mut self, hook: HookKind) -> &mut Progress {
        match hook {
            HookKind::PostStart => &mut self.post_start,
            HookKind::PreStop => &mut self.pre_stop,
        }
    }
}

/// One hook to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HookOrder {
    /// The run that it belongs to.
    pub instance: Instance,
    /// Which hook of the container.
    pub hook: HookKind,
}

impl HookOrder {
    /// That the hook begins.
    pub fn started(self) -> Event {
        Event::Run {
            instance: self.instance,
            fact: RunFact::HookStarted(self.hook),
        }
    }

    /// That the hook was carried out.
    pub fn done(self, outcome: HookOutcome) -> Event {
        Event::Run {
            instance: self.instance,
            fact: RunFact::HookDone {
                hook: self.hook,
                outcome,
            },
        }
    }
}

/// The result of a hook.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HookOutcome {
    /// The error for people, if it failed.
    pub failure: Option<String>,
    /// The host that was asked by HTTPS, answered by HTTP, and was asked again by HTTP.
    pub fell_back: Option<String>,
    /// When it was done, if that was before its outcome arrived.
    pub at: Option<Time>,
}

/// Whether a running container's `postStart` hook is done, or there is none.
pub(super) fn is_up(spec: &ContainerSpec, run: &Running) -> bool {
    let hooks = &run.course.hooks;
    spec.lifecycle.post_start.is_none()
        || hooks.post_start.done.is_some() && hooks.failure.is_none()
}

/// Whether later containers wait for this one's `postStart` hook.
pub(super) fn holds_up(spec: &ContainerSpec, c: &ContainerState) -> bool {
    let open = |run: &Running| run.course.hooks.post_start.done.is_none();
    spec.lifecycle.post_start.is_some() && c.run.running().is_some_and(open)
}

/// Whether this hook is due or running: `postStart` before the run ends, `preStop` as the first step of its end.
fn applies(run: &Running, hook: HookKind) -> bool {
    let Course { hooks, stop, .. } = &run.course;
    let begins = match hook {
        HookKind::PostStart => run.kill.is_none(),
        // Without grace, `hook_ends` is the moment the kill begins.
        HookKind::PreStop => run.kill.is_some(),
    };
    begins && stop.asked.is_none() && hooks.of(hook).done.is_none()
}

/// Begins a hook. A sleep is not begun: the planner's clock times it.
pub fn next(pod: &PodState, now: Time) -> Step {
    for (spec, c) in pod.each() {
        let Some(run) = c.run.running() else {
            continue;
        };
        for hook in [HookKind::PostStart, HookKind::PreStop] {
            let over = match (spec.lifecycle.hook(hook), hook) {
                (None | Some(Hook::Sleep { .. }), _) => true,
                (Some(_), HookKind::PostStart) => false,
                (Some(_), HookKind::PreStop) => run.kill.is_none_or(|kill| now >= kill.hook_ends()),
            };
            if !over && !run.course.hooks.of(hook).in_flight && applies(run, hook) {
                let instance = pod.instance(&c.name, run.attempt);
                return Step::Begin(Task::Hook(HookOrder { instance, hook }));
            }
        }
    }
    Step::Rest
}

/// Records the end of a sleep.
pub fn next_sleep(pod: &PodState, now: Time) -> Step {
    let ends = pod.each().filter_map(|(spec, c)| {
        let run = c.run.running()?;
        let kinds = [HookKind::PostStart, HookKind::PreStop].into_iter();
        let ends = kinds.filter_map(|kind| match spec.lifecycle.hook(kind)? {
            Hook::Sleep { ms } if applies(run, kind) => {
                Some(run.course.hooks.of(kind).begun?.plus(*ms))
            }
            Hook::Sleep { .. } | Hook::Exec(_) | Hook::HttpGet(_) | Hook::TcpSocket => None,
        });
        ends.min()
    });
    let passed = || {
        Step::Record(Event::Pod {
            uid: pod.spec.uid.clone(),
            fact: PodFact::TimePassed,
        })
    };
    ends.min()
        .map_or(Step::Rest, |at| Step::when(at, now, passed))
}

impl PodState {
    /// Notes which sleeps have begun and which are over.
    pub(super) fn note_sleeps(&mut self, now: Time) {
        let pod = Arc::clone(&self.spec);
        for (spec, c) in pod.all_containers().zip(&mut self.containers) {
            let Some(run) = c.run.running_mut() else {
                continue;
            };
            for kind in [HookKind::PostStart, HookKind::PreStop] {
                if let Some(Hook::Sleep { ms }) = spec.lifecycle.hook(kind)
                    && applies(run, kind)
                {
                    let progress = run.course.hooks.of_mut(kind);
                    let begun = *progress.begun.get_or_insert(now);
                    if now >= begun.plus(*ms) {
                        progress.done = Some(begun.plus(*ms));
                    }
                }
            }
        }
    }
}

/// The hooks of the run, if it is the current one.
fn find<'p>(pod: &'p mut PodState, instance: &Instance) -> Option<&'p mut Hooks> {
    let run = pod.container_mut(&instance.container)?.run.running_mut()?;
    (run.attempt == instance.attempt).then_some(&mut run.course.hooks)
}

pub(super) fn started(
    pod: &mut PodState,
    (instance, hook): (&Instance, HookKind),
    now: Time,
    out: &mut Vec<Notice>,
) {
    let Some(hooks) = find(pod, instance) else {
        return;
    };
    let progress = hooks.of_mut(hook);
    let lost = !progress.in_flight && !std::mem::take(&mut progress.held);
    let again = progress.begun.is_some() && progress.done.is_none() && lost;
    progress.in_flight |= progress.done.is_none();
    progress.begun.get_or_insert(now);
    if again {
        let why = "cut off by an agent restart, so it is carried out again";
        tell_failure(pod, (&instance.container, hook), why, out);
    }
}

/// Takes over the hooks that the shim holds from before an agent restart.
pub(super) fn recover_held(
    pod: &mut PodState,
    container: &str,
    held: &BTreeMap<HookKind, HeldHook>,
    now: Time,
    out: &mut Vec<Notice>,
) {
    for (&hook, held) in held {
        let Some(c) = pod.container_mut(container) else {
            return;
        };
        let (Some(attempt), Some(course)) = (c.run.attempt(), c.run.course_mut()) else {
            return;
        };
        let progress = course.hooks.of_mut(hook);
        if progress.done.is_some() {
            continue;
        }
        match held {
            HeldHook::Running => progress.held = true,
            HeldHook::Done(outcome) => {
                progress.begun.get_or_insert(outcome.at.unwrap_or(now));
                progress.in_flight = true;
                let instance = pod.instance(container, attempt);
                done(pod, (&instance, hook), outcome, now, out);
            }
        }
    }
}

pub(super) fn done(
    pod: &mut PodState,
    (instance, hook): (&Instance, HookKind),
    outcome: &HookOutcome,
    now: Time,
    out: &mut Vec<Notice>,
) {
    let Some(hooks) = find(pod, instance) else {
        return;
    };
    let progress = hooks.of_mut(hook);
    if !std::mem::take(&mut progress.in_flight) {
        return;
    }
    let begun = progress.begun.unwrap_or(now);
    progress.done = Some(outcome.at.unwrap_or(now).clamp(begun, now.max(begun)));
    if let (HookKind::PostStart, Some(failure)) = (hook, &outcome.failure) {
        hooks.failure = Some(failure.clone());
    }
    if let Some(host) = &outcome.fell_back {
        let text = format!(
            "request to HTTPS lifecycle hook {host} got HTTP response, retry with HTTP succeeded"
        );
        Notices::new(out, pod).pod(Reason::LifecycleHTTPFallback, text);
    }
    // One that the stop signal has cut off is reported already.
    let stopping = pod.container(&instance.container);
    let stopping = stopping.and_then(|c| c.run.course()?.stop.asked);
    let told = hook == HookKind::PreStop && stopping.is_some();
    if let Some(failure) = outcome.failure.as_ref().filter(|_| !told) {
        tell_failure(pod, (&instance.container, hook), failure, out);
    }
}

/// Records a failed hook, with the kubelet's event.
fn tell_failure(
    pod: &PodState,
    (container, hook): (&str, HookKind),
    why: &str,
    out: &mut Vec<Notice>,
) {
    let (reason, what) = match hook {
        HookKind::PostStart => (Reason::FailedPostStartHook, "PostStartHook failed"),
        HookKind::PreStop => (Reason::FailedPreStopHook, "PreStopHook failed"),
    };
    let text = format!("{what}: {why}");
    Notices::new(out, pod).container(container, reason, text);
}

/// Notes that a signal is about to be sent. The first one cuts off a `preStop` hook that is not done.
pub(super) fn overtaken(pod: &PodState, instance: &Instance, out: &mut Vec<Notice>) {
    let Some(c) = pod.container(&instance.container) else {
        return;
    };
    let Some(run) = c.run.running() else {
        return;
    };
    let Course { hooks, stop, .. } = &run.course;
    let first = run.attempt == instance.attempt && stop.asked.is_none();
    if let Some(kill) = run.kill.filter(|_| first && hooks.pre_stop.is_open()) {
        let why = format!(
            "preStop hook not completed in grace period of {}",
            go_duration(kill.grace_ms)
        );
        tell_failure(pod, (&c.name, HookKind::PreStop), &why, out);
    }
}

impl PodState {
    /// Hooks of ended runs never finish, even if the run ended while no agent ran. Emits one event for each run.
    pub(super) fn note_cut_off(&mut self, now: Time, out: &mut Vec<Notice>) {
        let mut cut_off = Vec::new();
        for c in &mut self.containers {
            let Run::Ended(past) = &mut c.run else {
                continue;
            };
            let Course { hooks, stop, .. } = &mut past.course;
            for hook in [HookKind::PostStart, HookKind::PreStop] {
                let overtaken = hook == HookKind::PreStop && stop.asked.is_some();
                let progress = hooks.of_mut(hook);
                if !progress.is_open() {
                    continue;
                }
                (progress.done, progress.in_flight) = (Some(now), false);
                if !overtaken {
                    cut_off.push((c.name.clone(), hook));
                }
            }
        }
        for (name, hook) in cut_off {
            let spec = self.spec.container(&name);
            let what = match spec.and_then(|spec| spec.lifecycle.hook(hook)) {
                Some(Hook::Sleep { .. }) => "sleep hook",
                Some(Hook::Exec(_) | Hook::HttpGet(_) | Hook::TcpSocket) | None => "the hook",
            };
            let why = format!("container terminated before {what} finished");
            tell_failure(self, (&name, hook), &why, out);
        }
    }
}
