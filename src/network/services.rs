//! Addresses and routes of services: stable addresses for those that have one, and a route for each of their ports.
//! Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;

use super::addresses;
use super::error::NetworkError;
use super::firewall::ServiceRoute;
use super::ranges::Ranges;
use crate::spec::cluster::{Refusal, ServiceEntry};
use crate::spec::service::{ServiceAddress, ServicePort};
use crate::spec::{PodKey, Protocol, Reason};
use crate::types::{Gather, ServiceRange};

/// Whether any service requests a specific address.
pub(super) fn any_given(view: &[ServiceEntry]) -> bool {
    let mut addresses = view.iter().map(|entry| &entry.spec.address);
    addresses.any(|address| matches!(address, ServiceAddress::Given(_)))
}

/// Whether any service has an address or a port on the node that leads somewhere.
pub(super) fn any_served(view: &[ServiceEntry]) -> bool {
    let has_address = |entry: &&ServiceEntry| {
        let address = &entry.spec.address;
        matches!(address, ServiceAddress::Any | ServiceAddress::Given(_))
    };
    let mut own = view.iter().filter(has_address);
    own.any(|entry| !entry.endpoints.is_empty())
}

/// The number of removed services whose numbers are remembered: one that comes back gets its former address.
const REMEMBERED: usize = 1024;

/// Addresses of services, and what they cannot have.
#[derive(Debug, Default)]
pub(super) struct Assigned {
    /// By service, for those that have some.
    pub(super) addresses: BTreeMap<PodKey, Vec<IpAddr>>,
    /// The services that do not have what they ask for.
    pub(super) errors: Vec<(PodKey, NetworkError)>,
}

/// Assigns addresses: first to services that request specific ones, then to those that had one, then to new ones.
/// `numbers` are the numbers assigned so far, by namespace and name, `node` the node's own addresses.
pub(super) fn assign(
    view: &[ServiceEntry],
    ranges: &Ranges,
    node: &BTreeSet<IpAddr>,
    numbers: &mut BTreeMap<String, u32>,
) -> Assigned {
    let mut assigned = Assigned::default();
    let mut owners: BTreeMap<IpAddr, PodKey> = BTreeMap::new();
    for entry in view {
        let key = &entry.spec.key;
        if let ServiceAddress::Given(wanted) = &entry.spec.address {
            let refusals = |address: &IpAddr| refusal(key, *address, node, (&owners, ranges));
            match wanted.iter().find_map(refusals) {
                Some(error) => assigned.errors.push((key.clone(), error)),
                None => {
                    owners.extend(wanted.iter().map(|address| (*address, key.clone())));
                    assigned.addresses.insert(key.clone(), wanted.clone());
                    let strange = wanted.iter().find_map(|a| strange(key, *a, ranges));
                    assigned.errors.extend(strange.map(|e| (key.clone(), e)));
                }
            }
        }
        assigned.errors.extend(family(entry, ranges));
    }
    forget_some(view, numbers);
    let given = |number: u32| {
        let mut own = addresses::addresses(&ranges.services, number).into_iter();
        own.any(|address| owners.contains_key(&address))
    };
    numbers.retain(|_, number| !given(*number));
    for entry in view {
        let key = &entry.spec.key;
        // One that has what was written may ask for an address of the other family beside it.
        let given = match (&entry.spec.address, assigned.addresses.get(key)) {
            (ServiceAddress::Any, _) => Vec::new(),
            (ServiceAddress::Given(_), Some(given)) if entry.spec.families.are_two() => {
                given.clone()
            }
            _ => continue,
        };
        let is_other = |address: &IpAddr| given.iter().all(|g| g.is_ipv4() != address.is_ipv4());
        if !ranges.services.iter().any(|range| is_other(&range.addr())) {
            continue;
        }
        let name = key.to_string();
        let found = number(&name, ranges, numbers, &owners).or_else(|_| {
            // Those of services that are gone are only kept while there is room.
            forget_gone(view, numbers);
            number(&name, ranges, numbers, &owners)
        });
        match found {
            Ok(number) => {
                let chosen = addresses::addresses(&ranges.services, number).into_iter();
                let list: Vec<IpAddr> = given
                    .iter()
                    .copied()
                    .chain(chosen.filter(is_other))
                    .collect();
                let list = entry.spec.families.of(&list);
                assigned.addresses.insert(key.clone(), list);
            }
            Err(error) => assigned.errors.push((key.clone(), error)),
        }
    }
    assigned
}

/// One route for each port of each service that has an address or a port on the node.
pub(super) fn routes(
    view: &[ServiceEntry],
    addresses: &BTreeMap<PodKey, Vec<IpAddr>>,
) -> Vec<ServiceRoute> {
    let mut routes = Vec::new();
    for entry in view {
        let Some(addresses) = addresses.get(&entry.spec.key) else {
            continue;
        };
        for (index, port) in entry.spec.ports.iter().enumerate() {
            routes.push(ServiceRoute {
                name: format!("{}:{}", entry.spec.key, port_name(port)),
                addresses: addresses.clone(),
                protocol: port.protocol,
                port: port.port,
                node_port: port.node_port,
                endpoints: endpoints(entry, index),
                affinity: entry.spec.client_affinity,
            });
        }
    }
    routes
}

/// The service of a route, which its name begins with.
pub(super) fn service_of(route: &str) -> PodKey {
    let service = route.split_once(':').map_or(route, |(service, _)| service);
    let (namespace, name) = service.split_once('/').unwrap_or_default();
    PodKey::new(namespace, name)
}

fn endpoints(entry: &ServiceEntry, port: usize) -> Vec<SocketAddr> {
    let mut list = Vec::new();
    for endpoint in &entry.endpoints {
        if let Some(Some(number)) = endpoint.ports.get(port) {
            let ips = endpoint.ips.iter();
            list.extend(ips.map(|ip| SocketAddr::from((*ip, *number))));
        }
    }
    list
}

fn port_name(port: &ServicePort) -> String {
    if !port.name.is_empty() {
        return port.name.clone();
    }
    let protocol = match port.protocol {
        Protocol::Tcp => "",
        Protocol::Udp => "/UDP",
        Protocol::Sctp => "/SCTP",
    };
    format!("{}{protocol}", port.port)
}

fn number(
    name: &str,
    ranges: &Ranges,
    numbers: &mut BTreeMap<String, u32>,
    owners: &BTreeMap<IpAddr, PodKey>,
) -> Result<u32, NetworkError> {
    if let Some(number) = numbers.get(name) {
        return Ok(*number);
    }
    let mut taken: BTreeSet<u32> = numbers.values().copied().gather();
    // Each requested address blocks at most one number.
    for _ in 0..=owners.len() {
        let number = addresses::pick(&ranges.services, name, &taken)?;
        let own = addresses::addresses(&ranges.services, number);
        if own.iter().any(|address| owners.contains_key(address)) {
            taken.insert(number);
            continue;
        }
        numbers.insert(name.to_owned(), number);
        return Ok(number);
    }
    let range = ranges.services[0];
    Err(super::ranges::RangeError::Full { range }.into())
}

/// Why a service cannot have an address.
fn refusal(
    service: &PodKey,
    address: IpAddr,
    node: &BTreeSet<IpAddr>,
    (owners, ranges): (&BTreeMap<IpAddr, PodKey>, &Ranges),
) -> Option<NetworkError> {
    let service = service.clone();
    let taken = |owner: String| NetworkError::ServiceAddress {
        service: service.clone(),
        address,
        owner,
    };
    if let Some(other) = owners.get(&address) {
        return Some(taken(format!("service {other}")));
    }
    if let Some(range) = ranges.pods.iter().find(|range| range.contains(&address)) {
        return Some(taken(format!("the pod CIDR {}", range.trunc())));
    }
    node.contains(&address)
        .then(|| taken("the node".to_owned()))
}

/// Reports an address outside the ranges. An API server refuses it; here it works, so that Services exported from a cluster
/// with another range can be used.
fn strange(service: &PodKey, address: IpAddr, ranges: &Ranges) -> Option<NetworkError> {
    let valid: Vec<ServiceRange> = ranges.services.iter().map(of_range).collect();
    let is_valid = valid.iter().any(|range| range.holds(address));
    let valid: Vec<String> = valid.iter().map(ServiceRange::to_string).collect();
    (!is_valid).then(|| NetworkError::ServiceRange {
        service: service.clone(),
        address,
        ranges: valid.join(" and "),
    })
}

fn of_range(range: &IpNet) -> ServiceRange {
    ServiceRange::within(range.network(), range.broadcast())
}

/// The family that a service asks for and cannot have. As in Kubernetes, a headless one without a selector may ask for
/// anything: it leads to no pods.
fn family(entry: &ServiceEntry, ranges: &Ranges) -> Option<(PodKey, NetworkError)> {
    let spec = &entry.spec;
    let leads_to_pods = match spec.address {
        ServiceAddress::External(_) => false,
        ServiceAddress::Headless => !spec.selector.is_empty(),
        ServiceAddress::Any | ServiceAddress::Given(_) => true,
    };
    let has = |v4: bool| ranges.pods.iter().any(|net| net.addr().is_ipv4() == v4);
    let family = spec.families.missing(has(true), has(false))?;
    let error = NetworkError::ServiceFamily {
        service: spec.key.clone(),
        family,
    };
    leads_to_pods.then(|| (spec.key.clone(), error))
}

/// What an error means for a service.
pub(super) fn refused(service: &PodKey, error: &NetworkError) -> Refusal {
    let reason = match error {
        NetworkError::ServiceRange { .. } => Reason::ClusterIPOutOfRange,
        NetworkError::ServiceFamily { .. } => Reason::IPFamilyNotConfigured,
        NetworkError::NodePort { .. } => Reason::PortAlreadyAllocated,
        NetworkError::Range(_) => Reason::ServiceCIDRFull,
        _ => Reason::ClusterIPAlreadyAllocated,
    };
    Refusal {
        service: service.clone(),
        reason,
        message: crate::chain(error),
    }
}

/// Numbers of services that are gone are dropped once there are many.
fn forget_some(view: &[ServiceEntry], numbers: &mut BTreeMap<String, u32>) {
    if numbers.len() > REMEMBERED {
        forget_gone(view, numbers);
    }
}

fn forget_gone(view: &[ServiceEntry], numbers: &mut BTreeMap<String, u32>) {
    let there: BTreeSet<String> = view.iter().map(|entry| entry.spec.key.to_string()).gather();
    numbers.retain(|name, _| there.contains(name));
}

#[cfg(test)]
#[path = "services_test.rs"]
mod tests;
