//! The watch over what pods start after outside coracle: devices, files, mounts, units of systemd and the clock. There
//! is a task for each kind while a pod waits for one, and none otherwise. Nothing is asked for again and again where the
//! system reports changes.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use smol::channel::Sender;
use smol::{Async, Task, Timer};

use super::Input;
use super::unblock::unblock_outside;
use crate::effects::bus::{self, BusError};
use crate::effects::outside::look;
use crate::effects::outside::paths::Paths;
use crate::effects::outside::units::{UnitState, Units};
use crate::plan::event::{Outsides, Seen};
use crate::plan::{Event, NodeFact};
use crate::spec::after::Outside;
use crate::sys::clock_sync;
use crate::sys::mount_watch::MountWatch;

/// First and longest wait between tries to reach systemd.
const BUS_WAIT: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// Changes of units that come together are looked at together.
const UNITS_PAUSE: Duration = Duration::from_millis(20);

/// How often the clock is checked: the kernel does not report that a program synchronises it. The wait doubles.
const CLOCK_WAIT: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(10));

/// How often paths are looked at on file systems that report no changes, or if the node has too many watches.
const SILENT_WAIT: Duration = Duration::from_secs(10);

/// The kinds of tasks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Devices, files and mounts.
    Paths,
    Units,
    Clock,
}

/// The watches there are.
#[derive(Debug)]
pub(super) struct Watching {
    wanted: BTreeSet<Outside>,
    tasks: Vec<(Kind, Task<()>)>,
    report: Report,
}

/// What was seen last, and where changes go.
#[derive(Debug, Clone)]
struct Report {
    seen: Rc<RefCell<Outsides>>,
    inputs: Sender<Input>,
}

impl Kind {
    fn of(outside: &Outside) -> Self {
        match outside {
            Outside::Device(_) | Outside::File(_) | Outside::Mount(_) => Self::Paths,
            Outside::Unit(_) => Self::Units,
            Outside::TimeSync => Self::Clock,
        }
    }
}

impl Watching {
    pub(super) fn new(inputs: Sender<Input>) -> Self {
        let seen = Rc::default();
        Self {
            wanted: BTreeSet::new(),
            tasks: Vec::new(),
            report: Report { seen, inputs },
        }
    }

    /// Watches these from now on. Returns what is to be recorded if they have changed: nothing is known any more of what
    /// is not watched, and a task that ended may not have reported all that it saw.
    pub(super) fn look_for(&mut self, wanted: BTreeSet<Outside>) -> Option<Event> {
        if self.wanted == wanted {
            return None;
        }
        for kind in [Kind::Paths, Kind::Units, Kind::Clock] {
            let of = |all: &BTreeSet<Outside>| -> Vec<Outside> {
                let all = all.iter().filter(|one| Kind::of(one) == kind);
                all.cloned().collect()
            };
            let items = of(&wanted);
            if of(&self.wanted) == items {
                continue;
            }
            // A task that is dropped ends where it waits.
            self.tasks.retain(|(other, _)| *other != kind);
            if !items.is_empty() {
                let report = self.report.clone();
                let task = match kind {
                    Kind::Paths => super::task(watch_paths(items, report)),
                    Kind::Units => super::task(watch_units(items, report)),
                    Kind::Clock => super::task(watch_clock(report)),
                };
                self.tasks.push((kind, task));
            }
        }
        let mut seen = self.report.seen.borrow_mut();
        seen.retain(|one, _| wanted.contains(one));
        self.wanted = wanted;
        Some(Event::Node(NodeFact::OutsideSeen(seen.clone())))
    }
}

impl Report {
    /// Reports this, if it is new.
    async fn tell(&self, news: Vec<(Outside, Seen)>) {
        let seen = {
            let mut seen = self.seen.borrow_mut();
            let before = seen.clone();
            seen.extend(news);
            (*seen != before).then(|| seen.clone())
        };
        if let Some(seen) = seen {
            let event = Event::Node(NodeFact::OutsideSeen(seen));
            let _ = self.inputs.send(Input::Event(event)).await;
        }
    }

    /// Reports the same of all of them.
    async fn tell_all(&self, items: &[Outside], seen: Seen) {
        let all = items.iter().map(|one| (one.clone(), seen.clone()));
        self.tell(all.collect()).await;
    }
}

fn there(there: bool) -> Seen {
    Seen {
        there,
        problem: None,
    }
}

fn missing(problem: &str) -> Seen {
    Seen {
        there: false,
        problem: Some(problem.to_owned()),
    }
}

/// The watches of one task on paths and mounts.
struct PathWatch {
    paths: Paths,
    mounts: MountWatch,
    /// Whether some changes will not be noticed.
    blind: bool,
}

async fn watch_paths(items: Vec<Outside>, report: Report) {
    let opened = Paths::new().and_then(|paths| Ok((paths, MountWatch::new()?)));
    let ready = opened.and_then(|(paths, mounts)| {
        let events = Async::new(paths.as_fd().try_clone_to_owned()?)?;
        let changes = Async::new(mounts.as_fd().try_clone_to_owned()?)?;
        Ok((paths, mounts, events, changes))
    });
    let (paths, mounts, events, changes) = match ready {
        Ok(ready) => ready,
        Err(error) => {
            tracing::warn!(
                "could not watch paths that pods start after: {error}, looking every 10s"
            );
            return look_often(items, report).await;
        }
    };
    let mut watch = PathWatch {
        paths,
        mounts,
        blind: false,
    };
    loop {
        let (wanted, found);
        (watch, wanted, found) = unblock_outside({
            let (mut watch, wanted) = (watch, items.clone());
            move || {
                let found = watch.look(&wanted);
                (watch, wanted, found)
            }
        })
        .await;
        match found {
            Ok(found) => {
                let found = found.into_iter().map(there);
                report.tell(wanted.into_iter().zip(found).collect()).await;
            }
            Err(error) => report.tell_all(&wanted, missing(&error.to_string())).await,
        }
        while !watch.changed(&events, &changes).await {}
    }
}

impl PathWatch {
    /// Blocking. Watches first, so that no change is missed after the look.
    fn look(&mut self, wanted: &[Outside]) -> std::io::Result<Vec<bool>> {
        let paths = wanted.iter().filter_map(|one| match one {
            Outside::Device(path) | Outside::File(path) => Some(Path::new(path)),
            Outside::Mount(_) | Outside::Unit(_) | Outside::TimeSync => None,
        });
        let paths: Vec<&Path> = paths.collect();
        self.mounts.clear();
        let aimed = self.paths.aim(&paths);
        self.blind = aimed.is_err() || self.paths.is_silent();
        look(wanted)
    }

    /// Waits for an event; returns whether it may matter.
    async fn changed(&mut self, events: &Async<OwnedFd>, changes: &Async<OwnedFd>) -> bool {
        enum Woken {
            Paths,
            Mounts,
            Time,
        }
        let on_paths = async {
            let _ = events.readable().await;
            Woken::Paths
        };
        let on_mounts = async {
            let _ = changes.readable().await;
            Woken::Mounts
        };
        let in_time = async {
            match self.blind {
                true => drop(Timer::after(SILENT_WAIT).await),
                false => smol::future::pending().await,
            }
            Woken::Time
        };
        let woken = smol::future::or(smol::future::or(on_paths, on_mounts), in_time).await;
        match woken {
            Woken::Paths => self.paths.changed(),
            Woken::Mounts => {
                self.mounts.clear();
                self.paths.forget();
                true
            }
            Woken::Time => true,
        }
    }
}

/// Without watches.
async fn look_often(items: Vec<Outside>, report: Report) {
    loop {
        let wanted = items.clone();
        let found = unblock_outside(move || look(&wanted)).await;
        let found = found.unwrap_or_else(|_| vec![false; items.len()]);
        let found = items.iter().cloned().zip(found.into_iter().map(there));
        report.tell(found.collect()).await;
        Timer::after(SILENT_WAIT).await;
    }
}

async fn watch_units(items: Vec<Outside>, report: Report) {
    let mut wait = BUS_WAIT.0;
    loop {
        let mut reached = false;
        let error = match session(&items, &report, &mut reached).await {
            Ok(never) => match never {},
            Err(error) => error,
        };
        tracing::info!(
            "could not ask systemd for units that pods start after: {}, trying again",
            crate::chain(&error)
        );
        let silent = missing("systemd cannot be asked over the system bus");
        report.tell_all(&items, silent).await;
        if reached {
            wait = BUS_WAIT.0;
        }
        Timer::after(wait).await;
        wait = BUS_WAIT.1.min(wait * 2);
    }
}

/// Reports the states of units until the bus fails.
async fn session(
    items: &[Outside],
    report: &Report,
    reached: &mut bool,
) -> Result<std::convert::Infallible, BusError> {
    let names = items.iter().filter_map(|one| match one {
        Outside::Unit(name) => Some(name.clone()),
        Outside::Device(_) | Outside::File(_) | Outside::Mount(_) | Outside::TimeSync => None,
    });
    let mut units = Units::connect(&bus::path(), names.collect()).await?;
    loop {
        let states = units.states().await?;
        *reached = true;
        let seen = states.into_iter().map(|state| match state {
            UnitState::Active => there(true),
            UnitState::Inactive => there(false),
            UnitState::NotFound => missing("systemd has no such unit"),
        });
        report.tell(items.iter().cloned().zip(seen).collect()).await;
        units.changed().await?;
        Timer::after(UNITS_PAUSE).await;
    }
}

async fn watch_clock(report: Report) {
    let mut wait = CLOCK_WAIT.0;
    loop {
        let synced = clock_sync::is_synchronized();
        report.tell(vec![(Outside::TimeSync, there(synced))]).await;
        Timer::after(wait).await;
        wait = CLOCK_WAIT.1.min(wait * 2);
    }
}
