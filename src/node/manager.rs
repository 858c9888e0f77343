//! How does the service manager (systemd) hear how the agent is? That it has started, how many pods there are, that its
//! loop still turns, that it is about to end. Without a manager nothing is said.

use crate::plan::{NodeState, Time};
use crate::sys::notify;

/// The service manager, if there is one.
#[derive(Debug)]
pub(super) struct Manager {
    manager: Option<notify::Manager>,
    /// When it has to hear from the loop next.
    due: Option<Time>,
    status: String,
    /// Manifest files that are not in effect as they are.
    pub(super) rejected_files: usize,
}

impl Manager {
    /// Before any thread exists.
    pub(super) fn of_this_service() -> Self {
        let manager = notify::Manager::of_this_service().unwrap_or_else(|error| {
            tracing::warn!("the service manager does not listen: {error}, ignoring");
            None
        });
        Self {
            manager,
            due: None,
            status: String::new(),
            rejected_files: 0,
        }
    }

    /// What the manager keeps while there is no agent. To be taken once.
    pub(super) fn kept(&mut self) -> Option<notify::Kept> {
        let kept = self.manager.as_mut()?.kept();
        kept.inspect_err(|error| {
            tracing::warn!("the service manager keeps nothing: {error}, ignoring")
        })
        .ok()
    }

    /// The agent knows its pods and answers clients.
    pub(super) fn ready(&mut self, now: Time) {
        self.say("READY=1");
        self.turned(now);
    }

    /// The loop has come round. Its next turn must not be later than [`Manager::due`].
    pub(super) fn turned(&mut self, now: Time) {
        let Some(interval) = self.manager.as_ref().and_then(|m| m.watchdog_ms) else {
            return;
        };
        if self.due.is_none_or(|due| due <= now) {
            self.say("WATCHDOG=1");
            self.due = Some(now.plus(interval / 2));
        }
    }

    /// When the loop has to come round again, if anybody wants to hear of it.
    pub(super) fn due(&self) -> Option<Time> {
        self.due
    }

    /// Tells how the node is, in a line, if that has changed.
    pub(super) fn status(&mut self, state: &NodeState, leaving: bool) {
        if self.manager.is_none() {
            return;
        }
        let running = state.pods.values().filter(|pod| pod.any_running()).count();
        let status = status_line(state.pods.len(), running, self.rejected_files, leaving);
        if status != self.status {
            self.say(&format!("STATUS={status}"));
            self.status = status;
        }
    }

    /// The agent is about to end.
    pub(super) fn stopping(&self) {
        self.say("STOPPING=1");
    }

    fn say(&self, lines: &str) {
        if let Some(manager) = &self.manager
            && let Err(error) = manager.say(lines)
        {
            tracing::debug!("could not tell the service manager `{lines}`: {error}, ignoring");
        }
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
