//! Other numbers of pods.

use super::*;

/// Those that are wanted by their numbers, and ready: `+`.
fn numbers(world: &World) -> String {
    let live = world.state.pods.values().filter(|p| p.stopping().is_none());
    let mut all: Vec<String> = live
        .map(|pod| {
            let number = pod.spec.key.name.rsplit('-').next().unwrap();
            let ready = super::super::is_ready(pod);
            format!("{number}{}", if ready { "+" } else { "" })
        })
        .collect();
    all.sort();
    all.join(" ")
}

#[test]
fn pods_that_are_too_many_serve_until_enough_others_do() {
    for kind in ["Deployment", "ReplicaSet"] {
        for (ready, replicas, shown) in [
            (&[0, 1, 2, 3][..], 2, "0+ 1+"),
            (&[2, 3], 2, "0 1 2+ 3+"),
            (&[1, 2, 3], 2, "0 1+ 2+"),
            (&[2, 3], 1, "0 2+"),
            (&[3], 3, "0 1 2 3+"),
            (&[], 2, "0 1"),
            (&[2, 3], 0, ""),
        ] {
            let mut world = World::new();
            world.read(&document(kind, 'a', 4, ""));
            for number in ready {
                let uid = world.uids('a')[*number].clone();
                world.set_pod_ready(&uid, true);
            }
            world.read(&document(kind, 'a', replicas, ""));
            assert_eq!(numbers(&world), shown, "{kind}: {ready:?} to {replicas}");
            let serve = ready.len().min(replicas);
            assert_eq!(world.ready(), serve, "{ready:?} to {replicas}");
            assert_eq!(world.status()["availableReplicas"], serve);
            // It comes to rest, as it is.
            world.gone();
            world.pass(3_600_000);
            assert_eq!(numbers(&world), shown, "{kind}: {ready:?} to {replicas}");
            for uid in world.uids('a') {
                world.set_pod_ready(&uid, true);
            }
            let all: Vec<String> = (0..replicas).map(|number| format!("{number}+")).collect();
            assert_eq!(numbers(&world), all.join(" "), "{ready:?} to {replicas}");
        }
    }
}

#[test]
fn pods_that_are_too_many_make_room_for_one_that_comes() {
    for (surge, unavailable, shown) in [("0", "1", "0 1"), ("1", "0", "0 1 2+")] {
        let more = strategy(surge, unavailable);
        let mut world = World::new();
        world.read(&document("Deployment", 'a', 4, &more));
        for number in [2, 3] {
            let uid = world.uids('a')[number].clone();
            world.set_pod_ready(&uid, true);
        }
        let uid = world.uids('a')[0].clone();
        let fact = PodFact::DeleteRequested { grace_ms: None };
        world.tell(Event::Pod { uid, fact });
        world.read(&document("Deployment", 'a', 2, &more));
        world.gone();
        assert_eq!(numbers(&world), shown);
    }
}

#[test]
fn another_strategy_in_a_rollout_lets_the_new_pods_stay() {
    let mut world = World::new();
    world.read(&document("Deployment", 'a', 3, ""));
    world.set_ready('a', true);
    world.read(&document("Deployment", 'b', 3, ""));
    world.set_ready('b', true);
    assert_eq!(world.shown(), "a a a- b");
    let recreate = "  strategy: {type: Recreate}\n";
    world.read(&document("Deployment", 'b', 3, recreate));
    assert_eq!(world.shown(), "a- a- a- b");
    world.gone();
    assert_eq!(world.shown(), "b B B");
}

#[test]
fn a_stateful_set_stops_the_highest_whether_others_serve_or_not() {
    let mut world = World::new();
    let more = "  podManagementPolicy: Parallel\n";
    world.read(&document("StatefulSet", 'a', 2, more));
    let uid = world.uids('a')[1].clone();
    world.set_pod_ready(&uid, true);
    world.read(&document("StatefulSet", 'a', 1, more));
    assert_eq!(numbers(&world), "0");
}

#[test]
fn more_pods_than_there_is_room_for_are_no_rollout_that_fails() {
    let mut world = World::new();
    world.read(&document("Deployment", 'a', 2, ""));
    world.set_ready('a', true);
    let progressing = |world: &World| {
        let condition = &world.status()["conditions"][1];
        let [status, reason] = ["status", "reason"].map(|field| condition[field].clone());
        format!("{} {}", status.as_str().unwrap(), reason.as_str().unwrap())
    };
    assert_eq!(progressing(&world), "True NewReplicaSetAvailable");
    world.read(&document("Deployment", 'a', 3, ""));
    world.pass(1_000_000);
    assert_eq!(world.shown(), "a a A");
    assert_eq!(progressing(&world), "True NewReplicaSetAvailable");
    assert_eq!(world.status()["unavailableReplicas"], 1);
    // A new template is a rollout again; old pods that do not work count, as upstream.
    world.read(&document("Deployment", 'b', 3, "  paused: true\n"));
    assert_eq!(progressing(&world), "Unknown DeploymentPaused");
    world.read(&document("Deployment", 'b', 3, ""));
    assert_eq!(world.shown(), "a a A B");
    assert_eq!(world.status()["unavailableReplicas"], 2);
    world.pass(1_000_000);
    assert_eq!(progressing(&world), "False ProgressDeadlineExceeded");
}
