//! Which hooks are to be carried out, and what follows from how they went? (kubelet-behaviour §5.9, §6.1). Like probes,
//! hooks are no lifecycle actions: they run beside them.
//!
//! ```text
//! started ──► postStart ──done──► up: probes, later containers          kill ──► preStop ──done, or no grace left──► stop signal
//!                 └─failed──► kill
//! ```
//!
//! A hook that was begun and is not known to be done is begun again by the next agent, `preStop` with the whole grace
//! (`kill.rs`); one that is done is not. A sleep
//! needs nobody to carry it out: it goes on over agent restarts.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::event::Instance;
use super::notice::{Kind, Notices};
use super::state::ContainerState;
use super::status::go_duration;
use super::{Notice, PodState, Time};
use crate::spec::{ContainerSpec, Hook, HookKind};

/// How far the hooks of one run have come. To be written down before a hook is begun, and once it is done.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hooks {
    /// The run's number.
    pub attempt: u32,
    /// `postStart`.
    pub post_start: Progress,
    /// `preStop`.
    pub pre_stop: Progress,
    /// Why `postStart` failed, for people.
    pub failure: Option<String>,
}

/// How far one hook has come.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// When it was first begun.
    pub begun: Option<Time>,
    /// When it was done, well or not.
    pub done: Option<Time>,
    /// This agent is carrying it out.
    #[serde(skip)]
    pub in_flight: bool,
}

impl Progress {
    /// Whether it was begun, and is not known to be done.
    fn is_open(&self) -> bool {
        self.begun.is_some() && self.done.is_none()
    }
}

impl Hooks {
    /// Of a run that has just started.
    pub(super) fn of(attempt: u32) -> Self {
        Self {
            attempt,
            ..Self::default()
        }
    }

    /// As a former agent left them, if they are this run's.
    pub(super) fn recovered(known: Option<&Self>, attempt: u32) -> Self {
        let mut hooks = match known {
            Some(known) if known.attempt == attempt => known.clone(),
            Some(_) | None => Self::of(attempt),
        };
        hooks.post_start.in_flight = false;
        hooks.pre_stop.in_flight = false;
        hooks
    }

    /// Whether there is nothing to remember.
    pub fn is_new(&self) -> bool {
        *self == Self::of(self.attempt)
    }

    fn of_mut(&mut self, hook: HookKind) -> &mut Progress {
        match hook {
            HookKind::PostStart => &mut self.post_start,
            HookKind::PreStop => &mut self.pre_stop,
        }
    }
}

/// One hook to be carried out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HookOrder {
    /// Of which run.
    pub instance: Instance,
    /// Which of its hooks.
    pub hook: HookKind,
}

/// How a hook went.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HookOutcome {
    /// The sentence for people, if it went wrong.
    pub failure: Option<String>,
    /// The host that was asked by HTTPS, answered by HTTP, and was asked again by that.
    pub fell_back: Option<String>,
}

/// Whether a running container's `postStart` hook is through, if it has one.
pub(super) fn is_up(spec: &ContainerSpec, c: &ContainerState) -> bool {
    let hooks = &c.hooks;
    spec.lifecycle.post_start.is_none()
        || hooks.post_start.done.is_some() && hooks.failure.is_none()
}

/// Whether the containers after this one wait for its `postStart` hook.
pub(super) fn holds_up(spec: &ContainerSpec, c: &ContainerState) -> bool {
    c.run.is_running() && spec.lifecycle.post_start.is_some() && c.hooks.post_start.done.is_none()
}

/// Whether this hook is to be carried out, or is being: before its run is ended, or as the first step of that.
fn applies(c: &ContainerState, hook: HookKind) -> bool {
    let open = c.run.is_running() && c.stop.asked.is_none();
    match hook {
        HookKind::PostStart => open && c.hooks.post_start.done.is_none() && c.kill.is_none(),
        // Without grace, `hook_ends` has come as soon as the kill begins.
        HookKind::PreStop => open && c.hooks.pre_stop.done.is_none() && c.kill.is_some(),
    }
}

/// The hooks to be begun now. Nothing is allocated when there are none.
pub fn due(pod: &PodState, now: Time) -> Vec<HookOrder> {
    let mut due = Vec::new();
    for (spec, c) in pod.each() {
        for kind in [HookKind::PostStart, HookKind::PreStop] {
            let begins = match (spec.lifecycle.hook(kind), kind) {
                (None | Some(Hook::Sleep { .. }), _) => false,
                (Some(_), HookKind::PostStart) => !c.hooks.post_start.in_flight,
                (Some(_), HookKind::PreStop) => {
                    let over = c.kill.is_none_or(|kill| now >= kill.hook_ends());
                    !c.hooks.pre_stop.in_flight && !over
                }
            };
            if begins && applies(c, kind) {
                due.push(HookOrder {
                    instance: pod.instance(&c.name, c.hooks.attempt),
                    hook: kind,
                });
            }
        }
    }
    due
}

/// When the next sleep is over: [`super::Event::TimePassed`] is to be said then.
pub fn sleep_ends(pod: &PodState) -> Option<Time> {
    let ends = pod.each().filter_map(|(spec, c)| {
        let kinds = [HookKind::PostStart, HookKind::PreStop].into_iter();
        let ends = kinds.filter_map(|kind| match spec.lifecycle.hook(kind)? {
            Hook::Sleep { ms } if applies(c, kind) => {
                let progress = match kind {
                    HookKind::PostStart => &c.hooks.post_start,
                    HookKind::PreStop => &c.hooks.pre_stop,
                };
                Some(progress.begun?.plus(*ms))
            }
            Hook::Sleep { .. } | Hook::Exec(_) | Hook::HttpGet(_) | Hook::TcpSocket => None,
        });
        ends.min()
    });
    ends.min()
}

impl PodState {
    /// Notes which sleeps have begun and which are over.
    pub(super) fn note_sleeps(&mut self, now: Time) {
        let pod = Arc::clone(&self.spec);
        for (spec, c) in pod.all_containers().zip(&mut self.containers) {
            for kind in [HookKind::PostStart, HookKind::PreStop] {
                if let Some(Hook::Sleep { ms }) = spec.lifecycle.hook(kind)
                    && applies(c, kind)
                {
                    let progress = c.hooks.of_mut(kind);
                    let begun = *progress.begun.get_or_insert(now);
                    if now >= begun.plus(*ms) {
                        progress.done = Some(begun.plus(*ms));
                    }
                }
            }
        }
    }
}

/// What is known of the hooks, if the order is about the run that runs.
fn find<'p>(pod: &'p mut PodState, order: &HookOrder) -> Option<&'p mut Hooks> {
    let container = pod.container_mut(&order.instance.container)?;
    let runs = container.run.is_running();
    let newest = container.run.attempt() == Some(order.instance.attempt);
    (runs && newest).then_some(&mut container.hooks)
}

pub(super) fn started(pod: &mut PodState, order: &HookOrder, now: Time, out: &mut Vec<Notice>) {
    let Some(hooks) = find(pod, order) else {
        return;
    };
    let progress = hooks.of_mut(order.hook);
    let again = progress.begun.is_some() && progress.done.is_none() && !progress.in_flight;
    progress.in_flight |= progress.done.is_none();
    progress.begun.get_or_insert(now);
    if again {
        let why = "cut off by an agent restart, so it is carried out again";
        tell_failure(pod, (&order.instance.container, order.hook), why, out);
    }
}

pub(super) fn done(
    pod: &mut PodState,
    order: &HookOrder,
    outcome: &HookOutcome,
    now: Time,
    out: &mut Vec<Notice>,
) {
    let Some(hooks) = find(pod, order) else {
        return;
    };
    let progress = hooks.of_mut(order.hook);
    if !std::mem::take(&mut progress.in_flight) {
        return;
    }
    progress.done = Some(now);
    if let (HookKind::PostStart, Some(failure)) = (order.hook, &outcome.failure) {
        hooks.failure = Some(failure.clone());
    }
    if let Some(host) = &outcome.fell_back {
        let text = format!(
            "request to HTTPS lifecycle hook {host} got HTTP response, retry with HTTP succeeded"
        );
        Notices::new(out, pod).pod(Kind::Warning, "LifecycleHTTPFallback", text);
    }
    if let Some(failure) = &outcome.failure {
        tell_failure(pod, (&order.instance.container, order.hook), failure, out);
    }
}

/// The kubelet's event, and why.
fn tell_failure(
    pod: &PodState,
    (container, hook): (&str, HookKind),
    why: &str,
    out: &mut Vec<Notice>,
) {
    let (reason, what) = match hook {
        HookKind::PostStart => ("FailedPostStartHook", "PostStartHook failed"),
        HookKind::PreStop => ("FailedPreStopHook", "PreStopHook failed"),
    };
    let text = format!("{what}: {why}");
    Notices::new(out, pod).container(container, Kind::Warning, reason, text);
}

/// A signal is about to be sent. The first one cuts off the `preStop` hook, if that is not done: its time is over.
pub(super) fn overtaken(pod: &PodState, instance: &Instance, out: &mut Vec<Notice>) {
    let Some(c) = pod.container(&instance.container) else {
        return;
    };
    let this = c.run.is_running() && c.run.attempt() == Some(instance.attempt);
    let first = this && c.stop.asked.is_none();
    if let Some(kill) = c.kill.filter(|_| first && c.hooks.pre_stop.is_open()) {
        let why = format!(
            "preStop hook not completed in grace period of {}",
            go_duration(kill.grace_ms)
        );
        tell_failure(pod, (&c.name, HookKind::PreStop), &why, out);
    }
}

impl PodState {
    /// Hooks of runs that have ended, also while there was no agent, never will be done. Said once for each run.
    pub(super) fn note_cut_off(&mut self, now: Time, out: &mut Vec<Notice>) {
        let mut cut_off = Vec::new();
        for c in &mut self.containers {
            let over = c.run.ended().is_some() && c.run.attempt() == Some(c.hooks.attempt);
            for hook in [HookKind::PostStart, HookKind::PreStop] {
                let overtaken = hook == HookKind::PreStop && c.stop.asked.is_some();
                let progress = c.hooks.of_mut(hook);
                if !over || !progress.is_open() {
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
