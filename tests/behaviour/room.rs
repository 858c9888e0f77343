//! Room for resizes: which pod gets cpu and memory when not all can have what they request.

use std::sync::Arc;

use coracle::plan::resize::Capacity;
use coracle::plan::{Action, Event, NodeFact, PodFact};
use coracle::spec::{PodSpec, QosClass, RestartPolicy};

use crate::node::{Node, small};
use crate::resize::{MIB, alone, sized};

#[test]
fn the_room_of_a_finished_pod_is_free_at_once() {
    let mut done = alone("u2", 50);
    done.restart_policy = RestartPolicy::Never;
    let done = Arc::new(done);
    let (now, more) = (
        Arc::new(sized("u1", 200, 20)),
        Arc::new(sized("u1", 200, 60)),
    );
    let mut node = Node::small(&[&now, &done]);
    node.end_of(&done.uid, 0);
    assert!(matches!(
        &node.open[..],
        [Action::RemoveSandbox { pod, .. }] if *pod == done.uid
    ));
    node.want(&[&more, &done]);
    assert_eq!(node.resizing(), "PodResizeInProgress");
}

#[test]
fn a_resize_that_waits_for_another_pods_room_gets_it_when_that_pod_finishes() {
    let mut done = alone("u2", 50);
    done.restart_policy = RestartPolicy::Never;
    let done = Arc::new(done);
    let (now, more) = (sized("u1", 200, 20), sized("u1", 200, 60));
    let mut node = Node::small(&[&Arc::new(now), &done]);
    node.want(&[&Arc::new(more), &done]);
    assert!(node.resizing().contains("Deferred"), "{}", node.resizing());
    node.end_of(&done.uid, 0);
    assert_eq!(node.resizing(), "PodResizeInProgress", "at once");
}

#[test]
fn room_goes_by_priority_then_by_qos_class_then_by_the_longest_wait() {
    type Change = fn(&mut PodSpec);
    let table: [(&str, Change, bool, &str); 4] = [
        ("all alike", |_| {}, false, "u1"),
        ("priority", |two| two.priority = 1, false, "u2"),
        ("class", |two| two.qos = QosClass::Guaranteed, false, "u2"),
        ("it has waited for longer", |_| {}, true, "u2"),
    ];
    for (why, change, is_first, expected) in table {
        let size = |uid: &str, mib| {
            let mut spec = sized(uid, 100, mib);
            if uid == "u2" {
                change(&mut spec);
            }
            Arc::new(spec)
        };
        let (one, two) = (size("u1", 10), size("u2", 10));
        let third = Arc::new(alone("u3", 50));
        let mut node = Node::small(&[&one, &two, &third]);
        let (more, two) = (size("u1", 50), size("u2", 50));
        if is_first {
            node.want(&[&one, &two, &third]);
            node.wait(1);
        }
        node.want(&[&more, &two, &third]);
        let grown = |node: &Node| {
            let pods = node.state.pods.values();
            let big = pods.filter(|p| p.spec.resources.memory_request_bytes == 60 * MIB);
            let big = big.map(|p| p.spec.uid.as_str().to_owned());
            big.collect::<Vec<_>>()
        };
        assert_eq!(grown(&node), [""; 0], "{why}");
        node.want(&[&more, &two]);
        node.work_on(&third.uid);
        node.end_of(&third.uid, 0);
        node.work_on(&third.uid);
        assert_eq!(grown(&node), [expected], "{why}");
    }
}

#[test]
fn pods_give_room_back_before_others_claim_it() {
    for (before, after) in [
        ([(100, 20), (100, 50)], [(100, 60), (100, 10)]),
        ([(100, 20), (600, 20)], [(700, 20), (100, 20)]),
    ] {
        let pods = |[one, two]: [(u64, u64); 2]| {
            let (one, two) = (sized("u1", one.0, one.1), sized("u2", two.0, two.1));
            [Arc::new(one), Arc::new(two)]
        };
        let [one, two] = pods(before);
        let mut node = Node::small(&[&one, &two]);
        let [one, two] = pods(after);
        node.want(&[&one, &two]);
        for pod in node.state.pods.values() {
            assert!(pod.pending.is_none(), "{before:?} {after:?}: {pod:?}");
        }
    }
}

#[test]
fn an_exact_fit_fits_and_a_request_for_no_more_is_granted_on_an_overcommitted_node() {
    let mut node = Node::small(&[&Arc::new(sized("u1", 100, 20))]);
    node.want(&[&Arc::new(sized("u1", 900, 90))]);
    node.work();
    assert_eq!(node.resizing(), "", "a core and 100 MiB, all there is");
    let mut less = small();
    less.capacity = less.capacity.map(|capacity| Capacity {
        cpu_milli: capacity.cpu_milli / 2,
        ..capacity
    });
    node.tell(Event::Node(NodeFact::SettingsChanged(less)));
    node.want(&[&Arc::new(sized("u1", 900, 80))]);
    node.work();
    assert_eq!(node.memory(), [80, 80, 80]);
    assert_eq!(node.resizing(), "");
}

#[test]
fn a_stopping_pod_gets_no_more_than_it_has() {
    let (now, more) = (sized("u1", 200, 20), sized("u1", 200, 60));
    let (now, more) = (Arc::new(now), Arc::new(more));
    let other = Arc::new(alone("u2", 50));
    let mut node = Node::small(&[&now, &other]);
    node.want(&[&more, &other]);
    let (pod, grace_ms) = (now.uid.clone(), None);
    node.tell(Event::Pod {
        uid: pod,
        fact: PodFact::DeleteRequested { grace_ms },
    });
    let mut large = small();
    large.capacity = large.capacity.map(|capacity| Capacity {
        memory_bytes: 1_000 * MIB,
        ..capacity
    });
    node.tell(Event::Node(NodeFact::SettingsChanged(large)));
    assert!(!node.reasons().contains(&"ResizeStarted".to_owned()));
    let pod = &node.state.pods[&now.uid];
    assert_eq!(pod.spec.resources, now.resources);
}
