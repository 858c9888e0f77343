//! The node's conditions, their transition times and the thresholds that are met. They are kept in
//! `<run-dir>/conditions.json`, which is written when one changes, so that an agent restart is no transition and ends
//! no shortage. After a reboot they begin again.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::object::Condition;
use crate::plan::pressure::{self, Pressure, Threshold};
use crate::sys::file::{self, Durability};
use crate::types::{Gather, Stamp, Wall};

/// Far more than the file has.
const MOST_BYTES: u64 = 64 << 10;

/// The status of a condition, and since when.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Standing {
    /// Whether it is true.
    pub(super) yes: bool,
    /// `lastTransitionTime`.
    pub(super) since: Wall,
    /// The thresholds that are met and cause it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    met: Vec<Threshold>,
}

/// All conditions, in the order in which they are shown.
#[derive(Debug)]
pub(super) struct Standings {
    /// Where they are saved; `None`: nowhere.
    path: Option<PathBuf>,
    all: [(Condition, Standing); 4],
}

impl Standings {
    /// A node that is ready and not under pressure.
    pub(super) fn new(since: Wall) -> Self {
        let standing = |of| {
            let yes = of == Condition::Ready;
            let met = Vec::new();
            (of, Standing { yes, since, met })
        };
        Self {
            path: None,
            all: Condition::ALL.map(standing),
        }
    }

    /// Blocking. Restores them from this file, as far as it is valid, and saves them there from now on.
    pub(super) fn keep(&mut self, path: PathBuf) {
        let mut known = read(&path);
        for (of, standing) in &mut self.all {
            *standing = match known.remove(of.name()) {
                Some(known) => known,
                None => continue,
            };
        }
        self.path = Some(path);
        self.write();
    }

    /// Sets a condition; returns whether it changed.
    pub(super) fn set(&mut self, condition: Condition, yes: bool, now: Wall) -> bool {
        let mut all = self.all.iter_mut();
        let changed = all.find(|(of, standing)| *of == condition && standing.yes != yes);
        let Some((_, standing)) = changed else {
            return false;
        };
        (standing.yes, standing.since) = (yes, now);
        self.write();
        true
    }

    /// Sets the thresholds that are met.
    pub(super) fn set_met(&mut self, pressure: &Pressure) {
        let mut changed = false;
        for (of, standing) in &mut self.all {
            let leads = |t: &&Threshold| Condition::Short(t.signal.condition()) == *of;
            let met: Vec<Threshold> = pressure.met().filter(leads).copied().collect();
            changed |= standing.met != met;
            standing.met = met;
        }
        if changed {
            self.write();
        }
    }

    /// The pressure that the node was under before the agent restart.
    pub(super) fn pressure(&self, now: Stamp) -> Pressure {
        let short = pressure::Condition::ALL.into_iter().filter_map(|of| {
            let mut all = self.all.iter();
            let (_, standing) = all.find(|(other, _)| *other == Condition::Short(of))?;
            standing.yes.then_some((of, standing))
        });
        let held: Vec<_> = short.clone().map(|(of, it)| (of, it.since)).collect();
        let met: Vec<_> = short.flat_map(|(_, it)| it.met.clone()).collect();
        Pressure::recovered(&held, &met, now)
    }

    /// Each condition with its status.
    pub(super) fn iter(&self) -> impl Iterator<Item = &(Condition, Standing)> {
        self.all.iter()
    }

    fn write(&self) {
        let Some(path) = &self.path else {
            return;
        };
        let all: BTreeMap<&str, &Standing> = (self.all.iter())
            .map(|(of, standing)| (of.name(), standing))
            .gather();
        let bytes = serde_json::to_vec(&all).expect("plain data");
        if let Err(error) = file::replace(path, &bytes, 0o600, Durability::Process) {
            tracing::warn!("could not write `{}`: {error}, going on", path.display());
        }
    }
}

/// A missing or broken file counts as empty.
fn read(path: &Path) -> BTreeMap<String, Standing> {
    let bytes = file::read_bounded(path, MOST_BYTES).unwrap_or_default();
    serde_json::from_slice(&bytes).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::pressure::Condition as Short;
    use crate::types::Time;

    #[test]
    fn an_agent_restart_is_no_transition() {
        let folder = tempfile();
        let path = folder.join("conditions.json");
        let memory = Condition::Short(Short::Memory);
        let open = |path: &Path, now| {
            let mut standings = Standings::new(now);
            standings.keep(path.to_owned());
            standings
        };
        let mut first = open(&path, Wall(1));
        assert!(!first.set(Condition::Ready, true, Wall(2)));
        assert!(first.set(memory, true, Wall(3)));
        let met = Threshold {
            signal: pressure::Signal::Memory,
            below: pressure::Amount::Count(7),
            grace_ms: 0,
            min_reclaim: None,
        };
        let now = Stamp {
            time: Time(9),
            wall: Wall(9),
        };
        first.set_met(&Pressure::recovered(&[], &[met], now));
        let mut second = open(&path, Wall(9));
        let known = Pressure::recovered(&[(Short::Memory, Wall(3))], &[met], now);
        assert_eq!(second.pressure(now), known);
        let shown = |s: &Standings| {
            let all = s.iter().map(|(of, at)| (of.name(), at.yes, at.since.0));
            all.collect::<Vec<_>>()
        };
        let expected = [
            ("MemoryPressure", true, 3),
            ("DiskPressure", false, 1),
            ("PIDPressure", false, 1),
            ("Ready", true, 1),
        ];
        assert_eq!(shown(&second), expected);
        assert!(second.set(memory, false, Wall(10)));
        std::fs::write(&path, "{\"Ready\":").expect("a folder");
        let torn = open(&path, Wall(11));
        assert!(shown(&torn).iter().all(|(_, _, since)| *since == 11));
        std::fs::remove_dir_all(folder).expect("a folder");
    }

    fn tempfile() -> PathBuf {
        let name = format!("coracle-standings-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder).expect("a temporary folder");
        folder
    }
}
