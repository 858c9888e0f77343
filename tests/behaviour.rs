//! The planner does, and shows, what the kubelet does and shows. Tables from the kubelet's formulas and from
//! recordings of a real kubelet (crash loop, mixed exits, missing image, removal).

#[path = "behaviour/admission.rs"]
mod admission;
#[path = "behaviour/backoff.rs"]
mod backoff;
#[path = "behaviour/conditions.rs"]
mod conditions;
#[path = "behaviour/configuration.rs"]
mod configuration;
#[path = "behaviour/cordon.rs"]
mod cordon;
#[path = "behaviour/deadline.rs"]
mod deadline;
#[path = "behaviour/debug.rs"]
mod debug;
#[path = "behaviour/devices.rs"]
mod devices;
#[path = "behaviour/edited_images.rs"]
mod edited_images;
#[path = "behaviour/edits.rs"]
mod edits;
#[path = "behaviour/fields.rs"]
mod fields;
#[path = "behaviour/garbage.rs"]
mod garbage;
#[path = "behaviour/hooks.rs"]
mod hooks;
#[path = "behaviour/images.rs"]
mod images;
#[path = "behaviour/incarnations.rs"]
mod incarnations;
#[path = "behaviour/init.rs"]
mod init;
#[path = "behaviour/late.rs"]
mod late;
#[path = "behaviour/node.rs"]
mod node;
#[path = "behaviour/order.rs"]
mod order;
mod pods;
#[path = "behaviour/pressure.rs"]
mod pressure;
#[path = "behaviour/preview.rs"]
mod preview;
#[path = "behaviour/probes.rs"]
mod probes;
#[path = "behaviour/recovered.rs"]
mod recovered;
#[path = "behaviour/resize.rs"]
mod resize;
#[path = "behaviour/room.rs"]
mod room;
#[path = "behaviour/rules.rs"]
mod rules;
#[path = "behaviour/sandbox.rs"]
mod sandbox;
#[path = "behaviour/shown.rs"]
mod shown;
#[path = "behaviour/shutdown.rs"]
mod shutdown;
#[path = "behaviour/sidecars.rs"]
mod sidecars;
#[path = "behaviour/statuses.rs"]
mod statuses;
#[path = "behaviour/stop.rs"]
mod stop;

use std::sync::Arc;

use coracle::plan::action::Keep;
use coracle::plan::event::*;
use coracle::plan::recovered::*;
use coracle::plan::run::{Course, Ended, Past, Run, Running};
use coracle::plan::status::{self, NodeFacts};
use coracle::plan::{Action, Event, NodeFact, PodFact, RunFact, Settings};
use coracle::spec::{PodSpec, RestartPolicy};
use coracle::types::StopSignal;
use node::{Node, one, ready, reborn, word};
use pods::{at, desired, exit, pod};

#[test]
fn phases_follow_the_kubelets_table() {
    use RestartPolicy::{Always, Never, OnFailure};
    // `r` runs, `w` never started, a digit: ended with that code and (back-off) not started again.
    let table = [
        (Always, "0", "Running"),
        (Always, "w", "Pending"),
        (Always, "1", "Running"),
        (OnFailure, "00", "Succeeded"),
        (OnFailure, "01", "Running"),
        (Never, "01", "Failed"),
        (Never, "00", "Succeeded"),
        (Never, "r1", "Running"),
        (Always, "rw", "Pending"),
        (Never, "1w", "Pending"),
        (OnFailure, "r0", "Running"),
    ];
    for (policy, containers, expected) in table {
        let names: Vec<String> = (0..containers.len()).map(|i| format!("c{i}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let mut state = coracle::plan::PodState::new(one(policy, &names), at(0));
        for (c, letter) in state.containers.iter_mut().zip(containers.chars()) {
            c.run = match letter {
                'w' => continue,
                'r' => Run::Running(Box::new(Running {
                    up: true,
                    ..Running::new(0, String::new(), 1, at(0))
                })),
                code => Run::Ended(Box::new(Past {
                    ended: Ended {
                        attempt: 0,
                        image_id: String::new(),
                        exit: exit(
                            i32::try_from(code.to_digit(10).unwrap()).unwrap(),
                            at(0),
                            at(0),
                        ),
                        on_request: false,
                    },
                    course: Course::default(),
                })),
            };
        }
        assert_eq!(
            status::phase(&state).as_str(),
            expected,
            "{policy:?} {containers}"
        );
    }
}

const UNREADY: &str = "Ready=False ContainersNotReady: containers with unready status: [c]; \
    ContainersReady=False ContainersNotReady: containers with unready status: [c]";

#[test]
fn a_pod_that_just_runs_looks_as_on_a_kubelet() {
    let mut node = Node::with(&one(RestartPolicy::Always, &["c"]));
    let creating = "c: ContainerCreating < -, 0";
    let first = format!("Pending; PodReadyToStartContainers=False ; {UNREADY}; {creating}");
    assert_eq!(node.line(), first);
    let Action::CreateSandbox { pod } = node.take() else {
        panic!("the sandbox comes first");
    };
    node.now += 1_000;
    node.tell(Event::Pod {
        uid: pod,
        fact: PodFact::SandboxCreated {
            ips: vec!["10.88.0.94".parse().unwrap()],
            next_attempts: Default::default(),
            warnings: vec![],
        },
    });
    assert_eq!(node.line(), format!("Pending; {UNREADY}; {creating}"));
    node.now += 2_000;
    node.work();
    assert_eq!(node.line(), "Running; c: running < -, 0");
    let shown = serde_json::to_value(node.shown()).unwrap();
    let status = &shown["status"];
    let times: Vec<&str> = status["conditions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|c| c["lastTransitionTime"].as_str().unwrap())
        .collect();
    let (sandbox, created, ready) = (
        "2026-01-01T00:16:41Z",
        "2026-01-01T00:16:40Z",
        "2026-01-01T00:16:43Z",
    );
    assert_eq!(times, [sandbox, created, ready, ready, created]);
    assert_eq!(status["startTime"], created);
    assert_eq!(status["podIP"], "10.88.0.94");
    assert_eq!(status["hostIP"], "192.168.1.2");
    assert_eq!(status["qosClass"], "BestEffort");
    assert_eq!(status["containerStatuses"][0]["imageID"], "sha256:ab");
    let id = status["containerStatuses"][0]["containerID"]
        .as_str()
        .unwrap();
    assert_eq!(id.len(), "coracle://".len() + 64);
    assert_eq!(
        node.said(),
        [
            "Normal Pulled Container image \"img:1\" already present on machine and can be accessed by the pod",
            "Normal Created Created container: c",
            "Normal Started Started container c",
        ]
    );
}

#[test]
fn a_crash_loop_looks_as_on_a_kubelet() {
    let mut node = Node::with(&one(RestartPolicy::Always, &["c"]));
    node.work();
    node.end("c", 7);
    assert_eq!(
        node.line(),
        format!("Running; {UNREADY}; c: Error 7 < -, 0")
    );
    node.work();
    assert_eq!(node.line(), "Running; c: running < Error 7, 1");
    node.end("c", 7);
    let text = "c: CrashLoopBackOff: back-off 10s restarting failed container=c pod=p_default(u1)";
    assert_eq!(
        node.line(),
        format!("Running; {UNREADY}; {text} < Error 7, 1")
    );
    let event = "Warning BackOff Back-off restarting failed container c in pod p_default(u1)";
    assert!(node.said().contains(&event.to_owned()));
    assert!(node.open.is_empty());
    node.wait(9_999);
    assert!(node.open.is_empty());
    node.wait(1);
    node.work();
    assert_eq!(node.line(), "Running; c: running < Error 7, 2");
}

#[test]
fn a_new_longest_back_off_applies_to_the_wait_in_progress() {
    let mut node = Node::with(&one(RestartPolicy::Always, &["c"]));
    let longest = |max_restart_period_ms| {
        Event::Node(NodeFact::SettingsChanged(Settings {
            max_restart_period_ms,
            ..Settings::default()
        }))
    };
    node.work();
    for _ in 0..3 {
        node.end("c", 7);
        node.wait(300_000);
        node.work();
    }
    node.end("c", 7);
    let begin = node.now;
    assert_eq!(node.wake_at(), Some(begin + 40_000), "{}", node.line());
    node.tell(longest(15_000));
    assert_eq!(node.wake_at(), Some(begin + 15_000));
    assert!(node.line().contains("back-off 15s"), "{}", node.line());
    // The recorded back-off is not shortened: with the old limit it is the same again.
    node.tell(longest(300_000));
    assert_eq!(node.wake_at(), Some(begin + 40_000));
    node.wait(20_000);
    assert!(node.open.is_empty());
    node.tell(longest(15_000));
    node.work();
    assert!(node.line().contains("c: running"), "{}", node.line());
}

#[test]
fn a_pod_of_mixed_exits_fails_for_good_as_on_a_kubelet() {
    let spec = one(RestartPolicy::Never, &["a", "b"]);
    let mut node = Node::with(&spec);
    node.work();
    node.end("a", 0);
    let unready = UNREADY.replace("[c]", "[a]");
    let line = format!("Running; {unready}; a: Completed 0 < -, 0; b: running < -, 0");
    assert_eq!(node.line(), line);
    node.end("b", 1);
    let keep = Keep::Everything;
    let pod = spec.uid.clone();
    assert_eq!(node.open, [Action::RemoveSandbox { pod, keep }]);
    node.work();
    let failed = "Failed; PodReadyToStartContainers=False ; Ready=False PodFailed; ContainersReady=False PodFailed; \
        a: Completed 0 < -, 0; b: Error 1 < -, 0";
    assert_eq!(node.line(), failed);
    assert_eq!(node.wake_at(), None);
    assert_eq!(
        node.shown().status.unwrap().pod_ip.as_deref(),
        Some("10.88.0.94")
    );
}

#[test]
fn the_conditions_of_a_succeeded_pod_say_completed() {
    let mut node = Node::with(&one(RestartPolicy::OnFailure, &["c"]));
    node.work();
    node.end("c", 0);
    node.work();
    let line = "Succeeded; PodReadyToStartContainers=False ; Initialized=True PodCompleted; Ready=False PodCompleted; \
        ContainersReady=False PodCompleted; c: Completed 0 < -, 0";
    assert_eq!(node.line(), line);
}

pub(crate) fn make_sandbox(node: &mut Node) {
    let Action::CreateSandbox { pod } = node.take() else {
        panic!("the sandbox comes first");
    };
    node.tell(Event::Pod {
        uid: pod,
        fact: PodFact::SandboxCreated {
            ips: vec![],
            next_attempts: Default::default(),
            warnings: vec![],
        },
    });
}

#[test]
fn a_program_that_cannot_be_executed_counts_as_a_run_and_a_bad_config_does_not() {
    let mut node = Node::with(&one(RestartPolicy::Always, &["c"]));
    let fail = |node: &mut Node, failure| loop {
        match node.take() {
            Action::StartContainer { instance, .. } => {
                let message = "no such file".to_owned();
                break node.tell(Event::Run {
                    instance,
                    fact: RunFact::StartFailed { failure, message },
                });
            }
            other => {
                node.open.push(other);
                let before = node.open.remove(0);
                match before {
                    Action::CreateSandbox { .. } => {
                        node.open.push(before);
                        make_sandbox(node);
                    }
                    Action::EnsureImage { pod, container } => node.tell(Event::Pod {
                        uid: pod,
                        fact: PodFact::ImageReady {
                            container,
                            image_id: "sha256:ab".into(),
                            volumes: Default::default(),
                            pulled: Default::default(),
                        },
                    }),
                    other => panic!("{other:?}"),
                }
            }
        }
    };
    fail(&mut node, StartFailure::Config);
    let line = node.line();
    assert!(
        line.ends_with("c: CreateContainerConfigError: no such file < -, 0"),
        "{line}"
    );
    assert_eq!(node.wake_at(), Some(node.now + 10_000));
    node.wait(10_000);
    fail(&mut node, StartFailure::Run);
    let line = node.line();
    assert!(
        line.ends_with("c: RunContainerError: no such file < StartError 128, 0"),
        "{line}"
    );
    fail(&mut node, StartFailure::Run);
    let line = node.line();
    assert!(line.contains("CrashLoopBackOff: back-off 10s"), "{line}");
    assert!(line.ends_with("< StartError 128, 1"), "{line}");
    assert!(
        node.said()
            .contains(&"Warning Failed Error: no such file".to_owned())
    );
}

#[test]
fn a_removed_pod_is_stopped_then_killed_after_its_grace_period_then_forgotten() {
    let spec = one(RestartPolicy::Always, &["c"]);
    let mut node = Node::with(&spec);
    node.work();
    node.tell(Event::Node(NodeFact::DesiredChanged(desired(&[]))));
    assert!(matches!(
        &node.open[..],
        [Action::Signal {
            signal: StopSignal::Stop,
            ..
        }]
    ));
    node.work();
    let meta = node.shown().metadata;
    assert_eq!(meta.deletion_grace_period_seconds, Some(30));
    assert!(meta.deletion_timestamp.is_some());
    assert_eq!(
        node.said().last().unwrap(),
        "Normal Killing Stopping container c"
    );
    node.wait(29_999);
    assert!(node.open.is_empty());
    // A file that comes back does not save the pod.
    node.tell(Event::Node(NodeFact::DesiredChanged(desired(&[&spec]))));
    node.wait(1);
    assert!(matches!(
        &node.open[..],
        [Action::Signal {
            signal: StopSignal::Kill,
            ..
        }]
    ));
    node.work();
    node.end("c", 137);
    let keep = Keep::Nothing;
    let pod = spec.uid.clone();
    assert_eq!(node.open, [Action::RemoveSandbox { pod, keep }]);
    node.work();
    assert_eq!(node.line(), "Running; c: running < -, 0");
}

#[test]
fn a_shorter_grace_period_shortens_the_wait_and_zero_is_the_shortest() {
    let spec = one(RestartPolicy::Always, &["c"]);
    let mut node = Node::with(&spec);
    node.work();
    let pod = spec.uid.clone();
    let delete = |grace_ms| Event::Pod {
        uid: pod.clone(),
        fact: PodFact::DeleteRequested { grace_ms },
    };
    node.tell(delete(None));
    node.work();
    assert_eq!(node.wake_at(), Some(node.now + 30_000));
    node.tell(delete(Some(60_000)));
    assert_eq!(node.wake_at(), Some(node.now + 30_000));
    node.tell(delete(Some(1_000)));
    assert_eq!(node.wake_at(), Some(node.now + 2_000));
    node.tell(delete(Some(0)));
    assert_eq!(node.wake_at(), Some(node.now + 2_000));
    node.wait(2_000);
    assert!(matches!(
        &node.open[..],
        [Action::Signal {
            signal: StopSignal::Kill,
            ..
        }]
    ));
}

#[test]
fn a_new_version_starts_when_the_old_one_is_gone() {
    let old = one(RestartPolicy::Always, &["c"]);
    let new = Arc::new(pod("u2", "p", RestartPolicy::Always, &["c"]));
    let mut node = Node::with(&old);
    node.work();
    node.tell(Event::Node(NodeFact::DesiredChanged(desired(&[&new]))));
    node.work();
    assert_eq!(node.state.pods.len(), 1, "the name is still held");
    node.end("c", 0);
    node.work();
    assert_eq!(node.state.pods.keys().next().unwrap().as_str(), "u2");
    assert_eq!(node.line(), "Running; c: running < -, 0");
}

#[test]
fn a_start_that_has_to_be_retried_lengthens_the_back_off_only_once() {
    let spec = one(RestartPolicy::Always, &["c"]);
    let mut node = Node::with(&spec);
    node.work();
    node.end("c", 1);
    node.now += 1;
    // The first restart is permitted at once, but its image or its creation fails several times.
    for wait in [10_000, 20_000, 40_000, 60_000, 60_000] {
        while let Some(Action::EnsureImage { .. }) = node.open.first() {
            let Action::EnsureImage { pod, container } = node.take() else {
                unreachable!("matched above");
            };
            node.tell(Event::Pod {
                uid: pod,
                fact: PodFact::ImageReady {
                    container,
                    image_id: "sha256:ab".into(),
                    volumes: Default::default(),
                    pulled: Default::default(),
                },
            });
        }
        let Action::StartContainer { instance, .. } = node.take() else {
            panic!("the container starts");
        };
        node.tell(Event::Run {
            instance,
            fact: RunFact::StartFailed {
                failure: StartFailure::Create,
                message: "no room".into(),
            },
        });
        // A new agent tries no sooner than the one before it.
        node = reborn(&node, &[&spec], ready());
        assert!(node.line().contains("c: CreateContainerError: no room <"));
        assert_eq!(node.wake_at(), Some(node.now + wait));
        node.wait(wait);
    }
    node.work();
    node.end("c", 1);
    let ended = node.now;
    let wake = node.wake_at().expect("it waits");
    assert_eq!(wake - ended, 10_000, "the second restart waits 10 s");
}

#[test]
fn durations_are_printed_as_go_prints_them() {
    let table = [
        (0, "0s"),
        (500, "500ms"),
        (999, "999ms"),
        (1_000, "1s"),
        (60_000, "1m0s"),
        (10_000, "10s"),
        (80_000, "1m20s"),
        (160_000, "2m40s"),
        (300_000, "5m0s"),
        (1_500, "1.5s"),
        (3_600_000, "1h0m0s"),
    ];
    for (ms, text) in table {
        assert_eq!(status::go_duration(ms), text);
    }
}

/// The time that a decision takes with so many pods that run, when there is nothing to do.
fn decision(pods: usize) -> std::time::Duration {
    let pods: Vec<Arc<PodSpec>> = (0..pods)
        .map(|i| {
            let name = format!("p{i}");
            Arc::new(pod(&name, &name, RestartPolicy::Always, &["a", "b"]))
        })
        .collect();
    let mut node = Node::new(300_000);
    node.tell(Event::Node(NodeFact::DesiredChanged(desired(
        &pods.iter().collect::<Vec<_>>(),
    ))));
    node.work();
    // The processor's time: other programs may run meanwhile.
    let spent = || {
        let clock = nix::time::ClockId::CLOCK_THREAD_CPUTIME_ID;
        let spent = nix::time::clock_gettime(clock).expect("every kernel has it");
        std::time::Duration::from(spent)
    };
    // The quickest of some: what else the machine does only adds to it.
    let times = (0..10).map(|_| {
        let begin = spent();
        node.decide();
        assert!(node.open.is_empty());
        spent() - begin
    });
    times.min().expect("there are ten")
}

#[test]
fn the_time_to_plan_grows_no_faster_than_the_pods() {
    let (few, many) = (decision(50), decision(500));
    // Ten times, with room for caches; if each pod looked at all others, it would be a hundred times.
    assert!(many < few * 40, "{few:?} for 50 pods, {many:?} for 500");
}
