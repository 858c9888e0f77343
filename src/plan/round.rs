//! Rounds: only runs of the pod's newest round count. A round begins when the sandbox is lost, when a rule restarts
//! all containers in place, and when a pod that the node stopped may run again: the pod then begins with its first
//! init container.
//!
//! ```text
//! a rule fires ──► the others are killed at once ──► round ──while the container whose rule fired waits──► starts
//! ```
//!
//! A round keeps every back-off: a pod that keeps failing starts later each time, whatever fails (`coracle help
//! differences`).

use serde::{Deserialize, Serialize};

use super::restart::{self, RESET_MS};
use super::run::Run;
use super::state::{ContainerState, Role};
use super::{PodState, Settings, Time};
use crate::spec::{ContainerSpec, RestartAction};

/// The round of a container, saved before its next start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Round {
    /// Runs with a smaller number are of an earlier round.
    pub first: u32,
    /// The earlier round was ended by `RestartAllContainers`, so this container starts whatever its policy.
    pub in_place: bool,
    /// This container's rule ended it, so the pod waits as long as this container would.
    #[serde(default)]
    pub fired: bool,
    /// The pod was evicted, or stopped for a shutdown: this container starts whatever its policy.
    #[serde(default)]
    pub restored: bool,
}

/// Why a round begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Begun {
    /// The sandbox was lost.
    Lost,
    /// A rule restarts all containers.
    InPlace,
    /// The pod was evicted, or stopped for a shutdown, and may run again.
    Restored,
}

impl ContainerState {
    /// Whether the newest run is of an earlier round: it ended, and does not show how far the pod is now.
    pub fn stale(&self) -> bool {
        self.run.attempt().is_some_and(|a| a < self.round.first)
    }

    /// Whether `RestartAllContainers` removed the newest run.
    pub fn removed_in_place(&self) -> bool {
        self.round.in_place && self.stale()
    }

    /// Whether the pod, and this container with it, begins again as if neither had ever run.
    pub fn restored(&self) -> bool {
        self.round.restored && self.stale()
    }

    /// Whether this container's rule has restarted the pod, and it has not started since.
    fn fired(&self) -> bool {
        self.round.fired && self.stale()
    }

    /// Whether it restarts for another container's sake, and so has no back-off.
    pub(super) fn follows(&self) -> bool {
        self.removed_in_place() && !self.round.fired
    }

    /// The newest run, if that counts.
    pub fn current(&self) -> Option<&Run> {
        (self.run != Run::None && !self.stale()).then_some(&self.run)
    }

    fn begin_round(&mut self, begun: Begun, fires: bool, now: Time) {
        let (removed, restored) = (self.removed_in_place(), self.restored());
        let fired = self.fired() || fires;
        self.round = Round {
            first: self.next_attempt,
            in_place: match begun {
                // A container that has not begun again yet is not removed either.
                Begun::InPlace => !restored,
                Begun::Lost => removed,
                Begun::Restored => false,
            },
            restored: restored || begun == Begun::Restored,
            fired: fired && begun != Begun::Restored,
        };
        match begun {
            Begun::InPlace | Begun::Restored => self.permitted = None,
            Begun::Lost => {}
        }
        if self.round.fired || begun == Begun::Lost && self.role == Role::Main {
            return;
        }
        self.calm(begun, now);
    }

    /// Ends the newest run because of the pod, so its back-off counts from when it ended by itself, if it did. Init
    /// containers never run long enough for that to reset their series.
    fn calm(&mut self, begun: Begun, now: Time) {
        let stop = self.stop();
        let (Some(backoff), Some(ended)) = (&mut self.backoff, self.run.ended()) else {
            return;
        };
        if self.permitted == Some(self.next_attempt) {
            // Its next start has no wait, and does not count twice.
            return;
        }
        if now.since(backoff.permitted) > RESET_MS {
            self.backoff = None;
            return;
        }
        let over = now >= ended.exit.finished.time.plus(backoff.delay_ms);
        let stopped = begun == Begun::Restored && stop.asked.is_some();
        backoff.waived |= over || stopped;
    }
}

/// Whether this container ended in a way that restarts the whole pod in place, and that restart is still due.
fn fires(spec: &ContainerSpec, c: &ContainerState) -> bool {
    let Some(ended) = c.current().and_then(Run::ended) else {
        return false;
    };
    if c.ended_on_request() {
        return false;
    }
    let mut rules = spec.restart_rules.iter();
    let first = rules.find(|rule| rule.matches(ended.exit.code));
    first.is_some_and(|rule| rule.action == RestartAction::RestartAllContainers)
}

impl PodState {
    /// Whether any container ended in a way that restarts the whole pod in place, and that restart is still due.
    pub fn restarts_all(&self) -> bool {
        self.each().any(|(spec, c)| fires(spec, c)) && !self.over()
    }

    /// Begins a round: earlier runs do not count any more, and the pod begins with its first init container.
    pub(super) fn begin_round(&mut self, begun: Begun, now: Time) {
        let fire = |(spec, c)| fires(spec, c);
        let firing: Vec<bool> = self.each().map(fire).collect();
        for (container, fires) in self.containers.iter_mut().zip(firing) {
            // A container that was killed for another's rule may have ended as its own rule says.
            let fires = fires && container.stop().asked.is_none();
            container.begin_round(begun, fires, now);
        }
    }

    /// The last container that `RestartAllContainers` kills is gone: a new round begins.
    pub(super) fn note_round(&mut self, now: Time) {
        let runs = self.of_manifest().iter().any(|c| c.run.is_running());
        let waits = self.stopping().is_some() || self.in_flight.is_some() || runs;
        if waits || !self.restarts_all() {
            return;
        }
        self.begin_round(Begun::InPlace, now);
    }

    /// Before this moment no container of the round starts: those whose rules fired have to wait.
    pub(super) fn round_starts(&self, settings: &Settings) -> Time {
        let fired = self.of_manifest().iter().filter(|c| c.fired());
        let starts = fired.map(|c| restart::earliest(c, self.waits(settings)));
        starts.max().unwrap_or(Time(0))
    }
}
