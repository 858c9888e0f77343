//! Room: which pods may be there, with what, and which are ended for others; computed a second time.

use coracle::plan::state::Sandbox;
use coracle::plan::verdict::Cause;
use coracle::spec::Reason;
use coracle::spec::after::{Milestone, Need};

use super::*;

impl Sim {
    /// The cpu and memory given to all pods except this one, computed a second time.
    pub(super) fn given(&self, except: Option<&PodUid>) -> (u64, u64) {
        let pods = self.state.pods.values();
        let pods = pods.filter(|p| Some(&p.spec.uid) != except && p.hold().is_none());
        let pods = pods.filter(|p| !is_done(p));
        pods.fold((0, 0), |(cpu, memory), p| {
            let r = p.spec.resources;
            (cpu + r.cpu_request_milli, memory + r.memory_request_bytes)
        })
    }

    /// Pods never get more than there is; a pod that waits for room has nothing on the node, and has a reason to wait.
    pub(super) fn check_room(&self) {
        let (cpu, memory) = self.given(None);
        let over = cpu > CAPACITY.cpu_milli || memory > CAPACITY.memory_bytes;
        // Starts that an earlier agent began may turn out to run: those pods keep their room.
        if self.state.desired.is_none() {
            self.over.set(over);
        }
        assert!(!over || self.over.get(), "pods have more than there is");
        let pods = self.state.pods.values();
        let pods = pods.filter(|p| p.hold().is_none() && wants_port(p));
        let has_port = |p: &PodState| {
            let making = matches!(p.in_flight, Some(Action::CreateSandbox { .. }));
            matches!(p.sandbox, Sandbox::Ready { .. }) || making || !is_done(p)
        };
        // A pod with a lost sandbox may still hold the port, or may have finished.
        let may = pods.clone().any(|p| p.sandbox == Sandbox::Lost);
        let ports = pods.filter(|p| has_port(p)).count();
        assert!(ports <= 1, "a port belongs to one pod");
        self.check_preempted();
        for (uid, pod) in self.state.pods.iter().filter(|(_, p)| p.hold().is_some()) {
            assert!(self.is_wanted(uid), "{uid} is not wanted");
            assert!(!self.world.disk.contains_key(uid), "{uid} was admitted");
            let nothing = pod.sandbox == Sandbox::None && !pod.any_running();
            assert!(nothing && pod.in_flight.is_none(), "{pod:?}");
            assert!(pod.stopping().is_none() && pod.verdict.is_none(), "{pod:?}");
            assert!(pod.pending.is_none(), "{pod:?}");
            let own = pod.spec.resources;
            let fits = cpu + own.cpu_request_milli <= CAPACITY.cpu_milli
                && memory + own.memory_request_bytes <= CAPACITY.memory_bytes;
            let blocked = (ports > 0 || may) && wants_port(pod);
            let fits = fits && !blocked;
            let short = self.state.pressure.held().next().is_some();
            let short = short && pod.spec.priority < 2_000_000_000;
            if self.state.shutdown.is_some() || self.is_kept_out(pod) || short {
                continue;
            }
            if pod
                .hold()
                .is_some_and(|hold| hold.reason == Reason::WaitingForDependencies)
            {
                assert!(
                    self.has_to_wait(pod),
                    "{uid} has what it starts after: {pod:?}"
                );
                continue;
            }
            // The room that a more important pod waits for is reserved for it.
            let unfinished = || self.state.pods.values().filter(|p| !is_done(p));
            let claimed = unfinished().any(is_preempted);
            let leaving = unfinished().any(|p| p.stopping().is_some() || p.complete());
            assert!(!fits || claimed, "{uid} has room: {pod:?}");
            let own = CAPACITY.cpu_milli - own.cpu_request_milli;
            assert!(
                blocked
                    || leaving
                    // It spares what it starts after.
                    || !pod.spec.after.is_empty()
                    || self.cpu_that_stays(pod.spec.priority) > own
                    || self.memory_that_stays(pod) > CAPACITY.memory_bytes,
                "{uid} could preempt other pods: {:#?}",
                self.state.pods.values().map(summary).collect::<Vec<_>>()
            );
        }
    }

    /// Whether the pod lacks something that it starts after.
    fn has_to_wait(&self, pod: &PodState) -> bool {
        pod.spec.after.iter().any(|item| {
            let since = pod.waiting.since.expect("it waits").time;
            let late = |ms: u64| item.start && since.plus(ms) <= Time(self.world.now);
            if item.timeout_ms.is_some_and(late) {
                return false;
            }
            let Need::Pod { key, milestone } = &item.need else {
                return true;
            };
            let mut pods = self.state.pods.values();
            !pods.any(|other| other.spec.key == *key && counts(other, *milestone))
        })
    }

    /// The cpu of pods that no pod of this priority can preempt, and that do not go by themselves.
    fn cpu_that_stays(&self, priority: i32) -> u64 {
        let pods = self.state.pods.values();
        let stay = pods.filter(|p| stays(p, priority));
        stay.map(|p| p.spec.resources.cpu_request_milli).sum()
    }

    /// The memory of such pods, and what this pod requests.
    fn memory_that_stays(&self, pod: &PodState) -> u64 {
        let pods = self.state.pods.values();
        let stay = pods.filter(|p| stays(p, pod.spec.priority));
        let stay = stay.map(|p| p.spec.resources.memory_request_bytes);
        stay.sum::<u64>() + pod.spec.resources.memory_request_bytes
    }

    /// A preempted pod was less important than one that waited, and returns when that one is gone.
    fn check_preempted(&self) {
        for (uid, pod) in self.state.pods.iter().filter(|(_, p)| is_preempted(p)) {
            let since = pod.verdict.as_ref().unwrap().since.time;
            if since != Time(self.world.now) || self.state.desired.is_none() {
                continue;
            }
            // Another edit at the same moment may take the more important pod away again.
            if !self.preempted.borrow_mut().insert(uid.clone()) {
                continue;
            }
            // If there was nothing to end in it, the waiting pod is admitted at once.
            let pods = self.state.pods.values();
            let came = pods.filter(|p| p.hold().is_some() || p.created.time == since);
            let highest = came.map(|p| p.spec.priority).max();
            let all: Vec<_> = self.state.pods.values().map(summary).collect();
            assert!(highest > Some(pod.spec.priority), "{uid}: {all:#?}");
        }
    }

    /// Whether there is room for this pod with these resources.
    pub(super) fn fits_instead(&self, uid: &PodUid, new: PodResources) -> bool {
        let old = self.state.pods[uid].spec.resources;
        let (cpu, memory) = self.given(Some(uid));
        let (old_cpu, new_cpu) = (old.cpu_request_milli, new.cpu_request_milli);
        let (old_memory, new_memory) = (old.memory_request_bytes, new.memory_request_bytes);
        (new_cpu <= old_cpu || cpu + new_cpu <= CAPACITY.cpu_milli)
            && (new_memory <= old_memory || memory + new_memory <= CAPACITY.memory_bytes)
    }
}

/// What matters of a pod for the question of room.
fn summary(pod: &PodState) -> String {
    let (r, cause) = (pod.spec.resources, pod.verdict.as_ref().map(|v| v.cause));
    let figures = (r.cpu_request_milli, r.memory_request_bytes);
    let ends = (pod.stopping().is_some(), cause, pod.finished());
    let hold = pod.hold().map(|hold| &hold.message);
    format!(
        "{} {} {figures:?} {ends:?} {:?} {hold:?}",
        pod.spec.uid, pod.spec.priority, pod.sandbox
    )
}

/// Whether the pod is preempted.
fn is_preempted(pod: &PodState) -> bool {
    let cause = pod.verdict.as_ref().map(|verdict| verdict.cause);
    cause == Some(Cause::Preempted)
}

/// Whether the pod keeps its room: this priority cannot take it, and the pod does not leave it.
fn stays(pod: &PodState, priority: i32) -> bool {
    let has = pod.hold().is_none() && !is_done(pod);
    let leaves = pod.stopping().is_some() || pod.complete() && !is_down(pod);
    // A pod that is down for a shutdown returns first.
    has && (is_down(pod) || pod.spec.priority >= priority && !leaves)
}

/// Whether the pod has finished, and no start is in flight that the planner has not heard of yet.
fn is_done(pod: &PodState) -> bool {
    let starting = matches!(pod.in_flight, Some(Action::StartContainer { .. }));
    pod.finished() && !starting && !is_down(pod)
}

/// Whether the pod is down for a while, and returns.
fn is_down(pod: &PodState) -> bool {
    let verdict = pod.verdict.as_ref();
    let comes = verdict.is_some_and(|verdict| match verdict.cause {
        Cause::NodeShutdown | Cause::Evicted | Cause::OverLimit => true,
        Cause::DeadlineExceeded | Cause::RejectedAtShutdown | Cause::Preempted => false,
    });
    comes && pod.stopping().is_none()
}

/// Whether the pod wants the host port that several pods share.
fn wants_port(pod: &PodState) -> bool {
    let mut ports = pod.spec.containers.iter().flat_map(|c| &c.ports);
    ports.any(|port| port.host_port.is_some())
}

/// Whether this pod is far enough for those that start after it.
fn counts(pod: &PodState, milestone: Milestone) -> bool {
    let here = pod.hold().is_none() && pod.stopping().is_none() && pod.verdict.is_none();
    let up = pod.mains().iter().all(|c| match c.run.ended() {
        Some(_) => !pod.wants_start(c),
        None => c.started(),
    });
    here && match milestone {
        Milestone::Started => up && pod.flags.initialized.yes,
        Milestone::Ready => pod.flags.ready.yes,
        Milestone::Complete => pod.mains().iter().all(|c| {
            let ended = c.run.ended();
            ended.is_some_and(|e| e.exit.code == 0) && !pod.wants_start(c)
        }),
    }
}
