//! Who does it, and when? One loop: wait for a fact or the next deadline, record it, ask the planner, start what it
//! says, show the result. Policy is nowhere here.

mod alarm;
mod allocatable;
mod boot;
mod capacity;
mod cgroups;
mod checkpoint;
mod commands;
mod conflicts;
mod cordon;
mod execute;
mod exits;
mod facts;
mod figures;
mod garbage;
mod hooks;
mod incarnations;
mod journal;
mod logging;
mod manager;
mod manifests;
mod memory;
mod metrics;
mod network;
mod object;
mod pods;
mod preload;
mod pressure;
mod preview;
mod probes;
mod publish;
mod recover;
mod resolver;
mod settings;
mod shutdown;
mod sources;
mod standings;
mod start;
mod turns;
mod unblock;
mod watch;

use std::collections::{BTreeSet, HashMap};
use std::process::ExitCode;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::scheduling::v1::PriorityClass;
use smol::channel::{Receiver, Sender};

use crate::api::{Command, CommandError, FileStatus, ImageRow};
use crate::config::{ConfigError, Effective};
use crate::plan::decide::Step;
use crate::plan::event::Desired;
use crate::plan::verdict;
use crate::plan::{self, Action, Event, NodeState, Time, plan_pod};
use crate::spec::{PodKey, PodSpec, PodUid, Stamp, Wall};
use crate::sys::{clock, mount};

use unblock::{unblock, unblock_bridge, unblock_cleaning, unblock_for, unblock_of};

pub use capacity::OverReserved;
pub use start::{StartError, run};

/// What the loop waits for.
#[derive(Debug)]
enum Input {
    /// A fact.
    Event(Event),
    /// The manifest directory was read.
    Manifests {
        desired: Desired,
        /// The services among it, as they are shown.
        services: Vec<Service>,
        /// The priority classes, as they are shown.
        classes: Vec<PriorityClass>,
        files: Vec<FileStatus>,
        /// What each file asks for.
        in_effect: manifests::InEffect,
        /// Every file is in effect, so what no file asks for may be cleared away.
        complete: bool,
        /// What was read, and what is no longer kept, in bytes.
        freed_bytes: u64,
    },
    /// A client wants something.
    Command(Command),
    /// The image store was looked at for a client who wants to see the node.
    Looked {
        rows: Result<Vec<ImageRow>, CommandError>,
        reply: Sender<Result<(), CommandError>>,
    },
    /// logind says whether the machine is about to go down.
    Logind(bool),
    /// SIGPWR: the power fails.
    PowerFails,
    /// What could be cleared away is.
    Freed(pressure::Freed),
    /// The node's resolvers are others now.
    ResolverChanged,
    /// The settings were read again.
    Settings {
        read: Result<Box<(settings::Texts, Effective)>, ConfigError>,
        /// Somebody asked for it.
        told: bool,
    },
    /// SIGTERM or SIGINT.
    Terminate,
}

/// The agent.
#[derive(Debug)]
struct Node {
    state: NodeState,
    hands: execute::Hands,
    store: Arc<crate::api::Store>,
    journal: journal::Journal,
    /// When each pod wants to be looked at again.
    wakes: HashMap<PodUid, Time>,
    counters: metrics::Counters,
    probes: probes::Probes,
    hooks: hooks::Hooks,
    /// The names under which pods are shown.
    shown: HashMap<PodUid, PodKey>,
    /// Each pod as it was last written down, for the next agent.
    admitted: HashMap<PodUid, Arc<PodSpec>>,
    /// The last checkpoint written for each pod.
    checkpoints: HashMap<PodUid, checkpoint::Checkpoint>,
    /// The services that are wanted, as they are shown.
    services: Vec<Service>,
    /// What the files ask for.
    manifests: manifests::InEffect,
    /// Who is told of pods and services.
    views: network::Views,
    /// What of `NodeState::network_changes` he was told.
    network_changes: u64,
    /// What of `NodeState::hold_changes` was looked at.
    hold_changes: u64,
    /// Pods of which something was recorded since they were shown.
    changed: BTreeSet<PodUid>,
    /// The settings, and where they come from.
    sources: settings::Sources,
    /// Who started the agent and watches over it.
    manager: manager::Manager,
    /// What the node's object is made of.
    object: object::NodeObject,
    /// Processors' time as it was read last.
    samples: figures::Samples,
    /// What was written down for the next boot.
    exits: exits::Exits,
    /// Writes down what pods that are gone leave to the next ones.
    incarnations: incarnations::Writer,
    /// How far the node's shutdown is.
    shutdown: shutdown::Keeper,
    /// What the node does about its shortages.
    pressure: pressure::Keeper,
    /// Whether the node is cordoned.
    cordon: cordon::Keeper,
    /// How the classes of pods share what there is.
    classes: allocatable::Shared,
    /// Memory that is to be given back.
    freed: memory::Freed,
    /// Stop pods before ending.
    stop_pods_on_exit: bool,
    /// The agent is about to end, and waits for its pods to stop.
    leaving: bool,
    swept: bool,
}

impl Node {
    /// Runs until asked to end.
    async fn run(mut self, inputs: Receiver<Input>, mut alarm: alarm::Alarm) -> ExitCode {
        loop {
            let input = alarm.wait(&inputs, self.next_wake()).await;
            let mut touched = self.due();
            let mut next = input;
            while let Some(input) = next {
                if self.take(input, &mut touched) {
                    return ExitCode::SUCCESS;
                }
                next = inputs.try_recv().ok();
            }
            self.decide(touched);
            if self.freed.is_much() {
                self.give_back();
            }
            self.manager.turned(now().time);
            if self.leaving && self.state.pods.is_empty() {
                self.incarnations.flush();
                let network = self.hands.sandboxes.network.clone();
                if let Err(error) = unblock_bridge(move || network.dismantle()).await {
                    tracing::warn!("{}, leaving all the same", crate::chain(&error));
                }
                self.dismantle().await;
                return ExitCode::SUCCESS;
            }
        }
    }

    /// There is no pod any more, and the agent ends: nothing is left of what it has made for pods but files.
    async fn dismantle(&mut self) {
        if let Some(writing) = self.classes.writing.take() {
            writing.await;
        }
        let (cgroups, layout) = (
            self.hands.sandboxes.cgroups.clone(),
            self.hands.config.layout.clone(),
        );
        unblock(move || {
            cgroups.dismantle();
            for folder in [layout.pods_run_dir(), layout.netns_dir()] {
                if let Err(error) = mount::unmount_below(&folder) {
                    tracing::warn!(
                        "could not unmount `{}`: {error}, leaving all the same",
                        folder.display()
                    );
                }
            }
        })
        .await;
    }

    /// Whether pods end with the agent: by its settings, or because somebody asked for it since.
    fn stops_pods(&self) -> bool {
        self.stop_pods_on_exit || self.hands.config.layout.stop_pods().exists()
    }

    fn next_wake(&self) -> Option<Time> {
        let others = self.manager.due().into_iter().chain(self.turn_ends());
        let others = others.chain(self.pressure.next);
        self.wakes.values().copied().chain(others).min()
    }

    /// The pods that wanted to be looked at by now.
    fn due(&mut self) -> BTreeSet<PodUid> {
        let now = now().time;
        self.wakes
            .iter()
            .filter(|(_, at)| **at <= now)
            .map(|(uid, _)| uid.clone())
            .collect()
    }

    /// Records one input; `true` ends the agent.
    fn take(&mut self, input: Input, touched: &mut BTreeSet<PodUid>) -> bool {
        match input {
            Input::Event(event) => self.record(&event, touched),
            Input::Manifests {
                desired,
                services,
                classes,
                files,
                in_effect,
                complete,
                freed_bytes,
            } => {
                self.freed.note(freed_bytes);
                let broken = files.iter().filter(|file| !file.errors.is_empty());
                self.manager.rejected_files = broken.count();
                self.manifests = in_effect;
                self.store.set_files(files);
                self.store.set_priority_classes(&classes);
                self.services = services;
                if !self.leaving {
                    self.record(&Event::DesiredChanged(desired), touched);
                    if complete && !self.swept {
                        self.sweep();
                    }
                }
            }
            Input::Command(command) => self.command(command, touched),
            Input::Looked { rows, reply } => {
                // Without a list the former one is shown: the rest is of use, too.
                let listed = rows.map(|rows| self.object.set_images(rows));
                self.show_node();
                let _ = reply.try_send(listed);
            }
            Input::Logind(preparing) => self.logind_says(preparing, touched),
            Input::PowerFails => self.power_fails(touched),
            Input::Freed(freed) => self.freed(freed, touched),
            Input::ResolverChanged => self.resolver_changed(),
            Input::Settings { read, told } => self.settings_read(read, told, touched),
            Input::Terminate if self.leaving || !self.stops_pods() => {
                self.manager.stopping();
                self.keep_all_exits();
                self.incarnations.flush();
                return true;
            }
            Input::Terminate => {
                self.manager.stopping();
                tracing::info!("stopping all pods before leaving; once more to leave them running");
                self.leaving = true;
                self.record(&Event::DesiredChanged(Desired::default()), touched);
            }
        }
        false
    }

    fn record(&mut self, event: &Event, touched: &mut BTreeSet<PodUid>) {
        // Facts about all pods, and the end of one whose name another may wait for, may concern anybody.
        let anybody = event.pod().is_none() && !event.is_of_node();
        let anybody = anybody || matches!(event, Event::SandboxRemoved { .. });
        if anybody {
            touched.extend(self.state.pods.keys().cloned());
        }
        touched.extend(event.pod().cloned());
        let stamp = now();
        let counted = self.counters.count(event, &self.state, stamp.time);
        let before = self.health(event);
        for notice in self.state.apply(event, stamp) {
            publish::notice(&mut self.journal, &notice, stamp);
            let pod = self.state.pods.get(&notice.uid);
            let hold = pod.and_then(|pod| pod.hold.as_ref());
            if hold.is_some_and(|hold| hold.reason == notice.reason) {
                self.counters.rejected(&notice.reason);
            }
            let refusal = pod.and_then(|pod| pod.pending.as_ref()?.refusal.as_ref());
            if let Some(refusal) = refusal.filter(|refusal| notice.reason == refusal.event()) {
                self.counters.not_resized(refusal);
            }
        }
        self.counters.came_of(&counted, &self.state, stamp.time);
        self.note_shutdown();
        self.note_pressure(event);
        if matches!(event, Event::ImagesChanged) {
            self.freed.note(memory::LARGE);
            self.look_at_images();
        }
        self.note_cordon();
        if anybody {
            touched.extend(self.state.pods.keys().cloned());
            self.changed.extend(touched.iter().cloned());
        } else if before.is_none() || before != self.health(event) {
            self.changed.extend(event.pod().cloned());
        }
    }

    /// What a fact about a probe may change of what people see, or a new agent has to know; `None` if the fact is another.
    fn health(&self, event: &Event) -> Option<Vec<(bool, bool, bool)>> {
        let (Event::ProbeStarted(order) | Event::ProbeDone { order, .. }) = event else {
            return None;
        };
        let pod = self.state.pods.get(&order.instance.pod)?;
        Some(
            pod.containers
                .iter()
                .map(|c| (c.started, c.ready, c.kill.is_some()))
                .collect(),
        )
    }

    /// Asks the planner about the touched pods, starts what it says and shows the result.
    fn decide(&mut self, mut touched: BTreeSet<PodUid>) {
        self.take_turns(&mut touched);
        self.relieve(&mut touched);
        let mut anything = false;
        self.note_holds(&mut touched);
        while !touched.is_empty() {
            anything |= self.decide_each(std::mem::take(&mut touched));
            // What was recorded about one pod may have let in another.
            self.note_holds(&mut touched);
        }
        // Without the manifests nothing is known of services, which are served as a former agent left them.
        let known = self.state.desired.is_some();
        if known && self.network_changes != self.state.network_changes {
            self.network_changes = self.state.network_changes;
            let view = plan::network::view(&self.state, &self.hands.facts.now().ips);
            self.views.set(view, self.services.clone());
        }
        self.tell_of_drain();
        self.incarnations.keep(&self.state.incarnations);
        // An empty node has a status, too.
        self.manager.status(&self.state, self.leaving);
        if anything {
            self.share_among_classes();
        }
    }

    /// `/metrics`.
    fn metrics(&self) -> Vec<crate::api::Metric> {
        let mut all = self.counters.metrics(&self.state);
        all.extend(metrics::of_pods(&self.state));
        all.extend(metrics::of_node(&self.hands.facts.now().name));
        all.push(metrics::of_cgroups(self.hands.sandboxes.cgroups.mode()));
        all.push(metrics::of_rules(&self.hands.sandboxes.network));
        all.extend(self.shutdown.metrics());
        all
    }

    /// A fact about one pod may have let in any other, or changed why it waits.
    fn note_holds(&mut self, touched: &mut BTreeSet<PodUid>) {
        if self.hold_changes != self.state.hold_changes {
            self.hold_changes = self.state.hold_changes;
            touched.extend(self.state.pods.keys().cloned());
            self.changed.extend(touched.iter().cloned());
        }
    }

    /// Asks about each of these, the most urgent first; whether anything of them is shown in another way.
    fn decide_each(&mut self, touched: BTreeSet<PodUid>) -> bool {
        let mut anything = false;
        for uid in plan::urgent_first(&self.state, touched) {
            self.wakes.remove(&uid);
            self.write_edits(&uid);
            self.judge(&uid);
            self.pass_time(&uid);
            self.begin_hooks(&uid);
            let Some(pod) = self.state.pods.get(&uid) else {
                self.changed.remove(&uid);
                self.forget(&uid);
                anything = true;
                continue;
            };
            if self.state.desired.is_some() {
                let spec = pod.spec.clone();
                match plan_pod(pod, &self.state.settings, now().time) {
                    Step::Do(action) => {
                        let started = Event::ActionStarted(action.clone());
                        self.record(&started, &mut BTreeSet::new());
                        // Back-off has to be written down before the start it permits.
                        self.checkpoint(&uid);
                        if matches!(action, Action::CreateSandbox { .. }) {
                            self.admitted.insert(uid.clone(), spec.clone());
                        }
                        spawn(self.hands.clone().execute(action, spec));
                    }
                    Step::WakeAt(at) => self.wake(&uid, at),
                    Step::Rest => {}
                }
                self.probe(&uid);
            }
            self.keep_exits(&uid);
            // Most probes, and time alone, change nothing of what is shown.
            if self.changed.remove(&uid) {
                self.publish(&uid);
                self.clean(&uid);
                anything = true;
            }
        }
        anything
    }

    /// Records that a pod has been active for too long, or sees to it that the moment is not missed.
    fn judge(&mut self, uid: &PodUid) {
        let pod = self.state.pods.get(uid);
        match pod.and_then(|pod| verdict::due(pod, now().time)) {
            Some(verdict::Due::Now(event)) => self.record(&event, &mut BTreeSet::new()),
            Some(verdict::Due::At(at)) => self.wake(uid, at),
            None => {}
        }
    }

    /// Records that a sleep is over, or sees to it that its end is not missed.
    fn pass_time(&mut self, uid: &PodUid) {
        let ends = |node: &Self| plan::hook::sleep_ends(node.state.pods.get(uid)?);
        if ends(self).is_some_and(|at| at <= now().time) {
            let pod = uid.clone();
            self.record(&Event::TimePassed { pod }, &mut BTreeSet::new());
        }
        if let Some(at) = ends(self) {
            self.wake(uid, at);
        }
    }

    fn wake(&mut self, uid: &PodUid, at: Time) {
        let wake = self.wakes.entry(uid.clone()).or_insert(at);
        *wake = at.min(*wake);
    }

    /// Starts the probes of a pod that are due, and sees to it that the next ones are not missed.
    fn probe(&mut self, uid: &PodUid) {
        let Some(pod) = self.state.pods.get(uid) else {
            return;
        };
        let spec = pod.spec.clone();
        let due = plan::probe::due(pod, now().time);
        for order in due.orders {
            self.record(&Event::ProbeStarted(order.clone()), &mut BTreeSet::new());
            self.probes.start(order, spec.clone());
        }
        if let Some(at) = due.wake_at {
            self.wake(uid, at);
        }
    }

    /// Clears away what earlier runs left. To be called after every start and end of a run, which are all shown.
    fn clean(&self, uid: &PodUid) {
        if let Some(pod) = self.state.pods.get(uid) {
            let max_dead = self.hands.sandboxes.settings.now().max_dead_containers;
            let sandboxes = &self.hands.sandboxes;
            self.hands.cleaning.look_at(pod, max_dead, sandboxes);
        }
    }

    /// Begins the hooks of a pod that are due, and ends those of runs that are over.
    fn begin_hooks(&mut self, uid: &PodUid) {
        let Some(pod) = self.state.pods.get(uid) else {
            return;
        };
        self.hooks.keep(pod);
        if self.state.desired.is_none() {
            return;
        }
        let spec = pod.spec.clone();
        for order in plan::hook::due(pod, now().time) {
            self.record(&Event::HookStarted(order.clone()), &mut BTreeSet::new());
            // It is begun again by the next agent, within what then is left of the grace.
            self.checkpoint(uid);
            self.hooks.start(order, spec.clone());
        }
    }

    fn forget(&mut self, uid: &PodUid) {
        self.hands.cleaning.forget(uid);
        self.probes.forget(uid);
        self.exits.forget(uid);
        self.hooks.forget(uid);
        self.counters.forget(uid);
        self.checkpoints.remove(uid);
        self.admitted.remove(uid);
        self.freed.note(memory::SMALL);
        if let Some(key) = self.shown.remove(uid) {
            publish::pod_gone(&self.store, &key, uid);
        }
    }

    /// Gives memory back to the system, also that of tables which had many more entries.
    fn give_back(&mut self) {
        self.wakes.shrink_to_fit();
        self.shown.shrink_to_fit();
        self.admitted.shrink_to_fit();
        self.checkpoints.shrink_to_fit();
        self.store.compact();
        self.freed.give_back();
    }

    fn publish(&mut self, uid: &PodUid) {
        if let Some(pod) = self.state.pods.get(uid) {
            publish::pod(
                &self.store,
                pod,
                &self.hands.facts.now(),
                &self.state.settings,
            );
            self.shown.insert(uid.clone(), pod.spec.key.clone());
            self.checkpoint(uid);
        }
    }

    /// Writes down a pod that was edited since it was. While its sandbox is made somebody else does.
    fn write_edits(&mut self, uid: &PodUid) {
        let (Some(pod), Some(old)) = (self.state.pods.get(uid), self.admitted.get(uid)) else {
            return;
        };
        let making = matches!(pod.in_flight, Some(Action::CreateSandbox { .. }));
        if making || Arc::ptr_eq(old, &pod.spec) {
            return;
        }
        let new = pod.spec.clone();
        if old.manifest == new.manifest || recover::write_manifest(&self.hands.config.layout, &new)
        {
            self.admitted.insert(uid.clone(), new);
        }
    }

    fn checkpoint(&mut self, uid: &PodUid) {
        let Some(pod) = self.state.pods.get(uid) else {
            return;
        };
        let checkpoint = publish::checkpoint(pod);
        let path = self.hands.config.layout.pod_run(uid).checkpoint();
        if self.checkpoints.get(uid) != Some(&checkpoint) && checkpoint::write(&path, &checkpoint) {
            self.checkpoints.insert(uid.clone(), checkpoint);
        }
    }

    /// Once, when all manifests are known: removes what pods of earlier boots left that nobody asks for any more.
    fn sweep(&mut self) {
        self.swept = true;
        let layout = self.hands.config.layout.clone();
        let desired = self.state.desired.iter().flat_map(|d| d.pods.keys());
        let wanted: BTreeSet<PodUid> = desired.chain(self.state.pods.keys()).cloned().collect();
        spawn(unblock(move || {
            let left = recover::folder_names(&layout.pods_state_dir());
            for uid in left.into_iter().filter(|uid| !wanted.contains(uid)) {
                // The logs first: the state folder is what tells that there may be some.
                for folder in recover::log_folders(&layout, &uid)
                    .into_iter()
                    .chain([layout.pod_state(&uid).dir])
                {
                    if let Err(error) = crate::sys::tree::remove(&folder) {
                        tracing::warn!(
                            "could not remove `{}`: {error}, ignoring",
                            folder.display()
                        );
                    }
                }
            }
        }));
    }
}

/// Now, on both clocks.
fn now() -> Stamp {
    Stamp {
        time: Time(clock::boot_ms()),
        wall: Wall(clock::wall_us()),
    }
}

/// Runs a future beside the loop, on the same thread; its result can be awaited.
fn task<T: 'static>(future: impl Future<Output = T> + 'static) -> smol::Task<T> {
    start::EXECUTOR.with(|executor| executor.spawn(future))
}

/// Runs a future beside the loop, on the same thread.
fn spawn(future: impl Future<Output = ()> + 'static) {
    task(future).detach();
}
