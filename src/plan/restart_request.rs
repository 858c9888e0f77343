//! Restarts on request: containers are stopped with their hook, signal and grace, and start again at once in the same
//! pod, whatever its restart policy. Such an end is no crash: no wait follows, and none grows because of it.

use super::kill::{Kill, KillReason};
use super::notice::Notices;
use super::state::Stage;
use super::{Notice, PodState, Settings, Time, retry};
use crate::spec::Reason;

/// The containers that a restart of the pod, or of this container of it, stops: those that run.
pub fn restartable<'p>(
    pod: &'p PodState,
    container: Option<&'p str>,
) -> impl Iterator<Item = &'p str> {
    let goes_on = matches!(pod.stage, Stage::Admitted { .. }) && !pod.complete();
    let chosen = pod.of_manifest().iter().filter(move |c| {
        goes_on && c.run.is_running() && container.is_none_or(|only| only == c.name)
    });
    chosen.map(|c| c.name.as_str())
}

/// Restarts them, and ends the waits of the others.
pub(super) fn restart(
    pod: &mut PodState,
    (container, grace_ms): (Option<&str>, Option<u64>),
    settings: &Settings,
    now: Time,
    out: &mut Vec<Notice>,
) {
    let names: Vec<String> = restartable(pod, container).map(str::to_owned).collect();
    retry::retry(pod, container, settings, now);
    let own_ms = pod.spec.grace_ms;
    for name in names {
        let asked = pod.spec.container(&name).map(|spec| spec.asked());
        let Some(run) = pod.container_mut(&name).and_then(|c| c.run.running_mut()) else {
            continue;
        };
        if let Some(asked) = asked {
            let asked = run.course.asked.get_or_insert(asked);
            (asked.again, asked.on_request) = (true, true);
        }
        match &mut run.kill {
            // It ends already, and may be given less time.
            Some(kill) => {
                let most = grace_ms.map(|ms| now.since(kill.since).saturating_add(ms));
                kill.grace_ms = kill.grace_ms.min(most.unwrap_or(u64::MAX));
            }
            None => {
                run.kill = Some(Kill {
                    reason: KillReason::Requested,
                    since: now,
                    grace_ms: grace_ms.unwrap_or(own_ms),
                    at_once: false,
                    again: 0,
                });
                let text = format!("Container {name} restarts on request");
                Notices::new(out, pod).container(&name, Reason::Killing, text);
            }
        }
    }
}
