//! The command line as types. Help texts are short and come with examples, like kubectl's.

mod bundle;
mod convert;
mod create;
pub(super) mod flags;
mod look;
mod node;
mod pods;
mod rollout;

use std::path::PathBuf;

use clap::{Arg, Args, Parser, Subcommand, ValueEnum, value_parser};

use crate::spec::PodSecurity;

pub use bundle::*;
pub use convert::*;
pub use create::*;
pub use look::*;
pub use node::*;
pub use pods::*;
pub use rollout::*;

/// The agent's socket in the default runtime directory.
pub const DEFAULT_SOCKET: &str = "/run/coracle/coracle.sock";

const EXIT_CODES: &str = "Exit codes:
  0  done            1  failed            2  invalid command line
  3  no such pod, image or other object
  `exec`, `attach` and `debug` end with the program's own code; 126: not executable, 127: not found";

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
    /// The command to run.
    #[command(subcommand)]
    pub command: Command,
}

/// The agent is behind no socket: its help does not show the global flag.
fn hidden_socket() -> Arg {
    Arg::new("socket")
        .long("socket")
        .value_parser(value_parser!(PathBuf))
        .hide(true)
}

/// A command of `coracle`.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the node agent in the foreground
    #[command(arg = hidden_socket())]
    Run(RunArgs),
    /// Show pods, the node, events, images or manifest files
    #[command(
        after_help = "Examples:\n  coracle get pods -A -o wide\n  coracle get pod web -o yaml\n  coracle get events -w"
    )]
    Get(GetArgs),
    /// Show events, newest last
    #[command(
        after_help = "Examples:\n  coracle events --for pod/web\n  coracle events -A -w --types Warning"
    )]
    Events(EventsArgs),
    /// Show everything about a pod, a service or the node
    #[command(
        after_help = "Examples:\n  coracle describe pod web\n  coracle describe pods -l app=web\n  coracle describe node"
    )]
    Describe(DescribeArgs),
    /// Show CPU and memory use of pods or the node
    #[command(
        after_help = "Examples:\n  coracle top pods -A --sort-by memory\n  coracle top pod web --containers\n  coracle top node"
    )]
    Top(TopArgs),
    /// Print the output of containers
    #[command(
        after_help = "Examples:\n  coracle logs web --tail 20 -f\n  coracle logs web -c sidecar --previous\n  coracle logs svc/web\n  \
                      coracle logs -l app=web --all-containers --prefix -f\n  coracle logs deployment/web --all-pods"
    )]
    Logs(LogsArgs),
    /// Run a program in a container
    #[command(
        after_help = "Examples:\n  coracle exec web -- ls /\n  coracle exec -it web -- sh\n  coracle exec svc/web -- date"
    )]
    Exec(ExecArgs),
    /// Attach to a running container: its output, and with -i its input
    #[command(
        after_help = "Examples:\n  coracle attach web\n  coracle attach -it web -c shell    (ctrl-p ctrl-q detaches)"
    )]
    Attach(AttachArgs),
    /// Copy files to or from a container
    #[command(
        after_help = "Needs no program in the image. A directory is copied into an existing directory, or to a new name; DIR/. stands \
                      for its contents. Links stay links, devices and pipes are left out.\n\n\
                      Exit code: 0 if everything was copied, 1 if something is missing, 3 if there is no such pod or container.\n\n\
                      Examples:\n  coracle cp web:/etc/nginx/nginx.conf .\n  coracle cp ./site shop/web:/srv -c nginx\n  \
                      coracle cp web:/var/log - | tar t"
    )]
    Cp(CpArgs),
    /// Forward local TCP ports to a pod
    #[command(
        after_help = "Connections end at the pod's localhost. Stops with ctrl-c, or when the pod is gone.\n\n\
                      Examples:\n  coracle port-forward web 8080:80\n  coracle port-forward deployment/web 5000 6000\n  \
                      coracle port-forward svc/web :80    (any local port)\n  coracle port-forward --address 0.0.0.0 web 8080:http"
    )]
    PortForward(PortForwardArgs),
    /// Add a debug container to a running pod
    #[command(
        after_help = "Examples:\n  coracle debug -it web --image busybox\n  coracle debug -it web --image busybox --target app    (sees the processes of `app`)\n  coracle debug -i web --image busybox -- wget -qO- localhost:8080"
    )]
    Debug(DebugArgs),
    /// Stop a pod; it starts again while its manifest file is there
    #[command(
        after_help = "Examples:\n  coracle delete pod web\n  coracle delete pod web --grace-period 5\n  coracle delete pods -l app=web --timeout 2m"
    )]
    Delete(DeleteArgs),
    /// Wait until objects have a condition or a value, are there, or are gone
    #[command(
        after_help = "Exit code: 0 if all are as wanted, 1 if the time is over, 3 if an object does not exist.\n\n\
                      Examples:\n  coracle wait pod/web --for=condition=Ready --timeout 2m\n  coracle wait pod --all --for=condition=Ready\n  \
                      coracle wait job/backup --for=condition=Complete --timeout 10m\n  \
                      coracle wait pod/web --for=jsonpath='{.status.phase}'=Running\n  coracle wait pod/web --for=delete"
    )]
    Wait(WaitArgs),
    /// Restart the containers of pods in place, gracefully
    #[command(
        after_help = "The pod stays: same UID, same addresses, same emptyDir volumes. Its containers get their preStop hook, stop \
                      signal and grace period, and start again at once; that is no crash for the back-off. The pods of a Deployment or \
                      the like restart one after the other, each once the one before is ready.\n\n\
                      Examples:\n  coracle restart web\n  coracle restart web -c sidecar --grace-period 5\n  coracle restart deployment/shop\n  coracle restart -l tier=front"
    )]
    Restart(RestartArgs),
    /// Stop pods and keep them down, over reboots too, until `coracle start`
    #[command(
        after_help = "Their files stay as they are. A pod stops as when it is deleted; it gives up its room, its ports and its emptyDir volumes.\n\n\
                      Examples:\n  coracle stop web\n  coracle stop deployment/shop\n  coracle get pods    (shows it as Stopped)\n  coracle start web"
    )]
    Stop(StopArgs),
    /// Start pods that were stopped with `coracle stop`
    #[command(
        after_help = "Examples:\n  coracle start web\n  coracle start deployment/shop\n  coracle start --all"
    )]
    Start(StartArgs),
    /// Retry now what a pod waits for: a crashed container, an image, a volume
    #[command(
        after_help = "The back-off keeps growing as if the pod had retried by itself.\n\nExamples:\n  coracle retry web\n  coracle retry web -c sidecar"
    )]
    Retry(RetryArgs),
    /// Follow, undo and restart rollouts of Deployments, StatefulSets and DaemonSets
    #[command(
        subcommand,
        after_help = "Examples:\n  coracle rollout status deployment/web\n  coracle rollout undo deployment/web\n  coracle rollout restart deployment/web"
    )]
    Rollout(RolloutCommand),
    /// Set the conditions that a pod's readiness gates require
    #[command(subcommand)]
    Condition(ConditionCommand),
    /// Import, pull, save, list and remove images
    #[command(subcommand)]
    Image(ImageCommand),
    /// Bring a box what it is to run: manifests and their images in one file
    #[command(
        subcommand,
        after_help = "Examples:\n  coracle bundle create -o site.tar manifests/*.yaml\n  coracle bundle apply site.tar --ready-within 5m\n  coracle bundle rollback"
    )]
    Bundle(BundleCommand),
    /// List and remove volumes: the directories of claims, which outlive pods and files
    #[command(
        subcommand,
        after_help = "Examples:\n  coracle volume ls\n  coracle volume rm shop/data"
    )]
    Volume(VolumeCommand),
    /// Encrypt the content of Secrets in manifests
    #[command(
        subcommand,
        after_help = "Examples:\n  coracle secret encrypt db.yaml -o /etc/coracle/manifests/db.yaml\n  coracle secret encrypt - --with-key tpm2 < db.yaml"
    )]
    Secret(SecretCommand),
    /// Show the node on one screen: what is not well, why, and what to do
    #[command(after_help = "A pod that was stopped by command is well.\n\n\
                      Exit code: 0 all is well, 1 not all is well or the agent does not answer, 2 invalid command line.\n\n\
                      Examples:\n  coracle status\n  coracle status -o json")]
    Status(OutputArgs),
    /// Show what takes the disk
    #[command(
        subcommand,
        after_help = "Examples:\n  coracle system df\n  coracle system df -v"
    )]
    System(SystemCommand),
    /// Show the settings and where each comes from, or check a settings file
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Admit no new pods: they are held until `uncordon`
    #[command(
        after_help = "Pods that run are still restarted and edited; a deleted pod does not come back. This survives reboots.\n\nExamples:\n  coracle cordon"
    )]
    Cordon(NodeArgs),
    /// Evict pods, lowest priority first, and keep them stopped until `uncordon`
    #[command(
        after_help = "Cordons the node first. Pods start again only after `coracle uncordon`, even if the machine reboots meanwhile.\n\n\
                      Examples:\n  coracle drain\n  coracle drain --dry-run\n  coracle drain --grace-period 10 --timeout 2m\n  coracle drain -l tier=front"
    )]
    Drain(DrainArgs),
    /// Admit pods again: those held and those drained
    #[command(after_help = "Examples:\n  coracle uncordon")]
    Uncordon(NodeArgs),
    /// Show what each pod waited for before it started, and how long
    #[command(
        after_help = "Pods with the annotation `coracle.dev/after` wait (coracle help order). The pod that waited longest comes first.\n\nExamples:\n  coracle boot\n  coracle boot -o json"
    )]
    Boot(OutputArgs),
    /// Show what went wrong, in earlier boots too: exits, OOM kills, evictions, power cuts
    #[command(
        after_help = "Needs no agent. The newest comes last; what happened again in the same way is counted \
                      (coracle help black-box).\n\n\
                      Examples:\n  coracle blackbox\n  coracle blackbox web --logs\n  coracle blackbox -o json"
    )]
    Blackbox(BlackBoxArgs),
    /// Pack what support asks for into one file, without secrets
    #[command(
        after_help = "Works without an agent, with what is there (coracle help black-box).\n\n\
                      Examples:\n  coracle report\n  coracle report -o /mnt/usb/box7.tar.gz"
    )]
    Report(ReportArgs),
    /// Check whether this boot is healthy: the agent, the node, and pods marked as required
    #[command(
        after_help = "Pods with the annotation `coracle.dev/required: \"true\"` have to be ready or completed. A boot that is not \
                      healthy leaves a record (coracle help health).\n\n\
                      Exit code: 0 healthy, 1 not healthy, 2 invalid command line.\n\n\
                      Examples:\n  coracle healthcheck --within 2m\n  coracle healthcheck -o json\n  coracle healthcheck --history"
    )]
    Healthcheck(HealthArgs),
    /// Stop all pods, lowest priority first, before the machine goes down
    #[command(
        after_help = "For machines without systemd-logind; with --plan, shows what would be done. Pods stay stopped until the next boot.\n\nExamples:\n  coracle shutdown --plan\n  coracle shutdown && poweroff -f\n  coracle shutdown --cancel"
    )]
    Shutdown(ShutdownArgs),
    /// Write a manifest for a pod, deployment, job, configmap, secret, service, claim …
    #[command(
        after_help = "Kinds: pod, deployment, statefulset, daemonset, job, cronjob, configmap, secret generic|tls|docker-registry, \
                      service clusterip|nodeport|loadbalancer|externalname, pvc, namespace, serviceaccount, priorityclass.\n\n\
                      Examples:\n  coracle create deployment web --image nginx:1.27 --port 80 --replicas 2 --dry-run=client -o yaml\n  \
                      coracle create job hello --image busybox --save -- echo hello\n  \
                      coracle create configmap app --from-file app.conf --from-literal mode=fast --save\n  \
                      coracle create secret tls site --cert site.crt --key site.key --save\n  \
                      coracle create service nodeport web --tcp 80:8080 -o yaml"
    )]
    Create(Box<CreateArgs>),
    /// Explain fields of manifests and settings: types, values, what is refused
    #[command(after_help = "Without a field, lists the kinds. Needs no agent.\n\n\
                      Examples:\n  coracle explain pod.spec.containers.livenessProbe\n  coracle explain deployment --recursive\n  \
                      coracle explain pod.metadata.annotations\n  coracle explain config.evictionHard")]
    Explain(ExplainArgs),
    /// Check manifests without an agent
    #[command(
        after_help = "Examples:\n  coracle validate web.yaml\n  cat web.yaml | coracle validate -"
    )]
    Validate(ValidateArgs),
    /// Write manifests from a compose file, quadlet units, a `docker run` line or podman's manifests
    #[command(
        after_help = "What cannot be carried over is a comment at its place, and a line on the standard error (coracle help migrate).\n\n\
                      Examples:\n  coracle convert compose.yaml -o /etc/coracle/manifests\n  coracle convert /etc/containers/systemd/*.*\n  \
                      coracle convert -- docker run -d --name web -p 8080:80 nginx:1.27\n  podman kube generate web | coracle convert -"
    )]
    Convert(ConvertArgs),
    /// Show what saving these manifests in the manifest directory would change
    #[command(
        after_help = "Exit code: 0 if nothing would change, 1 if something would, 2 on error.\n\n\
                      Examples:\n  coracle plan web.yaml\n  sed s/1.27/1.28/ web.yaml | coracle plan -"
    )]
    #[command(visible_alias = "diff")]
    Plan(PlanArgs),
    /// Check whether this machine can run pods, with a hint for each problem
    Doctor(DoctorArgs),
    /// Check the images on disk for damage, without an agent
    #[command(
        after_help = "Manifests and configs are compared with their digests. Layers are kept as unpacked files: \
                      their names, types, modes, owners and sizes are compared with those at the import; their contents \
                      with --deep. A repair imports archives of preload directories again, and has a running agent \
                      pull the other images: only what is damaged is downloaded.\n\n\
                      Examples:\n  coracle fsck\n  coracle fsck --deep\n  coracle fsck --deep --repair\n  coracle fsck -o json"
    )]
    Fsck(FsckArgs),
    /// Install coracle on this machine: the program, its systemd units and directories
    #[command(
        after_help = "Examples:\n  coracle install --now\n  coracle install --root /mnt/image"
    )]
    Install(InstallArgs),
    /// Replace the program and the agent; goes back by itself if the new agent is not healthy
    #[command(
        after_help = "The file is signed (FILE.sig) by a key in /etc/coracle/upgrade-keys/*.pub. Pods keep running.\n\n\
                      Examples:\n  coracle upgrade ./coracle-new\n  coracle upgrade ./coracle-new --within 10m\n  coracle upgrade --status\n  coracle upgrade --rollback"
    )]
    Upgrade(UpgradeArgs),
    /// Uninstall coracle; settings and images stay unless purged
    #[command(after_help = "Examples:\n  coracle uninstall --stop-pods --purge")]
    Uninstall(UninstallArgs),
    /// Kill all pods without an agent
    #[command(hide = true)]
    EndPods(EndPodsArgs),
    /// Print the version of this program and of the agent
    Version(OutputArgs),
    /// Print a shell completion script
    #[command(
        after_help = "It completes commands, flags, and the names of pods, containers, images and other objects of the running \
                      agent. The packages bring it along.\n\n\
                      Examples:\n  coracle completion bash > /etc/bash_completion.d/coracle\n  source <(coracle completion bash)"
    )]
    Completion {
        /// Shell to complete for
        shell: Shell,
    },
    /// Print the candidates for the last word of a command line
    #[command(hide = true)]
    Complete {
        /// The words after the program's name
        #[arg(last = true)]
        words: Vec<String>,
    },
    /// Show the manual by topic, or the help of a command
    #[command(after_help = "Examples:\n  coracle help\n  coracle help storage\n  coracle help get")]
    Help {
        /// A topic (`coracle help` lists them), or a command
        topic: Vec<String>,
    },
    /// Print a man page: coracle or coracle-shutdown
    #[command(hide = true)]
    Man {
        /// The page
        #[arg(default_value = "coracle")]
        page: String,
    },
}

/// A shell with completion.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Shell {
    /// bash.
    Bash,
    /// zsh.
    Zsh,
    /// fish.
    Fish,
}

/// `-n`.
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

/// The only output format of small commands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum JsonOnly {
    /// JSON.
    Json,
}

fn pod_security(word: &str) -> Result<PodSecurity, String> {
    let words = PodSecurity::ALL.map(PodSecurity::as_str).join(", ");
    PodSecurity::parse(word).ok_or_else(|| format!("levels are: {words}"))
}

/// `coracle explain`.
#[derive(Debug, Clone, Args)]
pub struct ExplainArgs {
    /// A kind and the path of a field, such as pod.spec.containers; `config` stands for the settings
    #[arg(value_name = "KIND[.FIELD]...")]
    pub what: Option<String>,
    /// Show all fields below, without texts
    #[arg(long)]
    pub recursive: bool,
    /// Print JSON
    #[command(flatten)]
    pub output: OutputArgs,
}

/// Manifests that are checked.
#[derive(Debug, Clone, Args)]
pub struct ManifestsArgs {
    /// Manifests, directories of them, or `-`
    #[arg(required_unless_present = "files")]
    pub paths: Vec<PathBuf>,
    /// The same, as kubectl takes it
    #[arg(short = 'f', long = "filename", value_name = "FILE", hide = true)]
    pub files: Vec<PathBuf>,
    /// Refuse documents of kinds that are not read (Ingress, RBAC …) also beside others, instead of passing over them
    #[arg(long)]
    pub strict: bool,
}

impl ManifestsArgs {
    /// All that is named.
    pub(in crate::cli) fn all_paths(&self) -> impl Iterator<Item = &PathBuf> {
        self.paths.iter().chain(&self.files)
    }
}

/// `coracle validate`.
#[derive(Debug, Clone, Args)]
pub struct ValidateArgs {
    /// What is read.
    #[command(flatten)]
    pub manifests: ManifestsArgs,
    /// Pod Security Standard to check against: privileged, baseline or restricted. Default: that of this machine's
    /// settings, or privileged
    #[arg(long, value_name = "LEVEL", value_parser = pod_security)]
    pub pod_security: Option<PodSecurity>,
    /// Print JSON
    #[command(flatten)]
    pub output: OutputArgs,
}

/// `coracle plan`.
#[derive(Debug, Clone, Args)]
pub struct PlanArgs {
    /// What is read.
    #[command(flatten)]
    pub manifests: ManifestsArgs,
    /// Print JSON
    #[command(flatten)]
    pub output: OutputArgs,
}
