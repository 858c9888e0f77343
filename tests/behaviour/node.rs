//! A node of the planner's tests: its effects succeed at once unless the test answers itself.

use std::sync::Arc;

use coracle::plan::event::*;
use coracle::plan::pressure::{Pressure, Walk};
use coracle::plan::recovered::*;
use coracle::plan::resize::Capacity;
use coracle::plan::status::{self, NodeFacts};
use coracle::plan::{
    Action, Agenda, Event, NodeFact, NodeState, Notice, PodFact, RunFact, Settings, Step, Task,
};
use coracle::spec::{PageSize, PodSpec, PodUid, RestartPolicy};
use coracle::types::{Effective, Time};

use k8s_openapi::serde::Serialize;
use k8s_openapi::serde::de::DeserializeOwned;

use crate::pods::{self, at, desired, exit, pod};

/// A node whose effects always succeed at once, unless the test answers itself.
pub(crate) struct Node {
    pub(crate) state: NodeState,
    pub(crate) now: u64,
    pub(crate) notices: Vec<Notice>,
    /// Actions that have begun and have no answer yet.
    pub(crate) open: Vec<Action>,
    /// The effective settings that starts report.
    pub(crate) effective: Effective,
}

impl Node {
    pub(crate) fn new(max_restart_period_ms: u64) -> Self {
        Self::set(Settings {
            max_restart_period_ms,
            ..Settings::default()
        })
    }

    pub(crate) fn set(settings: Settings) -> Self {
        Self {
            state: NodeState::new(settings),
            now: 1_000_000,
            notices: vec![],
            open: vec![],
            effective: Effective::default(),
        }
    }

    /// A node whose manifests have just asked for this pod.
    pub(crate) fn with(spec: &Arc<PodSpec>) -> Self {
        let mut node = Self::new(300_000);
        node.tell(Event::Node(NodeFact::DesiredChanged(desired(&[spec]))));
        node
    }

    pub(crate) fn tell(&mut self, event: Event) {
        self.notices.extend(self.state.apply(&event, at(self.now)));
        self.decide();
    }

    /// Takes a turn. Hooks, probes and actions against shortages are left to the test, see [`Node::foresee`].
    pub(crate) fn decide(&mut self) {
        let (events, _, _) = self.turn();
        for event in events {
            if let Event::Pod {
                fact: PodFact::ActionStarted(action),
                ..
            } = &event
            {
                self.open.push(action.clone());
            }
            self.notices.extend(self.state.apply(&event, at(self.now)));
        }
    }

    /// The tasks left to the test that would begin now, and when the next turn would be taken.
    pub(crate) fn foresee(&self) -> (Vec<Task>, Option<Time>) {
        let (_, tasks, wake_at) = self.turn();
        (tasks, wake_at)
    }

    /// A turn of a node that begins everything: what it records, the tasks left to the test, and when it wakes.
    fn turn(&self) -> (Vec<Event>, Vec<Task>, Option<Time>) {
        let mut state = self.state.clone();
        let mut agenda = Agenda::new(&state);
        let (mut events, mut tasks) = (vec![], vec![]);
        loop {
            let event = match agenda.next(&state, Time(self.now)) {
                Step::Begin(task @ Task::Act(_)) => task.begun(),
                Step::Begin(task) => {
                    agenda.record(&mut state, &task.begun(), at(self.now));
                    tasks.push(task);
                    continue;
                }
                Step::Record(Event::Pod {
                    fact: PodFact::Evicted { .. },
                    ..
                }) => {
                    let (pods, disk) = (false, Walk::None);
                    let look = Event::Node(NodeFact::ReliefBegun(Order::Look { pods, disk }));
                    agenda.record(&mut state, &look, at(self.now));
                    continue;
                }
                Step::Record(event) => event,
                Step::WakeAt(at) => return (events, tasks, Some(at)),
                Step::Rest => return (events, tasks, None),
            };
            agenda.record(&mut state, &event, at(self.now));
            events.push(event);
        }
    }

    pub(crate) fn wait(&mut self, ms: u64) {
        self.now += ms;
        self.decide();
    }

    pub(crate) fn wake_at(&self) -> Option<u64> {
        self.foresee().1.map(|at| at.0)
    }

    pub(crate) fn take(&mut self) -> Action {
        assert!(!self.open.is_empty(), "an action is open");
        self.open.remove(0)
    }

    /// Answers open actions, and what follows, until none is left.
    pub(crate) fn work(&mut self) {
        while !self.open.is_empty() {
            self.answer_one();
        }
    }

    /// Answers the action that has been open for longest.
    pub(crate) fn answer_one(&mut self) {
        let event = match self.take() {
            Action::CreateSandbox { pod } => Event::Pod {
                uid: pod,
                fact: PodFact::SandboxCreated {
                    ips: vec!["10.88.0.94".parse().unwrap()],
                    next_attempts: Default::default(),
                    warnings: vec![],
                },
            },
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
                    at: at(self.now),
                    effective: self.effective.clone(),
                },
            },
            Action::Signal {
                instance, signal, ..
            } => Event::Run {
                instance,
                fact: RunFact::SignalSent {
                    signal,
                    at: Time(self.now),
                },
            },
            Action::Resize { pod, .. } => Event::Pod {
                uid: pod,
                fact: PodFact::Resized,
            },
            Action::RemoveSandbox { pod, .. } => Event::Pod {
                uid: pod,
                fact: PodFact::SandboxRemoved,
            },
        };
        self.tell(event);
    }

    /// Answers what is open for this pod and leaves the other actions open.
    pub(crate) fn work_on(&mut self, uid: &PodUid) {
        while let Some(at) = self.open.iter().position(|a| a.pod() == uid) {
            let (others, mine) = std::mem::take(&mut self.open)
                .into_iter()
                .enumerate()
                .partition::<Vec<_>, _>(|(i, _)| *i != at);
            let others: Vec<Action> = others.into_iter().map(|(_, a)| a).collect();
            let event = match mine.into_iter().next().unwrap().1 {
                Action::Signal {
                    instance, signal, ..
                } => Event::Run {
                    instance,
                    fact: RunFact::SignalSent {
                        signal,
                        at: Time(self.now),
                    },
                },
                Action::RemoveSandbox { pod, .. } => Event::Pod {
                    uid: pod,
                    fact: PodFact::SandboxRemoved,
                },
                other => panic!("this pod is only going away: {other:?}"),
            };
            self.open = others;
            self.tell(event);
        }
    }

    /// The first container of this pod ends now.
    pub(crate) fn end_of(&mut self, uid: &PodUid, code: i32) {
        let container = self.state.pods[uid].containers[0].name.clone();
        self.end_in(uid, &container, code);
    }

    /// The newest run of this container ends now.
    pub(crate) fn end(&mut self, container: &str, code: i32) {
        let uid = self.state.pods.keys().next().unwrap().clone();
        self.end_in(&uid, container, code);
    }

    fn end_in(&mut self, uid: &PodUid, container: &str, code: i32) {
        let pod = &self.state.pods[uid];
        let run = &pod.container(container).unwrap().run;
        let instance = pod.instance(container, run.attempt().unwrap());
        let began = run.running().map_or(at(self.now), |run| run.began);
        let exit = exit(code, began, at(self.now));
        self.tell(Event::Run {
            instance,
            fact: RunFact::Exited { exit },
        });
    }

    pub(crate) fn shown(&self) -> k8s_openapi::api::core::v1::Pod {
        let pod = self.state.pods.values().next().unwrap();
        let node = NodeFacts {
            name: "node1".into(),
            ips: vec!["192.168.1.2".parse().unwrap()],
        };
        status::pod(pod, &node, &self.state.settings)
    }

    /// Phase, then the conditions that are not `True` without reason, then each container.
    pub(crate) fn line(&self) -> String {
        let status = self.shown().status.unwrap();
        let mut text = status.phase.unwrap();
        for c in status.conditions.unwrap() {
            if c.status != "True" || c.reason.is_some() {
                let why = [c.reason, c.message].into_iter().flatten();
                let why = why.collect::<Vec<_>>().join(": ");
                text += &format!("; {}={} {why}", c.type_, c.status);
            }
        }
        let inits = status.init_container_statuses.into_iter().flatten();
        let added = status.ephemeral_container_statuses.into_iter().flatten();
        let all = inits.chain(status.container_statuses.into_iter().flatten());
        for c in all.chain(added) {
            let state = word(&c.state.unwrap());
            let last = word(&c.last_state.unwrap());
            text += &format!("; {}: {state} < {last}, {}", c.name, c.restart_count);
            // Ephemeral containers are never ready or started.
            let Some(started) = c.started else {
                text += &format!(", ready={}", c.ready);
                continue;
            };
            let running = state == "running";
            if (c.ready, started) != (running, running) {
                text += &format!(", ready={} started={started}", c.ready);
            }
        }
        text
    }

    pub(crate) fn said(&self) -> Vec<String> {
        let line = |n: &Notice| {
            format!(
                "{} {} {}",
                n.reason.severity().as_str(),
                n.reason,
                n.message
            )
        };
        self.notices.iter().map(line).collect()
    }
}

pub(crate) fn word(state: &k8s_openapi::api::core::v1::ContainerState) -> String {
    if state.running.is_some() {
        return "running".into();
    }
    if let Some(w) = &state.waiting {
        let parts = [w.reason.clone(), w.message.clone()];
        return parts.into_iter().flatten().collect::<Vec<_>>().join(": ");
    }
    match &state.terminated {
        Some(t) => format!("{} {}", t.reason.clone().unwrap(), t.exit_code),
        None => "-".into(),
    }
}

/// `2Mi`.
pub(crate) fn page_size(size: &str) -> PageSize {
    PageSize::of_resource(&format!("hugepages-{size}")).expect(size)
}

/// The settings of a node of one core and 100 MiB, and four huge pages.
pub(crate) fn small() -> Settings {
    Settings {
        capacity: Some(Capacity {
            cpu_milli: 1_000,
            memory_bytes: 100 << 20,
            storage_bytes: 1_000,
            huge_pages: [(page_size("2Mi"), 8 << 20)].into(),
            pods: 10,
        }),
        ..Settings::default()
    }
}

pub(crate) fn one(policy: RestartPolicy, containers: &[&str]) -> Arc<PodSpec> {
    Arc::new(pod("u1", "p", policy, containers))
}

/// The value as it reads after a round trip to disk.
fn written<T: Serialize + DeserializeOwned>(of: &T) -> T {
    let json = serde_json::to_vec(of).unwrap();
    serde_json::from_slice(&json).unwrap()
}

/// The agent dies, and a new one finds what the old one recorded.
pub(crate) fn reborn(node: &Node, wanted: &[&Arc<PodSpec>], sandbox: RecoveredSandbox) -> Node {
    reborn_as(node, wanted, sandbox, |_| {})
}

/// The same, with a change to what the new agent finds.
pub(crate) fn reborn_as(
    node: &Node,
    wanted: &[&Arc<PodSpec>],
    sandbox: RecoveredSandbox,
    change: impl Fn(&mut Recovered),
) -> Node {
    let mut new = Node::new(300_000);
    new.now = node.now;
    new.state.settings = node.state.settings.clone();
    new.state.incarnations = written(&node.state.incarnations);
    let pressure = &node.state.pressure;
    let held = pressure.held().map(|of| (of, pressure.condition(of).since));
    let (held, met): (Vec<_>, Vec<_>) = (held.collect(), pressure.met().copied().collect());
    new.state.pressure = Pressure::recovered(&held, &written(&met), at(new.now));
    new.state.former_holds = written(&node.state.holds());
    // Held pods have nothing else on the node.
    for pod in node.state.pods.values().filter(|pod| pod.hold().is_none()) {
        let mut found = pods::recovered(pod, sandbox.clone());
        change(&mut found);
        let notices = new.state.apply(&Event::recovered(found), at(new.now));
        new.notices.extend(notices);
    }
    if let Some(shutdown) = node.state.shutdown.clone() {
        new.tell(Event::Node(NodeFact::ShutdownRecovered(shutdown)));
    }
    if let Some(cordon) = node.state.cordon.clone() {
        new.tell(Event::Node(NodeFact::CordonRecovered(cordon)));
    }
    if !node.state.stops.is_empty() {
        let stops = written(&node.state.stops);
        new.tell(Event::Node(NodeFact::StopsRecovered(stops)));
    }
    new.decide();
    assert!(
        new.open.is_empty(),
        "no action before the manifests are read"
    );
    new.tell(Event::Node(NodeFact::DesiredChanged(desired(wanted))));
    new
}

pub(crate) fn ready() -> RecoveredSandbox {
    let ips = vec!["10.88.0.94".parse().unwrap()];
    RecoveredSandbox::Ready { ips }
}
