//! A node of the planner's tests: its effects succeed at once unless the test answers itself.

use std::sync::Arc;

use coracle::plan::event::*;
use coracle::plan::incarnation::Incarnations;
use coracle::plan::resize::Capacity;
use coracle::plan::status::{self, NodeFacts};
use coracle::plan::verdict::Due;
use coracle::plan::{Action, Event, NodeState, Notice, Settings, Time, cordon, plan, shutdown};
use coracle::spec::{Effective, PageSize, PodSpec, PodUid, RestartPolicy};

use crate::pods::{self, at, desired, exit, pod};

/// A node whose effects always succeed at once, unless the test answers itself.
pub(crate) struct Node {
    pub(crate) state: NodeState,
    pub(crate) now: u64,
    pub(crate) notices: Vec<Notice>,
    /// Actions begun and not answered.
    pub(crate) open: Vec<Action>,
    /// What starts decide.
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

    /// A node on which this pod has just been asked for.
    pub(crate) fn with(spec: &Arc<PodSpec>) -> Self {
        let mut node = Self::new(300_000);
        node.tell(Event::DesiredChanged(desired(&[spec])));
        node
    }

    pub(crate) fn tell(&mut self, event: Event) {
        self.notices.extend(self.state.apply(&event, at(self.now)));
        self.decide();
    }

    pub(crate) fn decide(&mut self) {
        for event in pods::passed(&self.state, Time(self.now)) {
            self.notices.extend(self.state.apply(&event, at(self.now)));
        }
        let turn = |state: &NodeState, now| match shutdown::due(state, now) {
            Some(Due::Now(event)) => Some(event),
            Some(Due::At(_)) | None => cordon::due(state),
        };
        while let Some(event) = turn(&self.state, Time(self.now)) {
            self.notices.extend(self.state.apply(&event, at(self.now)));
        }
        for action in plan(&self.state, Time(self.now)).actions {
            let begun = Event::ActionStarted(action.clone());
            self.notices.extend(self.state.apply(&begun, at(self.now)));
            self.open.push(action);
        }
    }

    pub(crate) fn wait(&mut self, ms: u64) {
        self.now += ms;
        self.decide();
    }

    pub(crate) fn wake_at(&self) -> Option<u64> {
        plan(&self.state, Time(self.now)).wake_at.map(|t| t.0)
    }

    pub(crate) fn take(&mut self) -> Action {
        assert!(!self.open.is_empty(), "something is to be done");
        self.open.remove(0)
    }

    /// Does whatever is open, and what follows, until nothing is.
    pub(crate) fn work(&mut self) {
        while !self.open.is_empty() {
            self.answer_one();
        }
    }

    /// Does what has been open for longest.
    pub(crate) fn answer_one(&mut self) {
        let event = match self.take() {
            Action::CreateSandbox { pod } => Event::SandboxCreated {
                pod,
                ips: vec!["10.88.0.94".parse().unwrap()],
                next_attempts: Default::default(),
                warnings: vec![],
            },
            Action::EnsureImage { pod, container } => Event::ImageReady {
                pod,
                container,
                image_id: "sha256:ab".into(),
            },
            Action::StartContainer { instance, .. } => Event::ContainerStarted {
                instance,
                pid: 7,
                at: at(self.now),
                effective: self.effective.clone(),
            },
            Action::Signal {
                instance, signal, ..
            } => Event::SignalSent {
                instance,
                signal,
                at: Time(self.now),
            },
            Action::Resize { pod, .. } => Event::Resized { pod },
            Action::RemoveSandbox { pod, .. } => Event::SandboxRemoved { pod },
        };
        self.tell(event);
    }

    /// Does what is open for this pod, leaving others waiting.
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
                } => Event::SignalSent {
                    instance,
                    signal,
                    at: Time(self.now),
                },
                Action::RemoveSandbox { pod, .. } => Event::SandboxRemoved { pod },
                other => panic!("the pod only goes: {other:?}"),
            };
            self.open = others;
            self.tell(event);
        }
    }

    /// The first container of this pod ends now.
    pub(crate) fn end_of(&mut self, uid: &PodUid, code: i32) {
        let pod = &self.state.pods[uid];
        let container = &pod.containers[0];
        let instance = pod.instance(&container.name, container.run.attempt().unwrap());
        let exit = exit(code, at(self.now), at(self.now));
        self.tell(Event::ContainerExited { instance, exit });
    }

    /// The newest run of this container ends now.
    pub(crate) fn end(&mut self, container: &str, code: i32) {
        let pod = self.state.pods.values().next().unwrap();
        let attempt = pod.container(container).unwrap().run.attempt().unwrap();
        let instance = pod.instance(container, attempt);
        let exit = exit(code, at(self.now), at(self.now));
        self.tell(Event::ContainerExited { instance, exit });
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
            // Ephemeral containers are neither.
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
        let line = |n: &Notice| format!("{} {} {}", n.kind.as_str(), n.reason, n.message);
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

/// As it is on disk.
fn written(incarnations: &Incarnations) -> Incarnations {
    let json = serde_json::to_vec(incarnations).unwrap();
    serde_json::from_slice(&json).unwrap()
}

/// The agent dies and a new one finds what the old one knew.
pub(crate) fn reborn(node: &Node, wanted: &[&Arc<PodSpec>], sandbox: RecoveredSandbox) -> Node {
    let mut new = Node::new(300_000);
    new.now = node.now;
    new.state.incarnations = written(&node.state.incarnations);
    // Of those that are held there is nothing to be found.
    for pod in node.state.pods.values().filter(|pod| pod.hold.is_none()) {
        let found = Box::new(pods::recovered(pod, sandbox.clone()));
        let notices = new.state.apply(&Event::PodRecovered(found), at(new.now));
        new.notices.extend(notices);
    }
    if let Some(shutdown) = node.state.shutdown.clone() {
        new.tell(Event::ShutdownRecovered(shutdown));
    }
    if let Some(cordon) = node.state.cordon.clone() {
        new.tell(Event::CordonRecovered(cordon));
    }
    new.decide();
    assert!(new.open.is_empty(), "nothing before the manifests are read");
    new.tell(Event::DesiredChanged(desired(wanted)));
    new
}

pub(crate) fn ready() -> RecoveredSandbox {
    let ips = vec!["10.88.0.94".parse().unwrap()];
    RecoveredSandbox::Ready { ips }
}
