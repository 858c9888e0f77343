//! The network view: the pods that have an address, and the endpoints of each service.
//!
//! The view is derived from the whole state, and only when [`NodeState::network_changes`] has grown.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use super::state::Sandbox;
use super::{NodeState, PodState};
use crate::spec::cluster::{ClusterView, Endpoint, PodEntry, ServiceEntry};
use crate::spec::{
    ContainerSpec, PodSpec, Protocol, RestartPolicy, ServiceAddress, ServicePort, ServiceSpec,
    TargetPort,
};
use crate::types::InOrder;

/// A pod and its addresses.
type WithIps<'p> = (&'p PodState, Vec<IpAddr>);

/// The value of a label, and the namespace of what has it.
type Value<'p> = (&'p str, &'p str);

/// The current pods and services. `node_ips` are the node's addresses, that of the default route first, or those of the
/// bridge if it has no others; pods on the host network have them. Before the manifests are read the view has no
/// services, and must not be acted on.
pub fn view(state: &NodeState, node_ips: &[IpAddr]) -> ClusterView {
    let node_ips = one_a_family(node_ips);
    let mut pods: Vec<WithIps<'_>> = state
        .pods
        .values()
        .filter(|pod| matches!(pod.sandbox, Sandbox::Ready { .. }))
        .map(|pod| match pod.spec.host_network {
            true => (pod, node_ips.clone()),
            false => (pod, one_a_family(&pod.ips)),
        })
        .filter(|(_, ips)| !ips.is_empty())
        .collect();
    pods.order_by(|(one, _), (two, _)| one.spec.key.cmp(&two.spec.key));
    let services = state.desired.iter().flat_map(|d| d.services.values());
    // A node has few services for many pods, and most services ask for one label, of few names.
    let mut labelled: BTreeMap<&str, BTreeMap<Value<'_>, Vec<&WithIps<'_>>>> = BTreeMap::new();
    for (name, value) in services.clone().filter_map(|service| first_label(service)) {
        labelled.entry(name).or_default().entry(value).or_default();
    }
    for with_ips in &pods {
        let spec = &with_ips.0.spec;
        for (name, value) in spec.manifest.labels() {
            let values = labelled.get_mut(name);
            let pods = values.and_then(|values| values.get_mut(&(value, &*spec.key.namespace)));
            if let Some(pods) = pods {
                pods.push(with_ips);
            }
        }
    }
    let services = services.map(|service| {
        let near = first_label(service);
        let near = near.and_then(|(name, value)| labelled.get(name)?.get(&value));
        ServiceEntry {
            spec: Arc::clone(service),
            endpoints: endpoints(service, near.map(Vec::as_slice).unwrap_or_default()),
        }
    });
    ClusterView {
        services: services.collect(),
        pods: pods.iter().map(|(pod, ips)| entry(pod, ips)).collect(),
    }
}

/// The part of a pod's state that the view depends on, apart from its spec.
pub(super) fn facts(pod: &PodState) -> (bool, bool, bool, bool, Vec<IpAddr>) {
    let live = matches!(pod.sandbox, Sandbox::Ready { .. });
    let (ready, serves) = (is_ready(pod), still_serves(pod));
    (live, ready, serves, pod.finished(), pod.ips.clone())
}

/// A terminating pod is not ready, although its containers still run.
fn is_ready(pod: &PodState) -> bool {
    pod.flags.ready.yes && pod.stopping().is_none() && pod.verdict.is_none()
}

/// Whether a terminating pod still answers.
fn still_serves(pod: &PodState) -> bool {
    pod.flags.ready.yes && pod.stopping().is_some() && pod.verdict.is_none()
}

/// The first address of each family, IPv4 first.
fn one_a_family(ips: &[IpAddr]) -> Vec<IpAddr> {
    let v4 = ips.iter().find(|ip| ip.is_ipv4());
    let v6 = ips.iter().find(|ip| ip.is_ipv6());
    v4.into_iter().chain(v6).copied().collect()
}

fn entry(pod: &PodState, ips: &[IpAddr]) -> PodEntry {
    PodEntry {
        key: pod.spec.key.clone(),
        ips: ips.to_vec(),
        host_network: pod.spec.host_network,
        hostname: pod.spec.hostname.clone(),
        subdomain: pod.spec.given_subdomain.clone(),
        ready: is_ready(pod),
    }
}

/// The first label that pods behind a service have. An empty selector would match every pod, and an `ExternalName`
/// service has no pods.
fn first_label(service: &ServiceSpec) -> Option<(&str, Value<'_>)> {
    let (name, value) = service.selector.first_key_value()?;
    let external = matches!(service.address, ServiceAddress::External(_));
    (!external).then_some((name, (value, &service.key.namespace)))
}

/// The pods behind a service, of those that have its first label. If none is ready, its own address leads to those that
/// still serve while they terminate (KEP-1669).
fn endpoints(service: &ServiceSpec, pods: &[&WithIps<'_>]) -> Vec<Endpoint> {
    let ready = endpoints_of(service, pods, |pod| counts(service, pod));
    if ready.is_empty() && service.address != ServiceAddress::Headless {
        return endpoints_of(service, pods, |pod| {
            selects(service, pod) && still_serves(pod)
        });
    }
    ready
}

fn endpoints_of(
    service: &ServiceSpec,
    pods: &[&WithIps<'_>],
    counts: impl Fn(&PodState) -> bool,
) -> Vec<Endpoint> {
    pods.iter()
        .filter(|(pod, _)| counts(pod))
        .map(|(pod, ips)| Endpoint {
            pod: pod.spec.key.clone(),
            hostname: own_name(service, &pod.spec).map(str::to_owned),
            ips: ips.clone(),
            ports: service
                .ports
                .iter()
                .map(|port| target(port, &pod.spec))
                .collect(),
        })
        .collect()
}

fn counts(service: &ServiceSpec, pod: &PodState) -> bool {
    selects(service, pod) && (service.with_unready || is_ready(pod))
}

fn selects(service: &ServiceSpec, pod: &PodState) -> bool {
    let manifest = &pod.spec.manifest;
    let mut wanted = service.selector.iter();
    wanted.all(|(key, value)| manifest.label(key) == Some(value)) && !pod.finished()
}

fn own_name<'p>(service: &ServiceSpec, pod: &'p PodSpec) -> Option<&'p str> {
    let here = pod.given_subdomain.as_deref() == Some(&*service.key.name);
    pod.given_hostname.as_deref().filter(|_| here)
}

/// The pod's port number for this port of a service.
fn target(port: &ServicePort, pod: &PodSpec) -> Option<u16> {
    match &port.target {
        TargetPort::Number(number) => Some(*number),
        TargetPort::Name(name) => named(name, port.protocol, pod),
    }
}

fn named(name: &str, protocol: Protocol, pod: &PodSpec) -> Option<u16> {
    // Init containers have exited before a port is open, except for sidecars.
    let stays = |c: &&ContainerSpec| c.restart_policy == Some(RestartPolicy::Always);
    let sidecars = pod.init_containers.iter().filter(stays);
    let mut ports = pod.containers.iter().chain(sidecars).flat_map(|c| &c.ports);
    ports
        .find(|p| p.name.as_deref() == Some(name) && p.protocol == protocol)
        .map(|p| p.container_port)
}

#[cfg(test)]
#[path = "network_test.rs"]
mod tests;
