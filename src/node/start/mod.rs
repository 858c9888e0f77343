//! How does the agent come up? Settings, directories, one lock, then everything the loop needs.

mod prepare;
mod signals;
mod watch;

use std::cell::Cell;
use std::fs::File;
use std::io;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::process::ExitCode;
use std::sync::Arc;

use nix::fcntl::Flock;
use smol::channel::{Receiver, Sender, bounded};
use smol::{Async, LocalExecutor};

pub(super) use watch::Readers;

use super::alarm::Alarm;
use super::allocatable::Enforced;
use super::black_box::BlackBox;
use super::bundles::{self, Bundles};
use super::capacity::{Machine, OverReserved, Shares};
use super::devices::Devices;
use super::execute::Tools;
use super::hooks::Hooks;
use super::journal::Journal;
use super::manager::Manager;
use super::network::{self, Views};
use super::object::NodeObject;
use super::outside::Watching;
use super::probes::Probes;
use super::publish::Shown;
use super::saved::Saved;
use super::settings::{self, Sources};
use super::shutdown::{self, Lock, NodeShutdown};
use super::state_file::{self, KeptJobs, StateFiles};
use super::{
    Input, Node, boot, exits, logging, preload, pressure, recover, resolver, state_format,
};
use crate::api;
use crate::config::{Config, ConfigError, Files, Flag};
use crate::effects::cgroup::CgroupError;
use crate::images::{ImageError, ImageStore};
use crate::plan::incarnation::Incarnations;
use crate::plan::recovered::Recovered;
use crate::plan::workload::revisions::Histories;
use crate::plan::workload::{Progress, Workloads};
use crate::plan::{Agenda, Event, NodeState};
use crate::spec::{PodSpec, Reason, WorkloadKey};
use crate::sys::{allocator, file, mount, notify};
use crate::types::black_box::Entry;

thread_local! {
    /// The one executor of the agent's one thread.
    pub(super) static EXECUTOR: &'static LocalExecutor<'static> = Box::leak(Box::new(LocalExecutor::new()));
}

/// The kubelet's message: there is swap, and the kernel keeps no tmpfs out of it, so secrets may get to a disk.
const SWAPPED: &str = "The tmpfs noswap option is not supported. Memory-backed volumes (e.g. secrets, emptyDirs, etc.) might be \
                       swapped to disk and should no longer be considered secure.";

/// Events waiting for the loop; senders wait when it is full. All its room is taken from the beginning.
const INPUT_QUEUE: usize = 128;

/// Why the agent did not come up.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The settings are not usable.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// `failSwapOn`, and there is some.
    #[error(
        "running with swap on is not supported, please disable swap or set --fail-swap-on flag to false"
    )]
    SwapIsOn,
    /// `failCgroupV1`, and it is.
    #[error(
        "the settings say not to run on a host using cgroup v1 (failCgroupV1), and this host uses it"
    )]
    CgroupV1,
    /// More of the node is kept from pods than there is.
    #[error(transparent)]
    OverReserved(#[from] OverReserved),
    /// Only root may make containers.
    #[error("coracle run has to be started as root")]
    NotRoot,
    /// Another agent holds the directories.
    #[error("another coracle agent is running on `{}`", run_dir.display())]
    AlreadyRunning {
        /// The runtime directory it holds.
        run_dir: PathBuf,
    },
    /// A directory could not be made or used.
    #[error("could not {action} `{}`", path.display())]
    Access {
        /// `make`, `lock`.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// The error.
        #[source]
        source: io::Error,
    },
    /// A newer version wrote the state.
    #[error(
        "the state in `{}` has format {format}, written by coracle {version}; this version knows format {}",
        path.display(), crate::layout::STATE_FORMAT
    )]
    NewerState {
        /// The file that says so.
        path: PathBuf,
        /// The format.
        format: u32,
        /// The version that wrote it.
        version: String,
        /// The directory of the state.
        folder: PathBuf,
    },
    /// cgroups are not usable.
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    /// The image store is not usable.
    #[error(transparent)]
    Images(#[from] ImageError),
    /// The API socket could not be opened.
    #[error(transparent)]
    Api(#[from] api::ServeError),
    /// Something of the operating system is missing.
    #[error("could not {action}")]
    System {
        /// `watch for signals`.
        action: &'static str,
        /// The error.
        #[source]
        source: io::Error,
    },
}

/// Runs the agent in the foreground until SIGTERM or SIGINT, with the settings of these files and flags.
pub fn run(files: Files, flags: Vec<Flag>) -> Result<ExitCode, StartError> {
    let started = start(files, flags)?;
    let executor = EXECUTOR.with(|executor| *executor);
    Ok(smol::block_on(executor.run(started.life)))
}

/// An agent that is ready to live.
struct Started {
    /// On the heap: on the stack, the room for each of its moves would be taken until its end.
    life: Pin<Box<dyn Future<Output = ExitCode>>>,
    /// No other agent has these directories.
    _lock: Flock<File>,
}

/// Makes everything that an agent needs. A function of its own, so that nothing of it is left on the stack.
#[inline(never)]
fn start(files: Files, flags: Vec<Flag>) -> Result<Started, StartError> {
    if !nix::unistd::geteuid().is_root() {
        return Err(StartError::NotRoot);
    }
    allocator::tune();
    logging::start();
    let sources = Sources::read(files, flags)?;
    let mut manager = Manager::of_this_service();
    let config = prepare::settle(&sources)?;
    let layout = &config.layout;
    prepare::make_dirs(layout)?;
    let lock = prepare::lock(layout)?;
    state_format::settle(layout)?;
    prepare::forget_former_boot(layout, &boot::id())?;
    let log_lock = file::try_lock_dir(&layout.log_dir).map_err(access("lock", &layout.log_dir))?;
    sources.remember();
    prepare::protect_secrets(layout)?;
    // What shims mount below it stays theirs.
    mount::make_private(&layout.pods_run_dir()).map_err(access("mount", &layout.pods_run_dir()))?;
    let machine = Machine::look(&layout.root);
    let settings = &sources.effective.settings;
    let cgroups = prepare::open_cgroups(&config, &machine, settings)?;
    let enforced = Enforced::begin(&cgroups, &machine, &config.reserved);
    let images = Arc::new(ImageStore::make(&layout.image_store())?);
    if let Err(error) = images.remove_leftovers() {
        tracing::warn!(
            "could not clear up after imports: {}, going on",
            crate::chain(&error)
        );
    }
    let boot = boot::begin(&layout.boot(), &config.node_name, &images);
    if let Err(error) = images.remove_imported_downloads() {
        tracing::warn!(
            "could not remove downloads of stored images: {}, ignoring",
            crate::chain(&error)
        );
    }
    bundles::remove_leftovers(&layout.manifest_bundles());
    let bundles = bundles::load(&layout.manifest_bundles(), &images);
    let mut object = NodeObject::new(machine.clone(), &config, boot.created);
    object.try_user_namespaces(layout);
    object.keep_conditions(layout.conditions());
    let shares = object.share_out(settings);
    shares.check()?;
    let listener = api::listen(&layout.api_socket())?;
    let (sender, inputs) = bounded(INPUT_QUEUE);
    let sandboxes = prepare::sandboxes(Arc::new(config), settings, cgroups)?;
    let tools = prepare::tools(sandboxes, images, &shares, sender);
    let hangup = signals::watch(&tools.inputs)?;
    let alarm = Alarm::new().map_err(system("set a timer"))?;
    let agent = Agent {
        kept: manager.kept(),
        manager,
        sources,
        tools,
        enforced,
        boot: Some(boot),
        log_lock,
        object,
        shares,
        bundles,
    };
    Ok(Started {
        life: Box::pin(agent.live(listener, hangup, (inputs, alarm))),
        _lock: lock,
    })
}

/// What an agent has before it looks for pods.
struct Agent {
    sources: Sources,
    tools: Tools,
    manager: Manager,
    /// What the service manager kept over the agent restart.
    kept: Option<notify::Kept>,
    enforced: Enforced,
    boot: Option<boot::Findings>,
    log_lock: Option<Flock<File>>,
    object: NodeObject,
    shares: Shares,
    bundles: bundles::All,
}

impl Agent {
    /// Takes over the pods there are, then runs until asked to end.
    async fn live(
        mut self,
        listener: Async<UnixListener>,
        hangup: Receiver<()>,
        (inputs, alarm): (Receiver<Input>, Alarm),
    ) -> ExitCode {
        let (tools, kept) = (self.tools.clone(), self.kept.take());
        let config = tools.config.clone();
        let store = Arc::new(api::Store::new());
        let found = self.boot.iter().flat_map(boot::Findings::entries).collect();
        let shown = self.show(&store);
        super::spawn(settings::watch(
            (self.sources.files.clone(), self.sources.flags.clone()),
            Some(self.sources.texts.clone()),
            hangup,
            tools.inputs.clone(),
        ));
        let settings = tools.sandboxes.settings.clone();
        let (lock, holding) = Lock::new(settings, tools.inputs.clone(), kept);
        let (levels, level) = bounded(4);
        let mut node = Box::new(self.node(shown, lock, levels, found));
        node.watch_thresholds();
        let running = node.take_over(recover::recover(&tools).await);
        node.resume_shutdown();
        node.resume_cordon();
        node.resume_stops();
        // Not before: a node that shuts down is not ready meanwhile.
        node.show_node();
        // Served only once the pods are known: a client must not be told that there are none.
        node.turn();
        serve(listener, &store, &config, tools.inputs.clone());
        node.manager.ready(super::now().time);
        tracing::info!(
            pods = running.len(),
            manifests = %config.manifests.display(),
            "coracle {} is up", env!("CARGO_PKG_VERSION")
        );
        super::spawn(network::keep(tools.clone()));
        super::spawn(shutdown::keep(holding));
        let cgroups = tools.sandboxes.cgroups.clone();
        super::spawn(pressure::listen(cgroups, level, tools.inputs.clone()));
        node.look_at_images();
        super::spawn(resolver::watch(config.clone(), tools.inputs.clone()));
        // Images before pods, so that a pod finds the import of its image under way.
        preload::watch(tools.clone());
        super::spawn(super::wall_clock::watch(tools.inputs.clone()));
        super::spawn(watch::watch(tools, running));
        let code = node.run(inputs, alarm).await;
        boot::end(&config.layout.boot());
        code
    }

    /// Shows the node, and opens its events with what was found at the start.
    fn show(&mut self, store: &Arc<api::Store>) -> Shown {
        let layout = &self.tools.config.layout;
        let facts = self.tools.facts.now();
        store.set_node(self.object.render(&facts, &self.sources.effective.settings));
        let journal = Journal::open(layout.events(), store.clone());
        let mut shown = Shown::new(store.clone(), journal, &facts.name);
        shown.node_event(Reason::Starting, "Starting coracle.");
        if let Some(boot) = self.boot.take() {
            boot.publish(&mut shown);
        }
        self.enforced.publish(&mut shown);
        if prepare::swap_is_on() && !mount::can_keep_from_swap(&layout.run_dir.join("noswap")) {
            let reason = Reason::PossibleMemoryBackedVolumesOnDisk;
            tracing::warn!("{reason}: {SWAPPED}");
            shown.node_event(reason, SWAPPED);
        }
        shown
    }

    /// The node before it knows of any pod.
    fn node(
        mut self,
        shown: Shown,
        lock: Lock,
        levels: Sender<Option<u64>>,
        found: Vec<Entry>,
    ) -> Node {
        let tools = self.tools;
        let settings = settings::for_plan(
            &self.sources.effective.settings,
            &self.shares,
            &tools.config,
        );
        let layout = &tools.config.layout;
        let incarnations: Incarnations = state_file::read(&layout.incarnations());
        let files = StateFiles::new(layout, &incarnations);
        let kept: KeptJobs = state_file::read(&layout.jobs());
        let revisions = state_file::read_revisions(&layout.revisions());
        let rollouts: Vec<(WorkloadKey, Progress)> = state_file::read(&layout.rollouts());
        let is_known = |key: &WorkloadKey| {
            let mut known = rollouts.iter().filter(|(known, _)| known == key);
            known.any(|(_, progress)| !progress.is_resumed())
        };
        let histories = Histories::recovered(revisions, boot::id()).resumed(is_known);
        tools.instead.set(0, histories.overrides());
        let rebooted = kept.boot_id != super::boot::id();
        let state = NodeState {
            workloads: Workloads::with_jobs(&kept.jobs, rebooted, super::now())
                .with_crons(&kept.crons)
                .with_rollouts(rollouts)
                .with_histories(histories),
            node: self.object.identity(),
            pressure: self.object.pressure(super::now()),
            incarnations,
            former_holds: state_file::read(&layout.holds()),
            ..NodeState::new(settings)
        };
        Node {
            agenda: Agenda::new(&state),
            state,
            tools: tools.clone(),
            views: Views::new(&tools, shown.store.clone()),
            shown,
            saved: Saved::new(layout, files),
            black_box: BlackBox::new(layout, found),
            counters: Default::default(),
            probes: Probes::new(tools.clone()),
            hooks: Hooks::new(tools.clone()),
            devices: Devices::new(&tools.config.cdi_dirs, tools.inputs.clone()),
            manager: self.manager,
            object: self.object,
            samples: Default::default(),
            shutdown: NodeShutdown::new(&layout.shutdown_state(), lock),
            pressure: pressure::NodePressure::new(levels),
            outside: Watching::new(tools.inputs.clone()),
            cordon: Default::default(),
            refreshing: None,
            stops: Default::default(),
            classes: Default::default(),
            freed: Default::default(),
            sources: self.sources,
            manifests: Default::default(),
            bundles: Bundles::new(self.bundles, &tools.config.bundle_poll),
            leaving: false,
            swept: false,
            documents: Vec::new(),
            workloads: super::workloads::Workloads::default(),
            readers: Vec::new(),
            ending_claims: Default::default(),
            claim_sizes: Vec::new(),
            settlements: Cell::new(0),
            settled: 0,
            log_lock: self.log_lock.take(),
        }
    }
}

impl Node {
    /// Records the pods that run already. Returns them as their files have them.
    fn take_over(&mut self, recovered: Vec<Recovered>) -> Vec<Arc<PodSpec>> {
        let mut running = Vec::new();
        for recovered in recovered {
            // What was added to it is the pod's, not its file's.
            let own = match recovered.spec.ephemeral_containers.is_empty() {
                true => recovered.spec.clone(),
                false => Arc::new(recovered.spec.without_ephemeral()),
            };
            running.push(own);
            self.saved.has(&recovered.spec);
            let former = exits::read(&self.tools.config.layout, &recovered.spec.uid, true);
            self.record(&Event::recovered(recovered));
            if let Some(event) = former {
                self.record(&event);
            }
        }
        running
    }
}

fn serve(
    listener: Async<UnixListener>,
    store: &Arc<api::Store>,
    config: &Arc<Config>,
    inputs: Sender<Input>,
) {
    let (commands, received) = bounded(16);
    let context = api::Context {
        store: store.clone(),
        commands,
        layout: config.layout.clone(),
        node_name: config.node_name.clone(),
    };
    super::spawn(async move {
        let Err(error) = api::serve(listener, context).await;
        tracing::error!("the API has ended: {}", crate::chain(&error));
    });
    super::spawn(async move {
        while let Ok(command) = received.recv().await {
            let _ = inputs.send(Input::Command(command)).await;
        }
    });
}

fn system(action: &'static str) -> impl FnOnce(io::Error) -> StartError {
    move |source| StartError::System { action, source }
}

fn access(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> StartError {
    let path = path.to_owned();
    move |source| StartError::Access {
        action,
        path,
        source,
    }
}
