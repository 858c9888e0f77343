//! Do probes decide as the kubelet's do, and say the same? Status lines from recordings of a real kubelet.

use std::sync::Arc;

use coracle::plan::event::{ProbeOrder, ProbeOutcome};
use coracle::plan::{Action, Event, Time, probe};
use coracle::spec::{PodSpec, Probe, ProbeKind, Probes, RestartPolicy, StopSignal};

use crate::node::{Node, one, ready, reborn};
use crate::pods::{desired, of, pod, probing, set_image, with_inits};

const UNREADY: &str = "Ready=False ContainersNotReady: containers with unready status: [c]; \
    ContainersReady=False ContainersNotReady: containers with unready status: [c]";

fn with(probes: Probes) -> Arc<PodSpec> {
    let mut spec = (*one(RestartPolicy::Always, &["c"])).clone();
    spec.grace_ms = 2_000;
    of(&mut spec, "c").probes = probes;
    Arc::new(spec)
}

fn liveness(probe: Probe) -> Probes {
    Probes {
        liveness: Some(probe),
        ..Probes::default()
    }
}

fn readiness(probe: Probe) -> Probes {
    Probes {
        readiness: Some(probe),
        ..Probes::default()
    }
}

fn failure() -> ProbeOutcome {
    ProbeOutcome::Failure("probe-out".into())
}

impl Node {
    fn due(&self) -> probe::Due {
        probe::due(self.state.pods.values().next().unwrap(), Time(self.now))
    }

    /// Carries out whatever is due; what it was.
    pub(crate) fn probe(&mut self, outcome: &ProbeOutcome) -> Vec<ProbeKind> {
        let orders = self.due().orders;
        for order in &orders {
            self.tell(Event::ProbeStarted(order.clone()));
            assert!(!self.due().orders.contains(order), "one at a time");
            let (order, outcome) = (order.clone(), outcome.clone());
            self.tell(Event::ProbeDone { order, outcome });
        }
        orders.into_iter().map(|o| o.probe).collect()
    }

    /// Lets probes fail until a container is to be killed for it.
    pub(crate) fn fail(&mut self) {
        let failed = |node: &Self| {
            let mut pods = node.state.pods.values();
            pods.any(|pod| pod.containers.iter().any(|c| c.kill.is_some()))
        };
        while !failed(self) {
            self.probe(&failure());
            if let Some(wake) = self.due().wake_at.filter(|_| !failed(self)) {
                self.wait(wake.0 - self.now);
            }
        }
    }

    /// The one signal that was ordered, and what was said of the newest kill.
    fn signal(&mut self) -> (StopSignal, String) {
        let Some(Action::Signal { signal, .. }) = self.open.first().cloned() else {
            panic!("a signal: {:?}", self.open);
        };
        self.answer_one();
        let mut kills = self.notices.iter().filter(|n| n.reason == "Killing");
        (signal, kills.next_back().unwrap().message.clone())
    }

    fn c_is(&self, text: &str) {
        assert!(self.line().contains(text), "{text}: {}", self.line());
    }
}

#[test]
fn a_failing_liveness_probe_restarts_the_container_like_the_kubelets() {
    let mut node = Node::with(&with(liveness(probing(2_000, 2))));
    node.work();
    assert_eq!(node.line(), "Running; c: running < -, 0");
    for (restarts, wait) in [(1, 0), (2, 0), (3, 10_000)] {
        assert_eq!(node.probe(&failure()), [ProbeKind::Liveness], "at once");
        for _ in 0..2 {
            assert!(
                node.open.is_empty(),
                "the first is early, one is not enough"
            );
            assert_eq!(node.due().wake_at, Some(Time(node.now + 2_000)));
            node.wait(2_000);
            node.probe(&failure());
        }
        let text = "Container c failed liveness probe, will be restarted".to_owned();
        assert_eq!(node.signal(), (StopSignal::Stop, text));
        assert_eq!(
            node.due(),
            probe::Due::default(),
            "no more until the next run"
        );
        node.end("c", 0);
        if wait > 0 {
            node.c_is(&format!(
                "Running; {UNREADY}; c: CrashLoopBackOff: back-off 10s"
            ));
            node.c_is("< Completed 0, 2");
            node.wait(wait);
        }
        node.work();
        assert_eq!(
            node.line(),
            format!("Running; c: running < Completed 0, {restarts}")
        );
    }
    assert!(
        node.said()
            .contains(&"Warning Unhealthy Liveness probe failed: probe-out".to_owned())
    );
}

#[test]
fn a_container_killed_for_a_probe_runs_again_whatever_its_exit_code_unless_it_is_never_restarted() {
    use RestartPolicy::{Always, Never, OnFailure};
    let table = [
        (OnFailure, None, true),
        (Always, None, true),
        (Never, None, false),
        (Never, Some(OnFailure), true),
        (Always, Some(OnFailure), true),
        (OnFailure, Some(Never), false),
    ];
    for (policy, own, again) in table {
        for startup in [false, true] {
            let mut spec = pod("u1", "p", policy, &["c", "other"]);
            let c = of(&mut spec, "c");
            c.restart_policy = own;
            match startup {
                true => c.probes.startup = Some(probing(1_000, 1)),
                false => c.probes.liveness = Some(probing(1_000, 1)),
            }
            let spec = Arc::new(spec);
            // An agent may die before the signal, and before the exit is heard of.
            for deaths in 0..4 {
                let row = format!("{policy:?} {own:?} startup={startup} deaths={deaths}");
                let mut node = Node::with(&spec);
                node.work();
                node.fail();
                if deaths & 1 != 0 {
                    node = reborn(&node, &[&spec], ready());
                }
                assert!(
                    matches!(
                        &node.open[..],
                        [Action::Signal {
                            signal: StopSignal::Stop,
                            ..
                        }]
                    ),
                    "{row}"
                );
                node.answer_one();
                if deaths & 2 != 0 {
                    node = reborn(&node, &[&spec], ready());
                }
                node.end("c", 0);
                node.work();
                let c = node.state.pods.values().next().unwrap();
                let c = c.container("c").unwrap();
                assert_eq!(c.run.is_running(), again, "{row}");
                if again {
                    // It ends well by itself: that is up to the policy again.
                    node.end("c", 0);
                    node.work();
                    let policy = own.unwrap_or(policy);
                    assert_eq!(
                        node.line().contains("c: Completed 0 <"),
                        policy == OnFailure
                    );
                }
            }
        }
    }
}

#[test]
fn a_failing_startup_probe_restarts_the_container_like_the_kubelets() {
    let mut probes = liveness(probing(1_000, 1));
    probes.startup = Some(probing(1_000, 3));
    let mut node = Node::with(&with(probes));
    node.work();
    let unstarted = "c: running < -, 0, ready=false started=false";
    assert_eq!(node.line(), format!("Running; {UNREADY}; {unstarted}"));
    for _ in 0..3 {
        assert_eq!(
            node.probe(&failure()),
            [ProbeKind::Startup],
            "liveness waits"
        );
        node.wait(1_000);
    }
    assert!(node.open.is_empty());
    node.probe(&failure());
    let text = "Container c failed startup probe, will be restarted".to_owned();
    assert_eq!(node.signal(), (StopSignal::Stop, text));
    node.end("c", 0);
    node.work();
    node.c_is("c: running < Completed 0, 1, ready=false started=false");
    assert_eq!(node.probe(&ProbeOutcome::Success), [ProbeKind::Startup]);
    assert_eq!(node.line(), "Running; c: running < Completed 0, 1");
    assert_eq!(node.probe(&ProbeOutcome::Success), [ProbeKind::Liveness]);
    node.wait(1_000);
    assert_eq!(
        node.probe(&ProbeOutcome::Success),
        [ProbeKind::Liveness],
        "startup is over"
    );
}

#[test]
fn a_failing_readiness_probe_keeps_the_pod_unready_like_the_kubelets() {
    let mut probe = probing(2_000, 2);
    probe.success_threshold = 2;
    let mut node = Node::with(&with(readiness(probe)));
    node.work();
    let unready = format!("Running; {UNREADY}; c: running < -, 0, ready=false started=true");
    assert_eq!(node.line(), unready);
    let (yes, no) = (ProbeOutcome::Success, failure());
    for (outcome, is_ready) in [
        (&no, false),
        (&yes, false),
        (&yes, true),
        (&no, true),
        (&yes, true),
        (&no, true),
        (&no, false),
        (&ProbeOutcome::Warning("moved".into()), false),
        (&yes, true),
    ] {
        assert_eq!(node.probe(outcome), [ProbeKind::Readiness]);
        let expected = if is_ready {
            "Running; c: running < -, 0"
        } else {
            &unready
        };
        assert_eq!(node.line(), expected, "{outcome:?}");
        node.wait(2_000);
    }
    assert!(node.open.is_empty(), "nobody is killed for it");
    assert!(
        node.said()
            .contains(&"Warning ProbeWarning Readiness probe warning: moved".to_owned())
    );
}

#[test]
fn the_first_probe_waits_for_the_initial_delay() {
    let mut probe = probing(10_000, 1);
    probe.initial_delay_ms = 5_000;
    let mut node = Node::with(&with(liveness(probe)));
    node.work();
    assert_eq!(node.due().wake_at, Some(Time(node.now + 5_000)));
    node.wait(4_999);
    assert!(node.due().orders.is_empty());
    node.wait(1);
    assert_eq!(node.probe(&ProbeOutcome::Success), [ProbeKind::Liveness]);
}

/// A container that fails this probe alone, if it fails, and what it comes to.
fn one_probe(kind: ProbeKind, probe: Probe) -> Arc<PodSpec> {
    let mut probes = Probes::default();
    match kind {
        ProbeKind::Liveness => probes.liveness = Some(probe),
        ProbeKind::Readiness => probes.readiness = Some(probe),
        ProbeKind::Startup => probes.startup = Some(probe),
    }
    with(probes)
}

#[test]
fn failures_within_a_period_of_the_first_probe_do_not_count_and_successes_do() {
    use ProbeKind::{Liveness, Readiness, Startup};
    for (kind, delay_ms) in [
        (Liveness, 0),
        (Startup, 0),
        (Liveness, 5_000),
        (Startup, 5_000),
    ] {
        let mut probe = probing(10_000, 1);
        probe.initial_delay_ms = delay_ms;
        let spec = one_probe(kind, probe);
        for agents in 0..3 {
            let row = format!("{kind:?} {delay_ms} {agents}");
            let mut node = Node::with(&spec);
            node.work();
            node.wait(delay_ms);
            assert_eq!(node.probe(&failure()), [kind], "{row}");
            // Each new agent probes at once, and knows when the first probe was.
            for _ in 0..agents {
                node.wait(4_999);
                node = reborn(&node, &[&spec], ready());
                assert_eq!(node.probe(&failure()), [kind], "{row}");
            }
            assert!(node.open.is_empty(), "{row}");
            assert!(!node.said().join("").contains("Unhealthy"), "{row}");
            let wake = node.due().wake_at.expect("a probe is to come");
            node.wait(wake.0 - node.now);
            assert_eq!(node.probe(&failure()), [kind], "{row}");
            assert_eq!(node.open.len(), 1, "{row}");
        }
    }
    for kind in [Liveness, Startup, Readiness] {
        let mut node = Node::with(&one_probe(kind, probing(10_000, 1)));
        node.work();
        node.probe(&ProbeOutcome::Success);
        assert_eq!(node.line(), "Running; c: running < -, 0", "{kind:?}");
    }
}

#[test]
fn a_probe_that_waited_for_the_startup_probe_or_was_edited_begins_early_too() {
    let mut probes = liveness(probing(10_000, 1));
    probes.startup = Some(probing(1_000, 100));
    let mut node = Node::with(&with(probes));
    node.work();
    for _ in 0..60 {
        node.probe(&failure());
        node.wait(1_000);
    }
    node.probe(&ProbeOutcome::Success);
    assert_eq!(node.probe(&failure()), [ProbeKind::Liveness]);
    assert!(node.open.is_empty(), "a kubelet's would not have come yet");
    node.wait(10_000);
    node.probe(&failure());
    assert_eq!(node.signal().0, StopSignal::Stop);

    let mut node = Node::with(&with(liveness(probing(10_000, 1))));
    node.work();
    for _ in 0..10 {
        node.probe(&ProbeOutcome::Success);
        node.wait(10_000);
    }
    let mut spec = (*with(liveness(probing(5_000, 1)))).clone();
    Arc::make_mut(&mut spec.manifest).metadata.labels = None;
    let spec = Arc::new(spec);
    node.tell(Event::DesiredChanged(desired(&[&spec])));
    assert_eq!(node.probe(&failure()), [ProbeKind::Liveness]);
    let mut node = reborn(&node, &[&spec], ready());
    assert_eq!(node.probe(&failure()), [ProbeKind::Liveness]);
    assert!(node.open.is_empty(), "no edit kills by itself");
    node.wait(5_000);
    node.probe(&failure());
    assert_eq!(node.open.len(), 1);
}

#[test]
fn a_probe_that_cannot_be_carried_out_is_tried_three_times_more_and_counts_for_nothing() {
    let mut node = Node::with(&with(liveness(probing(10_000, 1))));
    node.work();
    for _ in 0..4 {
        assert_eq!(node.probe(&ProbeOutcome::Error("no shim".into())).len(), 1);
    }
    assert!(node.open.is_empty());
    assert!(
        node.probe(&failure()).is_empty(),
        "then it waits for its period"
    );
    let said: Vec<_> = node
        .said()
        .into_iter()
        .filter(|s| s.contains("Unhealthy"))
        .collect();
    let text = "Warning Unhealthy Liveness probe errored and resulted in unknown state: no shim";
    assert_eq!(said, [text]);
    assert!(node.open.is_empty());
}

#[test]
fn a_probes_own_grace_is_for_its_kills_only() {
    let mut probe = probing(1_000, 1);
    probe.grace_ms = Some(5_000);
    for (own, grace) in [(Some(5_000), 5_000), (None, 2_000), (Some(1_000), 2_000)] {
        let mut probe = probe.clone();
        probe.grace_ms = own;
        let spec = with(liveness(probe));
        let mut node = Node::with(&spec);
        node.work();
        node.fail();
        assert_eq!(node.signal().0, StopSignal::Stop);
        assert_eq!(node.wake_at(), Some(node.now + grace));
        let new = reborn(&node, &[&spec], ready());
        assert_eq!(
            (new.open.len(), new.wake_at()),
            (0, node.wake_at()),
            "goes on"
        );
        node.wait(grace);
        assert_eq!(node.signal().0, StopSignal::Kill);
    }
    let mut node = Node::with(&with(liveness(probe)));
    node.work();
    node.tell(Event::DesiredChanged(desired(&[])));
    assert_eq!(node.signal().0, StopSignal::Stop);
    assert_eq!(
        node.wake_at(),
        Some(node.now + 2_000),
        "the pod's, when it goes"
    );
}

#[test]
fn a_sidecars_startup_probe_holds_up_whoever_comes_next() {
    let mut spec = with_inits(pod("u1", "p", RestartPolicy::Always, &["c"]), &["s1"]);
    of(&mut spec, "s1").probes.startup = Some(probing(1_000, 1));
    let mut node = Node::with(&Arc::new(spec));
    node.work();
    node.c_is("Pending; Initialized=False ContainersNotInitialized: containers with incomplete status: [s1]");
    node.c_is("s1: running < -, 0, ready=false started=false; c: PodInitializing < -, 0");
    node.fail();
    let text = "Init container s1 failed startup probe".to_owned();
    assert_eq!(node.signal(), (StopSignal::Stop, text));
    node.end("s1", 1);
    node.work();
    node.probe(&ProbeOutcome::Success);
    node.work();
    assert_eq!(
        node.line(),
        "Running; s1: running < Error 1, 1; c: running < -, 0"
    );
}

#[test]
fn a_sidecars_startup_probe_holds_up_later_init_containers() {
    let mut spec = with_inits(pod("u1", "p", RestartPolicy::Always, &["c"]), &["s1", "i2"]);
    of(&mut spec, "s1").probes.startup = Some(probing(1_000, 1));
    let mut node = Node::with(&Arc::new(spec));
    node.work();
    node.c_is("s1: running < -, 0, ready=false started=false; i2: PodInitializing < -, 0");
    node.probe(&ProbeOutcome::Success);
    node.work();
    node.c_is("s1: running < -, 0; i2: running < -, 0");
}

#[test]
fn who_ran_for_longer_than_his_wait_before_he_was_killed_for_a_probe_starts_at_once() {
    for (run_ms, wait) in [(9_000, true), (10_000, false)] {
        let mut node = Node::with(&with(liveness(probing(1_000, 1))));
        node.work();
        for _ in 0..2 {
            node.fail();
            node.work();
            node.end("c", 0);
            node.work();
        }
        node.probe(&failure());
        node.wait(run_ms);
        node.probe(&failure());
        node.work();
        node.end("c", 0);
        assert_eq!(node.open.is_empty(), wait, "{run_ms}: {}", node.line());
    }
}

#[test]
fn a_new_agent_knows_that_it_was_a_kill_that_ended_a_run() {
    let spec = with(liveness(probing(1_000, 1)));
    let mut node = Node::with(&spec);
    node.work();
    for restarts in 1..=2 {
        node.fail();
        node.work();
        node = reborn(&node, &[&spec], ready());
        node.work();
        node.end("c", 0);
        node.work();
        let line = format!("Running; c: running < Completed 0, {restarts}");
        assert_eq!(node.line(), line, "two restarts cost nothing");
    }
}

#[test]
fn while_a_pod_goes_only_readiness_is_asked_for() {
    let mut probes = liveness(probing(1_000, 1));
    probes.readiness = Some(probing(1_000, 1));
    let mut node = Node::with(&with(probes));
    node.work();
    assert_eq!(node.probe(&ProbeOutcome::Success).len(), 2);
    node.tell(Event::DesiredChanged(desired(&[])));
    node.work();
    node.wait(1_000);
    assert_eq!(node.probe(&failure()), [ProbeKind::Readiness]);
    assert!(node.open.is_empty());
    node.c_is("ready=false");
}

#[test]
fn readiness_and_startup_survive_an_agent_restart_and_are_asked_for_anew_at_once() {
    let mut probes = readiness(probing(60_000, 1));
    probes.startup = Some(probing(60_000, 1));
    let spec = with(probes);
    let mut node = Node::with(&spec);
    node.work();
    let mut new = reborn(&node, &[&spec], ready());
    assert_eq!(new.line(), node.line());
    assert_eq!(new.probe(&ProbeOutcome::Success), [ProbeKind::Startup]);
    assert_eq!(new.probe(&ProbeOutcome::Success), [ProbeKind::Readiness]);
    assert_eq!(new.line(), "Running; c: running < -, 0");
    let mut node = reborn(&new, &[&spec], ready());
    for _ in 0..2 {
        assert_eq!(node.line(), "Running; c: running < -, 0");
        assert_eq!(
            node.probe(&failure()),
            [ProbeKind::Readiness],
            "a fresh one, which is early"
        );
        node.wait(60_000);
    }
    node.c_is("ready=false started=true");
}

/// A new agent, and the time until its next probe.
fn taken_over(node: &Node, spec: &Arc<PodSpec>) -> Node {
    let mut new = reborn(node, &[spec], ready());
    assert_eq!(new.line(), node.line());
    assert!(new.open.is_empty());
    let due = new.due();
    assert_eq!(due.orders, [], "no faster than is asked for");
    assert_eq!(due.wake_at, Some(Time(new.now + 2_000)));
    new.wait(2_000);
    new
}

#[test]
fn agents_that_restart_between_probes_go_on_counting() {
    let mut startup = liveness(probing(2_000, 3));
    startup.startup = Some(probing(2_000, 3));
    for (probes, kind) in [
        (liveness(probing(2_000, 3)), "liveness"),
        (startup, "startup"),
    ] {
        let spec = with(probes);
        let mut node = Node::with(&spec);
        node.work();
        node.probe(&failure());
        node.wait(2_000);
        for _ in 0..2 {
            assert_eq!(node.probe(&failure()).len(), 1);
            node = taken_over(&node, &spec);
        }
        node.probe(&failure());
        let text = format!("Container c failed {kind} probe, will be restarted");
        assert_eq!(node.signal(), (StopSignal::Stop, text));
    }
}

#[test]
fn agents_that_restart_between_probes_do_not_change_who_is_ready() {
    let mut probe = probing(2_000, 3);
    probe.success_threshold = 2;
    let spec = with(readiness(probe));
    let mut node = Node::with(&spec);
    node.work();
    for (outcome, times, then) in [
        (ProbeOutcome::Success, 2, "Running; c: running < -, 0"),
        (failure(), 3, "ready=false"),
        (ProbeOutcome::Success, 2, "Running; c: running < -, 0"),
    ] {
        for n in 0..times {
            let before = node.line();
            node.probe(&outcome);
            if n + 1 < times {
                assert_eq!(node.line(), before, "{n} of {times}");
                node = taken_over(&node, &spec);
            }
        }
        node.c_is(then);
        node.wait(2_000);
    }
}

#[test]
fn what_has_to_be_known_of_probes_stays_the_same_while_their_outcomes_do() {
    let mut probes = liveness(probing(2_000, 3));
    probes.readiness = Some(probing(2_000, 3));
    let spec = with(probes);
    let mut node = Node::with(&spec);
    node.work();
    let known = |node: &Node| node.state.pods[&spec.uid].containers[0].health();
    node.probe(&ProbeOutcome::Success);
    let well = known(&node);
    for _ in 0..5 {
        node.wait(2_000);
        node.probe(&ProbeOutcome::Success);
        assert_eq!(known(&node), well);
    }
    node.wait(2_000);
    node.probe(&failure());
    assert_ne!(known(&node), well);
    node.wait(2_000);
    node.probe(&ProbeOutcome::Success);
    assert_eq!(known(&node), well, "one failure is forgotten");
    let never = with(readiness(probing(2_000, 3)));
    let mut node = Node::with(&never);
    node.work();
    node.probe(&failure());
    let unready = known(&node);
    for _ in 0..5 {
        node.wait(2_000);
        node.probe(&failure());
        assert_eq!(known(&node), unready);
    }
}

#[test]
fn outcomes_about_earlier_runs_and_outcomes_heard_twice_count_for_nothing() {
    let mut node = Node::with(&with(liveness(probing(1_000, 2))));
    node.work();
    let order: ProbeOrder = node.due().orders.remove(0);
    let told = |order: &ProbeOrder| Event::ProbeDone {
        order: order.clone(),
        outcome: failure(),
    };
    node.tell(told(&order));
    node.tell(Event::ProbeStarted(order.clone()));
    node.tell(told(&order));
    node.tell(told(&order));
    assert!(node.open.is_empty(), "one failure was asked for");
    node.end("c", 1);
    node.work();
    for _ in 0..3 {
        node.tell(Event::ProbeStarted(order.clone()));
        node.tell(told(&order));
    }
    assert!(node.open.is_empty(), "{:?}", node.open);
}

#[test]
fn sidecars_of_a_pod_that_goes_are_still_looked_at_and_nothing_comes_of_it() {
    let mut spec = with_inits(pod("u1", "p", RestartPolicy::Always, &["c"]), &["s1"]);
    for name in ["s1", "c"] {
        of(&mut spec, name).probes = liveness(probing(2_000, 1));
    }
    let mut node = Node::with(&Arc::new(spec));
    node.work();
    node.probe(&ProbeOutcome::Success);
    node.tell(Event::DesiredChanged(Default::default()));
    node.answer_one();
    node.wait(2_000);
    assert_eq!(
        node.probe(&failure()),
        [ProbeKind::Liveness],
        "the sidecar's"
    );
    assert_eq!(node.due(), probe::Due::default(), "until its next run");
    assert!(
        node.open.is_empty(),
        "it waits for its turn: {:?}",
        node.open
    );
    let unhealthy = "Warning Unhealthy Liveness probe failed: probe-out".to_owned();
    assert!(node.said().contains(&unhealthy));
}

#[test]
fn a_sidecar_that_is_being_ended_when_its_pod_goes_is_not_looked_at_any_more() {
    let mut spec = with_inits(pod("u1", "p", RestartPolicy::Always, &["c"]), &["s1"]);
    of(&mut spec, "s1").probes = liveness(probing(2_000, 1));
    let mut node = Node::with(&Arc::new(spec.clone()));
    node.work();
    node.probe(&ProbeOutcome::Success);
    set_image(&mut spec, "s1", "img:2");
    node.tell(Event::DesiredChanged(desired(&[&Arc::new(spec)])));
    node.work();
    assert_eq!(
        node.due(),
        probe::Due::default(),
        "the stop signal was sent"
    );
    node.tell(Event::DesiredChanged(Default::default()));
    assert_eq!(node.due(), probe::Due::default(), "and stays sent");
}
