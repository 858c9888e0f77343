//! Interrupted rollouts.

use std::collections::BTreeSet;

use super::super::super::resume;
use super::super::super::tests::{document, strategy};
use super::super::*;
use super::{DEADLINE_MS, Machine, annotated};
use crate::plan::{Event, NodeFact, PodFact, stop::Target};
use crate::spec::{PodUid, WorkloadKind};

#[path = "partition_test.rs"]
mod partition_test;

/// A Deployment of three pods that is rolled out, of which `ready` new pods become ready.
fn rolling(ready: usize) -> Machine {
    let mut node = Machine::new(&document("Deployment", 'a', 3, ""));
    node.settle('a');
    node.save(&document("Deployment", 'b', 3, ""));
    for _ in 0..ready {
        node.world.set_ready('b', true);
        node.world.gone();
        node.pass(0);
    }
    node
}

#[test]
fn the_former_pods_come_back_beside_the_new_ones_after_a_power_cut() {
    for (ready, before) in [(0, "a a a B"), (1, "a a b B")] {
        let mut node = rolling(ready);
        assert_eq!(node.world.shown(), before);
        node.reboot();
        assert_eq!(node.world.shown(), "A A A B");
        // A second one changes nothing.
        node.reboot();
        assert_eq!(node.world.shown(), "A A A B");
        node.world.set_ready('a', true);
        node.pass(10 * DEADLINE_MS);
        assert_eq!(node.world.shown(), "a a a B");
        assert_eq!(
            node.world.status()["conditions"][1]["reason"],
            "ProgressDeadlineExceeded"
        );
        // Nor does one once it has failed.
        node.reboot();
        node.world.set_ready('a', true);
        assert_eq!(node.world.shown(), "a a a B");
        assert_eq!(node.note(), "");
        node.settle('b');
        assert_eq!(node.world.shown(), "b b b");
        node.reboot();
        assert_eq!(node.world.shown(), "B B B");
    }
}

#[test]
fn a_power_cut_between_the_two_templates_costs_neither() {
    let mut node = rolling(0);
    // The machine goes down again before the file's template is in force once more.
    node.boots += 1;
    let histories = Histories::recovered(super::stored(&node.world), "1".to_owned());
    node.world = super::World::new();
    node.world.state.workloads.histories = histories.resumed(|_| false);
    let overrides = node.world.state.workloads.histories.overrides();
    node.read(&overrides);
    assert_eq!(node.world.shown(), "A A A");
    node.reboot();
    assert_eq!(node.world.shown(), "A A A B");
}

#[test]
fn only_what_stood_beside_the_new_template_comes_back() {
    // The file was changed while the machine was off.
    let mut node = rolling(0);
    node.text = document("Deployment", 'c', 3, "");
    node.reboot();
    assert_eq!(node.world.shown(), "C C C");
    // All old pods had gone, although a new one is not ready.
    let more = strategy("3", "3");
    let mut node = Machine::new(&document("Deployment", 'a', 3, &more));
    node.settle('a');
    node.save(&document("Deployment", 'b', 3, &more));
    node.world.gone();
    node.pass(0);
    assert_eq!(node.world.shown(), "B B B");
    node.reboot();
    assert_eq!(node.world.shown(), "B B B");
    // They do not stand side by side.
    for (kind, more) in [
        ("Deployment", "  strategy: {type: Recreate}\n"),
        ("DaemonSet", ""),
    ] {
        let mut node = Machine::new(&document(kind, 'a', 1, more));
        node.settle('a');
        node.save(&document(kind, 'b', 1, more));
        node.reboot();
        assert_eq!(node.world.shown(), "B", "{kind}");
    }
}

#[test]
fn pods_that_wait_for_their_update_outlive_a_reboot() {
    for (more, after) in [
        (
            "  updateStrategy: {rollingUpdate: {partition: 3}}\n",
            "a a a",
        ),
        ("  updateStrategy: {type: OnDelete}\n", "a a a"),
        // The former template must not run on data of the new one.
        (
            "  updateStrategy: {rollingUpdate: {partition: 2}}\n",
            "a a b",
        ),
    ] {
        let of = |letter| document("StatefulSet", letter, 3, more);
        let mut node = Machine::new(&of('a'));
        node.settle('a');
        node.save(&of('b'));
        node.settle('b');
        assert_eq!(node.world.shown(), after);
        node.reboot();
        assert_eq!(node.world.shown(), "A");
        // An agent restart in between loses nothing.
        node.restart_agent();
        for _ in 0..5 {
            node.settle('a');
            node.settle('b');
        }
        assert_eq!(node.world.shown(), after);
    }
}

fn uid(node: &Machine, name: &str) -> PodUid {
    let mut pods = node.world.state.pods.values();
    let pod = pods.find(|pod| &*pod.spec.key.name == name);
    pod.expect("there").spec.uid.clone()
}

fn on_delete(letter: char) -> String {
    let more = "  updateStrategy: {type: OnDelete}\n";
    document("StatefulSet", letter, 3, more)
}

/// A StatefulSet whose pod of this name has the new template, because it was deleted.
fn updated_by_hand(name: &str) -> Machine {
    let mut node = Machine::new(&on_delete('a'));
    node.settle('a');
    node.save(&on_delete('b'));
    let uid = uid(&node, name);
    let fact = PodFact::DeleteRequested { grace_ms: None };
    node.world.tell(Event::Pod { uid, fact });
    node.settle('b');
    assert_eq!(node.world.shown(), "a a b");
    node
}

/// The letter of each pod of a StatefulSet, in lower case, by ordinal.
fn letters(node: &Machine) -> Vec<(String, String)> {
    let state = &node.world.state;
    let here = state.pods.iter();
    let here = here.filter(|(_, pod)| pod.stopping().is_none());
    let mut letters: Vec<(String, String)> = here
        .map(|(uid, pod)| {
            let letter = node.world.letter(uid);
            (pod.spec.key.name.to_string(), letter.to_string())
        })
        .collect();
    letters.sort();
    letters
}

#[test]
fn each_pod_of_a_stateful_set_starts_with_the_template_it_had() {
    for (replicas, parallel, partition, updates) in cases() {
        let order = if parallel { "Parallel" } else { "OrderedReady" };
        let more = format!(
            "  podManagementPolicy: {order}\n  updateStrategy: {{rollingUpdate: {{partition: {partition}}}}}\n"
        );
        let of = |letter| document("StatefulSet", letter, replicas, &more);
        let mut node = Machine::new(&of('a'));
        node.settle('a');
        node.save(&of('b'));
        for _ in 0..updates {
            node.world.set_ready('b', true);
            node.world.gone();
            node.pass(0);
        }
        let before = letters(&node);
        let case = format!("{replicas} {order} {partition} {updates}: {before:?}");
        for cut in 0..6 {
            match cut {
                1 | 4 => node.restart_agent(),
                _ => node.reboot(),
            }
            for _ in 0..cut {
                node.world.set_ready('a', true);
                node.world.set_ready('b', true);
                node.world.gone();
                node.pass(0);
                let back = |(name, letter): &(String, String)| {
                    letter == "a" && before.contains(&(name.clone(), "b".to_owned()))
                };
                let now = letters(&node);
                assert!(!now.iter().any(back), "{case} {now:?}");
            }
        }
        for _ in 0..5 {
            node.settle('a');
            node.settle('b');
        }
        let shown: Vec<&str> = (0..replicas)
            .map(|n| if n < partition { "a" } else { "b" })
            .collect();
        assert_eq!(node.world.shown(), shown.join(" "), "{case}");
    }
}

/// All small numbers of replicas, with and without an order, all partitions, and a power cut after each step.
fn cases() -> impl Iterator<Item = (usize, bool, usize, usize)> {
    let sizes = (1..=3).flat_map(|replicas| [(replicas, false), (replicas, true)]);
    let sizes = sizes.flat_map(|(n, parallel)| (0..=n).map(move |p| (n, parallel, p)));
    sizes.flat_map(|(n, parallel, p)| (0..=n + 1).map(move |updates| (n, parallel, p, updates)))
}

#[test]
fn pods_below_the_partition_come_with_the_template_from_before_it() {
    let of = |letter, replicas| {
        let more = "  updateStrategy: {rollingUpdate: {partition: 3}}\n";
        document("StatefulSet", letter, replicas, more)
    };
    let mut node = Machine::new(&of('a', 2));
    node.settle('a');
    node.save(&of('b', 2));
    node.settle('b');
    assert_eq!(node.world.shown(), "a a");
    // Also one that is made only now.
    node.save(&of('b', 4));
    for letter in ['a', 'b', 'a', 'b'] {
        node.settle(letter);
    }
    assert_eq!(node.world.shown(), "a a a b");
    for name in ["web-0", "web-2"] {
        // The agent was killed between the end of a pod and its successor.
        let pods = &mut node.world.state.pods;
        pods.retain(|_, pod| &*pod.spec.key.name != name);
        node.restart_agent();
        node.pass(resume::WITHIN_MS);
        for letter in ['a', 'b', 'a', 'b'] {
            node.settle(letter);
        }
        assert_eq!(node.world.shown(), "a a a b", "{name}");
    }
}

#[test]
fn what_is_stopped_in_a_rollout_comes_back_as_it_was() {
    for order in ["OrderedReady", "Parallel"] {
        let of = |letter| {
            let more = format!("  podManagementPolicy: {order}\n");
            document("StatefulSet", letter, 3, &more)
        };
        let mut node = Machine::new(&of('a'));
        node.settle('a');
        let last = uid(&node, "web-2");
        node.world.set_pod_ready(&last, false);
        node.save(&of('b'));
        assert_eq!(node.world.shown(), "a a B");
        let key = WorkloadKey {
            kind: WorkloadKind::StatefulSet,
            namespace: "default".into(),
            name: "web".into(),
        };
        let targets: BTreeSet<Target> = [Target::Workload(key)].into();
        let stop = NodeFact::StopRequested {
            targets: targets.clone(),
            grace_ms: None,
        };
        node.world.tell(Event::Node(stop));
        node.look();
        node.world.gone();
        node.pass(0);
        let start = NodeFact::StartRequested { targets };
        node.world.tell(Event::Node(start));
        node.look();
        node.settle('a');
        assert_eq!(node.world.shown(), "a a B", "{order}");
    }
}

#[test]
fn pods_that_wait_for_one_that_a_person_updated_come_in_the_end() {
    let mut node = updated_by_hand("web-0");
    // The second one needs the first to become ready.
    node.reboot();
    assert_eq!(node.world.shown(), "A");
    node.pass(resume::WITHIN_MS);
    node.settle('b');
    assert!(node.world.shown().contains('b'), "{}", node.world.shown());
    for letter in ['a', 'b', 'a', 'b'] {
        node.settle(letter);
    }
    assert_eq!(letters(&node)[0], ("web-0".to_owned(), "b".to_owned()));
    assert_eq!(node.world.live(), 3);
}

#[test]
fn a_good_template_that_is_refused_now_is_not_waited_for() {
    let of = |letter, replicas| {
        let more = "  updateStrategy: {rollingUpdate: {partition: 1}}\n";
        document("StatefulSet", letter, replicas, more)
    };
    let mut node = Machine::new(&of('a', 2));
    node.settle('a');
    node.save(&of('b', 2));
    node.settle('b');
    assert_eq!(node.world.shown(), "a b");
    node.boots += 1;
    let histories = Histories::recovered(super::stored(&node.world), "1".to_owned());
    node.world = super::World::new();
    node.world.state.workloads.histories = histories.resumed(|_| false);
    // Every read has the file's own template.
    let none = Overrides::default();
    node.read(&none);
    assert_eq!(node.world.shown(), "");
    node.world.pass(30_000);
    for _ in 0..2 {
        node.world.set_ready('b', true);
    }
    assert_eq!(node.world.shown(), "b b");
    for _ in 0..4 {
        node.read(&none);
    }
    assert!(node.history().refused);
}

#[test]
fn a_pod_that_a_person_updated_keeps_its_template() {
    let mut node = updated_by_hand("web-1");
    for _ in 0..2 {
        node.reboot();
        for _ in 0..3 {
            node.settle('a');
            node.settle('b');
        }
        assert_eq!(node.world.shown(), "a a b");
        assert!(letters(&node).contains(&("web-1".to_owned(), "b".to_owned())));
    }
    // Whatever the file says by then.
    node.save(&on_delete('c'));
    node.settle('c');
    node.reboot();
    for _ in 0..3 {
        node.settle('a');
        node.settle('c');
    }
    assert_eq!(node.world.shown(), "a a c");
}

#[test]
fn pods_in_order_that_do_not_come_back_hold_a_rollout_for_a_time_only() {
    let of = |letter| document("StatefulSet", letter, 2, "");
    let mut node = Machine::new(&of('a'));
    node.settle('a');
    // None is updated while one is missing.
    let first = node.world.uids('a').remove(0);
    let fact = PodFact::DeleteRequested { grace_ms: None };
    node.world.tell(Event::Pod { uid: first, fact });
    node.save(&of('b'));
    assert_eq!(node.world.shown(), "a a-");
    // The deleted one was to have the new template already.
    node.reboot();
    assert_eq!(node.world.shown(), "A");
    node.pass(resume::WITHIN_MS - 1);
    assert_eq!(node.world.shown(), "A");
    node.pass(1);
    node.settle('b');
    assert_eq!(node.world.shown(), "b b");
}

#[test]
fn power_cuts_do_not_spread_a_broken_template() {
    for (order, partition, done) in [
        ("OrderedReady", 0, "b b b"),
        ("Parallel", 0, "b b b"),
        ("OrderedReady", 1, "a b b"),
        ("Parallel", 1, "a b b"),
    ] {
        let more = format!(
            "  podManagementPolicy: {order}\n  updateStrategy: {{rollingUpdate: {{partition: {partition}}}}}\n"
        );
        let of = |letter| document("StatefulSet", letter, 3, &more);
        let mut node = Machine::new(&of('a'));
        node.settle('a');
        let last = uid(&node, "web-2");
        node.world.set_pod_ready(&last, false);
        node.save(&of('b'));
        for _ in 0..3 {
            node.settle('a');
            assert_eq!(node.world.shown(), "a a B", "{more}");
            node.reboot();
        }
        node.settle('a');
        node.settle('b');
        node.settle('b');
        assert_eq!(node.world.shown(), done, "{more}");
    }
}

#[test]
fn a_rollout_that_was_stopped_goes_on_where_it_was() {
    for (paused, going_on) in [("", "a a a B"), ("  paused: true\n", "a a a")] {
        let mut node = Machine::new(&document("Deployment", 'a', 3, ""));
        node.settle('a');
        node.save(&document("Deployment", 'b', 3, paused));
        let key = WorkloadKey {
            kind: WorkloadKind::Deployment,
            namespace: "default".into(),
            name: "web".into(),
        };
        let targets: BTreeSet<Target> = [Target::Workload(key)].into();
        let stop = NodeFact::StopRequested {
            targets: targets.clone(),
            grace_ms: None,
        };
        node.world.tell(Event::Node(stop));
        node.look();
        node.world.gone();
        node.pass(0);
        assert_eq!(node.world.shown(), "a? a? a?");
        // Another number is no other template.
        node.save(&document(
            "Deployment",
            'b',
            3,
            &format!("{paused}  minReadySeconds: 0\n"),
        ));
        assert_eq!(node.world.shown(), "a? a? a?");
        let start = NodeFact::StartRequested { targets };
        node.world.tell(Event::Node(start.clone()));
        node.look();
        node.world.set_ready('a', true);
        assert_eq!(node.world.shown(), going_on);
    }
}

#[test]
fn every_small_rollout_ends_over_power_cuts() {
    for replicas in 1..=3 {
        for (surge, unavailable) in [("1", "0"), ("0", "1"), ("1", "1"), ("2", "1")] {
            for ready in 0..=replicas {
                let more = strategy(surge, unavailable);
                let of = |letter| document("Deployment", letter, replicas, &more);
                let mut node = Machine::new(&of('a'));
                node.settle('a');
                node.save(&of('b'));
                for _ in 0..ready {
                    node.world.set_ready('b', true);
                    node.world.gone();
                    node.pass(0);
                }
                node.reboot();
                let surge: usize = surge.parse().unwrap();
                assert!(node.world.live() <= replicas + surge);
                node.settle('b');
                let all = vec!["b"; replicas].join(" ");
                assert_eq!(node.world.shown(), all, "{replicas} {more} {ready}");
            }
        }
    }
}

#[test]
fn a_rollout_that_stands_still_gets_the_former_pods_that_it_misses() {
    for (paused, shown, more) in [
        ("", "a a a B B", "a a a A A B B"),
        ("  paused: true\n", "a a a", "a a a A A"),
    ] {
        let of = |letter, replicas, more: &str| {
            let more = strategy("2", "0") + more;
            document("Deployment", letter, replicas, &more)
        };
        let mut node = Machine::new(&of('a', 3, ""));
        node.settle('a');
        node.save(&of('b', 3, paused));
        node.pass(10 * DEADLINE_MS);
        assert_eq!(node.world.shown(), shown);
        // The file asks for more.
        node.save(&of('b', 5, paused));
        assert_eq!(node.world.shown(), more);
        node.world.set_ready('a', true);
        node.pass(10 * DEADLINE_MS);
        assert_eq!(node.world.shown(), more.replace('A', "a"));
        // Some go, once and again.
        for at_once in [true, false] {
            let uid = node.world.uids('a').remove(0);
            let fact = PodFact::DeleteRequested { grace_ms: None };
            node.world.tell(Event::Pod { uid, fact });
            node.world.gone();
            node.look();
            let here = node.world.uids('a').len();
            assert_eq!(here, if at_once { 5 } else { 4 }, "{}", node.world.shown());
            node.world.set_ready('a', true);
        }
        node.pass(DEADLINE_MS);
        for _ in 0..3 {
            node.world.gone();
            node.look();
        }
        assert_eq!(node.world.uids('a').len(), 5, "{}", node.world.shown());
        // What serves by a pause stays so.
        if !paused.is_empty() {
            node.save(&of('b', 5, ""));
        }
        for _ in 0..5 {
            node.settle('b');
        }
        assert_eq!(node.world.shown(), "b b b b b");
    }
}

#[test]
fn a_paused_recreation_keeps_its_pods_over_a_power_cut() {
    let of = |letter, more: &str| {
        let more = format!("  strategy: {{type: Recreate}}\n{more}");
        document("Deployment", letter, 2, &more)
    };
    let mut node = Machine::new(&of('a', ""));
    node.settle('a');
    node.save(&of('b', "  paused: true\n"));
    node.reboot();
    assert_eq!(node.world.shown(), "A A");
    node.settle('a');
    assert_eq!(node.world.shown(), "a a");
}

#[test]
fn the_time_of_a_rollout_that_may_be_taken_back_goes_on_over_a_power_cut() {
    let mut node = Machine::new(&annotated(&document("Deployment", 'a', 3, ""), ""));
    node.settle('a');
    node.save(&annotated(&document("Deployment", 'b', 3, ""), ""));
    node.pass(DEADLINE_MS / 2);
    node.reboot();
    assert_eq!(node.world.shown(), "A A A B");
    node.world.set_ready('a', true);
    node.pass(DEADLINE_MS / 2);
    node.world.gone();
    assert_eq!(node.world.shown(), "a a a");
    assert!(node.note().contains("is in force until"));
}

#[test]
fn new_pods_that_are_not_ready_for_a_moment_stay_while_a_rollout_stands_still() {
    let more = strategy("1", "1");
    let of = |letter, more: &str| document("Deployment", letter, 4, more);
    let mut node = Machine::new(&of('a', &more));
    node.settle('a');
    node.save(&of('b', &more));
    for _ in 0..2 {
        node.world.set_ready('b', true);
        node.world.gone();
        node.pass(0);
    }
    node.world.set_ready('b', true);
    node.save(&of('b', &(more + "  paused: true\n")));
    node.world.gone();
    let before = node.world.shown();
    assert!(before.matches('b').count() > 1, "{before}");
    node.world.set_ready('b', false);
    node.pass(DEADLINE_MS);
    assert_eq!(node.world.shown().to_lowercase(), before);
    node.world.set_ready('b', true);
    assert_eq!(node.world.shown(), before);
}

#[test]
fn turns_before_the_file_takes_effect_again_cost_a_trial_nothing() {
    let mut node = Machine::new(&annotated(&document("Deployment", 'a', 3, ""), ""));
    node.settle('a');
    node.save(&annotated(&document("Deployment", 'b', 3, ""), ""));
    node.pass(DEADLINE_MS / 2);
    node.boots += 1;
    let histories = Histories::recovered(super::stored(&node.world), "1".to_owned());
    node.world = super::World::new();
    node.world.state.workloads.histories = histories.resumed(|_| false);
    let overrides = node.world.state.workloads.histories.overrides();
    node.read(&overrides);
    assert_eq!(node.world.shown(), "A A A");
    // The file is not read again yet, nor by a read that began before.
    node.world.set_ready('a', true);
    node.world.pass(1_000);
    node.read(&overrides);
    assert_eq!(node.numbers(), "1* 2!");
    node.seen = None;
    node.look();
    assert_eq!(node.world.shown(), "a a a B");
    node.pass(DEADLINE_MS / 2);
    node.world.gone();
    assert_eq!(node.world.shown(), "a a a");
}
