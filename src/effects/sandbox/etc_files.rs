//! What do `/etc/hosts`, `/etc/resolv.conf` and `/etc/hostname` say in a pod? The kubelet's texts
//! (kubelet-behaviour §11.2–§11.4).

use std::fmt::Write as _;
use std::fs;
use std::net::IpAddr;
use std::path::Path;

use crate::spec::{DnsPolicy, HostAlias, PodSpec};

/// Limits of glibc's resolver as the kubelet applies them.
const MAX_NAMESERVERS: usize = 3;
const MAX_SEARCHES: usize = 32;

/// `/etc/hosts`.
pub(super) fn hosts(
    spec: &PodSpec,
    domain: Option<&str>,
    ips: &[IpAddr],
    node_hosts: &str,
) -> String {
    let mut text = String::new();
    if spec.host_network {
        text.push_str("# Kubernetes-managed hosts file (host network).\n");
        text.push_str(node_hosts);
    } else {
        text.push_str(
            "# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n\
             fe00::0\tip6-localnet\nfe00::0\tip6-mcastprefix\nfe00::1\tip6-allnodes\nfe00::2\tip6-allrouters\n",
        );
        // Without an address of its own the pod still has to find itself by name.
        let loopback = [IpAddr::from([127, 0, 0, 1])];
        for ip in if ips.is_empty() { &loopback } else { ips } {
            let _ = match domain {
                Some(domain) => {
                    writeln!(text, "{ip}\t{}.{domain}\t{}", spec.hostname, spec.hostname)
                }
                None => writeln!(text, "{ip}\t{}", spec.hostname),
            };
        }
    }
    aliases(&mut text, &spec.host_aliases);
    text
}

fn aliases(text: &mut String, aliases: &[HostAlias]) {
    if aliases.is_empty() {
        return;
    }
    text.push_str("\n# Entries added by HostAliases.\n");
    for alias in aliases {
        let _ = writeln!(text, "{}\t{}", alias.ip, alias.hostnames.join("\t"));
    }
}

/// `/etc/resolv.conf`. Without cluster DNS, `ClusterFirst` falls back to the node's resolver as on a kubelet.
pub(super) fn resolv_conf(spec: &PodSpec, node: &str) -> String {
    let mut conf = match spec.dns_policy {
        DnsPolicy::None => Resolver::default(),
        DnsPolicy::Default | DnsPolicy::ClusterFirst | DnsPolicy::ClusterFirstWithHostNet => {
            Resolver::parse(node)
        }
    };
    let config = &spec.dns_config;
    extend_new(&mut conf.nameservers, &config.nameservers);
    extend_new(&mut conf.searches, &config.searches);
    for (name, value) in &config.options {
        let option = value
            .as_ref()
            .map_or_else(|| name.clone(), |value| format!("{name}:{value}"));
        conf.options
            .retain(|have| have.split(':').next() != Some(name));
        conf.options.push(option);
    }
    conf.nameservers.truncate(MAX_NAMESERVERS);
    conf.searches.truncate(MAX_SEARCHES);
    conf.text()
}

#[derive(Debug, Default)]
struct Resolver {
    nameservers: Vec<String>,
    searches: Vec<String>,
    options: Vec<String>,
}

impl Resolver {
    fn parse(text: &str) -> Self {
        let mut conf = Self::default();
        for line in text.lines() {
            let mut words = line.split_whitespace();
            match words.next() {
                Some("nameserver") => conf.nameservers.extend(words.next().map(str::to_owned)),
                Some("search") => {
                    let trimmed = words.map(|word| word.trim_end_matches('.').to_owned());
                    conf.searches = trimmed.filter(|word| !word.is_empty()).collect();
                }
                Some("options") => conf.options = words.map(str::to_owned).collect(),
                _ => {}
            }
        }
        conf
    }

    fn text(&self) -> String {
        let mut text = String::new();
        if !self.searches.is_empty() {
            let _ = writeln!(text, "search {}", self.searches.join(" "));
        }
        for server in &self.nameservers {
            let _ = writeln!(text, "nameserver {server}");
        }
        if !self.options.is_empty() {
            let _ = writeln!(text, "options {}", self.options.join(" "));
        }
        text
    }
}

fn extend_new(list: &mut Vec<String>, more: &[String]) {
    for item in more {
        if !list.contains(item) {
            list.push(item.clone());
        }
    }
}

/// The node's resolver file; a path that is empty stands for a resolver on the node itself.
pub(super) fn node_resolv_conf(path: &Path) -> String {
    if path.as_os_str().is_empty() {
        return "nameserver 127.0.0.1\n".to_owned();
    }
    fs::read_to_string(path).unwrap_or_default()
}

/// The kernel hostname of the pod.
pub(super) fn hostname(spec: &PodSpec, domain: Option<&str>) -> String {
    match domain {
        Some(domain) if spec.hostname_as_fqdn => format!("{}.{domain}", spec.hostname),
        _ => spec.hostname.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_search_line_wins_and_options_merge() {
        let conf = Resolver::parse(
            "search a.b\nnameserver 1.1.1.1\nsearch c. .\noptions ndots:2 rotate\n",
        );
        assert_eq!(
            conf.text(),
            "search c\nnameserver 1.1.1.1\noptions ndots:2 rotate\n"
        );
    }

    #[test]
    fn an_address_is_not_listed_twice() {
        let mut list = vec!["1.1.1.1".to_owned()];
        extend_new(&mut list, &["1.1.1.1".to_owned(), "8.8.8.8".to_owned()]);
        assert_eq!(list, ["1.1.1.1", "8.8.8.8"]);
    }
}
