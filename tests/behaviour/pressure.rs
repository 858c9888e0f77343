//! Node pressure: when the node is short of something, what is reported and done, which pod goes, and when it returns
//! (Kubernetes docs: Node-pressure Eviction).

#[path = "pressure/back.rs"]
mod back;
#[path = "pressure/claims.rs"]
mod claims;
#[path = "pressure/disk.rs"]
mod disk;
#[path = "pressure/images.rs"]
mod images;

use std::collections::BTreeMap;
use std::sync::Arc;

use coracle::plan::action::Keep;
use coracle::plan::event::{Observation, Order};
use coracle::plan::pressure::images::{Goal, ImageFacts, ImagePolicy, doomed};
use coracle::plan::pressure::{
    Amount, Condition, LOOK_MS, PAUSE_MS, Policy, Signal, Threshold, Walk, Watch, next,
};
use coracle::plan::recovered::RecoveredSandbox;
use coracle::plan::{Action, Event, NodeFact, PodFact, PodState, Step, Task};
use coracle::spec::{PodSpec, PodUid, QosClass, RestartPolicy, VolumeSource, VolumeSpec};
use coracle::types::Time;
use coracle::types::usage::{ContainerUsage, DiskUsage, FileSystem, PodUsage, Space};

use crate::node::{Node, reborn};
use crate::pods::{at, desired, of, of_template, pod, set_resources};

const MI: u64 = 1 << 20;

fn hard(signal: Signal, below: u64) -> Threshold {
    Threshold {
        signal,
        below: Amount::Count(below),
        grace_ms: 0,
        min_reclaim: None,
    }
}

fn policy(thresholds: &[Threshold]) -> Policy {
    Policy {
        thresholds: thresholds.to_vec(),
        storage_limits: true,
        ..Policy::default()
    }
}

/// A node with 1000 Mi of everything that runs these pods under this policy.
fn node(policy: Policy, pods: &[PodSpec]) -> Node {
    let mut node = Node::new(300_000);
    node.tell(Event::Node(NodeFact::PolicyChanged(Arc::new(policy))));
    let pods: Vec<_> = pods.iter().cloned().map(Arc::new).collect();
    node.tell(Event::Node(NodeFact::DesiredChanged(desired(
        &pods.iter().collect::<Vec<_>>(),
    ))));
    node.work();
    node.wait(1);
    node
}

fn named(name: &str, priority: i32) -> PodSpec {
    let mut spec = pod(name, name, RestartPolicy::Always, &["c"]);
    spec.priority = priority;
    spec
}

fn step(node: &Node) -> Step {
    next(&node.state, Time(node.now))
}

/// Takes the order that is due.
fn order(node: &mut Node) -> Order {
    match step(node) {
        Step::Begin(Task::Relieve(order)) => {
            node.tell(Event::Node(NodeFact::ReliefBegun(order)));
            assert!(!matches!(step(node), Step::Begin(_)), "one order at a time");
            order
        }
        other => panic!("an order, not {other:?}"),
    }
}

/// Answers the observation that is due with these figures.
fn look(node: &mut Node, found: &Observation) -> (bool, Walk) {
    let Order::Look { pods, disk } = order(node) else {
        panic!("a look is due");
    };
    node.tell(Event::Node(NodeFact::Observed(Box::new(found.clone()))));
    (pods, disk)
}

/// Records the eviction that is due.
fn evicted(node: &mut Node) -> (String, String) {
    let Step::Record(event) = step(node) else {
        panic!("an eviction is due: {:?}", step(node));
    };
    let Event::Pod {
        uid: pod,
        fact: PodFact::Evicted { eviction },
    } = &event
    else {
        panic!("an eviction is due: {event:?}");
    };
    let found = (pod.to_string(), eviction.message.clone());
    node.tell(event);
    found
}

/// A policy that watches memory.
fn watchful() -> Policy {
    policy(&[hard(Signal::Memory, 100 * MI)])
}

fn of_memory(available: u64, pods: &[(&str, u64)]) -> Observation {
    let mut found = Observation::default();
    found.node.memory = Some(Space {
        available,
        capacity: 1000 * MI,
    });
    for (name, bytes) in pods {
        let container = ContainerUsage {
            memory_bytes: Some(*bytes),
            ..ContainerUsage::default()
        };
        let usage = PodUsage {
            memory_bytes: Some(*bytes),
            containers: [("c".to_owned(), container)].into(),
            ..PodUsage::default()
        };
        found.pods.insert(PodUid::from(*name), usage);
    }
    found
}

fn of_disk(available: u64, pods: &[(&str, u64)]) -> Observation {
    let mut found = Observation::default();
    let bytes = Space {
        available,
        capacity: 1000 * MI,
    };
    let inodes = None;
    found.node.nodefs = Some(FileSystem { bytes, inodes });
    found.node.imagefs = found.node.nodefs;
    for (name, bytes) in pods {
        let layer = DiskUsage {
            bytes: *bytes,
            inodes: 3,
        };
        let container = ContainerUsage {
            layer,
            ..ContainerUsage::default()
        };
        let usage = PodUsage {
            disk: true,
            containers: [("c".to_owned(), container)].into(),
            ..PodUsage::default()
        };
        found.pods.insert(PodUid::from(*name), usage);
    }
    found
}

#[test]
fn a_node_without_thresholds_and_limits_is_not_observed() {
    assert_eq!(step(&node(policy(&[]), &[named("a", 0)])), Step::Rest);
}

#[test]
fn unused_images_are_removed_for_one_that_does_not_fit_but_not_again_and_again() {
    // Nothing is done where the disk is not watched.
    let mut unwatched = node(policy(&[]), &[named("a", 0)]);
    unwatched.tell(Event::Node(NodeFact::ImageLacksRoom));
    assert_eq!(step(&unwatched), Step::Rest);
    let mut node = node(policy(&[hard(Signal::ImagefsBytes, MI)]), &[named("a", 0)]);
    let space = of_disk(300 * MI, &[]).node.imagefs.unwrap().bytes;
    let all = Order::CollectImages {
        goal: Goal::All,
        space,
    };
    for _ in 0..2 {
        node.tell(Event::Node(NodeFact::ImageLacksRoom));
        look(&mut node, &of_disk(300 * MI, &[]));
        assert_eq!(order(&mut node), all);
        node.tell(Event::Node(NodeFact::Reclaimed));
        look(&mut node, &of_disk(300 * MI, &[]));
        assert!(matches!(step(&node), Step::WakeAt(_)));
        // The next attempt fails, too, soon after.
        node.tell(Event::Node(NodeFact::ImageLacksRoom));
        node.wait(PAUSE_MS);
        look(&mut node, &of_disk(300 * MI, &[]));
        let Step::WakeAt(next) = step(&node) else {
            panic!("{:?}", step(&node));
        };
        assert!(next <= Time(node.now + LOOK_MS));
        node.wait(LOOK_MS);
    }
}

#[test]
fn the_node_is_observed_every_ten_seconds_and_sooner_after_an_alarm() {
    let mut node = node(watchful(), &[named("a", 0)]);
    let idle = (false, Walk::None);
    assert_eq!(look(&mut node, &of_memory(500 * MI, &[])), idle);
    assert_eq!(step(&node), Step::WakeAt(Time(node.now + LOOK_MS)));
    node.wait(100);
    node.tell(Event::Node(NodeFact::Alarmed));
    assert_eq!(
        step(&node),
        Step::WakeAt(Time(node.now + 400)),
        "but not at once"
    );
    node.wait(400);
    assert_eq!(look(&mut node, &of_memory(500 * MI, &[])), idle);
    node.wait(3_000);
    node.tell(Event::Node(NodeFact::Alarmed));
    assert_eq!(look(&mut node, &of_memory(500 * MI, &[])), idle);
    // A threshold is met below its value, not at it.
    node.wait(LOOK_MS);
    look(&mut node, &of_memory(100 * MI, &[]));
    assert_eq!(step(&node), Step::WakeAt(Time(node.now + LOOK_MS)));
}

#[test]
fn an_eviction_is_reported_in_the_kubelets_words() {
    let mut spec = named("hog", 0);
    set_resources(&mut spec, "c", 100, 50 * MI);
    let mut node = node(watchful(), &[spec]);
    let found = of_memory(98_832 * 1024, &[("hog", 300 * MI)]);
    look(&mut node, &found);
    assert!(node.state.pressure.condition(Condition::Memory).yes);
    assert_eq!(look(&mut node, &found), (true, Walk::None), "now with pods");
    let Step::Record(Event::Pod {
        fact: PodFact::Evicted { eviction, .. },
        ..
    }) = step(&node)
    else {
        panic!("it is evicted: {:?}", step(&node));
    };
    let (pod, message) = evicted(&mut node);
    assert_eq!(pod, "hog");
    assert_eq!(
        eviction.annotations,
        BTreeMap::from([
            ("offending_containers", "c".to_owned()),
            ("offending_containers_usage", "300Mi".to_owned()),
            ("starved_resource", "memory".to_owned()),
        ])
    );
    let expected = "The node was low on resource: memory. Threshold quantity: 100Mi, available: 98832Ki. \
        Container c was using 300Mi, request is 50Mi, has larger consumption of memory. ";
    assert_eq!(message, expected);
    assert!(node.said().contains(&format!("Warning Evicted {expected}")));
    // Until it is gone, for a limited time, no other pod has to go.
    assert_eq!(step(&node), Step::WakeAt(Time(node.now + 30_000)));
    node.work();
    node.end("c", 137);
    assert!(matches!(
        node.open[..],
        [Action::RemoveSandbox {
            keep: Keep::Logs,
            ..
        }]
    ));
    node.work();
    // The memory it had may take a moment to come back.
    assert_eq!(step(&node), Step::WakeAt(Time(node.now + 1_000)));
    node.tell(Event::Node(NodeFact::Alarmed));
    assert_eq!(step(&node), Step::WakeAt(Time(node.now + 1_000)));
    let status = node.shown().status.unwrap();
    assert_eq!(status.phase.as_deref(), Some("Failed"));
    assert_eq!(status.reason.as_deref(), Some("Evicted"));
    assert_eq!(status.message.as_deref(), Some(expected));
    let conditions = status.conditions.unwrap();
    let disrupted = conditions
        .iter()
        .find(|c| c.type_ == "DisruptionTarget")
        .unwrap();
    assert_eq!(disrupted.reason.as_deref(), Some("TerminationByKubelet"));
    node.wait(1_000);
    look(&mut node, &of_memory(800 * MI, &[]));
}

#[test]
fn pods_over_their_request_go_first_then_lower_priority_then_higher_excess() {
    // Priority, request and use of each pod; then the order in which they go.
    type Pod = (&'static str, i32, u64, u64);
    let table: [(&[Pod], &[&str]); 4] = [
        (&[("a", 0, 400, 300), ("b", 900, 100, 150)], &["b", "a"]),
        (&[("a", 5, 0, 300), ("b", 4, 0, 100)], &["b", "a"]),
        (&[("a", 0, 200, 300), ("b", 0, 10, 150)], &["b", "a"]),
        (
            &[("a", 2_000_000_000, 0, 900), ("b", 1_999_999_999, 50, 40)],
            &["b"],
        ),
    ];
    for (pods, expected) in table {
        let specs: Vec<PodSpec> = pods
            .iter()
            .map(|(name, priority, asked, _)| {
                let mut spec = named(name, *priority);
                if *asked > 0 {
                    set_resources(&mut spec, "c", 1, asked * MI);
                }
                spec
            })
            .collect();
        let mut node = node(watchful(), &specs);
        let used: Vec<_> = pods
            .iter()
            .map(|(name, _, _, used)| (*name, used * MI))
            .collect();
        let found = of_memory(MI, &used);
        let mut gone = vec![];
        loop {
            node.wait(30_001);
            look(&mut node, &found);
            let Step::WakeAt(_) = step(&node) else {
                if let Step::Begin(_) = step(&node) {
                    look(&mut node, &found);
                }
                gone.push(evicted(&mut node).0);
                continue;
            };
            break;
        }
        assert_eq!(gone, expected, "{pods:?}");
    }
}

#[test]
fn a_soft_threshold_waits_for_its_grace_period_and_gives_pods_theirs() {
    let soft = Threshold {
        grace_ms: 90_000,
        ..hard(Signal::Memory, 300 * MI)
    };
    let policy = Policy {
        max_pod_grace_ms: 7_000,
        ..policy(&[soft, hard(Signal::Memory, 100 * MI)])
    };
    let mut node = node(policy, &[named("a", 0)]);
    let found = of_memory(200 * MI, &[("a", MI)]);
    let begin = node.now;
    while node.now < begin + 90_000 {
        look(&mut node, &found);
        assert_eq!(step(&node), Step::WakeAt(Time(node.now + LOOK_MS)));
        assert!(
            node.state.pressure.condition(Condition::Memory).yes,
            "the condition shows at once"
        );
        node.wait(LOOK_MS);
    }
    look(&mut node, &found);
    evicted(&mut node);
    let verdict = node.state.pods.values().next().unwrap().verdict.clone();
    assert_eq!(verdict.unwrap().grace_ms, 7_000);
}

#[test]
fn a_shortage_ends_only_when_the_minimum_is_reclaimed() {
    let threshold = Threshold {
        min_reclaim: Some(Amount::Share(50_000)),
        ..hard(Signal::Memory, 100 * MI)
    };
    let policy = Policy {
        transition_ms: 0,
        ..policy(&[threshold])
    };
    let mut node = node(policy, &[]);
    // Five percent of 1000 Mi more than the threshold.
    for (available, met) in [
        (149, false),
        (99, true),
        (149, true),
        (150, false),
        (149, false),
    ] {
        look(&mut node, &of_memory(available * MI, &[]));
        let held = node.state.pressure.condition(Condition::Memory).yes;
        assert_eq!(held, met, "{available}");
        if let Step::Begin(_) = step(&node) {
            look(&mut node, &of_memory(available * MI, &[]));
        }
        node.wait(LOOK_MS);
    }
}

#[test]
fn a_condition_stays_for_the_transition_period() {
    let mut node = node(
        policy(&[hard(Signal::Pids, 10)]),
        &[named("a", 2_000_000_000)],
    );
    let found = |available| {
        let mut found = Observation::default();
        found.node.pids = Some(Space {
            available,
            capacity: 1_000,
        });
        found
    };
    look(&mut node, &found(9));
    look(&mut node, &found(9));
    let begin = node.now;
    while node.now < begin + 300_000 {
        let flag = node.state.pressure.condition(Condition::Pid);
        assert!(flag.yes);
        node.wait(LOOK_MS);
        look(&mut node, &found(500));
    }
    assert!(!node.state.pressure.condition(Condition::Pid).yes);
}

#[test]
fn a_new_pod_waits_while_the_node_is_short_unless_the_shortage_does_not_concern_it() {
    let memory = "The node had condition: [MemoryPressure]. ";
    let both = "The node had condition: [MemoryPressure PIDPressure]. ";
    for (pids, qos, priority, tolerates, expected) in [
        (500, QosClass::BestEffort, 0, false, Some(memory)),
        (500, QosClass::BestEffort, 0, true, None),
        (500, QosClass::Burstable, 0, false, None),
        (500, QosClass::Guaranteed, 0, false, None),
        (500, QosClass::BestEffort, 2_000_000_000, false, None),
        (5, QosClass::Burstable, 0, true, Some(both)),
        (5, QosClass::Guaranteed, 2_000_000_000, false, None),
    ] {
        let thresholds = [hard(Signal::Memory, MI), hard(Signal::Pids, 10)];
        let mut node = node(policy(&thresholds), &[]);
        let found = |available, pids| {
            let mut found = of_memory(available, &[]);
            found.node.pids = Some(Space {
                available: pids,
                capacity: 1_000,
            });
            found
        };
        look(&mut node, &found(0, pids));
        let mut spec = named("new", priority);
        spec.qos = qos;
        spec.tolerates_memory_pressure = tolerates;
        node.tell(Event::Node(NodeFact::DesiredChanged(desired(&[
            &Arc::new(spec),
        ]))));
        let hold = |node: &Node| node.state.pods.values().next().unwrap().hold().cloned();
        let found_hold = hold(&node).map(|hold| (hold.reason.to_string(), hold.message));
        let expected = expected.map(|message| ("Evicted".to_owned(), message.to_owned()));
        assert_eq!(found_hold, expected, "{pids} {qos:?} {priority}");
        let begin = node.now;
        while node.now < begin + 310_000 {
            if let Step::Begin(Task::Relieve(Order::Look { .. })) = step(&node) {
                let enough = found(500 * MI, 500);
                look(&mut node, &enough);
            }
            node.wait(LOOK_MS);
        }
        assert_eq!(hold(&node), None, "it is admitted");
        node.work();
        assert!(node.line().starts_with("Running"), "{}", node.line());
    }
}

fn limited() -> PodSpec {
    let mut spec = named("a", 0);
    let size_limit_bytes = Some(50 * MI);
    spec.volumes = vec![VolumeSpec {
        name: "v".into(),
        source: VolumeSource::EmptyDir { size_limit_bytes },
    }];
    of(&mut spec, "c").storage.limit_bytes = Some(20 * MI);
    spec
}

fn filled(volume: u64, layer: u64, logs: u64) -> Observation {
    let disk = |bytes| DiskUsage { bytes, inodes: 1 };
    let mut found = of_disk(900 * MI, &[]);
    let container = ContainerUsage {
        memory_bytes: None,
        layer: disk(layer * MI),
        logs: disk(logs * MI),
    };
    let usage = PodUsage {
        disk: true,
        volumes: [("v".to_owned(), disk(volume * MI))].into(),
        containers: [("c".to_owned(), container)].into(),
        ..PodUsage::default()
    };
    found.pods.insert(PodUid::from("a"), usage);
    found
}

#[test]
fn a_critical_pod_is_not_evicted_whatever_it_uses() {
    let mut spec = limited();
    spec.priority = 2_000_000_000;
    let mut node = node(watchful(), &[spec]);
    let mut found = filled(500, 500, 500);
    found.node.memory = Some(Space {
        available: 0,
        capacity: 1000 * MI,
    });
    look(&mut node, &found);
    look(&mut node, &found);
    assert_eq!(step(&node), Step::WakeAt(Time(node.now + LOOK_MS)));
}

#[test]
fn the_kernel_alarm_is_set_to_the_nearest_threshold() {
    let soft = Threshold {
        grace_ms: 60_000,
        ..hard(Signal::Memory, 800 * MI)
    };
    let thresholds = [
        soft,
        hard(Signal::Memory, 100 * MI),
        hard(Signal::PodsMemory, 50 * MI),
    ];
    let mut node = node(policy(&thresholds), &[]);
    let mut found = of_memory(500 * MI, &[]);
    found.node.pods_charged_bytes = Some(30 * MI);
    found.node.pods_memory = Some(Space {
        available: 90 * MI,
        capacity: 120 * MI,
    });
    look(&mut node, &found);
    // A little beyond the threshold, so that it is met when the alarm comes.
    let beyond = 120 * MI / 256;
    assert_eq!(node.state.pressure.watch(), Watch::At(70 * MI + beyond));
    node.wait(LOOK_MS);
    // The alarm is set even when little is left, and at most half of the reserve beyond the threshold.
    let memory = found.node.memory.as_mut().unwrap();
    (memory.available, memory.capacity) = (100 * MI + 1, 1 << 50);
    look(&mut node, &found);
    assert_eq!(node.state.pressure.watch(), Watch::At(70 * MI + beyond));
    node.wait(LOOK_MS);
    found.node.pods_memory.as_mut().unwrap().available = 120 * MI;
    look(&mut node, &found);
    assert_eq!(node.state.pressure.watch(), Watch::At(80 * MI + 1));
    node.wait(LOOK_MS);
    found.node.memory.as_mut().unwrap().available = 99 * MI;
    for (after, expected) in [
        (0, Watch::AsBefore),
        (4_900, Watch::AsBefore),
        (600, Watch::Nothing),
    ] {
        node.wait(after);
        node.tell(Event::Node(NodeFact::Alarmed));
        look(&mut node, &found);
        assert_eq!(node.state.pressure.watch(), expected);
    }
}

const IMAGES: ImagePolicy = ImagePolicy {
    min_age_ms: 120_000,
    max_age_ms: 0,
    high_percent: 85,
    low_percent: 80,
};

#[test]
fn a_node_reports_shortages_in_the_kubelets_words() {
    for (condition, short, enough) in [
        (
            Condition::Memory,
            "KubeletHasInsufficientMemory: kubelet has insufficient memory available",
            "KubeletHasSufficientMemory: kubelet has sufficient memory available",
        ),
        (
            Condition::Disk,
            "KubeletHasDiskPressure: kubelet has disk pressure",
            "KubeletHasNoDiskPressure: kubelet has no disk pressure",
        ),
        (
            Condition::Pid,
            "KubeletHasInsufficientPID: kubelet has insufficient PID available",
            "KubeletHasSufficientPID: kubelet has sufficient PID available",
        ),
    ] {
        let texts = [true, false].map(|holds| {
            let (reason, message) = condition.why(holds);
            format!("{reason}: {message}")
        });
        assert_eq!(texts, [short, enough]);
    }
}

#[test]
fn signals_have_the_names_used_in_settings_and_metrics() {
    for (signal, name) in [
        (Signal::Memory, "memory.available"),
        (Signal::PodsMemory, "allocatableMemory.available"),
        (Signal::NodefsBytes, "nodefs.available"),
        (Signal::NodefsInodes, "nodefs.inodesFree"),
        (Signal::ImagefsBytes, "imagefs.available"),
        (Signal::ImagefsInodes, "imagefs.inodesFree"),
        (Signal::Pids, "pid.available"),
    ] {
        assert_eq!(signal.as_str(), name);
    }
}
