//! A whole node in memory, as it would really behave: shims, containers that crash, end or hang, images that appear,
//! volumes that fail, and an agent's disk that survives the agent. Executes actions like the node, with faults.

mod actions;
mod habit;
mod recover;
mod rng;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use coracle::plan::action::Keep;
use coracle::plan::event::*;
use coracle::plan::hold::Holds;
use coracle::plan::incarnation::Incarnations;
use coracle::plan::memory::PodMemory;
use coracle::plan::pressure::Walk;
use coracle::plan::recovered::*;
use coracle::plan::run::Ended;
use coracle::plan::stop::Stops;
use coracle::plan::{Action, Event, NodeFact, PodFact, RunFact};
use coracle::spec::{ContainerResources, Hook, HookKind, PodResources, PodSpec, PodUid, ProbeKind};
use coracle::types::usage::{DiskUsage, FileSystem, PodUsage, Space};
use coracle::types::{DeviceNode, DeviceSight, Effective, Exit, Stamp, StopSignal, Time};

use crate::pods::{at, exit, written};

use habit::{Habit, habit};
pub(crate) use rng::Rng;

/// The device that pods ask for.
pub(crate) const PORT: &str = "/dev/port";

/// A pod's files, and its shim if that is alive.
#[derive(Debug)]
pub(crate) struct Disk {
    pub(crate) spec: Arc<PodSpec>,
    pub(crate) shim: bool,
    pub(crate) lost_said: bool,
    pub(crate) generation: u64,
    pub(crate) removed: bool,
    /// What the agent wrote to disk.
    pub(crate) memory: PodMemory,
    /// What its cgroup holds, and what a sandbox being created gives it.
    pub(crate) figures: PodResources,
    pub(crate) coming: PodResources,
    pub(crate) records: BTreeMap<String, Record>,
    /// How containers ended in an earlier boot.
    pub(crate) former: BTreeMap<String, Ended>,
}

/// What is known of a container outside the agent.
#[derive(Debug, Default, Clone)]
pub(crate) struct Record {
    pub(crate) newest: Option<RecoveredRun>,
    pub(crate) previous: Option<Exit>,
    /// What its cgroup holds, and what a start in progress gives it.
    pub(crate) figures: ContainerResources,
    pub(crate) coming: ContainerResources,
    pub(crate) highest: Option<u32>,
    pub(crate) runs: u32,
    pub(crate) ends: Option<(u64, i32)>,
}

#[derive(Debug)]
pub(crate) struct World {
    pub(crate) now: u64,
    pub(crate) rng: Rng,
    /// Differs in each seed, so that any container may have any habit.
    habits: u64,
    pub(crate) faults: bool,
    pub(crate) disk: BTreeMap<PodUid, Disk>,
    pub(crate) image: bool,
    /// The file of the device that pods ask for, if it is plugged in.
    device: Option<u64>,
    /// When the newest report about it arrives: reports overtake none before them.
    last_report: u64,
    /// The shutdown in progress, as the agent recorded it.
    pub(crate) shutdown: Option<Shutdown>,
    /// What an observation of the node finds.
    pub(crate) usage: Observation,
    /// The cordon in force, as the agent recorded it.
    pub(crate) cordon: Option<Cordon>,
    /// What is stopped, as the agent recorded it.
    pub(crate) stops: Stops,
    /// What is known of pods that are gone, as the agent recorded it.
    incarnations: String,
    written: u64,
    /// Since when pods are held, as the agent recorded it.
    pub(crate) holds: Holds,
    /// What Jobs have achieved and how far rollouts are, as the agent recorded it.
    pub(crate) kept: (String, String),
    pub(crate) kept_changes: (u64, u64),
    /// Facts on their way to the agent.
    pub(crate) inbox: Vec<(u64, u64, Event)>,
    /// The hooks that shims continued when the last agent died: when each is done, and how.
    held: Vec<(u64, HookOrder, HookOutcome)>,
    /// Actions in progress: when each is done, and the sandbox's generation.
    pub(crate) running: Vec<(u64, u64, Action)>,
    pub(crate) order: u64,
}

impl World {
    pub(crate) fn new(seed: u64) -> Self {
        let mut rng = Rng(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
        for _ in 0..8 {
            rng.next();
        }
        Self {
            now: 1_000_000,
            faults: true,
            shutdown: None,
            usage: Observation::default(),
            cordon: None,
            stops: Stops::default(),
            incarnations: "[]".into(),
            written: 0,
            holds: Holds::new(),
            kept: ("[]".into(), "[]".into()),
            kept_changes: (0, 0),
            image: rng.chance(60),
            device: rng.chance(60).then_some(1),
            last_report: 0,
            habits: rng.next(),
            rng,
            disk: BTreeMap::new(),
            inbox: Vec::new(),
            held: Vec::new(),
            running: Vec::new(),
            order: 0,
        }
    }

    /// Unplugs the device, or plugs it in.
    pub(crate) fn replug(&mut self) {
        self.device = match self.device {
            // Too fast for the node to see that it was gone.
            Some(file) if self.rng.chance(20) => Some(file + 1),
            Some(_) => None,
            None => Some(self.now),
        };
    }

    /// Plugs the device in, for good.
    pub(crate) fn plug(&mut self) {
        self.device.get_or_insert(self.now);
    }

    /// What there is of the device.
    pub(crate) fn sight(&self) -> DeviceSight {
        let node = |inode| DeviceNode {
            path: PORT.to_owned(),
            block: false,
            major: 188,
            minor: u32::from(inode % 2 == 0),
            inode,
        };
        match self.device {
            Some(inode) => DeviceSight::There(vec![node(inode)]),
            None => DeviceSight::Missing("it is not there".to_owned()),
        }
    }

    /// Tells the agent what there is.
    pub(crate) fn report_device(&mut self, uid: PodUid, sight: DeviceSight) {
        let due = self.now + self.rng.delay();
        self.last_report = self.last_report.max(due);
        self.order += 1;
        let sights = [(PORT.to_owned(), sight)].into();
        let fact = PodFact::DevicesSeen { sights };
        let event = Event::Pod { uid, fact };
        self.inbox.push((self.last_report, self.order, event));
    }

    pub(crate) fn stamp(&self) -> Stamp {
        at(self.now)
    }

    pub(crate) fn say(&mut self, event: Event) {
        let due = self.now + self.rng.delay();
        self.order += 1;
        if self.faults && self.rng.chance(10) {
            let repeatable = matches!(
                event,
                Event::Run {
                    fact: RunFact::Exited { .. }
                        | RunFact::Started { .. }
                        | RunFact::SignalSent { .. },
                    ..
                }
            );
            if repeatable {
                let later = due + self.rng.below(30_000);
                self.inbox.push((later, self.order, event.clone()));
            }
        }
        self.inbox.push((due, self.order, event));
    }

    pub(crate) fn write_incarnations(&mut self, now: &Incarnations) {
        if now.changes() != self.written {
            self.written = now.changes();
            self.incarnations = serde_json::to_string(now).unwrap();
        }
    }

    pub(crate) fn incarnations(&mut self) -> Incarnations {
        let read: Incarnations = serde_json::from_str(&self.incarnations).unwrap();
        self.written = read.changes();
        read
    }

    /// How a pod's containers ended before the machine was switched on, if they ever ran.
    pub(crate) fn former(&mut self, spec: &PodSpec) -> BTreeMap<String, Ended> {
        let mut ends = BTreeMap::new();
        for container in spec.init_containers.iter().chain(&spec.containers) {
            if self.rng.chance(20) {
                let ended = Ended {
                    attempt: u32::try_from(self.rng.below(5)).unwrap(),
                    image_id: "sha256:1".into(),
                    exit: exit(i32::from(self.rng.chance(50)), at(0), at(0)),
                    on_request: false,
                };
                ends.insert(container.name.clone(), ended);
            }
        }
        ends
    }

    /// Whether a fault happens now.
    pub(crate) fn fault(&mut self, percent: u64) -> bool {
        self.faults && self.rng.chance(percent)
    }

    /// Carries out a probe: mostly with success, for some containers never.
    pub(crate) fn probe(&mut self, order: ProbeOrder) {
        let habit = habit(self.habits, &order.instance);
        let bad = match order.probe {
            ProbeKind::Liveness => !matches!(habit, Habit::Stays | Habit::EndsWell),
            ProbeKind::Startup => habit == Habit::StaysAndHangs,
            ProbeKind::Readiness => false,
        };
        let no = || "no".to_owned();
        let outcome = match self.rng.below(20) {
            0 if self.faults => ProbeOutcome::Error(no()),
            1 => ProbeOutcome::Failure(no()),
            2 => ProbeOutcome::Warning(no()),
            3.. if bad => ProbeOutcome::Failure(no()),
            _ => ProbeOutcome::Success,
        };
        let due = self.now + 1 + self.rng.delay().min(10_000);
        self.order += 1;
        let done = order.done(outcome);
        self.inbox.push((due, self.order, done));
    }

    /// Carries out a hook: mostly with success and soon, sometimes not, and for some containers it never ends.
    pub(crate) fn hook(&mut self, order: HookOrder) {
        if habit(self.habits, &order.instance) == Habit::StaysAndHangs
            && order.hook == HookKind::PreStop
        {
            return;
        }
        let failure = self.rng.chance(10).then(|| "no".to_owned());
        let mut due = self.now + 1 + self.rng.delay();
        self.order += 1;
        let mut outcome = HookOutcome {
            failure,
            fell_back: None,
            at: None,
        };
        if let Some(at) = self.held.iter().position(|(_, held, _)| *held == order) {
            (due, _, outcome) = self.held.swap_remove(at);
            due = due.max(self.now + 1);
        }
        let done = order.done(outcome);
        self.inbox.push((due, self.order, done));
    }

    /// Shims continue exec hooks that a dying agent waits for; its HTTP hooks are lost with it.
    fn hold_hooks(&mut self) {
        self.held.clear();
        for (due, _, event) in &self.inbox {
            let Event::Run {
                instance,
                fact: RunFact::HookDone { hook, outcome },
            } = event
            else {
                continue;
            };
            let Instance {
                pod,
                container,
                attempt,
            } = instance;
            let Some(disk) = self.disk.get(pod).filter(|disk| disk.shim) else {
                continue;
            };
            let spec = disk.spec.container(container);
            let wanted = spec.and_then(|c| c.lifecycle.hook(*hook));
            let newest = disk.records.get(container).and_then(|r| r.newest.as_ref());
            let runs = newest.is_some_and(|run| run.attempt == *attempt && run.exit.is_none());
            if runs && matches!(wanted, Some(Hook::Exec(_))) && self.rng.chance(80) {
                let at = Some(Time(*due));
                let outcome = HookOutcome {
                    at,
                    ..outcome.clone()
                };
                let order = HookOrder {
                    instance: instance.clone(),
                    hook: *hook,
                };
                self.held.push((*due, order, outcome));
            }
        }
    }

    /// The node has more or less of a resource, and its pods use more or less of it.
    pub(crate) fn change_usage(&mut self, enough: bool) {
        let mut space = || {
            let short = !enough && self.rng.chance(15);
            let available = if short { self.rng.below(200) } else { 500 };
            Space {
                available,
                capacity: 1_000,
            }
        };
        let node = &mut self.usage.node;
        node.memory = Some(space());
        node.pids = Some(space());
        node.nodefs = Some(FileSystem {
            bytes: space(),
            inodes: None,
        });
        self.usage.pods.clear();
        for uid in self.disk.keys() {
            let bytes = if enough { 0 } else { self.rng.below(120) };
            let usage = PodUsage {
                memory_bytes: Some(self.rng.below(1_000)),
                processes: Some(self.rng.below(100)),
                disk: true,
                volumes: [("v".to_owned(), DiskUsage { bytes, inodes: 1 })].into(),
                ..PodUsage::default()
            };
            self.usage.pods.insert(uid.clone(), usage);
        }
    }

    /// Carries out an order against shortages; the figures are those of now.
    pub(crate) fn relieve(&mut self, order: Order) {
        let mut found = self.usage.clone();
        let event = match order {
            Order::Look { pods, disk } => {
                for usage in found.pods.values_mut() {
                    usage.disk = disk != Walk::None;
                    usage.memory_bytes.take_if(|_| !pods);
                }
                found.walk_ms = self.rng.below(2_000);
                Event::Node(NodeFact::Observed(Box::new(found)))
            }
            Order::Reclaim { .. } | Order::CollectImages { .. } => Event::Node(NodeFact::Reclaimed),
        };
        let due = self.now + 1 + self.rng.delay().min(5_000);
        self.order += 1;
        self.inbox.push((due, self.order, event));
    }

    pub(crate) fn begin(&mut self, action: Action) {
        let due = self.now + self.rng.delay();
        let generation = self.disk.get(action.pod()).map_or(0, |d| d.generation);
        // The action applies the resources that the pod has now.
        if let Some(disk) = self.disk.get_mut(action.pod()) {
            disk.coming = disk.spec.resources;
            for spec in disk.spec.all_containers() {
                let record = disk.records.entry(spec.name.clone()).or_default();
                record.coming = spec.resources;
            }
        }
        self.running.push((due, generation, action));
    }

    /// When something next happens by itself.
    pub(crate) fn next_due(&self) -> Option<u64> {
        let inbox = self.inbox.iter().map(|e| e.0);
        let running = self.running.iter().map(|e| e.0);
        let ends = self.disk.values().filter(|d| d.shim).flat_map(|d| {
            d.records
                .values()
                .filter_map(|r| r.ends.map(|(when, _)| when))
        });
        inbox.chain(running).chain(ends).min()
    }

    /// Ends the containers whose time has come, and carries out the actions whose time has come.
    pub(crate) fn advance(&mut self) {
        let now = self.now;
        let mut ended = Vec::new();
        for (uid, disk) in self.disk.iter_mut().filter(|(_, d)| d.shim) {
            for (name, record) in &mut disk.records {
                if let (Some((when, code)), Some(run)) = (record.ends, &mut record.newest)
                    && when <= now
                {
                    record.ends = None;
                    let exit = exit(code, run.started, at(when));
                    run.exit = Some(exit.clone());
                    let instance = Instance {
                        pod: uid.clone(),
                        container: name.clone(),
                        attempt: run.attempt,
                    };
                    ended.push(Event::Run {
                        instance,
                        fact: RunFact::Exited { exit },
                    });
                }
            }
        }
        ended.into_iter().for_each(|e| self.say(e));
        while let Some(i) = self.running.iter().position(|(due, _, _)| *due <= now) {
            let (_, generation, action) = self.running.swap_remove(i);
            self.execute(generation, action);
        }
    }

    /// The next fact that the agent receives now.
    pub(crate) fn deliver(&mut self) -> Option<Event> {
        let due = |e: &&(u64, u64, Event)| e.0 <= self.now;
        let key = self.inbox.iter().filter(due).map(|e| (e.0, e.1)).min()?;
        let i = self.inbox.iter().position(|e| (e.0, e.1) == key)?;
        Some(self.inbox.swap_remove(i).2)
    }

    pub(crate) fn execute(&mut self, generation: u64, action: Action) {
        match action {
            Action::CreateSandbox { pod } => self.create(pod),
            Action::EnsureImage { pod, container } => {
                // It may arrive at any time, also when the pull is long over.
                if self.fault(5) {
                    let (uid, container) = (pod.clone(), container.clone());
                    let fact = PodFact::Pulling {
                        container,
                        image: "img:1".into(),
                        percent: 34,
                        total_bytes: 1000,
                    };
                    self.say(Event::Pod { uid, fact });
                }
                let event = if self.image && !self.fault(5) {
                    let image_id = "sha256:1".to_owned();
                    let unreachable = self.fault(5).then(|| {
                        let why = Pulled::Unreachable("no network".into());
                        ("img:1".to_owned(), why)
                    });
                    Event::Pod {
                        uid: pod,
                        fact: PodFact::ImageReady {
                            container,
                            image_id,
                            volumes: Default::default(),
                            pulled: unreachable.into_iter().collect(),
                        },
                    }
                } else {
                    let failure = match self.rng.below(5) {
                        0 => ImageFailure::NeverPull,
                        1 => ImageFailure::Pull,
                        2 => ImageFailure::Window {
                            opens_in_ms: self.rng.below(600_000),
                        },
                        3 => ImageFailure::Signature,
                        _ => ImageFailure::Inspect,
                    };
                    Event::Pod {
                        uid: pod,
                        fact: PodFact::ImageFailed {
                            container,
                            volume: None,
                            failure,
                            message: "no".into(),
                        },
                    }
                };
                self.say(event);
            }
            Action::Resize {
                pod,
                to,
                containers,
            } => self.resize(pod, to, containers),
            Action::StartContainer {
                instance, image_id, ..
            } => {
                self.start(generation, instance, image_id);
            }
            Action::Signal {
                instance, signal, ..
            } => self.signal(generation, instance, signal),
            Action::RemoveSandbox { pod, keep } => self.remove(pod, keep),
        }
    }

    /// Drops facts in transit about a sandbox's containers.
    fn forget(&mut self, pod: &PodUid) {
        self.inbox.retain(|(_, _, event)| match event {
            Event::Run {
                instance,
                fact:
                    RunFact::Exited { .. }
                    | RunFact::Started { .. }
                    | RunFact::StartFailed { .. }
                    | RunFact::SignalFailed { .. }
                    | RunFact::SignalSent { .. },
            } => instance.pod != *pod,
            Event::Pod {
                uid: lost,
                fact: PodFact::SandboxLost,
            } => lost != pod,
            _ => true,
        });
    }

    /// Reports a lost sandbox, once for each sandbox.
    fn say_lost(&mut self, pod: &PodUid) {
        let Some(disk) = self.disk.get_mut(pod) else {
            return;
        };
        if !std::mem::replace(&mut disk.lost_said, true) {
            // The agent does not watch a shim before its sandbox was reported.
            let created = |e: &&(u64, u64, Event)| matches!(&e.2, Event::Pod { uid: p, fact: PodFact::SandboxCreated { .. } } if p == pod);
            let announced = self.inbox.iter().find(created).map_or(self.now, |e| e.0);
            let due = announced + self.rng.delay();
            self.order += 1;
            let lost = Event::Pod {
                uid: pod.clone(),
                fact: PodFact::SandboxLost,
            };
            self.inbox.push((due, self.order, lost));
        }
    }

    /// An accident kills a shim.
    pub(crate) fn kill_a_shim(&mut self) {
        let alive: Vec<PodUid> = self
            .disk
            .iter()
            .filter(|(_, d)| d.shim)
            .map(|(u, _)| u.clone())
            .collect();
        if alive.is_empty() {
            return;
        }
        let i = usize::try_from(self.rng.below(alive.len() as u64)).unwrap();
        let disk = self.disk.get_mut(&alive[i]).unwrap();
        disk.shim = false;
        for record in disk.records.values_mut() {
            record.ends = None;
        }
        self.say_lost(&alive[i]);
    }

    pub(crate) fn uids(&self) -> BTreeSet<PodUid> {
        self.disk.keys().cloned().collect()
    }
}

/// The address of a pod, the same each time.
/// No other pod has the same: UIDs are hashes of 32 digits, or very short.
fn address(uid: &PodUid) -> std::net::IpAddr {
    let bytes = uid.as_str().bytes();
    let number = bytes.fold(1_u128, |sum, byte| sum.wrapping_mul(257) + u128::from(byte));
    std::net::Ipv6Addr::from(number).into()
}
