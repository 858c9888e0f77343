//! When the black box is written, and what has to make room for what. The box is a file of a fixed number of slots
//! ([`SLOTS`]); a new version of an entry goes to another slot than the old one, so that a torn write costs only what
//! is new.

use super::Time;
use crate::types::black_box::Entry;

/// Slots of the file.
pub const SLOTS: usize = 120;

/// How long the first entry waits for others.
const GATHER_MS: u64 = 2_000;

/// The shortest time between two writes.
const APART_MS: u64 = 60_000;

/// The most entries that wait.
const MAX_WAITING: usize = 64;

/// The most entries of one container or pod, and of the node.
const MAX_OF_ONE: usize = 8;
const MAX_OF_NODE: usize = 24;

/// Those of the node that never make room for others.
const KEPT_OF_NODE: usize = 8;

/// Entries that are to be written.
#[derive(Debug, Default)]
pub struct Batch {
    waiting: Vec<Entry>,
    /// When the first of them came.
    since: Option<Time>,
    /// When the box was written last.
    written: Option<Time>,
}

impl Batch {
    /// The batch of an agent that starts now; the box was written so many milliseconds ago.
    pub fn after(age_ms: Option<u64>, now: Time) -> Self {
        // Times begin with the boot: what was long before it does not count as its beginning.
        let recent = age_ms.filter(|age| *age < APART_MS);
        Self {
            written: recent.map(|age| Time(now.0.saturating_sub(age))),
            ..Self::default()
        }
    }

    /// Adds an entry.
    pub fn add(&mut self, entry: Entry, now: Time) {
        self.since.get_or_insert(now);
        if let Some(index) = self.waiting.iter().position(|old| old.is_same(&entry)) {
            let old = self.waiting.remove(index);
            self.waiting.push(old.again(entry));
            return;
        }
        let of_one = of(&self.waiting, &entry);
        let leaves = match () {
            () if of_one.len() >= limit(&entry) => of_one.first().copied(),
            () if self.waiting.len() >= MAX_WAITING => most_of(&self.waiting),
            () => None,
        };
        if let Some(index) = leaves {
            self.waiting.remove(index);
        }
        self.waiting.push(entry);
    }

    /// When they are to be written.
    pub fn due(&self) -> Option<Time> {
        let gathered = self.since?.plus(GATHER_MS);
        let apart = self.written.map(|written| written.plus(APART_MS));
        Some(apart.map_or(gathered, |apart| apart.max(gathered)))
    }

    /// Takes what is due, or all of it `at_once`.
    pub fn take(&mut self, now: Time, at_once: bool) -> Vec<Entry> {
        match self.due() {
            Some(due) if at_once || due <= now => {}
            Some(_) | None => return Vec::new(),
        }
        (self.since, self.written) = (None, Some(now));
        std::mem::take(&mut self.waiting)
    }

    /// Takes entries back that could not be written. They came before those that wait.
    pub fn put_back(&mut self, entries: Vec<Entry>, now: Time) {
        let newer = std::mem::take(&mut self.waiting);
        for entry in entries.into_iter().chain(newer) {
            self.add(entry, now);
        }
    }

    /// The earliest time of the next write.
    pub fn next_write(&self) -> Option<Time> {
        Some(self.written?.plus(APART_MS))
    }

    /// It could not be written for now: the last write is still under way.
    pub fn put_off(&mut self, now: Time) {
        self.written = Some(now);
    }
}

/// Where an entry goes, and as what, beside those that are there: slots and entries, oldest first. `None`: it is there
/// already. `freed`: the slots of former versions whose new ones may not be on disk yet. The power may fail before they
/// are, so that these are not written over.
pub fn place(there: &[(usize, Entry)], freed: &[usize], new: Entry) -> Option<(usize, Entry)> {
    let entries: Vec<&Entry> = there.iter().map(|(_, entry)| entry).collect();
    if entries.iter().any(|old| old.covers(&new)) {
        return None;
    }
    let is_free =
        |slot: &usize| !freed.contains(slot) && !there.iter().any(|(taken, _)| taken == slot);
    let free = (0..SLOTS).find(is_free);
    let known = entries.iter().rposition(|old| old.is_same(&new));
    let of_one = of(&entries, &new);
    // One slot stays free for new versions.
    let full = there.len() + freed.len() + 1 >= SLOTS;
    let leaves = match known {
        Some(_) => None,
        None if of_one.len() >= limit(&new) => of_one.first().copied(),
        None if full => most_of(&entries),
        None => None,
    };
    let slot = match leaves {
        Some(index) => there[index].0,
        None => free.or_else(|| there.first().map(|(slot, _)| *slot))?,
    };
    let entry = match known {
        Some(index) => entries[index].clone().again(new),
        None => new,
    };
    Some((slot, entry))
}

/// The most entries about what this one is about.
fn limit(entry: &Entry) -> usize {
    match entry.pod.is_empty() {
        true => MAX_OF_NODE,
        false => MAX_OF_ONE,
    }
}

/// The places of those about the same.
fn of<E: std::borrow::Borrow<Entry>>(entries: &[E], like: &Entry) -> Vec<usize> {
    let each = entries.iter().enumerate();
    let same = each.filter(|(_, entry)| (*entry).borrow().is_about_same(like));
    same.map(|(index, _)| index).collect()
}

/// The oldest of those of which there are most: what has much leaves first. The node keeps a few whatever happens.
fn most_of<E: std::borrow::Borrow<Entry>>(entries: &[E]) -> Option<usize> {
    let count = |index: &usize| {
        let entry = entries[*index].borrow();
        let kept = if entry.pod.is_empty() {
            KEPT_OF_NODE
        } else {
            0
        };
        of(entries, entry).len().saturating_sub(kept)
    };
    (0..entries.len()).rev().max_by_key(count)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Wall;

    fn exit(pod: &str, code: i32, attempt: u32) -> Entry {
        Entry {
            pod: pod.to_owned(),
            uid: pod.to_owned(),
            container: "c".to_owned(),
            attempt,
            code,
            ..Entry::new("Error", "", Wall(i64::from(attempt)))
        }
    }

    fn node(reason: &str) -> Entry {
        Entry::new(reason, "", Wall(0))
    }

    /// The box after these, as the node writes it.
    fn filled(entries: impl IntoIterator<Item = Entry>) -> Vec<(usize, Entry)> {
        let mut there: Vec<(usize, Entry)> = Vec::new();
        for (id, entry) in (1..).zip(entries) {
            if let Some((slot, mut entry)) = place(&there, &[], entry) {
                let old = (entry.id != 0).then_some(entry.id);
                entry.id = old.unwrap_or(id);
                there.retain(|(taken, was)| *taken != slot && Some(was.id) != old);
                there.push((slot, entry));
            }
            assert!(there.len() < SLOTS);
        }
        there
    }

    #[test]
    fn the_box_is_written_soon_but_at_most_once_a_minute() {
        // The agent starts 5 s after the boot.
        let start = Time(5_000);
        for (sentence, age_ms, added, expected) in [
            ("nothing happens", Some(0), None, None),
            ("the first of all", None, Some(5_000), Some(7_000)),
            ("soon after a write", Some(0), Some(6_000), Some(65_000)),
            (
                "just before the minute is over",
                Some(0),
                Some(64_500),
                Some(66_500),
            ),
            ("long after", Some(0), Some(500_000), Some(502_000)),
            (
                "written before the boot",
                Some(59_999),
                Some(5_000),
                Some(60_000),
            ),
            (
                "written long before the boot",
                Some(60_000),
                Some(5_000),
                Some(7_000),
            ),
        ] {
            let mut batch = Batch::after(age_ms, start);
            if let Some(at) = added {
                batch.add(exit("p", 1, 0), Time(at));
                batch.add(exit("q", 1, 0), Time(at + 1));
            }
            assert_eq!(batch.due(), expected.map(Time), "{sentence}");
            let Some(due) = expected else { continue };
            assert_eq!(batch.take(Time(due - 1), false), [], "{sentence}");
            assert_eq!(batch.take(Time(due), false).len(), 2, "{sentence}");
            assert_eq!(batch.due(), None, "{sentence}");
            assert_eq!(batch.take(Time(due + 1), true), [], "{sentence}");
            batch.add(exit("p", 1, 1), Time(due + 10));
            assert_eq!(batch.due(), Some(Time(due + APART_MS)), "{sentence}");
            assert_eq!(batch.take(Time(due + 20), true).len(), 1, "the agent ends");
        }
    }

    #[test]
    fn what_could_not_be_written_is_written_a_minute_later() {
        let mut batch = Batch::default();
        batch.add(exit("p", 1, 0), Time(0));
        batch.add(node("Rebooted"), Time(0));
        let failed = batch.take(Time(2_000), false);
        assert_eq!((failed.len(), batch.due()), (2, None));
        assert_eq!(batch.next_write(), Some(Time(62_000)));
        batch.add(exit("p", 1, 1), Time(3_000));
        batch.put_back(failed, Time(62_000));
        assert_eq!(batch.due(), Some(Time(62_000)));
        let taken = batch.take(Time(62_000), false);
        let of: Vec<_> = taken.iter().map(|e| (&*e.reason, e.count)).collect();
        assert_eq!(of, [("Rebooted", 1), ("Error", 2)]);
        let many = |from: u32| (from..from + 60).map(|n| exit(&format!("p{n}"), 1, 0));
        many(0).for_each(|entry| batch.add(entry, Time(0)));
        batch.put_back(many(100).collect(), Time(0));
        let taken = batch.take(Time(0), true);
        assert_eq!(taken.len(), MAX_WAITING);
        assert_eq!(
            taken.last().map(|e| &*e.pod),
            Some("p59"),
            "the newest stay"
        );
    }

    #[test]
    fn what_waits_is_bounded_and_the_same_is_counted() {
        let mut batch = Batch::default();
        for attempt in 0..1000 {
            batch.add(exit("same", 1, attempt), Time(0));
            batch.add(
                exit("restless", i32::try_from(attempt).unwrap(), attempt),
                Time(0),
            );
            batch.add(exit(&format!("pod{attempt}"), 1, 0), Time(0));
        }
        let taken = batch.take(Time(0), true);
        assert!(taken.len() <= MAX_WAITING);
        let of_pod = |name: &str| taken.iter().filter(|e| e.pod == name).collect::<Vec<_>>();
        assert_eq!(
            of_pod("restless").len().min(MAX_OF_ONE + 1),
            of_pod("restless").len()
        );
        let same = of_pod("same");
        assert_eq!((same.len(), same[0].attempt), (1, 999));
    }

    #[test]
    fn a_container_that_crashes_for_ever_has_one_slot_and_pushes_out_nothing() {
        let others = (0..50).map(|n| exit(&format!("p{n}"), 1, 0));
        let crashes = (0..5_000).map(|attempt| exit("crash", 7, attempt));
        let there = filled(others.chain(crashes));
        assert_eq!(there.len(), 51);
        let crash = &there[50].1;
        assert_eq!(
            (crash.count, crash.attempt, crash.first),
            (5_000, 4_999, Wall(0))
        );
        let codes = (5_000..9_000).map(|attempt| exit("crash", attempt as i32, attempt));
        let others = (0..50).map(|n| exit(&format!("p{n}"), 1, 0));
        let there = filled(others.chain(codes));
        let of_crash = there.iter().filter(|(_, e)| e.pod == "crash").count();
        assert_eq!((there.len(), of_crash), (50 + MAX_OF_ONE, MAX_OF_ONE));
    }

    #[test]
    fn in_a_full_box_what_has_most_entries_loses_its_oldest() {
        let cuts = (0..100).map(|_| node("UncleanShutdown"));
        let many = (0..1_000).map(|n| exit(&format!("p{}", n / 2), n % 2, 0));
        let there = filled(cuts.chain(many));
        assert_eq!(there.len(), SLOTS - 1);
        let of_node = there.iter().filter(|(_, e)| e.pod.is_empty()).count();
        assert_eq!(of_node, KEPT_OF_NODE);
        let newest = there.iter().any(|(_, e)| e.pod == "p499");
        assert!(newest);
    }

    #[test]
    fn a_former_version_is_not_written_over_before_the_new_one_is_on_disk() {
        let there = filled([exit("p", 1, 3), exit("q", 1, 3)]);
        let (slot, entry) = place(&there, &[], exit("p", 1, 4)).expect("new");
        assert_eq!((slot, entry.count), (2, 2));
        let there = [there[1].clone(), (slot, entry)];
        let next = exit("r", 1, 0);
        assert_eq!(place(&there, &[0], next.clone()).expect("new").0, 3);
        assert_eq!(place(&there, &[], next).expect("new").0, 0, "later");
    }

    #[test]
    fn what_is_there_already_is_not_written_again() {
        let there = filled([exit("p", 1, 3)]);
        for (sentence, entry, expected) in [
            (
                "the same run, after an agent restart",
                exit("p", 1, 3),
                None,
            ),
            ("an earlier run", exit("p", 2, 1), None),
            (
                "the next one ends in the same way",
                exit("p", 1, 4),
                Some((1, 2)),
            ),
            (
                "the next one ends in another way",
                exit("p", 2, 4),
                Some((1, 1)),
            ),
            ("another pod", exit("q", 1, 3), Some((1, 1))),
        ] {
            let found = place(&there, &[], entry).map(|(slot, entry)| (slot, entry.count));
            assert_eq!(found, expected, "{sentence}");
        }
        let mut other = exit("p", 1, 0);
        other.at = Wall(1_000);
        assert!(
            place(&there, &[], other).is_some(),
            "a pod of the same UID that was made again"
        );
        let cut = filled([
            node("UncleanShutdown"),
            node("UncleanShutdown"),
            node("AgentDied"),
            node("AgentDied"),
        ]);
        let counts: Vec<u32> = cut.iter().map(|(_, entry)| entry.count).collect();
        assert_eq!(counts, [1, 1, 2], "each power cut has its own time");
    }
}
