//! Network settings of pods and containers: ports, host names, host aliases, DNS.

use std::collections::BTreeSet;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::{Container, PodSpec};

use super::container::List;
use super::error::{Path, Report};
use super::names;
use super::pod::{ContainerPort, ContainerSpec, DnsConfig, DnsPolicy, HostAlias, Protocol};

/// Validates and converts a container's ports.
pub(crate) fn ports(
    container: &Container,
    host_network: bool,
    path: &Path<'_>,
    report: &Report,
) -> Vec<ContainerPort> {
    let list = path.field("ports");
    let mut seen = BTreeSet::new();
    let mut result = Vec::new();
    for (index, port) in container.ports.iter().flatten().enumerate() {
        let path = list.index(index);
        let name = port.name.clone().filter(|name| !name.is_empty());
        if let Some(name) = &name {
            let at = path.field("name");
            if let Some(problem) = names::port_name(name) {
                report.invalid(&at, name, problem);
            } else if !seen.insert(name.clone()) {
                report.duplicate(&at, name);
            }
        }
        let at = path.field("containerPort");
        let container_port = match port.container_port {
            0 => {
                report.required(&at);
                None
            }
            number => port_number(number, &at, report),
        };
        let written = port.host_port.filter(|number| *number != 0);
        let at = path.field("hostPort");
        let host_port = written.and_then(|number| port_number(number, &at, report));
        if host_network && host_port.is_some() && host_port != container_port {
            let detail = "must match `containerPort` when `hostNetwork` is true";
            report.invalid(&at, written.unwrap_or_default(), detail);
        }
        let protocol = match port.protocol.as_deref() {
            None | Some("" | "TCP") => Protocol::Tcp,
            Some("UDP") => Protocol::Udp,
            Some("SCTP") => Protocol::Sctp,
            Some(other) => {
                report.unsupported(&path.field("protocol"), other, &["SCTP", "TCP", "UDP"]);
                Protocol::Tcp
            }
        };
        let host_ip = port.host_ip.as_deref().filter(|ip| !ip.is_empty());
        result.push(ContainerPort {
            name,
            container_port: container_port.unwrap_or_default(),
            host_port,
            host_ip: host_ip.and_then(|ip| address(ip, &path.field("hostIP"), report)),
            protocol,
        });
    }
    result
}

/// Reports host ports that two containers of one pod use. Init containers that are not sidecars run alone, so their
/// ports conflict with none.
pub(crate) fn port_conflicts(
    regular: &[ContainerSpec],
    init: &[ContainerSpec],
    path: &Path<'_>,
    report: &Report,
) {
    let mut seen = BTreeSet::new();
    let regular = regular.iter().enumerate().map(|each| (List::Regular, each));
    let init = init.iter().enumerate().map(|each| (List::Init, each));
    for (kind, (index, container)) in regular.chain(init) {
        let list = path.field(kind.field());
        let path = list.index(index);
        let path = path.field("ports");
        let mut own = BTreeSet::new();
        let alone = kind == List::Init && !container.is_sidecar();
        let seen = if alone { &mut own } else { &mut seen };
        for (index, port) in container.ports.iter().enumerate() {
            let Some(number) = port.host_port else {
                continue;
            };
            if !seen.insert((number, port.protocol, port.host_ip)) {
                report.duplicate(&path.index(index).field("hostPort"), number);
            }
        }
    }
}

/// Returns a valid port; 0 means absent, and is checked elsewhere.
fn port_number(number: i32, path: &Path<'_>, report: &Report) -> Option<u16> {
    match u16::try_from(number) {
        Ok(port) => Some(port),
        Err(_) => {
            report.invalid(path, number, "must be between 1 and 65535, inclusive");
            None
        }
    }
}

fn address(text: &str, path: &Path<'_>, report: &Report) -> Option<IpAddr> {
    let address = text.parse().ok();
    if address.is_none() {
        let detail = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)";
        report.invalid(path, text, detail);
    }
    address
}

/// The pod's host name.
#[derive(Debug, Default)]
pub(crate) struct HostName {
    /// The pod's own name, at most 63 characters.
    pub(crate) hostname: String,
    /// `<subdomain>.<namespace>.svc`.
    pub(crate) subdomain: Option<String>,
    /// `hostname` as written, if it is not empty.
    pub(crate) given_hostname: Option<String>,
    /// `subdomain` as written, if it is not empty.
    pub(crate) given_subdomain: Option<String>,
}

/// Validates and converts `hostname`, `subdomain` and `hostnameOverride`.
pub(crate) fn host_name(
    spec: &PodSpec,
    (namespace, name): (&str, &str),
    path: &Path<'_>,
    report: &Report,
) -> HostName {
    let given = |text: &Option<String>| text.clone().filter(|t| !t.is_empty());
    let (hostname, subdomain) = (given(&spec.hostname), given(&spec.subdomain));
    for (field, text) in [("hostname", &hostname), ("subdomain", &subdomain)] {
        let problem = text.as_deref().and_then(names::dns_label);
        if let (Some(problem), Some(text)) = (problem, text) {
            report.invalid(&path.field(field), text, problem);
        }
    }
    if let Some(chosen) = given(&spec.hostname_override) {
        let at = path.field("hostnameOverride");
        if let Some(problem) = names::dns_subdomain(&chosen) {
            report.invalid(&at, &chosen, problem);
        } else if chosen.len() > 64 {
            report.invalid(&at, &chosen, "must be no more than 64 characters");
        }
        if spec.set_hostname_as_fqdn == Some(true) {
            report.forbidden(
                &at,
                "setHostnameAsFQDN must be false when hostnameOverride is set",
            );
        }
        if spec.host_network == Some(true) {
            report.forbidden(
                &at,
                "hostNetwork must be false when hostnameOverride is set",
            );
        }
        return HostName {
            hostname: chosen,
            subdomain: None,
            given_hostname: hostname,
            given_subdomain: subdomain,
        };
    }
    let full = hostname.as_deref().unwrap_or(name);
    // Names are ASCII by now, or an error was reported.
    let cut: String = full.chars().take(63).collect();
    let qualified = |subdomain| format!("{subdomain}.{namespace}.svc");
    HostName {
        hostname: cut.trim_end_matches(['-', '.']).to_owned(),
        subdomain: subdomain.as_deref().map(qualified),
        given_hostname: hostname,
        given_subdomain: subdomain,
    }
}

/// Validates and converts `hostAliases`.
pub(crate) fn host_aliases(spec: &PodSpec, path: &Path<'_>, report: &Report) -> Vec<HostAlias> {
    let list = path.field("hostAliases");
    let mut result = Vec::new();
    for (index, alias) in spec.host_aliases.iter().flatten().enumerate() {
        let path = list.index(index);
        let hostnames = alias.hostnames.clone().unwrap_or_default();
        let names = path.field("hostnames");
        if hostnames.is_empty() {
            report.required(&names);
        }
        for (index, name) in hostnames.iter().enumerate() {
            if let Some(problem) = names::dns_subdomain(name) {
                report.invalid(&names.index(index), name, problem);
            }
        }
        if let Some(ip) = address(&alias.ip, &path.field("ip"), report) {
            result.push(HostAlias { ip, hostnames });
        }
    }
    result
}

/// Validates and converts `dnsPolicy`.
pub(crate) fn dns_policy(spec: &PodSpec, path: &Path<'_>, report: &Report) -> DnsPolicy {
    match spec.dns_policy.as_deref() {
        None | Some("ClusterFirst") => DnsPolicy::ClusterFirst,
        Some("ClusterFirstWithHostNet") => DnsPolicy::ClusterFirstWithHostNet,
        Some("Default") => DnsPolicy::Default,
        Some("None") => {
            let config = spec.dns_config.as_ref();
            let servers = config.and_then(|c| c.nameservers.as_ref());
            if servers.is_none_or(Vec::is_empty) {
                report.error(
                    &path.field("dnsConfig").field("nameservers"),
                    "Required value: must provide at least one DNS nameserver when `dnsPolicy` is None",
                );
            }
            DnsPolicy::None
        }
        Some(other) => {
            let words = ["ClusterFirst", "ClusterFirstWithHostNet", "Default", "None"];
            report.unsupported(&path.field("dnsPolicy"), other, &words);
            DnsPolicy::ClusterFirst
        }
    }
}

/// Validates and converts `dnsConfig`.
pub(crate) fn dns_config(spec: &PodSpec, path: &Path<'_>, report: &Report) -> DnsConfig {
    let Some(config) = &spec.dns_config else {
        return DnsConfig::default();
    };
    let path = path.field("dnsConfig");
    let nameservers = config.nameservers.clone().unwrap_or_default();
    let list = path.field("nameservers");
    if nameservers.len() > 3 {
        report.invalid(&list, &nameservers, "must not have more than 3 nameservers");
    }
    for (index, server) in nameservers.iter().enumerate() {
        address(server, &list.index(index), report);
    }
    let searches = config.searches.clone().unwrap_or_default();
    let list = path.field("searches");
    if searches.len() > 32 {
        report.invalid(&list, &searches, "must not have more than 32 search paths");
    }
    if searches.iter().map(|s| s.len() + 1).sum::<usize>() > 2049 {
        let detail =
            "must not have more than 2048 characters (including spaces) in the search list";
        report.invalid(&list, &searches, detail);
    }
    for (index, search) in searches.iter().enumerate() {
        // A single dot and a trailing one are allowed; so are underscores in a label, and one before it (KEP-4427).
        let bare = search.strip_suffix('.').unwrap_or(search);
        let labels = bare
            .split('.')
            .map(|label| label.strip_prefix('_').unwrap_or(label));
        let labels: Vec<&str> = labels.collect();
        let problem = names::dns_subdomain(&labels.join(".").replace('_', "-"));
        if let Some(problem) = problem.filter(|_| search != ".") {
            report.invalid(&list.index(index), search, problem);
        }
    }
    let list = path.field("options");
    let mut options = Vec::new();
    for (index, option) in config.options.iter().flatten().enumerate() {
        let name = option.name.clone().unwrap_or_default();
        if name.is_empty() {
            report.required(&list.index(index).field("name"));
        }
        options.push((name, option.value.clone()));
    }
    DnsConfig {
        nameservers,
        searches,
        options,
    }
}
