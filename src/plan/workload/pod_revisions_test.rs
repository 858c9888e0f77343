//! Edits of pods that are taken back.

use std::collections::BTreeSet;

use super::{DEADLINE_MS, Machine, deployment};
use crate::plan::stop::Target;
use crate::plan::{Event, NodeFact};
use crate::spec::{PodKey, WorkloadKey, WorkloadKind};

/// A pod; the letter is its variable.
pub(super) fn pod(letter: char, more: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: web, labels: {{letter: {letter}}}, annotations: {{a: b{more}}}}}\nspec:\n  \
         readinessGates: [{{conditionType: test/ready}}]\n  containers: [{{name: main, image: i, env: [{{name: V, value: {letter}}}]}}]\n"
    )
}

pub(super) const TWO_MINUTES: &str =
    ", coracle.dev/rollback: \"true\", coracle.dev/rollback-within: 2m";

#[test]
fn the_edit_of_a_pod_that_fails_is_taken_back() {
    // The annotation may come with the edit.
    for before in [TWO_MINUTES, ""] {
        for reboots in [false, true] {
            let mut node = Machine::new(&pod('a', before));
            node.world.set_ready('a', true);
            node.pass(10_000);
            node.save(&pod('b', TWO_MINUTES));
            node.world.gone();
            node.look();
            assert_eq!(node.world.shown(), "B");
            node.pass(60_000);
            match reboots {
                // It costs a tenth of the time.
                true => node.reboot(),
                false => {
                    node.restart_agent();
                    node.pass(12_000);
                }
            }
            node.pass(47_999);
            assert_eq!(node.world.shown(), "B");
            node.pass(1);
            node.settle('a');
            assert_eq!(node.world.shown(), "a", "{reboots}");
            let note = "revision 2 was not ready within 120s: default/web (Running); revision 3 is in force until the \
                        document changes";
            assert_eq!(node.note(), note);
            node.pass(10 * DEADLINE_MS);
            node.reboot();
            assert_eq!(node.world.shown(), "A");
            node.save(&pod('c', TWO_MINUTES));
            node.world.gone();
            node.settle('c');
            node.pass(30_000);
            assert_eq!(
                (node.world.shown(), node.note()),
                ("c".into(), String::new())
            );
        }
    }
}

#[test]
fn a_pod_is_good_once_it_was_ready_for_a_while() {
    let mut node = Machine::new(&pod('a', TWO_MINUTES));
    node.pass(DEADLINE_MS);
    assert_eq!(node.numbers(), "1!");
    node.world.set_ready('a', true);
    node.pass(9_999);
    assert_eq!(node.numbers(), "1!");
    node.pass(1);
    assert_eq!(node.numbers(), "1*!");
}

#[test]
fn the_time_in_which_it_is_stopped_does_not_count() {
    let key = WorkloadKey {
        kind: WorkloadKind::Deployment,
        namespace: "default".into(),
        name: "web".into(),
    };
    let of_pod = Target::Pod(PodKey::new("default", "web"));
    let file = |letter| deployment(letter, 1, "");
    for (target, [good, bad], within_ms) in [
        (Target::Workload(key), ['a', 'b'].map(file), DEADLINE_MS),
        (
            of_pod,
            ['a', 'b'].map(|letter| pod(letter, TWO_MINUTES)),
            120_000,
        ),
    ] {
        let targets: BTreeSet<Target> = [target].into();
        let mut node = Machine::new(&good);
        node.world.set_ready('a', true);
        node.pass(10_000);
        node.save(&bad);
        node.world.gone();
        node.pass(within_ms - 10_000);
        let stop = NodeFact::StopRequested {
            targets: targets.clone(),
            grace_ms: None,
        };
        node.world.tell(Event::Node(stop));
        node.world.gone();
        node.pass(10 * within_ms);
        node.world
            .tell(Event::Node(NodeFact::StartRequested { targets }));
        node.look();
        node.pass(within_ms - 1);
        assert_eq!(node.note(), "");
        node.pass(1);
        node.settle('a');
        assert_eq!(node.world.shown(), "a");
    }
}
