//! Recovery: what a new agent knows after an agent restart.

use super::*;

#[test]
fn an_agent_restart_changes_nothing_visible() {
    let spec = one(RestartPolicy::Always, &["c"]);
    let mut node = Node::with(&spec);
    node.work();
    node.now += 5_000;
    node.end("c", 1);
    node.work();
    let running = reborn(&node, &[&spec], ready());
    assert_eq!(running.shown().status, {
        let mut old = node.shown().status.unwrap();
        // The time of the sandbox's creation is not recorded; the pod's start is shown instead.
        old.conditions.as_mut().unwrap()[0].last_transition_time = old.start_time.clone();
        Some(old)
    });
    node.end("c", 1);
    node.wait(3_000);
    let waiting = reborn(&node, &[&spec], ready());
    assert_eq!(waiting.line(), node.line());
    assert_eq!(waiting.wake_at(), node.wake_at());
}

#[test]
fn a_finished_pod_does_not_run_again_after_an_agent_restart() {
    let spec = one(RestartPolicy::Never, &["c"]);
    let mut node = Node::with(&spec);
    node.work();
    node.end("c", 1);
    node.work();
    let new = reborn(&node, &[&spec], RecoveredSandbox::Removed);
    assert!(new.open.is_empty());
    assert_eq!(new.line(), node.line());
}

#[test]
fn a_stop_in_progress_keeps_its_deadline_across_an_agent_restart() {
    let spec = one(RestartPolicy::Always, &["c"]);
    let mut node = Node::with(&spec);
    node.work();
    node.tell(Event::Node(NodeFact::DesiredChanged(desired(&[]))));
    node.work();
    let deadline = node.wake_at();
    node.wait(10_000);
    for wanted in [&[][..], &[&spec][..]] {
        let new = reborn(&node, wanted, ready());
        assert!(
            new.open.is_empty(),
            "the stop signal was sent: {:?}",
            new.open
        );
        assert_eq!(new.wake_at(), deadline);
    }
}

#[test]
fn a_pod_whose_file_was_removed_while_the_agent_was_down_gets_its_full_grace_period() {
    let spec = one(RestartPolicy::Always, &["c"]);
    let mut node = Node::with(&spec);
    node.work();
    let mut new = reborn(&node, &[], ready());
    assert!(matches!(
        &new.open[..],
        [Action::Signal {
            signal: StopSignal::Stop,
            ..
        }]
    ));
    new.work();
    assert_eq!(new.wake_at(), Some(new.now + 30_000));
}
