//! Hooks run when the kubelet's do, with the same effect and the kubelet's grace period arithmetic.

#[path = "hooks/post_start.rs"]
mod post_start;
#[path = "hooks/restart.rs"]
mod restart;

use std::sync::Arc;

use coracle::plan::event::{AskedBy, Group, HookOrder, HookOutcome};
use coracle::plan::recovered::HeldHook;
use coracle::plan::{Action, Event, NodeFact, PodFact, Step, Task};
use coracle::spec::{Hook, HookKind, PodSpec, RestartPolicy};
use coracle::types::{StopSignal, Time};

use crate::node::{Node, one, ready, reborn, reborn_as};
use crate::pods::{desired, of, pod, probing, with_inits};

const UNREADY: &str = "Ready=False ContainersNotReady: containers with unready status: [c]; \
    ContainersReady=False ContainersNotReady: containers with unready status: [c]";

fn run() -> Option<Hook> {
    Some(Hook::Exec(vec!["true".into()]))
}

fn with(post_start: Option<Hook>, pre_stop: Option<Hook>) -> PodSpec {
    let mut spec = (*one(RestartPolicy::Always, &["c"])).clone();
    let lifecycle = &mut of(&mut spec, "c").lifecycle;
    (lifecycle.post_start, lifecycle.pre_stop) = (post_start, pre_stop);
    spec
}

impl Node {
    fn hooks(&self) -> Vec<HookOrder> {
        let tasks = self.foresee().0.into_iter();
        let hooks = tasks.filter_map(|task| match task {
            Task::Hook(order) => Some(order),
            Task::Act(_) | Task::Probe(_) | Task::Relieve(_) => None,
        });
        hooks.collect()
    }

    /// Begins the hooks that are due; returns their kinds and containers.
    fn begin(&mut self) -> Vec<(HookKind, String)> {
        let orders = self.hooks();
        for order in &orders {
            self.tell(order.clone().started());
        }
        assert_eq!(self.hooks(), [], "each hook begins once");
        let said = orders.into_iter();
        said.map(|o| (o.hook, o.instance.container)).collect()
    }

    fn end_hook(&mut self, hook: HookKind, container: &str, failure: Option<&str>) {
        let pod = self.state.pods.values().next().unwrap();
        let attempt = pod.container(container).unwrap().run.attempt().unwrap();
        let order = HookOrder {
            instance: pod.instance(container, attempt),
            hook,
        };
        let outcome = HookOutcome {
            failure: failure.map(str::to_owned),
            fell_back: None,
            at: None,
        };
        self.tell(order.done(outcome));
    }

    /// Lets time pass until the next signal, and answers it; returns the delay, the signal and the container.
    fn next_signal(&mut self) -> (u64, StopSignal, String) {
        let begin = self.now;
        while self.open.is_empty() {
            let wake = self.wake_at().expect("a signal will come");
            self.wait(wake - self.now);
        }
        let Some(Action::Signal {
            signal, instance, ..
        }) = self.open.first().cloned()
        else {
            panic!("a signal: {:?}", self.open);
        };
        self.answer_one();
        (self.now - begin, signal, instance.container)
    }

    fn goes(&mut self) {
        self.tell(Event::Node(NodeFact::DesiredChanged(desired(&[]))));
    }
}

/// A pod that goes away, on a node that has begun its preStop hook.
fn in_hook(pre_stop: Option<Hook>) -> (Arc<PodSpec>, Node) {
    let spec = Arc::new(with(None, pre_stop));
    let mut node = Node::with(&spec);
    node.work();
    node.goes();
    node.begin();
    (spec, node)
}

fn pre_stop(container: &str) -> Vec<(HookKind, String)> {
    vec![(HookKind::PreStop, container.to_owned())]
}

#[test]
fn a_pre_stop_hook_uses_up_whole_seconds_of_the_grace_period() {
    // The grace period, how long the hook takes (None: it hangs), then the waits before the stop signal and before SIGKILL.
    for (grace_ms, takes, before, after) in [
        (30_000, Some(10_900), 10_900, 20_000),
        (30_000, Some(900), 900, 30_000),
        (30_000, None, 30_000, 2_000),
        (30_000, Some(29_500), 29_500, 2_000),
        (1_000, Some(500), 500, 2_000),
        (0, Some(500), 500, 2_000),
        (0, None, 1_000, 2_000),
        (5_000, Some(0), 0, 5_000),
    ] {
        let mut spec = with(None, run());
        spec.grace_ms = grace_ms;
        let mut node = Node::with(&Arc::new(spec));
        node.work();
        node.goes();
        assert!(node.open.is_empty(), "the hook comes first");
        assert_eq!(node.begin(), pre_stop("c"));
        let said = node.said();
        assert!(said.contains(&"Normal Killing Stopping container c".to_owned()));
        let mut waited = 0;
        if let Some(ms) = takes {
            node.wait(ms);
            waited = ms;
            node.end_hook(HookKind::PreStop, "c", None);
        }
        let (ms, signal, _) = node.next_signal();
        let text = format!("grace {grace_ms}, hook {takes:?}");
        assert_eq!((waited + ms, signal), (before, StopSignal::Stop), "{text}");
        let (ms, signal, _) = node.next_signal();
        assert_eq!((ms, signal), (after, StopSignal::Kill), "{text}");
    }
}

#[test]
fn a_sleep_hook_only_waits() {
    for (sleep, after) in [(3_000, 12_000), (0, 15_000), (15_000, 2_000)] {
        let mut spec = with(None, Some(Hook::Sleep { ms: sleep }));
        spec.grace_ms = 15_000;
        let mut node = Node::with(&Arc::new(spec));
        node.work();
        node.goes();
        assert_eq!(node.begin(), [], "a sleep needs no action");
        let (ms, signal, _) = node.next_signal();
        assert_eq!((ms, signal), (sleep, StopSignal::Stop), "{sleep}");
        let (ms, signal, _) = node.next_signal();
        assert_eq!((ms, signal), (after, StopSignal::Kill), "{sleep}");
    }
}

#[test]
fn sidecars_run_pre_stop_hooks_at_once_and_then_wait_for_their_turn() {
    let mut spec = with_inits(pod("u1", "p", RestartPolicy::Always, &["c"]), &["s1"]);
    of(&mut spec, "s1").lifecycle.pre_stop = run();
    for (mains_take, left) in [(25_000, 5_000), (30_000, 2_000)] {
        let mut node = Node::with(&Arc::new(spec.clone()));
        node.work();
        node.goes();
        assert_eq!(node.begin(), pre_stop("s1"), "at once");
        let (ms, signal, container) = node.next_signal();
        assert_eq!((ms, signal, container.as_str()), (0, StopSignal::Stop, "c"));
        node.wait(3_000);
        node.end_hook(HookKind::PreStop, "s1", None);
        assert!(node.open.is_empty(), "it is not the sidecar's turn");
        node.wait(mains_take - 3_000);
        if mains_take < 30_000 {
            node.end("c", 0);
        } else {
            let (_, signal, container) = node.next_signal();
            assert_eq!((signal, container.as_str()), (StopSignal::Kill, "c"));
        }
        let (ms, signal, container) = node.next_signal();
        assert_eq!(
            (ms, signal, container.as_str()),
            (0, StopSignal::Stop, "s1")
        );
        let (ms, signal, container) = node.next_signal();
        assert_eq!(
            (ms, signal, container.as_str()),
            (left, StopSignal::Kill, "s1")
        );
    }
}

#[test]
fn no_hook_runs_when_a_pod_without_a_grace_period_fails_a_probe() {
    let mut spec = with(None, run());
    spec.grace_ms = 0;
    of(&mut spec, "c").probes.liveness = Some(probing(1_000, 1));
    let mut node = Node::with(&Arc::new(spec));
    node.work();
    node.fail();
    assert_eq!(node.hooks(), []);
    assert_eq!(node.next_signal().1, StopSignal::Stop);
    let (ms, signal, _) = node.next_signal();
    assert_eq!((ms, signal), (2_000, StopSignal::Kill));
}

#[test]
fn a_kill_for_a_probe_runs_the_hook_within_the_probes_grace_period() {
    let mut spec = with(None, run());
    let mut probe = probing(1_000, 1);
    probe.grace_ms = Some(5_000);
    of(&mut spec, "c").probes.liveness = Some(probe);
    let mut node = Node::with(&Arc::new(spec));
    node.work();
    node.fail();
    assert_eq!(node.begin(), pre_stop("c"));
    node.wait(2_500);
    node.end_hook(HookKind::PreStop, "c", None);
    assert_eq!(node.next_signal().0, 0);
    assert_eq!(node.next_signal().0, 3_000);
}

#[test]
fn a_second_shorter_grace_period_shortens_the_hook_too() {
    let (spec, mut node) = in_hook(run());
    node.wait(2_000);
    let pod = spec.uid.clone();
    for (asked, wake) in [(60_000, 28_000), (5_000, 3_000), (20_000, 3_000)] {
        node.tell(Event::Pod {
            uid: pod.clone(),
            fact: PodFact::DeleteRequested {
                grace_ms: Some(asked),
            },
        });
        assert_eq!(node.wake_at(), Some(node.now + wake), "{asked}");
    }
    let (ms, signal, _) = node.next_signal();
    assert_eq!((ms, signal), (3_000, StopSignal::Stop), "the hook hangs");
    node.tell(Event::Pod {
        uid: pod,
        fact: PodFact::DeleteRequested { grace_ms: Some(0) },
    });
    let (ms, signal, _) = node.next_signal();
    assert_eq!(
        (ms, signal),
        (2_000, StopSignal::Kill),
        "SIGKILL waits for its 2 s"
    );
}

#[test]
fn a_grace_period_of_zero_still_leaves_one_second_for_hook_and_stop_signal() {
    for asked in [0, 1_000] {
        let spec = Arc::new(with(None, run()));
        let mut node = Node::with(&spec);
        node.work();
        node.tell(Event::Pod {
            uid: spec.uid.clone(),
            fact: PodFact::DeleteRequested {
                grace_ms: Some(asked),
            },
        });
        assert_eq!(node.begin(), pre_stop("c"), "{asked}");
        let (ms, signal, _) = node.next_signal();
        assert_eq!((ms, signal), (1_000, StopSignal::Stop), "{asked}: it hangs");
        let (ms, signal, _) = node.next_signal();
        assert_eq!((ms, signal), (2_000, StopSignal::Kill), "{asked}");
    }
}

#[test]
fn a_failed_pre_stop_hook_is_reported_and_the_stop_continues() {
    let (_, mut node) = in_hook(run());
    node.end_hook(HookKind::PreStop, "c", Some("it said no"));
    let text = "Warning FailedPreStopHook PreStopHook failed: it said no";
    assert!(node.said().contains(&text.to_owned()), "{:?}", node.said());
    assert_eq!(node.next_signal().1, StopSignal::Stop);
}

#[test]
fn hooks_leave_no_record_before_one_begins() {
    let mut node = Node::with(&Arc::new(with(run(), None)));
    node.work();
    let new = |node: &Node| {
        let pod = node.state.pods.values().next().unwrap();
        pod.containers[0].hooks().unwrap().is_new()
    };
    assert!(new(&node));
    node.begin();
    assert!(!new(&node));
}

#[test]
fn the_outcome_of_an_earlier_runs_hook_is_ignored() {
    let mut node = Node::with(&Arc::new(with(run(), None)));
    node.work();
    let order = |attempt| HookOrder {
        instance: node
            .state
            .pods
            .values()
            .next()
            .unwrap()
            .instance("c", attempt),
        hook: HookKind::PostStart,
    };
    let (old, new) = (order(0), order(1));
    node.tell(old.clone().started());
    node.end("c", 1);
    node.work();
    node.tell(new.started());
    let known = node.state.pods.clone();
    let outcome = HookOutcome {
        failure: Some("late".into()),
        fell_back: None,
        at: None,
    };
    node.tell(old.done(outcome));
    assert_eq!(node.state.pods, known);
}

/// The events about failed hooks.
fn failures(node: &Node) -> Vec<String> {
    let said = node.said().into_iter();
    said.filter(|s| s.contains("Failed") && s.contains("Hook"))
        .collect()
}

#[test]
fn a_hook_that_is_cut_off_reports_the_cause() {
    const PRE_STOP: &str = "Warning FailedPreStopHook PreStopHook failed: ";
    const POST_START: &str = "Warning FailedPostStartHook PostStartHook failed: ";
    // The grace period is over.
    for hook in [run(), Some(Hook::Sleep { ms: 60_000 })] {
        let (_, mut node) = in_hook(hook);
        assert_eq!(node.next_signal().0, 30_000);
        let text = format!("{PRE_STOP}preStop hook not completed in grace period of 30s");
        assert_eq!(failures(&node), std::slice::from_ref(&text));
        node.end("c", 137);
        assert_eq!(failures(&node), [text], "once");
    }
    // The container ends by itself.
    for (hook, what) in [
        (run(), "the hook"),
        (Some(Hook::Sleep { ms: 9_000 }), "sleep hook"),
    ] {
        let why = format!("container terminated before {what} finished");
        let (_, mut node) = in_hook(hook.clone());
        node.end("c", 0);
        assert_eq!(failures(&node), [format!("{PRE_STOP}{why}")]);
        let mut node = Node::with(&Arc::new(with(hook, None)));
        node.work();
        node.begin();
        node.end("c", 0);
        assert_eq!(failures(&node), [format!("{POST_START}{why}")]);
        // A hook that is done is not cut off.
        node.wait(60_000);
        node.work();
        node.begin();
        let said = failures(&node).len();
        node.wait(10_000);
        if what == "the hook" {
            node.end_hook(HookKind::PostStart, "c", None);
        }
        node.end("c", 0);
        assert_eq!(failures(&node).len(), said, "{:?}", failures(&node));
    }
    // The agent restarts, and meanwhile the container ends, or does not.
    let (_, node) = in_hook(run());
    let mut new = reborn(&node, &[], ready());
    assert_eq!(failures(&new), [""; 0]);
    new.begin();
    let again = format!("{PRE_STOP}cut off by an agent restart, so it is carried out again");
    assert_eq!(failures(&new), [again]);
    let lost = coracle::plan::recovered::RecoveredSandbox::Lost;
    let new = reborn(&node, &[], lost.clone());
    let why = "container terminated before the hook finished";
    assert_eq!(failures(&new), [format!("{PRE_STOP}{why}")]);
    let third = reborn(&new, &[], lost);
    assert_eq!(
        failures(&third),
        [""; 0],
        "once, also across agent restarts"
    );
}
