//! Image garbage collection: which images go, and when.

use super::*;

#[test]
fn images_are_collected_at_85_percent_down_to_80_every_five_minutes_at_most() {
    let policy = Policy {
        images: Some(IMAGES),
        ..policy(&[])
    };
    let mut node = node(policy, &[]);
    // Free space is counted in whole percents.
    look(&mut node, &of_disk(160 * MI, &[]));
    assert_eq!(step(&node), Step::WakeAt(Time(node.now + LOOK_MS)));
    node.wait(LOOK_MS);
    let full = of_disk(159 * MI, &[]);
    look(&mut node, &full);
    let expected = Order::CollectImages {
        goal: Goal::Bytes(41 * MI),
        space: full.node.imagefs.unwrap().bytes,
    };
    assert_eq!(order(&mut node), expected);
    node.tell(Event::Node(NodeFact::Reclaimed));
    let begin = node.now;
    while node.now < begin + 300_000 {
        look(&mut node, &full);
        assert_eq!(step(&node), Step::WakeAt(Time(node.now + LOOK_MS)));
        node.wait(LOOK_MS);
    }
    look(&mut node, &full);
    assert_eq!(order(&mut node), expected);
}

#[test]
fn the_longest_unused_images_go_until_there_is_room() {
    let image = |id: &str, used: Option<u64>| ImageFacts {
        id: id.into(),
        size_bytes: 100,
        used: false,
        preloaded: false,
        first_seen: Time(1_000),
        last_used: used.map(Time),
    };
    let busy = ImageFacts {
        used: true,
        ..image("busy", None)
    };
    let preloaded = ImageFacts {
        preloaded: true,
        ..image("preloaded", None)
    };
    let young = ImageFacts {
        first_seen: Time(900_000),
        ..image("young", None)
    };
    let all = [
        image("b", Some(50_000)),
        busy,
        image("a", Some(40_000)),
        image("never", None),
        preloaded,
        young,
    ];
    let now = (Time(0), Time(1_000_000));
    let policy = IMAGES;
    for (goal, expected) in [
        (Goal::Age, vec![]),
        (Goal::Bytes(1), vec!["never"]),
        (Goal::Bytes(101), vec!["never", "a"]),
        (Goal::All, vec!["never", "a", "b"]),
    ] {
        assert_eq!(doomed(&all, &policy, goal, now), expected, "{goal:?}");
    }
    let policy = ImagePolicy {
        max_age_ms: 955_000,
        ..policy
    };
    assert_eq!(doomed(&all, &policy, Goal::Age, now), ["never", "a"]);
    let older = ImagePolicy {
        max_age_ms: 960_000,
        ..policy
    };
    assert_eq!(doomed(&all, &older, Goal::Age, now), ["never"]);
    // To an agent that has just started, no image is old.
    let now = (Time(500_000), Time(1_000_000));
    assert!(doomed(&all, &policy, Goal::Age, now).is_empty());
}
