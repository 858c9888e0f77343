//! The order in which pods are planned, and what they start after.

#[path = "order/after.rs"]
mod after;

use std::sync::Arc;

use coracle::plan::{Agenda, NodeState};
use coracle::plan::{Event, NodeFact, Step, Task};
use coracle::spec::{PodSpec, RestartPolicy};
use coracle::types::Time;

use crate::pods::{at, desired, pod};

#[test]
fn pods_of_higher_priority_come_first() {
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
    let mut state = NodeState::default();
    let mut agenda = Agenda::new(&state);
    let wanted = Event::Node(NodeFact::DesiredChanged(desired(&all.each_ref())));
    agenda.record(&mut state, &wanted, at(1));
    let mut order = vec![];
    while let Step::Begin(task) = agenda.next(&state, Time(1)) {
        agenda.record(&mut state, &task.begun(), at(1));
        let Task::Act(action) = task else {
            panic!("{task:?}")
        };
        order.push(state.pods[action.pod()].spec.key.name.to_string());
    }
    assert_eq!(order, ["b", "e", "a", "d", "c"]);
}
