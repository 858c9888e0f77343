//! Resizes that are deferred or infeasible: for lack of room, or of containers that may swap.

use super::*;

#[test]
fn a_resize_beyond_the_node_is_infeasible_and_one_beyond_its_free_room_is_deferred() {
    let (a, b) = (sized("u1", 200, 20), Arc::new(alone("u2", 50)));
    let mut node = Node::small(&[&Arc::new(a.clone()), &b]);
    node.want(&[&Arc::new(sized("u1", 200, 91)), &b]);
    let mut infeasible = "PodResizePending Infeasible: Node didn't have enough capacity: \
                          memory, requested: 105906176, capacity: 104857600";
    assert_eq!(node.resizing(), infeasible);
    assert_eq!(node.memory(), [91, 20, 20]);
    assert!(node.open.is_empty());
    node.want(&[&Arc::new(sized("u1", 1_000, 20)), &b]);
    infeasible = "PodResizePending Infeasible: Node didn't have enough capacity: \
                  cpu, requested: 1100, capacity: 1000";
    assert_eq!(node.resizing(), infeasible);
    let more = Arc::new(sized("u1", 200, 60));
    node.want(&[&more, &b]);
    let deferred = "PodResizePending Deferred: Node didn't have enough resource: \
                    memory, requested: 73400320, used: 52428800, capacity: 104857600";
    assert_eq!(node.resizing(), deferred);
    // Nothing changes, so it stays deferred and is not reported again.
    node.want(&[&Arc::new(sized("u1", 200, 60)), &b]);
    assert_eq!(node.resizing(), deferred);
    assert_eq!(
        node.reasons(),
        ["ResizeInfeasible", "ResizeInfeasible", "ResizeDeferred"]
    );
    // A request for less is always granted.
    node.want(&[&Arc::new(sized("u1", 100, 20)), &b]);
    node.work();
    assert_eq!(node.resizing(), "");
    node.want(&[&more, &b]);
    assert_eq!(node.resizing(), deferred);
    // There is room when the other pod has gone, not before.
    node.want(&[&more]);
    assert_eq!(node.resizing(), deferred);
    node.work_on(&b.uid);
    node.end_of(&b.uid, 0);
    assert_eq!(node.resizing(), deferred);
    node.work_on(&b.uid);
    node.work();
    assert_eq!(node.resizing(), "");
    assert_eq!(node.memory(), [60, 60, 60]);
    let reasons = &node.reasons()[3..];
    let expected = [
        "ResizeStarted",
        "ResizeCompleted",
        "ResizeDeferred",
        "Killing",
        "ResizeStarted",
        "ResizeCompleted",
    ];
    assert_eq!(reasons, expected);
}

#[test]
fn the_more_important_pod_gets_scarce_room() {
    let important = |mib| {
        let mut spec = sized("u2", 200, mib);
        spec.priority = 10;
        Arc::new(spec)
    };
    let a = |mib| Arc::new(sized("u1", 200, mib));
    let mut node = Node::small(&[&a(20), &important(20)]);
    node.want(&[&a(50), &important(50)]);
    node.work();
    let has = |uid: &str| {
        let pod = node
            .state
            .pods
            .values()
            .find(|p| p.spec.uid.as_str() == uid);
        pod.unwrap().spec.resources.memory_request_bytes / MIB
    };
    assert_eq!((has("u1"), has("u2")), (30, 60));
}

#[test]
fn a_container_that_may_swap_is_resized_only_with_a_restart() {
    use Swapping::{All, Burstable, Off};
    const REFUSED: &str = "PodResizePending Infeasible: In-place resize of containers with swap is \
                           not supported.";
    // Requests and limits in MiB, before and after.
    let spec = |request: u64, limit: Option<u64>| {
        let mut spec = pod("u1", "p", RestartPolicy::Always, &["c"]);
        spec.qos = QosClass::Burstable;
        let c = &mut of(&mut spec, "c").resources;
        c.memory_request_bytes = Some(request * MIB);
        c.memory_limit_bytes = limit.map(|mib| mib * MIB);
        spec.resources.memory_request_bytes = request * MIB;
        spec.resources.memory_limit_bytes = limit.map(|mib| mib * MIB);
        spec
    };
    let critical = |mut spec: PodSpec| {
        spec.priority = 2_000_000_000;
        spec
    };
    let own = |mut spec: PodSpec, bytes: u64| {
        spec.swap_max_bytes = Some(bytes);
        spec
    };
    let (some, more) = (spec(10, Some(30)), spec(20, Some(30)));
    for (sentence, rule, old, new, refused) in [
        (
            "no container may swap",
            Off,
            some.clone(),
            more.clone(),
            false,
        ),
        (
            "this container may swap",
            Burstable,
            some.clone(),
            more.clone(),
            true,
        ),
        (
            "without a limit",
            Burstable,
            spec(10, None),
            spec(20, None),
            true,
        ),
        (
            "it may swap after the resize",
            Burstable,
            spec(30, Some(30)),
            spec(20, Some(30)),
            true,
        ),
        (
            "only the limit",
            Burstable,
            some.clone(),
            spec(10, Some(40)),
            false,
        ),
        (
            "all may swap",
            All,
            spec(10, Some(10)),
            spec(20, Some(20)),
            true,
        ),
        (
            "request and limit are equal",
            Burstable,
            spec(10, Some(10)),
            spec(20, Some(20)),
            false,
        ),
        (
            "critical pods never swap",
            All,
            critical(some.clone()),
            critical(more.clone()),
            false,
        ),
        (
            "by a restart",
            Burstable,
            restarting(some.clone()),
            restarting(more.clone()),
            false,
        ),
        (
            "its own swap limit",
            Burstable,
            own(spec(9, Some(9)), 1),
            own(spec(8, Some(8)), 1),
            true,
        ),
        (
            "its own swap limit is zero",
            All,
            own(some.clone(), 0),
            own(more.clone(), 0),
            false,
        ),
    ] {
        let mut node = Node::small(&[&Arc::new(old)]);
        node.tell(Event::Node(NodeFact::SettingsChanged(Settings {
            swap: rule,
            ..small()
        })));
        node.want(&[&Arc::new(new)]);
        assert_eq!(
            node.resizing() == REFUSED,
            refused,
            "{sentence}: {}",
            node.resizing()
        );
        assert_eq!(
            node.reasons().iter().any(|r| r == "ResizeInfeasible"),
            refused,
            "{sentence}"
        );
    }
}
