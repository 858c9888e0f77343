//! The UIDs of pods: a new one each time a pod is made again, the same one across agent restarts and boots
//! (`coracle help differences`).

use std::collections::BTreeSet;
use std::sync::Arc;

use coracle::plan::recovered::RecoveredSandbox;
use coracle::plan::resize::Capacity;
use coracle::plan::{Event, NodeFact, PodFact, Settings};
use coracle::spec::{PodSpec, PodUid, RestartPolicy};

use crate::node::{Node, ready, reborn};
use crate::pods::{desired, of_template, pod};

fn made_from(template: &str) -> PodSpec {
    of_template(pod(template, "p", RestartPolicy::Always, &["c"]))
}

fn arc(template: &str) -> Arc<PodSpec> {
    Arc::new(made_from(template))
}

/// The UID of the only pod there is.
fn uid(node: &Node) -> PodUid {
    let uids: Vec<_> = node.state.pods.keys().cloned().collect();
    let [uid] = uids.as_slice() else {
        panic!("one pod, not {uids:?}");
    };
    let spec = &node.state.pods[uid].spec;
    assert_eq!(spec.uid, *uid);
    uid.clone()
}

fn want(node: &mut Node, pods: &[&Arc<PodSpec>]) {
    node.tell(Event::Node(NodeFact::DesiredChanged(desired(pods))));
    node.work();
}

/// One of many pods, each with a name of its own.
fn named(n: usize) -> Arc<PodSpec> {
    let name = format!("p{n}");
    let spec = pod(&name, &name, RestartPolicy::Always, &["c"]);
    Arc::new(of_template(spec))
}

/// The only pod ends, and what follows is done.
fn end(node: &mut Node) {
    node.work();
    node.end("c", 143);
    node.work();
}

fn delete(node: &mut Node) {
    let pod = uid(node);
    node.tell(Event::Pod {
        uid: pod,
        fact: PodFact::DeleteRequested { grace_ms: None },
    });
    end(node);
}

#[test]
fn a_deleted_pod_returns_under_a_new_uid_each_time() {
    let wanted = arc("a");
    let mut node = Node::with(&wanted);
    let mut seen = BTreeSet::new();
    for _ in 0..4 {
        node.work();
        assert!(seen.insert(uid(&node)), "{} was used before", uid(&node));
        // The files are read again: the pod stays the same.
        let before = node.state.pods.values().next().unwrap().spec.clone();
        want(&mut node, &[&wanted]);
        let after = node.state.pods.values().next().unwrap().spec.clone();
        assert!(Arc::ptr_eq(&before, &after), "nothing has changed");
        delete(&mut node);
    }
    assert!(node.line().starts_with("Running"), "{}", node.line());
}

#[test]
fn an_edit_that_is_reverted_makes_three_pods() {
    let (one, other) = (arc("a"), arc("b"));
    let mut node = Node::with(&one);
    node.work();
    let mut seen = BTreeSet::from([uid(&node)]);
    for wanted in [&other, &one, &other, &one] {
        want(&mut node, &[wanted]);
        end(&mut node);
        assert!(seen.insert(uid(&node)), "{} was used before", uid(&node));
    }
}

#[test]
fn a_file_that_is_removed_and_restored_makes_a_new_pod() {
    let wanted = arc("a");
    let mut node = Node::with(&wanted);
    node.work();
    let first = uid(&node);
    want(&mut node, &[]);
    end(&mut node);
    assert!(node.state.pods.is_empty());
    want(&mut node, &[&wanted]);
    assert_ne!(uid(&node), first);
}

#[test]
fn an_edit_in_place_keeps_the_uid_of_a_later_pod() {
    let wanted = arc("a");
    let mut node = Node::with(&wanted);
    node.work();
    delete(&mut node);
    let second = uid(&node);
    let mut edited = made_from("a");
    let mut manifest = (*edited.manifest).clone();
    manifest.change_metadata(|metadata| {
        let labels = metadata.labels.get_or_insert_default();
        labels.insert("x".into(), "y".into());
    });
    edited.manifest = Arc::new(manifest);
    want(&mut node, &[&Arc::new(edited)]);
    assert_eq!(uid(&node), second);
    let shown = node.shown().metadata;
    assert_eq!(shown.labels.unwrap()["x"], "y");
    assert_eq!(shown.uid.as_deref(), Some(second.as_str()));
}

#[test]
fn uids_survive_agent_restarts_and_boots() {
    let wanted = arc("a");
    let mut node = Node::with(&wanted);
    node.work();
    delete(&mut node);
    let second = uid(&node);
    let node = reborn(&node, &[&wanted], ready());
    assert_eq!(uid(&node), second, "an agent restart");
    // Nothing of the pod is found after a reboot.
    let mut booted = Node::new(300_000);
    booted.state.incarnations = node.state.incarnations.clone();
    want(&mut booted, &[&wanted]);
    assert_eq!(uid(&booted), second, "a reboot");
    delete(&mut booted);
    assert!(![PodUid::from("a"), second].contains(&uid(&booted)));
}

#[test]
fn the_successor_of_an_edited_pod_keeps_its_uid_over_boots() {
    let [one, other, third] = ["a", "b", "c"].map(arc);
    let mut node = Node::with(&one);
    node.work();
    // The second edit comes while the first pod is still on its way out.
    for edits in [vec![&other], vec![&one, &third], vec![&third, &one, &other]] {
        for wanted in &edits {
            want(&mut node, &[wanted]);
        }
        end(&mut node);
        let last = edits[edits.len() - 1];
        let now = uid(&node);
        for again in 0..2 {
            let kept = serde_json::to_string(&node.state.incarnations).unwrap();
            let mut booted = Node::new(300_000);
            booted.state.incarnations = serde_json::from_str(&kept).unwrap();
            want(&mut booted, &[last]);
            assert_eq!(uid(&booted), now, "boot {again}");
            node = booted;
        }
        node.work();
    }
    // A record of a former version does not know it; a pod that lives on is what counts.
    let mut kept = serde_json::to_value(&node.state.incarnations).unwrap();
    kept[0].as_object_mut().unwrap().remove("next");
    let now = uid(&node);
    node.state.incarnations = serde_json::from_value(kept).unwrap();
    let node = reborn(&node, &[&other], ready());
    let mut booted = Node::new(300_000);
    booted.state.incarnations = node.state.incarnations.clone();
    want(&mut booted, &[&other]);
    assert_eq!(uid(&booted), now);
}

#[test]
fn a_pod_that_is_edited_while_it_waits_keeps_its_uid_over_a_boot() {
    let mut node = Node::set(Settings {
        capacity: Some(Capacity::default()),
        ..Settings::default()
    });
    let [one, other] = ["a", "b"].map(arc);
    want(&mut node, &[&one]);
    want(&mut node, &[&other]);
    let now = uid(&node);
    let mut booted = Node::new(300_000);
    booted.state.incarnations = node.state.incarnations.clone();
    want(&mut booted, &[&other]);
    assert_eq!(uid(&booted), now);
}

#[test]
fn a_running_pod_keeps_its_uid_even_without_a_record_of_its_predecessors() {
    let wanted = arc("a");
    let mut node = Node::with(&wanted);
    node.work();
    delete(&mut node);
    let second = uid(&node);
    node.state.incarnations = Default::default();
    let mut node = reborn(&node, &[&wanted], ready());
    assert_eq!(uid(&node), second);
    delete(&mut node);
    assert!(![PodUid::from("a"), second].contains(&uid(&node)));
}

#[test]
fn a_pod_that_is_deleted_while_it_waits_gets_a_new_uid_and_still_waits() {
    let mut node = Node::set(Settings {
        capacity: Some(Capacity::default()),
        ..Settings::default()
    });
    let wanted = arc("a");
    want(&mut node, &[&wanted]);
    let first = uid(&node);
    let pod = first.clone();
    node.tell(Event::Pod {
        uid: pod,
        fact: PodFact::DeleteRequested { grace_ms: None },
    });
    assert_ne!(uid(&node), first);
    assert!(node.state.pods[&uid(&node)].hold().is_some());
    let second = uid(&node);
    want(&mut node, &[]);
    want(&mut node, &[&wanted]);
    assert_ne!(uid(&node), second, "its file was removed and restored");
}

#[test]
fn a_uid_that_the_manifest_gives_stays() {
    let given = Arc::new(pod("mine", "p", RestartPolicy::Always, &["c"]));
    let mut node = Node::with(&given);
    node.work();
    delete(&mut node);
    assert_eq!(uid(&node), "mine".into());
    want(&mut node, &[]);
    end(&mut node);
    want(&mut node, &[&given]);
    assert_eq!(uid(&node), "mine".into());
}

#[test]
fn a_finished_pod_keeps_its_uid_across_agent_restarts() {
    let wanted = Arc::new(of_template(pod("a", "p", RestartPolicy::Never, &["c"])));
    let mut node = Node::with(&wanted);
    node.work();
    node.end("c", 0);
    node.work();
    let node = reborn(&node, &[&wanted], RecoveredSandbox::Removed);
    assert_eq!(uid(&node), "a".into());
    assert!(node.line().starts_with("Succeeded"), "{}", node.line());
}

#[test]
fn the_newest_thousand_removed_names_are_remembered() {
    let mut node = Node::new(300_000);
    for n in 0..1_100 {
        want(&mut node, &[&named(n)]);
        want(&mut node, &[]);
        end(&mut node);
    }
    let remembered = |n: usize| {
        let mut booted = Node::new(300_000);
        booted.state.incarnations = node.state.incarnations.clone();
        want(&mut booted, &[&named(n)]);
        uid(&booted) != named(n).uid
    };
    assert!(remembered(1_099) && remembered(100));
    assert!(!remembered(99) && !remembered(0));
    let written = serde_json::to_vec(&node.state.incarnations).unwrap();
    assert!(written.len() < 200_000, "{}", written.len());
}

#[test]
fn names_of_pods_that_are_wanted_are_remembered_before_others() {
    let mut node = Node::new(300_000);
    let lasting = named(5_000);
    want(&mut node, &[&lasting]);
    node.work();
    delete(&mut node);
    let second = uid(&node);
    for n in 0..1_100 {
        want(&mut node, &[&lasting, &named(n)]);
        want(&mut node, &[&lasting]);
        let passing = named(n).uid.clone();
        node.work();
        node.end_of(&passing, 143);
        node.work();
    }
    let mut booted = Node::new(300_000);
    booted.state.incarnations = node.state.incarnations.clone();
    want(&mut booted, &[&lasting]);
    assert_eq!(uid(&booted), second);
}
