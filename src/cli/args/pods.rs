//! What is to be done with pods, and in them.

use clap::{Args, Subcommand, ValueEnum};

use super::super::target::{self, pod_name};
use super::{DryRunArgs, NamespaceArgs};
use crate::cli::error::Result;

/// What `delete` knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum DeleteResource {
    /// A pod.
    #[value(name = "pod", aliases = ["pods", "po"])]
    Pod,
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
    #[arg(value_parser = pod_name)]
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
    #[arg(value_parser = pod_name)]
    pub pod: String,
}

/// `coracle debug`.
#[derive(Debug, Clone, Args)]
pub struct DebugArgs {
    /// The pod
    #[arg(value_parser = pod_name)]
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
    /// `pod` and names, or pod/NAME
    #[arg(required = true, value_name = "pod NAME... | pod/NAME")]
    pub what: Vec<String>,
    /// Namespace
    #[command(flatten)]
    pub namespace: NamespaceArgs,
    /// Seconds for the pod to end, instead of its own; 1 at least
    #[arg(long, value_name = "SECONDS")]
    pub grace_period: Option<u32>,
    /// The shortest grace period: 1 second, preStop hook included
    #[arg(long)]
    pub force: bool,
    /// Same as --grace-period 1
    #[arg(long, conflicts_with_all = ["grace_period", "force"])]
    pub now: bool,
    /// Wait until it has stopped
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set, default_missing_value = "true", num_args = 0..=1, require_equals = true)]
    pub wait: bool,
    /// All pods of the namespace
    #[arg(long)]
    pub all: bool,
    /// Whether anything is done
    #[command(flatten)]
    pub dry_run: DryRunArgs,
}

impl DeleteArgs {
    /// The pods that were named.
    pub(in crate::cli) fn names(&self) -> Result<Vec<String>> {
        let found = target::targets::<DeleteResource>(&self.what)?;
        Ok(found.into_iter().flat_map(|(_, names)| names).collect())
    }
}

/// `coracle retry`.
#[derive(Debug, Clone, Args)]
pub struct RetryArgs {
    /// The pod
    #[arg(value_parser = pod_name)]
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
        #[arg(value_parser = pod_name)]
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
        #[arg(value_parser = pod_name)]
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
        #[arg(value_parser = pod_name)]
        pod: String,
        /// Namespace
        #[command(flatten)]
        namespace: NamespaceArgs,
    },
}
