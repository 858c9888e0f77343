//! The application of rules. Callers change the wanted rules and wait until they are in force; a caller that finds
//! no step in progress does the next step for all that wait.
//!
//! A step is one run of `nft`: all tables if it is not known what is in force, otherwise the additions, otherwise
//! the rest. The kernel takes additions at once, but blocks the program (15 to 20 ms) after removals; so starting
//! pods never wait for terminating pods.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::nft::{self, OwnRuns};
use super::stale::{Doors, Forgetful, Stale};
use super::tables::{Family, Tables, is_plain};
use super::text::{self, Difference};
use super::{FirewallError, Ruleset, features};
use crate::sys::clock;

/// The rules in force.
#[derive(Debug, Default)]
pub struct Firewall {
    state: Mutex<State>,
    changed: Condvar,
    own: OwnRuns,
    forgetful: Forgetful,
}

/// The wanted rules and those in force. Versions count changes of the wanted rules.
#[derive(Debug, Default)]
struct State {
    wanted: Ruleset,
    tables: Arc<Tables>,
    version: u64,
    /// Everything up to this version is in force except removals.
    added: u64,
    /// Everything up to this version is in force.
    done: u64,
    failed: Option<(u64, FirewallError)>,
    /// `None`: unknown.
    in_force: Option<Arc<Tables>>,
    doors: Doors,
    /// Counts how often the rules in force became unknown.
    restores: u64,
    at_work: bool,
    last_run: Duration,
    no_bridge_family: bool,
}

/// One run of the program.
struct Step {
    version: u64,
    restores: u64,
    wanted: Arc<Tables>,
    work: Work,
    doors: Doors,
    stale: Stale,
}

enum Work {
    Whole,
    Additions(Difference),
    Rest(String),
    Nothing,
}

impl Firewall {
    /// Changes the wanted rules and returns when they are in force. Concurrent callers share one transaction. If
    /// the kernel refuses a difference, it gets all tables; if that fails too, the wanted rules stay changed and
    /// the next call tries again. Only a change with names that do not fit into rules is refused as a whole.
    pub fn update(&self, change: impl FnOnce(&mut Ruleset)) -> Result<(), FirewallError> {
        let mut state = self.lock();
        let mut wanted = state.wanted.clone();
        change(&mut wanted);
        let tables = Tables::new(&wanted, !state.no_bridge_family);
        let tables = tables?;
        state.wanted = wanted;
        let only_adds = state.only_adds(&tables);
        state.tables = Arc::new(tables);
        state.version += 1;
        self.wait(state, only_adds)
    }

    /// Adds to the wanted rules what the next update puts in force.
    pub fn expect(&self, change: impl FnOnce(&mut Ruleset)) {
        change(&mut self.lock().wanted);
    }

    /// Puts all rules in force again, because another program has changed or flushed coracle's tables.
    pub fn restore(&self) -> Result<(), FirewallError> {
        let mut state = self.lock();
        state.tables = Arc::new(Tables::new(&state.wanted, !state.no_bridge_family)?);
        state.forget();
        state.version += 1;
        self.wait(state, false)
    }

    /// Removes coracle's tables. The next update makes them again.
    pub fn remove(&self) -> Result<(), FirewallError> {
        let name = self.lock().tables.bridge.clone();
        match name.is_empty() {
            true => Ok(()),
            false => self.remove_tables(&name),
        }
    }

    /// Removes the tables of this name, whether this agent made them or not. The next update makes them again.
    pub fn remove_tables(&self, name: &str) -> Result<(), FirewallError> {
        if !is_plain(name) {
            return Err(FirewallError::Name(name.to_owned()));
        }
        let mut state = self.lock();
        while state.at_work {
            state = self.sleep(state);
        }
        state.at_work = true;
        state.forget();
        let no_bridge_family = state.no_bridge_family;
        drop(state);
        let inet = text::gone(Family::Inet, name);
        let both = || format!("{inet}{}", text::gone(Family::Bridge, name));
        let removed = match no_bridge_family {
            true => nft::run(&inet, &self.own),
            false => match nft::run(&both(), &self.own) {
                // A kernel that cannot filter on the bridge refuses all of it.
                Err(FirewallError::Refused(_)) => nft::run(&inet, &self.own),
                removed => removed,
            },
        };
        self.lock().at_work = false;
        self.changed.notify_all();
        removed
    }

    /// The kernel cannot filter on the bridge, so a pod can forge its address towards other pods; towards the node
    /// and beyond it still cannot. Known after the first update.
    pub fn spoofing_unprotected(&self) -> bool {
        self.lock().no_bridge_family
    }

    /// How long the kernel and `nft` took for the last change.
    pub fn last_run(&self) -> Duration {
        self.lock().last_run
    }

    pub(super) fn own_runs(&self) -> &OwnRuns {
        &self.own
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn sleep<'s>(&self, state: MutexGuard<'s, State>) -> MutexGuard<'s, State> {
        self.changed
            .wait(state)
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the rules wanted now are in force, removals too unless `only_adds`.
    fn wait<'s>(
        &'s self,
        mut state: MutexGuard<'s, State>,
        only_adds: bool,
    ) -> Result<(), FirewallError> {
        let version = state.version;
        loop {
            let reached = if only_adds { state.added } else { state.done };
            if reached >= version {
                return Ok(());
            }
            if let Some((_, error)) = state.failed.as_ref().filter(|(at, _)| *at >= version) {
                return Err(error.clone());
            }
            if state.at_work {
                state = self.sleep(state);
                continue;
            }
            state.at_work = true;
            let mut step = state.next_step();
            drop(state);
            let begin = clock::now();
            let outcome = self.carry_out(&mut step);
            state = self.lock();
            state.last_run = clock::now().duration_since(begin);
            state.at_work = false;
            state.finish(step, outcome);
            self.changed.notify_all();
        }
    }

    fn carry_out(&self, step: &mut Step) -> Result<(), FirewallError> {
        match &step.work {
            Work::Whole => self.replace(&step.wanted)?,
            Work::Additions(difference) => nft::run(&difference.additions, &self.own)?,
            Work::Rest(text) => nft::run(text, &self.own)?,
            Work::Nothing => {}
        }
        self.forgetful.forget(std::mem::take(&mut step.stale));
        Ok(())
    }

    /// Recreates both tables; reports what the kernel lacks if it refuses them.
    fn replace(&self, tables: &Tables) -> Result<(), FirewallError> {
        if tables.bridge.is_empty() {
            return Ok(());
        }
        let error = match nft::run(&text::whole(tables), &self.own) {
            Err(error @ FirewallError::Refused(_)) => error,
            result => return result,
        };
        match features::first_missing(tables.bridge_family)? {
            Some(feature) => Err(FirewallError::Kernel {
                what: feature.what,
                option: feature.option,
            }),
            None => Err(error),
        }
    }
}

impl State {
    /// Whether additions alone lead to `tables`, also from the rules in force.
    fn only_adds(&self, tables: &Tables) -> bool {
        let is_free =
            |old: &Arc<Tables>| text::is_alike(old, tables) && !text::changes_values(old, tables);
        text::keeps_all(&self.tables, tables) && self.in_force.as_ref().is_some_and(is_free)
    }

    fn next_step(&self) -> Step {
        let wanted = Arc::clone(&self.tables);
        let doors = Doors::new(&self.wanted);
        let difference = self
            .in_force
            .as_ref()
            .map(|old| text::difference(old, &wanted));
        let work = match difference {
            None | Some(None) => Work::Whole,
            Some(Some(d)) if !d.additions.is_empty() => Work::Additions(d),
            Some(Some(d)) if !d.rest.is_empty() => Work::Rest(d.rest),
            Some(Some(_)) => Work::Nothing,
        };
        Step {
            version: self.version,
            restores: self.restores,
            stale: self.doors.stale(&doors, self.in_force.is_some()),
            wanted,
            work,
            doors,
        }
    }

    fn finish(&mut self, step: Step, outcome: Result<(), FirewallError>) {
        if let Err(error) = outcome {
            self.in_force = None;
            let was_whole = matches!(step.work, Work::Whole);
            if !was_whole && matches!(error, FirewallError::Refused(_)) {
                // Another program has changed or flushed the tables: the next step sends all of them.
                return;
            }
            if error.is_without_bridge() && !self.no_bridge_family {
                self.no_bridge_family = true;
                // The names were valid a moment ago.
                if let Ok(tables) = Tables::new(&self.wanted, false) {
                    self.tables = Arc::new(tables);
                    return;
                }
            }
            self.failed = Some((step.version, error));
            return;
        }
        let is_known = self.restores == step.restores;
        let (in_force, complete) = match (step.work, &self.in_force) {
            (Work::Additions(d), Some(old)) if !d.rest.is_empty() => {
                (Arc::new(text::with_additions(old, &step.wanted)), false)
            }
            (Work::Additions(_) | Work::Whole | Work::Rest(_) | Work::Nothing, _) => {
                (step.wanted, true)
            }
        };
        self.in_force = is_known.then_some(in_force);
        self.added = step.version;
        if complete {
            self.done = step.version;
            self.doors = step.doors;
        }
    }

    fn forget(&mut self) {
        self.in_force = None;
        self.restores += 1;
    }
}
