//! `coracle rollout`.

use clap::{ArgAction, Args, Subcommand};

use super::{NamespaceArgs, OutputArgs};

/// `coracle rollout`.
#[derive(Debug, Clone, Subcommand)]
pub enum RolloutCommand {
    /// Wait until a rollout is done, and say how far it is
    #[command(
        after_help = "Exit code: 0 when it is done, 1 if it failed, was taken back, or the time is over.\n\n\
                            Examples:\n  coracle rollout status deployment/web\n  coracle rollout status ds/agent --timeout 2m\n  \
                            coracle rollout status sts/db --watch=false"
    )]
    Status(RolloutStatusArgs),
    /// Show the kept revisions, or one of them
    #[command(
        after_help = "The cause is the annotation `kubernetes.io/change-cause` of the document.\n\n\
                            Examples:\n  coracle rollout history deployment/web\n  coracle rollout history deployment/web --revision 3"
    )]
    History(RolloutHistoryArgs),
    /// Put a former revision in force until the file changes
    #[command(
        after_help = "The file stays as it is; `coracle get files` shows that something else is in force.\n\n\
                            Examples:\n  coracle rollout undo deployment/web\n  coracle rollout undo deployment/web --to-revision 3"
    )]
    Undo(RolloutUndoArgs),
    /// Replace the pods one after the other by new ones of the same template
    #[command(
        after_help = "Examples:\n  coracle rollout restart deployment/web\n  coracle rollout restart sts db cache"
    )]
    Restart(RolloutArgs),
    /// Says how to stop a rollout: `paused: true` in the file
    #[command(hide = true)]
    Pause(RolloutArgs),
    /// Says how to let a rollout go on: `paused: true` in the file
    #[command(hide = true)]
    Resume(RolloutArgs),
}

/// Which documents.
#[derive(Debug, Clone, Args)]
pub struct RolloutArgs {
    /// deployments, statefulsets or daemonsets, and names; or KIND/NAME
    #[arg(required = true, value_name = "KIND NAME... | KIND/NAME")]
    pub what: Vec<String>,
    /// Namespace
    #[command(flatten)]
    pub namespace: NamespaceArgs,
}

/// `coracle rollout status`.
#[derive(Debug, Clone, Args)]
pub struct RolloutStatusArgs {
    /// Which documents.
    #[command(flatten)]
    pub of: RolloutArgs,
    /// Wait for the end; with `--watch=false` only say how far it is
    #[arg(short, long, action = ArgAction::Set, default_value_t = true, num_args = 0..=1, require_equals = true,
          default_missing_value = "true")]
    pub watch: bool,
    /// How long to wait, e.g. 5m; 0: for ever
    #[arg(long, default_value = "0")]
    pub timeout: String,
    /// The revision that is expected to be in force; 0: any
    #[arg(long, default_value_t = 0)]
    pub revision: u64,
}

/// `coracle rollout history`.
#[derive(Debug, Clone, Args)]
pub struct RolloutHistoryArgs {
    /// Which documents.
    #[command(flatten)]
    pub of: RolloutArgs,
    /// Show the template of this revision
    #[arg(long, default_value_t = 0)]
    pub revision: u64,
    /// Print JSON
    #[command(flatten)]
    pub output: OutputArgs,
}

/// `coracle rollout undo`.
#[derive(Debug, Clone, Args)]
pub struct RolloutUndoArgs {
    /// Which documents.
    #[command(flatten)]
    pub of: RolloutArgs,
    /// The revision; 0: the one before
    #[arg(long, default_value_t = 0)]
    pub to_revision: u64,
}
