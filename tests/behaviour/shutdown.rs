//! Node shutdown: pods stop group by group, each group with its time, and return if the shutdown is cancelled
//! (KEP-2000; KEP-2712; `coracle help differences`).

use std::sync::Arc;

use coracle::plan::event::{AskedBy, Group};
use coracle::plan::recovered::RecoveredSandbox;
use coracle::plan::shutdown::{group_of, members, next};
use coracle::plan::status::{self, NodeFacts, phase};
use coracle::plan::{Action, Event, NodeFact, PodFact, PodState, Step};
use coracle::spec::{PodSpec, PodUid, RestartPolicy};
use coracle::types::{StopSignal, Time};

use crate::node::{Node, ready, reborn};
use crate::pods::{self, at, desired, pod};

const MESSAGE: &str = "Pod was terminated in response to imminent node shutdown.";

/// `(priority, seconds)`, in any order.
fn groups(table: &[(i32, u64)]) -> Vec<Group> {
    let group = |(priority, seconds): &(i32, u64)| Group {
        priority: *priority,
        seconds: *seconds,
    };
    table.iter().map(group).collect()
}

fn important(name: &str, priority: i32, grace_ms: u64) -> Arc<PodSpec> {
    let mut spec = pod(name, name, RestartPolicy::Always, &["c"]);
    (spec.priority, spec.grace_ms) = (priority, grace_ms);
    Arc::new(spec)
}

fn running(pods: &[&Arc<PodSpec>]) -> Node {
    let mut node = Node::new(300_000);
    node.tell(Event::Node(NodeFact::DesiredChanged(desired(pods))));
    node.work();
    node
}

fn begin(node: &mut Node, table: &[(i32, u64)]) {
    node.tell(Event::Node(NodeFact::ShutdownBegun {
        groups: groups(table),
        asked_by: AskedBy::Command,
    }));
}

/// The pods that are being stopped or have been.
fn down(node: &Node) -> Vec<&str> {
    let pods = node.state.pods.values();
    let down = pods.filter(|p| p.verdict.is_some());
    down.map(|p| p.spec.uid.as_str()).collect()
}

fn state<'n>(node: &'n Node, name: &str) -> &'n PodState {
    &node.state.pods[&PodUid::from(name)]
}

fn ended(node: &Node) -> bool {
    node.state.shutdown.as_ref().unwrap().ended.is_some()
}

/// The pod ends and is removed.
fn end(node: &mut Node, name: &str) {
    let uid = PodUid::from(name);
    node.end_of(&uid, 143);
    node.work();
}

#[test]
fn a_pod_belongs_to_the_highest_group_that_is_not_above_it() {
    let four = groups(&[(0, 60), (1000, 120), (10_000, 180), (100_000, 10)]);
    let table = [
        (-5, 0),
        (0, 0),
        (999, 0),
        (1000, 1),
        (9999, 1),
        (10_000, 2),
        (99_999, 2),
        (100_000, 3),
        (2_000_001_000, 3),
    ];
    for (priority, group) in table {
        let pod = PodState::new(important("p", priority, 0), at(0));
        assert_eq!(group_of(&four, &pod), group, "{priority}");
    }
}

#[test]
fn each_group_stops_when_the_one_before_is_gone_or_its_time_is_over() {
    let (low, mid, top) = (
        important("low", 0, 30_000),
        important("mid", 1000, 30_000),
        important("top", 2_000_000_000, 30_000),
    );
    let mut node = running(&[&low, &mid, &top]);
    let start = node.now;
    // The groups are not in order of priority, and one of them has no pod.
    begin(
        &mut node,
        &[(2_000_000_000, 10), (500, 100), (0, 20), (1000, 40)],
    );
    assert_eq!(down(&node), ["low"]);
    assert_eq!(
        next(&node.state, Time(node.now)),
        Step::WakeAt(Time(start + 20_000))
    );
    node.work();
    node.wait(3_000);
    end(&mut node, "low");
    // The shutdown does not wait for the empty group, and no pod gets its time.
    assert_eq!(down(&node), ["low", "mid"]);
    assert_eq!(
        state(&node, "mid").verdict.as_ref().unwrap().grace_ms,
        30_000
    );
    assert_eq!(
        next(&node.state, Time(node.now)),
        Step::WakeAt(Time(start + 43_000))
    );
    node.work();
    // The pod has 30 s of its own, is killed then, and does not end: the time of its group ends the turn.
    node.wait(39_999);
    node.work();
    assert_eq!(down(&node), ["low", "mid"]);
    node.wait(1);
    assert_eq!(down(&node), ["low", "mid", "top"]);
    assert_eq!(
        state(&node, "top").verdict.as_ref().unwrap().grace_ms,
        10_000
    );
    assert!(!ended(&node));
    node.work();
    end(&mut node, "top");
    assert!(
        ended(&node),
        "the shutdown does not wait for a pod whose time is over"
    );
    assert_eq!(next(&node.state, Time(node.now)), Step::Rest);
    end(&mut node, "mid");
    for name in ["low", "mid", "top"] {
        let shown = status::pod(
            state(&node, name),
            &NodeFacts::default(),
            &node.state.settings,
        );
        let status = shown.status.unwrap();
        assert_eq!(status.phase.as_deref(), Some("Failed"));
        assert_eq!(status.reason.as_deref(), Some("Terminated"));
        assert_eq!(status.message.as_deref(), Some(MESSAGE));
        let condition = &status.conditions.unwrap()[0];
        assert_eq!(condition.type_, "DisruptionTarget");
        assert_eq!(condition.status, "True");
        assert_eq!(condition.reason.as_deref(), Some("TerminationByKubelet"));
        assert_eq!(condition.message.as_deref(), Some(MESSAGE));
    }
    node.wait(10_000_000);
    assert!(node.open.is_empty(), "nothing starts again");
}

#[test]
fn a_pod_has_its_own_grace_period_or_that_of_its_group() {
    // The pod's own grace period, the seconds of the group, and the result.
    let table = [
        (5_000, 20, 5_000),
        (30_000, 20, 20_000),
        (30_000, 10, 10_000),
    ];
    for (own, group, expected) in table {
        let spec = important("p", 0, own);
        let mut node = running(&[&spec]);
        begin(&mut node, &[(0, group)]);
        assert_eq!(
            state(&node, "p").verdict.as_ref().unwrap().grace_ms,
            expected
        );
        node.work();
        assert_eq!(node.wake_at(), Some(node.now + expected));
    }
}

#[test]
fn the_shutdown_stops_a_group_without_time_and_does_not_wait_for_it() {
    let (low, top) = (important("low", 0, 30_000), important("top", 5, 30_000));
    let mut node = running(&[&low, &top]);
    begin(&mut node, &[(0, 0), (5, 0)]);
    assert!(ended(&node));
    assert_eq!(down(&node), ["low", "top"]);
    node.work();
    assert_eq!(node.wake_at(), Some(node.now + 2_000), "the floor");
}

#[test]
fn a_finished_pod_takes_no_part() {
    let mut spec = pod("p", "p", RestartPolicy::Never, &["c"]);
    spec.priority = 0;
    let mut node = running(&[&Arc::new(spec)]);
    end(&mut node, "p");
    assert_eq!(
        members(&node.state, &groups(&[(0, 60)])),
        [Vec::<&PodState>::new()]
    );
    begin(&mut node, &[(0, 60)]);
    assert!(ended(&node));
    assert_eq!(
        phase(state(&node, "p")).as_str(),
        "Failed",
        "its exit code says so"
    );
    assert!(down(&node).is_empty());
    node.tell(Event::Node(NodeFact::ShutdownCancelled));
    assert!(node.open.is_empty(), "and it does not run again");
}

#[test]
fn containers_restart_until_it_is_their_turn() {
    let (low, top) = (important("low", 0, 30_000), important("top", 5, 30_000));
    let mut node = running(&[&low, &top]);
    begin(&mut node, &[(0, 20), (5, 20)]);
    node.work();
    node.end_of(&top.uid, 1);
    node.work();
    assert!(state(&node, "top").any_running());
    end(&mut node, "low");
    node.work();
    end(&mut node, "top");
    assert!(!state(&node, "top").any_running());
    assert!(ended(&node));
}

#[test]
fn a_pod_that_is_stopping_anyway_has_no_more_time_than_the_others() {
    let (gone, late) = (important("gone", 0, 600_000), important("late", 0, 600_000));
    let mut limited = (*late).clone();
    limited.active_deadline_ms = Some(5_000);
    let late = Arc::new(limited);
    let mut node = running(&[&gone, &late]);
    node.tell(Event::Node(NodeFact::DesiredChanged(desired(&[&late]))));
    node.work();
    node.wait(5_000);
    node.work();
    node.wait(1_000);
    begin(&mut node, &[(0, 20)]);
    // The time before the shutdown does not count against them.
    let expected = node.now + 20_000;
    let (gone, late) = (state(&node, "gone"), state(&node, "late"));
    let stopping = gone.stopping().unwrap();
    assert_eq!(stopping.since.time.plus(stopping.asked_ms), Time(expected));
    let verdict = late.verdict.as_ref().unwrap();
    assert_eq!(verdict.since.time.plus(verdict.grace_ms), Time(expected));
    assert_eq!(verdict.cause.as_str(), "DeadlineExceeded");
    node.wait(20_000);
    let kills = |a: &Action| {
        matches!(
            a,
            Action::Signal {
                signal: StopSignal::Kill,
                ..
            }
        )
    };
    assert_eq!(node.open.iter().filter(|a| kills(a)).count(), 2);
}

#[test]
fn no_pod_is_admitted_during_a_shutdown_and_every_pod_after_a_cancelled_one() {
    let (old, new) = (important("old", 0, 30_000), important("new", 0, 30_000));
    let mut node = running(&[&old]);
    begin(&mut node, &[(0, 20)]);
    node.tell(Event::Node(NodeFact::DesiredChanged(desired(&[
        &old, &new,
    ]))));
    node.work();
    let shown = status::pod(
        state(&node, "new"),
        &NodeFacts::default(),
        &node.state.settings,
    );
    let status = shown.status.unwrap();
    assert_eq!(status.phase.as_deref(), Some("Failed"));
    assert_eq!(status.reason.as_deref(), Some("NodeShutdown"));
    let message = "Pod was rejected: Pod was rejected as the node is shutting down.";
    assert_eq!(status.message.as_deref(), Some(message));
    let fields = serde_json::to_value(status).unwrap();
    let fields: Vec<_> = fields.as_object().unwrap().keys().cloned().collect();
    assert_eq!(
        fields,
        ["message", "phase", "qosClass", "reason"],
        "no other fields"
    );
    let event = "Warning NodeShutdown Pod was rejected as the node is shutting down.";
    assert_eq!(node.said().iter().filter(|s| *s == event).count(), 1);
    assert_eq!(
        state(&node, "new").sandbox,
        coracle::plan::state::Sandbox::None
    );
    // A pod that is deleted does not return either.
    node.tell(Event::Pod {
        uid: old.uid.clone(),
        fact: PodFact::DeleteRequested { grace_ms: Some(0) },
    });
    node.work();
    end(&mut node, "old");
    assert_eq!(
        state(&node, "old").verdict.as_ref().unwrap().cause.as_str(),
        "NodeShutdown"
    );
    assert!(ended(&node));
    node.tell(Event::Node(NodeFact::ShutdownCancelled));
    node.work();
    assert!(state(&node, "old").any_running() && state(&node, "new").any_running());
    assert!(down(&node).is_empty());
}

#[test]
fn a_cancelled_shutdown_restarts_what_it_has_stopped_whatever_the_policy() {
    for policy in [
        RestartPolicy::Always,
        RestartPolicy::OnFailure,
        RestartPolicy::Never,
    ] {
        for agent_dies in [false, true] {
            let low = Arc::new(pod("low", "low", policy, &["c"]));
            let mut top = pod("top", "top", policy, &["c"]);
            top.priority = 5;
            let top = Arc::new(top);
            let mut node = running(&[&low, &top]);
            begin(&mut node, &[(0, 20), (5, 20)]);
            node.work();
            end(&mut node, "low");
            node.work();
            // One pod is gone, the other is about to end.
            node.tell(Event::Node(NodeFact::ShutdownCancelled));
            assert_eq!(down(&node), ["top"]);
            node.work();
            if agent_dies {
                node = reborn(&node, &[&low, &top], ready());
                node.work();
            }
            assert!(state(&node, "low").any_running());
            assert_eq!(state(&node, "low").containers[0].restart_count(), 1);
            end(&mut node, "top");
            node.work();
            assert!(state(&node, "top").any_running(), "{policy:?}");
            assert!(down(&node).is_empty());
            end(&mut node, "top");
            node.work();
            let again = policy != RestartPolicy::Never;
            assert_eq!(
                state(&node, "top").any_running(),
                again,
                "the policy decides again: {policy:?}"
            );
        }
    }
}

/// A pod whose containers had all ended differently when it was stopped with the node.
fn stopped() -> (Arc<PodSpec>, Node) {
    let spec = pod("u1", "p", RestartPolicy::OnFailure, &["a", "b"]);
    let spec = Arc::new(pods::with_inits(spec, &["i1", "s2"]));
    let mut node = Node::with(&spec);
    node.work();
    node.end("i1", 0);
    node.work();
    node.end("a", 0);
    begin(&mut node, &[(0, 20)]);
    node.work();
    node.end("b", 143);
    node.work();
    node.end("s2", 143);
    node.work();
    (spec, node)
}

#[test]
fn a_pod_restored_after_a_cancelled_shutdown_looks_new_and_shows_the_earlier_exits() {
    for agent_dies in [false, true] {
        let (spec, mut node) = stopped();
        node.tell(Event::Node(NodeFact::ShutdownCancelled));
        if agent_dies {
            node.open.clear();
            node = reborn(&node, &[&spec], RecoveredSandbox::Lost);
        }
        let unready = "containers with unready status: [s2 a b]";
        let waiting = format!(
            "Initialized=False ContainersNotInitialized: containers with incomplete status: [i1 s2]; \
             Ready=False ContainersNotReady: {unready}; ContainersReady=False ContainersNotReady: {unready}"
        );
        let rest = "s2: PodInitializing < Error 143, 1; a: PodInitializing < Completed 0, 1; \
                    b: PodInitializing < Error 143, 1";
        let line = format!(
            "Pending; PodReadyToStartContainers=False ; {waiting}; i1: PodInitializing < Completed 0, 1; {rest}"
        );
        assert_eq!(node.line(), line);
        while !node.line().contains("i1: running") {
            node.answer_one();
        }
        let running = "i1: running < Completed 0, 1, ready=false started=true";
        assert!(node.line().starts_with("Pending; "), "{}", node.line());
        assert!(node.line().contains(running), "{}", node.line());
        node.end("i1", 0);
        node.work();
        assert_eq!(
            node.line(),
            "Running; i1: Completed 0 < Completed 0, 1, ready=true started=false; \
             s2: running < Error 143, 1; a: running < Completed 0, 1; b: running < Error 143, 1"
        );
    }
}

#[test]
fn a_container_stopped_with_the_node_starts_at_once_and_keeps_its_back_off_series() {
    let spec = Arc::new(pod("p", "p", RestartPolicy::Always, &["c"]));
    let mut node = running(&[&spec]);
    for _ in 0..3 {
        node.end("c", 1);
        node.wait(20_000);
        node.work();
    }
    for agent_dies in [false, true] {
        begin(&mut node, &[(0, 20)]);
        node.work();
        node.end("c", 143);
        node.work();
        node.tell(Event::Node(NodeFact::ShutdownCancelled));
        if agent_dies {
            node.open.clear();
            node = reborn(&node, &[&spec], RecoveredSandbox::Lost);
        }
        node.work();
        assert!(
            node.line().starts_with("Running; c: running"),
            "{}",
            node.line()
        );
    }
    node.end("c", 1);
    assert_eq!(node.wake_at(), Some(node.now + 40_000));
}

#[test]
fn the_next_agent_restores_the_pods_after_a_cancelled_shutdown() {
    for sandbox in [RecoveredSandbox::Removed, RecoveredSandbox::Lost] {
        let spec = Arc::new(pod("p", "p", RestartPolicy::Never, &["a", "b"]));
        let mut node = running(&[&spec]);
        begin(&mut node, &[(0, 20)]);
        node.work();
        for container in ["a", "b"] {
            node.end(container, 143);
        }
        node.work();
        node.state.shutdown = None;
        let mut node = reborn(&node, &[&spec], sandbox);
        node.work();
        assert!(node.line().starts_with("Running"), "{}", node.line());
        // The new sandbox is lost before anything ran in it: the pod still has to run.
        let spec = Arc::new(pod("q", "q", RestartPolicy::Never, &["a"]));
        let mut node = running(&[&spec]);
        begin(&mut node, &[(0, 20)]);
        node.work();
        end(&mut node, "q");
        node.tell(Event::Node(NodeFact::ShutdownCancelled));
        node.open.clear();
        let mut node = reborn(&node, &[&spec], RecoveredSandbox::Lost);
        node.work();
        assert!(node.line().starts_with("Running"), "{}", node.line());
    }
}

#[test]
fn a_new_agent_continues_a_shutdown_where_the_old_one_was() {
    let (low, top) = (important("low", 0, 30_000), important("top", 5, 30_000));
    let mut node = running(&[&low, &top]);
    let start = node.now;
    begin(&mut node, &[(0, 20), (5, 10)]);
    node.work();
    node.wait(4_000);
    let mut node = reborn(&node, &[&low, &top], ready());
    assert_eq!(down(&node), ["low"]);
    assert!(node.open.is_empty(), "the signal was sent");
    assert_eq!(
        next(&node.state, Time(node.now)),
        Step::WakeAt(Time(start + 20_000))
    );
    node.wait(16_000);
    assert_eq!(down(&node), ["low", "top"]);
    // The agent dies before it has recorded that this pod has to stop: that does not end the pod's turn.
    node.state.pods.get_mut(&top.uid).unwrap().verdict = None;
    let mut node = reborn(&node, &[&low, &top], ready());
    assert_eq!(down(&node), ["low", "top"]);
    node.work();
    end(&mut node, "top");
    assert!(ended(&node));
    let node = reborn(&node, &[&low, &top], RecoveredSandbox::Removed);
    assert!(ended(&node) && node.open.is_empty());
    assert_eq!(down(&node), ["low", "top"]);
}

#[test]
fn early_or_repeated_facts_change_nothing() {
    let spec = important("p", 0, 30_000);
    let mut node = running(&[&spec]);
    node.tell(Event::Node(NodeFact::ShutdownTurnOver));
    node.tell(Event::Node(NodeFact::ShutdownCancelled));
    node.tell(Event::Pod {
        uid: spec.uid.clone(),
        fact: PodFact::Restored,
    });
    assert!(node.state.shutdown.is_none() && state(&node, "p").any_running());
    begin(&mut node, &[(0, 20)]);
    let first = node.state.shutdown.clone();
    node.wait(1_000);
    begin(&mut node, &[(0, 600)]);
    node.tell(Event::Node(NodeFact::ShutdownTurnOver));
    node.tell(Event::Pod {
        uid: spec.uid.clone(),
        fact: PodFact::Restored,
    });
    assert_eq!(node.state.shutdown, first);
    assert_eq!(down(&node), ["p"]);
}

#[test]
fn a_pod_still_there_after_one_and_a_half_grace_periods_is_reported_once() {
    const OVERDUE: &str = "Warning ExceededGracePeriod Container runtime did not kill the pod within \
                        specified grace period.";
    // The grace period, and how long the kubelet waits for the pod's end.
    for (grace_ms, wait_ms) in [(30_000, 45_000), (2_000, 10_000), (0, 10_000)] {
        let spec = important("p", 0, grace_ms);
        let mut node = running(&[&spec]);
        begin(&mut node, &[(0, 60)]);
        node.work();
        let begun = node.now;
        let reports = |node: &Node| node.said().iter().filter(|said| *said == OVERDUE).count();
        while node.now < begun + wait_ms - 1 {
            node.wait(begun + wait_ms - 1 - node.now);
            node.work();
        }
        assert_eq!(reports(&node), 0, "{grace_ms}");
        node.wait(1);
        assert_eq!(reports(&node), 1, "{grace_ms}");
        // It is not reported again, nor by the next agent.
        let mut node = reborn(&node, &[&spec], ready());
        node.work();
        node.wait(1_000_000);
        assert_eq!(reports(&node), 0, "{grace_ms}");
    }
    // A pod that ends in time is not reported.
    let mut node = running(&[&important("p", 0, 30_000)]);
    begin(&mut node, &[(0, 60)]);
    end(&mut node, "p");
    node.wait(1_000_000);
    assert!(
        !node
            .said()
            .iter()
            .any(|said| said.contains("ExceededGracePeriod"))
    );
}

#[test]
fn the_pods_a_shutdown_would_stop_are_listed_by_group_and_name() {
    let low = [important("b", 0, 1_000), important("a", -1, 1_000)];
    let high = important("c", 5, 1_000);
    let node = running(&[&low[0], &low[1], &high]);
    let groups = groups(&[(0, 1), (5, 1), (9, 1)]);
    let names = |group: &Vec<&PodState>| {
        let names = group.iter().map(|pod| &*pod.spec.key.name);
        names.collect::<Vec<_>>().join(" ")
    };
    let listed: Vec<_> = members(&node.state, &groups).iter().map(names).collect();
    assert_eq!(listed, ["a b", "c", ""]);
}

#[test]
fn only_a_pod_that_was_stopped_is_restored() {
    let mut node = running(&[&important("p", 0, 1_000)]);
    let known = node.state.pods.clone();
    let pod = PodUid::from("p");
    node.tell(Event::Pod {
        uid: pod,
        fact: PodFact::Restored,
    });
    assert_eq!(node.state.pods, known);
}
