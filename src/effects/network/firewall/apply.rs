//! When are which rules put in force? Callers change what is wanted and wait until the kernel has it; whoever finds nobody
//! at work does the next step for all who wait.
//!
//! A step is one run of `nft`: all of the tables if it is not known what is in force, else what is to be added, else the
//! rest. The kernel takes additions at once, but lets the program wait (15 to 20 ms) after removals; so starting pods
//! never wait for pods that go.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::nft::{self, OwnRuns};
use super::stale::{Doors, Forgetful, Stale};
use super::tables::{Family, Tables};
use super::text::{self, Difference};
use super::{FirewallError, Ruleset, features};

/// The rules in force.
#[derive(Debug, Default)]
pub struct Firewall {
    state: Mutex<State>,
    changed: Condvar,
    own: OwnRuns,
    forgetful: Forgetful,
}

/// What is wanted and what is there. Versions count changes of what is wanted.
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
    /// Counts the times that what is in force was declared unknown.
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
    /// Changes what is wanted and returns when the kernel has it. Several callers at once share one transaction.
    /// If the kernel does not take a difference, it gets all of it; if that fails too, what is wanted stays changed and the
    /// next call tries again. Only a change with names that do not fit
    /// into rules is not made at all.
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

    /// Puts all of it in force again, whatever was there: somebody has changed or flushed our tables.
    pub fn restore(&self) -> Result<(), FirewallError> {
        let mut state = self.lock();
        state.tables = Arc::new(Tables::new(&state.wanted, !state.no_bridge_family)?);
        state.forget();
        state.version += 1;
        self.wait(state, false)
    }

    /// Removes our tables. The next update makes them again.
    pub fn remove(&self) -> Result<(), FirewallError> {
        let mut state = self.lock();
        while state.at_work {
            state = self.sleep(state);
        }
        let name = state.tables.bridge.clone();
        if name.is_empty() {
            return Ok(());
        }
        state.forget();
        let mut text = text::gone(Family::Inet, &name);
        if !state.no_bridge_family {
            text.push_str(&text::gone(Family::Bridge, &name));
        }
        // Under the lock: an update must not come between.
        nft::run(&text, &self.own)
    }

    /// The kernel cannot filter on the bridge, so a pod can pretend to other pods to be somebody else; towards the node and
    /// the world it still cannot. Known after the first update.
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

    /// Until what is wanted now is in force, removals too unless `only_adds`.
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
            let begin = Instant::now();
            let outcome = self.carry_out(&mut step);
            state = self.lock();
            state.last_run = begin.elapsed();
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

    /// Makes both tables anew; says what the kernel lacks if it does not take them.
    fn replace(&self, tables: &Tables) -> Result<(), FirewallError> {
        if tables.bridge.is_empty() {
            return Ok(());
        }
        let error = match nft::run(&text::whole(tables), &self.own) {
            Err(error @ FirewallError::Refused(_)) => error,
            result => return result,
        };
        let missing = features::missing_features()?;
        let missing = missing
            .iter()
            .filter(|f| f.required || tables.bridge_family);
        match missing.min_by_key(|feature| !feature.required) {
            Some(feature) => Err(FirewallError::Kernel {
                what: feature.what,
                option: feature.option,
            }),
            None => Err(error),
        }
    }
}

impl State {
    /// Whether getting to `tables` takes nothing but additions, also from what is in force.
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
            stale: self.doors.stale(&doors),
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
                // Somebody has changed or flushed the tables under us: next, all of it.
                return;
            }
            if error.is_without_bridge() && !self.no_bridge_family {
                self.no_bridge_family = true;
                // The names were fine a moment ago.
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
