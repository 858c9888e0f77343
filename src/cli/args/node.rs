//! What is to be done with the node: the agent, its settings and images, maintenance, its end.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use super::{JsonOnly, OutputArgs};

/// `coracle run`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args)]
pub struct RunArgs {
    /// Settings, of kind KubeletConfiguration [default: /etc/coracle/config.yaml if it exists]
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Files that change single settings, *.conf and *.yaml [default: /etc/coracle/config.d, without --config]
    #[arg(long, value_name = "DIR")]
    pub config_dir: Option<PathBuf>,
    /// Directory of manifests, or a single one [default: /etc/coracle/manifests]
    #[arg(long, value_name = "PATH")]
    pub manifests: Option<PathBuf>,
    /// State that outlives a reboot [default: /var/lib/coracle]
    #[arg(long, value_name = "DIR")]
    pub root: Option<PathBuf>,
    /// State that dies with the boot, and the socket [default: /run/coracle]
    #[arg(long, value_name = "DIR")]
    pub run_dir: Option<PathBuf>,
    /// Pod logs [default: /var/log/pods]
    #[arg(long, value_name = "DIR")]
    pub log_dir: Option<PathBuf>,
    /// Parent cgroup of all pods [default: the agent's own under systemd, else /coracle]
    #[arg(
        long,
        value_name = "PATH",
        env = "CORACLE_CGROUP_PARENT",
        hide_env_values = true
    )]
    pub cgroup_parent: Option<String>,
    /// The node's name, a DNS subdomain [default: the host's]
    #[arg(long, value_name = "NAME")]
    pub node_name: Option<String>,
    /// Labels of the node beside kubernetes.io/hostname, /os and /arch and those of beta.kubernetes.io
    #[arg(long, value_name = "KEY=VALUE", value_delimiter = ',')]
    pub node_labels: Vec<String>,
    /// Name of the bridge that pods are on [default: coracle0]
    #[arg(long, value_name = "NAME", value_parser = crate::config::bridge_name)]
    pub bridge: Option<String>,
    /// Ranges of pod addresses, at most one for IPv4 and one for IPv6 [default: free ones are chosen]
    #[arg(long, value_name = "CIDR[,CIDR]")]
    pub pod_cidr: Option<String>,
    /// Ranges of service addresses [default: free ones are chosen]
    #[arg(long, value_name = "CIDR[,CIDR]")]
    pub service_cidr: Option<String>,
    /// Name servers for pods with `dnsPolicy: ClusterFirst` [default: coracle's own]
    #[arg(long, value_name = "IP", value_delimiter = ',', value_parser = crate::config::ip_address)]
    pub cluster_dns: Vec<std::net::IpAddr>,
    /// Import the image archives in this directory; may be given more than once
    #[arg(long, value_name = "DIR")]
    pub preload: Vec<PathBuf>,
    /// Keep the logs of so many earlier runs of each container [default: 1]
    #[arg(long, value_name = "N")]
    pub maximum_dead_containers_per_container: Option<u32>,
    /// Stop all pods gracefully when the agent ends (otherwise they keep running)
    #[arg(long)]
    pub stop_pods_on_exit: bool,
}

/// `coracle image`.
#[derive(Debug, Clone, Subcommand)]
pub enum ImageCommand {
    /// Import image archives (OCI layout or docker-archive)
    Import {
        /// Archives, or OCI layout directories; `-` is an archive on standard input
        #[arg(required = true)]
        paths: Vec<PathBuf>,
        /// Name for an image that brings none
        #[arg(long)]
        name: Option<String>,
    },
    /// List images
    Ls {
        /// Only digests
        #[arg(short, long)]
        quiet: bool,
    },
    /// Remove images by name or digest
    Rm {
        /// Names or digests
        #[arg(required = true)]
        names: Vec<String>,
        /// Also while a container uses it
        #[arg(short, long)]
        force: bool,
    },
    /// Remove what nothing refers to
    Prune {
        /// Also named images that no container uses
        #[arg(short, long)]
        all: bool,
        /// Do not ask
        #[arg(short, long)]
        force: bool,
    },
}

/// `coracle config`.
#[derive(Debug, Clone, Subcommand)]
pub enum ConfigCommand {
    /// Print the running agent's settings; without an agent, or with --config, what the files say
    #[command(
        after_help = "Examples:\n  coracle config print\n  coracle config print --defaults >/etc/coracle/config.yaml"
    )]
    Print(ConfigPrintArgs),
    /// Check settings, without an agent
    Check {
        /// Files, later ones over earlier ones, or `-` [default: /etc/coracle/config.yaml and config.d]
        files: Vec<PathBuf>,
        /// Also the files in this directory
        #[arg(long, value_name = "DIR")]
        config_dir: Option<PathBuf>,
    },
}

/// `coracle config print`.
#[derive(Debug, Clone, Args)]
pub struct ConfigPrintArgs {
    /// yaml, with where each value comes from as a comment, or json
    #[arg(short, long, value_name = "FORMAT", default_value = "yaml")]
    pub output: ConfigFormat,
    /// Nothing but the defaults
    #[arg(long, conflicts_with_all = ["config", "config_dir"])]
    pub defaults: bool,
    /// Of this file instead of the running agent's
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// With the files in this directory
    #[arg(long, value_name = "DIR")]
    pub config_dir: Option<PathBuf>,
}

/// How settings are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ConfigFormat {
    /// YAML.
    Yaml,
    /// JSON.
    Json,
}

/// `--dry-run`.
#[derive(Debug, Clone, Args)]
pub struct DryRunArgs {
    /// Only say what would be done (of a drain: who would leave, in which order): none, client or server
    #[arg(
        long,
        value_name = "HOW",
        num_args = 0..=1,
        require_equals = true,
        default_value = "none",
        default_missing_value = "client"
    )]
    pub dry_run: DryRun,
}

/// `coracle cordon` and `coracle uncordon`.
#[derive(Debug, Clone, Args)]
pub struct NodeArgs {
    /// This node
    #[arg(value_parser = super::super::target::node_name)]
    pub node: Option<String>,
    /// Whether anything is done.
    #[command(flatten)]
    pub dry_run: DryRunArgs,
}

/// `coracle drain`.
#[derive(Debug, Clone, Args)]
pub struct DrainArgs {
    /// This node
    pub node: Option<String>,
    /// Only pods that have these labels, e.g. app=web,tier!=db
    #[arg(short = 'l', long, visible_alias = "selector", value_name = "SELECTOR")]
    pub pod_selector: Option<String>,
    /// Seconds for each pod to end; 1 at least, less than 0 leaves each pod its own
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = -1,
        allow_hyphen_values = true
    )]
    pub grace_period: i64,
    /// Wait no longer than this, e.g. 5m, before giving up; 0 is for ever. The drain goes on
    #[arg(long, value_name = "DURATION", default_value = "0s")]
    pub timeout: String,
    /// Also pods with emptyDir volumes on disk, whose data is deleted
    #[arg(long)]
    pub delete_emptydir_data: bool,
    /// Whether anything is done.
    #[command(flatten)]
    pub dry_run: DryRunArgs,
    /// Taken as kubectl takes it; here no pod has a controller, and all leave
    #[arg(long)]
    pub force: bool,
    /// Taken as kubectl takes it; here no pod is of a DaemonSet
    #[arg(long)]
    pub ignore_daemonsets: bool,
}

/// Whether anything is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum DryRun {
    /// It is.
    None,
    /// Nothing is.
    Client,
    /// Nothing is.
    Server,
}

/// `coracle shutdown`.
#[derive(Debug, Clone, Args)]
pub struct ShutdownArgs {
    /// Only print the groups, their seconds, and whether logind will allow them
    #[arg(long, conflicts_with = "cancel")]
    pub plan: bool,
    /// Print the plan as JSON
    #[arg(short, long, value_name = "FORMAT", requires = "plan")]
    pub output: Option<JsonOnly>,
    /// Call it off: the pods start again
    #[arg(long)]
    pub cancel: bool,
}

/// `coracle install`.
#[derive(Debug, Clone, Args)]
pub struct InstallArgs {
    /// The program goes to `bin` below this directory
    #[arg(long, value_name = "DIR", default_value = "/usr/local")]
    pub prefix: PathBuf,
    /// Install into the system whose root is this directory; nothing is started
    #[arg(long, value_name = "DIR", conflicts_with = "now")]
    pub root: Option<PathBuf>,
    /// Start the agent, or replace the running one; pods keep running
    #[arg(long)]
    pub now: bool,
}

/// `coracle uninstall`.
#[derive(Debug, Clone, Args)]
pub struct UninstallArgs {
    /// The program was put in `bin` below this directory
    #[arg(long, value_name = "DIR", default_value = "/usr/local")]
    pub prefix: PathBuf,
    /// Stop all pods gracefully first
    #[arg(long)]
    pub stop_pods: bool,
    /// Remove settings, manifests, images, volumes and logs too
    #[arg(long)]
    pub purge: bool,
}

/// `coracle end-pods`.
#[derive(Debug, Clone, Args)]
pub struct EndPodsArgs {
    /// Parent cgroup of all pods
    #[arg(
        long,
        value_name = "PATH",
        env = "CORACLE_CGROUP_PARENT",
        default_value = "/coracle"
    )]
    pub cgroup_parent: String,
    /// Seconds between SIGTERM and SIGKILL
    #[arg(long, value_name = "SECONDS", default_value_t = 20)]
    pub grace: u32,
    /// State that dies with the boot [default: what unit and settings say]
    #[arg(long, value_name = "DIR")]
    pub run_dir: Option<PathBuf>,
}

/// `coracle fsck`.
#[derive(Debug, Clone, Args)]
pub struct FsckArgs {
    /// Remove what is damaged or unused; refused while pods run
    #[arg(long)]
    pub repair: bool,
    /// How to show it.
    #[command(flatten)]
    pub output: OutputArgs,
    /// State that outlives a reboot
    #[arg(long, value_name = "DIR", default_value = "/var/lib/coracle")]
    pub root: PathBuf,
    /// State that dies with the boot
    #[arg(long, value_name = "DIR", default_value = "/run/coracle")]
    pub run_dir: PathBuf,
}

/// `coracle doctor`.
#[derive(Debug, Clone, Args)]
pub struct DoctorArgs {
    /// State that outlives a reboot [default: the running agent's, else what unit and settings say]
    #[arg(long, value_name = "DIR")]
    pub root: Option<PathBuf>,
    /// State that dies with the boot [default: likewise]
    #[arg(long, value_name = "DIR")]
    pub run_dir: Option<PathBuf>,
    /// Pod logs [default: likewise]
    #[arg(long, value_name = "DIR")]
    pub log_dir: Option<PathBuf>,
    /// Print JSON
    #[command(flatten)]
    pub output: OutputArgs,
}
