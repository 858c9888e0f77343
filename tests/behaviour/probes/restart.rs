//! What an agent restart leaves of the probes: outcomes so far, readiness, and the record on disk.

use super::*;

#[test]
fn a_new_agent_knows_that_a_run_ended_because_of_a_kill() {
    let spec = with(liveness(probing(1_000, 1)));
    let mut node = Node::with(&spec);
    node.work();
    for restarts in 1..=2 {
        node.fail();
        node.work();
        node = reborn(&node, &[&spec], ready());
        node.work();
        node.end("c", 0);
        node.work();
        let line = format!("Running; c: running < Completed 0, {restarts}");
        assert_eq!(node.line(), line, "the first two restarts do not wait");
    }
}

#[test]
fn readiness_and_startup_survive_an_agent_restart_and_are_probed_again_at_once() {
    let mut probes = readiness(probing(60_000, 1));
    probes.startup = Some(probing(60_000, 1));
    let spec = with(probes);
    let mut node = Node::with(&spec);
    node.work();
    let mut new = reborn(&node, &[&spec], ready());
    assert_eq!(new.line(), node.line());
    assert_eq!(new.probe(&ProbeOutcome::Success), [ProbeKind::Startup]);
    assert_eq!(new.probe(&ProbeOutcome::Success), [ProbeKind::Readiness]);
    assert_eq!(new.line(), "Running; c: running < -, 0");
    let mut node = reborn(&new, &[&spec], ready());
    for _ in 0..2 {
        assert_eq!(node.line(), "Running; c: running < -, 0");
        assert_eq!(
            node.probe(&failure()),
            [ProbeKind::Readiness],
            "the first probe of this agent, which is too early to count"
        );
        node.wait(60_000);
    }
    node.c_is("ready=false started=true");
}

/// A new agent, at the time of its next probe.
fn taken_over(node: &Node, spec: &Arc<PodSpec>) -> Node {
    let mut new = reborn(node, &[spec], ready());
    assert_eq!(new.line(), node.line());
    assert!(new.open.is_empty());
    let due = new.due();
    assert_eq!(due.orders, [], "no faster than the period");
    assert_eq!(due.wake_at, Some(Time(new.now + 2_000)));
    new.wait(2_000);
    new
}

#[test]
fn agents_that_restart_between_probes_continue_to_count() {
    let mut startup = liveness(probing(2_000, 3));
    startup.startup = Some(probing(2_000, 3));
    for (probes, kind) in [
        (liveness(probing(2_000, 3)), "liveness"),
        (startup, "startup"),
    ] {
        let spec = with(probes);
        let mut node = Node::with(&spec);
        node.work();
        node.probe(&failure());
        node.wait(2_000);
        for _ in 0..2 {
            assert_eq!(node.probe(&failure()).len(), 1);
            node = taken_over(&node, &spec);
        }
        node.probe(&failure());
        let text = format!("Container c failed {kind} probe, will be restarted");
        assert_eq!(node.signal(), (StopSignal::Stop, text));
    }
}

#[test]
fn agents_that_restart_between_probes_do_not_change_readiness() {
    let mut probe = probing(2_000, 3);
    probe.success_threshold = 2;
    let spec = with(readiness(probe));
    let mut node = Node::with(&spec);
    node.work();
    for (outcome, times, then) in [
        (ProbeOutcome::Success, 2, "Running; c: running < -, 0"),
        (failure(), 3, "ready=false"),
        (ProbeOutcome::Success, 2, "Running; c: running < -, 0"),
    ] {
        for n in 0..times {
            let before = node.line();
            node.probe(&outcome);
            if n + 1 < times {
                assert_eq!(node.line(), before, "{n} of {times}");
                node = taken_over(&node, &spec);
            }
        }
        node.c_is(then);
        node.wait(2_000);
    }
}

#[test]
fn the_record_of_probes_changes_only_when_outcomes_change() {
    let mut probes = liveness(probing(2_000, 3));
    probes.readiness = Some(probing(2_000, 3));
    let spec = with(probes);
    let mut node = Node::with(&spec);
    node.work();
    let known = |node: &Node| node.state.pods[&spec.uid].containers[0].health();
    node.probe(&ProbeOutcome::Success);
    let well = known(&node);
    for _ in 0..5 {
        node.wait(2_000);
        node.probe(&ProbeOutcome::Success);
        assert_eq!(known(&node), well);
    }
    node.wait(2_000);
    node.probe(&failure());
    assert_ne!(known(&node), well);
    node.wait(2_000);
    node.probe(&ProbeOutcome::Success);
    assert_eq!(known(&node), well, "one failure is forgotten");
    let never = with(readiness(probing(2_000, 3)));
    let mut node = Node::with(&never);
    node.work();
    node.probe(&failure());
    let unready = known(&node);
    for _ in 0..5 {
        node.wait(2_000);
        node.probe(&failure());
        assert_eq!(known(&node), unready);
    }
}
