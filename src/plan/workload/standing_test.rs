//! Rollouts that stand still, because they are paused or have failed.

use super::*;

const PAUSED: &str = "  paused: true\n";

#[test]
fn a_paused_rollout_lets_no_pod_go_whatever_its_strategy() {
    for strategy in [
        strategy("1", "1"),
        strategy("0", "100%"),
        "  strategy: {type: Recreate}\n".to_owned(),
    ] {
        let mut world = World::new();
        world.read(&document("Deployment", 'a', 2, &strategy));
        world.set_ready('a', true);
        world.read(&document(
            "Deployment",
            'b',
            2,
            &(strategy.clone() + PAUSED),
        ));
        assert_eq!(world.shown(), "a a", "{strategy}");
        world.pass(3_600_000);
        assert_eq!(world.shown(), "a a", "{strategy}");
        world.read(&document("Deployment", 'b', 2, &strategy));
        for _ in 0..4 {
            world.gone();
            world.set_ready('b', true);
        }
        assert_eq!(world.shown(), "b b", "{strategy}");
    }
}

#[test]
fn fewer_replicas_take_effect_while_a_rollout_stands_still() {
    // Before any new pod was let in.
    let mut world = World::new();
    world.read(&document("Deployment", 'a', 4, ""));
    world.set_ready('a', true);
    world.read(&document("Deployment", 'b', 4, PAUSED));
    world.read(&document("Deployment", 'b', 2, PAUSED));
    world.gone();
    assert_eq!(world.shown(), "a a");

    // After that: what served before stays.
    let mut world = World::new();
    let text = |letter, replicas| {
        let deadline = "  progressDeadlineSeconds: 60\n";
        document(
            "Deployment",
            letter,
            replicas,
            &(strategy("2", "1") + deadline),
        )
    };
    world.read(&text('a', 4));
    world.set_ready('a', true);
    world.read(&text('b', 4));
    world.gone();
    assert_eq!(world.shown(), "a a a B B B");
    world.pass(60_000);
    for (replicas, shown) in [(3, "a a a B B"), (2, "a a B B"), (1, "a a B"), (0, "")] {
        world.read(&text('b', replicas));
        world.gone();
        assert_eq!(world.shown(), shown, "{replicas}");
        world.pass(60_000);
        assert_eq!(world.shown(), shown, "{replicas}");
    }
}

/// Whatever the numbers, it comes to rest, and as many serve as before or as are asked for.
#[test]
fn every_small_rollout_that_stands_still_can_shrink() {
    for replicas in 1..=4 {
        for (surge, unavailable) in [(0, 1), (1, 0), (1, 1), (2, 1), (2, 2)] {
            for fewer in 0..=replicas {
                let more = strategy(&surge.to_string(), &unavailable.to_string());
                let mut world = World::new();
                world.read(&document("Deployment", 'a', replicas, &more));
                world.set_ready('a', true);
                world.read(&document("Deployment", 'b', replicas, &more));
                world.gone();
                let before = world.ready();
                world.read(&document("Deployment", 'b', fewer, &(more + PAUSED)));
                world.gone();
                let case = format!(
                    "{replicas} to {fewer}, {surge} {unavailable}: {}",
                    world.shown()
                );
                assert!(world.ready() >= before.min(fewer), "{case}");
                assert!(world.live() <= fewer + surge, "{case}");
            }
        }
    }
}

#[test]
fn new_pods_that_serve_stay_when_a_rollout_that_stands_still_shrinks() {
    let more = strategy("1", "1");
    let mut world = World::new();
    world.read(&document("Deployment", 'a', 4, &more));
    world.set_ready('a', true);
    world.read(&document("Deployment", 'b', 4, &more));
    world.gone();
    let last = world.uids('b')[1].clone();
    world.set_pod_ready(&last, true);
    world.gone();
    assert_eq!(world.shown(), "a a b B B");
    for uid in world.uids('a') {
        world.set_pod_ready(&uid, false);
    }
    world.read(&document("Deployment", 'b', 2, &(more + PAUSED)));
    world.gone();
    // The second one serves.
    assert_eq!(world.shown(), "A A b");
}

#[test]
fn another_number_of_pods_does_not_try_again_what_has_failed() {
    let text = |replicas| {
        let more = strategy("1", "1") + "  progressDeadlineSeconds: 60\n";
        document("Deployment", 'b', replicas, &more)
    };
    for (replicas, shown) in [
        (6, "a a a B B"),
        (4, "a a a B B"),
        (3, "a a a B"),
        (2, "a a B"),
    ] {
        let mut world = World::new();
        let more = strategy("1", "1") + "  progressDeadlineSeconds: 60\n";
        world.read(&document("Deployment", 'a', 4, &more));
        world.set_ready('a', true);
        world.read(&text(4));
        world.gone();
        assert_eq!(world.shown(), "a a a B B");
        world.pass(60_000);
        world.read(&text(replicas));
        world.gone();
        for _ in 0..3 {
            assert_eq!(world.shown(), shown, "{replicas}");
            let progressing = &world.status()["conditions"][1];
            assert_eq!(
                progressing["reason"], "ProgressDeadlineExceeded",
                "{replicas}"
            );
            world.pass(60_000);
        }
        // It goes on once they work.
        for _ in 0..8 {
            world.set_ready('b', true);
            world.gone();
        }
        assert_eq!(world.shown(), vec!["b"; replicas].join(" "));
    }
}

#[test]
fn a_failed_rollout_that_has_all_pods_of_a_smaller_number_ends() {
    let text = |letter, replicas| {
        let more = strategy("1", "0") + "  progressDeadlineSeconds: 60\n";
        document("Deployment", letter, replicas, &more)
    };
    let mut world = World::new();
    world.read(&text('a', 3));
    world.set_ready('a', true);
    world.read(&text('b', 3));
    world.set_ready('b', true);
    world.gone();
    assert_eq!(world.shown(), "a a b B");
    world.pass(60_000);
    world.read(&text('b', 1));
    world.gone();
    world.gone();
    assert_eq!(world.shown(), "b");
}

#[test]
fn a_rollout_has_its_whole_time_after_a_pause() {
    let text = |more: &str| {
        let more = strategy("1", "0") + "  progressDeadlineSeconds: 60\n" + more;
        document("Deployment", 'b', 2, &more)
    };
    for restarts in [false, true] {
        let mut world = World::new();
        world.read(&document("Deployment", 'a', 2, ""));
        world.set_ready('a', true);
        world.read(&text(""));
        world.pass(50_000);
        world.read(&text(PAUSED));
        world.pass(1_000_000);
        if restarts {
            let kept = world.state.workloads.rollouts();
            world.restart(kept);
        }
        world.read(&text(""));
        world.pass(59_999);
        let reason = |world: &World| world.status()["conditions"][1]["reason"].clone();
        assert_eq!(reason(&world), "ReplicaSetUpdated");
        world.pass(1);
        assert_eq!(reason(&world), "ProgressDeadlineExceeded");
    }
}

#[test]
fn a_pause_shows_since_when_also_where_nothing_is_left_to_roll_out() {
    let mut world = World::new();
    let text = |pause| document("Deployment", 'a', 2, pause);
    let condition = |world: &World| {
        let condition = world.status()["conditions"][1].clone();
        let [reason, since] =
            ["reason", "lastTransitionTime"].map(|field| condition[field].clone());
        (reason.as_str().unwrap().to_owned(), since)
    };
    world.read(&text(""));
    world.set_ready('a', true);
    let (reason, complete) = condition(&world);
    assert_eq!(reason, "NewReplicaSetAvailable");
    world.now.wall.0 += 60_000_000;
    world.read(&text(PAUSED));
    let (reason, paused) = condition(&world);
    assert_eq!(reason, "DeploymentPaused");
    assert_ne!(paused, complete);
    world.now.wall.0 += 60_000_000;
    world.read(&text(PAUSED));
    assert_eq!(condition(&world).1, paused);
    world.read(&text(""));
    let (reason, goes_on) = condition(&world);
    assert_eq!(reason, "NewReplicaSetAvailable");
    assert_ne!(goes_on, paused);
}
