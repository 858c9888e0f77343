//! What is said about documents, and what an agent restart says again: nothing.

use super::super::tests::{World, document};
use crate::types::Wall;

/// Without the hashes of templates.
fn said(world: &mut World) -> Vec<String> {
    let short = |text: String| {
        let words = text.split(' ').map(|word| match word.strip_prefix("web-") {
            Some(rest) if rest.len() >= 8 => match rest.split_once('-') {
                Some((_, number)) => format!("web-?-{number}"),
                None => "web-?".to_owned(),
            },
            _ => word.to_owned(),
        });
        words.collect::<Vec<_>>().join(" ")
    };
    world.said().into_iter().map(short).collect()
}

#[test]
fn a_deployment_says_how_many_pods_of_a_template_it_wants() {
    let up = "ScalingReplicaSet: Scaled up replica set web-?";
    let down = "ScalingReplicaSet: Scaled down replica set web-?";
    let mut world = World::new();
    world.read(&document("Deployment", 'a', 2, ""));
    assert_eq!(said(&mut world), [format!("{up} from 0 to 2")]);
    world.set_ready('a', true);
    world.read(&document("Deployment", 'b', 2, ""));
    assert_eq!(said(&mut world), [format!("{up} from 0 to 1")]);
    // The agent restarts in between.
    let kept = world.state.workloads.rollouts();
    world.restart(kept);
    world.read(&document("Deployment", 'b', 2, ""));
    assert_eq!(said(&mut world), [""; 0]);
    world.set_ready('b', true);
    world.gone();
    assert_eq!(
        said(&mut world),
        [format!("{down} from 2 to 1"), format!("{up} from 1 to 2")]
    );
    // A client deletes a pod: its successor is no change of the number.
    let uid = world.uids('b')[0].clone();
    let fact = crate::plan::PodFact::DeleteRequested { grace_ms: None };
    world.tell(crate::plan::Event::Pod { uid, fact });
    world.gone();
    world.set_ready('b', true);
    world.gone();
    assert_eq!(said(&mut world), [format!("{down} from 1 to 0")]);
    world.read("");
    assert_eq!(said(&mut world), [""; 0], "it is gone itself");
}

#[test]
fn the_other_kinds_name_each_pod() {
    for (kind, made, ended) in [
        (
            "StatefulSet",
            "SuccessfulCreate: create Pod web-0 in StatefulSet web successful",
            "SuccessfulDelete: delete Pod web-0 in StatefulSet web successful",
        ),
        (
            "ReplicaSet",
            "SuccessfulCreate: Created pod: web-?-0",
            "SuccessfulDelete: Deleted pod: web-?-0",
        ),
    ] {
        let mut world = World::new();
        world.read(&document(kind, 'a', 1, ""));
        assert_eq!(said(&mut world), [made], "{kind}");
        world.restart(Vec::new());
        world.read(&document(kind, 'a', 1, ""));
        assert_eq!(said(&mut world), [""; 0], "{kind}");
        world.read(&document(kind, 'a', 0, ""));
        assert_eq!(said(&mut world), [ended], "{kind}");
    }
}

#[test]
fn a_rollout_that_fails_says_so_once() {
    let mut world = World::new();
    let text = document("Deployment", 'a', 1, "  progressDeadlineSeconds: 60\n");
    world.read(&text);
    world.said();
    world.pass(60_000);
    let failed = "ProgressDeadlineExceeded: Deployment \"web\" has timed out progressing.";
    assert_eq!(said(&mut world), [failed]);
    let before = world.status();
    world.now.wall = Wall(99_000_000);
    let kept = world.state.workloads.rollouts();
    world.restart(kept);
    world.read(&text);
    world.pass(600_000);
    assert_eq!(said(&mut world), [""; 0]);
    assert_eq!(world.status(), before, "an agent restart is no transition");
}

#[test]
fn an_agent_restart_begins_no_wait_again() {
    let mut world = World::new();
    let text = document("Deployment", 'a', 1, "  minReadySeconds: 30\n");
    world.read(&text);
    world.set_ready('a', true);
    world.pass(20_000);
    let kept = world.state.workloads.rollouts();
    world.restart(kept);
    world.read(&text);
    assert_eq!(world.status()["availableReplicas"], 0);
    world.pass(10_000);
    assert_eq!(world.status()["availableReplicas"], 1);
    let changes = world.state.workloads.rollout_changes;
    world.pass(3_600_000);
    assert_eq!(
        changes, world.state.workloads.rollout_changes,
        "nothing is written at idle"
    );
}

#[test]
fn a_job_says_how_it_went() {
    let job = |more: &str| {
        format!(
            "apiVersion: batch/v1\nkind: Job\nmetadata: {{name: j}}\nspec:\n  activeDeadlineSeconds: 5\n{more}  \
             template:\n    metadata: {{labels: {{letter: a}}}}\n    spec:\n      restartPolicy: Never\n      containers: [{{name: main, image: i}}]\n"
        )
    };
    let mut world = World::new();
    world.read(&job("  suspend: true\n"));
    assert_eq!(said(&mut world), ["Suspended: Job suspended"]);
    assert_eq!(world.status()["conditions"][0]["status"], "True");
    world.read(&job(""));
    assert_eq!(
        said(&mut world),
        [
            "Resumed: Job resumed",
            "SuccessfulCreate: Created pod: j-0-0"
        ]
    );
    assert_eq!(world.status()["conditions"][0]["status"], "False");
    world.pass(5_000);
    assert_eq!(said(&mut world), ["SuccessfulDelete: Deleted pod: j-0-0"]);
    world.gone();
    assert_eq!(
        said(&mut world),
        ["DeadlineExceeded: Job was active longer than specified deadline"]
    );
    assert_eq!(world.status()["conditions"][2]["type"], "Failed");
}
