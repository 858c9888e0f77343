//! Documents on a node that is cordoned or drained.

use super::*;
use crate::plan::event::Cordon;

#[test]
fn an_edit_takes_effect_while_the_node_is_cordoned() {
    for (kind, replicas) in [("DaemonSet", 1), ("Deployment", 2), ("StatefulSet", 2)] {
        let mut world = World::new();
        world.read(&document(kind, 'a', replicas, ""));
        world.set_ready('a', true);
        world.set_ready('a', true);
        world.tell(Event::Node(NodeFact::Cordoned));
        world.read(&document(kind, 'b', replicas, ""));
        for _ in 0..4 {
            world.set_ready('b', true);
            world.gone();
        }
        let all = vec!["b"; replicas].join(" ");
        assert_eq!(world.shown(), all, "{kind}");
        // Pods of another document are new here.
        let other = document(kind, 'o', 1, "").replace("{name: web}", "{name: other}");
        world.read(&format!(
            "{}---\n{other}",
            document(kind, 'b', replicas, "")
        ));
        assert_eq!(world.shown(), format!("{all} o?"), "{kind}");
    }
}

#[test]
fn what_was_drained_or_deleted_does_not_come_back_with_an_edit() {
    let drain = |world: &mut World| {
        let grace_ms = None;
        world.tell(Event::Node(NodeFact::DrainBegun {
            pods: None,
            grace_ms,
        }));
    };
    let delete = |world: &mut World| {
        world.tell(Event::Node(NodeFact::Cordoned));
        let uid = world.uids('a')[0].clone();
        let fact = PodFact::DeleteRequested { grace_ms: None };
        world.tell(Event::Pod { uid, fact });
    };
    for (what, shown) in [
        (&drain as &dyn Fn(&mut World), "b? b?"),
        (&delete, "a b? b?"),
    ] {
        let mut world = World::new();
        world.read(&document("Deployment", 'a', 2, ""));
        world.set_ready('a', true);
        what(&mut world);
        world.read(&document("Deployment", 'b', 2, ""));
        for _ in 0..4 {
            world.pass(1_000);
            world.gone();
        }
        assert_eq!(world.shown(), shown);
        world.tell(Event::Node(NodeFact::Uncordoned));
        for _ in 0..4 {
            world.set_ready('b', true);
            world.gone();
        }
        assert_eq!(world.shown(), "b b");
    }
}

#[test]
fn a_cordon_of_a_former_version_is_read() {
    let kept = r#"{"since":0,"stay":[{"namespace":"default","name":"p"}],"drain":null}"#;
    let cordon: Cordon = serde_json::from_str(kept).unwrap();
    assert_eq!((cordon.stay.len(), cordon.workloads.len()), (1, 0));
}
