//! Who is looked at first?

use std::collections::BTreeSet;
use std::sync::Arc;

use coracle::plan::{Event, urgent_first};
use coracle::spec::{PodSpec, PodUid, RestartPolicy};

use crate::node::Node;
use crate::pods::{desired, pod};

#[test]
fn pods_of_higher_priority_come_first_and_those_that_are_gone_last() {
    let of = |uid: &str, priority: i32| -> Arc<PodSpec> {
        let mut spec = pod(uid, uid, RestartPolicy::Always, &["c"]);
        spec.priority = priority;
        Arc::new(spec)
    };
    let all = [
        of("a", 0),
        of("b", 2_000_001_000),
        of("c", -5),
        of("d", 0),
        of("e", 1_000),
    ];
    let mut node = Node::new(300_000);
    node.tell(Event::DesiredChanged(desired(&all.each_ref())));
    let asked: BTreeSet<PodUid> = ["a", "b", "c", "d", "e", "gone"].map(PodUid::from).into();
    let order = urgent_first(&node.state, asked);
    let order: Vec<&str> = order.iter().map(PodUid::as_str).collect();
    assert_eq!(order, ["b", "e", "a", "d", "c", "gone"]);
}
