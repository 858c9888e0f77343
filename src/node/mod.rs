//! The agent's event loop: wait for a fact or the next deadline, record it, ask the planner, start what it
//! says, show the result. Policy is nowhere here.

mod alarm;
mod allocatable;
mod black_box;
mod boot;
mod bundles;
mod capacity;
mod cgroups;
mod checkpoint;
mod claims;
mod commands;
mod configuration;
mod conflicts;
mod cordon;
mod devices;
mod ending_claims;
mod ensure_image;
mod execute;
mod exits;
mod facts;
mod figures;
mod garbage;
mod hooks;
mod host_paths;
mod image_users;
mod journal;
mod kept;
mod logging;
mod logins;
mod manager;
mod manifest_url;
mod manifests;
mod memory;
mod metrics;
mod network;
mod object;
mod outside;
mod pods;
mod preload;
mod pressure;
mod preview;
mod probes;
mod publish;
mod pulls;
mod recover;
mod resolver;
mod rollouts;
mod saved;
mod settings;
mod show;
mod shutdown;
mod slot;
mod sources;
mod standings;
mod start;
mod state_file;
mod state_format;
mod stop;
mod trust;
mod turns;
mod unblock;
mod user_namespaces;
mod waits;
mod wall_clock;
mod watch;
mod workloads;

use std::cell::Cell;
use std::collections::BTreeSet;
use std::fs::File;
use std::process::ExitCode;

use nix::fcntl::Flock;
use smol::channel::{Receiver, Sender};

use crate::api::{Command, CommandError, ImageRow, PlannedFile};
use crate::config::{ConfigError, Effective};
use crate::effects::volume::claim_size::Sized;
use crate::plan::event::{Desired, EvictionReason};
use crate::plan::{Action, Agenda, Event, NodeFact, NodeState, PodFact, Step, Task, pull};
use crate::spec::cluster::Refusal;
use crate::spec::encrypted::Opened;
use crate::spec::{Pins, PodUid};
use crate::sys::{clock, mount};
use crate::types::{Gather, Stamp, Time, Wall};

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
        documents: Box<manifests::Documents>,
        /// What was read, and what is no longer kept, in bytes.
        freed_bytes: u64,
    },
    /// What was in the manifest directory when these clients asked has been read.
    Read(Vec<commands::Reply<()>>),
    /// A client wants something.
    Command(Command),
    /// The image store was listed for a client that asks for the node.
    Looked {
        rows: Result<Vec<ImageRow>, CommandError>,
        reply: Sender<Result<(), CommandError>>,
    },
    /// The bundles on disk have changed.
    Bundles(bundles::All),
    /// The source of bundles was looked at.
    BundlePolled {
        /// For clients.
        status: serde_json::Value,
        event: Option<(crate::spec::Reason, String)>,
    },
    /// A client waits for the end of the trial of a bundle's generation.
    AwaitBundle {
        name: String,
        generation: u64,
        say: Sender<serde_json::Value>,
    },
    /// A bundle is to be applied: what would its manifests change?
    CheckBundle {
        name: String,
        images: Pins,
        files: Vec<PlannedFile>,
        reply: Sender<Result<serde_json::Value, CommandError>>,
    },
    /// The encrypted contents of manifests that a client wants a preview of were decrypted.
    Opened {
        bundle: Option<(String, Pins)>,
        files: Vec<PlannedFile>,
        opened: Opened,
        reply: Sender<Result<serde_json::Value, CommandError>>,
    },
    /// Services do not have what they ask for: what is new of that.
    ServicesRefused(Vec<Refusal>),
    /// What Jobs have achieved is on disk.
    JobsKept,
    /// Claims have the sizes that their documents ask for: the outcome of the settlement of this number.
    ClaimsSettled(u64, Vec<Sized>),
    /// Claims that were to end have ended.
    ClaimsEnded,
    /// logind says whether the machine is about to go down.
    Logind(bool),
    /// SIGPWR: the power fails.
    PowerFails,
    /// What could be cleared away is.
    Reclaimed(pressure::Reclaim),
    /// The node's resolvers have changed.
    ResolverChanged,
    /// The settings were read again.
    Settings {
        read: Result<Box<(settings::Texts, Effective)>, ConfigError>,
        /// A client or SIGHUP asked for it.
        requested: bool,
    },
    /// SIGTERM or SIGINT.
    Terminate,
}

/// The agent.
#[derive(Debug)]
struct Node {
    state: NodeState,
    tools: execute::Tools,
    /// What clients see.
    shown: publish::Shown,
    /// What an agent restart needs.
    saved: saved::Saved,
    /// What outlives the boot of what went wrong.
    black_box: black_box::BlackBox,
    /// What is to be planned, and what is to be shown.
    agenda: Agenda,
    counters: metrics::Counters,
    probes: probes::Probes,
    hooks: hooks::Hooks,
    /// The devices that pods ask for.
    devices: devices::Devices,
    /// What the files ask for.
    manifests: manifests::InEffect,
    /// The bundles, and how their trials go.
    bundles: bundles::Bundles,
    /// Tells the firewall and the name server about pods and services.
    views: network::Views,
    /// The settings, and where they come from.
    sources: settings::Sources,
    /// The service manager that started the agent and watches it.
    manager: manager::Manager,
    /// What the node's object is made of.
    object: object::NodeObject,
    /// Processors' time as it was read last.
    samples: figures::Samples,
    /// How far the node's shutdown is.
    shutdown: shutdown::NodeShutdown,
    /// What the node does about its shortages.
    pressure: pressure::NodePressure,
    /// Watches what pods start after outside coracle.
    outside: outside::Watching,
    /// Whether the node is cordoned.
    cordon: cordon::NodeCordon,
    /// What was stopped by command.
    stops: stop::KeptStops,
    /// The last write of volumes' files, which the next one waits for.
    refreshing: Option<smol::Task<()>>,
    /// How the classes of pods share what there is.
    classes: allocatable::Shared,
    /// Memory that is to be given back.
    freed: memory::Freed,
    /// The agent is about to end, and waits for its pods to stop.
    leaving: bool,
    swept: bool,
    /// The configuration documents in force, as they are shown.
    documents: Vec<claims::Shown>,
    /// The documents that stand for pods, as they are shown.
    workloads: workloads::Workloads,
    /// Clients that wait until what files say is shown.
    readers: Vec<commands::Reply<()>>,
    /// Claims that end with what they were made for.
    ending_claims: ending_claims::EndingClaims,
    /// The claims whose size is known.
    claim_sizes: Vec<Sized>,
    /// How many settlements of claims have begun, and the newest of those whose outcome is known.
    settlements: Cell<u64>,
    settled: u64,
    /// Held while the logs of unknown pods may be removed: no other agent uses this directory for logs.
    log_lock: Option<Flock<File>>,
}

impl Node {
    /// Runs until asked to end.
    async fn run(
        mut self: Box<Self>,
        inputs: Receiver<Input>,
        mut alarm: alarm::Alarm,
    ) -> ExitCode {
        loop {
            let mut next = alarm.wait(&inputs, self.next_wake()).await;
            while let Some(input) = next {
                if self.take(input) {
                    return ExitCode::SUCCESS;
                }
                next = inputs.try_recv().ok();
            }
            self.turn();
            if self.freed.is_much() {
                self.give_back();
            }
            self.manager.turned(now().time);
            if self.leaving && self.state.pods.is_empty() {
                self.flush_black_box();
                self.flush_files();
                let network = self.tools.sandboxes.network.clone();
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
            self.tools.sandboxes.cgroups.clone(),
            self.tools.config.layout.clone(),
        );
        unblock(move || {
            cgroups.dismantle();
            for folder in layout.mount_points() {
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

    /// Whether pods end with the agent: by its settings, or because the program is being uninstalled.
    fn stops_pods(&self) -> bool {
        self.tools.config.stop_pods_on_exit || self.tools.config.layout.stop_pods().exists()
    }

    fn next_wake(&self) -> Option<Time> {
        let planned = self.agenda.wake_at().into_iter();
        let others = self
            .manager
            .due()
            .into_iter()
            .chain(self.saved.exits.next())
            .chain(self.black_box.next())
            .chain(self.saved.files.next())
            .chain(self.bundles.next_wake());
        planned.chain(others).min()
    }

    /// Records one input; `true` ends the agent.
    fn take(&mut self, input: Input) -> bool {
        match input {
            Input::Event(event) => self.record(&event),
            Input::Manifests {
                documents,
                freed_bytes,
            } => {
                self.freed.note(freed_bytes);
                let documents = *documents;
                let files = documents.files;
                let broken = files.iter().filter(|file| !file.errors.is_empty());
                self.manager.rejected_files = broken.count();
                self.manifests = documents.in_effect;
                self.shown.store.set_files(files);
                self.shown.store.set_priority_classes(&documents.classes);
                self.documents = documents.shown;
                self.show_configuration();
                self.views.services = documents.services;
                if !self.leaving {
                    self.configure(documents.configuration);
                    if self.state.desired.is_none() {
                        self.claims_known();
                    }
                    self.note_claims();
                    self.record(&Event::Node(NodeFact::DesiredChanged(documents.desired)));
                    self.ending_claims.due.set(true);
                    if documents.complete {
                        self.forget_stray_stops();
                        if !self.swept && !self.state.workloads.histories.is_any_resumed() {
                            self.sweep();
                        }
                    }
                }
            }
            Input::Read(replies) => self.readers.extend(replies),
            Input::Command(command) => self.command(command),
            Input::Looked { rows, reply } => {
                // Without a list the former one is shown beside the rest.
                let names = rows.iter().flatten().flat_map(|row| &row.names);
                self.freed.note(names.map(|name| name.len() as u64).sum());
                let listed = rows.map(|rows| self.object.set_images(rows));
                self.show_node();
                let _ = reply.try_send(listed);
            }
            Input::Bundles(all) => self.bundles_are(all),
            Input::BundlePolled { status, event } => self.bundle_polled(status, event),
            Input::AwaitBundle {
                name,
                generation,
                say,
            } => self.await_bundle(name, generation, say),
            Input::CheckBundle {
                name,
                images,
                files,
                reply,
            } => self.preview_for(Some((name, images)), files, reply),
            Input::Opened {
                bundle,
                files,
                opened,
                reply,
            } => {
                let _ = reply.try_send(Ok(self.preview(bundle.as_ref(), &files, &opened)));
            }
            Input::ServicesRefused(news) => {
                news.iter().for_each(|refusal| self.shown.refusal(refusal));
            }
            Input::JobsKept => self.workloads.waits = false,
            Input::ClaimsSettled(number, sizes) => self.claims_settled(number, sizes),
            Input::ClaimsEnded => self.claims_ended(),
            Input::Logind(preparing) => self.logind_says(preparing),
            Input::PowerFails => self.power_fails(),
            Input::Reclaimed(reclaim) => self.reclaimed(reclaim),
            Input::ResolverChanged => self.resolver_changed(),
            Input::Settings { read, requested } => self.settings_read(read, requested),
            Input::Terminate if self.leaving || !self.stops_pods() => {
                self.manager.stopping();
                self.keep_all_exits();
                self.flush_black_box();
                self.flush_files();
                return true;
            }
            Input::Terminate => {
                self.manager.stopping();
                tracing::info!("stopping all pods before leaving; once more to leave them running");
                self.leaving = true;
                let nothing = Desired {
                    leaving: true,
                    ..Desired::default()
                };
                self.record(&Event::Node(NodeFact::DesiredChanged(nothing)));
            }
        }
        false
    }

    fn record(&mut self, event: &Event) {
        let stamp = now();
        let counted = self.counters.count(event, &self.state, stamp.time);
        for notice in self.agenda.record(&mut self.state, event, stamp) {
            self.shown.notice(&notice, stamp);
            self.note_eviction(&notice);
            let pod = self.state.pods.get(&notice.uid);
            let hold = pod.and_then(|pod| pod.hold());
            if hold.is_some_and(|hold| hold.reason == notice.reason) {
                self.counters.rejected(notice.reason);
            }
            let refusal = pod.and_then(|pod| pod.pending.as_ref()?.refusal.as_ref());
            if let Some(refusal) = refusal.filter(|refusal| notice.reason == refusal.event()) {
                self.counters.not_resized(refusal);
            }
        }
        self.counters.came_of(&counted, &self.state, stamp.time);
        if let Event::Pod {
            uid,
            fact: PodFact::SandboxCreated { .. },
        } = event
            && let Some(pod) = self.state.pods.get(uid)
        {
            self.claims_may_be_bound(pod);
        }
        let pods = &self.state.pods;
        let wanted = |uid: &PodUid| pods.get(uid).is_some_and(pull::is_wanted);
        self.tools.pulls.cancel(wanted);
        self.note_shutdown();
        self.note_pressure(event);
        if matches!(event, Event::Node(NodeFact::ImagesChanged(_))) {
            self.freed.note(memory::LARGE);
            self.look_at_images();
        }
        self.note_cordon();
        self.note_stops();
    }

    /// Does what follows from what was recorded, and shows the result.
    fn turn(&mut self) {
        loop {
            match self.agenda.next(&self.state, now().time) {
                Step::Record(event) => self.record_step(&event),
                Step::Begin(task) => self.begin(task),
                Step::WakeAt(_) | Step::Rest => {
                    match self.outside.look_for(self.state.wanted_outside()) {
                        Some(seen) => self.record(&seen),
                        None => break,
                    }
                }
            }
        }
        self.judge_trials();
        self.show_changed();
        if !self.workloads.waits {
            for reply in self.readers.drain(..) {
                let _ = reply.try_send(Ok(()));
            }
        }
        self.keep_late_exits();
        self.write_black_box();
    }

    /// Records what the planner says, after what has to be done before it.
    fn record_step(&mut self, event: &Event) {
        if let Event::Pod {
            fact: PodFact::Evicted { eviction, .. },
            ..
        } = event
            && let EvictionReason::Shortage(signal) = eviction.reason
        {
            self.report_reclaim(signal);
        }
        if let Event::Pod {
            uid: pod,
            fact: PodFact::Restored,
        } = event
        {
            self.forget_finished(pod);
        }
        self.record(event);
    }

    /// Begins a task, after what it is based on is written down.
    fn begin(&mut self, task: Task) {
        self.record(&task.begun());
        let pod = match &task {
            Task::Act(action) => Some(action.pod()),
            Task::Hook(order) => Some(&order.instance.pod),
            Task::Probe(order) => Some(&order.instance.pod),
            Task::Relieve(_) => None,
        };
        let spec = pod.and_then(|pod| self.state.pods.get(pod));
        let spec = spec.map(|pod| pod.spec.clone());
        match (task, spec) {
            (Task::Act(action), Some(spec)) => {
                self.write_edits(action.pod());
                self.checkpoint(action.pod());
                if matches!(action, Action::CreateSandbox { .. }) {
                    self.saved.has(&spec);
                }
                let (tools, kept) = (self.tools.clone(), self.before_removal(&action, &spec));
                spawn(async move {
                    if let Some(kept) = kept {
                        kept.await;
                    }
                    tools.execute(action, spec).await;
                });
            }
            (Task::Hook(order), Some(spec)) => {
                self.checkpoint(&order.instance.pod);
                self.hooks.start(order, spec);
            }
            (Task::Probe(order), Some(spec)) => self.probes.start(order, spec),
            (Task::Relieve(order), _) => self.relieve(order),
            (Task::Act(_) | Task::Hook(_) | Task::Probe(_), None) => {}
        }
    }

    /// Once, when all manifests are known: removes what pods of earlier boots left and no manifest asks for.
    fn sweep(&mut self) {
        self.swept = true;
        let layout = self.tools.config.layout.clone();
        let desired = self.state.desired.iter().flat_map(|d| d.pods.keys());
        // A pod that comes after others of its document finds its volumes, too.
        let asked = self.state.asked_pods();
        let wanted = desired.chain(self.state.pods.keys()).cloned();
        let wanted: BTreeSet<PodUid> = wanted.chain(asked).gather();
        // Now, as pods that come later may have folders of the same names.
        let left = recover::left_over(&layout, &wanted, self.log_lock.is_some());
        spawn(unblock(move || recover::sweep(&layout, &left)));
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
