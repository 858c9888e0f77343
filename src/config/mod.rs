//! How is this node set up? The settings of one agent, from `kind: KubeletConfiguration` files, flags and defaults,
//! validated all at once.
//!
//! `fields` is the table of all settings; `layers` reads what was given, with its place; `given` puts that over the
//! defaults; `shutdown`, `eviction`, `node` and `rules` make typed values of it, or say all that is wrong. What can change
//! while the agent runs is in [`Settings`], the rest in [`Config`], so that nobody goes on using an old value by mistake.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};

use ipnet::IpNet;

use crate::layout::Layout;

mod eviction;
mod fields;
mod given;
mod layers;
mod load;
mod node;
mod reload;
mod rules;
mod show;
mod shutdown;
mod values;

pub use eviction::{Eviction, ImageGc, Signal, Threshold};
pub use layers::{Flag, FlagValue, Origin, Problem};
pub use load::{ConfigError, Effective, Files};
pub use node::{
    Amounts, Enforce, MemoryQos, Reserved, Swap, Taint, node_name_of_host, processes_for_pods,
};
pub use reload::{Reload, reload};
pub use show::{as_json, as_yaml};
pub use shutdown::Period;
pub use values::{Amount, bridge_name, cidrs, ip_address};

/// The bridge's name unless another is given.
pub const DEFAULT_BRIDGE: &str = "coracle0";

/// Where settings are looked for when no `--config` is given.
pub const DEFAULT_FILE: &str = "/etc/coracle/config.yaml";

/// Where files that change single settings are looked for when neither `--config` nor `--config-dir` is given.
pub const DEFAULT_DIR: &str = "/etc/coracle/config.d";

/// What holds until the agent ends.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// Its directories.
    pub layout: Layout,
    /// Directory (or single file) of manifests.
    pub manifests: PathBuf,
    /// Directories of image archives imported at start and when they change.
    pub preload: Vec<PathBuf>,
    /// Parent cgroup below each hierarchy's mount; `None`: the agent's own under systemd, else `/coracle`.
    pub cgroup_parent: Option<String>,
    /// The node's name; empty: the host's.
    pub node_name: String,
    /// Labels of the node, beside or instead of those that every node has.
    pub node_labels: BTreeMap<String, String>,
    /// `pids.max` of each pod; `None` = unlimited.
    pub pod_pids_limit: Option<u64>,
    /// Domain of pod and service names.
    pub cluster_domain: String,
    /// The node's resolver file; empty: none.
    pub resolv_conf: PathBuf,
    /// Name of the bridge that pods are on.
    pub bridge: String,
    /// Ranges of pod addresses, at most one a family; empty: free ones are chosen.
    pub pod_cidrs: Vec<IpNet>,
    /// Ranges of service addresses, at most one a family; empty: free ones are chosen.
    pub service_cidrs: Vec<IpNet>,
    /// Name servers for pods with `dnsPolicy: ClusterFirst`; empty: coracle's own.
    pub cluster_dns: Vec<IpAddr>,
    /// cpu quota period in microseconds.
    pub cpu_cfs_quota_period_us: u64,
    /// Whether cpu limits are enforced by quota.
    pub cpu_cfs_quota: bool,
    /// Stop all pods gracefully when the agent ends.
    pub stop_pods_on_exit: bool,
    /// Names and patterns (ending in `*`) of sysctls that pods may set beyond the safe ones.
    pub allowed_unsafe_sysctls: Vec<String>,
    /// Whether the kernel kills one process of a container out of memory, not all; `None`: as the cgroup version has it.
    pub single_process_oom_kill: Option<bool>,
    /// Protection of memory; `None`: off.
    pub memory_qos: Option<MemoryQos>,
    /// Ids each pod with a user namespace gets.
    pub user_ids_per_pod: u64,
    /// What is kept from pods.
    pub reserved: Reserved,
    /// How containers may swap.
    pub swap: Swap,
    /// Swap on the node keeps the agent from starting.
    pub fail_swap_on: bool,
    /// cgroup v1 keeps the agent from starting.
    pub fail_cgroup_v1: bool,
    /// The agent's own `oom_score_adj`.
    pub own_oom_score_adj: i32,
    /// Most files the agent may have open.
    pub max_open_files: u64,
    /// Taints shown on the node.
    pub taints: Vec<Taint>,
    /// `spec.providerID` of the node.
    pub provider_id: String,
}

impl Default for Config {
    fn default() -> Self {
        Effective::default().config
    }
}

/// What can change while the agent runs.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// Full rescan of the manifest directory.
    pub file_check_frequency_ms: u64,
    /// Rotate container logs at this size (0 = never); for containers that start from now on.
    pub container_log_max_bytes: u64,
    /// Keep so many log files a container.
    pub container_log_max_files: u32,
    /// So many earlier runs of a container keep their logs.
    pub max_dead_containers: u32,
    /// Longest wait between restarts of a crashing container.
    pub max_container_restart_period_ms: u64,
    /// Feature gate `ReduceDefaultCrashLoopBackOffDecay`: the first waits are shorter.
    pub reduced_restart_decay: bool,
    /// Most pods on the node.
    pub max_pods: u32,
    /// Most pods for each processor; 0: no such limit.
    pub pods_per_core: u32,
    /// Most images the node object lists; `None`: all.
    pub node_status_max_images: Option<u32>,
    /// Time pods have at shutdown, by rising priority; empty: shutdown is not graceful.
    pub shutdown: Vec<Period>,
    /// When pods are evicted.
    pub eviction: Eviction,
    /// When images are removed.
    pub image_gc: ImageGc,
}

impl Default for Settings {
    fn default() -> Self {
        Effective::default().settings
    }
}

/// The settings in force now; every copy sees changes.
#[derive(Debug, Clone, Default)]
pub struct Current(Arc<RwLock<Arc<Settings>>>);

impl Current {
    /// Begins with these.
    pub fn new(settings: Settings) -> Self {
        Self(Arc::new(RwLock::new(Arc::new(settings))))
    }

    /// As they are now. Keep the result only as long as one decision takes.
    pub fn now(&self) -> Arc<Settings> {
        let current = self.0.read();
        Arc::clone(&current.unwrap_or_else(PoisonError::into_inner))
    }

    /// From now on these.
    pub fn replace(&self, settings: Settings) {
        let current = self.0.write();
        *current.unwrap_or_else(PoisonError::into_inner) = Arc::new(settings);
    }
}

#[cfg(test)]
#[path = "config_test.rs"]
mod tests;
