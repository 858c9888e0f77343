//! Arguments of `coracle create`: those of all kinds together; `cli/create/` knows which belong to which kind.

use std::path::PathBuf;

use clap::{Args, ValueEnum, ValueHint};

use super::{DryRun, NamespaceArgs};

/// `coracle create`.
#[derive(Debug, Clone, Args)]
pub struct CreateArgs {
    /// A kind and a name. Secrets and services have a type before the name: `secret generic NAME`
    #[arg(required = true, value_name = "KIND NAME")]
    pub what: Vec<String>,
    /// The program of the container, and its arguments
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<String>,
    /// Print the manifest: client, or server, which is the same
    #[arg(
        long,
        value_name = "HOW",
        num_args = 0..=1,
        require_equals = true,
        default_value = "none",
        default_missing_value = "client"
    )]
    pub dry_run: DryRun,
    /// Print the manifest: yaml, json or name
    #[arg(short, long, value_name = "FORMAT")]
    pub output: Option<CreateFormat>,
    /// Write the manifest to a new file in the manifest directory; Secrets are for root only
    #[arg(long, conflicts_with = "output")]
    pub save: bool,
    /// Namespace
    #[command(flatten)]
    pub namespace: NamespaceArgs,
    /// Labels, e.g. tier=front,team=a
    #[arg(short = 'l', long, value_name = "KEY=VALUE", value_delimiter = ',')]
    pub labels: Vec<String>,
    /// Image of the container; several make several containers
    #[arg(long, help_heading = PODS)]
    pub image: Vec<String>,
    /// Port that the container listens on
    #[arg(long, help_heading = PODS)]
    pub port: Option<u16>,
    /// Variable of the container
    #[arg(long, value_name = "NAME=VALUE", help_heading = PODS)]
    pub env: Vec<String>,
    /// Number of pods
    #[arg(short, long, value_name = "N", help_heading = PODS)]
    pub replicas: Option<u32>,
    /// Always, OnFailure or Never
    #[arg(long, value_name = "POLICY", help_heading = PODS)]
    pub restart: Option<String>,
    /// When a cronjob runs, e.g. "30 2 * * *"
    #[arg(long, help_heading = PODS)]
    pub schedule: Option<String>,
    /// CronJob that a job is like, e.g. cronjob/backup
    #[arg(long, value_name = "CRONJOB", help_heading = PODS)]
    pub from: Option<String>,
    /// A key with its value
    #[arg(long, value_name = "KEY=VALUE", help_heading = CONTENT)]
    pub from_literal: Vec<String>,
    /// A file as the value of a key, by default its name; or a directory of files
    #[arg(long, value_name = "[KEY=]FILE", help_heading = CONTENT, value_hint = ValueHint::AnyPath)]
    pub from_file: Vec<String>,
    /// A file of KEY=VALUE lines
    #[arg(long, value_name = "FILE", help_heading = CONTENT)]
    pub from_env_file: Vec<PathBuf>,
    /// Type of a generic secret
    #[arg(long = "type", value_name = "TYPE", help_heading = CONTENT)]
    pub kind: Option<String>,
    /// Certificate of a TLS secret, PEM
    #[arg(long, value_name = "FILE", help_heading = CONTENT)]
    pub cert: Option<PathBuf>,
    /// Private key of a TLS secret, PEM
    #[arg(long, value_name = "FILE", help_heading = CONTENT)]
    pub key: Option<PathBuf>,
    /// Registry of a docker-registry secret
    #[arg(long, value_name = "HOST", help_heading = CONTENT)]
    pub docker_server: Option<String>,
    /// User at that registry
    #[arg(long, value_name = "NAME", help_heading = CONTENT)]
    pub docker_username: Option<String>,
    /// Password at that registry
    #[arg(long, value_name = "PASSWORD", help_heading = CONTENT)]
    pub docker_password: Option<String>,
    /// Mail address, for registries that ask for one
    #[arg(long, value_name = "ADDRESS", help_heading = CONTENT)]
    pub docker_email: Option<String>,
    /// Port of a service, and that of its pods
    #[arg(long, value_name = "PORT[:TARGET]", value_delimiter = ',', help_heading = OTHERS)]
    pub tcp: Vec<String>,
    /// Port of the node, of a nodeport service
    #[arg(long, value_name = "PORT", help_heading = OTHERS)]
    pub node_port: Option<u16>,
    /// Address of a service, or None for a headless one
    #[arg(long, value_name = "ADDRESS", help_heading = OTHERS)]
    pub clusterip: Option<String>,
    /// Name that an externalname service stands for
    #[arg(long, value_name = "NAME", help_heading = OTHERS)]
    pub external_name: Option<String>,
    /// Size of a claim
    #[arg(long, value_name = "QUANTITY", help_heading = OTHERS)]
    pub size: Option<String>,
    /// Access mode of a claim; ReadWriteOnce by default
    #[arg(long, value_name = "MODE", help_heading = OTHERS)]
    pub access_mode: Option<String>,
    /// Priority of a priority class
    #[arg(long, value_name = "N", allow_negative_numbers = true, help_heading = OTHERS)]
    pub value: Option<i32>,
    /// Description of a priority class
    #[arg(long, value_name = "TEXT", help_heading = OTHERS)]
    pub description: Option<String>,
    /// Pods without a class get this priority class
    #[arg(long, help_heading = OTHERS)]
    pub global_default: bool,
}

const PODS: &str = "Pods, deployments, statefulsets, daemonsets, jobs, cronjobs";
const CONTENT: &str = "Configmaps and secrets";
const OTHERS: &str = "Services, claims, priority classes";

/// How a manifest is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum CreateFormat {
    /// YAML.
    Yaml,
    /// JSON.
    Json,
    /// KIND/NAME.
    Name,
}
