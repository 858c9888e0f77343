//! Do containers' own restart policies and rules decide as the kubelet's, and does a pod restart in place?

use std::sync::Arc;

use coracle::plan::{Action, Event};
use coracle::spec::{ExitCodes, PodSpec, RestartAction, RestartPolicy, StopSignal};

use crate::node::{Node, ready, reborn};
use crate::pods::{of, pod, rule, with_inits};

use RestartPolicy::{Always, Never, OnFailure};

#[test]
fn the_first_rule_that_matches_decides_else_the_containers_policy_else_the_pods() {
    let restart = |codes| vec![rule(codes, RestartAction::Restart)];
    let table = [
        (Never, None, vec![], 0, false),
        (Never, Some(Always), vec![], 0, true),
        (Always, Some(Never), vec![], 1, false),
        (Always, Some(OnFailure), vec![], 0, false),
        (Never, Some(OnFailure), vec![], 2, true),
        (
            Never,
            Some(Never),
            restart(ExitCodes::In(vec![42])),
            42,
            true,
        ),
        (
            Never,
            Some(Never),
            restart(ExitCodes::In(vec![42])),
            1,
            false,
        ),
        (
            Never,
            Some(Never),
            restart(ExitCodes::NotIn(vec![42])),
            1,
            true,
        ),
        (
            Never,
            Some(Never),
            restart(ExitCodes::NotIn(vec![42])),
            42,
            false,
        ),
        (
            Always,
            Some(Never),
            restart(ExitCodes::In(vec![])),
            0,
            false,
        ),
    ];
    for (policy, own, rules, code, again) in table {
        let mut spec = pod("u1", "p", policy, &["c", "other"]);
        let c = of(&mut spec, "c");
        (c.restart_policy, c.restart_rules) = (own, rules);
        let row = format!("{policy:?} {own:?} {:?} {code}", c.restart_rules);
        let mut node = Node::with(&Arc::new(spec));
        node.work();
        node.end("c", code);
        node.work();
        let running = node
            .state
            .pods
            .values()
            .next()
            .unwrap()
            .container("c")
            .unwrap();
        assert_eq!(running.run.is_running(), again, "{row}");
        assert!(node.line().starts_with("Running"), "{row}");
    }
}

fn in_place() -> Arc<PodSpec> {
    let mut spec = with_inits(pod("u1", "p", OnFailure, &["a", "b"]), &["i1", "s2"]);
    let a = of(&mut spec, "a");
    a.restart_policy = Some(Never);
    a.restart_rules = vec![rule(
        ExitCodes::In(vec![88]),
        RestartAction::RestartAllContainers,
    )];
    Arc::new(spec)
}

fn up(spec: &Arc<PodSpec>) -> Node {
    let mut node = Node::with(spec);
    node.work();
    node.end("i1", 0);
    node.work();
    node
}

#[test]
fn restarting_all_containers_kills_the_others_and_begins_with_the_first_init_container() {
    let mut node = up(&in_place());
    let ready_line = node.line();
    assert!(
        ready_line.contains("AllContainersRestarting=False"),
        "{ready_line}"
    );
    // What ended well before starts again, too.
    node.end("b", 0);
    node.work();
    node.now += 1_000;
    node.end("a", 88);
    let text = node.line();
    let on = "AllContainersRestarting=True RestartAllContainersStarted: container exited with restart policy rule";
    assert!(text.contains(on), "{text}");
    let [
        Action::Signal {
            signal: StopSignal::Kill,
            instance,
        },
    ] = &node.open[..]
    else {
        panic!("the sidecar is killed at once: {:?}", node.open);
    };
    assert_eq!(instance.container, "s2");
    assert!(
        node.said().contains(
            &"Normal Killing Init container s2 is removed because RestartAllContainers in place"
                .to_owned()
        )
    );
    node.answer_one();
    node.end("s2", 137);
    let text = node.line();
    let gone = "RestartingAllContainers: The container is removed because RestartAllContainers in place < \
                RestartingAllContainers 137, 1";
    for name in ["i1", "s2", "a", "b"] {
        assert!(text.contains(&format!("{name}: {gone}")), "{name}: {text}");
    }
    assert!(
        text.starts_with("Running; Ready=False"),
        "initialized all the time: {text}"
    );
    assert!(text.contains("AllContainersRestarting=False ;"), "{text}");
    node.work();
    assert!(
        node.line().contains("i1: running < Completed 0, 1"),
        "{}",
        node.line()
    );
    node.end("i1", 0);
    node.work();
    let text = node.line();
    assert!(
        text.contains("a: running < Error 88, 1; b: running < Completed 0, 1"),
        "{text}"
    );
    // There is no back-off for these starts, however often.
    for attempt in 2..5 {
        node.end("a", 88);
        node.work();
        for name in ["s2", "b"] {
            node.end(name, 137);
        }
        node.work();
        node.end("i1", 0);
        node.work();
        assert!(
            node.line()
                .contains(&format!("a: running < Error 88, {attempt}")),
            "{}",
            node.line()
        );
    }
}

#[test]
fn a_restart_in_place_goes_on_after_an_agent_restart_at_any_instant() {
    let spec = in_place();
    let mut node = up(&spec);
    node.end("b", 0);
    node.work();
    node.end("a", 88);
    node = reborn(&node, &[&spec], ready());
    assert!(matches!(
        node.open[..],
        [Action::Signal {
            signal: StopSignal::Kill,
            ..
        }]
    ));
    node.work();
    node.end("s2", 137);
    for _ in 0..3 {
        let old = node.line();
        node = reborn(&node, &[&spec], ready());
        assert_eq!(node.line(), old);
    }
    node.work();
    node = reborn(&node, &[&spec], ready());
    assert!(
        node.line().contains("i1: running < Completed 0, 1"),
        "{}",
        node.line()
    );
    node.end("i1", 0);
    node = reborn(&node, &[&spec], ready());
    node.work();
    let text = node.line();
    assert!(
        text.contains("a: running < Error 88, 1; b: running < Completed 0, 1"),
        "{text}"
    );
    node = reborn(&node, &[&spec], ready());
    assert!(node.open.is_empty(), "once is enough: {:?}", node.open);
}

#[test]
fn a_pod_that_goes_does_not_restart_in_place() {
    let spec = in_place();
    let mut node = up(&spec);
    node.tell(Event::DesiredChanged(crate::pods::desired(&[])));
    node.work();
    for name in ["a", "b"] {
        node.end(name, 88);
        node.work();
    }
    node.end("s2", 0);
    node.work();
    assert!(node.state.pods.is_empty());
}

/// Answers what is open for this container's start, if anything is.
fn start_open(node: &Node) -> Option<&coracle::plan::event::Instance> {
    node.open.iter().find_map(|action| match action {
        Action::StartContainer { instance, .. } => Some(instance),
        _ => None,
    })
}

#[test]
fn a_restart_in_place_waits_for_the_start_that_is_under_way() {
    let spec = in_place();
    let mut node = Node::with(&spec);
    node.work();
    node.end("i1", 0);
    // `a` runs, and `b` is being started, when `a` ends.
    while start_open(&node).is_none_or(|of| of.container != "b") {
        node.answer_one();
    }
    node.end("s2", 1);
    node.end("a", 88);
    assert!(
        node.line().contains("AllContainersRestarting=True"),
        "{}",
        node.line()
    );
    node.answer_one();
    assert!(node.line().contains("b: running < -, 0"), "{}", node.line());
    assert!(
        matches!(
            &node.open[..],
            [Action::Signal { instance, signal: StopSignal::Kill }] if instance.container == "b"
        ),
        "it is of the round that is over: {:?}",
        node.open
    );
}
