//! kubectl's columns of a service and of its endpoints, by its printer's rules; used for Tables of the API and by the
//! command line.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Endpoints, Service, ServicePort, ServiceSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::jiff::Timestamp;

use super::pod_columns::age_of;
use crate::plan::status::ALLOCATED;
use crate::spec::Reason;

const NONE: &str = "<none>";

/// Number of endpoints that are listed.
const MAX_ENDPOINTS: usize = 3;

/// NAME, TYPE, CLUSTER-IP, EXTERNAL-IP, PORT(S), AGE and, in wide tables, SELECTOR.
pub fn service(service: &Service, now: Timestamp) -> [String; 7] {
    let none = ServiceSpec::default();
    let spec = service.spec.as_ref().unwrap_or(&none);
    let ports: Vec<String> = spec.ports.iter().flatten().map(port).collect();
    [
        service.metadata.name.clone().unwrap_or_default(),
        spec.type_.clone().unwrap_or_default(),
        or_none(address(service).unwrap_or_default().to_owned()),
        external(spec),
        or_none(ports.join(",")),
        age(&service.metadata, now),
        selector(spec.selector.as_ref()),
    ]
}

/// The first address that a service has, or `None` for text. One that it asks for and does not have is not shown.
pub fn address(service: &Service) -> Option<&str> {
    let status = service.status.iter();
    let mut conditions = status.flat_map(|status| status.conditions.iter().flatten());
    let is_refused = conditions.any(|condition| {
        condition.type_ == ALLOCATED
            && condition.reason == Reason::ClusterIPAlreadyAllocated.as_str()
    });
    let address = service.spec.as_ref()?.cluster_ip.as_deref();
    address.filter(|_| !is_refused)
}

/// NAME, ENDPOINTS, AGE.
pub fn endpoints(endpoints: &Endpoints, now: Timestamp) -> [String; 3] {
    let all = addresses(endpoints, None);
    let more = all.len().saturating_sub(MAX_ENDPOINTS);
    let mut text = all[..all.len() - more].join(",");
    if more > 0 {
        text = format!("{text} + {more} more...");
    }
    [
        endpoints.metadata.name.clone().unwrap_or_default(),
        or_none(text),
        age(&endpoints.metadata, now),
    ]
}

/// Returns `address:port` of all endpoints, or of those for the port with that name; bare addresses if there are no
/// ports.
pub fn addresses(endpoints: &Endpoints, port: Option<&str>) -> Vec<String> {
    let mut result = Vec::new();
    for subset in endpoints.subsets.iter().flatten() {
        let bare = subset.ports.iter().flatten().count() == 0;
        for address in subset.addresses.iter().flatten() {
            if bare && port.is_none() {
                result.push(address.ip.clone());
            }
            for listed in subset.ports.iter().flatten() {
                let name = listed.name.as_deref().unwrap_or_default();
                if port.is_none_or(|wanted| wanted == name) {
                    result.push(match address.ip.contains(':') {
                        true => format!("[{}]:{}", address.ip, listed.port),
                        false => format!("{}:{}", address.ip, listed.port),
                    });
                }
            }
        }
    }
    result
}

/// `app=web,tier=front`
pub fn selector(selector: Option<&BTreeMap<String, String>>) -> String {
    let pairs: Vec<String> = selector
        .into_iter()
        .flatten()
        .map(|(key, value)| format!("{key}={value}"))
        .collect();
    or_none(pairs.join(","))
}

fn port(port: &ServicePort) -> String {
    let protocol = port.protocol.as_deref().unwrap_or("TCP");
    match port.node_port.filter(|number| *number != 0) {
        Some(node) => format!("{}:{node}/{protocol}", port.port),
        None => format!("{}/{protocol}", port.port),
    }
}

fn external(spec: &ServiceSpec) -> String {
    let listed = spec.external_ips.clone().unwrap_or_default().join(",");
    match spec.type_.as_deref() {
        Some("ExternalName") => or_none(spec.external_name.clone().unwrap_or_default()),
        // kubectl shows this until a load balancer answers, and there is none.
        Some("LoadBalancer") if listed.is_empty() => "<pending>".to_owned(),
        _ => or_none(listed),
    }
}

fn age(metadata: &ObjectMeta, now: Timestamp) -> String {
    age_of(metadata.creation_timestamp.as_ref().map(|t| t.0), now)
}

fn or_none(text: String) -> String {
    match text.is_empty() {
        true => NONE.to_owned(),
        false => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn services_look_like_kubectls() {
        let now = Timestamp::from_second(1_000).unwrap();
        for (spec, expected) in [
            (
                json!({"type": "ClusterIP", "clusterIP": "10.0.0.1", "ports": [{"port": 80, "protocol": "TCP"}], "selector": {"b": "c", "a": "b"}}),
                ["ClusterIP", "10.0.0.1", NONE, "80/TCP", "a=b,b=c"],
            ),
            (
                json!({"type": "NodePort", "clusterIP": "10.0.0.1", "ports": [{"port": 80, "nodePort": 30080}, {"port": 53, "protocol": "UDP"}]}),
                ["NodePort", "10.0.0.1", NONE, "80:30080/TCP,53/UDP", NONE],
            ),
            (
                json!({"type": "ClusterIP", "clusterIP": "None"}),
                ["ClusterIP", "None", NONE, NONE, NONE],
            ),
            (
                json!({"type": "ExternalName", "externalName": "a.b"}),
                ["ExternalName", NONE, "a.b", NONE, NONE],
            ),
            (
                json!({"type": "LoadBalancer", "clusterIP": "10.0.0.1", "ports": [{"port": 80}]}),
                ["LoadBalancer", "10.0.0.1", "<pending>", "80/TCP", NONE],
            ),
        ] {
            let object = json!({"apiVersion": "v1", "kind": "Service",
                "metadata": {"name": "web", "creationTimestamp": "1970-01-01T00:16:30Z"}, "spec": spec});
            let [name, kind, ip, external, ports, age, selector] =
                service(&serde_json::from_value(object).unwrap(), now);
            assert_eq!((name.as_str(), age.as_str()), ("web", "10s"));
            assert_eq!([kind, ip, external, ports, selector], expected);
        }
    }

    #[test]
    fn an_address_that_a_service_does_not_have_is_not_shown() {
        for (reason, shown) in [
            ("ClusterIPAlreadyAllocated", None),
            ("PortAlreadyAllocated", Some("10.0.0.1")),
        ] {
            let object = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"},
                "spec": {"clusterIP": "10.0.0.1"},
                "status": {"conditions": [{"type": "Allocated", "status": "False", "reason": reason,
                    "message": "", "lastTransitionTime": "1970-01-01T00:16:30Z"}]}});
            let service: Service = serde_json::from_value(object).unwrap();
            assert_eq!(address(&service), shown, "{reason}");
        }
    }

    #[test]
    fn three_endpoints_are_named() {
        let now = Timestamp::UNIX_EPOCH;
        let subset = |ips: &[&str]| {
            let ips: Vec<_> = ips.iter().map(|ip| json!({ "ip": ip })).collect();
            json!({"addresses": ips, "ports": [{"port": 80}]})
        };
        for (subsets, expected) in [
            (json!([]), NONE),
            (
                json!([subset(&["10.0.0.1", "fd00::1"])]),
                "10.0.0.1:80,[fd00::1]:80",
            ),
            (
                json!([
                    subset(&["1.1.1.1", "2.2.2.2"]),
                    subset(&["3.3.3.3", "4.4.4.4", "5.5.5.5"])
                ]),
                "1.1.1.1:80,2.2.2.2:80,3.3.3.3:80 + 2 more...",
            ),
        ] {
            let object = json!({"apiVersion": "v1", "kind": "Endpoints", "metadata": {"name": "e"}, "subsets": subsets});
            let row = endpoints(&serde_json::from_value(object).unwrap(), now);
            assert_eq!(row, ["e", expected, "<unknown>"]);
        }
    }
}
