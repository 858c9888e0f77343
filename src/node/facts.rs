//! What is this node? Read once at the start; shown as the Node object and given to pods that ask.

use std::collections::BTreeMap;
use std::fs;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};

use k8s_openapi::api::core::v1::{
    Node, NodeAddress, NodeCondition, NodeSpec, NodeStatus, NodeSwapStatus, NodeSystemInfo,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};

use crate::effects::sandbox::NodeFacts;
use crate::sys::clock;

/// As many pods as a kubelet takes by default.
const MAX_PODS: u32 = 110;

/// What the node is now; its addresses change while it runs.
#[derive(Debug, Clone)]
pub(super) struct Facts(Arc<Mutex<Arc<NodeFacts>>>);

impl Facts {
    pub(super) fn gather(node_name: &str) -> Self {
        Self(Arc::new(Mutex::new(Arc::new(gather(node_name)))))
    }

    pub(super) fn now(&self) -> Arc<NodeFacts> {
        self.0.lock().expect("no panic holds this lock").clone()
    }

    /// Looks at the addresses again, `own` ones left out; whether they are others than before.
    pub(super) fn look_again(&self, own: &[IpAddr]) -> bool {
        let ips = addresses(own);
        let mut facts = self.0.lock().expect("no panic holds this lock");
        let changed = facts.ips != ips;
        if changed {
            *facts = Arc::new(NodeFacts {
                ips,
                ..(**facts).clone()
            });
        }
        changed
    }
}

/// Looks at the machine.
fn gather(node_name: &str) -> NodeFacts {
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get() as u64);
    NodeFacts {
        name: node_name.to_owned(),
        ips: addresses(&[]),
        cpu_milli: cores * 1000,
        memory_bytes: memory_info("MemTotal"),
    }
}

/// A figure of the node's memory in bytes: `MemTotal`, `SwapTotal`. 0 if there is none.
pub(super) fn memory_info(name: &str) -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let figure = text.lines().find_map(|line| {
        let figure = line.strip_prefix(name)?.strip_prefix(':')?;
        figure
            .trim()
            .trim_end_matches("kB")
            .trim()
            .parse::<u64>()
            .ok()
    });
    figure.unwrap_or(0) * 1024
}

/// Global addresses of the node's interfaces that are up, IPv4 first, and those of the default route's interface before
/// others. `own` ones, which only pods see, do not count.
fn addresses(own: &[IpAddr]) -> Vec<IpAddr> {
    let uplink = default_route_interface();
    let mut found: Vec<(bool, bool, IpAddr)> = nix::ifaddrs::getifaddrs()
        .into_iter()
        .flatten()
        .filter(|entry| entry.flags.contains(nix::net::if_::InterfaceFlags::IFF_UP))
        .filter_map(|entry| {
            let address = entry.address?;
            let v4 = address.as_sockaddr_in().map(|a| IpAddr::from(a.ip()));
            let ip = v4.or_else(|| address.as_sockaddr_in6().map(|a| IpAddr::from(a.ip())))?;
            let elsewhere = uplink.as_ref() != Some(&entry.interface_name);
            Some((ip.is_ipv6(), elsewhere, ip))
        })
        .filter(|(_, _, ip)| !ip.is_loopback() && !is_link_local(ip) && !own.contains(ip))
        .collect();
    found.sort_by_key(|(v6, elsewhere, _)| (*v6, *elsewhere));
    found.into_iter().map(|(_, _, ip)| ip).collect()
}

/// The interface of the default route: of IPv4, or else of IPv6.
fn default_route_interface() -> Option<String> {
    let v4 = fs::read_to_string("/proc/net/route").unwrap_or_default();
    let v4 = v4.lines().skip(1).find_map(|line| {
        let mut words = line.split_whitespace();
        let (interface, destination) = (words.next()?, words.next()?);
        let mask = words.nth(5)?;
        (destination == "00000000" && mask == "00000000").then(|| interface.to_owned())
    });
    v4.or_else(|| {
        let v6 = fs::read_to_string("/proc/net/ipv6_route").unwrap_or_default();
        v6.lines().find_map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let everywhere = words.first()?.bytes().all(|b| b == b'0') && *words.get(1)? == "00";
            let interface = *words.get(9)?;
            (everywhere && interface != "lo").then(|| interface.to_owned())
        })
    })
}

fn is_link_local(ip: &IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    }
}

/// Condition `Ready` from now on; `down`: the node shuts down (kubelet-behaviour §12.5).
pub(super) fn ready(down: bool) -> NodeCondition {
    let (status, reason, message) = match down {
        true => ("False", "KubeletNotReady", "node is shutting down"),
        false => ("True", "KubeletReady", "coracle is posting ready status"),
    };
    let now = Time(wall_time());
    NodeCondition {
        type_: "Ready".into(),
        status: status.into(),
        reason: Some(reason.into()),
        message: Some(message.into()),
        last_heartbeat_time: Some(now.clone()),
        last_transition_time: Some(now),
    }
}

/// The Node object.
pub(super) fn node_object(facts: &NodeFacts) -> Node {
    let now = Time(wall_time());
    let quantity = |text: String| Quantity(text);
    let capacity = BTreeMap::from([
        (
            "cpu".to_owned(),
            quantity((facts.cpu_milli / 1000).to_string()),
        ),
        (
            "memory".to_owned(),
            quantity(format!("{}Ki", facts.memory_bytes / 1024)),
        ),
        ("pods".to_owned(), quantity(MAX_PODS.to_string())),
    ]);
    let labels = BTreeMap::from([
        ("kubernetes.io/hostname".to_owned(), facts.name.clone()),
        ("kubernetes.io/os".to_owned(), "linux".to_owned()),
        ("kubernetes.io/arch".to_owned(), architecture().to_owned()),
    ]);
    let address = |type_: &str, address: String| NodeAddress {
        type_: type_.to_owned(),
        address,
    };
    let mut addresses: Vec<NodeAddress> = facts
        .ips
        .iter()
        .map(|ip| address("InternalIP", ip.to_string()))
        .collect();
    addresses.push(address("Hostname", facts.name.to_lowercase()));
    Node {
        metadata: ObjectMeta {
            name: Some(facts.name.clone()),
            uid: Some(facts.name.clone()),
            labels: Some(labels),
            creation_timestamp: Some(now),
            ..ObjectMeta::default()
        },
        spec: Some(NodeSpec::default()),
        status: Some(NodeStatus {
            addresses: Some(addresses),
            allocatable: Some(capacity.clone()),
            capacity: Some(capacity),
            conditions: Some(vec![ready(false)]),
            node_info: Some(system_info()),
            ..NodeStatus::default()
        }),
    }
}

fn system_info() -> NodeSystemInfo {
    let read = |path: &str| {
        fs::read_to_string(path)
            .unwrap_or_default()
            .trim()
            .to_owned()
    };
    let os = read("/etc/os-release");
    let pretty = os
        .lines()
        .find_map(|line| line.strip_prefix("PRETTY_NAME="));
    let version = format!("v{}", env!("CARGO_PKG_VERSION"));
    NodeSystemInfo {
        architecture: architecture().into(),
        boot_id: super::boot::id(),
        container_runtime_version: format!("coracle://{}", env!("CARGO_PKG_VERSION")),
        kernel_version: read("/proc/sys/kernel/osrelease"),
        kubelet_version: version,
        machine_id: read("/etc/machine-id"),
        operating_system: "linux".into(),
        os_image: pretty.unwrap_or("Linux").trim_matches('"').to_owned(),
        system_uuid: read("/sys/class/dmi/id/product_uuid"),
        swap: swap_status(),
        ..NodeSystemInfo::default()
    }
}

/// How much swap there is, if any.
fn swap_status() -> Option<NodeSwapStatus> {
    let bytes = memory_info("SwapTotal");
    (bytes > 0).then(|| NodeSwapStatus {
        capacity: i64::try_from(bytes).ok(),
    })
}

/// Go's name of the architecture, as Kubernetes uses it.
pub(super) fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

fn wall_time() -> k8s_openapi::jiff::Timestamp {
    k8s_openapi::jiff::Timestamp::from_microsecond(clock::wall_us()).unwrap_or_default()
}
