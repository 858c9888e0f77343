//! Init containers run, fail and look as on a kubelet. Status lines come from recordings of a real kubelet.

use std::sync::Arc;

use coracle::plan::action::Keep;
use coracle::plan::recovered::RecoveredSandbox;
use coracle::plan::run::Run;
use coracle::plan::state::Sandbox;
use coracle::plan::{Action, Event, PodFact, RunFact};
use coracle::spec::RestartPolicy;

use crate::node::{Node, ready, reborn};
use crate::pods::{of, pod, with_inits};

const UNREADY: &str = "Ready=False ContainersNotReady: containers with unready status: [c]; \
    ContainersReady=False ContainersNotReady: containers with unready status: [c]";

fn incomplete(names: &str) -> String {
    format!(
        "Initialized=False ContainersNotInitialized: containers with incomplete status: [{names}]; {UNREADY}"
    )
}

fn two_inits(policy: RestartPolicy) -> Node {
    Node::with(&Arc::new(with_inits(
        pod("u1", "p", policy, &["c"]),
        &["i1", "i2"],
    )))
}

const WAITS: &str = "PodInitializing < -, 0";
const DONE: &str = "Completed 0 < -, 0, ready=true started=false";
const RUNS: &str = "running < -, 0, ready=false started=true";

#[test]
fn init_containers_run_one_after_the_other_and_look_as_on_a_kubelet() {
    let mut node = two_inits(RestartPolicy::Always);
    let waits = format!("i1: {WAITS}; i2: {WAITS}; c: {WAITS}");
    let all = incomplete("i1 i2");
    let first = format!("Pending; PodReadyToStartContainers=False ; {all}; {waits}");
    assert_eq!(node.line(), first);
    node.work();
    assert_eq!(
        node.line(),
        format!("Pending; {all}; i1: {RUNS}; i2: {WAITS}; c: {WAITS}")
    );
    node.end("i1", 0);
    let second = incomplete("i2");
    assert_eq!(
        node.line(),
        format!("Pending; {second}; i1: {DONE}; i2: {WAITS}; c: {WAITS}")
    );
    node.work();
    assert_eq!(
        node.line(),
        format!("Pending; {second}; i1: {DONE}; i2: {RUNS}; c: {WAITS}")
    );
    node.end("i2", 0);
    assert_eq!(
        node.line(),
        format!("Pending; {UNREADY}; i1: {DONE}; i2: {DONE}; c: {WAITS}")
    );
    node.work();
    assert_eq!(
        node.line(),
        format!("Running; i1: {DONE}; i2: {DONE}; c: running < -, 0")
    );
    let paths: Vec<_> = node
        .notices
        .iter()
        .filter_map(|n| n.field_path.clone())
        .collect();
    assert!(paths.contains(&"spec.initContainers{i1}".to_owned()));
    assert!(paths.contains(&"spec.containers{c}".to_owned()));
}

#[test]
fn a_failing_init_container_fails_a_never_pod_as_on_a_kubelet() {
    let spec = Arc::new(with_inits(
        pod("u1", "p", RestartPolicy::Never, &["c"]),
        &["i1"],
    ));
    let mut node = Node::with(&spec);
    node.work();
    node.end("i1", 1);
    let failed = |sandbox: &str| {
        format!(
            "Failed; {sandbox}Initialized=False ContainersNotInitialized: containers with incomplete status: [i1]; \
             Ready=False PodFailed; ContainersReady=False PodFailed; i1: Error 1 < -, 0; c: {WAITS}"
        )
    };
    assert_eq!(node.line(), failed(""));
    assert!(matches!(
        node.open[..],
        [Action::RemoveSandbox {
            keep: Keep::Everything,
            ..
        }]
    ));
    node.work();
    assert_eq!(node.line(), failed("PodReadyToStartContainers=False ; "));
    let new = reborn(&node, &[&spec], RecoveredSandbox::Removed);
    assert!(new.open.is_empty(), "{:?}", new.open);
    assert_eq!(new.line(), node.line());
}

#[test]
fn an_init_containers_own_policy_wins_over_the_pods() {
    for (policy, own, code, fails) in [
        (RestartPolicy::Always, Some(RestartPolicy::Never), 1, true),
        (
            RestartPolicy::Never,
            Some(RestartPolicy::OnFailure),
            1,
            false,
        ),
        (RestartPolicy::OnFailure, None, 1, false),
        (RestartPolicy::Always, None, 1, false),
        (RestartPolicy::Never, None, 1, true),
    ] {
        let mut spec = with_inits(pod("u1", "p", policy, &["c"]), &["i1"]);
        of(&mut spec, "i1").restart_policy = own;
        let mut node = Node::with(&Arc::new(spec));
        node.work();
        node.end("i1", code);
        let line = node.line();
        assert_eq!(
            line.starts_with("Failed"),
            fails,
            "{policy:?} {own:?}: {line}"
        );
    }
}

#[test]
fn a_failing_init_container_is_tried_again_with_back_off() {
    let mut node = two_inits(RestartPolicy::OnFailure);
    for wait in [0, 10_000, 20_000, 40_000] {
        node.work();
        node.end("i1", 3);
        if wait > 0 {
            assert!(
                node.line().contains("i1: CrashLoopBackOff: back-off"),
                "{}",
                node.line()
            );
            assert_eq!(node.wake_at(), Some(node.now + wait));
            node.wait(wait);
        }
    }
    node.work();
    node.end("i1", 0);
    node.work();
    node.end("i2", 0);
    node.work();
    let last = "i1: Completed 0 < Error 3, 4, ready=true started=false; i2: Completed 0 < -, 0, ready=true \
                started=false; c: running < -, 0";
    assert_eq!(node.line(), format!("Running; {last}"));
}

#[test]
fn out_of_memory_is_a_failure_of_an_init_container_whatever_its_exit_code() {
    for (policy, shown) in [
        (RestartPolicy::Always, "i1: running < OOMKilled 0, 1"),
        (RestartPolicy::OnFailure, "i1: running < OOMKilled 0, 1"),
        (RestartPolicy::Never, "i1: OOMKilled 0 < -, 0"),
    ] {
        let mut node = two_inits(policy);
        node.work();
        let pod = node.state.pods.values().next().unwrap();
        let instance = pod.instance("i1", 0);
        let mut exit = crate::pods::exit(0, crate::pods::at(node.now), crate::pods::at(node.now));
        exit.oom_killed = true;
        node.tell(Event::Run {
            instance,
            fact: RunFact::Exited { exit },
        });
        node.work();
        let line = node.line();
        assert!(line.contains(shown), "{policy:?}: {line}");
    }
}

#[test]
fn a_lost_sandbox_runs_all_init_containers_again_and_an_agent_restart_none() {
    let spec = Arc::new(with_inits(
        pod("u1", "p", RestartPolicy::Always, &["c"]),
        &["i1", "i2"],
    ));
    let mut node = Node::with(&spec);
    node.work();
    node.end("i1", 0);
    node.work();
    let mut new = reborn(&node, &[&spec], ready());
    assert!(new.open.is_empty(), "i2 runs: {:?}", new.open);
    new.end("i2", 0);
    new.work();
    let new = reborn(&new, &[&spec], ready());
    assert!(new.open.is_empty(), "c runs: {:?}", new.open);
    let mut node = new;
    node.tell(Event::Pod {
        uid: spec.uid.clone(),
        fact: PodFact::SandboxLost,
    });
    node.work();
    let again = "i1: running < Completed 0, 1, ready=false started=true; i2: PodInitializing < Completed 0, 0; \
                 c: ContainerStatusUnknown 137 < -, 0";
    assert_eq!(
        node.line(),
        format!("Pending; {}; {again}", incomplete("i1 i2"))
    );
    // The count survives an agent restart, too.
    let mut node = reborn(&node, &[&spec], ready());
    assert_eq!(
        node.line(),
        format!("Pending; {}; {again}", incomplete("i1 i2"))
    );
    node.end("i1", 0);
    node.work();
    node.end("i2", 0);
    node.work();
    let last = "i1: Completed 0 < Completed 0, 1, ready=true started=false; i2: Completed 0 < Completed 0, 1, \
                ready=true started=false; c: running < ContainerStatusUnknown 137, 1";
    assert_eq!(node.line(), format!("Running; {last}"));
}

#[test]
fn a_lost_sandbox_is_not_replaced_when_its_work_turns_out_to_be_done() {
    let spec = Arc::new(with_inits(
        pod("u1", "p", RestartPolicy::OnFailure, &["c"]),
        &["i1"],
    ));
    let mut node = Node::with(&spec);
    node.work();
    node.end("i1", 0);
    node.work();
    let pod = spec.uid.clone();
    node.tell(Event::Pod {
        uid: pod,
        fact: PodFact::SandboxLost,
    });
    // The shim recorded, before it was killed, that the program ended well; the agent dies before it reads that.
    let pod = node.state.pods.get_mut(&spec.uid).unwrap();
    let Run::Ended(past) = &mut pod.containers[1].run else {
        panic!("the run has ended: {pod:?}");
    };
    past.ended.exit.code = 0;
    past.ended.exit.message = String::new();
    let mut node = reborn(&node, &[&spec], RecoveredSandbox::Lost);
    node.work();
    assert!(node.state.pods[&spec.uid].finished());
    let line = node.line();
    assert!(line.starts_with("Succeeded; "), "{line}");
    assert!(line.contains("; Initialized=True PodCompleted; "), "{line}");
    assert_eq!(node.state.pods[&spec.uid].sandbox, Sandbox::Removed);
}

#[test]
fn an_init_container_keeps_its_back_off_in_a_new_sandbox() {
    let mut node = two_inits(RestartPolicy::Always);
    node.work();
    for _ in 0..3 {
        node.end("i1", 1);
        let wait = node.wake_at().map_or(0, |at| at - node.now);
        node.wait(wait);
        node.work();
    }
    node.end("i1", 1);
    assert!(node.line().contains("back-off 40s"), "{}", node.line());
    let pod = node.state.pods.keys().next().unwrap().clone();
    node.tell(Event::Pod {
        uid: pod,
        fact: PodFact::SandboxLost,
    });
    node.work();
    assert!(node.line().contains("back-off 40s"), "{}", node.line());
    assert_eq!(node.wake_at(), Some(node.now + 40_000));
    node.wait(40_000);
    node.work();
    let line = node.line();
    assert!(line.contains("i1: running < Error 1, 4"), "{line}");
}

#[test]
fn an_init_container_that_has_done_its_work_waits_in_a_new_sandbox_only_if_the_last_was_short() {
    for (life_ms, wait) in [(0, Some(10_000)), (9_999, Some(1)), (10_000, None)] {
        let mut node = two_inits(RestartPolicy::Always);
        let pod = node.state.pods.keys().next().unwrap().clone();
        for _ in 0..2 {
            node.work();
            node.end("i1", 0);
            node.work();
            node.end("i2", 0);
            node.work();
            node.wait(life_ms);
            node.tell(Event::Pod {
                uid: pod.clone(),
                fact: PodFact::SandboxLost,
            });
            node.wait(1_000);
            node.now -= 1_000;
        }
        while !node.open.is_empty() {
            node.answer_one();
        }
        let (now, waits) = (node.now, node.line().contains("i1: CrashLoopBackOff"));
        assert_eq!(waits, wait.is_some(), "{life_ms}: {}", node.line());
        assert_eq!(node.wake_at().map(|at| at - now), wait, "{life_ms}");
    }
}
