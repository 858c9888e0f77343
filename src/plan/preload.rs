//! Preloaded archives that could not be imported: when to try again. An attempt may write gigabytes to flash.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::types::Time;

/// The wait after the first failure. It doubles with each one.
const FIRST_MS: u64 = 5 * 60_000;

/// The longest wait.
const LONGEST_MS: u64 = 12 * 3_600_000;

/// The failed imports of archives, each in a state `S`: another state is tried at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failures<S>(BTreeMap<PathBuf, Failure<S>>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Failure<S> {
    state: S,
    /// How many in a row.
    count: u32,
    /// When to try again; `None`: not in this state.
    again: Option<Time>,
}

impl<S> Default for Failures<S> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<S: PartialEq> Failures<S> {
    /// Whether to import an archive that is in this state.
    pub fn is_due(&self, archive: &Path, state: &S, now: Time) -> bool {
        let known = self.0.get(archive).filter(|known| known.state == *state);
        known.is_none_or(|known| known.again.is_some_and(|again| again <= now))
    }

    /// Remembers a failure. One that is `lasting` follows from the archive alone.
    pub fn note(&mut self, archive: &Path, state: S, lasting: bool, now: Time) {
        let known = self.0.get(archive).filter(|known| known.state == state);
        let count = known.map_or(0, |known| known.count).saturating_add(1);
        let wait = FIRST_MS.saturating_mul(1 << (count - 1).min(20));
        let failure = Failure {
            state,
            count,
            again: (!lasting).then(|| now.plus(wait.min(LONGEST_MS))),
        };
        self.0.insert(archive.to_owned(), failure);
    }

    /// Forgets archives that were imported or are gone: only these are still to be imported.
    pub fn keep_only(&mut self, pending: &[&Path]) {
        self.0
            .retain(|archive, _| pending.contains(&archive.as_path()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_that_fails_is_tried_less_and_less_often_until_it_changes() {
        const MINUTE: u64 = 60_000;
        const HOUR: u64 = 60 * MINUTE;
        let archive = Path::new("/images/a.tar");
        let mut failures = Failures::default();
        let mut now = Time(0);
        let mut waits = Vec::new();
        assert!(failures.is_due(archive, &1, now), "it was not tried yet");
        for _ in 0..10 {
            failures.note(archive, 1, false, now);
            let due = |wait: &u64| failures.is_due(archive, &1, now.plus(*wait));
            let wait = (0..24 * HOUR).step_by(5 * 60_000).find(due).unwrap();
            assert!(failures.is_due(archive, &2, now), "it has changed");
            now = now.plus(wait);
            waits.push(wait / MINUTE);
        }
        assert_eq!(waits, [5, 10, 20, 40, 80, 160, 320, 640, 720, 720]);
        failures.note(archive, 2, false, now);
        assert!(
            failures.is_due(archive, &2, now.plus(5 * MINUTE)),
            "a changed archive starts over"
        );
    }

    #[test]
    fn an_archive_that_cannot_be_used_is_tried_again_only_when_it_changes() {
        let archive = Path::new("/images/a.tar");
        let mut failures = Failures::default();
        failures.note(archive, 1, true, Time(0));
        assert!(!failures.is_due(archive, &1, Time(u64::MAX)));
        assert!(failures.is_due(archive, &2, Time(0)));
        assert!(failures.is_due(Path::new("/images/b.tar"), &1, Time(0)));
        failures.keep_only(&[archive]);
        assert!(!failures.is_due(archive, &1, Time(u64::MAX)));
        // Removed, then put back.
        failures.keep_only(&[]);
        assert!(failures.is_due(archive, &1, Time(0)));
    }
}
