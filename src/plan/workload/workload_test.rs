//! Rollouts as tables, and over all small numbers.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::plan::event::{AskedBy, ConditionChange, Desired, Group};
use crate::plan::{
    Action, Event, NodeFact, NodeState, PodFact, RunFact, Step, Task, decide, shutdown,
};
use crate::spec::convert::{ConvertContext, documents};
use crate::spec::{Condition, ConditionStatus, PodUid, Workload, WorkloadKey};
use crate::types::{Effective, Exit, SortedMap, Stamp, Time, Wall};

#[path = "class_test.rs"]
mod class_test;
#[path = "cordon_test.rs"]
mod cordon_test;
#[path = "document_test.rs"]
mod document_test;
#[path = "random_test.rs"]
mod random_test;
#[path = "room_test.rs"]
mod room_test;
#[path = "scale_test.rs"]
mod scale_test;
#[path = "standing_test.rs"]
mod standing_test;
#[path = "stateful_set_test.rs"]
mod stateful_set_test;
#[path = "stop_test.rs"]
mod stop_test;

/// A node whose pods do as the test says.
pub(super) struct World {
    pub(super) state: NodeState,
    pub(super) now: Stamp,
    /// The events of documents.
    said: Vec<String>,
    /// When the file was written.
    written: Option<Wall>,
}

/// A document; the letter is its template.
pub(super) fn document(kind: &str, letter: char, replicas: usize, more: &str) -> String {
    let (name, replicas) = match kind {
        "DaemonSet" => ("web", String::new()),
        _ => ("web", format!("  replicas: {replicas}\n")),
    };
    format!(
        "apiVersion: apps/v1\nkind: {kind}\nmetadata: {{name: {name}}}\nspec:\n{replicas}{more}  selector: \
         {{matchLabels: {{app: web}}}}\n  template:\n    metadata: {{labels: {{app: web, letter: {letter}}}}}\n    spec:\n      \
         readinessGates: [{{conditionType: test/ready}}]\n      containers: [{{name: main, image: {letter}}}]\n"
    )
}

impl World {
    pub(super) fn new() -> Self {
        Self {
            state: NodeState::default(),
            now: Stamp {
                time: Time(1_000),
                wall: Wall(0),
            },
            said: Vec::new(),
            written: None,
        }
    }

    /// Another agent, which knows this of rollouts.
    pub(super) fn restart(&mut self, kept: Vec<(WorkloadKey, super::Progress)>) {
        let kept = serde_json::to_vec(&kept).unwrap();
        let kept = serde_json::from_slice(&kept).unwrap();
        self.state.workloads = super::Workloads::default().with_rollouts(kept);
        self.state.desired = None;
    }

    /// The events of documents since the last time.
    pub(super) fn said(&mut self) -> Vec<String> {
        std::mem::take(&mut self.said)
    }

    fn apply(&mut self, event: &Event) {
        let notices = self.state.apply(event, self.now);
        let of_documents = notices.iter().filter(|notice| notice.workload.is_some());
        let said = of_documents.map(|n| format!("{}: {}", n.reason, n.message));
        self.said.extend(said);
    }

    pub(super) fn read(&mut self, text: &str) {
        self.tell_desired(text, false);
    }

    /// There is no other file.
    pub(super) fn read_all(&mut self, text: &str) {
        self.tell_desired(text, true);
    }

    /// `metadata.generation` of the only document, and when it came.
    fn generation(&self) -> (u64, Option<Wall>) {
        let desired = self.state.desired.as_ref().expect("files were read");
        let key = desired.workloads.keys().next().expect("a document");
        let of = (
            super::status::generation(&self.state, key),
            super::status::since(&self.state, key),
        );
        assert_eq!(self.status()["observedGeneration"], of.0);
        of
    }

    fn tell_desired(&mut self, text: &str, complete: bool) {
        let found = documents(text.as_bytes(), "f", &ConvertContext::of("n")).unwrap();
        let pods = found.pods.into_iter();
        let workloads = found.workloads.iter().cloned();
        let desired = Desired {
            pods: pods.map(|p| (p.uid.clone(), Arc::new(p))).collect(),
            workloads: workloads
                .map(|w| Workload {
                    modified: self.written.unwrap_or_default(),
                    ..w
                })
                .map(|w| (w.key.clone(), Arc::new(w)))
                .collect::<SortedMap<_, _>>()
                .into(),
            complete,
            ..Desired::default()
        };
        self.tell(Event::Node(NodeFact::DesiredChanged(desired)));
    }

    pub(super) fn tell(&mut self, event: Event) {
        self.apply(&event);
        self.work();
    }

    /// Whatever the planner says, except that sandboxes are removed by [`World::gone`] only.
    fn work(&mut self) {
        for _ in 0..1_000 {
            let next = shutdown::next(&self.state, self.now.time);
            let next = next.or_else(|| super::next(&self.state, self.now.time));
            if let Step::Record(event) = next {
                self.apply(&event);
                continue;
            }
            let pods = self.state.pods.values();
            let steps = pods.map(|pod| decide::next(pod, &self.state.settings, self.now.time));
            let action = steps.filter_map(|step| match step {
                Step::Begin(Task::Act(Action::RemoveSandbox { .. })) => None,
                Step::Begin(Task::Act(action)) => Some(action),
                _ => None,
            });
            let Some(action) = action.into_iter().next() else {
                return;
            };
            self.act(action);
        }
        panic!("it never ends: {}", self.shown());
    }

    fn act(&mut self, action: Action) {
        self.apply(&Event::action_started(action.clone()));
        let outcome = match action {
            Action::CreateSandbox { pod } => Event::Pod {
                uid: pod,
                fact: PodFact::SandboxCreated {
                    ips: vec![],
                    next_attempts: Default::default(),
                    warnings: vec![],
                },
            },
            Action::EnsureImage { pod, container } => Event::Pod {
                fact: PodFact::ImageReady {
                    container,
                    image_id: format!("{}-id", self.letter(&pod)),
                    volumes: Default::default(),
                    pulled: Default::default(),
                },
                uid: pod,
            },
            Action::StartContainer { instance, .. } => Event::Run {
                instance,
                fact: RunFact::Started {
                    pid: 1,
                    at: self.now,
                    effective: Effective::default(),
                },
            },
            Action::Signal { instance, signal } => {
                let fact = RunFact::SignalSent {
                    signal,
                    at: self.now.time,
                };
                let sent = Event::Run {
                    instance: instance.clone(),
                    fact,
                };
                self.apply(&sent);
                Event::Run {
                    instance,
                    fact: RunFact::Exited {
                        exit: Exit {
                            code: 0,
                            signal: None,
                            oom_killed: false,
                            message: String::new(),
                            started: self.now,
                            finished: self.now,
                        },
                    },
                }
            }
            Action::RemoveSandbox { pod, .. } => Event::Pod {
                uid: pod,
                fact: PodFact::SandboxRemoved,
            },
            other => panic!("{other:?}"),
        };
        self.apply(&outcome);
    }

    pub(super) fn pass(&mut self, ms: u64) {
        self.now.time = self.now.time.plus(ms);
        self.work();
    }

    pub(super) fn uids(&self, letter: char) -> Vec<PodUid> {
        let of = |uid: &&PodUid| self.letter(uid) == letter;
        let mut all: Vec<PodUid> = self.state.pods.keys().filter(of).cloned().collect();
        all.sort_by_key(|uid| self.state.pods[uid].spec.key.clone());
        all
    }

    pub(super) fn letter(&self, uid: &PodUid) -> char {
        let letter = self.state.pods[uid].spec.manifest.label("letter");
        letter.unwrap().chars().next().unwrap()
    }

    /// Pods of this letter are ready, or not.
    pub(super) fn set_ready(&mut self, letter: char, yes: bool) {
        for uid in self.uids(letter) {
            self.set_pod_ready(&uid, yes);
        }
    }

    pub(super) fn set_pod_ready(&mut self, uid: &PodUid, yes: bool) {
        let status = match yes {
            true => ConditionStatus::True,
            false => ConditionStatus::False,
        };
        let condition = Condition {
            type_: "test/ready".to_owned(),
            status,
            reason: String::new(),
            message: String::new(),
        };
        let changes = vec![ConditionChange::Set(condition)];
        self.tell(Event::Pod {
            uid: uid.clone(),
            fact: PodFact::ConditionsSet { changes },
        });
    }

    /// The pods on their way out are gone.
    pub(super) fn gone(&mut self) {
        let stopping = self.state.pods.values().filter(|p| p.stopping().is_some());
        let stopping: Vec<PodUid> = stopping.map(|p| p.spec.uid.clone()).collect();
        for uid in stopping {
            self.remove(&uid);
        }
    }

    /// This pod, which is on its way out, is gone.
    fn remove(&mut self, uid: &PodUid) {
        let pod = &self.state.pods[uid];
        let Step::Begin(Task::Act(action)) = decide::next(pod, &self.state.settings, self.now.time)
        else {
            panic!("it does not go: {}", self.shown());
        };
        self.act(action);
        self.work();
    }

    /// The node shuts down, and nothing runs any more.
    pub(super) fn shut_down(&mut self) {
        let groups = vec![Group {
            priority: 0,
            seconds: 30,
        }];
        let asked_by = AskedBy::Command;
        self.tell(Event::Node(NodeFact::ShutdownBegun { groups, asked_by }));
        let down = self.state.pods.iter().filter(|(_, p)| p.verdict.is_some());
        for uid in down.map(|(uid, _)| uid.clone()).collect::<Vec<_>>() {
            self.remove(&uid);
        }
    }

    /// `a`: ready, `A`: not ready, `-`: on its way out, `?`: held; sorted, earlier templates first.
    pub(super) fn shown(&self) -> String {
        let mut shown: Vec<String> = (self.state.pods.iter())
            .map(|(uid, pod)| {
                let letter = self.letter(uid).to_string();
                match () {
                    () if pod.stopping().is_some() => format!("{letter}-"),
                    () if pod.hold().is_some() => format!("{letter}?"),
                    () if super::is_ready(pod) => letter,
                    () => letter.to_uppercase(),
                }
            })
            .collect();
        shown.sort_by_key(|text| (text.to_lowercase(), text.to_uppercase() == *text));
        shown.join(" ")
    }

    /// The pods that an agent restart leaves: held ones have no folder.
    pub(super) fn let_in(&self) -> std::collections::BTreeMap<PodUid, crate::plan::PodState> {
        let mut pods = self.state.pods.clone();
        pods.retain(|_, pod| pod.hold().is_none());
        pods
    }

    pub(super) fn live(&self) -> usize {
        let live = self.state.pods.values().filter(|p| p.stopping().is_none());
        live.count()
    }

    pub(super) fn ready(&self) -> usize {
        let ready = self.state.pods.values().filter(|p| super::is_ready(p));
        ready.count()
    }

    pub(super) fn status(&self) -> serde_json::Value {
        let desired = self.state.desired.as_ref().unwrap();
        let workload = desired.workloads.values().next().unwrap();
        let status = super::status::Status::of(&self.state, workload).unwrap();
        let generation = super::status::generation(&self.state, &workload.key);
        let note = super::status::note(&self.state, workload).map(|(_, note)| note);
        status.json(workload, generation, note.as_deref())
    }
}

pub(super) fn strategy(surge: &str, unavailable: &str) -> String {
    format!("  strategy: {{rollingUpdate: {{maxSurge: {surge}, maxUnavailable: {unavailable}}}}}\n")
}

#[test]
fn a_rolling_update_goes_as_far_as_its_numbers_allow() {
    for (replicas, surge, unavailable, steps) in [
        // In turns: a new pod becomes ready, and the old ones on their way out are gone.
        (1, "25%", "25%", &["a B", "a- b", "b"][..]),
        (2, "0", "1", &["a a-", "a B", "a- b", "b B", "b b"]),
        (
            3,
            "1",
            "0",
            &[
                "a a a B", "a a a- b", "a a b B", "a a- b b", "a b b B", "a- b b b", "b b b",
            ],
        ),
    ] {
        let mut world = World::new();
        let more = strategy(surge, unavailable);
        world.read(&document("Deployment", 'a', replicas, &more));
        world.set_ready('a', true);
        world.read(&document("Deployment", 'b', replicas, &more));
        let mut seen = vec![world.shown()];
        while seen.len() < 20 && world.shown() != vec!["b"; replicas].join(" ") {
            let all = world.uids('b');
            let waiting = all
                .iter()
                .find(|uid| !super::is_ready(&world.state.pods[*uid]));
            match waiting {
                Some(one) => world.set_pod_ready(&one.clone(), true),
                None => world.gone(),
            }
            seen.push(world.shown());
        }
        assert_eq!(seen, steps, "{replicas} {surge} {unavailable}");
    }
}

#[test]
fn every_small_rollout_keeps_its_numbers_and_ends() {
    for replicas in 0..5_usize {
        for surge in 0..3_usize {
            for unavailable in 0..3_usize {
                if surge + unavailable == 0 {
                    continue;
                }
                rollout(replicas, surge, unavailable);
            }
        }
    }
}

fn rollout(replicas: usize, surge: usize, unavailable: usize) {
    let more = strategy(&surge.to_string(), &unavailable.to_string());
    let mut world = World::new();
    world.read(&document("Deployment", 'a', replicas, &more));
    world.set_ready('a', true);
    world.read(&document("Deployment", 'b', replicas, &more));
    for _ in 0..50 {
        let what = format!("{replicas} {surge} {unavailable}: {}", world.shown());
        assert!(world.live() <= replicas + surge, "{what}");
        assert!(world.ready() + unavailable >= replicas, "{what}");
        let next = world.uids('b');
        let next = next
            .iter()
            .find(|uid| !super::is_ready(&world.state.pods[*uid]));
        match next.cloned() {
            Some(next) => world.set_pod_ready(&next, true),
            None => world.gone(),
        }
    }
    assert_eq!(world.shown(), vec!["b"; replicas].join(" "));
    assert_eq!(world.status()["updatedReplicas"], replicas);
}

#[test]
fn a_rollout_whose_pods_are_not_ready_stops_and_the_old_ones_go_on() {
    let mut world = World::new();
    let more = "  progressDeadlineSeconds: 60\n";
    world.read(&document("Deployment", 'a', 4, more));
    world.set_ready('a', true);
    world.read(&document("Deployment", 'b', 4, more));
    world.gone();
    assert_eq!(world.shown(), "a a a B B");
    world.pass(59_999);
    assert_eq!(
        world.status()["conditions"][1]["reason"],
        "ReplicaSetUpdated"
    );
    world.pass(1);
    let progressing = &world.status()["conditions"][1];
    assert_eq!(progressing["reason"], "ProgressDeadlineExceeded");
    assert_eq!(progressing["status"], "False");
    // A pod that is deleted comes back, and no other.
    let one = world.uids('b')[0].clone();
    let grace_ms = None;
    world.tell(Event::Pod {
        uid: one,
        fact: PodFact::DeleteRequested { grace_ms },
    });
    world.gone();
    assert_eq!(world.shown(), "a a a B B");
    // It goes on once they are.
    world.set_ready('b', true);
    world.gone();
    assert_eq!(world.shown(), "a b b B B");
    // A new template begins again.
    world.read(&document("Deployment", 'c', 4, more));
    assert_eq!(
        world.status()["conditions"][1]["reason"],
        "ReplicaSetUpdated"
    );
}

#[test]
fn pods_that_never_worked_do_not_hold_up_a_rollout() {
    let mut world = World::new();
    world.read(&document("Deployment", 'a', 2, ""));
    world.read(&document("Deployment", 'b', 2, ""));
    for _ in 0..4 {
        world.gone();
        world.set_ready('b', true);
    }
    assert_eq!(world.shown(), "b b");
}

#[test]
fn pods_are_available_once_they_were_ready_for_long_enough() {
    let mut world = World::new();
    let more = "  minReadySeconds: 10\n";
    world.read(&document("Deployment", 'a', 1, more));
    world.set_ready('a', true);
    world.pass(10_000);
    world.read(&document("Deployment", 'b', 1, more));
    world.set_ready('b', true);
    world.pass(9_000);
    assert_eq!(world.shown(), "a b");
    // A break begins the wait again.
    world.set_ready('b', false);
    world.pass(500);
    world.set_ready('b', true);
    world.pass(9_999);
    assert_eq!(world.shown(), "a b");
    world.pass(1);
    assert_eq!(world.shown(), "a- b");
}

#[test]
fn recreate_waits_for_the_end_of_all_old_pods() {
    let mut world = World::new();
    let more = "  strategy: {type: Recreate}\n";
    world.read(&document("Deployment", 'a', 2, more));
    world.set_ready('a', true);
    world.read(&document("Deployment", 'b', 2, more));
    assert_eq!(world.shown(), "a- a-");
    world.gone();
    assert_eq!(world.shown(), "B B");
}

#[test]
fn a_deleted_pod_comes_back_only_if_there_is_room() {
    let text = |letter, surge, unavailable| {
        let more = strategy(surge, unavailable);
        document("Deployment", letter, 3, &more)
    };
    let mut world = World::new();
    world.read(&text('a', "1", "0"));
    world.set_ready('a', true);
    world.read(&text('b', "1", "0"));
    world.set_ready('b', true);
    world.gone();
    assert_eq!(world.shown(), "a a b B");
    // One more than there may be from now on.
    world.read(&text('b', "0", "1"));
    assert_eq!(world.shown(), "a a- b B");
    let unready = |uid: &&PodUid| !super::is_ready(&world.state.pods[*uid]);
    let last = world.uids('b').iter().find(unready).cloned().unwrap();
    let fact = PodFact::DeleteRequested { grace_ms: None };
    let uid = last.clone();
    world.tell(Event::Pod { uid, fact });
    world.remove(&last);
    assert_eq!(world.shown(), "a a- b");
    world.gone();
    assert_eq!(world.shown(), "a b B");
}

#[test]
fn a_changed_number_adds_or_removes_pods_of_the_highest_numbers() {
    let names = |world: &World| -> Vec<String> {
        let live = world.state.pods.values().filter(|p| p.stopping().is_none());
        let names = live.map(|p| p.spec.key.name.clone());
        let mut names: Vec<String> = names
            .map(|n| n.rsplit('-').next().unwrap().to_owned())
            .collect();
        names.sort();
        names
    };
    let mut world = World::new();
    world.read(&document("Deployment", 'a', 2, ""));
    world.set_ready('a', true);
    world.read(&document("Deployment", 'a', 4, ""));
    assert_eq!(names(&world), ["0", "1", "2", "3"]);
    world.read(&document("Deployment", 'a', 1, ""));
    assert_eq!(names(&world), ["0"]);
    world.gone();
    world.read(&document("Deployment", 'a', 0, ""));
    world.gone();
    assert_eq!(world.shown(), "");
    world.read("");
    assert_eq!(world.shown(), "");
}
