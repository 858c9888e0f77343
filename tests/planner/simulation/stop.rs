//! Pods that clients stop, start and restart at any moment: a stopped pod never runs until it is started (invariant
//! P37), tracked a second time.

use std::collections::BTreeSet;

use coracle::plan::stop::Target;
use coracle::plan::{Action, Event, NodeFact, PodFact, PodState};
use coracle::spec::{PodKey, PodUid};

use super::{Going, Sim};

impl Sim {
    /// A client stops a pod, starts one, or restarts one.
    pub(super) fn stop_start_or_restart(&mut self) {
        let grace_ms = [None, Some(0), Some(1_000), Some(60_000)]
            [usize::try_from(self.world.rng.below(4)).unwrap()];
        if self.world.rng.chance(40) {
            return self.restart_a_pod(grace_ms);
        }
        let keys: BTreeSet<PodKey> = self.wanted.values().map(|pod| pod.key.clone()).collect();
        let chosen = keys.into_iter().filter(|_| self.world.rng.chance(40));
        let targets: BTreeSet<Target> = chosen.map(Target::Pod).collect();
        let fact = match self.world.rng.chance(60) {
            true => NodeFact::StopRequested { targets, grace_ms },
            false => NodeFact::StartRequested { targets },
        };
        self.apply(&Event::Node(fact));
        self.decide();
    }

    pub(super) fn start_all(&mut self) {
        let targets = self.state.stops.targets().cloned().collect();
        self.apply(&Event::Node(NodeFact::StartRequested { targets }));
        self.decide();
    }

    fn restart_a_pod(&mut self, grace_ms: Option<u64>) {
        let uids: Vec<PodUid> = self.state.pods.keys().cloned().collect();
        if uids.is_empty() {
            return;
        }
        let uid = uids[usize::try_from(self.world.rng.below(uids.len() as u64)).unwrap()].clone();
        let all = &self.state.pods[&uid].containers;
        let at = usize::try_from(self.world.rng.below(2 * all.len() as u64)).unwrap();
        let container = all.get(at).map(|c| c.name.clone());
        self.retried.insert(uid.clone());
        self.apply(&Event::Pod {
            uid: uid.clone(),
            fact: PodFact::RestartRequested {
                container,
                grace_ms,
            },
        });
        let pod = &self.state.pods[&uid];
        for c in &pod.containers {
            let asked = c.run.course().and_then(|course| course.asked.as_ref());
            if let (Some(kill), Some(attempt)) = (c.kill(), c.run.attempt())
                && asked.is_some_and(|asked| asked.on_request)
            {
                let most = kill.grace_ms.max(2_000);
                let run = (uid.clone(), c.name.clone(), attempt);
                let known = self.failed.entry(run).or_insert(most);
                *known = most.min(*known);
            }
        }
        self.decide();
    }

    /// Tracks what is stopped, before a fact is recorded.
    pub(super) fn keep_stops(&mut self, event: &Event) {
        let names = |targets: &BTreeSet<Target>| -> Vec<String> {
            let name = |target: &Target| match target {
                Target::Pod(key) => key.name.to_string(),
                Target::Workload(_) => unreachable!("only pods are stopped here"),
            };
            targets.iter().map(name).collect()
        };
        match event {
            Event::Node(NodeFact::StopRequested { targets, .. }) => {
                self.stopped.extend(names(targets));
            }
            Event::Node(NodeFact::StartRequested { targets }) => {
                let started = names(targets);
                self.stopped.retain(|name| !started.contains(name));
            }
            Event::Node(NodeFact::DesiredChanged(desired)) => {
                let before = self.state.desired.iter().flat_map(|d| d.pods.values());
                let before: BTreeSet<&str> = before.map(|pod| &*pod.key.name).collect();
                let now: BTreeSet<&str> =
                    (desired.pods.values()).map(|pod| &*pod.key.name).collect();
                let gone = |name: &str| before.contains(name) && !now.contains(name);
                self.stopped.retain(|name| !gone(name));
            }
            _ => {}
        }
    }

    /// The planner knows the same, and pods that are stopped go with the grace that they have.
    pub(super) fn check_stops(&mut self) {
        let known = self.state.stops.targets().map(|target| match target {
            Target::Pod(key) => key.name.to_string(),
            Target::Workload(_) => unreachable!("only pods are stopped here"),
        });
        let known: BTreeSet<String> = known.collect();
        let recovering = known.is_empty() && self.state.desired.is_none();
        assert!(
            known == self.stopped || recovering,
            "{known:?}, {:?}",
            self.stopped
        );
        for (uid, pod) in &self.state.pods {
            if let Some(stopping) = pod.stopping()
                && self.stopped.contains(&*pod.spec.key.name)
            {
                let grace_ms = stopping.asked_ms.max(2_000);
                let since = stopping.since.time.0;
                let known = self
                    .going
                    .entry(uid.clone())
                    .or_insert(Going { since, grace_ms });
                known.grace_ms = known.grace_ms.min(grace_ms);
            }
        }
    }

    pub(super) fn is_stopped(&self, pod: &PodState) -> bool {
        self.stopped.contains(&*pod.spec.key.name)
    }

    /// Nothing begins for a pod that is stopped.
    pub(super) fn check_not_stopped(&self, action: &Action) {
        let pod = &self.state.pods[action.pod()];
        assert!(
            !self.is_stopped(pod),
            "the pod is stopped: {action:?}, {pod:?}"
        );
    }
}
