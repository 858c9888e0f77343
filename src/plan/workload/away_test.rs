//! Rollouts and edits while the node keeps its pods down.

use std::collections::BTreeSet;

use super::pod_revisions_test::{TWO_MINUTES, pod};
use super::{DEADLINE_MS, Machine, World, deployment, document};
use crate::plan::{Event, NodeFact, PodFact};

/// A way in which the node keeps pods down, and its end.
struct Down {
    what: &'static str,
    begin: fn(&mut World),
    end: fn(&mut World),
}

fn tell(world: &mut World, fact: NodeFact) {
    world.tell(Event::Node(fact));
}

fn uncordon(world: &mut World) {
    tell(world, NodeFact::Uncordoned);
}

const DOWN: [Down; 3] = [
    Down {
        what: "drain",
        begin: |world| {
            let (pods, grace_ms) = (None, None);
            tell(world, NodeFact::DrainBegun { pods, grace_ms });
        },
        end: uncordon,
    },
    Down {
        what: "cordon, and a pod that is deleted",
        begin: |world| {
            tell(world, NodeFact::Cordoned);
            let uid = world.uids('b')[0].clone();
            let fact = PodFact::DeleteRequested { grace_ms: None };
            world.tell(Event::Pod { uid, fact });
        },
        end: uncordon,
    },
    Down {
        what: "shutdown",
        begin: World::shut_down,
        end: |world| tell(world, NodeFact::ShutdownCancelled),
    },
];

/// A good document or pod, an edit of it, and the time that it has.
fn edits() -> [([String; 2], u64); 3] {
    let pod = |letter| pod(letter, TWO_MINUTES);
    let more = format!("  progressDeadlineSeconds: {}\n", DEADLINE_MS / 1000);
    [
        (['a', 'b'].map(|it| deployment(it, 1, "")), DEADLINE_MS),
        (
            ['a', 'b'].map(|it| document("Deployment", it, 1, &more)),
            DEADLINE_MS,
        ),
        (['a', 'b'].map(pod), 120_000),
    ]
}

/// Whether the edit was given up.
fn failed(node: &Machine) -> bool {
    let desired = node.world.state.desired.as_ref().unwrap();
    let late = |node: &Machine| {
        let reason = &node.world.status()["conditions"][1]["reason"];
        reason == "ProgressDeadlineExceeded"
    };
    !node.note().is_empty() || !desired.workloads.is_empty() && late(node)
}

/// The edit has nearly spent its time.
fn nearly_over(good: &str, edit: &str, within_ms: u64) -> Machine {
    let mut node = Machine::new(good);
    node.world.set_ready('a', true);
    node.pass(10_000);
    node.save(edit);
    if node.world.live() == 0 {
        node.world.gone();
    }
    node.look();
    node.pass(within_ms - 10_000);
    assert!(!failed(&node));
    node
}

#[test]
fn the_time_in_which_the_node_keeps_pods_down_does_not_count() {
    for down in DOWN {
        for ([good, edit], within_ms) in edits() {
            for restarts in [false, true] {
                let what = format!("{}: {restarts} {edit}", down.what);
                let mut node = nearly_over(&good, &edit, within_ms);
                (down.begin)(&mut node.world);
                for _ in 0..4 {
                    node.world.gone();
                    node.pass(1_000);
                }
                node.pass(3 * within_ms);
                if restarts {
                    node.restart_agent();
                }
                node.pass(10 * within_ms);
                assert!(!failed(&node), "{what}");
                (down.end)(&mut node.world);
                if restarts {
                    node.restart_agent();
                }
                node.look();
                node.world.gone();
                node.pass(within_ms - 1);
                assert!(!failed(&node), "{what}");
                assert!(node.world.shown().contains('B'), "{what}");
                node.pass(1);
                assert!(failed(&node), "{what}");
            }
        }
    }
}

#[test]
fn an_edit_is_good_after_a_drain_or_a_shutdown() {
    for down in DOWN {
        for ([good, edit], within_ms) in edits() {
            let mut node = nearly_over(&good, &edit, within_ms);
            (down.begin)(&mut node.world);
            node.world.gone();
            node.pass(10 * within_ms);
            (down.end)(&mut node.world);
            node.look();
            node.pass(8_000);
            node.settle('b');
            node.pass(10_000);
            let what = format!("{}: {edit}", down.what);
            assert_eq!(node.world.shown(), "b", "{what}");
            assert!(!failed(&node) && node.numbers().ends_with("2*!"), "{what}");
        }
    }
}

#[test]
fn a_cordon_under_which_the_pods_of_a_rollout_run_is_no_excuse() {
    let [([good, edit], within_ms), _, _] = edits();
    let mut node = Machine::new(&good);
    node.world.set_ready('a', true);
    node.pass(10_000);
    tell(&mut node.world, NodeFact::Cordoned);
    node.save(&edit);
    node.pass(within_ms);
    assert!(failed(&node));
}

#[test]
fn the_good_pods_of_a_rollout_that_had_failed_come_back_after_a_drain() {
    let [_, ([good, edit], within_ms), _] = edits();
    let mut node = nearly_over(&good, &edit, within_ms);
    node.pass(10_000);
    assert!(failed(&node));
    (DOWN[0].begin)(&mut node.world);
    for _ in 0..4 {
        node.world.gone();
        node.pass(within_ms);
    }
    (DOWN[0].end)(&mut node.world);
    node.look();
    node.pass(1_000);
    assert!(node.world.shown().contains('A'), "{}", node.world.shown());
}

#[test]
fn a_shutdown_that_ends_in_a_reboot_costs_what_a_reboot_costs() {
    let [([good, edit], within_ms), _, pod] = edits();
    for ([good, edit], within_ms) in [([good, edit], within_ms), pod] {
        let mut node = Machine::new(&good);
        node.world.set_ready('a', true);
        node.pass(10_000);
        node.save(&edit);
        for _ in 0..10 {
            node.world.gone();
            node.look();
            node.world.shut_down();
            node.reboot();
            node.look();
        }
        node.pass(1);
        assert!(failed(&node), "{edit} {within_ms}");
    }
}

#[test]
fn the_status_of_a_document_follows_its_pods_while_the_node_shuts_down() {
    let mut node = Machine::new(&deployment('a', 2, ""));
    node.world.set_ready('a', true);
    let shown = |node: &Machine| {
        let status = node.world.status();
        let available = &status["conditions"][0]["status"];
        let ready = status["readyReplicas"].as_u64();
        (ready, available.as_str().map(str::to_owned))
    };
    assert_eq!(shown(&node), (Some(2), Some("True".into())));
    node.world.shut_down();
    assert_eq!(shown(&node), (Some(0), Some("False".into())));
    let pods: BTreeSet<_> = node.world.state.pods.keys().cloned().collect();
    tell(&mut node.world, NodeFact::ShutdownCancelled);
    node.world.set_ready('a', true);
    assert_eq!(shown(&node), (Some(2), Some("True".into())));
    assert!(node.world.state.pods.keys().eq(&pods));
}

/// A rollout that has reached one pod, which does not work.
fn halfway(kind: &str, more: &str) -> Machine {
    let mut node = Machine::new(&document(kind, 'a', 3, more));
    node.settle('a');
    if kind == "StatefulSet" {
        let pods = &node.world.state.pods;
        let last = pods.values().find(|pod| &*pod.spec.key.name == "web-2");
        let last = last.unwrap().spec.uid.clone();
        node.world.set_pod_ready(&last, false);
    }
    node.save(&document(kind, 'b', 3, more));
    node
}

#[test]
fn a_drain_in_a_rollout_costs_no_good_pod() {
    let set = |order: &str, partition: u32| {
        format!(
            "  podManagementPolicy: {order}\n  updateStrategy: {{rollingUpdate: {{partition: {partition}}}}}\n"
        )
    };
    for (kind, more, before) in [
        ("Deployment", String::new(), "a a a B"),
        ("StatefulSet", set("OrderedReady", 0), "a a B"),
        ("StatefulSet", set("Parallel", 0), "a a B"),
        ("StatefulSet", set("Parallel", 1), "a a B"),
    ] {
        for meanwhile in ["", "a", "r", "ra", "ara", "raar"] {
            // The file is read again before the first pod is gone, or after the last one.
            for late in [false, true] {
                let what = format!("{kind} {more} {meanwhile} {late}");
                let mut node = halfway(kind, &more);
                assert_eq!(node.world.shown(), before, "{what}");
                (DOWN[0].begin)(&mut node.world);
                if !late {
                    node.look();
                }
                for _ in 0..4 {
                    node.world.gone();
                }
                node.pass(1_000);
                for restart in meanwhile.chars() {
                    match restart {
                        'a' => node.restart_agent(),
                        _ => node.reboot(),
                    }
                    node.pass(10 * DEADLINE_MS);
                }
                let held = node.world.shown();
                assert!(!held.contains(['A', 'B']), "{what}: {held}");
                (DOWN[0].end)(&mut node.world);
                node.look();
                node.settle('a');
                assert_eq!(node.world.shown(), before, "{what}: {held}");
                node.settle('b');
                node.settle('b');
                let done = node.world.shown();
                assert!(done.ends_with("b b"), "{what}: {done}");
            }
        }
    }
}
