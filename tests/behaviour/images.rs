//! An image that is not available: what the planner does and reports.

use super::*;

/// Answers that the image being ensured is missing.
fn no_image(node: &mut Node, failure: ImageFailure) {
    let Action::EnsureImage { pod, container } = node.take() else {
        panic!("the image is ensured");
    };
    node.tell(Event::Pod {
        uid: pod,
        fact: PodFact::ImageFailed {
            container,
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
    node.tell(Event::Node(NodeFact::ImagesChanged));
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
