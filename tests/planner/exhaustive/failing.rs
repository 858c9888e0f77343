//! The start limit of a container that fails in every possible way, one way after the other, again and again. Every
//! sequence of up to three ways is played for half an hour. An agent that dies forgets no back-off.

use std::collections::BTreeMap;
use std::sync::Arc;

use coracle::plan::event::{
    AskedBy, Eviction, EvictionReason, Group, HookOutcome, ProbeOutcome, StartFailure,
};
use coracle::plan::recovered::RecoveredSandbox;
use coracle::plan::{Action, Event, NodeFact, PodFact, PodState, RunFact, Step, Task, hook, probe};
use coracle::spec::{ExitCodes, Hook, HookKind, PodSpec, PodUid, RestartAction, RestartPolicy};
use coracle::types::Time;

use super::node::{Node, ready, reborn};
use super::pods::{self, desired};

/// A reason for a container to start again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// It exits with this code: 0 and 1 are up to the policy, for 42 a rule restarts the container, for 88 the whole pod.
    Exit(i32),
    /// It fails its liveness probe.
    Liveness,
    /// It fails its startup probe.
    Startup,
    /// Its `postStart` hook fails.
    PostStart,
    /// It cannot be created.
    Create,
    /// Its program cannot be executed.
    Execute,
    /// The init container before it fails.
    Init,
    /// The sidecar beside it ends.
    Sidecar,
    /// The pod's shim is killed.
    Shim,
    /// The agent is killed.
    Agent,
    /// The agent and the pod's shim are both killed.
    Both,
    /// The pod exceeds a limit and is evicted.
    Evicted,
    /// An operator shuts the node down, then cancels that.
    Shutdown,
    /// An operator edits the image.
    Image,
}

const WAYS: [Way; 17] = [
    Way::Exit(0),
    Way::Exit(1),
    Way::Exit(42),
    Way::Exit(88),
    Way::Liveness,
    Way::Startup,
    Way::PostStart,
    Way::Create,
    Way::Execute,
    Way::Init,
    Way::Sidecar,
    Way::Shim,
    Way::Agent,
    Way::Both,
    Way::Evicted,
    Way::Shutdown,
    Way::Image,
];

/// The operator waits at least this long between two acts.
const ACT_MS: u64 = 60_000;

struct Failing {
    node: Node,
    spec: Arc<PodSpec>,
    word: Vec<Way>,
    at: usize,
    /// When each container started.
    starts: BTreeMap<String, Vec<u64>>,
    /// When the operator acted.
    acts: Vec<u64>,
}

fn spec() -> Arc<PodSpec> {
    let spec = pods::pod("u1", "p", RestartPolicy::Always, &["c", "d"]);
    let mut spec = pods::with_inits(spec, &["i1", "s2"]);
    let c = pods::of(&mut spec, "c");
    c.restart_policy = Some(RestartPolicy::Always);
    c.restart_rules = vec![
        pods::rule(ExitCodes::In(vec![42]), RestartAction::Restart),
        pods::rule(ExitCodes::In(vec![88]), RestartAction::RestartAllContainers),
    ];
    c.lifecycle.post_start = Some(Hook::Exec(vec!["true".into()]));
    c.probes.liveness = Some(pods::probing(1_000, 1));
    c.probes.startup = Some(pods::probing(1_000, 1));
    Arc::new(spec)
}

impl Failing {
    fn pod(&self) -> &PodState {
        &self.node.state.pods[&PodUid::from("u1")]
    }

    fn runs(&self, name: &str) -> bool {
        let container = self.pod().container(name).unwrap();
        container.run.is_running() && container.kill().is_none()
    }

    fn way(&self) -> Way {
        self.word[self.at % self.word.len()]
    }

    fn tell(&mut self, event: Event) {
        self.node.tell(event);
    }

    fn reborn(&mut self, sandbox: RecoveredSandbox) {
        let mut spec = self.spec.clone();
        if let Some(pod) = self.node.state.pods.values().next() {
            spec = pod.spec.clone();
        }
        let sandbox = match self.pod().sandbox {
            coracle::plan::state::Sandbox::Ready { .. } => sandbox,
            coracle::plan::state::Sandbox::Removed => RecoveredSandbox::Removed,
            _ => RecoveredSandbox::Lost,
        };
        self.node = reborn(&self.node, &[&spec], sandbox);
    }

    /// Carries out the open action; it fails if that is the current way.
    fn answer(&mut self) {
        let Some(Action::StartContainer { instance, .. }) = self.node.open.first().cloned() else {
            if let Some(Action::Signal { instance, .. }) = self.node.open.first().cloned() {
                self.node.answer_one();
                if self.runs_at_all(&instance.container) {
                    self.node.end(&instance.container, 0);
                }
                return;
            }
            return self.node.answer_one();
        };
        let name = instance.container.clone();
        let now = self.node.now;
        self.starts.entry(name.clone()).or_default().push(now);
        let failure = match self.way() {
            Way::Create if name == "c" => StartFailure::Create,
            Way::Execute if name == "c" => StartFailure::Run,
            _ => {
                self.node.answer_one();
                if name == "i1" {
                    let fails = self.way() == Way::Init;
                    self.at += usize::from(fails);
                    self.node.end("i1", i32::from(fails));
                }
                return;
            }
        };
        self.at += 1;
        self.node.take();
        let message = "no".to_owned();
        self.tell(Event::Run {
            instance,
            fact: RunFact::StartFailed { failure, message },
        });
    }

    fn runs_at_all(&self, name: &str) -> bool {
        self.pod().container(name).unwrap().run.is_running()
    }

    /// Carries out hooks and the startup probe, which fail if that is the current way. Returns whether there were any.
    fn come_up(&mut self) -> bool {
        let now = Time(self.node.now);
        if let Step::Begin(Task::Hook(order)) = hook::next(self.pod(), now) {
            let fails = order.hook == HookKind::PostStart && self.way() == Way::PostStart;
            self.at += usize::from(fails);
            self.tell(order.clone().started());
            let outcome = HookOutcome {
                failure: fails.then(|| "no".to_owned()),
                fell_back: None,
                at: None,
            };
            self.tell(order.done(outcome));
            return true;
        }
        let c = self.pod().container("c").unwrap();
        let up = c.run.running().is_some_and(|run| run.up);
        if c.started() || !up || self.way() == Way::Startup {
            return false;
        }
        self.probe(&ProbeOutcome::Success)
    }

    fn probe(&mut self, outcome: &ProbeOutcome) -> bool {
        let mut any = false;
        while let Step::Begin(Task::Probe(order)) = probe::next(self.pod(), Time(self.node.now)) {
            any = true;
            self.tell(order.clone().started());
            let outcome = outcome.clone();
            self.tell(order.done(outcome));
        }
        any
    }

    fn fail_probes(&mut self) {
        while self.runs("c") {
            self.probe(&ProbeOutcome::Failure("no".into()));
            if self.runs("c") {
                self.node.wait(100);
            }
        }
    }

    /// All containers run: the pod fails in the next way.
    fn fail(&mut self) {
        let way = self.way();
        self.at += 1;
        let pod = self.pod().spec.uid.clone();
        match way {
            Way::Exit(code) => self.node.end("c", code),
            Way::Liveness | Way::Startup => self.fail_probes(),
            Way::Sidecar => self.node.end("s2", 1),
            // What fails while it starts has to start first.
            Way::PostStart | Way::Create | Way::Execute => {
                self.at -= 1;
                self.node.end("c", 1);
            }
            Way::Shim => self.tell(Event::Pod {
                uid: pod,
                fact: PodFact::SandboxLost,
            }),
            Way::Init => {
                self.at -= 1;
                self.tell(Event::Pod {
                    uid: pod,
                    fact: PodFact::SandboxLost,
                });
            }
            Way::Agent => {
                self.node.end("c", 1);
                self.reborn(ready());
            }
            Way::Both => self.reborn(RecoveredSandbox::Lost),
            Way::Evicted => {
                let eviction = Eviction {
                    reason: EvictionReason::PodLimit,
                    message: "too much".into(),
                    annotations: Default::default(),
                    grace_ms: 0,
                };
                self.tell(Event::Pod {
                    uid: pod,
                    fact: PodFact::Evicted { eviction },
                });
            }
            Way::Shutdown => {
                let groups = [(0, 20)].map(|(priority, seconds)| Group { priority, seconds });
                self.tell(Event::Node(NodeFact::ShutdownBegun {
                    groups: groups.to_vec(),
                    asked_by: AskedBy::Command,
                }));
                self.tell(Event::Node(NodeFact::ShutdownCancelled));
                self.acted();
            }
            Way::Image => {
                let mut spec = (*self.pod().spec).clone();
                let image = format!("img:{}", self.acts.len() + 2);
                pods::set_image(&mut spec, "c", &image);
                self.spec = Arc::new(spec);
                self.tell(Event::Node(NodeFact::DesiredChanged(desired(
                    &[&self.spec],
                ))));
                self.acted();
            }
        }
    }

    fn acted(&mut self) {
        self.acts.push(self.node.now);
    }

    /// Whether the operator acts next, but acted too recently.
    fn too_soon(&self) -> bool {
        let acts = matches!(self.way(), Way::Shutdown | Way::Image);
        let last = self.acts.last().copied();
        acts && last.is_some_and(|last| self.node.now < last + ACT_MS)
    }

    /// Waits until something is due.
    fn wait(&mut self) {
        let now = self.node.now;
        let wake = self.node.wake_at().unwrap_or(now + 1_000);
        self.node.wait(wake.max(now + 1) - now);
    }

    fn tell_for(&mut self, end: u64, run_ms: u64) {
        while self.node.now < end {
            let all = ["c", "d", "s2"];
            if !self.node.open.is_empty() {
                self.answer();
                continue;
            }
            if self.come_up() {
                continue;
            }
            if all.iter().all(|name| self.runs(name)) && !self.too_soon() {
                self.node.wait(run_ms);
                if all.iter().all(|name| self.runs(name)) {
                    self.fail();
                }
            } else {
                self.wait();
            }
        }
    }

    /// Checks the most starts of a container within ten minutes, not counting those that the operator asked for.
    fn check(&self) {
        for (name, starts) in &self.starts {
            for (at, begin) in starts.iter().enumerate() {
                let within = |time: &&u64| (*begin..begin + 600_000).contains(*time);
                let count = starts[at..].iter().filter(within).count();
                let acts = self.acts.iter().filter(within).count();
                assert!(
                    count <= 20 + 2 * acts,
                    "{:?}: {name} starts {count} times: {:?}",
                    self.word,
                    &starts[at..]
                );
            }
        }
        let fails = self.starts.values().any(|starts| starts.len() > 3);
        assert!(fails, "{:?}: {:?}", self.word, self.starts);
    }
}

fn fail(word: &[Way], run_ms: u64) {
    let spec = spec();
    let node = Node::with(&spec);
    let end = node.now + 1_800_000;
    let mut failing = Failing {
        node,
        spec,
        word: word.to_vec(),
        at: 0,
        starts: BTreeMap::new(),
        acts: Vec::new(),
    };
    failing.tell_for(end, run_ms);
    failing.check();
}

#[test]
fn nothing_starts_more_than_20_times_in_ten_minutes_of_failing() {
    for run_ms in [0, 5_000, 61_000] {
        for one in WAYS {
            fail(&[one], run_ms);
            for two in WAYS {
                fail(&[one, two], run_ms);
                for three in WAYS {
                    fail(&[one, two, three], run_ms);
                }
            }
        }
    }
}
