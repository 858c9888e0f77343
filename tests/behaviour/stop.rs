//! Pods that clients stop, start and restart in place.

use std::collections::BTreeSet;
use std::sync::Arc;

use coracle::plan::recovered::RecoveredSandbox;
use coracle::plan::stop::Target;
use coracle::plan::{Action, Event, NodeFact, PodFact};
use coracle::spec::{PodSpec, PodUid, RestartPolicy};

use crate::node::{Node, one, ready, reborn};
use crate::pods::{desired, pod};

fn running(pods: &[&Arc<PodSpec>]) -> Node {
    let mut node = Node::new(300_000);
    node.tell(Event::Node(NodeFact::DesiredChanged(desired(pods))));
    node.work();
    node
}

fn targets(specs: &[&Arc<PodSpec>]) -> BTreeSet<Target> {
    specs
        .iter()
        .map(|spec| Target::Pod(spec.key.clone()))
        .collect()
}

fn stop(node: &mut Node, specs: &[&Arc<PodSpec>], grace_ms: Option<u64>) {
    let targets = targets(specs);
    node.tell(Event::Node(NodeFact::StopRequested { targets, grace_ms }));
}

fn start(node: &mut Node, specs: &[&Arc<PodSpec>]) {
    let targets = targets(specs);
    node.tell(Event::Node(NodeFact::StartRequested { targets }));
}

fn restart(node: &mut Node, uid: &str, container: Option<&str>, grace_ms: Option<u64>) {
    node.tell(Event::Pod {
        uid: PodUid::from(uid),
        fact: PodFact::RestartRequested {
            container: container.map(str::to_owned),
            grace_ms,
        },
    });
}

/// `r` for each pod that runs, `s` for one that is stopping, `down` for one that is stopped.
fn line(node: &Node) -> String {
    let pods = node.state.pods.values().map(|pod| {
        let name = &pod.spec.key.name;
        match pod.hold() {
            Some(hold) => format!("{name} {}", hold.reason),
            None if pod.stopping().is_some() => format!("{name} stops"),
            None if pod.any_running() => format!("{name} runs"),
            None => format!("{name} -"),
        }
    });
    pods.collect::<Vec<_>>().join(", ")
}

fn end(node: &mut Node, spec: &PodSpec) {
    node.work();
    node.end_of(&spec.uid, 143);
    node.work();
}

#[test]
fn a_stopped_pod_stays_down_until_it_is_started() {
    let a = Arc::new(pod("a", "a", RestartPolicy::Always, &["c"]));
    let b = Arc::new(pod("b", "b", RestartPolicy::Always, &["c"]));
    let mut node = running(&[&a, &b]);
    stop(&mut node, &[&a], None);
    assert_eq!(line(&node), "a stops, b runs");
    end(&mut node, &a);
    assert_eq!(line(&node), "a Stopped, b runs");
    assert!(
        node.said().iter().any(
            |said| said.starts_with("Normal Stopped Stopped by command; `coracle start pod/a`")
        )
    );
    node.wait(10_000_000);
    node.work();
    assert_eq!(line(&node), "a Stopped, b runs");
    // Nor does an agent restart, a boot, an edit or an uncordoned node start it.
    let mut edited = pod("a2", "a", RestartPolicy::Never, &["c"]);
    edited.grace_ms = 1_000;
    let edited = Arc::new(edited);
    for sandbox in [ready(), RecoveredSandbox::Lost] {
        node = reborn(&node, &[&a, &b], sandbox);
        node.work();
        assert_eq!(line(&node), "a Stopped, b runs");
    }
    node.tell(Event::Node(NodeFact::DesiredChanged(desired(&[
        &edited, &b,
    ]))));
    node.tell(Event::Node(NodeFact::Cordoned));
    node.tell(Event::Node(NodeFact::Uncordoned));
    node.work();
    assert_eq!(line(&node), "a Stopped, b runs");
    start(&mut node, &[&edited]);
    node.work();
    assert!(node.state.stops.is_empty());
    assert_eq!(line(&node), "a runs, b runs");
}

#[test]
fn a_pod_whose_file_is_removed_is_not_stopped_any_more() {
    let a = one(RestartPolicy::Always, &["c"]);
    let mut node = running(&[&a]);
    stop(&mut node, &[&a], None);
    end(&mut node, &a);
    node.tell(Event::Node(NodeFact::DesiredChanged(desired(&[]))));
    assert_eq!((line(&node).as_str(), node.state.stops.len()), ("", 0));
    node.tell(Event::Node(NodeFact::DesiredChanged(desired(&[&a]))));
    node.work();
    assert_eq!(line(&node), "p runs");
}

#[test]
fn an_agent_that_dies_while_a_pod_stops_goes_on_with_that() {
    let a = one(RestartPolicy::Always, &["c"]);
    let mut node = running(&[&a]);
    stop(&mut node, &[&a], Some(7_000));
    let mut node = reborn(&node, &[&a], ready());
    assert_eq!(line(&node), "p stops");
    assert_eq!(
        node.state.pods[&a.uid].stopping().map(|s| s.asked_ms),
        Some(7_000)
    );
    end(&mut node, &a);
    assert_eq!(line(&node), "p Stopped");
}

#[test]
fn a_second_stop_only_leaves_less_time() {
    let a = one(RestartPolicy::Always, &["c"]);
    for (second, expected) in [(None, 20_000), (Some(60_000), 20_000), (Some(1_000), 6_000)] {
        let mut node = running(&[&a]);
        stop(&mut node, &[&a], Some(20_000));
        node.wait(5_000);
        stop(&mut node, &[&a], second);
        let asked = node.state.pods[&a.uid].stopping().map(|s| s.asked_ms);
        assert_eq!(asked, Some(expected), "{second:?}");
    }
}

#[test]
fn what_has_finished_stays_as_it_is() {
    let a = one(RestartPolicy::Never, &["c"]);
    let mut node = running(&[&a]);
    node.end("c", 0);
    node.work();
    stop(&mut node, &[&a], None);
    node.work();
    assert_eq!(line(&node), "p -");
    assert_eq!(
        node.shown().status.unwrap().phase.as_deref(),
        Some("Succeeded")
    );
}

#[test]
fn a_restart_on_request_is_no_crash() {
    for policy in [
        RestartPolicy::Always,
        RestartPolicy::OnFailure,
        RestartPolicy::Never,
    ] {
        for code in [0, 1] {
            let mut node = running(&[&one(policy, &["c"])]);
            for count in 1..6 {
                restart(&mut node, "u1", None, None);
                node.work();
                node.end("c", code);
                node.work();
                let c = &node.state.pods[&PodUid::from("u1")].containers[0];
                assert!(c.run.is_running(), "{policy:?} {code}");
                assert_eq!(
                    (c.restart_count(), c.backoff),
                    (count, None),
                    "{policy:?} {code}"
                );
            }
        }
    }
}

#[test]
fn a_restart_on_request_neither_shortens_nor_prolongs_the_waits_for_crashes() {
    // Crashes: the second restart waits 10 s, the third 20 s; a restart on request comes between them.
    let mut node = running(&[&one(RestartPolicy::Always, &["c"])]);
    node.end("c", 1);
    node.work();
    node.end("c", 1);
    assert_eq!(node.wake_at(), Some(node.now + 10_000));
    node.wait(10_000);
    node.work();
    restart(&mut node, "u1", None, None);
    node.work();
    node.end("c", 143);
    node.work();
    assert!(node.state.pods.values().all(|pod| pod.any_running()));
    node.end("c", 1);
    assert_eq!(node.wake_at(), Some(node.now + 20_000));
    // It also ends a wait.
    restart(&mut node, "u1", None, None);
    node.work();
    assert!(node.state.pods.values().all(|pod| pod.any_running()));
}

#[test]
fn a_restart_on_request_is_carried_out_by_the_next_agent_too() {
    let a = one(RestartPolicy::Never, &["c"]);
    let mut node = running(&[&a]);
    restart(&mut node, "u1", None, Some(3_000));
    let mut node = reborn(&node, &[&a], ready());
    let kill = node.state.pods[&a.uid].containers[0].kill().copied();
    assert_eq!(kill.map(|kill| kill.grace_ms), Some(3_000));
    assert!(
        matches!(node.open[0], Action::Signal { .. }),
        "{:?}",
        node.open
    );
    node.work();
    node.end("c", 143);
    let mut node = reborn(&node, &[&a], ready());
    node.work();
    assert_eq!(node.state.pods[&a.uid].containers[0].restart_count(), 1);
    assert!(node.state.pods[&a.uid].any_running());
    // That it was no crash is known as long as that run is.
    for _ in 0..2 {
        let previous = node.state.pods[&a.uid].containers[0].previous.as_ref();
        assert!(previous.is_some_and(|ended| ended.on_request));
        node = reborn(&node, &[&a], ready());
    }
    node.end("c", 1);
    let ended = node.state.pods[&a.uid].containers[0].run.ended();
    assert!(ended.is_some_and(|ended| !ended.on_request));
}

#[test]
fn one_container_restarts_alone() {
    let mut node = running(&[&one(RestartPolicy::Always, &["c", "d"])]);
    restart(&mut node, "u1", Some("d"), None);
    let pod = &node.state.pods[&PodUid::from("u1")];
    let killed = pod.containers.iter().filter(|c| c.kill().is_some());
    assert_eq!(killed.map(|c| c.name.as_str()).collect::<Vec<_>>(), ["d"]);
    assert!(
        node.said()
            .contains(&"Normal Killing Container d restarts on request".to_owned())
    );
}
