//! What must be so when nothing has gone wrong for a while: every wanted pod runs, has finished or waits for a reason.

use coracle::plan::run::Run;
use coracle::plan::state::{ContainerState, Sandbox};
use coracle::plan::verdict::Cause;

use super::*;

impl Sim {
    pub(super) fn converged(&self) {
        let wanted: BTreeSet<PodUid> = self.wanted.keys().cloned().collect();
        let pods = self.state.pods.values();
        let pods = pods.filter(|pod| pod.spec.workload.is_none());
        let known: BTreeSet<PodUid> = pods.map(|pod| pod.spec.template.clone()).collect();
        assert_eq!(known, wanted, "the wanted pods exist, and no others");
        let held = |uid: &PodUid| self.state.pods[uid].hold().is_some();
        // It comes and goes with a pod that crashes again and again.
        let follows = |uid: &PodUid| {
            let items = &self.state.pods[uid].spec.after;
            items.iter().any(|item| item.again)
        };
        let stays = |uid: &&PodUid| !held(uid) && !follows(uid);
        let let_in: BTreeSet<PodUid> = self.state.pods.keys().filter(stays).cloned().collect();
        let mut left = self.world.uids();
        left.retain(|uid| !self.state.pods.contains_key(uid) || !follows(uid));
        assert_eq!(left, let_in, "only admitted pods are left");
        for (uid, pod) in &self.state.pods {
            if pod.hold().is_some() || follows(uid) {
                // The reason is checked after every decision.
                continue;
            }
            assert!(pod.stopping().is_none(), "{uid} is still going away");
            let cause = pod.verdict.as_ref().map(|verdict| verdict.cause);
            assert!(
                cause.is_none_or(|c| c == Cause::DeadlineExceeded)
                    || cause == Some(Cause::Preempted) && self.state.pods.keys().any(follows),
                "{uid} is still down"
            );
            if pod.finished() {
                let idle = pod.in_flight.is_some() || pod.sandbox == Sandbox::Removed;
                assert!(idle, "{uid} has finished: {pod:?}");
                continue;
            }
            self.check_devices_converged(pod);
            for c in pod.ephemerals() {
                let done = c.run != Run::None || pod.in_flight.is_some();
                assert!(done, "{uid}/{} never ran: {pod:?}", c.name);
            }
            let own = self.wanted.get(&pod.spec.template);
            let wanted = own.unwrap_or_else(|| pod.wanted());
            match &pod.pending {
                None => assert!(pod.spec.has_resources_of(wanted), "{uid}"),
                Some(pending) => {
                    assert!(pending.spec.has_resources_of(wanted), "{uid}");
                    assert!(!self.fits_instead(uid, wanted.resources), "{uid} has room");
                }
            }
            if let Some(disk) = self.world.disk.get(uid).filter(|d| d.shim)
                && matches!(pod.sandbox, Sandbox::Ready { .. })
                && pod.in_flight.is_none()
                && !pod.containers.iter().any(|c| c.kill().is_some())
            {
                assert_eq!(disk.figures, pod.spec.resources, "{uid}: {pod:?}");
                for c in pod.containers.iter().filter(|c| c.run.is_running()) {
                    let figures = pod.spec.container(&c.name).unwrap().resources;
                    assert_eq!(disk.records[&c.name].figures, figures, "{uid}: {pod:?}");
                }
            }
            let some = match pod.is_initialized() {
                true => pod.mains(),
                false => pod.inits(),
            };
            let waits = |c: &&ContainerState| match &c.run {
                Run::None => pod.is_initialized(),
                Run::Running(_) | Run::Ended(_) => !c.stale(),
            };
            for c in some.iter().filter(waits) {
                let busy = match &c.run {
                    // A pod that was let in a moment ago is still starting.
                    Run::None => {
                        pod.in_flight.is_some()
                            && pod.created.time.plus(345_000) > Time(self.world.now)
                    }
                    Run::Running(_) => {
                        let spec = pod.spec.container(&c.name).unwrap();
                        c.kill().is_some() || !c.is_outdated(spec)
                    }
                    Run::Ended(past) => {
                        pod.in_flight.is_some()
                            || !pod.wants_start(c)
                            || past.ended.exit.finished.time.plus(345_000) > Time(self.world.now)
                    }
                };
                assert!(busy, "{uid}/{} neither runs nor waits: {pod:?}", c.name);
            }
        }
        assert_eq!(
            self.state.pressure.held().next(),
            None,
            "the node has enough"
        );
        let minutes = self.world.now / 60_000;
        let limit = 200 + 30 * minutes + 60 * self.stimuli;
        assert!(self.actions < limit, "busy loop: {} actions", self.actions);
    }
}
