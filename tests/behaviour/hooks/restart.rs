//! Agent restarts during a hook: whether it is repeated or joined, and what its clock says.

use super::*;

#[test]
fn a_new_agent_repeats_an_unfinished_hook_with_the_whole_grace_period() {
    let (_, mut node) = in_hook(run());
    node.wait(10_000);
    let mut new = reborn(&node, &[], ready());
    assert_eq!(new.begin(), pre_stop("c"), "once more");
    assert_eq!(
        new.wake_at(),
        Some(new.now + 30_000),
        "its grace period begins again"
    );
    new.wait(1_000);
    new.end_hook(HookKind::PreStop, "c", None);
    // A hook that is done is not repeated, even if no stop signal was sent yet.
    let mut third = reborn(&new, &[], ready());
    assert_eq!(third.hooks(), []);
    assert_eq!(third.next_signal().1, StopSignal::Stop);
    assert_eq!(third.next_signal().0, 29_000);
    let killing = |n: &Node| n.said().iter().filter(|s| s.contains("Killing")).count();
    assert_eq!(
        (killing(&new), killing(&third)),
        (0, 0),
        "the kill is reported once"
    );
}

/// The next agent, with a shim that holds the hook of container `c`.
fn holding(node: &Node, kind: HookKind, held: &HeldHook) -> Node {
    reborn_as(node, &[], ready(), |recovered| {
        let c = recovered.containers.get_mut("c").unwrap();
        c.held_hooks.insert(kind, held.clone());
    })
}

#[test]
fn a_new_agent_joins_a_hook_that_the_shim_holds_and_its_clock_continues() {
    let (_, mut node) = in_hook(run());
    node.wait(10_000);
    let mut new = holding(&node, HookKind::PreStop, &HeldHook::Running);
    assert_eq!(new.begin(), pre_stop("c"), "to join it");
    assert_eq!(failures(&new), [""; 0]);
    assert_eq!(
        new.wake_at(),
        Some(new.now + 20_000),
        "counted from the hook's beginning"
    );
    new.wait(2_000);
    new.end_hook(HookKind::PreStop, "c", None);
    assert_eq!(new.next_signal().1, StopSignal::Stop);
    assert_eq!(new.next_signal().0, 18_000);

    // The hook hangs, and no agent was there when its grace period was over.
    node.now += 100_000;
    let mut late = holding(&node, HookKind::PreStop, &HeldHook::Running);
    assert_eq!(late.begin(), []);
    assert_eq!(late.next_signal(), (0, StopSignal::Stop, "c".to_owned()));
    let text = "preStop hook not completed in grace period of 30s";
    assert!(failures(&late)[0].ends_with(text), "{:?}", failures(&late));
}

#[test]
fn a_hook_that_finished_while_no_agent_ran_counts_from_when_it_finished() {
    let (_, mut node) = in_hook(run());
    let begun = node.now;
    node.wait(10_000);
    node.now += 100_000;
    for failure in [None, Some("it said no".to_owned())] {
        let outcome = HookOutcome {
            failure: failure.clone(),
            fell_back: None,
            at: Some(Time(begun + 12_000)),
        };
        let mut new = holding(&node, HookKind::PreStop, &HeldHook::Done(outcome));
        assert_eq!(new.begin(), []);
        let text =
            failure.map(|why| format!("Warning FailedPreStopHook PreStopHook failed: {why}"));
        assert_eq!(failures(&new), Vec::from_iter(text));
        assert_eq!(new.next_signal(), (0, StopSignal::Stop, "c".to_owned()));
        assert_eq!(
            new.next_signal().0,
            18_000,
            "what the hook left of the grace period"
        );
    }
}

#[test]
fn a_post_start_hook_that_failed_while_no_agent_ran_ends_its_container() {
    let spec = Arc::new(with(run(), None));
    let mut node = Node::with(&spec);
    node.work();
    node.begin();
    let outcome = HookOutcome {
        failure: Some("it said no".to_owned()),
        ..HookOutcome::default()
    };
    let held = HeldHook::Done(outcome);
    let mut new = reborn_as(&node, &[&spec], ready(), |recovered| {
        let c = recovered.containers.get_mut("c").unwrap();
        c.held_hooks.insert(HookKind::PostStart, held.clone());
    });
    assert_eq!(new.begin(), []);
    assert_eq!(new.next_signal().1, StopSignal::Stop);
}

#[test]
fn agents_that_keep_dying_delay_a_kill_three_times_at_most() {
    for reason in ["pod", "liveness"] {
        let mut spec = with(None, run());
        spec.grace_ms = 8_000;
        if reason == "liveness" {
            of(&mut spec, "c").probes.liveness = Some(probing(1_000, 1));
        }
        let spec = Arc::new(spec);
        for deaths in 0..6 {
            let wanted: &[_] = if reason == "pod" { &[] } else { &[&spec] };
            let mut node = Node::with(&spec);
            node.work();
            match reason {
                "pod" => node.goes(),
                _ => node.fail(),
            }
            let begin = node.now;
            for _ in 0..deaths {
                node.begin();
                node.wait(5_000);
                node = reborn(&node, wanted, ready());
                assert_eq!(reborn(&node, wanted, ready()).open, node.open);
            }
            node.begin();
            let (_, signal, _) = node.next_signal();
            assert_eq!(signal, StopSignal::Stop);
            let most = (5_000 * deaths.min(3) + 8_000).max(5_000 * deaths);
            assert_eq!(node.now - begin, most, "{reason}: {deaths}");
            let (ms, signal, _) = node.next_signal();
            assert_eq!(
                (ms, signal),
                (2_000, StopSignal::Kill),
                "{reason}: {deaths}"
            );
        }
    }
}

#[test]
fn a_hook_gets_the_whole_grace_period_even_if_no_agent_was_there_for_longer() {
    for begun in [false, true] {
        let spec = Arc::new(with(None, run()));
        let mut node = Node::with(&spec);
        node.work();
        node.goes();
        if begun {
            node.begin();
        }
        node.now += 100_000;
        let mut node = reborn(&node, &[], ready());
        assert_eq!(node.begin(), pre_stop("c"), "{begun}");
        node.wait(10_900);
        node.end_hook(HookKind::PreStop, "c", None);
        assert_eq!(node.next_signal().1, StopSignal::Stop, "{begun}");
        assert_eq!(node.next_signal().0, 20_000, "{begun}");
    }
}

#[test]
fn sidecars_wait_for_a_container_that_repeats_its_hook_and_a_sleep_is_not_repeated() {
    let mut spec = with_inits(pod("u1", "p", RestartPolicy::Always, &["c", "d"]), &["s1"]);
    of(&mut spec, "c").lifecycle.pre_stop = run();
    of(&mut spec, "d").lifecycle.pre_stop = Some(Hook::Sleep { ms: 15_000 });
    let spec = Arc::new(spec);
    let mut node = Node::with(&spec);
    node.work();
    node.goes();
    node.begin();
    node.wait(10_000);
    let mut node = reborn(&node, &[], ready());
    assert_eq!(node.begin(), pre_stop("c"));
    let (ms, signal, name) = node.next_signal();
    assert_eq!((ms, signal, &*name), (5_000, StopSignal::Stop, "d"));
    node.end("d", 0);
    node.wait(20_000);
    node.end_hook(HookKind::PreStop, "c", None);
    let (ms, signal, name) = node.next_signal();
    assert_eq!((ms, signal, &*name), (0, StopSignal::Stop, "c"));
    assert!(node.open.is_empty(), "s1 waits for it");
    node.end("c", 0);
    assert_eq!(node.next_signal().2, "s1");
}

#[test]
fn a_shorter_grace_period_and_the_end_of_a_shutdowns_turn_bound_a_repeated_hook() {
    let repeated = |grace_ms| {
        let mut spec = with(None, run());
        spec.grace_ms = grace_ms;
        let spec = Arc::new(spec);
        let mut node = Node::with(&spec);
        node.work();
        (spec, node)
    };
    let (spec, mut node) = repeated(30_000);
    node.goes();
    node.begin();
    node.wait(5_000);
    let mut node = reborn(&node, &[], ready());
    node.begin();
    node.tell(Event::Pod {
        uid: spec.uid.clone(),
        fact: PodFact::DeleteRequested {
            grace_ms: Some(12_000),
        },
    });
    assert_eq!(
        node.next_signal().0,
        7_000,
        "12 s from the hook's beginning"
    );

    // The pod's grace period, the seconds of its group, when the agent dies, and the time left for the repeated hook.
    for (grace_ms, seconds, dies, left) in [
        (8_000, 20, 5_000, 8_000),
        (8_000, 20, 7_900, 8_000),
        (15_000, 20, 10_000, 10_000),
        (30_000, 20, 19_000, 1_000),
        (30_000, 20, 25_000, 0),
        (30_000, 0, 500, 0),
    ] {
        let (spec, mut node) = repeated(grace_ms);
        let groups = vec![
            Group {
                priority: 0,
                seconds,
            },
            Group {
                priority: 9,
                seconds: 60,
            },
        ];
        let asked_by = AskedBy::Command;
        node.tell(Event::Node(NodeFact::ShutdownBegun { groups, asked_by }));
        node.begin();
        node.now += dies;
        let mut node = reborn(&node, &[&spec], ready());
        assert_eq!(node.begin().len(), usize::from(left > 0), "{dies}");
        let (ms, signal, _) = node.next_signal();
        assert_eq!((ms, signal), (left, StopSignal::Stop), "{grace_ms} {dies}");
    }
}
