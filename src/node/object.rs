//! The Node object, rebuilt whenever part of it changes (Kubernetes docs: Node Status). Its heartbeat times are set
//! when a client asks: the node is alive then.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{
    ContainerImage, Node as Object, NodeAddress, NodeCondition, NodeFeatures, NodeRuntimeHandler,
    NodeRuntimeHandlerFeatures, NodeSpec, NodeStatus, NodeSwapStatus, NodeSystemInfo, Taint,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use sha2::{Digest, Sha256};

use super::Node;
use super::capacity::{Machine, Shares, quantity, share_out};
use super::standings::{Standing, Standings};
use crate::api::{ImageRow, architecture, version};
use crate::config::{Amounts, Config, Reserved, Settings};
use crate::effects::facts::NodeFacts;
use crate::effects::{app_armor, user_namespace};
use crate::layout::Layout;
use crate::plan::fit::NodeIdentity;
use crate::plan::pressure::{self, Pressure};
use crate::plan::status::time;
use crate::spec::Reason;
use crate::spec::placement::node_labels;
use crate::sys::{file, meminfo};
use crate::types::{Gather, InOrder, Stamp, Wall};

/// The runtime, with the version of the crate.
const RUNTIME: &str = "libcontainer://0.7.0";

/// The maximum number of names listed for each image.
const IMAGE_NAMES: usize = 5;

/// The conditions of the node, in the order in which they are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Condition {
    /// The node is short of something.
    Short(pressure::Condition),
    /// The node can run pods, and is not shutting down.
    Ready,
}

impl Condition {
    pub(super) const ALL: [Self; 4] = [
        Self::Short(pressure::Condition::Memory),
        Self::Short(pressure::Condition::Disk),
        Self::Short(pressure::Condition::Pid),
        Self::Ready,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Short(of) => of.as_str(),
            Self::Ready => "Ready",
        }
    }

    /// Reason and message.
    fn words(self, yes: bool) -> (&'static str, &'static str) {
        match (self, yes) {
            (Self::Short(of), _) => of.why(yes),
            (Self::Ready, true) => ("KubeletReady", "kubelet is posting ready status"),
            (Self::Ready, false) => ("KubeletNotReady", "node is shutting down"),
        }
    }

    /// The reason of the event when it changes.
    fn event(self, yes: bool) -> Reason {
        match (self, yes) {
            (Self::Short(of), _) => of.event(yes),
            (Self::Ready, true) => Reason::NodeReady,
            (Self::Ready, false) => Reason::NodeNotReady,
        }
    }
}

/// The inputs of the object, except those that change elsewhere.
#[derive(Debug)]
pub(super) struct NodeObject {
    machine: Machine,
    reserved: Reserved,
    identity: Arc<NodeIdentity>,
    taints: Vec<Taint>,
    provider_id: String,
    info: NodeSystemInfo,
    /// When an agent ran here for the first time.
    created: Wall,
    standings: Standings,
    images: Vec<ContainerImage>,
    /// Since when the node is cordoned.
    cordoned: Option<Wall>,
}

impl NodeObject {
    /// Blocking. A node that is ready and not under pressure.
    pub(super) fn new(machine: Machine, config: &Config, created: Wall) -> Self {
        Self {
            machine,
            reserved: config.reserved.clone(),
            taints: config.taints.clone(),
            identity: Arc::new(identity(config)),
            provider_id: config.provider_id.clone(),
            info: system_info(),
            created,
            standings: Standings::new(super::now().wall),
            images: Vec::new(),
            cordoned: None,
        }
    }

    /// Blocking. Finds out whether the node can give pods user namespaces: by trial, in the state directory.
    pub(super) fn try_user_namespaces(&mut self, layout: &Layout) {
        Arc::make_mut(&mut self.identity).no_user_namespaces = user_namespace::missing(layout);
    }

    /// The node's name and UID.
    pub(super) fn identity(&self) -> Arc<NodeIdentity> {
        self.identity.clone()
    }

    /// Capacity and allocatable.
    pub(super) fn share_out(&self, settings: &Settings) -> Shares {
        share_out(&self.machine, &self.reserved, settings)
    }

    /// Blocking. Takes the conditions from before an agent restart out of this file, and saves them there.
    pub(super) fn keep_conditions(&mut self, path: PathBuf) {
        self.standings.keep(path);
    }

    /// Sets the thresholds that are met.
    pub(super) fn set_met(&mut self, pressure: &Pressure) {
        self.standings.set_met(pressure);
    }

    /// The pressure that the node was under before the agent restart.
    pub(super) fn pressure(&self, now: Stamp) -> Pressure {
        self.standings.pressure(now)
    }

    /// Sets a condition; returns whether it changed.
    pub(super) fn set(&mut self, condition: Condition, yes: bool, now: Wall) -> bool {
        self.standings.set(condition, yes, now)
    }

    /// The taints of the settings and, as in Kubernetes, the one of a cordoned node.
    fn all_taints(&self) -> Option<Vec<Taint>> {
        let cordon = self.cordoned.map(|since| Taint {
            key: "node.kubernetes.io/unschedulable".to_owned(),
            effect: "NoSchedule".to_owned(),
            time_added: Some(time(since)),
            ..Taint::default()
        });
        let taints: Vec<Taint> = self.taints.iter().cloned().chain(cordon).collect();
        (!taints.is_empty()).then_some(taints)
    }

    /// Sets the images of the node.
    pub(super) fn set_images(&mut self, rows: Vec<ImageRow>) {
        self.images = listed(rows);
    }

    /// The object.
    pub(super) fn render(&self, facts: &NodeFacts, settings: &Settings) -> Object {
        let shares = self.share_out(settings);
        let most = settings.node_status_max_images;
        let most = most.map_or(self.images.len(), |most| {
            self.images.len().min(usize::try_from(most).unwrap_or(0))
        });
        let some = |text: &String| (!text.is_empty()).then(|| text.clone());
        Object {
            metadata: ObjectMeta {
                name: Some(facts.name.clone()),
                uid: Some(uid(&facts.name, &self.info.machine_id)),
                labels: Some(self.identity.labels.clone()),
                creation_timestamp: Some(time(self.created)),
                ..ObjectMeta::default()
            },
            spec: Some(NodeSpec {
                provider_id: some(&self.provider_id),
                taints: self.all_taints(),
                unschedulable: self.cordoned.map(|_| true),
                ..NodeSpec::default()
            }),
            status: Some(NodeStatus {
                addresses: Some(addresses(facts)),
                allocatable: Some(quantities(&shares.allocatable)),
                capacity: Some(quantities(&shares.capacity)),
                features: Some(NodeFeatures {
                    supplemental_groups_policy: Some(true),
                }),
                runtime_handlers: Some(vec![runtime_handler(
                    self.identity.no_user_namespaces.is_none(),
                )]),
                conditions: Some(self.standings.iter().map(condition).collect()),
                images: Some(self.images[..most].to_vec()),
                node_info: Some(self.info.clone()),
                ..NodeStatus::default()
            }),
        }
    }
}

/// What the only runtime can do; it has no name.
fn runtime_handler(user_namespaces: bool) -> NodeRuntimeHandler {
    NodeRuntimeHandler {
        name: Some(String::new()),
        features: Some(NodeRuntimeHandlerFeatures {
            recursive_read_only_mounts: Some(true),
            user_namespaces: Some(user_namespaces),
        }),
    }
}

/// The node's UID, the same as long as name and machine are. It differs from the name: clients ask for a node's
/// events both by its UID and by its name as UID (as kubelets write them), and show both answers.
fn uid(name: &str, machine_id: &str) -> String {
    let digest = Sha256::digest(format!("coracle node {name} {machine_id}"));
    let hex: String = digest[..16].iter().map(|b| format!("{b:02x}")).collect();
    let parts = [
        &hex[..8],
        &hex[8..12],
        &hex[12..16],
        &hex[16..20],
        &hex[20..],
    ];
    parts.join("-")
}

impl Node {
    /// Publishes the node, and reports a condition that has changed.
    pub(super) fn show_node(&mut self) {
        let ready = self.state.shutdown.is_none();
        self.node_stands(Condition::Ready, ready);
        self.object.cordoned = self.state.cordon.as_ref().map(|cordon| cordon.since);
        let facts = self.tools.facts.now();
        let settings = self.tools.sandboxes.settings.now();
        self.shown
            .store
            .set_node(self.object.render(&facts, &settings));
    }

    /// Sets a condition without publishing it; returns whether it changed.
    pub(super) fn node_stands(&mut self, condition: Condition, yes: bool) -> bool {
        let changed = self.object.set(condition, yes, super::now().wall);
        if changed {
            let name = &self.tools.facts.now().name;
            let reason = condition.event(yes);
            let message = format!("Node {name} status is now: {reason}");
            self.shown.node_event(reason, &message);
        }
        changed
    }
}

fn condition((of, standing): &(Condition, Standing)) -> NodeCondition {
    let (reason, message) = of.words(standing.yes);
    NodeCondition {
        type_: of.name().to_owned(),
        status: if standing.yes { "True" } else { "False" }.to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(message.to_owned()),
        last_heartbeat_time: None,
        last_transition_time: Some(time(standing.since)),
    }
}

/// Its name, and the labels that every node has, unless the settings override them.
fn identity(config: &Config) -> NodeIdentity {
    let name = config.node_name.clone();
    NodeIdentity {
        labels: node_labels(&name, architecture(), &config.node_labels),
        name,
        unsafe_sysctls: config.allowed_unsafe_sysctls.clone(),
        app_armor: app_armor::is_enabled(),
        no_user_namespaces: None,
    }
}

fn addresses(facts: &NodeFacts) -> Vec<NodeAddress> {
    let internal = facts.ips.iter().map(|ip| ("InternalIP", ip.to_string()));
    let hostname = ("Hostname", facts.name.to_lowercase());
    internal
        .chain([hostname])
        .map(|(type_, address)| NodeAddress {
            type_: type_.to_owned(),
            address,
        })
        .collect()
}

fn quantities(amounts: &Amounts) -> BTreeMap<String, Quantity> {
    let each = amounts.iter();
    each.map(|(name, amount)| (name.clone(), quantity(name, *amount)))
        .gather()
}

/// The largest images first, with a limited number of names each.
fn listed(mut rows: Vec<ImageRow>) -> Vec<ContainerImage> {
    rows.order_by(|a, b| (b.size_bytes, &a.id).cmp(&(a.size_bytes, &b.id)));
    let image = |mut row: ImageRow| {
        row.names.truncate(IMAGE_NAMES);
        if row.names.is_empty() {
            row.names.push(row.id);
        }
        ContainerImage {
            names: Some(row.names),
            size_bytes: i64::try_from(row.size_bytes).ok(),
        }
    };
    rows.into_iter().map(image).collect()
}

fn system_info() -> NodeSystemInfo {
    let read = |path: &str| {
        let text = file::read_text(path).unwrap_or_default();
        text.trim().trim_end_matches('\0').to_owned()
    };
    let os = read("/etc/os-release");
    let pretty = os
        .lines()
        .find_map(|line| line.strip_prefix("PRETTY_NAME="));
    let machine_id = read("/etc/machine-id");
    // Without a UUID from firmware tables, the device tree may have one.
    let uuids = [
        "/sys/class/dmi/id/product_uuid",
        "/proc/device-tree/system-id",
        "/proc/device-tree/vm,uuid",
    ];
    let uuid = uuids.iter().map(|path| read(path)).find(|t| !t.is_empty());
    NodeSystemInfo {
        architecture: architecture().into(),
        boot_id: super::boot::id(),
        container_runtime_version: RUNTIME.to_owned(),
        kernel_version: read("/proc/sys/kernel/osrelease"),
        kubelet_version: version(),
        system_uuid: uuid.unwrap_or_else(|| machine_id.clone()),
        machine_id,
        operating_system: "linux".into(),
        os_image: pretty.unwrap_or("Linux").trim_matches('"').to_owned(),
        swap: swap_status(),
        ..NodeSystemInfo::default()
    }
}

/// The amount of swap, if any.
fn swap_status() -> Option<NodeSwapStatus> {
    let bytes = meminfo::now("SwapTotal");
    (bytes > 0).then(|| NodeSwapStatus {
        capacity: i64::try_from(bytes).ok(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_runtimes_version_is_the_one_that_is_linked() {
        let lock = include_str!("../../Cargo.lock");
        let version = lock
            .split("[[package]]")
            .find(|package| package.contains("name = \"libcontainer\""))
            .and_then(|package| package.split("version = \"").nth(1)?.split('"').next());
        let linked = format!("libcontainer://{}", version.expect("a dependency"));
        assert_eq!(RUNTIME, linked);
    }

    #[test]
    fn a_node_has_the_labels_that_manifests_select_by() {
        let config = Config {
            node_name: "box".to_owned(),
            node_labels: [("kubernetes.io/hostname".to_owned(), "own".to_owned())].into(),
            ..Config::default()
        };
        let labels = identity(&config).labels;
        let label = |key: &str| labels.get(key).map(String::as_str);
        assert_eq!(label("kubernetes.io/hostname"), Some("own"));
        for key in ["kubernetes.io/os", "beta.kubernetes.io/os"] {
            assert_eq!(label(key), Some("linux"));
        }
        for key in ["kubernetes.io/arch", "beta.kubernetes.io/arch"] {
            assert_eq!(label(key), Some(architecture()));
        }
    }

    #[test]
    fn a_condition_is_as_old_as_its_last_change() {
        let mut object = NodeObject::new(Machine::default(), &Config::default(), Wall(1));
        assert!(!object.set(Condition::Ready, true, Wall(5)));
        assert!(object.set(Condition::Ready, false, Wall(1_000_000)));
        assert!(!object.set(Condition::Ready, false, Wall(9_000_000)));
        let shown = object.render(&NodeFacts::default(), &Settings::default());
        let conditions = shown.status.unwrap().conditions.unwrap();
        let names: Vec<&str> = conditions.iter().map(|c| c.type_.as_str()).collect();
        assert_eq!(
            names,
            ["MemoryPressure", "DiskPressure", "PIDPressure", "Ready"]
        );
        let ready = &conditions[3];
        assert_eq!(ready.status, "False");
        assert_eq!(ready.message.as_deref(), Some("node is shutting down"));
        assert_eq!(ready.last_transition_time, Some(time(Wall(1_000_000))));
        assert_eq!(conditions[0].status, "False");
        assert_eq!(
            conditions[0].reason.as_deref(),
            Some("KubeletHasSufficientMemory")
        );
    }

    #[test]
    fn images_are_listed_the_largest_first_with_five_names_each() {
        let row = |id: &str, names: usize, size_bytes| ImageRow {
            id: id.to_owned(),
            names: (0..names).map(|n| format!("{id}:{n}")).collect(),
            size_bytes,
            created: None,
            preloaded: false,
            in_use: false,
            digest: String::new(),
            users: Vec::new(),
        };
        let mut object = NodeObject::new(Machine::default(), &Config::default(), Wall(1));
        object.set_images(vec![
            row("small", 1, 10),
            row("big", 7, 30),
            row("no", 0, 20),
        ]);
        let shown = |most| {
            let settings = Settings {
                node_status_max_images: most,
                ..Settings::default()
            };
            let shown = object.render(&NodeFacts::default(), &settings);
            let images = shown.status.unwrap().images.unwrap();
            let names = images.into_iter().map(|image| image.names.unwrap());
            names.collect::<Vec<_>>()
        };
        let all = shown(None);
        assert_eq!(all[0], ["big:0", "big:1", "big:2", "big:3", "big:4"]);
        assert_eq!(all[1], ["no"]);
        assert_eq!(all[2], ["small:0"]);
        assert_eq!(shown(Some(2)), all[..2]);
    }
}
