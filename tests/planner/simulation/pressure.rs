//! A node in the simulation that watches what it has: who is evicted, and who is back, checked against what the agent
//! was told.

use std::sync::Arc;

use coracle::plan::event::{Eviction, Observation, Policy, Reason};
use coracle::plan::pressure::{Amount, Signal, Step, Threshold, next};
use coracle::plan::state::Sandbox;
use coracle::plan::verdict::Cause;
use coracle::plan::{Event, Time};
use coracle::spec::{PodSpec, PodUid, VolumeSource, VolumeSpec};

use super::Sim;

/// Of the volume of pods that have one.
const LIMIT: u64 = 100;

const TRANSITION_MS: u64 = 60_000;

const THRESHOLDS: [(Signal, u64, u64); 4] = [
    (Signal::Memory, 100, 0),
    (Signal::Memory, 200, 20_000),
    (Signal::NodefsBytes, 100, 0),
    (Signal::Pids, 50, 0),
];

/// Gives some pods a volume of that limit, and makes others critical.
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
    /// The agent is told, as when it starts.
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
        let now = self.world.stamp();
        self.state
            .apply(&Event::PolicyChanged(Arc::new(policy)), now);
    }

    /// Somebody uses more or less, and at times the kernel calls.
    pub(super) fn change_usage(&mut self, enough: bool) {
        if !self.watches {
            return;
        }
        self.world.change_usage(enough);
        if self.world.rng.chance(20) {
            self.apply(&Event::Alarmed);
            self.decide();
        }
    }

    /// Does what is due about shortages; when something is next.
    pub(super) fn relieve(&mut self) -> Option<Time> {
        let now = Time(self.world.now);
        loop {
            match next(&self.state, now) {
                Step::Rest => return None,
                Step::At(at) => {
                    assert!(at > now, "in the future");
                    return Some(at);
                }
                Step::Do(order) => {
                    self.stats.count("order", &order);
                    self.apply(&Event::ReliefBegun(order));
                    self.world.relieve(order);
                }
                Step::Record(event) => {
                    self.check_relief(&event);
                    self.apply(&event);
                }
            }
        }
    }

    /// Remembers what the agent knows.
    pub(super) fn note_usage(&mut self, event: &Event) {
        match event {
            Event::Observed(figures) => self.figures = Some(Observation::clone(figures)),
            Event::Reclaimed => self.figures = None,
            _ => {}
        }
    }

    fn check_relief(&mut self, event: &Event) {
        match event {
            Event::PodEvicted { pod, eviction } => self.check_eviction(pod, eviction),
            Event::PodRestored { pod } => {
                let verdict = self.state.pods[pod].verdict.as_ref().unwrap();
                let down_ms = self.world.now - verdict.since.time.0;
                let least = match verdict.cause {
                    Cause::Evicted => {
                        assert_eq!(self.state.pressure.held().next(), None, "still short");
                        TRANSITION_MS + 10_000
                    }
                    Cause::OverLimit => 10_000,
                    other => panic!("{other:?}"),
                };
                assert!(down_ms >= least, "{pod} is back after {down_ms}");
            }
            other => panic!("{other:?}"),
        }
    }

    fn check_eviction(&mut self, uid: &PodUid, eviction: &Eviction) {
        let pod = &self.state.pods[uid];
        assert!(pod.spec.priority < 2_000_000_000, "{uid} is critical");
        assert!(!self.going.contains_key(uid), "{uid} goes anyway");
        assert!(
            matches!(pod.sandbox, Sandbox::Ready { .. }),
            "{uid} has nothing"
        );
        let figures = self.figures.as_ref().expect("somebody has looked since");
        match eviction.reason {
            Reason::Shortage(signal) => {
                let node = &figures.node;
                let space = match signal {
                    Signal::Memory => node.memory,
                    Signal::NodefsBytes => node.nodefs.map(|fs| fs.bytes),
                    Signal::Pids => node.pids,
                    other => panic!("nobody watches {other:?}"),
                };
                let available = space.unwrap().available;
                let met = |t: &&(Signal, u64, u64)| t.0 == signal && available < t.1;
                let mut met = THRESHOLDS.iter().filter(met);
                assert!(met.next().is_some(), "{signal:?}: {available}");
                // One at a time: then it is looked again.
                self.figures = None;
            }
            Reason::EmptyDirLimit => {
                let used = figures.pods[uid].volumes["v"].bytes;
                assert!(used > LIMIT && !pod.spec.volumes.is_empty(), "{used}");
            }
            Reason::PodLimit | Reason::ContainerLimit => panic!("there is none"),
        }
    }
}
