//! Admission: which pods are admitted, which wait, and what is reported about them.

#[path = "admission/preempt.rs"]
mod preempt;
#[path = "admission/reasons.rs"]
mod reasons;

use std::sync::Arc;

use coracle::plan::event::{AskedBy, Group};
use coracle::plan::fit::NodeIdentity;
use coracle::plan::resize::Capacity;
use coracle::plan::verdict::Cause;
use coracle::plan::{Event, NodeFact, PodFact, RunFact, Settings, status};
use coracle::spec::placement::{Requirement, Term, Test};
use coracle::spec::{ContainerPort, HugePages, PodSpec, Protocol, QosClass, RestartPolicy};

use crate::node::{Node, page_size, ready, reborn, small};
use crate::pods::{at, desired, exit, gate, pod, recovered, set_image, set_resources};

const MIB: u64 = 1 << 20;

fn sized(name: &str, cpu_milli: u64, mib: u64) -> PodSpec {
    let mut spec = pod(name, name, RestartPolicy::Always, &["c"]);
    set_resources(&mut spec, "c", cpu_milli, mib * MIB);
    spec
}

fn with_priority(mut spec: PodSpec, priority: i32) -> PodSpec {
    spec.priority = priority;
    spec
}

fn pages(sizes: &[(&str, u64)]) -> HugePages {
    let sizes = sizes.iter();
    sizes
        .map(|(size, bytes)| (page_size(size), *bytes))
        .collect()
}

impl Node {
    fn wants(&mut self, pods: &[&PodSpec]) {
        let pods: Vec<_> = pods.iter().map(|p| Arc::new((*p).clone())).collect();
        self.tell(Event::Node(NodeFact::DesiredChanged(desired(
            &pods.iter().collect::<Vec<_>>(),
        ))));
        self.work();
    }

    /// Which pods run, and what each of the others waits for.
    fn stands(&self) -> Vec<String> {
        let all = self.state.pods.values().map(|pod| {
            let how = match &pod.hold() {
                Some(hold) => hold.reason.to_string(),
                None if pod.any_running() => "runs".to_owned(),
                None => "does not run".to_owned(),
            };
            format!("{} {how}", pod.spec.key.name)
        });
        all.collect()
    }
}

#[test]
fn manifests_concern_the_pods_that_they_change() {
    let spec = |name, cpu_milli| Arc::new(sized(name, cpu_milli, 10));
    let (a, b, c) = (spec("a", 100), spec("b", 100), spec("c", 100));
    let (large, resized) = (spec("d", 5_000), spec("b", 200));
    let mut edited = sized("b", 100, 10);
    set_image(&mut edited, "c", "img:2");
    let edited = Arc::new(edited);
    let named = with_priority(PodSpec::clone(&c), 1);
    let named = Arc::new(named);
    let mut critical = with_priority(sized("e", 900, 10), 2_000_000_000);
    critical.qos = QosClass::Guaranteed;
    let critical = Arc::new(critical);
    let all = [&a, &b, &c];
    for (what, wanted, expected) in [
        ("the same", &all[..], &[][..]),
        ("read again from the file", &[&a, &b, &named], &["c"]),
        ("one edited", &[&a, &edited, &c], &["b"]),
        (
            "one resized, which may take others' room",
            &[&a, &resized, &c],
            &["all", "b"],
        ),
        ("one gone", &[&a, &c], &["b"]),
        ("one more", &[&a, &b, &c, &spec("d", 100)], &["d"]),
        (
            "one more that does not fit",
            &[&a, &b, &c, &large],
            &["all", "d"],
        ),
        (
            "one more that others make room for",
            &[&a, &b, &c, &critical],
            &["all", "e"],
        ),
        ("none", &[], &["a", "b", "c"]),
    ] {
        let mut node = Node::set(small());
        node.tell(Event::Node(NodeFact::DesiredChanged(desired(&all))));
        node.work();
        let holds = node.state.hold_changes;
        let wants = Event::Node(NodeFact::DesiredChanged(desired(wanted)));
        node.state.apply(&wants, at(node.now));
        let touched = node.state.touched.iter().map(|uid| uid.as_str());
        let all = (holds != node.state.hold_changes).then_some("all");
        let touched: Vec<&str> = all.into_iter().chain(touched).collect();
        assert_eq!(touched, expected, "{what}");
        assert_eq!(node.state.unsettled(at(node.now)), [], "{what}");
    }
}

fn on_port(name: &str, ip: Option<&str>, port: u16, protocol: Protocol) -> PodSpec {
    let mut spec = sized(name, 100, 10);
    spec.containers[0].ports = vec![ContainerPort {
        name: None,
        container_port: 80,
        host_port: Some(port),
        host_ip: ip.map(|ip| ip.parse().unwrap()),
        protocol,
    }];
    spec
}

#[test]
fn a_pod_that_does_not_fit_is_pending_with_the_kubelets_reason() {
    let mut node = Node::set(small());
    node.wants(&[&sized("p", 1_001, 10)]);
    assert_eq!(node.open, []);
    let text = "Node didn't have enough resource: cpu, requested: 1001, used: 0, capacity: 1000";
    assert_eq!(node.said(), [format!("Warning OutOfcpu {text}")]);
    let shown = node.shown();
    let status = shown.status.unwrap();
    assert_eq!(status.phase.as_deref(), Some("Pending"));
    assert_eq!(status.reason.as_deref(), Some("OutOfcpu"));
    assert_eq!(status.message.as_deref(), Some(text));
    // kubectl then shows the reason as the status.
    assert_eq!(status.container_statuses, None);
    assert_eq!(status.start_time, None);
    let line = node.line();
    let condition = format!("PodScheduled=False Unschedulable: {text}");
    assert!(line.contains(&condition), "{line}");
    assert_eq!(node.wake_at(), None);
}

/// Why the node refuses this pod, if it does.
fn refused(node: &mut Node, spec: &PodSpec) -> Option<(String, String)> {
    node.wants(&[spec]);
    let hold = node.state.pods[&spec.uid].hold()?;
    Some((hold.reason.to_string(), hold.message.clone()))
}

#[test]
fn a_pod_that_waits_is_admitted_as_soon_as_there_is_room() {
    let finishing = |name: &str| {
        let mut spec = pod(name, name, RestartPolicy::Never, &["c"]);
        set_resources(&mut spec, "c", 600, 10 * MIB);
        spec
    };
    let (first, waits) = (finishing("a"), sized("b", 600, 10));
    let blocked = ["a runs", "b OutOfcpu"];
    let full = || {
        let mut node = Node::set(small());
        node.wants(&[&first]);
        node.wait(1_000);
        node.wants(&[&first, &waits]);
        assert_eq!(node.stands(), blocked);
        node
    };
    // The running pod ends.
    let mut node = full();
    node.wait(5_000);
    node.end_of(&first.uid, 0);
    node.work();
    assert_eq!(node.stands(), ["a does not run", "b runs"]);
    let started = node.state.pods[&waits.uid].created.time.0;
    assert_eq!(started, node.now, "its time begins when it is admitted");
    // The running pod is removed.
    let mut node = full();
    node.wants(&[&waits]);
    assert_eq!(node.stands(), blocked);
    node.end_of(&first.uid, 143);
    node.work();
    assert_eq!(node.stands(), ["b runs"]);
    // The running pod is edited to request less.
    let mut node = full();
    let mut less = first.clone();
    set_resources(&mut less, "c", 400, 10 * MIB);
    node.wants(&[&less, &waits]);
    assert_eq!(node.stands(), ["a runs", "b runs"]);
    // The waiting pod is edited to request less.
    let mut node = full();
    node.wants(&[&first, &sized("b", 400, 10)]);
    assert_eq!(node.stands(), ["a runs", "b runs"]);
    assert_eq!(node.state.pods[&waits.uid].pending, None);
    // The node gets more.
    let mut node = full();
    node.tell(Event::Node(NodeFact::SettingsChanged(Settings::default())));
    node.work();
    assert_eq!(node.stands(), ["a runs", "b runs"]);
}

#[test]
fn a_reason_is_reported_once_until_it_changes() {
    let mut node = Node::set(small());
    let (a, p) = (sized("a", 500, 90), sized("p", 600, 20));
    node.wants(&[&a]);
    node.wait(1);
    node.wants(&[&a, &p]);
    let since = node.state.pods[&p.uid].hold().cloned().unwrap().since;
    node.tell(Event::Node(NodeFact::SettingsChanged(small())));
    node.wait(1_000);
    node.wants(&[&a, &p]);
    let about = |node: &Node| {
        let own = node.notices.iter().filter(|n| n.uid == p.uid);
        own.map(|n| n.reason.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(about(&node), ["OutOfcpu"]);
    let smaller = sized("p", 100, 20);
    node.wants(&[&a, &smaller]);
    assert_eq!(about(&node), ["OutOfcpu", "OutOfmemory"]);
    let hold = node.state.pods[&p.uid].hold().cloned().unwrap();
    assert_eq!(hold.since, since);
    let text = "Node didn't have enough resource: memory, requested: 20971520, used: 94371840, \
                capacity: 104857600";
    assert_eq!(hold.message, text);
}

#[test]
fn the_more_important_pod_comes_first_then_the_older_and_a_smaller_one_need_not_wait() {
    let mut node = Node::set(small());
    let first = with_priority(sized("first", 900, 10), 1);
    node.wants(&[&first]);
    let (old, young) = (sized("old", 600, 10), sized("a-young", 600, 10));
    let important = with_priority(sized("z-important", 600, 10), 1);
    node.wants(&[&first, &old]);
    node.wait(1);
    node.wants(&[&first, &old, &young]);
    node.wait(1);
    let small = sized("small", 100, 10);
    node.wants(&[&first, &old, &young, &important, &small]);
    assert_eq!(
        node.stands(),
        [
            "a-young OutOfcpu",
            "first runs",
            "old OutOfcpu",
            "small runs",
            "z-important OutOfcpu",
        ]
    );
    let runs = |node: &Node, name: &str| node.stands().contains(&format!("{name} runs"));
    node.wants(&[&old, &young, &important, &small]);
    node.end_of(&first.uid, 0);
    node.work();
    assert!(runs(&node, "z-important"), "{:?}", node.stands());
    assert!(!runs(&node, "old"));
    node.wants(&[&old, &young, &small]);
    node.end_of(&important.uid, 0);
    node.work();
    assert!(runs(&node, "old"), "{:?}", node.stands());
    assert!(!runs(&node, "a-young"));
}

#[test]
fn a_pod_that_waits_may_be_edited_in_any_way_deleted_and_removed() {
    let mut node = Node::set(small());
    let p = sized("p", 2_000, 10);
    node.wants(&[&p]);
    let uid = p.uid.clone();
    node.tell(Event::Pod {
        uid: uid.clone(),
        fact: PodFact::ConditionsSet {
            changes: vec![gate(true)],
        },
    });
    let mut other = p.clone();
    set_image(&mut other, "c", "img:2");
    node.wants(&[&other]);
    let held = &node.state.pods[&uid];
    assert_eq!(held.spec.containers[0].image, "img:2");
    assert_eq!(held.foreign.len(), 1, "its foreign conditions stay");
    // An edit for which a running pod would be replaced.
    let mut other = sized("p", 3_000, 10);
    Arc::make_mut(&mut other.manifest)
        .change_spec(|spec| spec.restart_policy = Some("Never".to_owned()));
    other.restart_policy = RestartPolicy::Never;
    node.wants(&[&other]);
    let held = &node.state.pods[&uid];
    assert_eq!(held.spec.restart_policy, RestartPolicy::Never);
    assert!(
        held.hold()
            .cloned()
            .unwrap()
            .message
            .contains("requested: 3000")
    );
    assert!(held.stopping().is_none());
    node.wait(1_000);
    node.tell(Event::Pod {
        uid: uid.clone(),
        fact: PodFact::DeleteRequested { grace_ms: None },
    });
    let held = &node.state.pods[&uid];
    assert!(held.hold().is_some() && held.stopping().is_none());
    node.wants(&[]);
    assert!(node.state.pods.is_empty());
    assert_eq!(node.open, []);
}

#[test]
fn pods_from_before_the_agent_restart_stay_admitted_and_others_are_judged_again() {
    let mut node = Node::set(small());
    let (a, b) = (sized("a", 600, 10), sized("b", 600, 10));
    node.wants(&[&a, &b]);
    assert_eq!(node.stands(), ["a runs", "b OutOfcpu"]);
    let (a, b) = (Arc::new(a), Arc::new(b));
    let tight = Settings {
        capacity: Some(Capacity {
            cpu_milli: 100,
            memory_bytes: MIB,
            storage_bytes: 1_000,
            huge_pages: HugePages::new(),
            pods: 10,
        }),
        ..Settings::default()
    };
    let mut new = reborn(&node, &[&a], ready());
    new.tell(Event::Node(NodeFact::SettingsChanged(tight)));
    new.tell(Event::Node(NodeFact::DesiredChanged(desired(&[&a, &b]))));
    new.work();
    assert_eq!(new.stands(), ["a runs", "b OutOfcpu"]);
    let text = "requested: 600, used: 600, capacity: 100";
    let hold = new.state.pods[&b.uid].hold().cloned().unwrap();
    assert!(hold.message.ends_with(text), "{hold:?}");
}

#[test]
fn the_next_agent_knows_since_when_a_pod_has_waited() {
    let mut node = Node::set(small());
    let (a, b) = (sized("a", 600, 10), sized("b", 600, 10));
    node.wants(&[&a]);
    node.now += 10_000;
    node.wants(&[&a, &b]);
    node.wait(20_000);
    let (a, b) = (Arc::new(a), Arc::new(b));
    let shown = |node: &Node| {
        let pod = &node.state.pods[&b.uid];
        let shown = status::pod(pod, &status::NodeFacts::default(), &node.state.settings);
        (shown.metadata.creation_timestamp, shown.status)
    };
    let mut new = reborn(&node, &[&a, &b], ready());
    assert_eq!(new.stands(), ["a runs", "b OutOfcpu"]);
    assert_eq!(shown(&new), shown(&node));
    // Its time begins once it is admitted.
    new.now += 10_000;
    new.want(&[&b]);
    new.work();
    new.end_of(&a.uid, 0);
    new.work();
    assert_eq!(new.stands(), ["b runs"]);
    assert!(new.state.pods[&b.uid].created > node.state.pods[&b.uid].created);

    // A pod that need not wait any more is like a new one.
    let new = reborn(&node, &[&b], ready());
    assert_eq!(new.stands(), ["a runs", "b OutOfcpu"]);
    node.state.settings = Settings::default();
    let new = reborn(&node, &[&a, &b], ready());
    let pod = &new.state.pods[&b.uid];
    assert_eq!((&pod.hold(), pod.created), (&None, at(new.now)));
    assert!(new.state.former_holds.is_empty());
}

#[test]
fn a_shutdown_does_not_wait_for_pods_that_were_not_admitted_and_they_keep_their_place() {
    let mut node = Node::set(small());
    let (a, b) = (sized("a", 600, 10), sized("b", 600, 10));
    node.wants(&[&a, &b]);
    node.tell(Event::Node(NodeFact::ShutdownBegun {
        groups: vec![Group {
            priority: 0,
            seconds: 30,
        }],
        asked_by: AskedBy::Command,
    }));
    node.work();
    let late = sized("late", 600, 10);
    node.wants(&[&a, &b, &late]);
    node.end_of(&a.uid, 143);
    node.work();
    let ended = node.state.shutdown.as_ref().unwrap().ended;
    assert!(ended.is_some(), "the shutdown waits for no pod");
    assert_eq!(
        node.stands(),
        ["a does not run", "b OutOfcpu", "late does not run"]
    );
    node.tell(Event::Node(NodeFact::ShutdownCancelled));
    node.work();
    assert_eq!(node.stands(), ["a runs", "b OutOfcpu", "late OutOfcpu"]);
}
