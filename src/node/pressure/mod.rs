//! Node pressure on the node's side: it reads figures, removes what is not in use, and records the planner's
//! decisions about pods. Pressure shows as conditions and events of the node (Kubernetes docs: Node-pressure
//! Eviction, Node Status).

mod alarm;
mod images;

use std::sync::Arc;

use smol::channel::Sender;

use super::{Input, Node, object, unblock, unblock_cleaning};
use crate::config;
use crate::effects::usage::{self, Wanted};
use crate::plan::event::{Observation, Order, Policy};
use crate::plan::pressure::images::Goal;
use crate::plan::pressure::{Amount, Condition, Signal, Threshold, Walk, Watch};
use crate::plan::state::Sandbox;
use crate::plan::verdict::Cause;
use crate::plan::{Event, NodeFact, PodState};
use crate::spec::{PodUid, Reason, Severity};
use crate::sys::{clock, file};
use crate::types::Gather;
use crate::types::usage::Space;

pub(super) use alarm::listen;
use images::{Known, Removed};

/// The node's part of pressure handling, beside the planner's state.
#[derive(Debug)]
pub(super) struct NodePressure {
    /// Whether this agent has observed the node; until then its conditions stay as they were.
    observed: bool,
    /// The known images.
    images: Known,
    /// The channel for the memory use at which the kernel signals.
    levels: Sender<Option<u64>>,
}

impl NodePressure {
    pub(super) fn new(levels: Sender<Option<u64>>) -> Self {
        Self {
            observed: false,
            images: Known::default(),
            levels,
        }
    }
}

/// The result of a removal.
#[derive(Debug)]
pub(super) struct Reclaim {
    /// Events to emit, as reason and message.
    warning: Option<(Reason, String)>,
    /// How many images were removed, and why.
    images: (&'static str, u32),
}

/// The planner's policy from the settings. The planner watches other signals than those that have settings, and
/// counts in whole numbers.
pub(super) fn policy(settings: &config::Settings) -> Policy {
    let eviction = &settings.eviction;
    let all = eviction.hard.iter().chain(&eviction.soft);
    let mut thresholds: Vec<Threshold> = all.filter_map(threshold).collect();
    // A limit of all pods together is covered by the node's own hard threshold.
    let hard = |t: &&Threshold| t.signal == Signal::Memory && t.grace_ms == 0;
    thresholds.extend(thresholds.iter().find(hard).copied().map(|own| Threshold {
        signal: Signal::PodsMemory,
        ..own
    }));
    let images = settings.image_gc;
    let collects = images.high_percent < 100 || images.max_age_ms > 0;
    Policy {
        thresholds,
        transition_ms: eviction.transition_ms,
        max_pod_grace_ms: u64::try_from(eviction.max_pod_grace_s).unwrap_or(0) * 1_000,
        storage_limits: eviction.local_storage_limits,
        images: collects.then_some(images),
    }
}

/// `None` for what is not a file system of its own here: writable layers are on that of the volumes.
fn threshold(given: &config::Threshold) -> Option<Threshold> {
    let signal = match given.signal {
        config::Signal::MemoryAvailable => Signal::Memory,
        config::Signal::NodefsAvailable => Signal::NodefsBytes,
        config::Signal::NodefsInodesFree => Signal::NodefsInodes,
        config::Signal::ImagefsAvailable => Signal::ImagefsBytes,
        config::Signal::ImagefsInodesFree => Signal::ImagefsInodes,
        config::Signal::PidAvailable => Signal::Pids,
        config::Signal::ContainerfsAvailable | config::Signal::ContainerfsInodesFree => {
            return None;
        }
    };
    Some(Threshold {
        signal,
        below: amount(given.below),
        grace_ms: given.grace_ms,
        min_reclaim: given.min_reclaim.map(amount),
    })
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a share is between 0 and 1"
)]
/// A share in millionths: the planner's state is compared, and has no floats.
fn amount(given: config::Amount) -> Amount {
    match given {
        config::Amount::Count(count) => Amount::Count(count),
        config::Amount::Share(share) => Amount::Share((share * 1e6).round() as u64),
    }
}

impl Node {
    /// The settings may have changed.
    pub(super) fn watch_thresholds(&mut self) {
        let policy = Arc::new(policy(&self.tools.sandboxes.settings.now()));
        self.record(&Event::Node(NodeFact::PolicyChanged(policy)));
    }

    /// Marks a pod whose sandbox was removed on purpose as needing another one, also after an agent restart.
    pub(super) fn forget_finished(&self, pod: &PodUid) {
        let finished = self.tools.config.layout.pod_run(pod).finished();
        if let Err(error) = file::remove_file(&finished) {
            let path = finished.display();
            tracing::warn!("could not remove `{path}`: {error}, going on");
        }
    }

    pub(super) fn report_reclaim(&mut self, signal: Signal) {
        let message = format!("Attempting to reclaim {}", signal.resource());
        self.report(Reason::EvictionThresholdMet, &message);
    }

    fn report(&mut self, reason: Reason, message: &str) {
        match reason.severity() {
            Severity::Normal => tracing::info!("{reason}: {message}"),
            Severity::Warning => tracing::warn!("{reason}: {message}"),
        }
        self.shown.node_event(reason, message);
    }

    pub(super) fn relieve(&mut self, order: Order) {
        match order {
            Order::Look { pods, disk } => self.look(pods, disk),
            Order::Reclaim {
                signal,
                volumes,
                images,
            } => {
                self.report_reclaim(signal);
                self.reclaim(volumes, images);
            }
            Order::CollectImages { goal, space } => self.collect(goal, space),
        }
    }

    /// Reads figures; disk use is measured on a thread that no other work waits for.
    fn look(&mut self, pods: bool, disk: Walk) {
        self.pressure.images.note_used(&self.images_in_use());
        let mut wanted: Vec<Wanted> = Vec::new();
        for pod in self.state.pods.values() {
            let walk = disk.includes(pod);
            if matches!(pod.sandbox, Sandbox::Ready { .. }) && (pods || walk) {
                wanted.push(Wanted {
                    pod: pod.spec.clone(),
                    runs: runs(pod),
                    cgroups: pods,
                    disk: walk,
                });
            }
        }
        let claims = self.state.measured_claims(disk);
        let walks = wanted.iter().any(|wanted| wanted.disk) || !claims.is_empty();
        let layout = self.tools.config.layout.clone();
        let cgroups = self.tools.sandboxes.cgroups.clone();
        let read = move || {
            let begin = clock::boot_ms();
            let of = |wanted: &Wanted| {
                let usage = usage::of_pod(&layout, &cgroups, wanted);
                (wanted.pod.uid.clone(), usage)
            };
            let pods = wanted.iter().map(of).gather();
            let claims = claims.into_iter().map(|claim| {
                let used = usage::of_claim(&layout, &claim);
                (claim, used)
            });
            let claims = claims.gather();
            let walk_ms = clock::boot_ms().saturating_sub(begin);
            Observation {
                node: usage::of_node(&layout, &cgroups),
                pods,
                claims,
                walk_ms,
            }
        };
        let inputs = self.tools.inputs.clone();
        super::spawn(async move {
            let found = match walks {
                true => unblock_cleaning(read).await,
                false => unblock(read).await,
            };
            let found = Event::Node(NodeFact::Observed(Box::new(found)));
            let _ = inputs.send(Input::Event(found)).await;
        });
    }

    fn reclaim(&mut self, volumes: bool, images: bool) {
        let finished = self
            .state
            .pods
            .values()
            .filter(|pod| volumes && is_over(pod));
        let finished: Vec<PodUid> = finished.map(|pod| pod.spec.uid.clone()).collect();
        let volumes: Vec<_> = finished
            .iter()
            .map(|uid| {
                let cleaning = &self.tools.cleaning;
                cleaning.remove_volumes(uid, &self.tools.sandboxes)
            })
            .collect();
        let images = images.then(|| self.discard(Goal::All, true));
        let inputs = self.tools.inputs.clone();
        super::spawn(async move {
            for volume in volumes {
                volume.await;
            }
            let removed = match images {
                Some(images) => images.await,
                None => Ok(Removed::default()),
            };
            let images = (why(Goal::All), removed.as_ref().map_or(0, |r| r.images));
            let warning = removed
                .err()
                .map(|message| (Reason::ImageGCFailed, message));
            let reclaim = Reclaim { warning, images };
            let _ = inputs.send(Input::Reclaimed(reclaim)).await;
        });
    }

    fn collect(&mut self, goal: Goal, space: Space) {
        // An image that does not fit keeps its download.
        let images = self.discard(goal, goal != Goal::All);
        let inputs = self.tools.inputs.clone();
        super::spawn(async move {
            let removed = images.await;
            let images = (why(goal), removed.as_ref().map_or(0, |r| r.images));
            let warning = match (removed, goal) {
                (Err(message), _) => Some((Reason::ImageGCFailed, message)),
                (Ok(removed), Goal::Bytes(bytes)) if removed.bytes < bytes => {
                    let message = images::not_enough(space, removed.bytes);
                    Some((Reason::FreeDiskSpaceFailed, message))
                }
                (Ok(_), Goal::Age | Goal::Bytes(_) | Goal::All) => None,
            };
            let reclaim = Reclaim { warning, images };
            let _ = inputs.send(Input::Reclaimed(reclaim)).await;
        });
    }

    /// Reports what was removed.
    pub(super) fn reclaimed(&mut self, reclaim: Reclaim) {
        if let Some((reason, message)) = reclaim.warning {
            self.report(reason, &message);
        }
        let (why, images) = reclaim.images;
        if images > 0 {
            self.counters.images_removed(why, images);
            if let Some(event) = self.tools.room_made_for_images() {
                self.record(&event);
            }
        }
        self.record(&Event::Node(NodeFact::Reclaimed));
    }

    /// After each fact: shows the conditions that have changed, and sets the kernel's memory alarm.
    pub(super) fn note_pressure(&mut self, event: &Event) {
        let looked = matches!(event, Event::Node(NodeFact::Observed(_)));
        // Conditions of an earlier policy, or from before an agent restart, are cleared.
        if looked || matches!(event, Event::Node(NodeFact::PolicyChanged(_))) {
            let level = match self.state.pressure.watch() {
                Watch::At(bytes) => Some(Some(bytes)),
                Watch::AsBefore if looked => None,
                Watch::AsBefore | Watch::Nothing => Some(None),
            };
            if let Some(level) = level {
                let _ = self.pressure.levels.try_send(level);
            }
        }
        self.pressure.observed |= match event {
            Event::Node(NodeFact::Observed(_)) => true,
            Event::Node(NodeFact::PolicyChanged(policy)) => policy.thresholds.is_empty(),
            _ => false,
        };
        if !self.pressure.observed {
            return;
        }
        let mut changed = false;
        for condition in Condition::ALL {
            let holds = self.state.pressure.condition(condition).yes;
            changed |= self.node_stands(object::Condition::Short(condition), holds);
        }
        self.object.set_met(&self.state.pressure);
        if changed {
            self.show_node();
        }
    }
}

/// The reason of an image removal, as the kubelet's metrics say it. An image removed for space may be old, too.
fn why(goal: Goal) -> &'static str {
    match goal {
        Goal::Age => "age",
        Goal::Bytes(_) | Goal::All => "space",
    }
}

/// The newest run of each container.
fn runs(pod: &PodState) -> Vec<(String, u32)> {
    let all = pod.containers.iter();
    all.filter_map(|c| Some((c.name.clone(), c.run.attempt()?)))
        .collect()
}

/// Whether the pod's data will never be used again.
fn is_over(pod: &PodState) -> bool {
    let comes_back = match pod.verdict.as_ref().map(|verdict| verdict.cause) {
        None | Some(Cause::DeadlineExceeded) => false,
        Some(
            Cause::NodeShutdown
            | Cause::RejectedAtShutdown
            | Cause::Evicted
            | Cause::OverLimit
            | Cause::Preempted,
        ) => true,
    };
    let idle = pod.in_flight.is_none() && pod.stopping().is_none();
    pod.sandbox == Sandbox::Removed && pod.finished() && idle && !comes_back
}
