//! The pods' numbers and the ranges in use. Small files on tmpfs, written before any link is made, so that what a
//! killed agent left can be found and told apart from what is in use.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use ipnet::IpNet;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::NetworkSettings;
use super::addresses;
use super::error::NetworkError;
use super::firewall::{HostPort, PodRules, ServiceRoute};
use super::ranges::Ranges;
use crate::layout::Layout;
use crate::spec::{PodKey, PodSpec, PodUid, Protocol};
use crate::sys::file::{self, Durability};

/// The allocation of one pod: `<run-dir>/pods/<uid>/network.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Allocation {
    /// The pod's name, for people and messages.
    pub(super) pod: PodKey,
    /// The pod's number; everything else follows from it and the ranges.
    pub(super) number: u32,
    /// Its addresses, IPv4 first.
    pub(super) ips: Vec<IpAddr>,
    /// Its interface on the node.
    pub(super) veth: String,
    /// Its hardware address.
    pub(super) mac: [u8; 6],
    /// The ranges it was allocated from.
    pub(super) ranges: Ranges,
}

impl Allocation {
    /// The allocation of pod number `number`.
    pub(super) fn new(pod: &PodSpec, number: u32, ranges: &Ranges, prefix: &str) -> Self {
        Self {
            pod: pod.key.clone(),
            number,
            ips: addresses::addresses(&ranges.pods, number),
            veth: addresses::veth(prefix, number),
            mac: addresses::mac(&ranges.pods, number),
            ranges: ranges.clone(),
        }
    }

    /// The pod's part of the packet rules.
    pub(super) fn rules(&self, host_ports: Vec<HostPort>) -> PodRules {
        PodRules {
            veth: self.veth.clone(),
            mac: self.mac,
            ips: self.ips.clone(),
            host_ports,
        }
    }

    /// Saves it.
    pub(super) fn save(&self, layout: &Layout, pod: &PodUid) -> Result<(), NetworkError> {
        save(&layout.pod_run(pod).network(), self)
    }

    /// Reads a saved allocation; `None` if it cannot be read.
    pub(super) fn load(layout: &Layout, pod: &PodUid) -> Option<Self> {
        load(&layout.pod_run(pod).network())
    }
}

/// The choices for this boot: `<run-dir>/network.json`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Choice {
    /// The pod ranges of the settings.
    pub(super) set_pods: Vec<IpNet>,
    /// The service ranges of the settings.
    pub(super) set_services: Vec<IpNet>,
    /// The ranges chosen.
    pub(super) ranges: Ranges,
    /// Numbers of services in the service ranges, by namespace and name.
    pub(super) services: BTreeMap<String, u32>,
    /// The name of the bridge; empty where an earlier version wrote this.
    #[serde(default)]
    pub(super) bridge: String,
    /// The port of the name server, if that is not 53.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) dns_port: Option<u16>,
}

impl Choice {
    /// Saves it.
    pub(super) fn save(&self, layout: &Layout) -> Result<(), NetworkError> {
        save(&layout.network(), self)
    }

    /// The choices from before the agent restart.
    pub(super) fn load(layout: &Layout) -> Option<Self> {
        load(&layout.network())
    }
}

/// A service route as saved: `<run-dir>/routes.json`. A restarted agent has the routes in force from its first
/// change of the rules on, before it knows the services.
#[derive(Serialize, Deserialize)]
struct Route {
    name: String,
    addresses: Vec<IpAddr>,
    protocol: Protocol,
    port: u16,
    node_port: Option<u16>,
    endpoints: Vec<SocketAddr>,
    affinity: bool,
}

/// Saves the routes in force.
pub(super) fn save_routes(layout: &Layout, routes: &[ServiceRoute]) -> Result<(), NetworkError> {
    let list: Vec<Route> = routes
        .iter()
        .map(|route| Route {
            name: route.name.clone(),
            addresses: route.addresses.clone(),
            protocol: route.protocol,
            port: route.port,
            node_port: route.node_port,
            endpoints: route.endpoints.clone(),
            affinity: route.affinity,
        })
        .collect();
    save(&layout.routes(), &list)
}

/// The routes from before an agent restart.
pub(super) fn load_routes(layout: &Layout) -> Vec<ServiceRoute> {
    let list: Vec<Route> = load(&layout.routes()).unwrap_or_default();
    let routes = list.into_iter().map(|route| ServiceRoute {
        name: route.name,
        addresses: route.addresses,
        protocol: route.protocol,
        port: route.port,
        node_port: route.node_port,
        endpoints: route.endpoints,
        affinity: route.affinity,
    });
    routes.collect()
}

/// The pods below `<run-dir>/pods` that have an allocation file.
pub(super) fn allocated(layout: &Layout) -> Vec<PodUid> {
    let mut found = names_in(&layout.pods_run_dir());
    found.retain(|pod| layout.pod_run(pod).network().exists());
    found
}

/// The bridge that pods are on, if the settings name another one by now.
pub(super) fn bridge_in_use(settings: &NetworkSettings) -> Option<String> {
    let former = former_bridge(settings)?;
    (!allocated(&settings.layout).is_empty()).then_some(former)
}

/// Whether pods have addresses of other ranges than the settings name by now.
pub(super) fn ranges_in_use(settings: &NetworkSettings) -> bool {
    let is_other = |choice: Choice| {
        choice.set_pods != settings.pod_cidrs || choice.set_services != settings.service_cidrs
    };
    let layout = &settings.layout;
    Choice::load(layout).is_some_and(is_other) && !allocated(layout).is_empty()
}

/// The bridge of before, if the settings name another one by now.
pub(super) fn former_bridge(settings: &NetworkSettings) -> Option<String> {
    let former = Choice::load(&settings.layout)?.bridge;
    (!former.is_empty() && former != settings.bridge).then_some(former)
}

/// The pods that have a pin, or the file of one.
pub(super) fn pinned(layout: &Layout) -> Vec<PodUid> {
    names_in(&layout.netns_dir())
}

/// Removes a pod's allocation.
pub(super) fn forget(layout: &Layout, pod: &PodUid) -> Result<(), NetworkError> {
    let path = layout.pod_run(pod).network();
    file::remove_file(&path).map_err(|source| NetworkError::File {
        action: "remove",
        path,
        source,
    })
}

fn names_in(folder: &Path) -> Vec<PodUid> {
    let Ok(entries) = fs::read_dir(folder) else {
        return Vec::new();
    };
    entries
        .flatten()
        .map(|entry| PodUid::from(entry.file_name().to_string_lossy().as_ref()))
        .collect()
}

fn save(path: &Path, value: &impl Serialize) -> Result<(), NetworkError> {
    serde_json::to_vec(value)
        .map_err(io::Error::from)
        .and_then(|bytes| file::replace(path, &bytes, 0o600, Durability::Process))
        .map_err(|source| NetworkError::File {
            action: "write",
            path: path.to_owned(),
            source,
        })
}

fn load<T: DeserializeOwned>(path: &Path) -> Option<T> {
    serde_json::from_slice(&file::read_record(path).ok()?).ok()
}
