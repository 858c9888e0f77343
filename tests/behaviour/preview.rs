//! Previews of edits: a preview says what the edit then does.

use std::sync::Arc;

use coracle::plan::edit::Edit;
use coracle::plan::preview::{Held, Preview};
use coracle::plan::{Event, NodeFact};
use coracle::spec::{PodSpec, RestartPolicy};

use crate::node::{Node, small};
use crate::pods::{desired, pod, set_image, set_resources, with_inits};

const MIB: u64 = 1 << 20;

fn sized(name: &str, mib: u64) -> PodSpec {
    let mut spec = pod(name, name, RestartPolicy::Never, &["c", "d"]);
    set_resources(&mut spec, "c", 100, mib * MIB);
    spec
}

#[test]
fn a_pod_is_created_at_once_or_after_the_one_of_its_name_or_edited() {
    let (p, q) = (Arc::new(sized("p", 10)), Arc::new(sized("q", 10)));
    let mut node = Node::set(small());
    node.tell(Event::Node(NodeFact::DesiredChanged(desired(&[&q, &p]))));
    node.work();
    let preview = |node: &Node, spec: &PodSpec| node.state.preview(spec);
    assert_eq!(
        preview(&node, &sized("r", 1)),
        Preview::Create { hold: None }
    );
    let nothing = Preview::Edit {
        edit: Edit::None,
        waits: None,
        hold: None,
    };
    assert_eq!(preview(&node, &p), nothing);
    let found = preview(&node, &sized("p", 20));
    let Preview::Edit {
        edit: Edit::InPlace(changes),
        waits: None,
        hold: None,
    } = &found
    else {
        panic!("there is room: {found:?}");
    };
    assert!(!changes.resizes.is_empty());
    let found = preview(&node, &sized("p", 95));
    assert!(
        matches!(
            &found,
            Preview::Edit {
                edit: Edit::InPlace(_),
                waits: Some(_),
                hold: None
            }
        ),
        "the other pod has some of it: {found:?}"
    );
    // A pod that waits for a resize counts as having the manifest it waits for.
    let large = Arc::new(sized("p", 95));
    node.tell(Event::Node(NodeFact::DesiredChanged(desired(&[
        &q, &large,
    ]))));
    let found = preview(&node, &large);
    let none = |found: &Preview| {
        matches!(
            found,
            Preview::Edit {
                edit: Edit::None,
                ..
            }
        )
    };
    assert!(none(&found), "{found:?}");
    let found = preview(&node, &p);
    assert!(!none(&found), "{found:?}");
    node.tell(Event::Node(NodeFact::DesiredChanged(desired(&[&q]))));
    assert_eq!(preview(&node, &p), Preview::CreateAfter { hold: None });
}

#[test]
fn a_different_uid_in_the_manifest_is_a_different_pod() {
    let with = |uid: &str| {
        let mut spec = sized("p", 10);
        spec.uid = uid.into();
        let manifest = Arc::make_mut(&mut spec.manifest);
        manifest.change_metadata(|metadata| metadata.uid = Some(uid.to_owned()));
        spec
    };
    let derived = |digit: &str| digit.repeat(32);
    for (before, after, replaces) in [
        ("one".to_owned(), "two".to_owned(), true),
        (derived("a"), "two".to_owned(), true),
        ("one".to_owned(), derived("a"), true),
        (derived("a"), derived("b"), false),
    ] {
        let mut node = Node::with(&Arc::new(with(&before)));
        node.work();
        let found = node.state.preview(&with(&after));
        let Preview::Edit { edit, .. } = &found else {
            panic!("{found:?}");
        };
        let expected = match replaces {
            true => Edit::Replace(vec!["metadata.uid".to_owned()]),
            false => Edit::None,
        };
        assert_eq!(*edit, expected, "{before} {after}");
    }
}

#[test]
fn a_finished_pod_is_replaced_for_a_new_image_and_the_preview_names_the_field() {
    let spec = with_inits(sized("p", 10), &["i"]);
    let mut node = Node::with(&Arc::new(spec.clone()));
    node.work();
    for container in ["i", "c", "d"] {
        node.end(container, 0);
        node.work();
    }
    for (container, path) in [
        ("i", "spec.initContainers[0].image"),
        ("c", "spec.containers[0].image"),
        ("d", "spec.containers[1].image"),
    ] {
        let mut edited = spec.clone();
        set_image(&mut edited, container, "img:2");
        let expected = Preview::Edit {
            edit: Edit::Replace(vec![path.to_owned()]),
            waits: None,
            hold: None,
        };
        assert_eq!(node.state.preview(&edited), expected);
    }
}

#[test]
fn a_preview_says_that_a_pod_would_wait_for_admission() {
    let mut node = Node::set(small());
    let p = Arc::new(sized("p", 60));
    node.tell(Event::Node(NodeFact::DesiredChanged(desired(&[&p]))));
    node.work();
    let reason = |hold: Option<Held>| hold.map(|hold| hold.rejection.reason.to_string());
    let memory = Some("OutOfmemory".to_owned());
    let create = |node: &Node, spec: &PodSpec| match node.state.preview(spec) {
        Preview::Create { hold } => reason(hold),
        other => panic!("{other:?}"),
    };
    assert_eq!(create(&node, &sized("q", 40)), None);
    assert_eq!(create(&node, &sized("q", 41)), memory);
    // A pod that replaces it gets its room.
    for (mib, expected) in [(100, None), (101, memory.clone())] {
        let mut other = sized("p", mib);
        let manifest = Arc::make_mut(&mut other.manifest);
        manifest.change_metadata(|metadata| metadata.uid = Some("other".to_owned()));
        other.uid = "other".into();
        let found = node.state.preview(&other);
        let Preview::Edit {
            edit: Edit::Replace(_),
            hold,
            ..
        } = found
        else {
            panic!("{found:?}");
        };
        assert_eq!(reason(hold), expected);
    }
    // A pod that waits.
    let q = Arc::new(sized("q", 50));
    node.tell(Event::Node(NodeFact::DesiredChanged(desired(&[&p, &q]))));
    let found = node.state.preview(&q);
    assert!(
        matches!(
            &found,
            Preview::Edit {
                edit: Edit::None,
                hold: Some(_),
                ..
            }
        ),
        "{found:?}"
    );
    assert_eq!(create(&node, &sized("q", 40)), None);
    assert_eq!(create(&node, &sized("q", 70)), memory);
    node.tell(Event::Node(NodeFact::DesiredChanged(desired(&[&q]))));
    assert_eq!(node.state.preview(&p), Preview::CreateAfter { hold: None });
}

#[test]
fn a_preview_names_the_pods_that_would_be_preempted() {
    let mut node = Node::set(small());
    let (p, q) = (Arc::new(sized("p", 60)), Arc::new(sized("q", 30)));
    node.tell(Event::Node(NodeFact::DesiredChanged(desired(&[&p, &q]))));
    node.work();
    type Change = fn(&mut PodSpec);
    let never: Change = |spec| {
        spec.may_preempt = false;
    };
    let table: [(&str, u64, i32, Change, &[&str]); 6] = [
        ("there is room", 10, 1, |_| {}, &[]),
        ("no pod is less important", 40, 0, |_| {}, &[]),
        ("one is enough", 40, 1, |_| {}, &["q"]),
        ("both have to go", 95, 1, |_| {}, &["p", "q"]),
        ("all of them would not be enough", 101, 1, |_| {}, &[]),
        ("it never preempts", 40, 1, never, &[]),
    ];
    for (sentence, mib, priority, change, expected) in table {
        let mut spec = sized("r", mib);
        spec.priority = priority;
        change(&mut spec);
        let Preview::Create { hold } = node.state.preview(&spec) else {
            panic!("{sentence}");
        };
        let mut victims = hold.map_or_else(Vec::new, |held| held.victims);
        victims.sort();
        let names: Vec<&str> = victims.iter().map(|key| &*key.name).collect();
        assert_eq!(names, expected, "{sentence}");
    }
}
