//! Changes of ConfigMaps and Secrets: what failed for want of one is tried again at once, and nothing else.

use std::collections::BTreeSet;

use coracle::spec::{ObjectKey, ObjectKind};

use super::*;

/// All pods of these tests refer to the ConfigMap `app`.
fn changed(name: &str) -> Event {
    let key = ObjectKey::new(ObjectKind::ConfigMap, "default", name);
    Event::Node(NodeFact::ConfigurationChanged {
        objects: BTreeSet::from([key]),
    })
}

/// Answers that the image being ensured is there.
fn ready_image(node: &mut Node) {
    let Action::EnsureImage { pod, container } = node.take() else {
        panic!("the image is ensured");
    };
    node.tell(Event::Pod {
        uid: pod,
        fact: PodFact::ImageReady {
            container,
            image_id: "sha256:1".into(),
            volumes: Default::default(),
            pulled: Default::default(),
        },
    });
}

/// Answers that the container being started lacks something.
fn fail_start(node: &mut Node, failure: StartFailure) {
    let Action::StartContainer { instance, .. } = node.take() else {
        panic!("the container is started");
    };
    node.tell(Event::Run {
        instance,
        fact: RunFact::StartFailed {
            failure,
            message: "configmap \"app\" not found".into(),
        },
    });
}

#[test]
fn a_container_starts_as_soon_as_what_it_lacked_is_there() {
    let mut node = Node::with(&one(RestartPolicy::Always, &["c"]));
    make_sandbox(&mut node);
    ready_image(&mut node);
    fail_start(&mut node, StartFailure::Config);
    let text = "c: CreateContainerConfigError: configmap \"app\" not found";
    assert!(node.line().contains(text), "{}", node.line());
    let wake = node.wake_at();
    assert_eq!(wake, Some(node.now + 10_000));
    node.tell(changed("other"));
    assert_eq!(node.wake_at(), wake);
    node.tell(changed("app"));
    node.work();
    assert_eq!(node.line(), "Running; c: running < -, 0");
}

#[test]
fn the_waits_go_on_growing_over_changes() {
    let mut node = Node::with(&one(RestartPolicy::Always, &["c"]));
    make_sandbox(&mut node);
    let mut waits = vec![];
    for _ in 0..4 {
        ready_image(&mut node);
        fail_start(&mut node, StartFailure::Config);
        waits.push((node.wake_at().unwrap() - node.now) / 1000);
        node.tell(changed("app"));
    }
    assert_eq!(waits, [10, 20, 40, 60]);
}

#[test]
fn a_start_that_failed_for_another_reason_waits_on() {
    let mut node = Node::with(&one(RestartPolicy::Always, &["c"]));
    make_sandbox(&mut node);
    ready_image(&mut node);
    fail_start(&mut node, StartFailure::Create);
    let wake = node.wake_at();
    node.tell(changed("app"));
    assert_eq!(node.wake_at(), wake);
}

#[test]
fn a_change_while_a_container_starts_is_not_missed() {
    let mut node = Node::with(&one(RestartPolicy::Always, &["c"]));
    make_sandbox(&mut node);
    ready_image(&mut node);
    let action = node.take();
    node.tell(changed("app"));
    let Action::StartContainer { instance, .. } = action else {
        panic!("the container is started");
    };
    let failed = |instance| Event::Run {
        instance,
        fact: RunFact::StartFailed {
            failure: StartFailure::Config,
            message: "configmap \"app\" not found".into(),
        },
    };
    node.tell(failed(instance));
    // It is tried again at once, but only once.
    ready_image(&mut node);
    fail_start(&mut node, StartFailure::Config);
    assert_eq!(node.wake_at(), Some(node.now + 20_000));
}

#[test]
fn a_volume_is_made_as_soon_as_its_source_is_there() {
    let mut node = Node::with(&one(RestartPolicy::Always, &["c"]));
    for (round, wait) in [500, 1000, 2000].into_iter().enumerate() {
        let Action::CreateSandbox { pod } = node.take() else {
            panic!("the sandbox is made");
        };
        let failure = SandboxFailure::Volume {
            volume: "v".into(),
            error: "configmap \"app\" not found".into(),
        };
        node.tell(Event::Pod {
            uid: pod,
            fact: PodFact::SandboxFailed { failure },
        });
        let said = "Warning FailedMount MountVolume.SetUp failed for volume \"v\" : configmap \"app\" not found";
        assert_eq!(node.said(), vec![said; round + 1]);
        assert_eq!(node.wake_at(), Some(node.now + wait));
        node.tell(changed("app"));
    }
    node.work();
    assert_eq!(node.line(), "Running; c: running < -, 0");
}
