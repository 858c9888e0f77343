//! A node that is cordoned or drained: which pods may start, stay or leave, and that all of them return
//! (`coracle help differences`).

use std::collections::BTreeSet;
use std::sync::Arc;

use coracle::plan::cordon::{candidates, next};
use coracle::plan::event::{AskedBy, Group};
use coracle::plan::recovered::RecoveredSandbox;
use coracle::plan::status::{self, NodeFacts};
use coracle::plan::{Event, NodeFact, PodFact, PodState, Step};
use coracle::spec::{PodSpec, PodUid, Reason, RestartPolicy};

use crate::node::{Node, ready, reborn};
use crate::pods::{desired, pod};

fn important(name: &str, priority: i32, grace_ms: u64) -> Arc<PodSpec> {
    let mut spec = pod(name, name, RestartPolicy::Always, &["c"]);
    (spec.priority, spec.grace_ms) = (priority, grace_ms);
    Arc::new(spec)
}

fn ordinary(name: &str) -> Arc<PodSpec> {
    important(name, 0, 30_000)
}

fn running(pods: &[&Arc<PodSpec>]) -> Node {
    let mut node = Node::new(300_000);
    node.tell(Event::Node(NodeFact::DesiredChanged(desired(pods))));
    node.work();
    node
}

fn drain(node: &mut Node, grace_ms: Option<u64>) {
    node.tell(Event::Node(NodeFact::DrainBegun {
        pods: None,
        grace_ms,
    }));
}

fn state<'n>(node: &'n Node, name: &str) -> &'n PodState {
    &node.state.pods[&PodUid::from(name)]
}

/// `r` for each pod that runs, `s` for one that stops, `w` for one that waits until the node is uncordoned.
fn line(node: &Node) -> String {
    let letter = |pod: &PodState| match &pod.hold() {
        Some(hold) => {
            assert_eq!(hold.reason, Reason::NodeCordoned);
            'w'
        }
        None if pod.stopping().is_some() => 's',
        None if pod.any_running() => 'r',
        None => '-',
    };
    let pods = node.state.pods.values();
    let words = pods.map(|pod| format!("{} {}", pod.spec.uid.as_str(), letter(pod)));
    words.collect::<Vec<_>>().join(", ")
}

/// The pod ends and is removed.
fn end(node: &mut Node, name: &str) {
    node.work();
    node.end_of(&PodUid::from(name), 143);
    node.work();
}

fn delete(node: &mut Node, name: &str) {
    let pod = PodUid::from(name);
    node.tell(Event::Pod {
        uid: pod,
        fact: PodFact::DeleteRequested { grace_ms: None },
    });
}

#[test]
fn new_pods_wait_visibly_and_start_after_the_uncordon() {
    let (old, new) = (ordinary("old"), ordinary("new"));
    let mut node = running(&[&old]);
    node.tell(Event::Node(NodeFact::Cordoned));
    node.tell(Event::Node(NodeFact::DesiredChanged(desired(&[
        &old, &new,
    ]))));
    node.work();
    assert_eq!(line(&node), "new w, old r");
    let shown = status::pod(
        state(&node, "new"),
        &NodeFacts::default(),
        &node.state.settings,
    );
    let status = shown.status.unwrap();
    assert_eq!(status.phase.as_deref(), Some("Pending"));
    assert_eq!(status.reason.as_deref(), Some("NodeCordoned"));
    let message = "The node is cordoned; the pod waits until it is uncordoned.";
    assert_eq!(status.message.as_deref(), Some(message));
    let event = format!("Warning NodeCordoned {message}");
    assert_eq!(node.said().iter().filter(|said| **said == event).count(), 1);
    // It is not reported again, whatever happens.
    node.tell(Event::Node(NodeFact::Cordoned));
    node.wait(1_000_000);
    assert_eq!(node.said().iter().filter(|said| **said == event).count(), 1);
    node.tell(Event::Node(NodeFact::Uncordoned));
    node.work();
    assert_eq!(line(&node), "new r, old r");
}

#[test]
fn a_pod_that_was_there_still_runs_crashes_restarts_and_is_edited() {
    let old = ordinary("old");
    let mut node = running(&[&old]);
    node.tell(Event::Node(NodeFact::Cordoned));
    node.end_of(&old.uid, 1);
    node.wait(20_000);
    node.work();
    assert_eq!(line(&node), "old r");
    // A new manifest of that name takes its place.
    let mut edited = pod("other", "old", RestartPolicy::Never, &["c"]);
    edited.grace_ms = 1_000;
    node.tell(Event::Node(NodeFact::DesiredChanged(desired(&[
        &Arc::new(edited),
    ]))));
    end(&mut node, "old");
    assert_eq!(line(&node), "other r");
}

#[test]
fn a_pod_that_has_not_come_up_when_the_node_is_cordoned_still_does() {
    let mut node = Node::with(&ordinary("slow"));
    node.tell(Event::Node(NodeFact::Cordoned));
    node.work();
    assert_eq!(line(&node), "slow r");
}

#[test]
fn a_deleted_pod_stays_away_until_the_node_is_uncordoned() {
    let (a, b) = (ordinary("a"), ordinary("b"));
    let mut node = running(&[&a, &b]);
    node.tell(Event::Node(NodeFact::Cordoned));
    delete(&mut node, "a");
    end(&mut node, "a");
    assert_eq!(line(&node), "a w, b r");
    // The next agent does the same.
    let mut node = reborn(&node, &[&a, &b], ready());
    node.work();
    assert_eq!(line(&node), "a w, b r");
    node.tell(Event::Node(NodeFact::Uncordoned));
    node.work();
    assert_eq!(line(&node), "a r, b r");
}

#[test]
fn a_drain_stops_the_pods_of_each_priority_when_those_below_are_gone() {
    let pods = [
        important("a", 1_000, 30_000),
        important("b", 0, 30_000),
        important("c", 0, 5_000),
        important("d", 2_000_000_000, 30_000),
        important("e", -5, 30_000),
    ];
    let mut node = running(&pods.each_ref());
    let order = candidates(&node.state, |_| true);
    let order: Vec<&str> = order.iter().map(|p| p.spec.uid.as_str()).collect();
    assert_eq!(order, ["e", "b", "c", "a", "d"]);
    drain(&mut node, None);
    assert_eq!(line(&node), "a r, b r, c r, d r, e s");
    // However long the lowest pod takes.
    node.work();
    node.wait(29_999);
    node.work();
    assert_eq!(line(&node), "a r, b r, c r, d r, e s");
    end(&mut node, "e");
    assert_eq!(line(&node), "a r, b s, c s, d r, e w");
    // Each has its own grace period.
    let grace = |name| state(&node, name).stopping().unwrap().asked_ms;
    assert_eq!((grace("b"), grace("c")), (30_000, 5_000));
    end(&mut node, "b");
    assert_eq!(line(&node), "a r, b w, c s, d r, e w");
    end(&mut node, "c");
    assert_eq!(line(&node), "a s, b w, c w, d r, e w");
    end(&mut node, "a");
    end(&mut node, "d");
    assert_eq!(line(&node), "a w, b w, c w, d w, e w");
    assert_eq!(next(&node.state), Step::Rest);
    node.wait(10_000_000);
    assert!(node.open.is_empty() && node.wake_at().is_none());
    node.tell(Event::Node(NodeFact::Uncordoned));
    node.work();
    assert_eq!(line(&node), "a r, b r, c r, d r, e r");
}

#[test]
fn the_grace_period_of_a_drain_replaces_each_pods_own_and_shortens_stops_in_progress() {
    // The pod's own grace period, the drain's, and the result.
    let table = [
        (30_000, None, 30_000),
        (30_000, Some(5_000), 5_000),
        (5_000, Some(60_000), 60_000),
        (30_000, Some(0), 1_000),
    ];
    for (own, given, grace_ms) in table {
        let mut node = running(&[&important("p", 0, own)]);
        drain(&mut node, given);
        let stopping = state(&node, "p").stopping().unwrap();
        assert_eq!(stopping.grace_ms(), grace_ms);
    }
    let (low, top) = (important("low", 0, 600_000), important("top", 9, 600_000));
    let mut node = running(&[&low, &top]);
    drain(&mut node, None);
    node.work();
    node.wait(10_000);
    drain(&mut node, Some(5_000));
    let stopping = state(&node, "low").stopping().unwrap();
    assert_eq!(stopping.asked_ms, 15_000, "counted from the request");
    end(&mut node, "low");
    let stopping = state(&node, "top").stopping().unwrap();
    assert_eq!(
        stopping.asked_ms, 5_000,
        "it also applies to pods whose turn comes later"
    );
}

#[test]
fn only_the_chosen_pods_leave_and_the_others_stay() {
    let (a, b) = (ordinary("a"), important("b", -9, 0));
    let mut node = running(&[&a, &b]);
    let chosen = BTreeSet::from([a.key.clone()]);
    node.tell(Event::Node(NodeFact::DrainBegun {
        pods: Some(chosen),
        grace_ms: None,
    }));
    assert_eq!(line(&node), "a s, b r");
    end(&mut node, "a");
    assert_eq!(line(&node), "a w, b r");
    // A second drain takes the others.
    drain(&mut node, None);
    end(&mut node, "b");
    assert_eq!(line(&node), "a w, b w");
}

#[test]
fn a_finished_pod_stays_visible_and_the_drain_does_not_wait_for_it() {
    let once = Arc::new(pod("once", "once", RestartPolicy::Never, &["c"]));
    let top = important("top", 5, 0);
    let mut node = running(&[&once, &top]);
    end(&mut node, "once");
    drain(&mut node, None);
    assert_eq!(line(&node), "once -, top s");
    assert!(state(&node, "once").finished());
    end(&mut node, "top");
    assert_eq!(line(&node), "once -, top w");
    node.tell(Event::Node(NodeFact::Uncordoned));
    node.work();
    assert_eq!(line(&node), "once -, top r");
}

#[test]
fn the_drain_waits_for_a_pod_that_fails_meanwhile_for_no_more_than_its_grace_period() {
    let mut late = (*important("late", 0, 600_000)).clone();
    late.active_deadline_ms = Some(5_000);
    let top = important("top", 5, 0);
    let mut node = running(&[&Arc::new(late), &top]);
    node.wait(5_000);
    node.work();
    drain(&mut node, Some(20_000));
    assert_eq!(line(&node), "late r, top r");
    assert_eq!(
        state(&node, "late").verdict.as_ref().unwrap().grace_ms,
        20_000
    );
    end(&mut node, "late");
    assert_eq!(line(&node), "late -, top s");
}

#[test]
fn every_pod_comes_back_after_an_uncordon_in_the_middle_of_a_drain() {
    let (low, top) = (ordinary("low"), important("top", 5, 0));
    let mut node = running(&[&low, &top]);
    drain(&mut node, None);
    node.work();
    node.tell(Event::Node(NodeFact::Uncordoned));
    assert_eq!(line(&node), "low s, top r");
    end(&mut node, "low");
    assert_eq!(line(&node), "low r, top r");
    // Nothing of the drain is left: the next cordon lets the pods stay.
    node.tell(Event::Node(NodeFact::Cordoned));
    node.work();
    assert_eq!(line(&node), "low r, top r");
}

#[test]
fn an_agent_that_dies_at_any_point_of_a_drain_is_followed_by_one_that_continues_it() {
    let pods = [
        important("a", 0, 30_000),
        important("b", 5, 30_000),
        important("c", 9, 30_000),
    ];
    let mut node = running(&pods.each_ref());
    drain(&mut node, None);
    for (name, next) in [("a", "a w, b s, c r"), ("b", "a w, b w, c s")] {
        node = reborn(&node, &pods.each_ref(), ready());
        end(&mut node, name);
        assert_eq!(line(&node), next);
    }
    // The pod's shim has died, too.
    node = reborn(&node, &pods.each_ref(), RecoveredSandbox::Lost);
    node.work();
    assert_eq!(line(&node), "a w, b w, c w");
}

#[test]
fn after_a_boot_only_the_pods_that_stayed_are_admitted() {
    let (a, b, new) = (ordinary("a"), ordinary("b"), ordinary("new"));
    let mut node = running(&[&a, &b]);
    node.tell(Event::Node(NodeFact::Cordoned));
    delete(&mut node, "b");
    let cordon = node.state.cordon.clone().unwrap();
    let boot = |cordon| {
        let mut node = Node::new(300_000);
        node.tell(Event::Node(NodeFact::CordonRecovered(cordon)));
        node.tell(Event::Node(NodeFact::DesiredChanged(desired(&[
            &a, &b, &new,
        ]))));
        node.work();
        node
    };
    assert_eq!(line(&boot(cordon)), "a r, b w, new w");
    drain(&mut node, None);
    let cordon = node.state.cordon.clone().unwrap();
    let mut node = boot(cordon);
    assert_eq!(line(&node), "a w, b w, new w");
    node.tell(Event::Node(NodeFact::Uncordoned));
    node.work();
    assert_eq!(line(&node), "a r, b r, new r");
}

#[test]
fn a_cancelled_shutdown_brings_back_only_pods_that_were_not_drained() {
    let (a, b) = (ordinary("a"), important("b", 5, 30_000));
    let mut node = running(&[&a, &b]);
    let chosen = BTreeSet::from([a.key.clone()]);
    node.tell(Event::Node(NodeFact::DrainBegun {
        pods: Some(chosen),
        grace_ms: None,
    }));
    end(&mut node, "a");
    let groups = vec![Group {
        priority: 0,
        seconds: 60,
    }];
    node.tell(Event::Node(NodeFact::ShutdownBegun {
        groups,
        asked_by: AskedBy::Command,
    }));
    end(&mut node, "b");
    assert!(node.state.shutdown.as_ref().unwrap().ended.is_some());
    node.tell(Event::Node(NodeFact::ShutdownCancelled));
    node.work();
    assert_eq!(line(&node), "a w, b r");
}
