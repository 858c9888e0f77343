//! The record of container exits that outlives the boot: `exits.json`, a small file beside a pod's volumes. It is
//! written when there is something new, but at most once a minute for each pod, so that a container in a crash loop
//! does not wear out the flash. The rest is written when the node shuts down or the agent ends. Running containers
//! are recorded, too, after a minute or with the rest: if the machine goes down under them, the file is the only
//! record. It is not flushed: a power cut may cost the newest exit, and leaves the old file or an invalid one,
//! which counts as none.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::{Node, memory};
use crate::layout::Layout;
use crate::plan::former::Began;
use crate::plan::run::Ended;
use crate::plan::{Event, PodFact, PodState, former};
use crate::spec::PodUid;
use crate::sys::file::{self, Durability};
use crate::types::{Gather, Time, Wall};

/// The shortest time between two writes of a pod's file.
const APART_MS: u64 = 60_000;

/// By container.
type Ends = BTreeMap<String, Ended>;

/// The content of the file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Kept {
    /// The newest exits.
    ended: Ends,
    /// The containers that ran when this was written.
    running: BTreeMap<String, Began>,
}

impl Kept {
    fn of(pod: &PodState) -> Self {
        let ended = former::ends(pod).map(|(name, ended)| (name.to_owned(), ended.clone()));
        let running = former::running(pod).map(|(name, began)| (name.to_owned(), began));
        Self {
            ended: ended.gather(),
            running: running.gather(),
        }
    }

    fn is_empty(&self) -> bool {
        self.ended.is_empty() && self.running.is_empty()
    }
}

/// What was written last, and what is still to be written.
#[derive(Debug, Default)]
pub(super) struct Exits {
    written: HashMap<PodUid, Written>,
    /// When a pod's file is due.
    later: HashMap<PodUid, Time>,
}

#[derive(Debug)]
struct Written {
    /// The attempt numbers of ended runs, and when they ended.
    runs: Vec<(String, u32, Wall)>,
    /// The attempt numbers of running ones.
    running: Vec<(String, u32)>,
    at: Time,
}

impl Exits {
    /// The content to write for a pod, if it may be written now, or else when; `at_once`: whenever it has changed.
    fn due<'a>(
        &self,
        pod: &PodUid,
        mut ends: impl Iterator<Item = (&'a str, &'a Ended)>,
        running: impl Iterator<Item = (&'a str, Began)>,
        now: Time,
        at_once: bool,
    ) -> Option<Time> {
        let last = self.written.get(pod);
        let known = last.map_or(&[][..], |written| &written.runs);
        let mut known = known.iter();
        let same = ends.all(|end| {
            let of_known = |(name, n, at): &(String, u32, Wall)| run(end) == (&**name, *n, *at);
            known.next().is_some_and(of_known)
        });
        let mut soonest = last.map_or(now, |written| written.at.plus(APART_MS));
        if same && known.next().is_none() {
            let known = last.map_or(&[][..], |written| &written.running);
            let new = |(name, began): &(&str, Began)| {
                !known
                    .iter()
                    .any(|(of, n)| of == name && *n == began.attempt)
            };
            let newest = running.filter(new).map(|(_, began)| began.started.time);
            soonest = soonest.max(newest.max()?.plus(APART_MS));
        }
        Some(if at_once { now } else { soonest.max(now) })
    }

    fn wrote(&mut self, pod: &PodUid, kept: &Kept, at: Time) {
        let runs = kept.ended.iter().map(|(name, ended)| run((name, ended)));
        let runs = runs.map(|(name, n, at)| (name.to_owned(), n, at));
        let running = kept.running.iter();
        let running = running.map(|(name, began)| (name.clone(), began.attempt));
        let written = Written {
            runs: runs.collect(),
            running: running.collect(),
            at,
        };
        self.written.insert(pod.clone(), written);
    }

    /// The pod is removed, and its file with it.
    pub(super) fn forget(&mut self, pod: &PodUid) {
        self.written.remove(pod);
        self.later.remove(pod);
    }

    /// When the next write is due.
    pub(super) fn next(&self) -> Option<Time> {
        self.later.values().copied().min()
    }

    /// The pods whose files are due.
    fn due_by(&self, now: Time) -> Vec<PodUid> {
        let due = self.later.iter().filter(|(_, at)| **at <= now);
        due.map(|(pod, _)| pod.clone()).collect()
    }
}

/// What identifies a run, also among pods that were deleted and recreated.
fn run<'a>((name, ended): (&'a str, &'a Ended)) -> (&'a str, u32, Wall) {
    (name, ended.attempt, ended.exit.finished.wall)
}

impl Node {
    /// Writes the exits of a pod's containers, now or later.
    pub(super) fn keep_exits(&mut self, uid: &PodUid) {
        let Some((path, kept)) = self.exits_to_write(uid, self.state.shutdown.is_some()) else {
            return;
        };
        super::spawn(super::unblock(move || write(&path, &kept)));
    }

    /// Writes the files that are due.
    pub(super) fn keep_late_exits(&mut self) {
        for uid in self.saved.exits.due_by(super::now().time) {
            self.keep_exits(&uid);
            // A minute after the last starts, what they left in the heap is given back, too.
            self.freed.note(memory::STARTED);
        }
    }

    /// Blocking. Writes everything that is left.
    pub(super) fn keep_all_exits(&mut self) {
        let pods: Vec<PodUid> = self.state.pods.keys().cloned().collect();
        for uid in pods {
            if let Some((path, kept)) = self.exits_to_write(&uid, true) {
                write(&path, &kept);
            }
        }
    }

    fn exits_to_write(&mut self, uid: &PodUid, at_once: bool) -> Option<(PathBuf, Kept)> {
        let pod = self.state.pods.get(uid)?;
        let now = super::now().time;
        self.saved.exits.later.remove(uid);
        let (ends, running) = (former::ends(pod), former::running(pod));
        let due = self.saved.exits.due(uid, ends, running, now, at_once)?;
        if due > now {
            // A pod that is being removed is not written.
            if pod.stopping().is_none() {
                self.saved.exits.later.insert(uid.clone(), due);
            }
            return None;
        }
        let kept = Kept::of(pod);
        if kept.is_empty() {
            return None;
        }
        self.saved.exits.wrote(uid, &kept, now);
        Some((self.tools.config.layout.pod_state(uid).exits(), kept))
    }
}

/// Blocking. The recorded exits of a pod, as a fact. A container that ran then has ended with its boot, unless this
/// boot has newer knowledge of the pod.
pub(super) fn read(layout: &Layout, uid: &PodUid, of_this_boot: bool) -> Option<Event> {
    let bytes = file::read_record(layout.pod_state(uid).exits()).ok()?;
    let kept: Kept = serde_json::from_slice(&bytes).ok()?;
    let mut ends = kept.ended;
    if !of_this_boot {
        let cut = kept.running.into_iter();
        ends.extend(cut.map(|(name, began)| (name, began.cut_short(super::now()))));
    }
    for ended in ends.values_mut() {
        ended.exit.started.time = Time(0);
        ended.exit.finished.time = Time(0);
    }
    let pod = uid.clone();
    Some(Event::Pod {
        uid: pod,
        fact: PodFact::FormerEnds { ends },
    })
}

fn write(path: &Path, kept: &Kept) {
    let bytes = serde_json::to_vec(kept).expect("plain data");
    // An agent that has just started does not know what was written before.
    if file::read_record(path).is_ok_and(|old| old == bytes) {
        return;
    }
    match file::replace(path, &bytes, 0o600, Durability::Process) {
        Ok(()) => {}
        // The pod was removed meanwhile.
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => tracing::warn!("could not write `{}`: {error}, going on", path.display()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{Exit, Stamp};

    #[test]
    fn a_pods_ends_are_written_once_a_minute_at_most_and_its_runs_after_one() {
        let ends_of = |attempt| {
            let ended = Ended {
                attempt,
                image_id: String::new(),
                exit: Exit::lost(Stamp::default(), Stamp::default()),
                on_request: false,
            };
            let ended = Ends::from([("c".to_owned(), ended)]);
            Kept {
                ended,
                ..Kept::default()
            }
        };
        let runs = |kept: &Kept| {
            let running = kept.running.clone().into_iter();
            running.collect::<Vec<_>>()
        };
        let pod = PodUid::from("u");
        let mut exits = Exits::default();
        let begin = Time(5_000);
        let due = |exits: &Exits, attempt, at, at_once| {
            let kept = ends_of(attempt);
            let each = kept.ended.iter().map(|(name, ended)| (&**name, ended));
            exits.due(&pod, each, std::iter::empty(), at, at_once)
        };
        assert_eq!(due(&exits, 0, begin, false), Some(begin));
        exits.wrote(&pod, &ends_of(0), begin);
        for (sentence, attempt, ms, at_once, expected) in [
            ("the same", 0, 70_000, true, None),
            ("another, soon after", 1, 1_000, false, Some(60_000)),
            ("the node shuts down", 1, 1_000, true, Some(1_000)),
            ("a minute later", 1, 60_000, false, Some(60_000)),
            ("much later", 2, 600_000, false, Some(600_000)),
        ] {
            let found = due(&exits, attempt, begin.plus(ms), at_once);
            let expected = expected.map(|ms| begin.plus(ms));
            assert_eq!(found, expected, "{sentence}");
        }
        exits.forget(&pod);
        let soon = begin.plus(1);
        assert_eq!(due(&exits, 0, soon, false), Some(soon));

        let mut kept = Kept::default();
        let due = |exits: &Exits, kept: &Kept, at, at_once| {
            let runs = runs(kept);
            let runs = runs.iter().map(|(name, began)| (&**name, began.clone()));
            exits.due(&pod, std::iter::empty(), runs, at, at_once)
        };
        let began = |attempt, time| Began {
            attempt,
            image_id: String::new(),
            started: Stamp {
                time,
                ..Stamp::default()
            },
        };
        assert_eq!(due(&exits, &kept, begin, true), None, "nothing");
        kept.running.insert("c".to_owned(), began(0, begin));
        let minute = begin.plus(APART_MS);
        assert_eq!(due(&exits, &kept, begin, false), Some(minute));
        assert_eq!(due(&exits, &kept, begin, true), Some(begin));
        exits.wrote(&pod, &kept, minute);
        assert_eq!(due(&exits, &kept, minute.plus(1), false), None, "known");
        kept.running
            .insert("c".to_owned(), began(1, minute.plus(70_000)));
        let later = minute.plus(70_000 + APART_MS);
        assert_eq!(due(&exits, &kept, minute.plus(70_000), false), Some(later));
    }
}
