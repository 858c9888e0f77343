//! What does a fact change? One arm for each event; facts that come late, twice or out of order change nothing.
//!
//! Outcomes are believed only while the action they answer is in flight, facts about a container only if they are
//! about its newest run or the one being started. Nothing is decided here: waits are recorded, not waited for.

mod container;
mod image;
mod sandbox;

use std::sync::Arc;

use super::action::Keep;
use super::event::Instance;
use super::notice::{Kind, Notices};
use super::state::{ContainerState, Retry, Role, Sandbox};
use super::{
    Action, Event, NodeState, Notice, PodState, Settings, Stamp, Time, condition, former, hook,
    network, probe, restart, retry, verdict,
};
use crate::spec::{PodSpec, PodUid};
pub(super) use container::end_run;
use container::{container_exited, container_started, signal_failed, signal_sent, start_failed};
use image::{image_failed, image_ready, images_changed};
pub(super) use sandbox::count_loss;
use sandbox::{
    host_ports_freed, sandbox_created, sandbox_failed, sandbox_lost, sandbox_remove_failed, warned,
};

/// Containers that could not be created: 10 s, doubling up to 60 s.
pub const START_RETRY_MS: (u64, u64) = (10_000, 60_000);
/// Image back-off: 10 s, doubling up to 300 s.
pub const IMAGE_RETRY_MS: (u64, u64) = (10_000, 300_000);
/// Volume failures: 500 ms, doubling up to 122 s.
pub const VOLUME_RETRY_MS: (u64, u64) = (500, 122_000);
/// Other failures of making or removing a sandbox: 1 s, doubling up to 60 s.
pub const SANDBOX_RETRY_MS: (u64, u64) = (1_000, 60_000);
/// Signals that could not be sent: 1 s, doubling up to 10 s.
pub const SIGNAL_RETRY_MS: (u64, u64) = (1_000, 10_000);
/// A sandbox that lived this long is replaced at once when it is lost.
pub const SANDBOX_STABLE_MS: u64 = 60_000;

impl NodeState {
    /// Records a fact; returns what is worth telling people.
    pub fn apply(&mut self, event: &Event, now: Stamp) -> Vec<Notice> {
        let mut notices = Vec::new();
        let out = &mut notices;
        match event {
            Event::DesiredChanged(desired) => self.desired_changed(desired, now, out),
            Event::PodRecovered(recovered) => self.pod_recovered(recovered, now, out),
            Event::DeleteRequested { pod, grace_ms } => {
                self.delete_requested(pod, *grace_ms, now);
                self.on(pod, now, out, |_, _, _| {});
                // One that was down for a shutdown does not come back.
                self.room_made(now, out);
            }
            Event::FormerEnds { pod, ends } => self.on(pod, now, out, |pod, _, _| {
                former::remember(pod, ends);
            }),
            Event::DeadlineExceeded { pod } => self.on(pod, now, out, |pod, _, out| {
                verdict::deadline_exceeded(pod, now, out);
            }),
            Event::GraceExceeded { pod } => self.on(pod, now, out, |pod, _, out| {
                verdict::grace_exceeded(pod, now.time, out);
            }),
            Event::RetryRequested { pod, container } => {
                self.on(pod, now, out, |pod, settings, _| {
                    retry::retry(pod, container.as_deref(), settings, now.time);
                });
            }
            Event::ConditionsSet { pod, changes } => self.on(pod, now, out, |pod, _, _| {
                condition::set(pod, changes, now.wall);
            }),
            Event::SandboxRemoved { pod } => {
                self.sandbox_removed(pod, now);
                self.room_made(now, out);
            }
            Event::EphemeralAdded { pod, spec } => {
                self.on(pod, now, out, |pod, _, _| added(pod, spec));
            }
            Event::ShutdownBegun { groups, asked_by } => {
                self.shutdown_begun((groups, *asked_by), now, out);
            }
            Event::ShutdownRecovered(shutdown) => self.shutdown_recovered(shutdown, now, out),
            Event::ShutdownTurnOver => self.take_turns(now, out),
            Event::ShutdownCancelled => {
                self.shutdown_cancelled();
                self.admit(now, out);
            }
            Event::Cordoned => {
                self.cordoned(now);
                self.admit(now, out);
            }
            Event::DrainBegun { pods, grace_ms } => {
                self.drain_begun(pods.as_ref(), *grace_ms, now, out);
            }
            Event::CordonRecovered(cordon) => self.cordon_recovered(cordon, now, out),
            Event::DrainTurn => self.drain_turn(now, out),
            Event::Uncordoned => self.uncordoned(now, out),
            Event::PodRestored { pod } => self.pod_restored(pod, now, out),
            Event::PolicyChanged(policy) => {
                self.pressure.policy_changed(policy, now);
                self.admit(now, out);
            }
            Event::ReliefBegun(order) => self.pressure.relief_begun(*order),
            Event::Observed(figures) => self.observed(figures, now, out),
            Event::Reclaimed => self.pressure.reclaimed(now.time),
            Event::Alarmed => self.pressure.alarmed(now.time),
            Event::PodEvicted { pod, eviction } => self.pod_evicted(pod, eviction, now, out),
            Event::NodeAddressesChanged => self.network_changes += 1,
            Event::SettingsChanged(settings) => {
                self.settings = settings.clone();
                self.room_made(now, out);
            }
            Event::ImagesChanged => self.pods.values_mut().for_each(|p| images_changed(p, now)),
            Event::ActionStarted(action) => {
                self.on(action.pod(), now, out, |pod, settings, out| {
                    if let Action::Signal { instance, .. } = action {
                        hook::overtaken(pod, instance, out);
                    }
                    action_started(pod, settings, action, now.time);
                })
            }
            Event::SandboxCreated {
                pod,
                ips,
                next_attempts,
                warnings,
            } => self.on(pod, now, out, |pod, _, out| {
                if pod.answered(|a| matches!(a, Action::CreateSandbox { .. })) {
                    sandbox_created(pod, ips, next_attempts, now.time);
                    warned(pod, warnings, out);
                }
            }),
            Event::SandboxFailed { pod, failure } => self.on(pod, now, out, |pod, _, out| {
                if pod.answered(|a| matches!(a, Action::CreateSandbox { .. })) {
                    sandbox_failed(pod, failure, now.time, out);
                }
            }),
            Event::SandboxLost { pod } => {
                self.on(pod, now, out, |pod, _, out| sandbox_lost(pod, now, out));
            }
            Event::SandboxRemoveFailed { pod, error } => self.on(pod, now, out, |pod, _, out| {
                if pod.answered(|a| matches!(a, Action::RemoveSandbox { .. })) {
                    sandbox_remove_failed(pod, error, now.time, out);
                }
            }),
            Event::ImageReady {
                pod,
                container,
                image_id,
            } => self.on(pod, now, out, |pod, _, out| {
                if pod.answered(|a| is_image_of(a, container)) {
                    image_ready(pod, container, image_id, out);
                }
            }),
            Event::ImageFailed {
                pod,
                container,
                failure,
                message,
            } => self.on(pod, now, out, |pod, _, out| {
                if pod.answered(|a| is_image_of(a, container)) {
                    image_failed(pod, container, *failure, message, now.time, out);
                }
            }),
            Event::Resized { pod } => self.on(pod, now, out, |pod, _, _| {
                if let Some(Action::Resize { to, containers, .. }) = pod
                    .in_flight
                    .take_if(|a| matches!(a, Action::Resize { .. }))
                {
                    pod.resized(to, &containers);
                }
            }),
            Event::ResizeFailed { pod, error } => self.on(pod, now, out, |pod, _, out| {
                if pod.answered(|a| matches!(a, Action::Resize { .. })) {
                    pod.resize_failed(error, now.time, out);
                }
            }),
            Event::ContainerStarted {
                instance,
                pid,
                at,
                effective,
            } => self.on(&instance.pod, now, out, |pod, _, out| {
                container_started(pod, instance, (*pid, effective), *at, out);
            }),
            Event::Warned {
                pod,
                container,
                warnings,
            } => self.on(pod, now, out, |pod, _, out| {
                let mut notices = Notices::new(out, pod);
                for (reason, message) in warnings {
                    match container {
                        Some(name) => {
                            notices.container(name, Kind::Warning, reason, message.clone());
                        }
                        None => notices.pod(Kind::Warning, *reason, message.clone()),
                    }
                }
            }),
            Event::ContainerStartFailed {
                instance,
                failure,
                message,
            } => self.on(&instance.pod, now, out, |pod, settings, out| {
                if pod.answered(|a| is_start_of(a, instance)) {
                    start_failed(pod, settings, instance, (*failure, message), now, out);
                }
            }),
            Event::ContainerExited { instance, exit } => {
                self.on(&instance.pod, now, out, |pod, settings, out| {
                    container_exited(pod, settings, instance, exit, now.time, out);
                });
            }
            Event::SignalSent {
                instance,
                signal,
                at,
            } => self.on(&instance.pod, now, out, |pod, _, _| {
                pod.answered(|a| is_signal_to(a, instance));
                signal_sent(pod, instance, *signal, *at, now.time);
            }),
            Event::ProbeStarted(order) => self.on(&order.instance.pod, now, out, |pod, _, _| {
                probe::started(pod, order, now.time);
            }),
            Event::ProbeDone { order, outcome } => {
                self.on(&order.instance.pod, now, out, |pod, _, out| {
                    probe::done(pod, order, outcome, now.time, out);
                })
            }
            Event::HookStarted(order) => self.on(&order.instance.pod, now, out, |pod, _, out| {
                hook::started(pod, order, now.time, out);
            }),
            Event::HookDone { order, outcome } => {
                self.on(&order.instance.pod, now, out, |pod, _, out| {
                    hook::done(pod, order, outcome, now.time, out);
                });
            }
            Event::TimePassed { pod } => self.on(pod, now, out, |_, _, _| {}),
            Event::SignalFailed { instance, error } => {
                self.on(&instance.pod, now, out, |pod, _, out| {
                    if pod.answered(|a| is_signal_to(a, instance)) {
                        signal_failed(pod, instance, error, now.time, out);
                    }
                })
            }
        }
        notices
    }

    /// Changes one pod, then notes what follows from it.
    pub(super) fn on(
        &mut self,
        uid: &PodUid,
        now: Stamp,
        out: &mut Vec<Notice>,
        change: impl FnOnce(&mut PodState, &Settings, &mut Vec<Notice>),
    ) {
        if let Some(pod) = self.pods.get_mut(uid) {
            let before = network::facts(pod);
            let took = (pod.takes_room(), pod.takes_ports());
            change(pod, &self.settings, out);
            pod.settle(now, out);
            self.network_changes += u64::from(before != network::facts(pod));
            let room = took.0 && !pod.takes_room();
            let ports = took.1 && !pod.takes_ports();
            if room || ports {
                self.room_made(now, out);
            }
        }
    }

    /// There may be more room now: first for those that have none, then for those that want more.
    fn room_made(&mut self, now: Stamp, out: &mut Vec<Notice>) {
        self.admit(now, out);
        self.admit_resizes(now, out);
    }

    fn sandbox_removed(&mut self, uid: &PodUid, now: Stamp) {
        let Some(pod) = self.pods.get_mut(uid) else {
            return;
        };
        match pod.in_flight {
            Some(Action::RemoveSandbox { keep, .. }) => {
                self.network_changes += 1;
                match keep {
                    Keep::Everything | Keep::Logs => {
                        if keep == Keep::Logs {
                            self.pressure.changes(now.time);
                        }
                        pod.in_flight = None;
                        pod.sandbox = Sandbox::Removed;
                        pod.remove_retry = Retry::default();
                        pod.note_conditions(now);
                    }
                    Keep::Nothing => {
                        if let Some(pod) = self.pods.remove(uid) {
                            self.incarnation_ended(&pod);
                        }
                    }
                }
                self.pods.values_mut().for_each(host_ports_freed);
            }
            // Late: the pod has moved on.
            Some(
                Action::CreateSandbox { .. }
                | Action::EnsureImage { .. }
                | Action::Resize { .. }
                | Action::StartContainer { .. }
                | Action::Signal { .. },
            )
            | None => {}
        }
    }
}

impl PodState {
    /// Clears the action in flight if it is the one answered; whether it was.
    fn answered(&mut self, is_it: impl FnOnce(&Action) -> bool) -> bool {
        let yes = self.in_flight.as_ref().is_some_and(is_it);
        if yes {
            self.in_flight = None;
        }
        yes
    }

    /// Notes what follows from the facts.
    pub(super) fn settle(&mut self, now: Stamp, out: &mut Vec<Notice>) {
        self.note_sleeps(now.time);
        self.note_cut_off(now.time, out);
        self.note_health();
        self.note_round(now.time);
        self.note_finishing(now.time);
        self.note_kills(now.time, out);
        self.note_sleeps(now.time);
        self.note_resize(now.wall, out);
        self.note_conditions(now);
    }

    /// Only sidecars and ephemeral containers are left: their grace period begins.
    pub(super) fn note_finishing(&mut self, now: Time) {
        if self.stopping.is_none() && self.any_running() && self.complete() {
            self.finishing.get_or_insert(now);
        } else {
            self.finishing = None;
        }
    }
}

/// Those that are there already stay as they are.
fn added(pod: &mut PodState, spec: &PodSpec) {
    pod.spec = Arc::new(pod.spec.with_ephemeral_of(spec));
    if let Some(pending) = &mut pod.pending {
        pending.spec = Arc::new(pending.spec.with_ephemeral_of(spec));
    }
    let known = pod.ephemerals().len();
    for new in &spec.ephemeral_containers[known.min(spec.ephemeral_containers.len())..] {
        let state = ContainerState::new(&new.name, Role::Ephemeral);
        pod.containers.push(state);
    }
}

fn is_image_of(action: &Action, name: &str) -> bool {
    matches!(action, Action::EnsureImage { container, .. } if container == name)
}

fn is_start_of(action: &Action, of: &Instance) -> bool {
    matches!(action, Action::StartContainer { instance, .. } if instance == of)
}

fn is_signal_to(action: &Action, to: &Instance) -> bool {
    matches!(action, Action::Signal { instance, .. } if instance == to)
}

fn action_started(pod: &mut PodState, settings: &Settings, action: &Action, now: Time) {
    match action {
        Action::CreateSandbox { .. } => pod.resizing.actuated = pod.spec.resources,
        Action::Resize { .. } | Action::RemoveSandbox { .. } => {}
        Action::EnsureImage { .. } => {
            pod.images_changed = false;
            pod.image_edited = false;
        }
        Action::StartContainer { instance, .. } => {
            let waits = pod.waits(settings);
            let spec = pod.spec.container(&instance.container);
            let asked = spec.map(|spec| spec.asked(instance.attempt));
            if let Some(container) = pod.container_mut(&instance.container) {
                container.starting = asked;
                restart::permit(container, instance.attempt, waits, now);
            }
        }
        Action::Signal { instance, .. } => {
            if let Some(container) = pod.container_mut(&instance.container)
                && container.run.attempt() == Some(instance.attempt)
            {
                container.stop.asked.get_or_insert(now);
            }
        }
    }
    pod.in_flight = Some(action.clone());
}
