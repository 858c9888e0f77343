//! `network_mode`, `hostname`, `extra_hosts`, `dns`: what a service asks of its pod's network.

use super::tree::{
    Entries, entries, has, map_of_texts, on, scalar, scalars, set, set_list, set_text, text, texts,
};
use super::words::object_name;
use super::work::{Pod, Work};
use crate::spec::value::Value;
use crate::spec::{aliases, names};

/// The longest name that a kernel takes.
const MAX_HOST: usize = 64;

/// Limit of a pod's name servers.
const MAX_SERVERS: usize = 3;

pub(super) fn network(work: &Work<'_>, service: &Value, pod: &mut Pod) {
    match scalar(service, "network_mode") {
        Some("host") => pod.share(work, "hostNetwork", on()),
        None | Some("bridge" | "default" | "") => {}
        // Those of the same project share a pod; `documents.rs` tells of others.
        Some(other) if other.starts_with("service:") || other.starts_with("container:") => {}
        Some(other) => work.lost(&mut pod.spec, format_args!("network_mode: {other}")),
    }
    if let Some(host) = scalar(service, "hostname").filter(|host| !host.is_empty()) {
        let written = host;
        let host = written.to_ascii_lowercase();
        let is_plain = object_name(&host) == host;
        let is_valid = is_plain || names::dns_subdomain(&host).is_none() && host.len() <= MAX_HOST;
        let why = match is_valid {
            true => "names are in lower case here",
            false => "it may have letters, digits, `-` and dots",
        };
        if !is_valid || host != written {
            work.lost(&mut pod.spec, format_args!("hostname: {written}: {why}"));
        }
        if is_valid {
            let field = if is_plain {
                "hostname"
            } else {
                "hostnameOverride"
            };
            pod.share(work, field, text(host));
        }
    }
    if scalar(service, "domainname").is_some() {
        work.lost(&mut pod.spec, format_args!("domainname"));
    }
    of_networks(work, service, pod);
    hosts(work, service, pod);
    dns(work, service, pod);
}

/// `dns`, `dns_search` and `dns_opt`.
fn dns(work: &Work<'_>, service: &Value, pod: &mut Pod) {
    let mut dns = Entries::new();
    for &(key, field) in &[("dns", "nameservers"), ("dns_search", "searches")] {
        let mut taken = Vec::new();
        for word in scalars(service.get(key)) {
            // A dot alone asks for no domain to search.
            if ["", "."].contains(&word) {
                continue;
            }
            let of = fixed_address(&work.shared.project.services, word);
            if let Some(of) = of {
                let what = format_args!(
                    "{key}: {word}: the fixed address of {of}, which it does not have here"
                );
                work.lost(&mut pod.spec, what);
            }
            // podman's `none` leaves the image's own file.
            let is_wrong = key == "dns" && word.parse::<std::net::IpAddr>().is_err();
            if is_wrong {
                let what = format_args!("dns: {word}: it is no address of a server");
                work.lost(&mut pod.spec, what);
            }
            if of.is_some() || is_wrong {
                continue;
            }
            match key == "dns" && taken.len() == MAX_SERVERS {
                true => work.lost(
                    &mut pod.spec,
                    format_args!("dns: {word}: a pod has {MAX_SERVERS} servers at most"),
                ),
                false => taken.push(text(word)),
            }
        }
        set_list(&mut dns, field, taken);
    }
    let mut options = Vec::new();
    for word in scalars(service.get("dns_opt")) {
        options.push(match word.split_once(':') {
            Some((name, value)) => map_of_texts(&[("name", name), ("value", value)]),
            None => map_of_texts(&[("name", word)]),
        });
    }
    set_list(&mut dns, "options", options);
    if has(&dns, "nameservers") {
        let what = format_args!(
            "dns: these servers are asked only if coracle's own does not answer; with `dnsPolicy: None` they are the \
             only ones, and know neither other pods nor the node"
        );
        work.lost(&mut pod.spec, what);
    }
    if !dns.is_empty() {
        pod.share(work, "dnsConfig", Value::Map(dns));
    }
}

/// What a service asks of the networks it is in; its names are in `names.rs`.
fn of_networks(work: &Work<'_>, service: &Value, pod: &mut Pod) {
    for (network, asked) in entries(service.get("networks")) {
        for (key, _) in entries(Some(asked)) {
            let why = match &**key {
                // There is one network, so none goes before another.
                "aliases" | "priority" | "gw_priority" => continue,
                "ipv4_address" | "ipv6_address" => ": a fixed address; use the name",
                "mac_address" => ": pods have addresses of their own",
                key if key.starts_with("x-") => continue,
                _ => "",
            };
            work.lost(&mut pod.spec, format_args!("networks.{network}.{key}{why}"));
        }
    }
}

/// The service that has this address fixed in a network.
pub(super) fn fixed_address<'s>(services: &'s Entries, address: &str) -> Option<&'s str> {
    let has = |service: &Value| {
        entries(service.get("networks")).iter().any(|(_, network)| {
            let fixed = ["ipv4_address", "ipv6_address"];
            fixed
                .iter()
                .any(|key| scalar(network, key) == Some(address))
        })
    };
    let found = services.iter().find(|(_, service)| has(service));
    found.map(|(name, _)| &**name)
}

/// The entries of `extra_hosts`, as `NAME=ADDRESS` or `NAME:ADDRESS`.
pub(super) fn extra_hosts(value: Option<&Value>) -> Vec<String> {
    let mut all = Vec::new();
    match value {
        Some(Value::Map(map)) => {
            for (name, addresses) in map {
                for address in scalars(Some(addresses)) {
                    all.push(format!("{name}={address}"));
                }
            }
        }
        list => all.extend(scalars(list).into_iter().map(str::to_owned)),
    }
    all
}

/// Whether a service's pod is on the host's network, by any of its containers.
pub(super) fn is_of_host(work: &Work<'_>) -> bool {
    let mut members = work.shared.project.services.iter();
    members.any(|(name, service)| {
        let of_pod = *name == work.service || work.members.contains(&&**name);
        of_pod && scalar(service, "network_mode") == Some("host")
    })
}

/// `extra_hosts` as host aliases. The address of the node is not known here, but pods know two names of it.
fn hosts(work: &Work<'_>, service: &Value, pod: &mut Pod) {
    let mut aliases: Vec<Value> = Vec::new();
    let is_of_host = is_of_host(work);
    let names_node = |name: &str| {
        aliases::OF_NODE
            .iter()
            .any(|known| known.eq_ignore_ascii_case(name))
    };
    for entry in extra_hosts(service.get("extra_hosts")) {
        let (written, ip) = entry
            .split_once('=')
            .or_else(|| entry.split_once(':'))
            .unwrap_or((&entry, ""));
        let lost = |aliases: &mut Vec<Value>, why: &str| {
            work.lost(aliases, format_args!("extra_hosts: {entry}: {why}"));
        };
        // podman takes several names of one address, as a hosts file does. Case does not matter.
        let mut names = Vec::new();
        for name in written.split([';', ' ', '\t']) {
            let name = name.to_ascii_lowercase();
            if name.is_empty() {
                continue;
            }
            if names::dns_subdomain(&name).is_none() {
                names.push(name);
            } else {
                let what = format_args!(
                    "extra_hosts: {entry}: the name {name} may have letters, digits, `-` and dots"
                );
                work.lost(&mut aliases, what);
            }
        }
        if names.is_empty() {
            continue;
        }
        let ip = match ip.trim_start_matches('[').trim_end_matches(']') {
            "host-gateway" if is_of_host => "127.0.0.1",
            "host-gateway" if names.iter().all(|name| names_node(name)) => continue,
            ip => ip,
        };
        match ip.parse::<std::net::IpAddr>() {
            Ok(_) if fixed_address(&work.shared.project.services, ip).is_some() => {
                lost(&mut aliases, "a fixed address; use the name");
            }
            Ok(_) => {
                let mut alias = Entries::new();
                set_text(&mut alias, "ip", ip);
                set(&mut alias, "hostnames", texts(names));
                aliases.push(Value::Map(alias));
            }
            Err(_) if ip == "host-gateway" => lost(
                &mut aliases,
                "write an address of the node in its place, or use the name host.containers.internal",
            ),
            Err(_) => lost(&mut aliases, "only addresses can be given"),
        }
    }
    if !aliases.is_empty() {
        pod.share(work, "hostAliases", Value::List(aliases));
    }
}
