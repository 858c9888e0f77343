//! Edited images: a container alone restarts with its new image, once the node has it.

use std::sync::Arc;

use coracle::plan::event::ImageFailure;
use coracle::plan::{Action, Event, NodeFact, PodFact};
use coracle::spec::{PodSpec, RestartPolicy};

use crate::edits::with;
use crate::node::{Node, one, ready, reborn};
use crate::pods::{of, pod, probing, set_image, set_resources, with_inits};

/// The pod with a new image for this container.
fn from_image(spec: &PodSpec, name: &str, image: &str) -> Arc<PodSpec> {
    let mut spec = spec.clone();
    set_image(&mut spec, name, image);
    Arc::new(spec)
}

impl Node {
    /// Reports that the image being ensured is missing.
    fn no_image(&mut self) {
        let Action::EnsureImage { pod, container } = self.take() else {
            panic!("an image: {:?}", self.open);
        };
        self.tell(Event::Pod {
            uid: pod,
            fact: PodFact::ImageFailed {
                container,
                volume: None,
                failure: ImageFailure::Pull,
                message: "gone".into(),
            },
        });
    }

    /// Answers what is open and what follows, except for the exit of a signalled container; returns that container.
    fn work_till_signal(&mut self) -> String {
        loop {
            if let Some(Action::Signal { instance, .. }) = self.open.first().cloned() {
                self.answer_one();
                return instance.container;
            }
            self.answer_one();
        }
    }

    fn image_of(&self, name: &str) -> String {
        let status = self.shown().status.unwrap();
        let inits = status.init_container_statuses.into_iter().flatten();
        let mut all = inits.chain(status.container_statuses.unwrap());
        all.find(|c| c.name == name).unwrap().image
    }
}

#[test]
fn a_new_image_restarts_that_container_alone_whatever_the_policy() {
    for policy in [
        RestartPolicy::Always,
        RestartPolicy::OnFailure,
        RestartPolicy::Never,
    ] {
        let spec = with_inits(pod("u1", "p", policy, &["c", "d"]), &["i1", "s2"]);
        let mut node = Node::with(&Arc::new(spec.clone()));
        node.work();
        node.end("i1", 0);
        node.work();
        node.edit(&from_image(&spec, "c", "img:2"));
        assert_eq!(node.image_of("c"), "img:1", "the running image");
        assert_eq!(node.work_till_signal(), "c");
        let text = "Normal Killing Container c definition changed, will be restarted";
        assert!(node.said().contains(&text.to_owned()), "{:?}", node.said());
        node.end("c", 0);
        node.work();
        assert_eq!(node.image_of("c"), "img:2");
        let shown = "Running; i1: Completed 0 < -, 0, ready=true started=false; s2: running < -, 0; \
                     c: running < Completed 0, 1; d: running < -, 0";
        assert_eq!(node.line(), shown, "{policy:?}");
        let pulled = node.said().iter().filter(|s| s.contains("img:2")).count();
        assert_eq!(pulled, 1, "one pull: {:?}", node.said());
        node.edit(&from_image(&spec, "s2", "img:2"));
        assert_eq!(node.work_till_signal(), "s2");
        assert_eq!(node.work_till_signal(), "c", "c returns to its old image");
        let text = "Normal Killing Init container s2 definition changed";
        assert!(node.said().contains(&text.to_owned()), "{:?}", node.said());
    }
}

#[test]
fn a_running_container_is_not_stopped_for_an_image_that_is_missing() {
    let spec = one(RestartPolicy::Never, &["c"]);
    let mut node = Node::with(&spec);
    node.work();
    node.edit(&from_image(&spec, "c", "img:2"));
    node.no_image();
    assert_eq!(node.line(), "Running; c: running < -, 0");
    let text = "Warning Failed Failed to pull image \"img:2\": gone";
    assert!(node.said().contains(&text.to_owned()), "{:?}", node.said());
    assert_eq!(node.wake_at(), Some(node.now + 10_000));
    node.tell(Event::Node(NodeFact::ImagesChanged(None)));
    assert_eq!(node.work_till_signal(), "c");
    node.end("c", 143);
    node.work();
    assert_eq!(node.line(), "Running; c: running < Error 143, 1");
}

#[test]
fn an_image_edit_that_is_reverted_changes_nothing() {
    let spec = one(RestartPolicy::Always, &["c"]);
    let mut node = Node::with(&spec);
    node.work();
    node.edit(&from_image(&spec, "c", "img:2"));
    node.edit(&spec);
    node.work();
    assert_eq!(node.line(), "Running; c: running < -, 0");
}

#[test]
fn a_report_about_an_image_that_is_not_wanted_any_more_is_ignored() {
    let spec = one(RestartPolicy::Always, &["c"]);
    let mut node = Node::with(&spec);
    node.answer_one();
    node.edit(&from_image(&spec, "c", "img:2"));
    node.answer_one();
    let looks = matches!(&node.open[..], [Action::EnsureImage { .. }]);
    assert!(looks, "again: {:?}", node.open);
    node.work();
    assert_eq!(node.image_of("c"), "img:2");
    assert_eq!(node.line(), "Running; c: running < -, 0");
}

#[test]
fn an_image_edited_during_a_start_applies_after_it() {
    let spec = one(RestartPolicy::Always, &["c"]);
    let mut node = Node::with(&spec);
    node.answer_one();
    node.answer_one();
    node.edit(&from_image(&spec, "c", "img:2"));
    assert_eq!(node.work_till_signal(), "c");
    node.end("c", 143);
    node.work();
    assert_eq!(node.image_of("c"), "img:2");
}

#[test]
fn a_corrected_image_does_not_wait_for_the_back_off() {
    let spec = one(RestartPolicy::Always, &["c"]);
    let mut node = Node::with(&spec);
    node.work();
    for _ in 0..3 {
        node.end("c", 1);
        let wait = node.wake_at().map_or(0, |at| at - node.now);
        node.wait(wait);
        node.work();
    }
    node.end("c", 1);
    assert_eq!(node.wake_at(), Some(node.now + 40_000));
    node.edit(&from_image(&spec, "c", "img:2"));
    node.work();
    assert_eq!(node.line(), "Running; c: running < Error 1, 4");
}

#[test]
fn an_image_edit_survives_an_agent_that_dies_at_any_moment() {
    let spec = one(RestartPolicy::Never, &["c"]);
    let edited = from_image(&spec, "c", "img:2");
    for steps in 0..8 {
        let mut node = Node::with(&spec);
        node.work();
        node.edit(&edited);
        let mut ended = false;
        for _ in 0..steps {
            if node.open.is_empty() && !ended {
                node.end("c", 0);
                ended = true;
            } else if !node.open.is_empty() {
                node.answer_one();
            }
        }
        let mut node = reborn(&node, &[&edited], ready());
        // The new agent cannot know that a start permitted by the old one never happened.
        let wait = node.wake_at().map_or(0, |at| at - node.now);
        node.wait(wait);
        node.work();
        if !ended {
            node.end("c", 0);
            node.work();
        }
        assert_eq!(node.image_of("c"), "img:2", "after {steps} steps");
        let shown = "Running; c: running < Completed 0, 1";
        assert_eq!(node.line(), shown, "after {steps} steps");
    }
}

#[test]
fn a_finished_pod_runs_a_new_image_as_a_new_pod() {
    let spec = one(RestartPolicy::Never, &["c"]);
    let mut node = Node::with(&spec);
    node.work();
    node.end("c", 0);
    node.work();
    assert_eq!(node.line().split(';').next(), Some("Succeeded"));
    node.edit(&from_image(&spec, "c", "img:2"));
    node.work();
    assert_eq!(node.line(), "Running; c: running < -, 0");
    assert_eq!(node.image_of("c"), "img:2");
}

#[test]
fn a_finished_pod_runs_with_new_memory_as_a_new_pod() {
    let mut spec = pod("u1", "p", RestartPolicy::Never, &["c"]);
    set_resources(&mut spec, "c", 100, 10 << 20);
    let mut node = Node::with(&Arc::new(spec.clone()));
    node.work();
    node.end("c", 137);
    node.work();
    assert_eq!(node.line().split(';').next(), Some("Failed"));
    set_resources(&mut spec, "c", 100, 20 << 20);
    node.edit(&Arc::new(spec));
    node.work();
    assert_eq!(node.line(), "Running; c: running < -, 0");
}

#[test]
fn finished_init_containers_do_not_run_again_for_a_new_image() {
    let spec = with_inits(pod("u1", "p", RestartPolicy::Always, &["c"]), &["i1"]);
    let mut node = Node::with(&Arc::new(spec.clone()));
    node.work();
    let edited = from_image(&spec, "i1", "img:2");
    node.edit(&edited);
    node.work();
    assert_eq!(node.image_of("i1"), "img:1", "not while it works");
    node.end("i1", 0);
    node.work();
    node.edit(&Arc::new(spec));
    node.work();
    let shown = "Running; i1: Completed 0 < -, 0, ready=true started=false; c: running < -, 0";
    assert_eq!(node.line(), shown);
}

#[test]
fn the_image_of_a_container_that_is_ending_is_ensured_only_after_its_end() {
    let spec = with(|spec| of(spec, "c").probes.liveness = Some(probing(1_000, 1)));
    let mut node = Node::with(&spec);
    node.work();
    node.fail();
    node.work();
    node.edit(&from_image(&spec, "c", "img:2"));
    assert!(node.open.is_empty(), "{:?}", node.open);
    node.end("c", 0);
    assert!(matches!(&node.open[..], [Action::EnsureImage { .. }]));
}
