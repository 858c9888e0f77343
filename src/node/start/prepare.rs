//! What the agent needs before it looks for pods: settings that suit the machine, directories, one lock, cgroups.

use std::fs::{File, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::time::Duration;

use nix::fcntl::Flock;
use smol::channel::Sender;

use super::super::pulls::Pulls;
use super::{StartError, access, system};
use crate::config::{Config, Current, Settings, node_name_of_host};
use crate::effects::cgroup::{Cgroups, LimitSettings, MemoryProtection, Mode, SwapSettings};
use crate::effects::configuration::CurrentConfiguration;
use crate::effects::sandbox::Sandboxes;
use crate::images::ImageStore;
use crate::layout::{FORMAT_FILE, Layout};
use crate::network::names::{Names, Reach};
use crate::network::{Network, NetworkSettings};
use crate::node::Input;
use crate::node::capacity::{Machine, Shares, share_out};
use crate::node::execute::Tools;
use crate::node::facts::Facts;
use crate::node::network::{NameServer, Progress};
use crate::node::pods::Links;
use crate::node::settings::Sources;
use crate::node::user_namespaces::UserNamespaces;
use crate::sys::file::Durability;
use crate::sys::{clock, file, meminfo, mount, own_binary, process, tree};

/// A program that a killed agent was about to start holds the agent's lock until it is executed: not for long, but an
/// agent started at once would find it.
const LOCK_PATIENCE: Duration = Duration::from_secs(1);

/// Returns the settings that are in force until the agent ends, after checks that need this machine.
pub(super) fn settle(sources: &Sources) -> Result<Config, StartError> {
    let mut config = sources.effective.config.clone();
    if config.node_name.is_empty() {
        config.node_name = name_of_host();
    }
    if sources.stale {
        // The errors are reported when the settings are read again, which is at once.
        tracing::error!("invalid settings; using the last valid ones");
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
    Ok(config)
}

pub(super) fn make_dirs(layout: &Layout) -> Result<(), StartError> {
    for (path, mode) in [
        (&layout.root, 0o711),
        (&layout.run_dir, 0o711),
        (&layout.pods_run_dir(), 0o700),
        (&layout.pods_state_dir(), 0o700),
        (&layout.log_dir, 0o755),
    ] {
        file::make_dirs(path, mode).map_err(access("make", path))?;
    }
    Ok(())
}

/// Empties a runtime directory that an earlier boot has left, as can happen outside a tmpfs. Its shutdown is over, its pods
/// do not run, and its times mean nothing.
pub(super) fn forget_former_boot(layout: &Layout, boot_id: &str) -> Result<(), StartError> {
    let path = layout.run_boot();
    match file::read_record(&path) {
        Ok(of) if of == boot_id.as_bytes() => return Ok(()),
        Ok(_) => {
            let folder = &layout.run_dir;
            tracing::warn!(
                "`{}` has outlived a reboot; it should be on a tmpfs",
                folder.display()
            );
            let kept = [layout.lock_file(), folder.join(FORMAT_FILE)];
            for entry in folder.read_dir().map_err(access("read", folder))? {
                let entry = entry.map_err(access("read", folder))?.path();
                // The boot's id is replaced last, so that an interrupted removal is repeated.
                if entry != path && !kept.contains(&entry) {
                    tree::remove(&entry).map_err(access("remove", &entry))?;
                }
            }
            make_dirs(layout)?;
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(access("read", &path)(error)),
    }
    file::replace(&path, boot_id.as_bytes(), 0o644, Durability::Process)
        .map_err(access("write", &path))
}

/// Sets up the place for secrets, and keeps those in memory out of core files.
pub(super) fn protect_secrets(layout: &Layout) -> Result<(), StartError> {
    process::set_dumpable(false).map_err(system("turn off core files of the agent"))?;
    let path = layout.configuration_dir();
    file::make_dirs(&path, 0o700).map_err(access("make", &path))?;
    mount::tmpfs(&path, None, true).map_err(access("mount a tmpfs at", &path))?;
    // What shims mount in bundles stays theirs: below a shared mount, as systemd's `/run` is, this one is shared, too.
    mount::make_private(&path).map_err(access("make a mount of its own at", &path))?;
    // Containers with ids of their own pass through here to their bundles; all else is closed to them.
    for (path, mode) in [
        (layout.all_projected_volumes(), 0o700),
        (layout.all_bundles(), 0o711),
        // The last one: version 0.1 left the others to it.
        (path, 0o711),
    ] {
        file::make_dirs(&path, mode).map_err(access("make", &path))?;
        let mode = Permissions::from_mode(mode);
        std::fs::set_permissions(&path, mode).map_err(access("make private", &path))?;
    }
    Ok(())
}

/// Opens the cgroups below which pods go, with the limits that the settings say.
pub(super) fn open_cgroups(
    config: &Config,
    machine: &Machine,
    settings: &Settings,
) -> Result<Arc<Cgroups>, StartError> {
    let allocatable = share_out(machine, &config.reserved, settings).allocatable;
    let limits = LimitSettings {
        pod_pids: config.pod_pids_limit,
        quota_period_us: config.cpu_cfs_quota_period_us,
        quota: config.cpu_cfs_quota,
        swap: SwapSettings {
            behavior: config.swap,
            memory_bytes: meminfo::now("MemTotal"),
            swap_bytes: meminfo::now("SwapTotal"),
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
    Ok(cgroups)
}

pub(super) fn sandboxes(
    config: Arc<Config>,
    settings: &Settings,
    cgroups: Arc<Cgroups>,
) -> Result<Sandboxes, StartError> {
    let binary = own_binary::read_only();
    let network = Network::new(NetworkSettings {
        layout: config.layout.clone(),
        bridge: config.bridge.clone(),
        pod_cidrs: config.pod_cidrs.clone(),
        service_cidrs: config.service_cidrs.clone(),
    });
    let later = "takes effect when the agent next starts without such pods";
    if network.bridge() != config.bridge {
        let (bridge, wanted) = (network.bridge(), &config.bridge);
        tracing::warn!("pods are still on the bridge `{bridge}`, which stays; `{wanted}` {later}");
    }
    if network.keeps_ranges() {
        tracing::warn!(
            "pods still have addresses of the former ranges, which stay; `podCIDR` or `coracle.serviceCIDR` {later}"
        );
    }
    Ok(Sandboxes {
        settings: Current::new(settings.clone()),
        configuration: CurrentConfiguration::default(),
        cgroups,
        network,
        binary: Arc::new(binary.map_err(system("make a read-only view of the own binary"))?),
        config,
    })
}

pub(super) fn tools(
    sandboxes: Sandboxes,
    images: Arc<ImageStore>,
    shares: &Shares,
    inputs: Sender<Input>,
) -> Tools {
    let config = sandboxes.config.clone();
    Tools {
        images,
        importing: Arc::default(),
        pulls: Pulls::new(&config.registries),
        bundles: Default::default(),
        instead: Default::default(),
        readers: Default::default(),
        links: Links::default(),
        cleaning: Default::default(),
        turns: Default::default(),
        host_paths: Default::default(),
        facts: Facts::gather(
            &config.node_name,
            shares,
            &sandboxes.network.own_addresses(),
        ),
        progress: Progress::default(),
        name_server: NameServer::new(Names::new(
            &config.cluster_domain,
            config.resolv_conf.clone(),
            Reach::default(),
        )),
        inputs,
        user_namespaces: UserNamespaces::new(config.clone()),
        sandboxes,
        config,
    }
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
pub(super) fn lock(layout: &Layout) -> Result<Flock<File>, StartError> {
    let path = layout.lock_file();
    let begin = clock::now();
    loop {
        if let Some(lock) = file::try_lock(&path).map_err(access("lock", &path))? {
            return Ok(lock);
        }
        if clock::now().duration_since(begin) > LOCK_PATIENCE {
            return Err(StartError::AlreadyRunning {
                run_dir: layout.run_dir.clone(),
            });
        }
        // Waiting for a lock has no end of its own that could be set.
        std::thread::sleep(LOCK_PATIENCE / 50);
    }
}

/// Whether anything is swapped to; looked at once, as the kubelet does.
pub(super) fn swap_is_on() -> bool {
    let swaps = file::read_text("/proc/swaps").unwrap_or_default();
    swaps.lines().count() > 1
}
