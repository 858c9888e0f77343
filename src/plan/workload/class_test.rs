//! What priority classes say is no part of a template: the API server puts it into pods, not into documents.

use super::super::Workloads;
use super::*;

/// This document, and classes with this value in the same file.
fn with_classes(text: &str, value: i32, default: bool) -> String {
    format!(
        "{text}---\napiVersion: scheduling.k8s.io/v1\nkind: PriorityClass\nmetadata: {{name: some}}\nvalue: {value}\n\
         globalDefault: {default}\n"
    )
}

fn priorities(world: &World) -> Vec<i32> {
    let pods = world.state.pods.values();
    pods.map(|pod| pod.wanted().priority).collect()
}

#[test]
fn a_priority_class_rolls_nothing_out_and_its_pods_get_its_value() {
    for kind in ["Deployment", "StatefulSet", "DaemonSet"] {
        let text = document(kind, 'a', 1, "");
        let named = text.replace(
            "      containers",
            "      priorityClassName: some\n      containers",
        );
        for (before, after) in [
            (text.clone(), with_classes(&text, 7, true)),
            (with_classes(&text, 5, true), with_classes(&text, 7, true)),
            (
                with_classes(&named, 5, false),
                with_classes(&named, 7, false),
            ),
        ] {
            let mut world = World::new();
            world.read(&before);
            world.set_ready('a', true);
            let uids = world.uids('a');
            world.read(&after);
            assert_eq!(world.shown(), "a", "{after}");
            assert_eq!(world.uids('a'), uids, "{after}");
            assert_eq!(priorities(&world), [7], "{after}");
            assert_eq!(world.status()["updatedReplicas"].as_u64().unwrap_or(1), 1);
        }
        // A template that names another class has changed.
        let mut world = World::new();
        world.read(&with_classes(&text, 5, false));
        world.set_ready('a', true);
        let revision = |world: &World| {
            let desired = world.state.desired.as_ref().unwrap();
            desired.workloads.values().next().unwrap().revision.clone()
        };
        let before = revision(&world);
        world.read(&with_classes(&named, 5, false));
        assert_ne!(revision(&world), before);
    }
}

#[test]
fn a_priority_class_makes_no_complete_job_run_again() {
    let text = "apiVersion: batch/v1\nkind: Job\nmetadata: {name: j}\nspec:\n  template:\n    metadata: {labels: \
                {letter: a}}\n    spec:\n      restartPolicy: Never\n      containers: [{name: main, image: i}]\n";
    let mut world = World::new();
    world.read(text);
    world.end("j-0-0", 0);
    world.read(&with_classes(text, 5, true));
    assert_eq!(world.running(), [""; 0]);
    assert_eq!(world.status()["succeeded"], 1);

    // A record of a version to which the class was part of the template.
    let desired = world.state.desired.as_ref().unwrap();
    let formerly = desired.workloads.values().next().unwrap().formerly.clone();
    let mut kept = serde_json::to_value(world.state.workloads.jobs.records()).unwrap();
    kept[0][1]["edition"] = formerly.as_deref().expect("it was another one").into();
    let kept: Vec<_> = serde_json::from_value(kept).unwrap();
    let mut next = World::new();
    next.state.workloads = Workloads::with_jobs(&kept, true, next.now);
    next.read(&with_classes(text, 5, true));
    assert_eq!(next.running(), [""; 0]);
    assert_eq!(next.status()["succeeded"], 1);
    // From now on the value means nothing.
    next.read(&with_classes(text, 6, true));
    assert_eq!(next.status()["succeeded"], 1);
}
