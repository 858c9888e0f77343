//! How is the node kept from running short? Figures are read, what nobody uses is cleared away, and what the planner says
//! of pods is recorded; people see it as conditions and events of the node (kubelet-behaviour §10, §12.5).

mod alarm;
mod images;

use std::collections::BTreeSet;
use std::sync::Arc;

use smol::channel::Sender;

use super::{Input, Node, object, publish, unblock, unblock_cleaning};
use crate::api::EventType;
use crate::config;
use crate::effects::usage::{self, Wanted};
use crate::plan::event::{Observation, Order, Policy, Reason};
use crate::plan::pressure::images::{Goal, ImagePolicy};
use crate::plan::pressure::{Amount, Condition, Signal, Step, Threshold, Walk, Watch, next};
use crate::plan::state::{Run, Sandbox};
use crate::plan::verdict::Cause;
use crate::plan::{Event, PodState, Time};
use crate::spec::PodUid;
use crate::spec::usage::Space;
use crate::sys::{clock, file};

pub(super) use alarm::listen;
use images::{Known, Removed};

/// What the node keeps about its shortages, beside the planner's state.
#[derive(Debug)]
pub(super) struct Keeper {
    /// When something is to be done next.
    pub(super) next: Option<Time>,
    /// Whether this agent knows how short the node is; until then its conditions stay as they were.
    judged: bool,
    /// What is known of images.
    images: Known,
    /// Hears at which use of memory the kernel is to call.
    levels: Sender<Option<u64>>,
}

impl Keeper {
    pub(super) fn new(levels: Sender<Option<u64>>) -> Self {
        Self {
            next: None,
            judged: false,
            images: Known::default(),
            levels,
        }
    }
}

/// What was cleared away, or not.
#[derive(Debug)]
pub(super) struct Freed {
    /// What people should know, as reason and message.
    warning: Option<(&'static str, String)>,
    /// How many images, and why.
    images: (&'static str, u32),
}

/// The planner's view of the settings.
pub(super) fn policy(settings: &config::Settings) -> Policy {
    let eviction = &settings.eviction;
    let all = eviction.hard.iter().chain(&eviction.soft);
    let mut thresholds: Vec<Threshold> = all.filter_map(threshold).collect();
    // What all pods may use together is watched by the node's own hard threshold.
    let hard = |t: &&Threshold| t.signal == Signal::Memory && t.grace_ms == 0;
    thresholds.extend(thresholds.iter().find(hard).copied().map(|own| Threshold {
        signal: Signal::PodsMemory,
        ..own
    }));
    let gc = settings.image_gc;
    let images = ImagePolicy {
        min_age_ms: gc.min_age_ms,
        max_age_ms: gc.max_age_ms,
        high_percent: gc.high_percent,
        low_percent: gc.low_percent,
    };
    Policy {
        thresholds,
        transition_ms: eviction.transition_ms,
        max_pod_grace_ms: u64::try_from(eviction.max_pod_grace_s).unwrap_or(0) * 1_000,
        storage_limits: eviction.local_storage_limits,
        images: (gc.high_percent < 100 || gc.max_age_ms > 0).then_some(images),
    }
}

/// `None` of what is no file system of its own here: writable layers are where volumes are.
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
fn amount(given: config::Amount) -> Amount {
    match given {
        config::Amount::Count(count) => Amount::Count(count),
        config::Amount::Share(share) => Amount::Share((share * 1e6).round() as u64),
    }
}

impl Node {
    /// The settings may be others now.
    pub(super) fn watch_thresholds(&mut self, touched: &mut BTreeSet<PodUid>) {
        let policy = Arc::new(policy(&self.hands.sandboxes.settings.now()));
        self.record(&Event::PolicyChanged(policy), touched);
    }

    /// What the planner wants done or recorded about shortages, before it is asked about the pods.
    pub(super) fn relieve(&mut self, touched: &mut BTreeSet<PodUid>) {
        self.pressure.next = loop {
            match next(&self.state, super::now().time) {
                Step::Rest => break None,
                Step::At(at) => break Some(at),
                Step::Do(order) => {
                    self.record(&Event::ReliefBegun(order), touched);
                    self.carry_out(order);
                }
                Step::Record(event) => {
                    if let Event::PodEvicted { eviction, .. } = &event
                        && let Reason::Shortage(signal) = eviction.reason
                    {
                        self.say_attempt(signal);
                    }
                    if let Event::PodRestored { pod } = &event {
                        self.forget_finished(pod);
                    }
                    self.record(&event, touched);
                }
            }
        };
    }

    /// A pod whose sandbox was removed on purpose gets another one, also from the next agent.
    pub(super) fn forget_finished(&self, pod: &PodUid) {
        let finished = self.hands.config.layout.pod_run(pod).finished();
        if let Err(error) = file::remove_file(&finished) {
            let path = finished.display();
            tracing::warn!("could not remove `{path}`: {error}, going on");
        }
    }

    fn say_attempt(&mut self, signal: Signal) {
        let message = format!("Attempting to reclaim {}", signal.resource());
        self.say_node(EventType::Warning, "EvictionThresholdMet", &message);
    }

    fn say_node(&mut self, type_: EventType, reason: &str, message: &str) {
        match type_ {
            EventType::Normal => tracing::info!("{reason}: {message}"),
            EventType::Warning => tracing::warn!("{reason}: {message}"),
        }
        let name = self.hands.facts.now().name.clone();
        publish::node_event(&mut self.journal, &name, type_, reason, message);
    }

    fn carry_out(&mut self, order: Order) {
        match order {
            Order::Look { pods, disk } => self.look(pods, disk),
            Order::Reclaim {
                signal,
                volumes,
                images,
            } => {
                self.say_attempt(signal);
                self.reclaim(volumes, images);
            }
            Order::CollectImages { goal, space } => self.collect(goal, space),
        }
    }

    /// Reads figures, at disks on a thread nobody waits for.
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
        let walks = wanted.iter().any(|wanted| wanted.disk);
        let layout = self.hands.config.layout.clone();
        let cgroups = self.hands.sandboxes.cgroups.clone();
        let read = move || {
            let begin = clock::boot_ms();
            let of = |wanted: &Wanted| {
                let usage = usage::of_pod(&layout, &cgroups, wanted);
                (wanted.pod.uid.clone(), usage)
            };
            let pods = wanted.iter().map(of).collect();
            let walk_ms = clock::boot_ms().saturating_sub(begin);
            Observation {
                node: usage::of_node(&layout, &cgroups),
                pods,
                walk_ms,
            }
        };
        let inputs = self.hands.inputs.clone();
        super::spawn(async move {
            let found = match walks {
                true => unblock_cleaning(read).await,
                false => unblock(read).await,
            };
            let found = Event::Observed(Box::new(found));
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
                let cleaning = &self.hands.cleaning;
                cleaning.remove_volumes(uid, &self.hands.sandboxes)
            })
            .collect();
        let images = images.then(|| self.discard(Goal::All));
        let inputs = self.hands.inputs.clone();
        super::spawn(async move {
            for volume in volumes {
                volume.await;
            }
            let removed = match images {
                Some(images) => images.await,
                None => Ok(Removed::default()),
            };
            let images = (why(Goal::All), removed.as_ref().map_or(0, |r| r.images));
            let warning = removed.err().map(|message| ("ImageGCFailed", message));
            let freed = Freed { warning, images };
            let _ = inputs.send(Input::Freed(freed)).await;
        });
    }

    fn collect(&mut self, goal: Goal, space: Space) {
        let images = self.discard(goal);
        let inputs = self.hands.inputs.clone();
        super::spawn(async move {
            let removed = images.await;
            let images = (why(goal), removed.as_ref().map_or(0, |r| r.images));
            let warning = match (removed, goal) {
                (Err(message), _) => Some(("ImageGCFailed", message)),
                (Ok(removed), Goal::Bytes(bytes)) if removed.bytes < bytes => {
                    let message = images::not_enough(space, removed.bytes);
                    Some(("FreeDiskSpaceFailed", message))
                }
                (Ok(_), Goal::Age | Goal::Bytes(_) | Goal::All) => None,
            };
            let freed = Freed { warning, images };
            let _ = inputs.send(Input::Freed(freed)).await;
        });
    }

    /// Whatever could be cleared away is.
    pub(super) fn freed(&mut self, freed: Freed, touched: &mut BTreeSet<PodUid>) {
        if let Some((reason, message)) = freed.warning {
            self.say_node(EventType::Warning, reason, &message);
        }
        let (why, images) = freed.images;
        if images > 0 {
            self.counters.images_removed(why, images);
        }
        self.record(&Event::Reclaimed, touched);
    }

    /// After each fact: shows the conditions that have changed, and has the kernel call when memory gets short.
    pub(super) fn note_pressure(&mut self, event: &Event) {
        let looked = matches!(event, Event::Observed(_));
        // What another policy, or a former agent, has set is no longer meant.
        if looked || matches!(event, Event::PolicyChanged(_)) {
            let level = match self.state.pressure.watch() {
                Watch::At(bytes) => Some(Some(bytes)),
                Watch::AsBefore if looked => None,
                Watch::AsBefore | Watch::Nothing => Some(None),
            };
            if let Some(level) = level {
                let _ = self.pressure.levels.try_send(level);
            }
        }
        self.pressure.judged |= match event {
            Event::Observed(_) => true,
            Event::PolicyChanged(policy) => policy.thresholds.is_empty(),
            _ => false,
        };
        if !self.pressure.judged {
            return;
        }
        let mut changed = false;
        for condition in Condition::ALL {
            let holds = self.state.pressure.condition(condition).yes;
            changed |= self.node_stands(object::Condition::Short(condition), holds);
        }
        if changed {
            self.show_node();
        }
    }
}

/// What images are removed for, as the kubelet's metrics say it. One that goes for space may be old, too.
fn why(goal: Goal) -> &'static str {
    match goal {
        Goal::Age => "age",
        Goal::Bytes(_) | Goal::All => "space",
    }
}

/// The newest run of each container.
fn runs(pod: &PodState) -> Vec<(String, u32)> {
    let runs = pod.containers.iter().filter_map(|c| match &c.run {
        Run::None => None,
        Run::Running { attempt, .. } => Some((c.name.clone(), *attempt)),
        Run::Ended(ended) => Some((c.name.clone(), ended.attempt)),
    });
    runs.collect()
}

/// Whether nobody will ever use what this pod has any more.
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
    let idle = pod.in_flight.is_none() && pod.stopping.is_none();
    pod.sandbox == Sandbox::Removed && pod.finished() && idle && !comes_back
}
