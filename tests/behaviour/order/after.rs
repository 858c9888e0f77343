//! Annotation `coracle.dev/after`: what a pod waits for, for how long, and when it waits again.

use std::sync::Arc;

use coracle::plan::event::{AskedBy, Group, Outsides, Seen};
use coracle::plan::preview::Preview;
use coracle::plan::{Event, NodeFact, PodFact, Settings};
use coracle::spec::after::{self, Outside};
use coracle::spec::{PodSpec, PodUid, RestartPolicy};
use coracle::types::Time;

use crate::node::{Node, ready, reborn, small};
use crate::pods::{GATE, desired, gate, of_template, pod, set_resources, with_inits};

/// A pod of this name that starts after these items.
fn later(name: &str, text: &str) -> PodSpec {
    let mut spec = of_template(pod(name, name, RestartPolicy::Always, &["c"]));
    if !text.is_empty() {
        spec.after = after::parse(text, "default").expect("valid");
    }
    spec
}

fn wants(node: &mut Node, pods: &[&PodSpec]) {
    let pods: Vec<_> = pods.iter().map(|p| Arc::new((*p).clone())).collect();
    let all: Vec<_> = pods.iter().collect();
    node.tell(Event::Node(NodeFact::DesiredChanged(desired(&all))));
}

fn new() -> Node {
    Node::set(Settings::default())
}

/// Why the pod of this name is held; `None` if it is not.
fn held(node: &Node, name: &str) -> Option<String> {
    let mut pods = node.state.pods.values();
    let pod = pods.find(|pod| *pod.spec.key.name == *name).expect(name);
    let hold = pod.hold()?;
    Some(format!("{}: {}", hold.reason, hold.message))
}

fn runs(node: &Node, name: &str) -> bool {
    let mut pods = node.state.pods.values();
    pods.any(|pod| *pod.spec.key.name == *name && pod.any_running())
}

fn waits(what: &str) -> Option<String> {
    Some(format!("WaitingForDependencies: The pod waits: {what}."))
}

fn see(node: &mut Node, seen: &[(Outside, bool)]) {
    let seen: Outsides = seen
        .iter()
        .map(|(outside, there)| {
            let there = *there;
            (
                outside.clone(),
                Seen {
                    there,
                    problem: None,
                },
            )
        })
        .collect();
    node.tell(Event::Node(NodeFact::OutsideSeen(seen)));
}

fn uid(node: &Node, name: &str) -> PodUid {
    let mut pods = node.state.pods.values();
    let pod = pods.find(|pod| *pod.spec.key.name == *name).expect(name);
    pod.spec.uid.clone()
}

#[test]
fn a_pod_waits_until_the_containers_of_the_other_are_started() {
    let mut node = new();
    let db = with_inits(later("db", ""), &["i"]);
    let web = later("web", "db");
    wants(&mut node, &[&db, &web]);
    assert_eq!(
        held(&node, "web"),
        waits("pod `default/db` has not started")
    );
    let shown = node.said();
    assert_eq!(
        shown,
        ["Normal WaitingForDependencies The pod waits: pod `default/db` has not started."]
    );
    node.work();
    // The init container runs.
    assert!(held(&node, "web").is_some());
    node.end_of(&uid(&node, "db"), 0);
    node.work();
    assert_eq!(held(&node, "web"), None);
    assert!(runs(&node, "db") && runs(&node, "web"));
}

#[test]
fn a_pod_that_does_not_exist_yet_is_waited_for() {
    let mut node = new();
    let web = later("web", "other/db:ready");
    wants(&mut node, &[&web]);
    assert_eq!(held(&node, "web"), waits("pod `other/db` does not exist"));
    assert_eq!(node.wake_at(), None);
    let mut db = later("db", "");
    db.key.namespace = "other".into();
    wants(&mut node, &[&web, &db]);
    assert_eq!(held(&node, "web"), waits("pod `other/db` is not ready"));
    node.work();
    assert!(runs(&node, "web"));
}

#[test]
fn ready_means_the_condition_with_its_gates() {
    let mut node = new();
    let mut db = later("db", "");
    db.readiness_gates = vec![GATE.to_owned()];
    let (started, set) = (later("a", "db"), later("b", "db:ready"));
    wants(&mut node, &[&db, &started, &set]);
    node.work();
    assert!(runs(&node, "a"));
    assert_eq!(held(&node, "b"), waits("pod `default/db` is not ready"));
    let pod = uid(&node, "db");
    let changes = vec![gate(true)];
    node.tell(Event::Pod {
        uid: pod,
        fact: PodFact::ConditionsSet { changes },
    });
    node.work();
    assert!(runs(&node, "b"));
}

#[test]
fn a_pod_that_is_done_counts_as_started_and_a_crashing_one_does_not() {
    let mut node = new();
    let mut job = later("job", "");
    job.restart_policy = RestartPolicy::Never;
    let crash = later("crash", "");
    wants(&mut node, &[&job, &crash]);
    node.work();
    node.end_of(&uid(&node, "job"), 0);
    node.work();
    for _ in 0..2 {
        node.end_of(&uid(&node, "crash"), 1);
        node.work();
    }
    wants(
        &mut node,
        &[&job, &crash, &later("a", "job"), &later("b", "crash")],
    );
    node.work();
    assert!(runs(&node, "a"));
    assert_eq!(
        held(&node, "b"),
        waits("pod `default/crash` has not started")
    );
    // The back-off ends.
    node.wait(60_000);
    node.work();
    assert!(runs(&node, "b"));
}

#[test]
fn a_pod_has_completed_when_all_of_its_containers_have_ended_well() {
    let mut node = new();
    let mut step = later("step", "");
    step.restart_policy = RestartPolicy::OnFailure;
    let web = later("web", "step:complete?again");
    wants(&mut node, &[&step, &web]);
    node.work();
    let not_yet = || waits("pod `default/step` has not completed");
    assert!(runs(&node, "step"));
    assert_eq!(held(&node, "web"), not_yet());
    // It fails, and runs again.
    node.end_of(&uid(&node, "step"), 1);
    node.work();
    assert_eq!(held(&node, "web"), not_yet());
    node.wait(60_000);
    node.work();
    node.end_of(&uid(&node, "step"), 0);
    node.work();
    assert_eq!(held(&node, "web"), None);
    assert!(runs(&node, "web"));
    // One that never restarts and fails will not complete; nor will one that always restarts.
    for (policy, state) in [
        (RestartPolicy::Never, "has failed"),
        (RestartPolicy::Always, "has not completed"),
    ] {
        let mut node = new();
        step.restart_policy = policy;
        wants(&mut node, &[&step, &web]);
        node.work();
        let code = i32::from(policy == RestartPolicy::Never);
        node.end_of(&uid(&node, "step"), code);
        node.work();
        assert_eq!(
            held(&node, "web"),
            waits(&format!("pod `default/step` {state}"))
        );
    }
}

#[test]
fn things_outside_are_waited_for_together_and_the_message_names_what_is_missing() {
    let mut node = new();
    let text = "device:/dev/a, file:/run/b, mount:/c, unit:d.service, time-sync";
    let web = later("web", text);
    wants(&mut node, &[&web]);
    let hold = held(&node, "web").unwrap();
    assert_eq!(
        hold,
        "WaitingForDependencies: What the pod starts after is being looked for."
    );
    assert_eq!(node.said(), [""; 0], "nothing is known to be missing");
    let all = [
        Outside::Device("/dev/a".into()),
        Outside::File("/run/b".into()),
        Outside::Mount("/c".into()),
        Outside::Unit("d.service".into()),
        Outside::TimeSync,
    ];
    assert_eq!(node.state.wanted_outside(), all.clone().into());
    let lacks = [
        "device `/dev/a` is not there",
        "file `/run/b` is not there",
        "nothing is mounted at `/c`",
        "unit `d.service` is not active",
        "the clock is not synchronised",
    ];
    for there in 0..all.len() {
        let seen = all.iter().enumerate();
        let seen: Vec<_> = seen
            .map(|(i, outside)| (outside.clone(), i < there))
            .collect();
        see(&mut node, &seen);
        assert_eq!(held(&node, "web"), waits(&lacks[there..].join("; ")));
        assert_eq!(node.open, []);
    }
    let seen: Vec<_> = all.iter().map(|outside| (outside.clone(), true)).collect();
    see(&mut node, &seen);
    node.work();
    assert!(runs(&node, "web"));
    // Nothing is watched any more, and a loss means nothing.
    assert_eq!(node.state.wanted_outside(), [].into());
    see(&mut node, &[(all[0].clone(), false)]);
    assert!(runs(&node, "web") && node.open.is_empty());
}

#[test]
fn why_something_cannot_be_found_out_is_in_the_message() {
    let mut node = new();
    wants(&mut node, &[&later("web", "unit:a.service")]);
    let seen = Seen {
        there: false,
        problem: Some("no systemd".to_owned()),
    };
    let seen = [(Outside::Unit("a.service".into()), seen)].into();
    node.tell(Event::Node(NodeFact::OutsideSeen(seen)));
    assert_eq!(
        held(&node, "web"),
        waits("unit `a.service` is not active (no systemd)")
    );
}

#[test]
fn a_time_out_lets_the_pod_start_or_is_reported_once() {
    for (then, starts) in [("start", true), ("wait", false)] {
        let mut node = new();
        let text = format!("db:ready?timeout=30s&then={then}, a?timeout=10s&then=start");
        wants(&mut node, &[&later("web", &text)]);
        let begin = node.now;
        assert_eq!(node.wake_at(), Some(begin + 10_000));
        node.wait(10_000);
        assert_eq!(held(&node, "web"), waits("pod `default/db` does not exist"));
        assert_eq!(node.wake_at(), Some(begin + 30_000));
        node.wait(19_999);
        assert!(held(&node, "web").is_some());
        node.wait(1);
        node.work();
        assert_eq!(runs(&node, "web"), starts, "{then}");
        assert_eq!(node.wake_at(), None);
        let text = match starts {
            true => "starts without it",
            false => "goes on waiting",
        };
        let said = format!(
            "Warning DependencyTimeout `default/db:ready` was not there after 30s. The pod {text}."
        );
        assert_eq!(node.said().iter().filter(|line| **line == said).count(), 1);
        wants(
            &mut node,
            &[
                &later(
                    "web",
                    &format!("db:ready?timeout=30s&then={then}, a?timeout=10s&then=start"),
                ),
                &later("db", ""),
            ],
        );
        node.work();
        assert!(runs(&node, "web"));
        assert_eq!(node.said().iter().filter(|line| **line == said).count(), 1);
    }
}

#[test]
fn an_agent_restart_neither_shortens_nor_repeats_a_wait() {
    let mut node = new();
    let web = Arc::new(later("web", "db?timeout=30s&then=start, x?timeout=5s"));
    wants(&mut node, &[&web]);
    let begin = node.now;
    node.wait(5_000);
    let overdue = |node: &Node| {
        let said = node.said();
        said.iter()
            .filter(|l| l.contains("DependencyTimeout"))
            .count()
    };
    assert_eq!(overdue(&node), 1);
    let mut node = reborn(&node, &[&web], ready());
    assert_eq!(overdue(&node), 0, "it was reported");
    assert_eq!(node.wake_at(), Some(begin + 30_000));
    // Let in, but nothing exists of it yet.
    let short = Arc::new(later("web", "db?timeout=30s&then=start"));
    wants(&mut node, &[&short]);
    node.wait(25_000);
    assert_eq!(held(&node, "web"), None);
    assert_eq!(overdue(&node), 1);
    let mut pods = node.state.pods.values_mut();
    let web = pods.next().unwrap();
    web.in_flight = None;
    let saved = node.state.holds();
    let mut next = new();
    next.now = node.now;
    next.state.former_holds = saved;
    wants(&mut next, &[&short]);
    assert_eq!(held(&next, "web"), None, "it stays let in");
    assert_eq!(overdue(&next), 0);
}

#[test]
fn a_pod_that_was_let_in_does_not_wait_again_even_over_an_agent_restart() {
    let mut node = new();
    let (db, web) = (
        Arc::new(later("db", "")),
        Arc::new(later("web", "db:ready")),
    );
    wants(&mut node, &[&db, &web]);
    node.work();
    assert!(runs(&node, "web"));
    wants(&mut node, &[&web]);
    node.work();
    assert!(runs(&node, "web"));
    let node = reborn(&node, &[&web], ready());
    assert!(runs(&node, "web"));
    assert_eq!(held(&node, "web"), None);
    // After a reboot nothing is left, and the order counts again.
    let mut booted = new();
    wants(&mut booted, &[&web]);
    assert_eq!(
        held(&booted, "web"),
        waits("pod `default/db` does not exist")
    );
}

#[test]
fn with_again_a_pod_is_stopped_and_waits_when_what_it_starts_after_is_lost() {
    let mut node = new();
    let (db, web) = (later("db", ""), later("web", "db:ready?again"));
    let tail = later("tail", "web?again");
    wants(&mut node, &[&db, &web, &tail]);
    node.work();
    assert!(runs(&node, "tail"));
    let before = uid(&node, "web");
    node.end_of(&uid(&node, "db"), 1);
    let said = node.said();
    assert!(
        said.contains(&"Warning DependencyLost The pod is stopped and waits again: pod `default/db` is not ready.".to_owned()),
        "{said:?}"
    );
    assert!(
        said.contains(&"Warning DependencyLost The pod is stopped and waits again: pod `default/web` has not started.".to_owned()),
        "{said:?}"
    );
    // Only the crashed container may start meanwhile.
    for name in ["web", "tail"] {
        let mut pods = node.state.pods.values();
        let pod = pods.find(|pod| *pod.spec.key.name == *name).unwrap();
        assert!(pod.stopping().is_some(), "{name}");
    }
    node.work();
    for name in ["tail", "web"] {
        let uid = uid(&node, name);
        node.end_of(&uid, 143);
        node.work();
    }
    // The dependency is ready again, so both came back, as new pods.
    assert!(runs(&node, "web") && runs(&node, "tail"));
    assert_ne!(uid(&node, "web"), before);
}

#[test]
fn a_loss_while_no_agent_ran_counts_too_and_an_unknown_state_does_not() {
    let mut node = new();
    let db = Arc::new(later("db", ""));
    let web = Arc::new(later("web", "db?again"));
    let log = Arc::new(later("log", "mount:/data?again"));
    let mount = Outside::Mount("/data".into());
    wants(&mut node, &[&db, &web, &log]);
    see(&mut node, &[(mount.clone(), true)]);
    node.work();
    assert!(runs(&node, "web") && runs(&node, "log"));
    let mut node = reborn(&node, &[&web, &log], ready());
    let stopping = |node: &Node, name: &str| {
        let mut pods = node.state.pods.values();
        pods.any(|pod| *pod.spec.key.name == *name && pod.stopping().is_some())
    };
    assert!(
        stopping(&node, "web"),
        "its dependency has no file any more"
    );
    assert!(!stopping(&node, "log"), "nothing is known of the mount");
    assert_eq!(node.state.wanted_outside(), [mount.clone()].into());
    see(&mut node, &[(mount.clone(), true)]);
    assert!(!stopping(&node, "log"));
    see(&mut node, &[(mount, false)]);
    assert!(stopping(&node, "log"));
}

#[test]
fn a_pod_that_started_without_an_item_is_not_stopped_for_it() {
    let mut node = new();
    let web = later("web", "db?timeout=1s&then=start&again");
    wants(&mut node, &[&web]);
    node.wait(1_000);
    node.work();
    assert!(runs(&node, "web"));
    let db = later("db", "");
    wants(&mut node, &[&web, &db]);
    assert!(runs(&node, "web") && node.state.pods.values().all(|p| p.stopping().is_none()));
    node.work();
    // Now it was there, and a loss counts.
    node.end_of(&uid(&node, "db"), 1);
    assert!(node.state.pods.values().any(|p| p.stopping().is_some()));
}

#[test]
fn a_shutdown_stops_pods_in_its_own_order() {
    let mut node = new();
    let mut db = later("db", "");
    db.priority = -1;
    wants(&mut node, &[&db, &later("web", "db?again")]);
    node.work();
    let groups = vec![
        Group {
            priority: -1,
            seconds: 20,
        },
        Group {
            priority: 0,
            seconds: 20,
        },
    ];
    node.tell(Event::Node(NodeFact::ShutdownBegun {
        groups,
        asked_by: AskedBy::Command,
    }));
    node.work();
    let lost = |node: &Node| node.said().iter().any(|l| l.contains("DependencyLost"));
    assert!(!lost(&node));
    assert!(runs(&node, "web"));
    assert!(node.state.pods.values().all(|p| p.stopping().is_none()));
}

#[test]
fn a_pod_that_waits_claims_no_room_and_a_cordon_comes_first() {
    let mut node = Node::set(small());
    let mut big = later("big", "db");
    let mut other = later("other", "");
    for spec in [&mut big, &mut other] {
        set_resources(spec, "c", 800, 1 << 20);
    }
    big.priority = 1_000;
    wants(&mut node, &[&other, &big]);
    node.work();
    assert!(
        runs(&node, "other"),
        "it is not preempted for a pod that waits"
    );
    assert_eq!(held(&node, "big"), waits("pod `default/db` does not exist"));
    node.tell(Event::Node(NodeFact::Cordoned));
    assert!(held(&node, "big").unwrap().starts_with("NodeCordoned"));
    assert_eq!(node.wake_at(), None);
    node.tell(Event::Node(NodeFact::Uncordoned));
    assert_eq!(held(&node, "big"), waits("pod `default/db` does not exist"));
}

#[test]
fn a_pod_does_not_preempt_what_it_starts_after() {
    let mut node = Node::set(small());
    let (mut db, mut web) = (later("db", "disk"), later("web", "db:ready"));
    let mut disk = later("disk", "");
    let mut other = later("other", "db");
    for (spec, cpu) in [
        (&mut db, 300),
        (&mut disk, 300),
        (&mut web, 800),
        (&mut other, 200),
    ] {
        set_resources(spec, "c", cpu, 1 << 20);
    }
    web.priority = 1_000;
    wants(&mut node, &[&db, &web, &disk, &other]);
    node.work();
    // Only the pod beside them could go, and that is not enough.
    assert!(runs(&node, "db") && runs(&node, "disk") && runs(&node, "other"));
    assert!(held(&node, "web").unwrap().starts_with("OutOfcpu"));
    assert_eq!(node.open, []);
}

#[test]
fn a_held_pods_annotation_can_be_edited_and_its_wait_goes_on() {
    let mut node = new();
    wants(&mut node, &[&later("web", "a?timeout=10s")]);
    node.wait(4_000);
    let mut edited = later("web", "b?timeout=10s&then=start");
    let mut manifest = (*edited.manifest).clone();
    let annotations = [("x".to_owned(), "y".to_owned())].into();
    manifest.change_metadata(|metadata| metadata.annotations = Some(annotations));
    edited.manifest = Arc::new(manifest);
    wants(&mut node, &[&edited]);
    assert_eq!(held(&node, "web"), waits("pod `default/b` does not exist"));
    assert_eq!(node.wake_at(), Some(node.now + 6_000));
    node.wait(6_000);
    node.work();
    assert!(runs(&node, "web"));
    let waiting = &node.state.pods.values().next().unwrap().waiting;
    assert_eq!(waiting.let_in.unwrap().time, Time(node.now));
    assert_eq!(waiting.items.len(), 1);
    assert!(waiting.items[0].overdue);
}

#[test]
fn a_deleted_pod_waits_anew_and_a_preview_says_so() {
    let mut node = new();
    let (db, web) = (later("db", ""), later("web", "db, mount:/data"));
    let hold = |node: &Node| match node.state.preview(&web) {
        Preview::Create { hold } => hold.map(|held| held.rejection.message),
        other => panic!("{other:?}"),
    };
    wants(&mut node, &[&db]);
    assert_eq!(
        hold(&node).unwrap(),
        "The pod waits: pod `default/db` has not started."
    );
    node.work();
    assert_eq!(hold(&node).unwrap(), "Not looked for yet: mount:/data.");
    let web = later("web", "db");
    wants(&mut node, &[&db, &web]);
    node.work();
    wants(&mut node, &[&web]);
    node.work();
    node.end_of(&uid(&node, "db"), 0);
    node.work();
    let pod = uid(&node, "web");
    node.tell(Event::Pod {
        uid: pod.clone(),
        fact: PodFact::DeleteRequested { grace_ms: None },
    });
    node.work();
    node.end_of(&pod, 0);
    node.work();
    assert_eq!(held(&node, "web"), waits("pod `default/db` does not exist"));
}
