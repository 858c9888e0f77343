//! What can be typed? The whole command line as types; help texts are short, with examples, as kubectl's are.

mod look;
mod node;
mod pods;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

pub use look::*;
pub use node::*;
pub use pods::*;

/// Where the agent listens unless it is told another runtime directory.
pub const DEFAULT_SOCKET: &str = "/run/coracle/coracle.sock";

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
        default_value = DEFAULT_SOCKET,
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
    #[command(
        after_help = "Manifests and configs are compared with their digests. Of layers only the unpacked files are kept: their \
                      names, kinds, modes, owners and sizes are compared with those at the import, not their contents, of which \
                      no digests are kept.\n\n\
                      Examples:\n  coracle fsck\n  coracle fsck --repair\n  coracle fsck -o json"
    )]
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
