//! Who carries probes out? Each runs as a task of its own beside the loop and ends in one `ProbeDone`, unless its pod
//! goes first. There are at most [`MAX_IN_FLIGHT`] at a time; the others wait, oldest first.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use smol::Task;

use super::Input;
use super::execute::Hands;
use super::facts;
use super::metrics::ProbeCounters;
use crate::effects::probe::{self, Outcome, Target};
use crate::plan::Event;
use crate::plan::event::{ProbeOrder, ProbeOutcome};
use crate::spec::{PodSpec, PodUid, Probe, ProbeKind};

/// Each takes a connection or a program; those of one pod are few.
const MAX_IN_FLIGHT: usize = 256;

/// All probes of the node. Cheap to clone; all clones share it.
#[derive(Debug, Clone)]
pub(super) struct Probes {
    hands: Hands,
    shared: Rc<RefCell<Shared>>,
}

#[derive(Debug, Default)]
struct Shared {
    queue: VecDeque<Job>,
    running: HashMap<PodUid, BTreeMap<u64, Task<()>>>,
    in_flight: usize,
    next: u64,
    counters: ProbeCounters,
}

/// A probe that was ordered.
#[derive(Debug)]
struct Job {
    order: ProbeOrder,
    spec: Arc<PodSpec>,
}

/// A place among those in flight; given up when the task ends, however it does.
#[derive(Debug)]
struct Place(Probes);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.shared.borrow_mut().in_flight -= 1;
        self.0.fill();
    }
}

impl Probes {
    pub(super) fn new(hands: Hands) -> Self {
        Self {
            hands,
            shared: Rc::default(),
        }
    }

    /// Carries a probe out, now or when there is room.
    pub(super) fn start(&self, order: ProbeOrder, spec: Arc<PodSpec>) {
        self.shared
            .borrow_mut()
            .queue
            .push_back(Job { order, spec });
        self.fill();
    }

    /// Ends all probes of a pod that is gone; nothing is said about them any more.
    pub(super) fn forget(&self, pod: &PodUid) {
        let ended = {
            let mut shared = self.shared.borrow_mut();
            shared.queue.retain(|job| job.order.instance.pod != *pod);
            shared.counters.forget(pod);
            shared.running.remove(pod)
        };
        // Outside of the borrow: what ends here gives up its place.
        drop(ended);
    }

    /// What `/metrics/probes` shows.
    pub(super) fn metrics(&self) -> Vec<crate::api::Metric> {
        self.shared.borrow().counters.metrics()
    }

    fn fill(&self) {
        loop {
            let mut shared = self.shared.borrow_mut();
            if shared.in_flight >= MAX_IN_FLIGHT {
                return;
            }
            let Some(job) = shared.queue.pop_front() else {
                return;
            };
            shared.in_flight += 1;
            let number = shared.next;
            shared.next += 1;
            let pod = job.order.instance.pod.clone();
            let place = Place(self.clone());
            let task = super::task(self.clone().carry_out(job, number, place));
            shared.running.entry(pod).or_default().insert(number, task);
        }
    }

    async fn carry_out(self, job: Job, number: u64, place: Place) {
        let Job { order, spec } = job;
        let began = Instant::now();
        let outcome = match probe_of(&spec, &order) {
            Some(asked) => {
                let target = self.hands.target(&order.instance, &spec);
                let outcome = probe::run(&asked.handler, asked.timeout_ms, &target).await;
                match spec.host_network && probe::asks_pod_ip(&asked.handler) {
                    true => unless_moved(outcome, &target),
                    false => outcome,
                }
            }
            None => Outcome::Error("the container has no such probe".to_owned()),
        };
        self.finish(&order, &spec, number, &outcome, began);
        let outcome = told(outcome);
        let done = Event::ProbeDone { order, outcome };
        drop(place);
        let _ = self.hands.inputs.send(Input::Event(done)).await;
    }

    fn finish(
        &self,
        order: &ProbeOrder,
        spec: &PodSpec,
        number: u64,
        outcome: &Outcome,
        began: Instant,
    ) {
        let mut shared = self.shared.borrow_mut();
        let taken = began.elapsed().as_secs_f64();
        shared.counters.count(order, &spec.key, outcome, taken);
        let pod = &order.instance.pod;
        if let Some(tasks) = shared.running.get_mut(pod) {
            // This very task: it has only to say what it found.
            if let Some(own) = tasks.remove(&number) {
                own.detach();
            }
            if tasks.is_empty() {
                shared.running.remove(pod);
            }
        }
    }
}

/// A failure to reach an address that the node no longer has says nothing about the container: the next attempt asks the
/// new one.
fn unless_moved(outcome: Outcome, asked: &Target) -> Outcome {
    match (outcome, asked.ip) {
        (Outcome::Failure(text), Some(ip)) if !facts::is_here(ip) => {
            Outcome::Error(format!("the node no longer has the address {ip}: {text}"))
        }
        (outcome, _) => outcome,
    }
}

fn probe_of<'a>(spec: &'a PodSpec, order: &ProbeOrder) -> Option<&'a Probe> {
    let mut all = spec.all_containers();
    let container = all.find(|c| c.name == order.instance.container)?;
    match order.probe {
        ProbeKind::Liveness => container.probes.liveness.as_ref(),
        ProbeKind::Readiness => container.probes.readiness.as_ref(),
        ProbeKind::Startup => container.probes.startup.as_ref(),
    }
}

fn told(outcome: Outcome) -> ProbeOutcome {
    match outcome {
        Outcome::Success(_) => ProbeOutcome::Success,
        Outcome::Warning(text) => ProbeOutcome::Warning(text),
        Outcome::Failure(text) => ProbeOutcome::Failure(text),
        Outcome::Error(text) => ProbeOutcome::Error(text),
    }
}
