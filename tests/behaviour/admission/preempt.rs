//! Who is ended for a more important pod (kubelet-behaviour §9.8, part A2)?

use super::*;

/// A pod that is ended with code 143 when it is told to stop.
fn end_all(node: &mut Node, uids: &[&str]) {
    for uid in uids {
        node.end_of(&(*uid).into(), 143);
        node.work();
    }
}

/// Who is being ended to make room.
fn preempted(node: &Node) -> Vec<&str> {
    let pods = node.state.pods.values();
    let some = pods.filter(|p| {
        let cause = p.verdict.as_ref().map(|verdict| verdict.cause);
        cause == Some(Cause::Preempted)
    });
    some.map(|p| p.spec.key.name.as_str()).collect()
}

#[test]
fn a_critical_pod_has_a_lesser_one_ended_which_comes_again_when_there_is_room() {
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
    // It has its own grace, and what looks again meanwhile changes nothing.
    assert_eq!(
        node.state.pods[&little.uid]
            .verdict
            .clone()
            .unwrap()
            .grace_ms,
        30_000
    );
    node.tell(Event::SettingsChanged(small()));
    node.wants(&[&little, &critical]);
    assert_eq!(node.said().len(), said.len());
    node.tell(Event::ContainerExited {
        instance: node.state.pods[&little.uid].instance("c", 0),
        exit: exit(143, at(node.now), at(node.now)),
    });
    let shown = node.shown().status.unwrap();
    assert_eq!(shown.phase.as_deref(), Some("Failed"));
    assert_eq!(shown.reason.as_deref(), Some("Preempting"));
    let text = "Preempted in order to admit critical pod";
    assert_eq!(shown.message.as_deref(), Some(text));
    node.work();
    assert_eq!(node.stands(), ["little OutOfcpu", "vip runs"]);
    assert_eq!(node.state.preemptions["cpu"], 1);
    node.wants(&[&little]);
    end_all(&mut node, &["vip"]);
    assert_eq!(node.stands(), ["little runs"]);
}

#[test]
fn who_has_to_go_is_chosen_like_the_kubelet_among_those_of_lowest_priority() {
    let qos = |mut spec: PodSpec, class| {
        spec.qos = class;
        spec
    };
    let bare = |name: &str| pod(name, name, RestartPolicy::Always, &["c"]);
    use QosClass::{Burstable, Guaranteed};
    // Name, cpu and MiB.
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
            "of equals the one with less memory",
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
            "nobody, where all are not enough",
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
            "a Guaranteed one as well, where Burstable ones are not enough",
            vec![
                qos(sized("a", 600, 10), Guaranteed),
                qos(sized("b", 200, 10), Burstable),
                qos(sized("d", 200, 10), Burstable),
            ],
            sized("p", 700, 10),
            &["a", "b"],
        ),
        (
            "of lower priority before what fits better",
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
    // Huge pages: of whom has as many of that size as are missing.
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
    assert_eq!(node.state.preemptions["hugepages-2Mi"], 1);
    end_all(&mut node, &["b"]);
    assert_eq!(
        node.stands(),
        ["a runs", "b OutOfhugepages-2Mi", "d runs", "p runs"]
    );
    // Places: of whom asks for nothing.
    let mut settings = small();
    settings.capacity.as_mut().unwrap().pods = 2;
    let mut node = Node::set(settings);
    let (a, b) = (qos(sized("a", 100, 10), Burstable), bare("b"));
    node.wants(&[&a, &b]);
    let p = with_priority(bare("p"), 1);
    node.wants(&[&a, &b, &p]);
    assert_eq!(preempted(&node), ["b"]);
    assert_eq!(node.state.preemptions["pods"], 1);
    let text = "Preempted in order to admit a pod of higher priority";
    assert_eq!(
        node.state.pods[&b.uid].verdict.clone().unwrap().message,
        text
    );
}

#[test]
fn nobody_goes_for_an_equal_nor_for_who_could_not_come_in_anyway_or_does_not_want_it() {
    let never = |mut spec: PodSpec| {
        let manifest = Arc::make_mut(&mut spec.manifest).spec.as_mut().unwrap();
        manifest.preemption_policy = Some("Never".to_owned());
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
fn the_room_that_is_made_is_for_the_one_it_is_made_for() {
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
    // Neither the one who went nor the one who waits takes it.
    assert_eq!(
        node.stands(),
        ["a OutOfcpu", "b runs", "p OutOfcpu", "waits OutOfcpu"]
    );
    end_all(&mut node, &["b"]);
    assert_eq!(
        node.stands(),
        ["a OutOfcpu", "b OutOfcpu", "p runs", "waits OutOfcpu"]
    );
    // Who is about to go anyway makes room, too.
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
fn a_new_agent_goes_on_making_room() {
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
        let found = Box::new(recovered(pod, ready()));
        new.tell(Event::PodRecovered(found));
    }
    new.tell(Event::DesiredChanged(desired(&[&little, &vip])));
    new.work();
    assert_eq!(new.stands(), ["little runs", "vip OutOfcpu"]);
    assert_eq!(preempted(&new), ["little"]);
    end_all(&mut new, &["little"]);
    assert_eq!(new.stands(), ["little OutOfcpu", "vip runs"]);
}
