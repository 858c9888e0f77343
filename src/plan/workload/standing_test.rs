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
