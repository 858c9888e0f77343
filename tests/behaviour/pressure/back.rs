//! When does an evicted pod run again?

use super::*;

/// A node that has just evicted its only pod.
fn hit() -> Node {
    let mut node = node(watchful(), &[named("a", 0)]);
    let found = of_memory(MI, &[("a", MI)]);
    look(&mut node, &found);
    look(&mut node, &found);
    evicted(&mut node);
    node
}

/// The next agent on that node.
fn next_agent(node: &Node, sandbox: RecoveredSandbox) -> Node {
    let spec = node.state.pods.values().next().unwrap().spec.clone();
    let mut node = reborn(node, &[&spec], sandbox);
    node.tell(Event::PolicyChanged(Arc::new(watchful())));
    node
}

#[test]
fn a_new_agent_waits_for_who_was_evicted_too() {
    let mut node = hit();
    let end = node.now + 30_000;
    node.now += 500;
    let mut node = next_agent(&node, RecoveredSandbox::Ready { ips: vec![] });
    assert_eq!(step(&node), Step::At(Time(end)));
    node.wait(29_500);
    look(&mut node, &of_memory(MI, &[("a", MI)]));
}

/// Ends what is evicted, and looks at the node, which has enough again, for so long.
fn recover(node: &mut Node, ms: u64) {
    node.work();
    node.end("c", 137);
    node.work();
    let end = node.now + ms;
    while node.now < end {
        if let Step::Do(Order::Look { .. }) = step(node) {
            look(node, &of_memory(800 * MI, &[]));
        }
        node.wait(1_000.min(end - node.now));
    }
}

#[test]
fn an_evicted_pod_is_back_after_the_pressure_and_later_each_time() {
    let mut node = node(watchful(), &[named("a", 0)]);
    for wait in [10_000, 20_000, 40_000, 80_000, 160_000, 300_000, 300_000] {
        let found = of_memory(MI, &[("a", MI)]);
        look(&mut node, &found);
        look(&mut node, &found);
        evicted(&mut node);
        let begin = node.now;
        recover(&mut node, 300_000 + wait - 1);
        assert!(!matches!(step(&node), Step::Record(_)), "{wait}");
        assert!(!node.state.pressure.condition(Condition::Memory).yes);
        node.wait(LOOK_MS + 1);
        if let Step::Do(Order::Look { .. }) = step(&node) {
            look(&mut node, &of_memory(800 * MI, &[]));
        }
        let Step::Record(event) = step(&node) else {
            panic!("it is back after {wait}: {:?}", step(&node));
        };
        assert_eq!(event, Event::PodRestored { pod: "a".into() });
        node.tell(event);
        node.work();
        let line = node.line();
        assert!(line.starts_with("Running; c: running < "), "{line}");
        assert!(node.now - begin < 300_000 + wait + 2 * LOOK_MS);
        node.wait(LOOK_MS);
    }
    // A long run without harm is forgiven.
    node.wait(600_000);
    let found = of_memory(MI, &[("a", MI)]);
    look(&mut node, &found);
    look(&mut node, &found);
    evicted(&mut node);
    assert_eq!(node.state.pods.values().next().unwrap().evictions.times, 1);
}

#[test]
fn an_evicted_pod_that_is_back_is_another_and_waits_longer_the_next_time() {
    let mut node = node(policy(&[]), &[of_template(limited())]);
    let mut seen = std::collections::BTreeSet::new();
    for (times, wait) in [(1, 10_000), (2, 20_000), (3, 40_000)] {
        let uid = node.state.pods.keys().next().unwrap().clone();
        assert!(seen.insert(uid.clone()), "{uid} was there before");
        let mut found = filled(51, 0, 0);
        let used = found.pods.pop_first().unwrap().1;
        found.pods.insert(uid.clone(), used);
        look(&mut node, &found);
        evicted(&mut node);
        node.work();
        node.end("c", 137);
        node.work();
        assert_eq!(node.state.pods[&uid].evictions.times, times);
        node.wait(wait - 1);
        assert_eq!(step(&node), Step::At(Time(node.now + 1)));
        node.wait(1);
        node.tell(Event::PodRestored { pod: uid.clone() });
        assert!(!node.state.pods[&uid].any_running());
        // The agent dies before the next pod is there.
        node = match times {
            2 => {
                let wanted = Arc::new(of_template(limited()));
                let mut next = reborn(&node, &[&wanted], RecoveredSandbox::Removed);
                next.tell(Event::PolicyChanged(Arc::new(policy(&[]))));
                next
            }
            _ => node,
        };
        node.work();
        let line = node.line();
        assert!(line.starts_with("Running; c: running < -, 0"), "{line}");
        node.wait(LOOK_MS);
    }
}

#[test]
fn an_evicted_pod_that_crashed_is_restarted_no_sooner_when_it_is_back() {
    let mut node = node(policy(&[]), &[of_template(limited())]);
    let uid = node.state.pods.keys().next().unwrap().clone();
    node.end("c", 1);
    node.work();
    node.end("c", 1);
    node.wait(10_000);
    node.work();
    let mut found = filled(51, 0, 0);
    let used = found.pods.pop_first().unwrap().1;
    found.pods.insert(uid.clone(), used);
    look(&mut node, &found);
    evicted(&mut node);
    node.work();
    node.end("c", 137);
    node.work();
    node.wait(10_000);
    node.tell(Event::PodRestored { pod: uid });
    node.work();
    let line = node.line();
    assert!(line.starts_with("Running; c: running < -, 0"), "{line}");
    node.end("c", 1);
    assert_eq!(node.wake_at(), Some(node.now + 20_000));
}

#[test]
fn who_broke_a_limit_waits_only_for_himself() {
    let mut node = node(policy(&[]), &[limited()]);
    look(&mut node, &filled(51, 0, 0));
    evicted(&mut node);
    node.work();
    node.end("c", 137);
    node.work();
    node.wait(9_999);
    assert_eq!(step(&node), Step::At(Time(node.now + 1)));
    node.wait(1);
    assert!(matches!(
        step(&node),
        Step::Record(Event::PodRestored { .. })
    ));
    // Early word of it is not believed.
    node.now -= 5;
    node.tell(Event::PodRestored { pod: "a".into() });
    assert!(node.line().starts_with("Failed"), "{}", node.line());
}

#[test]
fn a_new_agent_keeps_an_evicted_pod_down_for_the_whole_period() {
    let mut node = hit();
    let since = node.now;
    recover(&mut node, 5_000);
    let mut node = next_agent(&node, RecoveredSandbox::Removed);
    look(&mut node, &of_memory(800 * MI, &[]));
    assert!(node.line().starts_with("Failed"), "{}", node.line());
    node.now = since + 309_999;
    look(&mut node, &of_memory(800 * MI, &[]));
    assert_eq!(step(&node), Step::At(Time(since + 310_000)));
    node.wait(1);
    assert!(matches!(
        step(&node),
        Step::Record(Event::PodRestored { .. })
    ));
}

#[test]
fn a_shortage_of_another_kind_keeps_an_evicted_pod_down() {
    let both = [hard(Signal::Memory, 100 * MI), hard(Signal::Pids, 10)];
    let mut node = node(policy(&both), &[named("a", 0)]);
    let found = of_memory(MI, &[("a", MI)]);
    look(&mut node, &found);
    look(&mut node, &found);
    evicted(&mut node);
    node.work();
    node.end("c", 137);
    node.work();
    let mut found = of_memory(800 * MI, &[]);
    found.node.pids = Some(Space {
        available: 1,
        capacity: 1_000,
    });
    node.wait(1_000);
    for _ in 0..100 {
        look(&mut node, &found);
        node.wait(LOOK_MS);
    }
    assert!(node.line().starts_with("Failed"), "{}", node.line());
}
