//! Disk pressure: what is done when disks run short, or a pod exceeds its disk limits.

use super::*;

#[test]
fn unused_images_and_volumes_go_before_pods_when_disk_is_short() {
    let mut node = node(
        policy(&[hard(Signal::NodefsBytes, 100 * MI)]),
        &[named("a", 0)],
    );
    let found = of_disk(50 * MI, &[("a", 300 * MI)]);
    assert_eq!(look(&mut node, &found), (false, Walk::None));
    let expected = Order::Reclaim {
        signal: Signal::NodefsBytes,
        volumes: true,
        images: true,
    };
    assert_eq!(order(&mut node), expected);
    node.tell(Event::Node(NodeFact::Reclaimed));
    assert_eq!(look(&mut node, &found), (false, Walk::All), "at once");
    let (_, message) = evicted(&mut node);
    let expected = "The node was low on resource: ephemeral-storage. Threshold quantity: 100Mi, available: 50Mi. \
        Container c was using 300Mi, request is 0, has larger consumption of ephemeral-storage. ";
    assert_eq!(message, expected);
}

#[test]
fn removing_unused_images_and_volumes_may_be_enough() {
    let mut node = node(
        policy(&[hard(Signal::ImagefsBytes, 100 * MI)]),
        &[named("a", 0)],
    );
    look(&mut node, &of_disk(50 * MI, &[]));
    order(&mut node);
    node.tell(Event::Node(NodeFact::Reclaimed));
    look(&mut node, &of_disk(100 * MI, &[]));
    assert_eq!(step(&node), Step::WakeAt(Time(node.now + LOOK_MS)));
    assert!(node.state.pressure.condition(Condition::Disk).yes);
}

#[test]
fn images_on_their_own_file_system_are_reclaimed_only_for_that_one() {
    for (signal, volumes, images) in [
        (Signal::NodefsBytes, true, false),
        (Signal::ImagefsBytes, false, true),
    ] {
        let mut node = node(policy(&[hard(signal, 100 * MI)]), &[named("a", 0)]);
        let mut found = of_disk(50 * MI, &[]);
        found.node.images_apart = true;
        look(&mut node, &found);
        let expected = Order::Reclaim {
            signal,
            volumes,
            images,
        };
        assert_eq!(order(&mut node), expected);
    }
}

#[test]
fn limits_of_disk_use_are_enforced_in_the_kubelets_words() {
    let volume = "Usage of EmptyDir volume \"v\" exceeds the limit \"50Mi\". ";
    let whole = "Pod ephemeral local storage usage exceeds the total limit of containers 20Mi. ";
    for (usage, expected) in [
        (filled(15, 2, 3), None),
        (filled(51, 0, 0), Some(volume)),
        (filled(15, 3, 3), Some(whole)),
    ] {
        let mut node = node(policy(&[]), &[limited()]);
        assert_eq!(look(&mut node, &usage), (false, Walk::Limited));
        match expected {
            None => assert_eq!(step(&node), Step::WakeAt(Time(node.now + LOOK_MS))),
            Some(message) => {
                assert_eq!(evicted(&mut node).1, message);
                // The pod itself is the cause: no disruption.
                let conditions = node.shown().status.unwrap().conditions.unwrap();
                assert!(!conditions.iter().any(|c| c.type_ == "DisruptionTarget"));
            }
        }
    }
    // Overhead is added to what the containers may have.
    let mut spec = limited();
    spec.storage_overhead_bytes = MI;
    for (usage, goes) in [(filled(15, 3, 3), false), (filled(15, 3, 4), true)] {
        let mut node = node(policy(&[]), &[spec.clone()]);
        look(&mut node, &usage);
        assert_eq!(matches!(step(&node), Step::Record(_)), goes);
    }
    // One container exceeds its own limit, but the pod does not exceed the sum.
    let mut spec = limited();
    spec.containers.push(spec.containers[0].clone());
    spec.containers[1].name = "d".into();
    let mut node = node(policy(&[]), &[spec]);
    look(&mut node, &filled(0, 21, 0));
    let message = "Container c exceeded its local ephemeral storage limit \"20Mi\". ";
    assert_eq!(evicted(&mut node).1, message);
}

#[test]
fn disks_are_walked_for_a_twentieth_of_the_time_at_most() {
    let mut node = node(policy(&[]), &[limited()]);
    let mut found = filled(1, 1, 1);
    found.walk_ms = 1_500;
    assert_eq!(look(&mut node, &found).1, Walk::Limited);
    for expected in [Walk::None, Walk::None, Walk::Limited] {
        node.wait(LOOK_MS);
        assert_eq!(look(&mut node, &found).1, expected);
    }
}

#[test]
fn a_walk_includes_all_pods_or_those_with_limits_or_none() {
    let plain = PodState::new(Arc::new(named("a", 0)), at(0));
    let mut spec = named("b", 0);
    of(&mut spec, "c").storage.limit_bytes = Some(MI);
    let limited = PodState::new(Arc::new(spec), at(0));
    for (walk, expected) in [
        (Walk::None, [false, false]),
        (Walk::Limited, [false, true]),
        (Walk::All, [true, true]),
    ] {
        let included = [&plain, &limited].map(|pod| walk.includes(pod));
        assert_eq!(included, expected, "{walk:?}");
    }
}
