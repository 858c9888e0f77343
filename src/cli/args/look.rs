//! Arguments of the commands that show something: objects, events, logs, usage.

use clap::{Args, Subcommand, ValueEnum};

use super::super::target::{node_name, pod_name, pod_or_source, some_name};
use super::{JsonOnly, NamespaceArgs};
use crate::spec::WorkloadKind;

/// Options of commands that list: namespaces and output format.
#[derive(Debug, Clone, Args)]
pub struct ListArgs {
    /// Namespace
    #[command(flatten)]
    pub namespace: NamespaceArgs,
    /// All namespaces
    #[arg(short = 'A', long)]
    pub all_namespaces: bool,
    /// wide, json, yaml, name, jsonpath=TEMPLATE or custom-columns=TITLE:PATH,…
    #[arg(short, long, value_name = "FORMAT")]
    pub output: Option<String>,
    /// Keep watching and print changes
    #[arg(short, long)]
    pub watch: bool,
    /// Omit the header line
    #[arg(long)]
    pub no_headers: bool,
}

/// `coracle get`.
#[derive(Debug, Clone, Args)]
pub struct GetArgs {
    /// pods, deployments, statefulsets, daemonsets, replicasets, replicationcontrollers, jobs, cronjobs, services,
    /// endpoints, configmaps, secrets, persistentvolumeclaims (pvc), persistentvolumes (pv), serviceaccounts,
    /// namespaces, priorityclasses, nodes, events, images or files, and names; or KIND/NAME
    #[arg(required = true, value_name = "KIND[,KIND] [NAME]... | KIND/NAME")]
    pub what: Vec<String>,
    /// Namespaces and output format.
    #[command(flatten)]
    pub list: ListArgs,
    /// Show all labels as the last column
    #[arg(long)]
    pub show_labels: bool,
    /// Show a column for each of these labels, e.g. app,tier
    #[arg(short = 'L', long, value_name = "LABEL", value_delimiter = ',')]
    pub label_columns: Vec<String>,
    /// Filter by label selector, e.g. app=web,tier!=db
    #[arg(short = 'l', long)]
    pub selector: Option<String>,
    /// Filter by field selector, e.g. status.phase=Running
    #[arg(long)]
    pub field_selector: Option<String>,
    /// Sort by a field, e.g. .metadata.creationTimestamp
    #[arg(long, value_name = "PATH")]
    pub sort_by: Option<String>,
    /// Say nothing of objects that do not exist
    #[arg(long)]
    pub ignore_not_found: bool,
    /// Show how often events occurred, as `coracle events` does.
    #[arg(skip)]
    pub interval: bool,
}

/// `coracle wait`.
#[derive(Debug, Clone, Args)]
pub struct WaitArgs {
    /// A kind and names, or KIND/NAME
    #[arg(required = true, value_name = "KIND [NAME]... | KIND/NAME")]
    pub what: Vec<String>,
    /// condition=TYPE[=STATUS], jsonpath='{PATH}'[=VALUE], create or delete
    #[arg(long = "for", value_name = "WHAT")]
    pub condition: String,
    /// Give up after this long, e.g. 5m; 0 looks once, a negative value waits for a week
    #[arg(
        long,
        value_name = "DURATION",
        default_value = "30s",
        allow_hyphen_values = true
    )]
    pub timeout: String,
    /// Namespace
    #[command(flatten)]
    pub namespace: NamespaceArgs,
    /// All namespaces
    #[arg(short = 'A', long)]
    pub all_namespaces: bool,
    /// All objects of the kind
    #[arg(long)]
    pub all: bool,
    /// Filter by label selector, e.g. app=web,tier!=db
    #[arg(short = 'l', long)]
    pub selector: Option<String>,
}

/// `coracle events`.
#[derive(Debug, Clone, Args)]
pub struct EventsArgs {
    /// Filter by object, e.g. pod/web, deployment/web or node/box
    #[arg(long = "for", value_name = "KIND/NAME")]
    pub about: Option<String>,
    /// Filter by type: Normal, Warning
    #[arg(long, value_name = "TYPE", value_delimiter = ',')]
    pub types: Vec<String>,
    /// Namespaces and output format.
    #[command(flatten)]
    pub list: ListArgs,
}

/// A kind that `get` shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Resource {
    /// Pods.
    #[value(name = "pods", aliases = ["pod", "po"])]
    Pods,
    /// Deployments.
    #[value(name = "deployments", aliases = ["deployment", "deploy"])]
    Deployments,
    /// StatefulSets.
    #[value(name = "statefulsets", aliases = ["statefulset", "sts"])]
    StatefulSets,
    /// DaemonSets.
    #[value(name = "daemonsets", aliases = ["daemonset", "ds"])]
    DaemonSets,
    /// ReplicaSets.
    #[value(name = "replicasets", aliases = ["replicaset", "rs"])]
    ReplicaSets,
    /// ReplicationControllers.
    #[value(name = "replicationcontrollers", aliases = ["replicationcontroller", "rc"])]
    ReplicationControllers,
    /// Jobs.
    #[value(name = "jobs", aliases = ["job"])]
    Jobs,
    /// CronJobs.
    #[value(name = "cronjobs", aliases = ["cronjob", "cj"])]
    CronJobs,
    /// Services.
    #[value(name = "services", aliases = ["service", "svc"])]
    Services,
    /// The pods behind services.
    #[value(name = "endpoints", aliases = ["endpoint", "ep"])]
    Endpoints,
    /// ConfigMaps.
    #[value(name = "configmaps", aliases = ["configmap", "cm"])]
    ConfigMaps,
    /// Secrets, without their values.
    #[value(name = "secrets", aliases = ["secret"])]
    Secrets,
    /// Service accounts.
    #[value(name = "serviceaccounts", aliases = ["serviceaccount", "sa"])]
    ServiceAccounts,
    /// Namespaces.
    #[value(name = "namespaces", aliases = ["namespace", "ns"])]
    Namespaces,
    /// Claims of storage.
    #[value(name = "persistentvolumeclaims", aliases = ["persistentvolumeclaim", "pvc"])]
    Claims,
    /// Volumes that claims are bound to.
    #[value(name = "persistentvolumes", aliases = ["persistentvolume", "pv"])]
    Volumes,
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

impl Resource {
    /// Whether manifests have documents of this kind, beside pods.
    pub(in crate::cli) fn is_document(self) -> bool {
        match self {
            Self::Pods
            | Self::Endpoints
            | Self::Nodes
            | Self::Events
            | Self::Images
            | Self::Files
            | Self::Volumes => false,
            Self::Services
            | Self::ConfigMaps
            | Self::Secrets
            | Self::ServiceAccounts
            | Self::Namespaces
            | Self::Claims
            | Self::PriorityClasses
            | Self::Deployments
            | Self::StatefulSets
            | Self::DaemonSets
            | Self::ReplicaSets
            | Self::ReplicationControllers
            | Self::Jobs
            | Self::CronJobs => true,
        }
    }

    /// The kind of document, if it is one that stands for pods.
    pub fn workload(self) -> Option<WorkloadKind> {
        match self {
            Self::Deployments => Some(WorkloadKind::Deployment),
            Self::StatefulSets => Some(WorkloadKind::StatefulSet),
            Self::DaemonSets => Some(WorkloadKind::DaemonSet),
            Self::ReplicaSets => Some(WorkloadKind::ReplicaSet),
            Self::ReplicationControllers => Some(WorkloadKind::ReplicationController),
            Self::Jobs => Some(WorkloadKind::Job),
            Self::CronJobs => Some(WorkloadKind::CronJob),
            _ => None,
        }
    }
}

/// `coracle describe`.
#[derive(Debug, Clone, Args)]
pub struct DescribeArgs {
    /// pod, deployment, statefulset, daemonset, replicaset, replicationcontroller, job, cronjob, service, configmap,
    /// secret, persistentvolumeclaim (pvc), persistentvolume (pv), serviceaccount, namespace or node, and names (else
    /// all); or KIND/NAME
    #[arg(required = true, value_name = "KIND [NAME]... | KIND/NAME")]
    pub what: Vec<String>,
    /// Filter by label selector, e.g. app=web,tier!=db
    #[arg(short = 'l', long)]
    pub selector: Option<String>,
    /// Namespace
    #[command(flatten)]
    pub namespace: NamespaceArgs,
    /// All namespaces
    #[arg(short = 'A', long)]
    pub all_namespaces: bool,
    /// Print pods as JSON, with their events, files and cgroup values
    #[arg(short, long, value_name = "FORMAT")]
    pub output: Option<JsonOnly>,
}

/// A kind that `describe` shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum DescribeResource {
    /// A pod.
    #[value(name = "pod", aliases = ["pods", "po"])]
    Pod,
    /// A Deployment, with its pods.
    #[value(name = "deployment", aliases = ["deployments", "deploy"])]
    Deployment,
    /// A StatefulSet, with its pods.
    #[value(name = "statefulset", aliases = ["statefulsets", "sts"])]
    StatefulSet,
    /// A DaemonSet, with its pod.
    #[value(name = "daemonset", aliases = ["daemonsets", "ds"])]
    DaemonSet,
    /// A ReplicaSet, with its pods.
    #[value(name = "replicaset", aliases = ["replicasets", "rs"])]
    ReplicaSet,
    /// A ReplicationController, with its pods.
    #[value(name = "replicationcontroller", aliases = ["replicationcontrollers", "rc"])]
    ReplicationController,
    /// A Job, with its pods.
    #[value(name = "job", aliases = ["jobs"])]
    Job,
    /// A CronJob, with its Jobs that run.
    #[value(name = "cronjob", aliases = ["cronjobs", "cj"])]
    CronJob,
    /// A service.
    #[value(name = "service", aliases = ["services", "svc"])]
    Service,
    /// A ConfigMap.
    #[value(name = "configmap", aliases = ["configmaps", "cm"])]
    ConfigMap,
    /// A Secret, without its values.
    #[value(name = "secret", aliases = ["secrets"])]
    Secret,
    /// A claim: what it is bound to, and who uses it.
    #[value(name = "persistentvolumeclaim", aliases = ["persistentvolumeclaims", "pvc"])]
    Claim,
    /// A volume, and the claim that has it.
    #[value(name = "persistentvolume", aliases = ["persistentvolumes", "pv"])]
    Volume,
    /// A service account.
    #[value(name = "serviceaccount", aliases = ["serviceaccounts", "sa"])]
    ServiceAccount,
    /// A namespace.
    #[value(name = "namespace", aliases = ["namespaces", "ns"])]
    Namespace,
    /// The node.
    #[value(name = "node", aliases = ["nodes", "no"])]
    Node,
}

impl DescribeResource {
    /// The same kind, as `get` knows it.
    pub(in crate::cli) fn listed(self) -> Option<Resource> {
        let value = self.to_possible_value()?;
        Resource::from_str(value.get_name(), true).ok()
    }

    /// The kind of document, if it is one that stands for pods.
    pub fn workload(self) -> Option<WorkloadKind> {
        match self {
            Self::Deployment => Some(WorkloadKind::Deployment),
            Self::StatefulSet => Some(WorkloadKind::StatefulSet),
            Self::DaemonSet => Some(WorkloadKind::DaemonSet),
            Self::ReplicaSet => Some(WorkloadKind::ReplicaSet),
            Self::ReplicationController => Some(WorkloadKind::ReplicationController),
            Self::Job => Some(WorkloadKind::Job),
            Self::CronJob => Some(WorkloadKind::CronJob),
            _ => None,
        }
    }
}

/// `coracle top`.
#[derive(Debug, Clone, Args)]
pub struct TopArgs {
    /// Pods or the node.
    #[command(subcommand)]
    pub command: TopCommand,
}

/// A kind that `top` shows.
#[derive(Debug, Clone, Subcommand)]
pub enum TopCommand {
    /// Show CPU and memory use of pods
    #[command(name = "pods", visible_alias = "pod", alias = "po")]
    Pods(TopPodArgs),
    /// Show CPU and memory use of the node
    #[command(name = "node", visible_alias = "nodes", alias = "no")]
    Nodes(TopNodeArgs),
}

/// `coracle top pods`.
#[derive(Debug, Clone, Args)]
pub struct TopPodArgs {
    /// Only this pod
    #[arg(value_parser = pod_name)]
    pub name: Option<String>,
    /// Namespace
    #[command(flatten)]
    pub namespace: NamespaceArgs,
    /// All namespaces
    #[arg(short = 'A', long)]
    pub all_namespaces: bool,
    /// Show each container
    #[arg(long)]
    pub containers: bool,
    /// Sort, largest first
    #[arg(long, value_name = "WHAT")]
    pub sort_by: Option<SortBy>,
    /// Filter by label selector, e.g. app=web,tier!=db
    #[arg(short = 'l', long)]
    pub selector: Option<String>,
    /// Omit the header line
    #[arg(long)]
    pub no_headers: bool,
}

/// `coracle top node`.
#[derive(Debug, Clone, Args)]
pub struct TopNodeArgs {
    /// The node's name
    #[arg(value_parser = node_name)]
    pub name: Option<String>,
    /// Show percentages of the machine's capacity instead of what pods may use
    #[arg(long)]
    pub show_capacity: bool,
    /// Omit the header line
    #[arg(long)]
    pub no_headers: bool,
}

/// What `top` sorts by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SortBy {
    /// CPU.
    Cpu,
    /// Memory.
    Memory,
}

/// `coracle logs`.
#[derive(Debug, Clone, Args)]
pub struct LogsArgs {
    /// The pod, or KIND/NAME of a Deployment, Job, Service or the like: one of its pods
    #[arg(value_parser = pod_or_source, required_unless_present = "selector")]
    pub pod: Option<String>,
    /// The container, as with -c
    #[arg(value_name = "CONTAINER", value_parser = some_name)]
    pub inline: Vec<String>,
    /// All pods with these labels, e.g. app=web,tier!=db; the last 10 lines of each unless --tail says otherwise
    #[arg(short = 'l', long, conflicts_with = "pod")]
    pub selector: Option<String>,
    /// All pods of KIND/NAME, with --prefix
    #[arg(long, conflicts_with = "selector")]
    pub all_pods: bool,
    /// The container; required if the pod has several
    #[arg(short, long)]
    pub container: Option<String>,
    /// Namespace
    #[command(flatten)]
    pub namespace: NamespaceArgs,
    /// Keep printing as more is written, also by pods of KIND/NAME or a selector that come later
    #[arg(short, long)]
    pub follow: bool,
    /// Print the log of the run before the current one
    #[arg(short, long)]
    pub previous: bool,
    /// Print only the last N lines
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub tail: Option<i64>,
    /// Print only what is newer than this, e.g. 5m or 1h30m
    #[arg(long, value_name = "DURATION", conflicts_with = "since_time")]
    pub since: Option<String>,
    /// Print only what is newer than this time (RFC 3339)
    #[arg(long, value_name = "TIME")]
    pub since_time: Option<String>,
    /// Prefix each line with its time
    #[arg(long)]
    pub timestamps: bool,
    /// All containers: one after the other, with --follow at the same time
    #[arg(long, conflicts_with = "container")]
    pub all_containers: bool,
    /// Follow at most this many containers at the same time
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub max_log_requests: usize,
    /// Go on if a container's log cannot be read
    #[arg(long)]
    pub ignore_errors: bool,
    /// Prefix each line with pod and container
    #[arg(long)]
    pub prefix: bool,
    /// Stop after this many bytes
    #[arg(long, value_name = "N")]
    pub limit_bytes: Option<u64>,
}
