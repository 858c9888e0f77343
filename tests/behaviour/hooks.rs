//! Do hooks do what the kubelet's do, and when? Grace arithmetic from kubelet-behaviour §16.5.

use std::sync::Arc;

use coracle::plan::event::{AskedBy, Group, HookOrder, HookOutcome};
use coracle::plan::{Action, Event, Time, hook};
use coracle::spec::{Hook, HookKind, PodSpec, RestartPolicy, StopSignal};

use crate::node::{Node, one, ready, reborn};
use crate::pods::{self, desired, of, pod, probing, with_inits};

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
        let pods = self.state.pods.values();
        pods.flat_map(|p| hook::due(p, Time(self.now))).collect()
    }

    /// Begins what is due; its kind and container.
    fn begin(&mut self) -> Vec<(HookKind, String)> {
        let orders = self.hooks();
        for order in &orders {
            self.tell(Event::HookStarted(order.clone()));
        }
        assert_eq!(self.hooks(), [], "begun once");
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
        };
        self.tell(Event::HookDone { order, outcome });
    }

    /// Lets time pass until the next signal, and answers it: after how long, which, to whom.
    fn next_signal(&mut self) -> (u64, StopSignal, String) {
        let begin = self.now;
        while self.open.is_empty() {
            let moment = pods::moment(&self.state, Time(self.now));
            let wakes = self.wake_at().into_iter().chain(moment.map(|t| t.0));
            let wake = wakes.min().expect("something is to come");
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
        self.tell(Event::DesiredChanged(desired(&[])));
    }
}

fn pre_stop(container: &str) -> Vec<(HookKind, String)> {
    vec![(HookKind::PreStop, container.to_owned())]
}

#[test]
fn a_pre_stop_hook_costs_whole_seconds_of_the_grace() {
    // Grace, how long the hook takes (None: it hangs), then the waits before the stop signal and before SIGKILL.
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
fn a_sleep_is_a_hook_that_the_clock_carries_out() {
    for (sleep, after) in [(3_000, 12_000), (0, 15_000), (15_000, 2_000)] {
        let mut spec = with(None, Some(Hook::Sleep { ms: sleep }));
        spec.grace_ms = 15_000;
        let mut node = Node::with(&Arc::new(spec));
        node.work();
        node.goes();
        assert_eq!(node.begin(), [], "nobody has to do anything");
        let (ms, signal, _) = node.next_signal();
        assert_eq!((ms, signal), (sleep, StopSignal::Stop), "{sleep}");
        let (ms, signal, _) = node.next_signal();
        assert_eq!((ms, signal), (after, StopSignal::Kill), "{sleep}");
    }
}

#[test]
fn sidecars_run_their_hooks_at_the_start_and_wait_for_their_turn_after_it() {
    let mut spec = with_inits(pod("u1", "p", RestartPolicy::Always, &["c"]), &["s1"]);
    of(&mut spec, "s1").lifecycle.pre_stop = run();
    for (mains_take, left) in [(25_000, 5_000), (30_000, 2_000)] {
        let mut node = Node::with(&Arc::new(spec.clone()));
        node.work();
        node.goes();
        assert_eq!(node.begin(), pre_stop("s1"), "at once");
        let (ms, signal, who) = node.next_signal();
        assert_eq!((ms, signal, who.as_str()), (0, StopSignal::Stop, "c"));
        node.wait(3_000);
        node.end_hook(HookKind::PreStop, "s1", None);
        assert!(node.open.is_empty(), "not its turn");
        node.wait(mains_take - 3_000);
        if mains_take < 30_000 {
            node.end("c", 0);
        } else {
            let (_, signal, who) = node.next_signal();
            assert_eq!((signal, who.as_str()), (StopSignal::Kill, "c"));
        }
        let (ms, signal, who) = node.next_signal();
        assert_eq!((ms, signal, who.as_str()), (0, StopSignal::Stop, "s1"));
        let (ms, signal, who) = node.next_signal();
        assert_eq!((ms, signal, who.as_str()), (left, StopSignal::Kill, "s1"));
    }
}

#[test]
fn no_hook_is_run_when_a_pod_without_grace_fails_a_probe() {
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
fn a_kill_for_a_probe_runs_the_hook_within_the_probes_grace() {
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
fn a_second_shorter_grace_shortens_the_hook_too() {
    let spec = Arc::new(with(None, run()));
    let mut node = Node::with(&spec);
    node.work();
    node.goes();
    node.begin();
    node.wait(2_000);
    let pod = spec.uid.clone();
    for (asked, wake) in [(60_000, 28_000), (5_000, 3_000), (20_000, 3_000)] {
        node.tell(Event::DeleteRequested {
            pod: pod.clone(),
            grace_ms: Some(asked),
        });
        assert_eq!(node.wake_at(), Some(node.now + wake), "{asked}");
    }
    let (ms, signal, _) = node.next_signal();
    assert_eq!((ms, signal), (3_000, StopSignal::Stop), "the hook hangs");
    node.tell(Event::DeleteRequested {
        pod,
        grace_ms: Some(0),
    });
    let (ms, signal, _) = node.next_signal();
    assert_eq!((ms, signal), (2_000, StopSignal::Kill), "not at once");
}

#[test]
fn no_grace_is_the_shortest_grace_with_hook_and_stop_signal() {
    for asked in [0, 1_000] {
        let spec = Arc::new(with(None, run()));
        let mut node = Node::with(&spec);
        node.work();
        node.tell(Event::DeleteRequested {
            pod: spec.uid.clone(),
            grace_ms: Some(asked),
        });
        assert_eq!(node.begin(), pre_stop("c"), "{asked}");
        let (ms, signal, _) = node.next_signal();
        assert_eq!((ms, signal), (1_000, StopSignal::Stop), "{asked}: it hangs");
        let (ms, signal, _) = node.next_signal();
        assert_eq!((ms, signal), (2_000, StopSignal::Kill), "{asked}");
    }
}

#[test]
fn a_pre_stop_hook_that_fails_is_told_and_stops_nothing() {
    let mut node = Node::with(&Arc::new(with(None, run())));
    node.work();
    node.goes();
    node.begin();
    node.end_hook(HookKind::PreStop, "c", Some("it said no"));
    let told = "Warning FailedPreStopHook PreStopHook failed: it said no";
    assert!(node.said().contains(&told.to_owned()), "{:?}", node.said());
    assert_eq!(node.next_signal().1, StopSignal::Stop);
}

#[test]
fn a_new_agent_repeats_the_hook_that_was_not_done_with_the_whole_grace() {
    let spec = Arc::new(with(None, run()));
    let mut node = Node::with(&spec);
    node.work();
    node.goes();
    node.begin();
    node.wait(10_000);
    let mut new = reborn(&node, &[], ready());
    assert_eq!(new.begin(), pre_stop("c"), "once more");
    assert_eq!(new.wake_at(), Some(new.now + 30_000), "from now on");
    new.wait(1_000);
    new.end_hook(HookKind::PreStop, "c", None);
    // One that is done is done, also if nobody was told to stop yet.
    let mut third = reborn(&new, &[], ready());
    assert_eq!(third.hooks(), []);
    assert_eq!(third.next_signal().1, StopSignal::Stop);
    assert_eq!(third.next_signal().0, 29_000);
    let killing = |n: &Node| n.said().iter().filter(|s| s.contains("Killing")).count();
    assert_eq!((killing(&new), killing(&third)), (0, 0), "said once");
}

#[test]
fn agents_that_die_again_and_again_put_off_an_end_three_times() {
    for reason in ["pod", "liveness"] {
        let mut spec = with(None, run());
        spec.grace_ms = 8_000;
        if reason == "liveness" {
            of(&mut spec, "c").probes.liveness = Some(probing(1_000, 1));
        }
        let spec = Arc::new(spec);
        for deaths in 0..6 {
            let wanted: &[_] = if reason == "pod" { &[] } else { &[&spec] };
            let mut node = Node::with(&spec);
            node.work();
            match reason {
                "pod" => node.goes(),
                _ => node.fail(),
            }
            let begin = node.now;
            for _ in 0..deaths {
                node.begin();
                node.wait(5_000);
                node = reborn(&node, wanted, ready());
                assert_eq!(reborn(&node, wanted, ready()).open, node.open);
            }
            node.begin();
            let (_, signal, _) = node.next_signal();
            assert_eq!(signal, StopSignal::Stop);
            let most = (5_000 * deaths.min(3) + 8_000).max(5_000 * deaths);
            assert_eq!(node.now - begin, most, "{reason}: {deaths}");
            let (ms, signal, _) = node.next_signal();
            assert_eq!(
                (ms, signal),
                (2_000, StopSignal::Kill),
                "{reason}: {deaths}"
            );
        }
    }
}

#[test]
fn a_hook_has_the_whole_grace_also_if_no_agent_was_there_for_longer_or_before_it_began() {
    for begun in [false, true] {
        let spec = Arc::new(with(None, run()));
        let mut node = Node::with(&spec);
        node.work();
        node.goes();
        if begun {
            node.begin();
        }
        node.now += 100_000;
        let mut node = reborn(&node, &[], ready());
        assert_eq!(node.begin(), pre_stop("c"), "{begun}");
        node.wait(10_900);
        node.end_hook(HookKind::PreStop, "c", None);
        assert_eq!(node.next_signal().1, StopSignal::Stop, "{begun}");
        assert_eq!(node.next_signal().0, 20_000, "{begun}");
    }
}

#[test]
fn sidecars_wait_for_who_repeats_his_hook_and_a_sleep_is_not_repeated() {
    let mut spec = with_inits(pod("u1", "p", RestartPolicy::Always, &["c", "d"]), &["s1"]);
    of(&mut spec, "c").lifecycle.pre_stop = run();
    of(&mut spec, "d").lifecycle.pre_stop = Some(Hook::Sleep { ms: 15_000 });
    let spec = Arc::new(spec);
    let mut node = Node::with(&spec);
    node.work();
    node.goes();
    node.begin();
    node.wait(10_000);
    let mut node = reborn(&node, &[], ready());
    assert_eq!(node.begin(), pre_stop("c"));
    let (ms, signal, name) = node.next_signal();
    assert_eq!((ms, signal, &*name), (5_000, StopSignal::Stop, "d"));
    node.end("d", 0);
    node.wait(20_000);
    node.end_hook(HookKind::PreStop, "c", None);
    let (ms, signal, name) = node.next_signal();
    assert_eq!((ms, signal, &*name), (0, StopSignal::Stop, "c"));
    assert!(node.open.is_empty(), "s1 waits for it");
    node.end("c", 0);
    assert_eq!(node.next_signal().2, "s1");
}

#[test]
fn less_grace_and_the_end_of_a_shutdowns_turn_bound_what_is_repeated() {
    let repeated = |grace_ms| {
        let mut spec = with(None, run());
        spec.grace_ms = grace_ms;
        let spec = Arc::new(spec);
        let mut node = Node::with(&spec);
        node.work();
        (spec, node)
    };
    let (spec, mut node) = repeated(30_000);
    node.goes();
    node.begin();
    node.wait(5_000);
    let mut node = reborn(&node, &[], ready());
    node.begin();
    node.tell(Event::DeleteRequested {
        pod: spec.uid.clone(),
        grace_ms: Some(12_000),
    });
    assert_eq!(node.next_signal().0, 7_000, "12 s from the beginning");

    // The agent dies at a moment of the turn; for how long its hook goes on then.
    for (grace_ms, seconds, dies, left) in [
        (8_000, 20, 5_000, 8_000),
        (8_000, 20, 7_900, 8_000),
        (15_000, 20, 10_000, 10_000),
        (30_000, 20, 19_000, 1_000),
        (30_000, 20, 25_000, 0),
        (30_000, 0, 500, 0),
    ] {
        let (spec, mut node) = repeated(grace_ms);
        let groups = vec![
            Group {
                priority: 0,
                seconds,
            },
            Group {
                priority: 9,
                seconds: 60,
            },
        ];
        let asked_by = AskedBy::Command;
        node.tell(Event::ShutdownBegun { groups, asked_by });
        node.begin();
        node.now += dies;
        let mut node = reborn(&node, &[&spec], ready());
        assert_eq!(node.begin().len(), usize::from(left > 0), "{dies}");
        let (ms, signal, _) = node.next_signal();
        assert_eq!((ms, signal), (left, StopSignal::Stop), "{grace_ms} {dies}");
    }
}

#[test]
fn a_container_comes_up_when_its_post_start_hook_is_done() {
    let mut spec = with(run(), None);
    let later = of(&mut spec, "c").clone();
    spec.containers.push(later);
    spec.containers[1].name = "d".into();
    spec.containers[1].lifecycle.post_start = None;
    let mut manifest = (*spec.manifest).clone();
    let shown = &mut manifest.spec.as_mut().unwrap().containers;
    shown.push(shown[0].clone());
    shown[1].name = "d".into();
    spec.manifest = Arc::new(manifest);
    of(&mut spec, "c").probes.readiness = Some(probing(1_000, 1));
    let spec = Arc::new(spec);
    let mut node = Node::with(&spec);
    node.work();
    assert_eq!(node.begin(), [(HookKind::PostStart, "c".to_owned())]);
    let line = "c: ContainerCreating < -, 0; d: ContainerCreating < -, 0";
    assert!(node.line().starts_with("Pending"), "{}", node.line());
    assert!(node.line().ends_with(line), "{}", node.line());
    let pod = node.state.pods.values().next().unwrap();
    let probes = coracle::plan::probe::due(pod, Time(node.now));
    assert!(probes.orders.is_empty(), "not probed yet");
    // The next agent does it again.
    let mut node = reborn(&node, &[&spec], ready());
    assert!(node.line().ends_with(line), "{}", node.line());
    assert_eq!(node.begin().len(), 1);
    node.end_hook(HookKind::PostStart, "c", None);
    node.work();
    assert!(node.line().starts_with("Running"), "{}", node.line());
    assert!(
        node.line().ends_with("d: running < -, 0"),
        "{}",
        node.line()
    );
    let node = reborn(&node, &[&spec], ready());
    assert_eq!(node.hooks(), [], "once");
}

#[test]
fn a_failed_post_start_hook_kills_with_the_pods_grace_and_is_shown_until_the_next_run_or_wait() {
    let mut node = Node::with(&Arc::new(with(run(), run())));
    node.work();
    node.begin();
    node.wait(1_000);
    node.end_hook(HookKind::PostStart, "c", Some("it said no"));
    let said = node.said();
    let failed = "Warning FailedPostStartHook PostStartHook failed: it said no";
    assert!(said.contains(&failed.to_owned()), "{said:?}");
    let killing = "Normal Killing Container c failed postStart hook, will be restarted";
    assert!(said.contains(&killing.to_owned()), "{said:?}");
    let shown = "c: PostStartHookError: it said no";
    assert_eq!(node.line(), format!("Pending; {UNREADY}; {shown} < -, 0"));
    assert_eq!(node.begin(), pre_stop("c"));
    node.wait(1_000);
    node.end_hook(HookKind::PreStop, "c", None);
    assert_eq!(node.next_signal().1, StopSignal::Stop);
    assert_eq!(node.next_signal().0, 29_000);
    node.end("c", 137);
    assert!(!node.open.is_empty(), "the first restart is immediate");
    let line = node.line();
    assert!(line.contains(&format!("{shown} < Error 137, 0")), "{line}");
    node.work();
    let line = node.line();
    assert!(
        line.contains("c: ContainerCreating < Error 137, 1"),
        "{line}"
    );
    assert!(line.starts_with("Running"), "{line}");
    node.begin();
    node.end_hook(HookKind::PostStart, "c", None);
    assert_eq!(node.line(), "Running; c: running < Error 137, 1");
}

#[test]
fn after_another_failed_post_start_hook_the_wait_is_shown() {
    let mut node = Node::with(&Arc::new(with(run(), None)));
    for _ in 0..2 {
        node.work();
        node.begin();
        node.end_hook(HookKind::PostStart, "c", Some("it said no"));
        let line = node.line();
        assert!(line.contains("c: PostStartHookError: it said no"), "{line}");
        assert_eq!(node.next_signal().1, StopSignal::Stop);
        node.end("c", 137);
    }
    let line = node.line();
    assert!(
        line.contains("c: CrashLoopBackOff: back-off 10s restarting failed container=c"),
        "{line}"
    );
    assert!(line.contains("< Error 137, 1"), "{line}");
}

#[test]
fn of_hooks_there_is_nothing_to_remember_before_one_begins() {
    let mut node = Node::with(&Arc::new(with(run(), None)));
    node.work();
    let new = |node: &Node| {
        let pod = node.state.pods.values().next().unwrap();
        pod.containers[0].hooks.is_new()
    };
    assert!(new(&node));
    node.begin();
    assert!(!new(&node));
}

#[test]
fn how_the_hook_of_an_earlier_run_went_is_of_no_interest() {
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
    node.tell(Event::HookStarted(old.clone()));
    node.end("c", 1);
    node.work();
    node.tell(Event::HookStarted(new));
    let known = node.state.pods.clone();
    let outcome = HookOutcome {
        failure: Some("late".into()),
        fell_back: None,
    };
    node.tell(Event::HookDone {
        order: old,
        outcome,
    });
    assert_eq!(node.state.pods, known);
}

/// What was said of failed hooks.
fn failures(node: &Node) -> Vec<String> {
    let said = node.said().into_iter();
    said.filter(|s| s.contains("Failed") && s.contains("Hook"))
        .collect()
}

#[test]
fn a_hook_that_is_cut_off_says_by_what() {
    const PRE_STOP: &str = "Warning FailedPreStopHook PreStopHook failed: ";
    const POST_START: &str = "Warning FailedPostStartHook PostStartHook failed: ";
    // The grace is over.
    for hook in [run(), Some(Hook::Sleep { ms: 60_000 })] {
        let mut node = Node::with(&Arc::new(with(None, hook)));
        node.work();
        node.goes();
        node.begin();
        assert_eq!(node.next_signal().0, 30_000);
        let told = format!("{PRE_STOP}preStop hook not completed in grace period of 30s");
        assert_eq!(failures(&node), std::slice::from_ref(&told));
        node.end("c", 137);
        assert_eq!(failures(&node), [told], "once");
    }
    // Its container ends by itself.
    for (hook, what) in [
        (run(), "the hook"),
        (Some(Hook::Sleep { ms: 9_000 }), "sleep hook"),
    ] {
        let why = format!("container terminated before {what} finished");
        let mut node = Node::with(&Arc::new(with(None, hook.clone())));
        node.work();
        node.goes();
        node.begin();
        node.end("c", 0);
        assert_eq!(failures(&node), [format!("{PRE_STOP}{why}")]);
        let mut node = Node::with(&Arc::new(with(hook, None)));
        node.work();
        node.begin();
        node.end("c", 0);
        assert_eq!(failures(&node), [format!("{POST_START}{why}")]);
        // One that is done is not.
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
    // The agent was restarted, and meanwhile the container has ended, or not.
    let spec = Arc::new(with(None, run()));
    let mut node = Node::with(&spec);
    node.work();
    node.goes();
    node.begin();
    let mut new = reborn(&node, &[], ready());
    assert_eq!(failures(&new), [""; 0]);
    new.begin();
    let again = format!("{PRE_STOP}cut off by an agent restart, so it is carried out again");
    assert_eq!(failures(&new), [again]);
    let lost = coracle::plan::event::RecoveredSandbox::Lost;
    let new = reborn(&node, &[], lost.clone());
    let why = "container terminated before the hook finished";
    assert_eq!(failures(&new), [format!("{PRE_STOP}{why}")]);
    let third = reborn(&new, &[], lost);
    assert_eq!(failures(&third), [""; 0], "once, also over agent restarts");
}
