//! Ephemeral containers: containers added to a pod that runs.

use std::sync::Arc;

use coracle::plan::event::*;
use coracle::plan::{Action, Event, NodeFact, PodFact, RunFact};
use coracle::spec::convert::{ConvertContext, documents};
use coracle::spec::ephemeral::{parse, replace};
use coracle::spec::{PodSpec, PullPolicy, RestartPolicy};
use coracle::types::StopSignal;

use crate::node::{Node, one, ready, reborn};
use crate::pods::{desired, pod, with_ephemeral, with_inits};

/// The pod runs, and a client adds this container to it.
fn debugged(spec: &Arc<PodSpec>, target: Option<&str>) -> Node {
    let mut node = Node::with(spec);
    node.work();
    add(&mut node, target);
    node
}

fn add(node: &mut Node, target: Option<&str>) {
    let pod = node.state.pods.values().next().unwrap();
    let spec = Arc::new(with_ephemeral(&pod.spec, "debug", target));
    let pod = spec.uid.clone();
    node.tell(Event::Pod {
        uid: pod,
        fact: PodFact::EphemeralAdded { spec },
    });
}

#[test]
fn an_ephemeral_container_starts_beside_the_others_and_is_reported() {
    let mut node = debugged(&one(RestartPolicy::Always, &["x"]), None);
    assert_eq!(
        node.line(),
        "Running; x: running < -, 0; debug: ContainerCreating < -, 0, ready=false"
    );
    node.notices.clear();
    node.work();
    assert_eq!(
        node.line(),
        "Running; x: running < -, 0; debug: running < -, 0, ready=false"
    );
    let path = node.notices.last().unwrap().field_path.clone();
    assert_eq!(path.as_deref(), Some("spec.ephemeralContainers{debug}"));
    let shown = node.shown().spec.unwrap().ephemeral_containers.unwrap();
    assert_eq!(shown[0].name, "debug");
}

#[test]
fn an_ephemeral_container_runs_once_whatever_the_policy_and_its_end_changes_nothing() {
    for policy in [
        RestartPolicy::Always,
        RestartPolicy::OnFailure,
        RestartPolicy::Never,
    ] {
        for code in [0, 1] {
            let mut node = debugged(&one(policy, &["x"]), None);
            node.work();
            node.end("debug", code);
            assert_eq!((node.open.len(), node.wake_at()), (0, None));
            let word = if code == 0 { "Completed" } else { "Error" };
            assert_eq!(
                node.line(),
                format!("Running; x: running < -, 0; debug: {word} {code} < -, 0, ready=false")
            );
        }
    }
}

#[test]
fn an_ephemeral_container_also_starts_while_an_init_container_runs() {
    let spec = with_inits(pod("u1", "p", RestartPolicy::Always, &["x"]), &["i1"]);
    let mut node = debugged(&Arc::new(spec), None);
    node.work();
    assert!(
        node.line().ends_with("debug: running < -, 0, ready=false"),
        "{}",
        node.line()
    );
    assert!(node.line().starts_with("Pending"), "{}", node.line());
}

#[test]
fn a_missing_image_of_an_ephemeral_container_does_not_hold_up_the_pod() {
    let mut node = debugged(&one(RestartPolicy::Always, &["x"]), None);
    let Action::EnsureImage { pod, container } = node.take() else {
        panic!("the image comes first");
    };
    node.tell(Event::Pod {
        uid: pod,
        fact: PodFact::ImageFailed {
            container,
            volume: None,
            failure: ImageFailure::Pull,
            message: "no such image".into(),
        },
    });
    assert!(
        node.line()
            .ends_with("debug: ErrImagePull: no such image < -, 0, ready=false"),
        "{}",
        node.line()
    );
    node.end("x", 1);
    node.work();
    assert!(node.line().contains("x: running"), "{}", node.line());
    node.tell(Event::Node(NodeFact::ImagesChanged(None)));
    node.work();
    assert!(node.line().contains("debug: running"), "{}", node.line());
}

#[test]
fn an_ephemeral_container_starts_when_its_target_runs() {
    let spec = with_inits(pod("u1", "p", RestartPolicy::Always, &["x"]), &["i1"]);
    let mut node = debugged(&Arc::new(spec), Some("x"));
    node.answer_one();
    let Action::StartContainer { instance, .. } = node.take() else {
        panic!("the start is tried");
    };
    node.tell(Event::Run {
        instance,
        fact: RunFact::StartFailed {
            failure: StartFailure::Create,
            message: "target container `x` does not run".into(),
        },
    });
    assert!(
        node.line().contains(
            "debug: CreateContainerError: target container `x` does not run < -, 0, ready=false"
        ),
        "{}",
        node.line()
    );
    node.end("i1", 0);
    node.work();
    assert!(node.line().contains("debug: running"), "{}", node.line());
}

#[test]
fn a_complete_pod_ends_its_ephemeral_containers_before_it_finishes() {
    let mut node = debugged(&one(RestartPolicy::Never, &["x"]), None);
    node.work();
    node.end("x", 0);
    assert!(node.line().starts_with("Running"), "{}", node.line());
    let Action::Signal { instance, .. } = node.open[0].clone() else {
        panic!("it gets its stop signal");
    };
    assert_eq!(instance.container, "debug");
    node.work();
    // It ignores the signal: SIGKILL comes after the pod's grace period.
    assert_eq!(node.wake_at(), Some(node.now + 30_000));
    node.wait(30_000);
    assert!(matches!(
        &node.open[..],
        [Action::Signal {
            signal: StopSignal::Kill,
            ..
        }]
    ));
    node.work();
    node.end("debug", 137);
    assert!(node.line().starts_with("Succeeded"), "{}", node.line());
    assert!(matches!(&node.open[..], [Action::RemoveSandbox { .. }]));
}

#[test]
fn sidecars_do_not_wait_for_ephemeral_containers() {
    let spec = with_inits(pod("u1", "p", RestartPolicy::Never, &["x"]), &["s1"]);
    let mut node = debugged(&Arc::new(spec), None);
    node.work();
    node.end("x", 0);
    let mut stopped = vec![];
    while !node.open.is_empty() {
        if let Action::Signal { instance, .. } = &node.open[0] {
            stopped.push(instance.container.clone());
        }
        node.answer_one();
    }
    assert_eq!(stopped, ["debug", "s1"]);
}

#[test]
fn ephemeral_containers_end_with_their_sandbox_and_do_not_run_in_the_next() {
    let mut node = debugged(&one(RestartPolicy::Always, &["x"]), None);
    node.work();
    let pod = node.state.pods.keys().next().unwrap().clone();
    node.tell(Event::Pod {
        uid: pod,
        fact: PodFact::SandboxLost,
    });
    node.work();
    let line = "Running; x: running < ContainerStatusUnknown 137, 1; \
                debug: ContainerStatusUnknown 137 < -, 0, ready=false";
    assert_eq!(node.line(), line);
}

#[test]
fn an_edit_that_applies_in_place_keeps_ephemeral_containers_and_a_replaced_pod_loses_them() {
    let spec = one(RestartPolicy::Always, &["x"]);
    let mut node = debugged(&spec, None);
    node.work();
    let edited = Arc::new(PodSpec {
        grace_ms: 5_000,
        ..(*spec).clone()
    });
    node.tell(Event::Node(NodeFact::DesiredChanged(desired(&[&edited]))));
    let pod = node.state.pods.values().next().unwrap();
    assert_eq!((pod.spec.grace_ms, pod.ephemerals().len()), (5_000, 1));
    assert!(pod.stopping().is_none() && pod.spec.container("debug").is_some());
    assert!(node.line().contains("debug: running"), "{}", node.line());
    let pod = pod.spec.uid.clone();
    let grace_ms = Some(0);
    node.tell(Event::Pod {
        uid: pod,
        fact: PodFact::DeleteRequested { grace_ms },
    });
    node.work();
    node.end("x", 137);
    node.work();
    node.end("debug", 137);
    node.work();
    assert_eq!(node.line(), "Running; x: running < -, 0");
}

#[test]
fn ephemeral_containers_survive_an_agent_restart_running_ended_or_yet_to_start() {
    let spec = one(RestartPolicy::Always, &["x"]);
    let mut node = debugged(&spec, None);
    let mut new = reborn(&node, &[&spec], ready());
    new.work();
    let running = "Running; x: running < -, 0; debug: running < -, 0, ready=false";
    assert_eq!(new.line(), running);
    node.work();
    let new = reborn(&node, &[&spec], ready());
    assert_eq!((new.line().as_str(), new.open.len()), (running, 0));
    node.end("debug", 3);
    let new = reborn(&node, &[&spec], ready());
    let ended = "Running; x: running < -, 0; debug: Error 3 < -, 0, ready=false";
    assert_eq!((new.line().as_str(), new.open.len()), (ended, 0));
}

#[test]
fn an_ephemeral_container_keeps_every_field_it_is_given() {
    let manifest = b"{apiVersion: v1, kind: Pod, metadata: {name: p}, spec: {volumes: [{name: v, emptyDir: {}}], \
                     containers: [{name: x, image: i}]}}";
    let context = ConvertContext::of("n");
    let pod = documents(manifest, "f", &context).unwrap().pods.remove(0);
    let add = |fields: &str| {
        let json = format!(r#"[{{"name": "d", "image": "i:2", {fields}}}]"#);
        replace(&pod, &parse(&json).unwrap())
    };
    let added = add(
        r#""imagePullPolicy": "Never", "command": ["a"], "args": ["b"], "workingDir": "/w",
        "env": [{"name": "N", "value": "v"}], "volumeMounts": [{"name": "v", "mountPath": "/v"}],
        "securityContext": {"runAsUser": 7}, "stdin": true, "stdinOnce": true, "tty": true,
        "terminationMessagePath": "/t", "terminationMessagePolicy": "FallbackToLogsOnError""#,
    )
    .unwrap();
    let d = &added.ephemeral_containers[0];
    assert_eq!(
        (d.image.as_str(), d.pull_policy),
        ("i:2", PullPolicy::Never)
    );
    assert_eq!(d.command.as_deref(), Some(&["a".to_owned()][..]));
    assert_eq!(d.args.as_deref(), Some(&["b".to_owned()][..]));
    assert_eq!(d.working_dir.as_deref(), Some("/w"));
    assert_eq!((d.env.len(), d.mounts.len()), (1, 1));
    assert_eq!(d.security.run_as_user, Some(7));
    assert!(d.stdin && d.stdin_once && d.tty);
    assert_eq!(d.termination_message_path, "/t");
    assert!(d.termination_message_from_logs);
    let from = add(r#""envFrom": [{"configMapRef": {"name": "m"}}]"#).unwrap();
    let d = from.ephemeral_containers.last().unwrap();
    assert_eq!(d.env_from[0].name, "m");
    let errors = add(r#""volumeDevices": [{"name": "v", "devicePath": "/d"}]"#).unwrap_err();
    assert!(
        errors.iter().any(|e| e.contains("volumeDevices")),
        "{errors:?}"
    );
}

#[test]
fn an_ephemeral_container_that_never_ran_does_not_count_as_lost_with_the_pod() {
    let spec = one(RestartPolicy::Never, &["c"]);
    let mut node = Node::with(&spec);
    node.work();
    add(&mut node, None);
    let Action::EnsureImage { pod, container } = node.take() else {
        panic!("its image: {:?}", node.open);
    };
    node.tell(Event::Pod {
        uid: pod,
        fact: PodFact::ImageFailed {
            container,
            volume: None,
            failure: ImageFailure::Pull,
            message: "no".into(),
        },
    });
    node.end("c", 0);
    node.work();
    let line = node.line();
    assert!(line.starts_with("Succeeded"), "{line}");
    assert!(!line.contains("ContainerStatusUnknown"), "{line}");
}
