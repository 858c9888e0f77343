//! A pod that was active for too long is stopped, shown as failed, and left alone (Kubernetes docs: Termination of Pods).

use std::sync::Arc;

use coracle::plan::action::Keep;
use coracle::plan::recovered::RecoveredSandbox;
use coracle::plan::{Action, Event, NodeFact, PodFact, Step, verdict};
use coracle::spec::{PodSpec, RestartPolicy};
use coracle::types::{StopSignal, Time};

use crate::node::{Node, reborn};
use crate::pods::{desired, pod, with_inits};

const MESSAGE: &str = "Pod was active on the node longer than the specified deadline";

fn limited(policy: RestartPolicy) -> PodSpec {
    let mut spec = pod("u1", "p", policy, &["main"]);
    spec.active_deadline_ms = Some(60_000);
    spec.grace_ms = 5_000;
    spec
}

fn due(node: &Node) -> Step {
    verdict::next(node.state.pods.values().next().unwrap(), Time(node.now))
}

fn sent(node: &mut Node) -> StopSignal {
    match node.open.first() {
        Some(Action::Signal { signal, .. }) => {
            let signal = *signal;
            node.answer_one();
            signal
        }
        other => panic!("a signal, not {other:?}"),
    }
}

#[test]
fn a_pod_fails_at_its_deadline_whatever_its_policy() {
    for policy in [
        RestartPolicy::Always,
        RestartPolicy::OnFailure,
        RestartPolicy::Never,
    ] {
        let mut node = Node::with(&Arc::new(limited(policy)));
        let begin = node.now;
        node.work();
        assert_eq!(due(&node), Step::WakeAt(Time(begin + 60_000)));
        node.wait(59_999);
        assert!(node.open.is_empty());
        node.wait(1);
        assert_eq!(due(&node), Step::Rest, "once");
        assert_eq!(
            node.said().last().unwrap(),
            "Normal Killing Stopping container main"
        );
        assert!(
            node.said()
                .contains(&format!("Normal DeadlineExceeded {MESSAGE}"))
        );
        let shown = |node: &Node| {
            let status = node.shown().status.unwrap();
            (status.phase.unwrap(), status.reason, status.message)
        };
        // The pod has failed once nothing of it runs.
        assert_eq!(shown(&node), ("Running".to_owned(), None, None));

        assert_eq!(sent(&mut node), StopSignal::Stop);
        node.wait(4_999);
        assert!(node.open.is_empty());
        node.wait(1);
        assert_eq!(sent(&mut node), StopSignal::Kill);
        node.end("main", 137);
        assert!(matches!(
            node.open[..],
            [Action::RemoveSandbox {
                keep: Keep::Everything,
                ..
            }]
        ));
        node.work();
        let over = (
            "Failed".to_owned(),
            Some("DeadlineExceeded".to_owned()),
            Some(MESSAGE.to_owned()),
        );
        assert_eq!(shown(&node), over);
        node.wait(10_000_000);
        assert!(node.open.is_empty(), "it is not started again");
    }
}

#[test]
fn a_later_deadline_runs_the_pod_again() {
    let with_deadline = |seconds: u64| {
        let mut spec = limited(RestartPolicy::Always);
        spec.active_deadline_ms = Some(seconds * 1_000);
        let seconds = i64::try_from(seconds).unwrap();
        let manifest = Arc::make_mut(&mut spec.manifest);
        manifest.change_spec(|spec| spec.active_deadline_seconds = Some(seconds));
        Arc::new(spec)
    };
    let mut node = Node::with(&with_deadline(60));
    node.work();
    node.wait(60_000);
    sent(&mut node);
    node.end("main", 0);
    node.work();
    assert!(node.line().starts_with("Failed"), "{}", node.line());
    node.edit(&with_deadline(120));
    node.work();
    assert_eq!(node.line(), "Running; main: running < -, 0");
}

#[test]
fn nothing_starts_after_the_deadline() {
    // The pod fails while it is initialized, while it waits for its back-off, and while an image is missing.
    let mut node = Node::with(&Arc::new(with_inits(
        limited(RestartPolicy::Always),
        &["i1"],
    )));
    node.work();
    node.wait(60_000);
    assert_eq!(sent(&mut node), StopSignal::Stop);
    node.end("i1", 0);
    node.work();
    assert!(
        node.line().starts_with("Failed; PodReadyToStart"),
        "{}",
        node.line()
    );

    let mut node = Node::with(&Arc::new(limited(RestartPolicy::Always)));
    node.work();
    for _ in 0..3 {
        node.end("main", 1);
        node.work();
    }
    node.wait(60_000);
    assert!(matches!(node.open[..], [Action::RemoveSandbox { .. }]));
    node.work();
    assert!(node.line().starts_with("Failed"), "{}", node.line());
    node.wait(600_000);
    assert!(node.open.is_empty());
}

#[test]
fn the_deadline_does_not_apply_to_a_pod_that_has_finished() {
    let mut node = Node::with(&Arc::new(limited(RestartPolicy::Never)));
    node.work();
    node.end("main", 0);
    node.work();
    assert_eq!(due(&node), Step::Rest);
    let pod = node.state.pods.keys().next().unwrap().clone();
    node.tell(Event::Pod {
        uid: pod,
        fact: PodFact::DeadlineExceeded,
    });
    node.wait(60_000);
    assert!(node.line().starts_with("Succeeded"), "{}", node.line());
}

#[test]
fn an_early_report_of_a_deadline_is_ignored() {
    let mut node = Node::with(&Arc::new(limited(RestartPolicy::Never)));
    node.work();
    let pod = node.state.pods.keys().next().unwrap().clone();
    node.tell(Event::Pod {
        uid: pod,
        fact: PodFact::DeadlineExceeded,
    });
    assert!(node.line().starts_with("Running"), "{}", node.line());
}

#[test]
fn a_new_agent_keeps_the_deadline_and_the_verdict() {
    let spec = Arc::new(limited(RestartPolicy::Always));
    let mut node = Node::with(&spec);
    let begin = node.now;
    node.work();
    node.wait(20_000);
    let mut node = reborn(&node, &[&spec], RecoveredSandbox::Ready { ips: vec![] });
    assert_eq!(due(&node), Step::WakeAt(Time(begin + 60_000)));
    node.wait(40_000);
    assert_eq!(sent(&mut node), StopSignal::Stop);
    node.wait(2_000);
    let mut node = reborn(&node, &[&spec], RecoveredSandbox::Ready { ips: vec![] });
    assert!(node.line().starts_with("Running"), "{}", node.line());
    node.wait(3_000);
    assert_eq!(sent(&mut node), StopSignal::Kill);
}

#[test]
fn an_edited_deadline_applies_at_once() {
    let old = limited(RestartPolicy::Always);
    let mut node = Node::with(&Arc::new(old.clone()));
    let begin = node.now;
    node.work();
    let mut manifest = (*old.manifest).clone();
    let labels = [("now".to_owned(), "longer".to_owned())].into();
    manifest.change_metadata(|metadata| metadata.labels = Some(labels));
    let new = Arc::new(PodSpec {
        active_deadline_ms: Some(90_000),
        manifest: Arc::new(manifest),
        ..old
    });
    node.tell(Event::Node(NodeFact::DesiredChanged(desired(&[&new]))));
    assert_eq!(due(&node), Step::WakeAt(Time(begin + 90_000)));
}
