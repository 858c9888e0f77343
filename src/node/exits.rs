//! What outlives the boot of how containers ended? A small file beside a pod's volumes, `exits.json`. It is written when
//! something new is to be said, but at most once a minute a pod, so that a container that crashes all the time does not
//! wear out the flash; what is then left to write is written when the node shuts down, or the agent ends. It is not
//! flushed: a power cut may cost the newest end, and leaves the file as it was or of no use, which is as good as none.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::{Path, PathBuf};

use super::Node;
use crate::layout::Layout;
use crate::plan::state::Ended;
use crate::plan::{Event, Time, former};
use crate::spec::{PodUid, Wall};
use crate::sys::file::{self, Durability};

/// Between two writes of a pod's file.
const APART_MS: u64 = 60_000;

/// By container.
type Ends = BTreeMap<String, Ended>;

/// What was written last.
#[derive(Debug, Default)]
pub(super) struct Exits(HashMap<PodUid, Written>);

#[derive(Debug)]
struct Written {
    /// Numbers of the runs, and when they ended.
    runs: Vec<(String, u32, Wall)>,
    at: Time,
}

impl Exits {
    /// What there is to write of a pod, if that may be done now, or else when; `at_once`: as soon as there is anything.
    fn due<'a>(
        &self,
        pod: &PodUid,
        mut ends: impl Iterator<Item = (&'a str, &'a Ended)>,
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
        if same && known.next().is_none() {
            return None;
        }
        let soonest = last.map_or(now, |written| written.at.plus(APART_MS));
        Some(if at_once { now } else { soonest.max(now) })
    }

    fn wrote(&mut self, pod: &PodUid, ends: &Ends, at: Time) {
        let runs = ends.iter().map(|(name, ended)| run((name, ended)));
        let runs = runs.map(|(name, n, at)| (name.to_owned(), n, at));
        let runs = runs.collect();
        self.0.insert(pod.clone(), Written { runs, at });
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
        let Some((path, ends)) = self.exits_to_write(uid, self.state.shutdown.is_some()) else {
            return;
        };
        super::spawn(super::unblock(move || write(&path, &ends)));
    }

    /// Blocking. Writes down what is left to be.
    pub(super) fn keep_all_exits(&mut self) {
        let pods: Vec<PodUid> = self.state.pods.keys().cloned().collect();
        for uid in pods {
            if let Some((path, ends)) = self.exits_to_write(&uid, true) {
                write(&path, &ends);
            }
        }
    }

    fn exits_to_write(&mut self, uid: &PodUid, at_once: bool) -> Option<(PathBuf, Ends)> {
        let pod = self.state.pods.get(uid)?;
        let now = super::now().time;
        let due = self.exits.due(uid, former::ends(pod), now, at_once)?;
        let ends: Ends = former::ends(pod)
            .map(|(name, ended)| (name.to_owned(), ended.clone()))
            .collect();
        if ends.is_empty() {
            return None;
        }
        if due > now {
            self.wake(uid, due);
            return None;
        }
        self.exits.wrote(uid, &ends, now);
        Some((self.hands.config.layout.pod_state(uid).exits(), ends))
    }
}

/// Blocking. What is written down of a pod, as a fact.
pub(super) fn read(layout: &Layout, uid: &PodUid) -> Option<Event> {
    let bytes = file::read_record(layout.pod_state(uid).exits()).ok()?;
    let mut ends: Ends = serde_json::from_slice(&bytes).ok()?;
    for ended in ends.values_mut() {
        ended.exit.started.time = Time(0);
        ended.exit.finished.time = Time(0);
    }
    let pod = uid.clone();
    Some(Event::FormerEnds { pod, ends })
}

fn write(path: &Path, ends: &Ends) {
    let bytes = serde_json::to_vec(ends).expect("plain data");
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
    fn a_pods_ends_are_written_once_a_minute_at_most() {
        let ends_of = |attempt| {
            let ended = Ended {
                attempt,
                image_id: String::new(),
                exit: Exit::lost(Stamp::default(), Stamp::default()),
            };
            Ends::from([("c".to_owned(), ended)])
        };
        let pod = PodUid::from("u");
        let mut exits = Exits::default();
        let begin = Time(5_000);
        let due = |exits: &Exits, attempt, at, at_once| {
            let ends = ends_of(attempt);
            let each = ends.iter().map(|(name, ended)| (&**name, ended));
            exits.due(&pod, each, at, at_once)
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
    }
}
