//! Documents whose pods are stopped by command.

use std::collections::BTreeSet;

use super::{World, document, strategy};
use crate::plan::stop::Target;
use crate::plan::{Event, NodeFact};
use crate::spec::{WorkloadKey, WorkloadKind};

fn targets() -> BTreeSet<Target> {
    let key = WorkloadKey {
        kind: WorkloadKind::Deployment,
        namespace: "default".into(),
        name: "web".into(),
    };
    [Target::Workload(key)].into()
}

fn stop(world: &mut World) {
    let (targets, grace_ms) = (targets(), None);
    world.tell(Event::Node(NodeFact::StopRequested { targets, grace_ms }));
}

fn start(world: &mut World) {
    let targets = targets();
    world.tell(Event::Node(NodeFact::StartRequested { targets }));
}

#[test]
fn all_pods_of_a_stopped_deployment_stay_down() {
    let mut world = World::new();
    world.read(&document("Deployment", 'a', 3, ""));
    world.set_ready('a', true);
    stop(&mut world);
    assert_eq!(world.shown(), "a- a- a-");
    world.gone();
    assert_eq!(world.shown(), "a? a? a?");
    // Also new ones, of a new template too; that is no rollout that fails.
    world.read(&document("Deployment", 'b', 4, ""));
    assert_eq!(world.shown(), "b? b? b? b?");
    world.pass(10_000_000);
    assert_eq!(
        world.status()["conditions"][1]["reason"],
        "ReplicaSetUpdated"
    );
    start(&mut world);
    world.set_ready('b', true);
    assert_eq!(world.shown(), "b b b b");
}

#[test]
fn a_rollout_that_was_stopped_has_its_whole_time_when_it_is_started() {
    let mut world = World::new();
    let more = "  progressDeadlineSeconds: 60\n";
    world.read(&document("Deployment", 'a', 1, more));
    stop(&mut world);
    world.gone();
    world.pass(100_000);
    start(&mut world);
    world.pass(59_000);
    assert_eq!(
        world.status()["conditions"][1]["reason"],
        "ReplicaSetUpdated"
    );
    world.pass(2_000);
    assert_eq!(
        world.status()["conditions"][1]["reason"],
        "ProgressDeadlineExceeded"
    );
}

#[test]
fn a_pod_that_was_stopped_alone_is_replaced_by_a_rollout_and_forgotten() {
    let mut world = World::new();
    let more = strategy("1", "0");
    world.read(&document("Deployment", 'a', 2, &more));
    world.set_ready('a', true);
    let key = world.state.pods.values().next().unwrap().spec.key.clone();
    let targets: BTreeSet<Target> = [Target::Pod(key)].into();
    world.tell(Event::Node(NodeFact::StopRequested {
        targets,
        grace_ms: None,
    }));
    world.gone();
    assert_eq!(world.shown(), "a a?");
    world.read(&document("Deployment", 'b', 2, &more));
    for _ in 0..4 {
        world.set_ready('b', true);
        world.gone();
    }
    assert_eq!(
        (world.shown().as_str(), world.state.stops.len()),
        ("b b", 0)
    );
}

#[test]
fn the_document_of_a_stop_goes_and_the_stop_with_it() {
    let mut world = World::new();
    world.read(&document("Deployment", 'a', 1, ""));
    stop(&mut world);
    world.read("");
    world.gone();
    world.read(&document("Deployment", 'a', 1, ""));
    world.set_ready('a', true);
    assert_eq!(world.shown(), "a");
}
