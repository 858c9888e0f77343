//! The creation time of the node: when an agent first ran here, by a clock that may have been wrong then or may be
//! wrong now. A time from a better clock is never replaced by one from a worse clock.

use serde::{Deserialize, Serialize};

use crate::types::Wall;

/// No release is older: a clock that shows an earlier time was not set yet.
const CLOCK_IS_SET: Wall = Wall(1_735_689_600_000_000);

/// How far a clock can be trusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Trust {
    /// The time is before this program was built: the clock was not set.
    Unset,
    /// Plausible, but not synchronised.
    Plausible,
    /// Set by a time server.
    Synchronised,
}

/// The clocks' readings now.
#[derive(Debug, Clone, Copy)]
pub(super) struct Clocks<'a> {
    pub(super) wall: Wall,
    pub(super) boot_ms: u64,
    pub(super) boot_id: &'a str,
    /// Whether a time server keeps the clock synchronised.
    pub(super) synchronised: bool,
    /// When this program was built, as far as its file says.
    pub(super) built: Wall,
}

impl Clocks<'_> {
    fn trust(&self) -> Trust {
        match self.wall >= CLOCK_IS_SET.max(self.built) {
            _ if self.synchronised => Trust::Synchronised,
            true => Trust::Plausible,
            false => Trust::Unset,
        }
    }
}

/// The first start of an agent here, as stored on disk.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct First {
    #[serde(default, rename = "first")]
    at: Wall,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    trust: Option<Trust>,
    /// The boot of that start, and the boot's age at that time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    in_boot: Option<(String, u64)>,
    /// The earliest time seen by an agent that is before the first one: one of the two clocks was wrong.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    sooner: Option<Wall>,
}

impl First {
    fn trust(&self) -> Trust {
        let guess = match self.at >= CLOCK_IS_SET {
            true => Trust::Plausible,
            false => Trust::Unset,
        };
        self.trust.unwrap_or(guess)
    }

    /// Updates the stored time with the current clocks.
    pub(super) fn seen(self, now: Clocks<'_>) -> Self {
        let (before, today) = (self.trust(), now.trust());
        let unknown = self.at == Wall::default();
        if unknown || (today > before && (before == Trust::Unset || self.at > now.wall)) {
            return self.by_clock(now);
        }
        let in_future = self.at > now.wall && before < Trust::Synchronised;
        if !in_future || today == Trust::Unset {
            return self;
        }
        let sooner = self.sooner.map_or(now.wall, |sooner| sooner.min(now.wall));
        Self {
            sooner: Some(sooner),
            ..self
        }
    }

    /// The stored time by the current clock. Within the same boot its age is known.
    fn by_clock(self, now: Clocks<'_>) -> Self {
        let begun = match &self.in_boot {
            Some((boot, ms)) if boot == now.boot_id => *ms,
            Some(_) | None => now.boot_ms,
        };
        let ago_us = now.boot_ms.saturating_sub(begun).saturating_mul(1000);
        let ago_us = i64::try_from(ago_us).unwrap_or(i64::MAX);
        Self {
            at: Wall(now.wall.0.saturating_sub(ago_us)),
            trust: Some(now.trust()),
            in_boot: Some((now.boot_id.to_owned(), begun)),
            sooner: None,
        }
    }

    /// The time to show: not in the future, as far as that is known.
    pub(super) fn shown(&self, now: Wall) -> Wall {
        match self.sooner {
            Some(sooner) if self.at > now => sooner,
            Some(_) | None => self.at,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: i64 = 86_400_000_000;

    /// Days after the program was built, and whether a time server set the clock.
    fn clocks(days: i64, synchronised: bool) -> Clocks<'static> {
        Clocks {
            wall: Wall(CLOCK_IS_SET.0 + (100 + days) * DAY),
            boot_ms: 60_000,
            boot_id: "now",
            synchronised,
            built: Wall(CLOCK_IS_SET.0 + 100 * DAY),
        }
    }

    /// The time that each agent start shows, in days.
    fn shown(starts: &[(i64, bool)]) -> Vec<i64> {
        let mut first = First::default();
        let mut all = Vec::new();
        for (index, (days, synchronised)) in starts.iter().enumerate() {
            let boot = index.to_string();
            let now = Clocks {
                boot_id: &boot,
                ..clocks(*days, *synchronised)
            };
            // As stored on disk in between.
            let text = serde_json::to_string(&first).expect("plain data");
            first = serde_json::from_str::<First>(&text)
                .expect("its own")
                .seen(now);
            all.push((first.shown(now.wall).0 - CLOCK_IS_SET.0) / DAY - 100);
        }
        all
    }

    #[test]
    fn one_boot_with_a_wrong_clock_changes_nothing_for_good() {
        let (yes, no) = (true, false);
        for (sentence, starts, expected) in [
            (
                "the first one counts",
                vec![(5, no), (6, no), (90, no)],
                vec![5, 5, 5],
            ),
            (
                "one slow boot",
                vec![(50, no), (2, no), (60, no)],
                vec![50, 2, 50],
            ),
            (
                "two slow boots",
                vec![(50, no), (2, no), (3, no), (60, no)],
                vec![50, 2, 2, 50],
            ),
            (
                "a slow boot after one by a time server",
                vec![(50, yes), (2, no), (60, no)],
                vec![50, 50, 50],
            ),
            (
                "1970",
                vec![(50, no), (-9_000, no), (60, no)],
                vec![50, 50, 50],
            ),
            (
                "the first one was fast",
                vec![(900, no), (5, no), (6, no)],
                vec![900, 5, 5],
            ),
            (
                "the first one was fast, and is set right",
                vec![(900, no), (5, yes), (1000, no)],
                vec![900, 5, 5],
            ),
            (
                "the first one was in 1970",
                vec![(-9_000, no), (5, no), (6, no)],
                vec![-9_000, 5, 5],
            ),
            (
                "the first one was before the program",
                vec![(-1, no), (5, no), (6, no)],
                vec![-1, 5, 5],
            ),
            (
                "never any better",
                vec![(-9_000, no), (-8_999, no)],
                vec![-9_000, -9_000],
            ),
        ] {
            assert_eq!(shown(&starts), expected, "{sentence}");
        }
    }

    #[test]
    fn a_clock_that_is_set_in_the_same_boot_tells_when_it_was() {
        let unset = clocks(-9_000, false);
        let first = First::default().seen(unset);
        let later = Clocks {
            boot_ms: unset.boot_ms + 30_000,
            ..clocks(5, true)
        };
        let known = first.seen(later);
        assert_eq!(known.shown(later.wall), Wall(later.wall.0 - 30_000_000));
        assert_eq!(
            known.clone().seen(clocks(9, true)),
            known,
            "once and for all"
        );
    }

    #[test]
    fn what_an_older_agent_wrote_down_counts() {
        let old: First = serde_json::from_value(serde_json::json!({
            "boot_id": "then", "ended": true, "first": CLOCK_IS_SET.0 + 5,
        }))
        .expect("its fields");
        let now = clocks(3, false);
        assert_eq!(old.seen(now).shown(now.wall), Wall(CLOCK_IS_SET.0 + 5));
        let never: First =
            serde_json::from_str(r#"{"boot_id":"then","ended":true}"#).expect("nothing");
        assert_eq!(never.seen(now).shown(now.wall), now.wall);
    }
}
