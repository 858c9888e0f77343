//! Pods whose sandbox is lost, or cannot be made.

use super::*;
use coracle::spec::Reason;

#[test]
fn a_lost_sandbox_is_replaced_unless_the_policy_is_never() {
    for (policy, expected) in [
        (
            RestartPolicy::Always,
            "Running; c: running < ContainerStatusUnknown 137, 1",
        ),
        (
            RestartPolicy::Never,
            "Failed; PodReadyToStartContainers=False ; Ready=False PodFailed; ContainersReady=False PodFailed; \
             c: ContainerStatusUnknown 137 < -, 0",
        ),
    ] {
        let spec = one(policy, &["c"]);
        let mut node = Node::with(&spec);
        node.work();
        node.tell(Event::Pod {
            uid: spec.uid.clone(),
            fact: PodFact::SandboxLost,
        });
        node.work();
        assert_eq!(node.line(), expected);
    }
}

#[test]
fn a_start_in_progress_when_the_sandbox_is_lost_counts_as_a_run() {
    let spec = one(RestartPolicy::Always, &["c"]);
    let mut node = Node::with(&spec);
    make_sandbox(&mut node);
    let Action::EnsureImage { pod, container } = node.take() else {
        panic!("the image comes first");
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
    assert!(matches!(node.take(), Action::StartContainer { .. }));
    // The program may have run: its attempt number is used.
    node.tell(Event::Pod {
        uid: spec.uid.clone(),
        fact: PodFact::SandboxLost,
    });
    node.work();
    assert_eq!(
        node.line(),
        "Running; c: running < ContainerStatusUnknown 137, 1"
    );
}

#[test]
fn sandbox_failures_back_off() {
    type Failure = fn() -> SandboxFailure;
    let volume: Failure = || SandboxFailure::Volume {
        volume: "v".into(),
        error: "no".into(),
    };
    let other: Failure = || SandboxFailure::Sandbox("no".into());
    let port: Failure = || SandboxFailure::HostPort {
        message: "no".into(),
    };
    const SANDBOX: [u64; 8] = [1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000];
    const SAID: &str = "Warning FailedCreatePodSandBox Failed to create pod sandbox: no";
    let table: [(Failure, &[u64], &str); 3] = [
        (
            volume,
            &[
                500, 1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 64_000, 122_000, 122_000,
            ],
            "Warning FailedMount MountVolume.SetUp failed for volume \"v\" : no",
        ),
        (other, &SANDBOX, SAID),
        (port, &SANDBOX, SAID),
    ];
    for (failure, expected, said) in table {
        let mut node = Node::with(&one(RestartPolicy::Always, &["c"]));
        let mut waits = vec![];
        for _ in expected {
            let Action::CreateSandbox { pod } = node.take() else {
                panic!("the sandbox comes first");
            };
            node.tell(Event::Pod {
                uid: pod,
                fact: PodFact::SandboxFailed { failure: failure() },
            });
            let wait = node.wake_at().unwrap() - node.now;
            waits.push(wait);
            node.wait(wait);
        }
        assert_eq!(waits, expected);
        assert_eq!(node.said()[0], said);
    }
}

#[test]
fn a_pod_that_waits_for_a_host_port_is_tried_again_when_any_other_sandbox_goes() {
    for (failure, at_once) in [
        (
            SandboxFailure::HostPort {
                message: "host port 80/TCP is taken by pod default/other".into(),
            },
            true,
        ),
        (SandboxFailure::Sandbox("no".into()), false),
    ] {
        let (other, waiting) = (
            Arc::new(pod("1", "other", RestartPolicy::Always, &["c"])),
            Arc::new(pod("2", "waiting", RestartPolicy::Always, &["c"])),
        );
        let mut node = Node::with(&other);
        node.work();
        node.tell(Event::Node(NodeFact::DesiredChanged(desired(&[
            &other, &waiting,
        ]))));
        let uid = waiting.uid.clone();
        for _ in 0..5 {
            let Action::CreateSandbox { pod } = node.take() else {
                panic!("the sandbox comes first");
            };
            let failure = failure.clone();
            node.tell(Event::Pod {
                uid: pod,
                fact: PodFact::SandboxFailed { failure },
            });
            node.wait(node.wake_at().unwrap() - node.now);
        }
        let Action::CreateSandbox { pod } = node.take() else {
            panic!("the sandbox comes first");
        };
        node.tell(Event::Pod {
            uid: pod,
            fact: PodFact::SandboxFailed { failure },
        });
        let shown = status::pod(
            &node.state.pods[&uid],
            &NodeFacts::default(),
            &node.state.settings,
        );
        let shown = shown.status.unwrap();
        assert_eq!(shown.phase.as_deref(), Some("Pending"));
        let container = &shown.container_statuses.unwrap()[0];
        assert_eq!(word(container.state.as_ref().unwrap()), "ContainerCreating");
        node.tell(Event::Node(NodeFact::DesiredChanged(desired(&[&waiting]))));
        node.now += 100;
        node.work_on(&other.uid);
        node.end_of(&other.uid, 0);
        node.work_on(&other.uid);
        assert!(!node.state.pods.contains_key(&other.uid));
        let tried = matches!(node.open.first(), Some(Action::CreateSandbox { pod }) if *pod == uid);
        assert_eq!(tried, at_once);
    }
}

#[test]
fn a_sandbox_made_without_something_gets_a_warning_event() {
    let mut node = Node::with(&one(RestartPolicy::Always, &["c"]));
    let Action::CreateSandbox { pod } = node.take() else {
        panic!("the sandbox comes first");
    };
    let created = Event::Pod {
        uid: pod,
        fact: PodFact::SandboxCreated {
            ips: vec![],
            next_attempts: Default::default(),
            warnings: vec![(Reason::MissingClusterDNS, "none".into())],
        },
    };
    node.tell(created.clone());
    assert_eq!(node.said(), ["Warning MissingClusterDNS none"]);
    node.tell(created);
    assert_eq!(node.said().len(), 1, "a repeated fact is reported once");
}
