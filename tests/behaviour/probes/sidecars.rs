//! Probes of sidecars, and of pods that stop.

use super::*;

#[test]
fn a_sidecars_startup_probe_holds_up_regular_containers() {
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
fn only_readiness_is_probed_while_a_pod_stops() {
    let mut probes = liveness(probing(1_000, 1));
    probes.readiness = Some(probing(1_000, 1));
    let mut node = Node::with(&with(probes));
    node.work();
    assert_eq!(node.probe(&ProbeOutcome::Success).len(), 2);
    node.tell(Event::Node(NodeFact::DesiredChanged(desired(&[]))));
    node.work();
    node.wait(1_000);
    assert_eq!(node.probe(&failure()), [ProbeKind::Readiness]);
    assert!(node.open.is_empty());
    node.c_is("ready=false");
}

#[test]
fn sidecars_of_a_stopping_pod_are_still_probed_without_effect() {
    let mut spec = with_inits(pod("u1", "p", RestartPolicy::Always, &["c"]), &["s1"]);
    for name in ["s1", "c"] {
        of(&mut spec, name).probes = liveness(probing(2_000, 1));
    }
    let mut node = Node::with(&Arc::new(spec));
    node.work();
    node.probe(&ProbeOutcome::Success);
    node.tell(Event::Node(NodeFact::DesiredChanged(Default::default())));
    node.answer_one();
    node.wait(2_000);
    assert_eq!(
        node.probe(&failure()),
        [ProbeKind::Liveness],
        "only the sidecar is probed"
    );
    assert_eq!(node.due().orders, [], "until its next run");
    assert!(
        node.open.is_empty(),
        "the sidecar waits for its turn: {:?}",
        node.open
    );
    let unhealthy = "Warning Unhealthy Liveness probe failed: probe-out".to_owned();
    assert!(node.said().contains(&unhealthy));
}

#[test]
fn a_sidecar_that_is_being_killed_when_its_pod_stops_is_not_probed_any_more() {
    let mut spec = with_inits(pod("u1", "p", RestartPolicy::Always, &["c"]), &["s1"]);
    of(&mut spec, "s1").probes = liveness(probing(2_000, 1));
    let mut node = Node::with(&Arc::new(spec.clone()));
    node.work();
    node.probe(&ProbeOutcome::Success);
    set_image(&mut spec, "s1", "img:2");
    node.tell(Event::Node(NodeFact::DesiredChanged(desired(&[
        &Arc::new(spec),
    ]))));
    node.work();
    assert_eq!(node.due().orders, [], "the stop signal was sent");
    node.tell(Event::Node(NodeFact::DesiredChanged(Default::default())));
    assert_eq!(node.due().orders, [], "a later turn sends no probe either");
}
