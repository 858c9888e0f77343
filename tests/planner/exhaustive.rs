//! Is there any short story that breaks the planner? Every sequence of answers and accidents up to a bounded depth,
//! for one pod of one or two containers and every restart policy, with agents that are killed between any two of them.
//! States already seen are not followed again.

extern crate coracle_rooms as coracle;

#[path = "exhaustive/answers.rs"]
mod answers;
#[path = "exhaustive/failing.rs"]
mod failing;
#[path = "exhaustive/kills.rs"]
mod kills;
#[allow(dead_code, reason = "each test binary uses its part")]
#[path = "../behaviour/node.rs"]
mod node;
#[path = "../pods/mod.rs"]
mod pods;
#[path = "exhaustive/stories.rs"]
mod stories;

use std::collections::HashSet;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use answers::answers;
use coracle::plan::action::Keep;
use coracle::plan::event::{
    AskedBy, Group, HookOrder, HookOutcome, Instance, ProbeOrder, ProbeOutcome,
};
use coracle::plan::probe::due;
use coracle::plan::resize::Capacity;
use coracle::plan::retry;
use coracle::plan::state::{ContainerState, Role, Run};
use coracle::plan::verdict::Due;
use coracle::plan::{Action, Event, NodeState, PodState, Settings, Time, hook, plan};
use coracle::plan::{cordon, shutdown};
use coracle::spec::{
    ExitCodes, Hook, HookKind, HugePages, PodSpec, PodUid, RestartAction, RestartPolicy, StopSignal,
};
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

/// What somebody does with the node, and calls off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Work {
    Nothing,
    Shutdown,
    /// And drains.
    Cordon,
}

struct Search {
    spec: Arc<PodSpec>,
    /// The pod with a container added to it, if anybody adds one.
    debugged: Option<Arc<PodSpec>>,
    /// The pod as it may be edited.
    edited: Option<Arc<PodSpec>>,
    /// What may be done with the node.
    work: Work,
    /// Whether the node may have no room at all, and again all of it.
    shortages: bool,
    seen: HashSet<(u32, u64)>,
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
            Event::DesiredChanged(pods::desired(&[])),
            Event::DesiredChanged(pods::desired(&[&self.spec])),
            Event::DeleteRequested {
                pod: pod.clone(),
                grace_ms: Some(0),
            },
            Event::ImagesChanged,
            Event::NodeAddressesChanged,
            Event::SettingsChanged(Settings {
                max_restart_period_ms: 1000,
                ..Settings::default()
            }),
            Event::SettingsChanged(Settings::default()),
        ];
        if let Some(edited) = &self.edited {
            events.push(Event::DesiredChanged(pods::desired(&[edited])));
        }
        if self.work == Work::Shutdown {
            let group = |(priority, seconds)| Group { priority, seconds };
            events.push(Event::ShutdownBegun {
                groups: [(0, 20), (1000, 0), (2000, 10)].map(group).to_vec(),
                asked_by: AskedBy::Command,
            });
            events.push(Event::ShutdownTurnOver);
            events.push(Event::ShutdownCancelled);
        }
        if self.work == Work::Cordon {
            let (pods, grace_ms) = (None, Some(5_000));
            events.push(Event::Cordoned);
            events.push(Event::DrainBegun { pods, grace_ms });
            events.push(Event::Uncordoned);
        }
        if self.shortages {
            events.push(Event::SettingsChanged(Settings {
                capacity: Some(NO_ROOM),
                ..Settings::default()
            }));
        }
        let Some(state) = story.state.pods.get(&pod) else {
            return events;
        };
        let settings = &story.state.settings;
        if !retry::waits(state, None, settings, Time(story.now)).is_empty() {
            let (pod, container) = (pod.clone(), None);
            events.push(Event::RetryRequested { pod, container });
        }
        events.push(Event::SandboxLost { pod: pod.clone() });
        if let Some(spec) = &self.debugged {
            let spec = Arc::clone(spec);
            events.push(Event::EphemeralAdded { pod, spec });
        }
        for container in &state.containers {
            // Exits of the newest run, of the one before and of the one being started: on time, late and early.
            let newest = container.run.attempt().unwrap_or(0);
            for attempt in newest.saturating_sub(1)..=newest + 1 {
                for code in [0, 1] {
                    let instance = state.instance(&container.name, attempt);
                    let exit = pods::exit(code, at(story.now), at(story.now));
                    events.push(Event::ContainerExited { instance, exit });
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
                events.push(Event::ProbeDone { order, outcome });
            }
        }
        for order in &story.hooking {
            for failure in [None, Some("no".to_owned())] {
                let order = order.clone();
                let outcome = HookOutcome {
                    failure,
                    fell_back: None,
                };
                events.push(Event::HookDone { order, outcome });
            }
        }
        if let Some(action) = &state.in_flight {
            answers(action, at(story.now), &mut events);
        }
        events
    }

    fn tell(&mut self, story: &Story, depth: u32) {
        self.stories += 1;
        if depth == 0 || !self.seen.insert((depth, fingerprint(story))) {
            return;
        }
        for event in self.next(story) {
            let mut next = story.clone();
            self.apply(&mut next, &event);
            self.decide(&mut next);
            self.tell(&next, depth - 1);
        }
        for mut next in self.killed(story) {
            self.decide(&mut next);
            self.tell(&next, depth - 1);
        }
        let mut later = story.clone();
        let now = Time(later.now);
        let probes = later
            .state
            .pods
            .values()
            .filter_map(|p| due(p, now).wake_at);
        let moments = probes.chain(pods::moment(&later.state, now));
        let wakes = plan(&later.state, now).wake_at.into_iter().chain(moments);
        if let Some(wake) = wakes.min() {
            later.now = wake.0;
            for event in pods::passed(&later.state, wake) {
                self.apply(&mut later, &event);
            }
            self.decide(&mut later);
            self.tell(&later, depth - 1);
        }
    }

    fn apply(&self, story: &mut Story, event: &Event) {
        let before = story.state.pods.clone();
        story.state.apply(event, at(story.now));
        match event {
            Event::DesiredChanged(desired) => {
                story.wanted = desired.pods.contains_key(&self.spec.uid);
                let image = |s: &PodSpec| s.containers[0].image.clone();
                let again = |p: &PodState| {
                    if p.hold.is_some() {
                        return false;
                    }
                    // Another image for what has done its work: it is to be done again.
                    let new = desired.pods.get(&self.spec.uid);
                    new.is_none_or(|new| p.complete() && image(new) != image(&p.spec))
                };
                story.going |= before.get(&self.spec.uid).is_some_and(again);
            }
            Event::DeleteRequested { .. } => {
                let pod = story.state.pods.get(&self.spec.uid);
                story.going |= pod.is_some_and(|pod| pod.hold.is_none());
            }
            Event::DrainBegun { .. } | Event::DrainTurn => {
                let stops = |p: &PodState| p.stopping.is_some();
                story.going |= story.state.pods.get(&self.spec.uid).is_some_and(stops);
            }
            Event::ProbeDone { order, .. } => story.probing.retain(|o| o != order),
            Event::HookDone { order, .. } => story.hooking.retain(|o| o != order),
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
        ) && matches!(event, Event::SandboxRemoved { .. });
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
                    "attempts only grow: {event:?}"
                );
                assert!(
                    old.run.attempt() <= new.run.attempt(),
                    "no step back: {event:?}"
                );
                let changed = old.run != new.run && old.run.ended().is_some();
                assert!(
                    !changed || old.run.attempt() < new.run.attempt(),
                    "what ended stays ended: {event:?}"
                );
            }
        }
        story.seen = story.seen.check(&story.state);
        let fact = !matches!(event, Event::SandboxLost { .. } | Event::DesiredChanged(_));
        if fact {
            let mut twice = story.state.clone();
            twice.apply(event, at(story.now));
            assert_eq!(story.state.pods, twice.pods, "heard twice: {event:?}");
        }
    }

    fn decide(&self, story: &mut Story) {
        let now = Time(story.now);
        let pods = story.state.pods.values();
        let hooks: Vec<HookOrder> = pods.flat_map(|p| hook::due(p, now)).collect();
        for order in hooks {
            assert!(!story.hooking.contains(&order), "one at a time: {order:?}");
            let pod = &story.state.pods[&order.instance.pod];
            let c = &pod.containers[index(pod, &order.instance)];
            assert!(c.run.is_running(), "{order:?}");
            let ending = order.hook == HookKind::PreStop;
            assert_eq!(c.kill.is_some(), ending, "{order:?}");
            let begun = Event::HookStarted(order.clone());
            story.state.apply(&begun, at(story.now));
            story.hooking.push(order);
        }
        while let Some(Due::Now(event)) = shutdown::due(&story.state, now) {
            self.apply(story, &event);
        }
        while let Some(event) = cordon::due(&story.state) {
            self.apply(story, &event);
        }
        let decided = plan(&story.state, now);
        assert!(decided.actions.len() <= 1, "one action a pod");
        for action in decided.actions {
            let pod = &story.state.pods[action.pod()];
            assert!(pod.in_flight.is_none(), "one action at a time: {action:?}");
            assert_eq!(pod.hold, None, "it is held: {action:?}");
            match &action {
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
                        "numbers are used once: {action:?}"
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
                        (RestartPolicy::Never, Some(_)) => panic!("never again: {action:?}"),
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
                    let hook = container.hooks.failure.is_some();
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
            story
                .state
                .apply(&Event::ActionStarted(action), at(story.now));
        }
        let pods = story.state.pods.values();
        let orders: Vec<ProbeOrder> = pods.flat_map(|p| due(p, now).orders).collect();
        for order in orders {
            assert!(!story.probing.contains(&order), "one at a time: {order:?}");
            let running = |p: &PodState| p.containers[index(p, &order.instance)].run.is_running();
            assert!(running(&story.state.pods[&order.instance.pod]), "{order:?}");
            story
                .state
                .apply(&Event::ProbeStarted(order.clone()), at(story.now));
            story.probing.push(order);
        }
        for pod in story.state.pods.values() {
            assert_eq!(due(pod, now).orders, [], "due twice");
            assert_eq!(hook::due(pod, now), [], "due twice");
            assert!(due(pod, now).wake_at.is_none_or(|t| t > now));
            for (i, container) in pod.containers.iter().enumerate() {
                if container.run != Run::None {
                    story.ran[i] = story.ran[i].max(container.run.attempt());
                }
            }
        }
        let again = plan(&story.state, now);
        assert!(again.actions.is_empty(), "decided twice: {again:?}");
        assert!(
            again.wake_at.is_none_or(|t| t > now),
            "wake-ups are in the future"
        );
        // Never stuck: something is under way, or will be, or all is as it should be.
        for pod in story.state.pods.values() {
            // An init container that runs, or a sidecar that has not come up, is waited for.
            let initializes = |c: &ContainerState| match c.role {
                Role::Init => c.run.is_running(),
                Role::Ephemeral => false,
                Role::Sidecar | Role::Main => c.run.is_running() && !c.started(),
            };
            // So is a postStart hook.
            let coming_up = pod.containers.iter().any(|c| c.run.is_running() && !c.up);
            let as_it_should =
                |c: &ContainerState| c.run.is_running() || !pod.wants_start(c) || coming_up;
            let settled = pod.stopping.is_none()
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
            let held = pod.hold.is_some();
            if held {
                let refused = story.state.settings.capacity == Some(NO_ROOM);
                let state = &story.state;
                let refused = refused || state.cordon.is_some();
                assert!(refused || state.shutdown.is_some(), "{pod:?}");
                assert!(story.wanted && !story.going, "{pod:?}");
            }
            assert!(
                held || settled || pod.in_flight.is_some() || again.wake_at.is_some(),
                "stuck: {pod:?}"
            );
        }
    }
}

/// Everything that can make a difference later.
fn fingerprint(story: &Story) -> u64 {
    let pods = story.state.pods.values().map(|p| {
        let retries = (p.create_retry, p.lost_retry, p.remove_retry);
        (
            p.sandbox,
            &p.containers,
            &p.in_flight,
            p.stopping,
            (p.images_changed, p.image_edited),
            (&p.spec.containers[0].image, p.spec.resources, &p.resizing),
            p.finishing,
            (p.waits_for_host_port, &p.verdict, &p.hold),
            retries,
        )
    });
    let text = format!(
        "{:?}{:?}",
        pods.collect::<Vec<_>>(),
        (
            story.now,
            (
                &story.state.shutdown,
                &story.state.cordon,
                &story.state.settings.capacity,
            ),
            story.wanted,
            story.going,
            &story.ran,
            (&story.probing, &story.hooking, story.kills),
        )
    );
    let mut hasher = std::hash::DefaultHasher::new();
    text.hash(&mut hasher);
    hasher.finish()
}

/// Nobody starts before the init containers before him are through, in this round.
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
            // Once it has come up it may end again.
            Role::Sidecar | Role::Main | Role::Ephemeral => earlier.current().is_some() || ran,
        };
        let beside =
            pod.containers[at].role == Role::Sidecar && pod.containers[at].current().is_some();
        assert!(
            through || beside,
            "{name} starts before {} is through",
            earlier.name
        );
    }
}

/// The run is, or was, to make room for one from another image.
fn replaced(pod: &PodState, c: &ContainerState) -> bool {
    let asked = c.asked.as_ref().unwrap();
    asked.again || c.is_outdated(pod.spec.container(&c.name).unwrap())
}

/// A probe failed for which the container is to be killed.
fn failed(c: &ContainerState) -> bool {
    let tracks = &c.tracks;
    tracks.liveness.result == Some(false) || tracks.startup.result == Some(false)
}

fn index(pod: &coracle::plan::PodState, instance: &Instance) -> usize {
    let found = pod
        .containers
        .iter()
        .position(|c| c.name == instance.container);
    found.unwrap()
}
