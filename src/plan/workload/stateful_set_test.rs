//! StatefulSets: the order of their pods.

use super::*;
use crate::plan::PodState;
use crate::plan::event::ProbeOutcome;
use crate::spec::ProbeKind;

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
