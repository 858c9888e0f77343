//! Validation of `spec.ports` of a service, by the API server's rules.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::error::{Path, Report};
use super::pod::Protocol;
use super::service::{ServiceAddress, ServicePort, TargetPort};
use super::service_rules::Type;
use super::{names, node_ports};

/// Port of the kubelet, which a load balancer may not use.
const KUBELET_PORT: i32 = 10250;

/// Validates and converts all ports.
pub(crate) fn ports(
    spec: &core::ServiceSpec,
    kind: Type,
    address: &ServiceAddress,
    path: &Path<'_>,
    report: &Report,
) -> Vec<ServicePort> {
    let list = path.field("ports");
    let written = spec.ports.as_deref().unwrap_or_default();
    if written.is_empty()
        && matches!(address, ServiceAddress::Any | ServiceAddress::Given(_))
        && !report.is_wrong_below(&list)
    {
        report.required(&list);
    }
    let (mut names, mut numbers, mut nodes) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    let mut result = Vec::new();
    for (index, port) in written.iter().enumerate() {
        let path = list.index(index);
        let converted = one_port(port, kind, &path, report);
        let at = path.field("name");
        if converted.name.is_empty() {
            if written.len() > 1 {
                report.required(&at);
            }
        } else if let Some(problem) = names::dns_label(&converted.name) {
            report.invalid(&at, &converted.name, problem);
        } else if !names.insert(converted.name.clone()) {
            report.duplicate(&at, &converted.name);
        }
        if converted.port > 0 && !numbers.insert((converted.protocol, converted.port)) {
            let which = format!("{}/{}", converted.port, word(converted.protocol));
            report.duplicate(&path, which);
        }
        if let Some(number) = converted.node_port
            && !nodes.insert((converted.protocol, number))
        {
            report.duplicate(&path.field("nodePort"), number);
        }
        result.push(converted);
    }
    result
}

fn one_port(port: &core::ServicePort, kind: Type, path: &Path<'_>, report: &Report) -> ServicePort {
    let protocol = match port.protocol.as_deref() {
        None | Some("" | "TCP") => Protocol::Tcp,
        Some("UDP") => Protocol::Udp,
        Some("SCTP") => Protocol::Sctp,
        Some(other) => {
            report.unsupported(&path.field("protocol"), other, &["SCTP", "TCP", "UDP"]);
            Protocol::Tcp
        }
    };
    let number = port_number(port.port, &path.field("port"), report);
    if kind == Type::LoadBalancer && port.port == KUBELET_PORT {
        let detail = "may not expose port 10250 externally since it is used by kubelet";
        report.invalid(path, port.port, detail);
    }
    let target = match &port.target_port {
        // The target defaults to the port itself; errors in that are already reported.
        None => TargetPort::Number(number),
        Some(IntOrString::Int(same)) if *same == port.port => TargetPort::Number(number),
        Some(IntOrString::Int(other)) => {
            TargetPort::Number(port_number(*other, &path.field("targetPort"), report))
        }
        Some(IntOrString::String(name)) => {
            let at = path.field("targetPort");
            if let Some(problem) = names::port_name(name) {
                let message = format!("Invalid value: {name:?}: {problem}");
                match name.parse::<u16>() {
                    Ok(_) => {
                        let hint = "write the number without quotes: in quotes it is a port's name";
                        report.error_hint(&at, message, hint.to_owned());
                    }
                    Err(_) => report.error(&at, message),
                }
            }
            TargetPort::Name(name.clone())
        }
    };
    let app = port.app_protocol.as_deref().unwrap_or_default();
    if let Some(problem) = names::qualified_name(app).filter(|_| !app.is_empty()) {
        report.invalid(&path.field("appProtocol"), app, problem);
    }
    ServicePort {
        name: port.name.clone().unwrap_or_default(),
        protocol,
        port: number,
        target,
        node_port: node_port(port, kind, path, report),
    }
}

fn node_port(
    port: &core::ServicePort,
    kind: Type,
    path: &Path<'_>,
    report: &Report,
) -> Option<u16> {
    let at = path.field("nodePort");
    let number = port.node_port?;
    let not_for = match kind {
        Type::ClusterIp => Some("ClusterIP"),
        Type::ExternalName => Some("ExternalName"),
        Type::NodePort | Type::LoadBalancer => None,
    };
    if let Some(kind) = not_for {
        report.forbidden(&at, format_args!("may not be used when `type` is '{kind}'"));
        return None;
    }
    let fits = u16::try_from(number)
        .ok()
        .filter(|number| node_ports::RANGE.contains(number));
    if fits.is_none() {
        let (first, last) = (node_ports::RANGE.start(), node_ports::RANGE.end());
        let detail = format_args!(
            "provided port is not in the valid range. The range of valid ports is {first}-{last}"
        );
        report.invalid(&at, number, detail);
    }
    fits
}

fn port_number(number: i32, path: &Path<'_>, report: &Report) -> u16 {
    match u16::try_from(number) {
        Ok(port) if port > 0 => port,
        _ => {
            report.invalid(path, number, "must be between 1 and 65535, inclusive");
            0
        }
    }
}

fn word(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Tcp => "TCP",
        Protocol::Udp => "UDP",
        Protocol::Sctp => "SCTP",
    }
}
