//! How does the agent come up? Settings, directories, one lock, then everything the loop needs.

mod flags;

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::fcntl::Flock;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use smol::channel::{Sender, bounded};
use smol::io::AsyncReadExt;
use smol::{Async, LocalExecutor};

use super::alarm::Alarm;
use super::allocatable::Enforced;
use super::capacity::{Machine, OverReserved, share_out};
use super::execute::Hands;
use super::facts::{self, Facts};
use super::hooks::Hooks;
use super::incarnations::{self, Writer};
use super::journal::Journal;
use super::manager::Manager;
use super::manifests::Manifests;
use super::network::{self, NameServer, Progress, Views};
use super::object::NodeObject;
use super::pods::Links;
use super::probes::Probes;
use super::settings::{self, Sources};
use super::shutdown::{self, Keeper, Lock};
use super::watch::Watch;
use super::{
    Input, Node, boot, exits, logging, preload, pressure, publish, recover, resolver, sources,
};
use crate::api;
use crate::cli::args::RunArgs;
use crate::config::{Config, ConfigError, Current, Files, node_name_of_host};
use crate::effects::cgroup::{
    CgroupError, Cgroups, LimitSettings, MemoryProtection, Mode, SwapSettings,
};
use crate::effects::image::{ImageError, ImageStore};
use crate::effects::network::names::{Names, Reach};
use crate::effects::network::{Network, NetworkSettings};
use crate::effects::sandbox::Sandboxes;
use crate::layout::Layout;
use crate::plan::{Event, NodeState};
use crate::spec::{PodSpec, PodUid};
use crate::sys::{clock, file, mount, own_binary, process};

thread_local! {
    /// The one executor of the agent's one thread.
    pub(super) static EXECUTOR: &'static LocalExecutor<'static> = Box::leak(Box::new(LocalExecutor::new()));
}

/// Events waiting for the loop; senders wait when it is full.
const INPUT_QUEUE: usize = 1024;

/// A program that a killed agent was about to start holds the agent's lock until it is executed: not for long, but an
/// agent started at once would find it.
const LOCK_PATIENCE: Duration = Duration::from_secs(1);

/// Why the agent did not come up.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The settings are not usable.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A flag's value is not usable.
    #[error("{flag}: {problem}")]
    Flag {
        /// `--pod-cidr`.
        flag: &'static str,
        /// What is wrong with it.
        problem: String,
    },
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
        /// Why.
        #[source]
        source: io::Error,
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
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// Runs the agent in the foreground until SIGTERM or SIGINT.
pub fn run(args: RunArgs) -> Result<ExitCode, StartError> {
    if !nix::unistd::geteuid().is_root() {
        return Err(StartError::NotRoot);
    }
    process::tune_allocator();
    logging::start();
    let files = Files::new(args.config.clone(), args.config_dir.clone());
    let sources = Sources::read(files, flags::given(args)?)?;
    let mut config = sources.effective.config.clone();
    if config.node_name.is_empty() {
        config.node_name = name_of_host();
    }
    let mut manager = Manager::of_this_service();
    if sources.stale {
        // What is wrong with them is told when they are read again, which is at once.
        tracing::error!("the settings are of no use, starting with those that were in force last");
    }
    if let Some(warning) = &sources.effective.warning {
        tracing::warn!("{warning}");
    }
    if let Err(error) = process::set_oom_score_adj(config.own_oom_score_adj) {
        tracing::warn!(
            "could not set the agent's own oom_score_adj to {}: {error}; the kernel may kill it when memory runs out, \
             going on",
            config.own_oom_score_adj
        );
    }
    if config.fail_swap_on && swap_is_on() {
        return Err(StartError::SwapIsOn);
    }
    let layout = &config.layout;
    for (path, mode) in [
        (&layout.root, 0o711),
        (&layout.run_dir, 0o711),
        (&layout.pods_run_dir(), 0o700),
        (&layout.pods_state_dir(), 0o700),
        (&layout.log_dir, 0o755),
    ] {
        file::make_dirs(path, mode).map_err(access("make", path))?;
    }
    let _lock = lock(layout)?;
    sources.remember();
    // What shims mount below it stays theirs.
    mount::make_private(&layout.pods_run_dir()).map_err(access("mount", &layout.pods_run_dir()))?;
    let machine = Machine::look(&layout.root);
    let allocatable =
        share_out(&machine, &config.reserved, &sources.effective.settings).allocatable;
    let limits = LimitSettings {
        pod_pids: config.pod_pids_limit,
        quota_period_us: config.cpu_cfs_quota_period_us,
        quota: config.cpu_cfs_quota,
        swap: SwapSettings {
            behavior: config.swap,
            memory_bytes: facts::memory_info("MemTotal"),
            swap_bytes: facts::memory_info("SwapTotal"),
        },
        memory: config.memory_qos.map(|qos| MemoryProtection {
            throttling_factor: qos.throttling_factor,
            tiered: qos.tiered_reservation,
            allocatable_bytes: allocatable.get("memory").copied().unwrap_or(0),
            page_bytes: procfs::page_size(),
        }),
        oom_group: !config.single_process_oom_kill.unwrap_or(false),
    };
    let cgroups = Arc::new(Cgroups::open(config.cgroup_parent.as_deref(), limits)?);
    if let Some(why) = cgroups.devices_open() {
        tracing::warn!(
            "the kernel takes no device rules for cgroups: {why}; containers with CAP_MKNOD can open all devices"
        );
    }
    if config.fail_cgroup_v1 && cgroups.mode() == Mode::V1 {
        return Err(StartError::CgroupV1);
    }
    let enforced = Enforced::begin(&cgroups, &machine, &config.reserved);
    let images = Arc::new(ImageStore::open(&layout.image_store())?);
    let boot = boot::begin(&layout.boot(), &config.node_name, &images);
    let mut object = NodeObject::new(machine.clone(), &config, boot.created);
    object.keep_conditions(layout.conditions());
    let shares = object.share_out(&sources.effective.settings);
    shares.check()?;
    let identity = object.identity();
    let listener = api::listen(&layout.api_socket())?;
    let config = Arc::new(config);
    let (sender, inputs) = bounded(INPUT_QUEUE);
    let hands = Hands {
        sandboxes: Sandboxes {
            config: config.clone(),
            settings: Current::new(sources.effective.settings.clone()),
            cgroups,
            network: Network::new(NetworkSettings {
                layout: config.layout.clone(),
                bridge: config.bridge.clone(),
                pod_cidrs: config.pod_cidrs.clone(),
                service_cidrs: config.service_cidrs.clone(),
            }),
            binary: Arc::new(
                own_binary::read_only().map_err(|source| StartError::System {
                    action: "make a read-only view of the own binary",
                    source,
                })?,
            ),
        },
        images,
        importing: Arc::default(),
        links: Links::default(),
        cleaning: Default::default(),
        turns: Default::default(),
        facts: Facts::gather(&config.node_name, &machine),
        progress: Progress::default(),
        name_server: NameServer::new(Names::new(
            &config.cluster_domain,
            config.resolv_conf.clone(),
            Reach::default(),
        )),
        inputs: sender.clone(),
        config: config.clone(),
    };
    let (hangups, hangup) = bounded(1);
    watch_signals(&[SIGTERM, SIGINT], {
        let inputs = sender.clone();
        async move || inputs.send(Input::Terminate).await.is_ok()
    })?;
    // One that waits to be taken stands for those that come meanwhile.
    watch_signals(&[SIGHUP], async move || {
        let _ = hangups.try_send(());
        !hangups.is_closed()
    })?;
    watch_signals(&[libc::SIGPWR], {
        let inputs = sender.clone();
        async move || inputs.send(Input::PowerFails).await.is_ok()
    })?;
    let alarm = Alarm::new().map_err(|source| StartError::System {
        action: "set a timer",
        source,
    })?;
    let kept = manager.kept();
    let executor = EXECUTOR.with(|executor| *executor);
    Ok(smol::block_on(executor.run(async move {
        let store = Arc::new(api::Store::new());
        let facts = hands.facts.now();
        let first = sources.effective.settings.clone();
        store.set_node(object.render(&facts, &first));
        let mut journal = Journal::open(config.layout.events(), store.clone());
        publish::node_started(&mut journal, &facts.name);
        boot.publish(&mut journal, &facts.name);
        enforced.publish(&mut journal, &facts.name);
        if swap_is_on() && !mount::can_keep_from_swap(&config.layout.run_dir.join("noswap")) {
            publish::memory_volumes_may_be_swapped(&mut journal, &facts.name);
        }
        let settings = settings::for_plan(&first, &shares, &config);
        super::spawn(settings::watch(
            (sources.files.clone(), sources.flags.clone()),
            Some(sources.texts.clone()),
            hangup,
            sender.clone(),
        ));
        let (lock, holding) = Lock::new(hands.sandboxes.settings.clone(), sender.clone(), kept);
        let shutdown_state = config.layout.shutdown_state();
        let (levels, level) = bounded(4);
        let incarnations = incarnations::read(&config.layout.incarnations());
        let writer = Writer::new(config.layout.incarnations(), &incarnations);
        let mut node = Node {
            state: NodeState {
                node: identity,
                incarnations,
                ..NodeState::new(settings)
            },
            hands: hands.clone(),
            store: store.clone(),
            journal,
            views: Views::new(&hands, store.clone()),
            wakes: Default::default(),
            counters: Default::default(),
            probes: Probes::new(hands.clone()),
            hooks: Hooks::new(hands.clone()),
            shown: Default::default(),
            changed: Default::default(),
            admitted: Default::default(),
            checkpoints: Default::default(),
            manager,
            object,
            samples: Default::default(),
            exits: Default::default(),
            incarnations: writer,
            shutdown: Keeper::new(&shutdown_state, lock),
            pressure: pressure::Keeper::new(levels),
            cordon: Default::default(),
            classes: Default::default(),
            freed: Default::default(),
            stop_pods_on_exit: config.stop_pods_on_exit,
            sources,
            services: Vec::new(),
            manifests: Default::default(),
            network_changes: 0,
            hold_changes: 0,
            leaving: false,
            swept: false,
        };
        let (mut running, mut touched) = (Vec::new(), BTreeSet::new());
        node.watch_thresholds(&mut touched);
        for recovered in recover::recover(&hands).await {
            // What was added to it is the pod's, not its file's.
            let own = match recovered.spec.ephemeral_containers.is_empty() {
                true => recovered.spec.clone(),
                false => Arc::new(recovered.spec.without_ephemeral()),
            };
            running.push(own);
            node.admitted
                .insert(recovered.spec.uid.clone(), recovered.spec.clone());
            let former = exits::read(&config.layout, &recovered.spec.uid, true);
            node.record(&Event::PodRecovered(Box::new(recovered)), &mut touched);
            if let Some(event) = former {
                node.record(&event, &mut touched);
            }
        }
        node.resume_shutdown(&mut touched);
        node.resume_cordon(&mut touched);
        // Not before: a node that shuts down is not ready meanwhile.
        node.show_node();
        // Nobody may be told that there are no pods only because they are not known yet.
        node.decide(touched);
        serve(listener, &store, &config, sender);
        node.manager.ready(super::now().time);
        tracing::info!(
            pods = running.len(),
            manifests = %config.manifests.display(),
            "coracle {} is up", env!("CARGO_PKG_VERSION")
        );
        super::spawn(network::keep(hands.clone()));
        super::spawn(shutdown::keep(holding));
        let cgroups = hands.sandboxes.cgroups.clone();
        super::spawn(pressure::listen(cgroups, level, hands.inputs.clone()));
        node.look_at_images();
        super::spawn(resolver::watch(config.clone(), hands.inputs.clone()));
        // Images before pods, so that a pod finds the import of its image under way.
        preload::watch(hands.clone());
        let cgroups = hands.sandboxes.cgroups.clone();
        super::spawn(watch_manifests(
            config.clone(),
            hands.sandboxes.settings.clone(),
            running,
            cgroups,
            hands.inputs,
        ));
        let code = node.run(inputs, alarm).await;
        boot::end(&config.layout.boot());
        code
    })))
}

/// The node's name where no setting gives one.
fn name_of_host() -> String {
    let host = nix::unistd::gethostname().unwrap_or_default();
    let host = host.to_string_lossy();
    let name = node_name_of_host(&host);
    if name != host.to_lowercase() {
        tracing::warn!(
            "the host's name `{host}` cannot be a node's, going on as `{name}`; coracle.nodeName sets another"
        );
    }
    name
}

/// Takes the directories for this agent.
fn lock(layout: &Layout) -> Result<Flock<File>, StartError> {
    let path = layout.lock_file();
    let begin = Instant::now();
    loop {
        if let Some(lock) = file::try_lock(&path).map_err(access("lock", &path))? {
            return Ok(lock);
        }
        if begin.elapsed() > LOCK_PATIENCE {
            return Err(StartError::AlreadyRunning {
                run_dir: layout.run_dir.clone(),
            });
        }
        // Waiting for a lock has no end of its own that could be set.
        std::thread::sleep(LOCK_PATIENCE / 50);
    }
}

fn serve(
    listener: Async<std::os::unix::net::UnixListener>,
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

/// Reads the manifests now and whenever they change. `recovered` are the pods that run already.
async fn watch_manifests(
    config: Arc<Config>,
    settings: Current,
    recovered: Vec<Arc<PodSpec>>,
    cgroups: Arc<Cgroups>,
    inputs: Sender<Input>,
) {
    let mut watch = match Watch::new(&config.manifests) {
        Ok(watch) => watch,
        Err(error) => {
            tracing::error!("could not watch `{}`: {error}", config.manifests.display());
            return;
        }
    };
    // Files do not know which incarnation of a pod runs.
    let mut running: BTreeSet<PodUid> = recovered
        .iter()
        .flat_map(|spec| [spec.uid.clone(), spec.template.clone()])
        .collect();
    let inherited = sources::inherited(&config.layout, recovered);
    let mut manifests = Manifests::new(
        config.manifests.clone(),
        config.node_name.clone(),
        inherited,
    );
    let (mut closed, mut first) = (BTreeSet::new(), true);
    loop {
        let scanned;
        (manifests, scanned) = super::unblock(move || {
            let mut manifests = manifests;
            let scan = manifests.scan(clock::boot_ms(), &closed, first, &running);
            (manifests, (scan, running))
        })
        .await;
        let scan;
        (scan, running) = scanned;
        if let Some(error) = manifests.unreadable.as_ref().filter(|_| scan.changed) {
            tracing::warn!(
                "could not read `{}`: {error}, looking again",
                config.manifests.display()
            );
        }
        if scan.changed || first {
            sources::write(&config.layout, &manifests);
            let desired = manifests.desired();
            let classes = manifests.priority_classes();
            let services = manifests.services().map(|(_, s)| s.clone()).collect();
            running = desired.pods.keys().cloned().collect();
            let files = manifests.status();
            let in_effect = manifests.in_effect();
            let complete = manifests.all_in_effect();
            let _ = inputs
                .send(Input::Manifests {
                    desired,
                    services,
                    classes,
                    files,
                    in_effect,
                    complete,
                    freed_bytes: scan.freed_bytes,
                })
                .await;
        }
        first = false;
        watch.ensure();
        let patience = scan
            .again_in_ms
            .unwrap_or(settings.now().file_check_frequency_ms);
        closed = watch.next(Duration::from_millis(patience)).await;
        if !closed.is_empty() {
            // Most likely a pod is about to start: while its file is read the kernel can get ready.
            let cgroups = cgroups.clone();
            super::spawn(super::unblock(move || cgroups.warm_up()));
        }
    }
}

/// Calls `then` once for each of these signals, until it says `false`.
fn watch_signals(
    signals: &[i32],
    mut then: impl AsyncFnMut() -> bool + 'static,
) -> Result<(), StartError> {
    let failed = |source| StartError::System {
        action: "watch for signals",
        source,
    };
    let (receiver, sender) = UnixStream::pair().map_err(failed)?;
    for signal in signals {
        let sender = sender.try_clone().map_err(failed)?;
        signal_hook::low_level::pipe::register(*signal, sender).map_err(failed)?;
    }
    let mut receiver = Async::new(receiver).map_err(failed)?;
    super::spawn(async move {
        // Kept open as long as signals are waited for.
        let _sender = sender;
        let mut byte = [0];
        while receiver.read_exact(&mut byte).await.is_ok() && then().await {}
    });
    Ok(())
}

/// Whether anything is swapped to; looked at once, as the kubelet does.
fn swap_is_on() -> bool {
    let swaps = file::read_text("/proc/swaps").unwrap_or_default();
    swaps.lines().count() > 1
}

fn access(action: &'static str, path: &std::path::Path) -> impl FnOnce(io::Error) -> StartError {
    let path = path.to_owned();
    move |source| StartError::Access {
        action,
        path,
        source,
    }
}
