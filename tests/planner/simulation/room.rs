//! Who may be there, with what, and who has to go for whom: computed a second time.

use coracle::plan::state::Sandbox;
use coracle::plan::verdict::Cause;

use super::*;

impl Sim {
    /// cpu and memory that pods but for this one are given, computed a second time.
    pub(super) fn given(&self, except: Option<&PodUid>) -> (u64, u64) {
        let pods = self.state.pods.values();
        let pods = pods.filter(|p| Some(&p.spec.uid) != except && p.hold.is_none());
        let pods = pods.filter(|p| !is_done(p));
        pods.fold((0, 0), |(cpu, memory), p| {
            let r = p.spec.resources;
            (cpu + r.cpu_request_milli, memory + r.memory_request_bytes)
        })
    }

    /// No more is given away than there is; of who waits for it there is nothing, and he waits for a reason.
    pub(super) fn check_room(&self) {
        let (cpu, memory) = self.given(None);
        let over = cpu > CAPACITY.cpu_milli || memory > CAPACITY.memory_bytes;
        // What a former agent had begun may turn out to run: it is left alone.
        if self.state.desired.is_none() {
            self.over.set(over);
        }
        assert!(!over || self.over.get(), "more is given than there is");
        let pods = self.state.pods.values();
        let pods = pods.filter(|p| p.hold.is_none() && wants_port(p));
        let has_port = |p: &PodState| {
            let making = matches!(p.in_flight, Some(Action::CreateSandbox { .. }));
            matches!(p.sandbox, Sandbox::Ready { .. }) || making || !is_done(p)
        };
        // What is left of a lost sandbox may have it, too, or may be nothing any more.
        let may = pods.clone().any(|p| p.sandbox == Sandbox::Lost);
        let ports = pods.filter(|p| has_port(p)).count();
        assert!(ports <= 1, "one port is one pod's");
        self.check_preempted();
        for (uid, pod) in self.state.pods.iter().filter(|(_, p)| p.hold.is_some()) {
            assert!(self.wanted_of(uid).is_some(), "{uid} is not wanted");
            assert!(!self.world.disk.contains_key(uid), "{uid} was let in");
            let nothing = pod.sandbox == Sandbox::None && !pod.any_running();
            assert!(nothing && pod.in_flight.is_none(), "{pod:?}");
            assert!(pod.stopping.is_none() && pod.verdict.is_none(), "{pod:?}");
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
            // What one that is more important waits for is his.
            let unfinished = || self.state.pods.values().filter(|p| !is_done(p));
            let claimed = unfinished().any(is_preempted);
            let leaving = unfinished().any(|p| p.stopping.is_some() || p.complete());
            assert!(!fits || claimed, "{uid} has room: {pod:?}");
            let own = CAPACITY.cpu_milli - own.cpu_request_milli;
            assert!(
                blocked
                    || leaving
                    || self.cpu_that_stays(pod.spec.priority) > own
                    || self.memory_that_stays(pod) > CAPACITY.memory_bytes,
                "{uid} could have others ended: {:#?}",
                self.state.pods.values().map(summary).collect::<Vec<_>>()
            );
        }
    }

    /// cpu of the pods that nobody of this priority can have ended, and that do not go by themselves.
    fn cpu_that_stays(&self, priority: i32) -> u64 {
        let pods = self.state.pods.values();
        let stay = pods.filter(|p| stays(p, priority));
        stay.map(|p| p.spec.resources.cpu_request_milli).sum()
    }

    /// Memory likewise, with what this one asks for.
    fn memory_that_stays(&self, pod: &PodState) -> u64 {
        let pods = self.state.pods.values();
        let stay = pods.filter(|p| stays(p, pod.spec.priority));
        let stay = stay.map(|p| p.spec.resources.memory_request_bytes);
        stay.sum::<u64>() + pod.spec.resources.memory_request_bytes
    }

    /// Who is ended to make room was less important than somebody who waited, and begins anew when he is gone.
    fn check_preempted(&self) {
        for (uid, pod) in self.state.pods.iter().filter(|(_, p)| is_preempted(p)) {
            let since = pod.verdict.as_ref().unwrap().since.time;
            if since != Time(self.world.now) || self.state.desired.is_none() {
                continue;
            }
            // If that had nothing to end, he is let in at once.
            let pods = self.state.pods.values();
            let came = pods.filter(|p| p.hold.is_some() || p.created.time == since);
            let highest = came.map(|p| p.spec.priority).max();
            let all: Vec<_> = self.state.pods.values().map(summary).collect();
            assert!(highest > Some(pod.spec.priority), "{uid}: {all:#?}");
        }
    }

    /// Whether there is room for this pod to have that.
    pub(super) fn fits_instead(&self, uid: &PodUid, new: PodResources) -> bool {
        let old = self.state.pods[uid].spec.resources;
        let (cpu, memory) = self.given(Some(uid));
        let (old_cpu, new_cpu) = (old.cpu_request_milli, new.cpu_request_milli);
        let (old_memory, new_memory) = (old.memory_request_bytes, new.memory_request_bytes);
        (new_cpu <= old_cpu || cpu + new_cpu <= CAPACITY.cpu_milli)
            && (new_memory <= old_memory || memory + new_memory <= CAPACITY.memory_bytes)
    }
}

/// What of a pod matters for who has room.
fn summary(pod: &PodState) -> String {
    let (r, cause) = (pod.spec.resources, pod.verdict.as_ref().map(|v| v.cause));
    let figures = (r.cpu_request_milli, r.memory_request_bytes);
    let ends = (pod.stopping.is_some(), cause, pod.finished());
    let hold = pod.hold.as_ref().map(|hold| &hold.message);
    format!(
        "{} {} {figures:?} {ends:?} {:?} {hold:?}",
        pod.spec.uid, pod.spec.priority, pod.sandbox
    )
}

/// Whether it is ended to make room.
fn is_preempted(pod: &PodState) -> bool {
    let cause = pod.verdict.as_ref().map(|verdict| verdict.cause);
    cause == Some(Cause::Preempted)
}

/// Whether what it has cannot be had for this priority, and it does not leave it.
fn stays(pod: &PodState, priority: i32) -> bool {
    let has = pod.hold.is_none() && !is_done(pod);
    let leaves = pod.stopping.is_some() || pod.complete() && !is_down(pod);
    // Who is down for a shutdown is back first.
    has && (is_down(pod) || pod.spec.priority >= priority && !leaves)
}

/// Whether nothing of it runs, will, or is about to without having been heard of.
fn is_done(pod: &PodState) -> bool {
    let starting = matches!(pod.in_flight, Some(Action::StartContainer { .. }));
    pod.finished() && !starting && !is_down(pod)
}

/// Whether it is down for a while, and comes back.
fn is_down(pod: &PodState) -> bool {
    let verdict = pod.verdict.as_ref();
    let comes = verdict.is_some_and(|verdict| match verdict.cause {
        Cause::NodeShutdown | Cause::Evicted | Cause::OverLimit => true,
        Cause::DeadlineExceeded | Cause::RejectedAtShutdown | Cause::Preempted => false,
    });
    comes && pod.stopping.is_none()
}

/// Whether it is one of those that want the same port of the node.
fn wants_port(pod: &PodState) -> bool {
    let mut ports = pod.spec.containers.iter().flat_map(|c| &c.ports);
    ports.any(|port| port.host_port.is_some())
}
