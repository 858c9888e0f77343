//! How is this node set up? The settings of one agent, read from a `kind: KubeletConfiguration` file, validated,
//! every default written down.

use crate::layout::Layout;

/// Settings of one agent.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// Its directories.
    pub layout: Layout,
    /// Directory (or single file) of manifests; default `/etc/coracle/manifests`.
    pub manifests: std::path::PathBuf,
    /// Directories of image archives imported at start and when they change.
    pub preload: Vec<std::path::PathBuf>,
    /// Parent cgroup below each hierarchy's mount; `None`: the agent's own under systemd, else `/coracle`.
    pub cgroup_parent: Option<String>,
    /// The node's name; default the host's.
    pub node_name: String,
    /// Full rescan of the manifest directory (default 20 s).
    pub file_check_frequency_ms: u64,
    /// Rotate container logs at this size (default 10 Mi).
    pub container_log_max_bytes: u64,
    /// Keep so many log files a container (default 5).
    pub container_log_max_files: u32,
    /// `pids.max` of each pod; `None` = unlimited.
    pub pod_pids_limit: Option<u64>,
    /// Domain of pod and service names.
    pub cluster_domain: String,
    /// The node's resolver file; empty: none.
    pub resolv_conf: std::path::PathBuf,
    /// Longest wait between restarts of a crashing container (default 300 s).
    pub max_container_restart_period_ms: u64,
    /// cpu quota period in microseconds (default 100 000).
    pub cpu_cfs_quota_period_us: u64,
    /// Whether cpu limits are enforced by quota.
    pub cpu_cfs_quota: bool,
    /// Stop all pods gracefully when the agent ends.
    pub stop_pods_on_exit: bool,
}
