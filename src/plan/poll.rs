//! Polling for bundles: when to look at the source, and which digests are not to be applied.
//!
//! A digest is applied when the source changes to it. One that is in force, that failed its trial, that was rolled back
//! or removed by hand stays as it is until the source has had another one. One that is in force and has lost an image is
//! applied again, which brings the image back.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

/// The wait after the first failure. It doubles with each one, up to the interval.
const FIRST_RETRY_MS: u64 = 30_000;

/// The clock may be set while a window is waited for.
const CLOCK_LOOK_MS: u64 = 60_000;

/// A node that is on for less has just booted, maybe with all others after a power cut.
const BOOTED_MS: u64 = 120_000;

/// What the bundles of the node are, by their digests.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Held {
    /// In force.
    pub in_force: BTreeSet<String>,
    /// Failed their trial, or were rolled back by hand.
    pub declined: BTreeSet<String>,
    /// In force without all of their images.
    pub incomplete: BTreeSet<String>,
}

/// What is known of the source. It outlives the agent.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Memory {
    /// The source.
    pub source: String,
    /// The digest that it had last, once that was dealt with.
    pub seen: Option<String>,
    /// What a web server names the archive with that digest by.
    pub validator: Option<String>,
    /// Declined digests that may be applied again: the source has had another one since.
    pub lifted: BTreeSet<String>,
}

impl Memory {
    /// The digests with which there is nothing to do.
    pub fn settled(&self, held: &Held) -> BTreeSet<String> {
        let declined = held.declined.difference(&self.lifted);
        let all = held.in_force.iter().chain(declined).chain(&self.seen);
        let settled = all.filter(|digest| !held.incomplete.contains(*digest));
        settled.cloned().collect()
    }

    /// What a web server names the archive by with which there is nothing to do.
    pub fn settled_validator(&self, held: &Held) -> Option<String> {
        let incomplete = |seen: &String| held.incomplete.contains(seen);
        let settled = !self.seen.as_ref().is_some_and(incomplete);
        self.validator.clone().filter(|_| settled)
    }

    /// Remembers that the source has this digest, and that it is dealt with.
    pub fn note(&mut self, digest: &str, validator: Option<String>, held: &Held) {
        self.lifted = held.declined.clone();
        self.lifted.remove(digest);
        self.seen = Some(digest.to_owned());
        self.validator = validator;
    }

    /// The source has what it had: another digest than those declined meanwhile.
    pub fn same(&mut self, held: &Held) {
        if let Some(digest) = self.seen.take() {
            let validator = self.validator.take();
            self.note(&digest, validator, held);
        }
    }
}

/// How a look at the source ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Looked {
    /// It was seen, and what it has is dealt with.
    Done,
    /// It was not, or what it has cannot be applied: the number of failures in a row.
    Failed(u32),
    /// Pulls are not allowed now, but after this many milliseconds.
    Closed(u64),
}

/// The wait until the next look, in milliseconds. `random` spreads the looks of many nodes: all its bits are random.
pub fn wait_ms(looked: Looked, interval_ms: u64, random: u64) -> u64 {
    // A tenth less to a tenth more.
    let spread = |ms: u64| ms - ms / 10 + random % (ms / 5 + 1);
    match looked {
        Looked::Done => spread(interval_ms),
        Looked::Failed(failures) => {
            let doubled = 1_u64 << failures.saturating_sub(1).min(20);
            spread(FIRST_RETRY_MS.saturating_mul(doubled).min(interval_ms))
        }
        Looked::Closed(opens_in_ms) if opens_in_ms > CLOCK_LOOK_MS => CLOCK_LOOK_MS,
        // Within the first minute of the window, or a part of the interval.
        Looked::Closed(opens_in_ms) => opens_in_ms + soon(interval_ms, random),
    }
}

/// The wait before the first look of an agent, in milliseconds; `up_ms`: how long the node has been on.
pub fn first_wait_ms(up_ms: u64, interval_ms: u64, random: u64) -> u64 {
    match up_ms < BOOTED_MS {
        true => soon(interval_ms, random),
        false => 0,
    }
}

/// Less than a minute, and than a fifth of the interval.
fn soon(interval_ms: u64, random: u64) -> u64 {
    random % 60_000.min(interval_ms / 5 + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(digests: &[&str]) -> BTreeSet<String> {
        digests.iter().map(|&digest| digest.to_owned()).collect()
    }

    fn held(in_force: &[&str], declined: &[&str]) -> Held {
        Held {
            in_force: set(in_force),
            declined: set(declined),
            incomplete: BTreeSet::new(),
        }
    }

    #[test]
    fn a_bundle_that_lost_an_image_is_applied_again() {
        let named = Some("\"1\"".to_owned());
        for (what, seen, declined, incomplete, expected) in [
            ("whole", "1", &[][..], &[][..], false),
            ("incomplete", "1", &[], &["1"], true),
            ("it failed its trial and stayed", "1", &["1"], &["1"], true),
            ("the source has another one", "2", &[], &["1"], false),
        ] {
            let mut memory = Memory::default();
            memory.note(seen, named.clone(), &held(&["1"], declined));
            memory.lifted.clear();
            let held = Held {
                incomplete: set(incomplete),
                ..held(&["1"], declined)
            };
            let applies = !memory.settled(&held).contains(seen);
            assert_eq!(applies, expected, "{what}");
            let asked = memory.settled_validator(&held);
            assert_eq!(asked.is_none(), expected, "{what}");
        }
    }

    #[test]
    fn a_digest_is_applied_when_the_source_changes_to_it() {
        // What the source has and what the node has, look by look, and whether it is applied then.
        type Look<'a> = (&'a str, Held, bool);
        let cases: [(&str, &[Look<'_>]); 9] = [
            ("the first one", &[("1", held(&[], &[]), true)]),
            ("applied by hand before", &[("1", held(&["1"], &[]), false)]),
            (
                "unchanged, then another one, then the first again",
                &[
                    ("1", held(&[], &[]), true),
                    ("1", held(&["1"], &[]), false),
                    ("2", held(&["1"], &[]), true),
                    ("1", held(&["2"], &[]), true),
                ],
            ),
            (
                "failed its trial",
                &[
                    ("2", held(&["1"], &[]), true),
                    ("2", held(&["1"], &["2"]), false),
                    ("3", held(&["1"], &["2"]), true),
                    ("3", held(&["3"], &[]), false),
                ],
            ),
            (
                "failed, and the agent ended before it knew",
                &[
                    ("1", held(&["1"], &[]), false),
                    ("2", held(&["1"], &["2"]), false),
                    ("2", held(&["1"], &["2"]), false),
                ],
            ),
            (
                "failed, and came again",
                &[
                    ("2", held(&["1"], &[]), true),
                    ("1", held(&["1"], &["2"]), false),
                    ("2", held(&["1"], &["2"]), true),
                    ("2", held(&["1"], &["2"]), false),
                ],
            ),
            (
                "rolled back by hand, and the former one was replaced by hand",
                &[
                    ("2", held(&["1"], &[]), true),
                    ("2", held(&["1"], &["2"]), false),
                    ("2", held(&["9"], &[]), false),
                    ("3", held(&["9"], &[]), true),
                ],
            ),
            (
                "applied and rolled back by hand, before anything was polled",
                &[
                    ("2", held(&["1"], &["2"]), false),
                    ("3", held(&["1"], &["2"]), true),
                ],
            ),
            (
                "removed by hand",
                &[
                    ("1", held(&[], &[]), true),
                    ("1", held(&[], &[]), false),
                    ("2", held(&[], &[]), true),
                ],
            ),
        ];
        for (what, looks) in cases {
            let mut memory = Memory::default();
            for (number, (digest, held, expected)) in looks.iter().enumerate() {
                let applies = !memory.settled(held).contains(*digest);
                assert_eq!(applies, *expected, "{what}: look {number}");
                memory.note(digest, None, held);
            }
        }
    }

    #[test]
    fn looks_are_spread_and_failures_back_off_up_to_the_interval() {
        const MINUTE: u64 = 60_000;
        let interval = 15 * MINUTE;
        for (looked, least, most) in [
            (Looked::Done, interval * 9 / 10, interval * 11 / 10),
            (Looked::Failed(1), 27_000, 33_000),
            (Looked::Failed(2), 54_000, 66_000),
            (Looked::Failed(5), 432_000, 528_000),
            (Looked::Failed(6), interval * 9 / 10, interval * 11 / 10),
            (
                Looked::Failed(u32::MAX),
                interval * 9 / 10,
                interval * 11 / 10,
            ),
            // The clock may be set meanwhile.
            (Looked::Closed(7 * MINUTE), MINUTE, MINUTE),
            (Looked::Closed(MINUTE / 2), MINUTE / 2, MINUTE / 2 * 3 - 1),
        ] {
            let waits: Vec<u64> = (0..most * 2)
                .step_by(977)
                .chain([most - least, u64::MAX])
                .map(|random| wait_ms(looked, interval, random))
                .collect();
            let (shortest, longest) = (waits.iter().min(), waits.iter().max());
            assert_eq!(shortest, Some(&least), "{looked:?}");
            assert!(
                longest.is_some_and(|wait| *wait <= most),
                "{looked:?}: {longest:?}"
            );
            assert!(
                longest.is_some_and(|wait| *wait + most / 100 >= most),
                "{looked:?}: {longest:?}"
            );
        }
        // The shortest interval: failures never wait longer than that.
        assert!(wait_ms(Looked::Failed(9), MINUTE, u64::MAX) <= MINUTE * 11 / 10);
    }

    #[test]
    fn nodes_that_boot_together_do_not_look_together() {
        for (up, interval, random, expected) in [
            (5_000, 900_000, 59_999, 59_999),
            (5_000, 900_000, 60_001, 1),
            (5_000, 60_000, 12_000, 12_000),
            (5_000, 60_000, 12_001, 0),
            // The agent alone has started.
            (120_000, 900_000, 59_999, 0),
        ] {
            assert_eq!(
                first_wait_ms(up, interval, random),
                expected,
                "{up} {interval} {random}"
            );
        }
    }

    #[test]
    fn a_source_that_stays_the_same_lifts_what_was_declined_meanwhile() {
        let mut memory = Memory::default();
        memory.note("1", Some("\"1\"".to_owned()), &held(&["1"], &[]));
        let known = memory.clone();
        let undone = held(&["1"], &["2"]);
        assert!(memory.settled(&undone).contains("2"));
        memory.same(&undone);
        assert!(!memory.settled(&undone).contains("2"));
        assert_eq!(
            (memory.seen, memory.validator),
            (known.seen, known.validator)
        );
    }
}
