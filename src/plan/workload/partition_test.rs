//! StatefulSets with a partition whose template changed more than once, or that had no pods in between.

use super::super::super::super::tests::document;
use super::super::Machine;
use crate::spec::workload::REVISION_HASH;

/// A document of three pods or fewer, of which the first two keep their template.
fn of(order: &str, letter: char, replicas: usize) -> String {
    let more = format!(
        "  podManagementPolicy: {order}\n  updateStrategy: {{rollingUpdate: {{partition: 2}}}}\n"
    );
    document("StatefulSet", letter, replicas, &more)
}

/// Its templates were `a`, `b` and `c`, and the last pod has each of them in turn.
fn twice_updated(order: &str) -> Machine {
    let mut node = Machine::new(&of(order, 'a', 3));
    node.settle('a');
    for letter in ['b', 'c'] {
        node.save(&of(order, letter, 3));
        node.settle(letter);
        assert_eq!(node.world.shown(), format!("a a {letter}"));
    }
    node
}

fn settle(node: &mut Machine) {
    for _ in 0..4 {
        node.settle('a');
        node.settle('c');
    }
}

/// The label of the pods of this letter.
fn label(node: &Machine, letter: char) -> String {
    let uid = node.world.uids(letter).remove(0);
    let label = node.world.state.pods[&uid]
        .spec
        .manifest
        .label(REVISION_HASH);
    label.expect("it has one").to_owned()
}

#[test]
fn the_current_revision_is_that_of_the_pods_below_the_partition() {
    let node = twice_updated("OrderedReady");
    let status = node.world.status();
    assert_eq!(status["currentRevision"], label(&node, 'a'));
    assert_eq!(status["updateRevision"], label(&node, 'c'));
    assert_eq!(status["currentReplicas"], 2);
}

#[test]
fn pods_below_the_partition_keep_their_template_over_a_time_without_pods() {
    for order in ["OrderedReady", "Parallel"] {
        for gone in 0..4 {
            for interruption in ["none", "agent restart", "reboot"] {
                let mut node = twice_updated(order);
                node.save(&of(order, 'c', 0));
                for _ in 0..gone {
                    node.world.gone();
                    node.pass(0);
                }
                match interruption {
                    "none" => {}
                    "reboot" => node.reboot(),
                    _ => node.restart_agent(),
                }
                node.save(&of(order, 'c', 3));
                settle(&mut node);
                let case = format!("{order}, {gone} gone, {interruption}");
                assert_eq!(node.world.shown(), "a a c", "{case}");
            }
        }
    }
}

#[test]
fn a_template_that_comes_while_there_are_no_pods_is_for_those_from_the_partition_on() {
    let order = "OrderedReady";
    let mut node = Machine::new(&of(order, 'a', 3));
    node.settle('a');
    for letter in ['a', 'c'] {
        node.save(&of(order, letter, 0));
        node.settle(letter);
    }
    node.save(&of(order, 'c', 3));
    settle(&mut node);
    assert_eq!(node.world.shown(), "a a c");
    // Without the partition it is for all.
    let whole = |replicas| document("StatefulSet", 'c', replicas, "");
    for replicas in [0, 3] {
        node.save(&whole(replicas));
        settle(&mut node);
    }
    assert_eq!(node.world.shown(), "c c c");
    node.reboot();
    settle(&mut node);
    assert_eq!(node.world.shown(), "c c c");
    // A set that never had pods has no former template.
    let mut node = Machine::new(&of(order, 'a', 0));
    node.save(&of(order, 'c', 0));
    node.save(&of(order, 'c', 3));
    settle(&mut node);
    assert_eq!(node.world.shown(), "c c c");
}
