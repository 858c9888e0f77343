//! A service as shown to clients: its manifest with its address, and the pods behind it as `Endpoints`.

use std::collections::BTreeMap;
use std::net::IpAddr;

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use crate::spec::Reason;
use crate::spec::cluster::{Endpoint, Refusal, ServiceEntry};
use crate::types::Stamp;

/// The condition of a service that does not have all it asks for. Others do not have the condition, as in Kubernetes,
/// where such a service is refused.
pub const ALLOCATED: &str = "Allocated";

/// The whole service as clients see it. `addresses` are those that the node has assigned, if any; `refused` is what it
/// does not have, since when.
pub fn service<'r>(
    manifest: &core::Service,
    addresses: &[IpAddr],
    refused: impl Iterator<Item = &'r (Refusal, Stamp)>,
) -> core::Service {
    let mut service = manifest.clone();
    service.status = Some(core::ServiceStatus {
        load_balancer: Some(core::LoadBalancerStatus::default()),
        conditions: condition(refused).map(|condition| vec![condition]),
    });
    if let (Some(spec), Some(first)) = (&mut service.spec, addresses.first()) {
        spec.cluster_ip = Some(first.to_string());
        spec.cluster_ips = Some(addresses.iter().map(ToString::to_string).collect());
        let family = |ip: &IpAddr| if ip.is_ipv4() { "IPv4" } else { "IPv6" }.to_owned();
        spec.ip_families = Some(addresses.iter().map(family).collect());
        let policy = match (addresses, &mut spec.ip_family_policy) {
            ([_], Some(given)) => std::mem::take(given),
            (_, Some(given)) if given != "SingleStack" => std::mem::take(given),
            ([_], None) => "SingleStack".to_owned(),
            _ => "PreferDualStack".to_owned(),
        };
        spec.ip_family_policy = Some(policy);
    }
    service
}

/// One condition for everything that the service lacks. Addresses out of range and missing families have events only.
fn condition<'r>(refused: impl Iterator<Item = &'r (Refusal, Stamp)>) -> Option<Condition> {
    const ODD: [Reason; 2] = [Reason::ClusterIPOutOfRange, Reason::IPFamilyNotConfigured];
    let mut refused = refused.filter(|(refusal, _)| !ODD.contains(&refusal.reason));
    let (first, since) = refused.next()?;
    let others = refused.map(|(refusal, _)| refusal.message.as_str());
    let messages: Vec<&str> = [first.message.as_str()].into_iter().chain(others).collect();
    Some(Condition {
        type_: ALLOCATED.to_owned(),
        status: "False".to_owned(),
        reason: first.reason.to_string(),
        message: messages.join("; "),
        last_transition_time: super::time(since.wall),
        observed_generation: None,
    })
}

/// The pods behind a service. Pods with the same ports share one subset.
pub fn endpoints(entry: &ServiceEntry) -> core::Endpoints {
    let mut by_ports: BTreeMap<&[Option<u16>], Vec<&Endpoint>> = BTreeMap::new();
    for endpoint in &entry.endpoints {
        by_ports.entry(&endpoint.ports).or_default().push(endpoint);
    }
    let subsets = by_ports
        .into_iter()
        .map(|(ports, endpoints)| core::EndpointSubset {
            addresses: Some(
                endpoints
                    .into_iter()
                    .flat_map(|e| addresses(entry, e))
                    .collect(),
            ),
            not_ready_addresses: None,
            ports: Some(listed(entry, ports)),
        })
        // A pod without any of the ports is left out.
        .filter(|s| entry.spec.ports.is_empty() || s.ports.as_ref().is_some_and(|p| !p.is_empty()));
    let mut endpoints = core::Endpoints {
        subsets: Some(subsets.collect()),
        ..core::Endpoints::default()
    };
    endpoints.metadata.name = Some(entry.spec.key.name.to_string());
    endpoints.metadata.namespace = Some(entry.spec.key.namespace.to_string());
    endpoints
}

fn listed(entry: &ServiceEntry, numbers: &[Option<u16>]) -> Vec<core::EndpointPort> {
    let ports = entry.spec.ports.iter().zip(numbers);
    ports
        .filter_map(|(port, number)| {
            Some(core::EndpointPort {
                name: Some(port.name.clone()).filter(|name| !name.is_empty()),
                port: i32::from((*number)?),
                protocol: Some(port.protocol.as_str().to_owned()),
                ..core::EndpointPort::default()
            })
        })
        .collect()
}

/// Those of the service's families.
fn addresses(
    entry: &ServiceEntry,
    endpoint: &Endpoint,
) -> impl Iterator<Item = core::EndpointAddress> {
    let ips = entry.spec.families.of(&endpoint.ips);
    ips.into_iter().map(|ip| core::EndpointAddress {
        ip: ip.to_string(),
        hostname: endpoint.hostname.clone(),
        target_ref: Some(core::ObjectReference {
            kind: Some("Pod".to_owned()),
            name: Some(endpoint.pod.name.to_string()),
            namespace: Some(endpoint.pod.namespace.to_string()),
            ..core::ObjectReference::default()
        }),
        ..core::EndpointAddress::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::convert::{ConvertContext, documents};
    use crate::spec::{PodKey, Reason};
    use serde_json::{Value, json};
    use std::sync::Arc;

    const SERVICE: &str = r#"{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"},
        "spec": {"selector": {"a": "b"}, "ports": [{"name": "x", "port": 80}, {"name": "y", "port": 81, "targetPort": "http"}]}}"#;

    fn read() -> crate::spec::ServiceDocument {
        let context = ConvertContext::of("n");
        let found = documents(SERVICE.as_bytes(), "f", &context).unwrap();
        found.services.into_iter().next().unwrap()
    }

    #[test]
    fn no_balancer_leads_to_a_service() {
        let shown = service(&read().manifest, &[], [].iter());
        let shown = serde_json::to_value(shown).unwrap();
        assert_eq!(shown["status"], json!({ "loadBalancer": {} }));
    }

    #[test]
    fn what_a_service_does_not_have_is_a_condition() {
        let refusal = |reason: Reason, message: &str| Refusal {
            service: PodKey::new("default", "web"),
            reason,
            message: message.to_owned(),
        };
        let at = |wall: i64| Stamp {
            time: crate::types::Time(0),
            wall: crate::types::Wall(wall),
        };
        let refused = [
            (refusal(Reason::ClusterIPOutOfRange, "odd"), at(500_000)),
            (
                refusal(Reason::ClusterIPAlreadyAllocated, "no"),
                at(1_000_000),
            ),
            (
                refusal(Reason::PortAlreadyAllocated, "nor that"),
                at(2_000_000),
            ),
        ];
        let shown = service(&read().manifest, &[], refused.iter());
        let shown = serde_json::to_value(shown).unwrap();
        assert_eq!(
            shown["status"]["conditions"],
            json!([{ "type": "Allocated", "status": "False", "reason": "ClusterIPAlreadyAllocated",
                "message": "no; nor that", "lastTransitionTime": "1970-01-01T00:00:01Z" }])
        );
    }

    #[test]
    fn an_address_chosen_by_the_node_is_shown() {
        let manifest = read().manifest;
        let ips = ["10.96.0.1", "fd00::1"].map(|ip| ip.parse().unwrap());
        for (ips, expected) in [
            (
                &ips[..],
                json!([
                    "10.96.0.1",
                    ["10.96.0.1", "fd00::1"],
                    ["IPv4", "IPv6"],
                    "PreferDualStack"
                ]),
            ),
            (
                &ips[..1],
                json!(["10.96.0.1", ["10.96.0.1"], ["IPv4"], "SingleStack"]),
            ),
            (&[], json!([null, null, null, null])),
        ] {
            let shown = serde_json::to_value(service(&manifest, ips, [].iter())).unwrap();
            let spec = &shown["spec"];
            let found = json!([
                spec["clusterIP"],
                spec["clusterIPs"],
                spec["ipFamilies"],
                spec["ipFamilyPolicy"]
            ]);
            assert_eq!(found, expected);
        }
    }

    #[test]
    fn pods_with_the_same_ports_are_one_subset() {
        let endpoint = |name: &str, ip: &str, second| Endpoint {
            pod: crate::spec::PodKey::new("default", name),
            hostname: None,
            ips: vec![ip.parse().unwrap()],
            ports: vec![Some(80), second],
        };
        let entry = ServiceEntry {
            spec: Arc::new(read().spec),
            endpoints: vec![
                endpoint("a", "10.0.0.1", Some(8080)),
                endpoint("b", "10.0.0.2", None),
                endpoint("c", "10.0.0.3", Some(8080)),
            ],
        };
        let shown = serde_json::to_value(endpoints(&entry)).unwrap();
        let subsets: Vec<(Vec<&Value>, Vec<&Value>)> = shown["subsets"]
            .as_array()
            .unwrap()
            .iter()
            .map(|subset| {
                let of = |list: &str, field: &str| {
                    let list = subset[list].as_array().unwrap().iter();
                    list.map(|item| &item[field]).collect::<Vec<_>>()
                };
                (of("addresses", "ip"), of("ports", "port"))
            })
            .collect();
        assert_eq!(
            json!(subsets),
            json!([[["10.0.0.2"], [80]], [["10.0.0.1", "10.0.0.3"], [80, 8080]],])
        );
    }
}
