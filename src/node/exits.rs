//! What outlives the boot of how containers ended? A small file beside a pod's volumes, `exits.json`. It is written when
//! something new is to be said, but at most once a minute a pod, so that a container that crashes all the time does not
//! wear out the flash; what is then left to write is written when the node shuts down, or the agent ends. Runs that go on
//! are written, too, after a minute or with the rest: when the machine goes down under them, the file is all that tells. It is not
//! flushed: a power cut may cost the newest end, and leaves the file as it was or of no use, which is as good as none.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::Node;
use crate::layout::Layout;
use crate::plan::former::Began;
use crate::plan::state::Ended;
use crate::plan::{Event, PodState, Time, former};
use crate::spec::{PodUid, Wall};
use crate::sys::file::{self, Durability};

/// Between two writes of a pod's file.
const APART_MS: u64 = 60_000;

/// By container.
type Ends = BTreeMap<String, Ended>;

/// The content of the file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Kept {
    /// How containers ended last.
    ended: Ends,
    /// Those that ran when this was written.
    running: BTreeMap<String, Began>,
}

impl Kept {
    fn of(pod: &PodState) -> Self {
        let ended = former::ends(pod).map(|(name, ended)| (name.to_owned(), ended.clone()));
        let running = former::running(pod).map(|(name, began)| (name.to_owned(), began));
        Self {
            ended: ended.collect(),
            running: running.collect(),
        }
    }

    fn is_empty(&self) -> bool {
        self.ended.is_empty() && self.running.is_empty()
    }
}

/// What was written last.
#[derive(Debug, Default)]
pub(super) struct Exits(HashMap<PodUid, Written>);

#[derive(Debug)]
struct Written {
    /// Numbers of the runs that have ended, and when.
    runs: Vec<(String, u32, Wall)>,
    /// Numbers of those that go on.
    running: Vec<(String, u32)>,
    at: Time,
}

impl Exits {
    /// What there is to write of a pod, if that may be done now, or else when; `at_once`: as soon as there is anything.
    fn due<'a>(
        &self,
        pod: &PodUid,
        mut ends: impl Iterator<Item = (&'a str, &'a Ended)>,
        running: impl Iterator<Item = (&'a str, Began)>,
        now: Time,
        at_once: bool,
    ) -> Option<Time> {
        let last = self.0.get(pod);
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
        self.0.insert(pod.clone(), written);
    }

    /// The pod is gone, and its file with it.
    pub(super) fn forget(&mut self, pod: &PodUid) {
        self.0.remove(pod);
    }
}

/// What tells a run from others, also from those of a pod that was deleted and has come again.
fn run<'a>((name, ended): (&'a str, &'a Ended)) -> (&'a str, u32, Wall) {
    (name, ended.attempt, ended.exit.finished.wall)
}

impl Node {
    /// Writes down how a pod's containers ended, or sees to it that this is done later.
    pub(super) fn keep_exits(&mut self, uid: &PodUid) {
        let Some((path, kept)) = self.exits_to_write(uid, self.state.shutdown.is_some()) else {
            return;
        };
        super::spawn(super::unblock(move || write(&path, &kept)));
    }

    /// Blocking. Writes down what is left to be.
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
        let (ends, running) = (former::ends(pod), former::running(pod));
        let due = self.exits.due(uid, ends, running, now, at_once)?;
        if due > now {
            // A pod that goes has nothing to be written.
            if pod.stopping.is_none() {
                self.wake(uid, due);
            }
            return None;
        }
        let kept = Kept::of(pod);
        if kept.is_empty() {
            return None;
        }
        self.exits.wrote(uid, &kept, now);
        Some((self.hands.config.layout.pod_state(uid).exits(), kept))
    }
}

/// Blocking. What is written down of a pod, as a fact. What ran then has ended with its boot, unless something is left of
/// the pod in this one, which then says how.
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
    Some(Event::FormerEnds { pod, ends })
}

fn write(path: &Path, kept: &Kept) {
    let bytes = serde_json::to_vec(kept).expect("plain data");
    // An agent that has just begun does not know what the one before it has written.
    if file::read_record(path).is_ok_and(|old| old == bytes) {
        return;
    }
    match file::replace(path, &bytes, 0o600, Durability::Process) {
        Ok(()) => {}
        // The pod has gone meanwhile.
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => tracing::warn!("could not write `{}`: {error}, going on", path.display()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::{Exit, Stamp};

    #[test]
    fn a_pods_ends_are_written_once_a_minute_at_most_and_its_runs_after_one() {
        let ends_of = |attempt| {
            let ended = Ended {
                attempt,
                image_id: String::new(),
                exit: Exit::lost(Stamp::default(), Stamp::default()),
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
