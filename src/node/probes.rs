//! The execution of probes. Each runs as a task of its own beside the loop and ends in one `ProbeDone`, unless its
//! pod is removed first. At most [`MAX_IN_FLIGHT`] run at a time; the others wait, oldest first.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use smol::Task;

use super::Input;
use super::execute::Tools;
use super::facts;
use super::metrics::ProbeCounters;
use crate::effects::probe::{self, Outcome, Target};
use crate::plan::event::{ProbeOrder, ProbeOutcome};
use crate::shim::protocol::Purpose;
use crate::spec::{PodSpec, PodUid, Probe, ProbeKind};
use crate::sys::clock;

/// Each takes a connection or a program; one pod has few.
const MAX_IN_FLIGHT: usize = 256;

/// All probes of the node. Cheap to clone; all clones share their state.
#[derive(Debug, Clone)]
pub(super) struct Probes {
    tools: Tools,
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

/// A queued probe.
#[derive(Debug)]
struct Job {
    order: ProbeOrder,
    spec: Arc<PodSpec>,
}

/// A place among the running probes; freed when the task ends, however it ends.
#[derive(Debug)]
struct Place(Probes);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.shared.borrow_mut().in_flight -= 1;
        self.0.fill();
    }
}

impl Probes {
    pub(super) fn new(tools: Tools) -> Self {
        Self {
            tools,
            shared: Rc::default(),
        }
    }

    /// Runs a probe, now or when there is room.
    pub(super) fn start(&self, order: ProbeOrder, spec: Arc<PodSpec>) {
        self.shared
            .borrow_mut()
            .queue
            .push_back(Job { order, spec });
        self.fill();
    }

    /// Ends all probes of a removed pod without a report.
    pub(super) fn forget(&self, pod: &PodUid) {
        let ended = {
            let mut shared = self.shared.borrow_mut();
            shared.queue.retain(|job| job.order.instance.pod != *pod);
            shared.counters.forget(pod);
            shared.running.remove(pod)
        };
        // Outside of the borrow: a task that ends here frees its place.
        drop(ended);
    }

    /// The metrics of `/metrics/probes`.
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
        let began = clock::now();
        let outcome = match probe_of(&spec, &order) {
            Some(asked) => {
                let target = self
                    .tools
                    .target(&order.instance, &spec, Purpose::Probe(order.probe));
                let outcome = probe::run(&asked.handler, asked.timeout_ms, &target).await;
                match spec.host_network && probe::asks_pod_ip(&asked.handler) {
                    true => unless_moved(outcome, &target),
                    false => outcome,
                }
            }
            None => Outcome::Error("the container has no such probe".to_owned()),
        };
        self.finish(&order, &spec, number, &outcome, began);
        let outcome = planned(outcome);
        let done = order.done(outcome);
        drop(place);
        let _ = self.tools.inputs.send(Input::Event(done)).await;
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
        let taken = clock::now().duration_since(began).as_secs_f64();
        shared.counters.count(order, &spec.key, outcome, taken);
        let pod = &order.instance.pod;
        if let Some(tasks) = shared.running.get_mut(pod) {
            // This task itself: all that is left is to report its outcome.
            if let Some(own) = tasks.remove(&number) {
                own.detach();
            }
            if tasks.is_empty() {
                shared.running.remove(pod);
            }
        }
    }
}

/// A failure to reach an address that the node no longer has does not concern the container: the next attempt uses
/// the new address.
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

fn planned(outcome: Outcome) -> ProbeOutcome {
    match outcome {
        Outcome::Success(_) => ProbeOutcome::Success,
        Outcome::Warning(text) => ProbeOutcome::Warning(text),
        Outcome::Failure(text) => ProbeOutcome::Failure(text),
        Outcome::Error(text) => ProbeOutcome::Error(text),
        Outcome::Unread(text) => ProbeOutcome::Unread(text),
    }
}
