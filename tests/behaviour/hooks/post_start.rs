//! `postStart` hooks: when the container is up, and what a failure leads to.

use super::*;

#[test]
fn a_container_comes_up_when_its_post_start_hook_is_done() {
    let mut spec = with(run(), None);
    let later = of(&mut spec, "c").clone();
    spec.containers.push(later);
    spec.containers[1].name = "d".into();
    spec.containers[1].lifecycle.post_start = None;
    Arc::make_mut(&mut spec.manifest).change_spec(|spec| {
        spec.containers.push(spec.containers[0].clone());
        spec.containers[1].name = "d".into();
    });
    of(&mut spec, "c").probes.readiness = Some(probing(1_000, 1));
    let spec = Arc::new(spec);
    let mut node = Node::with(&spec);
    node.work();
    assert_eq!(node.begin(), [(HookKind::PostStart, "c".to_owned())]);
    let line = "c: ContainerCreating < -, 0; d: ContainerCreating < -, 0";
    assert!(node.line().starts_with("Pending"), "{}", node.line());
    assert!(node.line().ends_with(line), "{}", node.line());
    let pod = node.state.pods.values().next().unwrap();
    assert_eq!(coracle::plan::probe::next(pod, Time(node.now)), Step::Rest);
    // The next agent runs the hook again.
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
fn a_failed_post_start_hook_kills_and_is_shown_until_the_next_run_or_wait() {
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
fn after_a_second_failed_post_start_hook_the_back_off_is_shown() {
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
