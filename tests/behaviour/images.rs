//! An image that is not available: what the planner does and reports.

use std::collections::{BTreeMap, BTreeSet};

use coracle::plan::recovered::RecoveredSandbox;
use coracle::spec::convert::{ConvertContext, documents};

use super::*;
use crate::node::reborn;

/// Answers that the image being ensured is missing.
fn no_image(node: &mut Node, failure: ImageFailure) {
    let Action::EnsureImage { pod, container } = node.take() else {
        panic!("the image is ensured");
    };
    node.tell(Event::Pod {
        uid: pod,
        fact: PodFact::ImageFailed {
            container,
            volume: None,
            failure,
            message: "registry is down".into(),
        },
    });
}

#[test]
fn a_missing_image_is_reported_as_by_a_kubelet_and_tried_again_when_images_change() {
    let mut node = Node::with(&one(RestartPolicy::Always, &["c"]));
    make_sandbox(&mut node);
    no_image(&mut node, ImageFailure::NeverPull);
    let text = "Container image \"img:1\" is not present with pull policy of Never";
    assert_eq!(
        node.line(),
        format!("Pending; {UNREADY}; c: ErrImageNeverPull: {text} < -, 0")
    );
    assert_eq!(
        node.said(),
        [
            format!("Warning ErrImageNeverPull {text}"),
            "Warning Failed Error: ErrImageNeverPull".into()
        ]
    );
    assert_eq!(node.wake_at(), Some(node.now + 10_000));
    node.tell(Event::Node(NodeFact::ImagesChanged(None)));
    node.work();
    assert_eq!(node.line(), "Running; c: running < -, 0");
}

#[test]
fn a_pull_is_reported_with_its_time_and_size() {
    let mut node = Node::with(&one(RestartPolicy::Always, &["c"]));
    make_sandbox(&mut node);
    let Action::EnsureImage { pod, container } = node.take() else {
        panic!("the image is ensured");
    };
    node.tell(Event::Pod {
        uid: pod,
        fact: PodFact::ImageReady {
            container,
            image_id: "sha256:1".into(),
            volumes: Default::default(),
            pulled: [(
                "img:1".to_owned(),
                Pulled::Now {
                    took_ms: 1234,
                    waited_ms: 62_000,
                    size_bytes: 4_567_890,
                },
            )]
            .into(),
        },
    });
    assert_eq!(
        node.said(),
        [
            "Normal Pulled Successfully pulled image \"img:1\" in 1.234s (1m2s including waiting). Image size: 4567890 \
             bytes."
        ]
    );
    node.work();
    assert_eq!(node.line(), "Running; c: running < -, 0");
}

#[test]
fn a_failing_pull_backs_off_up_to_five_minutes() {
    let mut node = Node::with(&one(RestartPolicy::Always, &["c"]));
    make_sandbox(&mut node);
    let mut waits = vec![];
    for _ in 0..7 {
        no_image(&mut node, ImageFailure::Pull);
        let wait = node.wake_at().unwrap() - node.now;
        waits.push(wait / 1000);
        if waits.len() == 1 {
            assert!(
                node.line()
                    .ends_with("c: ErrImagePull: registry is down < -, 0")
            );
        } else {
            let text = "c: ImagePullBackOff: Back-off pulling image \"img:1\": ErrImagePull: registry is down < -, 0";
            assert!(node.line().ends_with(text), "{}", node.line());
        }
        node.wait(wait);
    }
    assert_eq!(waits, [10, 20, 40, 80, 160, 300, 300]);
}

#[test]
fn a_pull_shows_how_far_it_is_until_it_ends() {
    let mut node = Node::with(&one(RestartPolicy::Always, &["c"]));
    make_sandbox(&mut node);
    no_image(&mut node, ImageFailure::Pull);
    node.wait(10_000);
    let pulling = |node: &mut Node, percent| {
        let pod = node.open[0].pod().clone();
        let fact = PodFact::Pulling {
            container: "c".into(),
            image: "img:1".into(),
            percent,
            total_bytes: 57_800_000,
        };
        node.tell(Event::Pod { uid: pod, fact });
    };
    pulling(&mut node, 34);
    let line = node.line();
    let text = "c: ContainerCreating: Pulling image \"img:1\": 34% of 55.1MiB < -, 0";
    assert!(line.ends_with(text), "{line}");
    pulling(&mut node, 99);
    assert!(node.line().contains("99% of"), "{}", node.line());
    no_image(&mut node, ImageFailure::Pull);
    let line = node.line();
    assert!(line.contains("c: ImagePullBackOff: "), "{line}");
    // The next one begins at nothing, and says nothing before something has arrived.
    node.wait(20_000);
    assert!(node.line().contains("c: ImagePullBackOff: "));
}

#[test]
fn a_pod_waits_for_the_next_window_without_back_off_and_says_so_once() {
    let mut node = Node::with(&one(RestartPolicy::Always, &["c"]));
    make_sandbox(&mut node);
    for opens_in_ms in [3_600_000, 3_300_000, 120_000] {
        no_image(&mut node, ImageFailure::Window { opens_in_ms });
        let text = "c: ImagePullBackOff: Back-off pulling image \"img:1\": registry is down < -, 0";
        assert!(node.line().ends_with(text), "{}", node.line());
        let wait = node.wake_at().unwrap() - node.now;
        assert_eq!(wait, opens_in_ms.min(300_000));
        node.wait(wait);
    }
    let said = ["Normal BackOff Back-off pulling image \"img:1\": registry is down"];
    assert_eq!(node.said(), said);
    no_image(&mut node, ImageFailure::Pull);
    assert_eq!(node.wake_at(), Some(node.now + 10_000));
}

#[test]
fn a_stored_image_that_may_be_old_is_used_with_a_warning_and_a_condition() {
    let mut node = Node::with(&one(RestartPolicy::Always, &["c"]));
    make_sandbox(&mut node);
    let ready = |node: &mut Node, pulled| {
        let Action::EnsureImage { pod, container } = node.take() else {
            panic!("the image is ensured");
        };
        let fact = PodFact::ImageReady {
            container,
            image_id: "sha256:1".into(),
            volumes: Default::default(),
            pulled: [("img:1".to_owned(), pulled)].into(),
        };
        node.tell(Event::Pod { uid: pod, fact });
        node.work();
    };
    ready(&mut node, Pulled::Unreachable("no route to host".into()));
    let why = "Using the stored image \"img:1\": no route to host";
    assert_eq!(
        node.line(),
        format!(
            "Running; coracle.dev/ImagesCurrent=False UsingStoredImage: {why}; c: running < -, 0"
        )
    );
    let said = format!("Warning UsingStoredImage {why}");
    assert!(node.said().contains(&said), "{:?}", node.said());
    // The next start asks again.
    node.end("c", 1);
    let pulled = Pulled::Now {
        took_ms: 1,
        waited_ms: 1,
        size_bytes: 1,
    };
    while !matches!(node.open.first(), Some(Action::EnsureImage { .. })) {
        node.wait(1_000);
    }
    ready(&mut node, pulled);
    assert!(!node.line().contains("ImagesCurrent"), "{}", node.line());
}

#[test]
fn only_pods_that_wait_for_a_new_image_look_for_theirs_again() {
    let mut node = Node::with(&one(RestartPolicy::Always, &["c"]));
    make_sandbox(&mut node);
    no_image(&mut node, ImageFailure::Pull);
    let changed = |name: &str| {
        let names = Some([name.to_owned()].into());
        Event::Node(NodeFact::ImagesChanged(names))
    };
    node.tell(changed("docker.io/library/other:1"));
    assert!(node.open.is_empty(), "{:?}", node.open);
    node.tell(changed("docker.io/library/img:1"));
    node.work();
    assert_eq!(node.line(), "Running; c: running < -, 0");
}

#[test]
fn an_image_without_its_signature_backs_off_like_a_pull() {
    let mut node = Node::with(&one(RestartPolicy::Always, &["c"]));
    make_sandbox(&mut node);
    no_image(&mut node, ImageFailure::Signature);
    let why =
        "image pull failed for img:1 because the signature validation failed: registry is down";
    let line = node.line();
    assert!(
        line.ends_with(&format!("c: SignatureValidationFailed: {why} < -, 0")),
        "{line}"
    );
    assert_eq!(
        node.said(),
        [
            "Warning Failed Failed to pull image \"img:1\": registry is down",
            "Warning Failed Error: SignatureValidationFailed",
        ]
    );
    node.wait(10_000);
    no_image(&mut node, ImageFailure::Signature);
    let text = format!(
        "c: ImagePullBackOff: Back-off pulling image \"img:1\": SignatureValidationFailed: {why} < -, 0"
    );
    assert!(node.line().ends_with(&text), "{}", node.line());
    assert_eq!(node.wake_at(), Some(node.now + 20_000));
}

#[test]
fn one_containers_missing_image_does_not_keep_the_other_from_starting() {
    let mut spec = pod("u1", "p", RestartPolicy::Always, &["a", "b"]);
    spec.containers[0].image = "other:1".into();
    let mut node = Node::with(&Arc::new(spec));
    make_sandbox(&mut node);
    no_image(&mut node, ImageFailure::Pull);
    node.work();
    let line = node.line();
    assert!(line.starts_with("Pending"), "{line}");
    assert!(
        line.contains("a: ErrImagePull") && line.ends_with("b: running < -, 0"),
        "{line}"
    );
}

/// A pod with an image volume `v`, which container `c` mounts and `d` does not.
fn with_image_volume() -> Arc<PodSpec> {
    let text = "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec:\n  \
                volumes: [{name: v, image: {reference: 'data:1', pullPolicy: Never}}, {name: w, image: {reference: 'none:1'}}]\n  \
                containers:\n  - {name: c, image: 'img:1', volumeMounts: [{name: v, mountPath: /v}, {name: v, mountPath: /w}]}\n  \
                - {name: d, image: 'img:1'}\n";
    let context = ConvertContext::of("node1");
    let mut found = documents(text.as_bytes(), "f", &context).expect("valid");
    Arc::new(found.pods.remove(0))
}

/// Answers that the image of container `c`, or of its volume, is missing.
fn missing(node: &mut Node, volume: Option<&str>) {
    let Action::EnsureImage { pod, container } = node.take() else {
        panic!("the image is ensured");
    };
    assert_eq!(container, "c");
    node.tell(Event::Pod {
        uid: pod,
        fact: PodFact::ImageFailed {
            container,
            volume: volume.map(str::to_owned),
            failure: ImageFailure::NeverPull,
            message: String::new(),
        },
    });
}

#[test]
fn a_container_waits_for_the_images_of_the_volumes_that_it_mounts_and_no_other() {
    let spec = with_image_volume();
    let of = |name: &str| {
        let volumes = spec.image_volumes_of(spec.container(name).unwrap());
        volumes.map(|(name, _)| name.to_owned()).collect::<Vec<_>>()
    };
    assert_eq!((of("c"), of("d")), (vec!["v".to_owned()], vec![]));
    let names: Vec<String> = spec.image_names().map(ToString::to_string).collect();
    let full = |name: &str| format!("docker.io/library/{name}:1");
    assert_eq!(names, ["img", "img", "data", "none"].map(full));
    let mut node = Node::with(&spec);
    make_sandbox(&mut node);
    missing(&mut node, Some("v"));
    let text = "Container image \"data:1\" is not present with pull policy of Never";
    let waits = format!("c: ErrImageNeverPull: {text} < -, 0");
    assert!(node.line().contains(&waits), "{}", node.line());
    assert!(
        node.said()
            .contains(&format!("Warning ErrImageNeverPull {text}"))
    );
    // The other container has an image of the same name as its own, and needs nothing else.
    node.work();
    assert!(
        node.line().ends_with("d: running < -, 0"),
        "{}",
        node.line()
    );
    assert!(node.line().contains(&waits), "{}", node.line());
    node.tell(Event::Node(NodeFact::ImagesChanged(None)));
    // Its own image is missing now: both containers would share that.
    missing(&mut node, None);
    let text = "Container image \"img:1\" is not present with pull policy of Never";
    assert!(
        node.line()
            .contains(&format!("c: ErrImageNeverPull: {text}")),
        "{}",
        node.line()
    );
}

#[test]
fn the_images_of_volumes_are_in_use_once_they_are_found_and_after_an_agent_restart() {
    let spec = with_image_volume();
    let mut node = Node::with(&spec);
    make_sandbox(&mut node);
    let Action::EnsureImage { pod, container } = node.take() else {
        panic!("the image is ensured");
    };
    let volumes = BTreeMap::from([("v".to_owned(), "sha256:data".to_owned())]);
    node.tell(Event::Pod {
        uid: pod.clone(),
        fact: PodFact::ImageReady {
            container,
            image_id: "sha256:ab".into(),
            volumes: volumes.clone(),
            pulled: Default::default(),
        },
    });
    let images = |node: &Node| {
        let c = node.state.pods[&pod].container("c").unwrap();
        let ids: BTreeSet<String> = c.images().map(str::to_owned).collect();
        ids.into_iter().collect::<Vec<_>>()
    };
    let both = ["sha256:ab", "sha256:data"];
    assert_eq!(images(&node), both);
    let starts = node.open.iter().find_map(|action| match action {
        Action::StartContainer { volumes, .. } => Some(volumes.clone()),
        _ => None,
    });
    assert_eq!(starts, Some(volumes.clone()));
    // The shim's record of the run says what it mounts.
    node.effective.images = volumes;
    node.answer_one();
    assert_eq!(images(&node), both);
    let next = reborn(&node, &[&spec], RecoveredSandbox::Ready { ips: vec![] });
    assert_eq!(images(&next), both);
}
