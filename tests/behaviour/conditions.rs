//! The conditions that a pod shows, since when, and the effect of readiness gates (Kubernetes docs: Pod Lifecycle).

use std::sync::Arc;

use coracle::plan::event::*;
use coracle::plan::recovered::*;
use coracle::plan::{Event, NodeFact, NodeState, PodFact, network};
use coracle::spec::condition::MAX_CONDITIONS;
use coracle::spec::{Condition, ConditionStatus, PodSpec, RestartPolicy};
use k8s_openapi::api::core::v1 as core;

use crate::node::{Node, ready, reborn};
use crate::pods::{at, desired, pod, set_resources, with_inits};

fn gated(gates: &[&str]) -> PodSpec {
    let mut spec = pod("u1", "p", RestartPolicy::Always, &["c"]);
    spec.readiness_gates = gates.iter().map(|g| (*g).to_owned()).collect();
    spec
}

fn condition(type_: &str, status: ConditionStatus, reason: &str) -> Condition {
    Condition {
        type_: type_.into(),
        status,
        reason: reason.into(),
        message: String::new(),
    }
}

fn change(node: &mut Node, change: ConditionChange) {
    let pod = node.state.pods.keys().next().unwrap().clone();
    let changes = vec![change];
    node.tell(Event::Pod {
        uid: pod,
        fact: PodFact::ConditionsSet { changes },
    });
}

fn set(node: &mut Node, type_: &str, status: ConditionStatus) {
    change(node, ConditionChange::Set(condition(type_, status, "")));
}

fn shown(node: &Node) -> Vec<core::PodCondition> {
    node.shown().status.unwrap().conditions.unwrap()
}

/// The second of the test's day at which the condition last changed.
fn since(node: &Node, type_: &str) -> i64 {
    let all = shown(node);
    let found = all.iter().find(|c| c.type_ == type_).unwrap();
    let time = found.last_transition_time.as_ref().unwrap();
    time.0.as_second() - 1_767_225_600
}

#[test]
fn a_gated_pod_is_ready_when_every_gate_is_true() {
    use ConditionStatus::{False, True, Unknown};
    let mut node = Node::with(&Arc::new(gated(&["a.example/x", "b"])));
    node.work();
    let none =
        |gate| format!("corresponding condition of pod readiness gate \"{gate}\" does not exist.");
    let not = |gate, status| {
        format!("the status of pod readiness gate \"{gate}\" is not \"True\", but {status}")
    };
    let expect = |node: &Node, message: String| {
        let text =
            format!("Running; Ready=False ReadinessGatesNotReady: {message}; c: running < -, 0");
        let own = node.line();
        // Without the conditions that the gates name, which come first.
        let own = own
            .split("; ")
            .filter(|part| !part.starts_with("a.ex") && !part.starts_with("b="));
        assert_eq!(own.collect::<Vec<_>>().join("; "), text);
        assert!(!network::view(&node.state, &[]).pods[0].ready);
    };
    expect(&node, format!("{}, {}", none("a.example/x"), none("b")));
    set(&mut node, "b", Unknown);
    expect(
        &node,
        format!("{}, {}", none("a.example/x"), not("b", "Unknown")),
    );
    set(&mut node, "a.example/x", False);
    set(&mut node, "b", True);
    expect(&node, not("a.example/x", "False"));
    let before = node.state.network_changes;
    set(&mut node, "a.example/x", True);
    assert_eq!(node.line(), "Running; c: running < -, 0");
    assert!(network::view(&node.state, &[]).pods[0].ready);
    assert!(node.state.network_changes > before, "services hear of it");
    change(&mut node, ConditionChange::Unset("b".into()));
    expect(&node, none("b"));
    set(&mut node, "b", True);
    // Unready containers are reported before gates.
    node.end("c", 1);
    let unready = "containers with unready status: [c]";
    assert!(
        node.line()
            .contains(&format!("Ready=False ContainersNotReady: {unready}"))
    );
}

#[test]
fn a_gate_may_wait_for_a_condition_of_coracle_itself() {
    let mut node = Node::with(&Arc::new(gated(&["PodScheduled", "Initialized"])));
    node.work();
    assert_eq!(node.line(), "Running; c: running < -, 0");
}

#[test]
fn foreign_conditions_come_first_and_change_their_time_only_with_their_status() {
    let mut node = Node::with(&Arc::new(gated(&[])));
    node.work();
    for (type_, reason) in [("z", "First"), ("a", "Second")] {
        let said = condition(type_, ConditionStatus::True, reason);
        change(&mut node, ConditionChange::Set(said));
    }
    let types: Vec<String> = shown(&node).into_iter().map(|c| c.type_).collect();
    let own = [
        "PodReadyToStartContainers",
        "Initialized",
        "Ready",
        "ContainersReady",
        "PodScheduled",
    ];
    assert_eq!(types, [&["z", "a"][..], &own].concat());
    let first = since(&node, "z");
    node.now += 5_000;
    let again = condition("z", ConditionStatus::True, "Other");
    change(&mut node, ConditionChange::Set(again));
    assert_eq!(since(&node, "z"), first);
    assert_eq!(shown(&node)[0].reason.as_deref(), Some("Other"));
    set(&mut node, "z", ConditionStatus::False);
    assert_eq!(since(&node, "z"), first + 5);
    assert_eq!(shown(&node)[0].reason, None);
}

#[test]
fn conditions_and_their_times_survive_the_agent_and_end_with_the_pod() {
    let spec = Arc::new(gated(&["b"]));
    let mut node = Node::with(&spec);
    node.now += 3_000;
    node.work();
    node.now += 4_000;
    set(&mut node, "b", ConditionStatus::True);
    let before = shown(&node);
    node.now += 60_000;
    let mut node = reborn(&node, &[&spec], ready());
    assert_eq!(shown(&node), before);
    let pod = spec.uid.clone();
    let grace_ms = Some(0);
    node.tell(Event::Pod {
        uid: pod,
        fact: PodFact::DeleteRequested { grace_ms },
    });
    node.answer_one();
    node.end("c", 137);
    node.work();
    assert!(
        node.shown().metadata.deletion_timestamp.is_none(),
        "this is the next pod"
    );
    assert_eq!(shown(&node).len(), 5);
}

fn given(spec: &mut PodSpec, conditions: &[(&str, &str)]) {
    let mut manifest = (*spec.manifest).clone();
    let conditions = conditions.iter().map(|(type_, status)| core::PodCondition {
        type_: (*type_).to_owned(),
        status: (*status).to_owned(),
        ..Default::default()
    });
    manifest.status = Some(Box::new(core::PodStatus {
        conditions: Some(conditions.collect()),
        ..Default::default()
    }));
    spec.manifest = Arc::new(manifest);
}

#[test]
fn conditions_in_the_manifest_count_and_edits_of_them_apply() {
    let mut spec = gated(&["b"]);
    given(&mut spec, &[("b", "True"), ("x", "False")]);
    let mut node = Node::with(&Arc::new(spec.clone()));
    node.work();
    let line = |node: &Node| {
        let of = |c: core::PodCondition| format!("{}={}", c.type_, c.status);
        let some = shown(node)
            .into_iter()
            .take_while(|c| c.type_ != "PodReadyToStartContainers");
        some.map(of).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(line(&node), "b=True x=False");
    assert!(
        node.line().starts_with("Running; x=False"),
        "ready: {}",
        node.line()
    );
    // A condition set since then stays as long as the manifest does not change it.
    set(&mut node, "b", ConditionStatus::False);
    given(&mut spec, &[("b", "True"), ("y", "Unknown")]);
    node.tell(Event::Node(NodeFact::DesiredChanged(desired(&[
        &Arc::new(spec.clone()),
    ]))));
    assert_eq!(line(&node), "b=False y=Unknown");
    given(&mut spec, &[("b", "Unknown")]);
    node.tell(Event::Node(NodeFact::DesiredChanged(desired(&[
        &Arc::new(spec),
    ]))));
    assert_eq!(line(&node), "b=Unknown");
}

#[test]
fn the_generation_is_shown_if_the_manifest_has_one() {
    let mut spec = gated(&[]);
    let node = Node::with(&Arc::new(spec.clone()));
    let status = node.shown().status.unwrap();
    assert_eq!(status.observed_generation, None);
    let mut manifest = (*spec.manifest).clone();
    manifest.change_metadata(|metadata| metadata.generation = Some(7));
    spec.manifest = Arc::new(manifest);
    set_resources(&mut spec, "c", 100, 100);
    let mut node = Node::with(&Arc::new(spec.clone()));
    node.work();
    // Conditions of all kinds: about a resize, and about the pod's end.
    set_resources(&mut spec, "c", 200, 100);
    node.tell(Event::Node(NodeFact::DesiredChanged(desired(&[
        &Arc::new(spec),
    ]))));
    let all = shown(&node);
    let resize = all.iter().find(|c| c.type_ == "PodResizeInProgress");
    assert_eq!(resize.map(|c| c.status.as_str()), Some("True"));
    let group = Group {
        priority: 0,
        seconds: 1,
    };
    let (groups, asked_by) = (vec![group], AskedBy::Command);
    node.tell(Event::Node(NodeFact::ShutdownBegun { groups, asked_by }));
    let disrupted = shown(&node);
    assert!(disrupted.iter().any(|c| c.type_ == "DisruptionTarget"));
    for condition in all.iter().chain(&disrupted) {
        assert_eq!(condition.observed_generation, Some(7), "{condition:?}");
        assert!(condition.last_transition_time.is_some(), "{condition:?}");
    }
    let status = node.shown().status.unwrap();
    assert_eq!(status.observed_generation, Some(7));
}

#[test]
fn a_gate_may_be_one_of_the_conditions_that_every_pod_has() {
    for type_ in [
        "PodScheduled",
        "PodReadyToStartContainers",
        "Initialized",
        "ContainersReady",
    ] {
        let mut node = Node::with(&Arc::new(gated(&[type_])));
        node.work();
        assert_eq!(node.line(), "Running; c: running < -, 0", "{type_}");
    }
    // A pod cannot be ready before it is ready.
    let mut node = Node::with(&Arc::new(gated(&["Ready"])));
    node.work();
    let text = "the status of pod readiness gate \"Ready\" is not \"True\", but False";
    assert!(node.line().contains(text), "{}", node.line());
}

#[test]
fn a_foreign_condition_is_shown_with_its_reason_and_message() {
    let mut node = Node::with(&Arc::new(gated(&[])));
    node.work();
    let said = Condition {
        message: "on purpose".into(),
        ..condition("a.example/x", ConditionStatus::False, "Said")
    };
    change(&mut node, ConditionChange::Set(said));
    let all = shown(&node);
    let found = all.iter().find(|c| c.type_ == "a.example/x").unwrap();
    let reasons = (found.reason.as_deref(), found.message.as_deref());
    assert_eq!(reasons, (Some("Said"), Some("on purpose")));
}

#[test]
fn the_reason_and_message_of_a_condition_are_limited() {
    for (reason, message, refused) in [
        (1_024, 32_768, None),
        (1_025, 0, Some("reason may not be longer than 1024 bytes")),
        (
            0,
            32_769,
            Some("message may not be longer than 32768 bytes"),
        ),
    ] {
        let said = Condition {
            message: "m".repeat(message),
            ..condition("x", ConditionStatus::True, &"r".repeat(reason))
        };
        assert_eq!(said.check().err().as_deref(), refused);
    }
}

#[test]
fn the_number_of_foreign_conditions_of_a_pod_is_limited() {
    let mut node = Node::with(&Arc::new(gated(&[])));
    for i in 0..=MAX_CONDITIONS {
        set(&mut node, &format!("c{i}"), ConditionStatus::True);
    }
    let others = |node: &Node| {
        let all = shown(node).into_iter();
        all.filter(|c| c.type_.starts_with('c')).count()
    };
    assert_eq!(others(&node), MAX_CONDITIONS);
    let known = ConditionChange::Unset("c0".to_owned());
    change(&mut node, known);
    set(&mut node, "cx", ConditionStatus::True);
    assert_eq!(others(&node), MAX_CONDITIONS, "one went, one came");
}

#[test]
fn conditions_without_a_record_are_as_old_as_the_newest_change_of_the_containers() {
    let spec = Arc::new(gated(&[]));
    let mut node = Node::with(&spec);
    node.work();
    node.wait(5_000);
    node.end("c", 1);
    node.work();
    let started = node.now;
    node.wait(60_000);
    let found = |node: &Node| {
        let pod = node.state.pods.values().next().unwrap();
        let mut found = crate::pods::recovered(pod, ready());
        found.memory.flags = None;
        found
    };
    let mut found = found(&node);
    let since_restart = |found: &Recovered| {
        let mut state = NodeState::default();
        let event = Event::recovered(found.clone());
        state.apply(&event, at(node.now));
        state.pods[&spec.uid].flags.ready
    };
    let flag = since_restart(&found);
    assert_eq!((flag.yes, flag.since), (true, at(started).wall));
    // The conditions of a pod that never ran are as old as the pod.
    found.containers.clear();
    let flag = since_restart(&found);
    assert_eq!(
        (flag.yes, flag.since),
        (false, found.memory.created.unwrap().wall)
    );
}

#[test]
fn a_pod_that_has_succeeded_was_initialized_when_its_init_containers_finished() {
    let mut spec = pod("u1", "p", RestartPolicy::OnFailure, &["c"]);
    spec = with_inits(spec, &["i1"]);
    let mut node = Node::with(&Arc::new(spec));
    node.work();
    node.wait(5_000);
    node.end("i1", 0);
    node.work();
    node.wait(5_000);
    node.end("c", 0);
    node.work();
    assert!(node.line().starts_with("Succeeded"), "{}", node.line());
    assert_eq!(since(&node, "Initialized"), 1_005);
}
