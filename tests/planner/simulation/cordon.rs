//! A node that is cordoned, drained and uncordoned at any moment: which pods may be there, tracked a second time
//! (invariant P32).

use std::collections::{BTreeMap, BTreeSet};

use coracle::plan::event::Cordon;
use coracle::plan::shutdown::is_gone;
use coracle::plan::state::Stopping;
use coracle::plan::verdict::Cause;
use coracle::plan::{Action, Event, NodeFact, PodFact, PodState};
use coracle::spec::{PodUid, WorkloadKey, WorkloadKind};

use super::{Going, Sim};

/// What the test itself knows of the cordon in force.
#[derive(Debug)]
pub(super) struct Kept {
    since: u64,
    /// Names of the pods that may be here.
    stay: BTreeSet<String>,
    /// Documents whose pods may be here.
    workloads: BTreeSet<WorkloadKey>,
    draining: bool,
}

impl Kept {
    fn lets_in(&self, pod: &PodState) -> bool {
        let workload = pod.spec.workload.as_ref();
        let known = workload.is_some_and(|key| self.workloads.contains(key));
        known || self.stay.contains(&*pod.spec.key.name)
    }

    /// Pods of these names do not come back; the others of their documents stay.
    fn send_away(&mut self, pods: &BTreeMap<PodUid, PodState>, names: &BTreeSet<String>) {
        let named = pods
            .values()
            .filter(|pod| names.contains(&*pod.spec.key.name));
        let of = named.filter_map(|pod| pod.spec.workload.clone());
        for key in of.collect::<BTreeSet<_>>() {
            if self.workloads.remove(&key) {
                let all = here(pods).filter(|pod| pod.spec.workload.as_ref() == Some(&key));
                self.stay
                    .extend(all.map(|pod| pod.spec.key.name.to_string()));
            }
        }
        self.stay.retain(|name| !names.contains(name));
    }
}

/// The pods that were let in.
fn here(pods: &BTreeMap<PodUid, PodState>) -> impl Iterator<Item = &PodState> {
    let rejected = |pod: &PodState| {
        let verdict = pod.verdict.as_ref();
        verdict.is_some_and(|v| v.cause == Cause::RejectedAtShutdown)
    };
    let pods = pods.values();
    pods.filter(move |pod| pod.hold().is_none() && !rejected(pod))
}

/// The pods that were going away before a fact, and on which terms.
pub(super) type Before = BTreeMap<PodUid, Option<Stopping>>;

impl Sim {
    /// An operator cordons or drains the node, or ends that.
    pub(super) fn cordon_or_not(&mut self) {
        let names = ["a", "b", "c"].map(str::to_owned);
        let event = match self.world.rng.below(4) {
            0 => Event::Node(NodeFact::Cordoned),
            1 => {
                let grace_ms = match self.world.rng.below(4) {
                    0 => Some(0),
                    1 => Some(1_000),
                    2 => Some(60_000),
                    _ => None,
                };
                let pods = self.world.rng.chance(50).then(|| {
                    let chosen = names.iter().filter(|_| self.world.rng.chance(50));
                    let chosen: BTreeSet<String> = chosen.cloned().collect();
                    let keys = self.state.pods.values().map(|pod| pod.spec.key.clone());
                    keys.filter(|key| chosen.contains(&*key.name)).collect()
                });
                Event::Node(NodeFact::DrainBegun { pods, grace_ms })
            }
            _ => Event::Node(NodeFact::Uncordoned),
        };
        self.apply(&event);
        self.decide();
    }

    pub(super) fn uncordon(&mut self) {
        self.apply(&Event::Node(NodeFact::Uncordoned));
        self.decide();
    }

    /// Tracks which pods may be here, before a fact is recorded.
    pub(super) fn keep_cordon(&mut self, event: &Event) -> Before {
        let name = |pod: &PodUid| self.state.pods.get(pod).map(|p| p.spec.key.name.clone());
        let since = self.world.now;
        match event {
            Event::Node(NodeFact::Cordoned) | Event::Node(NodeFact::DrainBegun { .. }) => {
                let all = &self.state.pods;
                let kept = self.cordon.get_or_insert_with(|| Kept {
                    since,
                    stay: here(all).map(|pod| pod.spec.key.name.to_string()).collect(),
                    workloads: here(all)
                        .filter_map(|pod| pod.spec.workload.clone())
                        .filter(|key| key.kind != WorkloadKind::Job)
                        .collect(),
                    draining: false,
                });
                if let Event::Node(NodeFact::DrainBegun { pods, .. }) = event {
                    kept.draining = true;
                    match pods {
                        None => {
                            kept.stay.clear();
                            kept.workloads.clear();
                        }
                        Some(chosen) => {
                            let names = chosen.iter().map(|key| key.name.to_string());
                            kept.send_away(all, &names.collect());
                        }
                    }
                }
            }
            Event::Node(NodeFact::Uncordoned) => self.cordon = None,
            Event::Pod {
                uid: pod,
                fact: PodFact::DeleteRequested { .. },
            } => {
                if let (Some(kept), Some(name)) = (&mut self.cordon, name(pod)) {
                    kept.send_away(&self.state.pods, &[name.to_string()].into());
                }
            }
            _ => {}
        }
        let pods = self.state.pods.iter();
        pods.map(|(uid, pod)| (uid.clone(), pod.stopping()))
            .collect()
    }

    /// A fact sends away only pods of the lowest priority still here; remembers how long they have.
    pub(super) fn check_cordon(&mut self, event: &Event, before: &Before) {
        let known = self.state.cordon.as_ref().map(|cordon: &Cordon| {
            let names = cordon.stay.iter().map(|key| key.name.to_string());
            (names.collect::<BTreeSet<_>>(), cordon.drain.is_some())
        });
        let kept = self.cordon.as_ref();
        let known_here = kept.map(|kept| (kept.stay.clone(), kept.draining));
        let recovering = known_here.is_some() && known.is_none() && self.state.desired.is_none();
        assert!(
            known == known_here || recovering,
            "{event:?}: {known:?}, {kept:?}"
        );
        if !matches!(
            event,
            Event::Node(NodeFact::DrainBegun { .. })
                | Event::Node(NodeFact::DrainTurn)
                | Event::Node(NodeFact::CordonRecovered(_))
                | Event::Pod {
                    fact: PodFact::Restored,
                    ..
                }
        ) {
            return;
        }
        let Some(kept) = kept else { return };
        let leaves = |pod: &&PodState| pod.hold().is_none() && !is_gone(pod) && !kept.lets_in(pod);
        let pods = self.state.pods.values();
        let lowest = pods.filter(leaves).map(|pod| pod.spec.priority).min();
        for (uid, pod) in &self.state.pods {
            let Some(stopping) = pod.stopping() else {
                continue;
            };
            if before.get(uid) == Some(&Some(stopping)) || self.is_stopped(pod) {
                continue;
            }
            let returns = matches!(event, Event::Pod { .. });
            if returns && !leaves(&pod) && pod.spec.after.iter().any(|item| item.again) {
                // It has lost what it started after: a pod that returns is not there yet.
                continue;
            }
            assert!(leaves(&pod), "{event:?} stops a pod that stays: {pod:?}");
            // Nothing runs in a pod that a shutdown stopped earlier.
            let turn = Some(pod.spec.priority) == lowest || !pod.any_running();
            assert!(turn, "it is not the pod's turn: {event:?}, {pod:?}");
            let grace_ms = stopping.asked_ms.max(2_000);
            let since = stopping.since.time.0;
            let going = Going { since, grace_ms };
            let known = self.going.entry(uid.clone()).or_insert(going);
            known.grace_ms = known.grace_ms.min(grace_ms);
        }
    }

    /// Whether the cordon, or a stop, refuses a pod that has no sandbox yet.
    pub(super) fn is_kept_out(&self, pod: &PodState) -> bool {
        let kept = self.cordon.as_ref();
        let out = kept.is_some_and(|kept| !kept.lets_in(pod));
        out || self.is_stopped(pod)
    }

    /// A pod that came too late, or was sent away, gets no sandbox.
    pub(super) fn check_may_be_here(&self, action: &Action) {
        let pod = &self.state.pods[action.pod()];
        let Some(kept) = &self.cordon else { return };
        let stays = kept.lets_in(pod);
        // Until its turn in a drain, an admitted pod that lost its sandbox gets a new one.
        let was_here = self.world.disk.contains_key(action.pod());
        assert!(
            stays || was_here || pod.created.time.0 <= kept.since,
            "the node is cordoned: {action:?}, {kept:?}, {pod:?}"
        );
    }
}
