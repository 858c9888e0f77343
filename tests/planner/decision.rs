//! How long does a decision take on a node with many pods? Prints, for each event, the median of many rounds in
//! microseconds, separated by tabs; `tests/bench/run --only planner` makes a table of it. Nothing here passes or fails.

#![allow(missing_docs, reason = "a program of figures")]
#![allow(clippy::print_stdout, reason = "figures are what it is for")]

extern crate coracle_rooms as coracle;

#[path = "../pods/mod.rs"]
mod pods;

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use coracle::plan::event::{Desired, Instance, ProbeOrder, ProbeOutcome};
use coracle::plan::status::{self, NodeFacts};
use coracle::plan::{Action, Event, NodeState, Settings, Time, network, plan, plan_pod, probe};
use coracle::spec::{Effective, PodSpec, PodUid, ProbeKind};

const PODS: usize = 500;
const SERVICES: usize = 20;
const ROUNDS: usize = 200;
const NOW: u64 = 1_000_000;

/// Two containers with probes, behind one service of many.
fn spec(number: usize) -> Arc<PodSpec> {
    let name = format!("pod{number}");
    let uid = format!("00000000-0000-0000-0000-{number:012}");
    let mut spec = pods::pod(
        &uid,
        &name,
        coracle::spec::RestartPolicy::Always,
        &["x", "y"],
    );
    for container in &mut spec.containers {
        container.probes.liveness = Some(pods::probing(10_000, 3));
        container.probes.readiness = Some(pods::probing(10_000, 3));
    }
    let labels = &mut Arc::make_mut(&mut spec.manifest).metadata.labels;
    let group = format!("g{}", number % SERVICES);
    labels.as_mut().unwrap().insert("group".to_owned(), group);
    Arc::new(spec)
}

fn desired(pods: &[Arc<PodSpec>]) -> Desired {
    let mut desired = pods::desired(&pods.iter().collect::<Vec<_>>());
    let services = (0..SERVICES).map(|number| {
        let mut service = pods::service(&format!("service{number}"), false);
        service.selector = [("group".to_owned(), format!("g{number}"))].into();
        (service.key.clone(), Arc::new(service))
    });
    desired.services = services.collect();
    desired
}

/// All pods run and are ready.
fn running(specs: &[Arc<PodSpec>]) -> NodeState {
    let mut state = NodeState::new(Settings::default());
    state.apply(&Event::DesiredChanged(desired(specs)), pods::at(NOW));
    loop {
        let actions = plan(&state, Time(NOW)).actions;
        if actions.is_empty() {
            break;
        }
        for action in actions {
            state.apply(&Event::ActionStarted(action.clone()), pods::at(NOW));
            state.apply(&done(action, specs), pods::at(NOW));
        }
    }
    let all: Vec<_> = state
        .pods
        .values()
        .flat_map(|pod| probe::due(pod, Time(NOW)).orders)
        .collect();
    for order in all {
        state.apply(&Event::ProbeStarted(order.clone()), pods::at(NOW));
        let outcome = ProbeOutcome::Success;
        state.apply(&Event::ProbeDone { order, outcome }, pods::at(NOW));
    }
    assert!(
        state.pods.values().all(|pod| pod.flags.ready.yes),
        "all are ready"
    );
    state
}

fn done(action: Action, specs: &[Arc<PodSpec>]) -> Event {
    match action {
        Action::CreateSandbox { pod } => {
            let number = specs.iter().position(|spec| spec.uid == pod).unwrap();
            Event::SandboxCreated {
                pod,
                ips: vec![
                    format!("10.88.{}.{}", number / 250, number % 250 + 2)
                        .parse()
                        .unwrap(),
                ],
                next_attempts: Default::default(),
                warnings: vec![],
            }
        }
        Action::EnsureImage { pod, container } => Event::ImageReady {
            pod,
            container,
            image_id: "sha256:ab".into(),
        },
        Action::StartContainer { instance, .. } => Event::ContainerStarted {
            instance,
            pid: 7,
            at: pods::at(NOW),
            effective: Effective::default(),
        },
        Action::Resize { .. } => panic!("nobody is edited: {action:?}"),
        Action::Signal { .. } | Action::RemoveSandbox { .. } => panic!("nobody goes: {action:?}"),
    }
}

/// What the agent does about one event: it records it, plans the pods it may concern, and shows what changed.
fn decide(state: &mut NodeState, event: &Event, whole: bool) {
    let now = pods::at(NOW + 5_000);
    let changes = state.network_changes;
    black_box(state.apply(event, now));
    match event.pod().filter(|_| !whole) {
        Some(uid) => {
            if let Some(pod) = state.pods.get(uid) {
                black_box(plan_pod(pod, &state.settings, now.time));
                black_box(probe::due(pod, now.time));
                let ips = vec!["192.0.2.1".parse().unwrap()];
                let name = "node1".to_owned();
                black_box(status::pod(pod, &NodeFacts { name, ips }, &state.settings));
            }
        }
        None => {
            black_box(plan(state, now.time));
            for pod in state.pods.values() {
                black_box(probe::due(pod, now.time));
            }
        }
    }
    if state.network_changes != changes {
        black_box(network::view(state, &["192.0.2.1".parse().unwrap()]));
    }
}

fn main() {
    let specs: Vec<_> = (0..=PODS).map(spec).collect();
    let state = running(&specs[..PODS]);
    let pod: PodUid = specs[PODS / 2].uid.clone();
    let instance = Instance {
        pod: pod.clone(),
        container: "x".to_owned(),
        attempt: 0,
    };
    let order = ProbeOrder {
        instance: instance.clone(),
        probe: ProbeKind::Readiness,
    };
    let exit = pods::exit(1, pods::at(NOW), pods::at(NOW + 5_000));
    let probed = Event::ProbeDone {
        order: order.clone(),
        outcome: ProbeOutcome::Success,
    };
    let stories = [
        ("a probe went well", probed, false),
        (
            "a container ended",
            Event::ContainerExited { instance, exit },
            false,
        ),
        (
            "a pod's shim died",
            Event::SandboxLost { pod: pod.clone() },
            false,
        ),
        (
            "a pod is to go",
            Event::DeleteRequested {
                pod,
                grace_ms: None,
            },
            false,
        ),
        (
            "the manifests, unchanged",
            Event::DesiredChanged(desired(&specs[..PODS])),
            true,
        ),
        (
            "the manifests, with one pod more",
            Event::DesiredChanged(desired(&specs)),
            true,
        ),
        (
            "the manifests, with one pod less",
            Event::DesiredChanged(desired(&specs[1..PODS])),
            true,
        ),
    ];
    for (name, event, whole) in stories {
        let mut took: Vec<_> = (0..ROUNDS)
            .map(|_| {
                let mut state = state.clone();
                if matches!(event, Event::ProbeDone { .. }) {
                    state.apply(&Event::ProbeStarted(order.clone()), pods::at(NOW + 5_000));
                }
                let began = Instant::now();
                decide(&mut state, &event, whole);
                began.elapsed()
            })
            .collect();
        took.sort();
        let us = took[ROUNDS / 2].as_secs_f64() * 1e6;
        println!("{name}\t{us:.1}");
    }
}
