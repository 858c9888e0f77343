//! What can be typed? The whole command line as types; help texts are short, with examples, as kubectl's are.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

const EXIT_CODES: &str = "Exit codes:
  0  done            1  it failed            2  the command line is wrong
  3  no such pod, image or other object
  `exec`, `attach` and `debug` end with the program's own code; 126 if it cannot be executed, 127 if it is not found";

/// Run Kubernetes pods from files on one Linux box.
#[derive(Debug, Parser)]
#[command(name = "coracle", version, after_help = EXIT_CODES, disable_help_subcommand = true)]
pub struct Cli {
    /// The agent's socket
    #[arg(
        long,
        global = true,
        env = "CORACLE_SOCKET",
        default_value = "/run/coracle/coracle.sock",
        hide_env_values = true
    )]
    pub socket: PathBuf,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// A command.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the node agent in the foreground
    Run(RunArgs),
    /// Show pods, the node, events, images or manifest files
    #[command(
        after_help = "Examples:\n  coracle get pods -A -o wide\n  coracle get pod web -o yaml\n  coracle get events -w"
    )]
    Get(GetArgs),
    /// Show what has happened, the newest last
    #[command(
        after_help = "Examples:\n  coracle events --for pod/web\n  coracle events -A -w --types Warning"
    )]
    Events(EventsArgs),
    /// Show everything about a pod, a service or the node
    #[command(after_help = "Examples:\n  coracle describe pod web\n  coracle describe node")]
    Describe(DescribeArgs),
    /// Show what pods or the node use of processors and memory
    #[command(
        after_help = "Examples:\n  coracle top pods -A --sort-by memory\n  coracle top pod web --containers\n  coracle top node"
    )]
    Top(TopArgs),
    /// Print a container's output
    #[command(
        after_help = "Examples:\n  coracle logs web --tail 20 -f\n  coracle logs web -c sidecar --previous"
    )]
    Logs(LogsArgs),
    /// Run a program in a container
    #[command(after_help = "Examples:\n  coracle exec web -- ls /\n  coracle exec -it web -- sh")]
    Exec(ExecArgs),
    /// Take part in what a container writes and reads
    #[command(
        after_help = "Examples:\n  coracle attach web\n  coracle attach -it web -c shell    (ctrl-p ctrl-q detaches)"
    )]
    Attach(AttachArgs),
    /// Add a container with tools to a running pod
    #[command(
        after_help = "Examples:\n  coracle debug -it web --image busybox\n  coracle debug -it web --image busybox --target app    (sees the processes of `app`)\n  coracle debug -i web --image busybox -- wget -qO- localhost:8080"
    )]
    Debug(DebugArgs),
    /// Stop a pod; it starts again while its manifest file is there
    #[command(
        after_help = "Examples:\n  coracle delete pod web\n  coracle delete pod web --grace-period 5"
    )]
    Delete(DeleteArgs),
    /// Try again now what a pod waits for: a crashed container, an image, a volume
    #[command(
        after_help = "The waits go on growing as if it had tried by itself.\n\nExamples:\n  coracle retry web\n  coracle retry web -c sidecar"
    )]
    Retry(RetryArgs),
    /// Set the conditions that a pod's readiness gates wait for
    #[command(subcommand)]
    Condition(ConditionCommand),
    /// Import, list and remove images
    #[command(subcommand)]
    Image(ImageCommand),
    /// Show the settings and where each comes from, or check a file of settings
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Let no new pods in: they wait until `uncordon`
    #[command(
        after_help = "What runs goes on, and is restarted and edited as ever; a pod that is deleted stays away. Also after reboots.\n\nExamples:\n  coracle cordon"
    )]
    Cordon(NodeArgs),
    /// Stop pods, those of low priority first, and keep them down until `uncordon`
    #[command(
        after_help = "The node is cordoned before. Pods start afresh after `coracle uncordon`, not before, also if the machine is booted meanwhile.\n\n\
                      Examples:\n  coracle drain\n  coracle drain --dry-run\n  coracle drain --grace-period 10 --timeout 2m\n  coracle drain -l tier=front"
    )]
    Drain(DrainArgs),
    /// Let pods in again: those that waited, and those that were drained
    #[command(after_help = "Examples:\n  coracle uncordon")]
    Uncordon(NodeArgs),
    /// Stop all pods, those of low priority first, before the machine goes down
    #[command(
        after_help = "For machines without systemd-logind, and to see what would be done. The pods stay down until the next boot.\n\nExamples:\n  coracle shutdown --plan\n  coracle shutdown && poweroff -f\n  coracle shutdown --cancel"
    )]
    Shutdown(ShutdownArgs),
    /// Check manifests without an agent
    #[command(
        after_help = "Examples:\n  coracle validate web.yaml\n  cat web.yaml | coracle validate -"
    )]
    Validate(ValidateArgs),
    /// Say what saving manifests in the manifest directory would change
    #[command(
        after_help = "Exit code: 0 if nothing would change, 1 if something would, 2 if that could not be found out.\n\n\
                      Examples:\n  coracle plan web.yaml\n  sed s/1.27/1.28/ web.yaml | coracle plan -"
    )]
    Plan(ValidateArgs),
    /// Check whether this machine can run pods, and say how to mend what cannot
    Doctor(DoctorArgs),
    /// Check that all images on disk are whole, without an agent
    #[command(after_help = "Examples:\n  coracle fsck\n  coracle fsck --repair")]
    Fsck(FsckArgs),
    /// Put coracle on this machine for good: the program, its systemd units and directories
    #[command(
        after_help = "Examples:\n  coracle install --now\n  coracle install --root /mnt/image"
    )]
    Install(InstallArgs),
    /// Take coracle off this machine; settings and images stay unless purged
    #[command(after_help = "Examples:\n  coracle uninstall --stop-pods --purge")]
    Uninstall(UninstallArgs),
    /// End all pods without an agent
    #[command(hide = true)]
    EndPods(EndPodsArgs),
    /// Print the version of this program and of the agent
    Version(OutputArgs),
    /// Print a shell completion script
    Completion {
        /// For which shell
        shell: clap_complete::Shell,
    },
    /// Print the manual page
    #[command(hide = true)]
    Man,
}

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
    /// The node's name [default: the host's]
    #[arg(long, value_name = "NAME")]
    pub node_name: Option<String>,
    /// Labels of the node beside kubernetes.io/hostname, /os and /arch
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

/// Namespace choice.
#[derive(Debug, Clone, Args)]
pub struct NamespaceArgs {
    /// Namespace
    #[arg(short, long, default_value = "default")]
    pub namespace: String,
}

/// `-o` of small commands.
#[derive(Debug, Clone, Args)]
pub struct OutputArgs {
    /// Print JSON
    #[arg(short, long, value_name = "FORMAT")]
    pub output: Option<JsonOnly>,
}

/// The only other format of small commands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum JsonOnly {
    /// JSON.
    Json,
}

/// `coracle get`.
#[derive(Debug, Clone, Args)]
pub struct GetArgs {
    /// pods, services, endpoints, priorityclasses, nodes, events, images or files
    pub resource: Resource,
    /// Only these
    pub names: Vec<String>,
    /// Namespace
    #[command(flatten)]
    pub namespace: NamespaceArgs,
    /// In all namespaces
    #[arg(short = 'A', long)]
    pub all_namespaces: bool,
    /// wide, json, yaml, name, or jsonpath=TEMPLATE
    #[arg(short, long, value_name = "FORMAT")]
    pub output: Option<String>,
    /// Go on and print what changes
    #[arg(short, long)]
    pub watch: bool,
    /// Leave out the first line
    #[arg(long)]
    pub no_headers: bool,
    /// All labels as the last column
    #[arg(long)]
    pub show_labels: bool,
    /// A column for each of these labels, e.g. app,tier
    #[arg(short = 'L', long, value_name = "LABEL", value_delimiter = ',')]
    pub label_columns: Vec<String>,
    /// Only what has these labels, e.g. app=web,tier!=db
    #[arg(short = 'l', long)]
    pub selector: Option<String>,
    /// Only what has these fields, e.g. status.phase=Running
    #[arg(long)]
    pub field_selector: Option<String>,
    /// Events are shown with how often, as `coracle events` does.
    #[arg(skip)]
    pub interval: bool,
}

/// `coracle events`.
#[derive(Debug, Clone, Args)]
pub struct EventsArgs {
    /// Only about this, e.g. pod/web or node/box
    #[arg(long = "for", value_name = "KIND/NAME")]
    pub about: Option<String>,
    /// Only of these types: Normal, Warning
    #[arg(long, value_name = "TYPE", value_delimiter = ',')]
    pub types: Vec<String>,
    /// Namespace
    #[command(flatten)]
    pub namespace: NamespaceArgs,
    /// In all namespaces
    #[arg(short = 'A', long)]
    pub all_namespaces: bool,
    /// wide, json, yaml, name, or jsonpath=TEMPLATE
    #[arg(short, long, value_name = "FORMAT")]
    pub output: Option<String>,
    /// Go on and print what happens
    #[arg(short, long)]
    pub watch: bool,
    /// Leave out the first line
    #[arg(long)]
    pub no_headers: bool,
}

/// What `get` can show.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Resource {
    /// Pods.
    #[value(name = "pods", aliases = ["pod", "po"])]
    Pods,
    /// Services.
    #[value(name = "services", aliases = ["service", "svc"])]
    Services,
    /// The pods behind services.
    #[value(name = "endpoints", aliases = ["endpoint", "ep"])]
    Endpoints,
    /// Priority classes.
    #[value(name = "priorityclasses", aliases = ["priorityclass", "pc"])]
    PriorityClasses,
    /// The node.
    #[value(name = "nodes", aliases = ["node", "no"])]
    Nodes,
    /// Events.
    #[value(name = "events", aliases = ["event", "ev"])]
    Events,
    /// Images in the store.
    #[value(name = "images", aliases = ["image"])]
    Images,
    /// Manifest files.
    #[value(name = "files", aliases = ["file"])]
    Files,
}

/// `coracle describe`.
#[derive(Debug, Clone, Args)]
pub struct DescribeArgs {
    /// `pod`, `service` or `node`
    pub resource: DescribeResource,
    /// Its name; the node's may be left out
    pub names: Vec<String>,
    /// Namespace
    #[command(flatten)]
    pub namespace: NamespaceArgs,
    /// Print pods with their events, files and the values of their cgroups as JSON
    #[arg(short, long, value_name = "FORMAT")]
    pub output: Option<JsonOnly>,
}

/// What `describe` knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum DescribeResource {
    /// A pod.
    #[value(name = "pod", aliases = ["pods", "po"])]
    Pod,
    /// A service.
    #[value(name = "service", aliases = ["services", "svc"])]
    Service,
    /// The node.
    #[value(name = "node", aliases = ["nodes", "no"])]
    Node,
}

/// `coracle top`.
#[derive(Debug, Clone, Args)]
pub struct TopArgs {
    /// Of what.
    #[command(subcommand)]
    pub command: TopCommand,
}

/// What `top` knows.
#[derive(Debug, Clone, Subcommand)]
pub enum TopCommand {
    /// What pods use
    #[command(name = "pods", visible_alias = "pod", alias = "po")]
    Pods(TopPodArgs),
    /// What the node uses
    #[command(name = "node", visible_alias = "nodes", alias = "no")]
    Nodes(TopNodeArgs),
}

/// `coracle top pods`.
#[derive(Debug, Clone, Args)]
pub struct TopPodArgs {
    /// Only this one
    pub name: Option<String>,
    /// Namespace
    #[command(flatten)]
    pub namespace: NamespaceArgs,
    /// In all namespaces
    #[arg(short = 'A', long)]
    pub all_namespaces: bool,
    /// Each container by itself
    #[arg(long)]
    pub containers: bool,
    /// The largest first
    #[arg(long, value_name = "WHAT")]
    pub sort_by: Option<SortBy>,
    /// Only what has these labels, e.g. app=web,tier!=db
    #[arg(short = 'l', long)]
    pub selector: Option<String>,
    /// Leave out the first line
    #[arg(long)]
    pub no_headers: bool,
}

/// `coracle top node`.
#[derive(Debug, Clone, Args)]
pub struct TopNodeArgs {
    /// The node's name
    pub name: Option<String>,
    /// Parts of all that there is, not of what pods may have
    #[arg(long)]
    pub show_capacity: bool,
    /// Leave out the first line
    #[arg(long)]
    pub no_headers: bool,
}

/// By what `top` sorts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SortBy {
    /// Processors.
    Cpu,
    /// Memory.
    Memory,
}

/// What `delete` knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum DeleteResource {
    /// A pod.
    #[value(name = "pod", aliases = ["pods", "po"])]
    Pod,
}

/// `coracle logs`.
#[derive(Debug, Clone, Args)]
pub struct LogsArgs {
    /// The pod
    pub pod: String,
    /// The container; needed if the pod has several
    #[arg(short, long)]
    pub container: Option<String>,
    /// Namespace
    #[command(flatten)]
    pub namespace: NamespaceArgs,
    /// Go on as more is written
    #[arg(short, long)]
    pub follow: bool,
    /// Of the run before the current one
    #[arg(short, long)]
    pub previous: bool,
    /// Only so many last lines
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub tail: Option<i64>,
    /// Only what is newer than this long ago, e.g. 5m or 1h30m
    #[arg(long, value_name = "DURATION", conflicts_with = "since_time")]
    pub since: Option<String>,
    /// Only what is newer than this moment (RFC 3339)
    #[arg(long, value_name = "TIME")]
    pub since_time: Option<String>,
    /// Put the time before each line
    #[arg(long)]
    pub timestamps: bool,
    /// All containers, one after the other
    #[arg(long, conflicts_with = "container")]
    pub all_containers: bool,
    /// Put pod and container before each line
    #[arg(long)]
    pub prefix: bool,
    /// Stop after so many bytes
    #[arg(long, value_name = "N")]
    pub limit_bytes: Option<u64>,
}

/// `coracle exec`.
#[derive(Debug, Clone, Args)]
pub struct ExecArgs {
    /// Pass this terminal's or pipe's input on
    #[arg(short = 'i', long)]
    pub stdin: bool,
    /// Give the program a terminal
    #[arg(short, long)]
    pub tty: bool,
    /// The container; needed if the pod has several
    #[arg(short, long)]
    pub container: Option<String>,
    /// Namespace
    #[command(flatten)]
    pub namespace: NamespaceArgs,
    /// The pod
    pub pod: String,
    /// Program and arguments
    #[arg(last = true, required = true)]
    pub command: Vec<String>,
}

/// `coracle attach`.
#[derive(Debug, Clone, Args)]
pub struct AttachArgs {
    /// Pass this terminal's or pipe's input on
    #[arg(short = 'i', long)]
    pub stdin: bool,
    /// The container has a terminal
    #[arg(short, long)]
    pub tty: bool,
    /// The container; needed if the pod has several
    #[arg(short, long)]
    pub container: Option<String>,
    /// Print nothing but what the container does
    #[arg(short, long)]
    pub quiet: bool,
    /// Namespace
    #[command(flatten)]
    pub namespace: NamespaceArgs,
    /// The pod
    pub pod: String,
}

/// `coracle debug`.
#[derive(Debug, Clone, Args)]
pub struct DebugArgs {
    /// The pod
    pub pod: String,
    /// Image of the container
    #[arg(long)]
    pub image: String,
    /// See the processes of this container of the pod
    #[arg(long, value_name = "CONTAINER")]
    pub target: Option<String>,
    /// Name of the new container [default: debugger-xxxxx]
    #[arg(short, long, value_name = "NAME")]
    pub container: Option<String>,
    /// What it may do
    #[arg(long, value_enum, default_value = "general")]
    pub profile: DebugProfile,
    /// Set a variable of its environment; may be given more than once
    #[arg(long, value_name = "NAME=VALUE")]
    pub env: Vec<String>,
    /// Always, IfNotPresent or Never
    #[arg(long, value_name = "POLICY")]
    pub image_pull_policy: Option<String>,
    /// Pass this terminal's or pipe's input on
    #[arg(short = 'i', long)]
    pub stdin: bool,
    /// Give it a terminal
    #[arg(short, long)]
    pub tty: bool,
    /// Wait for it and attach to it [default: with -i]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub attach: Option<bool>,
    /// What follows `--` are arguments of the image's own program
    #[arg(long)]
    pub arguments_only: bool,
    /// Print nothing but what the container does
    #[arg(short, long)]
    pub quiet: bool,
    /// Namespace
    #[command(flatten)]
    pub namespace: NamespaceArgs,
    /// Program and arguments [default: the image's]
    #[arg(last = true)]
    pub command: Vec<String>,
}

/// kubectl's debugging profiles.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum DebugProfile {
    /// May trace processes.
    General,
    /// As any container.
    Baseline,
    /// No root, no capabilities.
    Restricted,
    /// May change the pod's network.
    Netadmin,
    /// May do anything.
    Sysadmin,
}

/// `coracle delete`.
#[derive(Debug, Clone, Args)]
pub struct DeleteArgs {
    /// `pod`
    pub resource: DeleteResource,
    /// Its name
    #[arg(required_unless_present = "all")]
    pub names: Vec<String>,
    /// Namespace
    #[command(flatten)]
    pub namespace: NamespaceArgs,
    /// Seconds between SIGTERM and SIGKILL, instead of the pod's own
    #[arg(long, value_name = "SECONDS")]
    pub grace_period: Option<u32>,
    /// Kill at once
    #[arg(long)]
    pub force: bool,
    /// Same as --grace-period 1
    #[arg(long, conflicts_with_all = ["grace_period", "force"])]
    pub now: bool,
    /// Wait until it has stopped
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set, default_missing_value = "true", num_args = 0..=1, require_equals = true)]
    pub wait: bool,
    /// All pods of the namespace
    #[arg(long, conflicts_with = "names")]
    pub all: bool,
}

/// `coracle retry`.
#[derive(Debug, Clone, Args)]
pub struct RetryArgs {
    /// The pod
    pub pod: String,
    /// Only what this container waits for
    #[arg(short, long)]
    pub container: Option<String>,
    /// Namespace
    #[command(flatten)]
    pub namespace: NamespaceArgs,
}

/// `coracle condition`.
#[derive(Debug, Clone, Subcommand)]
pub enum ConditionCommand {
    /// Set conditions
    #[command(
        after_help = "Examples:\n  coracle condition set web example.com/warm=True\n  coracle condition set web example.com/warm=False --reason Cold --message \"no cache yet\""
    )]
    Set {
        /// The pod
        pod: String,
        /// Conditions, each True, False or Unknown
        #[arg(required = true, value_name = "TYPE=STATUS")]
        conditions: Vec<String>,
        /// One word for programs
        #[arg(long)]
        reason: Option<String>,
        /// A sentence for people
        #[arg(long)]
        message: Option<String>,
        /// Namespace
        #[command(flatten)]
        namespace: NamespaceArgs,
    },
    /// Take conditions away
    Unset {
        /// The pod
        pod: String,
        /// Their types
        #[arg(required = true, value_name = "TYPE")]
        types: Vec<String>,
        /// Namespace
        #[command(flatten)]
        namespace: NamespaceArgs,
    },
    /// Show all conditions of a pod
    #[command(visible_alias = "ls")]
    List {
        /// The pod
        pod: String,
        /// Namespace
        #[command(flatten)]
        namespace: NamespaceArgs,
    },
}

/// `coracle image`.
#[derive(Debug, Clone, Subcommand)]
pub enum ImageCommand {
    /// Import image archives (OCI layout or docker-archive)
    Import {
        /// Archives, or OCI layout directories
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

/// `coracle cordon` and `coracle uncordon`.
#[derive(Debug, Clone, Args)]
pub struct NodeArgs {
    /// This node
    pub node: Option<String>,
    /// Only say what would be done: none, client or server
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

/// `coracle drain`.
#[derive(Debug, Clone, Args)]
pub struct DrainArgs {
    /// This node
    pub node: Option<String>,
    /// Only pods that have these labels, e.g. app=web,tier!=db
    #[arg(short = 'l', long, visible_alias = "selector", value_name = "SELECTOR")]
    pub pod_selector: Option<String>,
    /// Seconds for each pod to end; 0 kills at once, less than 0 leaves each pod its own
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
    /// Only say who would leave, and in which order
    #[arg(
        long,
        value_name = "HOW",
        num_args = 0..=1,
        require_equals = true,
        default_value = "none",
        default_missing_value = "client"
    )]
    pub dry_run: DryRun,
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

/// `coracle validate`.
#[derive(Debug, Clone, Args)]
pub struct ValidateArgs {
    /// Manifests, directories of them, or `-`
    #[arg(required = true)]
    pub paths: Vec<PathBuf>,
    /// Print JSON
    #[command(flatten)]
    pub output: OutputArgs,
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
}

/// `coracle fsck`.
#[derive(Debug, Clone, Args)]
pub struct FsckArgs {
    /// Remove what is damaged or unused; refused while pods run
    #[arg(long)]
    pub repair: bool,
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
    /// State that outlives a reboot
    #[arg(long, value_name = "DIR", default_value = "/var/lib/coracle")]
    pub root: PathBuf,
    /// State that dies with the boot
    #[arg(long, value_name = "DIR", default_value = "/run/coracle")]
    pub run_dir: PathBuf,
    /// Pod logs
    #[arg(long, value_name = "DIR", default_value = "/var/log/pods")]
    pub log_dir: PathBuf,
    /// Print JSON
    #[command(flatten)]
    pub output: OutputArgs,
}
