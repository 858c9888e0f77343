//! StatefulSets: the order of their pods.

use super::*;
use crate::plan::PodState;
use crate::plan::event::ProbeOutcome;
use crate::spec::ProbeKind;
use crate::spec::workload::REVISION_HASH;

#[test]
fn a_stateful_set_starts_and_stops_in_order() {
    let mut world = World::new();
    world.read(&document("StatefulSet", 'a', 3, ""));
    assert_eq!(world.shown(), "A");
    world.set_ready('a', true);
    assert_eq!(world.shown(), "a A");
    world.set_ready('a', true);
    world.set_ready('a', true);
    assert_eq!(world.shown(), "a a a");
    world.read(&document("StatefulSet", 'a', 1, ""));
    assert_eq!(world.shown(), "a a a-");
    world.gone();
    assert_eq!(world.shown(), "a a-");
    world.gone();
    assert_eq!(world.shown(), "a");
    let parallel = "  podManagementPolicy: Parallel\n";
    world.read(&document("StatefulSet", 'a', 3, parallel));
    assert_eq!(world.shown(), "a A A");
}

#[test]
fn a_stateful_set_is_updated_from_the_highest_number_on_while_all_others_are_available() {
    let mut world = World::new();
    let more = "  podManagementPolicy: Parallel\n";
    world.read(&document("StatefulSet", 'a', 3, more));
    world.set_ready('a', true);
    let partition = format!("{more}  updateStrategy: {{rollingUpdate: {{partition: 1}}}}\n");
    let last = world.uids('a')[2].clone();
    world.set_pod_ready(&last, false);
    world.read(&document("StatefulSet", 'b', 3, &partition));
    let images = |world: &World| {
        let mut all: Vec<_> = (world.state.pods.values())
            .map(|p| (p.spec.key.name.clone(), p.spec.containers[0].image.clone()))
            .collect();
        all.sort();
        all.into_iter()
            .map(|(_, image)| image)
            .collect::<Vec<_>>()
            .join(" ")
    };
    // The image is changed in place, and the pod is not ready.
    assert_eq!(images(&world), "a a b");
    world.set_ready('b', true);
    assert_eq!(images(&world), "a b b");
    let status = world.status();
    assert_eq!(
        (&status["currentReplicas"], &status["updatedReplicas"]),
        (&1.into(), &2.into())
    );
    assert_ne!(status["currentRevision"], status["updateRevision"]);
    world.set_ready('b', false);
    world.read(&document("StatefulSet", 'b', 3, more));
    assert_eq!(images(&world), "a b b");
    world.set_ready('b', true);
    assert_eq!(images(&world), "b b b");
    let status = world.status();
    assert_eq!(status["currentReplicas"], 3);
    assert_eq!(status["currentRevision"], status["updateRevision"]);
    let on_delete = format!("{more}  updateStrategy: {{type: OnDelete}}\n");
    world.read(&document("StatefulSet", 'c', 3, &on_delete));
    assert_eq!(images(&world), "b b b");
}

#[test]
fn a_partition_counts_pods_from_the_first_ordinal() {
    let more = "  podManagementPolicy: Parallel\n  ordinals: {start: 3}\n  updateStrategy: \
                {rollingUpdate: {partition: 1}}\n";
    let mut world = World::new();
    world.read(&document("StatefulSet", 'a', 3, more));
    world.set_ready('a', true);
    world.read(&document("StatefulSet", 'b', 3, more));
    for _ in 0..5 {
        world.set_ready('b', true);
        world.gone();
    }
    assert_eq!(world.names(), ["web-3", "web-4", "web-5"]);
    let first = world.uids('a');
    assert_eq!(first.len(), 1);
    assert_eq!(&*world.state.pods[&first[0]].spec.key.name, "web-3");
}

#[test]
fn a_stateful_set_may_be_updated_several_pods_at_a_time_and_broken_ones_first() {
    let more = "  podManagementPolicy: Parallel\n";
    let two = format!("{more}  updateStrategy: {{rollingUpdate: {{maxUnavailable: 67%}}}}\n");
    let one = two.replace("67%", "20%");
    let images = |world: &World| {
        let mut all: Vec<_> = (world.state.pods.values())
            .map(|p| (p.spec.key.name.clone(), p.spec.containers[0].image.clone()))
            .collect();
        all.sort();
        let all = all.into_iter().map(|(_, image)| image);
        all.collect::<Vec<_>>().join(" ")
    };
    // Two of four, as 67 % are rounded down, and one at least. Those that are updated stay unready.
    for (more, expected) in [(more, "a a a b"), (&two, "a a b b"), (&one, "a a a b")] {
        let mut world = World::new();
        world.read(&document("StatefulSet", 'a', 4, more));
        world.set_ready('a', true);
        for last in world.uids('a').into_iter().skip(2) {
            world.set_pod_ready(&last, false);
        }
        world.read(&document("StatefulSet", 'b', 4, more));
        assert_eq!(images(&world), expected);
    }
    // All pods are broken: a new template reaches them, one after the other.
    let mut world = World::new();
    world.read(&document("StatefulSet", 'a', 3, more));
    world.read(&document("StatefulSet", 'b', 3, more));
    assert_eq!(images(&world), "a a b");
    world.set_ready('b', true);
    assert_eq!(images(&world), "a b b");
    world.set_ready('b', true);
    assert_eq!(images(&world), "b b b");
}

/// The names of the pods whose container has this probe.
fn probed(world: &World, field: &str) -> Vec<String> {
    let pods = world.state.pods.values();
    let has = |pod: &&PodState| {
        let pod = serde_json::to_value(pod.wanted().manifest.pod()).unwrap();
        !pod["spec"]["containers"][0][field].is_null()
    };
    let mut names: Vec<_> = pods
        .filter(has)
        .map(|pod| pod.spec.key.name.to_string())
        .collect();
    names.sort();
    names
}

/// This probe of a pod has run.
fn probe_done(world: &mut World, name: &str, probe: ProbeKind, well: bool) {
    let mut pods = world.state.pods.values();
    let pod = pods.find(|pod| &*pod.spec.key.name == name).unwrap();
    let run = pod.containers[0].run.running().unwrap();
    let instance = pod.instance("main", run.attempt);
    let outcome = match well {
        true => ProbeOutcome::Success,
        false => ProbeOutcome::Failure(String::new()),
    };
    for fact in [
        RunFact::ProbeStarted(probe),
        RunFact::ProbeDone { probe, outcome },
    ] {
        world.tell(Event::Run {
            instance: instance.clone(),
            fact,
        });
    }
}

#[test]
fn a_probe_reaches_one_pod_after_the_other() {
    for (field, kind) in [
        ("readinessProbe", ProbeKind::Readiness),
        ("livenessProbe", ProbeKind::Liveness),
    ] {
        let text = document("StatefulSet", 'a', 3, "  minReadySeconds: 30\n");
        let mut world = World::new();
        world.read(&text);
        for _ in 0..3 {
            world.set_ready('a', true);
            world.pass(30_000);
        }
        assert_eq!(world.shown(), "a a a");
        world.pass(60_000);
        let probe = format!("image: a, {field}: {{exec: {{command: [x]}}}}");
        world.read(&text.replace("image: a", &probe));
        assert_eq!(probed(&world, field), ["web-2"], "{field}");
        world.pass(60_000);
        assert_eq!(probed(&world, field), ["web-2"], "{field}");
        probe_done(&mut world, "web-2", kind, true);
        // It counts once it has been well for long enough.
        world.pass(29_999);
        assert_eq!(probed(&world, field), ["web-2"], "{field}");
        world.pass(1);
        assert_eq!(probed(&world, field), ["web-1", "web-2"], "{field}");
        for _ in 0..3 {
            probe_done(&mut world, "web-1", kind, false);
        }
        world.pass(60_000);
        assert_eq!(probed(&world, field), ["web-1", "web-2"], "{field}");
    }
}

/// What the status says of `replicas`, `readyReplicas`, `availableReplicas`, `currentReplicas` and `updatedReplicas`.
fn counts(world: &World) -> [u64; 5] {
    let status = world.status();
    let of = |field: &str| status[field].as_u64().expect("a number");
    ["replicas", "ready", "available", "current", "updated"].map(|name| match name {
        "replicas" => of(name),
        _ => of(&format!("{name}Replicas")),
    })
}

#[test]
fn the_status_of_a_stateful_set_counts_pods_on_their_way_out() {
    let of = |replicas| {
        let more = "  podManagementPolicy: Parallel\n";
        document("StatefulSet", 'a', replicas, more)
    };
    let mut world = World::new();
    world.read(&of(2));
    world.set_ready('a', true);
    assert_eq!(counts(&world), [2, 2, 2, 2, 2]);
    let uid = world.uids('a').remove(1);
    let fact = PodFact::DeleteRequested { grace_ms: None };
    world.apply(&Event::Pod { uid, fact });
    world.apply(&Event::Node(NodeFact::WorkloadTurn));
    // Its containers still run.
    assert_eq!(counts(&world), [2, 2, 2, 1, 1]);
    world.work();
    assert_eq!(world.shown(), "a a-");
    assert_eq!(counts(&world), [2, 1, 1, 1, 1]);
    world.gone();
    assert_eq!(counts(&world), [2, 1, 1, 2, 2]);
    world.set_ready('a', true);
    world.read(&of(0));
    assert_eq!(world.shown(), "a- a-");
    assert_eq!(counts(&world), [2, 0, 0, 0, 0]);
    world.gone();
    assert_eq!(counts(&world), [0; 5]);
}

/// The values of the pods' label of their revision.
fn labels(world: &World) -> BTreeSet<String> {
    let pods = world.state.pods.values();
    let label = |pod: &PodState| pod.spec.manifest.label(REVISION_HASH).map(str::to_owned);
    pods.filter_map(label).collect()
}

#[test]
fn the_label_of_a_stateful_sets_pods_is_the_revision_in_its_status() {
    let text = document("StatefulSet", 'a', 1, "");
    // A name that leaves no room for more in a label.
    for name in ["web".to_owned(), "w".repeat(52), "w".repeat(53)] {
        let mut world = World::new();
        world.read(&text.replace("{name: web}", &format!("{{name: {name}}}")));
        let status = world.status();
        let revision = status["updateRevision"].as_str().unwrap();
        assert_eq!(labels(&world), [revision.to_owned()].into());
        assert_eq!(status["currentRevision"], revision);
        assert_eq!(status["updatedReplicas"], 1);
        assert_eq!(revision.starts_with(&format!("{name}-")), name.len() < 53);
    }
}

#[test]
fn pods_with_the_label_of_former_versions_go_on_running() {
    let text = document("StatefulSet", 'a', 2, "  podManagementPolicy: Parallel\n");
    let mut world = World::new();
    world.read(&text);
    world.set_ready('a', true);
    let (uids, now) = (world.uids('a'), labels(&world));
    for pod in world.state.pods.values_mut() {
        let hash = pod.spec.revision().unwrap().to_owned();
        let spec = Arc::make_mut(&mut pod.spec);
        Arc::make_mut(&mut spec.manifest).change_metadata(|metadata| {
            let labels = metadata.labels.get_or_insert_default();
            labels.insert(REVISION_HASH.to_owned(), hash);
        });
    }
    assert!(labels(&world).iter().all(|label| !now.contains(label)));
    // The next version finds them.
    let kept = world.state.workloads.rollouts();
    world.restart(kept);
    world.read(&text);
    assert_eq!(world.shown(), "a a");
    assert_eq!((world.uids('a'), labels(&world)), (uids, now));
    assert_eq!(counts(&world), [2, 2, 2, 2, 2]);
}
