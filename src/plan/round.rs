//! Which runs count? Those of the pod's newest round. A round begins when the sandbox is lost, when a rule restarts all
//! containers in place, and when the node lets a pod that it kept down run again: the pod begins with its first init
//! container then.
//!
//! ```text
//! a rule fires ──► the others are killed at once ──► round ──as long as the container whose rule fired waits──► starts
//! ```
//!
//! No round forgets a back-off: a pod that fails in whatever way starts later each time (part A20).

use super::restart::{self, RESET_MS};
use super::state::{ContainerState, Role, Run};
use super::{PodState, Settings, Time};
use crate::plan::event::Round;
use crate::spec::{ContainerSpec, RestartAction};

/// Why a round begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Begun {
    /// The sandbox was lost.
    Lost,
    /// A rule restarts all containers.
    InPlace,
    /// The pod was evicted, or down for a shutdown, and may run again.
    Restored,
}

impl ContainerState {
    /// Whether the newest run is of an earlier round: it ended, and says nothing about how far the pod is now.
    pub fn stale(&self) -> bool {
        self.run.attempt().is_some_and(|a| a < self.round.first)
    }

    /// Whether the newest run was taken away by `RestartAllContainers`.
    pub fn removed_in_place(&self) -> bool {
        self.round.in_place && self.stale()
    }

    /// Whether the pod begins again, and this container with it, as if neither had ever run.
    pub fn restored(&self) -> bool {
        self.round.restored && self.stale()
    }

    /// Whether this container's rule has restarted the pod, and it has not started since.
    fn fired(&self) -> bool {
        self.round.fired && self.stale()
    }

    /// Whether it restarts for another container's sake: it has nothing to wait for.
    pub(super) fn follows(&self) -> bool {
        self.removed_in_place() && !self.round.fired
    }

    /// The newest run, if that counts.
    pub fn current(&self) -> Option<&Run> {
        match self.run {
            Run::None => None,
            Run::Running { .. } | Run::Ended(_) if self.stale() => None,
            Run::Running { .. } | Run::Ended(_) => Some(&self.run),
        }
    }

    fn begin_round(&mut self, begun: Begun, fires: bool, now: Time) {
        let (removed, restored) = (self.removed_in_place(), self.restored());
        let fired = self.fired() || fires;
        self.round = Round {
            first: self.next_attempt,
            in_place: match begun {
                // One that has not begun again yet is not taken away either.
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

    /// Its newest run is over for what happened to the pod, so its wait is counted from when it ended by itself, if it
    /// did. Init containers never run for so long that their series would begin anew by that.
    fn calm(&mut self, begun: Begun, now: Time) {
        let (Some(backoff), Run::Ended(ended)) = (&mut self.backoff, &self.run) else {
            return;
        };
        if self.permitted == Some(self.next_attempt) {
            // Its next start need not wait, and is not counted again.
            return;
        }
        if now.since(backoff.permitted) > RESET_MS {
            self.backoff = None;
            return;
        }
        let over = now >= ended.exit.finished.time.plus(backoff.delay_ms);
        let stopped = begun == Begun::Restored && self.stop.asked.is_some();
        backoff.waived |= over || stopped;
    }
}

/// Whether this container has ended in a way that restarts the whole pod in place, and that is not yet done.
fn fires(spec: &ContainerSpec, c: &ContainerState) -> bool {
    let Some(ended) = c.current().and_then(Run::ended) else {
        return false;
    };
    let mut rules = spec.restart_rules.iter();
    let first = rules.find(|rule| rule.matches(ended.exit.code));
    first.is_some_and(|rule| rule.action == RestartAction::RestartAllContainers)
}

impl PodState {
    /// Whether a container has ended in a way that restarts the whole pod in place, and that is not yet done.
    pub fn restarts_all(&self) -> bool {
        self.each().any(|(spec, c)| fires(spec, c)) && !self.over()
    }

    /// What ran until now does not count any more: the pod begins again with its first init container.
    pub(super) fn begin_round(&mut self, begun: Begun, now: Time) {
        let fire = |(spec, c)| fires(spec, c);
        let firing: Vec<bool> = self.each().map(fire).collect();
        for (container, fires) in self.containers.iter_mut().zip(firing) {
            // What was killed for another's rule may have ended as its own rule says.
            let fires = fires && container.stop.asked.is_none();
            container.begin_round(begun, fires, now);
        }
    }

    /// The last container that `RestartAllContainers` was to kill is gone: a new round begins.
    pub(super) fn note_round(&mut self, now: Time) {
        let runs = self.of_manifest().iter().any(|c| c.run.is_running());
        let waits = self.stopping.is_some() || self.in_flight.is_some() || runs;
        if waits || !self.restarts_all() {
            return;
        }
        self.begin_round(Begun::InPlace, now);
    }

    /// Before which moment no container of this round starts: those whose rules fired have to wait.
    pub(super) fn round_starts(&self, settings: &Settings) -> Time {
        let fired = self.of_manifest().iter().filter(|c| c.fired());
        let starts = fired.map(|c| restart::earliest(c, self.waits(settings)));
        starts.max().unwrap_or(Time(0))
    }
}
