//! Deployments that are paused when they come.

use super::super::super::tests::document;
use super::*;
use crate::plan::bundle;

fn text(letter: char, replicas: usize, paused: bool) -> String {
    let more = if paused { "  paused: true\n" } else { "" };
    document("Deployment", letter, replicas, more)
}

#[test]
fn a_deployment_that_is_paused_when_it_comes_starts_its_pods_when_it_goes_on() {
    let mut node = Machine::new(&text('a', 2, true));
    assert_eq!(node.world.shown(), "");
    let status = node.world.status();
    assert_eq!(status["replicas"], 0);
    assert_eq!(status["unavailableReplicas"], 0);
    let [available, progressing] = [0, 1].map(|at| &status["conditions"][at]);
    assert_eq!(available["status"], "False");
    assert_eq!(available["reason"], "MinimumReplicasUnavailable");
    assert_eq!(progressing["status"], "Unknown");
    assert_eq!(progressing["reason"], "DeploymentPaused");
    // Nothing else starts them, and no trial waits for them.
    node.pass(10 * DEADLINE_MS);
    node.restart_agent();
    node.reboot();
    node.save(&text('a', 0, true));
    node.save(&text('b', 3, true));
    node.reboot();
    assert_eq!(node.world.shown(), "");
    let desired = node.world.state.workloads.asked.clone().unwrap();
    let mut pods = desired.pods.values();
    assert!(pods.all(|pod| bundle::unready(&node.world.state, pod).is_none()));
    node.save(&text('b', 3, false));
    assert_eq!(node.world.shown(), "B B B");
    // From then on it has pods, also while it is paused again.
    node.save(&text('b', 4, true));
    assert_eq!(node.world.shown(), "B B B B");
    node.restart_agent();
    assert_eq!(node.world.shown(), "B B B B");
    node.reboot();
    assert_eq!(node.world.shown(), "B B B B");
}

#[test]
fn a_deployment_that_is_paused_later_brings_its_pods_back() {
    for good in [true, false] {
        let mut node = Machine::new(&text('a', 2, false));
        if good {
            node.settle('a');
        }
        node.save(&text('a', 2, true));
        for _ in 0..2 {
            node.restart_agent();
            assert_eq!(node.world.shown().to_lowercase(), "a a");
            node.reboot();
            assert_eq!(node.world.shown(), "A A");
        }
        if good {
            node.save(&text('b', 2, true));
            node.reboot();
            assert_eq!(node.world.shown(), "A A");
        }
    }
}

#[test]
fn pods_of_a_paused_deployment_outlive_the_loss_of_the_records() {
    let mut node = Machine::new(&text('a', 2, false));
    node.settle('a');
    node.save(&text('a', 2, true));
    node.world.state.workloads.histories = Histories::default();
    node.restart_agent();
    assert_eq!(node.world.shown(), "a a");
    node.reboot();
    assert_eq!(node.world.shown(), "A A");
}

#[test]
fn a_document_that_was_removed_comes_as_a_new_one() {
    let mut node = Machine::new(&text('a', 1, false));
    node.settle('a');
    node.save("");
    node.world.gone();
    node.save(&text('a', 1, true));
    assert_eq!(node.world.shown(), "");
    // Also while the former pods still stop.
    let mut node = Machine::new(&text('a', 1, false));
    node.settle('a');
    node.save("");
    node.save(&text('b', 2, true));
    node.pass(0);
    assert_eq!(node.world.shown(), "a-");
    node.world.gone();
    node.pass(0);
    assert_eq!(node.world.shown(), "");
}
