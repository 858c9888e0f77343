//! Validation of services: the API server's rules (`ValidateService`) and messages, its defaults, and a warning for
//! each field without effect on one node.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::error::{Path, Report};
use super::pod::PodKey;
use super::service::{Families, ServiceAddress, ServiceDocument, ServiceSpec};
use super::service_ports::ports;
use super::{aliases, annotations, assemble, names};

/// `spec.type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Type {
    ClusterIp,
    NodePort,
    LoadBalancer,
    ExternalName,
}

/// Validates and converts a decoded service.
pub(crate) fn service(
    mut service: core::Service,
    path: &Path<'_>,
    report: &Report,
) -> Option<ServiceDocument> {
    report.begin(path);
    defaults(&mut service);
    metadata(&service, &path.field("metadata"), report);
    let at = path.field("spec");
    let Some(spec) = &service.spec else {
        report.required(&at);
        return None;
    };
    let kind = kind(spec, &at, report);
    let address = address(spec, kind, &at, report);
    let ports = ports(spec, kind, &address, &at, report);
    let selector = selector(spec, kind, &at, report);
    let client_affinity = affinity(spec, &at, report);
    policies(spec, &at, report);
    let families = families(spec, &address);
    let metadata = path.field("metadata");
    let written = service.metadata.annotations.as_ref();
    let annotations = metadata.field("annotations");
    let aliases = aliases::of(written, &annotations, report);
    if kind == Type::ExternalName && !aliases.is_empty() {
        let at = annotations.field(aliases::ANNOTATION);
        report.forbidden(&at, "an ExternalName is an alias itself");
    }
    idle(spec, (kind, &address), &at, report);
    let warnings = report.take_warnings();
    if !report.is_clean() {
        return None;
    }
    let spec = ServiceSpec {
        key: PodKey::new(
            service.metadata.namespace.as_deref().unwrap_or_default(),
            service.metadata.name.as_deref().unwrap_or_default(),
        ),
        aliases,
        selector,
        address,
        families,
        ports,
        with_unready: spec.publish_not_ready_addresses == Some(true),
        client_affinity,
        warnings,
    };
    Some(ServiceDocument {
        spec,
        manifest: service,
    })
}

/// Fills in the API server's defaults.
fn defaults(service: &mut core::Service) {
    service.status = None;
    let metadata = &mut service.metadata;
    metadata.deletion_grace_period_seconds = None;
    metadata.resource_version = None;
    metadata.self_link = None;
    text(&mut metadata.namespace, "default");
    let Some(spec) = &mut service.spec else {
        return;
    };
    // Charts write empty texts for fields that are not set.
    for field in [
        &mut spec.external_traffic_policy,
        &mut spec.load_balancer_ip,
        &mut spec.external_name,
    ] {
        field.take_if(|text| text.is_empty());
    }
    text(&mut spec.type_, "ClusterIP");
    text(&mut spec.session_affinity, "None");
    if spec.type_.as_deref() != Some("ExternalName") {
        text(&mut spec.internal_traffic_policy, "Cluster");
    }
    if matches!(spec.type_.as_deref(), Some("NodePort" | "LoadBalancer")) {
        text(&mut spec.external_traffic_policy, "Cluster");
    }
    for port in spec.ports.iter_mut().flatten() {
        text(&mut port.protocol, "TCP");
        let absent = match &port.target_port {
            None => true,
            Some(IntOrString::Int(number)) => *number == 0,
            Some(IntOrString::String(name)) => name.is_empty(),
        };
        if absent {
            port.target_port = Some(IntOrString::Int(port.port));
        }
        port.node_port = port.node_port.filter(|number| *number != 0);
    }
    spec.cluster_ip = spec.cluster_ip.take().filter(|ip| !ip.is_empty());
    if let (Some(ip), None) = (&spec.cluster_ip, &spec.cluster_ips) {
        spec.cluster_ips = Some(vec![ip.clone()]);
    }
}

fn text(field: &mut Option<String>, default: &str) {
    if field.as_deref().is_none_or(str::is_empty) {
        *field = Some(default.to_owned());
    }
}

fn metadata(service: &core::Service, path: &Path<'_>, report: &Report) {
    let at = path.field("name");
    match service.metadata.name.as_deref().unwrap_or_default() {
        "" => report.error(&at, "Required value: name is needed for the service"),
        name => {
            if let Some(problem) = names::dns_1035_label(name) {
                report.invalid(&at, name, problem);
            }
        }
    }
    assemble::shared_metadata(&service.metadata, path, report);
    annotations::check(&service.metadata, &annotations::OF_SERVICES, path, report);
}

fn kind(spec: &core::ServiceSpec, path: &Path<'_>, report: &Report) -> Type {
    match spec.type_.as_deref().unwrap_or("ClusterIP") {
        "ClusterIP" => Type::ClusterIp,
        "NodePort" => Type::NodePort,
        "LoadBalancer" => Type::LoadBalancer,
        "ExternalName" => Type::ExternalName,
        other => {
            let words = ["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"];
            report.unsupported(&path.field("type"), other, &words);
            Type::ClusterIp
        }
    }
}

fn address(
    spec: &core::ServiceSpec,
    kind: Type,
    path: &Path<'_>,
    report: &Report,
) -> ServiceAddress {
    let ips = spec.cluster_ips.as_deref().unwrap_or_default();
    let list = path.field("clusterIPs");
    if kind == Type::ExternalName {
        return external(spec, path, report);
    }
    if let Some(first) = &spec.cluster_ip
        && ips.first() != Some(first)
    {
        report.invalid(&list, ips, "first value must match `clusterIP`");
    }
    if ips.is_empty() {
        return ServiceAddress::Any;
    }
    if ips == ["None"] {
        let not_for = match kind {
            Type::NodePort => Some("NodePort"),
            Type::LoadBalancer => Some("LoadBalancer"),
            Type::ClusterIp | Type::ExternalName => None,
        };
        if let Some(kind) = not_for {
            let detail = format_args!("may not be set to 'None' for {kind} services");
            report.invalid(&list.index(0), "None", detail);
        }
        return ServiceAddress::Headless;
    }
    given(spec, ips, path, report)
}

fn external(spec: &core::ServiceSpec, path: &Path<'_>, report: &Report) -> ServiceAddress {
    let listed = |list: &Option<Vec<String>>| list.as_ref().is_some_and(|l| !l.is_empty());
    for (field, is_given) in [
        ("clusterIPs", listed(&spec.cluster_ips)),
        ("ipFamilies", listed(&spec.ip_families)),
        ("ipFamilyPolicy", spec.ip_family_policy.is_some()),
    ] {
        if is_given {
            let detail = "may not be set for ExternalName services";
            report.forbidden(&path.field(field), detail);
        }
    }
    let at = path.field("externalName");
    let written = spec.external_name.as_deref().unwrap_or_default();
    let name = written.strip_suffix('.').unwrap_or(written);
    if name.is_empty() {
        report.required(&at);
    } else if let Some(problem) = names::dns_subdomain(name) {
        report.invalid(&at, name, problem);
    }
    ServiceAddress::External(name.to_owned())
}

fn given(
    spec: &core::ServiceSpec,
    ips: &[String],
    path: &Path<'_>,
    report: &Report,
) -> ServiceAddress {
    let list = path.field("clusterIPs");
    if ips.len() > 2 {
        report.invalid(&list, ips, "may only hold up to 2 values");
    }
    let mut result: Vec<IpAddr> = Vec::new();
    for (index, text) in ips.iter().enumerate() {
        let at = list.index(index);
        // Report the error at the field that the user wrote.
        let single = path.field("clusterIP");
        let at = match index == 0 && spec.cluster_ip.is_some() {
            true => &single,
            false => &at,
        };
        match text.parse::<IpAddr>() {
            Ok(ip) if is_special(ip) => {
                report.invalid(at, text, "must be the address of a host");
            }
            Ok(ip) if result.iter().any(|other| other.is_ipv4() == ip.is_ipv4()) => {
                report.invalid(
                    &list,
                    ips,
                    "may specify no more than one IP for each IP family",
                );
            }
            Ok(ip) => {
                let families = spec.ip_families.as_deref().unwrap_or_default();
                let family = if ip.is_ipv4() { "IPv4" } else { "IPv6" };
                if let Some(other) = families.get(index).filter(|other| *other != family) {
                    let detail = format_args!(
                        "expected an {other} value as indicated by `ipFamilies[{index}]`"
                    );
                    report.invalid(at, text, detail);
                }
                result.push(ip);
            }
            Err(_) => {
                let detail = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)";
                report.invalid(at, text, detail);
            }
        }
    }
    ServiceAddress::Given(result)
}

fn is_special(ip: IpAddr) -> bool {
    let link_local = match ip {
        IpAddr::V4(ip) => ip.is_link_local() || ip.is_broadcast(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    };
    ip.is_unspecified() || ip.is_loopback() || ip.is_multicast() || link_local
}

fn selector(
    spec: &core::ServiceSpec,
    kind: Type,
    path: &Path<'_>,
    report: &Report,
) -> BTreeMap<String, String> {
    let at = path.field("selector");
    let selector = spec.selector.clone().unwrap_or_default();
    for (key, value) in &selector {
        let at = at.field(key);
        if let Some(problem) = names::qualified_name(key) {
            report.invalid(&at, key, problem);
        }
        if let Some(problem) = names::label_value(value) {
            report.invalid(&at, value, problem);
        }
    }
    if kind == Type::ExternalName {
        return BTreeMap::new();
    }
    if selector.is_empty() {
        let what =
            "not given, and endpoints are not read from documents: no pod is behind the service";
        report.warn(&at, what);
    }
    selector
}

fn affinity(spec: &core::ServiceSpec, path: &Path<'_>, report: &Report) -> bool {
    let at = path.field("sessionAffinityConfig");
    let config = spec.session_affinity_config.as_ref();
    let timeout = config.and_then(|c| c.client_ip.as_ref()?.timeout_seconds);
    match spec.session_affinity.as_deref() {
        None | Some("" | "None") => {
            if config.is_some() {
                report.forbidden(&at, "must not be set when session affinity is None");
            }
            false
        }
        Some("ClientIP") => {
            let at = at.field("clientIP");
            let at = at.field("timeoutSeconds");
            match timeout {
                None => {}
                Some(1..=86_400) => report.warn(
                    &at,
                    "accepted, but a client keeps its pod for as long as the pods stay the same",
                ),
                Some(other) => {
                    let detail = "must be greater than 0 and less than 86400";
                    report.invalid(&at, other, detail);
                }
            }
            true
        }
        Some(other) => {
            let words = ["ClientIP", "None"];
            report.unsupported(&path.field("sessionAffinity"), other, &words);
            false
        }
    }
}

/// Checks fields with a fixed set of values, which make no difference on one node.
fn policies(spec: &core::ServiceSpec, path: &Path<'_>, report: &Report) {
    let families = ["PreferDualStack", "RequireDualStack", "SingleStack"];
    let traffic = ["Cluster", "Local"];
    let fields: [(&str, &Option<String>, &[&str]); 4] = [
        (
            "trafficDistribution",
            &spec.traffic_distribution,
            &["PreferClose", "PreferSameNode", "PreferSameZone"],
        ),
        ("ipFamilyPolicy", &spec.ip_family_policy, &families),
        (
            "externalTrafficPolicy",
            &spec.external_traffic_policy,
            &traffic,
        ),
        (
            "internalTrafficPolicy",
            &spec.internal_traffic_policy,
            &traffic,
        ),
    ];
    for (field, given, words) in fields {
        if let Some(given) = given.as_deref().filter(|given| !words.contains(given)) {
            report.unsupported(&path.field(field), given, words);
        }
    }
    let list = path.field("ipFamilies");
    let mut seen = BTreeSet::new();
    for (index, family) in spec.ip_families.iter().flatten().enumerate() {
        let at = list.index(index);
        if !["IPv4", "IPv6"].contains(&family.as_str()) {
            report.unsupported(&at, family, &["IPv4", "IPv6"]);
        } else if !seen.insert(family) {
            report.duplicate(&at, family);
        }
    }
}

/// The families that it asks for: by name, or by its addresses. Two of them without a policy are both.
fn families(spec: &core::ServiceSpec, address: &ServiceAddress) -> Families {
    let listed = spec.ip_families.as_deref().unwrap_or_default();
    let given = match address {
        ServiceAddress::Given(given) => &given[..],
        _ => &[],
    };
    let listed_first = listed.first().map(|family| family == "IPv6");
    let first = listed_first.or(given.first().map(IpAddr::is_ipv6));
    let v6_first = first.unwrap_or(false);
    let two = listed.len() > 1 || given.len() > 1;
    match (spec.ip_family_policy.as_deref(), first) {
        (Some("RequireDualStack"), _) => Families::Both { v6_first },
        (Some("PreferDualStack"), _) => Families::All { v6_first },
        (None, _) if two => Families::All { v6_first },
        (_, Some(v6)) => Families::Only { v6 },
        (_, None) => Families::First,
    }
}

/// Warns of fields without effect here.
fn idle(
    spec: &core::ServiceSpec,
    (kind, address): (Type, &ServiceAddress),
    path: &Path<'_>,
    report: &Report,
) {
    const NO_BALANCER: &str = "there is no load balancer here";
    let some = |list: &Option<Vec<String>>| list.as_ref().is_some_and(|l| !l.is_empty());
    let has_address = matches!(address, ServiceAddress::Any | ServiceAddress::Given(_));
    let is_reached =
        matches!(kind, Type::NodePort | Type::LoadBalancer) || some(&spec.external_ips);
    let two = |list: &Option<Vec<String>>| list.as_ref().is_some_and(|l| l.len() > 1);
    // An API server refuses the last three. They harm nothing, and boxes have manifests with them.
    let fields = [
        (
            "type",
            kind == Type::LoadBalancer,
            "there is no load balancer here: it is like `type: NodePort`",
        ),
        (
            "externalIPs",
            some(&spec.external_ips),
            "only the node's own addresses lead to a service, by `nodePort`",
        ),
        (
            "loadBalancerIP",
            spec.load_balancer_ip.is_some(),
            NO_BALANCER,
        ),
        (
            "loadBalancerClass",
            spec.load_balancer_class.is_some(),
            NO_BALANCER,
        ),
        (
            "externalName",
            spec.external_name.is_some() && kind != Type::ExternalName,
            "only `type: ExternalName` has one",
        ),
        (
            "sessionAffinity",
            spec.session_affinity.as_deref() == Some("ClientIP") && !has_address,
            "clients choose a pod themselves: the service has no address",
        ),
        (
            "healthCheckNodePort",
            spec.health_check_node_port.is_some_and(|port| port != 0),
            NO_BALANCER,
        ),
        (
            "externalTrafficPolicy",
            spec.external_traffic_policy.is_some() && !is_reached,
            "nothing outside reaches the service",
        ),
        (
            "allocateLoadBalancerNodePorts",
            spec.allocate_load_balancer_node_ports.is_some() && kind != Type::LoadBalancer,
            "only `type: LoadBalancer` has it",
        ),
        (
            "ipFamilyPolicy",
            spec.ip_family_policy.as_deref() == Some("SingleStack")
                && (two(&spec.ip_families) || two(&spec.cluster_ips)),
            "there are two families or addresses: write PreferDualStack, or one of them",
        ),
    ];
    for (field, _, what) in fields.iter().filter(|(_, given, _)| *given) {
        report.warn(&path.field(field), format_args!("accepted, but {what}"));
    }
    if some(&spec.load_balancer_source_ranges) {
        // Ignoring it would open a service that is meant to be restricted.
        report.error_hint(
            &path.field("loadBalancerSourceRanges"),
            "is not supported: clients are not limited to ranges",
            "remove it and use the node's firewall".to_owned(),
        );
    }
}
