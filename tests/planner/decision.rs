//! The time a decision takes on a node with many pods. Prints, for each event, the median of many rounds in
//! microseconds, separated by tabs; `tests/bench/run --only planner` makes a table of it. Nothing here passes or fails.
//! Arguments: a part of the names of the events to measure, and the number of rounds.

#![allow(missing_docs, reason = "a benchmark")]
#![allow(clippy::print_stdout, reason = "it prints its figures")]

extern crate coracle_rooms as coracle;

#[path = "../pods/mod.rs"]
mod pods;

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use coracle::plan::event::{Desired, Instance, ProbeOrder, ProbeOutcome};
use coracle::plan::status::{self, NodeFacts};
use coracle::plan::{
    Action, Agenda, Event, NodeFact, NodeState, PodFact, RunFact, Settings, Step, Task, network,
};
use coracle::spec::{PodSpec, PodUid, ProbeKind};
use coracle::types::Effective;
use coracle::types::Time;

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
    let group = format!("g{}", number % SERVICES);
    Arc::make_mut(&mut spec.manifest).change_metadata(|metadata| {
        let labels = metadata.labels.as_mut();
        labels.unwrap().insert("group".to_owned(), group);
    });
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

fn running(specs: &[Arc<PodSpec>]) -> (NodeState, Agenda) {
    let mut state = NodeState::new(Settings::default());
    let mut agenda = Agenda::new(&state);
    let record = |state: &mut NodeState, agenda: &mut Agenda, event: &Event| {
        agenda.record(state, event, pods::at(NOW));
    };
    let wanted = Event::Node(NodeFact::DesiredChanged(desired(specs)));
    record(&mut state, &mut agenda, &wanted);
    while let Step::Begin(task) = agenda.next(&state, Time(NOW)) {
        record(&mut state, &mut agenda, &task.begun());
        let done = match task {
            Task::Act(action) => done(action, specs),
            Task::Probe(order) => {
                let outcome = ProbeOutcome::Success;
                order.done(outcome)
            }
            Task::Hook(_) | Task::Relieve(_) => {
                panic!("no pod has hooks, and nothing is short: {task:?}")
            }
        };
        record(&mut state, &mut agenda, &done);
    }
    assert!(
        state.pods.values().all(|pod| pod.flags.ready.yes),
        "all are ready"
    );
    agenda.take_changed();
    (state, agenda)
}

fn done(action: Action, specs: &[Arc<PodSpec>]) -> Event {
    match action {
        Action::CreateSandbox { pod } => {
            let number = specs.iter().position(|spec| spec.uid == pod).unwrap();
            Event::Pod {
                uid: pod,
                fact: PodFact::SandboxCreated {
                    ips: vec![
                        format!("10.88.{}.{}", number / 250, number % 250 + 2)
                            .parse()
                            .unwrap(),
                    ],
                    next_attempts: Default::default(),
                    warnings: vec![],
                },
            }
        }
        Action::EnsureImage { pod, container } => Event::Pod {
            uid: pod,
            fact: PodFact::ImageReady {
                container,
                image_id: "sha256:ab".into(),
                volumes: Default::default(),
                pulled: Default::default(),
            },
        },
        Action::StartContainer { instance, .. } => Event::Run {
            instance,
            fact: RunFact::Started {
                pid: 7,
                at: pods::at(NOW),
                effective: Effective::default(),
            },
        },
        Action::Resize { .. } => panic!("no pod is edited: {action:?}"),
        Action::Signal { .. } | Action::RemoveSandbox { .. } => {
            panic!("no pod goes away: {action:?}")
        }
    }
}

/// What the agent does about one event: record it, plan the pods it may concern, and show what changed.
#[inline(never)]
fn decide(state: &mut NodeState, agenda: &mut Agenda, event: &Event) {
    let now = pods::at(NOW + 5_000);
    let changes = state.network_changes;
    black_box(agenda.record(state, event, now));
    while let Step::Begin(task) = agenda.next(state, now.time) {
        agenda.record(state, &task.begun(), now);
        black_box(task);
    }
    let changed = agenda.take_changed();
    if event.pod().is_some() {
        for pod in changed.iter().filter_map(|uid| state.pods.get(uid)) {
            let ips = vec!["192.0.2.1".parse().unwrap()];
            let name = "node1".to_owned();
            black_box(status::pod(pod, &NodeFacts { name, ips }, &state.settings));
        }
    }
    if state.network_changes != changes {
        black_box(network::view(state, &["192.0.2.1".parse().unwrap()]));
    }
}

fn main() {
    let specs: Vec<_> = (0..=PODS).map(spec).collect();
    let (state, agenda) = running(&specs[..PODS]);
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
    let probed = order.clone().done(ProbeOutcome::Success);
    let stories = [
        ("a probe went well", probed),
        (
            "a container ended",
            Event::Run {
                instance,
                fact: RunFact::Exited { exit },
            },
        ),
        (
            "a pod's shim died",
            Event::Pod {
                uid: pod.clone(),
                fact: PodFact::SandboxLost,
            },
        ),
        (
            "a pod is to go",
            Event::Pod {
                uid: pod,
                fact: PodFact::DeleteRequested { grace_ms: None },
            },
        ),
        (
            "the manifests, unchanged",
            Event::Node(NodeFact::DesiredChanged(desired(&specs[..PODS]))),
        ),
        (
            "the manifests, with one pod more",
            Event::Node(NodeFact::DesiredChanged(desired(&specs))),
        ),
        (
            "the manifests, with one pod less",
            Event::Node(NodeFact::DesiredChanged(desired(&specs[1..PODS]))),
        ),
    ];
    let mut args = std::env::args().skip(1).filter(|arg| arg != "--bench");
    let only = args.next().unwrap_or_default();
    let rounds = args.next().map_or(ROUNDS, |rounds| rounds.parse().unwrap());
    let chosen = stories.iter().filter(|(name, _)| name.contains(&only));
    for (name, event) in chosen {
        let mut took: Vec<_> = (0..rounds)
            .map(|_| {
                let (mut state, mut agenda) = (state.clone(), agenda.clone());
                if matches!(
                    event,
                    Event::Run {
                        fact: RunFact::ProbeDone { .. },
                        ..
                    }
                ) {
                    let begun = order.clone().started();
                    agenda.record(&mut state, &begun, pods::at(NOW + 5_000));
                }
                let began = Instant::now();
                decide(&mut state, &mut agenda, event);
                began.elapsed()
            })
            .collect();
        took.sort();
        let us = took[rounds / 2].as_secs_f64() * 1e6;
        println!("{name}\t{us:.1}");
    }
}
