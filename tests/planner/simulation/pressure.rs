//! A node in the simulation that watches for pressure: evictions and returns, checked against the figures that the
//! agent received.

use std::sync::Arc;

use coracle::plan::event::{Eviction, EvictionReason, Observation, Policy};
use coracle::plan::pressure::{Amount, Signal, Threshold};
use coracle::plan::state::Sandbox;
use coracle::plan::verdict::Cause;
use coracle::plan::{Event, NodeFact, PodFact};
use coracle::spec::{PodSpec, PodUid, VolumeSource, VolumeSpec};

use super::Sim;

/// The size limit of the volume, for pods that have one.
const LIMIT: u64 = 100;

const TRANSITION_MS: u64 = 60_000;

const THRESHOLDS: [(Signal, u64, u64); 4] = [
    (Signal::Memory, 100, 0),
    (Signal::Memory, 200, 20_000),
    (Signal::NodefsBytes, 100, 0),
    (Signal::Pids, 50, 0),
];

/// Gives some pods a volume with a limit, and makes others critical.
pub(crate) fn bound(spec: &mut PodSpec, version: u64) {
    if version == 3 {
        spec.priority = 2_000_000_000;
    }
    if version % 2 == 1 {
        spec.volumes = vec![VolumeSpec {
            name: "v".into(),
            source: VolumeSource::EmptyDir {
                size_limit_bytes: Some(LIMIT),
            },
        }];
    }
}

impl Sim {
    /// Gives the agent its eviction policy, as at its start.
    pub(super) fn watch_pressure(&mut self) {
        if !self.watches {
            return;
        }
        self.figures = None;
        let threshold = |(signal, below, grace_ms)| Threshold {
            signal,
            below: Amount::Count(below),
            grace_ms,
            min_reclaim: None,
        };
        let policy = Policy {
            thresholds: THRESHOLDS.map(threshold).to_vec(),
            transition_ms: TRANSITION_MS,
            max_pod_grace_ms: 5_000,
            storage_limits: true,
            images: None,
        };
        let (now, event) = (
            self.world.stamp(),
            Event::Node(NodeFact::PolicyChanged(Arc::new(policy))),
        );
        self.agenda.record(&mut self.state, &event, now);
    }

    /// Usage goes up or down, and at times the kernel raises an alarm.
    pub(super) fn change_usage(&mut self, enough: bool) {
        if !self.watches {
            return;
        }
        self.world.change_usage(enough);
        if self.world.rng.chance(20) {
            self.apply(&Event::Node(NodeFact::Alarmed));
            self.decide();
        }
        if self.world.rng.chance(10) {
            self.apply(&Event::Node(NodeFact::ImageLacksRoom));
            self.decide();
        }
    }

    /// Remembers what the agent knows.
    pub(super) fn note_usage(&mut self, event: &Event) {
        match event {
            Event::Node(NodeFact::Observed(figures)) => {
                self.figures = Some(Observation::clone(figures))
            }
            Event::Node(NodeFact::Reclaimed) => self.figures = None,
            _ => {}
        }
    }

    /// Checks the evictions and returns that the planner wants recorded.
    pub(super) fn check_relief(&mut self, event: &Event) {
        match event {
            Event::Pod {
                uid: pod,
                fact: PodFact::Evicted { eviction },
            } => self.check_eviction(pod, eviction),
            Event::Pod {
                uid: pod,
                fact: PodFact::Restored,
            } => {
                let verdict = self.state.pods[pod].verdict.as_ref().unwrap();
                let down_ms = self.world.now - verdict.since.time.0;
                let least = match verdict.cause {
                    Cause::Evicted => {
                        assert_eq!(
                            self.state.pressure.held().next(),
                            None,
                            "the node is still short"
                        );
                        TRANSITION_MS + 10_000
                    }
                    Cause::OverLimit => 10_000,
                    Cause::NodeShutdown | Cause::RejectedAtShutdown => 0,
                    other => panic!("{other:?}"),
                };
                assert!(down_ms >= least, "{pod} is back after {down_ms}");
            }
            _ => {}
        }
    }

    fn check_eviction(&mut self, uid: &PodUid, eviction: &Eviction) {
        let pod = &self.state.pods[uid];
        assert!(pod.spec.priority < 2_000_000_000, "{uid} is critical");
        assert!(!self.going.contains_key(uid), "{uid} goes away anyway");
        assert!(
            matches!(pod.sandbox, Sandbox::Ready { .. }),
            "{uid} has no sandbox"
        );
        let figures = self
            .figures
            .as_ref()
            .expect("there are new figures since the last eviction");
        match eviction.reason {
            EvictionReason::Shortage(signal) => {
                let node = &figures.node;
                let space = match signal {
                    Signal::Memory => node.memory,
                    Signal::NodefsBytes => node.nodefs.map(|fs| fs.bytes),
                    Signal::Pids => node.pids,
                    other => panic!("no threshold watches {other:?}"),
                };
                let available = space.unwrap().available;
                let met = |t: &&(Signal, u64, u64)| t.0 == signal && available < t.1;
                let mut met = THRESHOLDS.iter().filter(met);
                assert!(met.next().is_some(), "{signal:?}: {available}");
                // One eviction at a time: the next needs new figures.
                self.figures = None;
            }
            EvictionReason::EmptyDirLimit => {
                let used = figures.pods[uid].volumes["v"].bytes;
                assert!(used > LIMIT && !pod.spec.volumes.is_empty(), "{used}");
            }
            EvictionReason::PodLimit
            | EvictionReason::ContainerLimit
            | EvictionReason::ClaimSize => {
                panic!("no pod has such a limit")
            }
        }
    }
}
