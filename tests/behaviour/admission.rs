//! Who is let in, who waits, and what is said about it?

#[path = "admission/preempt.rs"]
mod preempt;

use std::sync::Arc;

use coracle::plan::event::{AskedBy, Group};
use coracle::plan::fit::NodeIdentity;
use coracle::plan::resize::Capacity;
use coracle::plan::verdict::Cause;
use coracle::plan::{Event, Settings};
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
        self.tell(Event::DesiredChanged(desired(
            &pods.iter().collect::<Vec<_>>(),
        )));
        self.work();
    }

    /// Which pods run, and which wait for what.
    fn stands(&self) -> Vec<String> {
        let all = self.state.pods.values().map(|pod| {
            let how = match &pod.hold {
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
fn a_pod_that_does_not_fit_is_shown_as_pending_with_the_kubelets_reason() {
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
    // kubectl shows the reason as its status then.
    assert_eq!(status.container_statuses, None);
    assert_eq!(status.start_time, None);
    let line = node.line();
    let condition = format!("PodScheduled=False Unschedulable: {text}");
    assert!(line.contains(&condition), "{line}");
    assert_eq!(node.wake_at(), None);
}

/// What the node says of this pod, or nothing.
fn refused(node: &mut Node, spec: &PodSpec) -> Option<(String, String)> {
    node.wants(&[spec]);
    let hold = node.state.pods[&spec.uid].hold.clone()?;
    Some((hold.reason.to_string(), hold.message))
}

#[test]
fn every_resource_has_its_reason_and_the_first_one_that_is_short_is_told() {
    let spec = |cpu, mib, disk| {
        let mut spec = sized("p", cpu, mib);
        spec.storage_request_bytes = disk;
        spec
    };
    let huge = |sizes: &[(&str, u64)]| {
        let mut spec = sized("p", 1_000, 100);
        spec.huge_pages = pages(sizes);
        spec
    };
    for (spec, reason, figures) in [
        (
            huge(&[("2Mi", 10 * MIB), ("1Gi", 0)]),
            "OutOfhugepages-2Mi",
            "hugepages-2Mi, requested: 10485760, used: 0, capacity: 8388608",
        ),
        (
            huge(&[("2Mi", 2 * MIB), ("64Ki", MIB)]),
            "OutOfhugepages-64Ki",
            "hugepages-64Ki, requested: 1048576, used: 0, capacity: 0",
        ),
        (
            spec(1_001, 101, 2_000),
            "OutOfcpu",
            "cpu, requested: 1001, used: 0, capacity: 1000",
        ),
        (
            spec(1_000, 101, 2_000),
            "OutOfmemory",
            "memory, requested: 105906176, used: 0, capacity: 104857600",
        ),
        (
            spec(1_000, 100, 1_001),
            "OutOfephemeral-storage",
            "ephemeral-storage, requested: 1001, used: 0, capacity: 1000",
        ),
    ] {
        let message = format!("Node didn't have enough resource: {figures}");
        let expected = Some((reason.to_owned(), message));
        assert_eq!(refused(&mut Node::set(small()), &spec), expected);
    }
    assert_eq!(
        refused(&mut Node::set(small()), &spec(1_000, 100, 1_000)),
        None
    );
    // Whoever asks for nothing needs a place all the same.
    let bare = |n: u32| {
        pod(
            &format!("p{n:02}"),
            &format!("p{n:02}"),
            RestartPolicy::Always,
            &["c"],
        )
    };
    let all: Vec<_> = (0..12).map(bare).collect();
    let mut node = Node::set(small());
    node.wants(&all.iter().collect::<Vec<_>>());
    let stands = node.stands();
    assert_eq!(&stands[9..], ["p09 runs", "p10 OutOfpods", "p11 OutOfpods"]);
    let hold = node.state.pods[&all[10].uid].hold.clone().unwrap();
    let text = "Node didn't have enough resource: pods, requested: 1, used: 10, capacity: 10";
    assert_eq!(hold.message, text);
    // Nothing but a place, on a node that has given away more than it has.
    let mut node = Node::set(small());
    node.wants(&[&sized("big", 1_000, 100)]);
    let mut less = small();
    less.capacity.as_mut().unwrap().cpu_milli = 10;
    node.tell(Event::SettingsChanged(less));
    node.wants(&[&sized("big", 1_000, 100), &bare(1)]);
    assert_eq!(node.stands(), ["big runs", "p01 runs"]);
}

fn with_label(mut spec: PodSpec, key: &str, value: &str) -> PodSpec {
    let labels = &mut Arc::make_mut(&mut spec.manifest).metadata.labels;
    let labels = labels.get_or_insert_default();
    labels.insert(key.to_owned(), value.to_owned());
    spec
}

#[test]
fn an_unsafe_sysctl_waits_until_the_node_allows_it() {
    let with = |name: &str| {
        let mut pod = sized("p", 100, 10);
        pod.sysctls = vec![(name.to_owned(), "1".to_owned())];
        pod
    };
    let node = |allowed: &[&str]| {
        let mut node = Node::set(small());
        node.state.node = Arc::new(NodeIdentity {
            unsafe_sysctls: allowed.iter().map(|name| name.to_string()).collect(),
            ..NodeIdentity::default()
        });
        node
    };
    let told = refused(&mut node(&[]), &with("net.core.somaxconn")).unwrap();
    let text = "forbidden sysctl: \"net.core.somaxconn\" not allowlisted";
    assert_eq!(told, ("SysctlForbidden".into(), text.into()));
    for (name, allowed, fine) in [
        ("net.ipv4.tcp_syncookies", &[] as &[&str], true),
        ("net.core.somaxconn", &["net.core.*"], true),
        ("kernel.msgmax", &["net.core.*"], false),
    ] {
        let told = refused(&mut node(allowed), &with(name));
        assert_eq!(told.is_none(), fine, "{name}");
    }
}

#[test]
fn a_pod_for_another_system_or_node_waits_with_the_kubelets_reason() {
    let node = || {
        let mut node = Node::set(small());
        node.state.node = Arc::new(NodeIdentity {
            name: "gw-1".to_owned(),
            labels: [("disk", "ssd"), ("slots", "4"), ("empty", "")]
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .into(),
            ..NodeIdentity::default()
        });
        node
    };
    let os = with_label(sized("p", 100, 10), "kubernetes.io/os", "windows");
    let told = refused(&mut node(), &os).unwrap();
    let text = "Failed to admit pod as the `kubernetes.io/os` label doesn't match node label";
    assert_eq!(
        told,
        ("PodOSSelectorNodeLabelDoesNotMatch".into(), text.into())
    );
    let linux = with_label(sized("p", 100, 10), "kubernetes.io/os", "linux");
    assert_eq!(refused(&mut node(), &linux), None);
    let mut os = sized("p", 5_000, 10);
    os.placement.other_os = true;
    let text = "Failed to admit pod as the OS field doesn't match node OS";
    let told = refused(&mut node(), &os).unwrap();
    assert_eq!(
        told,
        ("PodOSNotSupported".into(), text.into()),
        "before resources"
    );
    let text = "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector";
    let elsewhere = Some(("NodeAffinity".to_owned(), text.to_owned()));
    let list = |values: &[&str]| values.iter().map(|v| (*v).to_owned()).collect::<Vec<_>>();
    let label = |key: &str, test: Test| Term {
        labels: vec![Requirement {
            key: key.to_owned(),
            test,
        }],
        names: vec![],
    };
    let name = |test: Test| Term {
        labels: vec![],
        names: vec![Requirement {
            key: "metadata.name".to_owned(),
            test,
        }],
    };
    let both = Term {
        names: name(Test::In(list(&["gw-2"]))).names,
        ..label("disk", Test::Exists)
    };
    let table: [(&[Term], bool); 21] = [
        (&[label("disk", Test::In(list(&["hdd", "ssd"])))], true),
        (&[label("disk", Test::In(list(&["hdd"])))], false),
        (&[label("none", Test::In(list(&[""])))], false),
        (&[label("disk", Test::NotIn(list(&["hdd"])))], true),
        (&[label("disk", Test::NotIn(list(&["ssd"])))], false),
        (&[label("none", Test::NotIn(list(&["ssd"])))], true),
        (&[label("empty", Test::Exists)], true),
        (&[label("none", Test::Exists)], false),
        (&[label("none", Test::DoesNotExist)], true),
        (&[label("empty", Test::DoesNotExist)], false),
        (&[label("slots", Test::Above(3))], true),
        (&[label("slots", Test::Above(4))], false),
        (&[label("slots", Test::Below(5))], true),
        (&[label("slots", Test::Below(4))], false),
        (&[label("disk", Test::Above(0))], false),
        (&[name(Test::In(list(&["gw-1"])))], true),
        (&[name(Test::NotIn(list(&["gw-1"])))], false),
        // All of a term, any of the terms.
        (std::slice::from_ref(&both), false),
        (&[both.clone(), label("disk", Test::Exists)], true),
        (&[Term::default()], false),
        (&[], false),
    ];
    for (terms, fits) in table {
        let mut spec = sized("p", 100, 10);
        spec.placement.terms = Some(terms.to_vec());
        let expected = elsewhere.clone().filter(|_| !fits);
        assert_eq!(refused(&mut node(), &spec), expected, "{terms:?}");
    }
    for (value, fits) in [("ssd", true), ("hdd", false)] {
        let mut spec = sized("p", 100, 10);
        spec.placement.selector = [("disk".to_owned(), value.to_owned())].into();
        assert_eq!(
            refused(&mut node(), &spec),
            elsewhere.clone().filter(|_| !fits)
        );
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
fn a_port_of_the_node_is_one_pods_and_the_next_ones_when_it_is_free() {
    use Protocol::{Tcp, Udp};
    let text =
        "Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports";
    for (first, second, both) in [
        ((None, 80, Tcp), (None, 80, Tcp), false),
        ((None, 80, Tcp), (None, 81, Tcp), true),
        ((None, 80, Tcp), (None, 80, Udp), true),
        (
            (Some("10.0.0.1"), 80, Tcp),
            (Some("10.0.0.2"), 80, Tcp),
            true,
        ),
        (
            (Some("10.0.0.1"), 80, Tcp),
            (Some("10.0.0.1"), 80, Tcp),
            false,
        ),
        ((Some("10.0.0.1"), 80, Tcp), (None, 80, Tcp), false),
        (
            (Some("0.0.0.0"), 80, Tcp),
            (Some("10.0.0.1"), 80, Tcp),
            false,
        ),
    ] {
        let a = on_port("a", first.0, first.1, first.2);
        let b = on_port("b", second.0, second.1, second.2);
        let mut node = Node::set(small());
        node.wants(&[&a]);
        node.wants(&[&a, &b]);
        let how = if both { "b runs" } else { "b NodePorts" };
        assert_eq!(node.stands(), ["a runs", how], "{first:?} {second:?}");
        if !both {
            let hold = node.state.pods[&b.uid].hold.clone().unwrap();
            let whose = format!("{text} (80/TCP is in use by pod default/a)");
            assert_eq!(hold.message, whose);
        }
        node.wants(&[&b]);
        node.end_of(&a.uid, 0);
        node.work();
        assert_eq!(node.stands(), ["b runs"]);
    }
    // A pod that has finished has its ports until its sandbox is gone.
    let mut a = on_port("a", None, 80, Tcp);
    a.restart_policy = RestartPolicy::Never;
    let b = on_port("b", None, 80, Tcp);
    let mut node = Node::set(small());
    node.wants(&[&a]);
    node.wants(&[&a, &b]);
    node.end_of(&a.uid, 0);
    assert!(node.state.pods[&b.uid].hold.is_some());
    node.work();
    assert_eq!(node.stands(), ["a does not run", "b runs"]);
}

#[test]
fn whoever_waits_is_let_in_as_soon_as_there_is_room() {
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
    // The other one ends.
    let mut node = full();
    node.wait(5_000);
    node.end_of(&first.uid, 0);
    node.work();
    assert_eq!(node.stands(), ["a does not run", "b runs"]);
    let started = node.state.pods[&waits.uid].created.time.0;
    assert_eq!(started, node.now, "its time begins when it is let in");
    // It goes.
    let mut node = full();
    node.wants(&[&waits]);
    assert_eq!(node.stands(), blocked);
    node.end_of(&first.uid, 143);
    node.work();
    assert_eq!(node.stands(), ["b runs"]);
    // It is to have less.
    let mut node = full();
    let mut less = first.clone();
    set_resources(&mut less, "c", 400, 10 * MIB);
    node.wants(&[&less, &waits]);
    assert_eq!(node.stands(), ["a runs", "b runs"]);
    // The one who waits asks for less.
    let mut node = full();
    node.wants(&[&first, &sized("b", 400, 10)]);
    assert_eq!(node.stands(), ["a runs", "b runs"]);
    assert_eq!(node.state.pods[&waits.uid].pending, None);
    // The node has more.
    let mut node = full();
    node.tell(Event::SettingsChanged(Settings::default()));
    node.work();
    assert_eq!(node.stands(), ["a runs", "b runs"]);
}

#[test]
fn a_reason_is_said_once_until_it_is_another() {
    let mut node = Node::set(small());
    let (a, p) = (sized("a", 500, 90), sized("p", 600, 20));
    node.wants(&[&a]);
    node.wait(1);
    node.wants(&[&a, &p]);
    let since = node.state.pods[&p.uid].hold.clone().unwrap().since;
    node.tell(Event::SettingsChanged(small()));
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
    let hold = node.state.pods[&p.uid].hold.clone().unwrap();
    assert_eq!(hold.since, since);
    let text = "Node didn't have enough resource: memory, requested: 20971520, used: 94371840, \
                capacity: 104857600";
    assert_eq!(hold.message, text);
}

#[test]
fn the_more_important_comes_first_then_the_older_and_a_smaller_one_need_not_wait() {
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
fn a_pod_that_waits_may_be_edited_in_any_way_deleted_and_taken_away() {
    let mut node = Node::set(small());
    let p = sized("p", 2_000, 10);
    node.wants(&[&p]);
    let uid = p.uid.clone();
    node.tell(Event::ConditionsSet {
        pod: uid.clone(),
        changes: vec![gate(true)],
    });
    let mut other = p.clone();
    set_image(&mut other, "c", "img:2");
    node.wants(&[&other]);
    let held = &node.state.pods[&uid];
    assert_eq!(held.spec.containers[0].image, "img:2");
    assert_eq!(held.foreign.len(), 1, "what was said of it stays said");
    // What would need another pod.
    let mut other = sized("p", 3_000, 10);
    Arc::make_mut(&mut other.manifest)
        .spec
        .as_mut()
        .unwrap()
        .restart_policy = Some("Never".to_owned());
    other.restart_policy = RestartPolicy::Never;
    node.wants(&[&other]);
    let held = &node.state.pods[&uid];
    assert_eq!(held.spec.restart_policy, RestartPolicy::Never);
    assert!(
        held.hold
            .clone()
            .unwrap()
            .message
            .contains("requested: 3000")
    );
    assert!(held.stopping.is_none());
    node.wait(1_000);
    node.tell(Event::DeleteRequested {
        pod: uid.clone(),
        grace_ms: None,
    });
    let held = &node.state.pods[&uid];
    assert!(held.hold.is_some() && held.stopping.is_none());
    node.wants(&[]);
    assert!(node.state.pods.is_empty());
    assert_eq!(node.open, []);
}

#[test]
fn what_a_former_agent_left_was_let_in_and_others_are_judged_anew() {
    let mut node = Node::set(small());
    let (a, b) = (sized("a", 600, 10), sized("b", 600, 10));
    node.wants(&[&a, &b]);
    assert_eq!(node.stands(), ["a runs", "b OutOfcpu"]);
    // Of pods that wait nothing is written down.
    node.state.pods.remove(&b.uid);
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
    new.tell(Event::SettingsChanged(tight));
    new.tell(Event::DesiredChanged(desired(&[&a, &b])));
    new.work();
    assert_eq!(new.stands(), ["a runs", "b OutOfcpu"]);
    let text = "requested: 600, used: 600, capacity: 100";
    let hold = new.state.pods[&b.uid].hold.clone().unwrap();
    assert!(hold.message.ends_with(text), "{hold:?}");
}

#[test]
fn a_shutdown_does_not_wait_for_pods_that_were_not_let_in_nor_gives_their_place_away() {
    let mut node = Node::set(small());
    let (a, b) = (sized("a", 600, 10), sized("b", 600, 10));
    node.wants(&[&a, &b]);
    node.tell(Event::ShutdownBegun {
        groups: vec![Group {
            priority: 0,
            seconds: 30,
        }],
        asked_by: AskedBy::Command,
    });
    node.work();
    let late = sized("late", 600, 10);
    node.wants(&[&a, &b, &late]);
    node.end_of(&a.uid, 143);
    node.work();
    let ended = node.state.shutdown.as_ref().unwrap().ended;
    assert!(ended.is_some(), "nobody is waited for");
    assert_eq!(
        node.stands(),
        ["a does not run", "b OutOfcpu", "late does not run"]
    );
    node.tell(Event::ShutdownCancelled);
    node.work();
    assert_eq!(node.stands(), ["a runs", "b OutOfcpu", "late OutOfcpu"]);
}
