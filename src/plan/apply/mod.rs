//! The changes that a fact makes to the state, one arm for each event. Facts that come late, twice or out of order
//! change nothing.
//!
//! An outcome counts only while the action that it answers is in flight; a fact about a container counts only for
//! its newest run or the one being started. Nothing is decided here: waits are recorded, not waited for.

mod configuration;
mod container;
mod image;
mod sandbox;

use std::sync::Arc;

use super::action::Keep;
use super::event::Instance;
use super::run::OfRun;
use super::state::{ContainerState, LookUp, Retry, Role, Sandbox, Stage};
use super::{
    Action, Event, NodeFact, NodeState, Notice, PodFact, PodState, RunFact, Settings, Stamp, Time,
    condition, former, hook, network, probe, restart, restart_request, retry, verdict,
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
    /// Records a fact; returns the Kubernetes events to emit.
    pub fn apply(&mut self, event: &Event, now: Stamp) -> Vec<Notice> {
        let mut notices = Vec::new();
        let out = &mut notices;
        self.touched.clear();
        let (level, holds) = (self.level_of(event.pod()), self.hold_changes);
        let (standing, network) = (self.standing(event.pod()), self.network_changes);
        match event {
            Event::Node(fact) => self.node_fact(fact, now, out),
            Event::Pod { uid, fact } => self.pod_fact(uid, fact, now, out),
            Event::Run { instance, fact } => {
                self.on(&instance.pod, now, out, |pod, settings, out| {
                    run_fact(pod, settings, instance, fact, now, out);
                });
            }
        }
        let concerns_order = match event {
            Event::Node(fact) => matches!(
                fact,
                NodeFact::DesiredChanged(_)
                    | NodeFact::ShutdownCancelled
                    | NodeFact::OutsideSeen(_)
            ),
            Event::Pod { .. } | Event::Run { .. } => level != self.level_of(event.pod()),
        };
        if concerns_order || holds != self.hold_changes {
            self.order_changed(now, out);
        }
        let held = holds != self.hold_changes;
        // A drain or a shutdown concerns many pods at once.
        let many = match event {
            Event::Node(NodeFact::WorkloadTurn | NodeFact::DesiredChanged(_)) => false,
            Event::Node(_) => network != self.network_changes,
            Event::Pod { .. } | Event::Run { .. } => false,
        };
        self.standing_was(event.pod(), standing, held || many);
        notices
    }

    /// The pods in which a fact has left consequences to record. There are none after any fact, so that a pod that a
    /// later fact does not change is as it should be, but for the sleeps that have ended since (the simulator checks it).
    pub fn unsettled(&self, now: Stamp) -> Vec<PodUid> {
        let unsettled = |pod: &&PodState| {
            let (mut settled, mut notices) = (PodState::clone(pod), Vec::new());
            settled.settle(now, &mut notices);
            settled != **pod || !notices.is_empty()
        };
        let unsettled = self.pods.values().filter(unsettled);
        unsettled.map(|pod| pod.spec.uid.clone()).collect()
    }

    fn node_fact(&mut self, fact: &NodeFact, now: Stamp, out: &mut Vec<Notice>) {
        match fact {
            NodeFact::DesiredChanged(desired) => self.desired_changed(desired, now, out),
            NodeFact::WorkloadTurn => self.workload_turn(now, out),
            NodeFact::ClockSet => self.clock_set(),
            NodeFact::CronsKept(changes) => self.crons_kept(*changes),
            NodeFact::PutInstead(subject, instead) => {
                self.workloads.histories.put(subject, instead.as_ref());
            }
            NodeFact::SettingsChanged(settings) => {
                self.settings = settings.clone();
                self.room_made(now, out);
            }
            NodeFact::AddressesChanged => self.network_changes += 1,
            NodeFact::ImagesChanged(names) => {
                let pods = self.pods.values_mut();
                pods.for_each(|pod| images_changed(pod, names.as_ref(), now));
            }
            NodeFact::ConfigurationChanged { objects } => {
                let pods = self.pods.values_mut();
                pods.for_each(|pod| configuration::changed(pod, objects, now.time));
            }
            NodeFact::ShutdownBegun { groups, asked_by } => {
                self.shutdown_begun((groups, *asked_by), now, out);
            }
            NodeFact::ShutdownRecovered(shutdown) => self.shutdown_recovered(shutdown, now, out),
            NodeFact::ShutdownTurnOver => self.take_turns(now, out),
            NodeFact::ShutdownCancelled => {
                self.shutdown_cancelled();
                self.admit(now, out);
            }
            NodeFact::Cordoned => {
                self.cordoned(now);
                self.admit(now, out);
            }
            NodeFact::DrainBegun { pods, grace_ms } => {
                self.drain_begun(pods.as_ref(), *grace_ms, now, out);
            }
            NodeFact::CordonRecovered(cordon) => self.cordon_recovered(cordon, now, out),
            NodeFact::DrainTurn => self.drain_turn(now, out),
            NodeFact::Uncordoned => self.uncordoned(now, out),
            NodeFact::StopRequested { targets, grace_ms } => {
                self.stop_requested(targets, *grace_ms, now, out);
            }
            NodeFact::StartRequested { targets } => self.start_requested(targets, now, out),
            NodeFact::StopsRecovered(stops) => self.stops_recovered(stops, now, out),
            NodeFact::PolicyChanged(policy) => {
                self.pressure.policy_changed(policy, now);
                self.admit(now, out);
            }
            NodeFact::ReliefBegun(order) => self.pressure.relief_begun(*order),
            NodeFact::Observed(figures) => self.observed(figures, now, out),
            NodeFact::Reclaimed => self.pressure.reclaimed(now.time),
            NodeFact::Alarmed => self.pressure.alarmed(now.time),
            NodeFact::ImageLacksRoom => self.pressure.image_lacks_room(now.time),
            NodeFact::ClaimsChanged(all) => self.claims_changed(all, now, out),
            NodeFact::OutsideSeen(seen) => self.order.saw(seen),
        }
    }

    fn pod_fact(&mut self, uid: &PodUid, fact: &PodFact, now: Stamp, out: &mut Vec<Notice>) {
        match fact {
            PodFact::Recovered(recovered) => self.pod_recovered(recovered, now, out),
            PodFact::DeleteRequested { grace_ms } => {
                self.delete_requested(uid, *grace_ms, now);
                self.on(uid, now, out, |_, _, _| {});
                // A pod that a shutdown stopped does not come back.
                self.room_made(now, out);
            }
            PodFact::Restored => self.pod_restored(uid, now, out),
            PodFact::Evicted { eviction } => self.pod_evicted(uid, eviction, now, out),
            PodFact::SandboxRemoved => {
                self.sandbox_removed(uid, now);
                self.room_made(now, out);
            }
            PodFact::FormerEnds { ends } => {
                self.on(uid, now, out, |pod, _, _| former::remember(pod, ends));
            }
            PodFact::DeadlineExceeded => self.on(uid, now, out, |pod, _, out| {
                verdict::deadline_exceeded(pod, now, out);
            }),
            PodFact::GraceExceeded => self.on(uid, now, out, |pod, _, out| {
                verdict::grace_exceeded(pod, now.time, out);
            }),
            PodFact::EphemeralAdded { spec } => {
                self.on(uid, now, out, |pod, _, _| added(pod, spec));
            }
            PodFact::RetryRequested { container } => self.on(uid, now, out, |pod, settings, _| {
                retry::retry(pod, container.as_deref(), settings, now.time);
            }),
            PodFact::RestartRequested {
                container,
                grace_ms,
            } => self.on(uid, now, out, |pod, settings, out| {
                let what = (container.as_deref(), *grace_ms);
                restart_request::restart(pod, what, settings, now.time, out);
            }),
            PodFact::ConditionsSet { changes } => self.on(uid, now, out, |pod, _, _| {
                condition::set(pod, changes, now.wall);
            }),
            PodFact::ActionStarted(action) => self.on(uid, now, out, |pod, settings, out| {
                action_started(pod, settings, action, now.time, out);
            }),
            PodFact::SandboxCreated {
                ips,
                next_attempts,
                warnings,
            } => self.on(uid, now, out, |pod, _, out| {
                sandbox_created(pod, (ips, next_attempts), warnings, now.time, out);
            }),
            PodFact::SandboxFailed { failure } => self.on(uid, now, out, |pod, _, out| {
                sandbox_failed(pod, failure, now.time, out);
            }),
            PodFact::SandboxLost => {
                self.on(uid, now, out, |pod, _, out| sandbox_lost(pod, now, out));
            }
            PodFact::SandboxRemoveFailed { error } => self.on(uid, now, out, |pod, _, out| {
                sandbox_remove_failed(pod, error, now.time, out);
            }),
            PodFact::ImageReady {
                container,
                image_id,
                volumes,
                pulled,
            } => self.on(uid, now, out, |pod, _, out| {
                image_ready(pod, container, (image_id, volumes), pulled, now, out);
            }),
            PodFact::ImageFailed {
                container,
                volume,
                failure,
                message,
            } => self.on(uid, now, out, |pod, _, out| {
                let name = (container.as_str(), volume.as_deref());
                image_failed(pod, name, (*failure, message), now.time, out);
            }),
            PodFact::Pulling {
                container,
                image,
                percent,
                total_bytes,
            } => self.on(uid, now, out, |pod, _, _| {
                image::pulling(pod, container, image, (*percent, *total_bytes));
            }),
            PodFact::Warned {
                container,
                warnings,
            } => self.on(uid, now, out, |pod, _, out| {
                warned(pod, container.as_deref(), warnings, out);
            }),
            PodFact::Resized => self.on(uid, now, out, |pod, _, _| pod.resized()),
            PodFact::ResizeFailed { error } => self.on(uid, now, out, |pod, _, out| {
                pod.resize_failed(error, now.time, out);
            }),
            PodFact::DevicesSeen { sights } => self.on(uid, now, out, |pod, _, out| {
                pod.devices_seen(sights, now, out);
            }),
            PodFact::TimePassed => self.on(uid, now, out, |_, _, _| {}),
            PodFact::WaitedLong => self.admit(now, out),
        }
    }

    /// Changes one pod, then records the consequences.
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

    /// There may be more room now: first for held pods, then for pending resizes.
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
                        pod.retries.remove = Retry::default();
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
    /// Clears the action in flight if it is the one answered; returns whether it was.
    pub(super) fn answered(&mut self, is_it: impl FnOnce(&Action) -> bool) -> bool {
        let yes = self.in_flight.as_ref().is_some_and(is_it);
        if yes {
            self.in_flight = None;
        }
        yes
    }

    /// Records the consequences of a fact.
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
        let left = self.any_running() && self.complete();
        if let Stage::Admitted { finishing } = &mut self.stage {
            *finishing = left.then(|| finishing.unwrap_or(now));
        }
    }
}

/// Existing ephemeral containers stay as they are.
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

/// Records a fact about one run.
fn run_fact(
    pod: &mut PodState,
    settings: &Settings,
    instance: &Instance,
    fact: &RunFact,
    now: Stamp,
    out: &mut Vec<Notice>,
) {
    match fact {
        RunFact::Started { pid, at, effective } => {
            container_started(pod, instance, (*pid, effective), *at, out);
        }
        RunFact::StartFailed { failure, message } => {
            start_failed(pod, settings, instance, (*failure, message), now, out);
        }
        RunFact::Exited { exit } => {
            container_exited(pod, settings, instance, exit, now.time, out);
        }
        RunFact::SignalSent { signal, at } => signal_sent(pod, instance, *signal, *at, now.time),
        RunFact::SignalFailed { error } => signal_failed(pod, instance, error, now.time, out),
        RunFact::ProbeStarted(kind) => probe::started(pod, instance, *kind, now.time),
        RunFact::ProbeDone { probe, outcome } => {
            probe::done(pod, (instance, *probe), outcome, now.time, out);
        }
        RunFact::HookStarted(hook) => hook::started(pod, (instance, *hook), now.time, out),
        RunFact::HookDone { hook, outcome } => {
            hook::done(pod, (instance, *hook), outcome, now.time, out);
        }
    }
}

fn is_start_of(action: &Action, of: &Instance) -> bool {
    matches!(action, Action::StartContainer { instance, .. } if instance == of)
}

fn is_signal_to(action: &Action, to: &Instance) -> bool {
    matches!(action, Action::Signal { instance, .. } if instance == to)
}

fn action_started(
    pod: &mut PodState,
    settings: &Settings,
    action: &Action,
    now: Time,
    out: &mut Vec<Notice>,
) {
    match action {
        Action::CreateSandbox { .. } => {
            pod.configuration_changed = false;
            pod.resizing.actuated = pod.spec.resources;
        }
        Action::Resize { .. } | Action::RemoveSandbox { .. } => {}
        Action::EnsureImage { .. } => {
            pod.look_up = LookUp::default();
        }
        Action::StartContainer { instance, .. } => {
            pod.configuration_changed = false;
            let waits = pod.waits(settings);
            let spec = pod.spec.container(&instance.container);
            let starting = spec.map(|spec| OfRun {
                attempt: instance.attempt,
                of: spec.asked(),
            });
            if let Some(container) = pod.container_mut(&instance.container) {
                container.starting = starting;
                restart::permit(container, instance.attempt, waits, now);
            }
        }
        Action::Signal { instance, .. } => {
            hook::overtaken(pod, instance, out);
            if let Some(container) = pod.container_mut(&instance.container)
                && container.run.attempt() == Some(instance.attempt)
                && let Some(course) = container.run.course_mut()
            {
                course.stop.asked.get_or_insert(now);
            }
        }
    }
    pod.in_flight = Some(action.clone());
}
