//! StatefulSets with a partition whose template changed more than once.

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
