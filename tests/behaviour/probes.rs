//! Probes decide as the kubelet's do, and are reported alike. Status lines come from recordings of a real kubelet.

#[path = "probes/restart.rs"]
mod restart;
#[path = "probes/sidecars.rs"]
mod sidecars;

use std::sync::Arc;

use coracle::plan::event::{ProbeOrder, ProbeOutcome};
use coracle::plan::{Action, Event, NodeFact, Task, bundle};
use coracle::spec::{PodSpec, Probe, ProbeKind, Probes, Reason, RestartPolicy};
use coracle::types::{StopSignal, Time};

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

/// The probes that would begin now, and when the next turn would be taken.
struct Due {
    orders: Vec<ProbeOrder>,
    wake_at: Option<Time>,
}

impl Node {
    fn due(&self) -> Due {
        let (tasks, wake_at) = self.foresee();
        let probes = tasks.into_iter().filter_map(|task| match task {
            Task::Probe(order) => Some(order),
            Task::Act(_) | Task::Hook(_) | Task::Relieve(_) => None,
        });
        Due {
            orders: probes.collect(),
            wake_at,
        }
    }

    /// Carries out the probes that are due; returns their kinds.
    pub(crate) fn probe(&mut self, outcome: &ProbeOutcome) -> Vec<ProbeKind> {
        let orders = self.due().orders;
        for order in &orders {
            self.tell(order.clone().started());
            assert!(
                !self.due().orders.contains(order),
                "each probe runs once at a time"
            );
            let (order, outcome) = (order.clone(), outcome.clone());
            self.tell(order.done(outcome));
        }
        orders.into_iter().map(|o| o.probe).collect()
    }

    /// Lets probes fail until a container is killed for it.
    pub(crate) fn fail(&mut self) {
        let failed = |node: &Self| {
            let mut pods = node.state.pods.values();
            pods.any(|pod| pod.containers.iter().any(|c| c.kill().is_some()))
        };
        while !failed(self) {
            self.probe(&failure());
            if let Some(wake) = self.due().wake_at.filter(|_| !failed(self)) {
                self.wait(wake.0 - self.now);
            }
        }
    }

    /// The one open signal, and the message of the newest kill.
    fn signal(&mut self) -> (StopSignal, String) {
        let Some(Action::Signal { signal, .. }) = self.open.first().cloned() else {
            panic!("a signal: {:?}", self.open);
        };
        self.answer_one();
        let mut kills = self.notices.iter().filter(|n| n.reason == Reason::Killing);
        (signal, kills.next_back().unwrap().message.clone())
    }

    fn c_is(&self, text: &str) {
        assert!(self.line().contains(text), "{text}: {}", self.line());
    }
}

#[test]
fn a_failing_liveness_probe_restarts_the_container_as_on_a_kubelet() {
    let mut node = Node::with(&with(liveness(probing(2_000, 2))));
    node.work();
    assert_eq!(node.line(), "Running; c: running < -, 0");
    for (restarts, wait) in [(1, 0), (2, 0), (3, 10_000)] {
        assert_eq!(node.probe(&failure()), [ProbeKind::Liveness], "at once");
        for _ in 0..2 {
            assert!(
                node.open.is_empty(),
                "the first is too early to count, and one is not enough"
            );
            assert_eq!(node.due().wake_at, Some(Time(node.now + 2_000)));
            node.wait(2_000);
            node.probe(&failure());
        }
        let text = "Container c failed liveness probe, will be restarted".to_owned();
        assert_eq!(node.signal(), (StopSignal::Stop, text));
        assert_eq!(node.due().orders, [], "no more until the next run");
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
fn a_container_killed_for_a_probe_runs_again_whatever_its_exit_code_unless_its_policy_is_never() {
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
            // The agent may die before the signal, and before it hears of the exit.
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
                    // The container exits by itself: the restart is up to the policy again.
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
fn a_failing_startup_probe_restarts_the_container_as_on_a_kubelet() {
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
fn a_failing_readiness_probe_keeps_the_pod_unready_as_on_a_kubelet() {
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
    assert!(node.open.is_empty(), "no container is killed for it");
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

/// A container with this probe alone.
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
            let wake = node.due().wake_at.expect("there is a next probe");
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
fn the_first_failure_after_a_startup_probe_or_an_edit_does_not_count_either() {
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
    assert!(node.open.is_empty(), "a kubelet would not have probed yet");
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
    Arc::make_mut(&mut spec.manifest).change_metadata(|metadata| metadata.labels = None);
    let spec = Arc::new(spec);
    node.tell(Event::Node(NodeFact::DesiredChanged(desired(&[&spec]))));
    assert_eq!(node.probe(&failure()), [ProbeKind::Liveness]);
    let mut node = reborn(&node, &[&spec], ready());
    assert_eq!(node.probe(&failure()), [ProbeKind::Liveness]);
    assert!(node.open.is_empty(), "no edit kills by itself");
    node.wait(5_000);
    node.probe(&failure());
    assert_eq!(node.open.len(), 1);
}

#[test]
fn a_pod_is_not_ready_for_a_trial_until_its_edited_readiness_probe_has_succeeded() {
    let before = with(readiness(probing(10_000, 3)));
    let mut node = Node::with(&before);
    node.work();
    node.probe(&ProbeOutcome::Success);
    assert_eq!(bundle::unready(&node.state, &before), None);
    let edit = |probes| {
        let mut spec = (*with(probes)).clone();
        Arc::make_mut(&mut spec.manifest).change_metadata(|metadata| metadata.labels = None);
        Arc::new(spec)
    };
    let after = edit(readiness(probing(5_000, 3)));
    node.tell(Event::Node(NodeFact::DesiredChanged(desired(&[&after]))));
    let waits = Some("default/p (Running)".to_owned());
    assert_eq!(bundle::unready(&node.state, &after), waits);
    assert_eq!(
        node.line(),
        "Running; c: running < -, 0",
        "it serves meanwhile"
    );
    node.probe(&failure());
    node.wait(5_000);
    let mut node = reborn(&node, &[&after], ready());
    assert_eq!(bundle::unready(&node.state, &after), waits);
    node.probe(&ProbeOutcome::Success);
    assert_eq!(bundle::unready(&node.state, &after), None);
    // Without the probe there is nothing to wait for.
    let none = edit(Probes::default());
    node.tell(Event::Node(NodeFact::DesiredChanged(desired(&[&none]))));
    assert_eq!(bundle::unready(&node.state, &none), None);
}

#[test]
fn a_probe_that_cannot_be_carried_out_is_tried_three_times_and_does_not_count() {
    for (outcome, state) in [
        (ProbeOutcome::Error("why".into()), "unknown"),
        (ProbeOutcome::Unread("why".into()), "failure"),
    ] {
        let mut node = Node::with(&with(liveness(probing(10_000, 1))));
        node.work();
        for _ in 0..3 {
            assert_eq!(node.probe(&outcome).len(), 1);
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
        let text =
            format!("Warning Unhealthy Liveness probe errored and resulted in {state} state: why");
        assert_eq!(said, [text]);
        assert!(node.open.is_empty());
    }
}

#[test]
fn a_probes_own_grace_period_applies_to_its_kills_only() {
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
            "the grace period continues"
        );
        node.wait(grace);
        assert_eq!(node.signal().0, StopSignal::Kill);
    }
    let mut node = Node::with(&with(liveness(probe)));
    node.work();
    node.tell(Event::Node(NodeFact::DesiredChanged(desired(&[]))));
    assert_eq!(node.signal().0, StopSignal::Stop);
    assert_eq!(
        node.wake_at(),
        Some(node.now + 2_000),
        "the pod's own grace period applies when the pod goes"
    );
}

#[test]
fn a_container_killed_for_a_probe_after_running_longer_than_its_back_off_starts_at_once() {
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
fn outcomes_of_earlier_runs_and_repeated_outcomes_do_not_count() {
    let mut node = Node::with(&with(liveness(probing(1_000, 2))));
    node.work();
    let order: ProbeOrder = node.due().orders.remove(0);
    let done = |order: &ProbeOrder| order.clone().done(failure());
    node.tell(done(&order));
    node.tell(order.clone().started());
    node.tell(done(&order));
    node.tell(done(&order));
    assert!(node.open.is_empty(), "only one failure counts");
    node.end("c", 1);
    node.work();
    for _ in 0..3 {
        node.tell(order.clone().started());
        node.tell(done(&order));
    }
    assert!(node.open.is_empty(), "{:?}", node.open);
}
