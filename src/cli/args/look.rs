//! What is to be shown: objects, events, logs, figures.

use clap::{Args, Subcommand, ValueEnum};

use super::super::target::{node_name, pod_name};
use super::{JsonOnly, NamespaceArgs};

/// Of which namespaces, and how a list is printed.
#[derive(Debug, Clone, Args)]
pub struct ListArgs {
    /// Namespace
    #[command(flatten)]
    pub namespace: NamespaceArgs,
    /// In all namespaces
    #[arg(short = 'A', long)]
    pub all_namespaces: bool,
    /// wide, json, yaml, name, jsonpath=TEMPLATE or custom-columns=TITLE:PATH,…
    #[arg(short, long, value_name = "FORMAT")]
    pub output: Option<String>,
    /// Go on and print what changes
    #[arg(short, long)]
    pub watch: bool,
    /// Leave out the first line
    #[arg(long)]
    pub no_headers: bool,
}

/// `coracle get`.
#[derive(Debug, Clone, Args)]
pub struct GetArgs {
    /// pods, services, endpoints, priorityclasses, nodes, events, images or files, and names; or KIND/NAME
    #[arg(required = true, value_name = "KIND[,KIND] [NAME]... | KIND/NAME")]
    pub what: Vec<String>,
    /// Of which namespaces, and how it is printed.
    #[command(flatten)]
    pub list: ListArgs,
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
    /// Of which namespaces, and how it is printed.
    #[command(flatten)]
    pub list: ListArgs,
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
    /// `pod`, `service` or `node`, and names, of which the node's may be left out; or KIND/NAME
    #[arg(required = true, value_name = "KIND NAME... | KIND/NAME")]
    pub what: Vec<String>,
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
    #[arg(value_parser = pod_name)]
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
    #[arg(value_parser = node_name)]
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

/// `coracle logs`.
#[derive(Debug, Clone, Args)]
pub struct LogsArgs {
    /// The pod
    #[arg(value_parser = pod_name)]
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
