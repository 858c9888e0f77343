//! Garbage: which logs and layers of earlier runs are kept.

use coracle::plan::garbage::kept;
use coracle::spec::RestartPolicy::{self, Always};

use crate::node::{Node, one, ready, reborn};
use crate::pods::{pod, with_inits};

/// `name: first log kept, first layer kept` for each container that has something to remove.
fn line(node: &Node, max_dead: u32) -> String {
    let pod = node.state.pods.values().next().unwrap();
    let all = kept(pod, max_dead).into_iter();
    let text = all.map(|k| format!("{}: {}, {}", k.container, k.logs_from, k.files_from));
    text.collect::<Vec<_>>().join("; ")
}

#[test]
fn the_newest_logs_up_to_the_limit_are_kept_and_only_the_layer_in_use() {
    let spec = one(Always, &["c"]);
    for (max_dead, expected) in [
        (
            0,
            ["", "c: 0, 1", "c: 1, 1", "c: 1, 2", "c: 4, 4", "c: 4, 5"],
        ),
        (
            1,
            ["", "c: 0, 1", "c: 0, 1", "c: 0, 2", "c: 3, 4", "c: 3, 5"],
        ),
        (
            3,
            ["", "c: 0, 1", "c: 0, 1", "c: 0, 2", "c: 1, 4", "c: 1, 5"],
        ),
        (
            9,
            ["", "c: 0, 1", "c: 0, 1", "c: 0, 2", "c: 0, 4", "c: 0, 5"],
        ),
    ] {
        let mut node = Node::with(&spec);
        let mut seen = Vec::new();
        for attempt in 0..5 {
            node.wait(400_000);
            node.work();
            let shown = [0, 1, 4].contains(&attempt);
            if shown {
                seen.push(line(&node, max_dead));
                let again = reborn(&node, &[&spec], ready());
                assert_eq!(
                    line(&again, max_dead),
                    line(&node, max_dead),
                    "the next agent decides the same"
                );
            }
            node.end("c", 1);
            if shown {
                seen.push(line(&node, max_dead));
            }
        }
        assert_eq!(seen, expected, "{max_dead}");
    }
}

#[test]
fn the_layer_of_a_finished_init_container_is_removed_at_once() {
    let spec = pod("u1", "p", RestartPolicy::Always, &["c"]);
    let spec = std::sync::Arc::new(with_inits(spec, &["i", "s"]));
    let mut node = Node::with(&spec);
    node.work();
    assert_eq!(line(&node, 1), "");
    node.end("i", 0);
    node.work();
    assert_eq!(line(&node, 1), "i: 0, 1");
}
