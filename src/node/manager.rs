//! Notifications to the service manager (systemd): that the agent has started, how many pods there are, that the
//! loop is alive, and that the agent is about to end. Without a service manager nothing is sent.

use crate::plan::{NodeState, cordon, shutdown};
use crate::sys::notify;
use crate::types::Time;

/// The service manager, if there is one.
#[derive(Debug)]
pub(super) struct Manager {
    manager: Option<notify::Manager>,
    /// When the next watchdog message is due.
    due: Option<Time>,
    status: String,
    /// Manifest files that are not in effect as they are.
    pub(super) rejected_files: usize,
}

impl Manager {
    /// Called before any thread exists.
    pub(super) fn of_this_service() -> Self {
        let manager = notify::Manager::of_this_service().unwrap_or_else(|error| {
            tracing::warn!("could not reach the service manager: {error}, ignoring");
            None
        });
        Self {
            manager,
            due: None,
            status: String::new(),
            rejected_files: 0,
        }
    }

    /// The descriptors that the manager kept over the agent restart. Taken once.
    pub(super) fn kept(&mut self) -> Option<notify::Kept> {
        let kept = self.manager.as_mut()?.kept();
        kept.inspect_err(|error| {
            tracing::warn!("could not take what the service manager keeps: {error}, ignoring")
        })
        .ok()
    }

    /// The agent knows its pods and answers clients.
    pub(super) fn ready(&mut self, now: Time) {
        self.notify("READY=1");
        self.turned(now);
    }

    /// Reports a turn of the loop. The next turn must not be later than [`Manager::due`].
    pub(super) fn turned(&mut self, now: Time) {
        let Some(interval) = self.manager.as_ref().and_then(|m| m.watchdog_ms) else {
            return;
        };
        if self.due.is_none_or(|due| due <= now) {
            self.notify("WATCHDOG=1");
            self.due = Some(now.plus(interval / 2));
        }
    }

    /// When the loop has to turn again, if there is a watchdog.
    pub(super) fn due(&self) -> Option<Time> {
        self.due
    }

    /// Sends the node's status line if it has changed.
    pub(super) fn status(&mut self, state: &NodeState, leaving: bool) {
        if self.manager.is_none() {
            return;
        }
        let running = state.pods.values().filter(|pod| pod.any_running()).count();
        let mut status = status_line(state.pods.len(), running, self.rejected_files, leaving);
        status.insert_str(0, &going_down(state));
        status.push_str(cordoned(state));
        if status != self.status {
            self.notify(&format!("STATUS={status}"));
            self.status = status;
        }
    }

    /// The agent is about to end.
    pub(super) fn stopping(&self) {
        self.notify("STOPPING=1");
    }

    fn notify(&self, lines: &str) {
        if let Some(manager) = &self.manager
            && let Err(error) = manager.send(lines)
        {
            tracing::debug!("could not send `{lines}` to the service manager: {error}, ignoring");
        }
    }
}

/// The progress of a shutdown; empty without one.
fn going_down(state: &NodeState) -> String {
    let Some(down) = &state.shutdown else {
        return String::new();
    };
    let Some(group) = down.groups.get(down.turn) else {
        return "Shut down: all pods had time to stop; ".to_owned();
    };
    let left = shutdown::members(state, &down.groups)[down.turn].len();
    format!(
        "Shutting down: group {} of {} (priority {} and above), {left} to go; ",
        down.turn + 1,
        down.groups.len(),
        group.priority
    )
}

/// Whether the node is cordoned or drained; empty if not.
fn cordoned(state: &NodeState) -> &'static str {
    match state.cordon.as_ref().map(|cordon| cordon.drain) {
        None => "",
        Some(None) => "; cordoned",
        Some(Some(_)) if cordon::leaving(state).next().is_some() => "; draining",
        Some(Some(_)) => "; drained",
    }
}

/// What `systemctl status` shows.
fn status_line(pods: usize, running: usize, rejected: usize, leaving: bool) -> String {
    let plural = |number: usize| if number == 1 { "" } else { "s" };
    let mut line = format!("{pods} pod{}, {running} running", plural(pods));
    if rejected > 0 {
        line += &format!("; {rejected} manifest file{} with errors", plural(rejected));
    }
    if leaving {
        line += "; stopping all pods";
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::event::{AskedBy, Cordon, Drain, Group, Shutdown};
    use crate::types::Stamp;

    #[test]
    fn the_status_line_tells_how_far_a_shutdown_and_a_drain_are() {
        let mut state = NodeState::default();
        assert_eq!((&*going_down(&state), cordoned(&state)), ("", ""));
        let group = |priority| Group {
            priority,
            seconds: 10,
        };
        let mut down = Shutdown {
            asked_by: AskedBy::Command,
            since: Stamp::default(),
            groups: vec![group(0), group(1000)],
            turn: 1,
            turn_since: Time(0),
            ended: None,
        };
        state.shutdown = Some(down.clone());
        assert_eq!(
            going_down(&state),
            "Shutting down: group 2 of 2 (priority 1000 and above), 0 to go; "
        );
        down.turn = 2;
        state.shutdown = Some(down);
        assert_eq!(going_down(&state), "Shut down: all pods had time to stop; ");
        for (drain, expected) in [
            (None, "; cordoned"),
            (Some(Drain { grace_ms: None }), "; drained"),
        ] {
            state.cordon = Some(Cordon {
                since: Default::default(),
                stay: Default::default(),
                workloads: Default::default(),
                drain,
            });
            assert_eq!(cordoned(&state), expected);
        }
    }

    #[test]
    fn the_status_line_counts_pods_and_broken_files() {
        assert_eq!(status_line(0, 0, 0, false), "0 pods, 0 running");
        assert_eq!(
            status_line(1, 1, 2, false),
            "1 pod, 1 running; 2 manifest files with errors"
        );
        assert_eq!(
            status_line(3, 2, 0, true),
            "3 pods, 2 running; stopping all pods"
        );
    }
}
