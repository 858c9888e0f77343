//! The status of pods of every kind, as a table: phase, conditions, states, counts (Kubernetes docs: Pod Lifecycle).

use std::sync::Arc;

use coracle::plan::event::*;
use coracle::plan::{Action, Event, PodFact, RunFact};
use coracle::spec::RestartPolicy;

use crate::node::{Node, one};
use crate::pods::{at, exit, of, pod, with_inits};

/// Plays a story, one word for each step, and does what follows from it: `c=7` ends container `c` with that code,
/// `c=oom` for memory, `+10` lets ten seconds pass, `delete` deletes the pod.
pub(crate) fn play(node: &mut Node, story: &str) {
    node.work();
    for step in story.split_whitespace() {
        match step.split_once('=') {
            Some((name, "oom")) => {
                let pod = node.state.pods.values().next().expect("the pod");
                let attempt = pod.container(name).and_then(|c| c.run.attempt());
                let instance = pod.instance(name, attempt.expect("it ran"));
                let mut exit = exit(137, at(node.now), at(node.now));
                (exit.oom_killed, exit.signal) = (true, Some(9));
                node.tell(Event::Run {
                    instance,
                    fact: RunFact::Exited { exit },
                });
            }
            Some((name, code)) => node.end(name, code.parse().expect("a code")),
            None if step == "delete" => {
                let pod = node.state.pods.keys().next().expect("the pod").clone();
                let grace_ms = None;
                node.tell(Event::Pod {
                    uid: pod,
                    fact: PodFact::DeleteRequested { grace_ms },
                });
            }
            None => {
                let seconds: u64 = step[1..].parse().expect("seconds");
                node.wait(seconds * 1000);
            }
        }
        node.work();
    }
}

fn unready(names: &str) -> String {
    let text = format!("False ContainersNotReady: containers with unready status: [{names}]");
    format!("Ready={text}; ContainersReady={text}")
}

fn incomplete(names: &str) -> String {
    format!(
        "Initialized=False ContainersNotInitialized: containers with incomplete status: [{names}]"
    )
}

fn backoff(wait: &str, name: &str) -> String {
    format!(
        "CrashLoopBackOff: back-off {wait} restarting failed container={name} pod=p_default(u1)"
    )
}

const OVER: &str = "PodReadyToStartContainers=False ";
const COMPLETED: &str =
    "Initialized=True PodCompleted; Ready=False PodCompleted; ContainersReady=False PodCompleted";
const FAILED: &str = "Ready=False PodFailed; ContainersReady=False PodFailed";
const DONE: &str = "Completed 0 < -, 0, ready=true started=false";
const WAITS: &str = "PodInitializing < -, 0";

/// The pod's policy, its init containers, its regular ones, the story, and the status at the end.
type Row = (
    RestartPolicy,
    &'static [&'static str],
    &'static [&'static str],
    &'static str,
    String,
);

#[test]
fn every_kind_of_pod_looks_as_on_a_kubelet() {
    use RestartPolicy::{Always, Never, OnFailure};
    let table: Vec<Row> = vec![
        // A container that exits with 0 under Always waits like any other.
        (
            Always,
            &[],
            &["c"],
            "c=0 c=0",
            format!(
                "Running; {}; c: {} < Completed 0, 1",
                unready("c"),
                backoff("10s", "c")
            ),
        ),
        (
            Always,
            &[],
            &["c"],
            "c=0 c=0 +10",
            "Running; c: running < Completed 0, 2".into(),
        ),
        // Only regular containers that have failed for good make a pod fail.
        (
            OnFailure,
            &[],
            &["a", "b"],
            "a=0",
            format!(
                "Running; {}; a: Completed 0 < -, 0; b: running < -, 0",
                unready("a")
            ),
        ),
        (
            OnFailure,
            &[],
            &["a", "b"],
            "a=0 b=1 b=1",
            format!(
                "Running; {}; a: Completed 0 < -, 0; b: {} < Error 1, 1",
                unready("a b"),
                backoff("10s", "b")
            ),
        ),
        (
            OnFailure,
            &[],
            &["a", "b"],
            "a=0 b=1 b=0",
            format!(
                "Succeeded; {OVER}; {COMPLETED}; a: Completed 0 < -, 0; b: Completed 0 < Error 1, 1"
            ),
        ),
        (
            Never,
            &[],
            &["a", "b"],
            "b=2",
            format!(
                "Running; {}; a: running < -, 0; b: Error 2 < -, 0",
                unready("b")
            ),
        ),
        (
            Never,
            &[],
            &["a", "b"],
            "b=2 a=0",
            format!("Failed; {OVER}; {FAILED}; a: Completed 0 < -, 0; b: Error 2 < -, 0"),
        ),
        // Out of memory is a reason of its own, a signal is not.
        (
            Never,
            &[],
            &["c"],
            "c=oom",
            format!("Failed; {OVER}; {FAILED}; c: OOMKilled 137 < -, 0"),
        ),
        (
            Never,
            &[],
            &["c"],
            "c=143",
            format!("Failed; {OVER}; {FAILED}; c: Error 143 < -, 0"),
        ),
        (
            Always,
            &[],
            &["c"],
            "c=oom",
            "Running; c: running < OOMKilled 137, 1".into(),
        ),
        // Messages list containers in the order of the manifest, statuses are sorted.
        (
            Never,
            &[],
            &["b", "a"],
            "a=0",
            format!(
                "Running; {}; a: Completed 0 < -, 0; b: running < -, 0",
                unready("a")
            ),
        ),
        (
            Always,
            &[],
            &["b", "a"],
            "a=1 a=1 b=1 b=1",
            format!(
                "Running; {}; a: {} < Error 1, 1; b: {} < Error 1, 1",
                unready("b a"),
                backoff("10s", "a"),
                backoff("10s", "b")
            ),
        ),
        // Init containers.
        (
            Never,
            &["i1", "i2"],
            &["c"],
            "i1=0 i2=3",
            format!(
                "Failed; {OVER}; {}; {FAILED}; i1: {DONE}; i2: Error 3 < -, 0; c: {WAITS}",
                incomplete("i2")
            ),
        ),
        (
            OnFailure,
            &["i1"],
            &["c"],
            "i1=3",
            format!(
                "Pending; {}; {}; i1: running < Error 3, 1, ready=false started=true; c: {WAITS}",
                incomplete("i1"),
                unready("c")
            ),
        ),
        (
            Always,
            &["i1"],
            &["c"],
            "i1=3 i1=3",
            format!(
                "Pending; {}; {}; i1: {} < Error 3, 1; c: {WAITS}",
                incomplete("i1"),
                unready("c"),
                backoff("10s", "i1")
            ),
        ),
        (
            Always,
            &["i1"],
            &["c"],
            "i1=0 c=5 c=5",
            format!(
                "Running; {}; i1: {DONE}; c: {} < Error 5, 1",
                unready("c"),
                backoff("10s", "c")
            ),
        ),
        (
            OnFailure,
            &["i1"],
            &["c"],
            "i1=0 c=0",
            format!("Succeeded; {OVER}; {COMPLETED}; i1: {DONE}; c: Completed 0 < -, 0"),
        ),
        (
            Never,
            &["i1"],
            &["c"],
            "i1=0 c=4",
            format!("Failed; {OVER}; {FAILED}; i1: {DONE}; c: Error 4 < -, 0"),
        ),
        // Sidecars that crash keep a pod unready, and never make it fail.
        (
            Never,
            &["s1"],
            &["c"],
            "s1=9 s1=9",
            format!(
                "Running; {}; s1: {} < Error 9, 1; c: running < -, 0",
                unready("s1"),
                backoff("10s", "s1")
            ),
        ),
        (
            Never,
            &["s1"],
            &["c"],
            "s1=9 s1=9 c=0",
            format!(
                "Succeeded; {OVER}; {COMPLETED}; s1: Error 9 < Error 9, 1; c: Completed 0 < -, 0"
            ),
        ),
        (
            Never,
            &["s1"],
            &["c"],
            "c=0 s1=143",
            format!("Succeeded; {OVER}; {COMPLETED}; s1: Error 143 < -, 0; c: Completed 0 < -, 0"),
        ),
        (
            Never,
            &["s1"],
            &["c"],
            "c=1 s1=0",
            format!("Failed; {OVER}; {FAILED}; s1: Completed 0 < -, 0; c: Error 1 < -, 0"),
        ),
        // A pod that is going away is as ready as its containers are.
        (
            Always,
            &[],
            &["a", "b"],
            "delete",
            "Running; a: running < -, 0; b: running < -, 0".into(),
        ),
        (
            Always,
            &[],
            &["a", "b"],
            "delete a=143",
            format!(
                "Running; {}; a: Error 143 < -, 0; b: running < -, 0",
                unready("a")
            ),
        ),
    ];
    for (policy, inits, mains, story, expected) in table {
        let spec = with_inits(pod("u1", "p", policy, mains), inits);
        let mut node = Node::with(&Arc::new(spec));
        play(&mut node, story);
        assert_eq!(
            node.line(),
            expected,
            "{policy:?} {inits:?} {mains:?} {story}"
        );
    }
}

/// Answers that the open image, or else the open start, has failed.
fn fail(node: &mut Node, image: Option<ImageFailure>, start: StartFailure) {
    while let Some(action) = node.open.first().cloned() {
        let message = "it is broken".to_owned();
        match (action, image) {
            (Action::EnsureImage { pod, container }, Some(failure)) => {
                node.take();
                return node.tell(Event::Pod {
                    uid: pod,
                    fact: PodFact::ImageFailed {
                        container,
                        volume: None,
                        failure,
                        message,
                    },
                });
            }
            (Action::StartContainer { instance, .. }, None) => {
                node.take();
                let failure = start;
                return node.tell(Event::Run {
                    instance,
                    fact: RunFact::StartFailed { failure, message },
                });
            }
            _ => node.answer_one(),
        }
    }
    panic!("nothing is open");
}

#[test]
fn every_failure_to_start_has_the_kubelets_reason_and_text() {
    let image = |failure| (Some(failure), StartFailure::Run);
    let start = |failure| (None, failure);
    let absent = "Container image \"img:1\" is not present with pull policy of Never";
    let table = [
        (
            image(ImageFailure::NeverPull),
            format!("ErrImageNeverPull: {absent} < -, 0"),
        ),
        (
            image(ImageFailure::Pull),
            "ErrImagePull: it is broken < -, 0".into(),
        ),
        (
            image(ImageFailure::Signature),
            "SignatureValidationFailed: image pull failed for img:1 because the signature validation failed: it is \
             broken < -, 0"
                .into(),
        ),
        (
            image(ImageFailure::Inspect),
            "ImageInspectError: Failed to inspect image \"img:1\": it is broken < -, 0".into(),
        ),
        (
            start(StartFailure::Config),
            "CreateContainerConfigError: it is broken < -, 0".into(),
        ),
        (
            start(StartFailure::Create),
            "CreateContainerError: it is broken < -, 0".into(),
        ),
        (
            start(StartFailure::Run),
            "RunContainerError: it is broken < StartError 128, 0".into(),
        ),
    ];
    for ((image, failure), text) in table {
        let mut node = Node::with(&one(RestartPolicy::Always, &["c"]));
        fail(&mut node, image, failure);
        let line = format!("; {}; c: {text}", unready("c"));
        let ran = image.is_none() && failure == StartFailure::Run;
        let phase = if ran { "Running" } else { "Pending" };
        assert_eq!(node.line(), format!("{phase}{line}"));
    }
    // A failed start that is not tried again is an exit.
    let mut node = Node::with(&one(RestartPolicy::Never, &["c"]));
    fail(&mut node, None, StartFailure::Run);
    assert!(
        node.line().ends_with("c: StartError 128 < -, 0"),
        "{}",
        node.line()
    );
    assert!(node.line().starts_with("Failed"), "{}", node.line());
}

#[test]
fn a_container_that_never_ran_in_a_finished_pod_could_not_be_located() {
    let never_ran = "ContainerStatusUnknown 137 < -, 0";
    // The deadline comes while an image is missing.
    let mut spec = pod("u1", "p", RestartPolicy::Always, &["a", "b"]);
    spec.active_deadline_ms = Some(5_000);
    of(&mut spec, "a").image = "other:1".into();
    let mut node = Node::with(&Arc::new(spec));
    fail(
        &mut node,
        Some(ImageFailure::NeverPull),
        StartFailure::Config,
    );
    node.work();
    node.wait(5_000);
    node.work();
    node.end("b", 143);
    node.work();
    let line = format!("Failed; {OVER}; {FAILED}; a: {never_ran}; b: Error 143 < -, 0");
    assert_eq!(node.line(), line);
    let status = node.shown().status.expect("a status");
    let state = status.container_statuses.expect("statuses")[0]
        .state
        .clone();
    let message = state.and_then(|s| s.terminated).and_then(|t| t.message);
    let text = "The container could not be located when the pod was terminated";
    assert_eq!(message.as_deref(), Some(text));
    // The sandbox is lost, and the pod does not run again.
    let mut spec = pod("u1", "p", RestartPolicy::Never, &["a", "b"]);
    of(&mut spec, "a").image = "other:1".into();
    let mut node = Node::with(&Arc::new(spec));
    fail(
        &mut node,
        Some(ImageFailure::NeverPull),
        StartFailure::Config,
    );
    node.work();
    let uid = node.state.pods.keys().next().expect("the pod").clone();
    node.tell(Event::Pod {
        uid,
        fact: PodFact::SandboxLost,
    });
    node.work();
    let lost = "ContainerStatusUnknown 137 < -, 0";
    let line = format!("Failed; {OVER}; {FAILED}; a: {never_ran}; b: {lost}");
    assert_eq!(node.line(), line);
    // A container whose turn never came shows what it waited for.
    let spec = with_inits(pod("u1", "p", RestartPolicy::Never, &["c"]), &["i1"]);
    let mut node = Node::with(&Arc::new(spec));
    play(&mut node, "i1=1");
    assert!(node.line().ends_with(&format!("c: {WAITS}")));
}
