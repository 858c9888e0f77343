//! Edits that are taken back, as tables and over all small numbers.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::super::tests::{World, document, strategy};
use super::*;
use crate::plan::{Event, NodeFact, NodeState};
use crate::spec::convert::{ConvertContext, admitted, documents};
use crate::spec::{Reason, WorkloadKind, rollback};

#[path = "away_test.rs"]
mod away_test;
#[path = "instead_test.rs"]
mod instead_test;
#[path = "paused_test.rs"]
mod paused_test;
#[path = "pod_revisions_test.rs"]
mod pod_revisions_test;
#[path = "resume_test.rs"]
mod resume_test;

const DEADLINE_MS: u64 = 600_000;

/// A node with one file, whose records go through their file with each look at it.
struct Machine {
    world: World,
    text: String,
    boots: u32,
    /// What is in force instead, as it was read last.
    seen: Option<Overrides>,
}

fn annotated(text: &str, more: &str) -> String {
    let metadata = format!("{{name: web, annotations: {{coracle.dev/rollback: \"true\"{more}}}}}");
    text.replacen("{name: web}", &metadata, 1)
}

fn deployment(letter: char, replicas: usize, more: &str) -> String {
    annotated(&document("Deployment", letter, replicas, more), "")
}

fn stored(world: &World) -> Vec<(Subject, History)> {
    let records = world.state.workloads.histories.records();
    serde_json::from_str(&serde_json::to_string(&records).unwrap()).unwrap()
}

impl Machine {
    fn new(text: &str) -> Self {
        let mut world = World::new();
        world.state.workloads.histories = Histories::recovered(vec![], "0".to_owned());
        let mut node = Self {
            world,
            text: String::new(),
            boots: 0,
            seen: None,
        };
        node.save(text);
        node
    }

    /// The file says this now.
    fn save(&mut self, text: &str) {
        text.clone_into(&mut self.text);
        self.seen = None;
        self.look();
    }

    /// The file is read, as `node/manifests/instead.rs` does, until nothing else is to be in force.
    fn look(&mut self) {
        for _ in 0..5 {
            let now = self.world.state.workloads.histories.overrides();
            if self.seen.as_ref() == Some(&now) {
                return;
            }
            self.read(&now);
            self.seen = Some(now);
        }
        panic!("it never settles: {}", self.world.shown());
    }

    fn read(&mut self, overrides: &Overrides) {
        let context = ConvertContext::of("n");
        let mut found = documents(self.text.as_bytes(), "f", &context).unwrap();
        let mut editions = BTreeMap::new();
        for pod in &mut found.pods {
            if pod.rollback_within_ms().is_none() {
                continue;
            }
            let edition = pod.edition().into();
            if let Some(instead) = overrides.get(&Subject::Pod(pod.key.clone()))
                && instead.of == edition
            {
                *pod = admitted(instead.text.as_bytes()).unwrap();
            }
            editions.insert(pod.key.clone(), edition);
        }
        if let Some(own) = found.workloads.first().cloned()
            && let Some(instead) = overrides.get(&Subject::Workload(own.key.clone()))
        {
            let of = match instead.cause {
                Cause::Restarted | Cause::Resumed => &own.written,
                _ => &own.edition,
            };
            if *of == instead.of {
                let text = rollback::with_template(&own.manifest.text(), &instead.text).unwrap();
                found = documents(text.as_bytes(), "kept", &context).unwrap();
                found.workloads[0].written = own.written;
                found.workloads[0].edition = own.edition;
                found.workloads[0].resumed = instead.cause == Cause::Resumed;
            }
        }
        let desired = Desired {
            pods: (found.pods.into_iter())
                .map(|p| (p.uid.clone(), Arc::new(p)))
                .collect(),
            workloads: (found.workloads.into_iter())
                .map(|w| (w.key.clone(), Arc::new(w)))
                .collect::<SortedMap<_, _>>()
                .into(),
            editions,
            complete: true,
            ..Desired::default()
        };
        self.world
            .tell(Event::Node(NodeFact::DesiredChanged(desired)));
    }

    /// Time passes, and the file is looked at.
    fn pass(&mut self, ms: u64) {
        self.world.pass(ms);
        self.look();
    }

    /// The agent restarts; the pods go on.
    fn restart_agent(&mut self) {
        let before = std::mem::replace(&mut self.world, World::new());
        self.world.now = before.now;
        let rollouts = before.state.workloads.rollouts();
        let histories = Histories::recovered(stored(&before), self.boots.to_string());
        let histories = histories.resumed(|key| {
            let mut known = rollouts.iter().filter(|(known, _)| known == key);
            known.any(|(_, progress)| !progress.is_resumed())
        });
        let workloads = super::super::Workloads::default()
            .with_rollouts(rollouts)
            .with_histories(histories);
        self.world.state = NodeState {
            workloads,
            pods: before.let_in(),
            incarnations: before.state.incarnations,
            cordon: before.state.cordon,
            shutdown: before.state.shutdown,
            ..NodeState::default()
        };
        self.seen = None;
        self.look();
    }

    /// The machine reboots: nothing is left but the records.
    fn reboot(&mut self) {
        self.boots += 1;
        let before = std::mem::replace(&mut self.world, World::new());
        let boot = self.boots.to_string();
        let histories = Histories::recovered(stored(&before), boot);
        self.world.state.workloads.histories = histories.resumed(|_| false);
        self.world.state.cordon = before.state.cordon;
        self.seen = None;
        self.look();
    }

    /// All that can go goes, and pods of this letter become ready, one after the other.
    fn settle(&mut self, letter: char) {
        for _ in 0..40 {
            self.world.set_ready(letter, true);
            self.world.gone();
            self.pass(0);
        }
    }

    fn history(&self) -> &History {
        let mut all = self.world.state.workloads.histories.all.values();
        all.next().expect("a history")
    }

    /// `1 2* 3!`: `*` is good, `!` in the file.
    fn numbers(&self) -> String {
        let history = self.history();
        let all = history.revisions.iter().map(|revision| {
            let good = history.good.as_ref() == Some(&revision.hash);
            let file = history.written == revision.hash;
            let mark = |yes, mark| if yes { mark } else { "" };
            format!("{}{}{}", revision.number, mark(good, "*"), mark(file, "!"))
        });
        all.collect::<Vec<_>>().join(" ")
    }

    fn note(&self) -> String {
        self.history().note().unwrap_or_default()
    }

    fn undo(&mut self, to: Option<u64>) -> Result<u64, String> {
        let subject = self.subject();
        let (number, instead) = self.world.state.workloads.histories.undo(&subject, to)?;
        self.put(subject, instead);
        Ok(number)
    }

    fn restart_pods(&mut self, at: &str) {
        let subject = self.subject();
        let histories = &self.world.state.workloads.histories;
        let instead = histories.restart(&subject, at).unwrap();
        self.put(subject, instead);
    }

    fn put(&mut self, subject: Subject, instead: Option<Instead>) {
        self.world
            .tell(Event::Node(NodeFact::PutInstead(subject, instead)));
        self.look();
    }

    fn subject(&self) -> Subject {
        let mut all = self.world.state.workloads.histories.all.keys();
        all.next().expect("a history").clone()
    }
}

#[test]
fn a_rollout_that_fails_is_taken_back_until_the_file_changes() {
    let mut node = Machine::new(&deployment('a', 3, ""));
    node.settle('a');
    assert_eq!(node.numbers(), "1*!");
    node.save(&deployment('b', 3, ""));
    assert_eq!(node.world.shown(), "a a a B");
    node.pass(DEADLINE_MS - 1);
    assert_eq!(node.world.shown(), "a a a B");
    node.pass(1);
    assert_eq!(node.world.shown(), "a a a b-");
    node.world.gone();
    assert_eq!(node.world.shown(), "a a a");
    assert_eq!(node.numbers(), "2! 3*");
    assert_eq!(
        node.note(),
        "revision 2 was not ready within 600s: default/web-f4pm7k2vnz-0 (Running); revision 3 is in force until the document \
         changes"
            .replace("f4pm7k2vnz", &node.history().written)
    );
    let progressing = &node.world.status()["conditions"][1];
    assert_eq!(progressing["status"], "False");
    assert_eq!(progressing["reason"], "ProgressDeadlineExceeded");
    // Neither time nor a restart tries it again.
    node.pass(10 * DEADLINE_MS);
    node.restart_agent();
    assert_eq!(node.world.shown(), "a a a");
    node.reboot();
    assert_eq!(node.world.shown(), "A A A");
    node.pass(10 * DEADLINE_MS);
    assert_eq!(node.world.shown(), "A A A");
    node.settle('a');
    // Any change of the document does.
    node.save(&annotated(
        &document("Deployment", 'b', 3, ""),
        ", again: please",
    ));
    assert_eq!(node.world.shown(), "a a a B");
    assert_eq!(
        (node.numbers().as_str(), node.note().as_str()),
        ("3* 4!", "")
    );
    node.settle('b');
    assert_eq!(node.world.shown(), "b b b");
    assert_eq!(node.numbers(), "3 4*!");
}

#[test]
fn nothing_is_taken_back_without_the_annotation_or_a_good_template() {
    let mut node = Machine::new(&deployment('a', 2, ""));
    node.pass(3 * DEADLINE_MS);
    assert_eq!(
        (node.world.shown(), node.numbers()),
        ("A A".into(), "1!".into())
    );
    node.save(&deployment('b', 2, ""));
    node.pass(3 * DEADLINE_MS);
    assert_eq!(node.numbers(), "1 2!");
    node.settle('b');
    assert_eq!(node.numbers(), "1 2*!");
    node.save(&document("Deployment", 'c', 2, ""));
    node.pass(3 * DEADLINE_MS);
    assert_eq!(
        (node.world.shown(), node.numbers()),
        ("b b C".into(), "1 2* 3!".into())
    );
}

#[test]
fn every_small_rollout_is_taken_back_also_over_restarts() {
    for replicas in 1..4_usize {
        for (surge, unavailable) in [(1, 0), (0, 1), (2, 0), (1, 1), (0, 2), (2, 2)] {
            for ready in 0..replicas {
                for interruption in 0..3 {
                    taken_back(replicas, (surge, unavailable), ready, interruption);
                }
            }
        }
    }
}

/// So many of the new pods become ready; then nothing, an agent restart or a reboot interrupts.
fn taken_back(replicas: usize, (surge, unavailable): (usize, usize), ready: usize, how: u32) {
    let more = strategy(&surge.to_string(), &unavailable.to_string());
    let what = format!("{replicas} {surge} {unavailable} {ready} {how}");
    let mut node = Machine::new(&deployment('a', replicas, &more));
    node.settle('a');
    node.save(&deployment('b', replicas, &more));
    let good = |node: &mut Machine| {
        for _ in 0..10 {
            let uids: Vec<_> = node.world.uids('b').into_iter().take(ready).collect();
            uids.iter()
                .for_each(|uid| node.world.set_pod_ready(uid, true));
            node.world.gone();
        }
    };
    good(&mut node);
    match how {
        0 => {}
        1 => node.restart_agent(),
        _ => {
            node.reboot();
            good(&mut node);
        }
    }
    assert!(node.note().is_empty(), "{what}: {}", node.note());
    node.pass(DEADLINE_MS);
    for _ in 0..20 {
        assert!(
            node.world.live() <= replicas + surge,
            "{what}: {}",
            node.world.shown()
        );
        let enough = node.world.ready() + unavailable >= replicas;
        assert!(enough || how == 2, "{what}: {}", node.world.shown());
        let one = node.world.uids('a').into_iter();
        let mut one = one.filter(|uid| !node.world.state.pods[uid].flags.ready.yes);
        match one.next() {
            Some(uid) => node.world.set_pod_ready(&uid, true),
            None => node.world.gone(),
        }
        node.look();
    }
    assert_eq!(node.world.shown(), vec!["a"; replicas].join(" "), "{what}");
    assert_eq!(node.numbers(), "2! 3*", "{what}");
}

#[test]
fn a_template_that_makes_the_machine_reboot_is_taken_back() {
    let mut node = Machine::new(&deployment('a', 2, ""));
    node.settle('a');
    node.save(&deployment('b', 2, ""));
    for boot in 1.. {
        assert!(boot < 15, "it never ends");
        node.reboot();
        node.pass(5_000);
        if !node.note().is_empty() {
            break;
        }
        assert_eq!(node.world.shown(), "A A B");
    }
    node.reboot();
    assert_eq!(node.world.shown(), "A A");
}

#[test]
fn the_other_kinds_are_taken_back_too() {
    let within = ", coracle.dev/rollback-within: 1m";
    for (kind, tried, back) in [
        ("StatefulSet", "a a B", "a a a"),
        ("DaemonSet", "B", "a"),
        ("ReplicaSet", "a a a B", "a a a"),
    ] {
        // Another variable makes another pod also where an image does not.
        let text = |letter| {
            let image = format!("image: {letter}");
            let more = format!("{image}, env: [{{name: V, value: {letter}}}]");
            annotated(
                &document(kind, letter, 3, "").replace(&image, &more),
                within,
            )
        };
        let mut node = Machine::new(&text('a'));
        node.settle('a');
        node.save(&text('b'));
        node.world.gone();
        assert_eq!(node.world.shown(), tried, "{kind}");
        node.pass(59_000);
        assert!(node.note().is_empty(), "{kind}");
        node.pass(1_000);
        let note = node.note();
        assert!(
            note.contains("revision 2 was not ready within 60s"),
            "{kind}: {note}"
        );
        node.settle('a');
        assert_eq!(node.world.shown(), back, "{kind}");
        // A reboot changes nothing of that.
        node.save(&text('c'));
        node.reboot();
        node.settle('a');
        node.pass(61_000);
        node.settle('a');
        assert_eq!(node.world.shown(), back, "{kind} {}", node.numbers());
    }
}

#[test]
fn few_revisions_are_kept_and_the_good_one_always() {
    for (limit, expected) in [
        ("", "1* 16 17 18 19 20 21 22 23 24 25 26!"),
        ("  revisionHistoryLimit: 2\n", "1* 25 26!"),
        ("  revisionHistoryLimit: 0\n", "1* 26!"),
    ] {
        let mut node = Machine::new(&document("Deployment", 'a', 1, limit));
        node.settle('a');
        for letter in 'b'..='z' {
            node.save(&document("Deployment", letter, 1, limit));
        }
        let numbers = node.numbers();
        let last = |text: &str| {
            text.split(' ')
                .rev()
                .take(10)
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        assert_eq!(last(&numbers), last(expected), "{limit}");
        assert!(numbers.starts_with("1* ") && node.history().revisions.len() <= 11);
    }
    let mut node = Machine::new(&document("Deployment", 'a', 1, ""));
    node.save("");
    assert!(node.world.state.workloads.histories.all.is_empty());
}

#[test]
fn the_texts_are_limited_together() {
    let revision = |number: u64| Revision {
        number,
        hash: number.to_string().into(),
        cause: None,
        text: Some(SharedText::of(&"x".repeat(60_000))),
    };
    let of = |name: usize| {
        let key = WorkloadKey {
            kind: WorkloadKind::Deployment,
            namespace: "".into(),
            name: name.to_string().into(),
        };
        let history = History {
            revisions: (1..=4).map(revision).collect(),
            good: Some("2".into()),
            ..History::default()
        };
        (Subject::Workload(key), history)
    };
    let mut all = Histories::recovered((0..50).map(of).collect(), String::new());
    all.bound();
    let kept = all.all.values().flat_map(|h| &h.revisions);
    let bytes: usize = kept.filter_map(|r| r.text.as_ref()).map(|t| t.len()).sum();
    assert!(bytes <= MAX_TEXTS, "{bytes}");
    let good = |h: &History| {
        h.revisions
            .iter()
            .any(|r| r.number == 2 && r.text.is_some())
    };
    assert!(all.all.values().map(Box::as_ref).all(good));
}

#[test]
fn a_fault_is_reported_once() {
    let mut node = Machine::new(&deployment('a', 1, ""));
    node.settle('a');
    node.save(&deployment('b', 1, ""));
    node.world.now.time = node.world.now.time.plus(DEADLINE_MS);
    let mut seen = 0;
    for _ in 0..3 {
        let turn = Event::Node(NodeFact::WorkloadTurn);
        let notices = node.world.state.apply(&turn, node.world.now);
        let backs = notices.iter().filter(|n| n.reason == Reason::RolledBack);
        seen += backs.count();
    }
    assert_eq!(seen, 1);
}
