//! Which generations of a bundle are kept after each change. A failed trial leaves what there was before it, so that a
//! rollback by hand still leads somewhere:
//!
//! ```text
//!                        in force   previous   before_previous
//! before                    2          1             –
//! 3 is applied on trial     3          2             1
//! ├── its trial ends well   3          2             –
//! └── it fails              2          1             –
//! ```
//!
//! Pure: [`super::disk`] writes the outcome by one rename, and then removes the generations that it no longer names.

use super::disk::{Failed, State};
use crate::plan::bundle::Trial;

impl State {
    /// The generation that is brought back if the one on trial fails.
    pub(super) fn former(&self) -> Option<u64> {
        let stays = self.trial.as_ref().is_some_and(|trial| trial.stays);
        self.previous.filter(|_| !stays)
    }

    /// The generations that stay on disk, with their images.
    pub(super) fn kept(&self) -> impl Iterator<Item = u64> {
        let former = self.previous.into_iter().chain(self.before_previous);
        std::iter::once(self.current).chain(former)
    }

    /// A new generation is in force, on trial or not. One that is still on trial is replaced by it, and nothing leads
    /// back there unless there is no other; one that was looked at again had been in force.
    pub(super) fn applied(before: Option<Self>, current: u64, trial: Option<Trial>) -> Self {
        let (previous, before_previous) = match before {
            None => (None, None),
            Some(before) => {
                let untested = before.trial.is_some_and(|trial| !trial.stays);
                match before.previous.filter(|_| untested) {
                    Some(previous) => (Some(previous), before.before_previous),
                    None => (Some(before.current), before.previous),
                }
            }
        };
        Self {
            current,
            previous,
            before_previous: before_previous.filter(|_| trial.is_some()),
            trial,
            failed: None,
        }
    }

    /// The bundle in force was applied once more: there is no new generation, so that the former one stays what it is.
    pub(super) fn looked_at_again(self, trial: Option<Trial>) -> Self {
        let stays = |trial| Trial {
            stays: true,
            ..trial
        };
        let failed = self.failed.filter(|_| trial.is_none());
        Self {
            trial: self.trial.or(trial.map(stays)),
            failed,
            ..self
        }
    }

    /// All pods of the generation on trial are ready.
    pub(super) fn passed(self) -> Self {
        Self {
            before_previous: None,
            trial: None,
            ..self
        }
    }

    /// The generation on trial failed. It goes, and all is as it was before it; without a former one it stays, and also
    /// if it was in force before its trial.
    pub(super) fn failed(self, failed: Failed) -> Self {
        let failed = Some(failed);
        match self.former() {
            Some(former) => Self {
                current: former,
                previous: self.before_previous,
                before_previous: None,
                trial: None,
                failed,
            },
            None => Self {
                failed,
                ..self.passed()
            },
        }
    }

    /// Both generations have changed places; `None` without a former one. A trial ends by that, and the one on trial is
    /// where the next rollback leads.
    pub(super) fn rolled_back(self) -> Option<Self> {
        Some(Self {
            current: self.previous?,
            previous: Some(self.current),
            before_previous: None,
            trial: None,
            failed: self.failed,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Time;

    /// The generations in force, before it, and before that.
    fn state(current: u64, previous: Option<u64>, before_previous: Option<u64>) -> State {
        State {
            current,
            previous,
            before_previous,
            ..State::default()
        }
    }

    fn trial(stays: bool) -> Trial {
        Trial {
            stays,
            ..Trial::new(1000, "boot", Time(0))
        }
    }

    fn on_trial(state: State, stays: bool) -> State {
        State {
            trial: Some(trial(stays)),
            ..state
        }
    }

    fn failure(generation: u64) -> Failed {
        Failed {
            generation,
            digest: format!("sha256:{generation}"),
            why: "not ready".to_owned(),
        }
    }

    fn having_failed(state: State, generation: u64) -> State {
        State {
            failed: Some(failure(generation)),
            ..state
        }
    }

    #[test]
    fn a_new_generation_on_trial_keeps_the_two_that_there_were() {
        for (what, before, on_trial_too, expected) in [
            ("the first", None, true, state(9, None, None)),
            (
                "the second",
                Some(state(1, None, None)),
                true,
                state(9, Some(1), None),
            ),
            (
                "a later one",
                Some(state(2, Some(1), None)),
                true,
                state(9, Some(2), Some(1)),
            ),
            (
                "a later one, not on trial",
                Some(state(2, Some(1), None)),
                false,
                state(9, Some(2), None),
            ),
            (
                "after a rollback by hand",
                Some(state(1, Some(2), None)),
                true,
                state(9, Some(1), Some(2)),
            ),
            (
                "over one on trial",
                Some(on_trial(state(3, Some(2), Some(1)), false)),
                true,
                state(9, Some(2), Some(1)),
            ),
            (
                "over one on trial, and itself not",
                Some(on_trial(state(3, Some(2), Some(1)), false)),
                false,
                state(9, Some(2), None),
            ),
            (
                "over the first one on trial",
                Some(on_trial(state(1, None, None), false)),
                true,
                state(9, Some(1), None),
            ),
            (
                "over one that was looked at again",
                Some(on_trial(state(2, Some(1), None), true)),
                true,
                state(9, Some(2), Some(1)),
            ),
        ] {
            let trial = on_trial_too.then(|| trial(false));
            let expected = State {
                trial: trial.clone(),
                ..expected
            };
            assert_eq!(State::applied(before, 9, trial), expected, "{what}");
        }
    }

    #[test]
    fn a_trial_that_fails_leaves_what_there_was_and_one_that_passes_the_two_newest() {
        for before in [
            state(1, None, None),
            state(2, Some(1), None),
            state(1, Some(2), None),
        ] {
            let applied = State::applied(Some(before.clone()), 3, Some(trial(false)));
            assert_eq!(applied.former(), Some(before.current));
            let passed = applied.clone().passed();
            assert_eq!(passed, state(3, Some(before.current), None));
            // Any number of bad ones, one after the other or one over the other.
            let failed = applied.clone().failed(failure(3));
            assert_eq!(failed, having_failed(before.clone(), 3));
            let again = State::applied(Some(failed), 4, Some(trial(false))).failed(failure(4));
            assert_eq!(again, having_failed(before.clone(), 4));
            let over = State::applied(Some(applied), 4, Some(trial(false))).failed(failure(4));
            assert_eq!(over, having_failed(before, 4));
        }
    }

    #[test]
    fn a_generation_without_a_former_one_stays_when_it_fails() {
        for before in [
            on_trial(state(1, None, None), false),
            on_trial(state(2, Some(1), None), true),
        ] {
            assert_eq!(before.former(), None);
            let expected = State {
                trial: None,
                ..having_failed(before.clone(), before.current)
            };
            assert_eq!(before.clone().failed(failure(before.current)), expected);
        }
    }

    #[test]
    fn a_look_at_what_is_in_force_changes_no_generation() {
        let before = having_failed(state(2, Some(1), None), 3);
        let looked = before.clone().looked_at_again(Some(trial(false)));
        assert_eq!(looked, on_trial(state(2, Some(1), None), true));
        assert_eq!(before.clone().looked_at_again(None), before);
        let before = on_trial(state(3, Some(2), Some(1)), false);
        for again in [None, Some(trial(false))] {
            assert_eq!(before.clone().looked_at_again(again), before);
        }
    }

    #[test]
    fn a_rollback_exchanges_the_generations_and_ends_a_trial() {
        let before = on_trial(state(3, Some(2), Some(1)), false);
        assert_eq!(before.rolled_back(), Some(state(2, Some(3), None)));
        let failed = having_failed(state(2, Some(1), None), 3);
        let expected = having_failed(state(1, Some(2), None), 3);
        assert_eq!(failed.rolled_back(), Some(expected));
        assert_eq!(state(1, None, None).rolled_back(), None);
    }

    #[test]
    fn no_more_than_three_generations_are_kept_and_three_only_on_trial() {
        // All orders of seven changes.
        for mut order in 0..4_u32.pow(7) {
            let mut now = State::applied(None, 1, None);
            for number in 2..9 {
                let step = order % 4;
                order /= 4;
                let tried = now.trial.is_some();
                let trial = Some(trial(false));
                now = match step {
                    0 => State::applied(Some(now), number, trial),
                    1 => State::applied(Some(now), number, None),
                    2 if tried => now.passed(),
                    3 if tried => {
                        let current = now.current;
                        now.failed(failure(current))
                    }
                    2 => now.looked_at_again(trial),
                    _ => now.clone().rolled_back().unwrap_or(now),
                };
                let kept: Vec<u64> = now.kept().collect();
                let untested = now.trial.as_ref().is_some_and(|trial| !trial.stays);
                assert!(kept.len() <= 2 + usize::from(untested), "{now:?}");
                let different = kept.iter().collect::<std::collections::BTreeSet<_>>();
                assert_eq!(different.len(), kept.len(), "{now:?}");
            }
        }
    }
}
