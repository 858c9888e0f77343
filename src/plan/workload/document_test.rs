//! What documents say of themselves and their pods: kinds, names, ages and generations.

use super::*;

#[test]
fn a_daemon_set_is_one_pod_if_the_node_fits_and_the_old_one_goes_first() {
    let mut world = World::new();
    world.read(&document("DaemonSet", 'a', 1, ""));
    world.set_ready('a', true);
    world.read(&document("DaemonSet", 'b', 1, ""));
    assert_eq!(world.shown(), "a-");
    world.gone();
    assert_eq!(world.shown(), "B");
    world.set_ready('b', true);
    let elsewhere = document("DaemonSet", 'c', 1, "").replace(
        "      containers",
        "      nodeSelector: {disk: big}\n      containers",
    );
    world.read(&elsewhere);
    world.gone();
    assert_eq!(world.shown(), "");
    assert_eq!(world.status()["desiredNumberScheduled"], 0);
}

#[test]
fn an_idle_document_has_no_turn_and_no_wake_up() {
    let mut world = World::new();
    world.read(&document("Deployment", 'a', 2, "  minReadySeconds: 1\n"));
    world.set_ready('a', true);
    world.pass(1_000);
    assert_eq!(super::super::next(&world.state, world.now.time), Step::Rest);
    // What breaks later is no matter of the rollout.
    world.set_ready('a', false);
    world.pass(3_600_000);
    assert_eq!(world.status()["conditions"][1]["status"], "True");
    assert_eq!(world.status()["conditions"][0]["status"], "False");
}

#[test]
fn pods_know_their_document_and_have_distinct_names() {
    let mut world = World::new();
    world.read(&document("Deployment", 'a', 3, ""));
    let key = WorkloadKey {
        kind: crate::spec::WorkloadKind::Deployment,
        namespace: "default".into(),
        name: "web".into(),
    };
    let pods: Vec<_> = world.state.pods.values().collect();
    assert!(pods.iter().all(|p| p.spec.workload.as_ref() == Some(&key)));
    let names: BTreeSet<_> = pods.iter().map(|p| &p.spec.key.name).collect();
    assert_eq!(names.len(), 3);
}

#[test]
fn a_document_is_as_old_as_its_first_file_and_each_change_is_a_generation() {
    let mut world = World::new();
    // A clock that shows 1970 says nothing about the document.
    world.read(&document("Deployment", 'a', 1, ""));
    assert_eq!(world.generation(), (1, None));
    let first = Wall(1_800_000_000_000_000);
    world.now.wall = first;
    world.read(&document("Deployment", 'a', 1, ""));
    assert_eq!(world.generation(), (1, Some(first)));
    world.read(&document("Deployment", 'a', 2, ""));
    assert_eq!(world.generation(), (2, Some(first)));
    world.now.wall = Wall(first.0 + 60_000_000);
    world.read(&document("Deployment", 'a', 2, ""));
    assert_eq!(world.generation(), (2, Some(first)));
    world.read(&document("Deployment", 'b', 2, ""));
    assert_eq!(world.generation(), (3, Some(first)));
    world.read_all("");
    let written = Wall(first.0 + 1);
    world.written = Some(written);
    world.read(&document("Deployment", 'b', 2, ""));
    assert_eq!(world.generation(), (1, Some(written)));
}
