//! The trial of a bundle's new generation: its pods become ready within a time, or the former generation comes back.
//!
//! ```text
//! on trial ── all its pods are ready, and stay so for a while ──► kept
//!     └────── its time is spent ──────────────────────────────► the former generation is brought back
//! ```

use serde::{Deserialize, Serialize};

use super::edit::{self, Edit};
use super::status::{self, Phase};
use super::{NodeState, PodState, Time, probe};
use crate::spec::{PodSpec, Reason};

/// How long all pods have to be ready: one that crashes is ready for a moment each time. Less if the trial is short.
const STEADY_MS: u64 = 10_000;

/// The shortest wait between two records of the time spent.
const MIN_STEP_MS: u64 = 5_000;

/// The time that a generation has, and what it has spent of it. Written to disk, where a date would mean nothing: clocks
/// jump. A reboot costs a tenth of the time, so that a generation that makes the machine reboot comes to an end, too.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Trial {
    /// The time it has, in milliseconds.
    pub within_ms: u64,
    /// What it had spent of it at `at`.
    pub spent_ms: u64,
    /// The boot that `at` belongs to.
    pub boot: String,
    /// On that boot's clock.
    pub at: Time,
    /// The generation stays in force if it fails: it was in force before.
    #[serde(default)]
    pub stays: bool,
    /// The node keeps its pods down (`NodeState::is_kept_away`): its time stands still since `at`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub rests: bool,
}

/// What is to be done about a trial.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// All pods are ready: the generation stays.
    Passed,
    /// The time is spent: the former generation comes back. `why` names the pods that are not ready.
    Failed {
        /// For people.
        why: String,
    },
    /// Nothing before this time.
    Wait(Time),
    /// The time spent is to be written down, as it is in this.
    Record(Trial),
}

impl Trial {
    /// A trial that begins now.
    pub fn new(within_ms: u64, boot: &str, now: Time) -> Self {
        Self {
            within_ms,
            spent_ms: 0,
            boot: boot.to_owned(),
            at: now,
            stays: false,
            rests: false,
        }
    }

    /// The trial once the node keeps its pods down; `None`: it rests already. A reboot ends all pods, too, but counts
    /// as time: a generation could cause it.
    pub fn resting(&self, boot: &str, now: Time) -> Option<Self> {
        (!self.rests_in(boot)).then(|| Self {
            rests: true,
            ..self.as_of(boot, now)
        })
    }

    /// Whether it has rested in this boot, so that it has its whole time again.
    pub(super) fn rests_in(&self, boot: &str) -> bool {
        self.rests && self.boot == boot
    }

    /// The time between two records of it, which is what a reboot costs.
    pub(super) fn step_ms(&self) -> u64 {
        (self.within_ms / 10).max(MIN_STEP_MS)
    }

    /// The trial as of now; in a boot after the one it was written in, no time but the reboot's has passed.
    pub(super) fn as_of(&self, boot: &str, now: Time) -> Self {
        let passed = match self.boot == boot {
            true => now.since(self.at),
            false => self.step_ms(),
        };
        Self {
            within_ms: self.within_ms,
            spent_ms: self.spent_ms.saturating_add(passed),
            boot: boot.to_owned(),
            at: now,
            stays: self.stays,
            rests: false,
        }
    }

    /// How long all pods have to be ready without a break.
    fn steady_ms(&self) -> u64 {
        STEADY_MS.min(self.within_ms / 4)
    }

    /// Judges the trial of pods that may run. `unready`: the pods of the generation that are not ready, for people;
    /// `None`: not known yet. `ready_since`: since when there are none, as far as this agent knows.
    pub fn judge(
        &self,
        unready: Option<&[String]>,
        ready_since: Option<Time>,
        boot: &str,
        now: Time,
    ) -> Verdict {
        if unready.is_some_and(<[String]>::is_empty) {
            let at = ready_since.unwrap_or(now).plus(self.steady_ms());
            return match now >= at {
                true => Verdict::Passed,
                false => Verdict::Wait(at),
            };
        }
        if self.rests_in(boot) {
            return Verdict::Record(Self {
                stays: self.stays,
                ..Self::new(self.within_ms, boot, now)
            });
        }
        let trial = self.as_of(boot, now);
        if let Some(unready) = unready
            && trial.spent_ms >= trial.within_ms
        {
            let seconds = trial.within_ms.div_ceil(1000);
            return Verdict::Failed {
                why: format!("not ready within {seconds}s: {}", unready.join(", ")),
            };
        }
        if self.boot != boot || trial.spent_ms - self.spent_ms >= self.step_ms() {
            return Verdict::Record(trial);
        }
        let left = trial.within_ms.saturating_sub(trial.spent_ms);
        let record = self.at.plus(self.step_ms());
        Verdict::Wait(match unready {
            Some(_) => now.plus(left).min(record),
            None => record,
        })
    }
}

/// Why this pod, as its manifest is, is not ready; `None` if it is, or has done its work.
pub fn unready(state: &NodeState, wanted: &PodSpec) -> Option<String> {
    let mut named = state.pods.values().filter(|pod| pod.spec.key == wanted.key);
    let key = &wanted.key;
    let Some(pod) = named.find(|pod| pod.stopping().is_none()) else {
        // A paused Deployment has none at first.
        let expected = !state.workloads.is_unstarted(wanted);
        return expected.then(|| format!("{key} (not there yet)"));
    };
    if pod
        .hold()
        .is_some_and(|hold| hold.reason == Reason::Stopped)
    {
        // A person wants it down.
        return None;
    }
    if let Some(hold) = pod.hold() {
        return Some(format!("{key} ({})", hold.reason));
    }
    if pod.pending.is_some() || edit::of_pod(pod, wanted) != Edit::None || outdated(pod) {
        return Some(format!("{key} (not updated yet)"));
    }
    match status::phase(pod) {
        Phase::Succeeded => None,
        Phase::Running if pod.flags.ready.yes && !probe::is_unproved(pod) => None,
        phase => Some(format!("{key} ({})", phase.as_str())),
    }
}

/// Whether a container runs with another image than its manifest names.
pub(super) fn outdated(pod: &PodState) -> bool {
    let specs = pod.spec.all_containers().zip(&pod.containers);
    specs
        .into_iter()
        .any(|(spec, container)| container.is_outdated(spec))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: u64 = 60_000;

    fn at(spent_ms: u64, at: u64) -> Trial {
        Trial {
            within_ms: 5 * MINUTE,
            spent_ms,
            boot: "one".to_owned(),
            at: Time(at),
            stays: false,
            rests: false,
        }
    }

    #[test]
    fn a_trial_ends_when_all_is_ready_or_its_time_is_spent() {
        let none: &[String] = &[];
        let one: &[String] = &["default/web (Running)".to_owned()];
        let failed = || Verdict::Failed {
            why: "not ready within 300s: default/web (Running)".to_owned(),
        };
        let wait = |ms| Verdict::Wait(Time(ms));
        let recorded = |spent_ms, boot: &str, now| {
            Verdict::Record(Trial {
                spent_ms,
                boot: boot.to_owned(),
                at: Time(now),
                ..at(0, 0)
            })
        };
        for (what, trial, (unready, since), boot, now, expected) in [
            (
                "all ready from now on",
                at(0, 0),
                (Some(none), None),
                "one",
                5,
                wait(10_005),
            ),
            (
                "for a moment",
                at(0, 0),
                (Some(none), Some(1000)),
                "one",
                10_999,
                wait(11_000),
            ),
            (
                "for long enough",
                at(0, 0),
                (Some(none), Some(1000)),
                "one",
                11_000,
                Verdict::Passed,
            ),
            (
                "ready before the end, steady after it",
                at(0, 0),
                (Some(none), Some(5 * MINUTE - 1)),
                "one",
                5 * MINUTE,
                wait(5 * MINUTE + 9_999),
            ),
            (
                "after a reboot",
                at(0, 90_000),
                (Some(none), Some(1)),
                "two",
                10_001,
                Verdict::Passed,
            ),
            (
                "it begins",
                at(0, 1000),
                (Some(one), None),
                "one",
                1000,
                wait(31_000),
            ),
            (
                "a little later",
                at(0, 1000),
                (Some(one), None),
                "one",
                2000,
                wait(31_000),
            ),
            (
                "the pods are not known",
                at(0, 0),
                (None, None),
                "one",
                9 * MINUTE,
                recorded(9 * MINUTE, "one", 9 * MINUTE),
            ),
            (
                "time to write it down",
                at(0, 1000),
                (Some(one), None),
                "one",
                31_000,
                recorded(30_000, "one", 31_000),
            ),
            (
                "near the end",
                at(280_000, 1000),
                (Some(one), None),
                "one",
                1000,
                wait(21_000),
            ),
            (
                "spent",
                at(280_000, 1000),
                (Some(one), None),
                "one",
                21_000,
                failed(),
            ),
            (
                "spent long ago",
                at(280_000, 1000),
                (Some(one), None),
                "one",
                9 * MINUTE,
                failed(),
            ),
            (
                "a reboot costs a tenth",
                at(60_000, 50_000),
                (Some(one), None),
                "two",
                7,
                recorded(90_000, "two", 7),
            ),
            (
                "the last reboot",
                at(270_000, 50_000),
                (Some(one), None),
                "two",
                7,
                failed(),
            ),
            (
                "a clock before the record's",
                at(0, 1000),
                (Some(one), None),
                "one",
                0,
                wait(31_000),
            ),
        ] {
            assert_eq!(
                trial.judge(unready, since.map(Time), boot, Time(now)),
                expected,
                "{what}"
            );
        }
    }

    #[test]
    fn a_trial_whose_pods_the_node_kept_down_has_its_whole_time_again() {
        let one: &[String] = &["default/web (NodeCordoned)".to_owned()];
        let rests = at(280_000, 1000).resting("one", Time(2000)).unwrap();
        assert_eq!((rests.spent_ms, rests.rests), (281_000, true));
        assert_eq!(rests.resting("one", Time(9000)), None);
        let later = Time(90 * MINUTE);
        let again = Trial::new(5 * MINUTE, "one", later);
        let judged = rests.judge(Some(one), None, "one", later);
        assert_eq!(judged, Verdict::Record(again));
        // A reboot counts as time.
        let judged = rests.judge(Some(one), None, "two", Time(7));
        assert!(matches!(judged, Verdict::Failed { .. }), "{judged:?}");
    }

    #[test]
    fn a_generation_that_reboots_the_machine_ends_after_ten_boots() {
        let mut trial = Trial::new(MINUTE, "0", Time(0));
        for boot in 1..100 {
            match trial.judge(Some(&["web".to_owned()]), None, &boot.to_string(), Time(3)) {
                Verdict::Record(next) => trial = next,
                Verdict::Failed { .. } => {
                    assert_eq!(boot, 10);
                    return;
                }
                other => panic!("{other:?}"),
            }
        }
        panic!("it never ends");
    }
}
