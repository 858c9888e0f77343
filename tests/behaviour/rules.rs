//! Restart policies and rules of containers, as the kubelet applies them, and restarts of a pod in place.

use std::sync::Arc;

use coracle::plan::{Action, Event, NodeFact, PodFact};
use coracle::spec::{ExitCodes, PodSpec, RestartAction, RestartPolicy};
use coracle::types::StopSignal;

use crate::node::{Node, ready, reborn};
use crate::pods::{of, pod, rule, with_inits};

use RestartPolicy::{Always, Never, OnFailure};

#[test]
fn the_first_matching_rule_decides_else_the_containers_policy_else_the_pods() {
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
    // A container that has exited with 0 starts again, too.
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
}

/// Ends every container that is killed in place.
fn swept(node: &mut Node) {
    while let Some(Action::Signal { instance, .. }) = node.open.first().cloned() {
        node.answer_one();
        node.end(&instance.container, 137);
    }
}

#[test]
fn a_restart_in_place_waits_as_long_as_the_container_whose_rule_fired_would() {
    let spec = in_place();
    // How long each run lasts, and how long each round waits after it.
    let table: [(u64, &[u64]); 4] = [
        (0, &[0, 10, 20, 40, 80, 160, 300, 300]),
        (5_000, &[0, 10, 20, 40]),
        (600_000, &[0, 10]),
        (601_000, &[0, 0, 0]),
    ];
    for (run_ms, waits) in table {
        for deaths in [false, true] {
            let mut node = up(&spec);
            for (attempt, wait) in waits.iter().enumerate() {
                let row = format!("{run_ms} {attempt} {deaths}");
                node.wait(run_ms);
                node.end("a", 88);
                swept(&mut node);
                if deaths {
                    node = reborn(&node, &[&spec], ready());
                }
                let begin = node.now;
                if *wait > 0 {
                    assert!(node.open.is_empty(), "{row}: {:?}", node.open);
                    let text = node.line();
                    assert!(text.starts_with("Running; "), "{row}: {text}");
                    assert!(
                        text.contains("; a: CrashLoopBackOff: back-off "),
                        "{row}: {text}"
                    );
                    for other in ["i1", "s2", "b"] {
                        let shown = format!("; {other}: RestartingAllContainers: ");
                        assert!(text.contains(&shown), "{row}: {text}");
                    }
                    let wake = node.wake_at().expect("it waits");
                    node.wait(wake - node.now);
                }
                assert_eq!((node.now - begin) / 1_000, *wait, "{row}");
                node.work();
                assert!(
                    node.line().contains("i1: running"),
                    "{row}: {}",
                    node.line()
                );
                node.end("i1", 0);
                node.work();
                assert!(
                    node.line().contains("; a: running"),
                    "{row}: {}",
                    node.line()
                );
            }
        }
    }
}

#[test]
fn rounds_of_several_rules_wait_together_and_no_round_forgets_a_back_off() {
    let mut spec = pod("u1", "p", Always, &["a", "b", "c"]);
    for name in ["a", "b"] {
        let container = of(&mut spec, name);
        container.restart_policy = Some(Never);
        let codes = ExitCodes::NotIn(vec![0]);
        container.restart_rules = vec![rule(codes, RestartAction::RestartAllContainers)];
    }
    let mut node = Node::with(&Arc::new(spec));
    node.work();
    let mut waits = vec![];
    for fires in ["a", "b", "a", "b"] {
        node.end(fires, 1);
        swept(&mut node);
        let begin = node.now;
        if node.open.is_empty() {
            let wake = node.wake_at().expect("it waits");
            node.wait(wake - node.now);
        }
        node.work();
        waits.push((node.now - begin) / 1_000);
        assert!(
            node.line().contains("c: running"),
            "c has nothing else to wait for"
        );
    }
    assert_eq!(waits, [0, 10, 20, 40]);
    node.end("c", 1);
    assert_eq!(
        node.wake_at(),
        Some(node.now + 80_000),
        "c has failed as often"
    );
}

#[test]
fn a_retry_ends_the_wait_of_a_round() {
    let spec = in_place();
    let mut node = up(&spec);
    for again in [false, true] {
        node.end("a", 88);
        swept(&mut node);
        if again {
            assert!(node.open.is_empty());
            node.tell(Event::Pod {
                uid: spec.uid.clone(),
                fact: PodFact::RetryRequested { container: None },
            });
        }
        node.work();
        node.end("i1", 0);
        node.work();
        assert!(node.line().contains("; a: running"), "{}", node.line());
    }
    node.end("a", 88);
    swept(&mut node);
    assert_eq!(
        node.wake_at(),
        Some(node.now + 20_000),
        "the series goes on"
    );
}

#[test]
fn a_restart_in_place_continues_after_an_agent_restart_at_any_instant() {
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
fn a_stopping_pod_does_not_restart_in_place() {
    let spec = in_place();
    let mut node = up(&spec);
    node.tell(Event::Node(NodeFact::DesiredChanged(crate::pods::desired(
        &[],
    ))));
    node.work();
    for name in ["a", "b"] {
        node.end(name, 88);
        node.work();
    }
    node.end("s2", 0);
    node.work();
    assert!(node.state.pods.is_empty());
}

/// The open start of a container, if there is one.
fn start_open(node: &Node) -> Option<&coracle::plan::event::Instance> {
    node.open.iter().find_map(|action| match action {
        Action::StartContainer { instance, .. } => Some(instance),
        _ => None,
    })
}

#[test]
fn a_restart_in_place_waits_for_a_start_in_progress() {
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
        "b belongs to the round that is over: {:?}",
        node.open
    );
}
