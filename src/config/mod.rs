//! Settings of an agent, from `kind: KubeletConfiguration` files, flags and defaults, validated all at once.
//!
//! `fields` is the table of all settings; `layers` reads what was given, with positions; `given` puts that over the
//! defaults; `shutdown`, `eviction`, `node`, `registries` and `rules` turn it into typed values, or report every error. Settings that
//! can change while the agent runs are in [`Settings`], the others in [`Config`], so that no code keeps an outdated
//! value by mistake.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};

use ipnet::IpNet;

use crate::layout::Layout;
use crate::spec::PodSecurity;
use crate::types::image_access::Verification;
use crate::types::{Group, ImagePolicy, Swapping};

mod bundle;
mod eviction;
mod fields;
mod given;
mod layers;
mod load;
mod node;
mod registries;
mod reload;
mod rules;
mod show;
mod shutdown;
mod url;
mod values;

pub use bundle::BundlePoll;
pub use eviction::{Eviction, Signal, Threshold};
pub(crate) use fields::{FIELDS, Kind as SettingKind, Role as SettingRole};
pub use layers::{Flag, FlagValue, Origin, Problem};
pub use load::{ConfigError, Effective, Files};
pub use node::{
    Amounts, Enforce, MemoryQos, Reserved, Taint, node_name_of_host, processes_for_pods,
};
pub use registries::Registries;
pub use reload::{Reload, reload};
pub use show::{as_json, as_yaml};
pub use url::StaticPodUrl;
pub use values::{Amount, bridge_name, cidrs, ip_address};

/// The bridge's default name.
pub const DEFAULT_BRIDGE: &str = "coracle0";

/// Settings file without `--config`.
pub const DEFAULT_FILE: &str = "/etc/coracle/config.yaml";

/// Directory of drop-in files without `--config` and `--config-dir`.
pub const DEFAULT_DIR: &str = "/etc/coracle/config.d";

/// Settings that need an agent restart to change.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// Directories of the agent.
    pub layout: Layout,
    /// Directory (or single file) of manifests.
    pub manifests: PathBuf,
    /// Where more manifests are fetched from, if anywhere.
    pub manifest_url: Option<StaticPodUrl>,
    /// Directories of image archives imported at start and when they change.
    pub preload: Vec<PathBuf>,
    /// Directories of CDI files; devices in a later one take precedence.
    pub cdi_dirs: Vec<PathBuf>,
    /// Parent cgroup below each hierarchy's mount; `None`: the agent's own under systemd, else `/coracle`.
    pub cgroup_parent: Option<String>,
    /// The node's name; empty: the host's.
    pub node_name: String,
    /// Labels of the node, which add to or replace the default labels.
    pub node_labels: BTreeMap<String, String>,
    /// `pids.max` of each pod; `None` = unlimited.
    pub pod_pids_limit: Option<u64>,
    /// Domain of pod and service names.
    pub cluster_domain: String,
    /// The node's resolver file; empty: none.
    pub resolv_conf: PathBuf,
    /// Name of the bridge for pods.
    pub bridge: String,
    /// Ranges of pod addresses, at most one a family; empty: use free ones.
    pub pod_cidrs: Vec<IpNet>,
    /// Ranges of service addresses, at most one a family; empty: use free ones.
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
    /// The Pod Security Standard that manifests may not exceed.
    pub pod_security: PodSecurity,
    /// How registries are reached.
    pub registries: Registries,
    /// The file with the public key that bundles must be signed with; `None`: they need no signature.
    pub bundle_key: Option<PathBuf>,
    /// Where bundles come from by themselves, if anywhere.
    pub bundle_poll: BundlePoll,
    /// Whether an OOM kill in a container kills a single process instead of all; `None`: as the cgroup version does.
    pub single_process_oom_kill: Option<bool>,
    /// Memory protection; `None`: off.
    pub memory_qos: Option<MemoryQos>,
    /// Number of ids for each pod with a user namespace.
    pub user_ids_per_pod: u64,
    /// Resources reserved from pods.
    pub reserved: Reserved,
    /// Use of swap by containers.
    pub swap: Swapping,
    /// Whether swap on the node keeps the agent from starting.
    pub fail_swap_on: bool,
    /// Whether cgroup v1 keeps the agent from starting.
    pub fail_cgroup_v1: bool,
    /// The agent's own `oom_score_adj`.
    pub own_oom_score_adj: i32,
    /// Limit of the agent's open files.
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

/// Settings that can change while the agent runs.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// Interval of full rescans of the manifest directory.
    pub file_check_frequency_ms: u64,
    /// Size at which container logs are rotated (0 = never); for containers that start from now on.
    pub container_log_max_bytes: u64,
    /// Number of log files kept for each container.
    pub container_log_max_files: u32,
    /// Number of earlier runs of a container whose logs are kept.
    pub max_dead_containers: u32,
    /// Longest wait between restarts of a crashing container.
    pub max_container_restart_period_ms: u64,
    /// Feature gate `ReduceDefaultCrashLoopBackOffDecay`: shorter first waits.
    pub reduced_restart_decay: bool,
    /// Limit of pods on the node.
    pub max_pods: u32,
    /// Limit of pods for each CPU; 0: none.
    pub pods_per_core: u32,
    /// Limit of images in the Node object; `None`: all.
    pub node_status_max_images: Option<u32>,
    /// Grace periods at shutdown, by ascending priority; empty: shutdown is not graceful.
    pub shutdown: Vec<Group>,
    /// Eviction of pods.
    pub eviction: Eviction,
    /// Garbage collection of images.
    pub image_gc: ImagePolicy,
    /// Which stored images are for pods with credentials only.
    pub image_verification: Verification,
}

impl Default for Settings {
    fn default() -> Self {
        Effective::default().settings
    }
}

/// The settings in force; all clones see changes.
#[derive(Debug, Clone, Default)]
pub struct Current(Arc<RwLock<Arc<Settings>>>);

impl Current {
    /// Starts with these settings.
    pub fn new(settings: Settings) -> Self {
        Self(Arc::new(RwLock::new(Arc::new(settings))))
    }

    /// Returns the current settings. Keep the result for a single decision only.
    pub fn now(&self) -> Arc<Settings> {
        let current = self.0.read();
        Arc::clone(&current.unwrap_or_else(PoisonError::into_inner))
    }

    /// Replaces the settings.
    pub fn replace(&self, settings: Settings) {
        let current = self.0.write();
        *current.unwrap_or_else(PoisonError::into_inner) = Arc::new(settings);
    }
}

#[cfg(test)]
#[path = "config_test.rs"]
mod tests;
