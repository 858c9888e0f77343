//! Checks whether the machine's shutdown leaves pods time to stop: logind's delay against the agent's, or else the
//! settings', grace periods.

use std::path::Path;
use std::time::Duration;

use super::{Finding, Level, level};
use crate::cli::client::{Client, SOON};
use crate::cli::directories::Found;
use crate::effects::logind::{self, MARGIN, OVERRIDE, settings};

const NAME: &str = "shutdown";

pub(super) fn finding(client: &Client, found: &Found) -> Finding {
    match client.get_within("/coracle/v1/shutdown", SOON) {
        Ok((shown, _)) => {
            let total = shown["totalSeconds"].as_u64().unwrap_or(0);
            let logind = &shown["logind"];
            let waits = logind["inhibitDelayMaxSeconds"].as_u64();
            let fine = logind["enough"] == true;
            let hint = logind["hint"].as_str().unwrap_or_default();
            compare(total, waits.map(|waits| (waits, fine)), hint)
        }
        Err(_) => without_agent(found),
    }
}

/// A starting agent raises logind's delay, unless a file that takes precedence over its own sets it.
fn without_agent(found: &Found) -> Finding {
    let groups = found.effective.settings.shutdown.iter();
    let total: u64 = groups.map(|group| group.seconds).sum();
    let asked = smol::block_on(logind::delay_max(&logind::bus())).ok();
    let winner = settings::winner();
    let by_name = |path: &Path| path.file_name() > Path::new(OVERRIDE).file_name();
    let folder = Path::new("logind.conf.d");
    let in_the_way = winner.is_some_and(|path| {
        path.parent().is_some_and(|parent| parent.ends_with(folder)) && by_name(&path)
    });
    let waits = asked.map(|waits| {
        let enough = logind::enough(waits, Duration::from_secs(total));
        (waits.as_secs(), enough || !in_the_way)
    });
    compare(total, waits, &settings::hint(total + MARGIN.as_secs()))
}

/// `waits`: logind's delay in seconds, and whether it is enough.
fn compare(total: u64, waits: Option<(u64, bool)>, hint: &str) -> Finding {
    match (total, waits) {
        (0, _) => Finding::new(
            Level::Ok,
            NAME,
            "graceful shutdown is off (shutdownGracePeriod: 0s)",
        ),
        (total, Some((waits, fine))) => Finding::new(
            level(fine, Level::Warn),
            NAME,
            format!("pods have {total} s to stop; logind waits up to {waits} s"),
        )
        .hint(hint),
        (total, None) => Finding::new(
            Level::Ok,
            NAME,
            format!(
                "pods have {total} s to stop; no logind: run `coracle shutdown` before powering off"
            ),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_logind_that_waits_too_short_is_a_warning_with_the_file_to_change() {
        for (total, waits, level) in [
            (0, Some((5, false)), Level::Ok),
            (30, Some((5, false)), Level::Warn),
            (30, Some((31, true)), Level::Ok),
            (30, None, Level::Ok),
        ] {
            let found = compare(total, waits, "change it");
            assert_eq!(found.level, level, "{found:?}");
            assert_eq!(found.hint.is_some(), level == Level::Warn, "{found:?}");
        }
    }
}
