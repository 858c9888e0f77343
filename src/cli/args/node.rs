//! Arguments of the commands about the node: the agent, its settings and images, maintenance, shutdown.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use super::super::target::some_name;
use super::{JsonOnly, NamespaceArgs, OutputArgs};

/// `coracle run`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args)]
pub struct RunArgs {
    /// Settings file of kind KubeletConfiguration [default: /etc/coracle/config.yaml if it exists]
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Directory of drop-in files, *.conf and *.yaml [default: /etc/coracle/config.d, without --config]
    #[arg(long, value_name = "DIR")]
    pub config_dir: Option<PathBuf>,
    /// Directory of manifests, or a single manifest [default: /etc/coracle/manifests]
    #[arg(long, value_name = "PATH")]
    pub manifests: Option<PathBuf>,
    /// Directory of state that survives a reboot [default: /var/lib/coracle]
    #[arg(long, value_name = "DIR")]
    pub root: Option<PathBuf>,
    /// Directory of state that a reboot discards, and of the socket [default: /run/coracle]
    #[arg(long, value_name = "DIR")]
    pub run_dir: Option<PathBuf>,
    /// Directory of pod logs [default: /var/log/pods]
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
    /// Node name, a DNS subdomain [default: the host name]
    #[arg(long, value_name = "NAME")]
    pub node_name: Option<String>,
    /// Node labels besides kubernetes.io/hostname, /os, /arch and those of beta.kubernetes.io
    #[arg(long, value_name = "KEY=VALUE", value_delimiter = ',')]
    pub node_labels: Vec<String>,
    /// Name of the bridge for pods [default: coracle0]
    #[arg(long, value_name = "NAME", value_parser = crate::config::bridge_name)]
    pub bridge: Option<String>,
    /// Ranges of pod addresses, at most one for IPv4 and one for IPv6 [default: free ranges]
    #[arg(long, value_name = "CIDR[,CIDR]")]
    pub pod_cidr: Option<String>,
    /// Ranges of service addresses [default: free ranges]
    #[arg(long, value_name = "CIDR[,CIDR]")]
    pub service_cidr: Option<String>,
    /// Name servers for pods with `dnsPolicy: ClusterFirst` [default: coracle's own]
    #[arg(long, value_name = "IP", value_delimiter = ',', value_parser = crate::config::ip_address)]
    pub cluster_dns: Vec<std::net::IpAddr>,
    /// Import the image archives in this directory; may be given more than once
    #[arg(long, value_name = "DIR")]
    pub preload: Vec<PathBuf>,
    /// Keep the logs of this many earlier runs of each container [default: 1]
    #[arg(long, value_name = "N")]
    pub maximum_dead_containers_per_container: Option<u32>,
    /// Stop all pods gracefully when the agent ends (otherwise they keep running)
    #[arg(long)]
    pub stop_pods_on_exit: bool,
}

/// `coracle system`.
#[derive(Debug, Clone, Subcommand)]
pub enum SystemCommand {
    /// Show how much images, containers, volumes and logs take, and what of it can be given back
    #[command(
        after_help = "An image counts with all of its layers, also those that it shares. `coracle image prune --all` gives back what is \
                      reclaimable of images, `coracle volume rm` what is reclaimable of claims."
    )]
    Df {
        /// List each image, container, volume and log
        #[arg(short, long)]
        verbose: bool,
        /// Print JSON
        #[arg(short, long, value_name = "FORMAT", conflicts_with = "verbose")]
        output: Option<JsonOnly>,
    },
}

/// `coracle image`.
#[derive(Debug, Clone, Subcommand)]
pub enum ImageCommand {
    /// Import image archives (OCI layout or docker-archive)
    Import {
        /// Archives, or OCI layout directories; `-` is an archive on standard input
        #[arg(required = true)]
        paths: Vec<PathBuf>,
        /// One more name, beside those in the archive
        #[arg(long)]
        name: Option<String>,
    },
    /// Pull an image from its registry
    #[command(
        after_help = "An interrupted pull goes on where it was left when the image is pulled again.\n\nExamples:\n  coracle image pull nginx:1.25\n  coracle image pull registry.lan:5000/shop/web:7\n  coracle image pull --platform linux/arm/v6 busybox"
    )]
    Pull(PullArgs),
    /// Write images to an OCI archive
    #[command(
        after_help = "skopeo, podman, docker and `coracle image import` read it. Layers are not compressed.\n\nExamples:\n  coracle image save nginx:1.25 -o nginx.tar\n  coracle image save nginx:1.25 shop/web:2 | zstd > site.tar.zst\n  coracle image save nginx:1.25 | ssh box coracle image import -"
    )]
    Save(SaveArgs),
    /// List images
    Ls {
        /// Print only ids
        #[arg(short, long)]
        quiet: bool,
        /// Print the digests of manifests, too
        #[arg(long)]
        digests: bool,
        /// Output format: wide shows who uses an image
        #[arg(short, long, value_name = "FORMAT", conflicts_with = "quiet")]
        output: Option<ImagesFormat>,
    },
    /// Give an image one more name
    Tag {
        /// Name or digest
        #[arg(value_parser = some_name)]
        source: String,
        /// New name
        #[arg(value_parser = some_name)]
        target: String,
    },
    /// Print everything that is known of images, as JSON
    Inspect {
        /// Names or digests
        #[arg(required = true, value_parser = some_name)]
        names: Vec<String>,
    },
    /// Show how an image was built, newest layer first
    History {
        /// Name or digest
        #[arg(value_parser = some_name)]
        name: String,
        /// Print JSON
        #[arg(short, long, value_name = "FORMAT")]
        output: Option<JsonOnly>,
        /// Print commands in full
        #[arg(long)]
        no_trunc: bool,
    },
    /// Remove images by name or digest
    Rm {
        /// Names or digests
        #[arg(required = true, value_parser = some_name)]
        names: Vec<String>,
        /// By ID, remove all names; also what bundles and pods that do not run need. What a container runs from stays
        #[arg(short, long)]
        force: bool,
    },
    /// Remove unreferenced images and layers
    Prune {
        /// Also remove named images that no container uses and no manifest names
        #[arg(short, long)]
        all: bool,
        /// Only print what would be removed, and how much space that would free
        #[arg(long)]
        dry_run: bool,
        /// Do not ask for confirmation
        #[arg(short, long)]
        force: bool,
    },
}

/// `-o` of `coracle image ls`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ImagesFormat {
    /// More columns.
    Wide,
    /// JSON.
    Json,
}

/// `coracle image save`.
#[derive(Debug, Clone, Args)]
pub struct SaveArgs {
    /// Names or digests
    #[arg(required = true)]
    pub names: Vec<String>,
    /// The file to write [default: the standard output]
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

/// `coracle image pull`.
#[derive(Debug, Clone, Args)]
pub struct PullArgs {
    /// The image's name: `nginx:1.25`, `host:5000/name@sha256:…`
    pub name: String,
    /// The platform to pull [default: this machine's]
    #[arg(long, value_name = "OS/ARCH[/VARIANT]")]
    pub platform: Option<String>,
    /// Credentials as `podman login` writes them [default: /etc/coracle/auth.json, read by the agent]
    #[arg(long, value_name = "FILE", conflicts_with = "creds_stdin")]
    pub authfile: Option<PathBuf>,
    /// Read `user:password` from standard input
    #[arg(long)]
    pub creds_stdin: bool,
    /// Print progress and result as lines of JSON
    #[arg(short, long, value_enum)]
    pub output: Option<JsonOnly>,
    /// Print only the image's id
    #[arg(short, long)]
    pub quiet: bool,
}

/// `coracle volume`.
#[derive(Debug, Clone, Subcommand)]
pub enum VolumeCommand {
    /// List what claims are bound to, with use and size
    Ls {
        /// Print JSON
        #[arg(short, long, value_name = "FORMAT")]
        output: Option<JsonOnly>,
    },
    /// Remove what claims are bound to, with the data in their own directories
    Rm {
        /// Claims: NAME or NAMESPACE/NAME
        #[arg(required = true)]
        claims: Vec<String>,
        /// Namespace
        #[command(flatten)]
        namespace: NamespaceArgs,
        /// Do not ask for confirmation
        #[arg(short, long)]
        force: bool,
    },
}

/// `coracle config`.
#[derive(Debug, Clone, Subcommand)]
pub enum ConfigCommand {
    /// Print the settings of the running agent; without an agent, or with --config, those of the files
    #[command(
        after_help = "Examples:\n  coracle config print\n  coracle config print --defaults >/etc/coracle/config.yaml"
    )]
    Print(ConfigPrintArgs),
    /// Check settings, without an agent
    Check {
        /// Settings files, later ones override earlier ones; `-` is standard input [default: /etc/coracle/config.yaml
        /// and config.d]
        files: Vec<PathBuf>,
        /// Also check the files in this directory
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
    /// Print only the defaults
    #[arg(long, conflicts_with_all = ["config", "config_dir"])]
    pub defaults: bool,
    /// Print this file's settings instead of the running agent's
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Add the drop-in files in this directory
    #[arg(long, value_name = "DIR")]
    pub config_dir: Option<PathBuf>,
}

/// Output format of settings.
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
    /// Only print what would be done (for a drain: which pods leave, in which order): none, client or server
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
    /// Name of this node
    #[arg(value_parser = super::super::target::node_name)]
    pub node: Option<String>,
    /// Dry run.
    #[command(flatten)]
    pub dry_run: DryRunArgs,
}

/// `coracle drain`.
#[derive(Debug, Clone, Args)]
pub struct DrainArgs {
    /// Name of this node
    pub node: Option<String>,
    /// Filter pods by label selector, e.g. app=web,tier!=db
    #[arg(short = 'l', long, visible_alias = "selector", value_name = "SELECTOR")]
    pub pod_selector: Option<String>,
    /// Grace period in seconds for each pod, at least 1; a negative value keeps each pod's own
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = -1,
        allow_hyphen_values = true
    )]
    pub grace_period: i64,
    /// Stop waiting after this long, e.g. 5m; 0 waits forever. The drain continues
    #[arg(long, value_name = "DURATION", default_value = "0s")]
    pub timeout: String,
    /// Also evict pods with emptyDir volumes on disk, whose data is deleted
    #[arg(long)]
    pub delete_emptydir_data: bool,
    /// Dry run.
    #[command(flatten)]
    pub dry_run: DryRunArgs,
    /// Accepted for kubectl's sake, no effect: pods without a controller are evicted anyway
    #[arg(long)]
    pub force: bool,
    /// Accepted for kubectl's sake, no effect: pods of DaemonSets are evicted like others
    #[arg(long)]
    pub ignore_daemonsets: bool,
}

/// Whether a command only prints what it would do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum DryRun {
    /// Do it.
    None,
    /// Only print.
    Client,
    /// Only print, after the agent has checked the request.
    Server,
}

/// `coracle shutdown`.
#[derive(Debug, Clone, Args)]
pub struct ShutdownArgs {
    /// Only print the groups, their seconds, and whether logind allows them
    #[arg(long, conflicts_with = "cancel")]
    pub plan: bool,
    /// Print the plan as JSON
    #[arg(short, long, value_name = "FORMAT", requires = "plan")]
    pub output: Option<JsonOnly>,
    /// Cancel the shutdown: the pods start again
    #[arg(long)]
    pub cancel: bool,
}

/// `coracle blackbox`.
#[derive(Debug, Clone, Args)]
pub struct BlackBoxArgs {
    /// Only what is about this pod: NAME or NAMESPACE/NAME
    pub pod: Option<String>,
    /// Show the last lines that each container wrote before it ended
    #[arg(long)]
    pub logs: bool,
    /// Read this file [default: black-box in the agent's state directory]
    #[arg(long, value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Output format.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// `coracle report`.
#[derive(Debug, Clone, Args)]
pub struct ReportArgs {
    /// File to write, with mode 0600, or `-` [default: coracle-report-TIME.tar.gz]
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

/// `coracle healthcheck`.
#[derive(Debug, Clone, Args)]
pub struct HealthArgs {
    /// Wait until healthy, but not longer than this, e.g. 2m
    #[arg(long, value_name = "DURATION", conflicts_with = "history")]
    pub within: Option<String>,
    /// Show the boots that were not healthy
    #[arg(long)]
    pub history: bool,
    /// Where those are recorded [default: unhealthy-boots.json in the agent's state directory]
    #[arg(long, value_name = "FILE")]
    pub record: Option<PathBuf>,
    /// Print nothing
    #[arg(short, long, conflicts_with_all = ["history", "output"])]
    pub quiet: bool,
    /// Output format.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// `coracle install`.
#[derive(Debug, Clone, Args)]
pub struct InstallArgs {
    /// Directory whose `bin` the program goes to
    #[arg(long, value_name = "DIR", default_value = "/usr/local")]
    pub prefix: PathBuf,
    /// Install into the system with this root directory; start nothing
    #[arg(long, value_name = "DIR", conflicts_with = "now")]
    pub root: Option<PathBuf>,
    /// Start the agent, or replace the running one; pods keep running
    #[arg(long)]
    pub now: bool,
}

/// `coracle upgrade`.
#[derive(Debug, Clone, Args)]
pub struct UpgradeArgs {
    /// The new program; `FILE.sig` beside it is its signature
    #[arg(required_unless_present_any = ["status", "rollback", "watch"])]
    pub file: Option<PathBuf>,
    /// Go back unless the new agent is healthy within this time
    #[arg(long, value_name = "TIME", default_value = "2m")]
    pub within: String,
    /// Accept a file without a signature; refused if there are keys
    #[arg(long)]
    pub unsigned: bool,
    /// Show the trial under way, or how the last one ended
    #[arg(long, conflicts_with_all = ["file", "rollback", "watch"])]
    pub status: bool,
    /// Go back to the former program, during the trial or later
    #[arg(long, conflicts_with_all = ["file", "watch"])]
    pub rollback: bool,
    /// Judge the trial under way; the former program does this
    #[arg(long, hide = true, conflicts_with = "file")]
    pub watch: bool,
    /// Directory of the trial's record; by default `upgrade` in the agent's `coracle.rootDir`
    #[arg(long, value_name = "DIR", hide = true)]
    pub state: Option<PathBuf>,
}

/// `coracle uninstall`.
#[derive(Debug, Clone, Args)]
pub struct UninstallArgs {
    /// Directory whose `bin` has the program
    #[arg(long, value_name = "DIR", default_value = "/usr/local")]
    pub prefix: PathBuf,
    /// Stop all pods gracefully first
    #[arg(long)]
    pub stop_pods: bool,
    /// Also remove settings, manifests, images, volumes and logs
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
    /// Directory of state that a reboot discards [default: that of the unit and the settings]
    #[arg(long, value_name = "DIR")]
    pub run_dir: Option<PathBuf>,
}

/// `coracle fsck`.
#[derive(Debug, Clone, Args)]
pub struct FsckArgs {
    /// Remove what is damaged or unused, and get damaged images again; refused while pods run
    #[arg(long)]
    pub repair: bool,
    /// Compare the contents of files, too: all files of all images are read
    #[arg(long)]
    pub deep: bool,
    /// Output format.
    #[command(flatten)]
    pub output: OutputArgs,
    /// Directory of state that survives a reboot [default: the running agent's, else that of unit and settings]
    #[arg(long, value_name = "DIR")]
    pub root: Option<PathBuf>,
    /// Directory of state that a reboot discards [default: likewise]
    #[arg(long, value_name = "DIR")]
    pub run_dir: Option<PathBuf>,
}

/// `coracle doctor`.
#[derive(Debug, Clone, Args)]
pub struct DoctorArgs {
    /// Directory of state that survives a reboot [default: the running agent's, else that of unit and settings]
    #[arg(long, value_name = "DIR")]
    pub root: Option<PathBuf>,
    /// Directory of state that a reboot discards [default: likewise]
    #[arg(long, value_name = "DIR")]
    pub run_dir: Option<PathBuf>,
    /// Directory of pod logs [default: likewise]
    #[arg(long, value_name = "DIR")]
    pub log_dir: Option<PathBuf>,
    /// Print JSON
    #[command(flatten)]
    pub output: OutputArgs,
}

/// `coracle secret …`.
#[derive(Debug, Clone, Subcommand)]
pub enum SecretCommand {
    /// Write a manifest again with the content of its Secrets encrypted with a key of this machine
    ///
    /// Only this machine can read them, by the program `systemd-creds`. Other documents stay as they are.
    #[command(
        after_help = "Examples:\n  coracle secret encrypt db.yaml -o /etc/coracle/manifests/db.yaml\n  coracle secret encrypt - --with-key tpm2 < db.yaml"
    )]
    Encrypt {
        /// Manifest, or `-`
        file: PathBuf,
        /// File to write, with mode 0600, or `-`; may be the manifest itself [default: standard output]
        #[arg(short, long, value_name = "FILE")]
        output: Option<PathBuf>,
        /// Key: of the host (/var/lib/systemd/credential.secret), of its TPM, both, or the best there is
        #[arg(long, value_name = "KEY", default_value = "auto")]
        with_key: CredentialKey,
    },
}

/// Which keys encrypt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum CredentialKey {
    /// The host's.
    #[value(help = "the host's key")]
    Host,
    /// The TPM's.
    #[value(help = "the TPM's key")]
    Tpm2,
    /// Both are needed.
    #[value(name = "host+tpm2", help = "both are needed")]
    HostTpm2,
    /// The best there is.
    #[value(help = "both if there is a TPM, else the host's")]
    Auto,
}

impl CredentialKey {
    /// The word for it that `systemd-creds` knows.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Tpm2 => "tpm2",
            Self::HostTpm2 => "host+tpm2",
            Self::Auto => "auto",
        }
    }
}
