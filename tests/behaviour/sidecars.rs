//! Sidecars come first, stay, and go last. Status lines come from a recording of a real kubelet.

use std::sync::Arc;

use coracle::plan::event::ProbeOutcome;
use coracle::plan::recovered::RecoveredSandbox;
use coracle::plan::{Action, Event, NodeFact, PodFact};
use coracle::spec::{Hook, PodSpec, RestartPolicy};
use coracle::types::StopSignal;

use crate::node::{Node, ready, reborn};
use crate::pods::{desired, of, pod, probing, set_image, with_inits};

fn spec(policy: RestartPolicy, inits: &[&str]) -> Arc<PodSpec> {
    Arc::new(with_inits(pod("u1", "p", policy, &["main"]), inits))
}

/// The signals sent since the last call.
fn signals(node: &mut Node) -> Vec<String> {
    let mut sent = vec![];
    while let Some(Action::Signal {
        instance, signal, ..
    }) = node.open.first().cloned()
    {
        let word = match signal {
            StopSignal::Stop => "TERM",
            StopSignal::Kill => "KILL",
        };
        sent.push(format!("{word} {}", instance.container));
        node.answer_one();
    }
    sent
}

fn unready(names: &str) -> String {
    let text = format!("False ContainersNotReady: containers with unready status: [{names}]");
    format!("Ready={text}; ContainersReady={text}")
}

#[test]
fn a_pod_with_a_sidecar_completes_as_on_a_kubelet() {
    let mut node = Node::with(&spec(RestartPolicy::Never, &["side", "i2"]));
    let waits = "PodInitializing < -, 0";
    let initialized = |names: &str| {
        format!(
            "Initialized=False ContainersNotInitialized: containers with incomplete status: [{names}]"
        )
    };
    assert_eq!(
        node.line(),
        format!(
            "Pending; PodReadyToStartContainers=False ; {}; {}; side: {waits}; i2: {waits}; main: {waits}",
            initialized("side i2"),
            unready("side main")
        )
    );
    node.work();
    assert_eq!(
        node.line(),
        format!(
            "Pending; {}; {}; side: running < -, 0; i2: running < -, 0, ready=false started=true; main: {waits}",
            initialized("i2"),
            unready("main")
        )
    );
    node.end("i2", 0);
    node.work();
    let done = "i2: Completed 0 < -, 0, ready=true started=false";
    assert_eq!(
        node.line(),
        format!("Running; side: running < -, 0; {done}; main: running < -, 0")
    );
    node.end("main", 0);
    assert_eq!(
        node.line(),
        format!(
            "Running; {}; side: running < -, 0; {done}; main: Completed 0 < -, 0",
            unready("main")
        )
    );
    assert_eq!(signals(&mut node), ["TERM side"]);
    node.end("side", 0);
    node.work();
    assert_eq!(
        node.line(),
        format!(
            "Succeeded; PodReadyToStartContainers=False ; Initialized=True PodCompleted; Ready=False PodCompleted; \
             ContainersReady=False PodCompleted; side: Completed 0 < -, 0; {done}; main: Completed 0 < -, 0"
        )
    );
    let new = reborn(
        &node,
        &[&spec(RestartPolicy::Never, &["side", "i2"])],
        RecoveredSandbox::Removed,
    );
    assert_eq!((new.open.len(), new.line()), (0, node.line()));
}

#[test]
fn a_sidecar_is_restarted_whatever_the_policy_and_exit_code() {
    for (policy, code) in [
        (RestartPolicy::Never, 0),
        (RestartPolicy::OnFailure, 0),
        (RestartPolicy::Never, 1),
    ] {
        let mut node = Node::with(&spec(policy, &["s1"]));
        node.work();
        node.end("s1", code);
        node.work();
        let sidecar = node
            .state
            .pods
            .values()
            .next()
            .unwrap()
            .container("s1")
            .unwrap();
        assert_eq!(
            (sidecar.run.is_running(), sidecar.run.attempt()),
            (true, Some(1))
        );
        node.end("s1", code);
        assert_eq!(
            node.wake_at(),
            Some(node.now + 10_000),
            "the same back-off as for any container"
        );
    }
}

#[test]
fn a_sidecar_that_ends_while_a_later_init_container_runs_is_restarted_beside_it() {
    let mut node = Node::with(&spec(RestartPolicy::Always, &["s1", "i2"]));
    node.work();
    node.end("s1", 1);
    node.work();
    let text = node.line();
    assert!(
        text.contains("s1: running < Error 1, 1; i2: running < -, 0"),
        "{text}"
    );
}

#[test]
fn sidecars_stop_last_and_in_reverse_order() {
    let mut node = Node::with(&spec(RestartPolicy::Always, &["s1", "s2"]));
    node.work();
    let start = node.now;
    node.tell(Event::Node(NodeFact::DesiredChanged(desired(&[]))));
    assert_eq!(signals(&mut node), ["TERM main"]);
    node.wait(10_000);
    assert!(node.open.is_empty());
    node.now = start + 25_000;
    node.end("main", 0);
    assert_eq!(signals(&mut node), ["TERM s2"], "the last sidecar first");
    assert_eq!(
        node.wake_at(),
        Some(start + 30_000),
        "with what is left of the grace period"
    );
    node.wait(1_000);
    node.end("s2", 0);
    assert_eq!(signals(&mut node), ["TERM s1"]);
    node.now = start + 30_000;
    node.decide();
    assert_eq!(signals(&mut node), ["KILL s1"]);
    node.end("s1", 137);
    assert!(matches!(node.open[..], [Action::RemoveSandbox { .. }]));
}

#[test]
fn at_the_end_of_the_grace_period_all_containers_are_signalled_together() {
    let mut node = Node::with(&spec(RestartPolicy::Always, &["s1", "s2"]));
    node.work();
    node.tell(Event::Node(NodeFact::DesiredChanged(desired(&[]))));
    assert_eq!(signals(&mut node), ["TERM main"]);
    node.wait(30_000);
    let mut sent = signals(&mut node);
    sent.sort();
    assert_eq!(sent, ["KILL main", "TERM s1", "TERM s2"]);
    node.wait(2_000);
    let mut sent = signals(&mut node);
    sent.sort();
    assert_eq!(sent, ["KILL s1", "KILL s2"], "2 s, like the kubelet's");
}

#[test]
fn without_a_grace_period_sidecars_wait_for_a_second() {
    let spec = spec(RestartPolicy::Always, &["s1"]);
    let mut node = Node::with(&spec);
    node.work();
    node.tell(Event::Pod {
        uid: spec.uid.clone(),
        fact: PodFact::DeleteRequested { grace_ms: Some(0) },
    });
    assert_eq!(signals(&mut node), ["TERM main"]);
    node.wait(1_000);
    assert_eq!(signals(&mut node), ["TERM s1"]);
    node.wait(1_000);
    assert_eq!(signals(&mut node), ["KILL main"]);
    node.wait(1_000);
    assert_eq!(signals(&mut node), ["KILL s1"]);
}

#[test]
fn a_new_agent_continues_to_stop_sidecars() {
    let spec = spec(RestartPolicy::Never, &["s1", "s2"]);
    let mut node = Node::with(&spec);
    node.work();
    node.end("main", 0);
    assert_eq!(signals(&mut node), ["TERM s2"]);
    let deadline = node.wake_at();
    node.wait(5_000);
    let mut new = reborn(&node, &[&spec], ready());
    assert_eq!((new.open.len(), new.wake_at()), (0, deadline));
    new.end("s2", 0);
    assert_eq!(signals(&mut new), ["TERM s1"]);
    new.end("s1", 0);
    new.work();
    assert!(new.line().starts_with("Succeeded"), "{}", new.line());
}

#[test]
fn sidecars_of_a_pod_whose_init_container_failed_are_stopped() {
    let mut node = Node::with(&spec(RestartPolicy::Never, &["s1", "i2"]));
    node.work();
    node.end("i2", 1);
    assert!(node.line().starts_with("Pending"), "{}", node.line());
    assert_eq!(signals(&mut node), ["TERM s1"]);
    node.end("s1", 0);
    assert!(node.line().starts_with("Failed"), "{}", node.line());
}

#[test]
fn a_sidecar_killed_late_for_a_probe_still_has_its_whole_grace_period() {
    let mut spec = with_inits(pod("u1", "p", RestartPolicy::Always, &["c"]), &["s1"]);
    of(&mut spec, "s1").probes.liveness = Some(probing(1_000, 1));
    let mut node = Node::with(&Arc::new(spec));
    node.work();
    // The pod's only action is the one for the image.
    node.probe(&ProbeOutcome::Failure("early".into()));
    node.wait(1_000);
    node.end("c", 1);
    assert!(matches!(&node.open[..], [Action::EnsureImage { .. }]));
    let image = node.take();
    node.probe(&ProbeOutcome::Failure("no".into()));
    node.wait(5_500);
    node.open.push(image);
    node.answer_one();
    assert_eq!(signals(&mut node), ["TERM s1"]);
    node.work();
    let wake = node.wake_at().map(|at| at - node.now);
    assert_eq!(wake, Some(30_000));
}

#[test]
fn only_a_pod_that_still_ends_its_sidecars_records_since_when() {
    let finishing = |node: &Node| {
        let pod = node.state.pods.values().next().unwrap();
        pod.finishing().map(|at| at.0)
    };
    let mut node = Node::with(&spec(RestartPolicy::Never, &["s1"]));
    node.work();
    node.end("main", 0);
    let begun = Some(node.now);
    assert_eq!(finishing(&node), begun);
    node.wait(1_000);
    assert_eq!(finishing(&node), begun);
    node.tell(Event::Node(NodeFact::DesiredChanged(Default::default())));
    assert_eq!(finishing(&node), None, "the whole pod goes");
    let mut node = Node::with(&spec(RestartPolicy::Never, &["s1"]));
    node.work();
    node.end("main", 0);
    node.answer_one();
    node.end("s1", 0);
    assert_eq!(finishing(&node), None, "no sidecar is left");
}

#[test]
fn a_sidecar_that_is_being_killed_waits_for_the_containers_it_serves_once_the_pod_stops() {
    let mut spec = with_inits(pod("u1", "p", RestartPolicy::Always, &["c"]), &["s1"]);
    for (name, ms) in [("s1", 5_000), ("c", 20_000)] {
        of(&mut spec, name).lifecycle.pre_stop = Some(Hook::Sleep { ms });
    }
    let mut node = Node::with(&Arc::new(spec.clone()));
    node.work();
    set_image(&mut spec, "s1", "img:2");
    node.tell(Event::Node(NodeFact::DesiredChanged(desired(&[
        &Arc::new(spec),
    ]))));
    node.work();
    assert!(
        node.said()
            .iter()
            .any(|text| text.contains("s1 definition changed"))
    );
    node.tell(Event::Node(NodeFact::DesiredChanged(Default::default())));
    node.wait(6_000);
    assert_eq!(
        signals(&mut node),
        [""; 0],
        "it serves `c`, whose hook still runs"
    );
    node.wait(14_000);
    assert_eq!(signals(&mut node), ["TERM c"]);
    node.end("c", 0);
    assert_eq!(signals(&mut node), ["TERM s1"]);
}

#[test]
fn a_sidecar_that_restarts_does_not_make_its_pod_pending_again() {
    let mut spec = with_inits(pod("u1", "p", RestartPolicy::Always, &["c"]), &["s1"]);
    of(&mut spec, "s1").probes.startup = Some(probing(1_000, 3));
    let mut node = Node::with(&Arc::new(spec));
    node.work();
    node.probe(&ProbeOutcome::Success);
    node.work();
    assert!(node.line().starts_with("Running"), "{}", node.line());
    node.end("s1", 1);
    node.work();
    let line = node.line();
    assert!(
        line.contains("s1: running < Error 1, 1, ready=false started=false"),
        "{line}"
    );
    assert!(line.starts_with("Running"), "{line}");
}
