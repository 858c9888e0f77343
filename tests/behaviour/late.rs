//! Facts that come late, early, twice or about other runs change nothing. Actions that fail are reported.

use std::sync::Arc;

use coracle::plan::event::*;
use coracle::plan::{Action, Event, NodeFact, PodFact, PodState, RunFact};
use coracle::spec::{Reason, RestartPolicy};

use crate::make_sandbox;
use crate::node::{Node, one};
use crate::pods::{at, desired, exit, pod};

#[test]
fn the_exit_of_a_run_that_never_began_changes_nothing() {
    let mut node = Node::with(&one(RestartPolicy::Always, &["a", "b"]));
    loop {
        if let [Action::StartContainer { instance, .. }, ..] = &node.open[..] {
            assert_eq!(instance.container, "a");
            break;
        }
        node.answer_one();
    }
    let before = node.line();
    let pod = node.state.pods.values().next().unwrap();
    for (name, attempt) in [("b", 0), ("a", 1)] {
        let instance = pod.instance(name, attempt);
        let exit = exit(1, at(node.now), at(node.now));
        let mut state = node.state.clone();
        let notices = state.apply(
            &Event::Run {
                instance,
                fact: RunFact::Exited { exit },
            },
            at(node.now),
        );
        assert!(notices.is_empty(), "{notices:?}");
        assert_eq!(state.pods, node.state.pods, "{name} {attempt}");
    }
    assert_eq!(node.line(), before);
}

/// Answers what is open until this container is being started; returns that run.
fn starting(node: &mut Node, name: &str) -> Instance {
    loop {
        if let Some(Action::StartContainer { instance, .. }) = node.open.first()
            && instance.container == name
        {
            return instance.clone();
        }
        node.answer_one();
    }
}

#[test]
fn an_exit_heard_before_the_start_counts_once_and_a_later_start_failure_is_ignored() {
    let mut node = Node::with(&one(RestartPolicy::Always, &["c"]));
    let instance = starting(&mut node, "c");
    let ended = |code| Event::Run {
        instance: instance.clone(),
        fact: RunFact::Exited {
            exit: exit(code, at(node.now), at(node.now)),
        },
    };
    let (first, second) = (ended(1), ended(2));
    node.tell(first);
    let known = node.state.pods.clone();
    assert!(node.line().contains("c: Error 1 < -, 0"), "{}", node.line());
    node.tell(second);
    assert_eq!(node.state.pods, known);
    let failed = Event::Run {
        instance: instance.clone(),
        fact: RunFact::StartFailed {
            failure: StartFailure::Run,
            message: "no such file".into(),
        },
    };
    node.take();
    node.tell(failed);
    assert!(node.line().contains("Error 1"), "{}", node.line());
    assert!(!node.said().iter().any(|text| text.contains("no such file")));
}

#[test]
fn reports_about_another_containers_image_are_ignored() {
    let mut spec = pod("u1", "p", RestartPolicy::Always, &["a", "b"]);
    spec.containers[1].image = "other:1".into();
    let mut node = Node::with(&Arc::new(spec));
    make_sandbox(&mut node);
    let Some(Action::EnsureImage { pod, container }) = node.open.first().cloned() else {
        panic!("an image is ensured: {:?}", node.open);
    };
    assert_eq!(container, "a");
    let known = node.state.pods.clone();
    let of_b = || "b".to_owned();
    node.tell(Event::Pod {
        uid: pod.clone(),
        fact: PodFact::ImageReady {
            container: of_b(),
            image_id: "sha256:cd".into(),
            volumes: Default::default(),
            pulled: Default::default(),
        },
    });
    node.tell(Event::Pod {
        uid: pod,
        fact: PodFact::ImageFailed {
            container: of_b(),
            volume: None,
            failure: ImageFailure::Pull,
            message: "no".into(),
        },
    });
    assert_eq!(node.state.pods, known);
}

#[test]
fn a_lost_sandbox_is_reported_only_if_the_pod_goes_on() {
    for (policy, goes, reports) in [
        (RestartPolicy::Always, false, 1),
        (RestartPolicy::Always, true, 0),
        (RestartPolicy::Never, false, 0),
    ] {
        let spec = one(policy, &["c"]);
        let mut node = Node::with(&spec);
        node.work();
        if goes {
            node.tell(Event::Node(NodeFact::DesiredChanged(desired(&[]))));
        }
        let pod = spec.uid.clone();
        node.tell(Event::Pod {
            uid: pod,
            fact: PodFact::SandboxLost,
        });
        let changed = node
            .notices
            .iter()
            .filter(|n| n.reason == Reason::SandboxChanged);
        assert_eq!(changed.count(), reports, "{policy:?} {goes}");
    }
}

#[test]
fn a_container_that_ends_in_a_stopping_pod_reports_no_back_off() {
    let mut node = Node::with(&one(RestartPolicy::Always, &["c"]));
    node.work();
    node.end("c", 1);
    node.work();
    node.tell(Event::Node(NodeFact::DesiredChanged(desired(&[]))));
    node.end("c", 1);
    assert!(!node.notices.iter().any(|n| n.reason.as_str() == "BackOff"));
}

#[test]
fn an_edit_of_a_stopping_pod_changes_nothing() {
    let mut spec = pod("u1", "p", RestartPolicy::Always, &["c"]);
    let mut node = Node::with(&Arc::new(spec.clone()));
    node.work();
    let pod = spec.uid.clone();
    let grace_ms = None;
    node.tell(Event::Pod {
        uid: pod,
        fact: PodFact::DeleteRequested { grace_ms },
    });
    let labels = [("app".to_owned(), "other".to_owned())].into();
    let manifest = Arc::make_mut(&mut spec.manifest);
    manifest.change_metadata(|metadata| metadata.labels = Some(labels));
    node.tell(Event::Node(NodeFact::DesiredChanged(desired(&[
        &Arc::new(spec),
    ]))));
    let shown = node.shown().metadata.labels.unwrap();
    assert_eq!(shown["app"], "p");
}

#[test]
fn a_signal_or_sandbox_removal_that_fails_is_reported() {
    let spec = one(RestartPolicy::Always, &["c"]);
    let mut node = Node::with(&spec);
    node.work();
    node.tell(Event::Node(NodeFact::DesiredChanged(desired(&[]))));
    let Action::Signal { instance, .. } = node.take() else {
        panic!("a signal");
    };
    let error = "no way".to_owned();
    node.tell(Event::Run {
        instance,
        fact: RunFact::SignalFailed { error },
    });
    let text = "Warning FailedKillPod error killing pod: no way".to_owned();
    assert_eq!(node.said().last(), Some(&text));
    node.notices.clear();
    node.wait(1_000);
    node.work();
    node.end("c", 0);
    let Action::RemoveSandbox { pod, .. } = node.take() else {
        panic!("the sandbox goes");
    };
    let error = "no way".to_owned();
    node.tell(Event::Pod {
        uid: pod,
        fact: PodFact::SandboxRemoveFailed { error },
    });
    assert_eq!(node.said(), [text]);
}

#[test]
fn new_addresses_of_the_node_count_as_a_network_change() {
    let mut node = Node::with(&one(RestartPolicy::Always, &["c"]));
    let before = node.state.network_changes;
    node.tell(Event::Node(NodeFact::AddressesChanged));
    assert!(node.state.network_changes > before);
}

#[test]
fn after_a_failed_start_the_image_is_ensured_again() {
    let mut node = Node::with(&one(RestartPolicy::Always, &["c"]));
    let instance = starting(&mut node, "c");
    node.take();
    node.tell(Event::Run {
        instance,
        fact: RunFact::StartFailed {
            failure: StartFailure::Run,
            message: "no such file".into(),
        },
    });
    assert!(
        matches!(&node.open[..], [Action::EnsureImage { .. }]),
        "{:?}",
        node.open
    );
}

#[test]
fn an_event_says_which_pod_it_is_about() {
    let spec = one(RestartPolicy::Always, &["c"]);
    let uid = || spec.uid.clone();
    let instance = PodState::new(Arc::clone(&spec), at(0)).instance("c", 0);
    let exit = exit(0, at(0), at(0));
    for event in [
        Event::Pod {
            uid: uid(),
            fact: PodFact::TimePassed,
        },
        Event::Run {
            instance,
            fact: RunFact::Exited { exit },
        },
        Event::action_started(Action::CreateSandbox { pod: uid() }),
    ] {
        assert_eq!(event.pod(), Some(&spec.uid), "{event:?}");
    }
    assert_eq!(Event::Node(NodeFact::ImagesChanged(None)).pod(), None);
}
