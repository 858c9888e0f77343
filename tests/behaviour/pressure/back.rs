//! The return of an evicted pod.

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
    node.tell(Event::Node(NodeFact::PolicyChanged(Arc::new(watchful()))));
    node
}

#[test]
fn a_new_agent_also_waits_for_the_evicted_pod_to_go() {
    let mut node = hit();
    let end = node.now + 30_000;
    node.now += 500;
    let mut node = next_agent(&node, RecoveredSandbox::Ready { ips: vec![] });
    assert_eq!(step(&node), Step::WakeAt(Time(end)));
    node.wait(29_500);
    look(&mut node, &of_memory(MI, &[("a", MI)]));
}

/// Ends the evicted pod, then observes a node that has enough again, for this long.
fn recover(node: &mut Node, ms: u64) {
    node.work();
    node.end("c", 137);
    node.work();
    let end = node.now + ms;
    while node.now < end {
        if let Step::Begin(Task::Relieve(Order::Look { .. })) = step(node) {
            look(node, &of_memory(800 * MI, &[]));
        }
        node.wait(1_000.min(end - node.now));
    }
}

#[test]
fn an_evicted_pod_returns_after_the_pressure_and_later_each_time() {
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
        if let Step::Begin(Task::Relieve(Order::Look { .. })) = step(&node) {
            look(&mut node, &of_memory(800 * MI, &[]));
        }
        node.work();
        let line = node.line();
        assert!(line.starts_with("Running; c: running < "), "{line}");
        assert!(node.now - begin < 300_000 + wait + 2 * LOOK_MS);
        node.wait(LOOK_MS);
    }
    // A long run without an eviction resets the wait.
    node.wait(600_000);
    let found = of_memory(MI, &[("a", MI)]);
    look(&mut node, &found);
    look(&mut node, &found);
    evicted(&mut node);
    assert_eq!(node.state.pods.values().next().unwrap().evictions.times, 1);
}

#[test]
fn an_evicted_pod_returns_as_a_new_pod_and_waits_longer_the_next_time() {
    let mut node = node(policy(&[]), &[of_template(limited())]);
    let mut seen = std::collections::BTreeSet::new();
    for (times, wait) in [(1, 10_000), (2, 20_000), (3, 40_000)] {
        let uid = node.state.pods.keys().next().unwrap().clone();
        assert!(seen.insert(uid.clone()), "{uid} was used before");
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
        assert_eq!(step(&node), Step::WakeAt(Time(node.now + 1)));
        node.wait(1);
        node.tell(Event::Pod {
            uid: uid.clone(),
            fact: PodFact::Restored,
        });
        assert!(!node.state.pods[&uid].any_running());
        // The agent dies before the next pod exists.
        node = match times {
            2 => {
                let wanted = Arc::new(of_template(limited()));
                let mut next = reborn(&node, &[&wanted], RecoveredSandbox::Removed);
                next.tell(Event::Node(NodeFact::PolicyChanged(Arc::new(policy(&[])))));
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
fn an_evicted_pod_that_crashed_keeps_its_back_off_when_it_returns() {
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
    node.tell(Event::Pod {
        uid,
        fact: PodFact::Restored,
    });
    node.work();
    let line = node.line();
    assert!(line.starts_with("Running; c: running < -, 0"), "{line}");
    node.end("c", 1);
    assert_eq!(node.wake_at(), Some(node.now + 20_000));
}

#[test]
fn a_pod_that_exceeded_its_own_limit_waits_only_its_own_time() {
    let mut node = node(policy(&[]), &[limited()]);
    look(&mut node, &filled(51, 0, 0));
    evicted(&mut node);
    node.work();
    node.end("c", 137);
    node.work();
    node.wait(9_999);
    assert_eq!(step(&node), Step::WakeAt(Time(node.now + 1)));
    // An early report of its return is ignored.
    node.tell(Event::Pod {
        uid: "a".into(),
        fact: PodFact::Restored,
    });
    assert!(node.line().starts_with("Failed"), "{}", node.line());
    node.wait(1);
    node.work();
    assert!(node.line().starts_with("Running"), "{}", node.line());
}

#[test]
fn a_new_agent_keeps_an_evicted_pod_away_for_the_whole_period() {
    let mut node = hit();
    let since = node.now;
    recover(&mut node, 5_000);
    let mut node = next_agent(&node, RecoveredSandbox::Removed);
    look(&mut node, &of_memory(800 * MI, &[]));
    assert!(node.line().starts_with("Failed"), "{}", node.line());
    // The shortage may have lasted until its start.
    node.now = since + 305_000;
    look(&mut node, &of_memory(800 * MI, &[]));
    node.wait(9_999);
    node.work();
    assert!(node.line().starts_with("Failed"), "{}", node.line());
    node.wait(1);
    look(&mut node, &of_memory(800 * MI, &[]));
    node.work();
    assert!(node.line().starts_with("Running"), "{}", node.line());
}

#[test]
fn a_condition_holds_over_an_agent_restart_for_the_transition_period() {
    let mut node = hit();
    recover(&mut node, 290_000);
    let mut node = next_agent(&node, RecoveredSandbox::Removed);
    let begin = node.now;
    let waiting = Arc::new(named("b", 0));
    node.tell(Event::Node(NodeFact::DesiredChanged(desired(&[&waiting]))));
    while node.now < begin + 300_000 {
        assert!(node.state.pressure.condition(Condition::Memory).yes);
        assert!(node.state.pods[&waiting.uid].hold().is_some());
        look(&mut node, &of_memory(800 * MI, &[]));
        node.wait(LOOK_MS);
    }
    look(&mut node, &of_memory(800 * MI, &[]));
    assert!(!node.state.pressure.condition(Condition::Memory).yes);
    assert!(node.state.pods[&waiting.uid].hold().is_none());
}

#[test]
fn the_minimum_is_reclaimed_over_an_agent_restart() {
    let threshold = Threshold {
        min_reclaim: Some(Amount::Count(50 * MI)),
        ..hard(Signal::Memory, 100 * MI)
    };
    let policy = Policy {
        transition_ms: 0,
        ..policy(&[threshold])
    };
    for (available, met) in [(149, true), (150, false)] {
        let mut node = node(policy.clone(), &[named("a", 2_000_000_000)]);
        look(&mut node, &of_memory(99 * MI, &[]));
        let spec = node.state.pods.values().next().unwrap().spec.clone();
        let mut node = reborn(&node, &[&spec], RecoveredSandbox::Ready { ips: vec![] });
        node.tell(Event::Node(NodeFact::PolicyChanged(Arc::new(
            policy.clone(),
        ))));
        look(&mut node, &of_memory(available * MI, &[]));
        let held = node.state.pressure.condition(Condition::Memory).yes;
        assert_eq!(held, met, "{available}");
    }
}

#[test]
fn a_shortage_of_another_kind_keeps_an_evicted_pod_away() {
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
