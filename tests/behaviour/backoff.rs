//! When a crashing container starts again: the kubelet's figures, a pod's own waits, and waits that a client ends with
//! `retry`.

use std::sync::Arc;

use coracle::plan::event::*;
use coracle::plan::retry::{Wait, waits};
use coracle::plan::{Action, Event, NodeFact, PodFact, RunFact, Settings};
use coracle::spec::{PodSpec, RestartBackoff, RestartPolicy, WorkloadKey, WorkloadKind};
use coracle::types::Time;

use crate::node::{Node, one, ready, reborn};
use crate::pods::{desired, pod};

/// Start times in seconds of a container whose every run lasts `run_ms`.
fn starts(settings: &Settings, own: RestartBackoff, run_ms: u64, count: usize) -> Vec<u64> {
    let mut spec = pod("u1", "p", RestartPolicy::Always, &["c"]);
    spec.restart_backoff = own;
    let mut node = Node::set(settings.clone());
    let begin = node.now;
    node.tell(Event::Node(NodeFact::DesiredChanged(desired(&[
        &Arc::new(spec),
    ]))));
    let mut starts = vec![];
    while starts.len() < count {
        node.work();
        starts.push((node.now - begin) / 1000);
        node.now += run_ms;
        node.end("c", 7);
        if node.open.is_empty() {
            let wake = node.wake_at().unwrap();
            node.wait(wake - node.now);
        }
    }
    starts
}

fn longest(max_restart_period_ms: u64) -> Settings {
    Settings {
        max_restart_period_ms,
        ..Settings::default()
    }
}

#[test]
fn a_crashing_container_starts_when_a_kubelet_would_start_it() {
    let reduced_300 = Settings {
        max_restart_period_ms: 300_000,
        ..Settings::reduced()
    };
    let default = Settings::default;
    let table: [(Settings, u64, &[u64]); 7] = [
        (default(), 0, &[0, 0, 10, 30, 70, 150, 310, 610, 910]),
        (longest(30_000), 0, &[0, 0, 10, 30, 60, 90, 120]),
        (longest(2_000), 0, &[0, 0, 2, 4, 6, 8]),
        (default(), 5_000, &[0, 5, 20, 45, 90, 175, 340, 645]),
        (default(), 601_000, &[0, 601, 1202, 1803]),
        (
            reduced_300,
            0,
            &[0, 0, 1, 3, 7, 15, 31, 63, 127, 255, 511, 811],
        ),
        (
            Settings::reduced(),
            0,
            &[0, 0, 1, 3, 7, 15, 31, 63, 123, 183, 243],
        ),
    ];
    for (settings, run_ms, expected) in table {
        let own = RestartBackoff::default();
        let starts = starts(&settings, own, run_ms, expected.len());
        assert_eq!(starts, expected, "{settings:?} {run_ms}");
    }
}

#[test]
fn a_pods_own_back_off_settings_override_the_nodes() {
    let own = |initial_ms, max_ms| RestartBackoff { initial_ms, max_ms };
    let table: [(Settings, RestartBackoff, &[u64]); 5] = [
        (
            Settings::default(),
            own(Some(2_000), Some(5_000)),
            &[0, 0, 2, 6, 11, 16],
        ),
        (
            Settings::default(),
            own(None, Some(3_000)),
            &[0, 0, 3, 6, 9],
        ),
        (
            Settings::reduced(),
            own(Some(40_000), None),
            &[0, 0, 40, 100, 160],
        ),
        (longest(5_000), own(Some(20_000), None), &[0, 0, 20, 40, 60]),
        (
            longest(5_000),
            own(None, Some(900_000)),
            &[0, 0, 10, 30, 70, 150, 310, 630, 1270, 2170],
        ),
    ];
    for (settings, own, expected) in table {
        let starts = starts(&settings, own, 0, expected.len());
        assert_eq!(starts, expected, "{settings:?} {own:?}");
    }
}

/// Runs `c` for 0 s each time until it waits for `wait_ms`.
fn crash_until(node: &mut Node, wait_ms: u64) {
    loop {
        node.work();
        node.end("c", 1);
        if let Some(wake) = node.wake_at() {
            if wake - node.now == wait_ms {
                return;
            }
            node.wait(wake - node.now);
        }
    }
}

fn uid(node: &Node) -> coracle::spec::PodUid {
    node.state.pods.keys().next().unwrap().clone()
}

/// What the pod waits for now. At the moment of the next try it waits for nothing.
fn waiting(node: &Node) -> Vec<Wait> {
    let pod = node.state.pods.values().next().unwrap();
    let at = |now| waits(pod, None, &node.state.settings, Time(now));
    let found = at(node.now);
    if let Some(wake) = node.wake_at() {
        assert_eq!((at(wake - 1), at(wake)), (found.clone(), vec![]));
    }
    found
}

fn retry(node: &mut Node, container: Option<&str>) {
    node.tell(Event::Pod {
        uid: uid(node),
        fact: PodFact::RetryRequested {
            container: container.map(str::to_owned),
        },
    });
}

#[test]
fn a_retry_ends_the_wait_and_keeps_the_back_off_series() {
    let spec = one(RestartPolicy::Always, &["c"]);
    let mut node = Node::with(&spec);
    assert_eq!(waiting(&node), []);
    crash_until(&mut node, 20_000);
    assert_eq!(waiting(&node), [Wait::Crash("c".into())]);
    retry(&mut node, Some("other"));
    assert!(
        node.open.is_empty(),
        "the retry is for a different container"
    );
    // The request survives an agent that dies before the start.
    node.state.apply(
        &Event::Pod {
            uid: uid(&node),
            fact: PodFact::RetryRequested { container: None },
        },
        crate::pods::at(node.now),
    );
    let mut node = reborn(&node, &[&spec], ready());
    assert!(matches!(node.open[..], [Action::EnsureImage { .. }]));
    node.work();
    assert_eq!(node.line(), "Running; c: running < Error 1, 3");
    node.end("c", 1);
    assert_eq!(node.wake_at(), Some(node.now + 40_000), "twice as long");
    assert_eq!(
        waiting(&node),
        [Wait::Crash("c".into())],
        "a retry counts once"
    );
}

#[test]
fn a_retry_ends_waits_for_images_sandboxes_and_starts() {
    let mut node = Node::with(&one(RestartPolicy::Always, &["c"]));
    let pod = uid(&node);
    node.take();
    let failure = SandboxFailure::Sandbox("no".into());
    node.tell(Event::Pod {
        uid: pod.clone(),
        fact: PodFact::SandboxFailed { failure },
    });
    assert_eq!(waiting(&node), [Wait::Sandbox]);
    retry(&mut node, Some("c"));
    assert!(node.open.is_empty(), "no container waits yet");
    retry(&mut node, None);
    node.answer_one();
    node.take();
    node.tell(Event::Pod {
        uid: pod.clone(),
        fact: PodFact::ImageFailed {
            container: "c".into(),
            volume: None,
            failure: ImageFailure::Pull,
            message: "no".into(),
        },
    });
    assert_eq!(waiting(&node), [Wait::Image("c".into())]);
    retry(&mut node, Some("c"));
    node.answer_one();
    let Action::StartContainer { instance, .. } = node.take() else {
        panic!("the image is there");
    };
    node.tell(Event::Run {
        instance,
        fact: RunFact::StartFailed {
            failure: StartFailure::Config,
            message: "no".into(),
        },
    });
    assert_eq!(waiting(&node), [Wait::Create("c".into())]);
    retry(&mut node, None);
    node.work();
    assert_eq!(node.line(), "Running; c: running < -, 0");
    node.tell(Event::Node(NodeFact::DesiredChanged(Default::default())));
    node.answer_one();
    node.end("c", 0);
    node.take();
    let error = "busy".into();
    node.tell(Event::Pod {
        uid: pod,
        fact: PodFact::SandboxRemoveFailed { error },
    });
    assert_eq!(waiting(&node), [Wait::Removal]);
    retry(&mut node, Some("c"));
    assert!(node.open.is_empty(), "it is the pod that waits");
    retry(&mut node, None);
    node.work();
    assert!(node.state.pods.is_empty());
}

#[test]
fn an_exit_reported_after_its_back_off_is_over_causes_no_event() {
    for (late_ms, said) in [(9_999, 1), (10_000, 0)] {
        let mut node = Node::with(&one(RestartPolicy::Always, &["c"]));
        node.work();
        node.end("c", 1);
        node.work();
        let pod = node.state.pods.values().next().unwrap();
        let instance = pod.instance("c", 1);
        let exit = crate::pods::exit(1, crate::pods::at(node.now), crate::pods::at(node.now));
        node.now += late_ms;
        node.tell(Event::Run {
            instance,
            fact: RunFact::Exited { exit },
        });
        let waits = node
            .notices
            .iter()
            .filter(|n| n.reason.as_str() == "BackOff");
        assert_eq!(waits.count(), said, "{late_ms}");
    }
}

#[test]
fn a_refused_retry_says_why_in_a_sentence() {
    let idle = |node: &Node, container| {
        let pod = node.state.pods.values().next().unwrap();
        coracle::plan::retry::idle(pod, container)
    };
    let nothing = "pod p waits for nothing that can be retried";
    let mut node = Node::with(&one(RestartPolicy::OnFailure, &["a", "b"]));
    assert_eq!(idle(&node, None), nothing);
    node.work();
    assert_eq!(idle(&node, None), "all containers of pod p are running");
    assert_eq!(idle(&node, Some("b")), "container b of pod p is running");
    node.end("a", 0);
    assert_eq!(idle(&node, None), nothing);
    assert_eq!(idle(&node, Some("a")), nothing);
    assert_eq!(idle(&node, Some("b")), "container b of pod p is running");
    node.end("b", 0);
    let finished = "pod p has finished; delete it to run it again";
    assert_eq!(idle(&node, None), finished);
    node.tell(Event::Node(NodeFact::DesiredChanged(Default::default())));
    let stopped = "pod p is being stopped and waits for nothing";
    assert_eq!(idle(&node, Some("b")), stopped);
}

#[test]
fn a_finished_pod_of_a_job_is_not_to_be_deleted_for_another_run() {
    let spec = pod("u1", "j-0", RestartPolicy::Never, &["c"]);
    let mut node = Node::with(&Arc::new(spec));
    node.work();
    node.end("c", 0);
    let mut pod = node.state.pods.values().next().unwrap().clone();
    let mut spec = PodSpec::clone(&pod.spec);
    spec.workload = Some(WorkloadKey {
        kind: WorkloadKind::Job,
        namespace: "default".into(),
        name: "j".into(),
    });
    pod.spec = Arc::new(spec);
    let said = "pod j-0 has finished; its Job runs again under another name, or after its file has changed";
    assert_eq!(coracle::plan::retry::idle(&pod, None), said);
}

#[test]
fn a_run_of_more_than_ten_minutes_resets_the_waits_for_creation() {
    let fail = |node: &mut Node| {
        let Action::StartContainer { instance, .. } = node.take() else {
            panic!("the image is there");
        };
        node.tell(Event::Run {
            instance,
            fact: RunFact::StartFailed {
                failure: StartFailure::Create,
                message: "no".into(),
            },
        });
        node.wake_at().map(|at| at - node.now)
    };
    for (run_ms, wait) in [(600_000, 40_000), (600_001, 10_000)] {
        let mut node = Node::with(&one(RestartPolicy::Always, &["c"]));
        node.answer_one();
        node.answer_one();
        assert_eq!(fail(&mut node), Some(10_000));
        node.wait(10_000);
        node.answer_one();
        assert_eq!(fail(&mut node), Some(20_000));
        node.wait(20_000);
        node.work();
        node.wait(run_ms);
        node.end("c", 1);
        node.answer_one();
        assert_eq!(fail(&mut node), Some(wait), "{run_ms}");
    }
}

#[test]
fn a_run_of_more_than_ten_minutes_resets_the_back_off() {
    for (run_ms, wait) in [(600_000, Some(40_000)), (600_001, None)] {
        let mut node = Node::with(&one(RestartPolicy::Always, &["c"]));
        crash_until(&mut node, 20_000);
        node.wait(20_000);
        node.work();
        node.wait(run_ms);
        node.end("c", 1);
        let wakes = node.wake_at().map(|at| at - node.now);
        assert_eq!(wakes, wait, "{run_ms}");
        if wait.is_none() {
            node.work();
            node.end("c", 1);
            assert_eq!(node.wake_at(), Some(node.now + 10_000));
        }
    }
}
