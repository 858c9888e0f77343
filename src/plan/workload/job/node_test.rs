//! What the node and clients do to a Job's pods.

use super::*;
use std::sync::Arc;

use crate::plan::event::AskedBy;
use crate::plan::{NodeFact, PodFact};
use crate::spec::{PodSpec, WorkloadKey};

#[test]
fn what_the_node_or_a_client_does_to_a_pod_is_no_restart_that_counts() {
    for (what, counts) in [
        ("it fails", true),
        ("a client restarts it", false),
        ("its shim is lost", false),
    ] {
        let mut world = World::new();
        world.read(&document("OnFailure", "  backoffLimit: 2\n"));
        for _ in 0..4 {
            let uid = world.uids('a')[0].clone();
            match what {
                "it fails" => world.end("j-0-0", 1),
                "a client restarts it" => world.tell(Event::Pod {
                    uid,
                    fact: PodFact::RestartRequested {
                        container: None,
                        grace_ms: Some(1_000),
                    },
                }),
                _ => {
                    let exit = Exit::lost(world.now, world.now);
                    world.exit("j-0-0", exit);
                }
            }
            world.pass(700_000);
            if counts && world.running().is_empty() {
                break;
            }
            assert_eq!(world.running(), ["j-0-0"], "{what}");
        }
        world.gone();
        let outcome = match counts {
            true => "Failed BackoffLimitExceeded",
            false => "",
        };
        assert_eq!(world.outcome(), outcome, "{what}");
    }
}

#[test]
fn a_pod_that_takes_the_machine_down_again_and_again_fails() {
    for policy in ["Never", "OnFailure"] {
        let text = document(policy, "  backoffLimit: 1\n");
        let mut world = World::new();
        world.read(&text);
        for boot in 1..=3 {
            world = world.next_agent(true);
            world.read(&text);
            assert_eq!(world.running(), ["j-0-0"], "{policy}: boot {boot}");
        }
        world = world.next_agent(true);
        world.read(&text);
        assert_eq!(world.running(), [""; 0]);
        assert_eq!(world.status()["failed"], 1);
        world.pass(10_000);
        assert_eq!(world.running(), ["j-0-1"]);
        world = world.next_agent(true);
        world.read(&text);
        assert_eq!(world.outcome(), "Failed BackoffLimitExceeded", "{policy}");
        assert_eq!(world.running(), [""; 0]);
    }
}

#[test]
fn the_end_of_a_boot_is_no_failure_if_the_node_shuts_down_or_the_pod_did_not_run() {
    for what in ["shuts down", "agent restarts", "is suspended"] {
        let text = document("Never", "  backoffLimit: 0\n");
        let mut world = World::new();
        world.read(&text);
        for _ in 0..6 {
            match what {
                "shuts down" => world.tell(Event::Node(NodeFact::ShutdownBegun {
                    groups: vec![],
                    asked_by: AskedBy::Logind,
                })),
                "agent restarts" => {}
                _ => world.read(&document("Never", "  backoffLimit: 0\n  suspend: true\n")),
            }
            world = world.next_agent(what != "agent restarts");
            world.read(&text);
            world.gone();
            assert_eq!(world.running(), ["j-0-0"], "{what}");
        }
        assert_eq!(world.status()["failed"], 0, "{what}");
    }
}

#[test]
fn restarts_and_the_active_time_count_on_after_a_reboot() {
    let text = document("OnFailure", "  backoffLimit: 3\n");
    let mut world = World::new();
    world.read(&text);
    world.end("j-0-0", 1);
    world.end("j-0-0", 1);
    world.pass(10_000);
    world = world.next_agent(true);
    world.read(&text);
    assert_eq!(world.running(), ["j-0-0"]);
    world.end("j-0-0", 1);
    world.gone();
    assert_eq!(world.outcome(), "Failed BackoffLimitExceeded");

    let text = document("Never", "  activeDeadlineSeconds: 1000\n");
    let mut world = World::new();
    world.read(&text);
    world.pass(400_000);
    for left in [600_000, 200_000] {
        world = world.next_agent(true);
        world.read(&text);
        assert_eq!(world.running(), ["j-0-0"]);
        world.pass(match left {
            600_000 => 400_000,
            _ => left - 1,
        });
        assert_eq!(world.outcome(), "");
    }
    world.pass(1);
    world.gone();
    assert_eq!(world.outcome(), "Failed DeadlineExceeded");
}

#[test]
fn a_record_of_a_former_version_is_read() {
    let text = document("Never", "");
    let mut world = World::new();
    world.read(&text);
    world.end("j-0-0", 0);
    let mut kept = serde_json::to_value(world.state.workloads.jobs.records()).unwrap();
    let record = kept[0][1].as_object_mut().unwrap();
    for field in ["begun", "active_ms", "former_ms"] {
        assert!(record.remove(field).is_some(), "{field}");
    }
    let end = record["ended"].as_object_mut().unwrap();
    assert!(end.remove("last_pods").is_some());
    let kept: Vec<(WorkloadKey, JobRecord)> = serde_json::from_value(kept).unwrap();
    let before = world.status();
    let mut next = world.next_agent(false);
    next.state.workloads = Workloads::with_jobs(&kept, false, next.now);
    next.pass(60_000);
    next.read(&text);
    assert_eq!(next.status(), before);
    assert_eq!(next.said(), [""; 0], "it has ended long ago");
}

#[test]
fn pods_have_the_uid_of_their_job_and_those_of_a_former_version_go_on() {
    let text = document("Never", "  completions: 2\n");
    let mut world = World::new();
    world.read(&text);
    let shown = |world: &World| {
        let shown = world.state.shown_workloads().next().expect("shown");
        shown.json(1)
    };
    let shown = shown(&world);
    let pod = world.state.pods.values_mut().next().expect("a pod");
    for name in ["controller-uid", "batch.kubernetes.io/controller-uid"] {
        let uid = shown["metadata"]["uid"].as_str();
        assert_eq!(pod.spec.manifest.label(name), uid, "{name}");
    }
    let selector = &shown["spec"]["selector"]["matchLabels"];
    assert_eq!(
        selector["batch.kubernetes.io/controller-uid"],
        shown["metadata"]["uid"]
    );
    // As a former version made it.
    let edition = pod.spec.revision().expect("an edition").to_owned();
    let mut spec = PodSpec::clone(&pod.spec);
    Arc::make_mut(&mut spec.manifest).change_metadata(|metadata| {
        let labels = metadata.labels.as_mut().expect("labels");
        labels.retain(|name, _| !name.starts_with("coracle.dev/"));
        for name in ["controller-uid", "batch.kubernetes.io/controller-uid"] {
            labels.insert(name.to_owned(), edition.clone());
        }
    });
    pod.spec = Arc::new(spec);
    let uid = pod.spec.uid.clone();
    let mut next = world.next_agent(false);
    next.read(&text);
    assert_eq!(next.running(), ["j-0-0"]);
    assert!(next.state.pods.contains_key(&uid), "the same pod");
    next.end("j-0-0", 0);
    assert_eq!(next.running(), ["j-1-0"]);
}

#[test]
fn a_template_without_labels_is_shown_without() {
    let text = document("Never", "  suspend: true\n");
    let text = text.replace("    metadata: {labels: {letter: a}}\n", "");
    let mut world = World::new();
    world.read(&text);
    let shown = world.state.shown_workloads().next().expect("shown");
    let shown = shown.json(1);
    assert_eq!(shown.pointer("/spec/template/metadata/labels"), None);
}

#[test]
fn a_name_that_another_file_has_is_waited_for_and_said_once() {
    let job = document("Never", "  completions: 2\n  parallelism: 2\n");
    let pod = "---\napiVersion: v1\nkind: Pod\nmetadata: {name: j-1-0, labels: {letter: b}}\nspec: {containers: [{name: main, image: i}]}\n";
    for before in [false, true] {
        let mut world = World::new();
        if before {
            world.read(pod);
        }
        world.read(&format!("{job}{pod}"));
        assert_eq!(world.running(), ["j-0-0", "j-1-0"]);
        world.pass(100_000);
        let said = world.said();
        let blocked = said.iter().filter(|said| said.starts_with("FailedCreate:"));
        let blocked: Vec<&String> = blocked.collect();
        assert_eq!(
            blocked,
            ["FailedCreate: Error creating: pods \"j-1-0\" already exists"]
        );
        assert_eq!(world.status()["active"], 1);
        // Once the other one has gone, the Job's own comes.
        world.read(&job);
        world.gone();
        assert_eq!(world.running(), ["j-0-0", "j-1-0"]);
        assert_eq!(world.status()["active"], 2);
    }
}
