//! The arguments of `coracle convert`.

use std::path::PathBuf;

use clap::Args;

/// `coracle convert`.
#[derive(Debug, Clone, Args)]
pub struct ConvertArgs {
    /// Compose files (later ones override earlier ones), quadlet units, files with `docker run` lines, manifests of
    /// `podman kube generate`, or `-`; without any, the compose file of this directory
    #[arg(value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// A `docker run …` or `podman run …` command
    #[arg(last = true, value_name = "COMMAND", conflicts_with = "files")]
    pub line: Vec<String>,
    /// Write to this file, or a file for each pod to this directory, instead of the standard output
    #[arg(short, long, value_name = "FILE|DIR")]
    pub output: Option<PathBuf>,
    /// Replace files that exist
    #[arg(long)]
    pub force: bool,
    /// Name of the project, which claims and configuration begin with, or of a single container's pod
    #[arg(long)]
    pub name: Option<String>,
    /// Namespace of all objects. Default: none is written
    #[arg(short, long)]
    pub namespace: Option<String>,
    /// Convert the services of this profile, too; `*` for all
    #[arg(long)]
    pub profile: Vec<String>,
    /// File of variables instead of `.env`
    #[arg(long, value_name = "FILE")]
    pub env_file: Vec<PathBuf>,
}
