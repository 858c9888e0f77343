//! No short story breaks the planner. Plays every sequence of answers and accidents up to a bounded depth, for one pod
//! of one or two containers and every restart policy, with the agent killed between any two of them.
//! States already seen are not followed again.

extern crate coracle_rooms as coracle;

#[path = "exhaustive/answers.rs"]
mod answers;
#[path = "exhaustive/failing.rs"]
mod failing;
#[path = "exhaustive/kills.rs"]
mod kills;
#[allow(dead_code, reason = "each test binary uses a part of it")]
#[path = "../behaviour/node.rs"]
mod node;
#[path = "../pods/mod.rs"]
mod pods;
#[path = "exhaustive/same.rs"]
mod same;
#[path = "exhaustive/stories.rs"]
mod stories;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use answers::answers;
use coracle::plan::action::Keep;
use coracle::plan::event::{
    AskedBy, Group, HookOrder, HookOutcome, Instance, ProbeOrder, ProbeOutcome,
};
use coracle::plan::resize::Capacity;
use coracle::plan::run::Run;
use coracle::plan::state::{ContainerState, Role};
use coracle::plan::{
    Action, Agenda, Event, NodeFact, NodeState, PodFact, PodState, RunFact, Settings, Step, Task,
    decide, retry,
};
use coracle::spec::{
    ExitCodes, Hook, HookKind, HugePages, PodSpec, PodUid, RestartAction, RestartPolicy,
};
use coracle::types::{StopSignal, Time};
use pods::at;

const POLICIES: [RestartPolicy; 3] = [
    RestartPolicy::Always,
    RestartPolicy::OnFailure,
    RestartPolicy::Never,
];

const NO_ROOM: Capacity = Capacity {
    cpu_milli: 0,
    memory_bytes: 0,
    storage_bytes: 1_000,
    huge_pages: HugePages::new(),
    pods: 10,
};

/// One story so far.
#[derive(Clone)]
struct Story {
    state: NodeState,
    agenda: Agenda,
    now: u64,
    wanted: bool,
    going: bool,
    /// Newest attempt of each container that really ran.
    ran: Vec<Option<u32>>,
    /// Probes under way.
    probing: Vec<ProbeOrder>,
    /// Agents killed so far.
    kills: u8,
    seen: Arc<pods::Seen>,
    /// Hooks under way.
    hooking: Vec<HookOrder>,
}

/// What an operator does with the node, and cancels again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Work {
    Nothing,
    Shutdown,
    /// Also drains it.
    Cordon,
}

struct Search {
    spec: Arc<PodSpec>,
    /// The pod with a container added to it, in stories where one is added.
    debugged: Option<Arc<PodSpec>>,
    /// The pod after an edit, in stories with an edit.
    edited: Option<Arc<PodSpec>>,
    /// What an operator may do with the node.
    work: Work,
    /// Whether the node may lose all of its room, and get it back.
    shortages: bool,
    /// What has been told, each with the most events that followed it.
    told: HashMap<u64, u32>,
    stories: usize,
}

impl Search {
    fn uid(&self) -> PodUid {
        self.spec.uid.clone()
    }

    /// Everything that can happen next.
    fn next(&self, story: &Story) -> Vec<Event> {
        let pod = self.uid();
        let mut events = vec![
            Event::Node(NodeFact::DesiredChanged(pods::desired(&[]))),
            Event::Node(NodeFact::DesiredChanged(pods::desired(&[&self.spec]))),
            Event::Pod {
                uid: pod.clone(),
                fact: PodFact::DeleteRequested { grace_ms: Some(0) },
            },
            Event::Node(NodeFact::ImagesChanged(None)),
            Event::Node(NodeFact::AddressesChanged),
            Event::Node(NodeFact::SettingsChanged(Settings {
                max_restart_period_ms: 1000,
                ..Settings::default()
            })),
            Event::Node(NodeFact::SettingsChanged(Settings::default())),
        ];
        if let Some(edited) = &self.edited {
            events.push(Event::Node(NodeFact::DesiredChanged(pods::desired(&[
                edited,
            ]))));
        }
        if self.work == Work::Shutdown {
            let group = |(priority, seconds)| Group { priority, seconds };
            events.push(Event::Node(NodeFact::ShutdownBegun {
                groups: [(0, 20), (1000, 0), (2000, 10)].map(group).to_vec(),
                asked_by: AskedBy::Command,
            }));
            events.push(Event::Node(NodeFact::ShutdownTurnOver));
            events.push(Event::Node(NodeFact::ShutdownCancelled));
        }
        if self.work == Work::Cordon {
            let (pods, grace_ms) = (None, Some(5_000));
            events.push(Event::Node(NodeFact::Cordoned));
            events.push(Event::Node(NodeFact::DrainBegun { pods, grace_ms }));
            events.push(Event::Node(NodeFact::Uncordoned));
        }
        if self.shortages {
            events.push(Event::Node(NodeFact::SettingsChanged(Settings {
                capacity: Some(NO_ROOM),
                ..Settings::default()
            })));
        }
        let Some(state) = story.state.pods.get(&pod) else {
            return events;
        };
        let settings = &story.state.settings;
        if !retry::waits(state, None, settings, Time(story.now)).is_empty() {
            let (pod, container) = (pod.clone(), None);
            events.push(Event::Pod {
                uid: pod,
                fact: PodFact::RetryRequested { container },
            });
        }
        events.push(Event::Pod {
            uid: pod.clone(),
            fact: PodFact::SandboxLost,
        });
        if let Some(spec) = &self.debugged {
            let spec = Arc::clone(spec);
            events.push(Event::Pod {
                uid: pod,
                fact: PodFact::EphemeralAdded { spec },
            });
        }
        for container in &state.containers {
            // Exits of the newest run, of the run before it, and of the run being started: on time, late and early.
            let newest = container.run.attempt().unwrap_or(0);
            for attempt in newest.saturating_sub(1)..=newest + 1 {
                for code in [0, 1] {
                    let instance = state.instance(&container.name, attempt);
                    let exit = pods::exit(code, at(story.now), at(story.now));
                    events.push(Event::Run {
                        instance,
                        fact: RunFact::Exited { exit },
                    });
                }
            }
        }
        for order in &story.probing {
            let no = || "no".to_owned();
            for outcome in [
                ProbeOutcome::Success,
                ProbeOutcome::Failure(no()),
                ProbeOutcome::Error(no()),
            ] {
                let order = order.clone();
                events.push(order.done(outcome));
            }
        }
        for order in &story.hooking {
            for failure in [None, Some("no".to_owned())] {
                let order = order.clone();
                let outcome = HookOutcome {
                    failure,
                    fell_back: None,
                    at: None,
                };
                events.push(order.done(outcome));
            }
        }
        if let Some(action) = &state.in_flight {
            answers(action, at(story.now), &mut events);
        }
        events
    }

    fn tell(&mut self, story: &Story, depth: u32) {
        self.stories += 1;
        if depth == 0 {
            return;
        }
        let told = self.told.entry(same::fingerprint(story)).or_default();
        if *told >= depth {
            return;
        }
        *told = depth;
        for event in self.next(story) {
            let mut next = story.clone();
            self.apply(&mut next, &event);
            // Nothing can come of what changed nothing: `decide` has found nothing more to do.
            if next.knows_as(story) {
                self.stories += 1;
                continue;
            }
            self.decide(&mut next);
            self.tell(&next, depth - 1);
        }
        for mut next in self.killed(story) {
            self.decide(&mut next);
            self.tell(&next, depth - 1);
        }
        let mut later = story.clone();
        if let Some(wake) = later.agenda.wake_at() {
            later.now = wake.0;
            self.decide(&mut later);
            self.tell(&later, depth - 1);
        }
    }

    fn apply(&self, story: &mut Story, event: &Event) {
        let before = story.state.pods.clone();
        story.agenda.record(&mut story.state, event, at(story.now));
        match event {
            Event::Node(NodeFact::DesiredChanged(desired)) => {
                story.wanted = desired.pods.contains_key(&self.spec.uid);
                let work = |s: &PodSpec| (s.containers[0].image.clone(), s.containers[0].resources);
                let again = |p: &PodState| {
                    if p.hold().is_some() {
                        return false;
                    }
                    // A new image or other resources for a pod that has done its work: it does its work again.
                    let new = desired.pods.get(&self.spec.uid);
                    new.is_none_or(|new| {
                        let other = work(new) != work(&p.spec) && !Arc::ptr_eq(new, p.wanted());
                        p.complete() && other
                    })
                };
                story.going |= before.get(&self.spec.uid).is_some_and(again);
            }
            Event::Pod {
                fact: PodFact::DeleteRequested { .. },
                ..
            } => {
                let pod = story.state.pods.get(&self.spec.uid);
                story.going |= pod.is_some_and(|pod| pod.hold().is_none());
            }
            Event::Node(NodeFact::DrainBegun { .. }) | Event::Node(NodeFact::DrainTurn) => {
                let stops = |p: &PodState| p.stopping().is_some();
                story.going |= story.state.pods.get(&self.spec.uid).is_some_and(stops);
            }
            Event::Run {
                instance,
                fact: RunFact::ProbeDone { probe, .. },
            } => story
                .probing
                .retain(|o| (&o.instance, o.probe) != (instance, *probe)),
            Event::Run {
                instance,
                fact: RunFact::HookDone { hook, .. },
            } => story
                .hooking
                .retain(|o| (&o.instance, o.hook) != (instance, *hook)),
            _ => {}
        }
        let removed = matches!(
            before
                .get(&self.spec.uid)
                .and_then(|p| p.in_flight.as_ref()),
            Some(Action::RemoveSandbox {
                keep: Keep::Nothing,
                ..
            })
        ) && matches!(
            event,
            Event::Pod {
                fact: PodFact::SandboxRemoved,
                ..
            }
        );
        if removed {
            story.going = false;
            story.ran.fill(None);
            story.probing.clear();
            story.hooking.clear();
        }
        if let (Some(old), Some(new), false) = (
            before.get(&self.spec.uid),
            story.state.pods.get(&self.spec.uid),
            removed,
        ) {
            for (old, new) in old.containers.iter().zip(&new.containers) {
                assert!(
                    old.next_attempt <= new.next_attempt,
                    "attempt numbers only grow: {event:?}"
                );
                assert!(
                    old.run.attempt() <= new.run.attempt(),
                    "attempt numbers never go back: {event:?}"
                );
                let changed = old.run.ended().is_some() && old.run.ended() != new.run.ended();
                assert!(
                    !changed || old.run.attempt() < new.run.attempt(),
                    "what ended stays ended: {event:?}"
                );
            }
        }
        story.seen = story.seen.check(&story.state);
        let fact = !matches!(
            event,
            Event::Pod {
                fact: PodFact::SandboxLost,
                ..
            } | Event::Node(NodeFact::DesiredChanged(_))
        );
        if fact && before != story.state.pods {
            let mut twice = story.state.clone();
            twice.apply(event, at(story.now));
            assert_eq!(
                story.state.pods, twice.pods,
                "the fact counts twice: {event:?}"
            );
        }
    }

    /// Begins a task, if that is right.
    fn begin(&self, story: &mut Story, task: Task) {
        match &task {
            Task::Act(action) => self.check_action(story, action),
            Task::Hook(order) => {
                assert!(
                    !story.hooking.contains(order),
                    "each hook runs once at a time: {order:?}"
                );
                let pod = &story.state.pods[&order.instance.pod];
                let c = &pod.containers[index(pod, &order.instance)];
                assert!(c.run.is_running(), "{order:?}");
                let ending = order.hook == HookKind::PreStop;
                assert_eq!(c.kill().is_some(), ending, "{order:?}");
            }
            Task::Probe(order) => {
                assert!(
                    !story.probing.contains(order),
                    "each probe runs once at a time: {order:?}"
                );
                let pod = &story.state.pods[&order.instance.pod];
                let c = &pod.containers[index(pod, &order.instance)];
                assert!(c.run.is_running(), "{order:?}");
            }
            Task::Relieve(order) => panic!("this node does not watch pressure: {order:?}"),
        }
        let now = at(story.now);
        story.agenda.record(&mut story.state, &task.begun(), now);
        match task {
            Task::Hook(order) => story.hooking.push(order),
            Task::Probe(order) => story.probing.push(order),
            Task::Act(_) | Task::Relieve(_) => {}
        }
    }

    fn check_action(&self, story: &Story, action: &Action) {
        let pod = &story.state.pods[action.pod()];
        assert!(pod.in_flight.is_none(), "one action at a time: {action:?}");
        assert_eq!(pod.hold(), None, "the pod is held: {action:?}");
        match action {
            Action::CreateSandbox { .. } | Action::EnsureImage { .. } => {
                assert!(story.wanted && !story.going, "{action:?}");
                assert!(pod.verdict.is_none(), "{action:?}");
            }
            Action::StartContainer { instance, .. } => {
                assert!(story.wanted && !story.going, "{action:?}");
                assert!(pod.verdict.is_none(), "{action:?}");
                let i = index(pod, instance);
                let container = &pod.containers[i];
                assert!(!container.run.is_running(), "two runs at once: {action:?}");
                assert!(
                    story.ran[i] < Some(instance.attempt),
                    "attempt numbers are used once: {action:?}"
                );
                check_order(pod, i);
                let once = container.role != Role::Ephemeral || container.run == Run::None;
                assert!(once, "an ephemeral container runs once: {action:?}");
                let own = pod.spec.container(&container.name).unwrap().restart_policy;
                match (pod.spec.restart_policy, container.run.ended()) {
                    (RestartPolicy::Always, _) | (_, None) => {}
                    _ if container.stale() || own.is_some() => {}
                    _ if replaced(pod, container) => {}
                    (RestartPolicy::OnFailure, Some(e)) => assert_ne!(e.exit.code, 0),
                    (RestartPolicy::Never, Some(_)) => panic!("it must not run again: {action:?}"),
                }
            }
            Action::Signal {
                instance, signal, ..
            } => {
                let container = &pod.containers[index(pod, instance)];
                assert!(container.run.is_running());
                let beside = matches!(container.role, Role::Sidecar | Role::Ephemeral);
                let finishes = pod.complete() && beside;
                let restarts = pod.restarts_all() && *signal == StopSignal::Kill;
                let spec = pod.spec.container(&container.name).unwrap();
                let probes = spec.probes.liveness.is_some() || spec.probes.startup.is_some();
                let hook = container.hook_failure().is_some();
                let failed = (probes || hook || pod.verdict.is_some()) && !story.going;
                let replaced = replaced(pod, container);
                assert!(
                    story.going || finishes || restarts || failed || replaced,
                    "{action:?}"
                );
            }
            Action::Resize { to, .. } => {
                assert!(!story.going, "{action:?}");
                assert_eq!(*to, pod.spec.resources);
                assert!(pod.is_resizing(), "{action:?}");
            }
            Action::RemoveSandbox { keep, .. } => {
                assert!(!pod.any_running(), "{action:?}");
                assert_eq!(*keep == Keep::Nothing, story.going, "{action:?}");
            }
        }
    }

    fn decide(&self, story: &mut Story) {
        let now = Time(story.now);
        let mut acted = BTreeSet::new();
        let rest = loop {
            match story.agenda.next(&story.state, now) {
                Step::Record(event) => self.apply(story, &event),
                Step::Begin(task) => {
                    if let Task::Act(action) = &task {
                        assert!(
                            acted.insert(action.pod().clone()),
                            "one action for each pod"
                        );
                    }
                    self.begin(story, task);
                }
                rest @ (Step::WakeAt(_) | Step::Rest) => break rest,
            }
        };
        let again = Agenda::new(&story.state).next(&story.state, now);
        assert_eq!(rest, again, "planning everything again finds more");
        assert!(
            story.agenda.wake_at().is_none_or(|t| t > now),
            "the wake-up is in the future"
        );
        for pod in story.state.pods.values() {
            for (i, container) in pod.containers.iter().enumerate() {
                if container.run != Run::None {
                    story.ran[i] = story.ran[i].max(container.run.attempt());
                }
            }
        }
        let waits = |pod: &PodState| {
            let step = decide::next(pod, &story.state.settings, now);
            matches!(step, Step::WakeAt(_))
        };
        // Never stuck: something is under way, or will be, or all is as it should be.
        for pod in story.state.pods.values() {
            // The pod waits for an init container that runs, or for a sidecar that has not come up.
            let initializes = |c: &ContainerState| match c.role {
                Role::Init => c.run.is_running(),
                Role::Ephemeral => false,
                Role::Sidecar | Role::Main => c.run.is_running() && !c.started(),
            };
            // It also waits for a postStart hook.
            let coming_up = pod
                .containers
                .iter()
                .any(|c| c.run.running().is_some_and(|run| !run.up));
            let as_it_should =
                |c: &ContainerState| c.run.is_running() || !pod.wants_start(c) || coming_up;
            let settled = pod.stopping().is_none()
                && !pod.is_resizing()
                && !pod.restarts_all()
                && !pod
                    .containers
                    .iter()
                    .any(|c| c.run.is_running() && failed(c))
                && (pod.finished()
                    || !pod.complete()
                        && (pod.inits().iter().any(initializes)
                            || pod.containers.iter().all(as_it_should)));
            let held = pod.hold().is_some();
            if held {
                let refused = story.state.settings.capacity == Some(NO_ROOM);
                let state = &story.state;
                let refused = refused || state.cordon.is_some();
                assert!(refused || state.shutdown.is_some(), "{pod:?}");
                assert!(story.wanted && !story.going, "{pod:?}");
            }
            assert!(
                held || settled || pod.in_flight.is_some() || waits(pod),
                "stuck: {pod:?}"
            );
        }
    }
}

/// No container starts before the init containers ahead of it have finished, in this round.
fn check_order(pod: &PodState, at: usize) {
    let name = &pod.containers[at].name;
    if pod.containers[at].role == Role::Ephemeral {
        return;
    }
    for earlier in pod.inits().iter().take(at) {
        let ran = pod.mains().iter().any(|c| c.current().is_some());
        let ended = earlier.current().and_then(Run::ended);
        let through = match earlier.role {
            Role::Init => ended.is_some_and(|e| e.exit.code == 0),
            // Once it has come up, it may end again.
            Role::Sidecar | Role::Main | Role::Ephemeral => earlier.current().is_some() || ran,
        };
        let beside =
            pod.containers[at].role == Role::Sidecar && pod.containers[at].current().is_some();
        assert!(
            through || beside,
            "{name} starts before {} has finished",
            earlier.name
        );
    }
}

/// The run makes way, or made way, for one from a new image.
fn replaced(pod: &PodState, c: &ContainerState) -> bool {
    let asked = c.run.course().unwrap().asked.as_ref().unwrap();
    asked.again || c.is_outdated(pod.spec.container(&c.name).unwrap())
}

/// A probe failed, and the container is killed for it.
fn failed(c: &ContainerState) -> bool {
    c.run.running().is_some_and(|run| {
        let tracks = [run.tracks.liveness, run.tracks.startup];
        tracks.iter().any(|track| track.result == Some(false))
    })
}

fn index(pod: &coracle::plan::PodState, instance: &Instance) -> usize {
    let found = pod
        .containers
        .iter()
        .position(|c| c.name == instance.container);
    found.unwrap()
}
