//! `coracle describe service`: laid out as kubectl's.

use std::fmt::Write as _;

use k8s_openapi::api::core::v1::{Endpoints, Event, Service, ServicePort, ServiceSpec};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde_json::{Value, json};

use super::client::Client;
use super::describe_claim::events;
use super::describe_configuration::pairs;
use super::describe_node::event_table;
use super::error::{CliError, Result};
use super::put;
use super::sheet::Sheet;
use super::table::one_line;
use crate::api::encode;
use crate::api::service_columns::{address, addresses, selector};
use crate::spec::read_object;
use crate::sys::clock;

/// Width of the column of keys.
const WIDTH: usize = 26;

pub(super) fn run(client: &Client, namespace: &str, names: &[String]) -> Result<()> {
    let ns = encode(namespace);
    for (index, name) in names.iter().enumerate() {
        let path = |kind: &str| format!("/api/v1/namespaces/{ns}/{kind}/{}", encode(name));
        let service = client.get(&path("services"))?;
        let service: Service = read_object(&service)
            .ok_or_else(|| CliError::new("the agent's answer is not a service"))?;
        // An ExternalName service has no endpoints.
        let endpoints = client.get(&path("endpoints")).unwrap_or(Value::Null);
        let endpoints: Endpoints = read_object(&endpoints).unwrap_or_default();
        let place = format!("/api/v1/namespaces/{ns}");
        let events = events(client, &place, "Service", name)?;
        let gap = if index > 0 { "\n\n" } else { "" };
        let page = page(&service, &endpoints, &events);
        put(format!("{gap}{page}").as_bytes())?;
    }
    Ok(())
}

fn line(out: &mut String, key: &str, value: &str) {
    let key = format!("{key}:");
    let _ = writeln!(out, "{key:<WIDTH$}{}", one_line(value));
}

/// Formats the whole page.
fn page(service: &Service, endpoints: &Endpoints, events: &[Event]) -> String {
    let none = ServiceSpec::default();
    let spec = service.spec.as_ref().unwrap_or(&none);
    let meta = &service.metadata;
    let mut out = String::new();
    let name = meta.name.as_deref().unwrap_or_default();
    line(&mut out, "Name", name);
    let namespace = meta.namespace.as_deref().unwrap_or_default();
    line(&mut out, "Namespace", namespace);
    pairs(&mut out, WIDTH, ("Labels", "="), &json!(meta.labels));
    let annotations = json!(meta.annotations);
    pairs(&mut out, WIDTH, ("Annotations", ": "), &annotations);
    let mut line = |key: &str, value: &str| line(&mut out, key, value);
    line("Selector", &selector(spec.selector.as_ref()));
    line("Type", spec.type_.as_deref().unwrap_or_default());
    let listed = |list: &Option<Vec<String>>| match list {
        Some(list) if !list.is_empty() => list.join(","),
        _ => "<none>".to_owned(),
    };
    let policy = spec.ip_family_policy.as_deref();
    line("IP Family Policy", policy.unwrap_or("<none>"));
    line("IP Families", &listed(&spec.ip_families));
    let address = address(service);
    line("IP", address.unwrap_or("<none>"));
    line(
        "IPs",
        &listed(&spec.cluster_ips.clone().filter(|_| address.is_some())),
    );
    if let Some(name) = &spec.external_name {
        line("External Name", name);
    }
    for port in spec.ports.iter().flatten() {
        let [first, target, node] = port_lines(port);
        line("Port", &first);
        line("TargetPort", &target);
        if port.node_port.is_some() {
            line("NodePort", &node);
        }
        let name = port.name.as_deref().unwrap_or_default();
        let behind = addresses(endpoints, Some(name));
        line("Endpoints", &listed(&Some(behind)));
    }
    if spec.ports.as_ref().is_none_or(Vec::is_empty) && spec.external_name.is_none() {
        line("Endpoints", &listed(&Some(addresses(endpoints, None))));
    }
    line(
        "Session Affinity",
        spec.session_affinity.as_deref().unwrap_or("None"),
    );
    for (key, value) in [
        ("External Traffic Policy", &spec.external_traffic_policy),
        ("Internal Traffic Policy", &spec.internal_traffic_policy),
    ] {
        if let Some(value) = value {
            line(key, value);
        }
    }
    if events.is_empty() {
        line("Events", "<none>");
    } else {
        let mut sheet = Sheet::default();
        event_table(&mut sheet, events, clock::timestamp());
        out.push_str(&sheet.render());
    }
    out
}

/// The port, target port and node port: `http  80/TCP`, `http/TCP`, `http  30080/TCP`.
fn port_lines(port: &ServicePort) -> [String; 3] {
    let protocol = port.protocol.as_deref().unwrap_or("TCP");
    let name = port.name.as_deref().unwrap_or("<unset>");
    let target = match &port.target_port {
        Some(IntOrString::Int(number)) => number.to_string(),
        Some(IntOrString::String(name)) => name.clone(),
        None => port.port.to_string(),
    };
    let node = port.node_port.unwrap_or_default();
    [
        format!("{name}  {}/{protocol}", port.port),
        format!("{target}/{protocol}"),
        format!("{name}  {node}/{protocol}"),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_service_does_not_have_is_among_its_events() {
        let reason = "ClusterIPAlreadyAllocated";
        let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"},
            "spec": {"clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1"]},
            "status": {"conditions": [{"type": "Allocated", "status": "False", "reason": reason,
                "message": "", "lastTransitionTime": "1970-01-01T00:16:30Z"}]}});
        let event = json!({"metadata": {}, "involvedObject": {}, "type": "Warning", "reason": reason,
            "message": "service default/web cannot have address 10.0.0.1"});
        let page = page(
            &serde_json::from_value(service).unwrap(),
            &Endpoints::default(),
            &[serde_json::from_value(event).unwrap()],
        );
        for line in [
            "IP:                       <none>",
            "IPs:                      <none>",
            "Events:",
        ] {
            assert!(page.lines().any(|found| found == line), "{line}: {page}");
        }
        let last = page.lines().last().unwrap();
        assert!(
            last.contains(reason) && last.ends_with("10.0.0.1"),
            "{page}"
        );
    }

    #[test]
    fn a_service_is_described_as_kubectl_does() {
        let service = json!({"apiVersion": "v1", "kind": "Service",
            "metadata": {"name": "web", "namespace": "default", "labels": {"a": "1", "b": "2"},
                "annotations": {"coracle.dev/aliases": "app_web"}},
            "spec": {"type": "NodePort", "clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1"],
                "ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack", "selector": {"app": "web"},
                "ports": [{"name": "http", "port": 80, "protocol": "TCP", "targetPort": "web", "nodePort": 30080}],
                "sessionAffinity": "None", "internalTrafficPolicy": "Cluster"}});
        let endpoints = json!({"apiVersion": "v1", "kind": "Endpoints", "metadata": {"name": "web"},
            "subsets": [{"addresses": [{"ip": "10.1.0.2"}], "ports": [{"name": "http", "port": 8080}]}]});
        let page = page(
            &serde_json::from_value(service).unwrap(),
            &serde_json::from_value(endpoints).unwrap(),
            &[],
        );
        let expected = "\
Name:                     web
Namespace:                default
Labels:                   a=1
                          b=2
Annotations:              coracle.dev/aliases: app_web
Selector:                 app=web
Type:                     NodePort
IP Family Policy:         SingleStack
IP Families:              IPv4
IP:                       10.0.0.1
IPs:                      10.0.0.1
Port:                     http  80/TCP
TargetPort:               web/TCP
NodePort:                 http  30080/TCP
Endpoints:                10.1.0.2:8080
Session Affinity:         None
Internal Traffic Policy:  Cluster
Events:                   <none>
";
        assert_eq!(page, expected);
    }
}
