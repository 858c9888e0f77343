//! Preemption: which pods are ended for a more important one (the kubelet's `pkg/kubelet/lifecycle`; `coracle help differences`).

use super::*;
use coracle::spec::{PageSize, Resource};

/// Ends these pods with code 143, as after their stop signal.
fn end_all(node: &mut Node, uids: &[&str]) {
    for uid in uids {
        node.end_of(&(*uid).into(), 143);
        node.work();
    }
}

/// The pods that are being ended to make room.
fn preempted(node: &Node) -> Vec<&str> {
    let pods = node.state.pods.values();
    let some = pods.filter(|p| {
        let cause = p.verdict.as_ref().map(|verdict| verdict.cause);
        cause == Some(Cause::Preempted)
    });
    some.map(|p| &*p.spec.key.name).collect()
}

#[test]
fn a_critical_pod_preempts_a_lesser_one_which_returns_when_there_is_room() {
    let mut node = Node::set(small());
    let little = sized("little", 600, 10);
    let critical = with_priority(sized("vip", 600, 10), 2_000_000_000);
    node.wants(&[&little]);
    node.wait(1_000);
    node.wants(&[&little, &critical]);
    assert_eq!(preempted(&node), ["little"]);
    assert_eq!(node.stands(), ["little runs", "vip OutOfcpu"]);
    let line = node.line();
    let condition = "DisruptionTarget=True TerminationByKubelet: Pod was preempted by Kubelet to accommodate a \
                     critical pod.";
    assert!(line.contains(condition), "{line}");
    let said = node.said();
    let event = "Warning Preempting Preempted in order to admit critical pod";
    assert!(said.contains(&event.to_owned()), "{said:?}");
    // It gets its own grace period, and checking again meanwhile changes nothing.
    assert_eq!(
        node.state.pods[&little.uid]
            .verdict
            .clone()
            .unwrap()
            .grace_ms,
        30_000
    );
    node.tell(Event::Node(NodeFact::SettingsChanged(small())));
    node.wants(&[&little, &critical]);
    assert_eq!(node.said().len(), said.len());
    node.tell(Event::Run {
        instance: node.state.pods[&little.uid].instance("c", 0),
        fact: RunFact::Exited {
            exit: exit(143, at(node.now), at(node.now)),
        },
    });
    let shown = node.shown().status.unwrap();
    assert_eq!(shown.phase.as_deref(), Some("Failed"));
    assert_eq!(shown.reason.as_deref(), Some("Preempting"));
    let text = "Preempted in order to admit critical pod";
    assert_eq!(shown.message.as_deref(), Some(text));
    node.work();
    assert_eq!(node.stands(), ["little OutOfcpu", "vip runs"]);
    assert_eq!(node.state.preemptions[&Resource::Cpu], 1);
    node.wants(&[&little]);
    end_all(&mut node, &["vip"]);
    assert_eq!(node.stands(), ["little runs"]);
}

#[test]
fn the_pods_to_end_are_chosen_as_on_a_kubelet_among_those_of_lowest_priority() {
    let qos = |mut spec: PodSpec, class| {
        spec.qos = class;
        spec
    };
    let bare = |name: &str| pod(name, name, RestartPolicy::Always, &["c"]);
    use QosClass::{Burstable, Guaranteed};
    // Name, cpu in milli and memory in MiB.
    let plain = |all: &[(&str, u64, u64)]| -> Vec<PodSpec> {
        all.iter()
            .map(|(name, cpu, mib)| sized(name, *cpu, *mib))
            .collect()
    };
    let sets: [(&str, Vec<PodSpec>, PodSpec, &[&str]); 8] = [
        (
            "the nearest, not the biggest",
            plain(&[("a", 300, 10), ("b", 500, 10), ("d", 200, 10)]),
            sized("p", 200, 10),
            &["d"],
        ),
        (
            "the one with less memory among equals",
            plain(&[("a", 400, 20), ("b", 400, 10), ("d", 200, 60)]),
            sized("p", 300, 10),
            &["b"],
        ),
        (
            "several, where one is not enough",
            plain(&[("a", 300, 10), ("b", 300, 10), ("d", 400, 10)]),
            sized("p", 700, 10),
            &["a", "d"],
        ),
        (
            "both resources count",
            plain(&[("a", 500, 10), ("b", 100, 80), ("d", 400, 10)]),
            sized("p", 100, 60),
            &["b"],
        ),
        (
            "none, where all are not enough",
            vec![sized("a", 300, 10), with_priority(sized("b", 700, 10), 9)],
            sized("p", 400, 10),
            &[],
        ),
        (
            "Burstable before Guaranteed",
            vec![
                qos(sized("a", 500, 10), Guaranteed),
                qos(sized("b", 500, 10), Burstable),
            ],
            sized("p", 200, 10),
            &["b"],
        ),
        (
            "Guaranteed ones too, where Burstable ones are not enough",
            vec![
                qos(sized("a", 600, 10), Guaranteed),
                qos(sized("b", 200, 10), Burstable),
                qos(sized("d", 200, 10), Burstable),
            ],
            sized("p", 700, 10),
            &["a", "b"],
        ),
        (
            "lower priority before a better fit",
            vec![
                with_priority(sized("a", 500, 10), 1),
                with_priority(sized("b", 400, 10), 3),
            ],
            sized("p", 500, 10),
            &["a"],
        ),
    ];
    for (what, others, p, expected) in sets {
        let mut node = Node::set(small());
        let mut all: Vec<&PodSpec> = others.iter().collect();
        node.wants(&all);
        let p = with_priority(p, 5);
        all.push(&p);
        node.wants(&all);
        assert_eq!(preempted(&node), expected, "{what}");
    }
    // Huge pages: the pod that has as many of that size as are missing.
    let with_pages = |mut spec: PodSpec, mib: u64| {
        spec.huge_pages = pages(&[("2Mi", mib * MIB)]);
        spec
    };
    let mut node = Node::set(small());
    let (a, b) = (sized("a", 400, 10), with_pages(sized("b", 100, 10), 4));
    let d = with_pages(sized("d", 100, 10), 2);
    node.wants(&[&a, &b, &d]);
    let p = with_pages(with_priority(bare("p"), 1), 6);
    node.wants(&[&a, &b, &d, &p]);
    assert_eq!(preempted(&node), ["b"]);
    assert_eq!(
        node.state.preemptions
            [&Resource::HugePages(PageSize::of_resource("hugepages-2Mi").unwrap())],
        1
    );
    end_all(&mut node, &["b"]);
    assert_eq!(
        node.stands(),
        ["a runs", "b OutOfhugepages-2Mi", "d runs", "p runs"]
    );
    // Places: the pod that requests nothing.
    let mut settings = small();
    settings.capacity.as_mut().unwrap().pods = 2;
    let mut node = Node::set(settings);
    let (a, b) = (qos(sized("a", 100, 10), Burstable), bare("b"));
    node.wants(&[&a, &b]);
    let p = with_priority(bare("p"), 1);
    node.wants(&[&a, &b, &p]);
    assert_eq!(preempted(&node), ["b"]);
    assert_eq!(node.state.preemptions[&Resource::Pods], 1);
    let text = "Preempted in order to admit a pod of higher priority";
    assert_eq!(
        node.state.pods[&b.uid].verdict.clone().unwrap().message,
        text
    );
}

#[test]
fn no_pod_is_ended_for_an_equal_or_for_one_that_would_not_fit_anyway_or_never_preempts() {
    let never = |mut spec: PodSpec| {
        spec.may_preempt = false;
        spec
    };
    let mut elsewhere = with_priority(sized("p", 600, 10), 9);
    elsewhere.placement.selector = [("disk".to_owned(), "ssd".to_owned())].into();
    let mut ports = with_priority(on_port("p", None, 80, Protocol::Tcp), 9);
    set_resources(&mut ports, "c", 600, 10 * MIB);
    for p in [
        with_priority(sized("p", 600, 10), 1),
        with_priority(sized("p", 1_100, 10), 9),
        never(with_priority(sized("p", 600, 10), 9)),
        elsewhere,
        ports,
    ] {
        let mut node = Node::set(small());
        let other = with_priority(on_port("other", None, 80, Protocol::Tcp), 1);
        let mut other = other;
        set_resources(&mut other, "c", 600, 10 * MIB);
        node.wants(&[&other]);
        node.wants(&[&other, &p]);
        assert_eq!(node.stands(), ["other runs", "p OutOfcpu"], "{p:?}");
        assert_eq!(preempted(&node), [""; 0], "{p:?}");
    }
}

#[test]
fn the_room_that_is_made_goes_to_the_pod_it_is_made_for() {
    let mut node = Node::set(small());
    let (a, b) = (sized("a", 500, 10), sized("b", 500, 10));
    node.wants(&[&a, &b]);
    let (waits, p) = (
        sized("waits", 300, 10),
        with_priority(sized("p", 900, 10), 7),
    );
    node.wants(&[&a, &b, &waits, &p]);
    assert_eq!(preempted(&node), ["a", "b"]);
    end_all(&mut node, &["a"]);
    // Neither the pod that went nor the pod that waits takes the room.
    assert_eq!(
        node.stands(),
        ["a OutOfcpu", "b runs", "p OutOfcpu", "waits OutOfcpu"]
    );
    end_all(&mut node, &["b"]);
    assert_eq!(
        node.stands(),
        ["a OutOfcpu", "b OutOfcpu", "p runs", "waits OutOfcpu"]
    );
    // A pod that is going away anyway makes room, too.
    let mut node = Node::set(small());
    node.wants(&[&a, &b]);
    node.wants(&[&b]);
    let p = with_priority(sized("p", 400, 10), 7);
    node.wants(&[&b, &p]);
    assert_eq!(preempted(&node), [""; 0]);
    end_all(&mut node, &["a"]);
    assert_eq!(node.stands(), ["b runs", "p runs"]);
}

#[test]
fn a_new_agent_continues_to_make_room() {
    let mut node = Node::set(small());
    let (little, vip) = (
        sized("little", 600, 10),
        with_priority(sized("vip", 600, 10), 3),
    );
    node.wants(&[&little]);
    node.wants(&[&little, &vip]);
    node.state.pods.remove(&vip.uid);
    let (little, vip) = (Arc::new(little), Arc::new(vip));
    let mut new = Node::set(small());
    new.now = node.now;
    for pod in node.state.pods.values() {
        new.tell(Event::recovered(recovered(pod, ready())));
    }
    new.tell(Event::Node(NodeFact::DesiredChanged(desired(&[
        &little, &vip,
    ]))));
    new.work();
    assert_eq!(new.stands(), ["little runs", "vip OutOfcpu"]);
    assert_eq!(preempted(&new), ["little"]);
    end_all(&mut new, &["little"]);
    assert_eq!(new.stands(), ["little OutOfcpu", "vip runs"]);
}
