//! Arguments of the commands that act on pods and inside them.

use clap::{Args, Subcommand, ValueEnum, ValueHint};

use super::super::target::{self, pod_name, pod_or_owner, pod_or_source};
use super::{DryRunArgs, NamespaceArgs, Resource};
use crate::cli::error::{CliError, Result};
use crate::cli::get::singular;
use crate::spec::suggest;

/// A kind that `delete` stops.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum DeleteResource {
    /// A pod.
    #[value(name = "pod", aliases = ["pods", "po"])]
    Pod,
}

/// `coracle exec`.
#[derive(Debug, Clone, Args)]
pub struct ExecArgs {
    /// Pass standard input on to the program
    #[arg(short = 'i', long)]
    pub stdin: bool,
    /// Allocate a terminal
    #[arg(short, long)]
    pub tty: bool,
    /// The container; required if the pod has several
    #[arg(short, long)]
    pub container: Option<String>,
    /// Namespace
    #[command(flatten)]
    pub namespace: NamespaceArgs,
    /// The pod, or KIND/NAME of a Deployment, Service or the like: one of its pods
    #[arg(value_parser = pod_or_source)]
    pub pod: String,
    /// Program and arguments
    #[arg(last = true, required = true)]
    pub command: Vec<String>,
}

/// `coracle attach`.
#[derive(Debug, Clone, Args)]
pub struct AttachArgs {
    /// Pass standard input on to the container
    #[arg(short = 'i', long)]
    pub stdin: bool,
    /// Use the container's terminal
    #[arg(short, long)]
    pub tty: bool,
    /// The container; required if the pod has several
    #[arg(short, long)]
    pub container: Option<String>,
    /// Print only the container's output
    #[arg(short, long)]
    pub quiet: bool,
    /// Namespace
    #[command(flatten)]
    pub namespace: NamespaceArgs,
    /// The pod, or KIND/NAME of a Deployment, Service or the like: one of its pods
    #[arg(value_parser = pod_or_source)]
    pub pod: String,
}

/// `coracle cp`.
#[derive(Debug, Clone, Args)]
pub struct CpArgs {
    /// A file or directory here, [NAMESPACE/]POD:PATH in a container, or `-`: a tar archive on standard input
    #[arg(value_hint = ValueHint::AnyPath)]
    pub from: String,
    /// Where to: the other of both; `-`: a tar archive on standard output
    #[arg(value_hint = ValueHint::AnyPath)]
    pub to: String,
    /// The container; required if the pod has several
    #[arg(short, long)]
    pub container: Option<String>,
    /// Namespace
    #[command(flatten)]
    pub namespace: NamespaceArgs,
    /// In the container, keep neither owners nor all permissions: files belong to its user, and its umask applies
    #[arg(long)]
    pub no_preserve: bool,
}

/// `coracle port-forward`.
#[derive(Debug, Clone, Args)]
pub struct PortForwardArgs {
    /// A pod, KIND/NAME of a Deployment or the like, or service/NAME: one of its pods
    #[arg(value_name = "POD | KIND/NAME")]
    pub target: String,
    /// Ports, by number or by name in the manifest
    #[arg(required = true, value_name = "[LOCAL:]REMOTE")]
    pub ports: Vec<String>,
    /// Listen on these addresses of this machine
    #[arg(
        long,
        value_name = "ADDRESS",
        value_delimiter = ',',
        default_value = "localhost"
    )]
    pub address: Vec<String>,
    /// Namespace
    #[command(flatten)]
    pub namespace: NamespaceArgs,
}

/// `coracle debug`.
#[derive(Debug, Clone, Args)]
pub struct DebugArgs {
    /// The pod, or KIND/NAME of a Deployment, Service or the like: one of its pods
    #[arg(value_parser = pod_or_source)]
    pub pod: String,
    /// Image of the debug container
    #[arg(long)]
    pub image: String,
    /// Share the process namespace of this container
    #[arg(long, value_name = "CONTAINER")]
    pub target: Option<String>,
    /// Name of the new container [default: debugger-xxxxx]
    #[arg(short, long, value_name = "NAME")]
    pub container: Option<String>,
    /// Debugging profile, as kubectl's
    #[arg(long, value_enum, default_value = "general")]
    pub profile: DebugProfile,
    /// Set an environment variable; may be given more than once
    #[arg(long, value_name = "NAME=VALUE")]
    pub env: Vec<String>,
    /// Image pull policy: Always, IfNotPresent or Never
    #[arg(long, value_name = "POLICY")]
    pub image_pull_policy: Option<String>,
    /// Pass standard input on to the container
    #[arg(short = 'i', long)]
    pub stdin: bool,
    /// Allocate a terminal
    #[arg(short, long)]
    pub tty: bool,
    /// Wait for the container and attach to it [default: with -i]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub attach: Option<bool>,
    /// Pass what follows `--` as arguments to the image's own program
    #[arg(long)]
    pub arguments_only: bool,
    /// Print only the container's output
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
    /// Like any other container.
    Baseline,
    /// No root, no capabilities.
    Restricted,
    /// May change the pod's network.
    Netadmin,
    /// Privileged.
    Sysadmin,
}

/// `coracle delete`.
#[derive(Debug, Clone, Args)]
pub struct DeleteArgs {
    /// `pod` and names, or pod/NAME
    #[arg(required = true, value_name = "pod [NAME]... | pod/NAME")]
    pub what: Vec<String>,
    /// Namespace
    #[command(flatten)]
    pub namespace: NamespaceArgs,
    /// Grace period in seconds instead of the pod's own; at least 1
    #[arg(long, value_name = "SECONDS")]
    pub grace_period: Option<u32>,
    /// Use the shortest grace period: 1 second, including the preStop hook
    #[arg(long)]
    pub force: bool,
    /// Same as --grace-period 1
    #[arg(long, conflicts_with_all = ["grace_period", "force"])]
    pub now: bool,
    /// Wait until the pod has stopped
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set, default_missing_value = "true", num_args = 0..=1, require_equals = true)]
    pub wait: bool,
    /// How long to wait, for each pod; 0: as long as it takes
    #[arg(long, value_name = "DURATION", default_value = "0")]
    pub timeout: String,
    /// All pods of the namespace
    #[arg(long)]
    pub all: bool,
    /// Pods with these labels, e.g. app=web,tier!=db
    #[arg(short = 'l', long, value_name = "SELECTOR", conflicts_with = "all")]
    pub selector: Option<String>,
    /// Say nothing of pods that do not exist
    #[arg(long)]
    pub ignore_not_found: bool,
    /// Dry run
    #[command(flatten)]
    pub dry_run: DryRunArgs,
}

impl DeleteArgs {
    /// Returns the named pods.
    pub(in crate::cli) fn names(&self) -> Result<Vec<String>> {
        let kind = self
            .what
            .first()
            .map_or("", |word| word.split('/').next().unwrap_or_default());
        if let Ok(resource) = Resource::from_str(kind, true)
            && resource.is_document()
        {
            let kind = singular(resource);
            let kind = kind.split('.').next().unwrap_or_default();
            return Err(CliError::usage(format!("a {kind} goes with its file"))
                .hint("remove its document from the manifest directory; `coracle get files` lists what is there"));
        }
        let found = target::targets::<DeleteResource>(&self.what);
        let found = found.map_err(|error| match self.bare_names() {
            [] => error,
            [name] => error.hint(format!("the pod of that name: coracle delete pod {name}")),
            names => {
                let names = names.join(" ");
                error.hint(format!(
                    "the pods of those names: coracle delete pod {names}"
                ))
            }
        })?;
        Ok(found.into_iter().flat_map(|(_, names)| names).collect())
    }

    /// The words, if they all look like names rather than kinds.
    fn bare_names(&self) -> &[String] {
        let wide = self.all || self.selector.is_some();
        let is_name = |word: &String| {
            let is_kind = Resource::from_str(word, true).is_ok();
            !is_kind && suggest::nearest(word, &["pod"]).is_none() && !word.contains(['/', ','])
        };
        match !wide && self.what.iter().all(is_name) {
            true => &self.what,
            false => &[],
        }
    }
}

/// Which pods `restart`, `stop` and `start` act on, and how long they wait.
#[derive(Debug, Clone, Args)]
pub struct ChosenArgs {
    /// Pods, or KIND/NAME of a Deployment or the like: all of its pods
    #[arg(value_name = "POD | KIND/NAME", value_parser = pod_or_owner)]
    pub what: Vec<String>,
    /// Pods with these labels
    #[arg(short = 'l', long, value_name = "SELECTOR")]
    pub selector: Option<String>,
    /// All pods of the namespace
    #[arg(long)]
    pub all: bool,
    /// Namespace
    #[command(flatten)]
    pub namespace: NamespaceArgs,
    /// Wait until it is done
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set, default_missing_value = "true", num_args = 0..=1, require_equals = true)]
    pub wait: bool,
    /// How long to wait, for each pod
    #[arg(long, value_name = "DURATION", default_value = "5m")]
    pub timeout: String,
}

/// `coracle restart`.
#[derive(Debug, Clone, Args)]
pub struct RestartArgs {
    /// Which pods
    #[command(flatten)]
    pub chosen: ChosenArgs,
    /// Restart only this container
    #[arg(short, long)]
    pub container: Option<String>,
    /// Grace period in seconds instead of the pod's own; at least 1
    #[arg(long, value_name = "SECONDS")]
    pub grace_period: Option<u32>,
}

/// `coracle stop`.
#[derive(Debug, Clone, Args)]
pub struct StopArgs {
    /// Which pods
    #[command(flatten)]
    pub chosen: ChosenArgs,
    /// Grace period in seconds instead of each pod's own; at least 1
    #[arg(long, value_name = "SECONDS")]
    pub grace_period: Option<u32>,
}

/// `coracle start`.
#[derive(Debug, Clone, Args)]
pub struct StartArgs {
    /// Which pods
    #[command(flatten)]
    pub chosen: ChosenArgs,
}

/// `coracle retry`.
#[derive(Debug, Clone, Args)]
pub struct RetryArgs {
    /// The pod, or KIND/NAME of a Deployment or the like: one of its pods
    #[arg(value_parser = pod_or_owner)]
    pub pod: String,
    /// Retry only what this container waits for
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
        #[arg(value_parser = pod_name)]
        pod: String,
        /// Conditions, each True, False or Unknown
        #[arg(required = true, value_name = "TYPE=STATUS")]
        conditions: Vec<String>,
        /// Reason: one CamelCase word
        #[arg(long)]
        reason: Option<String>,
        /// Message for people
        #[arg(long)]
        message: Option<String>,
        /// Namespace
        #[command(flatten)]
        namespace: NamespaceArgs,
    },
    /// Remove conditions
    Unset {
        /// The pod
        #[arg(value_parser = pod_name)]
        pod: String,
        /// Condition types
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
        #[arg(value_parser = pod_name)]
        pod: String,
        /// Namespace
        #[command(flatten)]
        namespace: NamespaceArgs,
    },
}
